//! Refusals: where, why, and what to do.
//!
//! The texts are compared whole, because they are what a user learns the language from. Each has a
//! cause and, if there is one, a next step.

use std::rc::Rc;

use bpf::context::Register;
use trace_interface::{
    script::Attachment,
    symbols::{Type, TypeId},
};

use super::fake::{Fake, READ, SHAPE, WRITE, compiled_with, in_register};
use crate::{EventTable, Options};

fn refusal(text: &str) -> String {
    refusal_with(text, &Options::default())
}

fn refusal_with(text: &str, options: &Options) -> String {
    match compiled_with(text, &Fake::new(), options) {
        Ok(_) => panic!("{text} compiles"),
        Err(message) => message,
    }
}

/// The message and its help, without the line of the text.
fn short(text: &str) -> String {
    brief(&refusal(text))
}

fn brief(message: &str) -> String {
    let lines = message.lines();
    let kept = lines.filter_map(|line| {
        line.strip_prefix("error: ")
            .or_else(|| line.split_once("= help: ").map(|(_, help)| help))
    });
    kept.collect::<Vec<_>>().join(" | ")
}

#[test]
fn a_refusal_points_at_the_word() {
    assert_eq!(
        refusal("kprobe:vfs_wriet { @ = count(); }"),
        "error: no function of the kernel is called `vfs_wriet`\n\
         1 | kprobe:vfs_wriet { @ = count(); }\n  |        ^^^^^^^^^\n  \
         = help: did you mean `vfs_write`?"
    );
}

#[test]
fn a_probe_between_two_instructions_is_refused() {
    assert_eq!(
        refusal("begin { } kprobe:vfs_write+3 { @ = count(); }"),
        "error: no instruction of `kernel::fs::vfs_write` begins at `+3`\n\
         1 | begin { } kprobe:vfs_write+3 { @ = count(); }\n  |           ^^^^^^^^^^^^^^^^^^\n  \
         = help: instructions begin at `+2` and at `+4`"
    );
    // A pattern keeps the functions that have an instruction there.
    let compiled = compiled_with(
        "kprobe:vfs_*+3 { @ = count(); }",
        &Fake::new(),
        &Options::default(),
    );
    let [Attachment::Probe { addresses, .. }] = &compiled.unwrap().script.attachments[..] else {
        panic!("another attachment");
    };
    assert_eq!(addresses, &[READ + 3]);
}

/// Ticks of the timer come each 4 ms, or as the command line says.
#[test]
fn a_profile_that_is_faster_than_the_ticks_is_refused() {
    let with = |rate: &str, command_line: &str| {
        let text = format!("profile:{rate} {{ @ = count(); }}");
        compiled_with(&text, &Fake::new(), &Options::of_kernel(command_line)).err()
    };
    assert_eq!(
        with("hz:1000", "loglevel=3").unwrap(),
        "error: a CPU's timer ticks each 4 ms, and no profile runs more often\n\
         1 | profile:hz:1000 { @ = count(); }\n  | ^^^^^^^^^^^^^^^\n  \
         = help: ask for profile:hz:250 or less, or boot with `--append tick_ms=1`"
    );
    assert_eq!(with("hz:250", ""), None);
    assert!(with("hz:251", "").is_some());
    assert_eq!(with("hz:1000", "tick_ms=100 tick_ms=1"), None);
    let faster = with("hz:1001", "tick_ms=1").unwrap();
    assert!(
        faster.ends_with("ask for profile:hz:1000 or less"),
        "{faster}"
    );
    assert!(with("ms:99", "tick_ms=100").is_some());
    // The kernel does not take these.
    for wrong in ["tick_ms=0", "tick_ms=1001", "tick_ms=x"] {
        assert!(with("hz:251", wrong).is_some(), "{wrong}");
        assert_eq!(with("hz:250", wrong), None, "{wrong}");
    }
}

#[test]
fn words_of_other_tracers_are_refused_with_what_to_use() {
    let none = Options {
        events: Rc::new(EventTable::parse([].into_iter()).unwrap()),
        ..Options::default()
    };
    let without = |text| brief(&refusal_with(text, &none));
    let what = "this kernel says nothing of it; a line of its event sources can, as \
                `docs/tracing.md` shows: the name, `word`, an expression";
    assert_eq!(
        without("kprobe:vfs_write { print(ppid); }"),
        format!("there is no `ppid` | {what}")
    );
    assert_eq!(
        without("kprobe:vfs_write { print(ppid()); }"),
        format!("there is no function `ppid` | {what}")
    );
}

#[test]
fn what_cannot_be_watched_in_a_program_is_refused() {
    let cases = [
        (
            "watch:/bin/cat:kernel::TICKS:rw { @ = count(); }",
            "reads of a program's memory are not watched | watch for writes, w: a program that \
             loads SS from the memory would put the trap off into the kernel's entry, which has no \
             stack yet",
        ),
        (
            "watch:/bin/none:kernel::TICKS { @ = count(); }",
            "which statics `/bin/none` has is not known here | statics are known of the programs \
             that this tool has built, in /bin; elsewhere write \
             watchpoint:PROGRAM:ADDRESS:LENGTH:w",
        ),
        (
            "watch:/bin/cat:kernel::TICKS { print(func); }",
            "`func` is of the kernel, and this is a place in a program | use probe, ip or ustack",
        ),
        (
            "watchpoint:/bin/cat:0xffff800000001003:1:x { @ = count(); }",
            "no instruction of `kernel::fs::vfs_write` begins at `+3` | instructions begin at `+2` \
             and at `+4`",
        ),
        (
            "watchpoint:/bin/cat:0x402000:1:x { @ = count(); }",
            "no function of /bin/cat has code at 0x402000 | name the address of an instruction, or \
             write `uprobe:/bin/cat:FUNCTION`",
        ),
        (
            "watchpoint:0x1000:1:x { print(old); }",
            "there is no `old` here: an instruction has no value | use reg(\"NAME\") for what it \
             works with",
        ),
        (
            "watch:/bin/cat:kernel::vfs_write(args.x) { @ = count(); }",
            "what calls of a program lead to is not watched | name a static of the program, or \
             leave the program out for the kernel",
        ),
        (
            "watch:kernel::TICKS:x { @ = count(); }",
            "`x`: a static is no instruction | write `kprobe:FUNCTION`, or \
             `watchpoint:ADDRESS:1:x`",
        ),
        (
            "watchpoint:vfs_write+arg0:8:x { @ = count(); }",
            "`x`: an instruction is watched at an address that the text tells | write \
             `watchpoint:ADDRESS:1:x`",
        ),
    ];
    for (text, told) in cases {
        assert_eq!(short(text), told, "{text}");
    }
}

/// The path of the program, and what is watched there, are what the kernel gets.
#[test]
fn watches_of_programs_name_them() {
    use trace_interface::script::{Attachment, WatchedAccess, WatchedAt};
    let compiled = crate::tests::fake::compiled(
        "watch:/bin/cat:kernel::TICKS { print((old, new, addr)); }\n\
         watchpoint:/bin/dog:0x402000:4:x { @ = count(); } watch:kernel::TICKS:rw { @n = new; }",
    );
    let watches: Vec<_> = compiled
        .script
        .attachments
        .iter()
        .map(|attachment| match attachment {
            Attachment::Watch {
                path,
                at: WatchedAt::Address(address),
                bytes,
                access,
                ..
            } => (path.as_deref(), *address, *bytes, *access),
            other => panic!("{other:?}"),
        })
        .collect();
    let ticks = 0xffff_8000_0010_0000;
    assert_eq!(
        watches,
        [
            (Some("/bin/cat"), ticks, 8, WatchedAccess::Write),
            (Some("/bin/dog"), 0x40_2000, 4, WatchedAccess::Execute),
            (None, ticks, 8, WatchedAccess::ReadWrite),
        ]
    );
}

#[test]
fn names_that_are_not_found_have_nearest_ones() {
    assert_eq!(
        short("kprobe:vfs_write { print(args.coutn); }"),
        "there is no `coutn` here | did you mean `count`?"
    );
    assert_eq!(
        short("kprobe:vfs_write { print(args.file.inod); }"),
        "`kernel::fs::File` has no field `inod` | did you mean `inode`?"
    );
    assert_eq!(
        short("kprobe:vfs_write { print(args.file.owner); }"),
        "`kernel::fs::File` has no field `owner` | it has `inode`, `pos`, `readable`, `mode`, \
         `name`"
    );
    // Those of other types are few, or none.
    for (field, said) in [
        (
            "buffer.size",
            "a slice has no field `size` | it has .len, .ptr and, if it is a slice, elements: [0]",
        ),
        (
            "triple.size",
            "an array has no field `size` | it has .len and elements: [0]",
        ),
        (
            "triple.ptr",
            "an array has no field `ptr` | it has .len and elements: [0]",
        ),
        ("count.len", "a number (u32) has no field `len`"),
    ] {
        let text = format!("kprobe:vfs_write {{ print(args.{field}); }}");
        assert_eq!(short(&text), said, "{field}");
    }
    assert_eq!(
        short("kretprobe:vfs_write { print(retval.Eer); }"),
        "`Result<usize, Errno>` has no variant `Eer` | did you mean `Err`?"
    );
    assert_eq!(
        short("kprobe:vfs_write { $count = 1; print($cuont); }"),
        "`$cuont` has no value here | did you mean `$count`?"
    );
    assert_eq!(
        short("kprobe:vfs_write { @calls = count(); print(@cals); }"),
        "`@cals` is used, but nothing is ever assigned to it | did you mean `@calls`?"
    );
    assert_eq!(
        short("kprobe:vfs_write { prnt(1); }"),
        "there is no function `prnt` | did you mean `print`?"
    );
    assert_eq!(
        short("kprobe:vfs_write { print(cmm); }"),
        "nothing is called `cmm` | did you mean `comm`?"
    );
    for (wrong, meant) in [
        ("arg.count", "args.NAME"),
        ("ret", "retval"),
        ("exit", "exit()"),
    ] {
        let said = short(&format!("kprobe:vfs_write {{ print({wrong}); }}"));
        assert!(said.contains(meant), "{said}");
    }
}

#[test]
fn values_that_are_not_there_say_why() {
    assert_eq!(
        short("kprobe:vfs_write { print(args.gone); }"),
        "`gone` is optimised out here | it is there at line 12"
    );
    assert_eq!(
        short("kprobe:vfs_write { print(retval); }"),
        "there is no result before the function returns | use it at kretprobe:FUNCTION, or in the \
         return part of session:FUNCTION"
    );
    assert_eq!(
        short("uprobe:/bin/cat:vfs_write { print(retval); }"),
        "there is no result before the function returns | use it at uretprobe:PROGRAM:FUNCTION"
    );
    assert_eq!(
        short("interval:s:1 { print(arg0); }"),
        "there is no `arg0` here, because no code of the kernel was probed | use it at kprobe:, \
         kretprobe: and other places of the kernel's code"
    );
    assert_eq!(
        short("line:fs.rs:13 { print(1); }"),
        "line 13 of fs.rs has no code | line 12 has"
    );
    assert_eq!(
        short("kprobe:vfs_* { print(args.file); }"),
        "there is no `file` here (at `kernel::fs::vfs_read`, one of the places) | there are count"
    );
}

/// `args` has no variables, except that where a copy begins the arguments are the copy's.
#[test]
fn a_variable_is_no_argument_of_the_probed_function() {
    assert_eq!(
        short("kprobe:vfs_write+16 { print(args.left); }"),
        "there is no argument `left` here | a variable is read by its name alone: left"
    );
    for text in [
        "kprobe:vfs_write+16 { print(left); }",
        "inline:tiny { print(args.left); }",
    ] {
        let compiled = compiled_with(text, &Fake::new(), &Options::default());
        assert_eq!(compiled.err(), None, "{text}");
    }
}

#[test]
fn a_name_that_the_reader_makes_is_no_text_at_the_probe() {
    let name = "this is an address here, and gets its name when it is shown | compare it with a \
                name, as in func == \"vfs_read\", or print it";
    let probe = "this is a number here, and gets its name when it is shown | compare it with a \
                 name, as in probe == \"kprobe:vfs_read\", or print it";
    for (value, refused) in [
        ("strcontains(func, \"vfs\")", name),
        ("strstr(caller, \"vfs\")", name),
        ("strlen(func)", name),
        ("strncmp(func, \"vfs\", 3)", name),
        ("strlen(probe)", probe),
        ("strcontains(probe, \"vfs\")", probe),
        (
            "strcontains(arg0, \"vfs\")",
            "this is no text | str(address) makes a text of an address",
        ),
    ] {
        assert_eq!(
            short(&format!("kprobe:vfs_* {{ print({value}); }}")),
            refused
        );
    }
}

#[test]
fn a_reference_to_an_enum_is_matched_by_what_it_leads_to() {
    let mut kernel = Fake::new();
    let (reference, to) = (TypeId(1 << 20), SHAPE);
    let name = "&Shape".into();
    let described = Type::Pointer { name, to };
    kernel.types.insert(reference, Rc::new(described));
    let shape = in_register(reference, 8, Register::Di);
    kernel.variables.insert((WRITE, "shape"), Ok(shape));
    let compiled = |value: &str| {
        let text = format!("kprobe:vfs_write {{ match {value} {{ Circle($r) => {{ }} }} }}");
        compiled_with(&text, &kernel, &Options::default()).err()
    };
    assert_eq!(
        compiled("args.shape").as_deref().map(brief).as_deref(),
        Some(
            "this value is a reference to an enum, and has no variants itself | match what it \
             leads to: write `*` in front, as in `match *args.shape`"
        )
    );
    assert_eq!(compiled("*args.shape"), None);
    let other = compiled("arg0").unwrap();
    assert!(other.contains("this value is no enum"), "{other}");
}

#[test]
fn a_function_that_is_inlined_everywhere_is_found_by_its_copies() {
    assert_eq!(
        short("kprobe:tiny { @ = count(); }"),
        "`tiny` has no code of its own: each of its 2 copies is inlined | probe where the copies \
         begin: inline:tiny"
    );
}

#[test]
fn event_sources_that_are_not_there_have_nearest_ones() {
    assert_eq!(
        short("tracepoint:syscalls:sys_enter_opne { @ = count(); }"),
        "the kernel has no event source `syscalls:sys_enter_opne` | did you mean \
         `syscalls:sys_enter_open`?"
    );
    assert_eq!(
        short("tracepoint:syscalls:sys_enter_open { print(args.flag); }"),
        "this source has no field `flag` | did you mean `flags`?"
    );
}

#[test]
fn the_prompt_points_at_the_host() {
    let options = Options {
        debug_info: false,
        ..Options::default()
    };
    let message = brief(&refusal_with(
        "kprobe:vfs_write { print(args.count); }",
        &options,
    ));
    assert_eq!(
        message,
        "`args.count` is a name of the source | this needs debug information, which the kernel's \
         own prompt does not have: use arg0 to arg5, retval and reg(\"di\") here, or \
         `cargo run -- trace` on the host"
    );
    let compiled = compiled_with(
        "kretprobe:vfs_write { @ = hist(retval); print(arg0); }",
        &Fake::new(),
        &options,
    );
    assert!(compiled.is_ok());
}

#[test]
fn a_small_stack_refuses_what_is_nested_too_deep() {
    use core::cell::Cell;
    std::thread_local! {
        static LEVELS: Cell<i32> = const { Cell::new(0) };
    }
    fn has_room() -> bool {
        LEVELS.set(LEVELS.get() - 1);
        LEVELS.get() >= 0
    }
    let options = Options {
        has_room,
        ..Options::default()
    };
    let text = "kprobe:vfs_write { print(arg0 + 1); }";
    LEVELS.set(1000);
    assert!(compiled_with(text, &Fake::new(), &options).is_ok());
    LEVELS.set(1);
    assert!(brief(&refusal_with(text, &options)).starts_with(
        "this is nested too deep for the stack of the kernel's own prompt | keep a part of it"
    ));
}

#[test]
fn types_must_fit() {
    assert_eq!(
        short("kprobe:vfs_write { @ = count(); @ = sum(arg0); }"),
        "`@` is assigned count() elsewhere, and sum() here | use another map"
    );
    assert_eq!(
        short("kprobe:vfs_write { @a[1] = count(); @a[1, 2] = count(); }"),
        "`@a` has 1 keys elsewhere, and 2 here | give it the same keys everywhere, or use another \
         map"
    );
    assert_eq!(
        short("kprobe:vfs_write { @a[1] = count(); @a[comm] = count(); }"),
        "this key is a text; elsewhere it is a number | give the map keys of the same types \
         everywhere"
    );
    assert_eq!(
        short("kprobe:vfs_write { @a[ustack] = count(); @a[kstack] = count(); }"),
        "this key is a call stack of the kernel; elsewhere it is a call stack of a program | give \
         the map keys of the same types everywhere"
    );
    assert_eq!(
        short("kprobe:vfs_write { @a[kstack(3)] = count(); @a[kstack] = count(); }"),
        "this key is a call stack of the kernel of another kind than elsewhere | give the map keys \
         of the same types everywhere"
    );
    assert_eq!(
        short("kprobe:vfs_write { @a = comm; @a = 1; }"),
        "`@a` holds a text, and this is a number | use another map"
    );
    assert_eq!(
        short("kprobe:vfs_write { print(comm + 1); }"),
        "this is a text, not a number | compare texts with == or !="
    );
    assert_eq!(
        short("kprobe:vfs_write { @ = sum(args.file.name); }"),
        "this is a `&str`, not a number | use it as it is, or take its length: .len"
    );
    assert_eq!(
        short("kprobe:vfs_write { @ = sum(args.shape); }"),
        "this is a `Shape`, not a number | take what a variant holds: .Point, .Circle, .Box; or \
         print it whole"
    );
    assert_eq!(
        short("kprobe:vfs_write { printf(\"%d\\n\", comm); }"),
        "`%d` shows numbers, and this is a text | use %s or %r"
    );
    assert_eq!(
        short("kprobe:vfs_write { printf(\"%d %d\\n\", 1); }"),
        "the format shows 2 values, and there are 1 | give one value for each conversion"
    );
    assert_eq!(
        short("kprobe:vfs_write { @c = count(); @c += 1; }"),
        "`@c` is assigned count() elsewhere, and a value here | use another map"
    );
    assert_eq!(
        short("kprobe:vfs_write { @c = hist(arg0); print(@c + 1); }"),
        "`@c` is a histogram, which is no value to calculate with | print it, or count in another \
         map: `@n = count();`"
    );
    assert_eq!(
        short("kprobe:vfs_write { @c = stats(arg0); print(@c + 1); }"),
        "`@c` is of stats(), which is three values | print it, or keep the one that you need: \
         count(), avg() or sum()"
    );
    assert_eq!(
        short("kprobe:vfs_write { @c[1] = lhist(arg0, 0, 1000, 1); delete(@c[1]); }"),
        "this map has 1002 parts for each key; those of at most 256 can be deleted by the key | \
         use a larger step, or clear the whole map: clear(@name)"
    );
    for bounds in [
        "0, 1001, 1",
        "0, 9000000000, 1",
        "-9223372036854775807, 9223372036854775807, 1",
    ] {
        assert_eq!(
            short(&format!(
                "kprobe:vfs_write {{ @ = lhist(arg0, {bounds}); }}"
            )),
            "these are more than 1000 ranges, which do not fit | use a larger step"
        );
    }
    assert_eq!(
        short("kprobe:vfs_write { @x = (1, comm); @x = (1, 2); }"),
        "`@x` holds a tuple (a number, a text), and this is a tuple (a number, a number) | use \
         another map"
    );
    assert_eq!(
        short("kprobe:vfs_write { $n = args.file.name; @[$n, $n, $n] = count(); }"),
        "the keys have 624 bytes; at most 512 fit | use fewer keys, a field of the value, or a \
         shorter text: str(address, 16)"
    );
    assert_eq!(
        short("kprobe:vfs_write { @a[1] = 1; for ($kv : @a) { print($kv); } }"),
        "a loop over a map takes long, and the code that hits this probe would wait for it | use \
         it in interval:, begin or end; a single key is read as @map[key] anywhere"
    );
    assert_eq!(
        short("kprobe:vfs_write { @a[1] = 1; print(len(@a)); }"),
        "counting the keys of a map takes long, and the code that hits this probe would wait for \
         it | use it in interval:, begin or end"
    );
    assert_eq!(
        short("begin { @a[1] = hist(1); print(len(@a)); }"),
        "each part of a histogram or a series is a key of its own, so the keys are not counted | \
         count into another map beside it"
    );
    assert_eq!(
        short("begin { print(len(3)); }"),
        "this value has no length | there is one of a map with keys, of kstack and ustack, and of \
         slices, arrays and texts of the source"
    );
    assert_eq!(
        short("begin { print(ustack); }"),
        "there is no `ustack` here, because no code of the kernel was probed | use it at kprobe:, \
         kretprobe: and other places of the kernel's code"
    );
    assert_eq!(
        short("begin { @a = 1; for ($kv : @a) { print($kv); } }"),
        "`@a` has no keys to loop over | it is one value: @a"
    );
    assert_eq!(
        short("begin { @a[1] = 1; for ($kv : @a[1]) { print($kv); } }"),
        "a loop goes over a whole map, and this is the value of one key | write \
         `for ($kv : @a) { … }`"
    );
    assert_eq!(
        short("begin { @a[1] = hist(1); for ($kv : @a) { print($kv); } }"),
        "`@a` is a histogram, which is no value to calculate with | print it, or count in another \
         map: `@n = count();`"
    );
}

#[test]
fn keys_of_512_bytes_fit_beside_no_bucket() {
    let names = ["comm"; 32].join(", ");
    let keys = |call| format!("kprobe:vfs_write {{ @[{names}] = {call}; }}");
    assert!(compiled_with(&keys("count()"), &Fake::new(), &Options::default()).is_ok());
    assert_eq!(
        short(&keys("hist(arg0)")),
        "the keys have 512 bytes; at most 510 fit | use fewer keys, a field of the value, or a \
         shorter text: str(address, 16)"
    );
}

#[test]
fn a_field_of_another_value_has_no_offset() {
    assert_eq!(
        short("kprobe:vfs_write { print(offsetof(File, inode.links)); }"),
        "this field is not at a fixed place in the value | name a field of the structure itself"
    );
}

#[test]
fn declarations_of_maps_fit_what_they_hold() {
    for (declaration, value, message) in [
        (
            "hash(2)",
            "count()",
            "`@a` is declared as hash, and each CPU has a part of what it holds | declare it as \
             percpuhash",
        ),
        (
            "percpuhash(2)",
            "1",
            "`@a` is declared as percpuhash, and all CPUs share what it holds | declare it as hash",
        ),
        (
            "lruhash(2)",
            "count()",
            "`@a` is declared as lruhash, and each CPU has a part of what it holds | declare it as \
             percpuhash",
        ),
        (
            "lruhash(0)",
            "1",
            "a map of this kind has 1 to 1048512 keys | give it a number of keys that fits",
        ),
        (
            "percpulruhash(2)",
            "count()",
            "each CPU would forget keys of its own, and a count would be that of some CPUs | use \
             percpuhash(keys), which counts at the end what it had no room for, and make room: \
             delete(@a, key), or clear(@a) in interval:",
        ),
        (
            "potato(2)",
            "1",
            "`potato` is no kind of map | the kinds are hash, lruhash, and percpuhash for \
             count() and the like",
        ),
        (
            "hash(2); let @a = hash(3)",
            "1",
            "`@a` is declared twice | leave one of the two out",
        ),
    ] {
        assert_eq!(
            short(&format!(
                "let @a = {declaration}; begin {{ @a[1] = {value}; }}"
            )),
            message
        );
    }
    let none = short("let @a = hash(0); begin { @a[1] = 1; }");
    assert!(
        none.starts_with("a map of this kind has 1 to 1048576 keys"),
        "{none}"
    );
}

#[test]
fn letters_that_no_time_has_are_refused() {
    let next = "use C's letters, such as %Y-%m-%d %H:%M:%S, %f for microseconds, and %% for a \
                percent sign";
    for (call, cause) in [
        ("time(\"%T%Q\")", "`%Q` is no part of a time"),
        ("time(\"%\")", "the format ends with a single `%`"),
        (
            "print(strftime(\"%%%é\", nsecs))",
            "`%é` is no part of a time",
        ),
    ] {
        assert_eq!(
            short(&format!("begin {{ {call}; }}")),
            format!("{cause} | {next}"),
            "{call}"
        );
    }
}

#[test]
fn a_series_wants_numbers_of_the_text() {
    let refused = |call: &str| {
        let text = short(&format!("kprobe:vfs_write {{ @ = {call}; }}"));
        text.split(" | ").next().unwrap().to_string()
    };
    let range = "this must be a number of the text, 1 to 9223372036854775807";
    assert_eq!(refused("tseries(1, 0, 10)"), range);
    assert_eq!(refused("tseries(1, -1, 10)"), range);
    assert_eq!(refused("tseries(1, arg0, 10)"), range);
    let intervals = "this must be a number of the text, 1 to 1000";
    assert_eq!(refused("tseries(1, 1s, 0)"), intervals);
    assert_eq!(refused("tseries(1, 1s, 1001)"), intervals);
    super::fake::compiled("kprobe:vfs_write { @ = tseries(1, 1s, 1000); }");
    assert_eq!(
        refused("tseries(1, 1s, 10, \"stats\")"),
        "values are not gathered so"
    );
    assert_eq!(
        refused("tseries(1, 1s)"),
        "`tseries` takes 3 arguments, and there are 2"
    );
}

/// Not the message about an unknown function.
#[test]
fn a_function_with_other_arguments_is_shown_with_its_own() {
    for (call, usage) in [
        ("printf()", "printf(\"format\", value)"),
        ("print()", "print(@map)"),
        ("print(1, 2)", "print(value) or print(@map, top, div)"),
        ("print(@a[1], 2)", "print(@map[key]) or print(@map, top)"),
        ("clear()", "clear(@map)"),
        ("clear(1)", "clear(@map) or clear(@map[key])"),
        ("delete()", "delete(@map[key])"),
        ("delete(1)", "delete(@map[key]) or delete(@map, key)"),
        ("delete(1, 2)", "delete(@map[key]) or delete(@map, key)"),
        ("delete(@a[1], 2)", "delete(@map[key]) or delete(@map, key)"),
        (
            "$d = delete(@a[1], 2)",
            "delete(@map[key]) or delete(@map, key)",
        ),
        ("has_key(1, 2)", "has_key(@map, key)"),
        ("$h = has_key(@a[1], 2)", "has_key(@map, key)"),
        ("$f = find(@a[1], 2, $x)", "find(@map, key, $x)"),
        ("exit(1, 2)", "exit() or exit(status)"),
        ("str()", "str(address) or str(address, bytes)"),
        ("buf()", "buf(address, bytes)"),
    ] {
        let name = call.split('(').next().unwrap();
        let name = name.split(' ').next_back().unwrap();
        assert_eq!(
            short(&format!("kprobe:vfs_write {{ @a[1] = 1; {call}; }}")),
            format!("`{name}` does not take these arguments | write {usage}"),
            "{call}"
        );
    }
}

#[test]
fn a_variable_keeps_the_type_of_the_source_that_it_has() {
    for (first, second) in [
        ("*args.file", "*args.task"),
        ("*args.file", "args.shape"),
        ("*args.file", "1"),
        ("args.shape", "*args.file"),
    ] {
        let text = format!("kprobe:vfs_write {{ $x = {first}; $x = {second}; }}");
        assert_eq!(
            short(&text),
            "`$x` holds a value of another type | use another variable",
            "{text}"
        );
    }
}

/// Two effects, two blocks, or two values.
#[test]
fn the_parts_of_a_choice_go_together() {
    for (choice, without_value) in [
        ("print(1) : 2", "print(1)"),
        ("2 : print(1)", "print(1)"),
        ("{ print(1); 3 } : print(2)", "print(2)"),
        ("print(2) : { print(1); 3 }", "print(2)"),
    ] {
        let text = format!("kprobe:vfs_write {{ arg0 ? {choice}; }}");
        let told = refusal(&text);
        assert!(told.starts_with("error: this gives no value\n"), "{told}");
        let column = text.find(without_value).unwrap();
        let marks = format!(
            "| {}{}\n",
            " ".repeat(column),
            "^".repeat(without_value.len())
        );
        assert!(told.contains(&marks), "{told}");
    }
    for choice in [
        "2 : 3",
        "print(1) : print(2)",
        "{ print(1); } : { print(2); }",
        "{ print(1); } : print(2)",
        "{ print(1); 3 } : 4",
        "{ print(1); 3 } : { 4 }",
        "{ print(1); 3 } : { print(4); }",
    ] {
        let text = format!("kprobe:vfs_write {{ arg0 ? {choice}; }}");
        if let Err(told) = compiled_with(&text, &Fake::new(), &Options::default()) {
            panic!("{told}");
        }
    }
}

#[test]
fn what_is_calculated_from_numbers_of_the_text_is_known_where_it_must_be() {
    for taken in [
        "@ = lhist(arg0, 0, 5 * 2, 1 + 1);",
        "@ = lhist(arg0, 2 < 1, (5 > 3) + (7 == 7), 1);",
        "@ = hist(arg0, 1 + 1);",
        "print(buf(arg0, 2 << 2)); print(str(arg0, 3 * 2));",
        "print(args.triple[3 - 1]); print(args.triple[2 != 2]);",
        "let $x: uint8 = 200 + 55;",
    ] {
        let text = format!("kprobe:vfs_write {{ {taken} }}");
        if let Err(told) = compiled_with(&text, &Fake::new(), &Options::default()) {
            panic!("{told}");
        }
    }
    for (refused, message) in [
        (
            "print(args.triple[1 + 2]);",
            "the array has 3 elements | use a smaller index",
        ),
        (
            "print(args.triple[(2 > 1) * 3]);",
            "the array has 3 elements | use a smaller index",
        ),
        (
            "let $x: uint8 = 200 + 56;",
            "the variable is of type u8, which has no 256 | give it a larger type, or say that it \
             is to be cut: (u8)value",
        ),
        (
            "print(1 / (3 - 3));",
            "this divides by zero | divide by another number",
        ),
    ] {
        let text = format!("kprobe:vfs_write {{ {refused} }}");
        assert_eq!(short(&text), message, "{text}");
    }
}

/// The largest clause that is taken is near the limit, and so is the smallest that is not.
#[test]
fn a_clause_that_is_taken_is_within_the_limits() {
    const MOST: usize = 4080;
    let fake = Fake::new();
    let needed = |steps: usize| {
        let text = format!(
            "kprobe:vfs_write {{ {}}}",
            "@[arg0] += arg1; ".repeat(steps)
        );
        compiled_with(&text, &fake, &Options::default()).map(|compiled| {
            let code = compiled.script.programs[0].code.chunks(8);
            // A load of a whole number takes two words, and the second one has no operation.
            code.filter(|word| word[0] != 0).count()
        })
    };
    let (mut taken, mut refused) = (1_usize, 1000_usize);
    while taken + 1 < refused {
        let steps = taken.midpoint(refused);
        match needed(steps) {
            Ok(_) => taken = steps,
            Err(_) => refused = steps,
        }
    }
    let most = needed(taken).unwrap();
    assert!((MOST - 30..=MOST).contains(&most), "{most}");
    let told = needed(refused).unwrap_err();
    let number = told.split("it needs ").nth(1).unwrap();
    let number: usize = number.split(' ').next().unwrap().parse().unwrap();
    assert!((MOST + 1..MOST + 30).contains(&number), "{told}");
}

/// The numbers in the message are those of the first clause that is too large.
#[test]
fn a_clause_that_is_too_large_is_told_the_limits() {
    let maps = |count: usize| -> String { (0..count).map(|n| format!("@m{n} = {n}; ")).collect() };
    let clause = |block: String| format!("kprobe:vfs_write {{ {block}}}");
    let fake = Fake::new();
    let refused = |block: String| {
        let text = clause(block);
        compiled_with(&text, &fake, &Options::default()).err()
    };
    let told = (1..40).find_map(|count| refused(maps(count))).unwrap();
    assert!(told.contains("it uses 16 maps; at most 15 fit"), "{told}");
    let told = refused("@[arg0] += arg1; ".repeat(1000)).unwrap();
    assert!(told.contains(" instructions; at most 4080 fit"), "{told}");
}
