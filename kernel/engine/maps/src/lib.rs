#![doc = include_str!("../README.md")]
//! The maps of compiled actions: where a hit of a probe counts, sums up and remembers.
//!
//! ```text
//!   a program's definition --Map::new: all memory is taken--> a map
//!
//!   compiled code   addresses of array values; the functions of [`compiled`]      any context
//!   tasks           read, sum up, clear                                           tasks
//! ```
//!
//! | [`bpf::MapKind`] | what it is | file |
//! |---|---|---|
//! | `Array`, `PerCpuArray` | by index; shared, or for each CPU | `array.rs` |
//! | `Hash`, `PerCpuHash` | by key; shared, or for each CPU | `hash.rs` |
//! | `Stacks` | stack traces by number | `stacks.rs` |
//!
//! A definition is a program's [`bpf::MapDef`], whose limits are those of all maps.
//!
//! [`image`] reads the memory of any of them from outside, for example from another process.
//!
//! # Invariants
//! MAP-1. A map takes its memory when it is made and gives it back when it is dropped. Nothing
//!     allocates in between, except the results that a task asks for.
//! MAP-2. All shared memory of a map is words that are accessed atomically. So every interleaving
//!     of hits and readers is free of torn words and of undefined behaviour.
//! MAP-3. An operation of a hit is done, or refused by the program's own conditions, or lost. Each
//!     lost one is counted once, by its reason. For example, an `add` that returns [`Lost::Full`]
//!     has raised the table's count of full by 1.
//! MAP-4. No code of a hit panics, allocates, waits or calls through a pointer.
//!
//! # Contexts
//! Operations of hits work in tasks, interrupts and NMIs on top of one another, and on all CPUs at
//! once. For the parts of one CPU this means: a hit uses those of the CPU that it runs on, and does
//! not leave that CPU meanwhile. Tasks read and clear at any time, on any CPU.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod array;
pub mod at_home;
mod block;
pub mod compiled;
mod error;
mod hash;
pub mod image;
mod map;
mod stacks;
mod steps;
mod table;

pub use array::{Array, ArrayPlace, Lent};
pub use block::OutOfMemory;
pub use error::MapError;
pub use hash::{Hash, LostCounts, Summary, TABLE_SHIFT};
pub use map::Map;
pub use stacks::{MAX_FRAMES, Stacks};
pub use steps::{NoSteps, Steps};
pub use table::{Lost, MAX_KEY_BYTES, MAX_VALUE_BYTES, NotUpdated, Table, Use, When};
