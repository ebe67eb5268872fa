//! Line output: one line is one `write`, so that lines of several programs do not mix.

#![forbid(unsafe_code)]

use crate::{syscall, text::Text};
use core::fmt::{self, Write};

/// Longest line that goes out in one piece, in bytes.
const LINE: usize = 256;

/// A line on its way to a file descriptor.
struct Line {
    fd: i32,
    text: Text<{ LINE + 1 }>,
}

impl Line {
    fn flush(&mut self) {
        let mut left = self.text.as_bytes();
        while !left.is_empty() {
            match syscall::write(self.fd, left) {
                Ok(written) if written > 0 => left = &left[written..],
                // There is no other place for a message.
                _ => break,
            }
        }
        self.text.clear();
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.text.write_str(s).is_ok() {
            return Ok(());
        }
        for c in s.chars() {
            if self.text.write_char(c).is_err() {
                self.flush();
                self.text.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Writes one formatted line to `fd`.
pub fn line(fd: i32, args: fmt::Arguments<'_>) {
    let mut line = Line {
        fd,
        text: Text::new(),
    };
    // The only error is that of a `Display` implementation. Its text up to there is printed.
    let _ = fmt::write(&mut line, args);
    let _ = line.write_char('\n');
    line.flush();
}

/// Prints a line to standard output.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::print::line(1, format_args!($($arg)*)) };
}

/// Prints a line to standard error.
#[macro_export]
macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::print::line(2, format_args!($($arg)*)) };
}
