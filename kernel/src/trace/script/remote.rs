//! A tracer that comes to the kernel while it runs, over the second serial port: it attaches,
//! traces, detaches, and may come again with another script.
//!
//! ```text
//!   idle ─ hello ─► it is told about the kernel ─ script ─► Session ─► answers
//!    ▲                                                        │
//!    └──── it leaves, falls silent, or its bytes are damaged ─┴─ its end ─► the rest, and "over"
//! ```
//!
//! The protocol is [`trace_wire::stream`], and its other end `tracer/link`. Nothing here is in the
//! way of the kernel's own work: a task polls the port, seldom while there is no tracer. A machine
//! without the port has no such task.
//!
//! # Invariants
//! VISIT-1. When a tracer is gone, however it went, nothing of its script is attached: the session
//!     is dropped before anything else is heard.
//!
//! # Contexts
//! Task context; one task.

use alloc::{boxed::Box, string::String, vec::Vec};

use trace_compiler::EventTable;
use trace_interface::Frame;
use trace_wire::{
    Options,
    stream::{
        About, Asked, BuildId, Capabilities, Capability, Damage, Events, KernelEnd, SILENCE_SECONDS,
    },
};

use super::{Outlet, Refusal, Session, com2::Com2};
use crate::{
    arch::{apic, smp},
    pr_err,
    task::{self, sleep::sleep_ns},
    time::{self, NSEC_PER_MSEC, NSEC_PER_SEC, ktime_get},
    trace::shared::try_vec,
};

/// How often the port is looked at while there is no tracer.
const IDLE_NS: u64 = 50 * NSEC_PER_MSEC;
/// How often it is looked at when something has come in the last second: a script comes in many
/// small pieces.
const BUSY_NS: u64 = NSEC_PER_MSEC;
/// How often the ring and the port are looked at while a script runs.
const LOOK_NS: u64 = 20 * NSEC_PER_MSEC;
/// The most bytes of a script: one for each function of the kernel has about a tenth.
const MOST_SCRIPT_BYTES: u32 = 8 << 20;

/// All that a script may ask for.
const CAPABILITIES: Capabilities = Capabilities::of(&[
    Capability::Returns,
    Capability::Records,
    Capability::Intervals,
    Capability::Profiles,
    Capability::KernelStacks,
    Capability::UserStacks,
    Capability::UserMemory,
    Capability::Tasks,
]);

/// Starts the task that waits for tracers, if the machine has a second serial port.
///
/// # Safety
/// Nothing else uses COM2 from here on.
pub unsafe fn wait_for_tracers() {
    // SAFETY: by the contract.
    let port = unsafe { Com2::new() };
    if !port.works() {
        return;
    }
    if task::spawn_kthread("trace", move || serve(port)).is_err() {
        pr_err!("trace: there is no memory for the task that waits for a tracer");
    }
}

/// The task.
fn serve(port: Com2) {
    let mut remote = Remote::new(port);
    loop {
        match remote.hear() {
            Heard::Run => remote.trace(),
            Heard::Nothing => sleep_ns(remote.pause()),
            Heard::Gone | Heard::End => {}
        }
    }
}

/// What was heard that is not served yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// A script is whole.
    Run,
    /// The trace is to end.
    End,
    /// Whoever has asked for the trace is gone.
    Gone,
}

/// A tracer, or the place of one.
struct Remote {
    port: Com2,
    end: Box<KernelEnd>,
    /// The script, as far as it has come, and how it is to run.
    script: Vec<u8>,
    options: String,
    /// When something came, and when something was sent.
    heard_at: u64,
    said_at: u64,
}

impl Remote {
    fn new(port: Com2) -> Self {
        Self {
            port,
            end: Box::new(KernelEnd::new()),
            script: Vec::new(),
            options: String::new(),
            heard_at: 0,
            said_at: 0,
        }
    }

    /// How long to wait until the port is looked at again.
    fn pause(&self) -> u64 {
        match ktime_get().saturating_sub(self.heard_at) {
            ..NSEC_PER_SEC => BUSY_NS,
            _ => IDLE_NS,
        }
    }

    /// Reads what has come, and serves what needs no session.
    fn hear(&mut self) -> Heard {
        let mut byte: [u8; 1];
        let mut input: &[u8] = &[];
        let mut is_new = false;
        loop {
            let Self { port, end, .. } = self;
            let Some(asked) = end.next(&mut input) else {
                // The rest of a message comes soon.
                let next = if is_new {
                    port.read_soon()
                } else {
                    port.read()
                };
                let Some(next) = next else {
                    return Heard::Nothing;
                };
                (byte, is_new) = ([next], true);
                self.heard_at = ktime_get();
                input = &byte;
                continue;
            };
            match asked {
                Asked::Hello => {
                    port.revive();
                    self.welcome();
                    return Heard::Gone;
                }
                Asked::Begin { bytes, options } => {
                    self.options.clear();
                    self.options.push_str(options);
                    if let Err(refusal) = self.make_room(bytes) {
                        self.refuse(refusal.text);
                    }
                }
                // There is room for all of it.
                Asked::Script(piece) => self.script.extend_from_slice(piece),
                Asked::Run => return Heard::Run,
                Asked::End => return Heard::End,
                Asked::Leave => return Heard::Gone,
                Asked::Alive => {}
                Asked::Damaged(damage) => {
                    self.complain(damage);
                    return Heard::Gone;
                }
            }
        }
    }

    fn welcome(&mut self) {
        let events = EventTable::default().lines();
        let about = About {
            kernel: concat!("kernel ", env!("CARGO_PKG_VERSION")),
            cpus: smp::possible_cpus() as u32,
            clock_hz: time::tsc_hz(),
            tick_nanoseconds: apic::tick_ns(),
            build_id: BuildId::in_notes(notes()),
            slide: 0,
            most_script_bytes: MOST_SCRIPT_BYTES,
            capabilities: CAPABILITIES,
            events: Events::Lines(&events),
        };
        let Self { port, end, .. } = self;
        end.welcome(about, &mut |bytes| port.write(bytes));
    }

    fn make_room(&mut self, bytes: u32) -> Result<(), Refusal> {
        self.script = Vec::new();
        if bytes > MOST_SCRIPT_BYTES {
            return Err(Refusal::new(
                None,
                "the script is larger than this kernel takes; probe fewer places",
            ));
        }
        self.script = try_vec(bytes as usize)?;
        Ok(())
    }

    fn refuse(&mut self, why: impl core::fmt::Display) {
        let Self { port, end, .. } = self;
        end.refuse(why, &mut |bytes| port.write(bytes));
    }

    /// Tells the tracer that its bytes came wrong.
    fn complain(&mut self, damage: Damage) {
        self.refuse(format_args!(
            "bytes on the way to the kernel were lost or changed ({damage}); nothing is attached, \
             so run it again"
        ));
    }

    /// Runs the script that has come.
    fn trace(&mut self) {
        let script = core::mem::take(&mut self.script);
        let options = core::mem::take(&mut self.options);
        match self.run(&script, &Options::parse(&options)) {
            Ok(true) => {}
            Ok(false) => return,
            Err(refusal) => self.send(&refusal.frame()),
        }
        let Self { port, end, .. } = self;
        end.over(&mut |bytes| port.write(bytes));
    }

    /// Whether the tracer is there to hear the end.
    fn run(&mut self, script: &[u8], options: &Options<'_>) -> Result<bool, Refusal> {
        let (script, how) = super::read(script, options)?;
        let mut session = Session::start(&script, how, self)?;
        drop(script);
        // Attaching may have taken long, and the tracer has waited.
        self.heard_at = ktime_get();
        let limit = options.nanoseconds;
        let end = limit.map(|limit| self.heard_at.saturating_add(limit));
        loop {
            let more = session.serve(self);
            match self.hear() {
                Heard::Nothing => {}
                Heard::End => break,
                // VISIT-1
                Heard::Gone | Heard::Run => return Ok(false),
            }
            let now = ktime_get();
            if session.is_over() || end.is_some_and(|end| now >= end) {
                break;
            }
            let silence = now.saturating_sub(self.heard_at);
            if self.port.is_dead() || silence > SILENCE_SECONDS * NSEC_PER_SEC {
                pr_err!("trace: the tracer is gone, so all is detached");
                self.end.forget();
                return Ok(false);
            }
            if now.saturating_sub(self.said_at) > NSEC_PER_SEC {
                self.said_at = now;
                let Self { port, end, .. } = self;
                end.alive(&mut |bytes| port.write(bytes));
            }
            if !more {
                let next = [session.next_due(), end].into_iter().flatten();
                let next = next.fold(now + LOOK_NS, u64::min);
                sleep_ns(next.saturating_sub(ktime_get()));
            }
        }
        session.end(self);
        Ok(true)
    }
}

impl Outlet for Remote {
    fn send(&mut self, frame: &Frame) {
        self.said_at = ktime_get();
        let Self { port, end, .. } = self;
        end.message(&frame.encode(), &mut |bytes| port.write(bytes));
    }
}

/// The notes that the linker has left: the build id is one of them.
fn notes() -> &'static [u8] {
    unsafe extern "C" {
        static __notes_start: u8;
        static __notes_end: u8;
    }
    let (start, end) = (&raw const __notes_start, &raw const __notes_end);
    let bytes = end.addr() - start.addr();
    // SAFETY: the linker script puts both around a section of the kernel's constants.
    unsafe { core::slice::from_raw_parts(start, bytes) }
}
