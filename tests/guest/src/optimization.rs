//! Jump optimisation: what a detour does equals what a breakpoint does, and each becomes the other when it must.

use crate::guest_test;
use abi::open;
use alloc::{boxed::Box, format, string::String, sync::Arc, vec, vec::Vec};
use core::{
    arch::naked_asm,
    hint::{self, black_box},
    mem::size_of_val,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp},
    backtrace,
    errno::Errno,
    fs,
    probes::{
        EntryVerdict, FaultVerdict, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict,
        PtRegs, Registered, jprobe, register, register_jprobe, unregister_jprobe,
    },
    symbols,
    sync::SpinLock,
    task::{
        kthread::{spawn_kthread, spawn_kthread_on},
        schedule,
        scheduler::is_preempted_in,
    },
};
use probes::optimize::NoJump;

const LIST: &str = "/sys/kernel/debug/kprobes/list";
const KNOB: &str = "/proc/sys/debug/kprobes-optimization";

fn address(name: &str) -> u64 {
    symbols::lookup_name(name)
        .expect("a function of this file")
        .start
}

/// The byte at `address` as it is now.
fn byte_at(address: u64) -> u8 {
    // SAFETY: kernel text is mapped and readable for ever.
    unsafe { (address as *const u8).read_volatile() }
}

fn is_jump(name: &str) -> bool {
    byte_at(address(name)) == 0xe9
}

/// Turns the knob for as long as it lives.
struct Optimization(bool);

impl Optimization {
    fn set(on: bool) -> Self {
        let before = PROBES.optimization();
        PROBES.set_optimization(on).unwrap();
        Self(before)
    }
}

impl Drop for Optimization {
    fn drop(&mut self) {
        PROBES.set_optimization(self.0).unwrap();
    }
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

/// What the list says behind the name of the probe at `symbol`+`offset`.
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
    opt_load: "mov rax, [rdi]", "mov rdx, [rsi]", "add rax, rdx", "ret";
}

#[used]
static ASSEMBLY_WITH_OPERANDS: extern "C" fn() -> u64 = opt_relative;

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn opt_relative() -> u64 {
    naked_asm!(".cfi_startproc", "nop", "mov rax, [rip + {word}]", "add rax, 1", "ret", ".cfi_endproc", word = sym WORD)
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

/// The general registers but rsp, in the order of [`run`]'s code; then flags, and the function to call.
type State = [u64; 17];

/// Calls the function with the registers and flags of `state`, and stores those it leaves.
///
/// # Safety
/// The function keeps rsp.
#[unsafe(naked)]
unsafe extern "C" fn run(state: &mut State) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdi",
        "mov rax, rdi",
        "push [rax + 128]",
        "push [rax + 128]",
        "push [rax + 120]",
        "mov rbx, [rax + 8]",
        "mov rcx, [rax + 16]",
        "mov rdx, [rax + 24]",
        "mov rsi, [rax + 32]",
        "mov rdi, [rax + 40]",
        "mov rbp, [rax + 48]",
        "mov r8, [rax + 56]",
        "mov r9, [rax + 64]",
        "mov r10, [rax + 72]",
        "mov r11, [rax + 80]",
        "mov r12, [rax + 88]",
        "mov r13, [rax + 96]",
        "mov r14, [rax + 104]",
        "mov r15, [rax + 112]",
        "mov rax, [rax]",
        "popfq",
        "call [rsp]",
        "pushfq",
        "push rax",
        "mov rax, [rsp + 32]",
        "mov [rax + 8], rbx",
        "mov [rax + 16], rcx",
        "mov [rax + 24], rdx",
        "mov [rax + 32], rsi",
        "mov [rax + 40], rdi",
        "mov [rax + 48], rbp",
        "mov [rax + 56], r8",
        "mov [rax + 64], r9",
        "mov [rax + 72], r10",
        "mov [rax + 80], r11",
        "mov [rax + 88], r12",
        "mov [rax + 96], r13",
        "mov [rax + 104], r14",
        "mov [rax + 112], r15",
        "pop [rax]",
        "pop [rax + 120]",
        "cld",
        "sti",
        "add rsp, 16",
        "pop rdi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

/// What the handler of the last hit has seen.
static SEEN: SpinLock<PtRegs> = SpinLock::new(PtRegs::new());
static HITS: AtomicU64 = AtomicU64::new(0);
/// The flags that the handler itself ran with.
static OWN_FLAGS: AtomicU64 = AtomicU64::new(0);

fn see(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let flags = x86_64::registers::rflags::read_raw();
    OWN_FLAGS.store(flags, SeqCst);
    *SEEN.lock() = *regs;
    HITS.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

fn count(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    HITS.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

fn after(_probe: &Kprobe, _regs: &mut PtRegs, _flags: u64) {
    HITS.fetch_add(1000, SeqCst);
}

/// Runs `name` with a probe at `offset` and interrupts on or off; what the handler saw and what the function left.
fn observe(name: &'static str, offset: u32, flags: u64, on: bool) -> (PtRegs, State) {
    let _knob = Optimization::set(on);
    let probe = register(Box::new(Kprobe::new().symbol(name).offset(offset).pre(see))).unwrap();
    let first = byte_at(address(name) + u64::from(offset));
    assert_eq!(first, if on { 0xe9 } else { 0xcc }, "{name}+{offset}");
    let mut state: State = core::array::from_fn(|n| 0x1111_1111_1111_1111 * (n as u64 + 1));
    state[15] = flags;
    state[16] = address(name);
    let (hits, traps) = (HITS.load(SeqCst), breakpoints());
    // SAFETY: all of them keep rsp.
    unsafe { run(&mut state) };
    assert_eq!(HITS.load(SeqCst), hits + 1, "{name}+{offset}");
    assert_eq!(breakpoints(), traps + u64::from(!on), "{name}+{offset}");
    assert_eq!((probe.hits(), probe.nmissed()), (1, 0));
    drop(probe);
    (*SEEN.lock(), state)
}

const IF: u64 = 1 << 9;
const DF: u64 = 1 << 10;

guest_test! {
    /// Registers, flags, stack and results are those of the breakpoint, bit for bit.
    fn a_detour_shows_and_leaves_what_a_breakpoint_does() {
        let cases = [
            ("opt_add", 0), ("opt_add", 4), ("opt_stack", 0), ("opt_stack", 1), ("opt_carry", 0), ("opt_carry", 3),
            ("opt_carry", 6), ("opt_flags", 0), ("opt_flags", 1), ("opt_backwards", 0), ("opt_backwards", 1), ("opt_relative", 0),
            ("opt_relative", 1), ("opt_tail", 0), ("opt_short", 0), ("opt_short", 2),
        ];
        for (name, offset) in cases {
            // CF, PF, AF, ZF, SF, OF set or clear, interrupts on or off.
            for flags in [0x2, 0x8d7, 0x2 | IF, 0x8d7 | IF] {
                let with_trap = observe(name, offset, flags, false);
                let own = OWN_FLAGS.load(SeqCst);
                let without = observe(name, offset, flags, true);
                assert_eq!(without, with_trap, "{name}+{offset} with flags {flags:#x}");
                assert_eq!(own & (IF | DF), 0);
                assert_eq!(OWN_FLAGS.load(SeqCst) & (IF | DF), flags & IF, "as the code had them, DF clear");
                let regs = without.0;
                assert_eq!(regs.ip, address(name) + u64::from(offset) + 1);
                assert_eq!((regs.orig_ax, regs.user_mode()), (u64::MAX, false));
            }
        }
        assert_eq!(PROBES.detours_in_use(), 0);
    }

    /// What a handler changes in registers and flags, the code gets.
    fn changes_of_a_handler_are_taken_over() {
        fn change(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
            regs.di = 100;
            regs.si = 20;
            regs.flags |= 1;
            PreVerdict::Execute
        }
        let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(change))).unwrap();
        assert!(is_jump("opt_rust"));
        assert_eq!(opt_rust(black_box(1), black_box(2)), 320);
        drop(probe);
        let probe = register(Box::new(Kprobe::new().symbol("opt_carry").pre(change))).unwrap();
        assert!(is_jump("opt_carry"));
        let mut state = [0; 17];
        (state[15], state[16]) = (2, address("opt_carry"));
        // SAFETY: keeps rsp.
        unsafe { run(&mut state) };
        assert_eq!(state[0], 1, "0 + 0 and the carry that the handler has set");
        drop(probe);
        assert_eq!(opt_rust(black_box(1), black_box(2)), 5);
    }

    /// A jump instead of a breakpoint: no trap, the mark in the list, and the original bytes for who asks for them.
    fn an_optimized_probe_traps_never_and_says_so() {
        let start = address("opt_rust");
        let original: Vec<u8> = (start..start + 8).map(byte_at).collect();
        HITS.store(0, SeqCst);
        let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
        assert_eq!(marks("opt_rust", 0), "[OPTIMIZED]");
        assert!(is_jump("opt_rust"));
        assert_eq!(PROBES.original_text(start..start + 8).unwrap(), original);
        assert_eq!(PROBES.original_text(start + 2..start + 8).unwrap(), original[2..]);
        let traps = breakpoints();
        for n in 0..1000 {
            assert_eq!(opt_rust(n, black_box(1)), n * 3 + 1);
        }
        assert_eq!((HITS.load(SeqCst), probe.hits(), probe.nmissed()), (1000, 1000, 0));
        assert_eq!(breakpoints(), traps);
        drop(probe);
        assert_eq!((start..start + 8).map(byte_at).collect::<Vec<_>>(), original);
        assert_eq!(PROBES.detours_in_use(), 0);
    }

    /// The knob as a file: 0 brings every breakpoint back before the write returns, 1 every jump; anything else is refused.
    fn the_knob_turns_all_jumps_into_breakpoints_and_back() {
        let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
        assert_eq!(read(KNOB), "1\n");
        write(KNOB, "0\n").unwrap();
        assert_eq!((read(KNOB).as_str(), byte_at(address("opt_rust"))), ("0\n", 0xcc));
        assert_eq!((marks("opt_rust", 0).as_str(), PROBES.detours_in_use()), ("", 0));
        for wrong in ["2", "-1", "", "x", "01x"] {
            assert_eq!(write(KNOB, wrong), Err(Errno::EINVAL), "{wrong}");
        }
        assert_eq!(read(KNOB), "0\n");
        write(KNOB, "1").unwrap();
        assert!(is_jump("opt_rust"));
        assert_eq!(marks("opt_rust", 0), "[OPTIMIZED]");
        PROBES.set_enabled(false).unwrap();
        assert!(!matches!(byte_at(address("opt_rust")), 0xcc | 0xe9), "the original is back");
        PROBES.set_enabled(true).unwrap();
        assert!(is_jump("opt_rust"));
        drop(probe);
    }

    /// A probe under another's jump, a post handler and a jprobe each take the jump away, and give it back when they go.
    fn neighbours_post_handlers_and_jprobes_bring_the_breakpoint_back() {
        jprobe! {
            fn mirror(_a: u64, _b: u64) {}
        }
        static JPROBE: kernel::probes::Jprobe = kernel::probes::Jprobe::new().symbol("opt_add").entry(mirror);
        let first = register(Box::new(Kprobe::new().symbol("opt_add").pre(count))).unwrap();
        assert!(is_jump("opt_add"));
        HITS.store(0, SeqCst);

        let next = register(Box::new(Kprobe::new().symbol("opt_add").offset(4).pre(count))).unwrap();
        assert_eq!(byte_at(address("opt_add")), 0xcc);
        assert_eq!((marks("opt_add", 0).as_str(), marks("opt_add", 4).as_str()), ("", "[OPTIMIZED]"));
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
        drop(first);
    }

    /// A registration that is refused leaves the jump as it was.
    fn a_batch_that_fails_leaves_the_jump() {
        static POST: Kprobe = Kprobe::new().symbol("opt_add").post(after);
        static WRONG: Kprobe = Kprobe::new().symbol("no_such_function");
        let probe = register(Box::new(Kprobe::new().symbol("opt_add").pre(count))).unwrap();
        assert!(kernel::probes::register_kprobes(&[&POST, &WRONG]).is_err());
        assert!(is_jump("opt_add"));
        assert_eq!(marks("opt_add", 0), "[OPTIMIZED]");
        drop(probe);
    }

    /// Several probes of one address run newest first from one detour; a disabled one is passed over, and with the last one the jump
    /// goes.
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
        assert_eq!(read(LIST).matches("opt_rust+0x0    [DISABLED][OPTIMIZED]").count(), 1);
        PROBES.disable(&*first).unwrap();
        assert!(!is_jump("opt_rust"));
        assert_eq!(marks("opt_rust", 0), "[DISABLED]");
        PROBES.enable(&*first).unwrap();
        assert!(is_jump("opt_rust"));
        drop(first);
        assert!(!is_jump("opt_rust"));
        drop(second);
    }

    /// Where the code does not allow a jump the breakpoint stays, and works.
    fn code_that_allows_no_jump_keeps_the_breakpoint() {
        // A fault in it may sleep, with the detour below.
        assert_eq!(PROBES.allows_jump(address("copy_user")), Err(NoJump::MayFault));
        for (name, offset) in [("opt_loop", 0), ("opt_no_room", 0), ("opt_fill", 2)] {
            let probe = register(Box::new(Kprobe::new().symbol(name).offset(offset).pre(count)));
            let Ok(probe) = probe else { continue };
            assert_eq!(byte_at(address(name) + u64::from(offset)), 0xcc, "{name}");
            drop(probe);
        }
        let probe = register(Box::new(Kprobe::new().symbol("opt_loop").pre(count))).unwrap();
        assert_eq!(opt_loop(black_box(7), black_box(100)), 7);
        assert_eq!(probe.hits(), 1);
        drop(probe);
        let probe = register(Box::new(Kprobe::new().symbol("opt_loop").offset(3).pre(count))).unwrap();
        assert_eq!(byte_at(address("opt_loop") + 3), 0xe9, "a branch to the jump itself is welcome");
        assert_eq!(opt_loop(black_box(7), black_box(100)), 7);
        assert_eq!(probe.hits(), 100);
        drop(probe);
    }

    /// A handler that calls the probed function: the inner call runs without handlers and counts as missed.
    fn a_hit_in_a_handler_is_missed_and_counted() {
        fn again(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
            assert_eq!(opt_rust(black_box(4), black_box(2)), 14);
            PreVerdict::Execute
        }
        let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(again))).unwrap();
        assert!(is_jump("opt_rust"));
        assert_eq!(opt_rust(black_box(1), black_box(2)), 5);
        assert_eq!((probe.hits(), probe.nmissed()), (1, 1));
        drop(probe);
    }

    /// A pre handler that has set the ip: to the caller, to the next instruction, which lies under the jump, and to another function.
    fn a_handler_may_send_the_code_elsewhere() {
        fn to_the_caller(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
            // SAFETY: at a function's entry.
            regs.ip = unsafe { *(regs.sp as *const u64) };
            regs.sp += 8;
            regs.ax = 77;
            PreVerdict::Resume
        }
        fn over_the_first(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
            regs.ax = 1000;
            regs.dx = 1;
            // lea rax, [rdi + rsi]
            regs.ip += 3;
            PreVerdict::Resume
        }
        fn to_another(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
            regs.ip = opt_rust as *const () as u64;
            PreVerdict::Resume
        }
        let cases: [(fn() -> Kprobe, u64); 3] = [
            (|| Kprobe::new().pre(to_the_caller), 77),
            (|| Kprobe::new().pre(over_the_first), 1001),
            (|| Kprobe::new().pre(to_another), 11),
        ];
        for (probe, expected) in cases {
            for on in [false, true] {
                let _knob = Optimization::set(on);
                let probe = register(Box::new(probe().symbol("opt_add"))).unwrap();
                assert_eq!(is_jump("opt_add"), on);
                assert_eq!(opt_add(black_box(3), black_box(2)), expected);
                assert!(!percpu::this().probes.is_busy() && percpu::preemptible());
                drop(probe);
            }
        }
    }

    /// A return probe on an optimised entry: no trap at all, each return seen, with and without an entry handler, recursion included.
    fn return_probes_need_no_trap() {
        static SUM: AtomicU64 = AtomicU64::new(0);
        fn enter(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
            **call = regs.di;
            if regs.di == 3 { EntryVerdict::Decline } else { EntryVerdict::Track }
        }
        fn leave(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
            assert_eq!(regs.return_value(), **call);
            SUM.fetch_add(**call, SeqCst);
        }
        fn plain(_: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
            SUM.fetch_add(regs.return_value(), SeqCst);
        }
        let with_entry = register(Box::new(
            Kretprobe::<u64>::new().symbol("opt_recursion").maxactive(16).entry(enter).handler(leave),
        )).unwrap();
        assert!(is_jump("opt_recursion"));
        let traps = breakpoints();
        SUM.store(0, SeqCst);
        assert_eq!(opt_recursion(8), 8);
        assert_eq!((SUM.load(SeqCst), with_entry.hits()), (36 - 3, 8));
        drop(with_entry);
        let without = register(Box::new(Kretprobe::<u64>::new().symbol("opt_recursion").maxactive(16).handler(plain))).unwrap();
        assert!(is_jump("opt_recursion"));
        SUM.store(0, SeqCst);
        assert_eq!(opt_recursion(8), 8);
        assert_eq!((SUM.load(SeqCst), without.hits(), without.nmissed()), (36, 9, 0));
        assert_eq!(breakpoints(), traps);
        drop(without);
    }

    /// A fault in a displaced instruction is one at the original's address, for the probe's own fault handler and for that of a probe
    /// whose handler has run into it.
    fn faults_in_displaced_instructions_are_told_as_the_originals() {
        static GOOD: u64 = 40;
        static FAULT_IP: AtomicU64 = AtomicU64::new(0);
        fn repair(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
            FAULT_IP.store(regs.ip, SeqCst);
            assert_eq!(vector, 14);
            let good = &raw const GOOD as u64;
            for operand in [&mut regs.di, &mut regs.si] {
                if *operand == 0 {
                    *operand = good;
                }
            }
            FaultVerdict::Handled
        }
        fn run_into(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
            assert_eq!(opt_load(&raw const GOOD as u64, black_box(0)), 80);
            PreVerdict::Execute
        }
        let probe = register(Box::new(Kprobe::new().symbol("opt_load").pre(count).fault(repair))).unwrap();
        assert!(is_jump("opt_load"));
        assert_eq!(opt_load(black_box(0), &raw const GOOD as u64), 80);
        assert_eq!(FAULT_IP.load(SeqCst), address("opt_load"));
        assert_eq!(probe.hits(), 2, "once more, as it resumed there");
        let other = register(Box::new(Kprobe::new().symbol("opt_rust").pre(run_into).fault(repair))).unwrap();
        assert_eq!(opt_rust(1, 2), 5);
        assert_eq!(FAULT_IP.load(SeqCst), address("opt_load") + 3, "the second, under the jump");
        drop(other);
        drop(probe);
    }

    /// From a handler in a detour the callers are found, by the registers and by the handler's own stack.
    fn a_backtrace_leads_through_a_detour() {
        static NAMES: SpinLock<[[u64; 16]; 2]> = SpinLock::new([[0; 16]; 2]);
        fn note(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
            let mut names = NAMES.lock();
            for (chain, walk) in names.iter_mut().zip([backtrace::walk(regs), backtrace::walk_current()]) {
                *chain = [0; 16];
                for (place, frame) in chain.iter_mut().zip(walk) {
                    *place = symbols::lookup_addr(frame.code_address()).map_or(1, |symbol| symbol.start);
                }
            }
            PreVerdict::Execute
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn opt_caller(which: u64) -> u64 {
            let value = if which == 0 { opt_add(black_box(1), black_box(2)) } else { opt_rust(black_box(1), black_box(2)) };
            black_box(value + 1)
        }
        for (name, which, offset) in [("opt_add", 0, 0), ("opt_add", 0, 4), ("opt_rust", 1, 0)] {
            let probe = register(Box::new(Kprobe::new().symbol(name).offset(offset).pre(note))).unwrap();
            assert_eq!(byte_at(address(name) + u64::from(offset)), 0xe9);
            opt_caller(black_box(which));
            drop(probe);
            let names = *NAMES.lock();
            let name_of = |at: &u64| symbols::lookup_addr(*at).map_or("?", |symbol| symbol.name);
            let callers: Vec<_> = names[0].iter().map(name_of).collect();
            assert_eq!(callers[..2], [name, "opt_caller"], "{name}+{offset} by its registers");
            let through = names[1].windows(2).any(|pair| pair == [address(name), address("opt_caller")]);
            assert!(through, "{name}+{offset} through the detour: {:x?}", names[1]);
        }
    }

    /// A probe is being unregistered while its handler runs from a detour.
    fn unregistering_waits_for_a_handler_in_a_detour_under_interrupts() {
        while_a_handler_lingers(drop);
    }

    /// Likewise when the jump goes and the probe stays.
    fn turning_the_knob_waits_for_a_handler_in_a_detour_under_interrupts() {
        while_a_handler_lingers(|probe| {
            PROBES.set_optimization(false).unwrap();
            REMOVED.store(true, SeqCst);
            PROBES.set_optimization(true).unwrap();
            drop(probe);
        });
    }

    /// Probes come and go while tasks on all CPUs, more of them than CPUs, execute what the jump replaces, stay in the middle of
    /// it for long, and are preempted there.
    #[smp(4)]
    #[timeout(240)]
    fn jumps_come_and_go_under_fire() {
        const BYTES: usize = 40_000;
        let stop = Arc::new(AtomicBool::new(false));
        let calls = Arc::new([const { AtomicU64::new(0) }; 3]);
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let (stop, calls) = (stop.clone(), calls.clone());
                spawn_kthread("fires", move || {
                    let mut buffer = vec![0u8; BYTES];
                    while !stop.load(Relaxed) {
                        if n % 2 == 0 {
                            let filled = (n as u8).wrapping_add(calls[0].load(Relaxed) as u8);
                            let at = buffer.as_mut_ptr();
                            fill(at, filled, size_of_val(&*buffer));
                            assert!(buffer.iter().all(|byte| *byte == filled));
                        }
                        for i in 0..200 {
                            assert_eq!(opt_rust(i, black_box(1)), i * 3 + 1);
                            assert_eq!(opt_recursion(black_box(i % 3)), i % 3);
                        }
                        calls[n % 3].fetch_add(1, Relaxed);
                    }
                })
                .unwrap()
            })
            .collect();
        for round in 0..10 {
            HITS.store(0, SeqCst);
            let in_fill = register(Box::new(Kprobe::new().symbol("opt_fill").pre(count))).unwrap();
            let in_rust = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
            let on_return = register(Box::new(
                Kretprobe::<u64>::new().symbol("opt_recursion").maxactive(64).handler(|_, _| {}),
            )).unwrap();
            assert!(is_jump("opt_fill") && is_jump("opt_rust") && is_jump("opt_recursion"));
            let traps = breakpoints();
            let hits = HITS.load(SeqCst);
            while HITS.load(SeqCst) < hits + 300 {
                hint::spin_loop();
            }
            assert_eq!(breakpoints(), traps, "all three are jumps");
            if round % 3 == 0 {
                let neighbour = register(Box::new(Kprobe::new().symbol("opt_fill").offset(1).pre(count))).unwrap();
                assert!(!is_jump("opt_fill"));
                drop(neighbour);
                assert!(is_jump("opt_fill"));
            }
            drop((in_fill, in_rust, on_return));
            assert!(!is_jump("opt_fill") && !is_jump("opt_rust") && !is_jump("opt_recursion"));
        }
        stop.store(true, SeqCst);
        for thread in threads {
            thread.wait_released();
        }
        while PROBES.reap().unwrap() > 0 {
            kernel::task::schedule();
        }
        assert_eq!(PROBES.detours_in_use(), 0);
    }

    /// A task that was preempted in the middle of what the jump will cover: the breakpoint is there at once, the jump only when that
    /// task has moved on.
    fn no_jump_is_written_over_a_preempted_task() {
        static GO_ON: AtomicBool = AtomicBool::new(false);
        /// Where ticks have found calls of the function.
        static IN_DETOUR: AtomicU64 = AtomicU64::new(0);
        static UNDER_JUMP: AtomicU64 = AtomicU64::new(0);
        fn tick(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
            // SAFETY: the first argument of the probed function, the frame of the interrupt.
            let ip = unsafe { &*(regs.di as *const PtRegs) }.ip;
            let start = opt_fill as *const () as u64;
            UNDER_JUMP.fetch_add(u64::from((start + 1..start + 5).contains(&ip)), SeqCst);
            IN_DETOUR.fetch_add(u64::from(ip != start && PROBES.original_ip(ip) == start), SeqCst);
            PreVerdict::Execute
        }
        let ticks = register(Box::new(Kprobe::new().symbol("timer_interrupt").pre(tick))).unwrap();
        let covered = |ip: u64| (address("opt_fill") + 1..address("opt_fill") + 5).contains(&ip);
        let stop = Arc::new(AtomicBool::new(false));
        let filler = {
            let stop = stop.clone();
            spawn_kthread_on(1 << 1, "fills", move || {
                let mut buffer = vec![0u8; 1 << 20];
                while !stop.load(SeqCst) {
                    fill(buffer.as_mut_ptr(), 7, buffer.len());
                }
            })
            .unwrap()
        };
        // Keeps CPU 1, once it has found the other one preempted in the right place.
        let keeper = spawn_kthread_on(1 << 1, "keeps", move || {
            loop {
                percpu::preempt_disable();
                if is_preempted_in(&covered) {
                    break;
                }
                percpu::preempt_enable();
                schedule();
            }
            IS_PARKED.store(true, SeqCst);
            while !GO_ON.load(SeqCst) {
                hint::spin_loop();
            }
            percpu::preempt_enable();
        })
        .unwrap();
        static IS_PARKED: AtomicBool = AtomicBool::new(false);
        while !IS_PARKED.load(SeqCst) {
            schedule();
        }
        static PROBE: Kprobe = Kprobe::new().symbol("opt_fill").pre(count);
        let registers = spawn_kthread_on(1, "registers", || kernel::probes::register_kprobe(&PROBE).unwrap()).unwrap();
        while byte_at(address("opt_fill")) != 0xcc {
            schedule();
        }
        // Calls in between come by the breakpoint and go by the detour. Each counts once, and does what it should.
        HITS.store(0, SeqCst);
        let traps = breakpoints();
        for call in 1..=100 {
            let mut bytes = [0_u8; 4];
            fill(bytes.as_mut_ptr(), call as u8, 4);
            assert_eq!((bytes, HITS.load(SeqCst)), ([call as u8; 4], call));
        }
        // From when the breakpoint leads to the detour on, calls stay there: one that came back from a slot would be under the jump.
        let mut bytes = vec![0_u8; 1 << 20];
        IN_DETOUR.store(0, SeqCst);
        let mut calls = 100;
        while IN_DETOUR.load(SeqCst) < 3 {
            fill(bytes.as_mut_ptr(), 1, bytes.len());
            calls += 1;
            assert_eq!(byte_at(address("opt_fill")), 0xcc);
            assert!(IN_DETOUR.load(SeqCst) > 0 || calls < 1_000, "no tick has found a call in the detour");
        }
        UNDER_JUMP.store(0, SeqCst);
        while IN_DETOUR.load(SeqCst) < 10 {
            fill(bytes.as_mut_ptr(), 2, bytes.len());
            calls += 1;
        }
        assert_eq!(UNDER_JUMP.load(SeqCst), 0, "calls executed what the jump will replace");
        assert_eq!((PROBE.hits(), breakpoints() - traps), (calls, calls));
        GO_ON.store(true, SeqCst);
        registers.wait_released();
        assert!(is_jump("opt_fill"));
        stop.store(true, SeqCst);
        filler.wait_released();
        keeper.wait_released();
        drop(ticks);
        kernel::probes::unregister_kprobe(&PROBE).unwrap();
    }

    /// However the jump comes and goes meanwhile, each call is counted once, also those that hit the breakpoint in between.
    fn each_call_counts_once_while_the_knob_turns() {
        let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let calls = Arc::new(AtomicU64::new(0));
        let caller = {
            let (stop, calls) = (stop.clone(), calls.clone());
            spawn_kthread_on(1 << 1, "calls", move || {
                while !stop.load(SeqCst) {
                    assert_eq!(opt_rust(black_box(5), black_box(1)), 16);
                    calls.fetch_add(1, SeqCst);
                }
            })
            .unwrap()
        };
        for _ in 0..30 {
            for on in [false, true] {
                PROBES.set_optimization(on).unwrap();
                let before = calls.load(SeqCst);
                while calls.load(SeqCst) < before + 10 {
                    hint::spin_loop();
                }
            }
        }
        stop.store(true, SeqCst);
        caller.wait_released();
        assert_eq!((probe.hits(), probe.nmissed()), (calls.load(SeqCst), 0));
        drop(probe);
    }
}

/// Fills memory by the one instruction of `opt_fill`.
fn fill(at: *mut u8, byte: u8, len: usize) {
    // SAFETY: `opt_fill` writes `len` bytes from `at` on, the caller's.
    unsafe {
        core::arch::asm!(
            "call opt_fill",
            inout("rdi") at => _,
            inout("rcx") len => _,
            inout("al") byte => _,
            clobber_abi("C"),
        );
    }
}

static ENTERED: AtomicBool = AtomicBool::new(false);
static REMOVING: AtomicBool = AtomicBool::new(false);
static REMOVED: AtomicBool = AtomicBool::new(false);
static REMOVED_TOO_SOON: AtomicBool = AtomicBool::new(false);
static PROBE_OF_TICK: Kprobe = Kprobe::new().symbol("timer_interrupt").pre(count);

fn linger(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    if regs.di != 99 {
        return PreVerdict::Execute;
    }
    ENTERED.store(true, SeqCst);
    while !REMOVING.load(SeqCst) {
        hint::spin_loop();
    }
    // Interrupts come here: the tick's own probe is missed each time.
    let ticks = PROBE_OF_TICK.nmissed();
    while PROBE_OF_TICK.nmissed() < ticks + 5 {
        hint::spin_loop();
    }
    REMOVED_TOO_SOON.store(REMOVED.load(SeqCst), SeqCst);
    PreVerdict::Execute
}

/// Has `remove` take away the jump of a probe whose handler runs from the detour, with interrupts on top of it: that waits for the
/// handler, and the detour is still there for the way back.
fn while_a_handler_lingers(remove: impl FnOnce(Registered<Box<Kprobe>>)) {
    for flag in [&ENTERED, &REMOVING, &REMOVED, &REMOVED_TOO_SOON] {
        flag.store(false, SeqCst);
    }
    kernel::probes::register_kprobe(&PROBE_OF_TICK).unwrap();
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(linger))).unwrap();
    assert!(is_jump("opt_rust"));
    let caller = spawn_kthread_on(1 << 1, "lingers", || {
        assert_eq!(opt_rust(black_box(99), black_box(1)), 298)
    })
    .unwrap();
    while !ENTERED.load(SeqCst) {
        hint::spin_loop();
    }
    REMOVING.store(true, SeqCst);
    remove(probe);
    REMOVED.store(true, SeqCst);
    caller.wait_released();
    assert!(!REMOVED_TOO_SOON.load(SeqCst));
    kernel::probes::unregister_kprobe(&PROBE_OF_TICK).unwrap();
    assert_eq!(PROBES.detours_in_use(), 0);
}
