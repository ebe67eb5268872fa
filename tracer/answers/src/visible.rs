//! Texts as a terminal may show them. What a kernel's memory has in it must not move the cursor, or
//! worse.

use alloc::{borrow::Cow, string::String};
use core::fmt::Write;

use trace_interface::view::{Part, Record};

use crate::Presentation;

impl Presentation {
    /// A text that was made of answers, with control characters as escapes. A newline and a tab
    /// stay, and so does what the formats of the program itself have in them.
    pub fn visible<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let is_hidden = |character: char| {
            character.is_control()
                && !['\n', '\t'].contains(&character)
                && !self.literals().any(|literal| literal.contains(character))
        };
        if !text.contains(is_hidden) {
            return Cow::Borrowed(text);
        }
        let mut shown = String::with_capacity(text.len());
        for character in text.chars() {
            match (is_hidden(character), u32::from(character)) {
                (false, _) => shown.push(character),
                (true, number @ ..0x80) => _ = write!(shown, "\\x{number:02x}"),
                (true, number) => _ = write!(shown, "\\u{{{number:x}}}"),
            }
        }
        Cow::Owned(shown)
    }

    /// What stands between the values of the program's formats.
    fn literals(&self) -> impl Iterator<Item = &str> {
        let lines = self.records().iter().filter_map(|record| match record {
            Record::Line { parts, .. } => Some(parts),
            _ => None,
        });
        lines.flatten().filter_map(|part| match part {
            Part::Literal(text) => Some(text.as_str()),
            Part::Value(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_interface::view::{Level, View};

    #[test]
    fn control_characters_are_escapes_unless_the_program_has_them() {
        let plain = Presentation::default();
        let text = "a\tb\x1b[2J\r\u{7f}\u{9b}\u{e9}\0\n";
        assert_eq!(plain.visible(text), "a\tb\\x1b[2J\\x0d\\x7f\\u{9b}é\\x00\n");
        assert!(matches!(plain.visible("é\t\n"), Cow::Borrowed("é\t\n")));
        let literal = |text: &str| Record::Line {
            level: Level::Plain,
            parts: alloc::vec![Part::Literal(text.into())],
            values: alloc::vec![],
        };
        let colours = Presentation::new(View {
            records: alloc::vec![Record::Exit, literal("x"), literal("\x1b[31m")],
            ..View::default()
        });
        assert_eq!(colours.visible("\x1b[31m\x07"), "\x1b[31m\\x07");
    }
}
