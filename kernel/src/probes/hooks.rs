//! The kernel's calls to the probes that are more than one method of [`PROBES`].

use core::ops::Range;

use x86_64::registers::debug::{Dr6, Dr6Flags};

use super::{PROBES, WATCHPOINTS, every_cpu, platform, text_poke, watched_objects};
use crate::{
    arch::{PtRegs, debug},
    symbols, trace, uprobes,
};

/// Asks the probes whether a #DB is theirs. Called first by the #DB handler, interrupts off, kernel
/// mode. True: resume with `regs`. Not inlined, because the list of code that may not be probed is
/// tested with a clone of it.
///
/// QEMU 7.2 raises a second #DB if a stepped instruction has touched a watched word, and it
/// interrupts the first instruction of the entry. A processor raises one for both causes. DR6 names
/// both by then, so the first one serves them.
#[inline(never)]
pub fn on_debug(regs: &mut PtRegs) -> bool {
    let status = Dr6::read_raw();
    if status & Dr6Flags::TRAP.bits() != 0 && regs.ip == debug_stub() {
        return true;
    }
    let is_step = status & Dr6Flags::STEP.bits() != 0;
    let is_written = is_step && watched_objects::is_step_of(regs);
    let written = is_written.then(|| watched_objects::end_step(regs));
    let ours = match &written {
        Some(written) if !written.is_stepped => WATCHPOINTS.on_match(regs, status),
        _ => PROBES.on_debug(regs, status),
    };
    if let Some(written) = written {
        written.tell(regs);
    }
    if ours {
        // Read again, because the probes clear the bits of watchpoints.
        debug::clear_single_step(Dr6::read_raw());
    }
    ours
}

/// The same by the shortest way for a #DB that comes while a write to a watched object is under
/// way. False: it may have another cause, and is left to [`on_debug`].
#[inline(always)]
pub fn on_object_step(regs: &mut PtRegs, status: u64) -> bool {
    let is_lone = status & (Dr6Flags::STEP | Dr6Flags::TRAP).bits() == Dr6Flags::STEP.bits();
    is_lone && watched_objects::on_lone_step(regs, status)
}

/// The same for a #DB that only debug registers have caused, by the shortest way.
#[inline(always)]
pub fn on_match(regs: &mut PtRegs, status: u64) -> bool {
    // As in `on_debug`.
    regs.ip == debug_stub() || WATCHPOINTS.on_match(regs, status)
}

/// Asks the probes whether a #DB of ring 3 that is more than matches of debug registers is theirs.
/// A match is served first, because the program is still at what has matched. Not inlined, because
/// it calls handlers.
#[inline(never)]
pub fn on_user_debug(regs: &mut PtRegs) -> bool {
    let status = Dr6::read_raw();
    if status & Dr6Flags::TRAP.bits() != 0 {
        WATCHPOINTS.on_match(regs, status);
    }
    uprobes::hit::on_debug(regs)
}

/// Where the gate of #DB leads.
#[inline(always)]
fn debug_stub() -> u64 {
    platform::kprobe_debug as *const () as u64
}

/// Lets the probes look at a fault first. A load of an action is mended. An ip in a slot becomes
/// the probed address; then fault handlers are asked. Interrupts off, kernel mode. True: handled,
/// resume with `regs`.
///
/// One copy for all exceptions, because faults are rare and the method is long.
#[inline(never)]
pub fn on_fault(regs: &mut PtRegs, vector: u8) -> bool {
    trace::mend(regs) || PROBES.on_fault(regs, vector)
}

/// Runs on a CPU that gets the synchronising IPI, interrupts off.
pub fn on_sync_ipi(regs: &PtRegs) {
    // So that the work can ask whether it has interrupted a hit.
    PROBES.irq_enter(regs.ip);
    every_cpu::work_here();
    PROBES.irq_exit();
    text_poke::on_ipi(regs.ip);
}

/// The addresses of the trampolines that return-probed functions return to. Any context.
pub fn return_trampolines() -> [Range<u64>; 4] {
    platform::return_trampolines().map(|trampoline| {
        let start = trampoline as u64;
        start..start + symbols::lookup_addr(start).map_or(1, |symbol| symbol.size)
    })
}

/// Whether `code` is an address in a trampoline that return-probed functions return to. Any
/// context.
pub fn in_return_trampoline(code: u64) -> bool {
    return_trampolines()
        .iter()
        .any(|trampoline| trampoline.contains(&code))
}

/// The true return address of the call of `task` whose return slot is at `slot_addr`. `None` if a
/// return probe has not borrowed that slot, or has given it back. Any context.
pub fn borrowed_return_address(task: u64, slot_addr: u64) -> Option<u64> {
    let trampoline = platform::return_trampolines()[0] as u64;
    let address = PROBES.return_address(task, slot_addr, trampoline);
    (address != trampoline).then_some(address)
}

/// The address that the registers of a handler stand for. In a pre handler `ip` is after the
/// breakpoint, and the probed address is meant. Any context.
pub fn probed_ip(ip: u64) -> u64 {
    if PROBES.in_pre_handler() {
        before_breakpoint(ip)
    } else {
        ip
    }
}

/// The probed address, if a #BP that left `ip` is a probe's; otherwise `ip`. Any context.
pub fn before_breakpoint(ip: u64) -> u64 {
    if PROBES.is_breakpoint(ip) { ip - 1 } else { ip }
}
