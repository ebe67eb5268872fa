//! The view of readers: `format` files, lines of `trace`, and `README`.
//!
//! The texts are those of Linux to the blank, because tools read them. Records that are cut short
//! or come late show what they have.

mod common;

use common::{Kernel, VFS_READ};
use tracefs::{
    commands::Words,
    definition::{Definition, File},
    fetch::Grammar,
    line::{
        DELAY_MARK_FROM_END, Head, Origin, flags, state, write_event, write_frames, write_function,
        write_header, write_lost, write_mark, write_prefix, write_short_prefix, write_traced,
    },
    readme,
    record::Layout,
};

fn layout(line: &str) -> Layout {
    let words = Words::of(line).unwrap();
    Layout::of(
        &Definition::parse(&words, File::KprobeEvents, &Kernel, &Grammar::default()).unwrap(),
    )
    .unwrap()
}

fn format(layout: &Layout) -> String {
    let mut out = String::new();
    layout.write_format("myprobe", 780, &mut out).unwrap();
    out
}

/// The line of a record: task 1234 on CPU 2, interrupts off, preemption off twice.
fn line(layout: &Layout, after_common: &[u8]) -> String {
    let mut record = vec![12, 3, flags::IRQS_OFF, 2];
    record.extend(1234_i32.to_le_bytes());
    record.extend(after_common);
    let origin = Origin {
        comm: "bash",
        group: None,
        cpu: 2,
        time_ns: 12_345_677_500,
    };
    let mut out = String::new();
    write_prefix(&record, &origin, &mut out).unwrap();
    write_event("myprobe", layout, &record, &Kernel, &mut out).unwrap();
    out + "\n"
}

#[test]
fn format_of_a_probe_is_that_of_linux() {
    let layout =
        layout("p:myprobe vfs_read dfd=%ax name=+0(%si):string c=+0(%di):char[2] s=%dx:s8");
    assert_eq!(
        format(&layout),
        "name: myprobe\n\
         ID: 780\n\
         format:\n\
         \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
         \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
         \n\
         \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
         \tfield:u64 dfd;\toffset:16;\tsize:8;\tsigned:0;\n\
         \tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:1;\n\
         \tfield:u8 c[2];\toffset:28;\tsize:2;\tsigned:0;\n\
         \tfield:s8 s;\toffset:30;\tsize:1;\tsigned:1;\n\
         \n\
         print fmt: \"(%lx) dfd=0x%Lx name=\\\"%s\\\" c={'%c','%c'} s=%d\", \
         REC->__probe_ip, REC->dfd, __get_str(name), REC->c[0], REC->c[1], REC->s\n"
    );
    assert_eq!(layout.fixed_size, 31);
}

#[test]
fn format_of_a_return_names_the_function_first() {
    let layout = layout("r:myprobe vfs_read ret=$retval:s64 a=+0($arg1):string[2]");
    let text = format(&layout);
    for piece in [
        "\tfield:unsigned long __probe_func;\toffset:8;\tsize:8;\tsigned:0;\n",
        "\tfield:unsigned long __probe_ret_ip;\toffset:16;\tsize:8;\tsigned:0;\n",
        "\tfield:s64 ret;\toffset:24;\tsize:8;\tsigned:1;\n",
        "\tfield:__data_loc char[][2] a;\toffset:32;\tsize:8;\tsigned:1;\n",
        "print fmt: \"(%lx <- %lx) ret=%Ld a={\\\"%s\\\",\\\"%s\\\"}\", \
         REC->__probe_func, REC->__probe_ret_ip, REC->ret, __get_str(a[0]), __get_str(a[1])\n",
    ] {
        assert!(text.contains(piece), "{piece} in {text}");
    }
}

#[test]
fn event_without_arguments_has_its_addresses_only() {
    let layout = layout("p vfs_read");
    assert!(format(&layout).ends_with("\n\nprint fmt: \"(%lx)\", REC->__probe_ip\n"));
    assert_eq!((layout.fixed_size, layout.arguments().len()), (16, 0));
}

#[test]
fn line_of_a_probe_is_that_of_linux() {
    let layout = layout("p vfs_read+4 a=%ax s=+0(%si):string");
    let mut bytes = Vec::from((VFS_READ + 4).to_le_bytes());
    bytes.extend(42_u64.to_le_bytes());
    bytes.extend([28, 0, 3, 0]);
    bytes.extend(b"hi\0");
    assert_eq!(
        line(&layout, &bytes),
        "            bash-1234    [002] d..2.    12.345678: \
         myprobe: (vfs_read+0x4/0x120) a=0x2a s=\"hi\"\n"
    );
}

#[test]
fn line_of_a_return_names_the_caller_first() {
    let layout = layout("r vfs_read $retval:s32");
    let mut bytes = Vec::from(VFS_READ.to_le_bytes());
    bytes.extend((0xffff_8000_0000_2010_u64).to_le_bytes());
    bytes.extend((-2_i32).to_le_bytes());
    let text = line(&layout, &bytes);
    assert!(
        text.ends_with(": (kernel_clone+0x10/0x300 <- vfs_read) arg1=-2\n"),
        "{text}"
    );
}

#[test]
fn address_without_a_symbol_prints_as_a_number() {
    let layout = layout("p vfs_read");
    assert!(line(&layout, &0x1234_u64.to_le_bytes()).ends_with("myprobe: (0x1234)\n"));
    assert!(line(&layout, &0_u64.to_le_bytes()).ends_with("myprobe: (0)\n"));
}

#[test]
fn short_record_prints_faults() {
    let layout = layout("p vfs_read a=%ax s=+0(%si):string");
    assert!(line(&layout, &[1, 2]).ends_with("myprobe: ((fault)) a=(fault) s=(fault)\n"));
}

#[test]
fn state_has_a_letter_for_each_flag() {
    let text = |flags, count| String::from_utf8(state(flags, count).to_vec()).unwrap();
    assert_eq!(text(0, 0), ".....");
    assert_eq!(text(flags::IRQS_OFF, 0), "d....");
    assert_eq!(text(flags::BH_OFF, 0), "b....");
    assert_eq!(text(flags::IRQS_OFF | flags::BH_OFF, 0), "D....");
    assert_eq!(text(flags::NEED_RESCHED, 0), ".n...");
    assert_eq!(text(flags::PREEMPT_RESCHED, 0), ".p...");
    assert_eq!(
        text(flags::NEED_RESCHED | flags::PREEMPT_RESCHED, 0),
        ".N..."
    );
    assert_eq!(text(flags::HARDIRQ, 0), "..h..");
    assert_eq!(text(flags::SOFTIRQ, 0), "..s..");
    assert_eq!(text(flags::HARDIRQ | flags::SOFTIRQ, 0), "..H..");
    assert_eq!(text(flags::NMI, 0), "..z..");
    assert_eq!(text(flags::NMI | flags::HARDIRQ, 0), "..Z..");
    assert_eq!(text(0, 0x0b), "...b.");
    assert_eq!(text(0, 0x30), "....3");
}

#[test]
fn long_names_and_late_times_widen_the_line() {
    let origin = Origin {
        comm: "a_name_of_20_letters",
        group: None,
        cpu: 1234,
        time_ns: 123_456_789_000_000,
    };
    let mut out = String::new();
    let layout = layout("p vfs_read");
    write_prefix(&[0; 16], &origin, &mut out).unwrap();
    write_event("e", &layout, &[0; 16], &Kernel, &mut out).unwrap();
    assert_eq!(
        out,
        "a_name_of_20_letters-0       [1234] ..... 123456.789000: e: (0)"
    );
}

#[test]
fn columns_of_the_header_stand_over_the_line() {
    let mut header = String::new();
    let mut head = Head {
        tracer: "nop",
        entries: 3,
        written: 5,
        cpus: 2,
        with_groups: false,
    };
    write_header(&head, &mut header).unwrap();
    let lines: Vec<_> = header.lines().collect();
    assert_eq!(lines[0], "# tracer: nop");
    assert_eq!(lines[2], "# entries-in-buffer/entries-written: 3/5   #P:2");
    assert!(lines.iter().all(|line| line.starts_with('#')));
    let text = line(&layout("p vfs_read"), &[0; 8]);
    let legend = lines[lines.len() - 2];
    assert_eq!(legend.find("CPU#"), text.find("[002]"));
    assert_eq!(legend.find("|||||"), text.find("d..2."));

    head.with_groups = true;
    header.clear();
    write_header(&head, &mut header).unwrap();
    assert_eq!(
        header.lines().nth_back(1),
        Some("#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION")
    );
    for (group, shown) in [
        (
            0,
            "            bash-1234    (-------) [002] d..2.    12.345678: ",
        ),
        (
            1234,
            "            bash-1234    (   1234) [002] d..2.    12.345678: ",
        ),
    ] {
        let mut record = vec![12, 3, flags::IRQS_OFF, 2];
        record.extend(1234_i32.to_le_bytes());
        let origin = Origin {
            comm: "bash",
            group: Some(group),
            cpu: 2,
            time_ns: 12_345_677_500,
        };
        let mut out = String::new();
        write_prefix(&record, &origin, &mut out).unwrap();
        assert_eq!(out, shown);
    }
}

#[test]
fn lost_records_are_told() {
    let mut out = String::new();
    write_lost(1, 42, &mut out).unwrap();
    assert_eq!(out, "CPU:1 [LOST 42 EVENTS]\n");
}

#[test]
fn readme_lists_what_selftests_search_for() {
    let text = readme::EVENTS;
    let lines: Vec<_> = text.lines().collect();
    for piece in [
        "x8/16/32/64",
        "r[maxactive]",
        "Create/append/",
        "$arg<N>",
        "imm-value",
        "imm-string",
        " <type>\\[<array-size>\\]",
        "<symbol>[+<offset>]%return",
        "p[:[<group>/][<event>]] <place> [<args>]",
        "kernel return probes support:",
        "%pd/%pD",
        "place (uprobe): <path>:<offset>[%return][(ref_ctr_offset)]",
    ] {
        assert!(text.contains(piece), "{piece}");
    }
    assert!(
        lines
            .iter()
            .any(|line| line.contains("place (kretprobe): ") && { line.contains("%return") })
    );
    let fetch = lines
        .iter()
        .position(|line| line.contains("fetcharg:"))
        .unwrap();
    assert!(
        lines[fetch..fetch + 2]
            .iter()
            .any(|line| line.contains("$comm"))
    );
    for piece in ["ustring", "[u]<offset>"] {
        assert!(
            lines[fetch..fetch + 11]
                .iter()
                .any(|line| line.contains(piece)),
            "{piece}"
        );
    }
    // These do not work here, or have their own part.
    for piece in ["<argname>", "$current", "trigger"] {
        assert!(!text.contains(piece), "{piece}");
    }
}

#[test]
fn stack_is_shown_as_linux_shows_it() {
    let mut record = vec![4, 0, flags::IRQS_OFF, 2];
    record.extend(1234_i32.to_le_bytes());
    record.extend(24_u64.to_le_bytes());
    for frame in [VFS_READ, VFS_READ + 0x2010, 0x1234] {
        record.extend(frame.to_le_bytes());
    }
    let origin = Origin {
        comm: "bash",
        group: None,
        cpu: 2,
        time_ns: 12_345_678_000,
    };
    let mut text = String::new();
    write_prefix(&record, &origin, &mut text).unwrap();
    write_frames(&record, &Kernel, &mut text).unwrap();
    assert_eq!(
        text,
        "            bash-1234    [002] d..2.    12.345678: <stack trace>\n \
         => vfs_read\n => do_exit\n => 0x1234"
    );
}

#[test]
fn a_dumped_line_begins_as_on_linux() {
    // Interrupts off, in an interrupt, preemption off once, task 7.
    let record = [1, 0, 0x09, 1, 7, 0, 0, 0];
    let shown = |comm, cpu, time_ns| {
        let origin = Origin {
            comm,
            group: None,
            cpu,
            time_ns,
        };
        let mut text = String::new();
        write_short_prefix(&record, &origin, &mut text).unwrap();
        assert_eq!(text.as_bytes()[text.len() - DELAY_MARK_FROM_END], b' ');
        text
    };
    assert_eq!(shown("sh", 2, 8_499), "      sh-7         2d.h1.    8us : ");
    assert_eq!(
        shown("kernel_init", 63, 12_345_678_500),
        "kernel_i-7        63d.h1. 12345679us : "
    );
}

#[test]
fn a_traced_function_has_the_columns_of_linux() {
    let shown = |users, takes_registers| {
        let mut text = String::new();
        write_traced("vfs_read", users, takes_registers, &mut text).unwrap();
        text
    };
    assert_eq!(shown(1, false), "vfs_read (1)           \n");
    assert_eq!(shown(12, true), "vfs_read (12) R         \n");
}

#[test]
fn a_mark_is_shown_as_its_text() {
    let shown = |bytes: u64, text: &[u8]| {
        let mut record = vec![5, 0, 0, 0, 7, 0, 0, 0];
        record.extend(bytes.to_le_bytes());
        record.extend(text);
        let mut shown = String::new();
        write_mark(&record, &mut shown).unwrap();
        shown
    };
    let head = "tracing_mark_write: ";
    // What is after the text fills the record up.
    assert_eq!(shown(4, b"work\xaa\xaa"), format!("{head}work"));
    assert_eq!(shown(5, b"work\n\xaa"), format!("{head}work"));
    assert_eq!(shown(6, b"a\nb\n\n"), format!("{head}a\nb\n"));
    assert_eq!(shown(3, b"\xffb\xc3"), format!("{head}\u{fffd}b\u{fffd}"));
    assert_eq!(shown(0, b""), head);
    // A record that is cut short.
    assert_eq!(shown(9, b"wo"), format!("{head}wo"));
}

#[test]
fn a_function_is_shown_with_its_caller() {
    let shown = |words: &[u64]| {
        let mut record = vec![1, 0, 0, 0, 7, 0, 0, 0];
        record.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let mut text = String::new();
        write_function(&record, &Kernel, &mut text).unwrap();
        text
    };
    assert_eq!(shown(&[VFS_READ, VFS_READ + 0x2010]), "vfs_read <-do_exit");
    assert_eq!(shown(&[0x1234, 0]), "0x1234 <-0");
    // With the registers of arguments, if they are all there.
    assert_eq!(
        shown(&[VFS_READ, 0, 1, 2, 3, 4, 5, u64::MAX]),
        "vfs_read(di=0x1, si=0x2, dx=0x3, cx=0x4, r8=0x5, r9=0xffffffffffffffff) <-0"
    );
    assert_eq!(shown(&[VFS_READ, 0, 1, 2, 3, 4, 5]), "vfs_read <-0");
    // A record that is cut short.
    assert_eq!(shown(&[VFS_READ]), "vfs_read <-(fault)");
    assert_eq!(shown(&[]), "(fault) <-(fault)");
}
