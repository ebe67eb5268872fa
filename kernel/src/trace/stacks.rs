//! Call stacks of hits: the helper that takes them, and their text.
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
//! [`ready`] and [`print`]: tasks that may sleep. The helper: any, with the CPU kept, like all
//! helpers. It writes the frames to its own stack, 1 KiB.
//!
//! # Memory ordering
//! The table is published with Release and loaded with Acquire. It is never changed or freed.

use alloc::boxed::Box;
use core::{
    fmt,
    mem::MaybeUninit,
    ptr::null_mut,
    slice,
    sync::atomic::{AtomicPtr, Ordering},
};

use ::unwind::fast::{FastTable, Found, Walker};
use bpf::USER_STACK;
use bpf_compiler::Sample;
use trace_maps::{MAX_FRAMES, Stacks};

use super::{
    nofault::{self, Space},
    records,
    shared::{OutOfMemory, try_box},
};
use crate::{
    arch::{percpu, switch},
    backtrace,
    errno::Errno,
    mm::{kernel_stack, paging::USER_END},
    probes::PROBES,
    symbols::{self, Address},
    sync::Mutex,
    task,
};

/// The table, or null before it is made.
static TABLE: AtomicPtr<FastTable> = AtomicPtr::new(null_mut());

/// Makes the table, if there is none. Before the first program that takes stacks can run.
///
/// # Errors
/// [`OutOfMemory`]; a later call may succeed.
pub fn ready() -> Result<(), OutOfMemory> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock();
    if TABLE.load(Ordering::Acquire).is_null() {
        let table = backtrace::unwind::fast_table().ok_or(OutOfMemory)?;
        TABLE.store(Box::leak(try_box(table)?), Ordering::Release);
    }
    Ok(())
}

/// [`bpf::Helper::StackId`].
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn trace_stack_id(
    sample: *const Sample,
    stacks: *const Stacks,
    flags: u64,
) -> i64 {
    // SAFETY: a program passes its sample and a map of stacks.
    let (sample, stacks) = unsafe { (&*sample, &*stacks) };
    let mut frames = MaybeUninit::<[u64; MAX_FRAMES]>::uninit();
    let first = frames.as_mut_ptr().cast();
    let most = stacks.max_frames().min(MAX_FRAMES);
    let skip = (flags & 0xff) as usize;
    // SAFETY: there is room for `most` words, and that many at most are written.
    let taken = unsafe {
        let count = match flags & USER_STACK {
            0 => walk(sample, skip, first, most),
            _ => walk_program(sample, skip, first, most),
        };
        slice::from_raw_parts(first, count)
    };
    if taken.is_empty() {
        return -(Errno::EFAULT as i64);
    }
    match stacks.insert(taken) {
        Ok(number) => number as i64,
        Err(_) => -(Errno::E2BIG as i64),
    }
}

/// [`bpf::Helper::CountFrames`].
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn trace_count_frames(stacks: *const Stacks, number: u64) -> u64 {
    // SAFETY: a program passes a map of stacks.
    unsafe { &*stacks }.count(number).unwrap_or(0) as u64
}

/// [`bpf::Helper::RecordStack`].
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn trace_record_stack(
    sample: *const Sample,
    _ring: u64,
    flags: u64,
) -> i64 {
    // SAFETY: a program passes its sample.
    let sample = unsafe { &*sample };
    let mut frames = MaybeUninit::<[u64; MAX_FRAMES]>::uninit();
    let first = frames.as_mut_ptr().cast();
    // SAFETY: there is room for so many words, and those that are counted are written.
    let taken = unsafe {
        let count = walk(sample, 0, first, MAX_FRAMES);
        slice::from_raw_parts(first, count)
    };
    records::write_stack(taken, flags as u8);
    0
}

/// Writes the frames from `sample` on to `to`, as a program takes them. Returns how many. 0 before
/// [`ready`].
///
/// # Safety
/// The registers are those of code that was interrupted on this CPU, and that waits for the caller.
pub unsafe fn take(sample: &Sample, to: &mut [u64]) -> usize {
    // SAFETY: 1. is true, 2. is up to the caller.
    unsafe { walk(sample, 0, to.as_mut_ptr(), to.len()) }
}

/// Writes the frames from `sample` on, without the first `skip`, to `to`. Returns how many, at most
/// `most`.
///
/// # Safety
/// 1. `to` has room for `most` words.
/// 2. The registers are those of code that was interrupted on this CPU, and that waits for the
///    caller.
#[inline(always)]
unsafe fn walk(sample: &Sample, skip: usize, to: *mut u64, most: usize) -> usize {
    // SAFETY: the table is never freed.
    let Some(table) = (unsafe { TABLE.load(Ordering::Acquire).as_ref() }) else {
        return 0;
    };
    let mut place = Place {
        walker: Walker {
            ip: sample.ip,
            sp: sample.sp,
            bp: sample.bp,
            interrupted: true,
        },
        end: kernel_stack::end_of(sample.sp),
    };
    let mut skipped = 0;
    for _ in 0..skip {
        // SAFETY: the registers are real by 2.
        if !unsafe { place.go_up(table, &raw mut skipped) } {
            return 0;
        }
    }
    let mut count = 0_usize;
    while count < most {
        let frame = to.wrapping_add(count);
        // SAFETY: there is room by 1. Volatile, so that the compiler makes it no call of `memcpy`.
        unsafe { frame.write_volatile(place.walker.ip) };
        count = count.wrapping_add(1);
        if count == most {
            // SAFETY: written above.
            unsafe { place.is_borrowed(frame) };
            break;
        }
        // SAFETY: the registers are real by 2.
        if !unsafe { place.go_up_usual(table) || place.go_up(table, frame) } {
            break;
        }
        // The end of a chain.
        if place.walker.ip == 0 {
            break;
        }
    }
    count
}

/// Writes the frames of the program in ring 3, without the first `skip`, to `to`, and after them
/// the two words of the task's name. Returns how many words, at most `most`; none if the task has
/// no program, or if no frame is left.
///
/// The walk goes by frame pointers, from where the program entered the kernel. A function that was
/// interrupted before it had set up its own is there, and its caller is not.
///
/// # Safety
/// The same as for [`walk`].
#[inline(always)]
unsafe fn walk_program(sample: &Sample, skip: usize, to: *mut u64, most: usize) -> usize {
    let Some(task) = task::running() else {
        return 0;
    };
    let (mut ip, mut bp) = if sample.ip < USER_END {
        // A sample of the timer.
        (sample.ip, sample.bp)
    } else {
        let regs = switch::user_regs(task.stack_top);
        // Code on another stack, that of the NMI, may have interrupted ring 3. Then the frame is
        // an old one. The first instructions of an entry and the last ones of a return have none.
        let is_of_task = (task.stack_start..=regs.addr() as u64).contains(&sample.sp);
        // The stack of an idle task, whose number is 0, has no frame at its end.
        if !is_of_task || task.pid() == 0 {
            return 0;
        }
        // SAFETY: TASK-4 of `task`, and the task runs here, above this frame.
        let regs = unsafe { &*regs };
        // A task that has never been in ring 3.
        if regs.cs & 3 != 3 {
            return 0;
        }
        (regs.ip, regs.bp)
    };
    let room = most.wrapping_sub(2);
    if most < 3 {
        return 0;
    }
    let mut left = skip;
    let mut count = 0_usize;
    while count < room {
        if left == 0 {
            // SAFETY: there is room by 1. Volatile, so that the compiler makes it no call.
            unsafe { to.wrapping_add(count).write_volatile(ip) };
            count = count.wrapping_add(1);
        } else {
            left = left.wrapping_sub(1);
        }
        let mut frame = [0_u64; 2];
        let bytes = size_of_val(&frame) as u64;
        // SAFETY: there are so many bytes.
        if bp == 0 || !unsafe { nofault::copy(Space::User, (&raw mut frame).cast(), bp, bytes) } {
            break;
        }
        let [above, caller] = frame;
        if caller == 0 {
            break;
        }
        // Frames lie above those that they have called, so the walk ends.
        ip = caller;
        bp = if above > bp { above } else { 0 };
    }
    if count == 0 {
        return 0;
    }
    for word in task.comm_words() {
        // SAFETY: as above; the two words have been left free.
        unsafe { to.wrapping_add(count).write_volatile(word) };
        count = count.wrapping_add(1);
    }
    count
}

/// A place in a walk.
struct Place {
    walker: Walker,
    /// The end of its stack, or 0.
    end: u64,
}

impl Place {
    /// Goes to the caller, as most functions have theirs. False, and nothing has changed, where it
    /// is found in another way.
    ///
    /// # Safety
    /// The walk began with the registers of interrupted code of this CPU, which waits.
    #[inline(always)]
    unsafe fn go_up_usual(&mut self, table: &FastTable) -> bool {
        // SAFETY: see FRAMES-1.
        let read = |address: u64| unsafe { (address as *const u64).read_volatile() };
        !self.walker.interrupted && self.walker.step_usual(table, self.end, read)
    }

    /// Goes to the frame above. False: there is none. Writes the true address to `frame`, where
    /// this place is kept, if it is a borrowed one.
    ///
    /// # Safety
    /// The same as above, and `frame` may be written.
    #[inline(never)]
    unsafe fn go_up(&mut self, table: &FastTable, frame: *mut u64) -> bool {
        // SAFETY: see FRAMES-1.
        let read = |address: u64| unsafe { (address as *const u64).read_volatile() };
        let mut found = self.walker.step(table, self.end, read);
        // SAFETY: by the contract.
        if found == Found::Nothing && unsafe { self.is_borrowed(frame) } {
            found = self.walker.step(table, self.end, read);
        }
        if found == Found::Interrupted {
            self.end = kernel_stack::end_of(self.walker.sp);
        }
        // Ring 3, or the end of a chain, has no upper half.
        found != Found::Nothing && self.walker.ip >> 63 != 0
    }

    /// Whether this is the address of a trampoline. If so, it is replaced by the true one, here and
    /// in `frame`.
    ///
    /// # Safety
    /// `frame` may be written.
    unsafe fn is_borrowed(&mut self, frame: *mut u64) -> bool {
        if self.walker.interrupted {
            return false;
        }
        let slot = self.walker.sp.wrapping_sub(8);
        let address = PROBES.return_address(current(), slot, self.walker.ip);
        let is_borrowed = address != self.walker.ip;
        if is_borrowed {
            self.walker.ip = address;
            // SAFETY: by the contract.
            unsafe { frame.write_volatile(address) };
        }
        is_borrowed
    }
}

/// The running task, by the key that the probes use.
#[inline(always)]
fn current() -> u64 {
    percpu::current_raw().addr() as u64
}

/// The text of the stack `number`: a line ` => function+offset/size` for each frame. An unknown
/// number is one line that says so.
pub fn print(stacks: &Stacks, number: u64, to: &mut impl fmt::Write) -> fmt::Result {
    let mut frames = [0; MAX_FRAMES];
    let Some(count) = stacks.frames(number, &mut frames) else {
        return writeln!(to, " => no stack {number}; it was cleared");
    };
    for &frame in frames.get(..count).unwrap_or_default() {
        // The first address of a function is where a probe was, or an interrupt. No call returns
        // there, save after a call that never returns.
        let is_start = symbols::lookup_addr(frame).is_some_and(|symbol| symbol.start == frame);
        let address = if is_start {
            Address::of_instruction(frame)
        } else {
            Address::of_return(frame)
        };
        writeln!(to, " => {address}")?;
    }
    Ok(())
}
