//! Random instructions, each with registers, flags and memory from which it can be executed without
//! harm.
//!
//! The tests execute one instruction in several ways and compare the results: on the host in a
//! process, in the guest in ring 0 and in programs. All use these cases, so that a case of one can
//! be repeated in another.
//!
//! ```text
//!   Random ─► encoding::draw   15 bytes, of a theme: branches, strings, the stack, …
//!               └► Case::draw  makes displacements, registers and memory fit the Ground;
//!                              None if they cannot
//! ```
//!
//! A [`Ground`] describes the memory. Every byte that a case accesses lies in a window of its
//! ground, or is not mapped. Every branch arrives at a breakpoint, or at an address that cannot be
//! fetched. So a case can harm only itself.
//!
//! # Contexts
//! All functions are pure; the decoder builds its tables on the heap at its first use.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod branches;
mod case;
mod draw;
mod emulator;
pub mod encoding;
mod followers;
mod ground;
mod random;
mod stack;

pub use case::{Case, Unpredictable};
pub use encoding::{Code, HARMLESS_PORT};
pub use ground::{Ground, GroundPlace};
pub use random::Random;

/// Number of RSP among the general registers.
pub const RSP: usize = 4;
