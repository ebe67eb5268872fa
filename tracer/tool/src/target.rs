//! The kernel that is traced: one that is built and booted for the trace, or one that runs already
//! ([`Options::connect`]).
//!
//! # Invariants
//! TARGET-1. Of a kernel that runs already, everything that depends on the kernel comes from its
//!     welcome: the event sources, the period of its timer, where it runs, and what it has. A file
//!     with another build id is refused, because names and types of another build are wrong ones.

use std::{fs, path::Path, path::PathBuf, rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use boot::{
    image,
    image::Kernel,
    prerequisites,
    progress::say,
    qemu::{Accelerator, Machine},
};
use debug_info::DebugInfo;
use trace_compiler::{EventTable, Options as CompileOptions};
use trace_interface::{
    Script,
    script::{Attachment, WatchedAccess},
};
use trace_link::{Address, Remote, Request, Trace};
use trace_wire::stream::BuildId;

use crate::{Failure, needs, options::Options, timing::Timing};

/// How long a kernel that runs may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module's text.
pub enum Target {
    Built(Kernel),
    Running(Box<Running>),
}

/// A kernel that runs already.
pub struct Running {
    remote: Remote,
    /// Its file. None: it is this tree's.
    elf: Option<PathBuf>,
}

/// Builds this tree's kernel, if it is not current.
fn build(options: &Options, timing: &mut Timing) -> Result<Kernel> {
    let install = options.build.install();
    let kernel = Kernel::build_with_loader(install, options.machine.firmware())?;
    timing.step("kernel built, or found current");
    Ok(kernel)
}

/// Opens the debug information in a kernel's file.
fn open(elf: &Path, timing: &mut Timing) -> Result<DebugInfo> {
    let symbols = DebugInfo::open(elf)?;
    let what = if symbols.times().made {
        "debug information indexed"
    } else {
        "debug information read"
    };
    timing.step(what);
    Ok(symbols)
}

/// The debug information of the kernel that the options name, without a kernel that runs.
pub fn symbols(options: &Options, timing: &mut Timing) -> Result<DebugInfo> {
    match &options.elf {
        Some(elf) => open(elf, timing),
        None => open(&build(options, timing)?.debug_elf, timing),
    }
}

/// The debug information of this tree's programs, by their paths on the machine.
pub fn programs(options: &Options) -> Result<Vec<(String, DebugInfo)>> {
    ensure!(
        options.elf.is_none(),
        "the programs of another kernel are not known here; leave --elf out for this tree's"
    );
    let programs = image::programs()?.into_iter();
    let open = |(name, elf): (String, PathBuf)| {
        let debug_info = DebugInfo::open(&elf)?;
        Ok((debug_info::path_of_program(&name), debug_info))
    };
    programs.map(open).collect()
}

/// The event sources of the kernel that the options name.
pub fn events(options: &Options) -> Result<EventTable, Failure> {
    match &options.connect {
        Some(address) => Running::call(address, options)?.events(options),
        None => Ok(EventTable::default()),
    }
}

impl Target {
    /// Gets the kernel that the options name.
    pub fn of(options: &Options, timing: &mut Timing) -> Result<Self> {
        if let Some(address) = &options.connect {
            let running = Running::call(address, options)?;
            timing.step("the kernel has answered");
            return Ok(Self::Running(Box::new(running)));
        }
        let install = options.build.install();
        match options.bochs {
            true => prerequisites::bochs(install)?,
            false => prerequisites::qemu(install)?,
        };
        Ok(Self::Built(build(options, timing)?))
    }

    /// Opens its debug information, and that of its programs if they are this tree's.
    ///
    /// # Errors
    /// The file is that of another kernel.
    pub fn symbols(&self, options: &Options, timing: &mut Timing) -> Result<DebugInfo, Failure> {
        let (elf, running) = match self {
            Self::Built(kernel) => (kernel.debug_elf.clone(), None),
            Self::Running(running) => match &running.elf {
                Some(elf) => (elf.clone(), Some(running)),
                None => (build(options, timing)?.debug_elf, Some(running)),
            },
        };
        let mut symbols = open(&elf, timing)?;
        if let Some(running) = running {
            running.check_file(&elf, &symbols)?;
            symbols.set_slide(running.remote.about().slide);
        }
        if options.elf.is_none() {
            for (name, program) in image::programs()? {
                match running {
                    // Only its kernel is known to be of the same build.
                    Some(_) => symbols.add_program_names(&name, &program),
                    None => symbols.add_program(&name, &program),
                }
            }
        }
        Ok(symbols)
    }

    /// How programs are compiled for it.
    pub fn compile_options(&self, options: &Options) -> Result<CompileOptions, Failure> {
        let Self::Running(running) = self else {
            return Ok(CompileOptions::of_kernel(&options.build.cmdline(&[], &[])));
        };
        let about = running.remote.about();
        let default = CompileOptions::default();
        Ok(CompileOptions {
            tick_nanoseconds: match about.tick_nanoseconds {
                0 => default.tick_nanoseconds,
                tick => tick,
            },
            events: Rc::new(running.events(options)?),
            ..default
        })
    }

    /// Ticks of the clock of records in a second, as a kernel says it that runs already; else 0.
    pub fn clock_hz(&self) -> u64 {
        match self {
            Self::Running(running) => running.remote.about().clock_hz,
            Self::Built(_) => 0,
        }
    }

    /// Refuses a script that needs what the kernel does not have.
    pub fn check(&self, script: &Script) -> Result<(), Failure> {
        let Self::Running(running) = self else {
            return Ok(());
        };
        let has = running.remote.about().capabilities;
        let missing = needs::missing(script, has).map_err(anyhow::Error::from)?;
        match missing.map(needs::words) {
            None => Ok(()),
            Some((what, instead)) => Err(Failure::Refused(format!(
                "error: {} has no {what}; {instead}",
                running.name()
            ))),
        }
    }

    /// Whether the processor tells only one of two watches that an instruction hits: see
    /// docs/emulators.md.
    pub fn tells_one_watch(&self, options: &Options) -> bool {
        let machine = || options.machine.machine(PathBuf::new(), String::new());
        let is_qemu = matches!(self, Self::Built(_)) && !options.bochs;
        is_qemu && machine().accelerator == Accelerator::Tcg
    }

    /// Has the kernel run a script.
    pub fn start(self, options: &Options, script: &Script) -> Result<Trace> {
        let request = Request {
            script: script.encode(),
            run: options.run.clone(),
            limit: options.duration,
            maps: options.top,
            with_tracer: options.with_tracer,
            overwrite: options.record.record,
            ring_kib: options.record.ring,
            ..Request::default()
        };
        let install = options.build.install();
        let cmdline = options.build.cmdline(&[], &[]);
        match self {
            Self::Running(running) => running.remote.start(&request),
            Self::Built(kernel) if options.bochs => {
                let machine = options.machine.machine(PathBuf::new(), cmdline);
                Trace::start_in_bochs(&kernel, &machine, install, &request)
            }
            Self::Built(kernel) => {
                let image = kernel.image(options.machine.firmware())?;
                let machine = options.machine.machine(image, cmdline);
                if watches_reads(script) && misses_locked(&machine) {
                    say(
                        "QEMU misses instructions with a `lock` prefix where reads are watched on \
                         several CPUs; --smp 1 sees them",
                    );
                }
                Trace::start(&machine, install, &request)
            }
        }
    }
}

fn watches_reads(script: &Script) -> bool {
    let mut all = script.attachments.iter();
    all.any(|attachment| {
        matches!(
            attachment,
            Attachment::Watch {
                access: WatchedAccess::ReadWrite,
                ..
            }
        )
    })
}

/// Whether locked instructions do not hit a watch for reads there: see docs/emulators.md.
fn misses_locked(machine: &Machine) -> bool {
    machine.accelerator == Accelerator::Tcg && machine.cpus > 1 && !machine.icount
}

impl Running {
    fn call(address: &Address, options: &Options) -> Result<Self> {
        Ok(Self {
            remote: Remote::call(address, PATIENCE)?,
            elf: options.elf.clone(),
        })
    }

    /// What messages call it.
    fn name(&self) -> String {
        let about = self.remote.about();
        format!("the kernel at {} ({})", self.remote.address(), about.kernel)
    }

    fn events(&self, options: &Options) -> Result<EventTable, Failure> {
        let wrong = |whose: &str| {
            let whose = whose.to_string();
            move |error| Failure::Refused(format!("error: {whose}: {error}"))
        };
        let Some(file) = &options.events else {
            let lines = self.remote.about().events.lines();
            return EventTable::parse(lines).map_err(wrong(&self.name()));
        };
        let text = fs::read_to_string(file)
            .with_context(|| format!("cannot read the event sources in {}", file.display()))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        EventTable::parse(lines).map_err(wrong(&file.display().to_string()))
    }

    /// TARGET-1.
    fn check_file(&self, elf: &Path, symbols: &DebugInfo) -> Result<(), Failure> {
        let of_file = BuildId::in_notes(symbols.build_id_notes());
        let running = self.remote.about().build_id;
        let without = match (running, of_file) {
            (Some(running), Some(file)) if running == file => return Ok(()),
            (Some(running), Some(file)) => {
                return Err(Failure::Refused(format!(
                    "error: {} has the build id {running}, and {} has {file}; give the file of the \
                     kernel that runs: --elf FILE",
                    self.name(),
                    elf.display()
                )));
            }
            (None, _) => self.name(),
            (_, None) => elf.display().to_string(),
        };
        say(format_args!(
            "{without} has no build id, so whether file and kernel belong together is not checked"
        ));
        Ok(())
    }
}
