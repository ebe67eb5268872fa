//! What programs call, in the order of `bpf::Helper`. The compiler writes out the others itself.
//!
//! The verifier has checked the arguments: pointers lead to as many bytes as the call says, records
//! are reserved, maps are of the right kind. So these functions check nothing again, and all of
//! them have the same contract: a verified program calls them, by [`mod@crate::entry_points`].
//!
//! # Contexts
//! Any, with the CPU kept: a program runs with interrupts off or under the probes' guard. They are
//! on the hit path. So they neither lock, allocate nor panic, and call nothing that can be probed.
//! For example, they copy by volatile words, because the compiler would make plain loops a call of
//! `memcpy`.

use core::{
    arch::naked_asm,
    mem::offset_of,
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering},
};

use bpf::Helper;
use bpf_compiler::{Constants, Given, KERNEL_MEMORY_END, Routine};
use trace_maps::{ArrayPlace, Table, compiled};

pub use trace_maps::{Stacks, at_home};

use crate::{
    Agent, counters,
    facts::MAX_CPUS,
    nofault::{self, Space},
    per_cpu::count_bad_load,
    platform::UPPER_HALF,
    records::{self, PREFIX_BYTES, Prefix},
    stacks,
};

/// The address of a helper that is called. None: the compiler writes it out.
pub(crate) fn address<A: Agent>(helper: Helper) -> Option<u64> {
    let entry = A::tracing_entry_points();
    Some(match helper {
        Helper::MapLookup => entry.map_lookup,
        Helper::MapUpdate => entry.map_update,
        Helper::MapDelete => entry.map_delete,
        Helper::PidTgid => entry.pid_tgid,
        Helper::Comm => entry.comm,
        Helper::ReadUser => entry.read_user,
        Helper::ReadKernel => entry.read_kernel,
        Helper::ReadUserStr => entry.read_user_text,
        Helper::ReadKernelStr => entry.read_kernel_text,
        Helper::RingReserve => entry.ring_reserve,
        Helper::RingSubmit => entry.ring_submit,
        Helper::RingDiscard => entry.ring_discard,
        Helper::AddByKey => entry.add_by_key,
        Helper::EventReserve => entry.event_reserve,
        Helper::StrLen => entry.text_bytes_of_kernel,
        Helper::UserStrLen => entry.text_bytes_of_user,
        Helper::AppendStr if is_in_upper_half::<A>() => trace_append_text as *const () as u64,
        Helper::AppendStr => entry.append_kernel_text,
        Helper::AppendUserStr => entry.append_user_text,
        Helper::AppendBytes => trace_append_bytes as *const () as u64,
        Helper::Trigger => entry.trigger,
        Helper::SumOfCpus => entry.sum_of_cpus,
        Helper::MostOfCpus => entry.most_of_cpus,
        Helper::DeleteOfCpus => entry.delete_of_cpus,
        Helper::UseKey => entry.use_key,
        Helper::NextKey => trace_next_key as *const () as u64,
        Helper::CountKeys => trace_count_keys as *const () as u64,
        Helper::CountFrames => stacks::trace_count_frames as *const () as u64,
        Helper::ReadPart => entry.read_kernel_part,
        Helper::ReadUserPart => entry.read_user_part,
        Helper::CanRead => entry.can_read,
        Helper::AimWatch => entry.aim_watch,
        Helper::WatchedAddress => entry.watched_address,
        Helper::TrueAddress => entry.true_address,
        Helper::StackId => entry.stack_id,
        Helper::RecordStack => entry.record_stack,
        Helper::NotRecording => entry.not_recording,
        Helper::CpuId
        | Helper::FuncIp
        | Helper::Tsc
        | Helper::Log2
        | Helper::Add
        | Helper::EntryData
        | Helper::ReturnAddress => return None,
    })
}

/// Whether the routines in assembly know the kernel's texts, by the sign of their addresses.
fn is_in_upper_half<A: Agent>() -> bool {
    A::KERNEL_START == UPPER_HALF
}

/// The routine in place of a helper whose arguments are `constants`.
pub(crate) fn routine<A: Agent>(helper: Helper, constants: &Constants) -> Option<Routine> {
    let (address, arguments) = match (helper, *constants) {
        (
            Helper::MapLookup | Helper::MapUpdate | Helper::AddByKey | Helper::MapDelete,
            [Some(map), _, _, flags, _],
        ) => {
            let map = core::ptr::with_exposed_provenance::<Tables>(map as usize);
            // SAFETY: the handle of a map, which lives as long as the program.
            let (key, value) = unsafe { (*map).bytes() }?;
            let entry = A::tracing_entry_points();
            let (address, third) = match helper {
                Helper::MapLookup => (entry.find_by_word, Given::Nothing),
                Helper::MapUpdate if value == 8 && flags == Some(compiled::ANY) => {
                    (entry.set_by_word, Given::Word)
                }
                Helper::MapUpdate => return None,
                Helper::AddByKey => (entry.add_by_word, Given::Argument),
                _ => (entry.delete_by_word, Given::Nothing),
            };
            if key != 8 {
                return None;
            }
            (
                address,
                [Given::Argument, Given::Word, third, Given::Nothing],
            )
        }
        (Helper::StrLen, [_, Some(most @ 1..), ..]) if is_in_upper_half::<A>() => (
            trace_text_bytes_at_most as *const () as u64,
            [
                Given::Argument,
                Given::Constant(most.min(MOST_TEXT)),
                Given::Nothing,
                Given::Nothing,
            ],
        ),
        (Helper::AppendStr, _) if is_in_upper_half::<A>() => (
            trace_append_text as *const () as u64,
            [
                Given::Argument,
                Given::Argument,
                Given::Argument,
                Given::Nothing,
            ],
        ),
        _ => return records::routine::<A>(helper, constants),
    };
    Some(Routine { address, arguments })
}

/// A map of keys, as the compiler passes it: where the table of each CPU is. A map that all share
/// has the same everywhere.
#[repr(C)]
pub struct Tables {
    pub tables: [*const Table; MAX_CPUS],
    /// How many CPUs have a part of their own: 1 if all share one.
    pub cpus: usize,
    /// Where the values of an array are, and the bytes of one. The tables are null then.
    pub array: Option<(ArrayPlace, usize)>,
}

// SAFETY: a table may be used from any CPU, and the pointers are only read.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    /// How many bytes keys and values have; `None` for an array.
    fn bytes(&self) -> Option<(usize, usize)> {
        if self.array.is_some() {
            return None;
        }
        // SAFETY: there is a first table, which lives as long as the map.
        let table = unsafe { &*self.tables[0] };
        Some((table.key_bytes(), table.value_bytes()))
    }
}

/// The table of this CPU.
///
/// # Safety
/// `map` is live.
#[inline(always)]
unsafe fn table<A: Agent>(map: *const Tables) -> *const Table {
    // SAFETY: CPU numbers are below MAX_CPUS.
    unsafe { *(*map).tables.get_unchecked(A::this_cpu_tracing().number()) }
}

/// [`Helper::MapLookup`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn map_lookup<A: Agent>(map: *const Tables, key: *const u8) -> *mut u64 {
    // SAFETY: the verifier's promises are those of the function.
    unsafe { compiled::hash_lookup(table::<A>(map), key) }
}

/// [`Helper::MapUpdate`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn map_update<A: Agent>(
    map: *const Tables,
    key: *const u8,
    value: *const u8,
    flags: u64,
) -> i64 {
    // SAFETY: the map is live.
    if let Some((place, bytes)) = unsafe { &(*map).array } {
        // SAFETY: the verifier's promises: an index of 4 bytes, and a value.
        return unsafe { array_update::<A>(place, *bytes, key, value, flags) };
    }
    // SAFETY: as above.
    unsafe { compiled::hash_update(table::<A>(map), key, value, flags) }
}

/// Stores a value of an array, byte by byte.
///
/// # Safety
/// The array is live, `key` can be read for 4 bytes and `value` for `bytes`, which is its size.
#[inline(always)]
unsafe fn array_update<A: Agent>(
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
    let to = array_value::<A>(place, A::this_cpu_tracing().number(), index).cast::<u8>();
    for at in 0..bytes {
        // SAFETY: inside the value of an index that the array has. Volatile, so that it is no call
        // of `memcpy`.
        unsafe { to.add(at).write_volatile(value.add(at).read_volatile()) };
    }
    0
}

/// The value of an index that the array has, as the CPU sees it.
#[inline(always)]
fn array_value<A: Agent>(place: &ArrayPlace, cpu: usize, index: usize) -> *mut u64 {
    let part = match place.cpu_shift {
        Some(shift) => place.base.wrapping_add((cpu << (shift & 63)) as u64),
        None if place.is_lent => counters::on_cpu::<A>(place.base, cpu),
        None => place.base,
    };
    let offset = index.wrapping_mul(place.stride as usize);
    core::ptr::with_exposed_provenance_mut::<u8>(part as usize)
        .wrapping_add(offset)
        .cast()
}

/// Word `word` of the value of `key` on a CPU; 0 if it is not there.
///
/// # Safety
/// The map is live, has a part of that CPU, and its key can be read at `key`.
#[inline(always)]
unsafe fn word_on<A: Agent>(map: &Tables, cpu: usize, key: *const u8, word: u64) -> u64 {
    let Some((place, bytes)) = &map.array else {
        // SAFETY: CPU numbers are below MAX_CPUS; the rest is the contract.
        return unsafe { compiled::hash_word(*map.tables.get_unchecked(cpu), key, word) };
    };
    // SAFETY: the key of an array is an index of 4 bytes.
    let index = unsafe { key.cast::<u32>().read_unaligned() } as usize;
    if index >= place.entries as usize || word >= (*bytes as u64).wrapping_add(7) / 8 {
        return 0;
    }
    let value = array_value::<A>(place, cpu, index).wrapping_add(word as usize);
    // SAFETY: a word of a value of the array. Words of values are aligned.
    unsafe { AtomicU64::from_ptr(value) }.load(Ordering::Relaxed)
}

/// [`Helper::SumOfCpus`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn sum_of_cpus<A: Agent>(map: *const Tables, key: *const u8, word: u64) -> u64 {
    // SAFETY: the map is live, and the verifier has seen the key.
    let map = unsafe { &*map };
    let mut sum = 0_u64;
    for cpu in 0..map.cpus {
        // SAFETY: as above.
        sum = sum.wrapping_add(unsafe { word_on::<A>(map, cpu, key, word) });
    }
    sum
}

/// [`Helper::MostOfCpus`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn most_of_cpus<A: Agent>(map: *const Tables, key: *const u8, word: u64) -> u64 {
    // SAFETY: the map is live, and the verifier has seen the key.
    let map = unsafe { &*map };
    let mut most = 0_u64;
    for cpu in 0..map.cpus {
        // SAFETY: as above.
        most = most.max(unsafe { word_on::<A>(map, cpu, key, word) });
    }
    most
}

/// [`Helper::DeleteOfCpus`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn delete_of_cpus<A: Agent>(map: *const Tables, key: *const u8) -> i64 {
    // SAFETY: the map is live.
    let map = unsafe { &*map };
    let Some((place, bytes)) = &map.array else {
        let mut result = compiled::ABSENT;
        for cpu in 0..map.cpus {
            // SAFETY: the verifier has seen the key; CPU numbers are below MAX_CPUS.
            if unsafe { compiled::hash_delete(*map.tables.get_unchecked(cpu), key) } == 0 {
                result = 0;
            }
        }
        return result;
    };
    // SAFETY: the key of an array is an index of 4 bytes.
    let index = unsafe { key.cast::<u32>().read_unaligned() } as usize;
    if index >= place.entries as usize {
        return compiled::ABSENT;
    }
    for cpu in 0..map.cpus {
        for word in 0..bytes.wrapping_add(7) / 8 {
            let value = array_value::<A>(place, cpu, index).wrapping_add(word);
            // SAFETY: a word of a value of the array. Words of values are aligned.
            unsafe { AtomicU64::from_ptr(value) }.store(0, Ordering::Relaxed);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_next_key(
    map: *const Tables,
    place: u64,
    buffer: *mut u8,
    size: u64,
) -> u64 {
    // SAFETY: the map is live.
    let map = unsafe { &*map };
    let table = |cpu: usize| match cpu < map.cpus {
        true => map.tables.get(cpu).copied(),
        false => None,
    };
    // SAFETY: the tables live as long as the map, and the program may write `size` bytes there.
    unsafe { compiled::hash_next_key(table, place, buffer, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_count_keys(map: *const Tables) -> u64 {
    let (mut count, mut place) = (0_u64, 0);
    loop {
        // SAFETY: the map is live, and no byte is written.
        place = unsafe { trace_next_key(map, place, null_mut(), 0) };
        if place == 0 {
            return count;
        }
        count = count.wrapping_add(1);
    }
}

/// [`Helper::MapDelete`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn map_delete<A: Agent>(map: *const Tables, key: *const u8) -> i64 {
    // SAFETY: as above.
    unsafe { compiled::hash_delete(table::<A>(map), key) }
}

/// [`Helper::AddByKey`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn add_by_key<A: Agent>(map: *const Tables, key: *const u8, delta: u64) -> i64 {
    // SAFETY: as above.
    unsafe { compiled::hash_add(table::<A>(map), key, delta) }
}

/// [`Helper::UseKey`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn use_key<A: Agent>(map: *const Tables, key: *const u8, how: u64) -> i64 {
    // SAFETY: as above.
    unsafe { compiled::hash_use(table::<A>(map), key, how) };
    0
}

/// [`Helper::PidTgid`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn pid_tgid<A: Agent>() -> u64 {
    let (task, process) = A::this_cpu_tracing().task();
    u64::from(process) << 32 | u64::from(task)
}

/// [`Helper::Comm`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn comm<A: Agent>(buffer: *mut u8, size: u64) -> i64 {
    let [low, high] = A::task_name();
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

/// Counts a copy that found nothing, as a load that found nothing is counted.
#[inline(always)]
fn bad_address<A: Agent>() -> i64 {
    count_bad_load::<A>();
    BAD_ADDRESS
}

macro_rules! reads {
    ($copy:ident, $copy_part:ident, $copy_text:ident, $text_bytes:ident, $space:expr) => {
        /// A read: see [`Helper`].
        ///
        /// # Safety
        /// A verified program calls it.
        #[inline(always)]
        pub unsafe fn $copy<A: Agent>(to: *mut u8, size: u64, from: u64) -> i64 {
            // SAFETY: the program may write `size` bytes there.
            if unsafe { nofault::copy::<A>($space, to, from, size) } {
                0
            } else {
                bad_address::<A>()
            }
        }

        /// A read: see [`Helper`].
        ///
        /// # Safety
        /// A verified program calls it.
        #[inline(always)]
        pub unsafe fn $copy_part<A: Agent>(to: *mut u8, size: u64, from: u64, length: u64) -> i64 {
            let length = length.min(size);
            // SAFETY: the program may write `size` bytes there, and the length is not more.
            let rest = unsafe { to.add(length as usize) };
            // SAFETY: as above.
            unsafe { nofault::clear(rest, size.wrapping_sub(length)) };
            // SAFETY: as above.
            if length == 0 || unsafe { nofault::copy::<A>($space, to, from, length) } {
                0
            } else {
                bad_address::<A>()
            }
        }

        /// A read: see [`Helper`].
        ///
        /// # Safety
        /// A verified program calls it.
        #[inline(always)]
        pub unsafe fn $copy_text<A: Agent>(to: *mut u8, size: u64, from: u64) -> i64 {
            // SAFETY: the program may write `size` bytes there.
            match unsafe { nofault::copy_text::<A>($space, to, from, size) } {
                0 => {
                    // SAFETY: as above.
                    unsafe { nofault::clear(to, size) };
                    bad_address::<A>()
                }
                len => {
                    // The buffer is often a key, so nothing of an older text may be left in it.
                    // SAFETY: as above; the text has at most `size` bytes.
                    unsafe { nofault::clear(to.add(len as usize), size.wrapping_sub(len)) };
                    len as i64
                }
            }
        }

        /// A read: see [`Helper`].
        ///
        /// # Safety
        /// A verified program calls it.
        #[inline(always)]
        pub unsafe fn $text_bytes<A: Agent>(from: u64, most: u64) -> u64 {
            nofault::text_length::<A>($space, from, most.min(MOST_TEXT))
        }
    };
}

reads!(
    read_kernel,
    read_kernel_part,
    read_kernel_text,
    text_bytes_of_kernel,
    Space::Kernel
);
reads!(
    read_user,
    read_user_part,
    read_user_text,
    text_bytes_of_user,
    Space::User
);

/// [`Helper::CanRead`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn can_read<A: Agent>(address: u64, length: u64, space: u64) -> u64 {
    let space = match space {
        0 => Space::Kernel,
        _ => Space::User,
    };
    match nofault::can_read::<A>(space, address, length.min(bpf::MOST_CHECKED)) {
        true => 1,
        false => {
            count_bad_load::<A>();
            0
        }
    }
}

/// [`Helper::StrLen`] of the address in `rdi` and a constant in `rsi`: 1 to [`MOST_TEXT`]. A
/// routine in the sense of [`Routine`], as [`nofault::trace_text_length`] is, where it goes on.
/// Texts of the kernel are at addresses below [`KERNEL_MEMORY_END`], by sign.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_text_bytes_at_most() {
    naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {end}",
        "jl {length}",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        end = const KERNEL_MEMORY_END,
        length = sym nofault::trace_text_length,
    )
}

/// [`Helper::AppendStr`]: the record is in `rdi`, the address in `rsi`, the length in `rdx`. It
/// does what [`append`] does. A C function, and a routine in the sense of [`Routine`], as
/// [`nofault::trace_copy_text`] is, which it calls.
///
/// `eax`: the bytes in use, then those of the text; `rcx`: the room. Its frame is the record's
/// address, while the text is copied.
///
/// # Safety
/// 1. A verified program calls it, with its CPU kept, and a record that it has reserved.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_append_text() {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, [rdi - {prefix} + {used}]",
        "mov ecx, [rdi - {prefix} + {reserved}]",
        "sub ecx, eax",
        "cmp rdx, rcx",
        "cmova rdx, rcx",
        "cmp rsi, {end}",
        "jge 2f",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "add rdi, rax",
        "call {copy}",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "mov ecx, [rdi - {prefix} + {used}]",
        "add [rdi - {prefix} + {used}], eax",
        "shl eax, 16",
        "or eax, ecx",
        // Nothing is appended: the place has the length 0.
        "2: ret",
        ".cfi_endproc",
        end = const KERNEL_MEMORY_END,
        prefix = const PREFIX_BYTES,
        used = const offset_of!(Prefix, used),
        reserved = const offset_of!(Prefix, reserved),
        copy = sym nofault::trace_copy_text,
    )
}

/// [`Helper::AppendStr`], where the kernel is not in the upper half.
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn append_kernel_text<A: Agent>(record: *mut u8, from: u64, most: u64) -> u64 {
    // SAFETY: the record is the caller's.
    unsafe {
        append(record, |to, room| {
            nofault::copy_text::<A>(Space::Kernel, to, from, most.min(room))
        })
    }
}

/// [`Helper::AppendUserStr`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn append_user_text<A: Agent>(record: *mut u8, from: u64, most: u64) -> u64 {
    // SAFETY: the record is the caller's.
    unsafe {
        append(record, |to, room| {
            nofault::copy_text::<A>(Space::User, to, from, most.min(room))
        })
    }
}

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

/// [`Helper::RingReserve`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn ring_reserve<A: Agent>(_ring: u64, size: u64, _flags: u64) -> *mut u8 {
    records::ring_reserve::<A>(size)
}

/// [`Helper::RingDiscard`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn ring_discard<A: Agent>(record: *mut u8, _flags: u64) {
    // SAFETY: the record is the caller's.
    unsafe { records::ring_discard::<A>(record) };
}

/// [`Helper::EventReserve`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn event_reserve<A: Agent>(_ring: u64, size: u64, room: u64, kind: u64) -> *mut u8 {
    records::reserve_event::<A>(kind, size, room)
}

/// [`Helper::NotRecording`], where compiled code cannot look itself.
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn not_recording<A: Agent>() -> u64 {
    A::tracing().recording.reasons().into()
}

/// [`Helper::Trigger`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn trigger<A: Agent>(number: u64, value: u64) -> u64 {
    A::trigger(number, value)
}

/// [`Helper::AimWatch`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn aim_watch<A: Agent>(number: u64, address: u64) -> u64 {
    A::tracing().aimed.aim(number, address).into()
}

/// [`Helper::WatchedAddress`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn watched_address<A: Agent>() -> u64 {
    A::this_cpu_tracing().watched.load(Ordering::Relaxed)
}

/// [`Helper::TrueAddress`].
///
/// # Safety
/// A verified program calls it.
#[inline(always)]
pub unsafe fn true_address<A: Agent>(slot: u64, value: u64) -> u64 {
    A::probes().return_address(A::task_key(), slot, value)
}
