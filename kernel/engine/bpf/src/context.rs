//! The context: the registers of the probed code, as a program reads them through `r1`.
//!
//! The layout is that of Linux's `pt_regs` on x86_64, so programs and tools that know it fit. Each
//! register is 8 bytes; the low 1, 2 or 4 bytes of one may be loaded, too. A program may not write
//! the context.
//!
//! At a probe `ip` is the probed address. In the return program of a call the registers are those
//! at the return: `ax` is the result, and `ip` is where the call returns to.

/// A register of the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Register {
    R15,
    R14,
    R13,
    R12,
    Bp,
    Bx,
    R11,
    R10,
    R9,
    R8,
    Ax,
    Cx,
    Dx,
    Si,
    Di,
    OrigAx,
    Ip,
    Cs,
    Flags,
    Sp,
    Ss,
}

impl Register {
    /// All of them, in the order of the context.
    pub const ALL: [Self; 21] = [
        Self::R15,
        Self::R14,
        Self::R13,
        Self::R12,
        Self::Bp,
        Self::Bx,
        Self::R11,
        Self::R10,
        Self::R9,
        Self::R8,
        Self::Ax,
        Self::Cx,
        Self::Dx,
        Self::Si,
        Self::Di,
        Self::OrigAx,
        Self::Ip,
        Self::Cs,
        Self::Flags,
        Self::Sp,
        Self::Ss,
    ];

    /// Its offset in the context, in bytes.
    pub const fn offset(self) -> i16 {
        self as i16 * 8
    }

    /// The register at that offset, if one begins there.
    pub fn at(offset: i16) -> Option<Self> {
        if offset < 0 || offset % 8 != 0 {
            return None;
        }
        Self::ALL.get(offset as usize / 8).copied()
    }
}

/// The registers that hold the first arguments of a function, in the order of the C ABI.
pub const ARGUMENTS: [Register; 6] = [
    Register::Di,
    Register::Si,
    Register::Dx,
    Register::Cx,
    Register::R8,
    Register::R9,
];

/// Bytes of the context.
pub const BYTES: i16 = Register::ALL.len() as i16 * 8;
