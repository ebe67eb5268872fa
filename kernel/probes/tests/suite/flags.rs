//! Bits of RFLAGS, and the sets of them that code in tests runs with.
#![allow(dead_code, reason = "not every test binary uses every name")]

/// The carry of an addition.
pub const CF: u64 = 1 << 0;
/// Always set.
pub const FIXED: u64 = 1 << 1;
/// Traps after each instruction.
pub const TF: u64 = 1 << 8;
/// Lets interrupts in.
pub const IF: u64 = 1 << 9;
/// Has string instructions go backwards.
pub const DF: u64 = 1 << 10;
/// Set in the frame of a fault: the instruction is executed anew.
pub const RF: u64 = 1 << 16;
/// Checks the alignment of data in ring 3.
pub const AC: u64 = 1 << 18;

/// Set by arithmetic: CF, PF, AF, ZF, SF and OF.
pub const STATUS: u64 = 0x8d5;
/// Interrupts off, and nothing set that need not be.
pub const MASKED: u64 = FIXED;
/// Interrupts on, and nothing set that need not be.
pub const PLAIN: u64 = FIXED | IF;
/// The flags that must be clear when a handler runs.
pub const DF_AND_AC: u64 = DF | AC;
