//! Memory: physical frames, page tables and address spaces, the heap.

pub mod fault;
pub mod frame;
pub mod heap;
pub mod init_text;
pub mod kernel_stack;
pub mod paging;
pub mod shortage;
pub mod uaccess;
pub mod user_space;

pub use frame::{FRAME_SIZE, Frame};
