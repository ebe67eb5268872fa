//! Memory that may be refused, and its error as an errno: see [`fallible`].

pub use fallible::{OutOfMemory, Shared, try_box, try_vec};

use crate::errno::Errno;

impl From<OutOfMemory> for Errno {
    fn from(_: OutOfMemory) -> Self {
        Self::ENOMEM
    }
}
