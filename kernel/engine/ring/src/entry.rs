//! The write side as plain functions, for compiled code to call.
//!
//! A ring is the address of its memory. The functions run on the ring's own CPU in any context.
//! They do not wait, fault or panic.

use core::ptr::{self, NonNull};

use super::ring::Ring;

/// [`Ring::reserve`]. Returns the payload, or null if the record was dropped and counted.
///
/// # Safety
/// 1. `ring` is the memory of a ring ([`Ring::from_raw`]).
/// 2. The contract of [`Ring::reserve`] holds.
pub unsafe extern "C" fn reserve(ring: NonNull<u8>, bytes: usize, tsc: u64) -> *mut u8 {
    // SAFETY: the same contract.
    let payload = unsafe { Ring::from_raw(ring).reserve(bytes, tsc) };
    payload.map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// [`Ring::commit`].
///
/// # Safety
/// 1. `ring` is the memory of a ring ([`Ring::from_raw`]).
/// 2. `payload` came from [`reserve`] of this ring and is not null. The record is not over, and no
///    record that was reserved after it is still being written.
pub unsafe extern "C" fn commit(ring: NonNull<u8>, payload: NonNull<u8>) {
    // SAFETY: the same contract.
    unsafe { Ring::from_raw(ring).commit(payload) };
}

/// [`Ring::discard`].
///
/// # Safety
/// Same as for [`commit`].
pub unsafe extern "C" fn discard(ring: NonNull<u8>, payload: NonNull<u8>) {
    // SAFETY: the same contract.
    unsafe { Ring::from_raw(ring).discard(payload) };
}
