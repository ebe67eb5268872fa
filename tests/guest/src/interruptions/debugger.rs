//! Somebody steps through probed code with RFLAGS.TF set: what he is told is what he is told
//! without probes.
//!
//! The exception handler of the kernel stands for a debugger: it notes the registers that each #DB
//! comes with and goes on. Handlers note how many stops there were before them, so it is known
//! which stop they have kept waiting.

use crate::{
    platform::suite::flags::TF,
    tools::jumps::{Optimization, byte_at},
};
use alloc::{boxed::Box, vec::Vec};
use core::{
    arch::naked_asm,
    cell::UnsafeCell,
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{
        debug::clear_single_step,
        idt::vector,
        percpu,
        traps::{self, Exception},
    },
    probes::{
        EntryVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs,
        ReturnMethod, StepMethod, Touched, WATCHPOINTS, WatchAccess, Watchpoint, jprobe, register,
    },
    symbols,
};
use x86_64::registers::debug::Dr6;

/// Jumps fit at +0, over two instructions, and at +7, over three.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn debugged(a: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, rdi",         // +0
        "add rax, 1",           // +3
        "push rax",             // +7
        "pop rdx",              // +8
        "lea rax, [rax + rdx]", // +9
        "call debugged_callee", // +13
        "pushfq",               // +18
        "popfq",                // +19
        "ret",                  // +20
        ".cfi_endproc",
    )
}

/// Each of its instructions can be probed.
const OFFSETS: [u32; 9] = [0, 3, 7, 8, 9, 13, 18, 19, 20];

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn debugged_callee() {
    naked_asm!(".cfi_startproc", "neg rdx", "ret", ".cfi_endproc")
}

/// Calls `debugged(a)` and has it stepped through, from flags, rax and rdx that are always the
/// same.
///
/// ```text
///   S       return address
///   S-0x08  padding          <- rsp at the call: 16-aligned
///   S-0x10  flags, before the call and after it
/// ```
#[unsafe(naked)]
extern "C" fn step_through(a: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "lea rsp, [rsp - 8]",
        ".cfi_adjust_cfa_offset 8",
        "xor eax, eax",
        "xor edx, edx",
        "pushfq",
        "or qword ptr [rsp], {tf}",
        "popfq",
        "call debugged",
        "pushfq",
        "and qword ptr [rsp], ~{tf}",
        "popfq",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        tf = const TF,
    )
}

/// The debugger's view of a stop.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stop {
    ip: u64,
    sp: u64,
    flags: u64,
    ax: u64,
    dx: u64,
}

/// All that it was told.
struct Stops(UnsafeCell<[Stop; 64]>);

// SAFETY: written by the one task that is stepped, in its exceptions, and read by it afterwards.
unsafe impl Sync for Stops {}

static STOPS: Stops = Stops(UnsafeCell::new(
    [Stop {
        ip: 0,
        sp: 0,
        flags: 0,
        ax: 0,
        dx: 0,
    }; 64],
));
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many stops there were before each handler; its number, times 100, is added.
static HANDLERS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static HANDLER_COUNT: AtomicUsize = AtomicUsize::new(0);
/// At the first stop with this ip the debugger has the code go on at [`GO_TO`].
static GO_FROM: AtomicU64 = AtomicU64::new(0);
static GO_TO: AtomicU64 = AtomicU64::new(0);

fn note_stop(regs: &mut PtRegs, exception: &Exception) -> bool {
    let number = COUNT.fetch_add(1, SeqCst);
    if exception.vector != vector::DEBUG || number >= 64 || percpu::in_probe_handler() {
        return false;
    }
    clear_single_step(Dr6::read_raw());
    // SAFETY: see `Stops`.
    unsafe {
        (*STOPS.0.get())[number] = Stop {
            ip: regs.ip,
            sp: regs.sp,
            flags: regs.flags,
            ax: regs.ax,
            dx: regs.dx,
        }
    };
    if regs.ip == GO_FROM.load(Relaxed) {
        GO_FROM.store(0, Relaxed);
        regs.ip = GO_TO.load(Relaxed);
    }
    true
}

fn note_handler<const NUMBER: u64>() {
    let at = HANDLER_COUNT.fetch_add(1, SeqCst);
    HANDLERS[at].store(100 * NUMBER + COUNT.load(SeqCst) as u64, Relaxed);
}

/// Reports name the probe of a handler, also where a step has led to the hit.
fn pre(probe: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    let running = PROBES.running_probe();
    assert!(running.is_some_and(|(running, _)| core::ptr::eq(running, probe)));
    note_handler::<1>();
    PreVerdict::Execute
}

fn post(_: &Kprobe, _: &mut PtRegs, _: u64) {
    note_handler::<2>();
}

fn entry(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
    note_handler::<3>();
    EntryVerdict::Track
}

fn returned(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
    note_handler::<4>();
}

jprobe! {
    fn mirror_of_debugged(_a: u64) {
        note_handler::<5>();
    }
}

/// The outcome of a call of [`debugged`].
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    result: u64,
    /// With `sp` counted from the first one's.
    stops: Vec<Stop>,
}

/// Steps through a call. Returns what was told, and what the handlers have noted.
#[inline(never)]
fn step() -> (Seen, Vec<u64>) {
    stepping(|| step_through(20))
}

/// Calls `step_through`, which steps through a call. Returns as [`step`].
fn stepping(step_through: impl FnOnce() -> u64) -> (Seen, Vec<u64>) {
    COUNT.store(0, SeqCst);
    HANDLER_COUNT.store(0, SeqCst);
    traps::set_exception_handler(Some(note_stop));
    let result = step_through();
    traps::set_exception_handler(None);
    // SAFETY: see `Stops`.
    let mut stops = unsafe { (&(*STOPS.0.get()))[..COUNT.load(SeqCst)].to_vec() };
    let sp = stops[0].sp;
    stops
        .iter_mut()
        .for_each(|stop| stop.sp = stop.sp.wrapping_sub(sp));
    let handlers = HANDLERS[..HANDLER_COUNT.load(SeqCst)].iter();
    let handlers = handlers.map(|noted| noted.load(Relaxed)).collect();
    (Seen { result, stops }, handlers)
}

/// The first address of [`debugged`]; a pointer to it might be one to a jump there.
fn start() -> u64 {
    symbols::lookup_name("debugged").unwrap().start
}

impl Seen {
    /// How many stops there were before that at `ip`, with it.
    fn up_to(&self, ip: u64) -> u64 {
        let before = self.stops.iter().position(|stop| stop.ip == ip);
        before.expect("a stop there") as u64 + 1
    }

    /// How many there were before the call was back.
    fn before_return(&self) -> u64 {
        self.up_to(start() + 20)
    }
}

/// The outcome without any probe.
fn plain() -> Seen {
    let (seen, handlers) = step();
    assert_eq!((seen.result, handlers), (42, Vec::new()));
    let offsets: Vec<_> = seen
        .stops
        .iter()
        .map(|stop| stop.ip.wrapping_sub(start()))
        .filter(|offset| *offset <= 20)
        .collect();
    assert_eq!(offsets, [0, 3, 7, 8, 9, 13, 18, 19, 20]);
    // Those in the callee, and in the caller: at the return, and after each of three instructions.
    assert_eq!(seen.stops.len(), 9 + 2 + 4);
    seen
}

fn is_jump(address: u64) -> bool {
    byte_at(address) == 0xe9
}

fn kprobe(offset: u32) -> Kprobe {
    Kprobe::new().symbol("debugged").offset(offset).pre(pre)
}

/// The trap after an instruction with a post handler comes after it, not after the next one, and
/// when the handler has run.
#[guest_test]
fn a_post_handler_runs_before_the_trap_of_its_instruction() {
    let plain = plain();
    for offset in OFFSETS {
        let probe = register(Box::new(kprobe(offset).post(post))).unwrap();
        let (seen, handlers) = step();
        assert_eq!(seen, plain, "a probe at +{offset}");
        let before = plain.up_to(start() + u64::from(offset));
        assert_eq!(
            handlers,
            [100 + before, 200 + before],
            "a probe at +{offset}"
        );
        drop(probe);
    }
    let probes: Vec<_> = OFFSETS
        .iter()
        .map(|offset| register(Box::new(kprobe(*offset).post(post))).unwrap())
        .collect();
    let (seen, handlers) = step();
    assert_eq!((seen, handlers.len()), (plain, 2 * OFFSETS.len()));
    drop(probes);
}

/// Watched instructions hit once each, before the instruction, and the debugger is told what it is
/// told without; also where a probe is at the instruction.
#[guest_test]
fn watched_instructions_are_stepped_as_others() {
    fn note(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        note_handler::<6>();
    }
    let plain = plain();
    for offset in OFFSETS {
        let at = Watchpoint::new().symbol("debugged").offset(offset);
        let at = at.access(WatchAccess::Execute).handler(note);
        let watch = WATCHPOINTS.register_owned(Box::new(at)).unwrap();
        let (seen, handlers) = step();
        let before = plain.up_to(start() + u64::from(offset));
        assert_eq!(seen, plain, "a watchpoint at +{offset}");
        assert_eq!(handlers, [600 + before], "a watchpoint at +{offset}");
        let probe = register(Box::new(kprobe(offset))).unwrap();
        let (seen, handlers) = step();
        assert_eq!(seen, plain, "both at +{offset}");
        assert_eq!(handlers, [600 + before, 100 + before], "both at +{offset}");
        drop((watch, probe));
    }
}

/// A jump and its detour are not stepped through: told is each displaced instruction, at its own
/// address.
#[guest_test]
fn a_jump_shows_the_instructions_that_it_displaces() {
    let plain = plain();
    let _knob = Optimization::set(true);
    for offset in [0, 7] {
        let probe = register(Box::new(kprobe(offset))).unwrap();
        let address = start() + u64::from(offset);
        assert!(is_jump(address));
        let (seen, handlers) = step();
        assert_eq!(seen, plain, "a jump at +{offset}");
        assert_eq!(handlers, [100 + plain.up_to(address)]);
        assert_eq!((probe.hits(), probe.nmissed()), (1, 0));
        drop(probe);
    }
}

/// A jump fits at +0, over both instructions.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn debugged_string(at: *mut u8) -> *mut u8 {
    naked_asm!(
        ".cfi_startproc",
        "rep stosb",      // +0
        "lea rax, [rdi]", // +2
        "ret",            // +5
        ".cfi_endproc",
    )
}

/// Has `debugged_string` stepped through, which stores three bytes.
#[unsafe(naked)]
extern "C" fn step_through_string(at: *mut u8) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "lea rsp, [rsp - 8]",
        ".cfi_adjust_cfa_offset 8",
        "xor eax, eax",
        "xor edx, edx",
        "mov ecx, 3",
        "pushfq",
        "or qword ptr [rsp], {tf}",
        "popfq",
        "call debugged_string",
        "pushfq",
        "and qword ptr [rsp], ~{tf}",
        "popfq",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        tf = const TF,
    )
}

/// A repeated string instruction stops a debugger after each round. Where it is displaced, it is
/// told of once, as with a breakpoint.
#[guest_test]
fn a_jump_shows_a_displaced_string_instruction_once() {
    let mut bytes = [1; 4];
    let mut string = || {
        bytes = [1; 4];
        let at = bytes.as_mut_ptr();
        let (seen, handlers) = stepping(|| step_through_string(at));
        assert_eq!(bytes, [0, 0, 0, 1]);
        (seen, handlers)
    };
    let (mut plain, _) = string();
    plain.stops.dedup_by_key(|stop| stop.ip);
    for optimized in [false, true] {
        let _knob = Optimization::set(optimized);
        let probe = Kprobe::new().symbol("debugged_string").pre(pre);
        let probe = register(Box::new(probe)).unwrap();
        let at = probe.addr();
        assert_eq!(is_jump(at), optimized);
        assert_eq!(
            string(),
            (plain.clone(), Vec::from([100 + plain.up_to(at)]))
        );
        drop(probe);
    }
}

/// A debugger that has the code go on under a jump has it go on in the displaced instruction.
#[guest_test]
fn a_debugger_may_resume_under_a_jump() {
    let go_back = || {
        GO_TO.store(start() + 3, Relaxed);
        GO_FROM.store(start() + 7, Relaxed);
        step()
    };
    let (plain, _) = go_back();
    assert_eq!(plain.result, 44, "one is added twice");
    let _knob = Optimization::set(true);
    let probe = register(Box::new(kprobe(0))).unwrap();
    assert!(is_jump(start()));
    let (seen, handlers) = go_back();
    assert_eq!((seen, handlers.len()), (plain, 1));
    drop(probe);
}

/// A handler that has the code go on under the jump: the debugger is told what it is told with a
/// breakpoint.
#[guest_test]
fn a_handler_may_resume_stepped_code_under_a_jump() {
    fn pass_over_the_first(probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        note_handler::<6>();
        regs.ip = probe.addr() + 3;
        PreVerdict::Resume
    }
    let seen = [false, true].map(|optimized| {
        let _knob = Optimization::set(optimized);
        let probe = Kprobe::new().symbol("debugged").pre(pass_over_the_first);
        let probe = register(Box::new(probe)).unwrap();
        assert_eq!(is_jump(start()), optimized);
        let seen = step();
        drop(probe);
        seen
    });
    let [by_breakpoint, by_jump] = seen;
    assert_eq!((by_breakpoint.0.result, by_breakpoint.1.len()), (2, 1));
    assert_eq!(by_jump, by_breakpoint);
}

/// Neither what has a call return to the probes is stepped through, nor that return, whatever
/// serves them.
#[guest_test]
fn a_return_probe_shows_neither_its_entry_nor_its_trampoline() {
    let plain = plain();
    for optimized in [false, true] {
        let _knob = Optimization::set(optimized);
        let shapes: [(fn() -> Kretprobe, bool); 2] = [
            (|| Kretprobe::new().handler(returned), false),
            (|| Kretprobe::new().entry(entry).handler(returned), true),
        ];
        for (shape, has_entry) in shapes {
            let call = register(Box::new(shape().symbol("debugged"))).unwrap();
            assert_eq!(is_jump(start()), optimized);
            let (seen, handlers) = step();
            assert_eq!(
                seen, plain,
                "optimized: {optimized}, entry handler: {has_entry}"
            );
            let mut expected = Vec::from([400 + plain.before_return()]);
            if has_entry {
                expected.insert(0, 300 + plain.up_to(start()));
            }
            assert_eq!(handlers, expected);
            drop(call);
        }
    }
}

/// A stepped call of a function with several return probes is as any other: each has its own
/// instance, those that find none count it, and one that is off does nothing.
#[guest_test]
fn a_stepped_call_has_an_instance_of_each_return_probe() {
    fn keep(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
        note_handler::<6>();
        **call = regs.di;
        EntryVerdict::Track
    }
    fn kept(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
        note_handler::<7>();
        assert_eq!((**call, regs.return_value()), (20, 42));
        assert_eq!(call.ret_addr(), RETURNS_TO.load(Relaxed));
    }
    fn decline(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        note_handler::<8>();
        EntryVerdict::Decline
    }
    let plain = plain();
    let after = plain.stops.iter().find(|stop| stop.sp == 8);
    RETURNS_TO.store(after.expect("a stop behind the call").ip, Relaxed);
    for optimized in [false, true] {
        let _knob = Optimization::set(optimized);
        let on = |probe: Kretprobe| {
            register(Box::new(probe.symbol("debugged").handler(returned))).unwrap()
        };
        let data = Kretprobe::<u64>::new().symbol("debugged").entry(keep);
        let data = register(Box::new(data.handler(kept))).unwrap();
        let (bare, off) = (on(Kretprobe::new()), on(Kretprobe::new().disabled()));
        let (declined, both) = (
            on(Kretprobe::new().entry(decline)),
            on(Kretprobe::new().entry(entry)),
        );
        assert_eq!(is_jump(start()), optimized);
        // More often than there are instances.
        for round in 1..=40 {
            let (seen, handlers) = step();
            assert_eq!(seen, plain, "optimized: {optimized}");
            let (first, last) = (plain.up_to(start()), plain.before_return());
            let wanted = [
                300 + first,
                800 + first,
                600 + first,
                700 + last,
                400 + last,
                400 + last,
            ];
            assert_eq!(handlers, wanted, "optimized: {optimized}");
            let hits = [
                both.hits(),
                declined.hits(),
                off.hits(),
                bare.hits(),
                data.hits(),
            ];
            assert_eq!(hits, [round, 0, 0, round, round], "optimized: {optimized}");
        }
        let missed = [&both, &declined, &off, &bare].map(|probe| probe.nmissed());
        assert_eq!((missed, data.nmissed()), ([0; 4], 0));
        drop((both, declined, off, bare, data));
    }
}

/// Where the stepped call returns to.
static RETURNS_TO: AtomicU64 = AtomicU64::new(0);

#[guest_test]
fn a_return_by_breakpoints_shows_no_trampoline() {
    let plain = plain();
    for returns in [ReturnMethod::Trap3, ReturnMethod::Trap4] {
        for step_method in [StepMethod::Translate, StepMethod::TrapFlag] {
            let call = Kretprobe::new()
                .symbol("debugged")
                .entry(entry)
                .handler(returned);
            let call = register(Box::new(
                call.return_method(returns).step_method(step_method),
            ))
            .unwrap();
            let (seen, handlers) = step();
            assert_eq!(seen, plain, "{returns:?}, {step_method:?}");
            assert_eq!(
                handlers,
                [300 + plain.up_to(start()), 400 + plain.before_return()]
            );
            drop(call);
        }
    }
}

/// The handler of a jprobe is called as a function, but not by the code that is stepped.
#[guest_test]
fn a_jprobes_handler_is_not_stepped_through() {
    let plain = plain();
    let probe = register(Box::new(
        Jprobe::new().symbol("debugged").entry(mirror_of_debugged),
    ))
    .unwrap();
    let (seen, handlers) = step();
    drop(probe);
    assert_eq!(seen, plain);
    assert_eq!(handlers, [500 + plain.up_to(start())]);
}

/// Single-stepping of the probes' own and of somebody else at once.
#[guest_test]
fn a_step_of_the_probes_is_told_of_once() {
    let plain = plain();
    for offset in OFFSETS {
        let probe = register(Box::new(
            kprobe(offset).post(post).step_method(StepMethod::TrapFlag),
        ))
        .unwrap();
        let (seen, handlers) = step();
        assert_eq!(seen, plain, "a probe at +{offset}");
        assert_eq!(handlers.len(), 2, "a probe at +{offset}");
        drop(probe);
    }
}
