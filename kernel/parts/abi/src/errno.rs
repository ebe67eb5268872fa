//! Error numbers, those of Linux, positive as in `errno.h`. A system call returns them negated.

/// Operation not permitted.
pub const EPERM: i32 = 1;
/// No such file or directory.
pub const ENOENT: i32 = 2;
/// No such process.
pub const ESRCH: i32 = 3;
/// Interrupted system call.
pub const EINTR: i32 = 4;
/// Input/output error.
pub const EIO: i32 = 5;
/// No such device or address.
pub const ENXIO: i32 = 6;
/// Argument list too long.
pub const E2BIG: i32 = 7;
/// Exec format error.
pub const ENOEXEC: i32 = 8;
/// Bad file descriptor.
pub const EBADF: i32 = 9;
/// No child processes.
pub const ECHILD: i32 = 10;
/// Resource temporarily unavailable.
pub const EAGAIN: i32 = 11;
/// Cannot allocate memory.
pub const ENOMEM: i32 = 12;
/// Permission denied.
pub const EACCES: i32 = 13;
/// Bad address.
pub const EFAULT: i32 = 14;
/// Device or resource busy.
pub const EBUSY: i32 = 16;
/// File exists.
pub const EEXIST: i32 = 17;
/// Invalid cross-device link.
pub const EXDEV: i32 = 18;
/// No such device.
pub const ENODEV: i32 = 19;
/// Not a directory.
pub const ENOTDIR: i32 = 20;
/// Is a directory.
pub const EISDIR: i32 = 21;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// Too many open files in system.
pub const ENFILE: i32 = 23;
/// Too many open files.
pub const EMFILE: i32 = 24;
/// Inappropriate ioctl for device.
pub const ENOTTY: i32 = 25;
/// Text file busy.
pub const ETXTBSY: i32 = 26;
/// File too large.
pub const EFBIG: i32 = 27;
/// No space left on device.
pub const ENOSPC: i32 = 28;
/// Illegal seek.
pub const ESPIPE: i32 = 29;
/// Read-only file system.
pub const EROFS: i32 = 30;
/// Too many links.
pub const EMLINK: i32 = 31;
/// Broken pipe.
pub const EPIPE: i32 = 32;
/// Numerical argument out of domain.
pub const EDOM: i32 = 33;
/// Numerical result out of range.
pub const ERANGE: i32 = 34;
/// Resource deadlock avoided.
pub const EDEADLK: i32 = 35;
/// File name too long.
pub const ENAMETOOLONG: i32 = 36;
/// Function not implemented.
pub const ENOSYS: i32 = 38;
/// Directory not empty.
pub const ENOTEMPTY: i32 = 39;
/// Too many levels of symbolic links.
pub const ELOOP: i32 = 40;
/// No data available.
pub const ENODATA: i32 = 61;
/// Timer expired.
pub const ETIME: i32 = 62;
/// Value too large for defined data type.
pub const EOVERFLOW: i32 = 75;
/// Invalid or incomplete multibyte sequence, or not an instruction boundary.
pub const EILSEQ: i32 = 84;
/// Operation not supported.
pub const EOPNOTSUPP: i32 = 95;
/// A name that stands for several things.
pub const EADDRNOTAVAIL: i32 = 99;
/// Connection timed out.
pub const ETIMEDOUT: i32 = 110;
