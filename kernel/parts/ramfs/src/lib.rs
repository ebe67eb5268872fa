//! A tree of directories and files in memory: the names, paths and contents of the kernel's vfs.
//!
//! A [`Tree`] is plain data. It takes no lock, calls no code of its user and knows no kernel type.
//! Its owner wraps it in a lock. Devices and virtual files are in it as values of the owner's type
//! `S`, which the tree returns and never looks into. It does not drop one that it has taken: it
//! returns those that it frees, because their owner may drop them only outside its lock.
//!
//! ```text
//!   name in a directory --> NodeId --> slot --> Node { mode, links, users, content }
//!                                                                 |
//!                              Directory { by_name, by_id } | Regular(bytes) | Special(S)
//!                                                           | Alias(NodeId of a directory)
//! ```
//!
//! An alias stands for a directory elsewhere. Every walk goes on in that directory at once. So `..`
//! leads to the directory's own parent, and the path of what is in it is the directory's own path.
//! An alias whose directory was removed leads nowhere.
//!
//! # Invariants
//! RAMFS-1. A [`NodeId`] is never used again, so an id that was kept too long finds nothing.
//! RAMFS-2. A node has exactly one name (there are no hard links) until it is removed, and none
//!     afterwards. `named` is true exactly while its parent's `by_name` and `by_id` hold it.
//! RAMFS-3. A node is freed when it has neither a name nor a user. Users are open files and working
//!     directories. Each call of [`Tree::retain`] is followed by one call of [`Tree::release`].
//! RAMFS-4. A removed directory is empty and stays so.
//! RAMFS-5. `used` is the sum of all nodes' `Node::cost`, and never exceeds `capacity`.
//! RAMFS-6. The bytes of a node's name neither move nor change as long as the node is there. So
//!     users of the node may keep their address.
//! RAMFS-7. The directory's `by_name` has the ids of its entries in the order of their names,
//!     `by_id` in that of their numbers. Each slot has a node, or is free, or has a special file
//!     that [`Tree::take_removed`] will return.
//!
//! # Permissions
//! There is one user, who owns every file and is bound by the owner's permission bits. Virtual
//! files use these bits to say which operations they have. The kernel itself builds the tree by
//! [`Tree::install`], which ignores the bits.
//!
//! # Contexts
//! Every call that adds something allocates, and may be refused memory; none waits. A call that
//! removes something takes no memory. Errors leave the tree as it was.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod error;
mod node;
mod path;
#[cfg(test)]
mod tests;
mod tree;

pub use error::Error;
pub use node::{Access, Attributes, FileKind, NodeId};
pub use tree::{DirEntry, Install, MAX_FILE_BYTES, Tree};
