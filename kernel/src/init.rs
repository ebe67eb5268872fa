//! The first task: the end of the boot, and the work of the kernel once it is up.
//!
//! The boot ends with the modules of `early=`, which find init text still there. Then init text is
//! freed.
//!
//! The command line decides what comes next. With `guest_tests.run=`, guest tests run. Otherwise:
//!
//! 1. The modules of `modules=` are loaded, in that order.
//! 2. The user program of `init=` runs, or with `interactive` the prompt. If the host hands over a
//!    script of the tracer, that runs meanwhile.
//! 3. The modules are unloaded again, in the order in which they were loaded.
//! 4. The machine is powered off with the verdict. It is success only if every module was loaded
//!    and the program exited with 0.

use crate::{
    cmdline,
    errno::Errno,
    fs::{
        self,
        pseudo::{self, Functions},
    },
    initramfs,
    mm::init_text,
    module,
    panic::{ExitCode, exit},
    pr_err,
    probes::{PROBES, debugfs},
    shell, symbols,
    task::exec::run_program,
    test_runner, trace,
};

/// The program that runs in ring 3 unless `init=` names another one.
const DEFAULT_INIT: &str = "/bin/workload";

/// The last part of the boot, in task context. Does not return.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn finish_boot() {
    fs::init();
    initramfs::unpack();
    create_symbols_file().expect("memory for /proc/kallsyms");
    debugfs::create_files().expect("memory for the probes' files");
    module::create_files().expect("memory for the files of modules");
    trace::files::create().expect("memory for the files of tracing");
    trace::events::define_fixed().expect("memory for the events of the kernel");
    if let Some(parameter) = cmdline::get("kprobe_event") {
        trace::events::define_at_boot(parameter);
    }
    let loaded = load_modules("early");
    kernel_init(loaded)
}

/// Puts `/proc/kallsyms` into the tree. It has a line `ffffffff80012340 T vfs_read` for each
/// symbol, by address, with the letters of `nm`.
fn create_symbols_file() -> Result<(), Errno> {
    let file = Functions {
        show: Some(|out| {
            symbols::all().try_for_each(|symbol| {
                let letter = symbol.letter();
                writeln!(out, "{:016x} {letter} {}", symbol.start, symbol.name)
            })
        }),
        store: None,
    };
    pseudo::create("/proc/kallsyms", 0o444, file)
}

/// The part of the work that comes after the boot. `early_loaded`: the early modules are loaded.
fn kernel_init(early_loaded: bool) -> ! {
    init_text::free(|range| PROBES.text_freed(range));
    trace::tracers::start_at_boot();
    if let Some(runner) = test_runner::requested() {
        runner();
    }
    let loaded = load_modules("modules") && early_loaded;
    let interactive = cmdline::get("interactive").is_some();
    let program = cmdline::get("init").unwrap_or(DEFAULT_INIT);
    cmdline::report_unknown(module::has_param);
    let ran = if interactive {
        wait_for_tracers();
        shell::run();
        true
    } else if let Some(trace) = trace::script::at_boot::start(initramfs_file) {
        trace.run(program)
    } else {
        wait_for_tracers();
        run_init(program)
    };
    for module in module::loaded() {
        if let Err(error) = module::unload(module.name()) {
            let errno = error.errno().negated();
            pr_err!("rmmod {} failed: {errno} {error}", module.name());
        }
    }
    exit(if loaded && ran {
        ExitCode::Success
    } else {
        ExitCode::Failure
    })
}

/// Lets tracers come, if no script was handed to the machine.
fn wait_for_tracers() {
    // SAFETY: only the tracer's task uses COM2, and there is none.
    unsafe { trace::script::remote::wait_for_tracers() };
}

/// A file that the loader has put into memory, by its path.
fn initramfs_file(path: &str) -> Option<&'static [u8]> {
    initramfs::find(initramfs::archive(), path)
}

/// Loads the modules that the command line names under `key`. False if one of them failed; the rest
/// is loaded all the same.
fn load_modules(key: &str) -> bool {
    let names = cmdline::get(key).unwrap_or_default();
    let mut all = true;
    for name in names.split(',').filter(|name| !name.is_empty()) {
        if let Err(error) = module::load(name, "") {
            pr_err!("insmod {name} failed: {} {error}", error.errno().negated());
            all = false;
        }
    }
    all
}

/// Runs the program at `path` and waits for its end. False unless it exits with 0.
fn run_init(path: &str) -> bool {
    if path.is_empty() {
        pr_err!("init= names no program; give its path, such as init={DEFAULT_INIT}");
        return false;
    }
    match run_program(path, &[]) {
        Ok(status) if status.success() => return true,
        Ok(status) => pr_err!("{path}: {status:?}"),
        Err(errno) => pr_err!("{path} could not be run: {errno}"),
    }
    false
}
