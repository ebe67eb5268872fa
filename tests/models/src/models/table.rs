//! The address table: a writer and a hit.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use super::{Cpu, Filled, share, start};
use crate::{
    Weakness,
    data::{
        address_table::{AddressTable, Fill},
        no_grace::NoGrace,
    },
    weakness::is_weak,
};

/// An address whose search begins at entry 6 of 8. The first three are neighbours there, so the
/// third one lies at entry 0.
fn keys() -> [u64; 4] {
    let home = |key: &u64| (*key as u32).wrapping_mul(0x9E37_79B1) >> 29;
    let mut keys = (0xffff_ffff_8000_0001..).filter(|key| home(key) == 6);
    [(); 4].map(|()| keys.next().expect("an eighth of all keys"))
}

struct World {
    table: AddressTable,
    sites: [Filled; 4],
    armed: [AtomicBool; 4],
    cpu: Cpu,
}

impl World {
    fn new() -> &'static Self {
        let world = share(Self {
            table: AddressTable::new(),
            sites: keys().map(Filled::new),
            armed: [const { AtomicBool::new(false) }; 4],
            cpu: Cpu::new(),
        });
        world.table.clear();
        world.table.iter().for_each(|_| {});
        for armed in &world.armed {
            armed.load(Relaxed);
        }
        world.cpu.touch();
        world
    }

    fn insert(&self, fill: &mut Fill, n: usize) {
        self.table
            .reserve(fill, 1, || self.cpu.grace())
            .expect("room");
        self.table.insert(fill, &self.sites[n].site);
    }

    /// A breakpoint exception at the address of site `n`. The search in `kprobe_breakpoint` has the
    /// same loads: each entry once, then the key of the site that it points to.
    fn search(&self, n: usize) -> Option<&Filled> {
        // SAFETY: the model's sites live as long as its execution; it notices freed ones itself.
        let grace = unsafe { NoGrace::assume() };
        self.table
            .find(self.sites[n].site.key, grace)
            .map(Filled::of)
    }
}

/// Two sites come at once; the second one's search passes the first one. A CPU that meets a
/// breakpoint finds the site, filled in.
pub(super) fn published() {
    let world = World::new();
    let cpu = world;
    let hits = start(move || {
        for n in [1, 0] {
            // The processor fetches the byte as any load, and the trap does not order it.
            let trapped = cpu.armed[n].load(Acquire);
            let found = cpu.search(n);
            if let Some(site) = found {
                assert_eq!(site.content.read(), n as u64 + 1);
            }
            assert!(!trapped || found.is_some(), "a breakpoint without a site");
        }
    });
    let mut fill = Fill::default();
    for n in 0..2 {
        if is_weak(Weakness::ArmFirst) {
            world.armed[n].store(true, Release);
        }
        world.sites[n].content.write(n as u64 + 1);
        world.insert(&mut fill, n);
        // The stores to text; the waits between them make no hit wait.
        world.armed[n].store(true, Release);
    }
    hits.join().expect("no panic");
}

/// The first of three sites in a run goes, and its memory is used again after the grace period.
/// Searches always find the others.
pub(super) fn removed() {
    let world = World::new();
    let mut fill = Fill::default();
    for n in 0..3 {
        world.insert(&mut fill, n);
    }
    let cpu = world;
    let hits = start(move || {
        cpu.cpu.hit(|| {
            if let Some(site) = cpu.search(0) {
                assert_eq!(site.content.read(), 0);
            }
        });
        cpu.cpu.hit(|| {
            assert!(cpu.search(2).is_some(), "a site was lost");
        });
    });
    world.table.remove(&mut fill, &world.sites[0].site);
    world.cpu.grace();
    world.sites[0].content.write(77);
    world.table.remove(&mut fill, &world.sites[1].site);
    hits.join().expect("no panic");
    assert!(world.search(2).is_some());
}

/// So many sites have gone that the next one makes the table move the rest together.
pub(super) fn swept() {
    let world = World::new();
    let mut fill = Fill::default();
    // Four live ones fill half of the table. Marks of three removed ones then stand before the last
    // one.
    for n in 0..4 {
        world.insert(&mut fill, n);
    }
    for n in 0..3 {
        world.table.remove(&mut fill, &world.sites[n].site);
    }
    let cpu = world;
    let hits = start(move || {
        for _ in 0..2 {
            cpu.cpu.hit(|| {
                assert!(cpu.search(3).is_some(), "a site was lost");
            });
        }
    });
    world
        .table
        .reserve(&mut fill, 3, || world.cpu.grace())
        .expect("room");
    hits.join().expect("no panic");
    for n in 0..3 {
        world.insert(&mut fill, n);
    }
    assert!((0..4).all(|n| world.search(n).is_some()));
}
