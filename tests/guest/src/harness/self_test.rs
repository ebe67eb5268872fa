//! Tests for the harness: each ends in a way that it has to tell apart. They are hidden from the
//! ordinary list.

use core::{arch::asm, hint};
use kernel::{pr_info, task::sleep::sleep_ns};
use x86_64::instructions::interrupts;

#[guest_test(hidden)]
fn a_passes() {
    pr_info!("self-test: in a");
}

#[guest_test(hidden)]
fn b_panics() {
    pr_info!("self-test: in b");
    assert_eq!(1 + 1, hint::black_box(3), "arithmetic is odd");
}

#[guest_test(hidden)]
fn c_passes() {
    pr_info!("self-test: in c");
}

#[guest_test(hidden)]
fn d_triple_faults() {
    pr_info!("self-test: in d");
    let empty_idt = [0_u8; 10];
    // SAFETY: does not return: with an IDT of no entries the exception cannot be delivered, nor the
    // double fault that follows, and the processor shuts down.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) &empty_idt, options(noreturn)) }
}

#[guest_test(hidden, timeout = 3)]
fn e_hangs() {
    pr_info!("self-test: in e");
    loop {
        hint::spin_loop();
    }
}

#[guest_test(hidden, timeout = 3)]
fn e_floods_the_log() {
    pr_info!("self-test: in e");
    loop {
        pr_info!("and on");
    }
}

/// The host has to end it, because the only CPU lets nothing in.
#[guest_test(hidden, timeout = 3, smp = 1)]
fn e_hangs_without_interrupts() {
    pr_info!("self-test: in e");
    interrupts::disable();
    loop {
        hint::spin_loop();
    }
}

/// All CPUs are idle meanwhile.
#[guest_test(hidden, timeout = 3)]
fn e_sleeps() {
    pr_info!("self-test: in e");
    sleep_ns(u64::MAX);
}

#[guest_test(hidden, should_panic = "as it should")]
fn f_panics_as_it_should() {
    panic!("as it should");
}

#[guest_test(hidden, should_panic = "one thing")]
fn g_panics_for_another_reason() {
    panic!("another thing");
}

#[guest_test(hidden, should_panic = "a panic")]
fn h_does_not_panic_though_it_should() {}

#[guest_test(hidden)]
fn i_passes() {
    pr_info!("self-test: in i");
}
