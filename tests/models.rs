//! Each model, and each of its weaknesses, as a test of its own. The long form has more
//! preemptions. `--nocapture` prints the number of interleavings, and what each weakness leads to.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use models::{Weakness, explore, models::ALL};

fn holds(model: fn(), preemptions: usize, tell: bool) -> Result<(), Failed> {
    let result = explore(model, Some(preemptions), None);
    if tell {
        println!("{} interleavings", result.interleavings);
    }
    result.failure.map_or(Ok(()), |cause| Err(cause.into()))
}

fn fails(model: fn(), preemptions: usize, weakness: Weakness, tell: bool) -> Result<(), Failed> {
    let result = explore(model, Some(preemptions), Some(weakness));
    if result.is_found() {
        if tell {
            println!(
                "interleaving {}: {}",
                result.interleavings,
                result.failure.unwrap_or_default()
            );
        }
        return Ok(());
    }
    let cause = result
        .failure
        .unwrap_or_else(|| "nothing was noticed".into());
    Err(format!("{cause} in {} interleavings", result.interleavings).into())
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A failing execution prints its own messages; they must not mix.
    arguments.test_threads = Some(1);
    let tell = arguments.nocapture;
    let mut trials = Vec::new();
    for model in ALL {
        let run = model.run;
        let (few, many) = (model.preemptions, model.preemptions + 1);
        trials.push(Trial::test(model.name, move || holds(run, few, tell)));
        trials.push(
            Trial::test(format!("{}_with_more_preemptions", model.name), move || {
                holds(run, many, tell)
            })
            .with_ignored_flag(true),
        );
        for &weakness in model.needs {
            trials.push(Trial::test(
                format!("{}_needs_{weakness:?}", model.name),
                move || fails(run, few, weakness, tell),
            ));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
