//! The user's half of an address space as tasks see it.

use super::{frame::OutOfMemory, paging::AddressSpace};
use x86_64::PhysAddr;

/// What is mapped for a process.
pub struct UserSpace {
    space: AddressSpace,
}

impl UserSpace {
    /// An empty one.
    pub fn new() -> Result<Self, OutOfMemory> {
        Ok(Self {
            space: AddressSpace::new()?,
        })
    }

    /// Physical address of the root table.
    pub fn root(&self) -> PhysAddr {
        self.space.root()
    }
}
