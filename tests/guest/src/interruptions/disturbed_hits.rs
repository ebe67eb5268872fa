//! Events in the middle of hits: faults, NMIs, nesting, lost ways back; in
//! [`interrupts_in_slots`] interrupts of code in slots.
//!
//! Each test brings one event into a hit, in every kind of handler or in the displaced instruction,
//! and knows what must be counted: a hit, a miss, or a stale breakpoint. The count law holds under
//! NMIs, too: calls are hits and misses, and nothing else.

mod interrupts_in_slots;

use crate::{
    platform::suite::flags::IF,
    tools::handlers::{Deed, after, at_entry, at_return, before},
    tools::nmi,
};
use abi::{WaitStatus, signal};
use alloc::boxed::Box;
use core::{
    hint::{self, black_box},
    mem::forget,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp, traps},
    errno::Errno,
    fs::{self, NodeRef},
    log,
    mm::{
        kernel_stack,
        uaccess::{copy_from_anywhere_nofault, copy_from_user, copy_from_user_nofault},
    },
    probes::{
        FaultVerdict, Jprobe, JprobeEntry, Kprobe, Kretprobe, KretprobeInstance, PROBES,
        PreVerdict, PtRegs, Registered, jprobe, register,
    },
    symbols,
    task::{TaskRef, exec::run_program, kthread::spawn_kthread_on},
};
use probes::{kprobe::flags, registry::ReturnMethod};

fn spawn_on(cpu: usize, body: impl FnOnce() + Send + 'static) -> TaskRef {
    spawn_kthread_on(1 << cpu, "troubled", body).expect("memory for a thread")
}

/// The registers that the handler of an exception or an interrupt was given, from a probe on its
/// first instruction.
fn frame_of(regs: &PtRegs) -> &PtRegs {
    // SAFETY: its first argument, a frame on the stack below which it runs.
    unsafe { &*(regs.di as *const PtRegs) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn troubled_target(a: u64) -> u64 {
    black_box(black_box(a) + 1)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn troubled_in_nmi(a: u64) -> u64 {
    black_box(a + 2)
}

/// Begins with instructions that a jump can replace.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn troubled_by_a_jump(a: u64) -> u64 {
    let words = black_box([a, 1, 2]);
    words[0] + words[1] + words[2]
}

/// The instruction at which the kernel touches user memory, as an offset into `copy_user`.
pub fn copying_instruction() -> (u64, u32) {
    let function = symbols::lookup_name("copy_user").unwrap();
    // SAFETY: text of the kernel.
    let text =
        unsafe { core::slice::from_raw_parts(function.start as *const u8, function.size as usize) };
    let offset = text
        .windows(2)
        .position(|bytes| bytes == [0xf3, 0xa4])
        .expect("`rep movsb`");
    (function.start + offset as u64, offset as u32)
}

/// No task of the kernel has anything mapped there.
pub const UNMAPPED: u64 = 0x5000_0000;
/// No page table can map it.
const NON_CANONICAL: u64 = 0x8000_0000_0000_0000;

static BEFORE: AtomicU64 = AtomicU64::new(0);
static AFTER: AtomicU64 = AtomicU64::new(0);
/// Faults that came from the copying instruction, by the frame that `do_page_fault` got.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Faults that came from outside the kernel's text.
static STRAY: AtomicU64 = AtomicU64::new(0);
static COPIES_AT: AtomicU64 = AtomicU64::new(0);

fn count_before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    BEFORE.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

fn count_after(_: &Kprobe, _: &mut PtRegs, _: u64) {
    AFTER.fetch_add(1, SeqCst);
}

fn see_fault(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let fault = frame_of(regs);
    if fault.ip == COPIES_AT.load(Relaxed) {
        FAULTS.fetch_add(1, SeqCst);
    } else if !fault.user_mode() && !symbols::is_text(fault.ip) {
        STRAY.fetch_add(1, SeqCst);
    }
    PreVerdict::Execute
}

fn reset() {
    for counter in [&BEFORE, &AFTER, &FAULTS, &STRAY, &NMIS] {
        counter.store(0, SeqCst);
    }
}

/// A probe at the very entry of `do_page_fault` finds the fault of a probed instruction where it
/// belongs, and is a hit of its own: the hit that the fault has ended is over.
#[guest_test]
fn a_probe_at_the_entry_of_the_page_fault_handler_sees_the_probed_address() {
    reset();
    let (address, offset) = copying_instruction();
    COPIES_AT.store(address, Relaxed);
    let entry = register(Box::new(
        Kprobe::new().symbol("do_page_fault").pre(see_fault),
    ))
    .unwrap();
    for shape in [Kprobe::new(), Kprobe::new().post(count_after)] {
        let probe = register(Box::new(
            shape.symbol("copy_user").offset(offset).pre(count_before),
        ))
        .unwrap();
        let (faults, hits) = (FAULTS.load(SeqCst), entry.hits());
        let mut word = [0; 8];
        assert_eq!(copy_from_user(&mut word, UNMAPPED), Err(Errno::EFAULT));
        assert_eq!(
            FAULTS.load(SeqCst) - faults,
            1,
            "one fault, of the instruction itself"
        );
        assert_eq!((entry.hits() - hits, entry.nmissed()), (1, 0));
        assert!(!percpu::in_probe_handler());
        assert!(x86_64::instructions::interrupts::are_enabled());
        drop(probe);
    }
    assert_eq!(
        (BEFORE.load(SeqCst), AFTER.load(SeqCst), STRAY.load(SeqCst)),
        (2, 0, 0)
    );
    drop(entry);
}

/// Programs have pages brought in and copied by a probed instruction. After each fault the
/// instruction begins anew, with its pre handler; its post handler runs when it is done.
#[guest_test(timeout = 120)]
fn a_probed_instruction_that_faults_pages_in_is_completed() {
    reset();
    let (address, offset) = copying_instruction();
    COPIES_AT.store(address, Relaxed);
    let entry = register(Box::new(
        Kprobe::new().symbol("do_page_fault").pre(see_fault),
    ))
    .unwrap();
    for exercise in ["copy_on_write", "bad_pointers", "exec"] {
        for (shape, has_post) in [
            (Kprobe::new(), false),
            (Kprobe::new().post(count_after), true),
        ] {
            let probe = register(Box::new(
                shape.symbol("copy_user").offset(offset).pre(count_before),
            ))
            .unwrap();
            let before = [&BEFORE, &AFTER, &FAULTS].map(|count| count.load(SeqCst));
            let status = run_program("/bin/exercise", &[exercise]).expect("the program starts");
            assert_eq!(status.code(), Some(0), "{exercise}");
            assert_eq!(probe.nmissed(), 0);
            drop(probe);
            let [began, ended, faults] = [(&BEFORE, 0), (&AFTER, 1), (&FAULTS, 2)]
                .map(|(count, n)| count.load(SeqCst) - before[n]);
            assert!(
                began > faults,
                "{exercise}: {began} times begun, {faults} faults"
            );
            assert_eq!(
                ended,
                if has_post { began - faults } else { 0 },
                "{exercise}: {faults} faults"
            );
        }
    }
    assert!(FAULTS.load(SeqCst) > 0, "some copy brings a page in");
    assert_eq!(STRAY.load(SeqCst), 0, "a fault seen in a slot");
    drop(entry);
}

/// A probe of each kind on `troubled_target`.
struct EachKind {
    kprobe: Registered<Box<Kprobe>>,
    call: Registered<Box<Kretprobe<u64>>>,
    jprobe: Registered<Box<Jprobe>>,
}

/// The handlers of the registered probes do `D`, and so does `mirror`.
fn in_each_kind_of_handler<D: Deed + 'static>(mirror: JprobeEntry) -> EachKind {
    let kprobe = Kprobe::new()
        .symbol("troubled_target")
        .pre(before::<D>)
        .post(after::<D>);
    let call = Kretprobe::new()
        .symbol("troubled_target")
        .entry(at_entry::<D>)
        .handler(at_return::<D>);
    let jprobe = Jprobe::new().symbol("troubled_target").entry(mirror);
    EachKind {
        kprobe: register(Box::new(kprobe)).unwrap(),
        call: register(Box::new(call)).unwrap(),
        jprobe: register(Box::new(jprobe)).unwrap(),
    }
}

/// Results of [`ReadEverywhere`]: how many reads ended as they should.
static GOOD_READS: AtomicU64 = AtomicU64::new(0);
/// Where a word crosses from a mapped page into an unmapped one.
static PAGE_EDGE: AtomicU64 = AtomicU64::new(0);
static WORD: u64 = 0x1122_3344_5566_7788;

/// Reads what can be read and what cannot: five reads.
struct ReadEverywhere;

impl Deed for ReadEverywhere {
    fn done() {
        let mut word = [0; 8];
        let good = [
            copy_from_user_nofault(&mut word, UNMAPPED) == Err(Errno::EFAULT),
            copy_from_anywhere_nofault(&mut word, NON_CANONICAL) == Err(Errno::EFAULT),
            copy_from_anywhere_nofault(&mut word, PAGE_EDGE.load(Relaxed)) == Err(Errno::EFAULT),
            copy_from_anywhere_nofault(&mut word, (&raw const WORD).addr() as u64) == Ok(())
                && u64::from_ne_bytes(word) == WORD,
            copy_from_anywhere_nofault(&mut word, UNMAPPED) == Err(Errno::EFAULT),
        ];
        GOOD_READS.fetch_add(good.iter().filter(|good| **good).count() as u64, SeqCst);
    }
}

jprobe! {
    fn mirror_that_reads(_a: u64) {
        ReadEverywhere::done();
    }
}

/// The last four bytes of the calling task's stack: a word there crosses into the guard page of the
/// next one.
fn end_of_this_stack() -> u64 {
    let here = 0u8;
    kernel_stack::bounds((&raw const here).addr() as u64).end - 4
}

/// Reads from handlers of every kind and from an NMI end in a value or in an error. The functions
/// that their faults run through are probed: missed in a handler, counted always.
#[guest_test]
fn reads_in_handlers_never_fault_for_good() {
    reset();
    GOOD_READS.store(0, SeqCst);
    PAGE_EDGE.store(end_of_this_stack(), Relaxed);
    let (address, offset) = copying_instruction();
    COPIES_AT.store(address, Relaxed);
    let fault = register(Box::new(
        Kprobe::new().symbol("do_page_fault").pre(see_fault),
    ))
    .unwrap();
    let copy = register(Box::new(
        Kprobe::new()
            .symbol("copy_user")
            .offset(offset)
            .pre(count_before),
    ))
    .unwrap();
    let EachKind {
        kprobe,
        call,
        jprobe,
    } = in_each_kind_of_handler::<ReadEverywhere>(mirror_that_reads);
    assert_eq!(troubled_target(black_box(1)), 2);
    assert_eq!(GOOD_READS.load(SeqCst), 5 * 5);
    // Three page faults in each five reads; the fourth fault is a general protection fault.
    assert_eq!((fault.hits(), fault.nmissed()), (0, 5 * 3));
    assert_eq!((copy.hits(), copy.nmissed()), (0, 5 * 5));
    drop((jprobe, call, kprobe));

    fn in_nmi(_: &PtRegs) {
        ReadEverywhere::done();
        NMIS.fetch_add(1, SeqCst);
    }
    traps::set_nmi_handler(Some(in_nmi));
    percpu::preempt_disable();
    nmi_to_self();
    percpu::preempt_enable();
    traps::set_nmi_handler(None);
    assert_eq!(GOOD_READS.load(SeqCst), 6 * 5);
    assert_eq!(
        (fault.hits(), copy.hits()),
        (3, 5),
        "hits of their own in an NMI"
    );
    assert_eq!(STRAY.load(SeqCst), 0);
    drop((copy, fault));
}

/// A fault in a handler that is not handled: the report names the handler.
#[guest_test(should_panic = "guest_tests::interruptions::disturbed_hits::\
        a_wild_handler_is_named::reads_wildly+0x")]
fn a_wild_handler_is_named() {
    #[inline(never)]
    fn reads_wildly(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        // SAFETY: none; this is the test, and it does not come back.
        regs.ax = unsafe { (black_box(UNMAPPED) as *const u64).read_volatile() };
        PreVerdict::Execute
    }
    forget(
        register(Box::new(
            Kprobe::new().symbol("troubled_target").pre(reads_wildly),
        ))
        .unwrap(),
    );
    troubled_target(black_box(1));
}

#[guest_test(should_panic = "kernel stack overflow, in task troubled")]
fn a_handler_that_overflows_the_stack_is_reported() {
    fn dives(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        #[inline(never)]
        fn deeper(depth: u64) -> u64 {
            let bytes = black_box([depth; 64]);
            if depth == u64::MAX {
                0
            } else {
                deeper(depth + 1) + bytes[63]
            }
        }
        regs.ax = deeper(0);
        PreVerdict::Execute
    }
    forget(register(Box::new(Kprobe::new().symbol("troubled_target").pre(dives))).unwrap());
    spawn_on(1, || {
        troubled_target(black_box(1));
    })
    .wait_released();
}

static NMIS: AtomicU64 = AtomicU64::new(0);

/// Sends this CPU an NMI and waits for its handler. Interrupts or preemption off.
fn nmi_to_self() {
    let before = NMIS.load(SeqCst);
    smp::send_nmi(percpu::cpu_id());
    while NMIS.load(SeqCst) == before {
        hint::spin_loop();
    }
}

fn hit_in_nmi(_: &PtRegs) {
    if troubled_in_nmi(black_box(5)) == 7 {
        NMIS.fetch_add(1, SeqCst);
    }
}

struct NmiToSelf;

impl Deed for NmiToSelf {
    fn done() {
        nmi_to_self();
    }
}

jprobe! {
    fn mirror_that_sends_an_nmi(_a: u64) {
        nmi_to_self();
    }
}

fn ignore_return(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {}

fn mend_read(_: &Kprobe, regs: &mut PtRegs, _: u8) -> FaultVerdict {
    nmi_to_self();
    regs.cx = 0;
    FaultVerdict::Handled
}

/// An NMI that a handler sends to its own CPU, from handlers of every kind: what it hits is missed,
/// the hit goes on.
#[guest_test]
fn an_nmi_to_the_own_cpu_in_each_kind_of_handler_is_a_miss() {
    reset();
    let in_nmi = register(Box::new(
        Kprobe::new()
            .symbol("troubled_in_nmi")
            .pre(count_before)
            .post(count_after),
    ))
    .unwrap();
    let call_in_nmi =
        register(Box::new(Kretprobe::<u64>::new().symbol("troubled_in_nmi"))).unwrap();
    let EachKind {
        kprobe,
        call,
        jprobe,
    } = in_each_kind_of_handler::<NmiToSelf>(mirror_that_sends_an_nmi);
    let (_, offset) = copying_instruction();
    let faults = register(Box::new(
        Kprobe::new()
            .symbol("copy_user")
            .offset(offset)
            .fault(mend_read),
    ))
    .unwrap();
    traps::set_nmi_handler(Some(hit_in_nmi));
    for round in 1..=20 {
        assert_eq!(troubled_target(black_box(round)), round + 1);
        // The fault handler has the copy end without a byte copied.
        assert_eq!(copy_from_user(&mut [0; 8], UNMAPPED), Ok(()));
        assert_eq!(NMIS.load(SeqCst), 6 * round);
        assert_eq!((in_nmi.hits(), in_nmi.nmissed()), (0, 6 * round));
        assert_eq!(
            (call_in_nmi.nmissed(), call_in_nmi.kprobe().nmissed()),
            (0, 6 * round)
        );
        assert_eq!(
            (kprobe.hits(), kprobe.nmissed(), call.hits()),
            (round, 0, round)
        );
    }
    traps::set_nmi_handler(None);
    assert_eq!((BEFORE.load(SeqCst), AFTER.load(SeqCst)), (0, 0));
    drop((faults, jprobe, call, kprobe, call_in_nmi, in_nmi));
}

/// A fault handler gets the faults of its probe's handlers, but not those of an NMI on top of them.
#[guest_test]
fn a_fault_in_an_nmi_is_not_for_the_handler_below() {
    static MENDED: AtomicU64 = AtomicU64::new(0);
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    static OWN: AtomicU64 = AtomicU64::new(0);
    /// Has the copy end without a byte copied, as if all were well.
    fn mend(_: &Kprobe, regs: &mut PtRegs, _: u8) -> FaultVerdict {
        MENDED.fetch_add(1, SeqCst);
        regs.cx = 0;
        FaultVerdict::Handled
    }
    fn is_refused() -> bool {
        copy_from_user_nofault(&mut [0; 8], UNMAPPED) == Err(Errno::EFAULT)
    }
    fn fault_in_nmi(_: &PtRegs) {
        REFUSED.fetch_add(is_refused().into(), SeqCst);
        NMIS.fetch_add(1, SeqCst);
    }
    struct FaultBehindAnNmi;
    impl Deed for FaultBehindAnNmi {
        fn done() {
            nmi_to_self();
            OWN.fetch_add((!is_refused()).into(), SeqCst);
        }
    }
    reset();
    for counter in [&MENDED, &REFUSED, &OWN] {
        counter.store(0, SeqCst);
    }
    let kprobe = register(Box::new(
        Kprobe::new()
            .symbol("troubled_target")
            .pre(before::<FaultBehindAnNmi>)
            .post(after::<FaultBehindAnNmi>)
            .fault(mend),
    ))
    .unwrap();
    let call = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("troubled_target")
            .handler(at_return::<FaultBehindAnNmi>),
    ))
    .unwrap();
    traps::set_nmi_handler(Some(fault_in_nmi));
    assert_eq!(troubled_target(black_box(1)), 2);
    traps::set_nmi_handler(None);
    assert_eq!((NMIS.load(SeqCst), REFUSED.load(SeqCst)), (3, 3));
    // A return handler has no fault handler.
    assert_eq!((MENDED.load(SeqCst), OWN.load(SeqCst)), (2, 2));
    drop((call, kprobe));
}

/// NMIs from another CPU come anywhere in the hits of six probes; all calls, those of the NMIs too,
/// are followed or counted as missed.
#[guest_test(timeout = 120)]
fn the_count_law_holds_under_nmis_from_another_cpu() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static DURING_HITS: AtomicU64 = AtomicU64::new(0);
    fn call_all(n: u64) -> bool {
        troubled_target(black_box(n)) == n + 1
            && troubled_in_nmi(black_box(n)) == n + 2
            && troubled_by_a_jump(black_box(n)) == n + 3
    }
    fn in_nmi(regs: &PtRegs) {
        if percpu::in_probe_handler() || PROBES.original_ip(regs.ip) != regs.ip {
            DURING_HITS.fetch_add(1, SeqCst);
        }
        assert!(call_all(regs.ip));
        NMIS.fetch_add(1, SeqCst);
    }
    jprobe! {
        fn mirror(_a: u64) {}
    }
    reset();
    let kprobe = register(Box::new(
        Kprobe::new()
            .symbol("troubled_target")
            .pre(count_before)
            .post(count_after),
    ))
    .unwrap();
    let plain = register(Box::new(
        Kprobe::new().symbol("troubled_in_nmi").pre(count_before),
    ))
    .unwrap();
    let call = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("troubled_target")
            .handler(ignore_return)
            .maxactive(4),
    ))
    .unwrap();
    let jprobe = register(Box::new(
        Jprobe::new().symbol("troubled_in_nmi").entry(mirror),
    ))
    .unwrap();
    let jumps = register(Box::new(
        Kprobe::new().symbol("troubled_by_a_jump").pre(count_before),
    ))
    .unwrap();
    let jumping_call = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("troubled_by_a_jump")
            .handler(ignore_return)
            .maxactive(4),
    ))
    .unwrap();
    if kernel::cmdline::get("kprobes.step").is_none() {
        assert_eq!(
            jumps.flags() & flags::OPTIMIZED != 0,
            PROBES.optimization(),
            "a jump leads to a detour"
        );
    }
    let victim = spawn_on(1, || {
        while !STOP.load(SeqCst) {
            let n = CALLS.fetch_add(1, SeqCst);
            assert!(call_all(n));
        }
    });
    while CALLS.load(SeqCst) == 0 {
        hint::spin_loop();
    }
    traps::set_nmi_handler(Some(in_nmi));
    let sender = spawn_on(0, || {
        for _ in 0..3_000 {
            nmi::send(1, &NMIS, || false);
        }
        STOP.store(true, SeqCst);
    });
    sender.wait_released();
    victim.wait_released();
    traps::set_nmi_handler(None);
    let executions = CALLS.load(SeqCst) + NMIS.load(SeqCst);
    assert_eq!(kprobe.hits() + kprobe.nmissed(), executions);
    assert_eq!(plain.hits() + plain.nmissed(), executions);
    assert_eq!(
        jprobe.kprobe().hits() + jprobe.kprobe().nmissed(),
        executions
    );
    assert_eq!(jumps.hits() + jumps.nmissed(), executions);
    for call in [&call, &jumping_call] {
        assert_eq!(
            call.hits() + call.nmissed() + call.kprobe().nmissed(),
            executions
        );
    }
    assert_eq!(
        BEFORE.load(SeqCst),
        kprobe.hits() + plain.hits() + jumps.hits()
    );
    assert_eq!(AFTER.load(SeqCst), kprobe.hits());
    let during = DURING_HITS.load(SeqCst);
    assert!(
        during > 0,
        "no NMI of {} came during a hit",
        NMIS.load(SeqCst)
    );
    drop((jumping_call, jumps, jprobe, call, plain, kprobe));
}

/// A handler runs into a probed instruction, which faults, and an NMI comes in the probed fault
/// handler: hits three and four deep. Only the outermost one has handlers; each instruction has its
/// effect.
#[guest_test]
fn hits_nest_as_deep_as_they_come() {
    static DEPTH: AtomicU64 = AtomicU64::new(0);
    static SENT: AtomicBool = AtomicBool::new(false);
    fn copies(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        // Hit 2 in the copy, hit 3 in the page fault handler.
        if copy_from_user_nofault(&mut [0; 8], UNMAPPED) == Err(Errno::EFAULT) {
            DEPTH.fetch_add(1, SeqCst);
        }
        PreVerdict::Execute
    }
    fn copies_after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        if copy_from_user_nofault(&mut [0; 8], UNMAPPED) == Err(Errno::EFAULT) {
            DEPTH.fetch_add(1, SeqCst);
        }
    }
    fn in_nmi(_: &PtRegs) {
        // Hit 4, and 5 in its fault.
        let read = copy_from_user_nofault(&mut [0; 8], UNMAPPED) == Err(Errno::EFAULT);
        if read && troubled_in_nmi(black_box(1)) == 3 {
            NMIS.fetch_add(1, SeqCst);
        }
    }
    reset();
    DEPTH.store(0, SeqCst);
    SENT.store(false, SeqCst);
    let (_, offset) = copying_instruction();
    let outer = register(Box::new(
        Kprobe::new()
            .symbol("troubled_target")
            .pre(copies)
            .post(copies_after),
    ))
    .unwrap();
    let copy = register(Box::new(
        Kprobe::new()
            .symbol("copy_user")
            .offset(offset)
            .pre(count_before)
            .post(count_after),
    ))
    .unwrap();
    let fault = register(Box::new(
        Kprobe::new()
            .symbol("do_page_fault")
            .pre(count_before)
            .post(count_after),
    ))
    .unwrap();
    let call = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("do_page_fault")
            .handler(ignore_return),
    ))
    .unwrap();
    let last = register(Box::new(
        Kprobe::new().symbol("troubled_in_nmi").pre(count_before),
    ))
    .unwrap();
    assert_eq!(troubled_target(black_box(1)), 2);
    assert_eq!(DEPTH.load(SeqCst), 2);
    assert_eq!((outer.hits(), outer.nmissed()), (1, 0));
    for missed in [copy.nmissed(), fault.nmissed(), call.kprobe().nmissed()] {
        assert_eq!(missed, 2);
    }
    assert_eq!((BEFORE.load(SeqCst), AFTER.load(SeqCst)), (0, 0));

    // The same with NMIs from another CPU at any depth.
    static STOP: AtomicBool = AtomicBool::new(false);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    CALLS.store(0, SeqCst);
    STOP.store(false, SeqCst);
    traps::set_nmi_handler(Some(in_nmi));
    let victim = spawn_on(1, || {
        while !STOP.load(SeqCst) {
            assert_eq!(troubled_target(black_box(1)), 2);
            CALLS.fetch_add(1, SeqCst);
        }
    });
    let sender = spawn_on(0, || {
        for _ in 0..1_000 {
            nmi::send(1, &NMIS, || false);
        }
        STOP.store(true, SeqCst);
    });
    sender.wait_released();
    victim.wait_released();
    traps::set_nmi_handler(None);
    assert_eq!(
        DEPTH.load(SeqCst),
        2 + 2 * CALLS.load(SeqCst),
        "each read in a handler ended in its error"
    );
    assert_eq!(outer.hits(), 1 + CALLS.load(SeqCst));
    let copies = 2 + 2 * CALLS.load(SeqCst) + NMIS.load(SeqCst);
    assert_eq!(copy.hits() + copy.nmissed(), copies);
    assert_eq!(
        fault.hits() + fault.nmissed(),
        copies,
        "each copy faults once"
    );
    assert_eq!(last.hits() + last.nmissed(), NMIS.load(SeqCst));
    drop((last, call, fault, copy, outer));
}

/// Has the function that is entered return to that trampoline, although no return probe has taken
/// up the call.
fn forge_return(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    // SAFETY: the return address at a function's entry; that the way back is lost is the test.
    unsafe { (regs.sp as *mut u64).write(TRAMPOLINE.load(Relaxed)) };
    PreVerdict::Execute
}

static TRAMPOLINE: AtomicU64 = AtomicU64::new(0);

fn forge_returns_of(function: &'static str, method: ReturnMethod) -> Registered<Box<Kprobe>> {
    // Has the trampoline ready for calls.
    let first = Kretprobe::<u64>::new().symbol("troubled_target");
    drop(register(Box::new(first.return_method(method))).unwrap());
    let trampoline = match method {
        ReturnMethod::Asm => "kretprobe_trampoline",
        ReturnMethod::Trap3 => "kretprobe_trampoline_trap3",
        ReturnMethod::Trap4 => "kretprobe_trampoline_trap4",
    };
    TRAMPOLINE.store(symbols::lookup_name(trampoline).unwrap().start, Relaxed);
    register(Box::new(Kprobe::new().symbol(function).pre(forge_return))).unwrap()
}

/// How many lines of the log begin as that of an unknown return.
fn orphans_told() -> usize {
    log::history()
        .filter(|record| {
            record
                .text()
                .starts_with(b"kretprobe BUG!: Processing kretprobe 0x0 @ 0x")
        })
        .count()
}

/// A program whose system call has lost its way back is killed, with interrupts on as any other;
/// the kernel goes on.
#[guest_test]
fn a_program_that_returns_to_nowhere_is_killed() {
    static FLAGS: AtomicU64 = AtomicU64::new(0);
    fn note_flags(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        FLAGS.store(regs.flags, SeqCst);
        PreVerdict::Execute
    }
    let end = Kprobe::new().symbol("do_exit").pre(note_flags);
    let end = register(Box::new(end)).unwrap();
    for method in [ReturnMethod::Asm, ReturnMethod::Trap3, ReturnMethod::Trap4] {
        let told = orphans_told();
        let probe = forge_returns_of("sys_mkdir", method);
        let status = run_program("/bin/exercise", &["directories"]).expect("the program starts");
        assert_eq!(status, WaitStatus::killed(signal::KILL), "{method:?}");
        assert_ne!(
            FLAGS.swap(0, SeqCst) & IF,
            0,
            "{method:?}: interrupts are off"
        );
        assert_eq!((probe.hits(), orphans_told()), (1, told + 1), "{method:?}");
        drop(probe);
        assert!(!percpu::in_probe_handler(), "{method:?}");
    }
    let status = run_program("/bin/exercise", &["identity"]).expect("the program starts");
    assert_eq!(status.code(), Some(0));
    drop(end);
    // The first of them has made it before it was killed; other tests make it, too.
    fs::rmdir(&NodeRef::root(), b"/tmp/d").expect("it is there");
}

#[guest_test(should_panic = "kretprobe BUG!: Processing kretprobe ")]
fn a_kernel_thread_that_returns_to_nowhere_ends_the_kernel() {
    forget(forge_returns_of("troubled_target", ReturnMethod::Asm));
    troubled_target(black_box(1));
}

/// `historic` has the same of trap4.
#[guest_test(should_panic = "kretprobe BUG!: Processing kretprobe ")]
fn a_kernel_thread_that_returns_to_nowhere_by_trap3_ends_the_kernel() {
    forget(forge_returns_of("troubled_target", ReturnMethod::Trap3));
    troubled_target(black_box(1));
}

/// The same with displaced instructions single-stepped: the guard is held and interrupts are off
/// until the step is done.
#[guest_test(timeout = 120, cmdline = "kprobes.step=tf")]
fn single_stepped_hits_stand_the_same_trouble() {
    a_probe_at_the_entry_of_the_page_fault_handler_sees_the_probed_address();
    a_probed_instruction_that_faults_pages_in_is_completed();
    reads_in_handlers_never_fault_for_good();
    an_nmi_to_the_own_cpu_in_each_kind_of_handler_is_a_miss();
    the_count_law_holds_under_nmis_from_another_cpu();
    hits_nest_as_deep_as_they_come();
}
