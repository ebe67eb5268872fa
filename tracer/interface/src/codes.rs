//! Numbers of the kernel that have names: errors, signals, system calls.
//!
//! The numbers are Linux's. Of errors and system calls those are here that the kernel has (`abi`).

use abi::{errno, nr};

use crate::shape::Naming;

/// The name of a number.
pub fn name(of: Naming, number: i64) -> Option<&'static str> {
    match of {
        Naming::Error if number == 0 => Some("Success"),
        Naming::Error => {
            let known = ERRORS.iter().find(|(known, _)| i64::from(*known) == number);
            known.map(|(_, text)| *text)
        }
        Naming::Signal => {
            let index = usize::try_from(number.checked_sub(1)?).ok()?;
            SIGNALS.get(index).copied()
        }
        Naming::SystemCall => {
            let mut known = SYSTEM_CALLS.iter();
            let known = known.find(|(known, _)| i64::try_from(*known) == Ok(number));
            known.map(|(_, text)| *text)
        }
    }
}

/// What stands before a number that has no name.
pub const fn unknown(of: Naming) -> &'static str {
    match of {
        Naming::Error => "Unknown error",
        Naming::Signal => "Unknown signal",
        Naming::SystemCall => "Unknown syscall",
    }
}

#[rustfmt::skip]
const ERRORS: [(i32, &str); 44] = [
    (errno::EPERM, "Operation not permitted"),
    (errno::ENOENT, "No such file or directory"),
    (errno::ESRCH, "No such process"),
    (errno::EINTR, "Interrupted system call"),
    (errno::EIO, "Input/output error"),
    (errno::ENXIO, "No such device or address"),
    (errno::E2BIG, "Argument list too long"),
    (errno::ENOEXEC, "Exec format error"),
    (errno::EBADF, "Bad file descriptor"),
    (errno::ECHILD, "No child processes"),
    (errno::EAGAIN, "Resource temporarily unavailable"),
    (errno::ENOMEM, "Cannot allocate memory"),
    (errno::EACCES, "Permission denied"),
    (errno::EFAULT, "Bad address"),
    (errno::EBUSY, "Device or resource busy"),
    (errno::EEXIST, "File exists"),
    (errno::EXDEV, "Invalid cross-device link"),
    (errno::ENODEV, "No such device"),
    (errno::ENOTDIR, "Not a directory"),
    (errno::EISDIR, "Is a directory"),
    (errno::EINVAL, "Invalid argument"),
    (errno::ENFILE, "Too many open files in system"),
    (errno::EMFILE, "Too many open files"),
    (errno::ENOTTY, "Inappropriate ioctl for device"),
    (errno::ETXTBSY, "Text file busy"),
    (errno::EFBIG, "File too large"),
    (errno::ENOSPC, "No space left on device"),
    (errno::ESPIPE, "Illegal seek"),
    (errno::EROFS, "Read-only file system"),
    (errno::EMLINK, "Too many links"),
    (errno::EPIPE, "Broken pipe"),
    (errno::EDOM, "Numerical argument out of domain"),
    (errno::ERANGE, "Numerical result out of range"),
    (errno::EDEADLK, "Resource deadlock avoided"),
    (errno::ENAMETOOLONG, "File name too long"),
    (errno::ENOSYS, "Function not implemented"),
    (errno::ENOTEMPTY, "Directory not empty"),
    (errno::ELOOP, "Too many levels of symbolic links"),
    (errno::ENODATA, "No data available"),
    (errno::ETIME, "Timer expired"),
    (errno::EOVERFLOW, "Value too large for defined data type"),
    (errno::EILSEQ, "Invalid or incomplete multibyte or wide character"),
    (errno::EOPNOTSUPP, "Operation not supported"),
    (errno::ETIMEDOUT, "Connection timed out"),
];

/// From number 1 on.
#[rustfmt::skip]
const SIGNALS: [&str; 31] = [
    "Hangup", "Interrupt", "Quit", "Illegal instruction", "Trace/breakpoint trap", "Aborted",
    "Bus error", "Floating point exception", "Killed", "User defined signal 1",
    "Segmentation fault", "User defined signal 2", "Broken pipe", "Alarm clock", "Terminated",
    "Stack fault", "Child exited", "Continued", "Stopped (signal)", "Stopped",
    "Stopped (tty input)", "Stopped (tty output)", "Urgent I/O condition",
    "CPU time limit exceeded", "File size limit exceeded", "Virtual timer expired",
    "Profiling timer expired", "Window changed", "I/O possible", "Power failure",
    "Bad system call",
];

#[rustfmt::skip]
const SYSTEM_CALLS: [(u64, &str); 25] = [
    (nr::READ, "read"),
    (nr::WRITE, "write"),
    (nr::OPEN, "open"),
    (nr::CLOSE, "close"),
    (nr::STAT, "stat"),
    (nr::FSTAT, "fstat"),
    (nr::LSEEK, "lseek"),
    (nr::BRK, "brk"),
    (nr::SCHED_YIELD, "sched_yield"),
    (nr::NANOSLEEP, "nanosleep"),
    (nr::GETPID, "getpid"),
    (nr::CLONE, "clone"),
    (nr::FORK, "fork"),
    (nr::EXECVE, "execve"),
    (nr::EXIT, "exit"),
    (nr::WAIT4, "wait4"),
    (nr::KILL, "kill"),
    (nr::GETCWD, "getcwd"),
    (nr::CHDIR, "chdir"),
    (nr::MKDIR, "mkdir"),
    (nr::RMDIR, "rmdir"),
    (nr::UNLINK, "unlink"),
    (nr::GETPPID, "getppid"),
    (nr::GETDENTS64, "getdents64"),
    (nr::EXIT_GROUP, "exit_group"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_names_of_linux() {
        assert_eq!(name(Naming::Error, 0), Some("Success"));
        assert_eq!(name(Naming::Error, 2), Some("No such file or directory"));
        assert_eq!(name(Naming::Error, -2), None);
        assert_eq!(name(Naming::Error, 133), None);
        assert_eq!(name(Naming::Signal, 0), None);
        assert_eq!(name(Naming::Signal, 1), Some("Hangup"));
        assert_eq!(name(Naming::Signal, 9), Some("Killed"));
        assert_eq!(name(Naming::Signal, 31), Some("Bad system call"));
        assert_eq!(name(Naming::Signal, 32), None);
        assert_eq!(name(Naming::SystemCall, 0), Some("read"));
        assert_eq!(name(Naming::SystemCall, 231), Some("exit_group"));
        assert_eq!(name(Naming::SystemCall, -1), None);
    }
}
