//! A call, interrupted between any two of its instructions: those of the probes' breakpoints,
//! slots, detours and trampolines too.
//!
//! The call runs with RFLAGS.TF set, and meanwhile the calling CPU uses a table of interrupts of
//! its own:
//!
//! ```text
//!   #DB ─► step_debug       asks the test, as an interrupt between these two instructions would,
//!                           and goes on with TF set
//!   #BP ─► step_breakpoint  takes TF out of the frame, as if nothing stepped; sets it again;
//!                           kprobe_breakpoint
//! ```
//!
//! A #DB that a watchpoint has caused, at the one place that [`step_through_touch`] is told of,
//! goes to `kprobe_debug` in the same way as a breakpoint does to `kprobe_breakpoint`.
//!
//! So the handler of a breakpoint is stepped through as well, and does what it does without. Where
//! it loads flags that it has stored before, by `popfq` or `iretq`, TF is put into them first: no
//! instruction gets by. The test's own code at a step is not stepped; handlers of faults and
//! of interrupts are not, as their gates clear TF.
//!
//! # Invariants
//! STEPPING-1. A CPU uses [`TABLE`] only inside [`with_entries`], one CPU at a time: with
//!     interrupts off, or on a machine that has no other.

use crate::platform::suite::flags::TF;
use ::probes::Platform;
use core::{
    arch::naked_asm,
    cell::UnsafeCell,
    mem::{self, size_of_val},
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{debug::clear_single_step, idt::vector},
    probes::{Kernel, PROBES, PtRegs, hooks},
};
use x86_64::{
    VirtAddr,
    instructions::{
        interrupts::without_interrupts,
        tables::{lidt, sidt},
    },
    registers::debug::{Dr6, Dr6Flags},
    structures::DescriptorTablePointer,
};

/// The gates of all vectors (Intel SDM vol. 3A, figure 6-8).
type Gates = [[u8; 16]; 256];

/// A table of interrupts.
#[repr(align(16))]
struct Table(UnsafeCell<Gates>);

// SAFETY: written while no CPU uses it, by STEPPING-1.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([[0; 16]; 256]));

/// The work of a test between two instructions, given the registers of that moment. It must do
/// nothing that a handler of an NMI may not.
pub type AtEach = fn(&PtRegs);

static AT_EACH: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// The test is being asked: what it calls is not stepped.
static IS_ASKED: AtomicBool = AtomicBool::new(false);
/// The end of the instruction that touches a watched word; 0: there is none.
static TOUCHED: AtomicU64 = AtomicU64::new(0);
/// The watchpoints that have matched there, as DR6 names them, until that is cleared.
static MATCHED: AtomicU64 = AtomicU64::new(0);
/// Where the last instruction was.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Calls `call` and asks `at_each` between any two instructions of it. Interrupts are off
/// meanwhile. Task context.
pub fn step_through(call: extern "C" fn(), at_each: AtEach) {
    step_through_tasks(call, at_each, || {});
}

/// The same for a call with an instruction that touches a watched word: the one that ends at
/// `touched`. `kprobe_debug` and what it leads to are stepped through.
pub fn step_through_touch(call: extern "C" fn(), at_each: AtEach, touched: u64) {
    TOUCHED.store(touched, SeqCst);
    step_through(call, at_each);
    TOUCHED.store(0, SeqCst);
}

/// The same for a call that gives way to other tasks of this CPU, which are then stepped through,
/// too, with interrupts off. They may have TF in flags that they have saved. So `afterwards` waits
/// until they have ended: it is not stepped, and meanwhile each such TF is cleared by the trap that
/// it brings.
pub fn step_through_tasks(call: extern "C" fn(), at_each: AtEach, afterwards: impl FnOnce()) {
    without_interrupts(|| {
        AT_EACH.store(at_each as *mut (), SeqCst);
        let run = || {
            // SAFETY: #DB, which is raised until the call is over, has its entry. The called
            // function keeps to the C ABI.
            unsafe { run_stepped(call) };
            IS_ASKED.store(true, SeqCst);
            afterwards();
            IS_ASKED.store(false, SeqCst);
        };
        // SAFETY: each entry expects its vector. Interrupts are off, so STEPPING-1 holds.
        unsafe { with_entries(step_debug as *const (), step_breakpoint as *const (), run) };
    });
}

/// Does `run` while #DB and #BP come in at these entries on this CPU.
///
/// # Safety
/// Each entry expects its vector. STEPPING-1: no other CPU does this meanwhile, and the caller
/// stays on its CPU.
pub unsafe fn with_entries(debug: *const (), breakpoint: *const (), run: impl FnOnce()) {
    let usual = sidt();
    assert_eq!(usize::from(usual.limit) + 1, size_of::<Gates>());
    // SAFETY: the table that this CPU uses, which stays; and ours, which no CPU uses, by the
    // contract.
    let (from, to) = unsafe { (&*usual.base.as_ptr::<Gates>(), &mut *TABLE.0.get()) };
    to.copy_from_slice(from);
    set_entry(to, vector::DEBUG, debug);
    set_entry(to, vector::BREAKPOINT, breakpoint);
    let ours = DescriptorTablePointer {
        limit: (size_of_val(to) - 1) as u16,
        base: VirtAddr::from_ptr(to),
    };
    // SAFETY: each gate names an entry that expects its vector, by the contract.
    unsafe { lidt(&ours) };
    run();
    // SAFETY: the table from before.
    unsafe { lidt(&usual) };
}

/// Calls `call` with TF set.
///
/// ```text
///   S       return address
///   S-0x08  padding          <- rsp at the call: 16-aligned
///   S-0x10  flags, before the call
/// ```
#[unsafe(naked)]
unsafe extern "C" fn run_stepped(call: extern "C" fn()) {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "or dword ptr [rsp], {tf}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "call rdi",
        // The step that ends here is the last one.
        ".globl end_of_stepped_call",
        "end_of_stepped_call:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        tf = const TF,
    )
}

unsafe extern "C" {
    static end_of_stepped_call: u8;
}

/// Has the gate of `vector` lead to `entry`.
fn set_entry(gates: &mut Gates, vector: u8, entry: *const ()) {
    let (gate, address) = (
        &mut gates[usize::from(vector)],
        (entry.addr() as u64).to_le_bytes(),
    );
    gate[..2].copy_from_slice(&address[..2]);
    gate[6..12].copy_from_slice(&address[2..]);
}

/// Called by [`step_debug`] with the frame of the interrupted code.
extern "C" fn on_step(regs: &mut PtRegs) {
    if IS_ASKED.load(SeqCst) {
        // In what the test calls. The probes step there, or a task has got back the flags that it
        // had while it was stepped through.
        if !hooks::on_debug(regs) {
            regs.flags &= !TF;
            clear_single_step(Dr6::read_raw());
        }
        return;
    }
    let last = LAST.swap(regs.ip, SeqCst);
    // The probes' own single step ends after the copy, which lies in a slot.
    if PROBES.is_stepping() && Kernel::slots().contains(&last) {
        hooks::on_debug(regs);
    }
    keep_debug_status(last);
    if regs.ip == (&raw const end_of_stepped_call).addr() as u64 {
        regs.flags &= !TF;
        return;
    }
    IS_ASKED.store(true, SeqCst);
    // SAFETY: `step_through`, the only writer, stored a function of this type.
    unsafe { mem::transmute::<*mut (), AtEach>(AT_EACH.load(SeqCst))(regs) };
    IS_ASKED.store(false, SeqCst);
    regs.flags |= TF;
    // SAFETY: what the interrupted code is about to execute, and the words of its stack that it is
    // about to pop. A slot is readable, and no instruction that can be executed ends after what is
    // mapped.
    unsafe {
        let code = regs.ip as *const u8;
        let flags = match (code.read(), regs.sp as *mut u64) {
            (POPF, top) => top,
            (REX_W, top) if code.add(1).read() == IRET => top.add(2),
            _ => &raw mut regs.flags,
        };
        *flags |= TF;
    }
}

/// Makes DR6 what it would be if nothing stepped: a hit that the test has come in between may raise
/// a #DB itself, which is no step, and QEMU 7.2 forgets at a step which watchpoints have matched.
/// `last` was the address of the instruction that the step has executed.
fn keep_debug_status(last: u64) {
    // SAFETY: code that was executed, unless this is the first step of all.
    let code = (last != 0).then(|| unsafe { (last as *const [u8; 3]).read_unaligned() });
    if code.is_some_and(|[first, second, third]| [first, second, third & 0xf8] == TO_DEBUG_STATUS) {
        // It takes back what a match has set.
        MATCHED.store(0, SeqCst);
    }
    let others = Dr6::read_raw() & !Dr6Flags::TRAP.bits();
    clear_single_step(others | MATCHED.load(SeqCst));
}

/// `mov dr6, r64`, but for the number of the register.
const TO_DEBUG_STATUS: [u8; 3] = [0x0f, 0x23, 0xf0];

pub const POPF: u8 = 0x9d;
/// In front of [`IRET`].
pub const REX_W: u8 = 0x48;
pub const IRET: u8 = 0xcf;

/// Where #DB comes in. QEMU 7.2 raises a second one for a stepped instruction that has touched a
/// watched word, and it interrupts the first instruction here.
///
/// ```text
///   rsp at the step, aligned down to 16
///   +0xa0  ss … +0x80 ip     pushed by the processor
///   +0x78  orig_ax (-1)
///   +0x70  di … +0x00 r15    <- the `PtRegs`, and rdi at the call
///   -0x08  padding           <- rsp at the call: 16-aligned (System V psABI, 3.2.2)
/// ```
#[unsafe(naked)]
unsafe extern "C" fn step_debug() {
    naked_asm!(
        ".cfi_startproc simple",
        ".cfi_signal_frame",
        ".cfi_def_cfa rsp, 40",
        ".cfi_offset rip, -40",
        ".cfi_offset rsp, -16",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "lea rax, [rip + {this}]",
        "cmp rax, [rsp + 8]",
        "je 2f",
        "mov rax, [rip + {touched}]",
        "cmp rax, [rsp + 8]",
        "jne 1f",
        "mov rax, dr6",
        "test al, {matched}",
        "jnz 3f",
        "1:",
        "pop rax",
        ".cfi_remember_state",
        ".cfi_adjust_cfa_offset -8",
        "push -1",
        ".cfi_adjust_cfa_offset 8",
        ::probes::push_general_registers!(),
        "cld",
        "mov rdi, rsp",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "call {on_step}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        ::probes::pop_general_registers!(),
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "iretq",
        "2:",
        ".cfi_restore_state",
        ".cfi_def_cfa_offset 48",
        ".cfi_remember_state",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "iretq",
        // As in `step_breakpoint`; DR6 as if nothing stepped.
        "3:",
        ".cfi_restore_state",
        ".cfi_def_cfa_offset 48",
        "cmp byte ptr [rip + {is_asked}], 0",
        "jne 4f",
        "btr rax, {step}",
        "mov dr6, rax",
        "and eax, {matched}",
        "mov [rip + {kept}], rax",
        "and dword ptr [rsp + 24], ~{tf}",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "or dword ptr [rsp], {tf}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "jmp kprobe_debug",
        "4:",
        ".cfi_adjust_cfa_offset 8",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "jmp kprobe_debug",
        ".cfi_endproc",
        on_step = sym on_step,
        this = sym step_debug,
        touched = sym TOUCHED,
        kept = sym MATCHED,
        matched = const Dr6Flags::TRAP.bits() as u8,
        step = const Dr6Flags::STEP.bits().trailing_zeros(),
        is_asked = sym IS_ASKED,
        tf = const TF,
    )
}

/// Where #BP comes in. The stack is as the processor has left it, and so it is for
/// `kprobe_breakpoint`.
#[unsafe(naked)]
unsafe extern "C" fn step_breakpoint() {
    naked_asm!(
        ".cfi_startproc simple",
        ".cfi_signal_frame",
        ".cfi_def_cfa rsp, 40",
        ".cfi_offset rip, -40",
        ".cfi_offset rsp, -16",
        "cmp byte ptr [rip + {is_asked}], 0",
        "jne kprobe_breakpoint",
        "and dword ptr [rsp + 16], ~{tf}",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "or dword ptr [rsp], {tf}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "jmp kprobe_breakpoint",
        ".cfi_endproc",
        is_asked = sym IS_ASKED,
        tf = const TF,
    )
}
