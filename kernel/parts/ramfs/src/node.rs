//! Nodes: the files and directories that names stand for.
//!
//! A directory lists its nodes twice: by name for look-up, and by number for listing. Each node has
//! its own name, with the first bytes also as a number, because a search compares these.

use crate::Error;
use abi::mode;
use alloc::{boxed::Box, vec::Vec};
use core::cmp::Ordering;

/// Names a node for the life of the tree (RAMFS-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId {
    /// Rises with time. So it comes first, and decides the order.
    pub(crate) number: u64,
    pub(crate) slot: u32,
}

impl NodeId {
    pub const ROOT: Self = Self {
        number: Self::FIRST_ENTRY - 1,
        slot: 0,
    };
    /// Positions in a directory below this are those of `.` and `..`; the others are the numbers of
    /// nodes.
    pub(crate) const FIRST_ENTRY: u64 = 2;

    /// The inode number that user programs see.
    pub const fn number(self) -> u64 {
        self.number
    }
}

/// A kind of access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Executing it; for a directory, looking up names in it.
    Execute,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Directory,
    Regular,
    Special,
}

/// The answer of `stat` about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub id: NodeId,
    pub kind: FileKind,
    /// File type and permission bits, as in `st_mode`.
    pub mode: u32,
    pub links: u64,
    /// Size in bytes; 0 if it is not a regular file.
    pub size: u64,
}

/// The entries of a directory, by name for look-up and by id for listing.
///
/// Numbers of nodes rise with time and stay. So a listing that goes on after some number neither
/// repeats an entry nor skips one that was there throughout.
#[derive(Default)]
pub(crate) struct Directory {
    pub by_name: Vec<NodeId>,
    pub by_id: Vec<NodeId>,
    pub subdirectories: u64,
}

pub(crate) enum Content<S> {
    Directory(Directory),
    Regular(Vec<u8>),
    Special(S),
    /// A name for a directory that has its own name elsewhere.
    Alias(NodeId),
}

/// The name of a node, with a NUL after it for those who read it from memory.
#[derive(Default)]
pub(crate) struct Name {
    /// See [`head`].
    head: u64,
    bytes: Box<[u8]>,
}

/// The first eight bytes of a name as a number, with zeros after a shorter name. Names with
/// different heads are in the order of these numbers. So a search rarely compares bytes.
#[inline]
pub(crate) fn head(name: &[u8]) -> u64 {
    let mut head = [0; 8];
    for (byte, of_name) in head.iter_mut().zip(name) {
        *byte = *of_name;
    }
    u64::from_be_bytes(head)
}

impl Name {
    pub fn new(name: &[u8]) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        let room = bytes.try_reserve_exact(name.len() + 1);
        room.map_err(|_| Error::OutOfMemory)?;
        bytes.extend_from_slice(name);
        bytes.push(0);
        // No bytes are to spare, so this needs no memory.
        Ok(Self {
            head: head(name),
            bytes: bytes.into(),
        })
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.split_last().map_or(&[], |(_, name)| name)
    }

    pub fn with_nul(&self) -> &[u8] {
        &self.bytes
    }

    /// How it compares with `name`, whose head is `head`.
    #[inline]
    pub fn compare(&self, name: &[u8], head: u64) -> Ordering {
        self.head.cmp(&head).then_with(|| self.bytes().cmp(name))
    }
}

pub(crate) struct Node<S> {
    /// Its bytes never move (RAMFS-6).
    pub name: Name,
    pub parent: NodeId,
    /// Its parent lists it (RAMFS-2). Always true of the root.
    pub named: bool,
    pub users: usize,
    pub mode: u32,
    pub content: Content<S>,
}

impl<S> Node<S> {
    /// Bytes that a node without content takes, rounded up. They include its entries in its
    /// parent's two lists and its slot.
    const FIXED_COST: usize = 256;

    /// The node's share of the tree's capacity, in bytes.
    pub fn cost(&self) -> usize {
        let bytes = match &self.content {
            Content::Regular(bytes) => bytes.capacity(),
            Content::Directory(_) | Content::Special(_) | Content::Alias(_) => 0,
        };
        Self::FIXED_COST + 2 * self.name.bytes().len() + bytes
    }

    pub fn permit(&self, access: Access) -> Result<(), Error> {
        let bit = match access {
            Access::Read => mode::OWNER_READ,
            Access::Write => mode::OWNER_WRITE,
            Access::Execute => mode::OWNER_EXECUTE,
        };
        if self.mode & bit == 0 {
            return Err(Error::AccessDenied);
        }
        Ok(())
    }

    pub fn kind(&self) -> FileKind {
        match self.content {
            Content::Directory(_) => FileKind::Directory,
            Content::Regular(_) => FileKind::Regular,
            Content::Special(_) | Content::Alias(_) => FileKind::Special,
        }
    }

    pub fn directory(&self) -> Result<&Directory, Error> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    pub fn directory_mut(&mut self) -> Result<&mut Directory, Error> {
        match &mut self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    pub fn attributes(&self, id: NodeId) -> Attributes {
        let (size, links) = match &self.content {
            Content::Directory(_) if !self.named => (0, 0),
            // Its name, its own `.`, and the `..` of each subdirectory.
            Content::Directory(directory) => (0, 2 + directory.subdirectories),
            Content::Regular(bytes) => (bytes.len() as u64, self.named.into()),
            Content::Special(_) | Content::Alias(_) => (0, self.named.into()),
        };
        Attributes {
            id,
            kind: self.kind(),
            mode: self.mode,
            links,
            size,
        }
    }
}
