//! What a trap leaves on the stack, and the vectors of this kernel's own.
//!
//! Registers lie in another order than in the probes' [`probes::PtRegs`], and the vector is among
//! them. So what the probes are asked with is converted, and back: see [`probes::pt_regs::Frame`].

/// Vectors of this kernel's interrupts: the tick, a call from another CPU, one for whoever owns
/// what is left, one that is none, and a call from ring 3.
pub const TICK: u8 = 0x40;
pub const CALL: u8 = 0x41;
pub const SPARE: u8 = 0x42;
pub const SPURIOUS: u8 = 0x4f;
pub const SYSTEM_CALL: u8 = 0x80;

/// What a trap leaves on the stack.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    pub ax: u64,
    bx: u64,
    cx: u64,
    dx: u64,
    si: u64,
    pub di: u64,
    bp: u64,
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    pub vector: u64,
    /// The error code, or all ones.
    error: u64,
    pub ip: u64,
    cs: u64,
    flags: u64,
    sp: u64,
    ss: u64,
}

impl Frame {
    pub fn is_from_user(&self) -> bool {
        self.cs & 3 != 0
    }
}

probes::frame_conversion!(Frame {
    ax: ax,
    bx: bx,
    cx: cx,
    dx: dx,
    si: si,
    di: di,
    bp: bp,
    r8: r8,
    r9: r9,
    r10: r10,
    r11: r11,
    r12: r12,
    r13: r13,
    r14: r14,
    r15: r15,
    orig_ax: error,
    ip: ip,
    cs: cs,
    flags: flags,
    sp: sp,
    ss: ss,
});
