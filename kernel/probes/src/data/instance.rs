//! Return instances: the list of borrowed return addresses.
//!
//! A kretprobe makes a call come back through `kretprobe_trampoline`: it overwrites the return
//! address on the call's stack. Each call whose address is so borrowed has one [`Instance`]. It
//! holds the true address, the return slot (the word of the stack that held it) and, through its
//! [`Holder`], the kretprobe to tell. Nothing else remembers the address: if an instance is lost,
//! its task is lost.
//!
//! ```text
//!   free --take (entry hit)--> in hand --push--> on its task's list --trampoline or flush--> free
//!                                 \--entry handler declines--> free
//! ```
//!
//! # Invariants
//! INSTANCE-1. An instance is in one place: its holder's free list, one task's instance list, or
//!     one CPU's hands.
//! INSTANCE-2. An instance list is newest first. On one stack that means the deepest call first.
//! INSTANCE-3. While an instance is on a list, its return slot holds the trampoline's address. The
//!     exception is the time from when it is listed until the hit has written the slot. So code
//!     that finds the trampoline in a slot finds the instance.
//! INSTANCE-4. A holder is freed only when all its instances are on its free list and no hit can be
//!     under way.
//!
//! # Contexts and ordering
//! Taking and giving back run in hits, on any CPU: no lock, no allocation, no wait. A task's
//! [`TaskCell`] is claimed once by compare-and-swap. From then on only that task writes the head of
//! its list, so plain stores are enough, and a stack walk on another CPU reads it with Acquire. An
//! interrupt on top of the task nests strictly: it pops whatever it pushes before it returns. When
//! the task is gone, its successor empties the cell.
//!
//! # Running out
//! If no instance or no cell is free, the call goes on unprobed and the kretprobe's `nmissed`
//! counts it.

use alloc::alloc::{alloc, dealloc};
use core::{
    alloc::Layout,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use crate::{
    data::{free_list::FreeList, kretprobe::KretprobeCore},
    error::ProbeError,
    pt_regs::PtRegs,
};

/// One borrowed return address; the call's private data follows it in memory.
#[repr(C)]
pub struct Instance {
    /// The next older instance of the list, [`OLDEST`] at its end. On the free list: the next one,
    /// or null.
    pub(crate) next: AtomicPtr<Instance>,
    /// Where it belongs. Constant.
    pub(crate) holder: *const Holder,
    /// The true return address.
    pub(crate) ret_addr: u64,
    /// The address of the frame that `kretprobe_trampoline` will build, [`BELOW_SLOT`] bytes below
    /// the return slot; less [`SHARED`] if an older instance of the list has the same slot. The
    /// trampoline compares this with its own stack pointer. If they are equal, this is the only
    /// instance of the call and the stack is aligned, so the fast path may run. And a new call
    /// compares it with its own frame, to see that the newest call is above it.
    pub(crate) return_frame: u64,
}

/// The mark of [`Instance::return_frame`], for slots at even addresses.
pub(crate) const SHARED: u64 = 1;

/// How far the frame of a return is below the return slot.
pub(crate) const BELOW_SLOT: u64 = size_of::<PtRegs>() as u64;

/// An address of a frame or slot, marked or not, as it is without the mark.
#[inline(always)]
const fn unmarked(address: u64) -> u64 {
    address.wrapping_add(SHARED) & !SHARED
}

// SAFETY: an instance points to things that are made for sharing. Its plain fields belong to the
// one owner that INSTANCE-1 names.
unsafe impl Sync for Instance {}

/// The sentinel at the end of every list. It is older than all calls on every stack, so no search
/// tests for null. It is the only one on a list that has no next one.
pub(crate) static OLDEST: Instance = Instance::sentinel(u64::MAX);
/// The sentinel that a CPU without a cell has for its only instance. It looks like an abandoned
/// call, which takes hits off the fast path.
static NO_CALLS: Instance = Instance::sentinel(0);
/// The cell of a CPU whose task has none.
pub(crate) static NO_CELL: TaskCell = TaskCell {
    task: AtomicU64::new(EMPTY),
    head: AtomicPtr::new((&raw const NO_CALLS).cast_mut()),
};

/// The end of every chain.
pub(crate) const fn oldest() -> *mut Instance {
    (&raw const OLDEST).cast_mut()
}

impl Instance {
    const fn sentinel(return_frame: u64) -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            // So that whoever asks for the probe of a call need not test for the end first.
            holder: &raw const NO_HOLDER,
            ret_addr: 0,
            return_frame,
        }
    }

    /// The return slot; if that is at an odd address, the next even one.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u64 {
        unmarked(self.return_frame.wrapping_add(BELOW_SLOT))
    }

    /// Whether the return address was taken from `slot`. Slots do not overlap, so the lowest bit
    /// tells no two apart.
    #[inline(always)]
    pub(crate) fn is_at(&self, slot: u64) -> bool {
        self.slot() == unmarked(slot)
    }

    /// Notes the return slot, and whether an older instance of the list has the same. In that case
    /// its address is even.
    #[inline(always)]
    pub(crate) fn set_slot(&mut self, slot: u64, is_shared: bool) {
        let mark = if is_shared { SHARED } else { 0 };
        self.return_frame = slot.wrapping_sub(BELOW_SLOT).wrapping_sub(mark);
    }

    /// The instance that a link of a list leads to. None at the list's end.
    ///
    /// # Safety
    /// `link` was read from an instance list, and the instance cannot be freed meanwhile
    /// (INSTANCE-4).
    #[inline(always)]
    pub(crate) unsafe fn at<'a>(link: *mut Self) -> Option<&'a mut Self> {
        if core::ptr::eq(link, &OLDEST) {
            return None;
        }
        // SAFETY: by the contract.
        unsafe { link.as_mut() }
    }
}

/// The instances of one registration of a kretprobe. A holder outlives its registration while calls
/// are in flight.
#[repr(C)]
pub struct Holder {
    free: FreeList,
    /// The kretprobe, or [`RETIRED`] once it was unregistered: calls in flight then return quietly.
    pub(crate) kretprobe: AtomicPtr<KretprobeCore>,
    /// The task that runs on this CPU.
    current_task: fn() -> u64,
    /// The next of those holders whose calls are still in flight (`registry/in_flight.rs`).
    pub(crate) next: AtomicPtr<Holder>,
    count: usize,
    layout: Layout,
}

// SAFETY: the free list is made for sharing, the rest is atomic or constant.
unsafe impl Sync for Holder {}

/// A holder without instances.
pub(crate) static NO_HOLDER: Holder = Holder {
    free: FreeList::new(),
    kretprobe: AtomicPtr::new((&raw const RETIRED).cast_mut()),
    current_task: || 0,
    next: AtomicPtr::new(null_mut()),
    count: 0,
    layout: Layout::new::<Holder>(),
};

/// Stands for a kretprobe that was unregistered, so that a return needs no test. Its handler and
/// its routine do nothing. It has a counter from when the first holder is made.
pub(crate) static RETIRED: KretprobeCore = KretprobeCore::retired();

impl Holder {
    /// Makes a holder with `count` instances, each followed by data of layout `data`.
    /// `current_task` tells the task that runs on this CPU.
    pub(crate) fn try_new(
        kretprobe: *const KretprobeCore,
        current_task: fn() -> u64,
        count: usize,
        data: Layout,
    ) -> Result<*mut Self, ProbeError> {
        let overflow = |_| ProbeError::OutOfMemory;
        let (each, _) = Layout::new::<Instance>().extend(data).map_err(overflow)?;
        let each = each.pad_to_align();
        let size = each
            .size()
            .checked_mul(count)
            .ok_or(ProbeError::OutOfMemory)?;
        let all = Layout::from_size_align(size, each.align()).map_err(overflow)?;
        let (layout, first) = Layout::new::<Self>().extend(all).map_err(overflow)?;
        // SAFETY: the layout is not empty: it begins with a holder.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            return Err(ProbeError::OutOfMemory);
        }
        let holder: *mut Self = memory.cast();
        // SAFETY: fresh memory of a fitting layout.
        unsafe {
            holder.write(Self {
                free: FreeList::new(),
                kretprobe: AtomicPtr::new(kretprobe.cast_mut()),
                current_task,
                next: AtomicPtr::new(null_mut()),
                count,
                layout,
            });
        }
        for n in 0..count {
            // SAFETY: inside the layout, and aligned for an instance by `pad_to_align`.
            unsafe {
                let instance: *mut Instance = memory.add(first + n * each.size()).cast();
                instance.write(Instance {
                    next: AtomicPtr::new(null_mut()),
                    holder,
                    ret_addr: 0,
                    return_frame: 0,
                });
                (*holder).free.push(instance);
            }
        }
        Ok(holder)
    }

    /// The task whose calls are handled on this CPU. In handlers.
    pub(crate) fn current_task(&self) -> u64 {
        (self.current_task)()
    }

    /// The kretprobe; none once it was unregistered. Any context that holds an instance.
    #[inline(always)]
    pub(crate) fn kretprobe(&self) -> Option<&KretprobeCore> {
        Some(self.kretprobe_or_retired()).filter(|kretprobe| !core::ptr::eq(*kretprobe, &RETIRED))
    }

    /// The same; [`RETIRED`] once it was unregistered.
    #[inline(always)]
    pub(crate) fn kretprobe_or_retired(&self) -> &KretprobeCore {
        // SAFETY: never null, and a kretprobe that a holder names is freed only after a grace
        // period.
        unsafe { &*self.kretprobe.load(Ordering::Acquire) }
    }

    /// Has calls in flight return quietly from now on.
    pub(crate) fn retire(&self) {
        self.kretprobe
            .store((&raw const RETIRED).cast_mut(), Ordering::Release);
    }

    /// Takes a free instance, or null. Any context.
    #[inline(always)]
    pub(crate) fn take(&self) -> *mut Instance {
        self.free.pop()
    }

    /// Frees `holder` if all its instances are back, and tells so.
    ///
    /// # Safety
    /// 1. The kretprobe was cleared and a grace period is over since: none is taken any more.
    /// 2. On `true` the pointer is dead.
    pub(crate) unsafe fn try_free(holder: *mut Self) -> bool {
        // SAFETY: live until freed here. None is taken any more (1).
        let (layout, all_back) =
            unsafe { ((*holder).layout, (*holder).free.len() == (*holder).count) };
        if all_back {
            // SAFETY: allocated with this layout. The exchange that brought the last instance back
            // was the last access.
            unsafe { dealloc(holder.cast(), layout) };
        }
        all_back
    }
}

/// Gives an instance back to its holder. Any context.
///
/// # Safety
/// The caller has the instance in hand (INSTANCE-1) and does not use it afterwards.
#[inline(always)]
pub(crate) unsafe fn give_back(instance: *mut Instance) {
    // SAFETY: in hand, so it and its holder are live (INSTANCE-4).
    unsafe { (*(*instance).holder).free.push(instance) };
}

/// A task's cell in the [`TaskTable`]: it begins the task's instance list.
#[repr(C)]
pub struct TaskCell {
    /// The task, or one of the two marks below.
    task: AtomicU64,
    /// The newest live instance of the task, or [`OLDEST`]. Null in a cell that was never claimed.
    pub(crate) head: AtomicPtr<Instance>,
}

impl TaskCell {
    /// The task that has claimed the cell.
    #[inline(always)]
    pub(crate) fn task(&self) -> u64 {
        self.task.load(Ordering::Relaxed)
    }

    /// Whether this stands for the cell that a task could not get.
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        core::ptr::eq(self, &NO_CELL)
    }
}

/// Never used since the start: a search ends here.
const EMPTY: u64 = 0;
/// Given back: a search goes on, a claim may take it.
const RELEASED: u64 = 1;
/// The number of tasks that can be return-probed at once; a power of two.
pub const TASK_CELLS: usize = 2048;

/// The live instances of all tasks: an open-addressed table keyed by task.
pub struct TaskTable {
    cells: [TaskCell; TASK_CELLS],
}

impl Default for TaskTable {
    fn default() -> Self {
        Self::new()
    }
}

impl TaskTable {
    /// A table without tasks.
    pub const fn new() -> Self {
        Self {
            cells: [const {
                TaskCell {
                    task: AtomicU64::new(EMPTY),
                    head: AtomicPtr::new(null_mut()),
                }
            }; TASK_CELLS],
        }
    }

    /// The cells in the order in which a search for `task` visits them.
    fn search(&self, task: u64) -> impl Iterator<Item = &TaskCell> {
        let home =
            (task >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - TASK_CELLS.trailing_zeros());
        (0..TASK_CELLS).map(move |n| &self.cells[(home as usize + n) % TASK_CELLS])
    }

    /// The cell of `task`, if it has claimed one. Any context.
    pub(crate) fn find(&self, task: u64) -> Option<&TaskCell> {
        self.search(task)
            .map_while(|cell| match cell.task.load(Ordering::Acquire) {
                EMPTY => None,
                owner => Some((owner, cell)),
            })
            .find(|(owner, _)| *owner == task)
            .map(|(_, cell)| cell)
    }

    /// Claims a cell for a task that has none. None is free when there are too many tasks. Any
    /// context.
    pub(crate) fn claim(&self, task: u64) -> Option<&TaskCell> {
        let cell = self.search(task).find(|cell| {
            let owner = cell.task.load(Ordering::Relaxed);
            owner <= RELEASED
                && cell
                    .task
                    .compare_exchange(owner, task, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })?;
        cell.head.store(oldest(), Ordering::Release);
        Some(cell)
    }

    /// Gives back the instances of a task that will never run again, and its cell. Any context,
    /// once for each task.
    pub(crate) fn release(&self, task: u64) {
        let Some(cell) = self.find(task) else { return };
        let mut at = cell.head.swap(oldest(), Ordering::Acquire);
        // SAFETY: the task is gone, so its chain is in this CPU's hands.
        while let Some(instance) = unsafe { Instance::at(at) } {
            at = instance.next.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { give_back(instance) };
        }
        cell.task.store(RELEASED, Ordering::Release);
    }

    /// The true return address of the call of `task` whose return slot is at `slot`. Any context.
    /// For a task that runs on another CPU the answer may be outdated.
    pub fn return_address(&self, task: u64, slot: u64) -> Option<u64> {
        let mut at = self.find(task)?.head.load(Ordering::Acquire);
        // A running task may change its list under a foreign reader, so the walk is bounded.
        for _ in 0..4096 {
            // SAFETY: instances are memory of their holder, which is freed only after a grace
            // period.
            let instance = unsafe { Instance::at(at) }?;
            if instance.is_at(slot) {
                return Some(instance.ret_addr);
            }
            at = instance.next.load(Ordering::Acquire);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{collections::HashSet, vec::Vec};

    fn holder(count: usize, data: Layout) -> *mut Holder {
        Holder::try_new(&RETIRED, || 0, count, data).unwrap()
    }

    #[test]
    fn a_task_that_was_never_seen_gives_nothing_back() {
        let table = TaskTable::new();
        table.release(0x1230);
        assert_eq!(table.return_address(0x1230, 0x1000), None);
        assert!(table.find(0x1230).is_none(), "nor does it take a place");
    }

    #[test]
    #[cfg_attr(miri, ignore = "a pop is assembly")]
    fn a_holder_gives_out_each_instance_once_and_is_freed_when_all_are_back() {
        let holder = holder(10, Layout::new::<[u64; 3]>());
        // SAFETY: a live holder that only this test uses.
        unsafe {
            let taken: Vec<_> = core::iter::repeat_with(|| (*holder).take())
                .take_while(|i| !i.is_null())
                .collect();
            assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 10);
            for (n, instance) in taken.iter().enumerate() {
                assert!(!Holder::try_free(holder), "freed with {} out", 10 - n);
                give_back(*instance);
            }
            assert!(Holder::try_free(holder));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a pop is assembly")]
    fn instances_are_never_shared_between_threads() {
        let shared = holder(7, Layout::new::<u64>()) as usize;
        std::thread::scope(|scope| {
            for id in 1..=4u64 {
                scope.spawn(move || {
                    let holder = shared as *mut Holder;
                    for _ in 0..50_000 {
                        // SAFETY: the holder lives until the end of the test, and a taken instance
                        // is this thread's.
                        unsafe {
                            let (a, b) = ((*holder).take(), (*holder).take());
                            for i in [a, b].into_iter().filter(|i| !i.is_null()) {
                                (*i).return_frame = id;
                            }
                            for i in [a, b].into_iter().filter(|i| !i.is_null()) {
                                assert_eq!(
                                    core::ptr::read_volatile(&raw const (*i).return_frame),
                                    id
                                );
                                give_back(i);
                            }
                        }
                    }
                });
            }
        });
        // SAFETY: all threads are done.
        assert!(unsafe { Holder::try_free(shared as *mut Holder) });
    }

    #[test]
    fn every_task_keeps_its_own_cell_until_it_is_released() {
        let table = std::boxed::Box::new(TaskTable::new());
        let tasks: Vec<u64> = (0..TASK_CELLS as u64)
            .map(|n| 0xffff_8000_0000_1000 + n * 64)
            .collect();
        for round in 0..3 {
            for task in &tasks {
                assert!(table.find(*task).is_none(), "round {round}");
                let cell = table.claim(*task).expect("room");
                assert!(core::ptr::eq(cell.head.load(Ordering::Relaxed), oldest()));
            }
            assert!(
                table.claim(77).is_none(),
                "a full table has no cell to give"
            );
            for task in &tasks {
                let cell = table.find(*task).unwrap();
                assert_eq!(cell.task.load(Ordering::Relaxed), *task);
            }
            for task in &tasks {
                table.release(*task);
            }
        }
    }

    #[test]
    fn a_stack_walk_finds_the_very_frame_or_none() {
        let table = std::boxed::Box::new(TaskTable::new());
        let mut outer = Instance::sentinel(0);
        let mut inner = Instance::sentinel(0);
        outer.set_slot(0x2000, false);
        inner.set_slot(0x1000, false);
        (outer.ret_addr, inner.ret_addr) = (2, 1);
        outer.next = AtomicPtr::new(oldest());
        inner.next = AtomicPtr::new(&raw mut outer);
        let cell = table.claim(64).expect("room");
        cell.head.store(&raw mut inner, Ordering::Relaxed);
        let found = [0x0ff8, 0x1000, 0x1008, 0x2000, 0x2008].map(|at| table.return_address(64, at));
        assert_eq!(found, [None, Some(1), None, Some(2), None]);
        assert_eq!(table.return_address(80, 0x1000), None);
    }
}
