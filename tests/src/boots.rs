//! Boots the test kernel until each test of a list has its verdict.
//!
//! There is one guest at a time. A guest uses all of the machine that it gets, and time limits hold
//! only for a guest that has all of it.

use std::{
    cmp::Reverse,
    env, fmt,
    io::Write,
    ops::ControlFlow,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use boot::{
    bochs,
    guest::{Event, Guest},
    image::{Firmware, Kernel},
    prerequisites::Install,
    qemu::Machine,
};
use test_protocol::{PARAMETER, Ranges};

use crate::{
    catalogue::GuestTest,
    transcript::{Expected, Over, Transcript, Verdict},
};

/// Time from power-on to the first test: seconds, but a minute where other work has the processors.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// How much longer than a test's time limit the host waits. The guest ends the test itself, and
/// needs this time to say so. Only a guest that lets no interrupt in is ended by the host.
const LAST_WORDS: Duration = Duration::from_secs(15);

pub(crate) static ONE_GUEST: Mutex<()> = Mutex::new(());

/// Waits until no other guest runs. None starts while the value exists.
pub fn one_guest() -> MutexGuard<'static, ()> {
    // A panic in another test leaves nothing behind that concerns us.
    ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The emulator that runs the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulator {
    Qemu,
    Bochs,
}

impl Emulator {
    /// How often the time limit of a test may pass. Bochs interprets each instruction, and runs all
    /// CPUs in one thread.
    fn patience(self) -> u32 {
        match self {
            Self::Qemu => 1,
            Self::Bochs => 10,
        }
    }

    /// Starts a machine for `tests`, which have the same boot options.
    fn start(self, kernel: &Kernel, tests: &[&GuestTest]) -> Result<Guest> {
        let options = &tests[0].boot;
        let indices: Vec<usize> = tests.iter().map(|test| test.index).collect();
        let selection = format!("{PARAMETER}={}", Ranges(&indices));
        // The user's further arguments for each guest's command line.
        let appended = env::var("GUEST_APPEND").unwrap_or_default();
        let cmdline = format!("{selection} {} {appended}", options.cmdline);
        let cmdline = cmdline.trim_end().into();
        match self {
            Self::Qemu => {
                let machine = Machine {
                    cpus: options.smp,
                    memory_mib: options.memory_mib,
                    icount: options.icount,
                    cmdline,
                    ..Machine::new(kernel.image(Firmware::Bios)?)
                };
                Guest::start(&machine, Install::Allowed)
            }
            Self::Bochs => {
                // Its time is always counted in instructions.
                let machine = bochs::Machine {
                    cpus: options.smp,
                    memory_mib: options.memory_mib,
                    disk: kernel.bochs_image(&cmdline)?,
                };
                Guest::start_in_bochs(&machine, Install::Allowed)
            }
        }
    }
}

/// Where the time of a run went.
#[derive(Debug, Default)]
pub struct Times {
    boots: usize,
    /// From power-on to the first test, of all boots.
    booting: Duration,
    /// Tests and how long they ran; several that begin in one piece of the log count as one.
    tests: Vec<(String, Duration)>,
    judged: usize,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let testing: Duration = self.tests.iter().map(|(_, time)| *time).sum();
        write!(
            f,
            "{} boots took {:.0} s, {} tests {:.0} s",
            self.boots,
            self.booting.as_secs_f64(),
            self.judged,
            testing.as_secs_f64()
        )?;
        let mut slowest: Vec<_> = self.tests.iter().collect();
        slowest.sort_by_key(|(_, time)| Reverse(*time));
        for (number, (name, time)) in slowest.into_iter().take(SHOWN).enumerate() {
            let before = if number == 0 { "; slowest: " } else { ", " };
            write!(f, "{before}{name} {:.1} s", time.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Runs `tests` and reports each verdict as soon as it is due, in any order. `echo` shows the
/// guests' logs.
pub fn run(
    emulator: Emulator,
    kernel: &Kernel,
    tests: &[&GuestTest],
    echo: bool,
    mut report: impl FnMut(&GuestTest, Verdict),
) -> Times {
    run_until(
        emulator,
        kernel,
        tests,
        BOOT_TIMEOUT,
        echo,
        |test, verdict| {
            report(test, verdict);
            ControlFlow::Continue(())
        },
    )
}

/// Does the same until `report` wants no more, with `booting` as the time that a boot has until its
/// first test.
pub fn run_until(
    emulator: Emulator,
    kernel: &Kernel,
    tests: &[&GuestTest],
    booting: Duration,
    echo: bool,
    mut report: impl FnMut(&GuestTest, Verdict) -> ControlFlow<()>,
) -> Times {
    let mut times = Times::default();
    // Tests with equal options share boots; the catalogue has them side by side.
    for group in tests.chunk_by(|a, b| a.boot == b.boot) {
        let mut rest = group.to_vec();
        while !rest.is_empty() {
            let mut judged = vec![false; rest.len()];
            let mut judged_now = 0;
            let mut judge = |test: usize, verdict| {
                judged[test] = true;
                judged_now += 1;
                report(rest[test], verdict)
            };
            let booted = boot(
                emulator, kernel, &rest, booting, echo, &mut judge, &mut times,
            );
            times.judged += judged_now;
            let mut judged = judged.into_iter();
            rest.retain(|_| !judged.next().unwrap_or(false));
            match booted {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return times,
                // Nothing in the guest: another boot would do no better.
                Err(error) => {
                    for test in rest.drain(..) {
                        if report(test, Err(format!("{error:#}"))).is_break() {
                            return times;
                        }
                    }
                }
            }
        }
    }
    times
}

/// Runs `machine` until it ends or `limit` is over. Returns how it ended and its log.
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

/// Boots once and judges at least one of `tests`, all of which have the same boot options. Ends
/// early if `judge` wants no more.
fn boot(
    emulator: Emulator,
    kernel: &Kernel,
    tests: &[&GuestTest],
    booting: Duration,
    echo: bool,
    judge: &mut dyn FnMut(usize, Verdict) -> ControlFlow<()>,
    times: &mut Times,
) -> Result<ControlFlow<()>> {
    // A panic in another test leaves nothing behind that concerns us.
    let _one = ONE_GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guest = emulator.start(kernel, tests)?;
    let expected = tests.iter().map(|test| Expected {
        name: test.full_name.clone(),
        should_panic: test.should_panic.clone(),
    });
    let mut transcript = Transcript::new(expected.collect());
    let mut limit = booting * emulator.patience();
    let mut since = Instant::now();
    let mut passed = |current: Option<usize>, since: &mut Instant| {
        let time = since.elapsed();
        *since += time;
        match current {
            Some(test) => times.tests.push((tests[test].name.clone(), time)),
            None => {
                times.boots += 1;
                times.booting += time;
            }
        }
    };
    let over = loop {
        match guest.next(Some(since + limit))? {
            Event::Output(output) => {
                if echo {
                    // Nothing can be done about a closed standard error.
                    let _ = std::io::stderr().write_all(&output);
                }
                let before = transcript.current();
                for (test, verdict) in transcript.output(&output) {
                    if judge(test, verdict).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                if let Some(current) = transcript.current()
                    && before != Some(current)
                {
                    passed(before, &mut since);
                    limit = (tests[current].timeout + LAST_WORDS) * emulator.patience();
                }
            }
            Event::End(end) => break Over::Ended(end),
            Event::Deadline => break Over::Hung(limit.as_secs()),
        }
    };
    passed(transcript.current(), &mut since);
    for (test, verdict) in transcript.over(&over) {
        if judge(test, verdict).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
