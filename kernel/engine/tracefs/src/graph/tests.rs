//! Calls as text: each line is compared to the blank.
//!
//! The expected lines follow the format of Linux. Where it is a matter of digits (durations), each
//! number of digits has a case.

use std::{format, string::String, vec};

use super::*;
use crate::field::{LookupError, SymbolAt};

struct Table;

impl Symbols for Table {
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
        let name = match address {
            0x1000 => "sys_mkdir",
            0x2000 => "copy_path",
            0x3000 => "vfs_mkdir",
            _ => return None,
        };
        Some(SymbolAt {
            name,
            offset: 0,
            size: 16,
            module: None,
        })
    }

    fn address(&self, _: &str) -> Result<u64, LookupError> {
        Err(LookupError::NotFound)
    }
}

fn comm(pid: i32, out: &mut dyn Write) -> fmt::Result {
    match pid {
        7 => out.write_str("sh"),
        8 => out.write_str("a-long-name"),
        _ => out.write_str("<...>"),
    }
}

fn writer(options: u32) -> Writer<'static> {
    Writer {
        options: Options(options),
        cpus: 4,
        interrupt: None,
        symbols: &Table,
        write_comm: &comm,
    }
}

fn entry(function: u64, depth: u32) -> Call {
    Call::Entry(CallEntry {
        function,
        depth,
        arguments: None,
    })
}

fn end(function: u64, depth: u32, result: u64) -> Call {
    Call::Return(CallReturn {
        function,
        result,
        depth,
        entry_cpu: 0,
        entered: 0,
    })
}

/// The lines of these calls: each with its task and duration, one after the other on CPU 0.
fn lines(options: u32, calls: &[(Call, i32, u64)]) -> String {
    let (writer, mut cpu, mut out) = (writer(options), Lines::new(), String::new());
    for (at, (call, pid, duration)) in (1..).zip(calls) {
        let origin = Origin {
            cpu: 0,
            pid: *pid,
            time_ns: at * 1_000_500,
        };
        writer
            .call(&mut cpu, call, &origin, *duration, &mut out)
            .unwrap();
    }
    writer.settle(&mut cpu, &mut out).unwrap();
    out
}

const DEFAULT: u32 = Options::DEFAULT.0;

#[test]
fn a_call_without_calls_is_one_line() {
    let calls = [
        (entry(0x1000, 0), 7, 0),
        (entry(0x2000, 1), 7, 0),
        (end(0x2000, 1, 0), 7, 1_204),
        (entry(0x3000, 1), 7, 0),
        (entry(0x2000, 2), 7, 0),
        (end(0x2000, 2, 0), 7, 626),
        (end(0x3000, 1, 0), 7, 10_001),
        (end(0x1000, 0, 0), 7, 100_000),
    ];
    assert_eq!(
        lines(DEFAULT, &calls),
        concat!(
            " 0)               |  sys_mkdir() {\n",
            " 0)   1.204 us    |    copy_path();\n",
            " 0)               |    vfs_mkdir() {\n",
            " 0)   0.626 us    |      copy_path();\n",
            " 0) + 10.001 us   |    }\n",
            " 0) + 100.000 us  |  }\n",
        )
    );
}

/// The registers of arguments stand between the parentheses, where they were recorded.
#[test]
fn an_entry_has_its_registers() {
    let mut record = vec![11, 0, 0, 0, 7, 0, 0, 0];
    let mut words = |words: &[u64]| -> Option<Call> {
        record.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Call::read(ENTRY_ID, &record)
    };
    assert_eq!(words(&[0x1000, 0]), Some(entry(0x1000, 0)));
    // A record that is cut short has none.
    assert_eq!(words(&[1, 2, 3, 4, 5]), Some(entry(0x1000, 0)));
    let with_registers = words(&[0xfff]).unwrap();
    let outer = [(with_registers, 7, 0), (entry(0x2000, 1), 7, 0)];
    let leaf = [(with_registers, 7, 0), (end(0x1000, 0, 0), 7, 626)];
    let call = "sys_mkdir(di=0x1, si=0x2, dx=0x3, cx=0x4, r8=0x5, r9=0xfff)";
    assert_eq!(
        lines(DEFAULT, &outer).lines().next(),
        Some(&*format!(" 0)               |  {call} {{"))
    );
    assert_eq!(
        lines(DEFAULT, &leaf),
        format!(" 0)   0.626 us    |  {call};\n")
    );
}

/// Of the calls of other tasks and other functions nothing is one line; an end whose entry is not
/// there says whose it is.
#[test]
fn an_end_without_its_entry_has_the_name() {
    let calls = [
        (end(0x3000, 1, 0), 7, 5),
        (entry(0x2000, 1), 7, 0),
        (end(0x2000, 1, 0), 8, 5),
        (entry(0x2000, 0), 8, 0),
        (end(0x3000, 0, 0), 8, 5),
    ];
    assert_eq!(
        lines(DEFAULT, &calls),
        concat!(
            " 0)   0.005 us    |    } /* vfs_mkdir */\n",
            " 0)               |    copy_path() {\n",
            " ------------------------------------------\n",
            " 0)      sh-7      =>   a-long--8   \n",
            " ------------------------------------------\n",
            "\n",
            " 0)   0.005 us    |    }\n",
            " 0)               |  copy_path() {\n",
            " 0)   0.005 us    |  } /* vfs_mkdir */\n",
        )
    );
    // The same end a second time has no entry any more.
    let calls = [
        (entry(0x1000, 0), 7, 0),
        (entry(0x2000, 1), 7, 0),
        (end(0x1000, 0, 0), 7, 5),
        (end(0x1000, 0, 0), 7, 5),
    ];
    assert!(lines(DEFAULT, &calls).ends_with("|  }\n 0)   0.005 us    |  } /* sys_mkdir */\n"));
}

#[test]
fn a_duration_has_seven_digits_and_its_mark() {
    for (ns, text) in [
        (0, "  0.000 us    |  "),
        (9_999, "  9.999 us    |  "),
        (10_000, "  10.000 us   |  "),
        (10_001, "+ 10.001 us   |  "),
        (100_001, "! 100.001 us  |  "),
        (1_000_001, "# 1000.001 us |  "),
        (10_000_019, "* 10000.01 us |  "),
        (100_000_199, "@ 100000.1 us |  "),
        (1_000_000_001, "$ 1000000 us  |  "),
        (12_345_678_901_234, "$ 12345678901 us |  "),
    ] {
        let mut out = String::new();
        writer(DEFAULT).duration(ns, &mut out).unwrap();
        assert_eq!(out, text, "{ns}");
        out.clear();
        let without_marks = DEFAULT & !Options::OVERHEAD;
        writer(without_marks).duration(ns, &mut out).unwrap();
        assert_eq!(out[..2], *"  ", "{ns}");
        assert_eq!(out[2..], text[2..], "{ns}");
    }
}

#[test]
fn a_result_is_an_errno_or_hexadecimal() {
    let shown = |options: u32, result: u64| {
        let calls = [
            (entry(0x1000, 0), 7, 0),
            (end(0x1000, 0, result), 7, 1),
            (entry(0x1000, 0), 7, 0),
            (entry(0x2000, 1), 7, 0),
            (end(0x1000, 0, result), 7, 1),
        ];
        let text = lines(DEFAULT | Options::RESULT | options, &calls);
        let shown = |line: usize| {
            let (_, rest) = text.lines().nth(line).unwrap().split_once("|  ").unwrap();
            String::from(rest)
        };
        (shown(0), shown(3))
    };
    for (result, text) in [
        (0, "0x0"),
        (17, "0x11"),
        (-17_i64 as u64, "-17"),
        (-4095_i64 as u64, "-4095"),
        (-4096_i64 as u64, "0xfffffffffffff000"),
        // A result of 32 bits.
        (u64::from(-17_i32 as u32), "-17"),
        (0x8000_0000, "0x80000000"),
        (0x1_ffff_ffef, "0x1ffffffef"),
    ] {
        let (leaf, end) = shown(0, result);
        assert_eq!(leaf, std::format!("sys_mkdir(); /* = {text} */"));
        assert_eq!(end, std::format!("}} /* sys_mkdir = {text} */"));
    }
    let (leaf, _) = shown(Options::RESULT_IN_HEX, -17_i64 as u64);
    assert_eq!(leaf, "sys_mkdir(); /* = 0xffffffffffffffef */");
}

#[test]
fn each_option_has_its_column() {
    let calls = [
        (entry(0x1000, 0), 7, 0),
        (entry(0x9000, 1), 7, 0),
        (end(0x1000, 0, 0), 7, 5),
    ];
    assert_eq!(
        lines(Options::TIME | Options::CPU | Options::PROCESS, &calls),
        concat!(
            "    0.001000 |   0)      sh-7      | sys_mkdir() {\n",
            "    0.002001 |   0)      sh-7      |   0x9000() {\n",
            "    0.003001 |   0)      sh-7      | }\n",
        )
    );
    assert_eq!(lines(0, &calls[..1]), "sys_mkdir() {\n");
    assert!(lines(Options::TAIL, &calls).ends_with("} /* sys_mkdir */\n"));
    let head = |options: u32| {
        let mut out = String::new();
        writer(options).head(&mut out).unwrap();
        out
    };
    assert_eq!(
        head(DEFAULT),
        concat!(
            "# tracer: function_graph\n",
            "#\n",
            "# CPU  DURATION                  FUNCTION CALLS\n",
            "# |     |   |                     |   |   |   |\n",
        )
    );
    assert_eq!(
        head(Options::TIME),
        concat!(
            "# tracer: function_graph\n",
            "#\n",
            "#     TIME                      FUNCTION CALLS\n",
            "#      |                        |   |   |   |\n",
        )
    );
}

/// Arrows stand around the function of interrupts, whether it calls others or not.
#[test]
fn an_interrupt_comes_and_goes_by_arrows() {
    let writer = Writer {
        interrupt: Some(0x3000),
        ..writer(DEFAULT)
    };
    let (mut cpu, mut out) = (Lines::new(), String::new());
    let origin = Origin {
        cpu: 0,
        pid: 7,
        time_ns: 0,
    };
    for call in [
        entry(0x1000, 0),
        entry(0x3000, 1),
        end(0x3000, 1, 0),
        entry(0x3000, 1),
        entry(0x2000, 2),
        end(0x2000, 2, 0),
        end(0x3000, 1, 0),
        end(0x1000, 0, 0),
    ] {
        writer.call(&mut cpu, &call, &origin, 1, &mut out).unwrap();
    }
    assert_eq!(
        out,
        concat!(
            " 0)               |  sys_mkdir() {\n",
            " 0)   ==========> |\n",
            " 0)   0.001 us    |    vfs_mkdir();\n",
            " 0)   <========== |\n",
            " 0)   ==========> |\n",
            " 0)               |    vfs_mkdir() {\n",
            " 0)   0.001 us    |      copy_path();\n",
            " 0)   0.001 us    |    }\n",
            " 0)   <========== |\n",
            " 0)   0.001 us    |  }\n",
        )
    );
}

/// The number of a CPU is as wide as that of the last one.
#[test]
fn numbers_of_cpus_are_below_each_other() {
    for (cpus, text) in [(1, " 3) "), (10, " 3) "), (11, "  3) "), (101, "   3) ")] {
        let mut out = String::new();
        let writer = Writer {
            cpus,
            ..writer(DEFAULT)
        };
        writer.cpu(3, &mut out).unwrap();
        assert_eq!(out, text, "{cpus}");
    }
}

#[test]
fn other_records_are_comments_at_the_depth_of_the_call() {
    let (writer, mut cpu, mut out) = (writer(DEFAULT), Lines::new(), String::new());
    let origin = Origin {
        cpu: 2,
        pid: 7,
        time_ns: 0,
    };
    let comment = |cpu: &mut Lines, out: &mut String| {
        writer.comment(cpu, "mine: (a)\n", &origin, out).unwrap();
    };
    comment(&mut cpu, &mut out);
    for (function, depth) in [(0x1000, 0), (0x2000, 1)] {
        writer
            .call(&mut cpu, &entry(function, depth), &origin, 0, &mut out)
            .unwrap();
    }
    comment(&mut cpu, &mut out);
    assert!(!cpu.waits());
    assert_eq!(
        out,
        concat!(
            " 2)               |  /* mine: (a) */\n",
            " 2)               |  sys_mkdir() {\n",
            " 2)               |    copy_path() {\n",
            " 2)               |      /* mine: (a) */\n",
        )
    );
}

#[test]
fn a_record_that_is_too_short_is_none() {
    let mut record = [0; 40];
    record[8..16].copy_from_slice(&0x1000_u64.to_le_bytes());
    record[16..24].copy_from_slice(&3_u64.to_le_bytes());
    record[24..28].copy_from_slice(&2_u32.to_le_bytes());
    record[28..32].copy_from_slice(&1_u32.to_le_bytes());
    record[32..40].copy_from_slice(&50_u64.to_le_bytes());
    let Some(Call::Return(end)) = Call::read(RETURN_ID, &record) else {
        panic!("it is a return");
    };
    assert_eq!((end.function, end.result, end.depth), (0x1000, 3, 2));
    assert_eq!((end.entry_cpu, end.entered), (1, 50));
    assert_eq!(Call::read(ENTRY_ID, &record), Some(entry(0x1000, 3)));
    assert_eq!(Call::read(RETURN_ID, &record[..39]), None);
    assert_eq!(Call::read(ENTRY_ID, &record[..23]), None);
    assert_eq!(Call::read(1, &record), None);
}
