//! The promises of the probes, each promise a test, in both step methods and in each return method.
//!
//! Compiled for a process (`../process`), and for two kernels (`tests/guest/src/platform`), where
//! hits come by the kernel's own breakpoints and by jumps. `crate::platform` is what they have in
//! common. A test that only the process can run says why.

mod actions;
mod addresses;
mod calls_in_flight;
mod code;
mod concurrency;
mod faults;
pub mod flags;
mod handlers;
mod historic;
mod interrupts;
pub mod journal;
mod jprobes;
mod limits;
mod memory;
mod order;
mod owned;
mod refusals;
mod registered_again;
mod registration;
mod regressions;
mod returns;
pub mod targets;
mod telling;
mod waiting_handlers;

use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use probes::{
    EntryVerdict, Kprobe, KretprobeInstance, PreVerdict, Probe, ProbeError, PtRegs,
    kprobe::flags::OPTIMIZED,
    registry::{ReturnMethod, StepMethod},
};

use crate::platform::{self, Mutex, PROBES, at_failure, boot, cpu, symbols, task, text, traps};
use journal::note;

/// A pre handler that notes `N`.
fn pre<const N: u64>(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    note(N);
    PreVerdict::Execute
}

/// A post handler that notes `N`.
fn post<const N: u64>(_: &Kprobe, _: &mut PtRegs, zero: u64) {
    note(N + zero);
}

/// Whether a handler finds the world as Rust code wants it: an aligned stack, DF and AC clear.
fn in_good_order() -> bool {
    targets::alignment() == 8 && targets::current_flags() & flags::DF_AND_AC == 0
}

/// An entry handler that notes `N`.
fn entry<const N: u64, D>(_: &mut KretprobeInstance<D>, _: &mut PtRegs) -> EntryVerdict {
    note(N);
    EntryVerdict::Track
}

/// A return handler that notes `N`.
fn returned<const N: u64, D>(_: &mut KretprobeInstance<D>, _: &mut PtRegs) {
    note(N);
}

/// Checks that a test has unregistered all it registered; before it, so many slots were in use.
pub fn assert_nothing_is_left(slots: usize) {
    let in_flight = PROBES.reap().expect("tests end in task context");
    let mut registered = Vec::new();
    PROBES.for_each(|listed| registered.push(symbols::describe(listed.probe.addr())));
    assert!(registered.is_empty(), "still registered: {registered:?}");
    assert_eq!(
        in_flight, 0,
        "calls in flight of kretprobes that were unregistered"
    );
    assert_eq!(PROBES.slots_in_use(), slots, "slots in use");
    assert!(PROBES.enabled(), "the knob was left off");
}

/// A probe that lives for ever, made at run time.
fn leak<T: Probe + Send>(probe: T) -> &'static T {
    tidied(Box::leak(Box::new(probe)))
}

/// A probe that is unregistered even if the test fails, for the sake of the tests after it.
fn tidied<T: Probe>(probe: &'static T) -> &'static T {
    at_failure(move || {
        if probe.kprobe().is_registered() {
            PROBES.unregister(probe).expect("tests end in task context");
        }
    });
    probe
}

/// The address of a function.
fn address(name: &str) -> u64 {
    symbols::lookup(name).unwrap_or_else(|| panic!("there is no function {name}"))
}

/// The byte of text at `addr`, as a processor would fetch it; a jump counts as the breakpoint that
/// it replaces.
fn byte_at(addr: u64) -> u8 {
    const JUMP: u8 = 0xe9;
    match text::read(addr, 1)[0] {
        JUMP if platform::jumps() => 0xcc,
        byte => byte,
    }
}

/// Whether displaced instructions are single-stepped.
fn stepping() -> bool {
    platform::step_method() == StepMethod::TrapFlag
}

/// Whether calls come back through a breakpoint.
fn returning_by_trap() -> bool {
    platform::return_method() != ReturnMethod::Asm
}

/// The address to which calls that are followed return.
fn trampoline() -> u64 {
    address(match platform::return_method() {
        ReturnMethod::Asm => "kretprobe_trampoline",
        ReturnMethod::Trap3 => "kretprobe_trampoline_trap3",
        ReturnMethod::Trap4 => "kretprobe_trampoline_trap4",
    })
}

/// All registered probes, as their list shows them: place, type, flags, but for whether a jump
/// serves them.
fn list() -> Vec<String> {
    let mut list = Vec::new();
    PROBES.for_each(|listed| {
        let probe = listed.probe;
        list.push(format!(
            "{} {} {}",
            symbols::describe(probe.addr()),
            probe.kind().letter(),
            probe.flags() & !OPTIMIZED
        ));
    });
    list
}

/// Expects the registration of `probe` to be refused with this error, and everything to be as it
/// was.
#[track_caller]
fn refused<T: Probe>(probe: &'static T, name: &str, errno: i32) -> ProbeError {
    let state = |probe: &Kprobe| {
        (
            probe.addr(),
            probe.flags(),
            probe.nmissed(),
            probe.hits(),
            probe.is_registered(),
            list(),
            PROBES.slots_in_use(),
            text::digest(),
        )
    };
    let before = state(probe.kprobe());
    let error = PROBES
        .register(probe)
        .expect_err("this registration is to be refused");
    assert_eq!((error.name(), error.errno()), (name, errno), "{error}");
    assert_eq!(state(probe.kprobe()), before, "{error}");
    let sentence = error.to_string();
    assert!(sentence.contains(';'), "tells what to do: {sentence}");
    error
}
