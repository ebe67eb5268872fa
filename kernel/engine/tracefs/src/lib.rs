//! The text side of kprobe events.
//!
//! An event is defined by a line of text, `p:GROUP/EVENT PLACE NAME=FETCH:TYPE …`. Each hit of its
//! probe leaves a record of bytes, and a reader sees the record as a line of text. This crate holds
//! every rule between those texts and knows no kernel, so it is tested on the host. The formats and
//! the messages are those of Linux (`Documentation/trace/kprobetrace.rst`), because tools compare
//! them.
//!
//! ```text
//!   write ─► Commands ─► Words ─► Command::parse ─► Definition ─► Layout ─► format file
//!                                      │                 └─► program ─► record ─► line
//!                                      └─► Refusal ─► ErrorLog
//! ```
//!
//! Everything here runs in task context and allocates, except the printing of a record.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod commands;
pub mod compile;
pub mod cpu_mask;
pub mod definition;
mod digits;
pub mod error_log;
pub mod event;
pub mod fetch;
pub mod field;
pub mod filter;
pub mod graph;
pub mod hist;
pub mod line;
mod number;
pub mod profile;
pub mod readme;
pub mod record;
pub mod refusal;
pub mod trigger;
pub mod values;
