//! Counters: a reader, while the counter that it reads changes hands.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{share, start};
use crate::data::{
    counters::{Counter, FreeCounters},
    per_cpu::PerCpu,
};

struct World {
    first: Counter,
    second: Counter,
    cpu: PerCpu,
}

/// A probe that has counted 1 is unregistered. Its counter goes to another probe, which counts up
/// to 2. A reader that asks for the count of the first probe gets 1.
pub(super) fn given_back() {
    let mut free = FreeCounters::new();
    let cpu = PerCpu {
        counter_part: AtomicU64::new(0),
    };
    let world = share(World {
        first: Counter::new(),
        second: Counter::new(),
        cpu,
    });
    world.second.start(free.take(1).expect("memory"), 0);
    world.second.get();
    free.give_back(world.second.stop().expect("started"));
    world.first.start(free.take(1).expect("memory"), 0);
    world.first.count(&world.cpu);
    free.give_back(world.first.stop().expect("started"));
    world.first.start(free.take(1).expect("memory"), 0);
    world.first.count(&world.cpu);
    assert_eq!(world.first.get(), 1);
    world.cpu.counter_part.load(Relaxed);

    let reader = world;
    let asks = start(move || {
        for _ in 0..2 {
            assert_eq!(reader.first.get(), 1);
        }
    });
    free.give_back(world.first.stop().expect("started"));
    world.second.start(free.take(1).expect("memory"), 0);
    world.second.count(&world.cpu);
    world.second.count(&world.cpu);
    asks.join().expect("no panic");
    assert_eq!((world.first.get(), world.second.get()), (1, 2));
}
