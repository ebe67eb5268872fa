//! System calls on open files.

use super::{
    paths::{Path, put_stat},
    result,
};
use crate::{errno::Errno, fs::File, task};
use abi::open;

/// `read(fd, buf, count)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_read(fd: u32, buf: u64, count: u64) -> i64 {
    match task::current().process.files.get(fd) {
        Ok(file) => file.read(buf, count as usize),
        Err(errno) => errno.negated(),
    }
}

/// `write(fd, buf, count)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_write(fd: u32, buf: u64, count: u64) -> i64 {
    match task::current().process.files.get(fd) {
        Ok(file) => file.write(buf, count as usize),
        Err(errno) => errno.negated(),
    }
}

/// `open(path, flags, mode)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_open(path: u64, flags: u32, mode: u32) -> i64 {
    result(open_path(path, flags, mode))
}

fn open_path(path: u64, flags: u32, mode: u32) -> Result<u64, Errno> {
    let path = Path::from_user(path)?;
    let task = task::current();
    let file = File::open(&task.process.cwd(), path.bytes(), flags, mode)?;
    let fd = task
        .process
        .files
        .insert(file, flags & open::CLOEXEC != 0)?;
    Ok(fd.into())
}

/// `close(fd)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_close(fd: u32) -> i64 {
    result(task::current().process.files.close(fd).map(|()| 0))
}

/// `lseek(fd, offset, whence)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_lseek(fd: u32, offset: i64, whence: u32) -> i64 {
    let file = task::current().process.files.get(fd);
    result(file.and_then(|file| file.seek(offset, whence)))
}

/// `getdents64(fd, buf, count)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_getdents64(fd: u32, buf: u64, count: u32) -> i64 {
    let file = task::current().process.files.get(fd);
    result(
        file.and_then(|file| file.list(buf, count as usize))
            .map(|len| len as u64),
    )
}

/// `fstat(fd, stat)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_fstat(fd: u32, stat: u64) -> i64 {
    let file = task::current().process.files.get(fd);
    let attributes = file.and_then(|file| file.attributes());
    result(attributes.and_then(|attributes| put_stat(stat, &attributes)))
}
