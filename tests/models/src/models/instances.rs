//! The instance list of borrowed return addresses: free lists, tasks' cells, holders of
//! unregistered kretprobes.
//!
//! Two CPUs take and give back instances while a kretprobe goes. An instance is on its free list,
//! on a task's list or in one CPU's hands, and a holder is freed when all are back and no hit is
//! under way.

use core::{
    alloc::Layout,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use super::{Cpu, share, start};
use crate::{
    data::{
        instance::{Holder, Instance, TaskTable, give_back, oldest},
        kretprobe::KretprobeCore,
    },
    memory::{Content, keep_zeroed},
    registry::in_flight::InFlight,
};

/// A holder and, for each of its instances, the stand-in for the instance's fields.
struct Calls {
    holder: *mut Holder,
    contents: Vec<(*mut Instance, Content)>,
}

impl Calls {
    fn new(kretprobe: *const KretprobeCore, count: usize) -> Self {
        let holder = Holder::try_new(kretprobe, || 0, count, Layout::new::<()>()).expect("memory");
        let mut calls = Self {
            holder,
            contents: Vec::new(),
        };
        while let Some(instance) = calls.take() {
            calls.contents.push((instance, Content::new()));
        }
        for (instance, _) in &calls.contents {
            calls.give_back(*instance);
        }
        // SAFETY: just made. Touches its atomics.
        unsafe {
            (*holder).kretprobe.load(Relaxed);
            (*holder).next.load(Relaxed);
        }
        calls
    }

    fn take(&self) -> Option<*mut Instance> {
        // SAFETY: the holder lives as long as its calls.
        let instance = unsafe { (*self.holder).take() };
        (!instance.is_null()).then_some(instance)
    }

    fn give_back(&self, instance: *mut Instance) {
        // SAFETY: in the caller's hands.
        unsafe { give_back(instance) };
    }

    fn content(&self, instance: *mut Instance) -> &Content {
        let found = self.contents.iter().find(|(at, _)| *at == instance);
        &found.expect("one of the holder's").1
    }

    /// Changes the fields of an instance in hand, twice. No other thread may do so meanwhile.
    fn fill(&self, instance: *mut Instance, value: u64) {
        self.content(instance).write(value);
        assert_eq!(self.content(instance).read(), value);
    }

    fn count(&self) -> usize {
        let mut taken = Vec::new();
        while let Some(instance) = self.take() {
            assert!(!taken.contains(&instance), "an instance is there twice");
            taken.push(instance);
        }
        let count = taken.len();
        taken
            .into_iter()
            .for_each(|instance| self.give_back(instance));
        count
    }
}

fn task_table() -> &'static TaskTable {
    // SAFETY: a table of cells that were never claimed.
    unsafe { keep_zeroed() }
}

/// Tasks whose searches begin at the same cell.
fn neighbours() -> [u64; 4] {
    // Tasks differ in the bits from the fourth on.
    let home = |task: &u64| (task >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 53;
    let mut tasks = (1..).map(|n| n << 4).filter(|task| home(task) == 3);
    [(); 4].map(|()| tasks.next().expect("one in 2048"))
}

/// Two CPUs take one or two instances each, of two, use them and give them back.
pub(super) fn free_list() {
    let calls = share(Calls::new(core::ptr::null(), 2));
    let other = calls;
    let second = start(move || {
        let first = other.take();
        let second = other.take();
        for instance in [first, second].into_iter().flatten() {
            other.fill(instance, 2);
            other.give_back(instance);
        }
    });
    if let Some(instance) = calls.take() {
        calls.fill(instance, 1);
        calls.give_back(instance);
    }
    second.join().expect("no panic");
    assert_eq!(calls.count(), 2, "an instance was lost");
}

/// While one CPU takes an instance, another has taken it, hangs it on a chain, and gives it back.
pub(super) fn reused() {
    let calls = share(Calls::new(core::ptr::null(), 2));
    let other = calls;
    let second = start(move || {
        let Some(instance) = other.take() else { return };
        // On a chain it has another link.
        // SAFETY: in hand.
        unsafe { (*instance).next.store(oldest(), Relaxed) };
        other.fill(instance, 2);
        other.give_back(instance);
    });
    let taken = [calls.take(), calls.take()];
    for instance in taken.into_iter().flatten() {
        assert_ne!(
            instance,
            oldest(),
            "a link of a chain was taken for a free instance"
        );
        calls.fill(instance, 1);
    }
    for instance in taken.into_iter().flatten() {
        calls.give_back(instance);
    }
    second.join().expect("no panic");
    assert_eq!(calls.count(), 2, "an instance was lost");
}

/// Two tasks whose searches begin at the same cell claim and release cells on two CPUs. A third
/// task keeps its own cell meanwhile.
pub(super) fn cells() {
    let [first, second, third, none] = neighbours();
    let table = task_table();
    for task in [first, second, third] {
        table.claim(task).expect("room");
    }
    // Touches the cell after theirs.
    assert!(table.find(none).is_none());
    table.release(first);
    table.release(third);

    let other = table;
    let cpu = start(move || {
        let cell = other.find(first).or_else(|| other.claim(first));
        let cell = cell.expect("room");
        assert_eq!(cell.task(), first);
        assert!(core::ptr::eq(other.find(first).expect("its own"), cell));
        other.release(first);
    });
    let kept = core::ptr::from_ref(table.find(second).expect("its own"));
    let cell = table.find(third).or_else(|| table.claim(third));
    let cell = cell.expect("room");
    assert_eq!(cell.task(), third, "two tasks in one cell");
    assert!(core::ptr::eq(table.find(third).expect("its own"), cell));
    assert!(core::ptr::eq(table.find(second).expect("its own"), kept));
    cpu.join().expect("no panic");
    assert!(table.find(first).is_none(), "released");
    assert!(table.find(third).is_some());
}

/// A task dies with a call in flight. Its successor on the CPU gives the instance back, and another
/// CPU takes it. Meanwhile a third one walks the dead task's stack.
pub(super) fn flushed() {
    struct World {
        table: &'static TaskTable,
        calls: Calls,
        gone: AtomicBool,
    }
    let [task, neighbour, ..] = neighbours();
    let world = share(World {
        table: task_table(),
        calls: Calls::new(core::ptr::null(), 1),
        gone: AtomicBool::new(false),
    });
    let cell = world.table.claim(task).expect("room");
    // Touches the cell after its own.
    assert!(world.table.find(neighbour).is_none());
    world.gone.load(Relaxed);
    let instance = world.calls.take().expect("one");
    // SAFETY: in hand, and no thread runs yet.
    unsafe {
        (*instance).set_slot(0x1000, false);
        (*instance).ret_addr = 0x2000;
        (*instance).next.store(oldest(), Relaxed);
    }
    cell.head.store(instance, Release);

    let walker = world;
    let walk = start(move || {
        let address = walker.table.return_address(task, 0x1000);
        assert!(matches!(address, None | Some(0x2000)));
    });
    let taker = world;
    let hit = start(move || {
        if let Some(instance) = taker.calls.take() {
            taker.calls.fill(instance, 2);
            taker.calls.give_back(instance);
        }
    });
    // The task's last change of its instance, before its successor runs.
    world.calls.content(instance).write(1);
    world.table.release(task);
    hit.join().expect("no panic");
    walk.join().expect("no panic");
    assert_eq!(world.calls.count(), 1, "an instance was lost");
    assert!(world.table.find(task).is_none());
}

/// A kretprobe is unregistered while a CPU begins a call of it, which returns later. The
/// kretprobe's memory belongs to the owner again after the grace period. That of the holder is free
/// once the call has returned.
pub(super) fn reclaimed() {
    struct World {
        kretprobe: KretprobeCore,
        /// All that its return handler reads.
        content: Content,
        /// The holder that a hit finds, as if in the address table.
        site: AtomicPtr<Holder>,
        cpu: Cpu,
        handled: AtomicU64,
    }
    let world = share(World {
        kretprobe: KretprobeCore::new(None, Layout::new::<()>()),
        content: Content::new(),
        site: AtomicPtr::new(core::ptr::null_mut()),
        cpu: Cpu::new(),
        handled: AtomicU64::new(0),
    });
    let holder = Calls::new(&world.kretprobe, 1).holder;
    world.site.store(holder, Relaxed);
    world.cpu.touch();
    world.handled.load(Relaxed);

    let cpu = world;
    let calls = start(move || {
        let instance = cpu.cpu.hit(|| {
            // SAFETY: freed after a grace period since it was taken out of reach.
            let holder = unsafe { cpu.site.load(Acquire).as_ref() }?;
            // SAFETY: as above.
            unsafe { holder.take().as_mut() }
        });
        let Some(instance) = instance else { return };
        // The call returns.
        cpu.cpu.hit(|| {
            // SAFETY: a holder lives as long as one of its instances is out. A kretprobe lives
            // until a grace period has passed since it was taken out of its holder.
            if unsafe { (*instance.holder).kretprobe() }.is_some() {
                assert_eq!(cpu.content.read(), 0);
                cpu.handled.store(1, Relaxed);
            }
            // SAFETY: in hand.
            unsafe { give_back(instance) };
        });
    });

    world.site.store(core::ptr::null_mut(), Release);
    // SAFETY: not freed before all calls are back.
    unsafe { (*holder).retire() };
    world.cpu.grace();
    world.content.write(77);
    let mut in_flight = InFlight::new();
    // SAFETY: as the contract says: cleared, and the grace period is over.
    unsafe { in_flight.push(core::ptr::NonNull::new(holder).expect("a holder")) };
    while in_flight.free_returned() > 0 {
        loom::thread::yield_now();
    }
    assert_eq!(in_flight.free_returned(), 0);
    assert!(crate::memory::is_freed(holder.addr()));
    calls.join().expect("no panic");
}
