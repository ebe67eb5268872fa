//! Records of programs: reserved and submitted by routines in assembly, because each hit of an
//! event pays for each of their instructions.
//!
//! ```text
//!   trace_record_of_size     a record of constant size           ─┐ the usual case; anything else
//!   trace_event_of_size      the same with the common header      ├─► again, in Rust: a new page,
//!   trace_event_with_room    the same with room for strings      ─┘ a nested writer, no room
//!   trace_ring_submit        the end of a record
//! ```
//!
//! They do what [`Ring::reserve`] and [`Ring::commit`] do, and the texts there say why it is right.
//! A [`Prefix`] is before the payload of the program, and says how much of it is in use.
//!
//! The routines are in [`mod@crate::entry_points`]. They rely on compiled code that has asked
//! whether records are taken. It does so where the word that says it has an address of 31 bits with
//! a sign, as in a kernel in the top 2 GiB. Elsewhere the slow functions are called, which ask
//! themselves.
//!
//! # Invariants
//! RECORD-1. A record is reserved and submitted on one CPU. It is reserved in the ring that the
//!     CPU's [`PerCpu`](crate::PerCpu) names then. A ring is taken away only while [`Switch`] is
//!     off and no record is being written.
//! RECORD-3. Between the two the ring may be exchanged with the other one of the CPU, once at most
//!     ([`trace_ring::spare`]). `trace_ring_submit` looks into the live ring only, because it is
//!     worth no instruction more: it marks the record as complete, does not find it at the live
//!     ring's end of what is published, and leaves that to `Ring::settle`. So it is if
//!     `trace_publish_slowly` finds another ring than the routine did: no record is busy there.
//! RECORD-4. A CPU that is left out begins no records. Its rings are at the end of a page then, so
//!     each record takes the slow functions, which ask.
//! RECORD-2. They are routines in the sense of [`bpf_compiler::Routine`]:
//!     they change `rax`, `rcx`, `rdx`, `rsi`, `rdi` and the flags.
//!
//! # Contexts
//! Any, with the CPU kept, and DF and AC clear. They are on the hit path: they neither lock,
//! allocate nor panic, and call nothing that can be probed.

use core::{
    arch::asm,
    mem::offset_of,
    ptr::{NonNull, null_mut},
    sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32,
        Ordering::{self, Relaxed},
    },
};

use bpf::{Helper, MOST_RECORD_BYTES};
use bpf_compiler::{Constants, Given, Routine};
use trace_ring::{
    Ring,
    layout::{self, HEADER_BYTES, Header, RECORD_HEADER_BYTES, Writing, record_bytes, state},
    limits::PAGE_BYTES,
};

use crate::Agent;

/// Whether records are taken. All of it is 0 in the usual case, so that a routine asks one question
/// of 8 bytes.
#[repr(C, align(8))]
pub struct Recording {
    /// Reasons why none are: a bit each, and above them the number of pauses. 0: records are taken.
    /// A program may look at it.
    reasons: AtomicU32,
    /// A script runs.
    pub(crate) script_runs: AtomicBool,
    /// What the tracer of calls asks beside: see [`crate::graph`].
    pub(crate) graph: AtomicU8,
    /// How many tracers of calls hide some.
    pub(crate) hiding: AtomicU16,
}

const _: () = assert!(size_of::<Recording>() == 8);

/// One of the reasons. It is on while the reason does not hold.
pub struct Switch<'r> {
    reasons: &'r AtomicU32,
    bit: u32,
}

impl Switch<'_> {
    /// Whether it is on.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> bool {
        self.reasons.load(order) & self.bit == 0
    }

    /// Turns it on or off. Any context.
    #[inline(always)]
    pub fn store(&self, on: bool, _: Ordering) {
        self.swap(on, Ordering::SeqCst);
    }

    /// Turns it on or off. Returns whether it was on.
    #[inline(always)]
    pub fn swap(&self, on: bool, order: Ordering) -> bool {
        let before = if on {
            self.reasons.fetch_and(!self.bit, order)
        } else {
            self.reasons.fetch_or(self.bit, order)
        };
        before & self.bit == 0
    }
}

/// While it lives, no record is begun ([`Recording::pause`]).
#[must_use = "recording goes on when it is dropped"]
pub struct Pause<'a>(&'a Recording);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.reasons.fetch_sub(PAUSE, Ordering::SeqCst);
    }
}

/// The bits of the reasons.
const NOT_WANTED: u32 = 1;
const NO_RINGS: u32 = 2;
/// One pause.
const PAUSE: u32 = 4;

impl Recording {
    pub(crate) const fn new() -> Self {
        Self {
            reasons: AtomicU32::new(NO_RINGS),
            script_runs: AtomicBool::new(false),
            graph: AtomicU8::new(0),
            hiding: AtomicU16::new(0),
        }
    }

    const fn switch(&self, bit: u32) -> Switch<'_> {
        Switch {
            reasons: &self.reasons,
            bit,
        }
    }

    /// Whether records are wanted: Linux has the file `tracing_on` for it.
    #[inline(always)]
    pub const fn wanted(&self) -> Switch<'_> {
        self.switch(NOT_WANTED)
    }

    /// Whether there are rings.
    pub(crate) const fn has_rings(&self) -> Switch<'_> {
        self.switch(NO_RINGS)
    }

    /// No record is begun from now on, whatever else says, until the pause is dropped: because the
    /// rings are to be changed, or they are being read.
    pub fn pause(&self) -> Pause<'_> {
        self.reasons.fetch_add(PAUSE, Ordering::SeqCst);
        Pause(self)
    }

    /// 0 while records are taken.
    #[inline(always)]
    pub(crate) fn reasons(&self) -> u32 {
        self.reasons.load(Relaxed)
    }

    /// The address of the word that is 0 while records are taken, for compiled code, where that is
    /// near enough to either end of the addresses. Constant.
    pub(crate) fn word(&self) -> Option<i32> {
        i32::try_from(self.reasons.as_ptr().addr() as i64).ok()
    }
}

/// Bytes in front of each record in its ring: [`Prefix`].
pub const PREFIX_BYTES: usize = size_of::<Prefix>();

/// How much of a record is in use. In front of it, and not seen by the program.
#[repr(C)]
pub struct Prefix {
    /// Bytes of the record, its dynamic part as far as it is filled.
    pub used: u32,
    /// Bytes that were reserved for it.
    pub reserved: u32,
}

/// Flags in the common header of a record, as in Linux.
pub mod flags {
    pub const NEED_RESCHED: u8 = 4;
    pub const INTERRUPT: u8 = 8;
    pub const NMI: u8 = 0x40;
}

/// The type of the record of a call stack.
pub const STACK_TYPE: u16 = 4;
/// Where its frames begin: after the common header and the number of their bytes.
pub const STACK_HEADER_BYTES: usize = 16;

/// The type of the record of a mark, [`write_mark`].
pub const MARK_TYPE: u16 = 5;
/// Where its text begins: after the common header and the number of the text's bytes.
pub const MARK_HEADER_BYTES: usize = 16;
/// The most bytes of the text of a mark.
pub const MOST_MARK_BYTES: usize = MOST_RECORD_BYTES as usize - MARK_HEADER_BYTES;

/// From the header of the ring's record to the program's.
#[doc(hidden)]
pub const IN_FRONT: usize = RECORD_HEADER_BYTES + PREFIX_BYTES;

/// Where the time is in the header of the ring's record, as the routines write it.
const TIME_IN_HEADER: usize = 8;
const _: () = assert!(TIME_IN_HEADER + 8 == RECORD_HEADER_BYTES);

/// The routine for a record whose size, and whose type, are `constants`.
pub fn routine<A: Agent>(helper: Helper, constants: &Constants) -> Option<Routine> {
    let entry = A::tracing_entry_points();
    // Routines that reserve rely on code that asks first.
    let asks = A::tracing().recording.word().is_some();
    let bytes = |size: u64| u64::from(record_bytes(size as usize + PREFIX_BYTES));
    let of_size = |size: u64, kind: u64| {
        [
            Given::Nothing,
            Given::Constant(size | kind << 32),
            Given::Constant(1 << 32 | bytes(size)),
            Given::Nothing,
        ]
    };
    let (address, arguments) = match (helper, *constants) {
        (Helper::RingSubmit, _) => (
            entry.ring_submit,
            [
                Given::Argument,
                Given::Nothing,
                Given::Nothing,
                Given::Nothing,
            ],
        ),
        (Helper::RingReserve, [_, Some(size), ..]) if asks => {
            (entry.record_of_size, of_size(size, 0))
        }
        (Helper::EventReserve, [_, Some(size), Some(0), Some(kind), _]) if asks => {
            (entry.event_of_size, of_size(size, kind & 0xffff))
        }
        (Helper::EventReserve, [_, Some(size), _, Some(kind), _]) if asks => (
            entry.event_with_room,
            [
                Given::Nothing,
                Given::Constant(size | (kind & 0xffff) << 32),
                Given::Argument,
                Given::Constant(u64::from(MOST_RECORD_BYTES) - size),
            ],
        ),
        _ => return None,
    };
    Some(Routine { address, arguments })
}

/// So one increment ends a record.
const _: () = assert!(state::COMMITTED == state::BUSY + 1);

// For the routines.
#[doc(hidden)]
pub const BUSY: u32 = state::BUSY as u32;
#[doc(hidden)]
pub const PAGE_MASK: usize = PAGE_BYTES - 1;
#[doc(hidden)]
pub const PAYLOAD: usize = HEADER_BYTES + IN_FRONT;
#[doc(hidden)]
pub const ALIGNMENT: usize = layout::ALIGNMENT;
#[doc(hidden)]
pub const RESERVED: usize = offset_of!(Header, writing) + offset_of!(Writing, reserved);
#[doc(hidden)]
pub const COMMITTED: usize = offset_of!(Header, writing) + offset_of!(Writing, committed);

/// A record of constant size, as a routine needs it.
#[doc(hidden)]
pub struct RecordOfSize {
    /// The program's bytes.
    pub size: u32,
    pub kind: u16,
    /// The first word of the header of the ring's record.
    pub header: u32,
    /// What `record_reserve!` gets.
    pub reserve: u64,
}

impl RecordOfSize {
    pub(crate) const fn new(size: usize, kind: u16) -> Self {
        let bytes = (size + PREFIX_BYTES) as u32;
        Self {
            size: size as u32,
            kind,
            header: (bytes << 8) + BUSY,
            reserve: 1 << 32 | record_bytes(bytes as usize) as u64,
        }
    }
}

/// The ring of this CPU.
#[inline(always)]
fn ring<A: Agent>() -> Option<Ring<'static>> {
    let base = NonNull::new(A::this_cpu_tracing().rings().0.load(Ordering::Acquire))?;
    // SAFETY: set to a ring that lives as long as records are taken (RECORD-1).
    Some(unsafe { Ring::from_raw(base) })
}

/// The ring of a record that is being written: of the two of this CPU.
#[inline(always)]
fn ring_of<A: Agent>(record: *const u8) -> Option<Ring<'static>> {
    let (live, spare) = A::this_cpu_tracing().rings();
    // SAFETY: null, or rings that live until a grace period after they were taken away (RECORD-1).
    unsafe { spare.ring_of(live, record) }
}

/// Counts a record that is not begun, because none are taken.
#[inline(always)]
fn count_off<A: Agent>() {
    A::this_cpu_tracing().records_off.fetch_add(1, Relaxed);
}

/// Reserves a record of `size` bytes with room for more. Null if there is none, which the ring
/// counts.
#[inline(always)]
fn reserve<A: Agent>(size: u64, room: u64) -> *mut u8 {
    let is_left_out = A::this_cpu_tracing().left_out.load(Relaxed);
    if is_left_out || A::tracing().recording.reasons() != 0 {
        count_off::<A>();
        return null_mut();
    }
    let Some(ring) = ring::<A>() else {
        return null_mut();
    };
    let reserved = size.saturating_add(room);
    let reserved = reserved.min(u64::from(MOST_RECORD_BYTES));
    let bytes = reserved.wrapping_add(PREFIX_BYTES as u64) as usize;
    // SAFETY: a program keeps its CPU, and the verifier has seen the end of the record. Records end
    // in the reverse order of their reservation, because an interrupt's program is over before the
    // interrupted one goes on.
    let Some(payload) = (unsafe { ring.reserve(bytes, read_tsc()) }) else {
        return null_mut();
    };
    let prefix = Prefix {
        used: size as u32,
        reserved: reserved as u32,
    };
    // SAFETY: the payload is at least as long as a prefix, and aligned to 8.
    unsafe {
        payload.cast::<Prefix>().write(prefix);
        payload.as_ptr().add(PREFIX_BYTES)
    }
}

/// The helper [`Helper::RingReserve`].
#[inline(always)]
pub fn ring_reserve<A: Agent>(size: u64) -> *mut u8 {
    reserve::<A>(size, 0)
}

/// Writes the record of a call stack. `flags` are added to those of the header.
#[inline(always)]
pub(crate) fn write_stack<A: Agent>(frames: &[u64], flags: u8) {
    let header = STACK_HEADER_BYTES;
    let bytes = frames.len().wrapping_mul(8);
    let record = reserve_event::<A>(STACK_TYPE.into(), header.wrapping_add(bytes) as u64, 0);
    if record.is_null() {
        return;
    }
    // SAFETY: the record has the header and so many bytes after it, and is aligned to 8. It is
    // this hit's. Volatile, so that the compiler makes it no call of `memcpy`.
    unsafe {
        let with_flags = record.add(2).read() | flags;
        record.add(2).write(with_flags);
        record.add(8).cast::<u64>().write(bytes as u64);
        for (at, frame) in frames.iter().enumerate() {
            let to = record.add(header).cast::<u64>().wrapping_add(at);
            to.write_volatile(*frame);
        }
    }
    if let Some(ring) = ring_of::<A>(record) {
        // SAFETY: reserved above, on this CPU, with its prefix in front of it.
        unsafe { ring.commit(NonNull::new_unchecked(record.sub(PREFIX_BYTES))) };
    }
}

/// Writes the record of a task's text, of at most [`MOST_MARK_BYTES`]. The CPU is kept. False: no
/// records are taken, or there is no room, which is counted.
pub(crate) fn write_mark<A: Agent>(text: &[u8]) -> bool {
    let size = MARK_HEADER_BYTES + text.len();
    let record = reserve_event::<A>(MARK_TYPE.into(), size as u64, 0);
    let Some(ring) = ring_of::<A>(record) else {
        return false;
    };
    // SAFETY: the record has the header and so many bytes after it, and is aligned to 8. It is this
    // task's. It was reserved above, on this CPU, with its prefix in front of it.
    unsafe {
        record.add(8).cast::<u64>().write(text.len() as u64);
        let to = record.add(MARK_HEADER_BYTES);
        to.copy_from_nonoverlapping(text.as_ptr(), text.len());
        ring.commit(NonNull::new_unchecked(record.sub(PREFIX_BYTES)));
    }
    true
}

/// The helper [`Helper::EventReserve`]: reserves the record of an event, and fills in the common
/// header.
#[inline(always)]
pub fn reserve_event<A: Agent>(kind: u64, size: u64, room: u64) -> *mut u8 {
    let record = reserve::<A>(size, room);
    if !record.is_null() {
        let shown = shown::<A>();
        let header = kind & 0xffff
            | u64::from(shown.need_resched | shown.interrupt) << 16
            | u64::from(shown.preempt_count as u8) << 24
            | u64::from(A::this_cpu_tracing().task().0) << 32;
        // SAFETY: an event's record has at least the common header.
        unsafe { record.cast::<u64>().write(header) };
    }
    record
}

unsafe extern "C" {
    // Of `entry_points!`, with conventions of their own.
    fn trace_event_of_size();
    fn trace_ring_submit();
}

/// As [`reserve_event`] without room, in fewer instructions: by the routine that compiled code
/// calls.
#[inline(always)]
pub(crate) fn reserve_event_of<A: Agent, const BYTES: usize>(kind: u16) -> *mut u8 {
    if A::tracing().recording.reasons() != 0 {
        count_off::<A>();
        return null_mut();
    }
    let record: *mut u8;
    // SAFETY: records are taken, as the routine has it, and it changes no other registers.
    unsafe {
        asm!(
            "call {routine}",
            routine = sym trace_event_of_size,
            inout("rsi") BYTES as u64 | u64::from(kind) << 32 => _,
            inout("rdx") 1_u64 << 32 | u64::from(record_bytes(BYTES + PREFIX_BYTES)) => _,
            out("rax") record,
            out("rcx") _,
            out("rdi") _,
        );
    }
    record
}

/// Submits a record of [`reserve_event_of`], in fewer instructions, too.
///
/// # Safety
/// It was reserved on this CPU, is whole, and is not used afterwards.
#[inline(always)]
pub(crate) unsafe fn submit_event_of(record: *mut u8) {
    // SAFETY: by the contract; it changes no other registers.
    unsafe {
        asm!(
            "call {routine}",
            routine = sym trace_ring_submit,
            inout("rdi") record => _,
            out("rax") _,
            out("rcx") _,
            out("rdx") _,
            out("rsi") _,
        );
    }
}

/// When a record that is reserved was reserved, by the time stamp counter.
///
/// # Safety
/// The record is reserved.
#[inline(always)]
pub(crate) unsafe fn time_of(record: *const u8) -> u64 {
    // SAFETY: the ring's header is in front of it, and holds the time after its first word.
    unsafe {
        let header = record.sub(IN_FRONT);
        header.add(TIME_IN_HEADER).cast::<u64>().read()
    }
}

/// The words of [`Agent::SHOWN`] on this CPU.
struct Shown {
    need_resched: u8,
    interrupt: u8,
    preempt_count: u32,
}

#[inline(always)]
fn shown<A: Agent>() -> Shown {
    let (need_resched, interrupt): (u8, u8);
    let preempt_count: u32;
    // SAFETY: the words are there, by clause 7 of `Agent`.
    unsafe {
        asm!(
            "mov {}, gs:[{}]",
            "mov {}, gs:[{}]",
            "mov {:e}, gs:[{}]",
            out(reg_byte) need_resched,
            const A::SHOWN.need_resched,
            out(reg_byte) interrupt,
            const A::SHOWN.interrupt,
            out(reg) preempt_count,
            const A::SHOWN.preempt_count,
            options(nostack, preserves_flags, readonly)
        );
    }
    Shown {
        need_resched,
        interrupt,
        preempt_count,
    }
}

/// Publishes the records of this CPU from `last` on: what a routine has stored as the end.
#[inline(always)]
pub fn publish_slowly<A: Agent>(last: u64) {
    if let Some(ring) = ring::<A>() {
        // SAFETY: the routine has stored this, on this CPU, and then a nested record was ended.
        unsafe { ring.publish_from(last) };
    }
}

/// The helper [`Helper::RingDiscard`].
///
/// # Safety
/// 1. A verified program calls it, with its CPU kept, DF and AC clear, and a record that it has
///    reserved.
#[inline(always)]
pub unsafe fn ring_discard<A: Agent>(record: *mut u8) {
    if let Some(ring) = ring_of::<A>(record) {
        // SAFETY: the record is reserved, on this CPU, and its prefix is in front of it.
        unsafe { ring.discard(NonNull::new_unchecked(record.sub(PREFIX_BYTES))) };
    }
}

/// The time stamp counter of this CPU.
#[inline(always)]
pub(crate) fn read_tsc() -> u64 {
    // SAFETY: every x86_64 processor has `rdtsc`, and the kernel's CR4.TSD concerns ring 3 only.
    unsafe { core::arch::x86_64::_rdtsc() }
}
