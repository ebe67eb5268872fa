//! The virtual file system: open files over one tree of names.
//!
//! ```text
//!   task: FileTable[fd] --> Shared<File> { position, NodeRef } --> TREE node: directory
//!                                |                                      or regular file
//!                                +--> Box<dyn Opened> <-- open -- SpecialFile
//! ```
//!
//! The tree ([`ramfs`]) holds names, directories and the contents of regular files. Devices and
//! virtual files are in it as [`Special`]s. Opening one gives an [`Opened`], which serves reads and
//! writes itself. Every open, read and write of a user program goes through [`vfs_open`],
//! [`vfs_read`] and [`vfs_write`], the functions that a tracer looks for.
//!
//! # Invariants
//! VFS-1. Under the tree's lock no code of a special file runs, its drop included, and no user
//!     memory is touched. Data pass through a kernel buffer of at most [`CHUNK`] bytes.
//! VFS-2. Each [`NodeRef`] is one user of its node in the tree.
//!
//! # Contexts and locks
//! Task context only, because all locks here sleep. A read may also sleep until there is something
//! to read ([`wait_for_data`]). Order: a file's position, then the tree. A
//! [`NodeRef`] takes the tree's lock when it is dropped, so none is dropped under it.

mod blocking;
mod console;
mod file;
mod file_table;
pub mod pseudo;

pub use blocking::{poll_for_data, wait_for_data};
pub use file::{File, OpenRequest, vfs_open, vfs_read, vfs_write};
pub use file_table::{FileTable, MAX_FILES};
pub use ramfs::{Attributes, FileKind};

use crate::{
    errno::Errno,
    mm::{
        shared::{Shared, try_box},
        user_space::is_memory_short,
    },
    sync::Mutex,
};
use abi::open;
use alloc::{boxed::Box, vec::Vec};
use core::mem::offset_of;
use ramfs::{Install, NodeId, Tree};
use spin::Lazy;

/// Largest piece of data that passes between a file and user memory at once, in bytes.
pub const CHUNK: usize = 4096;

/// The most heap that all files together may take, in bytes.
const CAPACITY: usize = 16 << 20;

/// A special file, as the tree holds it.
type SpecialFile = Shared<Box<dyn Special>>;

static TREE: Lazy<Mutex<Tree<SpecialFile>>> = Lazy::new(|| Mutex::new(Tree::new(CAPACITY)));

/// The ways in which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// It will be read.
    pub read: bool,
    /// It will be written.
    pub write: bool,
    /// Its old content is to go, as `>` demands. Never without `write`.
    pub truncate: bool,
    /// Writes go to its end, as `>>` demands.
    pub append: bool,
    /// A read that would wait for data is to end with EAGAIN.
    pub nonblocking: bool,
}

impl How {
    /// The meaning of the flags from [`abi::open`].
    pub const fn from_flags(flags: u32) -> Self {
        let access = flags & open::ACCMODE;
        let write = access != open::RDONLY;
        Self {
            read: access != open::WRONLY,
            write,
            truncate: write && flags & open::TRUNC != 0,
            append: flags & open::APPEND != 0,
            nonblocking: flags & open::NONBLOCK != 0,
        }
    }
}

/// A device or a virtual file, as it hangs in the tree.
pub trait Special: Send + Sync {
    /// Opens the file for one user. Permissions were checked against its mode. The file drops its
    /// content if `how` says so. It may refuse; then nothing has changed. Task context, no lock of
    /// the vfs held: the call may sleep, and may use files.
    ///
    /// The name of the file may be gone already, and go at any time while it is open. Then the file
    /// itself decides about its operations; ENODEV is the usual answer if they make no sense any
    /// more.
    fn open(&self, how: How) -> Result<Box<dyn Opened>, Errno>;
}

/// A special file, opened. It is dropped when its last user closes it. Calls come from task context
/// and may sleep. Of the vfs's locks, only that of the file's position is held.
pub trait Opened: Send + Sync {
    /// Copies the bytes of the file from `at` on into `buf`. Returns how many those were, 0 at its
    /// end. May wait for data ([`wait_for_data`]).
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Errno>;

    /// Takes `data`, at most [`CHUNK`] bytes, as written at byte `at`. Returns how much of it was
    /// used.
    fn write(&self, at: u64, data: &[u8]) -> Result<usize, Errno>;
}

/// One use of a node: keeps it, and its content if it is a file, after its name is gone (VFS-2).
#[repr(C)]
pub struct NodeRef {
    /// The address of the name, which ends with a NUL. It is the tree's and lives as long as the
    /// node. Only programs of probes read it: [`NodeRef::NAME_OFFSET`].
    name: usize,
    id: NodeId,
}

impl NodeRef {
    /// Where a `NodeRef` has the address of its name. A probe can read it without a lock, because
    /// the name neither changes nor goes while there is a user of the node.
    pub const NAME_OFFSET: usize = offset_of!(Self, name);

    /// Takes over a use that `tree` has counted.
    fn of_retained(tree: &Tree<SpecialFile>, id: NodeId) -> Self {
        let name = tree.name_with_nul(id).unwrap_or(b"\0");
        Self {
            name: name.as_ptr().addr(),
            id,
        }
    }

    /// The root directory, where the kernel's own walks and the first program start.
    pub fn root() -> Self {
        let mut tree = TREE.lock();
        tree.retain(NodeId::ROOT).expect("the root is always there");
        Self::of_retained(&tree, NodeId::ROOT)
    }

    /// The number of the node. No other node has it, or ever had it.
    pub fn number(&self) -> u64 {
        self.id.number()
    }

    pub fn attributes(&self) -> Result<Attributes, Errno> {
        Ok(TREE.lock().attributes(self.id)?)
    }

    /// Returns the absolute path; ENOENT if the node was removed.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        Ok(TREE.lock().path_of(self.id)?)
    }
}

impl Clone for NodeRef {
    fn clone(&self) -> Self {
        // The node is there: `self` uses it (VFS-2).
        TREE.lock().retain(self.id).expect("a node in use is kept");
        Self { ..*self }
    }
}

impl Drop for NodeRef {
    fn drop(&mut self) {
        dput(self);
    }
}

/// Gives a use of a node back. Linux has a function of this name, and tracers probe it for the name
/// of the node: `name=$arg1:%pd`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn dput(node: &NodeRef) {
    let special = TREE.lock().release(node.id);
    // After the lock (VFS-1).
    drop(special);
}

/// Puts the standard directories and `/dev/console` into the empty tree.
pub fn init() {
    let mut tree = TREE.lock();
    for (path, permissions) in [
        ("/bin", 0o755),
        ("/dev", 0o755),
        ("/proc", 0o555),
        ("/sys", 0o555),
        ("/tmp", 0o777),
    ] {
        tree.install(path.as_bytes(), permissions, Install::Directory)
            .expect("the tree is empty");
    }
    let console = special_file(console::Console).expect("the boot has memory");
    tree.install(b"/dev/console", 0o600, Install::Device(console))
        .expect("the tree is empty");
}

/// Puts a directory at the absolute `path`, with missing parents; one that exists is left as it is.
pub fn install_directory(path: &[u8], permissions: u32) -> Result<(), Errno> {
    TREE.lock().install(path, permissions, Install::Directory)?;
    Ok(())
}

/// Makes the directory at the absolute path `target` appear at the absolute `path` as well; EEXIST
/// if the name is taken. The alias goes by [`uninstall`], and what is in the directory stays.
pub fn install_alias(path: &[u8], target: &[u8]) -> Result<(), Errno> {
    let mut tree = TREE.lock();
    let target = tree.walk(NodeId::ROOT, target)?;
    tree.install(path, 0o555, Install::Alias(target))?;
    Ok(())
}

/// Puts a regular file with `content` at the absolute `path`, and makes missing parents; EEXIST if
/// the name is taken.
pub fn install_file(path: &[u8], permissions: u32, content: Vec<u8>) -> Result<(), Errno> {
    TREE.lock()
        .install(path, permissions, Install::Regular(content))?;
    Ok(())
}

fn special_file(file: impl Special + 'static) -> Result<SpecialFile, Errno> {
    let file: Box<dyn Special> = try_box(file)?;
    Ok(Shared::try_new(file)?)
}

/// Puts a special file at the absolute `path`, and makes missing directories. EEXIST if the name is
/// taken; ENOMEM, and then nothing has changed.
fn install_special(
    path: &[u8],
    permissions: u32,
    file: impl Special + 'static,
) -> Result<(), Errno> {
    // This one is kept, so that a file that is refused is not dropped under the lock (VFS-1).
    let file = special_file(file)?;
    let virtual_file = Install::Virtual(file.clone());
    TREE.lock().install(path, permissions, virtual_file)?;
    Ok(())
}

/// Takes away the file or directory at the absolute `path`; a directory must be empty. Tasks that
/// have it open may go on.
pub fn uninstall(path: &[u8]) -> Result<(), Errno> {
    let special = TREE.lock().uninstall(path)?;
    // After the lock (VFS-1).
    drop(special);
    Ok(())
}

/// Takes away the file or directory at the absolute `path`, and all that is in the directory, in
/// one step and without memory. Tasks that have any of it open may go on.
pub fn uninstall_all(path: &[u8]) -> Result<(), Errno> {
    TREE.lock().uninstall_all(path)?;
    loop {
        let special = TREE.lock().take_removed();
        // After the lock (VFS-1).
        if special.is_none() {
            return Ok(());
        }
    }
}

/// Looks up `path`, relative to the directory `cwd`.
pub fn attributes(cwd: &NodeRef, path: &[u8]) -> Result<Attributes, Errno> {
    let tree = TREE.lock();
    Ok(tree.attributes(tree.walk(cwd.id, path)?)?)
}

/// Returns the directory that `path` names, as a working directory. Its mode must allow looking up
/// names.
pub fn directory(cwd: &NodeRef, path: &[u8]) -> Result<NodeRef, Errno> {
    let mut tree = TREE.lock();
    let id = tree.walk(cwd.id, path)?;
    if tree.attributes(id)?.kind != FileKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    tree.permit(id, ramfs::Access::Execute)?;
    tree.retain(id)?;
    Ok(NodeRef::of_retained(&tree, id))
}

/// Refuses with ENOSPC to take memory for a program's files when it is short.
fn check_memory() -> Result<(), Errno> {
    if is_memory_short() {
        return Err(Errno::ENOSPC);
    }
    Ok(())
}

// A tracer looks for the next three, so each stays a function of its own.

/// Makes a directory.
#[inline(never)]
pub fn mkdir(cwd: &NodeRef, path: &[u8], permissions: u32) -> Result<(), Errno> {
    check_memory()?;
    TREE.lock().mkdir(cwd.id, path, permissions)?;
    Ok(())
}

/// Removes an empty directory.
#[inline(never)]
pub fn rmdir(cwd: &NodeRef, path: &[u8]) -> Result<(), Errno> {
    Ok(TREE.lock().rmdir(cwd.id, path)?)
}

/// Removes a file's name; open files keep its content.
#[inline(never)]
pub fn unlink(cwd: &NodeRef, path: &[u8]) -> Result<(), Errno> {
    let special = TREE.lock().unlink(cwd.id, path)?;
    drop(special);
    Ok(())
}

/// Returns the names of the entries of the directory `path`, without `.` and `..`, in the order in
/// which they were made.
pub fn entries(cwd: &NodeRef, path: &[u8]) -> Result<Vec<(Vec<u8>, Attributes)>, Errno> {
    let tree = TREE.lock();
    let id = tree.walk(cwd.id, path)?;
    tree.permit(id, ramfs::Access::Read)?;
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some(entry) = tree.next_entry(id, at)? {
        at = entry.next;
        if !matches!(entry.name, b"." | b"..") {
            entries.push((entry.name.into(), tree.attributes(entry.id)?));
        }
    }
    Ok(entries)
}

/// Opens `path` from the root for the kernel itself.
pub fn open(path: &str, flags: u32) -> Result<Shared<File>, Errno> {
    File::open(&NodeRef::root(), path.as_bytes(), flags, 0)
}

impl From<ramfs::Error> for Errno {
    fn from(error: ramfs::Error) -> Self {
        Self::from_code(error.errno()).unwrap_or(Self::EIO)
    }
}
