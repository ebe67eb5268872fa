//! A probe handler that breaks a rule ends the kernel, which names the handler. Some deeds are
//! allowed that look as if they were not.

use alloc::boxed::Box;
use core::{
    hint::black_box,
    mem::forget,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::percpu,
    probes::{
        EntryVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs,
        Registered, jprobe, register,
    },
    sync::{Mutex, SpinLock},
    task::{self, sleep::sleep_ns},
};

#[unsafe(no_mangle)]
#[inline(never)]
// Its body is like no other: functions with equal code may be folded into one, and then have each
// other's names.
extern "C" fn ruled_target(a: u64) -> u64 {
    black_box(a ^ 0x0bed)
}

static LOCK: Mutex<u64> = Mutex::new(0);

#[inline(never)]
fn allocates_before(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    forget(black_box(Box::new(regs.di)));
    PreVerdict::Execute
}

#[inline(never)]
fn sleeps_after(_: &Kprobe, _: &mut PtRegs, _: u64) {
    sleep_ns(1);
    // No tail call: the handler is to be found on the stack.
    black_box(());
}

#[inline(never)]
fn gives_way_at_entry(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
    task::schedule();
    // A call at the end would leave no frame of this function.
    black_box(());
    EntryVerdict::Track
}

#[inline(never)]
fn locks_at_return(_: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
    *LOCK.lock() += regs.return_value();
}

jprobe! {
    fn mirror_that_frees(a: u64) {
        // SAFETY: the test passes the address of a box that it has forgotten.
        drop(unsafe { Box::from_raw(a as *mut u64) });
    }
}

#[guest_test(should_panic = "probe handler guest_tests::probes::handler_rules::\
        allocates_before of the kprobe at ruled_target+0x0")]
fn a_pre_handler_that_allocates_is_named() {
    forget(
        register(Box::new(
            Kprobe::new().symbol("ruled_target").pre(allocates_before),
        ))
        .unwrap(),
    );
    ruled_target(black_box(1));
}

#[guest_test(should_panic = "probe handler guest_tests::probes::handler_rules::\
        sleeps_after of the kprobe at ruled_target+0x0")]
fn a_post_handler_that_sleeps_is_named() {
    forget(
        register(Box::new(
            Kprobe::new().symbol("ruled_target").post(sleeps_after),
        ))
        .unwrap(),
    );
    ruled_target(black_box(1));
}

#[guest_test(should_panic = "probe handler guest_tests::probes::handler_rules::\
        gives_way_at_entry of the kretprobe at ruled_target+0x0")]
fn an_entry_handler_that_gives_way_is_named() {
    let probe = Kretprobe::new()
        .symbol("ruled_target")
        .entry(gives_way_at_entry);
    forget(register(Box::new(probe)).unwrap());
    ruled_target(black_box(1));
}

#[guest_test(should_panic = "probe handler guest_tests::probes::handler_rules::\
        locks_at_return of the kretprobe at ruled_target+0x0")]
fn a_return_handler_that_takes_a_sleeping_lock_is_named() {
    let probe = Kretprobe::new()
        .symbol("ruled_target")
        .handler(locks_at_return);
    forget(register(Box::new(probe)).unwrap());
    ruled_target(black_box(1));
}

#[guest_test(should_panic = "probe handler guest_tests::probes::handler_rules::\
        mirror_that_frees::mirror_that_frees of the jprobe at ruled_target+0x0")]
fn a_jprobe_handler_that_frees_is_named() {
    forget(
        register(Box::new(
            Jprobe::new()
                .symbol("ruled_target")
                .entry(mirror_that_frees),
        ))
        .unwrap(),
    );
    ruled_target(Box::into_raw(Box::new(1)) as u64);
}

/// The handle that [`drops_the_handle`] drops.
static HANDLE: SpinLock<Option<Registered<Box<Kprobe>>>> = SpinLock::new(None);
static RUNS: AtomicU64 = AtomicU64::new(0);

fn drops_the_handle(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    RUNS.fetch_add(1, SeqCst);
    let handle = HANDLE.lock().take();
    drop(handle);
    PreVerdict::Execute
}

fn nothing(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

/// When the handler is over, the kernel names none any more.
#[guest_test]
fn no_handler_is_said_to_run_when_it_is_over() {
    static RUNNING: AtomicU64 = AtomicU64::new(0);
    fn who(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        let (running, _) = PROBES.running_probe().expect("this one");
        RUNNING.store(running.addr(), SeqCst);
        PreVerdict::Execute
    }
    let probe = register(Box::new(Kprobe::new().symbol("ruled_target").pre(who))).unwrap();
    percpu::preempt_disable();
    ruled_target(black_box(1));
    let after = PROBES.running_probe().map(|(probe, _)| probe.addr());
    percpu::preempt_enable();
    assert_eq!((RUNNING.load(SeqCst), after), (probe.addr(), None));
    drop(probe);
}

/// A handle that is dropped in a handler, where nothing can be waited for: its probe fires no more,
/// alone or among others, and is unregistered by the next call that may wait.
#[guest_test]
fn a_handle_dropped_in_a_handler_silences_its_probe_at_once() {
    for with_sibling in [false, true] {
        let sibling = with_sibling.then(|| {
            register(Box::new(Kprobe::new().symbol("ruled_target").pre(nothing))).unwrap()
        });
        let slots = PROBES.slots_in_use();
        // Calls of earlier tests may not be back yet.
        let in_flight = PROBES.reap().unwrap();
        let probe = register(Box::new(
            Kprobe::new().symbol("ruled_target").pre(drops_the_handle),
        ))
        .unwrap();
        *HANDLE.lock() = Some(probe);
        RUNS.store(0, SeqCst);
        for n in 0..3 {
            assert_eq!(ruled_target(black_box(n)), n ^ 0x0bed);
        }
        assert_eq!(RUNS.load(SeqCst), 1, "with a sibling: {with_sibling}");
        assert_eq!(sibling.as_ref().map_or(3, |sibling| sibling.hits()), 3);
        assert!(PROBES.reap().unwrap() <= in_flight);
        assert_eq!(PROBES.slots_in_use(), slots);
        drop(sibling);
    }
}
