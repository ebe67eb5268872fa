//! The helpers that compiled programs call, in the order of `bpf::Helper`. The compiler writes out
//! the others itself.
//!
//! The verifier has checked the arguments: pointers lead to as many bytes as the call says, records
//! are reserved, maps are of the right kind. So these functions check nothing again.
//!
//! # Contexts
//! Any, with the CPU kept: a program runs with interrupts off or under the probes' guard. They are
//! on the hit path. So they neither lock, allocate nor panic, and call nothing that can be probed.
//! For example, they copy by volatile words, because the compiler would make plain loops a call of
//! `memcpy`.

use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use bpf::Helper;
use trace_maps::{ArrayPlace, Table, compiled};
use trace_ring::Ring;

use super::{
    buffer::PAUSES,
    nofault::{self, Space},
};
use crate::{
    arch::percpu,
    task::{Task, current_raw},
    time::read_tsc,
};

/// Whether records are written: the file `tracing_on`.
pub static TRACING_ON: AtomicBool = AtomicBool::new(true);

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
    pub const IRQS_OFF: u8 = 1;
    pub const NEED_RESCHED: u8 = 4;
    pub const HARDIRQ: u8 = 8;
    pub const NMI: u8 = 0x40;
}

/// The address of a helper that is called. None: the compiler writes it out.
pub fn address(helper: Helper) -> Option<u64> {
    Some(match helper {
        Helper::MapLookup => trace_map_lookup as *const () as u64,
        Helper::MapUpdate => trace_map_update as *const () as u64,
        Helper::MapDelete => trace_map_delete as *const () as u64,
        Helper::PidTgid => trace_pid_tgid as *const () as u64,
        Helper::Comm => trace_comm as *const () as u64,
        Helper::ReadUser => trace_read_user as *const () as u64,
        Helper::ReadKernel => trace_read_kernel as *const () as u64,
        Helper::ReadUserStr => trace_read_user_text as *const () as u64,
        Helper::ReadKernelStr => trace_read_kernel_text as *const () as u64,
        Helper::RingReserve => trace_ring_reserve as *const () as u64,
        Helper::RingSubmit => trace_ring_submit as *const () as u64,
        Helper::RingDiscard => trace_ring_discard as *const () as u64,
        Helper::AddByKey => trace_add_by_key as *const () as u64,
        Helper::EventReserve => trace_event_reserve as *const () as u64,
        Helper::StrLen => trace_text_bytes_of_kernel as *const () as u64,
        Helper::UserStrLen => trace_text_bytes_of_user as *const () as u64,
        Helper::AppendStr => trace_append_text as *const () as u64,
        Helper::AppendUserStr => trace_append_user_text as *const () as u64,
        Helper::AppendBytes => trace_append_bytes as *const () as u64,
        Helper::Trigger => super::triggers::trace_trigger as *const () as u64,
        Helper::StackId
        | Helper::CpuId
        | Helper::FuncIp
        | Helper::Tsc
        | Helper::Log2
        | Helper::Add
        | Helper::EntryData
        | Helper::ReturnAddress => return None,
    })
}

/// A map of keys, as the compiler passes it: where the table of each CPU is. A map that all share
/// has the same everywhere.
#[repr(C)]
pub struct Tables {
    pub tables: [*const Table; percpu::MAX_CPUS],
    /// Of an array: where its values are, and the bytes of one. The tables are null then.
    pub array: Option<(ArrayPlace, usize)>,
}

// SAFETY: a table may be used from any CPU, and the pointers are only read.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

/// The table of this CPU.
///
/// # Safety
/// `map` is live.
#[inline(always)]
unsafe fn table(map: *const Tables) -> *const Table {
    // SAFETY: CPU numbers are below MAX_CPUS.
    unsafe { *(*map).tables.get_unchecked(percpu::cpu_id()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_map_lookup(map: *const Tables, key: *const u8) -> *mut u64 {
    // SAFETY: the verifier's promises are those of the function.
    unsafe { compiled::hash_lookup(table(map), key) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_map_update(
    map: *const Tables,
    key: *const u8,
    value: *const u8,
    flags: u64,
) -> i64 {
    // SAFETY: the map is live.
    if let Some((place, bytes)) = unsafe { &(*map).array } {
        // SAFETY: the verifier's promises: an index of 4 bytes, and a value.
        return unsafe { array_update(place, *bytes, key, value, flags) };
    }
    // SAFETY: as above.
    unsafe { compiled::hash_update(table(map), key, value, flags) }
}

/// Stores a value of an array, byte by byte.
///
/// # Safety
/// The array is live, `key` can be read for 4 bytes and `value` for `bytes`, which is its size.
#[inline(always)]
unsafe fn array_update(
    place: &ArrayPlace,
    bytes: usize,
    key: *const u8,
    value: *const u8,
    flags: u64,
) -> i64 {
    // SAFETY: by the contract.
    let index = unsafe { key.cast::<u32>().read_unaligned() } as usize;
    match flags {
        compiled::ANY | compiled::EXIST if index < place.entries as usize => {}
        compiled::ANY | compiled::EXIST => return compiled::FULL,
        compiled::NO_EXIST => return compiled::PRESENT,
        _ => return compiled::NO_SUCH_FLAGS,
    }
    let part = match place.cpu_shift {
        Some(shift) => percpu::cpu_id() << (shift & 63),
        None => 0,
    };
    let offset = part.wrapping_add(index.wrapping_mul(place.stride as usize));
    let to = core::ptr::with_exposed_provenance_mut::<u8>(place.base as usize).wrapping_add(offset);
    for at in 0..bytes {
        // SAFETY: inside the value of an index that the array has. Volatile, so that it is no call
        // of `memcpy`.
        unsafe { to.add(at).write_volatile(value.add(at).read_volatile()) };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_map_delete(map: *const Tables, key: *const u8) -> i64 {
    // SAFETY: as above.
    unsafe { compiled::hash_delete(table(map), key) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_add_by_key(map: *const Tables, key: *const u8, delta: u64) -> i64 {
    // SAFETY: as above.
    unsafe { compiled::hash_add(table(map), key, delta) }
}

/// The running task. None before the scheduler is up.
#[inline(always)]
fn task() -> Option<&'static Task> {
    // SAFETY: the running task is alive, and the CPU is kept.
    unsafe { current_raw().as_ref() }
}

/// Processes here have one task each.
#[unsafe(no_mangle)]
extern "C" fn trace_pid_tgid() -> u64 {
    let pid = task().map_or(0, |task| task.pid() as u32);
    u64::from(pid) << 32 | u64::from(pid)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_comm(buffer: *mut u8, size: u64) -> i64 {
    let [low, high] = task().map_or([0; 2], Task::comm_words);
    let name = u128::from(high) << 64 | u128::from(low);
    for at in 0..size as usize {
        // The last byte is a NUL, in the name and in a shorter buffer.
        let byte = match at {
            0..16 if at + 1 < size as usize => (name >> (8 * at)) as u8,
            _ => 0,
        };
        // SAFETY: the program may write `size` bytes there.
        unsafe { buffer.add(at).write_volatile(byte) };
    }
    0
}

/// The most bytes of a text that is measured: no record has more, and a hit ends soon.
const MOST_TEXT: u64 = bpf::MOST_RECORD_BYTES as u64;

/// EFAULT, as a program sees it.
const BAD_ADDRESS: i64 = -14;

macro_rules! reads {
    ($copy:ident, $copy_text:ident, $text_bytes:ident, $append:ident, $space:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $copy(to: *mut u8, size: u64, from: u64) -> i64 {
            // SAFETY: the program may write `size` bytes there.
            if unsafe { nofault::copy($space, to, from, size) } {
                0
            } else {
                BAD_ADDRESS
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $copy_text(to: *mut u8, size: u64, from: u64) -> i64 {
            // SAFETY: the program may write `size` bytes there.
            match unsafe { nofault::copy_text($space, to, from, size) } {
                0 => {
                    // SAFETY: as above.
                    unsafe { nofault::clear(to, size) };
                    BAD_ADDRESS
                }
                len => {
                    // The buffer is often a key, so nothing of an older text may be left in it.
                    // SAFETY: as above; the text has at most `size` bytes.
                    unsafe { nofault::clear(to.add(len as usize), size.wrapping_sub(len)) };
                    len as i64
                }
            }
        }

        #[unsafe(no_mangle)]
        extern "C" fn $text_bytes(from: u64, most: u64) -> u64 {
            // SAFETY: nothing is written.
            unsafe { nofault::copy_text($space, null_mut(), from, most.min(MOST_TEXT)) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $append(record: *mut u8, from: u64, most: u64) -> u64 {
            // SAFETY: the record is the caller's.
            unsafe {
                append(record, |to, room| {
                    nofault::copy_text($space, to, from, most.min(room))
                })
            }
        }
    };
}

reads!(
    trace_read_kernel,
    trace_read_kernel_text,
    trace_text_bytes_of_kernel,
    trace_append_text,
    Space::Kernel
);
reads!(
    trace_read_user,
    trace_read_user_text,
    trace_text_bytes_of_user,
    trace_append_user_text,
    Space::User
);

/// Appends what `fill` writes to a place with so much room. Returns where it is: the offset in the
/// record, and the length << 16. Nothing, if it was not readable: length 0.
///
/// # Safety
/// `record` is reserved and the caller's, and `fill` writes no more than the room.
#[inline(always)]
unsafe fn append(record: *mut u8, fill: impl FnOnce(*mut u8, u64) -> u64) -> u64 {
    // SAFETY: each record has its prefix in front of it.
    let prefix = unsafe { &mut *record.sub(PREFIX_BYTES).cast::<Prefix>() };
    let room = prefix.reserved.wrapping_sub(prefix.used);
    // SAFETY: within the bytes that were reserved.
    let to = unsafe { record.add(prefix.used as usize) };
    let len = fill(to, u64::from(room)) as u32;
    let place = prefix.used | len << 16;
    prefix.used = prefix.used.wrapping_add(len);
    u64::from(place)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_append_bytes(record: *mut u8, from: *const u8, size: u64) -> u64 {
    // SAFETY: the record is the caller's, and `size` bytes can be read.
    unsafe {
        append(record, |to, room| {
            let len = size.min(room);
            for at in 0..len as usize {
                to.add(at).write_volatile(from.add(at).read_volatile());
            }
            len
        })
    }
}

/// Whether no record is to be begun. That is counted.
#[inline(always)]
fn is_off() -> bool {
    let is_off = !TRACING_ON.load(Relaxed) || PAUSES.load(Relaxed) != 0;
    if is_off {
        percpu::this().records_off.fetch_add(1, Relaxed);
    }
    is_off
}

/// Reserves a record of `size` bytes with room for `dynamic` more. Null if there is no room, which
/// the ring counts.
///
/// # Safety
/// The CPU is kept until the record is submitted or discarded.
#[inline(always)]
unsafe fn reserve(size: u64, dynamic: u64) -> *mut u8 {
    let Some(base) = NonNull::new(percpu::trace_ring()) else {
        return null_mut();
    };
    // SAFETY: set to a ring that lives for ever, this CPU's own.
    let ring: Ring<'static> = unsafe { Ring::from_raw(base) };
    let reserved = size.wrapping_add(dynamic);
    let bytes = reserved.wrapping_add(PREFIX_BYTES as u64) as usize;
    // SAFETY: by the contract, and because records end in the reverse order of their reservation:
    // an interrupt's program is over before the interrupted one goes on.
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
unsafe extern "C" fn trace_ring_reserve(_: u64, size: u64, _: u64) -> *mut u8 {
    if is_off() {
        return null_mut();
    }
    // SAFETY: a program keeps its CPU, and the verifier has seen the end of the record.
    unsafe { reserve(size, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_event_reserve(_: u64, size: u64, dynamic: u64, kind: u64) -> *mut u8 {
    if is_off() {
        return null_mut();
    }
    // SAFETY: as above.
    let record = unsafe { reserve(size, dynamic) };
    if !record.is_null() {
        let (flags, preempt_count) = state();
        let pid = task().map_or(0, |task| task.pid() as u32);
        let header = kind & 0xffff
            | u64::from(flags) << 16
            | u64::from(preempt_count) << 24
            | u64::from(pid) << 32;
        // SAFETY: an event's record has at least the common header.
        unsafe { record.cast::<u64>().write(header) };
    }
    record
}

/// The flags and the preemption count of the common header.
#[inline(always)]
fn state() -> (u8, u8) {
    let cpu = percpu::this();
    let mut flags = 0;
    if cpu.need_resched() {
        flags |= flags::NEED_RESCHED;
    }
    if cpu.nmis_seen() != 0 {
        flags |= flags::NMI;
    }
    (flags, percpu::preempt_count() as u8)
}

/// The ring of a record, and the payload that it is part of.
#[inline(always)]
unsafe fn payload(record: *mut u8) -> Option<(Ring<'static>, NonNull<u8>)> {
    let base = NonNull::new(percpu::trace_ring())?;
    // SAFETY: a record was reserved here, so the ring is there, and its prefix is in front of it.
    unsafe {
        Some((
            Ring::from_raw(base),
            NonNull::new_unchecked(record.sub(PREFIX_BYTES)),
        ))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_ring_submit(record: *mut u8, _: u64) {
    // SAFETY: the record is reserved, on this CPU.
    unsafe {
        if let Some((ring, payload)) = payload(record) {
            ring.commit(payload);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_ring_discard(record: *mut u8, _: u64) {
    // SAFETY: the record is reserved, on this CPU.
    unsafe {
        if let Some((ring, payload)) = payload(record) {
            ring.discard(payload);
        }
    }
}
