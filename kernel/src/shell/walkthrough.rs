//! `walkthrough`: the four forms of return probe at work on one function, side by side.
//!
//! For each form the function gets a return probe and is called twice: once to count its
//! interruptions, and once while [`trace`] notes them and the jumps between them. The output shows
//! only what was observed: addresses, what happened there, and what had changed when the next thing
//! happened.
//!
//! | form | `kprobes.step` | `kprobes.return` | the breakpoint becomes a jump |
//! |---|---|---|---|
//! | trap4 | tf | trap4 | no |
//! | trap3 | tf | trap3 | no |
//! | asm | translate | asm | no |
//! | optimised | translate | asm | where the code allows it |
//!
//! # Contexts
//! Task context, the shell's. While the third form is shown, the optimisation is switched off for
//! all probes.

#![expect(
    unsafe_code,
    reason = "it reads the instructions that a call has executed"
)]

use alloc::{borrow::ToOwned, boxed::Box, format, string::String, vec, vec::Vec};
use core::{
    fmt::Write,
    hint::black_box,
    ops::Range,
    ptr::null_mut,
    slice,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed},
};

use ::probes::{hit::Displaced, insn::MAX_INSN_BYTES};
use iced_x86::{Decoder, DecoderOptions};
use x86_64::instructions::interrupts::without_interrupts;

use super::command::{Failure, Next};
use crate::{
    arch::{PtRegs, percpu},
    mm::uaccess,
    probes::{
        self, Kretprobe, KretprobeInstance, PROBES, ProbeError, Registered, ReturnMethod,
        StepMethod, hooks,
        kprobe::flags,
        single_step_trace::{Stop, StopEvent, StopState, TracedCall, trace},
    },
    symbols, syscall, task,
    time::ktime_get,
};

/// Functions that can be called from here: name, arguments, the call. None of them sleeps. With
/// these arguments none changes anything.
pub static CALLABLE: [(&str, &str, extern "C" fn()); 7] = [
    (
        "do_fork",
        "without SIGCHLD among the flags: EINVAL",
        call_do_fork,
    ),
    ("sys_mkdir", "with a path at 0: EFAULT", call_sys_mkdir),
    ("sys_getpid", "by the shell's task", call_sys_getpid),
    ("sys_getppid", "by the shell's task", call_sys_getppid),
    ("sys_kill", "with pid 0: EPERM", call_sys_kill),
    ("ktime_get", "without arguments", call_ktime_get),
    (
        "copy_user",
        "for a byte from 0, where nothing is",
        call_copy_user,
    ),
];

extern "C" fn call_do_fork() {
    let regs = PtRegs::default();
    black_box(task::fork::do_fork(0, 0, &regs, 0, 0, 0));
}

extern "C" fn call_sys_mkdir() {
    black_box(syscall::paths::sys_mkdir(0, 0));
}

extern "C" fn call_sys_getpid() {
    black_box(syscall::tasks::sys_getpid());
}

extern "C" fn call_sys_getppid() {
    black_box(syscall::tasks::sys_getppid());
}

extern "C" fn call_sys_kill() {
    black_box(syscall::tasks::sys_kill(0, 0));
}

extern "C" fn call_ktime_get() {
    black_box(ktime_get());
}

extern "C" fn call_copy_user() {
    // It fails, as it should.
    let _ = black_box(uaccess::copy_from_user_nofault(&mut [0], 0));
}

/// How often the return handler has run for the shell's task. Other tasks may call the function
/// meanwhile.
static HANDLED: AtomicU64 = AtomicU64::new(0);
static SHELL: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Not inlined, so that the output does not depend on the compiler's choice.
#[inline(never)]
fn handle(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
    if percpu::current_raw() == SHELL.load(Relaxed) {
        HANDLED.fetch_add(1, Relaxed);
    }
}

/// A form of return probe.
struct Form {
    name: &'static str,
    settings: &'static str,
    step: StepMethod,
    method: ReturnMethod,
    optimize: bool,
}

const FORMS: [Form; 4] = [
    Form {
        name: "trap4",
        settings: "step=tf return=trap4",
        step: StepMethod::TrapFlag,
        method: ReturnMethod::Trap4,
        optimize: false,
    },
    Form {
        name: "trap3",
        settings: "step=tf return=trap3",
        step: StepMethod::TrapFlag,
        method: ReturnMethod::Trap3,
        optimize: false,
    },
    Form {
        name: "asm",
        settings: "step=translate return=asm optimize=0",
        step: StepMethod::Translate,
        method: ReturnMethod::Asm,
        optimize: false,
    },
    Form {
        name: "optimised",
        settings: "step=translate return=asm optimize=1",
        step: StepMethod::Translate,
        method: ReturnMethod::Asm,
        optimize: true,
    },
];

/// Room for stops. A call whose callees carry no probes makes only a small part of them.
const STOPS: usize = 256;

/// Width of a column.
const WIDTH: usize = 38;

/// The text for one stop, in lines.
type Cell = Vec<String>;

/// One form's column.
#[derive(Default)]
struct Column {
    head: Cell,
    /// The way in and the way back.
    phases: [Vec<Cell>; 2],
    foot: String,
}

/// Shows the forms at work on a function.
pub fn walkthrough(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    let [name] = arguments else {
        return Err(Failure::Usage("it needs one function"));
    };
    let symbol = symbols::lookup_name(name)?;
    let Some((_, with, call)) = CALLABLE.iter().find(|(name, ..)| *name == symbol.name) else {
        let names: Vec<_> = CALLABLE.iter().map(|(name, ..)| *name).collect();
        return Err(Failure::NotCallable {
            name: (*name).to_owned(),
            callable: names.join(", "),
        });
    };
    if !PROBES.enabled() {
        return Err(Failure::Disarmed);
    }
    SHELL.store(percpu::current_raw().cast_mut(), Relaxed);
    let mut columns = Vec::new();
    for form in &FORMS {
        columns.push(column(form, symbol.name, *call)?);
    }
    writeln!(
        out,
        "{symbol} at {:#x}, {} bytes, called {with}",
        symbol.start, symbol.size
    )?;
    show(out, &columns)?;
    Ok(Next::Command)
}

/// One form at work.
fn column(form: &Form, name: &'static str, call: extern "C" fn()) -> Result<Column, Failure> {
    // Single steps keep the breakpoint by themselves.
    let silence = !form.optimize && form.step == StepMethod::Translate && PROBES.optimization();
    if silence {
        PROBES.set_optimization(false)?;
    }
    let column = watch(form, name, call);
    if silence {
        PROBES.set_optimization(true)?;
    }
    column
}

/// Probes, calls and traces. Describes the stops while the probe is still there.
fn watch(form: &Form, name: &'static str, call: extern "C" fn()) -> Result<Column, Failure> {
    let probe = Kretprobe::new()
        .symbol(name)
        .step_method(form.step)
        .return_method(form.method)
        .handler(handle);
    let probe: Registered<Box<Kretprobe<()>>> =
        probes::register(Box::new(probe)).map_err(|error| match error {
            ProbeError::MixedReturnMethods { .. } => Failure::ReturnProbed(name),
            error => error.into(),
        })?;
    let mut head = vec![form.name.to_owned(), form.settings.to_owned()];
    if form.optimize && probe.kprobe().flags() & flags::OPTIMIZED == 0 {
        head.extend(wrap("", "no jump, the breakpoint stays as in asm:"));
        head.extend(wrap("  ", &why_no_jump(probe.addr())));
        return Ok(Column {
            head,
            ..Column::default()
        });
    }
    let (breakpoints, steps) = interruptions(call);
    let mut stops = vec![Stop::default(); STOPS];
    let trampolines = hooks::return_trampolines();
    let traced =
        trace(probe.addr(), &trampolines, &HANDLED, call, &mut stops).ok_or(Failure::NotTraced)?;
    let stops = stops.get(..traced.stops).ok_or(Failure::NotTraced)?;
    let all = breakpoints + steps;
    Ok(Column {
        head,
        phases: describe(stops, &traced, &trampolines),
        foot: format!("interruptions: {all} ({breakpoints} #BP, {steps} #DB)"),
    })
}

/// Why a probe at `addr` is a breakpoint.
fn why_no_jump(addr: u64) -> String {
    match PROBES.allows_jump(addr) {
        Err(obstacle) => format!("{obstacle}"),
        Ok(()) if PROBES.optimization() => {
            "another probe at or after it needs the breakpoint".into()
        }
        Ok(()) => "echo 1 > /proc/sys/debug/kprobes-optimization turns jumps on".into(),
    }
}

/// The #BP and #DB of a call that is not traced. An emulator may still have a translation of the
/// old byte in place of the breakpoint; the call before it makes it forget that.
fn interruptions(call: extern "C" fn()) -> (u64, u64) {
    without_interrupts(|| {
        call();
        let count = || {
            let counters = &percpu::this().probes;
            (
                counters.breakpoints.load(Relaxed),
                counters.debug_traps.load(Relaxed),
            )
        };
        let before = count();
        call();
        let after = count();
        (after.0 - before.0, after.1 - before.1)
    })
}

/// The cells of a call's stops: until the function returns, and from then on.
fn describe(stops: &[Stop], traced: &TracedCall, trampolines: &[Range<u64>]) -> [Vec<Cell>; 2] {
    let mut phases: [Vec<Cell>; 2] = Default::default();
    let mut phase = 0;
    for (index, stop) in stops.iter().enumerate() {
        let returns = stop.event == StopEvent::Jump
            && trampolines.iter().any(|range| range.start == stop.next);
        if returns {
            phase = 1;
        }
        let after = stops.get(index + 1).map_or(traced.state, |next| next.state);
        phases[phase].push(cell(stop, after, traced.return_address));
    }
    phases
}

/// The text for one stop: where it was, what happened, and what had changed when the next one came.
fn cell(stop: &Stop, after: StopState, caller: u64) -> Cell {
    let mut lines = wrap("", &place(stop.at));
    let mut say = |text: &str| lines.extend(wrap("  ", text));
    match stop.event {
        StopEvent::Breakpoint => say("#BP, the breakpoint"),
        StopEvent::Step => say("#DB, the instruction is stepped"),
        StopEvent::Jump => {
            let how = mnemonic(stop.at);
            // Between two stops in the probes' own code all instructions are theirs.
            match stop.instructions {
                count @ 2.. if is_probes_code(stop.at) => {
                    say(&format!("{how}, the last of {count} instructions,"));
                }
                _ => say(&how),
            }
            say(&format!("to {}", place(stop.next)));
        }
    }
    if after.handled != stop.state.handled {
        say("- the return handler runs");
    }
    match (stop.state.return_address, after.return_address) {
        (Some(old), Some(new)) if old != new => match (symbols::lookup_addr(new), new == caller) {
            (_, true) => say("- the return address is the caller's again"),
            (Some(symbol), _) => say(&format!("- the return address becomes {symbol}")),
            (None, _) => say(&format!("- the return slot becomes {new:#x}")),
        },
        _ => {}
    }
    match (stop.event, PROBES.displaced(stop.next)) {
        (StopEvent::Jump, _) => {}
        // The trace has seen the instruction after the first one there.
        (
            StopEvent::Breakpoint,
            Some(Displaced::Slot { start, .. } | Displaced::Detour { start, .. }),
        ) => {
            say(&format!("goes on at {}", place(start)));
        }
        (StopEvent::Breakpoint, None) => say(&format!("goes on in {}", function(stop.next))),
        (StopEvent::Step, _) => say(&format!("goes on at {}", place(stop.next))),
    }
    lines
}

/// The instruction at `at`, by its name.
fn mnemonic(at: u64) -> String {
    // Slots cross no pages.
    let end =
        symbols::lookup_addr(at).map_or((at | 0xfff) + 1, |symbol| symbol.start + symbol.size);
    let room = MAX_INSN_BYTES.min((end - at) as usize);
    // SAFETY: an instruction has been executed there, so the function, or the page of slots, is
    // mapped and readable.
    let text = unsafe { slice::from_raw_parts(at as *const u8, room) };
    let instruction = Decoder::with_ip(64, text, at, DecoderOptions::NONE).decode();
    format!("{:?}", instruction.mnemonic()).to_lowercase()
}

/// Whether `at` is in a slot, a detour, or a trampoline.
fn is_probes_code(at: u64) -> bool {
    PROBES.displaced(at).is_some() || hooks::in_return_trampoline(at)
}

/// An address, and what is there.
fn place(at: u64) -> String {
    match PROBES.displaced(at) {
        Some(Displaced::Slot { offset, .. }) => format!("{at:#x} slot+{offset:#x}"),
        Some(Displaced::Detour { offset, .. }) => format!("{at:#x} detour+{offset:#x}"),
        None => {
            let offset = symbols::lookup_addr(at).map_or(0, |symbol| at - symbol.start);
            format!("{at:#x} {}+{offset:#x}", function(at))
        }
    }
}

/// The last part of the name of the function around `at`.
fn function(at: u64) -> String {
    let Some(symbol) = symbols::lookup_addr(at) else {
        return "?".to_owned();
    };
    let name = format!("{symbol}");
    name.rsplit("::").next().unwrap_or(&name).to_owned()
}

/// `text` in lines that fit a column, each after `indent`.
fn wrap(indent: &str, text: &str) -> Cell {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) if text.starts_with('-') => lines.push(format!("{indent}  {word}")),
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

/// Writes the columns: heads, the stops of the way in and of the way back, the figures.
fn show(out: &mut dyn Write, columns: &[Column]) -> Result<(), Failure> {
    let heads: Vec<_> = columns.iter().map(|column| &column.head[..]).collect();
    row(out, "", &heads)?;
    for (phase, title) in ["the call", "the return"].into_iter().enumerate() {
        writeln!(out, "\n{title}")?;
        let stops = columns
            .iter()
            .map(|column| column.phases[phase].len())
            .max();
        for index in 0..stops.unwrap_or(0) {
            let cells = columns.iter().map(|column| {
                column.phases[phase]
                    .get(index)
                    .map_or(&[][..], Vec::as_slice)
            });
            row(out, &format!("{}", index + 1), &cells.collect::<Vec<_>>())?;
        }
    }
    writeln!(out, "\nin all, when it is not watched")?;
    let feet: Vec<_> = columns
        .iter()
        .map(|column| slice::from_ref(&column.foot))
        .collect();
    row(out, "", &feet)
}

/// Writes cells side by side after the number of their row.
fn row(out: &mut dyn Write, number: &str, cells: &[&[String]]) -> Result<(), Failure> {
    let height = cells.iter().map(|cell| cell.len()).max().unwrap_or(0);
    for index in 0..height {
        let mut line = format!("{:3}", if index == 0 { number } else { "" });
        for cell in cells {
            let text = cell.get(index).map_or("", String::as_str);
            write!(line, " {text:WIDTH$}")?;
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
