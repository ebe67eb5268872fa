//! Traps and interrupts: the gates, and who is asked.
//!
//! # GS
//! A gate from ring 3 swaps GS at its first instruction and at its last. An NMI may come in
//! between, where CS says nothing, so its stub looks at the GS base itself: ring 3 has 0 (CPU-2).
//! Calls of the kernel are a trap, so ring 0 always has a stack of its own. Therefore an NMI needs
//! no stack of its own, and may come in an NMI that a breakpoint has let through.
//!
//! # One gate, several owners
//! The gate of #BP leads to the probes' `kprobe_breakpoint`. It looks only at the address, so it
//! may be entered from ring 3, with the GS of ring 3. What is not the probes' goes on to the stub
//! that [`BREAKPOINT_OWNER`] names, as if the gate led there. Then the program is asked for ring 3,
//! and the debugger for ring 0. The gate of #DB leads to `kprobe_debug` in the same way, and
//! [`DEBUG_OWNER`] names the stub for what is no hit of one watchpoint. The other exceptions come
//! to this kernel's stubs, and [`exception`] offers them to the probes first.
//!
//! # Contexts
//! All with interrupts off, on the stack of the interrupted code, or of its task for ring 3.

use alloc::boxed::Box;
use core::{
    arch::naked_asm,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use probes::{gates::GateOwner, pt_regs::Frame as _, self_test};
use spin::{Lazy, Once};
use x86_64::{
    PrivilegeLevel, VirtAddr,
    registers::{control::Cr2, debug::Dr6, debug::Dr6Flags},
    structures::idt::InterruptDescriptorTable,
};

use crate::{
    PROBES,
    cpu::{self, DOUBLE_FAULT_STACK, per_cpu},
    death, debugger, fixups,
    frame::{CALL, Frame, SPARE, SPURIOUS, SYSTEM_CALL, TICK},
    kprobe_breakpoint, kprobe_debug, smp, tasks,
    tracing::TRACING,
    user,
};

/// Defines the stub of a vector. `begin` is the first instruction: it pushes the word for the error
/// code where the processor has not.
///
/// ```text
///   rsp at the trap, aligned down to 16
///   +0x88  ss sp flags cs ip   pushed by the processor
///   +0x80  error               by the processor or by `begin`
///   +0x78  vector
///   +0x70  r15 ... down to
///   +0x00  rax                 <- the `Frame`, and rsp at the call, aligned to 16
/// ```
macro_rules! stubs {
    ($($name:ident $vector:literal $begin:literal)*) => {
        $(
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    $begin,
                    concat!("push ", $vector),
                    "test byte ptr [rsp + 24], 3",
                    "jz 2f",
                    "swapgs",
                    "2: jmp {rest}",
                    rest = sym rest_of_stub,
                )
            }
        )*
    };
}

stubs! {
    divide_error 0 "push -1"
    debug 1 "push -1"
    breakpoint_gate 3 "push -1"
    invalid_opcode 6 "push -1"
    double_fault 8 ""
    protection_fault 13 ""
    page_fault 14 ""
    tick 0x40 "push -1"
    call 0x41 "push -1"
    spare 0x42 "push -1"
    system_call 0x80 "push -1"
}

/// What all stubs go on with, GS being the kernel's.
#[unsafe(naked)]
unsafe extern "C" fn rest_of_stub() {
    naked_asm!(
        "push r15; push r14; push r13; push r12; push r11; push r10; push r9; push r8",
        "push rbp; push rdi; push rsi; push rdx; push rcx; push rbx; push rax",
        "cld",
        "mov rdi, rsp",
        "call {trap}",
        "pop rax; pop rbx; pop rcx; pop rdx; pop rsi; pop rdi; pop rbp",
        "pop r8; pop r9; pop r10; pop r11; pop r12; pop r13; pop r14; pop r15",
        "add rsp, 16",
        "test byte ptr [rsp + 8], 3",
        "jz 2f",
        "swapgs",
        "2: iretq",
        trap = sym trap,
    )
}

/// The stub of NMIs. rbx says whether GS is to be swapped again.
#[unsafe(naked)]
unsafe extern "C" fn nmi() {
    naked_asm!(
        "push -1; push 2",
        "push r15; push r14; push r13; push r12; push r11; push r10; push r9; push r8",
        "push rbp; push rdi; push rsi; push rdx; push rcx; push rbx; push rax",
        "cld",
        "mov ecx, 0xc0000101", // The GS base.
        "rdmsr",
        "or eax, edx",
        "mov ebx, eax",
        "jnz 2f",
        "swapgs",
        "2: mov rdi, rsp",
        "call {trap}",
        "test ebx, ebx",
        "jnz 2f",
        "swapgs",
        "2: pop rax; pop rbx; pop rcx; pop rdx; pop rsi; pop rdi; pop rbp",
        "pop r8; pop r9; pop r10; pop r11; pop r12; pop r13; pop r14; pop r15",
        "add rsp, 16",
        "iretq",
        trap = sym trap,
    )
}

/// Interrupts that the local APIC takes back.
#[unsafe(naked)]
unsafe extern "C" fn spurious() {
    naked_asm!("iretq")
}

/// Where breakpoints go that are not the probes'.
pub static BREAKPOINT_OWNER: GateOwner = GateOwner::of(breakpoint_gate);
/// Where a #DB goes that one watchpoint alone has not caused.
pub static DEBUG_OWNER: GateOwner = GateOwner::of(debug);

static GATES: Lazy<InterruptDescriptorTable> = Lazy::new(|| {
    let mut gates = InterruptDescriptorTable::new();
    let at = |stub: unsafe extern "C" fn()| VirtAddr::new(stub as *const () as u64);
    // SAFETY: each stub is made for its vector: it takes the frame that the processor pushes there,
    // restores all registers and leaves by `iretq`.
    unsafe {
        gates.divide_error.set_handler_addr(at(divide_error));
        gates.debug.set_handler_addr(at(kprobe_debug));
        gates.non_maskable_interrupt.set_handler_addr(at(nmi));
        let gate = gates.breakpoint.set_handler_addr(at(kprobe_breakpoint));
        gate.set_privilege_level(PrivilegeLevel::Ring3);
        gates.invalid_opcode.set_handler_addr(at(invalid_opcode));
        let gate = gates.double_fault.set_handler_addr(at(double_fault));
        gate.set_stack_index(DOUBLE_FAULT_STACK);
        gates
            .general_protection_fault
            .set_handler_addr(at(protection_fault));
        gates.page_fault.set_handler_addr(at(page_fault));
        gates[TICK].set_handler_addr(at(tick));
        gates[CALL].set_handler_addr(at(call));
        gates[SPARE].set_handler_addr(at(spare));
        gates[SPURIOUS].set_handler_addr(at(spurious));
        let gate = gates[SYSTEM_CALL].set_handler_addr(at(system_call));
        gate.set_privilege_level(PrivilegeLevel::Ring3);
    }
    gates
});

/// Gives the calling CPU, which is number `cpu`, its tables. Interrupts off.
pub fn init_cpu(cpu: usize) {
    let double_fault_stack = Box::leak(Box::new([0u64; 1024]));
    cpu::init(cpu, double_fault_stack.as_ptr_range().end.addr() as u64);
    GATES.load();
}

per_cpu! {
    /// The NMIs that the CPU has had.
    pub static NMIS: AtomicU64 = AtomicU64::new(0);
}

/// An NMI. It may be probed.
#[unsafe(no_mangle)]
#[unsafe(link_section = "probeable")]
#[inline(never)]
extern "C" fn on_nmi() {
    NMIS.here().fetch_add(1, Relaxed);
}

/// Asked about the traps of ring 0 that are nobody else's: true, if the code goes on. The interrupt
/// [`SPARE`] is its own.
pub static LAST_OWNER: Once<fn(&mut Frame) -> bool> = Once::new();

fn is_of_last_owner(frame: &mut Frame) -> bool {
    let is_theirs = LAST_OWNER.get().is_some_and(|owner| owner(frame));
    if is_theirs {
        // Where a jump has taken the place of the code.
        frame.ip = PROBES.executable_ip(frame.ip);
    }
    is_theirs
}

/// The rest of each trap, in Rust.
extern "C" fn trap(frame: &mut Frame) {
    match frame.vector as u8 {
        TICK => {
            smp::end_of_interrupt();
            PROBES.preempt(frame.ip, tasks::preempt);
        }
        vector @ (CALL | SPARE) => {
            PROBES.irq_enter(frame.ip);
            match vector {
                CALL => smp::on_call(),
                _ => {
                    is_of_last_owner(frame);
                }
            }
            PROBES.irq_exit();
            smp::end_of_interrupt();
        }
        SYSTEM_CALL => user::system_call(frame),
        2 => {
            death::stop_if_near();
            // A hit that it has interrupted goes on when it is over.
            PROBES.aside(|| {
                on_nmi();
                self_test::answer_nmi();
            });
        }
        _ if frame.is_from_user() => user::exception(frame),
        _ => exception(frame),
    }
}

/// An exception of ring 0: the probes first, at the address where it happened without them.
fn exception(frame: &mut Frame) {
    let vector = frame.vector as u8;
    let is_theirs = frame.with_regs(|regs| match vector {
        1 => {
            let is_theirs = PROBES.on_debug(regs, Dr6::read_raw());
            // SAFETY: a write to the status has no other effect.
            unsafe {
                let rest = Dr6::read_raw() & !Dr6Flags::STEP.bits();
                core::arch::asm!("mov dr6, {}", in(reg) rest, options(nomem, nostack));
            }
            is_theirs
        }
        // They have been asked before.
        3 => false,
        // First of all a load of the tracer's that has found no memory.
        _ => TRACING.mend(regs) || PROBES.on_fault(regs, vector),
    });
    let is_handled = match vector {
        _ if is_theirs => true,
        3 => debugger::on_breakpoint(frame),
        13 | 14 => fixups::on_fault(frame),
        _ => false,
    };
    if !is_handled && !is_of_last_owner(frame) {
        panic!("trap {vector}, cr2 {:#x}: {frame:#x?}", Cr2::read_raw());
    }
}
