//! How a function stands in the source: its name, arguments and result, its file and line.

use std::fmt;

use trace_interface::symbols::Function;

use crate::{DebugInfo, lines, names, session::Session, types};

/// How a function stands in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// For example `fn vfs_write(file: &File, count: usize) -> i64`; `fn name(?)` if the debug
    /// information does not tell arguments and result.
    pub text: String,
    /// File and line.
    pub place: Option<(String, u32)>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if let Some((file, line)) = &self.place {
            write!(f, "  {file}:{line}")?;
        }
        Ok(())
    }
}

impl DebugInfo {
    /// How a function stands in the source.
    pub fn signature(&self, function: &Function) -> Signature {
        self.signature_in(&self.session(), function)
    }

    /// How each of some functions stands in the source: faster than one by one.
    pub fn signatures(&self, functions: &[Function]) -> Vec<Signature> {
        let session = self.session();
        let signature = |function| self.signature_in(&session, function);
        functions.iter().map(signature).collect()
    }

    fn signature_in(&self, session: &Session, function: &Function) -> Signature {
        let name = names::segments(&function.path)
            .pop()
            .unwrap_or_default()
            .to_string();
        let row = self.index.function_at(self.in_file(function.address));
        let Some(entry) = row.and_then(|row| row.entry) else {
            return Signature {
                text: format!("fn {name}(?)"),
                place: None,
            };
        };
        let mut arguments = Vec::new();
        session.children(entry, |child| {
            if child.entry.tag() == gimli::DW_TAG_formal_parameter {
                let name = session.inherited(child.offset(), |found| found.name(session));
                let type_name = types::name(session, types::of(session, child.offset()));
                arguments.push(match name {
                    Some(name) => format!("{name}: {type_name}"),
                    None => format!("_: {type_name}"),
                });
            }
        });
        let place = lines::declared(session, entry);
        if !self.is_described(session, entry) {
            let text = format!("fn {name}(?)");
            return Signature { text, place };
        }
        let mut text = format!("fn {name}({})", arguments.join(", "));
        let result = types::of(session, entry);
        if result != types::UNIT {
            text.push_str(" -> ");
            text.push_str(&types::name(session, result));
        }
        Signature { text, place }
    }
}
