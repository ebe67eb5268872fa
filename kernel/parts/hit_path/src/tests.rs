//! Small images with each violation, and without any.
//!
//! An image is a few functions of hand-written bytes with symbols. The closure over them must find
//! what a hit reaches, and name each violation at its instruction.

extern crate std;

use super::{blacklist::BlacklistError, *};
use kallsyms::{Binding, SymbolKind};
use std::vec;

const TEXT: u64 = 0xffff_ffff_8010_0000;
const DATA: u64 = TEXT + 0x1000;
const RULES: Rules<'_> = Rules {
    roots: &[],
    ends: &[("the_end", "")],
    callers: &[("handler_caller", "")],
    stack_switchers: &[("switcher", "")],
};

/// Functions of 16 bytes each from `TEXT` on, filled up with no-operations, and words of data.
struct Small {
    names: Vec<&'static str>,
    text: Vec<u8>,
    data: Vec<u8>,
}

impl Small {
    fn new(functions: &[(&'static str, &[u8])], words: &[u64]) -> Self {
        let mut text = Vec::new();
        for (n, (_, code)) in functions.iter().enumerate() {
            text.extend_from_slice(code);
            text.resize((n + 1) * 16, 0x90);
        }
        Self {
            names: functions.iter().map(|(name, _)| *name).collect(),
            text,
            data: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }

    fn function(&self, index: usize) -> Symbol<'_> {
        Symbol {
            name: self.names[index],
            start: TEXT + index as u64 * 16,
            size: 16,
            kind: SymbolKind::Text,
            binding: Binding::Global,
            exported: false,
            note: 0,
        }
    }

    fn violations(&self) -> Vec<Violation> {
        violations(self, &RULES, [self.function(0)])
    }
}

impl Image for Small {
    fn symbol_at(&self, address: u64) -> Option<Symbol<'_>> {
        let index = usize::try_from(address.checked_sub(TEXT)? / 16).ok()?;
        (index < self.names.len()).then(|| self.function(index))
    }

    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        let (start, memory) = match range.start {
            DATA.. => (DATA, &self.data),
            _ => (TEXT, &self.text),
        };
        memory.get(range.start.checked_sub(start)? as usize..(range.end - start) as usize)
    }

    fn stubs(&self) -> Range<u64> {
        let stub = self.names.iter().position(|name| *name == "stub");
        stub.map_or(0..0, |index| {
            let stub = self.function(index);
            stub.start..stub.start + stub.size
        })
    }
}

impl Functions for Small {
    fn functions_named(&self, name: &str) -> Vec<Symbol<'_>> {
        self.functions()
            .filter(|function| function.name == name)
            .collect()
    }

    fn functions(&self) -> impl Iterator<Item = Symbol<'_>> {
        (0..self.names.len()).map(|index| self.function(index))
    }
}

/// `call` from the start of function `from` to that of function `to`.
fn call(from: i32, to: i32) -> [u8; 5] {
    let [a, b, c, d] = ((to - from) * 16 - 5).to_le_bytes();
    [0xe8, a, b, c, d]
}

/// `call [rip + disp]` at the start of the first function, through word `n` of the data.
fn call_word(n: i32) -> [u8; 6] {
    let [a, b, c, d] = ((DATA - TEXT) as i32 + n * 8 - 6).to_le_bytes();
    [0xff, 0x15, a, b, c, d]
}

#[test]
fn direct_calls_and_calls_through_words_are_followed() {
    let image = Small::new(
        &[
            ("root", &call_word(0)),
            ("middle", &call(1, 3)),
            ("unreached", &[]),
            ("leaf", &[0xc3]),
        ],
        &[TEXT + 16],
    );
    let mut names = Vec::new();
    walk(&image, &RULES, image.function(0), |function, _| {
        names.push(function.name);
        true
    });
    assert_eq!(names, ["root", "middle", "leaf"]);
    assert_eq!(image.violations(), []);
}

#[test]
fn the_closure_stops_at_its_ends_and_ends_with_recursion() {
    let image = Small::new(
        &[
            ("root", &[call(0, 0), [0xe8, 6, 0, 0, 0]].concat()),
            ("the_end", &[0xff, 0xd0]),
        ],
        &[],
    );
    assert_eq!(image.violations(), []);
}

#[test]
fn indirect_calls_that_cannot_be_followed_are_violations_save_in_callers_of_handlers() {
    let image = Small::new(
        &[
            ("root", &call(0, 1)),
            ("lost", &[0x90, 0xff, 0xd0]),
            ("handler_caller", &[]),
        ],
        &[],
    );
    let found = image.violations();
    assert_eq!(
        found,
        [Violation::Indirect {
            place: "lost+0x1".into()
        }]
    );
    assert!(format!("{}", found[0]).contains("call the function directly"));
    let image = Small::new(
        &[("root", &call(0, 1)), ("handler_caller", &[0xff, 0xd0])],
        &[],
    );
    assert_eq!(image.violations(), []);
    let image = Small::new(&[("root", &call_word(0))], &[0x1234]);
    assert_eq!(
        image.violations().len(),
        1,
        "a word that is no address of text"
    );
}

#[test]
fn jump_tables_into_the_function_itself_are_known() {
    let [a, b, c, d, ..] = DATA.to_le_bytes();
    let jump = [0xff, 0x24, 0xc5, a, b, c, d]; // jmp [rax * 8 + DATA]
    assert_eq!(Small::new(&[("root", &jump)], &[TEXT + 8]).violations(), []);
    assert_eq!(
        Small::new(&[("root", &jump)], &[TEXT + 99])
            .violations()
            .len(),
        1
    );
}

#[test]
fn branches_inside_of_a_function_are_no_edges() {
    let mut code = [0x90; 16];
    code[0] = 0x75; // jne, to the last byte
    code[1] = 13;
    code[2..7].copy_from_slice(&[0xe8, 9, 0, 0, 0]); // call of the next function
    code[7] = 0xeb; // jmp to the start
    code[8] = (-9_i8) as u8;
    let image = Small::new(&[("root", &code), ("leaf", &[0xc3])], &[]);
    assert_eq!(edges(&image, &image.function(0)).targets, [(2, TEXT + 16)]);
}

#[test]
fn calls_of_panicking_code_are_violations() {
    let image = Small::new(
        &[("root", &call(0, 1)), ("core::panicking::panic", &[0xc3])],
        &[],
    );
    assert_eq!(
        image.violations(),
        [Violation::Panics {
            place: "root+0x0".into(),
            callee: "core::panicking::panic".into()
        }]
    );
}

#[test]
fn bytes_that_are_no_instruction_are_violations() {
    for (code, place) in [
        (&[0x06][..], "root+0x0"),
        (&[0x90, 0x06], "root+0x1"),
        (&[0x90, 0x90, 0x90, 0x06], "root+0x3"),
    ] {
        let image = Small::new(&[("root", code)], &[]);
        let place = place.into();
        assert_eq!(image.violations(), [Violation::Undecodable { place }]);
    }
}

#[test]
fn code_that_the_image_lacks_is_a_violation_at_its_start() {
    let mut image = Small::new(&[("root", &[0xc3])], &[]);
    image.text.clear();
    let place = "root+0x0".into();
    assert_eq!(image.violations(), [Violation::Undecodable { place }]);
}

#[test]
fn writes_to_the_stack_pointer_are_told_from_frames() {
    for (code, switches) in [
        (vec![0x48, 0x8b, 0x26], true),              // mov rsp, [rsi]
        (vec![0x48, 0x89, 0xc4], true),              // mov rsp, rax
        (vec![0x5c], true),                          // pop rsp
        (vec![0x48, 0x94], true),                    // xchg rsp, rax
        (vec![0x48, 0x8d, 0x67, 0xc8], true),        // lea rsp, [rdi - 56]
        (vec![0x48, 0x89, 0xec], false),             // mov rsp, rbp
        (vec![0x48, 0x83, 0xec, 0x20], false),       // sub rsp, 32
        (vec![0x48, 0x83, 0xe4, 0xf0], false),       // and rsp, -16
        (vec![0x48, 0x8d, 0x65, 0xd8], false),       // lea rsp, [rbp - 40]
        (vec![0x48, 0x8d, 0x64, 0x24, 0x08], false), // lea rsp, [rsp + 8]
        (vec![0x48, 0x39, 0xc4], false),             // cmp rsp, rax
        (vec![0x54], false),                         // push rsp
        (vec![0xc9], false),                         // leave
    ] {
        let image = Small::new(&[("root", &code)], &[]);
        let found = stack_switches(&image, &image.function(0));
        assert_eq!(found == [0], switches, "{code:02x?}");
        assert_eq!(found.is_empty(), !switches, "{code:02x?}");
    }
}

#[test]
fn a_list_of_roots_without_code_is_none() {
    let mut image = Small::new(&[("kprobe_hit", &[0xc3])], &[]);
    assert!(Blacklist::of_image(&image, &Rules::NONE).is_ok());
    image.text.clear();
    let error = Blacklist::of_image(&image, &Rules::NONE).unwrap_err();
    let name = "kprobe_hit".into();
    assert_eq!(error, BlacklistError::NoRoot { name });
    assert!(format!("{error}").contains("keep its symbol and its text"));
}

/// A debugger's stub at the gate of #BP, for example, which stands among other functions.
#[test]
fn stubs_that_end_by_iretq_are_refused_wherever_they_are() {
    let image = Small::new(
        &[
            ("kprobe_hit", &[0xc3]),
            ("stub_of_a_debugger", &[0x50, 0x58, 0x48, 0xcf]),
            ("a_constant", &[0xb8, 0x48, 0xcf, 0x00, 0x00, 0xc3]), // mov eax, 0xcf48
        ],
        &[],
    );
    let list = Blacklist::of_image(&image, &Rules::NONE).unwrap();
    let reasons = [1, 2].map(|index| list.reason(image.function(index).start));
    assert_eq!(reasons, [Some(blacklist::IS_STUB), None]);
}

/// Those of `trap_entry!`, whatever a kernel calls them.
#[test]
fn entries_of_traps_are_roots_by_their_labels() {
    let image = Small::new(
        &[
            ("kprobe_hit", &[0xc3]),
            ("kprobe_trap_14", &call(1, 2)),
            ("leaf", &[0xc3]),
            ("unreached", &[0xc3]),
        ],
        &[],
    );
    let list = Blacklist::of_image(&image, &Rules::NONE).unwrap();
    let reason = "a trap of a probed instruction runs through it";
    for (index, expected) in [(1, Some(reason)), (2, Some(reason)), (3, None)] {
        assert_eq!(
            list.reason(image.function(index).start),
            expected,
            "{index}"
        );
    }
}
