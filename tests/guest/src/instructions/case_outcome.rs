//! The state before and after a case: registers, its end, its memory, and the parts of the machine
//! that it may change.

use alloc::{format, string::String};
use core::arch::asm;
use instruction_cases::Case;
use kernel::{arch::gdt, probes::PtRegs};
use x86_64::{
    VirtAddr,
    registers::model_specific::{FsBase, Msr},
};

use crate::instructions::case_runner::Ending;

/// Words of a window, and of the stack that is compared.
pub const WORDS: usize = 64;

/// The memory of a case.
#[derive(Clone, PartialEq, Eq)]
pub struct Memory {
    pub window: [u64; WORDS],
    pub stack: [u64; WORDS],
}

/// State that an instruction may change beside registers and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    pub ds: u16,
    pub es: u16,
    pub fs: u16,
    pub fs_base: u64,
    pub tsc_aux: u64,
    pub cr8: u64,
}

/// The model-specific register IA32_TSC_AUX (Intel SDM vol. 4).
const TSC_AUX: Msr = Msr::new(0xc000_0103);

impl System {
    /// The state that is in force.
    pub fn now() -> Self {
        let (ds, es, fs): (u16, u16, u16);
        let cr8;
        // SAFETY: reads only.
        unsafe {
            asm!(
                "mov {:x}, ds", "mov {:x}, es", "mov {:x}, fs", "mov {}, cr8",
                out(reg) ds, out(reg) es, out(reg) fs, out(reg) cr8,
            )
        };
        Self {
            ds,
            es,
            fs,
            fs_base: FsBase::read().as_u64(),
            // SAFETY: the processor has it, as it has `rdtscp`.
            tsc_aux: unsafe { TSC_AUX.read() },
            cr8,
        }
    }

    /// Puts it back in force.
    pub fn restore(self) {
        // SAFETY: all of them were in force before.
        unsafe {
            asm!(
                "mov ds, {:x}", "mov es, {:x}", "mov fs, {:x}", "mov cr8, {}",
                in(reg) self.ds, in(reg) self.es, in(reg) self.fs, in(reg) self.cr8,
            );
            let mut tsc_aux = TSC_AUX;
            tsc_aux.write(self.tsc_aux);
        }
        FsBase::write(VirtAddr::new_truncate(self.fs_base));
    }
}

/// The results of an execution.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    pub ending: Ending,
    pub memory: Memory,
    pub system: Option<System>,
}

/// The general registers by their numbers.
fn general(regs: &PtRegs) -> [u64; 16] {
    [
        regs.ax, regs.cx, regs.dx, regs.bx, regs.sp, regs.bp, regs.si, regs.di, regs.r8, regs.r9,
        regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ]
}

/// The registers from which a case is executed.
pub fn start(case: &Case) -> PtRegs {
    let [
        ax,
        cx,
        dx,
        bx,
        sp,
        bp,
        si,
        di,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
    ] = case.registers;
    PtRegs {
        ax,
        cx,
        dx,
        bx,
        sp,
        bp,
        si,
        di,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        ip: case.instruction.ip(),
        flags: case.flags,
        cs: gdt::KERNEL_CS.into(),
        ss: gdt::KERNEL_DS.into(),
        ..PtRegs::new()
    }
}

/// Compares registers, but for the general ones of `without` and the flags of `without_flags`.
pub fn same_registers(
    whose: &str,
    expected: &PtRegs,
    found: &PtRegs,
    without: u16,
    without_flags: u64,
) -> Result<(), String> {
    let pairs = general(expected).into_iter().zip(general(found));
    for (number, (expected, found)) in pairs.enumerate() {
        if expected != found && without >> number & 1 == 0 {
            return Err(format!(
                "{whose} register {number}: {expected:#x}, {found:#x}"
            ));
        }
    }
    if (expected.flags ^ found.flags) & !without_flags != 0 {
        return Err(format!(
            "{whose} flags: {:#x}, {:#x}",
            expected.flags, found.flags
        ));
    }
    if expected.ip != found.ip {
        return Err(format!("{whose} ip: {:#x}, {:#x}", expected.ip, found.ip));
    }
    Ok(())
}
