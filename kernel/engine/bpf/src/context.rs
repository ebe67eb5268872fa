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

/// Each register with its name and, if instructions name it, its number. In the order of the
/// context.
const TABLE: [(Register, &str, Option<u8>); 21] = [
    (Register::R15, "r15", Some(15)),
    (Register::R14, "r14", Some(14)),
    (Register::R13, "r13", Some(13)),
    (Register::R12, "r12", Some(12)),
    (Register::Bp, "bp", Some(5)),
    (Register::Bx, "bx", Some(3)),
    (Register::R11, "r11", Some(11)),
    (Register::R10, "r10", Some(10)),
    (Register::R9, "r9", Some(9)),
    (Register::R8, "r8", Some(8)),
    (Register::Ax, "ax", Some(0)),
    (Register::Cx, "cx", Some(1)),
    (Register::Dx, "dx", Some(2)),
    (Register::Si, "si", Some(6)),
    (Register::Di, "di", Some(7)),
    (Register::OrigAx, "orig_ax", None),
    (Register::Ip, "ip", None),
    (Register::Cs, "cs", None),
    (Register::Flags, "flags", None),
    (Register::Sp, "sp", Some(4)),
    (Register::Ss, "ss", None),
];

impl Register {
    /// All of them, in the order of the context.
    pub const ALL: [Self; TABLE.len()] = {
        let mut all = [Self::R15; TABLE.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = TABLE[index].0;
            assert!(all[index] as usize == index);
            index += 1;
        }
        all
    };

    /// Its name, as in Linux's `pt_regs`.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The register of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|register| register.name() == name)
    }

    /// Its number in machine code, if it is a general register.
    pub const fn number(self) -> Option<u8> {
        TABLE[self as usize].2
    }

    /// The general register of that number.
    pub fn numbered(number: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|register| register.number() == Some(number))
    }

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
