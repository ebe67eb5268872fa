//! Types by their names, as casts have them.

use alloc::format;

use trace_interface::symbols::{Type, TypeId};
use trace_language::{
    Diagnostic,
    tree::{TypeKind, TypeName},
};

use super::{Types, integer, shortened};
use crate::{Lowered, names};

impl Types<'_> {
    /// The type that a cast names. None: it is one of plain integers or of nothing in particular.
    pub(crate) fn named(&self, name: &TypeName) -> Lowered<Option<TypeId>> {
        match &name.kind {
            TypeKind::Named(text) => {
                if let Some((bytes, signed)) = integer(text) {
                    return Ok(Some(self.synthetic(Type::Integer { bytes, signed })));
                }
                match &**text {
                    "void" | "()" => return Ok(None),
                    "bool" => return Ok(Some(self.synthetic(Type::Boolean))),
                    "char" => return Ok(Some(self.synthetic(Type::Character))),
                    _ => {}
                }
                let (of, found) = match self.program().map(|program| program.type_named(text)) {
                    // Where the program has none, the kernel may.
                    None => ("the kernel", self.kernel.type_named(text)),
                    Some(Err(paths)) if paths.is_empty() => {
                        ("the program or the kernel", self.kernel.type_named(text))
                    }
                    Some(found) => ("the program", found),
                };
                match found {
                    Ok(id) => Ok(Some(id)),
                    Err(paths) if paths.is_empty() => Err(Diagnostic::new(
                        name.span,
                        format!("no type of {of} is called `{text}`"),
                        match self.options.debug_info {
                            true => "write it as the source does, for example kernel::fs::File",
                            false => names::NO_DEBUG_INFORMATION,
                        },
                    )),
                    Err(paths) => Err(Diagnostic::new(
                        name.span,
                        format!("several types of {of} are called `{text}`"),
                        format!("write the whole path: {}", shortened(&paths)),
                    )),
                }
            }
            TypeKind::Pointer(of) => {
                let Some(to) = self.named(of)? else {
                    return Ok(None);
                };
                Ok(Some(self.synthetic(Type::Pointer {
                    name: "pointer".into(),
                    to,
                })))
            }
            TypeKind::Slice(_) => Err(Diagnostic::new(
                name.span,
                "a pointer to a slice needs its length",
                "cast to a pointer to the first element",
            )),
            TypeKind::Array { of, count } => {
                let Some(of) = self.named(of)? else {
                    return Ok(None);
                };
                Ok(Some(self.synthetic(Type::Array { of, count: *count })))
            }
        }
    }
}
