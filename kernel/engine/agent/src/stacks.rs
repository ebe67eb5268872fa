//! Call stacks of hits: the helpers that take them.
//!
//! A walk begins at the probed instruction with the registers of the probe, so it sees neither the
//! hit nor the program. It goes up by the table of [`unwind::fast`], which is made when the first
//! program that takes stacks is loaded. A return address that a return probe has borrowed is shown
//! as the true one; the list of the task's instances has it.
//!
//! A walk crosses interrupts and exceptions. It ends at ring 3, at the first function of a task,
//! and at code that the table does not describe. The stubs and trampolines of the probes are such
//! code, because their frames cannot be told from the table alone. The function where a walk ends
//! is its last frame.
//!
//! The stack of the program in ring 3 is another walk, from the registers with which the task has
//! entered the kernel. It goes by frame pointers, with which the user programs are built.
//!
//! # Invariants
//! FRAMES-1. A walk reads only from the stack pointer up to the end of the stack that it is in
//!     (FAST-2). Stacks are mapped to their end, so no read faults.
//!
//! # Contexts
//! [`StackTable::ready`]: tasks that may sleep. The helpers: any, with the CPU kept, like all
//! helpers. They write the frames to their own stack, 1 KiB.
//!
//! # Memory ordering
//! The table is published with Release and loaded with Acquire. It is never changed or freed.

use alloc::boxed::Box;
use core::{
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::null_mut,
    slice,
    sync::atomic::{AtomicPtr, Ordering},
};

use bpf::USER_STACK;
use bpf_compiler::Sample;
use fallible::try_box;
use lock_api::Mutex;
use trace_maps::{MAX_FRAMES, Stacks};
use unwind::fast::{FastTable, Found, Walker};

use crate::{
    Agent,
    facts::NoTable,
    nofault::{self, Space},
    records,
};

/// No frame could be taken: EFAULT, as a program sees it.
const NO_FRAME: i64 = -14;
/// There is no room for another stack: E2BIG.
const NO_ROOM: i64 = -7;

/// What stacks are walked with.
pub struct StackTable<A: Agent> {
    /// Null before it is made.
    table: AtomicPtr<FastTable>,
    making: Mutex<A::RawMutex, ()>,
    agent: PhantomData<fn(A)>,
}

impl<A: Agent> StackTable<A> {
    pub(crate) const fn new() -> Self {
        Self {
            table: AtomicPtr::new(null_mut()),
            making: Mutex::from_raw(lock_api::RawMutex::INIT, ()),
            agent: PhantomData,
        }
    }

    /// Makes the table, if there is none. Before the first program that takes stacks can run.
    ///
    /// # Errors
    /// [`NoTable`]; a later call may succeed if it is memory.
    pub fn ready(&self) -> Result<(), NoTable> {
        let _making = self.making.lock();
        if self.table.load(Ordering::Acquire).is_null() {
            let table = try_box(A::unwind_table()?).map_err(|_| NoTable::OutOfMemory)?;
            let table = Box::leak(table);
            self.table.store(table, Ordering::Release);
        }
        Ok(())
    }

    /// Writes the frames from `sample` on to `to`, as a program takes them. Returns how many. 0
    /// before [`StackTable::ready`].
    ///
    /// # Safety
    /// The registers are those of code that was interrupted on this CPU, and that waits for the
    /// caller.
    pub unsafe fn take(&self, sample: &Sample, to: &mut [u64]) -> usize {
        // SAFETY: 1. is true, 2. is up to the caller.
        unsafe { walk::<A>(sample, 0, to.as_mut_ptr(), to.len()) }
    }

    /// The table, once it is made.
    #[inline(always)]
    fn get(&self) -> Option<&FastTable> {
        // SAFETY: never freed.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }
}

/// [`bpf::Helper::StackId`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn stack_id<A: Agent>(sample: *const Sample, stacks: *const Stacks, flags: u64) -> i64 {
    // SAFETY: a program passes its sample and a map of stacks.
    let (sample, stacks) = unsafe { (&*sample, &*stacks) };
    let mut frames = MaybeUninit::<[u64; MAX_FRAMES]>::uninit();
    let first = frames.as_mut_ptr().cast();
    let most = stacks.max_frames().min(MAX_FRAMES);
    let skip = (flags & 0xff) as usize;
    // SAFETY: there is room for `most` words, and that many at most are written.
    let taken = unsafe {
        let count = match flags & USER_STACK {
            0 => walk::<A>(sample, skip, first, most),
            _ => walk_program::<A>(sample, skip, first, most),
        };
        slice::from_raw_parts(first, count)
    };
    if taken.is_empty() {
        return NO_FRAME;
    }
    match stacks.insert(taken) {
        Ok(number) => number as i64,
        Err(_) => NO_ROOM,
    }
}

/// [`bpf::Helper::CountFrames`].
///
/// # Safety
/// A verified program calls it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn trace_count_frames(stacks: *const Stacks, number: u64) -> u64 {
    // SAFETY: a program passes a map of stacks.
    unsafe { &*stacks }.count(number).unwrap_or(0) as u64
}

/// [`bpf::Helper::RecordStack`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn record_stack<A: Agent>(sample: *const Sample, _ring: u64, flags: u64) -> i64 {
    // SAFETY: a program passes its sample.
    let sample = unsafe { &*sample };
    let mut frames = MaybeUninit::<[u64; MAX_FRAMES]>::uninit();
    let first = frames.as_mut_ptr().cast();
    // SAFETY: there is room for so many words, and those that are counted are written.
    let taken = unsafe {
        let count = walk::<A>(sample, 0, first, MAX_FRAMES);
        slice::from_raw_parts(first, count)
    };
    records::write_stack::<A>(taken, flags as u8);
    0
}

/// Writes the frames from `sample` on, without the first `skip`, to `to`. Returns how many, at most
/// `most`.
///
/// # Safety
/// 1. `to` has room for `most` words.
/// 2. The registers are those of code that was interrupted on this CPU, and that waits for the
///    caller.
#[inline(always)]
unsafe fn walk<A: Agent>(sample: &Sample, skip: usize, to: *mut u64, most: usize) -> usize {
    let Some(table) = A::tracing().stacks.get() else {
        return 0;
    };
    // A CPU that ran a program has no call of the kernel. A program that jumps to an address of the
    // kernel may be interrupted there, on its own stack.
    if sample.ip < A::USER_END || sample.sp < A::USER_END {
        return 0;
    }
    let mut place = Place {
        walker: Walker {
            ip: sample.ip,
            sp: sample.sp,
            bp: sample.bp,
            interrupted: true,
        },
        end: A::stack_end(sample.sp),
    };
    let mut skipped = 0;
    for _ in 0..skip {
        // SAFETY: the registers are real by 2.
        match unsafe { place.above::<A>(table, &raw mut skipped) } {
            Some(above) => place = above,
            None => return 0,
        }
    }
    if most == 0 {
        return 0;
    }
    // Counts up to 0, so that no register is needed for `most`.
    let end = to.wrapping_add(most);
    let mut next = (most as isize).wrapping_neg();
    let note = |ip: u64, next: &mut isize| {
        // SAFETY: there is room by 1. Volatile, so that the compiler makes it no call of `memcpy`.
        unsafe { end.wrapping_offset(*next).write_volatile(ip) };
        *next = next.wrapping_add(1);
        *next != 0
    };
    let mut has_room = note(place.walker.ip, &mut next);
    // SAFETY: the registers are real by 2.
    if has_room && unsafe { place.leave_entry(table) } {
        has_room = note(place.walker.ip, &mut next);
    }
    while has_room {
        // SAFETY: the registers are real by 2.
        unsafe { place.climb(table, |ip| note(ip, &mut next)) };
        if next == 0 || place.walker.ip == 0 {
            break;
        }
        let last = end.wrapping_offset(next).wrapping_sub(1);
        // SAFETY: the registers are real by 2, and the last frame was written above.
        match unsafe { place.above::<A>(table, last) } {
            Some(above) => place = above,
            None => break,
        }
        has_room = note(place.walker.ip, &mut next);
    }
    let count = most.wrapping_add_signed(next);
    // The end of a chain is no frame.
    if place.walker.ip == 0 {
        return count.wrapping_sub(1);
    }
    if next == 0 && !table.usual().contains(place.walker.ip) {
        let mut last = place;
        // SAFETY: as above.
        unsafe { last.is_borrowed::<A>(end.wrapping_sub(1)) };
    }
    count
}

/// Writes the frames of the program in ring 3, without the first `skip`, to `to`, and after them
/// the two words of the task's name. Returns how many words, at most `most`; none if the task has
/// no program, or if no frame is left.
///
/// The walk goes by frame pointers, from where the program entered the kernel. At the first
/// instruction of a function the kernel may know where the return address is. A function that was
/// interrupted later, but before it had set up its frame pointer, is there, and its caller is not.
///
/// # Safety
/// The same as for [`walk`].
#[inline(always)]
unsafe fn walk_program<A: Agent>(sample: &Sample, skip: usize, to: *mut u64, most: usize) -> usize {
    let Some(start) = A::program_frame(sample) else {
        return 0;
    };
    let (mut ip, mut bp) = (start.ip, start.bp);
    let mut return_slot = start.return_slot;
    let most_frames = most.wrapping_sub(2);
    if most < 3 {
        return 0;
    }
    let mut left = skip;
    let mut count = 0_usize;
    while count < most_frames {
        if left == 0 {
            // SAFETY: there is room by 1. Volatile, so that the compiler makes it no call.
            unsafe { to.wrapping_add(count).write_volatile(ip) };
            count = count.wrapping_add(1);
        } else {
            left = left.wrapping_sub(1);
        }
        if let Some(slot) = return_slot.take() {
            let mut found = 0_u64;
            // SAFETY: there are so many bytes.
            if unsafe { nofault::copy::<A>(Space::User, (&raw mut found).cast(), slot, 8) } {
                ip = A::program_return_address(slot, found);
                continue;
            }
        }
        let mut frame = [0_u64; 2];
        let (room, bytes) = ((&raw mut frame).cast(), size_of_val(&frame) as u64);
        // SAFETY: there are so many bytes.
        if bp == 0 || !unsafe { nofault::copy::<A>(Space::User, room, bp, bytes) } {
            break;
        }
        let [above, caller] = frame;
        if caller == 0 {
            break;
        }
        let caller = A::program_return_address(bp.wrapping_add(8), caller);
        // Frames lie above those that they have called, so the walk ends.
        ip = caller;
        bp = if above > bp { above } else { 0 };
    }
    if count == 0 {
        return 0;
    }
    for word in A::task_name() {
        // SAFETY: as above; the two words have been left free.
        unsafe { to.wrapping_add(count).write_volatile(word) };
        count = count.wrapping_add(1);
    }
    count
}

/// A place in a walk.
#[derive(Clone, Copy)]
struct Place {
    walker: Walker,
    /// The end of its stack, or 0.
    end: u64,
}

impl Place {
    /// Goes from the first instruction of a function to its caller ([`Walker::leave_entry`]).
    ///
    /// # Safety
    /// The walk began with the registers of interrupted code of this CPU, which waits.
    #[inline(always)]
    unsafe fn leave_entry(&mut self, table: &FastTable) -> bool {
        // SAFETY: see FRAMES-1.
        let read = |address: u64| unsafe { (address as *const u64).read_volatile() };
        self.walker.leave_entry(table, self.end, read)
    }

    /// Goes up through callers, as long as they are found as most are ([`Walker::climb`]).
    ///
    /// # Safety
    /// The same as above.
    #[inline(always)]
    unsafe fn climb(&mut self, table: &FastTable, found: impl FnMut(u64) -> bool) {
        // SAFETY: see FRAMES-1.
        let read = |address: u64| unsafe { (address as *const u64).read_volatile() };
        if !self.walker.interrupted {
            self.walker.climb(table, self.end, read, found);
        }
    }

    /// The frame above. None: there is none. Writes the true address to `frame`, where this place
    /// is kept, if it is a borrowed one.
    ///
    /// # Safety
    /// The same as above, and `frame` may be written.
    #[inline(never)]
    unsafe fn above<A: Agent>(mut self, table: &FastTable, frame: *mut u64) -> Option<Self> {
        // SAFETY: see FRAMES-1.
        let read = |address: u64| unsafe { (address as *const u64).read_volatile() };
        let mut found = self.walker.step(table, self.end, read);
        // SAFETY: by the contract.
        if found == Found::Nothing && unsafe { self.is_borrowed::<A>(frame) } {
            found = self.walker.step(table, self.end, read);
        }
        if found == Found::Interrupted {
            self.end = A::stack_end(self.walker.sp);
        }
        // The end of a chain has no upper half.
        (found != Found::Nothing && self.walker.ip >> 63 != 0).then_some(self)
    }

    /// Whether this is the address of a trampoline. If so, it is replaced by the true one, here and
    /// in `frame`.
    ///
    /// # Safety
    /// `frame` may be written.
    unsafe fn is_borrowed<A: Agent>(&mut self, frame: *mut u64) -> bool {
        if self.walker.interrupted {
            return false;
        }
        let slot = self.walker.sp.wrapping_sub(8);
        let address = A::probes().return_address(A::task_key(), slot, self.walker.ip);
        let is_borrowed = address != self.walker.ip;
        if is_borrowed {
            self.walker.ip = address;
            // SAFETY: by the contract.
            unsafe { frame.write_volatile(address) };
        }
        is_borrowed
    }
}
