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
//! # Invariants
//! RECORD-1. A record is reserved and submitted on one CPU. It is reserved in the ring that
//!     [`percpu::TRACE_RING`] names then. A ring is taken away only while [`Switch`] is off and no
//!     record is being written.
//! RECORD-3. Between the two the ring may be exchanged with the other one of the CPU, once at most
//!     ([`trace_ring::spare`]). `trace_ring_submit` looks into the live ring only, because it is
//!     worth no instruction more: it marks the record as complete, does not find it at the live
//!     ring's end of what is published, and leaves that to `Ring::settle`. So it is if
//!     `trace_publish_slowly` finds another ring than the routine did: no record is busy there.
//! RECORD-2. They are routines in the sense of [`bpf_compiler::Routine`]:
//!     they change `rax`, `rcx`, `rdx`, `rsi`, `rdi` and the flags.
//!
//! # Contexts
//! Any, with the CPU kept, and DF and AC clear. They are on the hit path: they neither lock,
//! allocate nor panic, and call nothing that can be probed.

use core::{
    arch::naked_asm,
    mem::offset_of,
    ptr::{NonNull, null_mut},
    sync::atomic::{
        AtomicU32,
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
use tracefs::line::stack;

use crate::{arch::percpu, time::read_tsc};

/// Reasons why no records are taken: a bit each, and above them the number of pauses. 0: records
/// are taken. A program may look at it.
static NOT_RECORDING: AtomicU32 = AtomicU32::new(Switch::NO_RINGS);

/// One of the reasons. It is on while the reason does not hold.
pub struct Switch(u32);

/// Whether records are wanted: the file `tracing_on`.
pub static TRACING_ON: Switch = Switch(1);
/// Whether there are rings.
pub static RINGS_READY: Switch = Switch(Switch::NO_RINGS);

impl Switch {
    const NO_RINGS: u32 = 2;

    /// Whether it is on.
    pub fn load(&self, order: Ordering) -> bool {
        NOT_RECORDING.load(order) & self.0 == 0
    }

    /// Turns it on or off. Any context.
    pub fn store(&self, on: bool, _: Ordering) {
        self.swap(on, Ordering::SeqCst);
    }

    /// Turns it on or off. Returns whether it was on.
    pub fn swap(&self, on: bool, order: Ordering) -> bool {
        let before = if on {
            NOT_RECORDING.fetch_and(!self.0, order)
        } else {
            NOT_RECORDING.fetch_or(self.0, order)
        };
        before & self.0 == 0
    }
}

/// One pause.
const PAUSE: u32 = 4;

/// No record is begun from now on, whatever `tracing_on` says: because the rings are to be changed,
/// or `trace` is open.
pub fn pause() {
    NOT_RECORDING.fetch_add(PAUSE, Ordering::SeqCst);
}

/// Ends a [`pause`].
pub fn resume() {
    NOT_RECORDING.fetch_sub(PAUSE, Ordering::SeqCst);
}

/// The address of the word that is 0 while records are taken.
pub fn not_recording() -> u64 {
    NOT_RECORDING.as_ptr().addr() as u64
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
mod flags {
    pub const NEED_RESCHED: u8 = 4;
    pub const NMI: u8 = 0x40;
}

/// From the header of the ring's record to the program's.
const IN_FRONT: usize = RECORD_HEADER_BYTES + PREFIX_BYTES;

/// The routine for a record whose size, and whose type, are `constants`.
pub fn routine(helper: Helper, constants: &Constants) -> Option<Routine> {
    let bytes = |size: u64| u64::from(record_bytes(size as usize + PREFIX_BYTES));
    let of_size = |size: u64, kind: u64| {
        [
            Given::Nothing,
            Given::Constant(size | kind << 32),
            Given::Constant(1 << 32 | bytes(size)),
            Given::Nothing,
        ]
    };
    let (address, arguments): (unsafe extern "C" fn(), _) = match (helper, *constants) {
        (Helper::RingSubmit, _) => (
            trace_ring_submit,
            [
                Given::Argument,
                Given::Nothing,
                Given::Nothing,
                Given::Nothing,
            ],
        ),
        (Helper::RingReserve, [_, Some(size), ..]) => (trace_record_of_size, of_size(size, 0)),
        (Helper::EventReserve, [_, Some(size), Some(0), Some(kind), _]) => {
            (trace_event_of_size, of_size(size, kind & 0xffff))
        }
        (Helper::EventReserve, [_, Some(size), _, Some(kind), _]) => (
            trace_event_with_room,
            [
                Given::Nothing,
                Given::Constant(size | (kind & 0xffff) << 32),
                Given::Argument,
                Given::Constant(u64::from(MOST_RECORD_BYTES) - size),
            ],
        ),
        _ => return None,
    };
    Some(Routine {
        address: address as *const () as u64,
        arguments,
    })
}

/// Reserves, or goes to label 8 if this is not the usual case. Compiled code has asked whether
/// records are taken ([`bpf_compiler::Machine::records_off`]). `rdx`: the record's bytes, and
/// 1 << 32 for its number. Then `rdi` is the program's record, and the header of the ring's record
/// has its time and its number. Changes `rax`, `rcx` and `rdx`.
macro_rules! reserve {
    () => {
        "
    mov rdi, gs:[{ring}]
    mov rax, [rdi + {reserved}]
    add rdx, rax
    # The end of the page, less 1, is not below the end of the record. A record that ends with the
    # page is left to the slow path.
    lea ecx, [rax - 1]
    or ecx, {page_mask}
    cmp ecx, edx
    jb 8f
    cmpxchg [rdi + {reserved}], rdx
    jne 8f
    mov ecx, eax
    lea rdi, [rdi + rcx + {payload}]
    shr rax, 32
    mov [rdi - {in_front} + 4], eax
    rdtsc
    mov [rdi - {in_front} + 8], eax
    mov [rdi - {in_front} + 12], edx
    "
    };
}

/// Writes the rest of the header, and the prefix, of a record of `esi` bytes.
macro_rules! begin_of_size {
    () => {
        "
    imul eax, esi, 256
    add eax, ({prefix} << 8) + {busy}
    mov [rdi - {in_front}], eax
    mov [rdi - {prefix}], esi
    mov [rdi - {prefix} + 4], esi
    "
    };
}

/// Writes the common header of an event, except its type.
macro_rules! common_header {
    () => {
        "
    movzx eax, byte ptr gs:[{need_resched}]
    shl eax, {need_resched_bit}
    or al, gs:[{interrupt}]
    cmp dword ptr gs:[{nmis}], 0
    jne 6f
5:  mov [rdi + 2], al
    mov eax, gs:[{preempt_count}]
    mov [rdi + 3], al
    mov eax, gs:[{pid}]
    mov [rdi + 4], eax
    mov rax, rdi
    ret
6:  or eax, {nmi}
    jmp 5b
    "
    };
}

/// Calls a C function from a routine.
macro_rules! call_slowly {
    ($function:literal) => {
        concat!(
            "
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    push r8
    push r9
    push r10
    push r11
    and rsp, -16
    call ",
            $function,
            "
    mov r8, [rbp - 8]
    mov r9, [rbp - 16]
    mov r10, [rbp - 24]
    mov r11, [rbp - 32]
    leave
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    .cfi_endproc
    "
        )
    };
}

/// So one increment ends a record.
const _: () = assert!(state::COMMITTED == state::BUSY + 1);

const RESERVED: usize = offset_of!(Header, writing) + offset_of!(Writing, reserved);
const COMMITTED: usize = offset_of!(Header, writing) + offset_of!(Writing, committed);

/// The whole of a routine that reserves: its lines, operands of its own, and those of [`reserve!`]
/// and [`begin_of_size!`]. `$slowly` does in Rust, from the beginning, what is not usual.
macro_rules! reserving {
    ($slowly:ident, $($line:expr),+ $(; $($name:ident = const $value:expr),+)?) => {
        naked_asm!(
            ".cfi_startproc",
            $($line,)+
            call_slowly!("{slowly}"),
            ring = const percpu::TRACE_RING,
            reserved = const RESERVED,
            page_mask = const PAGE_BYTES - 1,
            payload = const HEADER_BYTES + IN_FRONT,
            in_front = const IN_FRONT,
            prefix = const PREFIX_BYTES,
            busy = const state::BUSY,
            $($($name = const $value,)+)?
            slowly = sym $slowly,
        )
    };
}

/// The same for an event: with the operands of [`common_header!`].
macro_rules! reserving_event {
    ($($line:expr),+ $(; $($name:ident = const $value:expr),+)?) => {
        reserving!(
            trace_event_slowly,
            $($line),+;
            need_resched = const percpu::NEED_RESCHED,
            need_resched_bit = const flags::NEED_RESCHED.trailing_zeros(),
            interrupt = const percpu::INTERRUPT,
            nmis = const percpu::NMIS_SEEN,
            nmi = const flags::NMI,
            preempt_count = const percpu::PREEMPT_COUNT,
            pid = const percpu::CURRENT_IDS
            $(, $($name = const $value),+)?
        )
    };
}

/// Reserves a record of constant size. `rsi`: the size; `rdx`: as in [`reserve!`]. Returns it, or
/// null.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_record_of_size() {
    reserving!(
        trace_reserve_slowly,
        reserve!(),
        begin_of_size!(),
        "mov rax, rdi",
        "ret",
        // The ways that are not usual: in Rust, the same is done again from the beginning.
        "8:",
        "mov rdi, rsi"
    )
}

/// The same with the common header. `rsi`: the size, and in the upper half the type.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_event_of_size() {
    reserving_event!(
        reserve!(),
        begin_of_size!(),
        "shr rsi, 32",
        "mov [rdi], si",
        common_header!(),
        // The ways that are not usual: in Rust, the same is done again from the beginning.
        "8:",
        "mov edx, 0",
        "mov rdi, rsi",
        "shr rdi, 32",
        "mov esi, esi"
    )
}

/// The same with room after it. `rsi`: the size, and in the upper half the type; `rdx`: the room;
/// `rcx`: the most room that a record of this size can have. Its frame is the size with the room,
/// from where [`reserve!`] needs the registers to where they are free again.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_event_with_room() {
    reserving_event!(
        "cmp rdx, rcx",
        "ja 9f",
        "add edx, esi",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "add edx, {around}",
        "and edx, -{alignment}",
        "bts rdx, 32",
        reserve!(),
        ".cfi_remember_state",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "imul eax, ecx, 256",
        "add eax, ({prefix} << 8) + {busy}",
        "mov [rdi - {in_front}], eax",
        "mov [rdi - {prefix}], esi",
        "mov [rdi - {prefix} + 4], ecx",
        "shr rsi, 32",
        "mov [rdi], si",
        common_header!(),
        // The ways that are not usual: in Rust, the same is done again from the beginning.
        "8:",
        ".cfi_restore_state",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "sub edx, esi",
        "9:",
        "mov rdi, rsi",
        "shr rdi, 32",
        "mov esi, esi";
        around = const IN_FRONT + layout::ALIGNMENT - 1,
        alignment = const layout::ALIGNMENT
    )
}

/// The helper [`Helper::RingSubmit`]: the record is in `rdi`.
///
/// # Safety
/// 1. A verified program calls it, with its CPU kept, DF and AC clear, and a record that it has
///    reserved.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trace_ring_submit() {
    naked_asm!(
        ".cfi_startproc",
        "mov rsi, gs:[{ring}]",
        "inc byte ptr [rdi - {in_front}]",
        // If it interrupted another record, that one's writer publishes both.
        "lea eax, [rdi - {payload}]",
        "sub eax, esi",
        "cmp [rsi + {committed}], eax",
        "jne 2f",
        "mov rax, [rsi + {reserved}]",
        "mov [rsi + {committed}], rax",
        "cmp [rsi + {reserved}], rax",
        "jne 3f",
        "2: ret",
        "3: mov rdi, rax",
        call_slowly!("{slowly}"),
        ring = const percpu::TRACE_RING,
        in_front = const IN_FRONT,
        payload = const HEADER_BYTES + IN_FRONT,
        committed = const COMMITTED,
        reserved = const RESERVED,
        slowly = sym trace_publish_slowly,
    )
}

/// The ring of this CPU.
#[inline(always)]
fn ring() -> Option<Ring<'static>> {
    let base = NonNull::new(percpu::trace_ring())?;
    // SAFETY: set to a ring that lives as long as records are taken (RECORD-1).
    Some(unsafe { Ring::from_raw(base) })
}

/// The ring of a record that is being written: of the two of this CPU.
#[inline(always)]
fn ring_of(record: *const u8) -> Option<Ring<'static>> {
    let (live, spare) = percpu::this().trace_rings();
    // SAFETY: null, or rings that live until a grace period after they were taken away (RECORD-1).
    unsafe { spare.ring_of(live, record) }
}

/// Reserves a record of `size` bytes with room for more. Null if there is none, which the ring
/// counts.
#[inline(always)]
fn reserve(size: u64, room: u64) -> *mut u8 {
    if NOT_RECORDING.load(Relaxed) != 0 {
        percpu::this().records_off.fetch_add(1, Relaxed);
        return null_mut();
    }
    let Some(ring) = ring() else {
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

#[unsafe(no_mangle)]
extern "C" fn trace_reserve_slowly(size: u64) -> *mut u8 {
    reserve(size, 0)
}

/// The helper [`Helper::RingReserve`].
#[unsafe(no_mangle)]
pub extern "C" fn trace_ring_reserve(_: u64, size: u64, _: u64) -> *mut u8 {
    reserve(size, 0)
}

/// The helper [`Helper::EventReserve`].
#[unsafe(no_mangle)]
pub extern "C" fn trace_event_reserve(_: u64, size: u64, room: u64, kind: u64) -> *mut u8 {
    reserve_event(kind, size, room)
}

#[unsafe(no_mangle)]
extern "C" fn trace_event_slowly(kind: u64, size: u64, room: u64) -> *mut u8 {
    reserve_event(kind, size, room)
}

/// Writes the record of a call stack. `flags` are added to those of the header.
#[inline(always)]
pub(super) fn write_stack(frames: &[u64], flags: u8) {
    let header = stack::HEADER_BYTES as usize;
    let bytes = frames.len().wrapping_mul(8);
    let record = reserve_event(stack::ID.into(), header.wrapping_add(bytes) as u64, 0);
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
    if let Some(ring) = ring_of(record) {
        // SAFETY: reserved above, on this CPU, with its prefix in front of it.
        unsafe { ring.commit(NonNull::new_unchecked(record.sub(PREFIX_BYTES))) };
    }
}

/// Reserves the record of an event, and fills in the common header.
#[inline(always)]
fn reserve_event(kind: u64, size: u64, room: u64) -> *mut u8 {
    let record = reserve(size, room);
    if !record.is_null() {
        let cpu = percpu::this();
        let resched = u64::from(cpu.need_resched()) * u64::from(flags::NEED_RESCHED);
        let interrupt = u64::from(cpu.in_interrupt()) * u64::from(percpu::IN_INTERRUPT);
        let nmi = u64::from(cpu.nmis_seen() != 0) * u64::from(flags::NMI);
        let header = kind & 0xffff
            | (resched | interrupt | nmi) << 16
            | u64::from(percpu::preempt_count() as u8) << 24
            | u64::from(percpu::current_id()) << 32;
        // SAFETY: an event's record has at least the common header.
        unsafe { record.cast::<u64>().write(header) };
    }
    record
}

#[unsafe(no_mangle)]
extern "C" fn trace_publish_slowly(last: u64) {
    if let Some(ring) = ring() {
        // SAFETY: the routine has stored this, on this CPU, and then a nested record was ended.
        unsafe { ring.publish_from(last) };
    }
}

/// The helper [`Helper::RingDiscard`].
///
/// # Safety
/// 1. A verified program calls it, with its CPU kept, DF and AC clear, and a record that it has
///    reserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trace_ring_discard(record: *mut u8, _: u64) {
    if let Some(ring) = ring_of(record) {
        // SAFETY: the record is reserved, on this CPU, and its prefix is in front of it.
        unsafe { ring.discard(NonNull::new_unchecked(record.sub(PREFIX_BYTES))) };
    }
}
