//! Events: several probes under one name.
//!
//! A definition with the name of an event that is there adds a probe to it. All probes of an event
//! leave the same records, so they agree in kind and in the number, names, types and sizes of their
//! arguments.

use crate::{
    definition::Definition,
    record::first_difference,
    refusal::{Reason, Refusal},
};

/// Checks whether the probe `new` may join the probes `there` of the event with its name.
///
/// # Errors
/// [`Refusal`]: another kind, other arguments, or a probe that is there already.
pub fn check_append<'a>(
    new: &Definition,
    there: impl IntoIterator<Item = &'a Definition>,
) -> Result<(), Refusal> {
    for old in there {
        if new.kind != old.kind || new.is_of_program() != old.is_of_program() {
            return Err(Refusal::line(Reason::DifferentProbeType));
        }
        if let Some(number) = first_difference(&new.arguments, &old.arguments) {
            let word = Refusal::ARGUMENTS + number;
            return Err(Refusal::new(Reason::DifferentArgumentType, word, 0));
        }
        let texts = |probe: &'a Definition| probe.arguments.iter().map(|argument| &argument.text);
        let is_same_text = new
            .arguments
            .iter()
            .map(|argument| &argument.text)
            .eq(texts(old));
        if new.place == old.place && is_same_text {
            return Err(Refusal::line(Reason::SameProbe));
        }
    }
    Ok(())
}
