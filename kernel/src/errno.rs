//! Error numbers, those of Linux ([`abi::errno`]). System calls and module initialisation return
//! them, negated, on failure.

use core::fmt;

use abi::errno;

macro_rules! errno {
    ($($name:ident, $text:literal;)+) => {
        /// An error number. A detailed error converts into the one that stands for it.
        #[allow(clippy::upper_case_acronyms)]
        #[repr(i32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Errno {
            $(
                #[doc = concat!("[`errno::", stringify!($name), "`]: ", $text, ".")]
                $name = errno::$name,
            )+
        }

        impl Errno {
            /// The error of that number, if it is one of ours.
            #[inline]
            pub const fn from_code(code: i32) -> Option<Self> {
                match code {
                    $(errno::$name => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// The symbolic name, such as `ENOENT`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// Its meaning, as `strerror` would say it, in lower case.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

errno! {
    EPERM, "operation not permitted";
    ENOENT, "no such file or directory";
    ESRCH, "no such process";
    EINTR, "interrupted system call";
    EIO, "input/output error";
    ENXIO, "no such device or address";
    E2BIG, "argument list too long";
    ENOEXEC, "exec format error";
    EBADF, "bad file descriptor";
    ECHILD, "no child processes";
    EAGAIN, "resource temporarily unavailable";
    ENOMEM, "cannot allocate memory";
    EACCES, "permission denied";
    EFAULT, "bad address";
    EBUSY, "device or resource busy";
    EEXIST, "file exists";
    EXDEV, "invalid cross-device link";
    ENODEV, "no such device";
    ENOTDIR, "not a directory";
    EISDIR, "is a directory";
    EINVAL, "invalid argument";
    ENFILE, "too many open files in system";
    EMFILE, "too many open files";
    ENOTTY, "inappropriate ioctl for device";
    ETXTBSY, "text file busy";
    EFBIG, "file too large";
    ENOSPC, "no space left on device";
    ESPIPE, "illegal seek";
    EROFS, "read-only file system";
    EMLINK, "too many links";
    EPIPE, "broken pipe";
    EDOM, "numerical argument out of domain";
    ERANGE, "numerical result out of range";
    EDEADLK, "resource deadlock avoided";
    ENAMETOOLONG, "file name too long";
    ENOSYS, "function not implemented";
    ENOTEMPTY, "directory not empty";
    ELOOP, "too many levels of symbolic links";
    ENODATA, "no data available";
    ETIME, "timer expired";
    EOVERFLOW, "value too large for defined data type";
    EILSEQ, "invalid or incomplete multibyte sequence, or not an instruction boundary";
    EOPNOTSUPP, "operation not supported";
    EADDRNOTAVAIL, "cannot assign requested address";
    ETIMEDOUT, "connection timed out";
}

impl Errno {
    /// The number, positive.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The number as a system call returns it: negative.
    pub const fn negated(self) -> i64 {
        -(self as i32 as i64)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.name())
    }
}

impl core::error::Error for Errno {}
