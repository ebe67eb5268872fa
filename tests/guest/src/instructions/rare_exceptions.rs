//! Exceptions of probed instructions that a processor raises only when it is set up for them.
//!
//! `hits` has those that need no more than a register. QEMU raises neither #XF nor, for a stack
//! address, #SS; #TS and #AC do not come in ring 0.

use crate::platform::suite::flags::DF;
use alloc::boxed::Box;
use core::{
    arch::{asm, naked_asm},
    hint::black_box,
    mem::transmute,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::traps::{self, Exception},
    probes::{FaultVerdict, Kprobe, PreVerdict, PtRegs, register},
};
use x86_64::{
    VirtAddr,
    instructions::{
        interrupts::without_interrupts,
        tables::{lgdt, sgdt},
    },
    registers::{
        control::{Cr0, Cr0Flags},
        rflags,
    },
    structures::DescriptorTablePointer,
};

/// #NP, segment not present.
const NOT_PRESENT: u8 = 11;
/// #MF, an error of the x87 unit.
const X87_ERROR: u8 = 16;

/// Instructions that raise an exception each.
#[unsafe(naked)]
extern "C" fn rarely_faulting(_: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov ds, edi", // +0
        "ret",
        ".byte 0x9b", // +3  fwait
        "ret",
        ".cfi_endproc",
    )
}

static LEN: AtomicU64 = AtomicU64::new(0);
/// How often the fault handler was asked, for which address, and the vector.
static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static COMPLETED: AtomicU64 = AtomicU64::new(0);

fn skip(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
    SEEN[0].fetch_add(1, SeqCst);
    SEEN[1].store(regs.ip, SeqCst);
    SEEN[2].store(vector.into(), SeqCst);
    regs.ip += LEN.load(SeqCst);
    regs.ax = 0xbad;
    FaultVerdict::Handled
}

/// Raises #UD with DF set. Returns the flags after it.
#[unsafe(naked)]
extern "C" fn faults_backwards() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "std",
        "ud2",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "cld",
        "ret",
        ".cfi_endproc",
    )
}

/// Code that the compiler made expects DF to be clear, whatever an exception has interrupted.
#[guest_test]
fn handlers_of_exceptions_run_with_df_clear() {
    static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
    static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
    const UD2_BYTES: u64 = 2;
    fn skip_ud2(regs: &mut PtRegs, _: &Exception) -> bool {
        IN_HANDLER.store(rflags::read_raw() | 1 << 63, SeqCst);
        INTERRUPTED.store(regs.flags, SeqCst);
        regs.ip += UD2_BYTES;
        true
    }
    traps::set_exception_handler(Some(skip_ud2));
    let behind = faults_backwards();
    traps::set_exception_handler(None);
    assert_eq!(IN_HANDLER.load(SeqCst) & (DF | 1 << 63), 1 << 63);
    assert_eq!((INTERRUPTED.load(SeqCst) & DF, behind & DF), (DF, DF));
}

/// Executes the instruction of `len` bytes at `offset` with probes of both shapes. `prepared` runs
/// what it is given on a processor on which the instruction raises `vector`.
fn raises(offset: u64, len: u64, vector: u8, argument: u64, prepared: impl Fn(&dyn Fn() -> u64)) {
    COMPLETED.store(0, SeqCst);
    let at = (rarely_faulting as *const ()).addr() as u64 + offset;
    // SAFETY: an instruction that the fault handler skips, and a `ret`.
    let run: extern "C" fn(u64) -> u64 = unsafe { transmute(at) };
    let plain = || Kprobe::new().pre(|_, _| PreVerdict::Execute).fault(skip);
    let with_post = plain().post(|_, _, _| {
        COMPLETED.fetch_add(1, SeqCst);
    });
    for probe in [plain(), with_post] {
        let probe = register(Box::new(probe.at(at))).unwrap();
        LEN.store(len, SeqCst);
        SEEN[0].store(0, SeqCst);
        prepared(&|| run(black_box(argument)));
        let seen = SEEN.each_ref().map(|seen| seen.load(SeqCst));
        assert_eq!(seen, [1, at, vector.into()]);
        drop(probe);
    }
    assert_eq!(COMPLETED.load(SeqCst), 0, "no instruction was completed");
}

/// Runs `work` with one more descriptor in the GDT: data of ring 0, writable, not present.
fn with_an_absent_segment(work: &dyn Fn() -> u64) {
    const ABSENT_DATA: u64 = 0x0000_1200_0000_0000;
    without_interrupts(|| {
        let old = sgdt();
        let words = (usize::from(old.limit) + 1) / 8;
        let mut table = [0_u64; 16];
        assert!(
            words * 8 == usize::from(ABSENT_SELECTOR),
            "the table has grown"
        );
        for (n, word) in table[..words].iter_mut().enumerate() {
            // SAFETY: the processor says that so many words are there.
            *word = unsafe { old.base.as_ptr::<u64>().add(n).read_unaligned() };
        }
        table[words] = ABSENT_DATA;
        let new = DescriptorTablePointer {
            limit: (8 * (words + 1) - 1) as u16,
            base: VirtAddr::from_ptr(&table),
        };
        // SAFETY: the same descriptors and one more, on this CPU until the old table is back.
        unsafe { lgdt(&new) };
        assert_eq!(work(), 0xbad);
        // SAFETY: it was in use before.
        unsafe { lgdt(&old) };
    });
}

/// The selector after those of the kernel.
const ABSENT_SELECTOR: u16 = 0x38;

/// Runs `work` with a division by zero pending in the x87 unit, which this kernel leaves off
/// otherwise.
fn with_a_pending_x87_error(work: &dyn Fn() -> u64) {
    without_interrupts(|| {
        let before = Cr0::read();
        // All errors are masked but a division by zero.
        let control = 0x037b_u16;
        // SAFETY: nothing else uses the unit, and no task is switched meanwhile.
        unsafe {
            Cr0::write(before - Cr0Flags::EMULATE_COPROCESSOR);
            asm!(
                ".byte 0xdb, 0xe3", // fninit
                ".byte 0xd9, 0x28", // fldcw [rax]
                ".byte 0xd9, 0xe8", // fld1
                ".byte 0xd9, 0xee", // fldz
                ".byte 0xde, 0xf9", // fdivp st(1), st: 1 / 0
                in("rax") &raw const control,
            );
        }
        assert_eq!(work(), 0xbad);
        // SAFETY: as above; the error is taken back.
        unsafe {
            asm!(".byte 0xdb, 0xe2"); // fnclex
            Cr0::write(before);
        }
    });
}

/// A fault handler is told of it at the probed address, and may go on.
#[guest_test]
fn a_segment_that_is_not_present_is_reported_at_the_probed_instruction() {
    raises(
        0,
        2,
        NOT_PRESENT,
        ABSENT_SELECTOR.into(),
        with_an_absent_segment,
    );
}

/// The error belongs to an earlier division; the probed instruction is the one that waits for it.
#[guest_test]
fn a_pending_x87_error_is_reported_at_the_probed_instruction() {
    raises(3, 1, X87_ERROR, 0, with_a_pending_x87_error);
}

/// The same with displaced instructions single-stepped.
#[guest_test(cmdline = "kprobes.step=tf")]
fn rare_exceptions_are_reported_from_single_steps_as_well() {
    a_segment_that_is_not_present_is_reported_at_the_probed_instruction();
    a_pending_x87_error_is_reported_at_the_probed_instruction();
}
