//! Texts made at random: what is printed parses to the same, and nothing panics.

mod common;

use common::{Kernel, generate::line};
use proptest::prelude::*;
use tracefs::{
    commands::{Commands, Words},
    definition::{Command, File},
    fetch::Grammar,
    line::{Origin, write_event, write_prefix},
    record::Layout,
};

fn parse(line: &str) -> Option<Command> {
    let words = Words::of(line)?;
    Command::parse(&words, File::DynamicEvents, &Kernel, &Grammar::default()).ok()
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
            for file in [File::KprobeEvents, File::UprobeEvents, File::DynamicEvents] {
                let parsed = Command::parse(&words, file, &Kernel, &Grammar::LINUX_6);
                if let Err(refusal) = parsed {
                    prop_assert!(words.column(&refusal) <= words.to_string().len() + 1);
                }
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
            let origin = Origin { comm: "x", group: None, cpu: 0, time_ns: u64::MAX };
            let mut out = String::new();
            let layout = Layout::of(&definition).unwrap();
            write_prefix(&record, &origin, &mut out).unwrap();
            write_event("e", &layout, &record, &Kernel, &mut out).unwrap();
        }
    }
}
