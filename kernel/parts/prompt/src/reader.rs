//! Reading a line: the editor at work on a terminal.
//!
//! The screen is changed by small means: characters, one step to the left or to the right, and
//! clearing the rest of the row. The reader never asks for the cursor's row, so other text may come
//! above the line at any time.

use alloc::string::{String, ToString};
use core::fmt::{self, Write};

use editline::{History, KeyEvent, LineBuffer};

use crate::{
    complete::{Candidates, Completion, WordPlace, complete},
    keys::{Key, next_key},
};

/// Room for a line of usual length, in bytes; longer ones get more.
const LINE_BYTES: usize = 128;

/// Lines that the history keeps.
const HISTORY_LINES: usize = 64;

/// The terminal's line.
pub trait Port {
    /// Waits for the next byte that is typed.
    fn read(&mut self) -> u8;

    /// Shows `bytes`.
    fn write(&mut self, bytes: &[u8]);
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It was abandoned by Ctrl-C.
    Abandoned,
    /// Letters beyond ASCII were typed, which it lacks now.
    NotAscii,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Abandoned => "the line was abandoned",
            Self::NotAscii => {
                "the prompt knows ASCII only, and other letters were typed: nothing was done; the \
                 line without them comes \
                 back with the up key"
            }
        })
    }
}

impl core::error::Error for ReadError {}

/// Reads lines with editing, completion and history.
pub struct LineReader {
    line: LineBuffer,
    history: History,
    after_return: bool,
}

impl Default for LineReader {
    fn default() -> Self {
        Self::new()
    }
}

impl LineReader {
    /// A reader with an empty history.
    pub fn new() -> Self {
        Self {
            line: LineBuffer::new(LINE_BYTES),
            history: History::new(HISTORY_LINES),
            after_return: false,
        }
    }

    /// Shows `prompt` and waits for a line. Returns it without its end and without blanks around
    /// it. `candidates` says which words may stand in the place of one that Tab is to complete.
    ///
    /// # Errors
    /// [`ReadError`]; the next line begins with an empty one.
    pub fn read(
        &mut self,
        prompt: &str,
        port: &mut impl Port,
        mut candidates: impl FnMut(&WordPlace) -> Candidates,
    ) -> Result<String, ReadError> {
        port.write(prompt.as_bytes());
        self.line.clear();
        let mut lacks_letters = false;
        // The last key was a Tab that added nothing, so another one is to list the candidates.
        let mut lists_next = false;
        loop {
            let key = next_key(&mut self.after_return, || port.read());
            let lists = core::mem::take(&mut lists_next);
            match key {
                Key::Edit(KeyEvent::Enter) => break,
                Key::Edit(event) => self.edit(event, port),
                Key::Complete => match complete(self.before_cursor(), &mut candidates) {
                    Completion::Insert(text) => {
                        let all = text.chars();
                        all.for_each(|c| self.edit(KeyEvent::Normal(c), port));
                    }
                    Completion::Choice(list) => {
                        lists_next = true;
                        if lists {
                            self.show_below(format_args!("{list}{prompt}"), port);
                        } else {
                            port.write(BELL);
                        }
                    }
                    Completion::None => port.write(BELL),
                },
                Key::Abandon => {
                    port.write(b"^C\r\n");
                    return Err(ReadError::Abandoned);
                }
                Key::Unknown => port.write(BELL),
                Key::Letter { first } => {
                    lacks_letters = true;
                    if first {
                        port.write(BELL);
                    }
                }
            }
        }
        port.write(b"\r\n");
        let line = self.text().trim().to_string();
        self.history.add(&line);
        self.history.reset_view();
        if lacks_letters {
            return Err(ReadError::NotAscii);
        }
        Ok(line)
    }

    /// The line as it is now.
    fn text(&self) -> &str {
        // The keys give ASCII only.
        self.line.as_str().unwrap_or_default()
    }

    fn before_cursor(&self) -> &str {
        &self.text()[..self.line.cursor_pos()]
    }

    fn after_cursor(&self) -> &str {
        &self.text()[self.line.cursor_pos()..]
    }

    /// Leaves the line where it is, and shows `text` and the line again below it.
    fn show_below(&self, text: fmt::Arguments<'_>, port: &mut impl Port) {
        let mut below = String::from("\r\n");
        // A `String` takes everything.
        let _ = write!(below, "{text}{}", self.text());
        port.write(below.as_bytes());
        left(port, self.after_cursor().len());
    }

    /// Does what a key says, in the line and on the screen.
    fn edit(&mut self, event: KeyEvent, port: &mut impl Port) {
        let line = &mut self.line;
        match event {
            KeyEvent::Left => left(port, line.move_cursor_left().into()),
            KeyEvent::Right => right(port, line.move_cursor_right().into()),
            KeyEvent::Home => left(port, line.move_cursor_to_start()),
            KeyEvent::End => right(port, line.move_cursor_to_end()),
            KeyEvent::CtrlLeft => left(port, line.move_cursor_word_left()),
            KeyEvent::CtrlRight => right(port, line.move_cursor_word_right()),
            KeyEvent::Up | KeyEvent::Down => {
                let other = match event {
                    KeyEvent::Up => self.history.previous(line.as_str().unwrap_or_default()),
                    _ => self.history.next_entry(),
                };
                if let Some(other) = other {
                    left(port, line.cursor_pos());
                    port.write(CLEAR_REST);
                    line.load(other);
                    port.write(other.as_bytes());
                }
            }
            KeyEvent::Normal(c) => {
                line.insert_char(c);
                port.write(c.encode_utf8(&mut [0; 4]).as_bytes());
                self.changed(port);
            }
            KeyEvent::Backspace => {
                left(port, line.delete_before_cursor().into());
                self.changed(port);
            }
            KeyEvent::AltBackspace => {
                left(port, line.delete_word_left());
                self.changed(port);
            }
            KeyEvent::Delete => {
                line.delete_at_cursor();
                self.changed(port);
            }
            KeyEvent::CtrlDelete => {
                line.delete_word_right();
                self.changed(port);
            }
            KeyEvent::Enter => {}
        }
    }

    /// Shows the line from the cursor on. It is a new line now, and none of the history.
    fn changed(&mut self, port: &mut impl Port) {
        self.history.reset_view();
        let rest = self.after_cursor();
        port.write(CLEAR_REST);
        port.write(rest.as_bytes());
        left(port, rest.len());
    }
}

const BELL: &[u8] = b"\x07";
const CLEAR_REST: &[u8] = b"\x1b[K";

fn left(port: &mut impl Port, steps: usize) {
    (0..steps).for_each(|_| port.write(b"\x1b[D"));
}

fn right(port: &mut impl Port, steps: usize) {
    (0..steps).for_each(|_| port.write(b"\x1b[C"));
}
