//! The exit status of a trace whose answers are complete.

use boot::{guest::End, progress::say};
use trace_answers::Symbolize;

use crate::{expect::Condition, run::Answers};

/// The status that the program has named, unless the guest failed or a condition does not hold.
pub fn judge(answers: &Answers, conditions: &[Condition], symbols: &dyn Symbolize) -> u8 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use trace_answers::{NoSymbols, Presentation, Totals};

    #[test]
    fn a_failure_is_1_and_else_the_program_names_the_status() {
        let judged = |status, end, conditions: &[&str]| {
            let answers = Answers {
                presentation: Presentation::default(),
                probes: Vec::new(),
                gathered: Default::default(),
                status,
                totals: Totals {
                    hits: 3,
                    ..Totals::default()
                },
                end,
            };
            let conditions = conditions.iter().map(|text| Condition::read(text).unwrap());
            judge(&answers, &Vec::from_iter(conditions), &NoSymbols)
        };
        assert_eq!(judged(0, End::Success, &["hits == 3"]), 0);
        assert_eq!(judged(7, End::Success, &[]), 7);
        assert_eq!(judged(7, End::Success, &["hits == 3", "hits == 4"]), 1);
        assert_eq!(judged(7, End::Success, &["hits == 4", "hits == 3"]), 1);
        for end in [End::Failure, End::Reset, End::Emulator("killed".into())] {
            assert_eq!(judged(7, end, &["hits == 3"]), 1);
        }
        // As the system cuts a status off.
        assert_eq!(judged(256 + 5, End::Success, &[]), 5);
        assert_eq!(judged(-1, End::Success, &[]), 255);
    }
}
