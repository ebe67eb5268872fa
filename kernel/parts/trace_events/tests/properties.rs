//! Texts made at random: what is printed parses to the same, and nothing panics.

mod common;

use common::Kernel;
use proptest::prelude::*;
use trace_events::{
    commands::{Commands, Words},
    definition::{Command, File},
    fetch::Grammar,
    line::{Origin, write_line},
    record::Layout,
};

fn parse(line: &str) -> Option<Command> {
    let words = Words::of(line)?;
    Command::parse(&words, File::DynamicEvents, &Kernel, &Grammar::default()).ok()
}

/// A fetch that is mostly right.
fn fetch() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("%di".to_owned()),
        Just("$stack".to_owned()),
        (0..3000_u32).prop_map(|word| format!("$stack{word}")),
        (1..9_u32).prop_map(|number| format!("$arg{number}")),
        Just("$retval".to_owned()),
        Just("$comm".to_owned()),
        any::<i64>().prop_map(|value| format!("\\{value}")),
        any::<u64>().prop_map(|address| format!("@{address:#x}")),
        any::<i16>().prop_map(|offset| format!("@linux_proc_banner{offset:+}")),
        "[ -~&&[^ #]]{0,8}".prop_map(|text| format!("\\\"{text}\"")),
    ];
    let nested = leaf.prop_recursive(16, 16, 1, |inner| {
        (any::<bool>(), any::<bool>(), any::<u16>(), inner).prop_map(|(minus, user, offset, of)| {
            let sign = if minus { '-' } else { '+' };
            format!("{sign}{}{offset}({of})", if user { "u" } else { "" })
        })
    });
    let types = prop_oneof![
        Just(String::new()),
        "[usx](8|16|32|64)".prop_map(|ty| format!(":{ty}")),
        "(string|ustring|symstr|symbol|char)".prop_map(|ty| format!(":{ty}")),
        (0..66_u8, 0..66_u8, "(8|16|32|64)")
            .prop_map(|(width, offset, bits)| format!(":b{width}@{offset}/{bits}")),
    ];
    let array = prop_oneof![
        4 => Just(String::new()),
        1 => (0..66_u8).prop_map(|count| format!("[{count}]")),
    ];
    (nested, types, array).prop_map(|(fetch, ty, array)| {
        let array = if ty.is_empty() { String::new() } else { array };
        format!("{fetch}{ty}{array}")
    })
}

/// A line that is mostly right.
fn line() -> impl Strategy<Value = String> {
    let place = prop_oneof![
        Just("vfs_read"),
        Just("vfs_read+0x10"),
        Just("vfs_read%return"),
        Just("0xffff800000001000"),
        Just("loaded:start"),
        Just("later:x+4"),
        Just("func.isra.0"),
    ];
    let name = prop_oneof![
        Just(""),
        Just(":n"),
        Just(":g/n"),
        Just(":g.n"),
        Just(":g-1/")
    ];
    let argument = prop_oneof![
        fetch(),
        ("[a-c]{1,2}", fetch()).prop_map(|(n, f)| format!("{n}={f}"))
    ];
    let arguments = proptest::collection::vec(argument, 0..4);
    ("(p|r|r7)", name, place, arguments).prop_map(|(letter, name, place, arguments)| {
        format!("{letter}{name} {place} {}", arguments.join(" "))
    })
}

proptest! {
    #[test]
    fn printed_definition_parses_to_itself(line in line()) {
        if let Some(Command::Create(definition)) = parse(&line) {
            let printed = definition.to_string();
            let again = parse(&printed);
            prop_assert_eq!(again, Some(Command::Create(definition.clone())), "{}", printed);
            let delete = parse(&format!("!{printed}"));
            let Some(Command::Delete(deletion)) = delete else {
                panic!("{printed}: {delete:?}");
            };
            prop_assert!(deletion.matches(&definition));
        }
    }

    #[test]
    fn caret_of_a_refusal_is_in_the_line(line in line(), cut in 0..80_usize) {
        let line = line.get(..cut).unwrap_or(&line);
        if let Some(words) = Words::of(line) {
            let parsed = Command::parse(&words, File::KprobeEvents, &Kernel, &Grammar::LINUX_6);
            if let Err(refusal) = parsed {
                prop_assert!(words.column(&refusal) <= words.to_string().len() + 1);
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for words in Commands::new(&bytes).flatten() {
            let _ = Command::parse(&words, File::DynamicEvents, &Kernel, &Grammar::default());
        }
    }

    #[test]
    fn no_text_of_signs_panics(
        command in "(p|r|-|!)[:/.0-9a-b]{0,4} (vfs_read|[-+:%/a0]{0,4})",
        argument in "[-+@$%\\\\\"(u0)=:\\[\\]bsé]{0,12}",
    ) {
        parse(&format!("{command} {argument}"));
    }

    #[test]
    fn no_record_panics(line in line(), record in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Some(Command::Create(definition)) = parse(&line) {
            let origin = Origin { comm: "x", cpu: 0, time_ns: u64::MAX };
            let mut out = String::new();
            let layout = Layout::of(&definition);
            write_line("e", &layout, &record, &origin, &Kernel, &mut out).unwrap();
        }
    }
}
