//! The call frame information of the running kernel, and reads of its stacks.
//!
//! Linker symbols give the loaded sections. `.debug_frame`, which describes the toolchain's own
//! code, is only in the kernel's ELF file; the image keeps it when debug information is stripped.

use super::is_hit;
use crate::{
    mm::{kernel_stack, paging},
    probes::{Kernel, PROBES, hooks},
    symbols,
};
use core::slice;
use spin::Once;
use trace_agent::{Traced, code::CodeFrame};
use unwind::{Frame, Memory, Section, Stop, Tables, fast::FastTable, register};
use x86_64::VirtAddr;

static TABLES: Once<Tables<'static>> = Once::new();

/// Sets the tables up. Needs the symbols and the heap.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init() {
    unsafe extern "C" {
        static __eh_frame_hdr_start: u8;
        static __eh_frame_hdr_end: u8;
        static __eh_frame_start: u8;
        static __eh_frame_end: u8;
    }
    let section = |start: *const u8, end: *const u8| Section {
        address: start.addr() as u64,
        // SAFETY: the linker script puts the symbols around the section, which is constant.
        bytes: unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) },
    };
    TABLES.call_once(|| {
        Tables::new(
            section(
                &raw const __eh_frame_hdr_start,
                &raw const __eh_frame_hdr_end,
            ),
            section(&raw const __eh_frame_start, &raw const __eh_frame_end),
            symbols::section(".debug_frame"),
            symbols::is_text,
        )
    });
}

/// Whether backtraces can be made.
pub(super) fn is_ready() -> bool {
    TABLES.is_completed()
}

/// Whether call frame information describes the code at `address`. Any context.
pub fn describes(address: u64) -> bool {
    TABLES.get().is_some_and(|tables| tables.describes(address))
}

/// Makes a table for fast walks. It says nothing about stubs and trampolines of hits, because the
/// frame information alone does not lead to the true address above them. None: there is no memory,
/// or it is too early in the boot. Task context.
pub fn fast_table() -> Option<FastTable> {
    let is_described = |address| {
        symbols::is_text(address) && !is_hit(address) && !hooks::in_return_trampoline(address)
    };
    let trampolines = hooks::return_trampolines().map(|trampoline| trampoline.start);
    FastTable::new(TABLES.get()?, is_described, &trampolines).ok()
}

/// The kernel's stacks. A read neither faults nor blocks.
pub(super) struct Stacks;

impl Memory for Stacks {
    fn read(&self, address: u64) -> Option<u64> {
        let is_stack = address.is_multiple_of(8) && !kernel_stack::bounds(address).is_empty();
        // The region of stacks is not mapped up to its end.
        if !is_stack || paging::translate_kernel(VirtAddr::try_new(address).ok()?).is_none() {
            return None;
        }
        // SAFETY: mapped, and stacks stay mapped for ever. Another CPU may write there, but an
        // aligned word is read by one load.
        Some(unsafe { (address as *const u64).read_volatile() })
    }
}

/// The frame above code of an action. Registers that it has changed, other than `rbp`, are not
/// known there; no frame of the kernel is found by them.
fn step_out_of_action(frame: &Frame, code: &CodeFrame) -> Result<Frame, Stop> {
    let read = |address| Stacks.read(address).ok_or(Stop::Unreadable { address });
    let base = frame.registers[if code.by_bp {
        register::BP
    } else {
        register::SP
    }];
    let slot = base.wrapping_add(code.bytes.into());
    let mut caller = *frame;
    caller.registers[register::IP] = read(slot)?;
    if code.saved_bp != 0 {
        caller.registers[register::BP] = read(slot.wrapping_sub(code.saved_bp.into()))?;
    }
    caller.registers[register::SP] = slot.wrapping_add(8);
    // A detour calls an action in place of the probed instruction, with the registers of that.
    let ip = caller.ip();
    caller.interrupted = PROBES.displaced(ip).is_some() && PROBES.described_ip(ip) == ip;
    Ok(caller)
}

/// The frame above `frame`, by the frame pointer where nothing describes the code. Any context.
pub(super) fn step(frame: &Frame) -> Result<Frame, Stop> {
    let tables = TABLES.get().ok_or(Stop::Outermost)?;
    if let Some(code) = Kernel::tracing().code.frame_at(frame.code_address()) {
        return step_out_of_action(frame, &code);
    }
    match tables.step(frame, &Stacks) {
        Err(Stop::NoInformation { code }) if symbols::is_text(code) => {
            Tables::step_by_frame_pointer(frame, &Stacks)
        }
        Err(Stop::NoInformation { .. }) if frame.interrupted => step_out_of_nowhere(frame),
        result => result,
    }
}

/// The frame above one where no code is: a wild call has left only its return address on the stack.
fn step_out_of_nowhere(frame: &Frame) -> Result<Frame, Stop> {
    let address = frame.sp();
    let mut caller = *frame;
    caller.registers[register::IP] = Stacks.read(address).ok_or(Stop::Unreadable { address })?;
    caller.registers[register::SP] = address + 8;
    caller.interrupted = false;
    Ok(caller)
}
