//! The waits of the kernel (`text_poke.rs`): a task that waits, and another CPU with its
//! interrupts.

use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::{share, start};
use crate::{
    arch::{idt::vector::PROBES_SYNC, percpu::become_cpu, smp},
    memory::Content,
    stand_ins::Places,
    text_poke,
};

struct World {
    /// A byte of text.
    text: AtomicU64,
    /// The value that a hit finds: 1, or 0 once it was unpublished.
    published: AtomicBool,
    /// A slot.
    slot: Content,
    waited: AtomicBool,
}

/// The world of an execution, all of its atomics touched. The calling thread is CPU 0.
fn world() -> &'static World {
    let world = share(World {
        text: AtomicU64::new(0),
        published: AtomicBool::new(true),
        slot: Content::new(),
        waited: AtomicBool::new(false),
    });
    smp::init();
    world.text.load(Relaxed);
    world.published.load(Relaxed);
    world.waited.load(Relaxed);
    for pending in &smp::PENDING[..smp::online_cpus()] {
        pending.load(Relaxed);
    }
    text_poke::hit_waits();
    become_cpu(1);
    text_poke::on_ipi(Places::OUTSIDE);
    become_cpu(0);
    world
}

/// Where interrupts are taken: the IPI is handled if it has come.
fn window(ip: u64) {
    if smp::PENDING[1].swap(false, Acquire) {
        text_poke::on_ipi(ip);
    }
}

/// The rest of the CPU's time: nothing but interrupts, until the other one has waited.
fn idle(world: &World) {
    window(Places::OUTSIDE);
    while !world.waited.load(Relaxed) {
        smp::idle();
        window(Places::OUTSIDE);
    }
}

fn end(world: &World) {
    // Says nothing to the other CPU but that it can end.
    world.waited.store(true, Relaxed);
    smp::wake();
}

/// Text is stored to. After the wait the other CPU executes the new bytes, also if it answers to
/// the IPI of an earlier wait.
pub(super) fn cores() {
    let world = world();
    let cpu = start(move || {
        become_cpu(1);
        for _ in 0..2 {
            window(Places::OUTSIDE);
            if world.waited.load(Relaxed) {
                assert_eq!(world.text.load(Relaxed), 1, "old text after the wait");
            }
        }
        idle(world);
    });
    smp::send_ipi(1, PROBES_SYNC);
    world.text.store(1, Relaxed);
    text_poke::synchronize_cores();
    end(world);
    cpu.join().expect("no panic");
}

/// A hit uses the value that it found until the CPU is out of the slot. After the wait the slot
/// belongs to its owner.
pub(super) fn hits() {
    let world = world();
    let cpu = start(move || {
        become_cpu(1);
        window(Places::OUTSIDE);
        hit(world);
        idle(world);
    });
    give_slot_away(world, text_poke::synchronize_hits);
    cpu.join().expect("no panic");
}

/// The same where the wait is for what was removed. An interrupt in the slot of a site that is in
/// the table answers the waits that began before. Its site may leave while it is under way.
pub(super) fn removed() {
    let world = world();
    smp::send_ipi(1, PROBES_SYNC);
    let cpu = start(move || {
        become_cpu(1);
        hit(world);
        idle(world);
    });
    give_slot_away(world, text_poke::synchronize_settled);
    cpu.join().expect("no panic");
}

fn give_slot_away(world: &World, wait: fn()) {
    world.published.store(false, Release);
    wait();
    world.slot.write(77);
    end(world);
}

fn hit(world: &'static World) {
    // The breakpoint exception has interrupts off.
    if world.published.load(Relaxed) {
        let slot = Places::slot(&world.published);
        window(slot);
        assert_eq!(world.slot.read(), 0);
        window(slot);
    }
}
