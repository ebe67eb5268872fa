//! Random instructions, each with registers, flags and memory from which it can be executed and harms nobody.
//!
//! The tests execute one instruction in several ways and compare what it leaves behind: on the host in a process, in the
//! guest in ring 0. Both draw from here, so that a case of the one can be had in the other.
//!
//! ```text
//!   Random ─► encoding::draw   15 bytes, of a theme: branches, strings, the stack, …
//!               └► Case::draw  displacements, registers and memory made to fit the Ground; None if they cannot be
//! ```
//!
//! A [`Ground`] says where things are. Every byte that a case accesses lies in a window of its ground, or is not mapped; every
//! branch arrives at a breakpoint, or at what cannot be fetched. So whatever happens, it happens to the case alone.
//!
//! # Contexts
//! Pure functions; the decoder builds its tables on the heap at its first use.
#![no_std]

extern crate alloc;

mod branches;
mod case;
mod emulator;
pub mod encoding;
mod followers;
mod ground;
mod random;
mod stack;

pub use case::{Case, Unpredictable};
pub use encoding::{Code, HARMLESS_PORT};
pub use ground::{Ground, Place};
pub use random::Random;

/// Number of RSP among the general registers.
pub const RSP: usize = 4;
