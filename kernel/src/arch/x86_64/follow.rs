//! Follows one call, instruction by instruction, and notes where control leaves the code for what the probes have put there.
//!
//! The call runs with RFLAGS.TF set: the processor raises #DB behind each of its instructions, those in slots, detours and trampolines
//! included. Meanwhile the calling CPU uses a table of interrupts of its own, in which #BP and #DB lead to the recording
//! entries below:
//!
//! ```text
//!   #BP ─► follow_breakpoint ─ note it ─► kprobe_breakpoint, as if nothing had been
//!   #DB ─► follow_debug ─ note it; the probes' single step is over? hand it to them and note what they did ─► iretq
//! ```
//!
//! So nothing that serves a hit knows of this, and while nobody follows it costs nothing. What an exception's handler executes is not
//! followed, as its gate clears TF; it shows in what has changed when the next instruction is over.
//!
//! # Invariants
//! F1. A CPU uses [`TABLE`] only inside [`follow`], with interrupts off and `RECORDER` set.
//! F2. One call is followed at a time: [`FOLLOWING`] is held.
//!
//! # Contexts
//! [`follow`]: task context. The recorder runs on the path of a hit, so it may not be probed: it is among the roots of the
//! blacklist. It locks, allocates and fails nothing.

use super::{
    entry::entry_by_way_of,
    idt::{self, Idt, vector},
};
use crate::{
    probes::{self, Kernel, PtRegs},
    sync::Mutex,
};
use ::probes::Platform;
use core::{
    arch::asm,
    ops::Range,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed},
};
use x86_64::{
    VirtAddr,
    instructions::interrupts::without_interrupts,
    registers::debug::{Dr6, Dr6Flags},
};

/// RFLAGS.TF.
const TF: u64 = 1 << 8;

/// What happened at a [`Stop`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// A #BP.
    Breakpoint,
    /// The #DB behind an instruction that the probes had stepped.
    Step,
    /// An instruction has led out of the code, a slot or a trampoline into another of them.
    #[default]
    Jump,
}

/// What a handler or a piece of the probes' code may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// What the return slot of the call holds; none once it has been popped.
    pub return_address: Option<u64>,
    /// How often the return handler has run.
    pub handled: u64,
}

/// One interruption or jump.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stop {
    /// What happened.
    pub event: Event,
    /// Where: the address of the breakpoint or of the jump; for a step, behind it.
    pub at: u64,
    /// Where control was next: after a breakpoint, behind the first instruction there.
    pub next: u64,
    /// How things were then.
    pub state: State,
    /// Instructions since the stop before it, those of interruptions' handlers not counted.
    pub instructions: u64,
}

/// A call that has been followed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Followed {
    /// How many stops there were. Those that found no room were not noted.
    pub stops: usize,
    /// Where the call was to return to.
    pub return_address: u64,
    /// How things were at its end.
    pub state: State,
    /// Instructions since the last stop.
    pub instructions: u64,
}

/// Whose code an instruction is.
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
    followed: Followed,
    /// Where the call's return address lies; 0 before the call.
    slot: u64,
    /// Where the last instruction was, and whose it is.
    last: u64,
    area: Area,
    /// A breakpoint has been noted whose end has not.
    trapped: bool,
}

static RECORDER: AtomicPtr<Recorder<'static>> = AtomicPtr::new(null_mut());
static FOLLOWING: Mutex<()> = Mutex::new(());
static TABLE: Idt = Idt::new();

/// Calls `call`, which calls the function that begins at `function` once, and notes in `stops` what comes between that function and its
/// caller. `trampolines` are where probed functions return to; `handled` counts the runs of the return handler. Task context.
///
/// `call` runs with interrupts off and so must not sleep.
///
/// None: `call` has not called the function.
pub fn follow(
    function: u64,
    trampolines: &[Range<u64>],
    handled: &AtomicU64,
    call: extern "C" fn(),
    stops: &mut [Stop],
) -> Option<Followed> {
    let _one = FOLLOWING.lock();
    let mut recorder = Recorder {
        function,
        trampolines,
        handled,
        stops,
        followed: Followed::default(),
        slot: 0,
        last: 0,
        area: Area::Code,
        trapped: false,
    };
    // SAFETY: no CPU uses the table, by F1 and F2.
    unsafe {
        TABLE.fill(|number| {
            Some(VirtAddr::from_ptr(match number {
                vector::DEBUG => follow_debug as *const (),
                vector::BREAKPOINT => follow_breakpoint as *const (),
                _ => return None,
            }))
        });
    }
    without_interrupts(|| {
        RECORDER.store((&raw mut recorder).cast(), Relaxed);
        // SAFETY: each gate names an entry; the one for all CPUs comes back before interrupts do.
        unsafe { TABLE.load() };
        // SAFETY: TF only has the next instructions followed by #DB, which the table's gate takes. The stack is aligned for a
        // call, as the block may use it, and the called function keeps to the C ABI.
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
        // Here, as the interrupts that have been waiting may call the function.
        recorder.followed.state = State {
            return_address: None,
            handled: handled.load(Relaxed),
        };
    });
    (recorder.slot != 0).then_some(recorder.followed)
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

    fn state(&self, sp: u64) -> State {
        let live = sp <= self.slot;
        State {
            // SAFETY: the stack that this runs on; the slot is not popped yet.
            return_address: live.then(|| unsafe { (self.slot as *const u64).read_volatile() }),
            handled: self.handled.load(Relaxed),
        }
    }

    fn note(&mut self, stop: Stop) {
        if let Some(free) = self.stops.get_mut(self.followed.stops) {
            *free = stop;
        }
        self.followed.stops = self.followed.stops.wrapping_add(1);
        self.followed.instructions = 0;
    }

    fn breakpoint(&mut self, regs: &PtRegs) {
        let stop = Stop {
            event: Event::Breakpoint,
            at: regs.ip.wrapping_sub(1),
            next: 0,
            state: self.state(regs.sp),
            instructions: self.followed.instructions,
        };
        self.note(stop);
        self.trapped = true;
    }

    /// Notes that control has come to `ip`. `state` is how it found things.
    fn arrive(&mut self, ip: u64, state: State) {
        let area = self.area(ip);
        if self.trapped {
            self.trapped = false;
            if let Some(stop) = self.stops.get_mut(self.followed.stops.wrapping_sub(1)) {
                stop.next = ip;
            }
        } else if area != self.area {
            self.note(Stop {
                event: Event::Jump,
                at: self.last,
                next: ip,
                state,
                instructions: self.followed.instructions,
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
            self.followed.return_address = self.state(regs.sp).return_address.unwrap_or_default();
        }
        self.followed.instructions = self.followed.instructions.wrapping_add(1);
        let state = self.state(regs.sp);
        self.arrive(before, state);
        if probes::is_stepping() {
            probes::on_debug(regs);
        }
        if regs.ip != before {
            let stop = Stop {
                event: Event::Step,
                at: before,
                next: regs.ip,
                state,
                instructions: self.followed.instructions,
            };
            self.note(stop);
            self.area = self.area(regs.ip);
            self.last = regs.ip;
        }
    }
}

/// Notes a #BP that the probes are about to get.
#[unsafe(no_mangle)]
extern "C" fn follow_note_breakpoint(regs: &PtRegs) {
    // SAFETY: F1: it points to the frame of `follow` on this CPU, which reads it again only after the call.
    if let Some(recorder) = unsafe { RECORDER.load(Relaxed).as_mut() } {
        recorder.breakpoint(regs);
    }
}

/// Notes a #DB, and lets the probes have theirs.
#[unsafe(no_mangle)]
extern "C" fn follow_note_debug(regs: &mut PtRegs) {
    // SAFETY: as above.
    if let Some(recorder) = unsafe { RECORDER.load(Relaxed).as_mut() } {
        recorder.debug(regs);
    }
    let rest = Dr6::read_raw() & !Dr6Flags::STEP.bits();
    // SAFETY: clearing a status bit has no other effect.
    unsafe { asm!("mov dr6, {}", in(reg) rest, options(nomem, nostack, preserves_flags)) };
}

// In a followed call all exceptions are ring 0's.
entry_by_way_of! { follow_breakpoint, follow_note_breakpoint, "", "jmp kprobe_breakpoint" }
entry_by_way_of! { follow_debug, follow_note_debug, "", "iretq" }
