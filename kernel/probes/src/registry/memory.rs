//! Memory that may be refused.

use alloc::{alloc::alloc, boxed::Box};
use core::alloc::Layout;

use crate::error::ProbeError;

/// A box, or an error where `Box::new` would end the kernel.
pub(crate) fn try_box<T>(value: T) -> Result<Box<T>, ProbeError> {
    let layout = Layout::new::<T>();
    debug_assert!(layout.size() != 0);
    // SAFETY: the layout is not empty.
    let memory: *mut T = unsafe { alloc(layout) }.cast();
    if memory.is_null() {
        return Err(ProbeError::OutOfMemory);
    }
    // SAFETY: fresh memory of the right layout, from the global allocator that `Box` gives it back
    // to.
    unsafe {
        memory.write(value);
        Ok(Box::from_raw(memory))
    }
}
