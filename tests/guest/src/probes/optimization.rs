//! Jump optimisation: which breakpoints become jumps, and when they become breakpoints again.
//! [`detours`] has what they do then, [`under_fire`] the change under running CPUs.
//!
//! A breakpoint becomes a jump if the code under it allows that and nothing else needs it, and says
//! `[OPTIMIZED]` then. A post handler, a jprobe or a neighbour under the jump brings it back before
//! its own registration returns. The knob turns all of them at once.

mod detours;
mod under_fire;

use crate::{
    platform::suite::flags::{MASKED, PLAIN},
    tools::jumps::byte_at,
};
use abi::open;
use alloc::{boxed::Box, format, string::String, vec, vec::Vec};
use core::{
    arch::{global_asm, naked_asm},
    hint::black_box,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp},
    errno::Errno,
    fs,
    mm::{
        paging::{TEXT_POOL_END, TEXT_POOL_START},
        uaccess,
    },
    probes::{
        Kprobe, PROBES, PreVerdict, PtRegs, jprobe, register, register_jprobe, unregister_jprobe,
    },
    symbols::{self, SymbolKind},
    task::{schedule, scheduler::is_to_preempt_before_hit},
};
use probes::{
    StepMethod,
    insn::{EntryFacts, FunctionCode, Obstacle},
    optimize::NoJump,
};
use x86_64::instructions::interrupts::without_interrupts;

const LIST: &str = "/sys/kernel/debug/kprobes/list";
const KNOB: &str = "/proc/sys/debug/kprobes-optimization";

fn address(name: &str) -> u64 {
    symbols::lookup_name(name)
        .expect("a function of this file")
        .start
}

fn is_jump(name: &str) -> bool {
    byte_at(address(name)) == 0xe9
}

/// How many #BP all CPUs have given to the probes.
fn breakpoints() -> u64 {
    (0..smp::online_cpus())
        .map(|cpu| percpu::of(cpu).probes.breakpoints.load(Relaxed))
        .sum()
}

fn read(path: &str) -> String {
    let file = fs::open(path, open::RDONLY).unwrap();
    let mut text = Vec::new();
    let mut buf = vec![0; 512];
    loop {
        match file.read_at(text.len() as u64, &mut buf).unwrap() {
            0 => return String::from_utf8(text).unwrap(),
            len => text.extend_from_slice(&buf[..len]),
        }
    }
}

fn write(path: &str, text: &str) -> Result<usize, Errno> {
    fs::open(path, open::WRONLY)?.write_at(0, text.as_bytes())
}

/// The list's words after the name of the probe at `symbol`+`offset`.
fn marks(symbol: &str, offset: u64) -> String {
    let at = format!("{symbol}+{offset:#x}    ");
    let list = read(LIST);
    let line = list.lines().find(|line| line.contains(&at));
    line.unwrap_or_else(|| panic!("{at}is not in\n{list}"))
        .split(&at)
        .nth(1)
        .unwrap()
        .into()
}

/// A function made of these instructions.
macro_rules! assembly {
    ($($name:ident: $($line:literal),+;)+) => {
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name(a: u64, b: u64) -> u64 {
                naked_asm!(".cfi_startproc", $($line),+, ".cfi_endproc")
            }
        )+

        /// Some are only known by name.
        #[used]
        static ASSEMBLY: &[extern "C" fn(u64, u64) -> u64] = &[$($name),+];
    };
}

static WORD: AtomicU64 = AtomicU64::new(0x1234_5678_9abc_def0);

assembly! {
    opt_add: "lea rax, [rdi + rsi]", "add rax, rdx", ".byte 0x66, 0x90", "ret";
    opt_stack: "push rbp", "mov rbp, rsp", "mov rax, [rsp + 8]", "pop rbp", "ret";
    opt_carry: "adc rax, rbx", "rcl rcx, 1", "jnc 2f", "inc rdx", "2: ret";
    // The flags that the push stores are the code's own.
    opt_flags: "pushfq", "pop rax", "stc", "cmc", "stc", "ret";
    // From +1 on with DF set.
    opt_backwards: "std", "mov rcx, rax", "lea rdx, [rsp + rcx]", "cld", "ret";
    opt_tail: "lea rax, [rdi + 1]", "nop", "jmp opt_add";
    opt_short: "xchg eax, eax", "ret", ".balign 16, 0xcc";
    opt_no_room: "ret", "2: nop", "jmp 2b", "nop", "nop";
    // A loop to +3.
    opt_loop: "mov rax, rdi", "2: dec rsi", "jnz 2b", "ret";
    opt_fill: "nop", "rep stosb", "mov rax, rdi", "ret";
    // Leaves its caller as well unless it is told to stay.
    opt_leaves: "lea rax, [rdi + rdi]", "test rsi, rsi", "jnz 2f", "add rsp, 16", "2: ret";
    opt_is_left: "sub rsp, 8", "call opt_leaves", "add rsp, 8", "ret";
    opt_load: "mov rax, [rdi]", "mov rdx, [rsi]", "add rax, rdx", "ret";
}

#[used]
static ASSEMBLY_WITH_OPERANDS: extern "C" fn() -> u64 = opt_relative;

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn opt_relative() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "nop",
        "mov rax, [rip + {word}]",
        "add rax, 1",
        "ret",
        ".cfi_endproc",
        word = sym WORD,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn opt_rust(a: u64, b: u64) -> u64 {
    black_box(a) * 3 + black_box(b)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn opt_recursion(depth: u64) -> u64 {
    match depth {
        0 => 0,
        _ => black_box(opt_recursion(black_box(depth - 1)) + 1),
    }
}

static HITS: AtomicU64 = AtomicU64::new(0);
fn count(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    HITS.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

fn after(_probe: &Kprobe, _regs: &mut PtRegs, _flags: u64) {
    HITS.fetch_add(1000, SeqCst);
}

/// A probe on text of the boot keeps its breakpoint, though the code would take a jump: the text is
/// freed later.
#[guest_test(cmdline = "early=kretprobe_example kretprobe_example.func=kernel::init::finish_boot")]
fn text_of_the_boot_gets_no_jump() {
    let boot = symbols::lookup_name("kernel::init::finish_boot").unwrap();
    assert_eq!(boot.kind, SymbolKind::Init);
    assert_eq!(marks(boot.name, 0), "[GONE]");
    assert_eq!(PROBES.detours_in_use(), 0);
    kernel::module::unload("kretprobe_example").unwrap();
    assert_eq!(read(LIST), "");
}

/// A jump instead of a breakpoint: no trap, the mark in the list, and the original bytes for who
/// asks for them.
#[guest_test]
fn an_optimized_probe_traps_never_and_says_so() {
    let start = address("opt_rust");
    let original: Vec<u8> = (start..start + 8).map(byte_at).collect();
    HITS.store(0, SeqCst);
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
    assert_eq!(marks("opt_rust", 0), "[OPTIMIZED]");
    assert!(is_jump("opt_rust"));
    assert_eq!(PROBES.original_text(start..start + 8).unwrap(), original);
    assert_eq!(
        PROBES.original_text(start + 2..start + 8).unwrap(),
        original[2..]
    );
    let traps = breakpoints();
    for n in 0..1000 {
        assert_eq!(opt_rust(n, black_box(1)), n * 3 + 1);
    }
    assert_eq!(
        (HITS.load(SeqCst), probe.hits(), probe.nmissed()),
        (1000, 1000, 0)
    );
    assert_eq!(breakpoints(), traps);
    drop(probe);
    assert_eq!(
        (start..start + 8).map(byte_at).collect::<Vec<_>>(),
        original
    );
    assert_eq!(PROBES.detours_in_use(), 0);
}

/// The knob as a file: 0 brings every breakpoint back before the write returns, 1 every jump;
/// anything else is refused.
#[guest_test]
fn the_knob_turns_all_jumps_into_breakpoints_and_back() {
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
    // In other functions, so that each jump is made from the code of its own.
    let others = ["opt_add", "opt_carry", "opt_load"]
        .map(|name| register(Box::new(Kprobe::new().symbol(name).pre(count))).unwrap());
    // Disabled, and under the jumps: they are looked at, too, and each jump is made once.
    let under_them = [("opt_add", 4), ("opt_carry", 3), ("opt_load", 3)].map(|(name, offset)| {
        let probe = Kprobe::new().symbol(name).offset(offset);
        register(Box::new(probe.pre(count).disabled())).unwrap()
    });
    let are_jumps = || ["opt_add", "opt_carry", "opt_load"].map(is_jump);
    assert_eq!((read(KNOB).as_str(), are_jumps()), ("1\n", [true; 3]));
    write(KNOB, "0\n").unwrap();
    assert_eq!(
        (read(KNOB).as_str(), byte_at(address("opt_rust"))),
        ("0\n", 0xcc)
    );
    assert_eq!(
        (marks("opt_rust", 0).as_str(), PROBES.detours_in_use()),
        ("", 0)
    );
    // The last two are 1, had they overflowed.
    for wrong in [
        "2",
        "-1",
        "",
        "x",
        "01x",
        "18446744073709551617",
        "36893488147419103233",
    ] {
        assert_eq!(write(KNOB, wrong), Err(Errno::EINVAL), "{wrong}");
    }
    assert_eq!(read(KNOB), "0\n");
    // Zeros count for nothing, however many.
    write(KNOB, "000000000000000000000000000001").unwrap();
    assert!(is_jump("opt_rust"));
    assert_eq!((are_jumps(), PROBES.detours_in_use()), ([true; 3], 4));
    assert_eq!(opt_add(black_box(1), black_box(2)) - 3, opt_add(0, 0));
    drop((others, under_them));
    assert_eq!(marks("opt_rust", 0), "[OPTIMIZED]");
    PROBES.set_enabled(false).unwrap();
    assert!(
        !matches!(byte_at(address("opt_rust")), 0xcc | 0xe9),
        "the original is back"
    );
    PROBES.set_enabled(true).unwrap();
    assert!(is_jump("opt_rust"));
    drop(probe);
}

/// A probe under another's jump, a post handler and a jprobe each take the jump away, and give it
/// back when they go.
#[guest_test]
fn neighbours_post_handlers_and_jprobes_bring_the_breakpoint_back() {
    jprobe! {
        fn mirror(_a: u64, _b: u64) {}
    }
    static JPROBE: kernel::probes::Jprobe = kernel::probes::Jprobe::new()
        .symbol("opt_add")
        .entry(mirror);
    let first = register(Box::new(Kprobe::new().symbol("opt_add").pre(count))).unwrap();
    assert!(is_jump("opt_add"));
    HITS.store(0, SeqCst);
    // Instructions are found in what the jump has displaced, not in the jump.
    for offset in [1, 2, 3, 5] {
        let inside = register(Box::new(
            Kprobe::new().symbol("opt_add").offset(offset).pre(count),
        ));
        let Err(error) = inside else {
            panic!("+{offset} is inside an instruction")
        };
        assert_eq!(error.name(), "MidInstruction", "+{offset}");
    }
    assert!(is_jump("opt_add"), "a refused neighbour takes no jump away");

    let next = register(Box::new(
        Kprobe::new().symbol("opt_add").offset(4).pre(count),
    ))
    .unwrap();
    assert_eq!(byte_at(address("opt_add")), 0xcc);
    assert_eq!(
        (marks("opt_add", 0).as_str(), marks("opt_add", 4).as_str()),
        ("", "[OPTIMIZED]")
    );
    opt_add(black_box(1), black_box(2));
    assert_eq!(HITS.load(SeqCst), 2, "both fire");
    kernel::probes::PROBES.disable(&*next).unwrap();
    assert!(is_jump("opt_add"), "a disabled probe is in nobody's way");
    kernel::probes::PROBES.enable(&*next).unwrap();
    assert!(!is_jump("opt_add"));
    opt_add(black_box(1), black_box(2));
    assert_eq!(HITS.load(SeqCst), 4);
    drop(next);
    assert!(is_jump("opt_add"));

    // The first instruction of this one is a byte long.
    let entry = register(Box::new(Kprobe::new().symbol("opt_stack").pre(count))).unwrap();
    assert!(is_jump("opt_stack"));
    let second = Kprobe::new().symbol("opt_stack").offset(1).pre(count);
    let second = register(Box::new(second)).unwrap();
    assert!(!is_jump("opt_stack"));
    opt_stack(black_box(1), black_box(2));
    assert_eq!((entry.hits(), second.hits()), (1, 1));
    drop((second, entry));
    HITS.store(4, SeqCst);

    let post = register(Box::new(Kprobe::new().symbol("opt_add").post(after))).unwrap();
    assert!(!is_jump("opt_add"));
    opt_add(black_box(1), black_box(2));
    assert_eq!(HITS.load(SeqCst), 1005);
    drop(post);
    assert!(is_jump("opt_add"));

    register_jprobe(&JPROBE).unwrap();
    assert!(!is_jump("opt_add"));
    opt_add(black_box(1), black_box(2));
    assert_eq!(HITS.load(SeqCst), 1006);
    unregister_jprobe(&JPROBE).unwrap();
    assert!(is_jump("opt_add"));
    opt_add(black_box(1), black_box(2));
    assert_eq!(HITS.load(SeqCst), 1007);

    let stepped = Kprobe::new()
        .symbol("opt_add")
        .step_method(StepMethod::TrapFlag);
    let stepped = register(Box::new(stepped.pre(count))).unwrap();
    assert!(!is_jump("opt_add"));
    opt_add(black_box(1), black_box(2));
    assert_eq!(HITS.load(SeqCst), 1009);
    drop(stepped);
    assert!(is_jump("opt_add"));
    drop(first);
}

/// A registration that is refused leaves the jump as it was.
#[guest_test]
fn a_batch_that_fails_leaves_the_jump() {
    static POST: Kprobe = Kprobe::new().symbol("opt_add").post(after);
    static WRONG: Kprobe = Kprobe::new().symbol("no_such_function");
    let probe = register(Box::new(Kprobe::new().symbol("opt_add").pre(count))).unwrap();
    assert!(kernel::probes::register_kprobes(&[&POST, &WRONG]).is_err());
    assert!(is_jump("opt_add"));
    assert_eq!(marks("opt_add", 0), "[OPTIMIZED]");
    // The first of them is refused, after the jump has made way for it.
    let Err(error) = register(Box::new(kernel::probes::Jprobe::new().symbol("opt_add"))) else {
        panic!("a jprobe needs a handler");
    };
    assert_eq!(error.name(), "NoHandler");
    assert!(is_jump("opt_add"));
    drop(probe);
}

/// Several probes of one address run newest first from one detour; a disabled one is passed over,
/// and with the last one the jump goes.
#[guest_test]
fn siblings_share_the_detour() {
    static ORDER: AtomicU64 = AtomicU64::new(0);
    fn one(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        ORDER.store(ORDER.load(SeqCst) * 10 + 1, SeqCst);
        PreVerdict::Execute
    }
    fn two(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        ORDER.store(ORDER.load(SeqCst) * 10 + 2, SeqCst);
        PreVerdict::Execute
    }
    let first = register(Box::new(Kprobe::new().symbol("opt_rust").pre(one))).unwrap();
    let second = register(Box::new(Kprobe::new().symbol("opt_rust").pre(two))).unwrap();
    assert_eq!(read(LIST).matches("opt_rust+0x0    [OPTIMIZED]").count(), 2);
    let order = || ORDER.swap(0, SeqCst);
    opt_rust(1, 2);
    assert_eq!(order(), 21);
    PROBES.disable(&*second).unwrap();
    opt_rust(1, 2);
    assert_eq!(order(), 1);
    assert_eq!(
        read(LIST)
            .matches("opt_rust+0x0    [DISABLED][OPTIMIZED]")
            .count(),
        1
    );
    PROBES.disable(&*first).unwrap();
    assert!(!is_jump("opt_rust"));
    assert_eq!(marks("opt_rust", 0), "[DISABLED]");
    assert_eq!(PROBES.detours_in_use(), 0, "its memory is free again");
    PROBES.enable(&*first).unwrap();
    assert!(is_jump("opt_rust"));
    drop(first);
    assert!(!is_jump("opt_rust"));
    drop(second);
}

/// A task that an interrupt has found displaced gives way in front of its next breakpoint. It may
/// do so in front of one that is becoming a jump, but not in front of one that will be under it.
#[guest_test]
fn a_task_gives_way_in_front_of_a_breakpoint_that_becomes_a_jump() {
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
    let start = address("opt_rust");
    assert!(is_jump("opt_rust"));
    // The trap of a breakpoint leaves the ip after it.
    let gives_way = |breakpoint: u64| {
        let regs = PtRegs {
            ip: breakpoint + 1,
            flags: PLAIN,
            ..PtRegs::default()
        };
        without_interrupts(|| {
            // Whatever else waits has its turn.
            schedule();
            assert!(!is_to_preempt_before_hit(&regs), "nobody has asked for it");
            percpu::this().set_need_resched();
            let masked = PtRegs {
                flags: MASKED,
                ..regs
            };
            assert!(!is_to_preempt_before_hit(&masked), "it has interrupts off");
            is_to_preempt_before_hit(&regs)
        })
    };
    let found: Vec<_> = (0..7).map(|offset| gives_way(start + offset)).collect();
    assert_eq!(found, [true, false, false, false, false, true, true]);
    drop(probe);
}

global_asm!(
    r#"
    .macro opt_return name
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    ret
    .cfi_endproc
    .size \name, . - \name
    .endm

    .pushsection .text.opt_at_ends, "ax", @progbits
    .balign 4096, 0xcc
    opt_return opt_before_padding
    .balign 16, 0xcc
    opt_return opt_before_another
    .globl opt_another
    .type opt_another, @function
opt_another:
    .cfi_startproc
    .byte 0x90, 0x90, 0x90, 0x90
    ret
    .cfi_endproc
    .size opt_another, . - opt_another
    .fill 4095 - (. - opt_before_padding), 1, 0xcc
    opt_return opt_before_page
    .fill 16, 1, 0xcc
    .popsection
    "#
);

unsafe extern "C" {
    fn opt_before_padding();
}

#[used]
static AT_ENDS: unsafe extern "C" fn() = opt_before_padding;

/// A jump may reach over what is after a function: over padding that belongs to no function, on the
/// same page. The next page need not be there.
#[guest_test]
fn a_jump_reaches_over_padding_but_over_no_function_and_no_page() {
    let allows = |name| PROBES.allows_jump(address(name));
    assert_eq!(address("opt_before_page") % 4096, 4095);
    assert_eq!(allows("opt_before_padding"), Ok(()));
    let too_short = Err(NoJump::Code(Obstacle::TooShort));
    assert_eq!(allows("opt_before_another"), too_short);
    assert_eq!(allows("opt_before_page"), too_short);
}

/// A jump has 32 bits for its distance: wherever in the pool a detour lies, all of the kernel's
/// text is within 2 GiB of it.
#[guest_test]
fn every_detour_is_in_reach_of_all_text() {
    const REACH: u64 = i32::MAX as u64;
    let text = crate::platform::text::range();
    assert!(
        TEXT_POOL_END.abs_diff(text.start) <= REACH && text.end.abs_diff(TEXT_POOL_START) <= REACH
    );
    let probe = register(Box::new(Kprobe::new().symbol("opt_add").pre(count))).unwrap();
    assert!(is_jump("opt_add"));
    let distance = crate::platform::text::read(address("opt_add") + 1, 4);
    let distance = i32::from_le_bytes(distance.try_into().unwrap());
    let detour = (address("opt_add") + 5).wrapping_add_signed(distance.into());
    assert!(
        (TEXT_POOL_START..TEXT_POOL_END).contains(&detour),
        "{detour:#x}"
    );
    drop(probe);
}

/// Where the code does not allow a jump the breakpoint stays, and works.
#[guest_test]
fn code_that_allows_no_jump_keeps_the_breakpoint() {
    // A fault in it may sleep, with the detour below.
    assert_eq!(
        PROBES.allows_jump(address("copy_user")),
        Err(NoJump::MayFault)
    );
    for name in ["opt_loop", "opt_no_room"] {
        let reason = PROBES.allows_jump(address(name));
        assert!(reason.is_err(), "{name}");
        let probe = register(Box::new(Kprobe::new().symbol(name).pre(count))).unwrap();
        assert_eq!(
            (byte_at(address(name)), marks(name, 0).as_str()),
            (0xcc, ""),
            "{name}: {reason:?}"
        );
        drop(probe);
    }
    let probe = register(Box::new(Kprobe::new().symbol("opt_loop").pre(count))).unwrap();
    assert_eq!(opt_loop(black_box(7), black_box(100)), 7);
    assert_eq!(probe.hits(), 1);
    drop(probe);
    let probe = register(Box::new(
        Kprobe::new().symbol("opt_loop").offset(3).pre(count),
    ))
    .unwrap();
    assert_eq!(
        byte_at(address("opt_loop") + 3),
        0xe9,
        "a branch to the jump itself is welcome"
    );
    assert_eq!(opt_loop(black_box(7), black_box(100)), 7);
    assert_eq!(probe.hits(), 100);
    drop(probe);
}

/// Functions that may fault have no facts, because no jump may be in them. Text of the boot is
/// gone.
#[guest_test]
fn the_facts_that_came_with_the_kernel_are_those_that_decoding_finds() {
    let (mut known, mut all) = (0, 0);
    for symbol in symbols::functions().filter(|symbol| symbol.kind == symbols::SymbolKind::Text) {
        let range = symbol.start..symbol.start + symbol.size;
        let facts = EntryFacts::from_bits(symbol.note);
        let found = if uaccess::may_fault_in(range.clone()) {
            EntryFacts::UNKNOWN
        } else {
            let code = PROBES.original_text(range).unwrap();
            EntryFacts::of(&mut FunctionCode::new(code, symbol.start))
        };
        assert_eq!(facts, found, "{symbol}");
        known += u32::from(facts != EntryFacts::UNKNOWN);
        all += 1;
    }
    assert!(known * 10 > all * 9, "{known} of {all}");
}
