//! Types by their names, as casts have them.

use alloc::format;

use trace_interface::symbols::{Type, TypeId};
use trace_language::{Diagnostic, tree::Span};

use super::{Types, integer, shortened};
use crate::{Lowered, names};

impl Types<'_> {
    /// The type of that name. None: it is one of nothing in particular.
    pub(crate) fn named(&self, text: &str, span: Span) -> Lowered<Option<TypeId>> {
        if let Some((bytes, signed)) = integer(text) {
            return Ok(Some(self.synthetic(Type::Integer { bytes, signed })));
        }
        match text {
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
                span,
                format!("no type of {of} is called `{text}`"),
                match self.options.debug_info {
                    true => {
                        "write it as the source does: its name, or its path such as module::Type"
                    }
                    false => names::NO_DEBUG_INFORMATION,
                },
            )),
            Err(paths) => Err(Diagnostic::new(
                span,
                format!("several types of {of} are called `{text}`"),
                format!("write the whole path: {}", shortened(&paths)),
            )),
        }
    }
}
