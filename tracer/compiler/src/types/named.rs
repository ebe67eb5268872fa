//! Types by their names, as casts and the elements of a `Vec` have them.

use alloc::format;

use trace_interface::symbols::{Type, TypeId};
use trace_language::{
    Diagnostic,
    tree::{self, ExpressionKind, Span, StatementKind, TypeKind, TypeName},
};

use super::{Types, integer};
use crate::{Lowered, names};

impl Types<'_> {
    /// The type of the elements of a `Vec<T, A>`. Its pointer leads to bytes, so the name tells.
    pub(crate) fn element(&self, name: &str, span: Span) -> Lowered<TypeId> {
        let parameter = name
            .split_once('<')
            .map_or("", |(_, parameters)| parameters);
        let mut depth = 0_u32;
        let end = parameter.find(|letter| {
            match letter {
                '<' | '(' | '[' => depth += 1,
                '>' | ')' | ']' if depth > 0 => depth -= 1,
                ',' | '>' => return depth == 0,
                _ => {}
            }
            false
        });
        let parameter = &parameter[..end.unwrap_or(parameter.len())];
        let text = format!("kprobe:f {{ print((&{parameter})0); }}");
        // As in a cast.
        let parsed = trace_language::parse_with_room(&text, &[], self.options.has_room);
        let statement = parsed.ok().and_then(|script| {
            let body = script.clauses.into_iter().next()?.body;
            body.statements.into_iter().next()
        });
        if let Some(StatementKind::Expression(tree::Expression {
            kind: ExpressionKind::Call { arguments, .. },
            ..
        })) = statement.map(|statement| statement.kind)
            && let Some(tree::Expression {
                kind: ExpressionKind::Cast { to, .. },
                ..
            }) = arguments.first()
            && let TypeKind::Pointer(of) = &to.kind
            && let Ok(Some(id)) = self.named(of)
        {
            return Ok(id);
        }
        Err(Diagnostic::new(
            span,
            format!("the type of the elements, `{parameter}`, is not found by that name"),
            "cast the pointer: ((&PATH::TYPE)value.buf.inner.ptr)[0]",
        ))
    }

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
                match self.kernel.type_named(text) {
                    Some(id) => Ok(Some(id)),
                    None => Err(Diagnostic::new(
                        name.span,
                        format!("no type of the kernel is called `{text}`"),
                        match self.options.debug_info {
                            true => "write its whole path",
                            false => names::NO_DEBUG_INFORMATION,
                        },
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
