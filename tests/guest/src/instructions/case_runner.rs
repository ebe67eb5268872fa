//! Runs code from any state of the registers, in ring 0, and tells how it ended.
//!
//! The code lies in slots: functions of nothing but breakpoints, with symbols and call frame
//! information of their own, so that it can be probed like any other. It ends by an exception, be
//! it the breakpoint after it or a fault, which neither a probe nor the kernel knows of:
//! [`traps::set_exception_handler`] has [`end`] asked, which notes the registers and goes back to
//! whoever started it.
//!
//! # Contexts
//! One task at a time on a machine with one CPU: a slot is written by a plain store.

use crate::tools::preserved_registers::{pop_preserved, push_preserved};
use crate::{platform::code_places::code_places, platform::suite::flags};
use core::{
    arch::naked_asm,
    ops::Range,
    ptr::{self, null_mut},
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::{
    arch::{
        smp,
        traps::{self, Exception},
    },
    mm::paging,
    probes::PtRegs,
};
use x86_64::VirtAddr;

/// How many slots there are.
pub const SLOTS: usize = 256;
/// Bytes of one. No power of two, so that code in some of them crosses lines and pages.
pub const SLOT_BYTES: usize = 88;

const INT3: u8 = 0xcc;

code_places!("case_slots", align: 64, count: SLOTS, bytes: SLOT_BYTES);
code_places!("case_landing", align: 1, count: 1, bytes: LANDING_BYTES);

const LANDING_BYTES: usize = 256;

unsafe extern "C" {
    static case_slots: [u8; 0];
    static case_landing: [u8; 0];
}

/// The addresses of slot number `slot`.
pub fn slot(slot: usize) -> Range<u64> {
    let start = (&raw const case_slots).addr() + slot * SLOT_BYTES;
    start as u64..(start + SLOT_BYTES) as u64
}

/// Addresses that all hold breakpoints.
pub fn landing() -> Range<u64> {
    let start = (&raw const case_landing).addr() as u64;
    start..start + LANDING_BYTES as u64
}

/// Places `code` at `at` in slot number `number`, between breakpoints. No probe is on it and no CPU
/// executes it.
pub fn write(number: usize, at: u64, code: &[u8]) {
    assert_eq!(
        smp::online_cpus(),
        1,
        "others may have fetched the old code"
    );
    let slot = slot(number);
    let mut bytes = [INT3; SLOT_BYTES];
    let offset = (at - slot.start) as usize;
    bytes[offset..offset + code.len()].copy_from_slice(code);
    let page_end = (slot.start | 0xfff) + 1;
    let first = SLOT_BYTES.min((page_end - slot.start) as usize);
    let (head, tail) = bytes.split_at(first);
    for (address, part) in [(slot.start, head), (page_end, tail)] {
        if !part.is_empty() {
            let alias = paging::text_alias(VirtAddr::new(address));
            // SAFETY: the alias of live text is writable to the end of its page, and the caller
            // says that no CPU executes it.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), alias, part.len()) };
        }
    }
}

/// How code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The registers at the exception.
    pub regs: PtRegs,
    /// The exception.
    pub exception: Exception,
}

struct Exchange {
    /// Where the stack of `run` was left.
    sp: u64,
    ending: Option<Ending>,
}

/// The run that is under way.
static EXCHANGE: AtomicPtr<Exchange> = AtomicPtr::new(null_mut());

/// Has exceptions end runs, for as long as it lives.
pub struct Runner(());

impl Runner {
    /// The only one at its time.
    pub fn new() -> Self {
        traps::set_exception_handler(Some(end));
        Self(())
    }

    /// Executes from `start` until an exception.
    ///
    /// # Safety
    /// 1. At `start.sp` there is a stack with room for exceptions below it, and so there is
    ///    wherever the code moves it.
    /// 2. The code changes nothing that others rely on, and does raise an exception.
    pub unsafe fn run(&mut self, start: &PtRegs) -> Ending {
        let mut exchange = Exchange {
            sp: 0,
            ending: None,
        };
        EXCHANGE.store(&raw mut exchange, Ordering::Release);
        // SAFETY: handed on; `end` resumes where this call returns.
        unsafe { enter_case(start, &raw mut exchange.sp) };
        exchange.ending.expect("the handler says how the run ended")
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        traps::set_exception_handler(None);
    }
}

/// Ends the run under way.
fn end(regs: &mut PtRegs, exception: &Exception) -> bool {
    let exchange = EXCHANGE.swap(null_mut(), Ordering::Acquire);
    // SAFETY: `run` waits for this with the exchange in its frame; it is taken once.
    let Some(exchange) = (unsafe { exchange.as_mut() }) else {
        return false;
    };
    exchange.ending = Some(Ending {
        regs: *regs,
        exception: *exception,
    });
    regs.ip = leave_case as *const () as u64;
    regs.sp = exchange.sp;
    regs.flags = flags::MASKED;
    true
}

/// Notes the stack pointer at `sp` and goes on with `regs`; comes back by [`leave_case`].
///
/// ```text
///   rsp at the call   return address
///   -0x08 .. -0x30    the caller's rbx, rbp, r12 to r15     <- what `sp` gets
///   -0x38 .. -0xd8    a copy of `regs`, from `ss` down to `r15`
/// ```
///
/// # Safety
/// Those of [`Runner::run`].
#[unsafe(naked)]
unsafe extern "C" fn enter_case(regs: *const PtRegs, sp: *mut u64) {
    naked_asm!(
        push_preserved!(),
        "mov [rsi], rsp",
        "lea rsi, [rdi + 160]",
        "mov ecx, 21",
        "2:",
        "push qword ptr [rsi]",
        "sub rsi, 8",
        "dec ecx",
        "jnz 2b",
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; pop r11; pop r10; pop r9; pop r8",
        "pop rax; pop rcx; pop rdx; pop rsi; pop rdi",
        "add rsp, 8",
        "iretq",
    )
}

/// Returns to the caller of [`enter_case`], from the stack pointer that it noted. Interrupts come
/// on.
#[unsafe(naked)]
extern "C" fn leave_case() {
    naked_asm!(pop_preserved!(), "sti", "ret",)
}
