//! Backtraces: who called whom, from any instruction of the kernel.
//!
//! A walk follows the call frame information of the compiler ([`unwind`]) and, where there is none, the frame pointer. On the way
//! it puts right what probes have changed: an instruction pointer in a slot becomes the probed address, and a return
//! address that a return probe has borrowed becomes the true one. Interrupted code is found through the frames that the entry
//! stubs have left on the stack.
//!
//! # Contexts
//! Any, also interrupts, probe handlers, NMI and panic: nothing is allocated, no lock is taken, and only kernel stacks are read.

use core::{arch::naked_asm, fmt};

use probes::PtRegs;
use spin::Once;
use unwind::{Frame, Memory, Section, Tables, register};

use crate::{
    arch::percpu,
    log::Level,
    mm::kernel_stack,
    probes,
    symbols::{self, Kind},
};

/// The most frames that a walk visits: deeper is a loop or a runaway recursion, whose top tells enough.
const MAX_FRAMES: usize = 64;

static TABLES: Once<Tables<'static>> = Once::new();

/// Finds the call frame information. Symbols and the heap are there.
pub fn init() {
    unsafe extern "C" {
        static __eh_frame_hdr_start: u8;
        static __eh_frame_hdr_end: u8;
        static __eh_frame_start: u8;
        static __eh_frame_end: u8;
    }
    let section = |start: *const u8, end: *const u8| Section {
        address: start as u64,
        // SAFETY: the linker script puts these symbols around read-only data of the image.
        bytes: unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) },
    };
    let is_text = |address| {
        symbols::lookup_addr(address)
            .is_some_and(|symbol| matches!(symbol.kind, Kind::Text | Kind::Init))
    };
    TABLES.call_once(|| {
        Tables::new(
            section(
                &raw const __eh_frame_hdr_start,
                &raw const __eh_frame_hdr_end,
            ),
            section(&raw const __eh_frame_start, &raw const __eh_frame_end),
            symbols::section(".debug_frame"),
            is_text,
        )
    });
}

/// Reads kernel stacks and nothing else.
struct Stacks;

impl Memory for Stacks {
    fn read(&self, address: u64) -> Option<u64> {
        let stack = kernel_stack::bounds(address);
        if !address.is_multiple_of(8)
            || address.checked_add(8)? > stack.end
            || address < stack.start
        {
            return None;
        }
        // SAFETY: a word inside a kernel stack, which is mapped for ever.
        Some(unsafe { (address as *const u64).read_volatile() })
    }
}

/// The functions on a stack, innermost first. See [`walk`].
pub struct Walk {
    next: Option<Frame>,
    task: u64,
    left: usize,
}

/// Walks up from interrupted registers: those of a trap, or those that a probe handler gets.
pub fn walk(regs: &PtRegs) -> Walk {
    let mut frame = frame_of(regs);
    frame.registers[register::IP] = probes::probed_ip(regs.ip);
    Walk {
        next: (!regs.user_mode()).then_some(frame),
        task: percpu::current_raw().addr() as u64,
        left: MAX_FRAMES,
    }
}

/// Walks up from the caller of this function.
#[inline(never)]
pub fn walk_current() -> Walk {
    let mut here = PtRegs::new();
    // SAFETY: stores to `here` only.
    unsafe { capture(&mut here) };
    let mut walk = walk(&here);
    walk.next = walk.next.map(|frame| Frame {
        interrupted: false,
        ..frame
    });
    walk.next();
    walk
}

/// Stores the registers that calls preserve, as they are in the caller after the call.
///
/// # Safety
/// `regs` may be written.
#[unsafe(naked)]
unsafe extern "C" fn capture(regs: &mut PtRegs) {
    naked_asm!(
        "mov [rdi + {bx}], rbx",
        "mov [rdi + {bp}], rbp",
        "mov [rdi + {r12}], r12",
        "mov [rdi + {r13}], r13",
        "mov [rdi + {r14}], r14",
        "mov [rdi + {r15}], r15",
        "lea rax, [rsp + 8]",
        "mov [rdi + {sp}], rax",
        "mov rax, [rsp]",
        "mov [rdi + {ip}], rax",
        "ret",
        bx = const core::mem::offset_of!(PtRegs, bx),
        bp = const core::mem::offset_of!(PtRegs, bp),
        r12 = const core::mem::offset_of!(PtRegs, r12),
        r13 = const core::mem::offset_of!(PtRegs, r13),
        r14 = const core::mem::offset_of!(PtRegs, r14),
        r15 = const core::mem::offset_of!(PtRegs, r15),
        sp = const core::mem::offset_of!(PtRegs, sp),
        ip = const core::mem::offset_of!(PtRegs, ip),
    )
}

fn frame_of(regs: &PtRegs) -> Frame {
    let mut registers = [0; register::COUNT];
    for (number, value) in [
        (register::AX, regs.ax),
        (register::DX, regs.dx),
        (register::CX, regs.cx),
        (register::BX, regs.bx),
        (register::SI, regs.si),
        (register::DI, regs.di),
        (register::BP, regs.bp),
        (register::SP, regs.sp),
        (register::R8, regs.r8),
        (register::R9, regs.r9),
        (register::R10, regs.r10),
        (register::R11, regs.r11),
        (register::R12, regs.r12),
        (register::R13, regs.r13),
        (register::R14, regs.r14),
        (register::R15, regs.r15),
        (register::IP, regs.ip),
    ] {
        registers[number] = value;
    }
    Frame {
        registers,
        interrupted: true,
    }
}

impl Walk {
    /// The frame above `frame`.
    fn above(&self, frame: &Frame) -> Option<Frame> {
        if let Some(interrupted) = self.through_probe_entry(frame) {
            return Some(interrupted);
        }
        let tables = TABLES.get()?;
        let mut caller = match tables.step(frame, &Stacks) {
            Ok(caller) => caller,
            Err(unwind::Stop::NoInformation { .. }) => {
                Tables::step_by_frame_pointer(frame, &Stacks).ok()?
            }
            Err(_) => return None,
        };
        if caller.interrupted {
            if is_breakpoint_stub(frame.code_address()) {
                caller.registers[register::IP] = probes::before_breakpoint(caller.ip());
            }
        } else {
            let slot = caller.sp().wrapping_sub(8);
            caller.registers[register::IP] =
                probes::real_return_address(self.task, slot, caller.ip());
        }
        Some(caller)
    }

    /// Above a probe handler that the return trampoline or the post stub has called: the probed code, whose registers the
    /// assembly keeps at the frame pointer during the call.
    fn through_probe_entry(&self, frame: &Frame) -> Option<Frame> {
        if frame.interrupted {
            return None;
        }
        let is_return = probes::in_return_trampoline(frame.code_address());
        if !is_return && !probes::in_post_stub(frame.code_address()) {
            return None;
        }
        let bp = frame.registers[register::BP];
        let stack = kernel_stack::bounds(bp);
        if !bp.is_multiple_of(8) || bp < stack.start || bp + size_of::<PtRegs>() as u64 > stack.end
        {
            return None;
        }
        // SAFETY: the frame that the assembly has built, on a live stack.
        let regs = unsafe { &*(bp as *const PtRegs) };
        let mut above = frame_of(regs);
        if is_return {
            let slot = regs.sp.wrapping_sub(8);
            above.registers[register::IP] = probes::return_target(self.task, slot);
            above.interrupted = false;
        }
        Some(above)
    }
}

/// Whether `code` is in the entry stub of #BP, above which the interrupted ip is behind a breakpoint.
fn is_breakpoint_stub(code: u64) -> bool {
    symbols::lookup_addr(code).is_some_and(|symbol| symbol.name == "asm_breakpoint")
}

impl Iterator for Walk {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let mut frame = self.next?;
        self.left = self.left.checked_sub(1)?;
        frame.registers[register::IP] = probes::original_ip(frame.ip());
        symbols::lookup_addr(frame.code_address())?;
        self.next = self.above(&frame);
        Some(frame)
    }
}

/// An address in the kernel as `function+offset/size`, both in bytes; or as a number where no function is.
pub struct Place(pub u64);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match symbols::lookup_addr(self.0) {
            Some(symbol) => write!(
                f,
                "{symbol}+{:#x}/{:#x}",
                self.0 - symbol.start,
                symbol.size
            ),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

fn print_walk(level: Level, walk: Walk) {
    crate::log::printk(level, &format_args!("Call trace:"));
    for frame in walk {
        let mark = if frame.interrupted {
            " <interrupted>"
        } else {
            ""
        };
        // A return address may be the first of the next function: the call it belongs to names the function.
        let at = frame.code_address();
        match symbols::lookup_addr(at) {
            Some(symbol) => {
                let offset = frame.ip().wrapping_sub(symbol.start);
                crate::log::printk(
                    level,
                    &format_args!(" {symbol}+{offset:#x}/{:#x}{mark}", symbol.size),
                );
            }
            None => {
                crate::log::printk(level, &format_args!(" {at:#x}{mark}"));
            }
        }
    }
}

/// Prints a backtrace from interrupted registers.
pub fn print(regs: &PtRegs) {
    print_walk(Level::Info, walk(regs));
}

/// Prints a backtrace from the caller.
#[inline(never)]
pub fn print_current(level: Level) {
    print_walk(level, walk_current());
}
