//! Programs of events, run on a machine of the host: what a hit leaves and how it reads.
//!
//! A definition is compiled, verified and interpreted at a hit with known registers and memory. The
//! record is read with the layout of the same definition, so the two sides are tested together.

mod common;

use bpf::{BuildError, MapIndex, Program, context::Register, verifier::verify};
use bpf_interpreter::{Space, TestMachine, run};
use common::{Kernel, PROGRAM, VFS_READ, generate};
use proptest::prelude::*;
use tracefs::{
    commands::Words,
    compile::{CompileError, FILTERED, HITS, MOST_STRINGS, Programs, compile},
    definition::{Definition, File},
    fetch::Grammar,
    filter::Filter,
    line::write_body,
    record::Layout,
};

const EVENT: u16 = 1234;
/// Where kernel and user memory is.
const MEMORY: u64 = 0xffff_c000_0000_0000;
const USER: u64 = 0x7fff_0000;
const STACK: u64 = 0xffff_d000_0000_0000;
const BANNER: u64 = 0xffff_8000_0010_0000;
const CALLER: u64 = 0xffff_8000_0000_2010;

fn definition(line: &str) -> Definition {
    let words = Words::of(line).unwrap();
    Definition::parse(&words, File::KprobeEvents, &Kernel, &Grammar::default())
        .unwrap_or_else(|refusal| panic!("{line}: {refusal}"))
}

/// The programs, which the verifier must take.
fn compiled(definition: &Definition, filter: Option<&Filter>) -> Programs {
    let programs = compile(definition, EVENT, &Kernel, filter).unwrap();
    for program in programs.entry.iter().chain([&programs.hit]) {
        if let Err(refusal) = verify(program.clone()) {
            panic!("{definition}: {refusal}\n{:#?}", program.insns);
        }
    }
    programs
}

/// A machine whose registers count from 0x100 on, with memory, as its registers `ax`, `si` and `sp`
/// say.
fn machine(program: &Program) -> TestMachine {
    let mut machine = TestMachine::new(program);
    for (register, value) in Register::ALL.into_iter().zip(0x100..) {
        machine.set_register(register, value);
    }
    machine.set_register(Register::Ip, VFS_READ);
    machine.set_register(Register::Ax, MEMORY);
    machine.set_register(Register::Si, USER);
    machine.set_register(Register::Sp, STACK);
    machine.func_ip = VFS_READ;
    machine.return_address = CALLER;
    machine.event_flags = 1;
    machine.preempt_count = 2;
    machine.pid_tgid = 77 << 32 | 77;
    let words = |from: u64, words: &[u64]| -> Vec<(u64, u8)> {
        (from..)
            .zip(words.iter().flat_map(|word| word.to_le_bytes()))
            .collect()
    };
    let mut put = |space, at: u64, bytes: &[u8]| machine.put(space, at, bytes);
    for (at, byte) in words(MEMORY, &[0x8877_6655_4433_2211, MEMORY + 0x20, USER + 0x10]) {
        put(Space::Kernel, at, &[byte]);
    }
    put(Space::Kernel, MEMORY + 0x20, b"kernel text\0");
    for (at, byte) in words(MEMORY + 0x60, &[MEMORY + 0x20, MEMORY + 0x80]) {
        put(Space::Kernel, at, &[byte]);
    }
    put(Space::Kernel, MEMORY + 0x80, b"second\0");
    for (at, byte) in words(USER + 0x40, &[USER + 0x10, 0x6000_0002]) {
        put(Space::User, at, &[byte]);
    }
    put(Space::User, 0x6000_0002, b"far\0");
    put(Space::Kernel, MEMORY + 0x40, b"\xff\xfe\x00");
    for (at, byte) in words(USER, &[0x1122, USER + 0x10]) {
        put(Space::User, at, &[byte]);
    }
    put(Space::User, USER + 0x10, b"/dev/null\0");
    for (at, byte) in words(STACK, &[CALLER, 7, 8]) {
        put(Space::Kernel, at, &[byte]);
    }
    put(Space::Kernel, BANNER, b"\x78\x56\x34\x12\0");
    machine
}

/// Runs one hit, with the entry before it if there is one.
fn hit(programs: &Programs, prepare: impl Fn(&mut TestMachine)) -> TestMachine {
    let entry_data = programs.entry.as_ref().map(|entry| {
        let mut at_entry = machine(entry);
        prepare(&mut at_entry);
        assert_eq!(run(entry, &mut at_entry, 10_000), Ok(0));
        at_entry.entry_data
    });
    let mut machine = machine(&programs.hit);
    prepare(&mut machine);
    if let Some(data) = entry_data {
        machine.entry_data = data;
    }
    assert_eq!(run(&programs.hit, &mut machine, 100_000), Ok(0));
    assert_eq!(machine.held(), 0);
    machine
}

fn body(definition: &Definition, record: &[u8]) -> String {
    let mut out = String::new();
    write_body(&Layout::of(definition).unwrap(), record, &Kernel, &mut out).unwrap();
    out
}

/// The text of the record that a hit leaves.
fn recorded(line: &str) -> String {
    let definition = definition(line);
    let machine = hit(&compiled(&definition, None), |_| ());
    let [record] = &machine.published[..] else {
        panic!("{line}: {} records", machine.published.len());
    };
    assert_eq!(record.ring, tracefs::compile::RING);
    body(&definition, &record.bytes)
}

/// The values of one argument of a probe at the entry of `vfs_read`.
#[track_caller]
fn value(fetch: &str, text: &str) {
    let line = recorded(&format!("p vfs_read {fetch}"));
    assert_eq!(line, format!("(vfs_read+0x0/0x120) arg1={text}"), "{fetch}");
}

/// All memory of an event of a program is the program's.
#[test]
fn fetches_of_programs_read_the_programs_memory() {
    let definition_in = |line: &str| {
        let words = Words::of(line).unwrap();
        Definition::parse(&words, File::UprobeEvents, &Kernel, &Grammar::default()).unwrap()
    };
    let recorded = |line: &str| {
        let definition = definition_in(line);
        let programs = compiled(&definition, None);
        assert!(programs.entry.is_none());
        let machine = hit(&programs, |machine| {
            machine.set_register(Register::Ip, 0x40_1234);
            machine.set_register(Register::OrigAx, 0x40_1200);
            machine.set_register(Register::Sp, USER);
            machine.put(Space::User, 0x40_1008, b"in the file\0");
        });
        let [record] = &machine.published[..] else {
            panic!("{line}: {} records", machine.published.len());
        };
        body(&definition, &record.bytes)
    };
    let at = |rest: &str| recorded(&format!("p {PROGRAM}:0x234 {rest}"));
    let user_word = u64::from_le_bytes(*b"/dev/nul");
    for (fetch, text) in [
        ("%di", "0x10e".to_owned()),
        ("+0x10(%si):string", "\"/dev/null\"".to_owned()),
        ("+u0x10(%si):ustring", "\"/dev/null\"".to_owned()),
        ("+0x10(%si):x64", format!("{user_word:#x}")),
        ("+0x10(%si):char[4]", "{'/','d','e','v'}".to_owned()),
        ("$stack2", format!("{user_word:#x}")),
        (&format!("@{:#x}:u8", USER + 0x10), "47".to_owned()),
        ("@+0x1008:string", "\"in the file\"".to_owned()),
        // The kernel's memory is not read.
        ("+0x20(%ax):string", "(fault)".to_owned()),
        ("+0(%ax)", "0x0".to_owned()),
    ] {
        assert_eq!(at(fetch), format!("(0x401234) arg1={text}"), "{fetch}");
    }
    assert_eq!(
        recorded(&format!("r {PROGRAM}:0x200 $retval:s8")),
        "(0x401234 <- 0x401200) arg1=0"
    );
}

#[test]
fn every_fetch_gives_its_value() {
    for (fetch, text) in [
        ("%r15", "0x100"),
        ("%di", "0x10e"),
        ("%ip", "0xffff800000001000"),
        ("$stack", "0xffffd00000000000"),
        ("$stack0", "0xffff800000002010"),
        ("$stack2", "0x8"),
        ("$arg1", "0x10e"),
        ("$arg2", "0x7fff0000"),
        ("$arg3", "0x10c"),
        ("$arg4", "0x10b"),
        ("$arg5", "0x109"),
        ("$arg6", "0x108"),
        ("$arg7", "0x7"),
        ("$arg8", "0x8"),
        (r"\42:u32", "42"),
        (r"\-1:s8", "-1"),
        (r"\0xffffffffffffffff", "0xffffffffffffffff"),
        ("@0xffffc00000000000", "0x8877665544332211"),
        ("@linux_proc_banner:x32", "0x12345678"),
        ("@linux_proc_banner+1:x16", "0x3456"),
        ("@linux_proc_banner+4:x8", "0x0"),
        ("+0(%ax)", "0x8877665544332211"),
        ("+0(+8(%ax)):char", "'k'"),
        ("+7(+8(%ax)):char[4]", "{'t','e','x','t'}"),
        ("-32(+8(%ax))", "0x8877665544332211"),
        ("+u0(%si):u16", "4386"),
        ("+u1(%si):x8", "0x11"),
        ("+0x7fffffffffff(%r15)", "0x0"),
        ("+4294967296(-4294967296(%ax))", "0x0"),
    ] {
        value(fetch, text);
    }
}

#[test]
fn every_type_cuts_the_value() {
    for (ty, text) in [
        ("u8", "17"),
        ("u16", "8721"),
        ("u32", "1144201745"),
        ("u64", "9833440827789222417"),
        ("s8", "17"),
        ("s64", "-8613303245920329199"),
        ("x8", "0x11"),
        ("x16", "0x2211"),
        ("x32", "0x44332211"),
        ("x64", "0x8877665544332211"),
        ("symbol", "0x8877665544332211"),
        ("b4@4/8", "1"),
        ("b8@4/32", "33"),
        ("b1@63/64", "1"),
        ("b64@0/64", "9833440827789222417"),
        ("b16@0/16", "8721"),
    ] {
        value(&format!("+0(%ax):{ty}"), text);
        // A constant is cut in the same way as memory.
        value(&format!(r"\0x8877665544332211:{ty}"), text);
    }
    value("$stack0:symbol", "kernel_clone+0x10/0x300");
}

#[test]
fn arrays_are_read_element_by_element() {
    value("+0(%ax):x16[4]", "{0x2211,0x4433,0x6655,0x8877}");
    value("+0(%ax):b4@4/8[2]", "{1,2}");
    value("+16(%ax):u64[1]", &format!("{{{}}}", USER + 0x10));
    value("@linux_proc_banner:x8[5]", "{0x78,0x56,0x34,0x12,0x0}");
    // Memory ends in the middle of the array.
    value("@linux_proc_banner+4:x8[3]", "{0x0,0x0,0x0}");
    value("+8(%ax):string[1]", "{\"kernel text\"}");
    value("+8(%ax):string[2]", "{\"kernel text\",(fault)}");
    value("+0x60(%ax):string[2]", "{\"kernel text\",\"second\"}");
    value("+u0x40(%si):string[2]", "{\"/dev/null\",\"far\"}");
    value("+16(%ax):ustring[1]", "{\"/dev/null\"}");
    value("+u8(%si):string[2]", "{\"/dev/null\",(fault)}");
}

#[test]
fn strings_are_read_where_they_are() {
    value("+0x20(%ax):string", "\"kernel text\"");
    value("+0(+8(%ax)):string", "\"kernel text\"");
    value("@0xffffc00000000020:string", "\"kernel text\"");
    value(r"\0xffffc00000000020:string", "\"kernel text\"");
    value("+0x10(%si):ustring", "\"/dev/null\"");
    value("+u0x10(%si):string", "\"/dev/null\"");
    value("+0(+16(%ax)):ustring", "\"/dev/null\"");
    value("+u0(+u8(%si)):string", "\"/dev/null\"");
    // Each in the memory of the other.
    value("+0x20(%ax):ustring", "(fault)");
    value("+u0x20(%ax):string", "(fault)");
    value("+0x10(%si):string", "(fault)");
    value("+0x40(%ax):string", "\"\u{fffd}\u{fffd}\"");
    value("$comm", "\"test\"");
    value(r#"\"text""#, "\"text\"");
    value(r#"\"""#, "\"\"");
    value(r#"\"12345678""#, "\"12345678\"");
    value("$stack0:symstr", "\"kernel_clone+0x10/0x300\"");
    value("+0(%sp):symstr", "\"kernel_clone+0x10/0x300\"");
}

#[test]
fn values_share_a_record() {
    let line = "p vfs_read+4 a=+0x20(%ax):string b=%r15:u8 c=+0x20(%ax):string d=$comm \
                e=+0(%r15):string f=\\\"x\" g=$stack1 h=+0x10(%si):ustring";
    assert_eq!(
        recorded(line),
        "(vfs_read+0x0/0x120) a=\"kernel text\" b=0 c=\"kernel text\" d=\"test\" e=(fault) \
         f=\"x\" g=0x7 h=\"/dev/null\""
    );
}

#[test]
fn measured_lengths_survive_reads_of_user_memory() {
    // The pointer that is read from user memory ends in 2, which is less than the first length.
    assert_eq!(
        recorded("p vfs_read a=+0x20(%ax):string b=+u0(+u0x48(%si)):string"),
        "(vfs_read+0x0/0x120) a=\"kernel text\" b=\"far\""
    );
}

#[test]
fn record_begins_with_the_common_header() {
    let definition = definition("p vfs_read");
    let machine = hit(&compiled(&definition, None), |_| ());
    let mut bytes = Vec::from(EVENT.to_le_bytes());
    bytes.extend([1, 2, 77, 0, 0, 0]);
    bytes.extend(VFS_READ.to_le_bytes());
    assert_eq!(machine.published[0].bytes, bytes);
}

#[test]
fn return_records_arguments_of_the_entry() {
    let definition = definition("r vfs_read $retval $arg1 +16($arg2):ustring $arg7 $arg1:u8");
    let programs = compiled(&definition, None);
    let entry = programs.entry.as_ref().unwrap();
    let mut at_entry = machine(entry);
    assert_eq!(run(entry, &mut at_entry, 1_000), Ok(0));
    let mut at_return = machine(&programs.hit);
    at_return.entry_data = at_entry.entry_data;
    // The function has overwritten its arguments.
    at_return.set_register(Register::Di, 0);
    at_return.set_register(Register::Si, 0);
    at_return.put(Space::Kernel, STACK + 8, &[0; 8]);
    at_return.set_register(Register::Ax, 5);
    assert_eq!(run(&programs.hit, &mut at_return, 1_000), Ok(0));
    assert_eq!(
        body(&definition, &at_return.published[0].bytes),
        "(kernel_clone+0x10/0x300 <- vfs_read) \
         arg1=0x5 arg2=0x10e arg3=\"/dev/null\" arg4=0x7 arg5=14"
    );
}

#[test]
fn return_without_arguments_needs_no_entry() {
    let definition = definition("r vfs_read $retval");
    assert!(compiled(&definition, None).entry.is_none());
    assert!(recorded("r vfs_read $retval:u8").starts_with("(kernel_clone+0x10/0x300 <- vfs_read)"));
}

fn hits(machine: &TestMachine) -> u64 {
    count_in(machine, HITS)
}

/// The hits that the filter has rejected, if there is one.
fn filtered(programs: &Programs, machine: &TestMachine) -> Option<u64> {
    let mut maps = programs.hit.maps.iter();
    let at = maps.position(|map| map.name == FILTERED)?;
    Some(count_in(machine, MapIndex(at as u16)))
}

fn count_in(machine: &TestMachine, map: MapIndex) -> u64 {
    // A counter that no hit has counted in does not exist.
    let counter = machine.value(map, 0, &[0; 4]);
    counter.map_or(0, |counter| u64::from_le_bytes(counter.try_into().unwrap()))
}

#[test]
fn hit_is_counted_even_if_it_is_not_recorded() {
    let definition = definition("p vfs_read a=%di:u32 s=+0x20(%ax):string");
    for (filter, records) in [
        (None, 1),
        (Some("a == 0x10e"), 1),
        (Some("a == 1"), 0),
        (Some("s == \"kernel text\""), 1),
        (Some("s ~ \"*tex\""), 0),
        (Some("common_pid == 77 && __probe_ip > 0"), 1),
    ] {
        let layout = Layout::of(&definition).unwrap();
        let filter = filter.map(|text| Filter::parse(text, layout.own_fields(), &Kernel).unwrap());
        let programs = compiled(&definition, filter.as_ref());
        let machine = hit(&programs, |_| ());
        let counts = (hits(&machine), filtered(&programs, &machine));
        let expected = match &filter {
            None => (1, None),
            Some(_) => (records as u64, Some(1 - records as u64)),
        };
        assert_eq!(
            (counts, machine.published.len()),
            (expected, records),
            "{filter:?}"
        );
        assert_eq!(machine.discarded, 0);
    }
    let full = hit(&compiled(&definition, None), |machine| {
        machine.room_for_records = 0
    });
    assert_eq!((hits(&full), full.published.len(), full.refused), (1, 0, 1));
}

#[test]
fn long_strings_share_the_room_of_a_record() {
    let definition = definition("p vfs_read a=+0(%ax):string b=+0(%ax):string c=$comm");
    let machine = hit(&compiled(&definition, None), |machine| {
        machine.put(Space::Kernel, MEMORY, &[b'x'; 4000]);
    });
    let record = &machine.published[0].bytes;
    assert!(record.len() <= bpf::MOST_RECORD_BYTES as usize);
    let text = body(&definition, record);
    let room = bpf::MOST_RECORD_BYTES as usize - 28;
    assert!(text.starts_with(&format!(
        "(vfs_read+0x0/0x120) a=\"{}\" b=",
        "x".repeat(room - 1)
    )));
}

#[test]
fn most_strings_of_an_event_are_told() {
    let line = |arguments: usize| format!("p vfs_read{}", " +0x20(%ax):string".repeat(arguments));
    compiled(&definition(&line(MOST_STRINGS)), None);
    let error = compile(&definition(&line(MOST_STRINGS + 1)), EVENT, &Kernel, None).unwrap_err();
    assert_eq!(error, CompileError::TooManyStrings(MOST_STRINGS + 1));
}

#[test]
fn longest_text_fits_the_stack() {
    let text = "t".repeat(252);
    value(&format!("\\\"{text}\""), &format!("\"{text}\""));
}

#[test]
fn largest_event_has_a_program() {
    let numbers = format!("p vfs_read{}", " %ax".repeat(128));
    compiled(&definition(&numbers), None);
    let arrays = format!("r vfs_read{}", " +0($arg1):u64[64]".repeat(5));
    compiled(&definition(&arrays), None);
    let kept: String = (1..=32).map(|number| format!(" $arg{number}")).collect();
    compiled(&definition(&format!("r vfs_read{kept}")), None);
}

#[test]
fn arrays_of_strings_behind_many_pointers_are_told_to_be_too_long() {
    let long = "p vfs_read +0(+0(+0(+0($stack0)))):string[58]";
    compiled(&definition(long), None);
    let longer = format!("{long} a=+u0(+u0(+u0(+u1(%di)))):string[54]");
    let error = compile(&definition(&longer), EVENT, &Kernel, None).err();
    assert_eq!(error, Some(CompileError::Build(BuildError::TooLong)));
}

proptest! {
    #[test]
    fn any_definition_runs_and_reads(line in generate::line(), registers in any::<[u64; 21]>()) {
        let words = Words::of(&line).unwrap();
        let grammar = Grammar::default();
        let parsed = Definition::parse(&words, File::KprobeEvents, &Kernel, &grammar);
        if let Ok(definition) = parsed {
            match compile(&definition, EVENT, &Kernel, None) {
                Ok(_) => {
                    let programs = compiled(&definition, None);
                    let machine = hit(&programs, |machine| {
                        if registers[0] % 2 == 0 {
                            machine.registers = registers;
                        }
                    });
                    prop_assert_eq!(machine.published.len(), 1);
                    let record = &machine.published[0].bytes;
                    prop_assert!(record.len() <= bpf::MOST_RECORD_BYTES as usize);
                    body(&definition, record);
                }
                Err(CompileError::TooManyStrings(_)) => (),
                // Each string of an array follows its pointers.
                Err(CompileError::Build(BuildError::TooLong)) if line.contains("string[") => (),
                Err(error) => panic!("{line}: {error}"),
            }
        }
    }
}
