//! Forms of definitions: what is accepted, what it means, and where its limits are.
//!
//! Whatever is accepted prints as a line that reads as the same definition. Mistakes with their
//! columns are the matter of `columns`.

mod common;

use bpf::context::Register;
use fallible::try_box;

use common::{
    Kernel, LONG, VFS_READ,
    lines::{definition, deletion, parse, parse_in, refused},
};
use tracefs::{
    commands::Words,
    definition::{Command, Definition, EventKind, File, ProbePlace},
    event::check_append,
    fetch::{Fetch, Location, Site, ValueType},
    field::Width,
    refusal::Reason,
};

const NAME_64: &str = "n123456789012345678901234567890123456789012345678901234567890123";

/// What a watch means, and what it prints.
#[test]
fn watches_are_memory_with_an_access_and_a_length() {
    let watch = |line: &str| match parse_in(File::DynamicEvents, line) {
        Ok(Command::Create(definition)) => definition,
        other => panic!("{line}: {other:?}"),
    };
    let banner = 0xffff_8000_0010_0000;
    for (line, printed, reads, memory) in [
        (
            "w w@linux_proc_banner",
            "w:wprobes/w_linux_proc_banner_0 w@linux_proc_banner",
            false,
            (Some(banner), 8),
        ),
        (
            "w:a/b rw@linux_proc_banner+0x4",
            "w:a/b rw@linux_proc_banner+4",
            true,
            (Some(banner + 4), 4),
        ),
        (
            "w:n @linux_proc_banner-2:2",
            "w:wprobes/n rw@linux_proc_banner-2:2",
            true,
            (Some(banner - 2), 2),
        ),
        (
            "w w@0xffff800000100003",
            "w:wprobes/w_0xffff800000100003 w@0xffff800000100003",
            false,
            (Some(banner + 3), 1),
        ),
        (
            "w:n w@func.isra.0",
            "w:wprobes/n w@func.isra.0",
            false,
            (Some(0xffff_8000_0000_4100), 8),
        ),
        ("w w@-1", "w:wprobes/w_aimed w@-1", false, (None, 8)),
        ("w:n @-1:4", "w:wprobes/n rw@-1:4", true, (None, 4)),
    ] {
        let definition = watch(line);
        assert_eq!(definition.to_string(), printed);
        assert_eq!(
            (definition.kind, definition.site),
            (EventKind::Watch, Site::Inside)
        );
        assert!(
            matches!(definition.place, ProbePlace::Memory { reads: found, .. } if found == reads)
        );
        let watched = definition.place.watched(&Kernel).expect(line);
        assert_eq!((watched.address, watched.bytes), memory, "{line}");
    }
    let values = watch("w w@linux_proc_banner $addr $old:u32 $new %di");
    let fetches: Vec<&Fetch> = values
        .arguments
        .iter()
        .map(|argument| &argument.fetch)
        .collect();
    assert_eq!(
        fetches,
        [
            &Fetch::Immediate(banner),
            &Fetch::Register(Register::OrigAx),
            &Fetch::Register(Register::Ss),
            &Fetch::Register(Register::Di),
        ]
    );
    for (line, reason, column) in [
        ("w r@linux_proc_banner", Reason::ReadsAlone, 2),
        ("w wr@linux_proc_banner", Reason::BadAccess, 2),
        ("w linux_proc_banner", Reason::BadAccess, 2),
        ("p w@linux_proc_banner", Reason::BadProbeAddress, 2),
        ("w w@linux_proc_banner:16", Reason::BadWatchLength, 22),
        ("w w@nothing", Reason::BadProbeAddress, 4),
        ("w w@memory_is_out", Reason::OutOfMemory, 4),
        ("w w@linux_proc_banner $arg1", Reason::NotFunctionEntry, 22),
        ("p vfs_read $old", Reason::BadVariable, 11),
    ] {
        let words = Words::of(line).unwrap();
        let refusal = parse_in(File::DynamicEvents, line).expect_err(line);
        assert_eq!(
            (refusal.reason, words.column(&refusal)),
            (reason, column),
            "{line}"
        );
    }
    for file in [File::KprobeEvents, File::UprobeEvents] {
        let refusal = parse_in(file, "w w@linux_proc_banner").unwrap_err();
        assert_eq!(refusal.reason, Reason::BadCommand);
    }
}

#[test]
fn good_fetches_of_the_selftest_are_accepted() {
    let registers = "r8 r9 r10 r11 r12 r13 r14 r15 ax bx cx dx si di bp sp ip flags cs ss orig_ax";
    for register in registers.split(' ') {
        definition(&format!("p vfs_read %{register}"));
        definition(&format!("p vfs_read a=%{register}:x16"));
    }
    for fetch in [
        "@0xffff800000100000",
        "@linux_proc_banner",
        "@linux_proc_banner+10",
        "@linux_proc_banner-10",
        "$stack",
        "$stack0",
        "$stack1",
        "$stack2048",
        "+10(@linux_proc_banner)",
        "+10(@linux_proc_banner-10)",
        "+10(%ax)",
        "+10($stack)",
        "+0(+10(%ax))",
        "+0(+10(+20($stack)))",
        "-0x10(%bp)",
        "+u8(%si)",
        "-u8(%si):s32",
        "$arg1",
        "$arg7:u8",
        "$comm",
        "$COMM:string",
        r"\1",
        r"\-1:s8",
        r"\+0x10",
        r"\0xffffffffffffffff",
        r#"\"text""#,
        r#"\"text":string"#,
        r#"\"a:b""#,
        r#"\"""#,
        "+0($arg1):string",
        "+0(+8($arg1)):ustring",
        "+u0($arg2):string",
        "+0($arg1):string[4]",
        "@linux_proc_banner:string",
        r"\0xffff800000100000:string",
        "$arg1:symbol",
        "$arg1:symstr",
        "+0(%sp):symstr",
        "%di:char",
        "+0(%di):char[4]",
        "@linux_proc_banner:b8@4/32",
        "+0(%di):b1@63/64[64]",
        "$stack0:b4@4/8",
        "%di:u8",
    ] {
        definition(&format!("p vfs_read {fetch}"));
        definition(&format!("p vfs_read a={fetch}"));
    }
    definition("r vfs_read $retval a=$arg1 +0($arg2):string");
    definition("p vfs_read+4 %di $stack1");
}

#[test]
fn fetches_nest_until_fifteen_steps() {
    let nested = |depth, of: &str| format!("{}{of}{}", "+0(".repeat(depth), ")".repeat(depth));
    definition(&format!("p vfs_read {}", nested(13, "@0")));
    definition(&format!("p vfs_read {}", nested(14, "%di")));
    refused(
        &format!("p vfs_read {}", nested(15, "%di").replacen("(+", "(^+", 1)),
        Reason::TooManySteps,
    );
    // A bitfield and a loop take a step each. They are found missing when the fetch is complete.
    definition(&format!("p vfs_read {}:b1@0/8", nested(13, "%di")));
    refused(
        &format!("p vfs_read ^{}:b1@0/8", nested(14, "%di")),
        Reason::TooManySteps,
    );
    refused(
        &format!("p vfs_read ^{}:u8[2]", nested(13, "@0")),
        Reason::TooManySteps,
    );
    definition(&format!("p vfs_read {}", nested(12, "@linux_proc_banner")));
    refused(
        &format!(
            "p vfs_read {}",
            nested(13, "@linux_proc_banner").replacen("(+", "(^+", 1)
        ),
        Reason::TooManySteps,
    );
}

#[test]
fn places_are_read() {
    let symbol = |module: Option<&str>, name: &str, offset| ProbePlace::Symbol {
        module: module.map(Into::into),
        name: name.into(),
        offset,
    };
    for (line, place, kind, site) in [
        (
            "p vfs_read",
            symbol(None, "vfs_read", 0),
            EventKind::Probe,
            Site::Entry,
        ),
        (
            "p vfs_read+0x10",
            symbol(None, "vfs_read", 16),
            EventKind::Probe,
            Site::Inside,
        ),
        (
            "p vfs_read+16",
            symbol(None, "vfs_read", 16),
            EventKind::Probe,
            Site::Inside,
        ),
        (
            "r vfs_read+0",
            symbol(None, "vfs_read", 0),
            EventKind::Return,
            Site::Return,
        ),
        (
            "p vfs_read%return",
            symbol(None, "vfs_read", 0),
            EventKind::Return,
            Site::Return,
        ),
        (
            "p loaded:start",
            symbol(Some("loaded"), "start", 0),
            EventKind::Probe,
            Site::Entry,
        ),
        (
            "r later:any",
            symbol(Some("later"), "any", 0),
            EventKind::Return,
            Site::Return,
        ),
        (
            "p 0xffff800000001000",
            ProbePlace::Address(VFS_READ),
            EventKind::Probe,
            Site::Entry,
        ),
        (
            "r 0xffff800000001000",
            ProbePlace::Address(VFS_READ),
            EventKind::Return,
            Site::Return,
        ),
        (
            "p 0xffff800000001004",
            ProbePlace::Address(VFS_READ + 4),
            EventKind::Probe,
            Site::Inside,
        ),
        (
            "p 1234",
            ProbePlace::Address(1234),
            EventKind::Probe,
            Site::Inside,
        ),
        (
            "p 010",
            ProbePlace::Address(8),
            EventKind::Probe,
            Site::Inside,
        ),
    ] {
        let definition = definition(line);
        assert_eq!(
            (&definition.place, definition.kind, definition.site),
            (&place, kind, site),
            "{line}"
        );
    }
    assert_eq!(
        definition("p vfs_read+8").place.address(&Kernel),
        Ok(Some(VFS_READ + 8))
    );
    assert_eq!(definition("p later:any").place.address(&Kernel), Ok(None));
}

#[test]
fn names_are_read_or_made() {
    for (line, name) in [
        ("p vfs_read", "kprobes/p_vfs_read_0"),
        ("p vfs_read+0x10", "kprobes/p_vfs_read_16"),
        ("r vfs_read", "kprobes/r_vfs_read_0"),
        ("p vfs_read%return", "kprobes/r_vfs_read_0"),
        ("p 0xffff800000001000", "kprobes/p_0xffff800000001000"),
        ("p func.isra.0", "kprobes/p_func_isra_0_0"),
        ("p loaded:start", "kprobes/p_loaded_start_0"),
        ("p:n vfs_read", "kprobes/n"),
        ("p:kprobes2/n vfs_read", "kprobes2/n"),
        ("p:g.n vfs_read", "g/n"),
        ("p:my-group/ vfs_read", "my-group/p_vfs_read_0"),
        ("r10:_g1/_n1 vfs_read", "_g1/_n1"),
    ] {
        let Definition { group, event, .. } = definition(line);
        assert_eq!(format!("{group}/{event}"), name, "{line}");
    }
    let most = &NAME_64[..63];
    definition(&format!("p:{most}/{most} vfs_read"));
    refused(&format!("p:^{NAME_64}/x vfs_read"), Reason::GroupTooLong);
    refused(&format!("p:x/^{NAME_64} vfs_read"), Reason::EventTooLong);
    refused("p:^enable/x vfs_read", Reason::NameOfFile);
    refused("p:x/^enable vfs_read", Reason::NameOfFile);
    refused("r:^enable vfs_read", Reason::NameOfFile);
    definition("p:enabled/enable1 vfs_read");
    definition("p vfs_read a123456789012345678901234567890b=%ax");
}

#[test]
fn automatic_names_that_are_cut_stay_different() {
    let entry = definition(&format!("p {LONG}")).event;
    let inside = definition(&format!("p {LONG}+1")).event;
    assert_eq!((entry.len(), inside.len()), (63, 63));
    assert_eq!(entry[..50], inside[..50]);
    assert_ne!(entry, inside);
    assert!(entry.starts_with("p__ZN9workspace7modules"));
    // The longest name of all is whole.
    let fits = "f".repeat(63 - "p_away__0".len());
    let whole = definition(&format!("p away:{fits}")).event;
    assert_eq!(whole, format!("p_away_{fits}_0"));
}

#[test]
fn numbers_of_instances_are_read() {
    for (line, maxactive) in [
        ("r vfs_read", None),
        ("r1 vfs_read", Some(1)),
        ("r10:x vfs_read", Some(10)),
        ("r0x10 vfs_read", Some(16)),
        ("r010 vfs_read", Some(8)),
        ("r4096 vfs_read", Some(4096)),
    ] {
        assert_eq!(definition(line).maxactive, maxactive, "{line}");
    }
}

/// The name of a file or a node is the string at the address that is in the object.
#[test]
fn names_of_objects_are_strings_behind_two_pointers() {
    for (typed, written) in [
        ("$arg1:%pD", "+0(+24($arg1)):string"),
        ("%di:%pd", "+0(+8(%di)):string"),
        ("+16(%di):%pD", "+0(+24(+16(%di))):string"),
    ] {
        let [typed_as, written_as] = [typed, written].map(|text| {
            let mut definition = definition(&format!("p vfs_read name={text}"));
            assert_eq!(
                definition.arguments[0].text, text,
                "what is shown is what was written"
            );
            definition.arguments.remove(0)
        });
        assert_eq!(typed_as.fetch, written_as.fetch, "{typed}");
        assert_eq!(typed_as.kind(), written_as.kind(), "{typed}");
    }
    let deepest = |depth: usize| format!("{}%ax{}", "+0(".repeat(depth), ")".repeat(depth));
    assert!(parse(&format!("p vfs_read {}:%pd", deepest(12))).is_ok());
    let refusal = parse(&format!("p vfs_read {}:%pd", deepest(13))).unwrap_err();
    assert_eq!(refusal.reason, Reason::TooManySteps);
}

#[test]
fn fetches_become_trees() {
    let line = "p vfs_read a=-u0x10(+8(@linux_proc_banner-4)):b4@2/16 \\-2:s8";
    let definition = definition(line);
    let banner = Fetch::Memory(Location::Symbol {
        name: "linux_proc_banner".into(),
        offset: -4,
    });
    let inner = Fetch::Dereference {
        user: false,
        offset: 8,
        of: try_box(banner).unwrap(),
    };
    let outer = Fetch::Dereference {
        user: true,
        offset: -16,
        of: try_box(inner).unwrap(),
    };
    let [a, b] = &definition.arguments[..] else {
        panic!("two arguments")
    };
    assert_eq!(a.fetch, outer);
    let bits = ValueType::Bitfield {
        width: 4,
        offset: 2,
        container: Width::W16,
    };
    assert_eq!(a.value_type, bits);
    assert_eq!(
        (b.name.as_str(), &b.fetch),
        ("arg2", &Fetch::Immediate(-2_i64 as u64))
    );
    assert_eq!(b.value_type, ValueType::Signed(Width::W8));
}

#[test]
fn text_without_a_type_is_hexadecimal_or_a_string() {
    let line = "p vfs_read %ax $comm \\\"x\" @0 +0(%di)";
    let types: Vec<_> = definition(line)
        .arguments
        .iter()
        .map(|a| a.value_type)
        .collect();
    let hex = ValueType::Hex(Width::W64);
    assert_eq!(types, [hex, ValueType::String, ValueType::String, hex, hex]);
}

#[test]
fn events_have_their_limits() {
    let arguments = |count| format!("p vfs_read{}", " %ax".repeat(count));
    assert_eq!(definition(&arguments(128)).arguments.len(), 128);
    refused(
        &arguments(129).replacen(" %", " ^%", 1),
        Reason::TooManyArguments,
    );
    // 16 bytes of the header, 5 times 512 and 62 times 8 are 3072.
    let long = format!(
        "p vfs_read{}{}",
        " +0(%di):u64[64]".repeat(5),
        " %ax".repeat(62)
    );
    definition(&long);
    refused(&format!("{long} ^%ax:u8"), Reason::EventTooBig);
    let kept = |count| -> String { (1..=count).map(|n| format!(" $arg{n}")).collect() };
    definition(&format!("r vfs_read{}", kept(32)));
    refused(
        &format!("r vfs_read{}", kept(33)).replacen(" $", " ^$", 1),
        Reason::TooManyEntryArguments,
    );
    assert_eq!(
        definition("r vfs_read $arg3 +0($arg1) $arg3:u8")
            .entry_arguments()
            .unwrap(),
        [3, 1]
    );
    assert_eq!(
        definition("p vfs_read $arg3").entry_arguments().unwrap(),
        [0_u32; 0]
    );
}

#[test]
fn places_of_programs_print_as_linux_prints_them() {
    for (line, printed) in [
        (
            "p /bin/my-shell:0x1234",
            "p:uprobes/p_my_0x1234 /bin/my-shell:0x0000000000001234",
        ),
        (
            "r /bin/my-shell:main $retval",
            "r:uprobes/p_my_0x1230 /bin/my-shell:0x0000000000001230 arg1=$retval",
        ),
        (
            "p:e /bin/my-shell:my::path+2",
            "p:uprobes/e /bin/my-shell:0x0000000000001242",
        ),
        (
            "p:g/e /bin/my-shell:main+4%return(0x2010)",
            "r:g/e /bin/my-shell:0x0000000000001234(0x2010)",
        ),
        (
            "p:e /a:b/c:16(0) %ax +8(%di):u32[2] $stack2 @+0x1008:string",
            "p:uprobes/e /a:b/c:0x0000000000000010 arg1=%ax arg2=+8(%di):u32[2] arg3=$stack2 \
             arg4=@+0x1008:string",
        ),
    ] {
        for file in [File::UprobeEvents, File::DynamicEvents] {
            let Ok(Command::Create(definition)) = parse_in(file, line) else {
                panic!("{line}");
            };
            assert!(definition.is_of_program());
            assert_eq!(definition.to_string(), printed, "{line}");
            let Ok(Command::Create(again)) = parse_in(file, printed) else {
                panic!("{printed}");
            };
            assert_eq!(again, definition);
        }
    }
}

#[test]
fn definitions_print_in_their_full_form() {
    for (line, printed) in [
        ("p  vfs_read", "p:kprobes/p_vfs_read_0 vfs_read"),
        (
            "p:n vfs_read%return $retval",
            "r:kprobes/n vfs_read arg1=$retval",
        ),
        ("r10:g.n vfs_read+0", "r10:g/n vfs_read"),
        (
            "p loaded:start+0x10 %ax:u8",
            "p:kprobes/p_loaded_start_16 loaded:start+16 arg1=%ax:u8",
        ),
        (
            "p 0xffff800000001000",
            "p:kprobes/p_0xffff800000001000 0xffff800000001000",
        ),
        (
            "p:testprobe vfs_read $stack $stack0 +0($stack)",
            "p:kprobes/testprobe vfs_read arg1=$stack arg2=$stack0 arg3=+0($stack)",
        ),
    ] {
        let definition = definition(line);
        assert_eq!(definition.to_string(), printed);
        assert_eq!(parse(printed), Ok(Command::Create(definition)));
    }
}

#[test]
fn deletions_match_by_name_place_and_arguments() {
    let probe = definition("p:g/n vfs_read+16 a=%ax %bx");
    for (line, matches) in [
        ("-:g/n", true),
        ("-:n", true),
        ("-:g/", true),
        ("-:g/other", false),
        ("-:other/n", false),
        ("-:n vfs_read+0x10", true),
        ("-:n vfs_read", false),
        ("-:n vfs_read+16 a=%ax", true),
        ("-:n vfs_read+16 a=%ax %bx", true),
        ("-:n vfs_read+16 a=%ax arg2=%bx", true),
        ("-:n vfs_read+16 %ax", false),
        ("-:n vfs_read+16 a=%bx", false),
        ("-:n vfs_read+16 a=%ax %bx %cx", false),
        ("-:g/ gone", false),
    ] {
        assert_eq!(deletion(line).matches(&probe), matches, "{line}");
    }
    let address = definition("p:n 0xffff800000001000");
    assert!(deletion("-:n 0xffff800000001000").matches(&address));
}

#[test]
fn deletions_need_a_name() {
    for marked in ["^-", "^-:", "^-n", "^-:/", "^-:/n", "^-n:x vfs_read"] {
        refused(marked, Reason::BadDeletion);
    }
}

#[test]
fn exclamation_mark_deletes_in_dynamic_events_only() {
    let delete = parse_in(File::DynamicEvents, "!p:g/n vfs_read a=%ax").unwrap();
    assert_eq!(delete, Command::Delete(deletion("-:g/n vfs_read a=%ax")));
    let refusal = parse_in(File::DynamicEvents, "!p vfs_read").unwrap_err();
    assert_eq!(refusal.reason, Reason::BadDeletion);
    refused("^!p:g/n vfs_read", Reason::BadCommand);
}

#[test]
fn probes_of_one_event_agree() {
    let there = definition(r"p:e kernel_clone abcd=\1");
    let append = |marked: &str| {
        let line = marked.replacen('^', "", 1);
        let words = Words::of(&line).unwrap();
        let new = definition(&line);
        check_append(&new, [&there]).map_err(|refusal| {
            assert_eq!(Some(words.column(&refusal)), marked.find('^'), "{marked}");
            refusal.reason
        })
    };
    for (marked, reason) in [
        ("^r:e do_exit", Reason::DifferentProbeType),
        (r"p:e kernel_clone ^bcd=\1", Reason::DifferentArgumentType),
        (
            r"p:e kernel_clone ^abcd=\1:u8",
            Reason::DifferentArgumentType,
        ),
        (
            r#"p:e kernel_clone ^abcd=\"foo""#,
            Reason::DifferentArgumentType,
        ),
        ("p:e kernel_clone ^", Reason::DifferentArgumentType),
        (
            r"p:e kernel_clone abcd=\1 ^x=\2",
            Reason::DifferentArgumentType,
        ),
        (r"^p:e kernel_clone abcd=\1", Reason::SameProbe),
    ] {
        assert_eq!(append(marked), Err(reason), "{marked}");
    }
    for line in [
        r"p:e kernel_clone abcd=\2",
        r"p:e kernel_clone+4 abcd=\1",
        "p:e do_exit abcd=%di",
    ] {
        assert_eq!(append(line), Ok(()), "{line}");
    }
}

#[test]
fn arrays_and_bitfields_of_one_event_agree() {
    let append = |new: &str, old: &str| {
        check_append(&definition(new), [&definition(old)]).map_err(|refusal| refusal.reason)
    };
    let differ = Err(Reason::DifferentArgumentType);
    let at = |place: &str, ty: &str| format!("p:e {place} a=+0(%di):{ty}");
    assert_eq!(
        append(&at("do_exit", "u8[2]"), &at("vfs_read", "u8[3]")),
        differ
    );
    assert_eq!(
        append(&at("do_exit", "u8[2]"), &at("vfs_read", "u8")),
        differ
    );
    assert_eq!(append(&at("do_exit", "x8"), &at("vfs_read", "u8")), differ);
    assert_eq!(
        append(&at("do_exit", "ustring"), &at("vfs_read", "string")),
        differ
    );
    assert_eq!(
        append(&at("do_exit", "b1@0/8"), &at("vfs_read", "b2@1/8")),
        Ok(())
    );
    assert_eq!(
        append(&at("do_exit", "b1@0/8"), &at("vfs_read", "b1@0/16")),
        differ
    );
    // Any of the probes may be the same, not only the first.
    let (first, second) = (definition("p:e vfs_read"), definition("p:e do_exit"));
    let refusal = check_append(&second.clone(), [&first, &second]).unwrap_err();
    assert_eq!(refusal.reason, Reason::SameProbe);
}

#[test]
fn errors_have_linux_errnos() {
    for (reason, errno) in [
        (Reason::BadProbeAddress, 22),
        (Reason::SymbolNotUnique, 22),
        (Reason::BadType, 22),
        (Reason::BadDeletion, 22),
        (Reason::NotFound, 2),
        (Reason::Busy, 16),
        (Reason::SameProbe, 17),
        (Reason::DifferentProbeType, 17),
        (Reason::DifferentArgumentType, 17),
        (Reason::EventExists, 17),
        (Reason::NameOfFile, 17),
        (Reason::TooManyArguments, 7),
        (Reason::EventTooBig, 7),
        (Reason::BadInstructionBoundary, 84),
    ] {
        assert_eq!(reason.errno(), errno, "{reason}");
    }
}
