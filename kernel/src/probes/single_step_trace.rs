//! Traces one call instruction by instruction, and notes where control leaves the traced code
//! because of a probe.
//!
//! The call runs with RFLAGS.TF set, so the processor raises #DB after each of its instructions,
//! also after those in slots, detours and trampolines. Meanwhile the calling CPU uses an interrupt
//! table of its own. In that table #BP and #DB lead to the recording entries below:
//!
//! ```text
//!   #BP ─► trace_breakpoint ─ note it ─► kprobe_breakpoint, as without a trace
//!   #DB ─► trace_debug ─ note it ─ the probes' own single step? let them handle it ─► iretq
//! ```
//!
//! So the code that serves a hit knows nothing of this, and it costs nothing while no call is
//! traced. The handlers of exceptions are not traced, because their gates clear TF. Their effects
//! show when the next instruction is over.
//!
//! # Invariants
//! SINGLE-1. A CPU uses [`TABLE`] only inside [`trace`], with interrupts off and `RECORDER` set.
//! SINGLE-2. One call is traced at a time: [`TRACING`] is held.
//!
//! # Contexts
//! [`trace`]: task context. The recorder runs on the hit path, so it may not be probed: its two
//! functions are roots of the blacklist. It takes no lock, allocates nothing and cannot fail.

use super::{Kernel, PROBES, gate_entry::gate_entry, hooks};
use crate::{
    arch::{
        PtRegs, debug, entry,
        idt::{self, Idt, vector},
    },
    sync::Mutex,
};
use ::probes::Platform;
use core::{
    arch::asm,
    ops::Range,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed},
};
use x86_64::{VirtAddr, instructions::interrupts::without_interrupts, registers::debug::Dr6};

/// RFLAGS.TF.
const TF: u64 = 1 << 8;

/// The kind of a [`Stop`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopEvent {
    /// A #BP.
    Breakpoint,
    /// The #DB after an instruction that the probes have single-stepped.
    Step,
    /// An instruction has led from one area to another: the areas are the code, the slots and the
    /// trampolines.
    #[default]
    Jump,
}

/// The values that a handler or the probes' code may have changed since the last stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopState {
    /// The content of the call's return slot; `None` once it has been popped.
    pub return_address: Option<u64>,
    /// How often the return handler has run.
    pub handled: u64,
}

/// One interruption or jump.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stop {
    /// Its kind.
    pub event: StopEvent,
    /// The address of the breakpoint or of the jump; for a step, the address after it.
    pub at: u64,
    /// Where control was next; after a breakpoint, after the first instruction there.
    pub next: u64,
    /// The state at that moment.
    pub state: StopState,
    /// Instructions since the stop before it, without those of exception handlers.
    pub instructions: u64,
}

/// A call that has been traced.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracedCall {
    /// The number of stops. Those that found no room were counted but not noted.
    pub stops: usize,
    /// The address to which the call was to return.
    pub return_address: u64,
    /// The state at its end.
    pub state: StopState,
    /// Instructions since the last stop.
    pub instructions: u64,
}

/// The kind of code that an instruction belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    Code,
    Slots,
    Trampolines,
}

struct Recorder<'a> {
    function: u64,
    trampolines: &'a [Range<u64>],
    handled: &'a AtomicU64,
    stops: &'a mut [Stop],
    traced: TracedCall,
    /// Where the call's return address lies; 0 before the call.
    slot: u64,
    /// The address of the last instruction, and its area.
    last: u64,
    area: Area,
    /// A breakpoint has been noted, but not yet where control went from it.
    trapped: bool,
}

static RECORDER: AtomicPtr<Recorder<'static>> = AtomicPtr::new(null_mut());
static TRACING: Mutex<()> = Mutex::new(());
static TABLE: Idt = Idt::new();

/// Calls `call`, which calls the function that begins at `function` once. Notes in `stops` how
/// control gets from the caller through that function and back. Task context.
///
/// `trampolines` are the addresses to which probed functions return. `handled` counts the runs of
/// the return handler. `call` runs with interrupts off, so it must not sleep.
///
/// Returns `None` if `call` has not called the function.
pub fn trace(
    function: u64,
    trampolines: &[Range<u64>],
    handled: &AtomicU64,
    call: extern "C" fn(),
    stops: &mut [Stop],
) -> Option<TracedCall> {
    let _one = TRACING.lock();
    let mut recorder = Recorder {
        function,
        trampolines,
        handled,
        stops,
        traced: TracedCall::default(),
        slot: 0,
        last: 0,
        area: Area::Code,
        trapped: false,
    };
    // SAFETY: no CPU uses the table, by SINGLE-1 and SINGLE-2.
    unsafe {
        TABLE.fill(|number| match number {
            vector::DEBUG => VirtAddr::from_ptr(trace_debug as *const ()),
            vector::BREAKPOINT => VirtAddr::from_ptr(trace_breakpoint as *const ()),
            _ => entry::stub(number),
        });
    }
    without_interrupts(|| {
        RECORDER.store((&raw mut recorder).cast(), Relaxed);
        // SAFETY: each gate names an entry. The usual table is loaded again before interrupts come
        // back.
        unsafe { TABLE.load() };
        // SAFETY: the only effect of TF is a #DB after each instruction, which the table's gate
        // takes. The stack is aligned for a call, and the called function keeps to the C ABI.
        unsafe {
            asm!(
                "pushfq",
                "or qword ptr [rsp], {tf}",
                "popfq",
                "call {call}",
                "pushfq",
                "and qword ptr [rsp], ~{tf}",
                "popfq",
                call = in(reg) call,
                tf = const TF,
                clobber_abi("C"),
            );
        }
        idt::load();
        RECORDER.store(null_mut(), Relaxed);
        // Read here, before interrupts are on: their handlers may call the function, too.
        recorder.traced.state = StopState {
            return_address: None,
            handled: handled.load(Relaxed),
        };
    });
    (recorder.slot != 0).then_some(recorder.traced)
}

impl Recorder<'_> {
    fn area(&self, ip: u64) -> Area {
        if Kernel::slots().contains(&ip) {
            Area::Slots
        } else if self.trampolines.iter().any(|range| range.contains(&ip)) {
            Area::Trampolines
        } else {
            Area::Code
        }
    }

    fn state(&self, sp: u64) -> StopState {
        let live = sp <= self.slot;
        StopState {
            // SAFETY: the slot is on the stack that this code runs on, and has not been popped.
            return_address: live.then(|| unsafe { (self.slot as *const u64).read_volatile() }),
            handled: self.handled.load(Relaxed),
        }
    }

    fn note(&mut self, stop: Stop) {
        if let Some(free) = self.stops.get_mut(self.traced.stops) {
            *free = stop;
        }
        self.traced.stops = self.traced.stops.wrapping_add(1);
        self.traced.instructions = 0;
    }

    fn breakpoint(&mut self, regs: &PtRegs) {
        let stop = Stop {
            event: StopEvent::Breakpoint,
            at: regs.ip.wrapping_sub(1),
            next: 0,
            state: self.state(regs.sp),
            instructions: self.traced.instructions,
        };
        self.note(stop);
        self.trapped = true;
    }

    /// Notes that control has come to `ip`, in the state `state`.
    fn arrive(&mut self, ip: u64, state: StopState) {
        let area = self.area(ip);
        if self.trapped {
            self.trapped = false;
            if let Some(stop) = self.stops.get_mut(self.traced.stops.wrapping_sub(1)) {
                stop.next = ip;
            }
        } else if area != self.area {
            self.note(Stop {
                event: StopEvent::Jump,
                at: self.last,
                next: ip,
                state,
                instructions: self.traced.instructions,
            });
        }
        self.area = area;
        self.last = ip;
    }

    fn debug(&mut self, regs: &mut PtRegs) {
        let before = regs.ip;
        if self.slot == 0 {
            if before != self.function {
                return;
            }
            self.slot = regs.sp;
            self.traced.return_address = self.state(regs.sp).return_address.unwrap_or_default();
        }
        self.traced.instructions = self.traced.instructions.wrapping_add(1);
        let state = self.state(regs.sp);
        self.arrive(before, state);
        if PROBES.is_stepping() {
            hooks::on_debug(regs);
        }
        if regs.ip != before {
            let stop = Stop {
                event: StopEvent::Step,
                at: before,
                next: regs.ip,
                state,
                instructions: self.traced.instructions,
            };
            self.note(stop);
            self.area = self.area(regs.ip);
            self.last = regs.ip;
        }
    }
}

/// Notes a #BP that the probes are about to get.
#[unsafe(no_mangle)]
extern "C" fn trace_note_breakpoint(regs: &PtRegs) {
    // SAFETY: by SINGLE-1 it points to the frame of `trace` on this CPU, which uses it again only
    // after the call.
    if let Some(recorder) = unsafe { RECORDER.load(Relaxed).as_mut() } {
        recorder.breakpoint(regs);
    }
}

/// Notes a #DB, and lets the probes have theirs.
#[unsafe(no_mangle)]
extern "C" fn trace_note_debug(regs: &mut PtRegs) {
    // SAFETY: as above.
    if let Some(recorder) = unsafe { RECORDER.load(Relaxed).as_mut() } {
        recorder.debug(regs);
    }
    debug::clear_single_step(Dr6::read_raw());
}

// In a traced call all exceptions are ring 0's.
gate_entry! { trace_breakpoint, trace_note_breakpoint, "", "jmp kprobe_breakpoint" }
gate_entry! { trace_debug, trace_note_debug, "", "iretq" }
