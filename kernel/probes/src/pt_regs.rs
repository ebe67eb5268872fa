//! The register frame of a hit: what an exception entry saves and a handler may read and change.

use core::mem::offset_of;

/// Every general register, in the order in which the entry stubs push them, above the frame that
/// the processor pushes for an exception in 64-bit mode (Intel SDM vol. 3A, 6.14.2). Field names
/// and order are those of Linux's `struct pt_regs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PtRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub bp: u64,
    pub bx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    /// The error code of an exception, the number of a system call, or all ones.
    pub orig_ax: u64,
    pub ip: u64,
    pub cs: u64,
    pub flags: u64,
    pub sp: u64,
    pub ss: u64,
}

/// Where the general registers are in [`PtRegs`], in the order of their numbers (Intel SDM vol. 2A,
/// table 2-2). Bytes.
pub(crate) const REGISTER_OFFSETS: [usize; 16] = [
    offset_of!(PtRegs, ax),
    offset_of!(PtRegs, cx),
    offset_of!(PtRegs, dx),
    offset_of!(PtRegs, bx),
    offset_of!(PtRegs, sp),
    offset_of!(PtRegs, bp),
    offset_of!(PtRegs, si),
    offset_of!(PtRegs, di),
    offset_of!(PtRegs, r8),
    offset_of!(PtRegs, r9),
    offset_of!(PtRegs, r10),
    offset_of!(PtRegs, r11),
    offset_of!(PtRegs, r12),
    offset_of!(PtRegs, r13),
    offset_of!(PtRegs, r14),
    offset_of!(PtRegs, r15),
];

impl PtRegs {
    /// All zeros.
    pub const fn new() -> Self {
        Self {
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            bp: 0,
            bx: 0,
            r11: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            ax: 0,
            cx: 0,
            dx: 0,
            si: 0,
            di: 0,
            orig_ax: 0,
            ip: 0,
            cs: 0,
            flags: 0,
            sp: 0,
            ss: 0,
        }
    }

    /// Whether the frame was taken in ring 3.
    pub const fn user_mode(&self) -> bool {
        self.cs & 3 != 0
    }

    /// The result of a function that has just returned (System V psABI, 3.2.3).
    pub const fn return_value(&self) -> u64 {
        self.ax
    }

    /// Replaces the result of a function that has just returned.
    pub const fn set_return_value(&mut self, value: u64) {
        self.ax = value;
    }
}

/// The registers of a trap as another kernel lays them out. [`frame_conversion!`] implements it.
///
/// [`frame_conversion!`]: crate::frame_conversion
pub trait Frame {
    /// The registers.
    fn to_regs(&self) -> PtRegs;

    /// Changes all registers to these.
    fn set_regs(&mut self, regs: &PtRegs);

    /// Has `work` see the registers, and takes over what it changes.
    fn with_regs<R>(&mut self, work: impl FnOnce(&mut PtRegs) -> R) -> R {
        let mut regs = self.to_regs();
        let result = work(&mut regs);
        self.set_regs(&regs);
        result
    }
}

/// Implements [`Frame`] for a kernel's own structure: names its field for
/// each register, or a path of fields.
///
/// ```
/// struct General { rax: u64, rbx: u64, rcx: u64, rdx: u64, rsi: u64, rdi: u64, rbp: u64 }
/// struct TrapFrame {
///     general: General, r8_to_r15: [u64; 8],
///     number: u64, error: u64, rip: u64, cs: u64, rflags: u64, rsp: u64, ss: u64,
/// }
///
/// probes::frame_conversion!(TrapFrame {
///     ax: general.rax, bx: general.rbx, cx: general.rcx, dx: general.rdx,
///     si: general.rsi, di: general.rdi, bp: general.rbp,
///     r8: r8_to_r15[0], r9: r8_to_r15[1], r10: r8_to_r15[2], r11: r8_to_r15[3],
///     r12: r8_to_r15[4], r13: r8_to_r15[5], r14: r8_to_r15[6], r15: r8_to_r15[7],
///     orig_ax: error, ip: rip, cs: cs, flags: rflags, sp: rsp, ss: ss,
/// });
/// ```
///
/// Then a handler is `frame.with_regs(|regs| PROBES.on_fault(regs, vector))`.
#[macro_export]
macro_rules! frame_conversion {
    ($frame:ty {
        $($register:ident: $field:ident $(. $part:ident)* $([$index:literal])?),* $(,)?
    }) => {
        impl $crate::pt_regs::Frame for $frame {
            fn to_regs(&self) -> $crate::PtRegs {
                $crate::PtRegs {
                    $($register: self.$field $(.$part)* $([$index])?,)*
                }
            }

            fn set_regs(&mut self, regs: &$crate::PtRegs) {
                $(self.$field $(.$part)* $([$index])? = regs.$register;)*
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The processor tells the ring by the two lowest bits of CS.
    #[test]
    fn a_frame_of_ring_3_is_told_from_one_of_ring_0() {
        let mut regs = PtRegs::new();
        for (cs, user) in [(0x08, false), (0x10, false), (0x23, true), (0x33, true)] {
            regs.cs = cs;
            assert_eq!(regs.user_mode(), user, "{cs:#x}");
        }
    }
}
