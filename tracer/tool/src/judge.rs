//! The exit status of a trace whose answers are complete.

use boot::{guest::End, progress::say};
use debug_info::DebugInfo;

use crate::{expect::Condition, run::Answers};

/// The status that the program has named, unless the guest failed or a condition does not hold.
pub fn judge(answers: &Answers, conditions: &[Condition], symbols: &DebugInfo) -> u8 {
    let mut failed = answers.end != End::Success;
    for condition in conditions {
        if let Err(why) = condition.holds(&answers.presentation, &answers.totals, symbols) {
            say(why);
            failed = true;
        }
    }
    match u8::try_from(answers.status) {
        _ if failed => 1,
        Ok(status) => status,
        // As the system cuts a status off.
        Err(_) => answers.status as u8,
    }
}
