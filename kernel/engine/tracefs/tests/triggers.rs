//! Filters and histograms of whole events: from the lines that a user writes to the text that the
//! files show.

mod common;

use bpf::{Program, ProgramKind, Reg, context::Register, verifier::verify};
use bpf_interpreter::{Space, TestMachine, run};
use common::{Kernel, VFS_READ};
use tracefs::{
    commands::Words,
    compile::EventProgram,
    definition::{Definition, File},
    fetch::Grammar,
    field::NoSymbols,
    filter::Frame,
    hist::{Maps, NoNames, Table},
    trigger::{Action, Line},
    values::Values,
};

const TEXT: u64 = 0xffff_c000_0000_0000;

/// The program of an event that has only the trigger `trigger`, and its maps.
fn program(event: &str, trigger: &str) -> (Line, Program, Maps) {
    let words = Words::of(event).unwrap();
    let definition =
        Definition::parse(&words, File::KprobeEvents, &Kernel, &Grammar::default()).unwrap();
    let mut program = EventProgram::new(&definition, 7, &Kernel).unwrap();
    let line = Line::parse(trigger, &program.values.layout().fields, &Kernel).unwrap();
    let Action::Hist(hist) = &line.trigger.action else {
        panic!("{trigger} is no histogram");
    };
    let EventProgram {
        builder, values, ..
    } = &mut program;
    let maps = hist.add_maps(builder, "hist").unwrap();
    let frame = Frame {
        value: Reg::R7,
        text: -512,
    };
    hist.compile(
        builder,
        frame,
        Values::CONTEXT,
        maps,
        &mut |builder, field, dst| values.load(builder, field, dst),
    )
    .unwrap();
    let programs = program.finish().unwrap();
    if let Err(refusal) = verify(programs.hit.clone()) {
        panic!("{event}, {trigger}: {refusal}");
    }
    assert!(programs.hit.kind == ProgramKind::Probe);
    (line, programs.hit, maps)
}

/// The content of the `hist` file after `hits`: first arguments, texts and pids.
fn shown(event: &str, trigger: &str, hits: &[(u64, &str, u32)]) -> Vec<String> {
    let (line, program, maps) = program(event, trigger);
    let mut machine = TestMachine::new(&program);
    for (argument, text, pid) in hits {
        machine.set_register(Register::Ip, VFS_READ);
        machine.set_register(Register::Di, *argument);
        machine.set_register(Register::Si, TEXT);
        machine.put(Space::Kernel, TEXT, text.as_bytes());
        machine.put(Space::Kernel, TEXT + text.len() as u64, &[0]);
        machine.pid_tgid = u64::from(*pid);
        run(&program, &mut machine, 10_000).unwrap();
    }
    let Action::Hist(hist) = &line.trigger.action else {
        panic!("{trigger} is no histogram");
    };
    let mut table = Table::new(hist);
    for ((_, key), value) in machine.values(maps.table) {
        table.add(&key, &value).unwrap();
    }
    table.sort();
    let mut out = String::new();
    table.write(false, &NoSymbols, &NoNames, &mut out).unwrap();
    out.lines().skip(5).map(String::from).collect()
}

const EVENT: &str = "p:read vfs_read size=%di:s32 name=+0($arg2):string task=$comm letter=%di:char";

#[test]
fn hits_are_counted_by_argument_and_pid() {
    let hits = [(1, "a", 5), (2, "a", 5), (1, "b", 5), (1, "", 6)];
    assert_eq!(
        shown(
            EVENT,
            "hist:keys=size,common_pid:vals=size:sort=hitcount.descending",
            &hits
        ),
        [
            "{ size:          1, common_pid:          5 } hitcount:          2  size:          2",
            "{ size:          1, common_pid:          6 } hitcount:          1  size:          1",
            "{ size:          2, common_pid:          5 } hitcount:          1  size:          2",
            "",
            "Totals:",
            "    Hits: 4",
            "    Entries: 3",
            "    Dropped: 0",
        ]
    );
}

#[test]
fn filters_and_string_keys_use_what_the_event_fetches() {
    let hits = [
        (1, "main.rs", 5),
        (2, "lib.rs", 5),
        (3, "main.c", 5),
        (200, "main.rs", 5),
    ];
    let trigger = "hist:keys=name if name ~ \"*.rs\" && size < 100 && task == \"test\"";
    let rows = shown(EVENT, trigger, &hits);
    assert_eq!(
        rows[..3],
        [
            format!("{{ name: {:<50} }} hitcount:          1", "lib.rs"),
            format!("{{ name: {:<50} }} hitcount:          1", "main.rs"),
            String::new(),
        ]
    );
}

#[test]
fn logarithms_use_an_array() {
    let hits = [0, 1, 2, 3, 4, 5, 8, 9].map(|size| (size, "", 1));
    let rows = shown(EVENT, "hist:keys=size.log2:sort=size", &hits);
    assert_eq!(
        rows[..5],
        [
            "{ size: ~ 2^0  } hitcount:          2",
            "{ size: ~ 2^1  } hitcount:          1",
            "{ size: ~ 2^2  } hitcount:          2",
            "{ size: ~ 2^3  } hitcount:          2",
            "{ size: ~ 2^4  } hitcount:          1",
        ]
    );
}

/// A table without the names of system calls and without call stacks.
#[test]
fn what_has_no_name_is_shown_as_a_number() {
    let hits = [(1, "a", 1), (1, "b", 1), (9, "c", 1)];
    let rows = shown(EVENT, "hist:keys=size.syscall", &hits);
    assert_eq!(
        rows[..3],
        [
            format!(
                "{{ size: {:<30}[  9] }} hitcount:          1",
                "unknown_syscall"
            ),
            format!(
                "{{ size: {:<30}[  1] }} hitcount:          2",
                "unknown_syscall"
            ),
            String::new(),
        ]
    );
}

#[test]
fn letters_and_the_probed_function_can_be_compared() {
    let hits = [(u64::from(b'x'), "", 1), (u64::from(b'y'), "", 1)];
    let trigger = "hist:keys=letter if letter == 'x' && __probe_ip.function == vfs_read";
    let rows = shown(EVENT, trigger, &hits);
    assert_eq!(
        rows[..2],
        ["{ letter:        120 } hitcount:          1", ""]
    );
    let trigger = "hist:keys=letter if __probe_ip.function != vfs_read";
    assert_eq!(shown(EVENT, trigger, &hits)[..2], ["", "Totals:"]);
}
