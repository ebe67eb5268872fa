//! Open files: the objects behind file descriptors.
//!
//! A [`File`] is shared by all descriptors that came from one `open` through `fork`, with its
//! position. Reads and writes that use the position hold its lock from start to end. So two tasks
//! that share a file never read or overwrite the same bytes.
//!
//! Data pass through a buffer of the kernel, at most [`CHUNK`] bytes at a time: user memory is not
//! touched under the tree's lock (VFS-1 of [`super`]), because it may have to be brought in. A
//! special file gets one piece in each call, so that a command written to it stays whole.
//!
//! # Contexts
//! Task context, may sleep. Order: the position, then the tree.

use super::{CHUNK, FileKind, How, NodeRef, Opened, TREE};
use crate::{
    errno::Errno,
    mm::{
        shared::{Shared, try_vec},
        uaccess::{self, copy_from_user, copy_to_user},
    },
    sync::Mutex,
};
use abi::{DirentHeader, open, seek};
use alloc::{boxed::Box, vec::Vec};
use core::mem::offset_of;
use ramfs::{Access, Attributes};

/// Most that one call reads or writes, in bytes, as on Linux.
const MAX_COUNT: usize = 0x7fff_f000;

/// The object that serves the reads and writes.
enum Object {
    Directory,
    Regular,
    Special(Box<dyn Opened>),
}

/// An open file.
pub struct File {
    node: NodeRef,
    object: Object,
    readable: bool,
    writable: bool,
    append: bool,
    position: Mutex<u64>,
}

/// The arguments of [`vfs_open`].
#[repr(C)]
pub struct OpenRequest<'a> {
    /// First byte of the path; not NUL-terminated.
    path: *const u8,
    path_len: usize,
    /// Flags from [`abi::open`].
    pub flags: u32,
    /// Permission bits of a file that is created.
    pub mode: u32,
    /// Where a relative path starts.
    pub cwd: &'a NodeRef,
}

impl<'a> OpenRequest<'a> {
    pub fn new(cwd: &'a NodeRef, path: &'a [u8], flags: u32, mode: u32) -> Self {
        Self {
            path: path.as_ptr(),
            path_len: path.len(),
            flags,
            mode,
            cwd,
        }
    }

    pub fn path(&self) -> &'a [u8] {
        // SAFETY: the private fields were taken from a slice that lives for 'a, in `new`.
        unsafe { core::slice::from_raw_parts(self.path, self.path_len) }
    }
}

/// Opens a file and stores it in `file`; returns 0 or a negated errno.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn vfs_open(request: &OpenRequest<'_>, file: &mut Option<Shared<File>>) -> i64 {
    match File::try_open(request) {
        Ok(opened) => {
            *file = Some(opened);
            0
        }
        Err(errno) => errno.negated(),
    }
}

/// Reads up to `count` bytes, from byte `pos` of `file` on, into user memory at `buf`, and moves
/// `pos` past them. Returns how many bytes that were, 0 at the end of the file, or a negated errno.
/// A special file is read once per call, with at most [`CHUNK`] bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn vfs_read(file: &File, buf: u64, count: usize, pos: &mut u64) -> i64 {
    let mut chunk = match try_vec(count.min(CHUNK)) {
        Ok(chunk) => chunk,
        Err(error) => return Errno::from(error).negated(),
    };
    chunk.resize(count.min(CHUNK), 0);
    transfer(file, buf, count, |done, len| {
        let read = file.read_at(*pos, &mut chunk[..len])?;
        copy_to_user(buf.wrapping_add(done as u64), &chunk[..read])?;
        *pos += read as u64;
        Ok(read)
    })
}

/// Writes `count` bytes from user memory at `buf`, to byte `pos` of `file` on, and moves `pos` past
/// them. Returns how many were written, or a negated errno if none. A special file is written to
/// once per call, with at most [`CHUNK`] bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn vfs_write(file: &File, buf: u64, count: usize, pos: &mut u64) -> i64 {
    let mut chunk = match try_vec(count.min(CHUNK)) {
        Ok(chunk) => chunk,
        Err(error) => return Errno::from(error).negated(),
    };
    chunk.resize(count.min(CHUNK), 0);
    transfer(file, buf, count, |done, len| {
        copy_from_user(&mut chunk[..len], buf.wrapping_add(done as u64))?;
        let written = file.write_at(*pos, &chunk[..len])?;
        *pos += written as u64;
        Ok(written)
    })
}

/// Moves `count` bytes piece by piece, until all are moved or a piece is too short. If bytes were
/// moved before an error, the call succeeds: the error shows again at the next call.
fn transfer(
    file: &File,
    buf: u64,
    count: usize,
    mut piece: impl FnMut(usize, usize) -> Result<usize, Errno>,
) -> i64 {
    let count = count.min(MAX_COUNT);
    if let Err(errno) = uaccess::check_range(buf, count) {
        return errno.negated();
    }
    let mut done = 0;
    loop {
        let wanted = (count - done).min(CHUNK);
        let moved = match piece(done, wanted) {
            Ok(moved) => moved,
            Err(errno) if done == 0 => return errno.negated(),
            Err(_) => return done as i64,
        };
        done += moved;
        if done == count || moved < wanted || matches!(file.object, Object::Special(_)) {
            return done as i64;
        }
    }
}

impl File {
    /// Where a `File` has the address of its name; see [`NodeRef::NAME_OFFSET`].
    pub const NAME_OFFSET: usize = offset_of!(Self, node) + NodeRef::NAME_OFFSET;

    /// Opens the file that `path` names, relative to the directory `cwd`, with flags from
    /// [`abi::open`]. A file that is created gets the permission bits `mode`.
    #[inline]
    pub fn open(cwd: &NodeRef, path: &[u8], flags: u32, mode: u32) -> Result<Shared<Self>, Errno> {
        let mut file = None;
        // Through the C function, so that a probe on it sees every open.
        let result = vfs_open(&OpenRequest::new(cwd, path, flags, mode), &mut file);
        match file {
            Some(file) => Ok(file),
            None => Err(Errno::from_code(-result as i32).unwrap_or(Errno::EIO)),
        }
    }

    fn try_open(request: &OpenRequest<'_>) -> Result<Shared<Self>, Errno> {
        let flags = request.flags;
        // What is there already takes no memory: so a file that frees some can always be written.
        if flags & open::CREAT != 0
            && let Err(short) = super::check_memory()
            && TREE.lock().walk(request.cwd.id, request.path()).is_err()
        {
            return Err(short);
        }
        let (node, kind, special) = {
            let mut tree = TREE.lock();
            let id = tree.open(request.cwd.id, request.path(), flags, request.mode)?;
            (
                NodeRef::of_retained(&tree, id),
                tree.attributes(id)?.kind,
                tree.special(id).cloned(),
            )
        };
        let how = How::from_flags(flags);
        let object = match (kind, special) {
            (_, Some(special)) => Object::Special(special.open(how)?),
            (FileKind::Directory, _) => Object::Directory,
            (FileKind::Regular | FileKind::Special, _) => Object::Regular,
        };
        Ok(Shared::try_new(Self {
            node,
            object,
            readable: how.read,
            writable: how.write,
            append: how.append,
            position: Mutex::new(0),
        })?)
    }

    pub fn attributes(&self) -> Result<Attributes, Errno> {
        self.node.attributes()
    }

    /// The node that it was opened on.
    pub fn node(&self) -> &NodeRef {
        &self.node
    }

    /// Refuses with EACCES unless the file is a regular one whose mode allows its execution.
    pub fn permit_execution(&self) -> Result<(), Errno> {
        if !matches!(self.object, Object::Regular) {
            return Err(Errno::EACCES);
        }
        Ok(TREE.lock().permit(self.node.id, Access::Execute)?)
    }

    /// Copies the file's bytes from `at` on into kernel memory. Returns how many those were, 0 at
    /// its end.
    pub fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        if !self.readable {
            return Err(Errno::EBADF);
        }
        match &self.object {
            Object::Directory => Err(Errno::EISDIR),
            Object::Regular => Ok(TREE.lock().read_at(self.node.id, at, buf)?),
            Object::Special(opened) => opened.read(at, buf),
        }
    }

    /// Writes `data` from kernel memory at byte `at`; returns how much was taken.
    // A place that ready programs of the tracer name.
    #[inline(never)]
    pub fn write_at(&self, at: u64, data: &[u8]) -> Result<usize, Errno> {
        if !self.writable {
            return Err(Errno::EBADF);
        }
        match &self.object {
            Object::Directory => Err(Errno::EISDIR),
            Object::Regular => {
                super::check_memory()?;
                TREE.lock().write_at(self.node.id, at, data)?;
                Ok(data.len())
            }
            Object::Special(opened) => opened.write(at, data),
        }
    }

    /// Reads at the file's position into user memory and moves the position. The result is that of
    /// [`vfs_read`].
    pub fn read(&self, buf: u64, count: usize) -> i64 {
        vfs_read(self, buf, count, &mut self.position.lock())
    }

    /// Writes from user memory at the file's position, or at the end of a file opened to append,
    /// and moves the position. The result is that of [`vfs_write`].
    pub fn write(&self, buf: u64, count: usize) -> i64 {
        let mut position = self.position.lock();
        if self.append
            && let Ok(attributes) = self.attributes()
        {
            *position = attributes.size;
        }
        vfs_write(self, buf, count, &mut position)
    }

    /// Moves the position to `offset` bytes from the place that `whence` ([`abi::seek`]) names, and
    /// returns it.
    pub fn seek(&self, offset: i64, whence: u32) -> Result<u64, Errno> {
        let attributes = self.attributes()?;
        if attributes.mode & abi::mode::TYPE_MASK == abi::mode::CHARACTER_DEVICE {
            return Err(Errno::ESPIPE);
        }
        let mut position = self.position.lock();
        let base = match whence {
            seek::SET => 0,
            seek::CUR => *position,
            seek::END => attributes.size,
            _ => return Err(Errno::EINVAL),
        };
        let target = base.checked_add_signed(offset).ok_or(Errno::EINVAL)?;
        if i64::try_from(target).is_err() {
            return Err(Errno::EOVERFLOW);
        }
        *position = target;
        Ok(target)
    }

    /// Writes the entries of a directory, from the file's position on, to user memory at `buf`, and
    /// moves the position past them. It writes as many as fit into `count` bytes, in the layout of
    /// [`DirentHeader`]. Returns how many bytes that were, 0 at the end; EINVAL if not even one
    /// fits.
    pub fn list(&self, buf: u64, count: usize) -> Result<usize, Errno> {
        if !matches!(self.object, Object::Directory) {
            return Err(Errno::ENOTDIR);
        }
        let room = count.min(CHUNK);
        let mut position = self.position.lock();
        let (records, next) = self.records(*position, room)?;
        copy_to_user(buf, &records)?;
        *position = next;
        Ok(records.len())
    }

    /// Encodes entries from position `at` on, up to `room` bytes of them. Returns them and the
    /// position after them.
    fn records(&self, mut at: u64, room: usize) -> Result<(Vec<u8>, u64), Errno> {
        let mut records = Vec::with_capacity(room);
        let tree = TREE.lock();
        while let Some(entry) = tree.next_entry(self.node.id, at)? {
            let end = records.len() + DirentHeader::record_len(entry.name.len());
            if end > room {
                return if records.is_empty() {
                    Err(Errno::EINVAL)
                } else {
                    Ok((records, at))
                };
            }
            let header = DirentHeader {
                inode: entry.id.number(),
                next: entry.next as i64,
                record_len: (end - records.len()) as u16,
                kind: (entry.mode >> 12) as u8,
            };
            records.extend_from_slice(&header.to_bytes());
            records.extend_from_slice(entry.name);
            records.resize(end, 0);
            at = entry.next;
        }
        Ok((records, at))
    }
}
