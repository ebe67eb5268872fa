//! A person at a terminal: keys go in; a line comes out, and the screen shows it at every moment.
//!
//! The terminal is a model that knows the few sequences that the prompt sends. After each key its
//! screen must show the line with the cursor in its place.

use prompt::{Candidates, End, LineReader, Port, ReadError};

/// A terminal of one endless row. It knows the sequences that the editor uses, and no others.
#[derive(Default)]
struct Terminal {
    typed: std::collections::VecDeque<u8>,
    row: Vec<u8>,
    column: usize,
    /// The lines that new lines have left behind.
    above: Vec<String>,
    escape: Vec<u8>,
    bells: usize,
}

impl Terminal {
    fn show(&mut self, byte: u8) {
        if !self.escape.is_empty() || byte == 0x1b {
            self.escape.push(byte);
            match self.escape[..] {
                [0x1b] | [0x1b, b'['] => return,
                [0x1b, b'[', b'D'] => {
                    self.column = self.column.checked_sub(1).expect("a column to the left")
                }
                [0x1b, b'[', b'C'] => self.column += 1,
                [0x1b, b'[', b'K'] => self.row.truncate(self.column),
                _ => panic!("unknown sequence {:?}", self.escape),
            }
            self.escape.clear();
            return;
        }
        match byte {
            b'\r' => self.column = 0,
            b'\n' => {
                self.above
                    .push(String::from_utf8(std::mem::take(&mut self.row)).unwrap());
            }
            0x07 => self.bells += 1,
            byte => {
                assert!(self.column <= self.row.len(), "a gap in the row");
                if self.column < self.row.len() {
                    self.row[self.column] = byte;
                } else {
                    self.row.push(byte);
                }
                self.column += 1;
            }
        }
    }
}

impl Port for Terminal {
    fn read(&mut self) -> u8 {
        self.typed
            .pop_front()
            .expect("the line ends before the typing does")
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.show(*byte));
    }
}

/// Types `keys`. Tab completes words to these. Returns the line and the terminal after it.
fn type_keys(
    reader: &mut LineReader,
    keys: &[u8],
    words: &[&str],
) -> (Result<String, ReadError>, Terminal) {
    let mut terminal = Terminal {
        typed: keys.iter().copied().collect(),
        ..Terminal::default()
    };
    let line = reader.read("# ", &mut terminal, |_| {
        let mut candidates = Candidates::default();
        for word in words {
            candidates.add(*word, End::Word);
        }
        candidates
    });
    assert!(terminal.typed.is_empty(), "{:?} is left", terminal.typed);
    (line, terminal)
}

/// Types `keys` and expects the line that the screen shows.
fn type_line(reader: &mut LineReader, keys: &[u8]) -> Result<String, ReadError> {
    let (line, terminal) = type_keys(reader, keys, &[]);
    if let Ok(line) = &line {
        let [row] = &terminal.above[..] else {
            panic!("{:?}", terminal.above);
        };
        assert_eq!(row.trim_end(), format!("# {line}").trim_end(), "{keys:?}");
    }
    line
}

fn typed(keys: &[u8]) -> String {
    type_line(&mut LineReader::new(), keys).unwrap()
}

const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";
const DOWN: &str = "\x1b[B";

#[test]
fn a_line_is_corrected_in_its_middle() {
    assert_eq!(typed(b"lsmod\r"), "lsmod");
    assert_eq!(
        typed(format!("lmod{LEFT}{LEFT}{LEFT}s\r").as_bytes()),
        "lsmod"
    );
    assert_eq!(typed(b"lsx\x7fmod\r"), "lsmod");
    assert_eq!(typed(b"xlsmod\x01\x04\r"), "lsmod");
    assert_eq!(typed(b"smo\x01l\x05d\r"), "lsmod");
    assert_eq!(typed(b"cat one two\x17three\r"), "cat one three");
    // Steps by words: two to the left, one to the right, and the deletion of the next one.
    let keys = b"a b c\x1b[1;5D\x1b[1;5D\x1b[1;5Cd\x1b[3;5~\r";
    assert_eq!(typed(keys), "a b d");
}

#[test]
fn keys_at_the_ends_of_the_line_do_nothing() {
    let keys = format!("\x7f{LEFT}\x1b[Ca\x1b[C\x04{LEFT}{LEFT}{LEFT}\x7f\r");
    assert_eq!(typed(keys.as_bytes()), "a");
}

#[test]
fn earlier_lines_come_back_and_can_be_changed() {
    let mut reader = LineReader::new();
    for line in ["one", "two", "two", "", "three"] {
        assert_eq!(
            type_line(&mut reader, format!("{line}\r").as_bytes()).unwrap(),
            line
        );
    }
    let mut recall = |keys: String| type_line(&mut reader, keys.as_bytes()).unwrap();
    assert_eq!(recall(format!("{UP}\r")), "three");
    assert_eq!(recall(format!("{UP}{UP}\r")), "two");
    assert_eq!(recall(format!("{UP}{UP}{UP}{UP}{UP}{UP}{UP}!\r")), "one!");
    assert_eq!(recall(format!("new{UP}{UP}{DOWN}{DOWN}\r")), "new");
    // A line that is changed is none of the history: the next one is the last one again.
    assert_eq!(recall(format!("{UP}{UP}{UP}x\x7f{UP}\r")), "new");
}

#[test]
fn history_holds_the_last_lines_only() {
    let mut reader = LineReader::new();
    for n in 0..200 {
        type_line(&mut reader, format!("line {n}\r").as_bytes()).unwrap();
    }
    let keys = UP.repeat(300) + "\r";
    assert_eq!(type_line(&mut reader, keys.as_bytes()).unwrap(), "line 136");
}

#[test]
fn an_abandoned_line_leaves_nothing_behind() {
    let mut reader = LineReader::new();
    assert_eq!(
        type_line(&mut reader, b"rmmod important\x03"),
        Err(ReadError::Abandoned)
    );
    assert_eq!(type_line(&mut reader, b"ls\r").unwrap(), "ls");
    assert_eq!(
        type_line(&mut reader, format!("{UP}{UP}\r").as_bytes()).unwrap(),
        "ls"
    );
}

#[test]
fn what_is_no_key_is_not_typed() {
    assert_eq!(typed(b"l\ts\x1b[15~\x00\r"), "ls");
}

#[test]
fn a_line_with_other_letters_is_refused_and_comes_back_without_them() {
    let mut reader = LineReader::new();
    let line = type_line(&mut reader, "echo Grün > Maß\r".as_bytes());
    assert_eq!(line, Err(ReadError::NotAscii));
    assert_eq!(
        type_line(&mut reader, b"\x1b[A\r"),
        Ok("echo Grn > Ma".into())
    );
    // A line that is abandoned takes its letters with it.
    assert_eq!(
        type_line(&mut reader, "ä\x03".as_bytes()),
        Err(ReadError::Abandoned)
    );
    assert_eq!(type_line(&mut reader, b"ls\r"), Ok("ls".into()));
}

#[test]
fn an_error_says_why_there_is_no_line() {
    assert!(ReadError::Abandoned.to_string().contains("abandoned"));
    assert!(ReadError::NotAscii.to_string().contains("ASCII"));
}

#[test]
fn tab_completes_a_word_and_lists_what_there_is() {
    let reader = &mut LineReader::new();
    let words = ["insmod", "ls", "lsmod"];
    let mut tab = |keys: &str| {
        let (line, terminal) = type_keys(reader, keys.as_bytes(), &words);
        (line.unwrap(), terminal.above, terminal.bells)
    };
    let (line, rows, bells) = tab("i\tx\r");
    assert_eq!((&*line, bells), ("insmod x", 0));
    assert_eq!(rows, ["# insmod x"]);

    // The first Tab adds a letter, the second one rings, and each further one lists. The text after
    // the cursor stays there.
    let (line, rows, bells) = tab("\x01l b\x02\x02\t\t\t\tm\t\r");
    assert_eq!((&*line, bells), ("lsmod  b", 1));
    let list = "ls     lsmod";
    assert_eq!(rows, ["# ls b", list, "# ls b", list, "# lsmod  b"]);

    // With another key between them, two Tabs do not belong together.
    let (line, rows, bells) = tab(&format!("ls\t{LEFT}\x1b[C\t\r"));
    assert_eq!((&*line, rows.len(), bells), ("ls", 1, 2));
    // There is nothing to say about other words.
    let (line, rows, bells) = tab("x\t\t\r");
    assert_eq!((&*line, rows.len(), bells), ("x", 1, 2));
}
