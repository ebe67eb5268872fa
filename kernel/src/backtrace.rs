//! Backtraces: the chain of callers, from any instruction of the kernel.
//!
//! A walk has one of three starts: the registers of an exception or interrupt, its own caller, or
//! the place where a task that does not run called the scheduler. It goes from frame to frame by
//! the call frame information of the compiler and of our assembly ([`unwind`]). The entry stubs
//! have such information too, so a walk crosses exceptions and interrupts. It ends at ring 3, at a
//! task's first frame, or after [`MAX_FRAMES`] frames.
//!
//! Probes change the contents of stacks and the places where code runs. The walk shows the code as
//! it would be without probes:
//!
//! - for a breakpoint, or for an instruction in a slot: the probed instruction;
//! - for a return address that a return probe has borrowed: the true one;
//! - above the return trampoline: the address to which it will return;
//! - above the code of an action, which has a list of its frames: the probed instruction.
//!
//! # Contexts
//! Any, also interrupts, probe handlers, NMI and panic. A walk allocates nothing, takes no lock,
//! and reads only kernel stacks, where they are mapped. A walked task may begin to run on another
//! CPU meanwhile. Then the trace ends early or holds calls that are over; nothing worse happens. A
//! walk needs about 4 KiB of stack.

pub mod unwind;

use crate::{
    arch::{PtRegs, percpu, switch},
    log::{Level, printk},
    probes::{PROBES, hooks},
    symbols::Address,
    task::Task,
};
use ::unwind::{Frame, Memory, register};
use core::{arch::naked_asm, fmt, mem::offset_of, sync::atomic::Ordering};
use unwind::Stacks;

/// The most frames that a walk visits. A deeper stack is a loop or a runaway recursion, and its top
/// says enough.
const MAX_FRAMES: usize = 64;

/// The text for the return trampoline, as on Linux.
const RETURN_PROBED: &str = "\n [unknown/kretprobe'd]";

/// The functions on a stack, innermost first.
#[derive(Clone, Debug)]
pub struct Walk {
    next: Option<Frame>,
    /// The task whose stack it is, by the key that the probes use.
    task: u64,
    left: usize,
}

/// Walks up from the registers that a probe handler gets, or from those of a trap or an interrupt
/// of other code. Gives nothing for registers of ring 3.
pub fn walk(regs: &PtRegs) -> Walk {
    let mut probed = *regs;
    probed.ip = hooks::probed_ip(regs.ip);
    walk_interrupted(&probed)
}

/// Walks up from the registers of an exception, an interrupt or an NMI on this CPU. It may have
/// interrupted a probe handler. The ip of such registers is the next instruction to be executed,
/// unlike the ip of the registers that a handler gets. Gives nothing for registers of ring 3.
pub fn walk_interrupted(regs: &PtRegs) -> Walk {
    Walk::new((!regs.user_mode()).then(|| frame_of(regs)), current())
}

/// Walks up from the registers of CPU `cpu`, which has stopped for good. Gives nothing for
/// registers of ring 3.
pub fn walk_stopped(cpu: usize, regs: &PtRegs) -> Walk {
    let task = percpu::of(cpu).current.load(Ordering::Relaxed);
    Walk::new(
        (!regs.user_mode()).then(|| frame_of(regs)),
        task.addr() as u64,
    )
}

/// Walks up from the caller of this function.
#[inline(never)]
pub fn walk_current() -> Walk {
    let mut registers = [0; register::COUNT];
    store_registers(&mut registers);
    let here = Frame {
        registers,
        interrupted: false,
    };
    let mut walk = Walk::new(Some(here), current());
    walk.next();
    walk
}

/// Walks up from the place where `task` called the scheduler. Gives nothing for a task that runs,
/// because its stack changes.
pub fn walk_task(task: &Task) -> Walk {
    let frame = (!task.is_running())
        .then(|| switch::saved_frame(task, &Stacks))
        .flatten();
    Walk::new(frame, task.key())
}

fn current() -> u64 {
    percpu::current_raw().addr() as u64
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

/// Stores the registers that calls preserve, as they are in the caller after the call.
#[unsafe(naked)]
extern "C" fn store_registers(registers: &mut [u64; register::COUNT]) {
    naked_asm!(
        ".cfi_startproc",
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
        ".cfi_endproc",
        bx = const 8 * register::BX,
        bp = const 8 * register::BP,
        r12 = const 8 * register::R12,
        r13 = const 8 * register::R13,
        r14 = const 8 * register::R14,
        r15 = const 8 * register::R15,
        sp = const 8 * register::SP,
        ip = const 8 * register::IP,
    )
}

impl Walk {
    fn new(first: Option<Frame>, task: u64) -> Self {
        Self {
            next: first.map(as_probed),
            task,
            left: MAX_FRAMES,
        }
    }

    /// The frame above `frame`.
    fn above(&self, frame: &Frame) -> Option<Frame> {
        let mut above = unwind::step(frame).ok()?;
        if above.interrupted {
            if is_hit(frame.code_address()) && !is_preempted(frame) {
                above.registers[register::IP] = hooks::before_breakpoint(above.ip());
            }
        } else {
            // The frame of a called function lies below that of its caller.
            if above.sp() <= frame.sp() && !frame.interrupted {
                return None;
            }
            let slot = above.sp().wrapping_sub(8);
            above.registers[register::IP] = if hooks::in_return_trampoline(frame.code_address()) {
                self.behind_trampoline(frame, &above, slot)?
            } else {
                PROBES.return_address(self.task, slot, above.ip())
            };
        }
        // A 0 ends a chain of frame pointers.
        let is_kernel = above.ip() >> 63 != 0;
        is_kernel.then(|| as_probed(above))
    }

    /// The address to which the return trampoline, in which `frame` is, will return, with `above`
    /// as the frame above. There are three sources, one for each phase of the trampoline:
    ///
    /// 1. The instance list, until the call is taken off it.
    /// 2. The registers that handlers got.
    /// 3. The frame information, once the address lies where the last instruction takes it. Before
    ///    that, the return slot holds its own end.
    fn behind_trampoline(&self, frame: &Frame, above: &Frame, slot: u64) -> Option<u64> {
        let regs_ip = slot - size_of::<PtRegs>() as u64 + offset_of!(PtRegs, ip) as u64;
        hooks::borrowed_return_address(self.task, slot)
            .or_else(|| Some(above.ip()).filter(|&ip| ip != above.sp()))
            .or_else(|| Stacks.read(regs_ip).filter(|_| regs_ip >= frame.sp()))
    }
}

/// The frame as the probed code has it, if it was interrupted in the slot of a probe. If the frame
/// information of its code is elsewhere, the frame is moved there.
fn as_probed(mut frame: Frame) -> Frame {
    frame.registers[register::IP] = PROBES.described_ip(frame.ip());
    if frame.interrupted {
        let read = |address| Stacks.read(address);
        let (ip, sp) = PROBES.original_position(frame.ip(), frame.sp(), read);
        frame.registers[register::IP] = ip;
        frame.registers[register::SP] = sp;
    }
    frame
}

/// Whether `code` is in an entry stub of #BP or in a detour. Above these, the interrupted ip is
/// after a breakpoint.
fn is_hit(code: u64) -> bool {
    crate::symbols::lookup_addr(code).is_some_and(|symbol| {
        matches!(
            symbol.name,
            "kprobe_breakpoint"
                | "kprobe_hit"
                | "kprobe_hit_post"
                | "kprobe_any_hit"
                | "kprobe_action"
                | "kprobe_one_kretprobe"
                | "kprobe_kretprobes"
                | "jprobe_leave"
                | "asm_breakpoint_other"
                | "preemptible_breakpoint"
                | "kprobe_detour"
                | "kprobe_detour_at_entry"
                | "kretprobe_detour_entry"
        )
    })
}

/// Whether `frame` is that of the entry that preempts in front of a breakpoint, and has moved the
/// interrupted ip there.
///
/// When it does, it changes `orig_ax`, which lies above the stack pointer of its call
/// (`probes/gate_entry.rs`). An NMI around the call cannot tell. It takes an ip that was moved for
/// what it is, unless the instruction before has a breakpoint, too.
fn is_preempted(frame: &Frame) -> bool {
    const PADDING: u64 = 8;
    let name = crate::symbols::lookup_addr(frame.code_address()).map(|symbol| symbol.name);
    let orig_ax = frame.sp() + PADDING + offset_of!(PtRegs, orig_ax) as u64;
    name == Some("preemptible_breakpoint")
        && !frame.interrupted
        && Stacks.read(orig_ax) != Some(u64::MAX)
}

impl Iterator for Walk {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let frame = self.next.take()?;
        self.left = self.left.checked_sub(1)?;
        self.next = self.above(&frame);
        Some(frame)
    }
}

/// A backtrace that has been taken and can be printed: a line for each function.
pub struct Trace {
    /// The address, and whether the code was interrupted there. Otherwise it waits for a call.
    frames: [(u64, bool); MAX_FRAMES],
    len: usize,
}

impl From<Walk> for Trace {
    fn from(walk: Walk) -> Self {
        let mut trace = Self {
            frames: [(0, false); MAX_FRAMES],
            len: 0,
        };
        for (to, frame) in trace.frames.iter_mut().zip(walk) {
            *to = (frame.ip(), frame.interrupted);
            trace.len += 1;
        }
        trace
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Call trace:")?;
        for &(ip, interrupted) in &self.frames[..self.len] {
            if interrupted {
                write!(f, "\n {} <interrupted>", Address::of_instruction(ip))?;
            } else {
                match hooks::in_return_trampoline(ip.wrapping_sub(1)) {
                    // Two cases: the probes' own frame, in a trace from inside a handler; or a call
                    // whose true caller is not known.
                    true => f.write_str(RETURN_PROBED)?,
                    false => write!(f, "\n {}", Address::of_return(ip))?,
                }
            }
        }
        match self.len {
            MAX_FRAMES => f.write_str("\n ..."),
            0 if !unwind::is_ready() => f.write_str("\n unknown: it is too early in the boot"),
            _ => Ok(()),
        }
    }
}

/// Prints a backtrace from interrupted registers. Any context.
pub fn print(regs: &PtRegs) {
    printk(Level::Info, &format_args!("{}", Trace::from(walk(regs))));
}

/// Prints a backtrace from the caller. Any context.
#[inline(never)]
pub fn print_current(level: Level) {
    printk(level, &format_args!("{}", Trace::from(walk_current())));
}

/// Prints registers as Linux does. Any context.
pub struct Registers<'a>(pub &'a PtRegs);

impl fmt::Display for Registers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let ip = Address::of_instruction(r.ip);
        writeln!(f, "RIP: {:04x}:{ip} ({:#x})", r.cs, r.ip)?;
        writeln!(
            f,
            "RSP: {:04x}:{:016x} EFLAGS: {:08x} ORIG_RAX: {:016x}",
            r.ss, r.sp, r.flags, r.orig_ax
        )?;
        writeln!(
            f,
            "RAX: {:016x} RBX: {:016x} RCX: {:016x}",
            r.ax, r.bx, r.cx
        )?;
        writeln!(
            f,
            "RDX: {:016x} RSI: {:016x} RDI: {:016x}",
            r.dx, r.si, r.di
        )?;
        writeln!(
            f,
            "RBP: {:016x} R08: {:016x} R09: {:016x}",
            r.bp, r.r8, r.r9
        )?;
        writeln!(
            f,
            "R10: {:016x} R11: {:016x} R12: {:016x}",
            r.r10, r.r11, r.r12
        )?;
        write!(
            f,
            "R13: {:016x} R14: {:016x} R15: {:016x}",
            r.r13, r.r14, r.r15
        )
    }
}
