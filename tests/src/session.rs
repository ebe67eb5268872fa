//! A session at the kernel's prompt: lines are typed at the serial line, and answers read from it.
//!
//! The kernel echoes what is typed, and shows its prompt when it is ready for the next line. So an
//! answer lies between the two. It includes lines of the log from that time.

use std::{
    fmt,
    time::{Duration, Instant},
};

use boot::{
    firmware::Firmware,
    guest::{End, Event, Guest},
    prerequisites::Install,
    qemu::Machine,
};

use crate::{
    built,
    processors::{self, Taken},
};

/// The kernel's prompt: it waits for a line.
const PROMPT: &[u8] = b"# ";

/// Time that an answer may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A guest whose prompt is ready. All functions panic with the whole log if the guest does not do
/// as it should.
pub struct Session {
    guest: Guest,
    screen: Screen,
    /// How much of the screen's text has been read.
    read: usize,
    end: Option<End>,
    _taken: Taken,
}

impl Session {
    /// Builds the kernel, boots it with the command line `interactive`, and waits for its prompt.
    pub fn interactive() -> Self {
        Self::start(&Machine {
            cmdline: "interactive".into(),
            ..Machine::new(built::kernel().image(Firmware::Bios).unwrap())
        })
    }

    /// Ends the machine, which must succeed. Returns its last output.
    pub fn power_off(mut self) -> String {
        let (end, said) = self.last_command("poweroff");
        assert_eq!(end, End::Success, "{said}");
        assert!(said.contains("Power off: success"), "{said}");
        said
    }

    /// Boots `machine`, whose command line holds `interactive`, and waits for the prompt.
    pub fn start(machine: &Machine) -> Self {
        let taken = processors::for_guest(machine.cpus);
        let mut session = Self {
            guest: Guest::start(machine, Install::Allowed).unwrap(),
            screen: Screen::default(),
            read: 0,
            end: None,
            _taken: taken,
        };
        session.answer("");
        session
    }

    /// Types `line` and the return key. Returns the output until the next prompt.
    pub fn command(&mut self, line: &str) -> String {
        self.keys(&format!("{line}\r"), line)
    }

    /// Types `keys`, the last of which ends the line `shown`. Returns the output until the next
    /// prompt.
    pub fn keys(&mut self, keys: &str, shown: &str) -> String {
        self.guest.type_text(keys).unwrap();
        self.answer(&format!("{shown}\n"))
    }

    /// Types `keys` and listens to nothing.
    pub fn type_blind(&mut self, keys: &str) {
        self.guest.type_text(keys).unwrap();
    }

    /// Listens until a line that holds `text` has been shown. Returns the output until then, that
    /// line included.
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let lines = &self.screen.lines[self.read..];
            if let Some(at) = lines.find(text) {
                let end = lines[at..]
                    .find('\n')
                    .map_or(lines.len(), |end| at + end + 1);
                let said = lines[..end].into();
                self.read += end;
                return said;
            }
            assert_eq!(
                self.end, None,
                "the guest is gone without {text:?}; it said:\n{}",
                self.screen
            );
            self.listen(deadline);
        }
    }

    /// Waits for the end of the machine without listening. Then returns how it ended and its last
    /// output.
    pub fn ends_unheard(mut self) -> (End, String) {
        let deadline = Instant::now() + LIMIT;
        assert!(
            self.guest.ends_unheard(deadline).unwrap(),
            "the guest does not end; it said:\n{}",
            self.screen
        );
        self.until_end()
    }

    /// Types `line`, which ends the machine. Returns how it ended and its last output.
    pub fn last_command(&mut self, line: &str) -> (End, String) {
        self.guest.type_text(&format!("{line}\r")).unwrap();
        self.until_end()
    }

    fn until_end(&mut self) -> (End, String) {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(end) = &self.end {
                return (end.clone(), self.screen.lines[self.read..].into());
            }
            self.listen(deadline);
        }
    }

    /// Waits for `echo` and a prompt after it. Returns the text between them.
    fn answer(&mut self, echo: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let lines = &self.screen.lines[self.read..];
            if self.screen.row == PROMPT
                && let Some(at) = lines.find(echo)
            {
                let said = lines[at + echo.len()..].into();
                self.read = self.screen.lines.len();
                return said;
            }
            assert_eq!(
                self.end, None,
                "the guest is gone; it said:\n{}",
                self.screen
            );
            self.listen(deadline);
        }
    }

    fn listen(&mut self, deadline: Instant) {
        match self.guest.next(Some(deadline)).unwrap() {
            Event::Output(output) => output.into_iter().for_each(|byte| self.screen.show(byte)),
            Event::End(end) => self.end = Some(end),
            Event::Deadline => panic!("no answer within {LIMIT:?}; it said:\n{}", self.screen),
        }
    }
}

/// The screen of a terminal that understands the prompt's control sequences.
#[derive(Default)]
struct Screen {
    /// The rows above the last one.
    lines: String,
    /// The last row.
    row: Vec<u8>,
    column: usize,
    /// A control sequence that has begun: ESC [ …
    sequence: Vec<u8>,
}

impl Screen {
    fn show(&mut self, byte: u8) {
        if byte == 0x1b || !self.sequence.is_empty() {
            self.sequence.push(byte);
            match self.sequence[..] {
                [0x1b, b'[', b'C'] => self.column += 1,
                [0x1b, b'[', b'D'] => self.column = self.column.saturating_sub(1),
                [0x1b, b'[', b'K'] => self.row.truncate(self.column),
                [.., last] if !last.is_ascii_alphabetic() => return,
                _ => {}
            }
            self.sequence.clear();
            return;
        }
        match byte {
            b'\n' => {
                self.lines.push_str(&String::from_utf8_lossy(&self.row));
                self.lines.push('\n');
                self.row.clear();
                self.column = 0;
            }
            b'\r' => self.column = 0,
            0x07 => {}
            byte => {
                self.row.resize(self.row.len().max(self.column + 1), b' ');
                self.row[self.column] = byte;
                self.column += 1;
            }
        }
    }
}

impl fmt::Display for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.lines, String::from_utf8_lossy(&self.row))
    }
}
