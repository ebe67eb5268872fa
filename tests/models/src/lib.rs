//! Models of the lock-free parts of the probes and of the maps of compiled actions, checked in all
//! interleavings and with every value that the memory model lets a load return. `cargo test -p
//! tests --test models` runs them with a bound on preemptions, and the same with `-- --ignored`
//! with a higher one.
//!
//! The files of the probes and of the kernel are compiled unchanged. This crate stands for
//! everything that they name.
//!
//! ```text
//!   core, alloc   this crate: it has the standard library's names, but `core::sync::atomic` is
//!                 loom's (`atomic.rs`), and freed memory is remembered (`memory.rs`)
//!   crate         this crate: the included files, and as much of the rest as they need
//!                 (`stand_ins.rs`)
//!   assembly      twins in Rust, with the same accesses in the same order:
//!                 `data/free_list.rs`, and the readers in the models
//! ```
//!
//! # Models can fail
//! Each model names the [`Weakness`]es that it notices: an ordering left out in all files, a wait
//! or a tag left out. The test runs the model with each of them and wants it to fail.
//!
//! # Limits
//! The memory model is that of C11, in which loads and stores of different places may change order.
//! The processor allows less. A plain field is checked only if a model has a
//! [`Content`](memory::Content) for it.

// The `core` and `alloc` of the included files. The functions of `alloc::alloc` are this crate's,
// because `alloc` in it is the crate itself.
extern crate self as alloc;
extern crate self as core;

pub use std::{
    alloc::Layout, borrow, boxed, cell, fmt, iter, marker, mem, num, ops, option, ptr, slice,
    string, vec,
};

mod atomic;
mod data;
mod explore;
mod memory;
pub mod models;
mod registry;
mod stand_ins;
mod trace_maps;
mod trace_ring;
mod weakness;

#[path = "../../../kernel/src/probes/text_poke.rs"]
#[allow(dead_code)]
mod text_poke;

pub use explore::{Exploration, explore};
use memory::{alloc, alloc_zeroed, dealloc};
use stand_ins::{PROBES, arch, hint, insn, limits, mm, pt_regs, sync, time};
pub use weakness::Weakness;

pub use probes::error;
