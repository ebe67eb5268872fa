//! `cargo bench`: the cost of probes, measured in the kernel.
//!
//! By default there is one virtual CPU, under emulation that counts instructions. So two runs give
//! the same figures on any machine. The table goes to standard output; figures and pictures go to
//! `target/bench/`. The figures are held against `docs/cost.md`: see [`tests::bench::document`].

use std::{fs, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Error, Result, ensure};
use boot::{
    firmware::Firmware,
    image::Kernel,
    layout,
    prerequisites::{self, Install},
    progress::{say, step},
    qemu::{Accelerator, Machine},
};
use clap::Parser as _;
use tests::bench::{
    Options, Results, Unit, collect, document, json, plot,
    rows::{SETS, selected},
    table,
};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if options.accel == Accelerator::Kvm {
        ensure!(
            fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/kvm")
                .is_ok(),
            "/dev/kvm cannot be opened: --accel kvm needs Linux with hardware virtualisation \
                 and access to that file"
        );
    }
    prerequisites::toolchain(Install::Allowed)?;
    let kernel = Kernel::build("benchkernel")?;
    say(format_args!(
        "kernel with debug info: {}",
        kernel.debug_elf.display()
    ));
    let machines = machines(options, &kernel)?;
    for line in environment(&machines[0])? {
        println!("{line}");
    }
    let unit = match options.accel {
        Accelerator::Tcg => Unit::Instructions,
        Accelerator::Kvm => Unit::Cycles,
    };

    let results = measure(&machines, options)?;
    print!("\n{}", table::table(&results, unit));
    if options.smp.is_none() {
        for name in SETS.iter().flat_map(|set| selected(set, &options.rows)) {
            ensure!(
                results.accounts_for(name),
                "the guest did not measure the row {name}"
            );
        }
    }
    if options.twice {
        let again = measure(&machines, options)?;
        let differences = results.differences(&again);
        ensure!(
            differences.is_empty(),
            "a second run gives other figures: {}",
            differences.join(", ")
        );
        println!("\na second run gives the same figures");
    }
    let all = options.rows.is_empty() && options.smp.is_none();
    if all {
        write(&results, unit)?;
    }
    if unit == Unit::Instructions && options.smp.is_none() {
        document::check(&results, all).map_err(Error::msg)?;
    }
    Ok(())
}

/// The machines to be booted, one after the other. The kernel's command line says what each of them
/// measures.
fn machines(options: &Options, kernel: &Kernel) -> Result<Vec<Machine>> {
    let exact = options.accel == Accelerator::Tcg && options.smp.is_none();
    let mut words = format!("modules=bench bench.exact={}", u8::from(exact));
    if let Some(rounds) = options.rounds {
        words += &format!(" bench.rounds={rounds}");
    }
    let base = Machine {
        accelerator: options.accel,
        memory_mib: 512,
        icount: exact,
        ..Machine::new(kernel.image(Firmware::Bios)?)
    };
    let machine = |cpus, set: &str, more: &str| Machine {
        cpus,
        cmdline: format!("{words} bench.set={set} {more}"),
        ..base.clone()
    };
    if let Some(cpus) = options.smp {
        return Ok(vec![machine(cpus, "rates", "kprobes.optimize=0")]);
    }
    let sets = SETS.iter().map(|set| (set, selected(set, &options.rows)));
    Ok(sets
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(set, rows)| {
            let mut more = String::from(set.cmdline);
            if rows.len() < set.rows.len() {
                more += &format!(" bench.rows={}", rows.join(","));
            }
            machine(set.cpus, set.name, &more)
        })
        .collect())
}

fn measure(machines: &[Machine], options: &Options) -> Result<Results> {
    let mut results = Results::default();
    let limit = Duration::from_secs(options.timeout);
    for machine in machines {
        step("measuring", || collect(machine, limit, &mut results))?;
    }
    Ok(results)
}

/// The environment of the measurement.
fn environment(machine: &Machine) -> Result<Vec<String>> {
    let command = machine.command(Install::Allowed)?;
    let version = std::process::Command::new(command.get_program())
        .arg("--version")
        .output()
        .context("cannot run QEMU")?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    let words = command.get_args().map(|word| {
        let word = word.to_string_lossy();
        if word.contains(' ') {
            format!("'{word}'")
        } else {
            word.into_owned()
        }
    });
    let command_line: Vec<String> =
        std::iter::once(command.get_program().to_string_lossy().into_owned())
            .chain(words)
            .collect();
    Ok(vec![
        format!(
            "machine: {} on {processor}",
            version.lines().next().unwrap_or("QEMU")
        ),
        format!("command: {}", command_line.join(" ")),
    ])
}

/// Writes the files.
fn write(results: &Results, unit: Unit) -> Result<()> {
    let directory = layout::target().join("bench");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let put = |name: &str, content: Option<String>| -> Result<()> {
        let Some(content) = content else {
            return Ok(());
        };
        let path: &Path = &directory.join(name);
        layout::write_if_changed(path, content.as_bytes())?;
        println!("{}", path.display());
        Ok(())
    };
    println!();
    put("probes.json", Some(json::json(results, unit)))?;
    put("kinds.svg", plot::kinds(results, unit))?;
    put("growth.svg", plot::growth(results, unit))
}
