//! Code that a jump may displace: what [`optimize`](super::optimize) finds out about a place, and
//! what a detour is made from.

use crate::insn::{EntryFacts, JUMP_BYTES, MAX_DISPLACED, Region};

/// The instructions that a jump displaces.
#[expect(
    clippy::large_enum_variant,
    reason = "made on the stack, one at a time"
)]
pub(crate) enum Displaced {
    Decoded(Region),
    /// The bytes of an open entry of which facts are known: executed unchanged at any address.
    Plain([u8; MAX_DISPLACED], EntryFacts),
}

/// Code that a jump may displace.
pub(crate) struct Displaceable {
    pub(crate) insns: Displaced,
    pub(crate) original: [u8; JUMP_BYTES],
    /// Whether it begins a function, after the landing pad of indirect branches.
    pub(crate) at_entry: bool,
    /// Whether it does not read the arithmetic flags, nor the direction flag, that it finds. False
    /// where nothing asks.
    pub(crate) flags_are_dead: bool,
}
