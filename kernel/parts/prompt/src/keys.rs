//! The bytes that terminals send for a key: control characters, and escape sequences (ECMA-48, and
//! those of xterm).

use editline::KeyEvent;

/// A key, as far as the prompt knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A key for the editor.
    Edit(KeyEvent),
    /// Tab: complete the word.
    Complete,
    /// Ctrl-C: abandon the line.
    Abandon,
    /// Part of a letter beyond ASCII; the first part says so.
    Letter { first: bool },
    /// A key that has no meaning here.
    Unknown,
}

/// Waits for the next key; `read` waits for the next byte. `after_return` says whether the last
/// byte was a carriage return. A line feed after it is then no key of its own.
pub(crate) fn next_key(after_return: &mut bool, mut read: impl FnMut() -> u8) -> Key {
    let mut byte = read();
    if core::mem::take(after_return) && byte == b'\n' {
        byte = read();
    }
    *after_return = byte == b'\r';
    Key::Edit(match byte {
        b'\r' | b'\n' => KeyEvent::Enter,
        0x08 | 0x7f => KeyEvent::Backspace,
        b' '..=b'~' => KeyEvent::Normal(char::from(byte)),
        0x03 => return Key::Abandon,
        b'\t' => return Key::Complete,
        0x1b => return escape_sequence(read),
        // Continuation bytes of UTF-8 are those below 0xc0.
        0x80.. => {
            return Key::Letter {
                first: byte >= 0xc0,
            };
        }
        byte => match byte | 0x40 {
            b'A' => KeyEvent::Home,
            b'B' => KeyEvent::Left,
            b'D' => KeyEvent::Delete,
            b'E' => KeyEvent::End,
            b'F' => KeyEvent::Right,
            b'N' => KeyEvent::Down,
            b'P' => KeyEvent::Up,
            b'W' => KeyEvent::AltBackspace,
            _ => return Key::Unknown,
        },
    })
}

/// The key whose sequence goes on after an escape character.
fn escape_sequence(mut read: impl FnMut() -> u8) -> Key {
    match read() {
        b'[' => {
            // Parameters, of which the first two count, then the final byte (ECMA-48, 5.4).
            let mut parameters = [0_u8; 2];
            let mut index = 0;
            loop {
                match read() {
                    digit @ b'0'..=b'9' => {
                        if let Some(parameter) = parameters.get_mut(index) {
                            *parameter = parameter.saturating_mul(10).saturating_add(digit - b'0');
                        }
                    }
                    b';' => index += 1,
                    last @ b'@'..=b'~' => return function_key(last, parameters),
                    b' '..=b'?' => {}
                    // Not part of any sequence: the line was noisy.
                    _ => return Key::Unknown,
                }
            }
        }
        b'O' => function_key(read(), [0; 2]),
        0x08 | 0x7f => Key::Edit(KeyEvent::AltBackspace),
        _ => Key::Unknown,
    }
}

fn function_key(last: u8, parameters: [u8; 2]) -> Key {
    const CTRL: u8 = 5;
    Key::Edit(match (last, parameters) {
        (b'C', [_, CTRL]) => KeyEvent::CtrlRight,
        (b'D', [_, CTRL]) => KeyEvent::CtrlLeft,
        (b'~', [3, CTRL]) => KeyEvent::CtrlDelete,
        (b'A', _) => KeyEvent::Up,
        (b'B', _) => KeyEvent::Down,
        (b'C', _) => KeyEvent::Right,
        (b'D', _) => KeyEvent::Left,
        (b'H', _) | (b'~', [1 | 7, _]) => KeyEvent::Home,
        (b'F', _) | (b'~', [4 | 8, _]) => KeyEvent::End,
        (b'~', [3, _]) => KeyEvent::Delete,
        _ => return Key::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// All keys of `bytes`, which end with a whole key.
    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut bytes = bytes.iter().copied().peekable();
        let mut after_return = false;
        let mut keys = Vec::new();
        while bytes.peek().is_some() {
            keys.push(next_key(&mut after_return, || {
                bytes.next().expect("the key goes on")
            }));
        }
        keys
    }

    fn edits(bytes: &[u8]) -> Vec<KeyEvent> {
        let edit = |key| match key {
            Key::Edit(event) => event,
            other => panic!("{other:?}"),
        };
        keys(bytes).into_iter().map(edit).collect()
    }

    #[test]
    fn keys_of_common_terminals_are_known() {
        use KeyEvent::*;
        assert_eq!(edits(b"a~ "), [Normal('a'), Normal('~'), Normal(' ')]);
        assert_eq!(edits(b"\x1b[A\x1b[B\x1b[C\x1b[D"), [Up, Down, Right, Left]);
        assert_eq!(edits(b"\x1bOA\x1bOH\x1bOF"), [Up, Home, End]);
        assert_eq!(edits(b"\x1b[H\x1b[1~\x1b[7~\x01"), [Home, Home, Home, Home]);
        assert_eq!(edits(b"\x1b[F\x1b[4~\x1b[8~\x05"), [End, End, End, End]);
        assert_eq!(edits(b"\x1b[3~\x04"), [Delete, Delete]);
        assert_eq!(edits(b"\x08\x7f"), [Backspace, Backspace]);
        assert_eq!(edits(b"\x1b\x7f\x17"), [AltBackspace, AltBackspace]);
        assert_eq!(
            edits(b"\x1b[1;5C\x1b[1;5D\x1b[3;5~"),
            [CtrlRight, CtrlLeft, CtrlDelete]
        );
        assert_eq!(edits(b"\x02\x06\x10\x0e"), [Left, Right, Up, Down]);
    }

    #[test]
    fn a_line_ends_once_however_its_end_is_sent() {
        use KeyEvent::*;
        assert_eq!(edits(b"\r"), [Enter]);
        assert_eq!(edits(b"\n\n"), [Enter, Enter]);
        assert_eq!(edits(b"\r\na"), [Enter, Normal('a')]);
        assert_eq!(edits(b"\r\r\n\n\r"), [Enter, Enter, Enter, Enter]);
    }

    #[test]
    fn other_bytes_have_no_meaning() {
        assert_eq!(keys(b"\x03\t"), [Key::Abandon, Key::Complete]);
        let letter = |first| Key::Letter { first };
        assert_eq!(keys("ä".as_bytes()), [letter(true), letter(false)]);
        for unknown in [
            &b"\0"[..],
            b"\x1bx",
            b"\x1b[5~",
            b"\x1b[999999;1;2;3z",
            b"\x1b[\x07",
            b"\x1b[?1h",
        ] {
            assert_eq!(keys(unknown), [Key::Unknown], "{unknown:?}");
        }
    }
}
