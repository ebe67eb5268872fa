//! Fetch arguments: each value in the record is the one that was there at the hit.
//!
//! An event is defined with arguments, one call is made, and the line of `trace` is compared:
//! registers, the stack, memory by symbol and through pointers, types, arrays and strings. What
//! cannot be read is zero or empty, and the record is there all the same.

use super::*;
use bpf::MOST_RECORD_BYTES;
use core::{
    ops::Range,
    slice,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    mm::kernel_stack::{self, KernelStack},
    probes::{Kprobe, PreVerdict, PtRegs, register},
    symbols,
    task::{self, exec::run_program, kthread::spawn_kthread_on},
};

/// Data with a name. The bytes are chosen so that each width and sign prints differently.
#[unsafe(no_mangle)]
static TRACED_DATA: [u64; 3] = [0x8182_8384_f5f6_f7f8, 0x1122_3344_5566_7788, 77];

/// Eight arguments: six in registers and two on the stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_eight(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) -> u64 {
    black_box([a, b, c, d, e, f, g, h]).iter().sum()
}

#[inline(never)]
fn call_eight() {
    assert_eq!(traced_eight(1, 2, 3, 4, 5, 6, 7, 8), 36);
}

/// Defines one event with these arguments, has `work` hit it once, and returns the arguments of its
/// line.
fn recorded(place: &str, arguments: &str, work: impl FnOnce()) -> String {
    clean_up();
    let (kind, place) = place.split_once(' ').expect(place);
    append(&format!("{kind}:t/e {place} {arguments}"), "kprobe_events").unwrap();
    echo("1", "events/t/enable").unwrap();
    work();
    echo("0", "events/t/enable").unwrap();
    let lines = lines();
    assert_eq!(lines.len(), 1, "{arguments}: {lines:?}");
    clean_up();
    lines[0].split_once(") ").expect(&lines[0]).1.into()
}

/// The names of a file that is read and of a node that is given back, also when the name is gone
/// from its directory. An address that leads nowhere gives no name.
#[guest_test]
fn files_and_nodes_have_their_names() {
    use kernel::fs::{File, vfs_read};

    let node = NodeRef::root();
    let create = |name: &str| {
        let flags = open::RDWR | open::CREAT;
        File::open(&node, name.as_bytes(), flags, 0o600).unwrap()
    };
    let read = |file: &File| {
        // No user memory: only the call matters.
        assert!(vfs_read(file, 0, 1, &mut 0) <= 0);
    };
    let file = create("/tmp/a name");
    let by_file = "name=$arg1:%pD";
    assert_eq!(
        recorded("p vfs_read", by_file, || read(&file)),
        "name=\"a name\""
    );
    assert_eq!(
        recorded("r vfs_read", by_file, || read(&file)),
        "name=\"a name\""
    );
    fs::unlink(&node, b"/tmp/a name").unwrap();
    assert_eq!(
        recorded("p vfs_read", by_file, || read(&file)),
        "name=\"a name\""
    );
    let enable = fs::open(&path("events/enable"), open::RDONLY).unwrap();
    assert_eq!(
        recorded("p vfs_read", by_file, || read(&enable)),
        "name=\"enable\""
    );
    let by_node = "name=$arg1:%pd";
    let directory = fs::directory(&node, b"/tmp").unwrap();
    // The files that this writes to are given back, too.
    append(&format!("p:t/e dput {by_node}"), "kprobe_events").unwrap();
    echo("1", "events/t/enable").unwrap();
    drop((directory, file));
    echo("0", "events/t/enable").unwrap();
    let lines = lines();
    for name in ["tmp", "a name", "/", "enable"] {
        let end = format!(" name=\"{name}\"");
        assert!(lines.iter().any(|line| line.ends_with(&end)), "{lines:?}");
    }
    let nowhere = recorded("p traced_function", by_file, || call(1));
    assert_eq!(nowhere, "name=(fault)");
}

#[guest_test]
fn each_register_is_recorded_as_a_handler_sees_it() {
    static SEEN: [AtomicU64; 21] = [const { AtomicU64::new(0) }; 21];
    fn look(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let values = [
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15, regs.ax,
            regs.bx, regs.cx, regs.dx, regs.si, regs.di, regs.bp, regs.sp, regs.cs, regs.ss,
        ];
        for (seen, value) in SEEN.iter().zip(values) {
            seen.store(value, SeqCst);
        }
        PreVerdict::Execute
    }
    let names = [
        "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "ax", "bx", "cx", "dx", "si", "di",
        "bp", "sp", "cs", "ss",
    ];
    let arguments: Vec<String> = names.iter().map(|name| format!("{name}=%{name}")).collect();
    let probe = register(alloc::boxed::Box::new(
        Kprobe::new().symbol("traced_eight").pre(look),
    ))
    .unwrap();
    let line = recorded("p traced_eight", &arguments.join(" "), call_eight);
    drop(probe);
    let expected: Vec<String> = names
        .iter()
        .zip(&SEEN)
        .map(|(name, value)| format!("{name}={:#x}", value.load(SeqCst)))
        .collect();
    assert_eq!(line, expected.join(" "));
    assert!(
        line.contains("di=0x1 ") && line.contains("r9=0x6 "),
        "{line}"
    );
    // The address is that of the probe. Of the flags, one bit is always set.
    let line = recorded("p traced_eight", "%ip %flags", call_eight);
    let address = symbols::lookup_name("traced_eight").unwrap().start;
    let (ip, flags) = line.split_once(' ').unwrap();
    assert_eq!(ip, format!("arg1={address:#x}"));
    let flags = u64::from_str_radix(flags.trim_start_matches("arg2=0x"), 16).unwrap();
    assert_eq!(flags & 2, 2);
}

#[guest_test]
fn arguments_of_a_function_come_from_registers_and_the_stack() {
    let all = "$arg1:u8 $arg2:u8 $arg3:u8 $arg4:u8 $arg5:u8 $arg6:u8 $arg7:u8 $arg8:u8";
    let expected = "arg1=1 arg2=2 arg3=3 arg4=4 arg5=5 arg6=6 arg7=7 arg8=8";
    assert_eq!(recorded("p traced_eight", all, call_eight), expected);
    // At the return they are those of the entry, because the function has changed registers.
    let line = recorded("r traced_eight", &format!("$retval:s32 {all}"), call_eight);
    let shifted: String = (1..=8).map(|n| format!(" arg{}={n}", n + 1)).collect();
    assert_eq!(line, format!("arg1=36{shifted}"));
    // Word 0 of the stack is the return address, and the words after it are the arguments.
    let line = recorded(
        "p traced_eight",
        "$stack0:symbol $stack1:u64 $stack2:u64 w=+8($stack):u64",
        call_eight,
    );
    assert!(
        line.starts_with("arg1=") && line.contains("call_eight+0x"),
        "{line}"
    );
    assert!(line.ends_with(" arg2=7 arg3=8 w=7"), "{line}");
    // A word beyond the end of the stack reads as 0. It is in the page that separates stacks, which
    // has 512 words, and the stack pointer of the call is less than 400 words below `here`.
    let here = 0u8;
    let here = (&raw const here).addr() as u64;
    let words = (kernel_stack::bounds(here).end - here) / 8 + 400;
    let line = recorded("p traced_eight", &format!("$stack{words}"), call_eight);
    assert_eq!(line, "arg1=0x0");
}

#[guest_test]
fn memory_is_read_by_symbol_address_and_through_pointers() {
    let at = TRACED_DATA.as_ptr() as u64;
    assert_eq!(
        recorded(
            "p traced_eight",
            &format!("@TRACED_DATA @TRACED_DATA+8 @{at:#x} a=@TRACED_DATA+16:u64"),
            call_eight
        ),
        "arg1=0x81828384f5f6f7f8 arg2=0x1122334455667788 arg3=0x81828384f5f6f7f8 a=77"
    );
    let pointers = [at, at + 16];
    assert_eq!(
        recorded(
            "p traced_function",
            "+0(+0(%di)) +16(+0($arg1)):u8 back=-8(+8(%di)):x8 +0x8(+0(%di)):x16",
            || {
                traced_function(pointers.as_ptr() as u64, core::ptr::null());
            }
        ),
        "arg1=0x81828384f5f6f7f8 arg2=77 back=0x88 arg4=0x7788"
    );
    assert_eq!(
        recorded(
            "p traced_eight",
            "\\7:u8 \\-7:s8 \\0x1f i=\\-1:x16 \\\"text\"",
            call_eight
        ),
        "arg1=7 arg2=-7 arg3=0x1f i=0xffff arg5=\"text\""
    );
}

#[guest_test]
fn types_cut_and_print_the_value() {
    assert_eq!(
        recorded(
            "p traced_eight",
            "@TRACED_DATA:u8 @TRACED_DATA:u16 @TRACED_DATA:u32 @TRACED_DATA:u64",
            call_eight
        ),
        "arg1=248 arg2=63480 arg3=4126603256 arg4=9332165984950614008"
    );
    assert_eq!(
        recorded(
            "p traced_eight",
            "@TRACED_DATA:s8 @TRACED_DATA:s16 @TRACED_DATA:s32 @TRACED_DATA:s64",
            call_eight
        ),
        "arg1=-8 arg2=-2056 arg3=-168364040 arg4=-9114578088758937608"
    );
    assert_eq!(
        recorded(
            "p traced_eight",
            "@TRACED_DATA:x8 @TRACED_DATA:x16 @TRACED_DATA:x32 @TRACED_DATA:b4@4/8 \
             @TRACED_DATA:b3@29/32 \\0x41:char",
            call_eight
        ),
        "arg1=0xf8 arg2=0xf7f8 arg3=0xf5f6f7f8 arg4=15 arg5=7 arg6='A'"
    );
    let at = symbols::lookup_name("traced_eight").unwrap();
    let place = format!("traced_eight+0x0/{:#x}", at.size);
    assert_eq!(
        recorded("p traced_eight", "%ip:symbol s=%ip:symstr", call_eight),
        format!("arg1={place} s=\"{place}\"")
    );
}

#[guest_test]
fn arrays_print_their_elements() {
    let names = [c"first", c"second"].map(|name| name.as_ptr() as u64);
    let call_names = || {
        traced_function(0, names.as_ptr().cast());
    };
    assert_eq!(
        recorded(
            "p traced_function",
            "@TRACED_DATA:u8[4] s=@TRACED_DATA:s16[2] one=@TRACED_DATA:x64[1] \
             +0(+0(%si)):char[5] names=+0(%si):string[2]",
            call_names
        ),
        "arg1={248,247,246,245} s={-2056,-2570} one={0x81828384f5f6f7f8} \
         arg4={'f','i','r','s','t'} names={\"first\",\"second\"}"
    );
    let symbols = recorded("p traced_function", "+0(%si):symbol[2]", call_names);
    assert_eq!(symbols.matches(',').count(), 1, "{symbols}");
}

/// Addresses that nothing is at: unmapped, not canonical, and the first page.
const NOWHERE: [u64; 3] = [0xffff_fff0_0000_0000, 0x8765_4321_0000_0000, 8];

/// The ring holds older records, so bytes that are not written would show them.
#[guest_test]
fn a_read_that_fails_leaves_zero_and_the_record() {
    clean_up();
    echo("4", "buffer_size_kb").unwrap();
    append(
        "p:old traced_eight a=\\-1 b=\\-1 c=\\-1 d=\\-1 e=\\-1 f=\\-1",
        "kprobe_events",
    )
    .unwrap();
    append(
        "p:bad traced_function n=+0(%di) s=+0(%di):string a=+0(%di):x32[2] u=+u0(%di) \
         l=+0(%di):string[2] d=+0(+0(%di)):s8",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/kprobes/enable").unwrap();
    for address in NOWHERE {
        for _ in 0..200 {
            call_eight();
        }
        TRACING.buffer.clear(None);
        traced_function(address, core::ptr::null());
        let lines = lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        let (_, values) = lines[0].split_once(") ").unwrap();
        assert_eq!(
            values,
            "n=0x0 s=(fault) a={0x0,0x0} u=0x0 l={(fault),(fault)} d=0"
        );
    }
    clean_up();
    echo("256", "buffer_size_kb").unwrap();
}

#[guest_test]
fn kernel_and_user_memory_are_not_taken_for_each_other() {
    let text = c"in the kernel";
    let line = recorded(
        "p traced_function",
        "+0(%si):string +0(%si):ustring +u0(%si):string +u0(%si):x8",
        || {
            traced_function(0, text.as_ptr().cast());
        },
    );
    assert_eq!(
        line,
        "arg1=\"in the kernel\" arg2=(fault) arg3=(fault) arg4=0x0"
    );
}

#[guest_test]
fn strings_of_a_program_and_its_name_are_recorded() {
    clean_up();
    append(
        "p:made sys_mkdir name=+0($arg1):ustring same=+u0(%di):string first=+u0($arg1):char \
         $comm who=$comm:string mode=$arg2:x32",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/kprobes/made/enable").unwrap();
    run_program("/bin/workload", &["2"]).unwrap();
    // The base directory, and each child's directory twice: the second time it is there already.
    let seen = lines();
    assert_eq!(seen.len(), 5, "{seen:?}");
    for line in &seen {
        let (_, values) = line.split_once(") ").unwrap();
        let (name, rest) = values.split_once(' ').unwrap();
        let name = name.trim_start_matches("name=");
        assert!(name.starts_with("\"/tmp/"), "{line}");
        assert_eq!(
            rest,
            format!("same={name} first='/' arg4=\"workload\" who=\"workload\" mode=0x1ed")
        );
    }
    clean_up();
}

/// Letters, and characters of two bytes, which are read in another way: `len` bytes of them.
fn texts_of(len: usize) -> [String; 2] {
    let letters = (b'a'..=b'y').cycle().take(len).map(char::from).collect();
    let accents = "x".repeat(len % 2) + &"\u{e9}".repeat(len / 2);
    [letters, accents]
}

/// Also if another byte follows, if nothing is after the page where it ends, and if a record has
/// no room for all of it.
#[guest_test]
fn a_string_of_any_length_at_any_address_is_recorded() {
    /// Without the NUL, and without the common header, the probed address and the string's place.
    const LONGEST: usize = MOST_RECORD_BYTES as usize - 20 - 1;
    let mut lengths: Vec<usize> = (0..=25).collect();
    lengths.extend([LONGEST - 1, LONGEST]);
    let stack = KernelStack::new().unwrap();
    let Range { start, end } = stack.range();
    let start = core::ptr::with_exposed_provenance_mut::<u8>(start as usize);
    // SAFETY: nothing runs on the stack, which is ours.
    let memory = unsafe { slice::from_raw_parts_mut(start, end as usize - start.addr()) };
    clean_up();
    echo("2048", "buffer_size_kb").unwrap();
    append("p:t/e traced_function s=+0(%si):string", "kprobe_events").unwrap();
    echo("1", "events/t/enable").unwrap();
    let mut hit = |at: usize, text: &[u8]| {
        memory.fill(b'z');
        memory[at..][..text.len()].copy_from_slice(text);
        traced_function(0, &raw const memory[at]);
    };
    let last = |len: usize| (end - start.addr() as u64) as usize - len;
    let mut expected = Vec::new();
    for len in lengths {
        for text in texts_of(len) {
            let with_nul = [text.as_bytes(), b"\0"].concat();
            for at in (0..8).chain([last(len + 1)]) {
                hit(at, &with_nul);
                expected.push(format!("s=\"{text}\""));
            }
        }
        let [letters, _] = texts_of(len + 1);
        hit(last(len + 1), letters.as_bytes());
        expected.push(match len {
            LONGEST => format!("s=\"{}\"", &letters[..LONGEST]),
            _ => "s=(fault)".into(),
        });
    }
    for (at, text) in (0..8).zip(texts_of(LONGEST + 8)[0].as_bytes().windows(LONGEST + 1)) {
        hit(at, text);
        let seen = str::from_utf8(&text[..LONGEST]).unwrap();
        expected.push(format!("s=\"{seen}\""));
    }
    let seen = lines();
    assert_eq!(seen.len(), expected.len());
    for (line, expected) in seen.iter().zip(&expected) {
        assert_eq!(line.split_once(") ").unwrap().1, expected);
    }
    clean_up();
    echo("256", "buffer_size_kb").unwrap();
}

/// Strings that fit one by one, and not together: the record is there, the first one is whole, the
/// one at its end is cut, and for the one after it there is no room, which Linux shows like this.
#[guest_test]
fn strings_that_are_longer_than_a_record_together_are_cut_at_its_end() {
    /// Without the common header, the probed address and the places of three strings.
    const ROOM: usize = MOST_RECORD_BYTES as usize - 16 - 3 * 4;
    let [text, _] = texts_of(ROOM / 2 + 100);
    let zero_ended = [text.as_bytes(), b"\0"].concat();
    for place in ["p", "r"] {
        let (room, arguments) = match place {
            "p" => (ROOM, ["+0(%si)"; 3]),
            // One more address, and a text that is there at the return.
            _ => (ROOM - 8, ["+0($arg2)"; 3]),
        };
        let arguments = arguments.map(|from| format!("{from}:string")).join(" ");
        let seen = recorded(&format!("{place} traced_function"), &arguments, || {
            traced_function(0, zero_ended.as_ptr());
        });
        let cut = &text[..room - zero_ended.len() - 1];
        assert_eq!(
            seen,
            format!("arg1=\"{text}\" arg2=\"{cut}\" arg3=(fault)"),
            "{place}"
        );
    }
}

/// Another CPU makes a string longer and shorter while it is measured and copied.
#[guest_test]
fn a_string_that_changes_meanwhile_stays_inside_its_record() {
    const LONG: usize = 60;
    static TEXT: [core::sync::atomic::AtomicU8; LONG + 1] =
        [const { core::sync::atomic::AtomicU8::new(0) }; LONG + 1];
    static STOP: AtomicBool = AtomicBool::new(false);
    TEXT[..LONG]
        .iter()
        .for_each(|byte| byte.store(b'x', SeqCst));
    STOP.store(false, SeqCst);
    let changer = spawn_kthread_on(1 << 1, "changer", || {
        while !STOP.load(SeqCst) {
            TEXT[3].store(0, SeqCst);
            TEXT[3].store(b'x', SeqCst);
        }
    })
    .unwrap();
    task::current().set_allowed_cpus(1);
    clean_up();
    append(
        "p:grows traced_function s=+0(%si):string n=%di:u64 t=+0(%si):string m=\\77:u8",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/kprobes/grows/enable").unwrap();
    for number in 0..500 {
        traced_function(number, TEXT.as_ptr().cast());
    }
    STOP.store(true, SeqCst);
    changer.wait_released();
    let seen = lines();
    assert_eq!(seen.len(), 500);
    for (number, line) in seen.iter().enumerate() {
        let (_, values) = line.split_once(") ").unwrap();
        let words: Vec<&str> = values.split(' ').collect();
        assert_eq!(words.len(), 4, "{line}");
        for text in [words[0], words[2]] {
            let text = text[2..].trim_matches('"');
            assert!(text.len() >= 3 && text.len() <= LONG, "{line}");
            assert!(text.bytes().all(|byte| byte == b'x'), "{line}");
        }
        assert_eq!((words[1], words[3]), (&*format!("n={number}"), "m=77"));
    }
    task::current().set_allowed_cpus(u64::MAX);
    clean_up();
}
