//! A tracer that comes to the kernel while it runs, over a line of bytes such as a serial port: it
//! attaches, traces, detaches, and may come again with another script.
//!
//! ```text
//!   idle ─ hello ─► it is told about the kernel ─ script ─► Session ─► answers
//!    ▲                                                        │
//!    └──── it leaves, falls silent, or its bytes are damaged ─┴─ its end ─► the rest, and "over"
//! ```
//!
//! The protocol is [`trace_wire::stream`]; the other end is `trace --connect ADDRESS --elf FILE`. A
//! kernel gives a [`Line`] and its [`Facts`], and calls [`serve`] in a task of its own. Nothing is
//! in the way of the kernel's work: the line is looked at seldom while there is no tracer. What the
//! panic handler says to it is [`last_words`].
//!
//! # Invariants
//! REMOTE-1. When a tracer is gone, however it went, nothing of its script is attached: the session
//!     is dropped before anything else is heard.
//!
//! # Contexts
//! Task context, may sleep; one task for each line.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{fmt, marker::PhantomData};

use probes::Code;
use trace_interface::Frame;
use trace_wire::{
    Options,
    stream::{
        About, Asked, BuildId, Capabilities, Capability, Damage, Events, KernelEnd, SILENCE_SECONDS,
    },
};

use crate::{
    Agent,
    facts::{NSEC_PER_SEC, NoTable},
    last_words::{self, Naming},
    script::{Outlet, Refusal, Session, read},
};
use fallible::{OutOfMemory, try_vec};

const NSEC_PER_MSEC: u64 = 1_000_000;
/// How often the line is looked at while there is no tracer.
const IDLE_NS: u64 = 50 * NSEC_PER_MSEC;
/// How often it is looked at when something has come in the last second: a script comes in many
/// small pieces.
const BUSY_NS: u64 = NSEC_PER_MSEC;
/// How often the ring and the line are looked at while a script runs.
const LOOK_NS: u64 = 20 * NSEC_PER_MSEC;
/// How often the line is read in vain until the task waits: the rest of a message comes soon.
const READS: u32 = 10_000;

/// A line of bytes to a tracer. One task has it. [`Serial`](crate::Serial) is one.
pub trait Line {
    /// Takes a byte that has come, if there is one. Does not wait.
    fn read(&mut self) -> Option<u8>;

    /// Sends all bytes. Waits as long as the line takes none. If it may take none for ever, the
    /// line is to be dead after some seconds ([`Line::is_dead`]), because a script stays attached
    /// while this waits.
    fn write(&mut self, bytes: &[u8]);

    /// Whether the line has taken nothing for too long. What is written then is lost.
    fn is_dead(&self) -> bool {
        false
    }

    /// Uses the line again, because something has come from it.
    fn revive(&mut self) {}

    /// Sleeps for so many nanoseconds. It may return earlier, for example when a byte comes.
    fn wait(&mut self, nanoseconds: u64);
}

/// What the agent cannot know of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'f> {
    /// Its name, for messages.
    pub kernel: &'f str,
    /// The bytes of the linker's section `.note.gnu.build-id`. Empty: the tracer cannot check that
    /// its file is this kernel's.
    pub build_id_notes: &'f [u8],
    /// Where the code runs, as a distance from where it was linked to. Wraps at 64 bits.
    pub slide: u64,
    /// The event sources, a line for each, divided by tabs: `GROUP:EVENT`, `entry` or `return`,
    /// the function, and for each field `NAME=EXPRESSION` in the tracer's language. And words of
    /// the kernel's own: the name, `word`, and an expression.
    pub events: &'f str,
    /// The most bytes of a script. One that probes all functions has about 10 bytes for each.
    pub most_script_bytes: u32,
}

impl<'f> Facts<'f> {
    /// Those of a kernel with that name, from its [`Platform::code`](probes::Platform::code). It
    /// has no event sources, and takes scripts of 1 MiB.
    pub fn of<A: Agent>(kernel: &'f str) -> Self {
        let code = A::code();
        Self {
            kernel,
            build_id_notes: code.map_or(&[], Code::build_id_notes),
            slide: code.map_or(0, Code::slide),
            events: "",
            most_script_bytes: 1 << 20,
        }
    }
}

/// Serves the tracers that come, one after the other. Does not return.
///
/// # Panics
/// If [`Agent::tsc_hz`] is 0.
pub fn serve<A: Agent>(line: &mut dyn Line, facts: &Facts<'_>) -> ! {
    assert!(
        A::tsc_hz() > 0,
        "the agent has no clock; call `Tracing::calibrate` before, or implement `Agent::tsc_hz`"
    );
    let mut remote = Remote::<A> {
        line,
        facts,
        end: Box::new(KernelEnd::new()),
        script: Vec::new(),
        options: String::new(),
        heard_at: 0,
        said_at: 0,
        agent: PhantomData,
    };
    loop {
        match remote.hear() {
            Heard::Run => remote.trace(),
            Heard::Nothing => remote.pause(),
            Heard::Gone | Heard::End => {}
        }
    }
}

/// What a kernel has, as far as its [`Agent`] says it.
fn capabilities<A: Agent>() -> Capabilities {
    let all = [
        (Capability::Returns, true),
        (Capability::Records, true),
        (Capability::Intervals, true),
        (Capability::Profiles, A::ticks().is_some()),
        (
            Capability::KernelStacks,
            // Made once, and kept for the scripts that come.
            A::tracing().stacks.ready() != Err(NoTable::NotHere),
        ),
        (Capability::UserStacks, A::HAS_USER_STACKS),
        (Capability::UserMemory, A::USER_END > 0),
        (Capability::Tasks, true),
        (Capability::UserProbes, A::HAS_USER_PROBES),
    ];
    all.into_iter()
        .filter(|(_, has)| *has)
        .fold(Capabilities::default(), |capabilities, (capability, _)| {
            capabilities.with(capability)
        })
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
struct Remote<'l, A> {
    line: &'l mut dyn Line,
    facts: &'l Facts<'l>,
    end: Box<KernelEnd>,
    /// The script, as far as it has come, and how it is to run.
    script: Vec<u8>,
    options: String,
    /// When something came, and when something was sent.
    heard_at: u64,
    said_at: u64,
    agent: PhantomData<A>,
}

impl<A: Agent> Remote<'_, A> {
    /// Waits until the line is to be looked at again.
    fn pause(&mut self) {
        self.line
            .wait(match A::now().saturating_sub(self.heard_at) {
                ..NSEC_PER_SEC => BUSY_NS,
                _ => IDLE_NS,
            });
    }

    /// Reads what has come, and serves what needs no session.
    fn hear(&mut self) -> Heard {
        let heard = self.read();
        A::tracing().last_words.note_call(self.end.call());
        heard
    }

    fn read(&mut self) -> Heard {
        let mut byte: [u8; 1];
        let mut input: &[u8] = &[];
        let mut reads = 1;
        loop {
            let Self { line, end, .. } = self;
            let Some(asked) = end.next(&mut input) else {
                let Some(next) = (0..reads).find_map(|_| line.read()) else {
                    return Heard::Nothing;
                };
                (byte, reads) = ([next], READS);
                self.heard_at = A::now();
                input = &byte;
                continue;
            };
            match asked {
                Asked::Hello => {
                    line.revive();
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
        let Self {
            line, end, facts, ..
        } = self;
        let about = About {
            kernel: facts.kernel,
            cpus: A::possible_cpus() as u32,
            clock_hz: A::tsc_hz(),
            tick_nanoseconds: A::ticks().map_or(0, |ticks| ticks.nanoseconds),
            build_id: BuildId::in_notes(facts.build_id_notes),
            slide: facts.slide,
            most_script_bytes: facts.most_script_bytes,
            capabilities: capabilities::<A>(),
            events: Events::Lines(facts.events),
        };
        end.welcome(about, &mut |bytes| line.write(bytes));
    }

    fn make_room(&mut self, bytes: u32) -> Result<(), Refusal> {
        self.script = Vec::new();
        if bytes > self.facts.most_script_bytes {
            return Err(Refusal::new(
                None,
                "the script is larger than this kernel takes; probe fewer places",
            ));
        }
        self.script = try_vec(bytes as usize)?;
        Ok(())
    }

    fn refuse(&mut self, why: impl fmt::Display) {
        let Self { line, end, .. } = self;
        end.refuse(why, &mut |bytes| line.write(bytes));
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
        let Self { line, end, .. } = self;
        end.over(&mut |bytes| line.write(bytes));
    }

    /// Whether the tracer is there to hear the end.
    fn run(&mut self, script: &[u8], options: &Options<'_>) -> Result<bool, Refusal> {
        let (script, how) = read::<A>(script, options)?;
        let mut session = Session::<A>::start(&script, how, self)?;
        drop(script);
        // Attaching may have taken long, and the tracer has waited.
        self.heard_at = A::now();
        // Without memory for it a kernel that dies says why, and no more.
        let naming = Naming::of(&session).ok();
        let limit = options.nanoseconds;
        let end = limit.map(|limit| self.heard_at.saturating_add(limit));
        loop {
            let more = session.serve(self);
            match self.hear() {
                Heard::Nothing => {}
                Heard::End => break,
                // REMOTE-1
                Heard::Gone | Heard::Run => return Ok(false),
            }
            let now = A::now();
            if session.is_over() || end.is_some_and(|end| now >= end) {
                break;
            }
            let silence = now.saturating_sub(self.heard_at);
            if self.line.is_dead() || silence > SILENCE_SECONDS * NSEC_PER_SEC {
                self.end.forget();
                return Ok(false);
            }
            if now.saturating_sub(self.said_at) > NSEC_PER_SEC {
                self.said_at = now;
                let Self { line, end, .. } = self;
                end.alive(&mut |bytes| line.write(bytes));
            }
            if !more {
                let next = [session.next_due(), end].into_iter().flatten();
                let next = next.fold(now + LOOK_NS, u64::min);
                self.line.wait(next.saturating_sub(A::now()));
            }
        }
        // It goes before the maps do.
        drop(naming);
        if session.keeps_records() {
            session.detach();
            self.send_rings()?;
        }
        session.end(self);
        Ok(true)
    }

    /// Sends the records of a recording that is over.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing was sent.
    fn send_rings(&mut self) -> Result<(), OutOfMemory> {
        A::tracing().buffer.while_still(|| {
            last_words::send_rings::<A>(&mut |piece, bytes, fill| {
                let Self { line, end, .. } = self;
                end.memory(piece, bytes, fill, &mut |bytes| line.write(bytes));
            });
        })
    }
}

impl<A: Agent> Outlet for Remote<'_, A> {
    fn send(&mut self, frame: &Frame) {
        self.said_at = A::now();
        let Self { line, end, .. } = self;
        end.message(&frame.encode(), &mut |bytes| line.write(bytes));
    }
}
