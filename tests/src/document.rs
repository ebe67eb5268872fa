//! Documents that show what commands print, and the one way to hold them against the commands.
//!
//! A document is Markdown. What a test reads of it are the *blocks*: lines between two fences of
//! three backticks. The text after the first fence is the block's *mark*, for example `text` or
//! `console times`. A test knows its blocks by mark, heading or first line, and has the commands in
//! them run again. [`Document::compare`] holds the real output against what is shown.
//!
//! Some output changes from build to build or from run to run, such as addresses and times. Each
//! test brings the *shape* of a block: its lines without such parts. [`Masks`] leaves them out.
//! What a shape keeps has to be the same.
//!
//! With `DOCUMENTS=write` in the environment, the real output is written into the document instead,
//! and the test passes. This is for somebody who has changed a command or the kernel, and reads the
//! difference before committing it:
//!
//! ```sh
//! DOCUMENTS=write cargo test -p tests --test trace_doc
//! ```

use std::{env, fmt::Write as _, fs, path::PathBuf};

use boot::layout;
use regex::Regex;

/// The fence of a block.
const FENCE: &str = "```";

/// A document of the tree.
pub struct Document {
    /// Its path in the tree.
    name: String,
    text: String,
}

/// A block of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The last heading above it, without its signs.
    pub heading: &'a str,
    pub mark: &'a str,
    /// Its lines, the last line end included.
    pub text: &'a str,
    /// Where its text begins in the document.
    start: usize,
}

impl Block<'_> {
    /// What stands after `prompt` in the lines that begin with it.
    pub fn commands(&self, prompt: &str) -> impl Iterator<Item = &str> {
        self.text
            .lines()
            .filter_map(move |line| line.strip_prefix(prompt))
    }

    /// Whether it shows a session at the kernel's prompt: its first line is a command.
    pub fn is_session(&self) -> bool {
        self.mark == "text" && self.text.starts_with("# ")
    }
}

impl Document {
    /// The document with the path `name` in the tree.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn open(name: &str) -> Self {
        let path = layout::workspace().join(name);
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()));
        Self {
            name: name.into(),
            text,
        }
    }

    /// A document with this text, which is in no file: for tests of what reads documents.
    pub fn of(name: &str, text: &str) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
        }
    }

    /// The list after the line `before`: the name and the text of each entry, which is
    /// `` - `name`: text ``.
    ///
    /// # Panics
    /// If there is no such line, or an entry is another one.
    pub fn entries(&self, before: &str) -> Vec<(String, String)> {
        let (_, list) = self
            .text
            .split_once(&format!("{before}\n"))
            .unwrap_or_else(|| panic!("{} has no line {before:?}", self.name));
        let list = list.trim_start().split("\n\n").next().unwrap_or_default();
        let entries = list.trim_start_matches("- ").split("\n- ");
        entries
            .map(|entry| {
                let words: Vec<&str> = entry.split_whitespace().collect();
                let words = words.join(" ");
                let parts = words
                    .strip_prefix('`')
                    .and_then(|rest| rest.split_once("`: "));
                let (name, text) = parts.unwrap_or_else(|| panic!("{words:?} names nothing"));
                (name.into(), text.into())
            })
            .collect()
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// All blocks, in order.
    ///
    /// # Panics
    /// If a block has no end.
    pub fn blocks(&self) -> Vec<Block<'_>> {
        let (mut blocks, mut heading) = (Vec::new(), "");
        let mut open: Option<(&str, usize)> = None;
        let mut at = 0;
        for line in self.text.split_inclusive('\n') {
            let (begin, end) = (at, at + line.len());
            at = end;
            match (open, line.trim_end().strip_prefix(FENCE)) {
                (None, Some(mark)) => open = Some((mark, end)),
                (None, None) if line.starts_with('#') => {
                    heading = line.trim_start_matches('#').trim();
                }
                (Some((mark, start)), Some("")) => {
                    blocks.push(Block {
                        heading,
                        mark,
                        text: &self.text[start..begin],
                        start,
                    });
                    open = None;
                }
                _ => {}
            }
        }
        assert_eq!(open, None, "{} has a block without an end", self.name);
        blocks
    }

    /// The text of the first block with this heading and mark.
    ///
    /// # Panics
    /// If there is none.
    pub fn block(&self, heading: &str, mark: &str) -> &str {
        let blocks = self.blocks();
        let is_it = |block: &&Block<'_>| block.heading == heading && block.mark == mark;
        let found = blocks.iter().find(is_it);
        found
            .unwrap_or_else(|| panic!("{} has no block {mark:?} under {heading:?}", self.name))
            .text
    }

    /// Holds blocks against what is real, or writes what is real into the document.
    ///
    /// `real` returns the text that a block should have, or `None` for a block that is not the
    /// test's. `shape` leaves out of a text what may differ. Returns how many blocks were compared.
    ///
    /// # Panics
    /// If a block differs: the message has the real text of all such blocks.
    pub fn compare(
        &self,
        mut real: impl FnMut(&Block<'_>) -> Option<String>,
        shape: impl Fn(&Block<'_>, &str) -> Vec<String>,
    ) -> usize {
        let (mut document, mut copied, mut count) = (String::new(), 0, 0);
        let mut differences = String::new();
        for block in self.blocks() {
            let Some(text) = real(&block) else { continue };
            count += 1;
            document += &self.text[copied..block.start];
            document += &text;
            copied = block.start + block.text.len();
            let (is, shown) = (shape(&block, &text), shape(&block, block.text));
            if is != shown {
                let pair = is.iter().zip(&shown).find(|(is, shown)| is != shown);
                let _ = writeln!(differences, "first {pair:?} in what is really\n{text}");
            }
        }
        document += &self.text[copied..];
        if writes() {
            if document != self.text {
                fs::write(self.path(), document).expect("a document can be written");
            }
        } else {
            assert!(
                differences.is_empty(),
                "{} shows something else; DOCUMENTS=write writes what is real: {differences}",
                self.name
            );
        }
        count
    }

    fn path(&self) -> PathBuf {
        layout::workspace().join(&self.name)
    }
}

/// Whether tests write documents and do not compare them.
pub fn writes() -> bool {
    env::var("DOCUMENTS").is_ok_and(|mode| mode == "write")
}

/// Replacements, in order, of what may differ in a line.
pub struct Masks(Vec<(Regex, &'static str)>);

impl Masks {
    /// Pairs of a pattern and the text that stands for it.
    ///
    /// # Panics
    /// If a pattern is none.
    pub fn new(masks: &[(&str, &'static str)]) -> Self {
        let compile = |&(pattern, with): &(&str, _)| (Regex::new(pattern).unwrap(), with);
        Self(masks.iter().map(compile).collect())
    }

    pub fn mask(&self, line: &str) -> String {
        self.0
            .iter()
            .fold(line.to_owned(), |line, (pattern, with)| {
                pattern.replace_all(&line, *with).into_owned()
            })
    }
}

/// A line with one blank between its words, and none around them.
pub fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::of("a document", text)
    }

    #[test]
    fn blocks_are_found_with_mark_and_heading() {
        let document = document(
            "# One\nx\n```console times\n$ command\n# no heading\n```\n## Two\n```\ny\n```\nz\n",
        );
        let blocks = document.blocks();
        let seen: Vec<_> = blocks
            .iter()
            .map(|block| (block.heading, block.mark, block.text))
            .collect();
        assert_eq!(
            seen,
            [
                ("One", "console times", "$ command\n# no heading\n"),
                ("Two", "", "y\n")
            ]
        );
        assert_eq!(blocks[0].commands("$ ").collect::<Vec<_>>(), ["command"]);
        assert_eq!(document.block("Two", ""), "y\n");
    }

    #[test]
    fn sessions_are_told_from_other_blocks() {
        let document =
            document("```text\na drawing\n```\n```text\n# echo a\na\n```\n```sh\n# c\n```\n");
        let blocks = document.blocks();
        let sessions: Vec<_> = blocks.iter().map(Block::is_session).collect();
        assert_eq!(sessions, [false, true, false]);
    }

    #[test]
    #[should_panic(expected = "without an end")]
    fn a_block_without_an_end_is_told() {
        document("```text\na\n").blocks();
    }

    fn plain(_: &Block<'_>, text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn blocks_of_others_are_left_alone() {
        let document = document("```a\n1\n```\n```b\n2\n```\n");
        let real = |block: &Block<'_>| (block.mark == "a").then(|| "1\n".into());
        assert_eq!(document.compare(real, plain), 1);
    }

    #[test]
    #[should_panic(expected = "(\"3\", \"2\")")]
    fn a_difference_is_shown() {
        document("```a\n1\n2\n```\n").compare(|_| Some("1\n3\n".into()), plain);
    }

    #[test]
    fn masks_are_applied_in_order() {
        let masks = Masks::new(&[(r"0x[0-9a-f]+", "HEX"), (r"\d+", "N")]);
        assert_eq!(masks.mask("0x12 and 12"), "HEX and N");
        assert_eq!(words("  a   b "), "a b");
    }
}
