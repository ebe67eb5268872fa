//! Error numbers, those of Linux. System calls and module initialisation return them, negated, on
//! failure.

use core::fmt;

macro_rules! errno {
    ($($name:ident = $code:literal, $text:literal;)+) => {
        /// An error number. A detailed error converts into the one that stands for it.
        #[allow(clippy::upper_case_acronyms)]
        #[repr(i32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Errno {
            $(#[doc = concat!("`", stringify!($code), "`: ", $text, ".")] $name = $code,)+
        }

        impl Errno {
            /// The error of that number, if it is one of ours.
            pub const fn from_code(code: i32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
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
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    ESRCH = 3, "no such process";
    EINTR = 4, "interrupted system call";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    ENOEXEC = 8, "exec format error";
    EBADF = 9, "bad file descriptor";
    ECHILD = 10, "no child processes";
    EAGAIN = 11, "resource temporarily unavailable";
    ENOMEM = 12, "cannot allocate memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "invalid cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "inappropriate ioctl for device";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    EPIPE = 32, "broken pipe";
    EDOM = 33, "numerical argument out of domain";
    ERANGE = 34, "numerical result out of range";
    EDEADLK = 35, "resource deadlock avoided";
    ENAMETOOLONG = 36, "file name too long";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    ENODATA = 61, "no data available";
    ETIME = 62, "timer expired";
    EOVERFLOW = 75, "value too large for defined data type";
    EILSEQ = 84, "invalid or incomplete multibyte sequence, or not an instruction boundary";
    EOPNOTSUPP = 95, "operation not supported";
    ETIMEDOUT = 110, "connection timed out";
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
