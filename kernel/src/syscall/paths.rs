//! System calls on names in the file system.

use super::result;
use crate::{
    errno::Errno,
    fs::{self, Attributes},
    mm::{
        frame::FRAME_SIZE,
        uaccess::{copy_to_user, put_user, strndup_from_user},
    },
    task,
};
use abi::{PATH_MAX, Stat};
use alloc::ffi::CString;
use core::ffi::CStr;

/// A path, copied from a user program.
pub(super) struct Path(CString);

impl Path {
    /// Copies the NUL-terminated path at `address`. EFAULT, or ENAMETOOLONG beyond [`PATH_MAX`]
    /// bytes.
    pub fn from_user(address: u64) -> Result<Self, Errno> {
        let path = strndup_from_user(address, PATH_MAX)?;
        CString::new(path).map(Self).map_err(|_| Errno::EINVAL)
    }

    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub fn as_c_str(&self) -> &CStr {
        &self.0
    }
}

/// `mkdir(path, mode)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_mkdir(path: u64, mode: u32) -> i64 {
    // Set-id bits mean nothing on a directory here.
    let permissions = mode & 0o1777;
    result(on_path(path, |cwd, path| fs::mkdir(cwd, path, permissions)))
}

/// `rmdir(path)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_rmdir(path: u64) -> i64 {
    result(on_path(path, fs::rmdir))
}

/// `unlink(path)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_unlink(path: u64) -> i64 {
    result(on_path(path, fs::unlink))
}

/// `chdir(path)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_chdir(path: u64) -> i64 {
    result(on_path(path, |cwd, path| {
        let directory = fs::directory(cwd, path)?;
        task::current().process.set_cwd(directory);
        Ok(())
    }))
}

/// `stat(path, stat)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_stat(path: u64, stat: u64) -> i64 {
    result(on_path(path, |cwd, path| {
        let attributes = fs::attributes(cwd, path)?;
        put_stat(stat, &attributes).map(drop)
    }))
}

/// `getcwd(buf, size)`: returns the length of the path with its NUL, in bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_getcwd(buf: u64, size: usize) -> i64 {
    result(getcwd(buf, size))
}

fn getcwd(buf: u64, size: usize) -> Result<u64, Errno> {
    let mut path = task::current().process.cwd().path()?;
    path.push(0);
    if path.len() > size {
        return Err(Errno::ERANGE);
    }
    copy_to_user(buf, &path)?;
    Ok(path.len() as u64)
}

/// Copies the path at `address` and hands it to `f` with the working directory.
fn on_path(
    address: u64,
    f: impl FnOnce(&fs::NodeRef, &[u8]) -> Result<(), Errno>,
) -> Result<u64, Errno> {
    let path = Path::from_user(address)?;
    f(&task::current().process.cwd(), path.bytes())?;
    Ok(0)
}

/// Writes the attributes of a file to user memory as a `struct stat`.
pub(super) fn put_stat(to: u64, attributes: &Attributes) -> Result<u64, Errno> {
    let stat = Stat {
        inode: attributes.id.number(),
        links: attributes.links,
        mode: attributes.mode,
        size: attributes.size as i64,
        block_size: FRAME_SIZE as i64,
        blocks: attributes.size.div_ceil(512) as i64,
        ..Stat::default()
    };
    put_user(to, &stat)?;
    Ok(0)
}
