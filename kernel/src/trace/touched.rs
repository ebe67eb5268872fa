//! The functions that tracing has been on since the boot: the file `touched_functions`.
//!
//! Tracers, the profile, commands and events put their functions in when their probes are there,
//! and none is taken out. So that this cannot fail then, [`reserve`] takes the memory before.
//!
//! # Contexts
//! Task context, may sleep. The lock is the innermost of tracing.

#![forbid(unsafe_code)]

use alloc::vec::Vec;

use fallible::OutOfMemory;

use crate::sync::{Mutex, MutexGuard};

/// Where they begin, ascending.
static TOUCHED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Memory for some functions more.
pub struct Room(MutexGuard<'static, Vec<u64>>);

/// Takes memory for so many functions. Nobody else looks at them or adds any as long as it lives.
///
/// # Errors
/// [`OutOfMemory`].
pub fn reserve(functions: usize) -> Result<Room, OutOfMemory> {
    let mut touched = TOUCHED.lock();
    touched.try_reserve(functions).map_err(|_| OutOfMemory)?;
    Ok(Room(touched))
}

impl Room {
    /// Puts functions in, by their beginnings: as many as there is room for.
    pub fn add(&mut self, functions: &[u64]) {
        let touched = &mut *self.0;
        let known = touched.len();
        for function in functions {
            if touched.len() < touched.capacity()
                && touched[..known].binary_search(function).is_err()
            {
                touched.push(*function);
            }
        }
        touched.sort_unstable();
        touched.dedup();
    }
}

/// Whether the function that begins at `address` is among them.
pub fn has(address: u64) -> bool {
    TOUCHED.lock().binary_search(&address).is_ok()
}
