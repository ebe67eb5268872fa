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
    arch::naked_asm,
    mem::offset_of,
    ptr::null_mut,
    sync::atomic::{AtomicU64, Ordering},
};

use bpf::Helper;
use bpf_compiler::{Constants, Given, Routine};
use trace_maps::{ArrayPlace, Table, compiled};

use super::{
    nofault::{self, Space},
    records::{self, PREFIX_BYTES, Prefix},
    stacks,
};
use crate::{
    arch::percpu,
    task::{Task, running},
};

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
        Helper::RingReserve => records::trace_ring_reserve as *const () as u64,
        Helper::RingSubmit => records::trace_ring_submit as *const () as u64,
        Helper::RingDiscard => records::trace_ring_discard as *const () as u64,
        Helper::AddByKey => trace_add_by_key as *const () as u64,
        Helper::EventReserve => records::trace_event_reserve as *const () as u64,
        Helper::StrLen => trace_text_bytes_of_kernel as *const () as u64,
        Helper::UserStrLen => trace_text_bytes_of_user as *const () as u64,
        Helper::AppendStr => trace_append_text as *const () as u64,
        Helper::AppendUserStr => trace_append_user_text as *const () as u64,
        Helper::AppendBytes => trace_append_bytes as *const () as u64,
        Helper::Trigger => super::triggers::trace_trigger as *const () as u64,
        Helper::SumOfCpus => trace_sum_of_cpus as *const () as u64,
        Helper::MostOfCpus => trace_most_of_cpus as *const () as u64,
        Helper::DeleteOfCpus => trace_delete_of_cpus as *const () as u64,
        Helper::NextKey => trace_next_key as *const () as u64,
        Helper::CountKeys => trace_count_keys as *const () as u64,
        Helper::CountFrames => stacks::trace_count_frames as *const () as u64,
        Helper::ReadPart => trace_read_kernel_part as *const () as u64,
        Helper::ReadUserPart => trace_read_user_part as *const () as u64,
        Helper::CanRead => trace_can_read as *const () as u64,
        Helper::StackId => stacks::trace_stack_id as *const () as u64,
        Helper::RecordStack => stacks::trace_record_stack as *const () as u64,
        Helper::CpuId
        | Helper::FuncIp
        | Helper::Tsc
        | Helper::Log2
        | Helper::Add
        | Helper::EntryData
        | Helper::ReturnAddress
        | Helper::NotRecording => return None,
    })
}

/// The routine in place of a helper whose arguments are `constants`.
pub fn routine(helper: Helper, constants: &Constants) -> Option<Routine> {
    let (address, arguments): (unsafe extern "C" fn(), _) = match (helper, *constants) {
        (Helper::AddByKey, [Some(map), ..]) => {
            let map = core::ptr::with_exposed_provenance::<Tables>(map as usize);
            // SAFETY: the handle of a map of keys, which lives as long as the program. Its tables
            // do.
            if unsafe { (*(*map).tables[0]).key_bytes() } != 8 {
                return None;
            }
            (
                trace_add_by_word,
                [
                    Given::Argument,
                    Given::Word,
                    Given::Argument,
                    Given::Nothing,
                ],
            )
        }
        (Helper::StrLen, [_, Some(most @ 1..), ..]) => (
            trace_text_bytes_at_most,
            [
                Given::Argument,
                Given::Constant(most.min(MOST_TEXT)),
                Given::Nothing,
                Given::Nothing,
            ],
        ),
        (Helper::AppendStr, _) => (
            trace_append_text,
            [
                Given::Argument,
                Given::Argument,
                Given::Argument,
                Given::Nothing,
            ],
        ),
        _ => return records::routine(helper, constants),
    };
    Some(Routine {
        address: address as *const () as u64,
        arguments,
    })
}

/// [`Helper::AddByKey`] of a key of 8 bytes, which is in `rsi`. A routine in the sense of
/// [`Routine`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_add_by_word() {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, gs:[{cpu}]",
        "mov rdi, [rdi + 8 * rax]",
        "jmp {add}",
        ".cfi_endproc",
        cpu = const percpu::CPU_ID,
        add = sym compiled::hash_add_word_at_home,
    )
}

/// A map of keys, as the compiler passes it: where the table of each CPU is. A map that all share
/// has the same everywhere.
#[repr(C)]
pub struct Tables {
    pub tables: [*const Table; percpu::MAX_CPUS],
    /// How many CPUs have a part of their own: 1 if all share one.
    pub cpus: usize,
    /// Where the values of an array are, and the bytes of one. The tables are null then.
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
    let to = array_value(place, percpu::cpu_id(), index).cast::<u8>();
    for at in 0..bytes {
        // SAFETY: inside the value of an index that the array has. Volatile, so that it is no call
        // of `memcpy`.
        unsafe { to.add(at).write_volatile(value.add(at).read_volatile()) };
    }
    0
}

/// The value of an index that the array has, as the CPU sees it.
#[inline(always)]
fn array_value(place: &ArrayPlace, cpu: usize, index: usize) -> *mut u64 {
    let part = match place.cpu_shift {
        Some(shift) => cpu << (shift & 63),
        None if place.is_lent => cpu.wrapping_mul(size_of::<percpu::PerCpu>()),
        None => 0,
    };
    let offset = part.wrapping_add(index.wrapping_mul(place.stride as usize));
    core::ptr::with_exposed_provenance_mut::<u8>(place.base as usize)
        .wrapping_add(offset)
        .cast()
}

/// Word `word` of the value of `key` on a CPU; 0 if it is not there.
///
/// # Safety
/// The map is live, has a part of that CPU, and its key can be read at `key`.
#[inline(always)]
unsafe fn word_on(map: &Tables, cpu: usize, key: *const u8, word: u64) -> u64 {
    let Some((place, bytes)) = &map.array else {
        // SAFETY: CPU numbers are below MAX_CPUS; the rest is the contract.
        return unsafe { compiled::hash_word(*map.tables.get_unchecked(cpu), key, word) };
    };
    // SAFETY: the key of an array is an index of 4 bytes.
    let index = unsafe { key.cast::<u32>().read_unaligned() } as usize;
    if index >= place.entries as usize || word >= (*bytes as u64).wrapping_add(7) / 8 {
        return 0;
    }
    let value = array_value(place, cpu, index).wrapping_add(word as usize);
    // SAFETY: a word of a value of the array. Words of values are aligned.
    unsafe { AtomicU64::from_ptr(value) }.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_sum_of_cpus(map: *const Tables, key: *const u8, word: u64) -> u64 {
    // SAFETY: the map is live, and the verifier has seen the key.
    let map = unsafe { &*map };
    let mut sum = 0_u64;
    for cpu in 0..map.cpus {
        // SAFETY: as above.
        sum = sum.wrapping_add(unsafe { word_on(map, cpu, key, word) });
    }
    sum
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_most_of_cpus(map: *const Tables, key: *const u8, word: u64) -> u64 {
    // SAFETY: the map is live, and the verifier has seen the key.
    let map = unsafe { &*map };
    let mut most = 0_u64;
    for cpu in 0..map.cpus {
        // SAFETY: as above.
        most = most.max(unsafe { word_on(map, cpu, key, word) });
    }
    most
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_delete_of_cpus(map: *const Tables, key: *const u8) -> i64 {
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
            let value = array_value(place, cpu, index).wrapping_add(word);
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

/// Processes here have one task each.
#[unsafe(no_mangle)]
extern "C" fn trace_pid_tgid() -> u64 {
    let pid = running().map_or(0, |task| task.pid() as u32);
    u64::from(pid) << 32 | u64::from(pid)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_comm(buffer: *mut u8, size: u64) -> i64 {
    let [low, high] = running().map_or([0; 2], Task::comm_words);
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
fn bad_address() -> i64 {
    super::count_bad_load();
    BAD_ADDRESS
}

macro_rules! reads {
    ($copy:ident, $copy_part:ident, $copy_text:ident, $text_bytes:ident, $space:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $copy(to: *mut u8, size: u64, from: u64) -> i64 {
            // SAFETY: the program may write `size` bytes there.
            if unsafe { nofault::copy($space, to, from, size) } {
                0
            } else {
                bad_address()
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $copy_part(to: *mut u8, size: u64, from: u64, length: u64) -> i64 {
            let length = length.min(size);
            // SAFETY: the program may write `size` bytes there, and the length is not more.
            let rest = unsafe { to.add(length as usize) };
            // SAFETY: as above.
            unsafe { nofault::clear(rest, size.wrapping_sub(length)) };
            // SAFETY: as above.
            if length == 0 || unsafe { nofault::copy($space, to, from, length) } {
                0
            } else {
                bad_address()
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $copy_text(to: *mut u8, size: u64, from: u64) -> i64 {
            // SAFETY: the program may write `size` bytes there.
            match unsafe { nofault::copy_text($space, to, from, size) } {
                0 => {
                    // SAFETY: as above.
                    unsafe { nofault::clear(to, size) };
                    bad_address()
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
            nofault::text_length($space, from, most.min(MOST_TEXT))
        }
    };
}

reads!(
    trace_read_kernel,
    trace_read_kernel_part,
    trace_read_kernel_text,
    trace_text_bytes_of_kernel,
    Space::Kernel
);
reads!(
    trace_read_user,
    trace_read_user_part,
    trace_read_user_text,
    trace_text_bytes_of_user,
    Space::User
);

#[unsafe(no_mangle)]
extern "C" fn trace_can_read(address: u64, length: u64, space: u64) -> u64 {
    let space = match space {
        0 => Space::Kernel,
        _ => Space::User,
    };
    match nofault::can_read(space, address, length.min(bpf::MOST_CHECKED)) {
        true => 1,
        false => {
            super::count_bad_load();
            0
        }
    }
}

/// [`Helper::StrLen`] of the address in `rdi` and a constant in `rsi`: 1 to [`MOST_TEXT`]. A
/// routine in the sense of [`Routine`], as [`nofault::trace_text_length`] is, where it goes on.
/// Texts of the kernel are at negative addresses.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_text_bytes_at_most() {
    naked_asm!(
        ".cfi_startproc",
        "test rdi, rdi",
        "js {length}",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
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
/// 1. A verified program calls it, with its CPU kept, DF and AC clear, and a record that it has
///    reserved.
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
        "test rsi, rsi",
        "jns 2f",
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
        prefix = const PREFIX_BYTES,
        used = const offset_of!(Prefix, used),
        reserved = const offset_of!(Prefix, reserved),
        copy = sym nofault::trace_copy_text,
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn trace_append_user_text(record: *mut u8, from: u64, most: u64) -> u64 {
    // SAFETY: the record is the caller's.
    unsafe {
        append(record, |to, room| {
            nofault::copy_text(Space::User, to, from, most.min(room))
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
