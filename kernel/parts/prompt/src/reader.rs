//! Reading a line: the editor at work on a terminal.

use alloc::string::String;
use core::fmt;

use editline::{Error, KeyEvent, LineEditor, Result, Terminal};

use crate::keys::{Key, next_key};

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

/// Reads lines with editing and history.
pub struct LineReader {
    editor: LineEditor,
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
            editor: LineEditor::new(LINE_BYTES, HISTORY_LINES),
            after_return: false,
        }
    }

    /// Shows `prompt` and waits for a line. Returns it without its end and without blanks around
    /// it.
    ///
    /// # Errors
    /// [`ReadError`]; the next line begins with an empty one.
    pub fn read(
        &mut self,
        prompt: &str,
        port: &mut impl Port,
    ) -> core::result::Result<String, ReadError> {
        port.write(prompt.as_bytes());
        let mut screen = Screen {
            port,
            after_return: &mut self.after_return,
            lacks_letters: false,
        };
        match self.editor.read_line(&mut screen) {
            Ok(_) if screen.lacks_letters => Err(ReadError::NotAscii),
            Ok(line) => Ok(line),
            // The screen has no other errors, and its text is ASCII.
            Err(_) => {
                port.write(b"^C\r\n");
                Err(ReadError::Abandoned)
            }
        }
    }
}

/// A port as the editor sees it.
struct Screen<'a, P> {
    port: &'a mut P,
    after_return: &'a mut bool,
    /// Letters beyond ASCII were typed since the line began.
    lacks_letters: bool,
}

impl<P: Port> Terminal for Screen<'_, P> {
    fn read_byte(&mut self) -> Result<u8> {
        Ok(self.port.read())
    }

    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.port.write(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn enter_raw_mode(&mut self) -> Result<()> {
        Ok(())
    }

    fn exit_raw_mode(&mut self) -> Result<()> {
        Ok(())
    }

    fn cursor_left(&mut self) -> Result<()> {
        self.write(b"\x1b[D")
    }

    fn cursor_right(&mut self) -> Result<()> {
        self.write(b"\x1b[C")
    }

    fn clear_eol(&mut self) -> Result<()> {
        self.write(b"\x1b[K")
    }

    fn parse_key_event(&mut self) -> Result<KeyEvent> {
        loop {
            match next_key(self.after_return, || self.port.read()) {
                Key::Edit(event) => return Ok(event),
                Key::Abandon => return Err(Error::Interrupted),
                Key::Unknown => self.port.write(b"\x07"),
                Key::Letter { first } => {
                    self.lacks_letters = true;
                    if first {
                        self.port.write(b"\x07");
                    }
                }
            }
        }
    }
}
