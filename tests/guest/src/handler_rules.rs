//! What a probe handler must not do ends the kernel, with the handler's name.

use crate::guest_test;
use alloc::boxed::Box;
use core::{hint::black_box, mem::forget};
use kernel::{
    probes::{
        EntryVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs, jprobe,
        register,
    },
    sync::Mutex,
    task::{self, sleep::sleep_ns},
};

#[unsafe(no_mangle)]
#[inline(never)]
// Its body is like no other: functions with equal code may be folded into one, and then have each other's names.
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

guest_test! {
    #[should_panic("probe handler guest_tests::handler_rules::allocates_before of the kprobe at ruled_target+0x0")]
    fn a_pre_handler_that_allocates_is_named() {
        forget(register(Box::new(Kprobe::new().symbol("ruled_target").pre(allocates_before))).unwrap());
        ruled_target(black_box(1));
    }

    #[should_panic("probe handler guest_tests::handler_rules::sleeps_after of the kprobe at ruled_target+0x0")]
    fn a_post_handler_that_sleeps_is_named() {
        forget(register(Box::new(Kprobe::new().symbol("ruled_target").post(sleeps_after))).unwrap());
        ruled_target(black_box(1));
    }

    #[should_panic("probe handler guest_tests::handler_rules::gives_way_at_entry of the kretprobe at ruled_target+0x0")]
    fn an_entry_handler_that_gives_way_is_named() {
        let probe = Kretprobe::new().symbol("ruled_target").entry(gives_way_at_entry);
        forget(register(Box::new(probe)).unwrap());
        ruled_target(black_box(1));
    }

    #[should_panic("probe handler guest_tests::handler_rules::locks_at_return of the kretprobe at ruled_target+0x0")]
    fn a_return_handler_that_takes_a_sleeping_lock_is_named() {
        let probe = Kretprobe::new().symbol("ruled_target").handler(locks_at_return);
        forget(register(Box::new(probe)).unwrap());
        ruled_target(black_box(1));
    }

    #[should_panic("probe handler guest_tests::handler_rules::mirror_that_frees::mirror_that_frees of the jprobe at ruled_target+0x0")]
    fn a_jprobe_handler_that_frees_is_named() {
        forget(register(Box::new(Jprobe::new().symbol("ruled_target").entry(mirror_that_frees))).unwrap());
        ruled_target(Box::into_raw(Box::new(1)) as u64);
    }
}
