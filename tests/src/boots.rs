//! Boots the test kernel until each test of a list has its verdict.
//!
//! One guest at a time: a guest uses all of the machine that it gets, and time limits hold only for a guest that has it.

use std::{
    io::Write,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use boot::{
    guest::{Event, Guest},
    image::{Firmware, Kernel},
    prerequisites::Install,
    qemu::Machine,
};
use test_protocol::{PARAMETER, Ranges};

use crate::{
    catalogue::{BootOptions, GuestTest},
    transcript::{Expected, Over, Transcript, Verdict},
};

/// Time from power-on to the first test.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) static ONE_GUEST: Mutex<()> = Mutex::new(());

/// Runs `tests` and reports the verdict of each as soon as it is due, in any order. `echo` shows the guests' logs.
pub fn run(
    kernel: &Kernel,
    tests: &[&GuestTest],
    echo: bool,
    mut report: impl FnMut(&GuestTest, Verdict),
) {
    // Tests with equal options share boots; the catalogue has them side by side.
    for group in tests.chunk_by(|a, b| a.boot == b.boot) {
        let mut rest = group.to_vec();
        while !rest.is_empty() {
            let mut judged = vec![false; rest.len()];
            let mut judge = |test: usize, verdict| {
                judged[test] = true;
                report(rest[test], verdict);
            };
            let booted = boot(kernel, &rest, echo, &mut judge);
            let mut judged = judged.into_iter();
            rest.retain(|_| !judged.next().unwrap_or(false));
            if let Err(error) = booted {
                // Nothing in the guest: another boot would do no better.
                for test in rest.drain(..) {
                    report(test, Err(format!("{error:#}")));
                }
            }
        }
    }
}

/// Runs `machine` until it ends or `limit` is over, and returns how that was and what it logged.
pub fn record(machine: &Machine, limit: Duration) -> Result<(Over, String)> {
    let _one = ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guest = Guest::start(machine, Install::Allowed)?;
    let deadline = Instant::now() + limit;
    let mut log = Vec::new();
    let over = loop {
        match guest.next(Some(deadline))? {
            Event::Output(output) => log.extend(output),
            Event::End(end) => break Over::Ended(end),
            Event::Deadline => break Over::Hung(limit.as_secs()),
        }
    };
    Ok((over, String::from_utf8_lossy(&log).into_owned()))
}

/// Boots once and judges at least one of `tests`, all of which have the same boot options.
fn boot(
    kernel: &Kernel,
    tests: &[&GuestTest],
    echo: bool,
    judge: &mut dyn FnMut(usize, Verdict),
) -> Result<()> {
    let machine = machine(kernel, &tests[0].boot, tests)?;
    // A panic in another test leaves nothing behind that concerns us.
    let _one = ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guest = Guest::start(&machine, Install::Allowed)?;
    let expected = tests.iter().map(|test| Expected {
        name: test.full_name.clone(),
        should_panic: test.should_panic.clone(),
    });
    let mut transcript = Transcript::new(expected.collect());
    let mut limit = BOOT_TIMEOUT;
    let mut deadline = Instant::now() + limit;
    let over = loop {
        match guest.next(Some(deadline))? {
            Event::Output(output) => {
                if echo {
                    // Nothing can be done about a closed standard error.
                    let _ = std::io::stderr().write_all(&output);
                }
                let before = transcript.current();
                for (test, verdict) in transcript.output(&output) {
                    judge(test, verdict);
                }
                if let Some(current) = transcript.current()
                    && before != Some(current)
                {
                    limit = tests[current].timeout;
                    deadline = Instant::now() + limit;
                }
            }
            Event::End(end) => break Over::Ended(end),
            Event::Deadline => break Over::Hung(limit.as_secs()),
        }
    };
    for (test, verdict) in transcript.over(&over) {
        judge(test, verdict);
    }
    Ok(())
}

fn machine(kernel: &Kernel, options: &BootOptions, tests: &[&GuestTest]) -> Result<Machine> {
    let indices: Vec<usize> = tests.iter().map(|test| test.index).collect();
    let selection = format!("{PARAMETER}={}", Ranges(&indices));
    Ok(Machine {
        cpus: options.smp,
        memory_mib: options.memory_mib,
        icount: options.icount,
        cmdline: format!("{selection} {}", options.cmdline).trim_end().into(),
        ..Machine::new(kernel.image(Firmware::Bios)?)
    })
}
