//! Call stacks as text.
//!
//! # Contexts
//! Tasks that may sleep.

use core::fmt;

use trace_maps::{MAX_FRAMES, Stacks};

use crate::symbols::{self, Address};

/// The text of the stack `number`: a line ` => function+offset/size` for each frame. An unknown
/// number is one line that says so.
pub fn print(stacks: &Stacks, number: u64, to: &mut impl fmt::Write) -> fmt::Result {
    let mut frames = [0; MAX_FRAMES];
    let Some(count) = stacks.frames(number, &mut frames) else {
        return writeln!(to, " => no stack {number}; it was cleared");
    };
    for &frame in frames.get(..count).unwrap_or_default() {
        // The first address of a function is where a probe was, or an interrupt. No call returns
        // there, save after a call that never returns.
        let is_start = symbols::lookup_addr(frame).is_some_and(|symbol| symbol.start == frame);
        let address = if is_start {
            Address::of_instruction(frame)
        } else {
            Address::of_return(frame)
        };
        writeln!(to, " => {address}")?;
    }
    Ok(())
}
