#![doc = include_str!("../README.md")]
//! The binary interface between the kernel and its user programs.
//!
//! Numbers, flags and layouts are those of Linux on x86_64, so a program that uses only this subset
//! runs unchanged on either kernel. A call passes its number in `rax` and up to six arguments in
//! `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`. `syscall` clobbers `rcx` and `r11`. The result comes
//! back in `rax`, where -4095 to -1 is a negated errno (System V psABI, A.2.1).
//!
//! Everything here is plain data: no state, usable in any context, on either side.
#![no_std]
#![forbid(unsafe_code)]

pub mod errno;

/// Numbers of the system calls.
pub mod nr {
    pub const READ: u64 = 0;
    pub const WRITE: u64 = 1;
    pub const OPEN: u64 = 2;
    pub const CLOSE: u64 = 3;
    pub const STAT: u64 = 4;
    pub const FSTAT: u64 = 5;
    pub const LSEEK: u64 = 8;
    pub const BRK: u64 = 12;
    pub const SCHED_YIELD: u64 = 24;
    pub const NANOSLEEP: u64 = 35;
    pub const GETPID: u64 = 39;
    pub const CLONE: u64 = 56;
    pub const FORK: u64 = 57;
    pub const EXECVE: u64 = 59;
    pub const EXIT: u64 = 60;
    pub const WAIT4: u64 = 61;
    pub const KILL: u64 = 62;
    pub const GETCWD: u64 = 79;
    pub const CHDIR: u64 = 80;
    pub const MKDIR: u64 = 83;
    pub const RMDIR: u64 = 84;
    pub const UNLINK: u64 = 87;
    pub const GETPPID: u64 = 110;
    pub const GETDENTS64: u64 = 217;
    pub const EXIT_GROUP: u64 = 231;
}

/// Flags of `open`.
pub mod open {
    /// Mask of the access mode: one of [`RDONLY`], [`WRONLY`], [`RDWR`].
    pub const ACCMODE: u32 = 0o3;
    pub const RDONLY: u32 = 0;
    pub const WRONLY: u32 = 0o1;
    pub const RDWR: u32 = 0o2;
    pub const CREAT: u32 = 0o100;
    pub const EXCL: u32 = 0o200;
    pub const TRUNC: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const NONBLOCK: u32 = 0o4000;
    pub const DIRECTORY: u32 = 0o200000;
    pub const CLOEXEC: u32 = 0o2000000;
}

/// Where `lseek` counts from.
pub mod seek {
    pub const SET: u32 = 0;
    pub const CUR: u32 = 1;
    pub const END: u32 = 2;
}

/// File types and permission bits in [`Stat::mode`](crate::Stat).
pub mod mode {
    pub const TYPE_MASK: u32 = 0o170000;
    pub const CHARACTER_DEVICE: u32 = 0o020000;
    pub const DIRECTORY: u32 = 0o040000;
    pub const REGULAR: u32 = 0o100000;
    /// The bits that a caller may choose: permissions, set-id and sticky.
    pub const PERMISSIONS: u32 = 0o7777;
    pub const OWNER_READ: u32 = 0o400;
    pub const OWNER_WRITE: u32 = 0o200;
    pub const OWNER_EXECUTE: u32 = 0o100;
}

/// Flags of `clone`; the low byte is the signal that tells the parent of the child's end.
pub mod clone {
    pub const SIGNAL_MASK: u64 = 0xff;
    /// Share the address space; kernel threads only.
    pub const VM: u64 = 0x100;
    /// Store the child's pid at `parent_tidptr`, in the parent.
    pub const PARENT_SETTID: u64 = 0x0010_0000;
    /// Clear `child_tidptr` when the child, as one of several users, releases its address space.
    pub const CHILD_CLEARTID: u64 = 0x0020_0000;
    /// A tracer may not force itself on the child; kernel threads only.
    pub const UNTRACED: u64 = 0x0080_0000;
    /// Store the child's pid at `child_tidptr`, in the child.
    pub const CHILD_SETTID: u64 = 0x0100_0000;
}

/// Signals: only those that end a task exist here, and none can be caught.
pub mod signal {
    /// Ctrl-C at the prompt.
    pub const INT: u32 = 2;
    pub const ILL: u32 = 4;
    pub const TRAP: u32 = 5;
    pub const BUS: u32 = 7;
    pub const FPE: u32 = 8;
    pub const KILL: u32 = 9;
    pub const SEGV: u32 = 11;
    pub const CHLD: u32 = 17;
}

/// Flags of `wait4`.
pub mod wait {
    /// Return 0 at once if no child has ended yet.
    pub const NOHANG: u32 = 1;
    /// All flags that `wait4` takes. Those besides [`NOHANG`] ask for stopped and continued
    /// children, and nothing stops here.
    pub const KNOWN: u32 = 1 | 2 | 8;
}

/// Types in the auxiliary vector that a program finds above its environment.
pub mod auxv {
    pub const NULL: u64 = 0;
    pub const PAGESZ: u64 = 6;
    pub const ENTRY: u64 = 9;
}

/// Longest path that a call accepts, its terminating NUL included, in bytes.
pub const PATH_MAX: usize = 4096;
/// Longest name of one directory entry, in bytes.
pub const NAME_MAX: usize = 255;

/// A point in time or a duration.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timespec {
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: i64,
}

/// The answer of `stat` and `fstat` about a file. Fields that this kernel does not keep are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub device: u64,
    pub inode: u64,
    pub links: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub pad: u32,
    pub raw_device: u64,
    /// Size in bytes.
    pub size: i64,
    pub block_size: i64,
    /// Size in units of 512 bytes.
    pub blocks: i64,
    pub accessed: Timespec,
    pub modified: Timespec,
    pub changed: Timespec,
    pub reserved: [i64; 3],
}
const _: () = assert!(size_of::<Stat>() == 144);

/// The fixed part of one entry from `getdents64`; the name and its NUL follow, padded to 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirentHeader {
    pub inode: u64,
    /// Where reading goes on after this entry, as a file offset.
    pub next: i64,
    /// Length of the whole entry, in bytes.
    pub record_len: u16,
    /// The file type: bits 12 to 15 of its mode.
    pub kind: u8,
}

impl DirentHeader {
    /// Bytes before the name. (A `repr(C)` struct would be padded to 24.)
    pub const SIZE: usize = 19;

    /// Bytes of an entry whose name has `name_len` bytes.
    pub const fn record_len(name_len: usize) -> usize {
        (Self::SIZE + name_len + 1).next_multiple_of(8)
    }

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..8].copy_from_slice(&self.inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.next.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.record_len.to_le_bytes());
        bytes[18] = self.kind;
        bytes
    }

    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let [
            i0,
            i1,
            i2,
            i3,
            i4,
            i5,
            i6,
            i7,
            n0,
            n1,
            n2,
            n3,
            n4,
            n5,
            n6,
            n7,
            l0,
            l1,
            kind,
        ] = *bytes;
        Self {
            inode: u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]),
            next: i64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
            record_len: u16::from_le_bytes([l0, l1]),
            kind,
        }
    }
}

/// How a task ended, in the encoding that `wait4` stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WaitStatus(pub i32);

impl WaitStatus {
    /// The task called `exit(code)`; only the low eight bits of the code survive.
    pub const fn exited(code: i32) -> Self {
        Self((code & 0xff) << 8)
    }

    /// The task was ended by `signal`, 1 to 126.
    pub const fn killed(signal: u32) -> Self {
        Self(signal as i32 & 0x7f)
    }

    /// The exit code, 0 to 255, unless a signal ended the task.
    pub const fn code(self) -> Option<i32> {
        match self.signal() {
            None => Some(self.0 >> 8 & 0xff),
            Some(_) => None,
        }
    }

    /// The signal that ended the task, if one did.
    pub const fn signal(self) -> Option<u32> {
        match self.0 & 0x7f {
            0 => None,
            signal => Some(signal as u32),
        }
    }

    /// Whether the task said that all went well.
    pub const fn success(self) -> bool {
        self.0 == 0
    }
}

impl core::fmt::Debug for WaitStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.signal() {
            None => write!(f, "exit code {}", self.0 >> 8 & 0xff),
            Some(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_status_keeps_code_and_signal_apart() {
        let exited = WaitStatus::exited(258);
        assert_eq!((exited.code(), exited.signal()), (Some(2), None));
        let killed = WaitStatus::killed(signal::KILL);
        assert_eq!((killed.code(), killed.signal()), (None, Some(9)));
        assert!(WaitStatus::exited(0).success() && !exited.success() && !killed.success());
    }

    #[test]
    fn directory_entry_header_survives_the_wire() {
        let header = DirentHeader {
            inode: u64::MAX - 1,
            next: 7,
            record_len: 24,
            kind: 4,
        };
        assert_eq!(DirentHeader::from_bytes(&header.to_bytes()), header);
        assert_eq!(DirentHeader::record_len(4), 24);
        assert_eq!(DirentHeader::record_len(5), 32);
    }
}
