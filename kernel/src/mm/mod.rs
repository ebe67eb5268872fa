//! Memory: physical frames, page tables and address spaces, the heap.

pub mod allocation_faults;
pub mod fault;
pub mod frame;
pub mod heap;
pub mod init_text;
pub mod kernel_stack;
pub mod paging;
pub mod phys_map;
pub mod shared;
pub mod uaccess;
pub mod usage;
pub mod user_space;

pub use frame::{FRAME_SIZE, Frame};
pub use usage::Usage;
