//! Events of the kernel's own.

/// The name of a system call.
pub fn syscall_name(_number: u64) -> Option<&'static str> {
    None
}
