//! The tree itself: walking, creating, removing, reading, writing.
//!
//! Nodes are in slots that are used again. A number that is never used again tells whether a slot
//! still has the node that one means. A node without a name lives on while somebody has it open. A
//! request that is refused has changed nothing, also if memory is out in its middle: all memory is
//! taken before the first change.

use crate::{
    Access, Attributes, Error, FileKind, NodeId,
    node::{self, Content, Directory, Name, Node},
    path::{Path, Step},
};
use abi::{mode, open};
use alloc::{boxed::Box, vec::Vec};
use core::cmp::Ordering;

use fallible::try_box;

/// Largest size of a regular file, in bytes.
pub const MAX_FILE_BYTES: u64 = 8 << 20;

/// One entry of a directory, as [`Tree::next_entry`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub id: NodeId,
    pub mode: u32,
    /// The position at which the entry after this one is found.
    pub next: u64,
}

/// An entry that the kernel puts into the tree by [`Tree::install`].
pub enum Install<S> {
    Directory,
    Regular(Vec<u8>),
    /// Shows as a character device.
    Device(S),
    /// Shows as a regular file of no size, as files in `/proc` do.
    Virtual(S),
    /// Shows as the directory that it stands for.
    Alias(NodeId),
}

/// The place of a path that will be created or removed.
struct Target<'a> {
    parent: NodeId,
    last: Step<'a>,
    demands_directory: bool,
}

/// A place for a node.
enum Slot<S> {
    /// It is free, and so is that one.
    Free(Option<u32>),
    /// The number of the node, and the node, which is large and stays where it is.
    Node(u64, Box<Node<S>>),
    /// The special file of a node that is gone, and the next such slot.
    Removed(S, Option<u32>),
}

fn reserve<T>(list: &mut Vec<T>) -> Result<(), Error> {
    list.try_reserve(1).map_err(|_| Error::OutOfMemory)
}

/// A tree of files. `S` stands for a device or a virtual file.
pub struct Tree<S> {
    /// The slots by [`NodeId::slot`].
    slots: Vec<Slot<S>>,
    /// The first free slot, and the first one with a file to be returned (RAMFS-7).
    free: Option<u32>,
    removed: Option<u32>,
    next_number: u64,
    used: usize,
    capacity: usize,
}

impl<S> Tree<S> {
    /// Makes a tree with an empty root directory. It takes at most about `capacity` bytes of
    /// memory.
    pub fn new(capacity: usize) -> Self {
        let root = Node {
            name: Name::default(),
            parent: NodeId::ROOT,
            named: true,
            users: 0,
            mode: mode::DIRECTORY | 0o755,
            content: Content::Directory(Directory::default()),
        };
        Self {
            used: root.cost(),
            slots: Vec::from([Slot::Node(NodeId::ROOT.number, Box::new(root))]),
            free: None,
            removed: None,
            next_number: NodeId::FIRST_ENTRY,
            capacity,
        }
    }

    /// Bytes of its capacity that the tree takes now.
    pub fn used(&self) -> usize {
        self.used
    }

    /// The name that a node had in its directory, with a NUL after it; `/` for the root. Its bytes
    /// stay where they are as long as the node is there (RAMFS-6).
    pub fn name_with_nul(&self, id: NodeId) -> Result<&[u8], Error> {
        match id {
            NodeId::ROOT => Ok(b"/\0"),
            id => Ok(self.node(id)?.name.with_nul()),
        }
    }

    fn node(&self, id: NodeId) -> Result<&Node<S>, Error> {
        match self.slots.get(id.slot as usize) {
            Some(Slot::Node(number, node)) if *number == id.number => Ok(node),
            _ => Err(Error::NotFound),
        }
    }

    fn node_mut(&mut self, id: NodeId) -> Result<&mut Node<S>, Error> {
        match self.slots.get_mut(id.slot as usize) {
            Some(Slot::Node(number, node)) if *number == id.number => Ok(node),
            _ => Err(Error::NotFound),
        }
    }

    /// Where `name` is in `directory`, or where it would be.
    fn position(&self, directory: &Directory, name: &[u8]) -> Result<usize, usize> {
        let head = node::head(name);
        (directory.by_name).binary_search_by(|id| {
            let own = self.node(*id);
            own.map_or(Ordering::Less, |own| own.name.compare(name, head))
        })
    }

    /// The entry of the directory `parent` with that name: an alias itself, not its directory.
    fn child(&self, parent: NodeId, name: &[u8]) -> Result<NodeId, Error> {
        let directory = self.node(parent)?.directory()?;
        let at = self.position(directory, name);
        Ok(directory.by_name[at.map_err(|_| Error::NotFound)?])
    }

    /// Takes one step from the directory `from`.
    fn step(&self, from: NodeId, step: Step<'_>) -> Result<NodeId, Error> {
        let node = self.node(from)?;
        let directory = node.directory()?;
        node.permit(Access::Execute)?;
        match step {
            Step::Stay => Ok(from),
            // The parent of a removed directory may be gone as well (RAMFS-1).
            Step::Up => self.node(node.parent).map(|_| node.parent),
            Step::Down(name) => {
                let at = self.position(directory, name);
                self.behind_alias(directory.by_name[at.map_err(|_| Error::NotFound)?])
            }
        }
    }

    /// The directory that `id` stands for, if it is an alias; else `id`.
    fn behind_alias(&self, id: NodeId) -> Result<NodeId, Error> {
        match self.node(id)?.content {
            Content::Alias(target) => self.node(target).map(|_| target),
            _ => Ok(id),
        }
    }

    fn start(&self, cwd: NodeId, path: Path<'_>) -> NodeId {
        if path.is_absolute() {
            NodeId::ROOT
        } else {
            cwd
        }
    }

    /// Follows `path` from the directory `cwd` to its node.
    pub fn walk(&self, cwd: NodeId, path: &[u8]) -> Result<NodeId, Error> {
        let path = Path::try_new(path)?;
        let end = path
            .steps()
            .try_fold(self.start(cwd, path), |at, step| self.step(at, step?))?;
        let node = self.node(end)?;
        if path.demands_directory() {
            node.directory()?;
        }
        Ok(end)
    }

    /// Follows `path` to the directory that holds, or would hold, its last component.
    fn walk_parent<'a>(&self, cwd: NodeId, path: &'a [u8]) -> Result<Target<'a>, Error> {
        let path = Path::try_new(path)?;
        let mut steps = path.steps();
        // A path of slashes only names the root, from where a step to the root stays.
        let last = steps.next_back().unwrap_or(Ok(Step::Stay));
        let parent = steps.try_fold(self.start(cwd, path), |at, step| self.step(at, step?))?;
        let node = self.node(parent)?;
        node.directory()?;
        node.permit(Access::Execute)?;
        Ok(Target {
            parent,
            last: last?,
            demands_directory: path.demands_directory(),
        })
    }

    /// Adds a node under a name that is free.
    fn add(
        &mut self,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        content: Content<S>,
    ) -> Result<NodeId, Error> {
        if !self.node(parent)?.named {
            return Err(Error::NotFound); // RAMFS-4
        }
        let node = Node {
            name: Name::new(name)?,
            parent,
            named: true,
            users: 0,
            mode,
            content,
        };
        let used = self.used + node.cost();
        if used > self.capacity {
            return Err(Error::NoSpace);
        }
        let is_directory = node.kind() == FileKind::Directory;
        let node = try_box(node)?;
        let directory = self.node(parent)?.directory()?;
        let Err(at) = self.position(directory, name) else {
            return Err(Error::Exists);
        };
        let directory = self.node_mut(parent)?.directory_mut()?;
        reserve(&mut directory.by_name)?;
        reserve(&mut directory.by_id)?;
        let id = NodeId {
            number: self.next_number,
            slot: self.free_slot()?,
        };
        // Nothing fails from here on.
        let directory = self.node_mut(parent)?.directory_mut()?;
        directory.by_name.insert(at, id);
        directory.by_id.push(id);
        directory.subdirectories += u64::from(is_directory);
        self.next_number += 1;
        self.used = used;
        self.fill(id.slot, Slot::Node(id.number, node));
        Ok(id)
    }

    /// A slot that is free, which may be a new one.
    fn free_slot(&mut self) -> Result<u32, Error> {
        if let Some(free) = self.free {
            return Ok(free);
        }
        let next = u32::try_from(self.slots.len()).map_err(|_| Error::NoSpace)?;
        reserve(&mut self.slots)?;
        self.slots.push(Slot::Free(None));
        self.free = Some(next);
        Ok(next)
    }

    /// Puts something into the free slot that [`Self::free_slot`] has named.
    fn fill(&mut self, slot: u32, content: Slot<S>) {
        if let Slot::Free(next) = core::mem::replace(&mut self.slots[slot as usize], content) {
            self.free = next;
        }
    }

    /// Adds a node for a user, who needs permission to write to the directory.
    fn create(
        &mut self,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        content: Content<S>,
    ) -> Result<NodeId, Error> {
        self.node(parent)?.permit(Access::Write)?;
        self.add(parent, name, mode, content)
    }

    /// Takes the name away from a node that its parent lists. If the node is freed, returns the
    /// special file that it was.
    fn remove(&mut self, id: NodeId) -> Result<Option<S>, Error> {
        let node = self.node(id)?;
        let is_directory = node.kind() == FileKind::Directory;
        let parent = node.parent;
        let directory = self.node(parent)?.directory()?;
        let by_name = self.position(directory, node.name.bytes());
        let by_name = by_name.map_err(|_| Error::NotFound)?;
        let directory = self.node_mut(parent)?.directory_mut()?;
        let by_id = directory.by_id.binary_search(&id);
        directory.by_id.remove(by_id.map_err(|_| Error::NotFound)?);
        directory.by_name.remove(by_name);
        directory.subdirectories -= u64::from(is_directory);
        self.node_mut(id)?.named = false;
        Ok(self.free_if_unused(id))
    }

    fn free_if_unused(&mut self, id: NodeId) -> Option<S> {
        let node = self.node(id).ok()?;
        if node.named || node.users > 0 {
            return None;
        }
        self.used -= node.cost();
        let slot = &mut self.slots[id.slot as usize];
        let Slot::Node(_, node) = core::mem::replace(slot, Slot::Free(self.free)) else {
            return None;
        };
        self.free = Some(id.slot);
        let node = *node;
        match node.content {
            Content::Special(special) => Some(special),
            Content::Directory(_) | Content::Regular(_) | Content::Alias(_) => None,
        }
    }

    /// Finds the file that `open` of `path` with `flags` from [`abi::open`] opens. Creates or
    /// truncates it if the flags say so. Retains it: the caller releases it when the file is
    /// closed. A created file gets `permissions`.
    pub fn open(
        &mut self,
        cwd: NodeId,
        path: &[u8],
        flags: u32,
        permissions: u32,
    ) -> Result<NodeId, Error> {
        let (read, write) = match flags & open::ACCMODE {
            open::RDONLY => (true, false),
            open::WRONLY => (false, true),
            open::RDWR => (true, true),
            _ => return Err(Error::Invalid),
        };
        let id = if flags & open::CREAT == 0 {
            self.walk(cwd, path)?
        } else {
            if flags & open::DIRECTORY != 0 {
                return Err(Error::Invalid);
            }
            let target = self.walk_parent(cwd, path)?;
            if target.demands_directory {
                return Err(Error::IsDirectory);
            }
            match (self.step(target.parent, target.last), target.last) {
                (Err(Error::NotFound), Step::Down(name)) => {
                    let mode = mode::REGULAR | permissions & mode::PERMISSIONS;
                    let id =
                        self.create(target.parent, name, mode, Content::Regular(Vec::new()))?;
                    // Its mode binds later openers, not its creator.
                    self.retain(id)?;
                    return Ok(id);
                }
                (Ok(_), _) if flags & open::EXCL != 0 => return Err(Error::Exists),
                (found, _) => found?,
            }
        };
        let node = self.node(id)?;
        let truncate = flags & open::TRUNC != 0;
        match node.kind() {
            FileKind::Directory if write || truncate || flags & open::CREAT != 0 => {
                return Err(Error::IsDirectory);
            }
            FileKind::Regular | FileKind::Special if flags & open::DIRECTORY != 0 => {
                return Err(Error::NotDirectory);
            }
            _ => {}
        }
        if read {
            node.permit(Access::Read)?;
        }
        if write || truncate {
            node.permit(Access::Write)?;
        }
        if truncate && node.kind() == FileKind::Regular {
            self.resize(id, 0)?;
        }
        self.retain(id)?;
        Ok(id)
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, cwd: NodeId, path: &[u8], permissions: u32) -> Result<NodeId, Error> {
        let target = self.walk_parent(cwd, path)?;
        let Step::Down(name) = target.last else {
            return Err(Error::Exists);
        };
        match self.step(target.parent, target.last) {
            Err(Error::NotFound) => {}
            Ok(_) => return Err(Error::Exists),
            Err(error) => return Err(error),
        }
        let mode = mode::DIRECTORY | permissions & mode::PERMISSIONS;
        self.create(
            target.parent,
            name,
            mode,
            Content::Directory(Directory::default()),
        )
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, cwd: NodeId, path: &[u8]) -> Result<(), Error> {
        let target = self.walk_parent(cwd, path)?;
        let name = match target.last {
            Step::Down(name) => name,
            Step::Up => return Err(Error::NotEmpty),
            Step::Stay if path.iter().all(|&byte| byte == b'/') => return Err(Error::Busy),
            Step::Stay => return Err(Error::Invalid),
        };
        let id = self.child(target.parent, name)?;
        if !self.node(id)?.directory()?.by_name.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.node(target.parent)?.permit(Access::Write)?;
        self.remove(id).map(drop)
    }

    /// Removes a file; open files keep its content. Returns the special file that it was, if it is
    /// not in use.
    pub fn unlink(&mut self, cwd: NodeId, path: &[u8]) -> Result<Option<S>, Error> {
        let target = self.walk_parent(cwd, path)?;
        let Step::Down(name) = target.last else {
            return Err(Error::IsDirectory);
        };
        let id = self.child(target.parent, name)?;
        match self.node(id)?.kind() {
            FileKind::Directory => return Err(Error::IsDirectory),
            _ if target.demands_directory => return Err(Error::NotDirectory),
            _ => {}
        }
        self.node(target.parent)?.permit(Access::Write)?;
        self.remove(id)
    }

    /// Puts `content` at the absolute path `path` for the kernel: no permission bits bind it.
    /// Missing directories on the path are made with the permissions 0555. A directory that exists
    /// is left as it is.
    pub fn install(
        &mut self,
        path: &[u8],
        permissions: u32,
        content: Install<S>,
    ) -> Result<NodeId, Error> {
        let path = Path::try_new(path)?;
        let (kind, content) = match content {
            Install::Directory => (mode::DIRECTORY, Content::Directory(Directory::default())),
            Install::Regular(bytes) => (mode::REGULAR, Content::Regular(bytes)),
            Install::Device(special) => (mode::CHARACTER_DEVICE, Content::Special(special)),
            Install::Virtual(special) => (mode::REGULAR, Content::Special(special)),
            Install::Alias(target) => {
                self.node(target)?.directory()?;
                (mode::DIRECTORY, Content::Alias(target))
            }
        };
        let mode = kind | permissions & mode::PERMISSIONS;
        let mut made = None;
        let result = self.install_on_the_way(path, mode, content, &mut made);
        if let (Err(_), Some(first)) = (&result, made) {
            self.remove_all(first)?;
        }
        result
    }

    /// Same as [`Self::install`]. `made` is the first directory that was made on the way.
    fn install_on_the_way(
        &mut self,
        path: Path<'_>,
        mode: u32,
        content: Content<S>,
        made: &mut Option<NodeId>,
    ) -> Result<NodeId, Error> {
        let mut steps = path.steps();
        let Some(Ok(Step::Down(last))) = steps.next_back() else {
            return Err(Error::Invalid);
        };
        let mut parent = NodeId::ROOT;
        for step in steps {
            let Step::Down(name) = step? else {
                return Err(Error::Invalid);
            };
            parent = match self.child(parent, name) {
                Ok(id) => self.behind_alias(id)?,
                Err(Error::NotFound) => {
                    let directory = Content::Directory(Directory::default());
                    let id = self.add(parent, name, mode::DIRECTORY | 0o555, directory)?;
                    made.get_or_insert(id);
                    id
                }
                Err(error) => return Err(error),
            };
        }
        match (self.child(parent, last), &content) {
            (Err(Error::NotFound), _) => self.add(parent, last, mode, content),
            (Err(error), _) => Err(error),
            (Ok(id), Content::Directory(_)) => {
                let id = self.behind_alias(id)?;
                self.node(id)?.directory().map(|_| id)
            }
            (Ok(_), _) => Err(Error::Exists),
        }
    }

    /// Finds the entry at the absolute path `path`, for the kernel to remove it.
    fn installed(&self, path: &[u8]) -> Result<NodeId, Error> {
        let target = self.walk_parent(NodeId::ROOT, path)?;
        match target.last {
            Step::Down(name) => self.child(target.parent, name),
            Step::Stay | Step::Up => Err(Error::Invalid),
        }
    }

    /// Removes an entry that [`Tree::install`] put at the absolute path `path`. A directory must be
    /// empty. Returns the special file that it was, if it is not in use.
    pub fn uninstall(&mut self, path: &[u8]) -> Result<Option<S>, Error> {
        let id = self.installed(path)?;
        if let Ok(directory) = self.node(id)?.directory()
            && !directory.by_name.is_empty()
        {
            return Err(Error::NotEmpty);
        }
        self.remove(id)
    }

    /// Removes the entry at the absolute path `path` and, if it is a directory, all that is in it.
    /// [`Self::take_removed`] returns the special files that are not in use.
    pub fn uninstall_all(&mut self, path: &[u8]) -> Result<(), Error> {
        self.remove_all(self.installed(path)?)
    }

    fn remove_all(&mut self, top: NodeId) -> Result<(), Error> {
        let mut at = top;
        loop {
            // An entry goes before its directory.
            while let Ok(directory) = self.node(at)?.directory()
                && let Some(last) = directory.by_id.last()
            {
                at = *last;
            }
            let parent = self.node(at)?.parent;
            if let Some(special) = self.remove(at)? {
                // The node's own slot is free now.
                let slot = self.free_slot()?;
                self.fill(slot, Slot::Removed(special, self.removed));
                self.removed = Some(slot);
            }
            if at == top {
                return Ok(());
            }
            at = parent;
        }
    }

    /// Returns one of the special files that [`Self::uninstall_all`] has freed, until there are
    /// none.
    pub fn take_removed(&mut self) -> Option<S> {
        let at = self.removed?;
        let slot = &mut self.slots[at as usize];
        let Slot::Removed(special, next) = core::mem::replace(slot, Slot::Free(self.free)) else {
            return None;
        };
        self.free = Some(at);
        self.removed = next;
        Some(special)
    }

    /// Counts one more user of `id`.
    pub fn retain(&mut self, id: NodeId) -> Result<(), Error> {
        self.node_mut(id)?.users += 1;
        Ok(())
    }

    /// Takes back one [`Tree::retain`] or [`Tree::open`]. If that was the last use of a special
    /// file whose name is gone, returns it.
    pub fn release(&mut self, id: NodeId) -> Option<S> {
        if let Ok(node) = self.node_mut(id) {
            node.users -= 1;
        }
        self.free_if_unused(id)
    }

    /// Refuses unless the mode of `id` allows `access`.
    pub fn permit(&self, id: NodeId, access: Access) -> Result<(), Error> {
        self.node(id)?.permit(access)
    }

    pub fn attributes(&self, id: NodeId) -> Result<Attributes, Error> {
        self.node(id).map(|node| node.attributes(id))
    }

    /// Returns the device or virtual file that `id` is, if it is one.
    pub fn special(&self, id: NodeId) -> Option<&S> {
        match &self.node(id).ok()?.content {
            Content::Special(special) => Some(special),
            _ => None,
        }
    }

    fn bytes(&self, id: NodeId) -> Result<&Vec<u8>, Error> {
        match &self.node(id)?.content {
            Content::Regular(bytes) => Ok(bytes),
            Content::Directory(_) => Err(Error::IsDirectory),
            Content::Special(_) | Content::Alias(_) => Err(Error::Invalid),
        }
    }

    /// Copies the regular file `id` from byte `at` on into `buf`. Returns the number of bytes.
    pub fn read_at(&self, id: NodeId, at: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let bytes = self.bytes(id)?;
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        let found = &bytes[at..bytes.len().min(at.saturating_add(buf.len()))];
        buf[..found.len()].copy_from_slice(found);
        Ok(found.len())
    }

    /// Writes all of `data` to the regular file `id` from byte `at` on. A gap after its end reads
    /// as zeros.
    pub fn write_at(&mut self, id: NodeId, at: u64, data: &[u8]) -> Result<(), Error> {
        let old_len = self.bytes(id)?.len() as u64;
        let end = at.checked_add(data.len() as u64).ok_or(Error::TooBig)?;
        if data.is_empty() {
            return Ok(());
        }
        if end > old_len {
            self.resize(id, end)?;
        }
        if let Content::Regular(bytes) = &mut self.node_mut(id)?.content {
            bytes[at as usize..end as usize].copy_from_slice(data);
        }
        Ok(())
    }

    /// Sets the length of the regular file `id`, in bytes. Added bytes read as zeros.
    pub fn resize(&mut self, id: NodeId, len: u64) -> Result<(), Error> {
        let old_capacity = self.bytes(id)?.capacity();
        if len > MAX_FILE_BYTES {
            return Err(Error::TooBig);
        }
        let len = len as usize;
        // Doubling avoids a copy for each small write to a growing file. If there is no room for
        // twice the capacity, the exact size is tried.
        let wanted = if len <= old_capacity {
            old_capacity
        } else {
            len.max(2 * old_capacity)
        };
        let room = self.capacity - self.used;
        let wanted = if wanted - old_capacity <= room {
            wanted
        } else {
            len
        };
        if wanted.saturating_sub(old_capacity) > room {
            return Err(Error::NoSpace);
        }
        let Content::Regular(bytes) = &mut self.node_mut(id)?.content else {
            return Err(Error::Invalid);
        };
        let more = wanted.saturating_sub(bytes.len());
        bytes.try_reserve_exact(more).map_err(|_| Error::NoSpace)?;
        bytes.resize(len, 0);
        if len == 0 {
            *bytes = Vec::new();
        }
        let new_capacity = bytes.capacity();
        self.used = self.used - old_capacity + new_capacity;
        Ok(())
    }

    /// Returns the first entry of the directory `id` at or after position `at`. 0 is its start;
    /// other positions come from [`DirEntry::next`]. Returns `None` at its end, and in a removed
    /// directory.
    pub fn next_entry(&self, id: NodeId, at: u64) -> Result<Option<DirEntry<'_>>, Error> {
        let node = self.node(id)?;
        let directory = node.directory()?;
        if !node.named {
            return Ok(None); // RAMFS-4
        }
        let (name, id): (&[u8], _) = match at {
            0 => (b".", id),
            1 => (b"..", node.parent),
            _ => {
                let next = directory.by_id.partition_point(|id| id.number < at);
                match directory.by_id.get(next) {
                    Some(id) => (self.node(*id)?.name.bytes(), *id),
                    None => return Ok(None),
                }
            }
        };
        let shown = self.behind_alias(id).unwrap_or(id);
        Ok(Some(DirEntry {
            name,
            id: shown,
            mode: self.node(shown)?.mode,
            next: if at < NodeId::FIRST_ENTRY {
                at + 1
            } else {
                id.number + 1
            },
        }))
    }

    /// Returns the absolute path of the directory or file `id`; an error if it was removed.
    pub fn path_of(&self, id: NodeId) -> Result<Vec<u8>, Error> {
        let (mut at, mut bytes) = (id, 0);
        while at != NodeId::ROOT {
            let node = self.node(at)?;
            if !node.named {
                return Err(Error::NotFound);
            }
            bytes += 1 + node.name.bytes().len();
            at = node.parent;
        }
        let mut path = Vec::new();
        let room = path.try_reserve_exact(bytes.max(1));
        room.map_err(|_| Error::OutOfMemory)?;
        path.resize(bytes.max(1), b'/');
        let (mut at, mut end) = (id, bytes);
        while at != NodeId::ROOT {
            let node = self.node(at)?;
            let name = node.name.bytes();
            path[end - name.len()..end].copy_from_slice(name);
            end -= 1 + name.len();
            at = node.parent;
        }
        Ok(path)
    }
}
