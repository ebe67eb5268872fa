//! Boots the test kernel until each test of a list has its verdict.
//!
//! Guests run side by side as far as this machine has processors ([`crate::processors`]). A list
//! of tests is divided into parts that agree in their boot options. One thread runs a part.

use std::{
    cmp::Reverse,
    env, fmt,
    io::Write,
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use boot::{
    bochs,
    firmware::Firmware,
    guest::{Event, Guest},
    image::Kernel,
    prerequisites::Install,
    qemu::Machine,
};
use test_protocol::{PARAMETER, Ranges};

use crate::{
    catalogue::GuestTest,
    processors,
    transcript::{Expected, Over, Transcript, Verdict},
};

/// Time from power-on to the first test: seconds, but a minute where other work has the processors.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// How much longer than a test's time limit the host waits. The guest ends the test itself, and
/// needs this time to say so. Only a guest that lets no interrupt in is ended by the host.
const LAST_WORDS: Duration = Duration::from_secs(15);

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
}

/// Starts machines with a kernel.
struct Starter<'k> {
    emulator: Emulator,
    kernel: &'k Kernel,
    /// The disk of all machines in QEMU. A disk for Bochs has the command line in it.
    disk: PathBuf,
    /// Further arguments of QEMU.
    further: &'k [String],
}

impl<'k> Starter<'k> {
    fn new(emulator: Emulator, kernel: &'k Kernel, further: &'k [String]) -> Result<Self> {
        let disk = match emulator {
            Emulator::Qemu => kernel.image(Firmware::Bios)?,
            Emulator::Bochs => PathBuf::new(),
        };
        Ok(Self {
            emulator,
            kernel,
            disk,
            further,
        })
    }

    /// Starts a machine for `tests`, which have the same boot options.
    fn start(&self, tests: &[&GuestTest]) -> Result<Guest> {
        let options = &tests[0].boot;
        let indices: Vec<usize> = tests.iter().map(|test| test.index).collect();
        let selection = format!("{PARAMETER}={}", Ranges(&indices));
        // The user's further arguments for each guest's command line.
        let appended = env::var("GUEST_APPEND").unwrap_or_default();
        let cmdline = format!("{selection} {} {appended}", options.cmdline);
        let cmdline = cmdline.trim_end().into();
        match self.emulator {
            Emulator::Qemu => {
                let machine = Machine {
                    cpus: options.smp,
                    memory_mib: options.memory_mib,
                    icount: options.icount,
                    cmdline,
                    further: self.further.to_vec(),
                    ..Machine::new(self.disk.clone())
                };
                Guest::start(&machine, Install::Allowed)
            }
            Emulator::Bochs => {
                // Its time is always counted in instructions.
                let machine = bochs::Machine {
                    cpus: options.smp,
                    memory_mib: options.memory_mib,
                    disk: self.kernel.bochs_image(&cmdline, &[])?,
                    answers: None,
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

impl Times {
    fn add(&mut self, other: Self) {
        self.boots += other.boots;
        self.booting += other.booting;
        self.tests.extend(other.tests);
        self.judged += other.judged;
    }
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
/// guests' logs, and then there is one guest at a time.
pub fn run<'t>(
    emulator: Emulator,
    kernel: &Kernel,
    tests: &[&'t GuestTest],
    echo: bool,
    mut report: impl FnMut(&'t GuestTest, Verdict),
) -> Times {
    let starter = match Starter::new(emulator, kernel, &[]) {
        Ok(starter) => starter,
        Err(error) => {
            for test in tests {
                report(test, Err(format!("{error:#}")));
            }
            return Times::default();
        }
    };
    // Many tests share the options of most. Several guests have parts of them, so that the other
    // processors do not wait for one guest in the end. Another boot takes as long as a few tests.
    const MOST_TESTS: usize = 100;
    // The longest begin first, and those that take all processors when the others are over.
    let parts = parts(tests).flat_map(|part| part.chunks(MOST_TESTS));
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|part| {
        let longest = part.iter().map(|test| test.timeout).max();
        let processors = processors::wanted(part[0].boot.smp);
        (processors, Reverse((longest, part.len())))
    });
    let drivers = match emulator {
        // Bochs's guests share a file, the disk with the command line in it.
        Emulator::Bochs => 1,
        Emulator::Qemu if echo => 1,
        Emulator::Qemu => processors::all().min(parts.len()),
    };
    let queue = Mutex::new(parts.into_iter());
    let (sender, verdicts) = mpsc::channel();
    let drive = |sender: Sender<_>| {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let mut times = Times::default();
        let mut report = |test, verdict| match sender.send((test, verdict)) {
            Ok(()) => ControlFlow::Continue(()),
            // The receiver has gone.
            Err(_) => ControlFlow::Break(()),
        };
        while let Some(part) = next() {
            if run_part(&starter, part, BOOT_TIMEOUT, echo, &mut report, &mut times).is_break() {
                break;
            }
        }
        times
    };
    thread::scope(|scope| {
        let drivers: Vec<_> = (0..drivers)
            .map(|_| {
                let (drive, sender) = (&drive, sender.clone());
                scope.spawn(move || drive(sender))
            })
            .collect();
        drop(sender);
        for (test, verdict) in verdicts {
            report(test, verdict);
        }
        let mut times = Times::default();
        for driver in drivers {
            times.add(driver.join().expect("a driver of guests panicked"));
        }
        times
    })
}

/// Does the same in QEMU, one guest after the other, until `report` wants no more. `booting` is the
/// time that a boot has until its first test, and `further` are further arguments of QEMU.
pub fn run_until<'t>(
    kernel: &Kernel,
    tests: &[&'t GuestTest],
    booting: Duration,
    further: &[String],
    mut report: impl FnMut(&'t GuestTest, Verdict) -> ControlFlow<()>,
) -> Times {
    let mut times = Times::default();
    match Starter::new(Emulator::Qemu, kernel, further) {
        Ok(starter) => {
            for part in parts(tests) {
                if run_part(&starter, part, booting, false, &mut report, &mut times).is_break() {
                    break;
                }
            }
        }
        // No test can do without.
        Err(error) => {
            let _ = tests
                .iter()
                .try_for_each(|test| report(test, Err(format!("{error:#}"))));
        }
    }
    times
}

/// The tests with equal options, which share boots. The catalogue has them side by side.
fn parts<'a, 't>(tests: &'a [&'t GuestTest]) -> impl Iterator<Item = &'a [&'t GuestTest]> {
    tests.chunk_by(|a, b| a.boot == b.boot)
}

/// Boots until each of `tests`, which have the same boot options, has its verdict, or `report`
/// wants no more.
fn run_part<'t>(
    starter: &Starter<'_>,
    tests: &[&'t GuestTest],
    booting: Duration,
    echo: bool,
    report: &mut impl FnMut(&'t GuestTest, Verdict) -> ControlFlow<()>,
    times: &mut Times,
) -> ControlFlow<()> {
    let mut rest = tests.to_vec();
    while !rest.is_empty() {
        let mut judged = vec![false; rest.len()];
        let mut judged_now = 0;
        let mut judge = |test: usize, verdict| {
            judged[test] = true;
            judged_now += 1;
            report(rest[test], verdict)
        };
        let booted = boot(starter, &rest, booting, echo, &mut judge, times);
        times.judged += judged_now;
        let mut judged = judged.into_iter();
        rest.retain(|_| !judged.next().unwrap_or(false));
        match booted {
            Ok(over) => over?,
            // Nothing in the guest: another boot would do no better.
            Err(error) => {
                for test in rest.drain(..) {
                    report(test, Err(format!("{error:#}")))?;
                }
            }
        }
    }
    ControlFlow::Continue(())
}

/// Runs `machine` until it ends or `limit` is over. Returns how it ended and its log.
pub fn record(machine: &Machine, limit: Duration) -> Result<(Over, String)> {
    let _taken = processors::for_guest(machine.cpus);
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
    starter: &Starter<'_>,
    tests: &[&GuestTest],
    booting: Duration,
    echo: bool,
    judge: &mut dyn FnMut(usize, Verdict) -> ControlFlow<()>,
    times: &mut Times,
) -> Result<ControlFlow<()>> {
    let _taken = processors::for_guest(tests[0].boot.smp);
    let mut guest = starter.start(tests)?;
    let expected = tests.iter().map(|test| Expected {
        name: test.full_name.clone(),
        should_panic: test.should_panic.clone(),
    });
    let mut transcript = Transcript::new(expected.collect());
    let patience = starter.emulator.patience();
    let mut limit = booting * patience;
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
                    limit = (tests[current].timeout + LAST_WORDS) * patience;
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
