//! The functions that compiled code calls. Arguments and results are in registers, as in
//! `extern "C"`; keys and values are on the program's stack, where the verifier has seen that they
//! are complete. [`crate::at_home`] has those whose keys are in registers.
//!
//! Results are 0 or a negative number as in BPF: [`FULL`], [`BUSY`], [`PRESENT`], [`ABSENT`].

use core::mem::MaybeUninit;

use crate::{
    stacks::Stacks,
    steps::NoSteps,
    table::{Bytes, KeyWords, Lost, MAX_KEY_WORDS, NotUpdated, Table, Use, When},
};

/// Lost: there is no room for another key (E2BIG).
pub const FULL: i64 = bpf::errno::E2BIG;
/// Lost: the key is in the hands of another operation (EBUSY).
pub const BUSY: i64 = bpf::errno::EBUSY;
/// The key is in the map, and the flags say that it must not be (EEXIST).
pub const PRESENT: i64 = bpf::errno::EEXIST;
/// The key is not in the map (ENOENT).
pub const ABSENT: i64 = bpf::errno::ENOENT;
/// There are no such flags (EINVAL).
pub const NO_SUCH_FLAGS: i64 = bpf::errno::EINVAL;

/// Flags of an update: in any case.
pub const ANY: u64 = 0;
/// Flags of an update: only if the key is not in the map.
pub const NO_EXIST: u64 = 1;
/// Flags of an update: only if the key is in the map.
pub const EXIST: u64 = 2;

#[inline(always)]
const fn code(lost: Lost) -> i64 {
    match lost {
        Lost::Full => FULL,
        Lost::Busy => BUSY,
    }
}

#[inline(always)]
const fn added(result: Result<(), Lost>) -> i64 {
    match result {
        Ok(()) => 0,
        Err(lost) => code(lost),
    }
}

/// The value of the key at `key`, null if there is none. The address stays that of this key's value
/// until the key is deleted. After that it may be another key's value, but always one of the map's,
/// so the program may read and write it as long as the map lives.
///
/// # Safety
/// 1. `table` is a table of a hash that lives; for a hash with a table for each CPU, that of this
///    CPU, which the caller does not leave.
/// 2. As many bytes as the hash's keys have can be read at `key`.
pub unsafe extern "C" fn hash_lookup(table: *const Table, key: *const u8) -> *mut u64 {
    // SAFETY: by (1).
    let table = unsafe { &*table };
    // SAFETY: by (2).
    let key = unsafe { Bytes::at(key, table.shape().key_bytes) };
    table.lookup::<NoSteps>(&table.key(key))
}

/// Sets the value of the key at `key` to the one at `value`, as `flags` say ([`ANY`],
/// [`NO_EXIST`], [`EXIST`]).
///
/// # Safety
/// Same as for [`hash_lookup`]; and as many bytes as the hash's values have can be read at `value`.
pub unsafe extern "C" fn hash_update(
    table: *const Table,
    key: *const u8,
    value: *const u8,
    flags: u64,
) -> i64 {
    // SAFETY: by the contract.
    let table = unsafe { &*table };
    let shape = table.shape();
    // SAFETY: by the contract.
    let (key, value) = unsafe {
        (
            Bytes::at(key, shape.key_bytes),
            Bytes::at(value, shape.value_bytes),
        )
    };
    let when = match flags {
        ANY => When::Any,
        NO_EXIST => When::Absent,
        EXIST => When::Present,
        _ => return NO_SUCH_FLAGS,
    };
    match table.update::<NoSteps>(&table.key(key), value, when) {
        Ok(()) => 0,
        Err(NotUpdated::Present) => PRESENT,
        Err(NotUpdated::Absent) => ABSENT,
        Err(NotUpdated::Lost(lost)) => code(lost),
    }
}

/// Notes that the key at `key` is used: read ([`bpf::USE_READ`]), set ([`bpf::USE_CHANGED`]), or
/// going to be, with the most keys that there may be then. If it is not there, others make room.
///
/// # Safety
/// Same as for [`hash_lookup`].
pub unsafe extern "C" fn hash_use(table: *const Table, key: *const u8, how: u64) {
    // SAFETY: by the contract.
    let table = unsafe { &*table };
    // SAFETY: by the contract.
    let key = unsafe { Bytes::at(key, table.shape().key_bytes) };
    let how = match how {
        bpf::USE_READ => Use::Read,
        bpf::USE_CHANGED => Use::Changed,
        keys => Use::Change { keys },
    };
    table.use_key::<NoSteps>(&table.key(key), how);
}

/// Word `index` of the value of the key at `key`; 0 if the key or the word is not there.
///
/// # Safety
/// `table` is a table of a hash that lives, of whichever CPU; and (2) of [`hash_lookup`].
pub unsafe extern "C" fn hash_word(table: *const Table, key: *const u8, index: u64) -> u64 {
    // SAFETY: by the contract.
    let table = unsafe { &*table };
    // SAFETY: by the contract.
    let key = unsafe { Bytes::at(key, table.shape().key_bytes) };
    table.word::<NoSteps>(&table.key(key), index as usize)
}

/// Copies the key that is next from `place` on, as far as it fits into the `size` bytes at `to`,
/// and sets the rest of them to zero. Returns the place after it, or 0 if there is no further key.
/// The first place is 0. A key that several CPUs have comes once: at the first of them.
///
/// # Safety
/// `table` gives a hash's tables, which live, by the numbers of the CPUs; and `size` bytes can be
/// written at `to`.
pub unsafe fn hash_next_key(
    table: impl Fn(usize) -> Option<*const Table>,
    place: u64,
    to: *mut u8,
    size: u64,
) -> u64 {
    let mut key = MaybeUninit::<KeyWords>::uninit();
    for at in 0..MAX_KEY_WORDS {
        // SAFETY: the words lie inside. Volatile, so that it is no call of `memset`, which may be
        // probed.
        unsafe { key.as_mut_ptr().cast::<u64>().add(at).write_volatile(0) };
    }
    // SAFETY: each word is written.
    let key = unsafe { key.assume_init_mut() };
    let (mut cpu, mut slot) = ((place >> 32) as usize, place as u32 as usize);
    let mut found = None;
    // SAFETY: by the contract.
    while let Some(in_table) = table(cpu).map(|table| unsafe { &*table }) {
        while slot < in_table.places() && found.is_none() {
            let is_key = in_table.copy_key::<NoSteps>(slot, key);
            slot = slot.wrapping_add(1);
            if !is_key {
                continue;
            }
            let is_known = (0..cpu).any(|earlier| {
                table(earlier).is_some_and(|earlier| {
                    // SAFETY: by the contract; the words are more bytes than the longest key has.
                    unsafe {
                        let earlier = &*earlier;
                        let bytes = Bytes::at(key.as_ptr().cast(), earlier.shape().key_bytes);
                        !earlier.lookup::<NoSteps>(&earlier.key(bytes)).is_null()
                    }
                })
            });
            if !is_known {
                found = Some(in_table.shape().key_bytes);
            }
        }
        if found.is_some() {
            break;
        }
        cpu = cpu.wrapping_add(1);
        slot = 0;
    }
    let key_bytes = found.unwrap_or(0);
    for at in 0..size as usize {
        let byte = match key.get(at / 8) {
            Some(word) if at < key_bytes => (word >> (at % 8 * 8)) as u8,
            _ => 0,
        };
        // SAFETY: by the contract. Volatile, so that it is no call of `memcpy`.
        unsafe { to.add(at).write_volatile(byte) };
    }
    match found {
        Some(_) => (cpu as u64) << 32 | slot as u64,
        None => 0,
    }
}

/// Deletes the key at `key`.
///
/// # Safety
/// `table` is a table of a hash that lives, of whichever CPU; and (2) of [`hash_lookup`].
pub unsafe extern "C" fn hash_delete(table: *const Table, key: *const u8) -> i64 {
    // SAFETY: by the contract.
    let table = unsafe { &*table };
    // SAFETY: by the contract.
    let key = unsafe { Bytes::at(key, table.shape().key_bytes) };
    if table.delete::<NoSteps>(&table.key(key)) {
        0
    } else {
        ABSENT
    }
}

/// Adds `delta` to the first word of the value of the key at `key`, which is inserted with zeros if
/// it is not there.
///
/// # Safety
/// Same as for [`hash_lookup`].
pub unsafe extern "C" fn hash_add(table: *const Table, key: *const u8, delta: u64) -> i64 {
    // SAFETY: by the contract.
    let table = unsafe { &*table };
    // SAFETY: by the contract.
    let key = unsafe { Bytes::at(key, table.shape().key_bytes) };
    added(table.add::<NoSteps>(&table.key(key), delta))
}

/// Same as [`hash_add`] for a hash whose keys have up to 8 bytes. The key is in a register, filled
/// up with zeros.
///
/// # Safety
/// (1) of [`hash_lookup`]; and keys have up to 8 bytes.
pub unsafe extern "C" fn hash_add_word(table: *const Table, key: u64, delta: u64) -> i64 {
    // SAFETY: by the contract.
    added(unsafe { &*table }.add_word::<NoSteps>(key, delta))
}

/// Same as [`hash_lookup`] for a hash whose keys have 8 bytes. The key is in a register.
///
/// # Safety
/// (1) of [`hash_lookup`]; and keys have 8 bytes.
pub unsafe extern "C" fn hash_find_word(table: *const Table, key: u64) -> *mut u64 {
    // SAFETY: by the contract.
    unsafe { &*table }.lookup::<NoSteps>(&Table::word_key(key))
}

/// Same as [`hash_update`] with [`ANY`] for a hash whose keys and values have 8 bytes, which are in
/// registers.
///
/// # Safety
/// (1) of [`hash_lookup`]; and keys and values have 8 bytes.
pub unsafe extern "C" fn hash_set_word(table: *const Table, key: u64, value: u64) -> i64 {
    // SAFETY: by the contract.
    unsafe {
        hash_update(
            table,
            key.to_ne_bytes().as_ptr(),
            value.to_ne_bytes().as_ptr(),
            ANY,
        )
    }
}

/// Same as [`hash_delete`] for a hash whose keys have 8 bytes. The key is in a register.
///
/// # Safety
/// `table` is a table of a hash that lives, of whichever CPU; and keys have 8 bytes.
pub unsafe extern "C" fn hash_delete_word(table: *const Table, key: u64) -> i64 {
    // SAFETY: by the contract.
    unsafe { hash_delete(table, key.to_ne_bytes().as_ptr()) }
}

/// The number of the trace of `count` frames at `frames`, the innermost first, or [`FULL`].
///
/// # Safety
/// `stacks` lives, and `count` words can be read at `frames`.
pub unsafe extern "C" fn stacks_insert(
    stacks: *const Stacks,
    frames: *const u64,
    count: usize,
) -> i64 {
    // SAFETY: by the contract.
    let (stacks, frames) = unsafe { (&*stacks, core::slice::from_raw_parts(frames, count)) };
    match stacks.insert(frames) {
        Ok(number) => number as i64,
        Err(lost) => code(lost),
    }
}
