//! System calls, in the binary interface of [`abi`].
//!
//! Each function makes one call and has the name of the C library's. It gives back what the kernel
//! answers: a value, or the [`Errno`]. [`raw`] makes a call with any number and arguments; the
//! exercises use it for calls that a kernel has to refuse. `fork` is a `clone`, as in the C
//! library.
//!
//! The kernel keeps all registers of a program but `rax`, `rcx` and `r11`.

use abi::{Stat, Timespec, WaitStatus, clone, errno, nr};
use core::{
    arch::asm,
    ffi::{CStr, c_char},
    fmt,
    ptr::null,
    sync::atomic::{AtomicU32, Ordering},
};

/// The errno of a call that failed, 1 to 4095.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const ENOENT: Self = Self(errno::ENOENT);
    pub const ESRCH: Self = Self(errno::ESRCH);
    pub const E2BIG: Self = Self(errno::E2BIG);
    pub const ENOEXEC: Self = Self(errno::ENOEXEC);
    pub const EBADF: Self = Self(errno::EBADF);
    pub const ECHILD: Self = Self(errno::ECHILD);
    pub const EACCES: Self = Self(errno::EACCES);
    pub const EFAULT: Self = Self(errno::EFAULT);
    pub const EBUSY: Self = Self(errno::EBUSY);
    pub const EEXIST: Self = Self(errno::EEXIST);
    pub const ENOTDIR: Self = Self(errno::ENOTDIR);
    pub const EISDIR: Self = Self(errno::EISDIR);
    pub const EINVAL: Self = Self(errno::EINVAL);
    pub const EMFILE: Self = Self(errno::EMFILE);
    pub const ENOSPC: Self = Self(errno::ENOSPC);
    pub const ERANGE: Self = Self(errno::ERANGE);
    pub const ENAMETOOLONG: Self = Self(errno::ENAMETOOLONG);
    pub const ENOSYS: Self = Self(errno::ENOSYS);
    pub const ENOTEMPTY: Self = Self(errno::ENOTEMPTY);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// Makes a system call.
///
/// # Safety
/// 1. For each argument that the call takes as an address, the call may use that address as it
///    documents, or the kernel refuses it.
#[inline(always)]
pub unsafe fn raw(number: u64, args: [u64; 6]) -> Result<u64, Errno> {
    let result: i64;
    // SAFETY: the kernel keeps all registers but those named here. (1) says which memory is
    // touched.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match result {
        -4095..=-1 => Err(Errno(-result as i32)),
        _ => Ok(result as u64),
    }
}

/// Makes a system call that takes no address in its at most three arguments.
fn plain(number: u64, args: [u64; 3]) -> Result<u64, Errno> {
    // SAFETY: private, and every caller passes numbers only.
    unsafe { raw(number, [args[0], args[1], args[2], 0, 0, 0]) }
}

/// Makes a system call that reads a path and takes numbers besides.
fn with_path(number: u64, path: &CStr, args: [u64; 2]) -> Result<u64, Errno> {
    // SAFETY: the path is NUL-terminated and outlives the call; the callers pass numbers besides.
    unsafe { raw(number, [path.as_ptr() as u64, args[0], args[1], 0, 0, 0]) }
}

fn fd_arg(fd: i32) -> u64 {
    fd as u32 as u64
}

pub fn read(fd: i32, buf: &mut [u8]) -> Result<usize, Errno> {
    let args = [
        fd_arg(fd),
        buf.as_mut_ptr() as u64,
        buf.len() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: `buf` may be written for its whole length.
    unsafe { raw(nr::READ, args) }.map(|n| n as usize)
}

pub fn write(fd: i32, buf: &[u8]) -> Result<usize, Errno> {
    let args = [fd_arg(fd), buf.as_ptr() as u64, buf.len() as u64, 0, 0, 0];
    // SAFETY: `buf` is readable for its whole length.
    unsafe { raw(nr::WRITE, args) }.map(|n| n as usize)
}

/// Opens `path` with flags from [`abi::open`]; `mode` is for a file that is created.
pub fn open(path: &CStr, flags: u32, mode: u32) -> Result<i32, Errno> {
    with_path(nr::OPEN, path, [flags.into(), mode.into()]).map(|fd| fd as i32)
}

pub fn close(fd: i32) -> Result<(), Errno> {
    plain(nr::CLOSE, [fd_arg(fd), 0, 0]).map(drop)
}

pub fn lseek(fd: i32, offset: i64, whence: u32) -> Result<u64, Errno> {
    plain(nr::LSEEK, [fd_arg(fd), offset as u64, whence.into()])
}

pub fn stat(path: &CStr) -> Result<Stat, Errno> {
    let mut stat = Stat::default();
    let args = [path.as_ptr() as u64, &raw mut stat as u64, 0, 0, 0, 0];
    // SAFETY: the path is NUL-terminated, and `stat` may be written.
    unsafe { raw(nr::STAT, args) }.map(|_| stat)
}

pub fn fstat(fd: i32) -> Result<Stat, Errno> {
    let mut stat = Stat::default();
    let args = [fd_arg(fd), &raw mut stat as u64, 0, 0, 0, 0];
    // SAFETY: `stat` may be written.
    unsafe { raw(nr::FSTAT, args) }.map(|_| stat)
}

/// Fills `buf` with directory entries ([`abi::DirentHeader`]); 0 bytes at the end of the directory.
pub fn getdents64(fd: i32, buf: &mut [u8]) -> Result<usize, Errno> {
    let args = [
        fd_arg(fd),
        buf.as_mut_ptr() as u64,
        buf.len() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: `buf` may be written for its whole length.
    unsafe { raw(nr::GETDENTS64, args) }.map(|n| n as usize)
}

pub fn mkdir(path: &CStr, mode: u32) -> Result<(), Errno> {
    with_path(nr::MKDIR, path, [mode.into(), 0]).map(drop)
}

pub fn rmdir(path: &CStr) -> Result<(), Errno> {
    with_path(nr::RMDIR, path, [0, 0]).map(drop)
}

pub fn unlink(path: &CStr) -> Result<(), Errno> {
    with_path(nr::UNLINK, path, [0, 0]).map(drop)
}

pub fn chdir(path: &CStr) -> Result<(), Errno> {
    with_path(nr::CHDIR, path, [0, 0]).map(drop)
}

/// Writes the working directory to `buf`, NUL-terminated, and returns it.
pub fn getcwd(buf: &mut [u8]) -> Result<&CStr, Errno> {
    let args = [buf.as_mut_ptr() as u64, buf.len() as u64, 0, 0, 0, 0];
    // SAFETY: `buf` may be written for its whole length.
    unsafe { raw(nr::GETCWD, args) }?;
    Ok(CStr::from_bytes_until_nul(buf).expect("the kernel terminates the path"))
}

/// The process's own pid, kept by the kernel across [`fork`].
static TID: AtomicU32 = AtomicU32::new(0);

/// Makes a copy of this process, as the C library's `fork` does. It is a `clone` that notes the
/// child's pid in the child. Returns the child's pid to the parent and 0 to the child.
pub fn fork() -> Result<u32, Errno> {
    let flags = clone::CHILD_CLEARTID | clone::CHILD_SETTID | abi::signal::CHLD as u64;
    let args = [flags, 0, 0, TID.as_ptr() as u64, 0, 0];
    // SAFETY: `TID` may be written at any time; with neither a new stack nor shared memory both
    // processes go on from here, each with its own copy of everything.
    unsafe { raw(nr::CLONE, args) }.map(|pid| pid as u32)
}

/// The pid that the kernel noted in this process when it was forked; 0 in a process that was not.
pub fn noted_tid() -> u32 {
    TID.load(Ordering::Relaxed)
}

/// Replaces this program by the one at `path`; returns only if that fails. `argv` must fit into 15.
pub fn execve(path: &CStr, argv: &[&CStr]) -> Errno {
    let mut pointers: [*const c_char; 16] = [null(); 16];
    for (pointer, arg) in pointers[..15].iter_mut().zip(argv) {
        *pointer = arg.as_ptr();
    }
    let envp: [*const c_char; 1] = [null()];
    let args = [
        path.as_ptr() as u64,
        pointers.as_ptr() as u64,
        envp.as_ptr() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: both arrays end with a null pointer and all strings are NUL-terminated.
    unsafe { raw(nr::EXECVE, args) }.expect_err("execve does not return when it succeeds")
}

/// Ends this process; the parent gets the low eight bits of `code`.
pub fn exit(code: i32) -> ! {
    let _ = plain(nr::EXIT_GROUP, [code as u64, 0, 0]);
    unreachable!("exit_group does not return")
}

/// Waits for the child `pid`, or for any with -1, to end. Returns its pid and how it ended. With
/// [`abi::wait::NOHANG`], returns pid 0 if none has ended yet.
pub fn wait4(pid: i32, options: u32) -> Result<(u32, WaitStatus), Errno> {
    let mut status = WaitStatus(0);
    let args = [
        pid as i64 as u64,
        &raw mut status as u64,
        options.into(),
        0,
        0,
        0,
    ];
    // SAFETY: `status` may be written.
    let pid = unsafe { raw(nr::WAIT4, args) }?;
    Ok((pid as u32, status))
}

/// Sends `signal` to the process `pid`.
pub fn kill(pid: u32, signal: u32) -> Result<(), Errno> {
    plain(nr::KILL, [pid.into(), signal.into(), 0]).map(drop)
}

pub fn getpid() -> u32 {
    plain(nr::GETPID, [0; 3]).expect("getpid cannot fail") as u32
}

pub fn getppid() -> u32 {
    plain(nr::GETPPID, [0; 3]).expect("getppid cannot fail") as u32
}

pub fn sched_yield() {
    let _ = plain(nr::SCHED_YIELD, [0; 3]);
}

pub fn nanosleep(time: Timespec) -> Result<(), Errno> {
    // SAFETY: the call reads `time` and writes nothing.
    unsafe { raw(nr::NANOSLEEP, [&raw const time as u64, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Moves the end of the heap to `end` and returns where it is now: unchanged if that failed.
pub fn brk(end: u64) -> u64 {
    plain(nr::BRK, [end, 0, 0]).expect("brk returns an address")
}
