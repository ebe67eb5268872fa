//! The instructions that the compiler emits, one function each.
//!
//! The code grows in a buffer. If there is no memory for it, or a place is out of reach, the
//! emitter remembers that and goes on; the compiler looks at [`Asm::failed`] once, at the end. It
//! also notes which registers were written and whether the flags were, because only these are
//! saved.

use alloc::vec::Vec;

/// A general register of the machine, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpr(pub u8);

pub const RAX: Gpr = Gpr(0);
pub const RCX: Gpr = Gpr(1);
pub const RDX: Gpr = Gpr(2);
pub const RBX: Gpr = Gpr(3);
pub const RSP: Gpr = Gpr(4);
pub const RBP: Gpr = Gpr(5);
pub const RSI: Gpr = Gpr(6);
pub const RDI: Gpr = Gpr(7);
pub const R8: Gpr = Gpr(8);
pub const R9: Gpr = Gpr(9);
pub const R10: Gpr = Gpr(10);
pub const R11: Gpr = Gpr(11);
pub const R13: Gpr = Gpr(13);
pub const R14: Gpr = Gpr(14);
pub const R15: Gpr = Gpr(15);

/// A set of registers of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GprSet(pub u16);

impl GprSet {
    pub const fn of(registers: &[Gpr]) -> Self {
        let mut set = 0;
        let mut i = 0;
        while i < registers.len() {
            set |= 1 << registers[i].0;
            i += 1;
        }
        Self(set)
    }

    pub const fn has(self, register: Gpr) -> bool {
        self.0 >> register.0 & 1 != 0
    }

    pub const fn add(&mut self, register: Gpr) {
        self.0 |= 1 << register.0;
    }

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = Gpr> {
        (0..16).map(Gpr).filter(move |&register| self.has(register))
    }
}

/// A place in memory: `base + index * 2^scale + disp`, in the GS segment if `gs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mem {
    pub gs: bool,
    pub base: Option<Gpr>,
    pub index: Option<(Gpr, u8)>,
    pub disp: i32,
}

impl Mem {
    pub const fn at(base: Gpr, disp: i32) -> Self {
        Self {
            gs: false,
            base: Some(base),
            index: None,
            disp,
        }
    }

    pub const fn gs(disp: i32) -> Self {
        Self {
            gs: true,
            base: None,
            index: None,
            disp,
        }
    }

    /// The memory at an address.
    pub const fn absolute(address: i32) -> Self {
        Self {
            gs: false,
            base: None,
            index: None,
            disp: address,
        }
    }

    /// The same place, `bytes` further.
    pub const fn plus(self, bytes: i32) -> Self {
        Self {
            disp: self.disp + bytes,
            ..self
        }
    }
}

/// An operand that is a register or in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rm {
    Reg(Gpr),
    Mem(Mem),
}

/// A source operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Src {
    Rm(Rm),
    Imm(i32),
}

/// The number of bytes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    B1,
    B2,
    B4,
    B8,
}

/// Operations of two operands that have the same shapes of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    Left = 4,
    Right = 5,
    RightSigned = 7,
}

/// Conditions of jumps, as they are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cc {
    Below = 2,
    AboveOrEqual = 3,
    Equal = 4,
    NotEqual = 5,
    BelowOrEqual = 6,
    Above = 7,
    Less = 12,
    GreaterOrEqual = 13,
    LessOrEqual = 14,
    Greater = 15,
}

/// The place of a jump's distance, to be filled in.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Hole(u32);

#[derive(Default)]
pub struct Asm {
    pub bytes: Vec<u8>,
    /// There was no memory, or a distance does not fit.
    pub failed: bool,
    pub written: GprSet,
    pub flags_written: bool,
}

/// How an instruction is encoded, except for its operands.
#[derive(Clone, Copy)]
struct Shape<'a> {
    size: Bytes,
    lock: bool,
    /// The REX prefix is there even if it says nothing.
    rex: bool,
    code: &'a [u8],
}

impl Asm {
    pub fn here(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.bytes.try_reserve(bytes.len()).is_err() {
            self.failed = true;
            return;
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn writes(&mut self, register: Gpr) {
        self.written.add(register);
    }

    fn writes_flags(&mut self) {
        self.flags_written = true;
    }

    /// Prefixes, opcode and operands. `reg` is a register or an extension of the opcode.
    fn encode(&mut self, shape: Shape, reg: u8, rm: Rm) {
        let mut out = [0; 16];
        let mut len = 0;
        let mut byte = |b: u8| {
            out[len] = b;
            len += 1;
        };
        if shape.lock {
            byte(0xf0);
        }
        if matches!(rm, Rm::Mem(Mem { gs: true, .. })) {
            byte(0x65);
        }
        if shape.size == Bytes::B2 {
            byte(0x66);
        }
        let (x, b) = match rm {
            Rm::Reg(register) => (0, register.0 >> 3),
            Rm::Mem(mem) => (
                mem.index.map_or(0, |(index, _)| index.0 >> 3),
                mem.base.map_or(0, |base| base.0 >> 3),
            ),
        };
        let w = u8::from(shape.size == Bytes::B8);
        let rex = w << 3 | (reg >> 3) << 2 | x << 1 | b;
        if rex != 0 || shape.rex {
            byte(0x40 | rex);
        }
        for &code in shape.code {
            byte(code);
        }
        let reg = (reg & 7) << 3;
        match rm {
            Rm::Reg(register) => byte(0xc0 | reg | register.0 & 7),
            Rm::Mem(mem) => {
                let short = i8::try_from(mem.disp).is_ok();
                // Base 5 without displacement means something else.
                let mode = match mem.base {
                    None => 0,
                    Some(base) if mem.disp == 0 && base.0 & 7 != 5 => 0,
                    Some(_) if short => 1,
                    Some(_) => 2,
                };
                match (mem.base, mem.index) {
                    (Some(base), None) if base.0 & 7 != 4 => byte(mode << 6 | reg | base.0 & 7),
                    (base, index) => {
                        byte(mode << 6 | reg | 4);
                        let (index, scale) = index.map_or((4, 0), |(i, s)| (i.0 & 7, s));
                        byte(scale << 6 | index << 3 | base.map_or(5, |base| base.0 & 7));
                    }
                }
                let disp = mem.disp.to_le_bytes();
                match (mem.base, mode) {
                    (Some(_), 0) => {}
                    (Some(_), 1) => byte(disp[0]),
                    _ => disp.into_iter().for_each(&mut byte),
                }
            }
        }
        self.put(&out[..len]);
    }

    fn wide(&mut self, size: Bytes, code: &[u8], reg: u8, rm: Rm) {
        let shape = Shape {
            size,
            lock: false,
            rex: false,
            code,
        };
        self.encode(shape, reg, rm);
    }

    /// `dst = value`. Leaves the flags.
    pub fn mov_imm(&mut self, dst: Gpr, value: u64) {
        self.writes(dst);
        let low = dst.0 & 7;
        if value <= u64::from(u32::MAX) {
            if dst.0 >= 8 {
                self.put(&[0x41]);
            }
            self.put(&[0xb8 | low]);
            self.put(&(value as u32).to_le_bytes());
        } else if let Ok(imm) = i32::try_from(value as i64) {
            self.wide(Bytes::B8, &[0xc7], 0, Rm::Reg(dst));
            self.put(&imm.to_le_bytes());
        } else {
            self.put(&[0x48 | dst.0 >> 3, 0xb8 | low]);
            self.put(&value.to_le_bytes());
        }
    }

    /// `dst = src`, 64 or 32 bits, the others cleared.
    pub fn mov(&mut self, size: Bytes, dst: Gpr, src: Rm) {
        self.writes(dst);
        self.wide(size, &[0x8b], dst.0, src);
    }

    /// `dst = ` the low bytes of `src`, extended to 64 bits.
    pub fn mov_extended(&mut self, dst: Gpr, src: Rm, size: Bytes, signed: bool) {
        self.writes(dst);
        let byte_register =
            size == Bytes::B1 && matches!(src, Rm::Reg(register) if register.0 >= 4);
        let (to, code): (_, &[u8]) = match (size, signed) {
            (Bytes::B1, false) => (Bytes::B4, &[0x0f, 0xb6]),
            (Bytes::B1, true) => (Bytes::B8, &[0x0f, 0xbe]),
            (Bytes::B2, false) => (Bytes::B4, &[0x0f, 0xb7]),
            (Bytes::B2, true) => (Bytes::B8, &[0x0f, 0xbf]),
            (Bytes::B4, false) => (Bytes::B4, &[0x8b]),
            (Bytes::B4, true) => (Bytes::B8, &[0x63]),
            (Bytes::B8, _) => (Bytes::B8, &[0x8b]),
        };
        let shape = Shape {
            size: to,
            lock: false,
            rex: byte_register,
            code,
        };
        self.encode(shape, dst.0, src);
    }

    /// `dst = ` the low 1 or 2 bytes of `src`, sign-extended to 32 bits, the others cleared.
    pub fn mov_signed_to_32(&mut self, dst: Gpr, src: Rm, size: Bytes) {
        self.writes(dst);
        let shape = Shape {
            size: Bytes::B4,
            lock: false,
            rex: matches!(src, Rm::Reg(register) if register.0 >= 4),
            code: &[0x0f, if size == Bytes::B1 { 0xbe } else { 0xbf }],
        };
        self.encode(shape, dst.0, src);
    }

    /// A load in the one shape that [`crate::mend()`] knows: REX, opcode, register, 4 bytes of
    /// displacement. `base` is neither `rsp` nor `r12`, whose encodings have one byte more.
    pub fn mov_mendable(&mut self, dst: Gpr, base: Gpr, disp: i32, size: Bytes, signed: bool) {
        debug_assert!(base.0 & 7 != 4, "this base has another shape");
        self.writes(dst);
        let (wide, code): (_, &[u8]) = match (size, signed) {
            (Bytes::B1, false) => (false, &[0x0f, 0xb6]),
            (Bytes::B1, true) => (true, &[0x0f, 0xbe]),
            (Bytes::B2, false) => (false, &[0x0f, 0xb7]),
            (Bytes::B2, true) => (true, &[0x0f, 0xbf]),
            (Bytes::B4, false) => (false, &[0x8b]),
            (Bytes::B4, true) => (true, &[0x63]),
            (Bytes::B8, _) => (true, &[0x8b]),
        };
        self.put(&[0x40 | u8::from(wide) << 3 | dst.0 >> 3 << 2 | base.0 >> 3]);
        self.put(code);
        self.put(&[0x80 | (dst.0 & 7) << 3 | base.0 & 7]);
        self.put(&disp.to_le_bytes());
    }

    /// Stores the low bytes of `src`.
    pub fn store(&mut self, dst: Mem, src: Gpr, size: Bytes) {
        let shape = Shape {
            size,
            lock: false,
            rex: size == Bytes::B1 && src.0 >= 4,
            code: &[if size == Bytes::B1 { 0x88 } else { 0x89 }],
        };
        self.encode(shape, src.0, Rm::Mem(dst));
    }

    /// Stores a constant, sign-extended if 8 bytes.
    pub fn store_imm(&mut self, dst: Mem, value: i32, size: Bytes) {
        let code = if size == Bytes::B1 { 0xc6 } else { 0xc7 };
        self.wide(size, &[code], 0, Rm::Mem(dst));
        let value = value.to_le_bytes();
        match size {
            Bytes::B1 => self.put(&value[..1]),
            Bytes::B2 => self.put(&value[..2]),
            Bytes::B4 | Bytes::B8 => self.put(&value),
        }
    }

    /// `dst = ` the address. Leaves the flags.
    pub fn lea(&mut self, dst: Gpr, mem: Mem) {
        self.writes(dst);
        self.wide(Bytes::B8, &[0x8d], dst.0, Rm::Mem(mem));
    }

    /// `rsp += bytes`. Leaves the flags.
    pub fn adjust_sp(&mut self, bytes: i32) {
        self.wide(Bytes::B8, &[0x8d], RSP.0, Rm::Mem(Mem::at(RSP, bytes)));
    }

    fn op_encoded(&mut self, op: Op, size: Bytes, lock: bool, dst: Rm, src: Src) {
        self.writes_flags();
        if let (Rm::Reg(register), true) = (dst, op != Op::Cmp) {
            self.writes(register);
        }
        let shape = |code| Shape {
            size,
            lock,
            rex: false,
            code,
        };
        let op = op as u8;
        match (dst, src) {
            (Rm::Reg(dst), Src::Rm(src)) => self.encode(shape(&[op << 3 | 3]), dst.0, src),
            (Rm::Mem(_), Src::Rm(Rm::Reg(src))) => self.encode(shape(&[op << 3 | 1]), src.0, dst),
            (Rm::Mem(_), Src::Rm(Rm::Mem(_))) => unreachable!("one operand is a register"),
            (_, Src::Imm(imm)) if size == Bytes::B1 => {
                self.encode(shape(&[0x80]), op, dst);
                self.put(&imm.to_le_bytes()[..1]);
            }
            (_, Src::Imm(imm)) => match i8::try_from(imm) {
                Ok(imm) => {
                    self.encode(shape(&[0x83]), op, dst);
                    self.put(&imm.to_le_bytes());
                }
                Err(_) => {
                    self.encode(shape(&[0x81]), op, dst);
                    self.put(&imm.to_le_bytes());
                }
            },
        }
    }

    /// `dst = dst OP src`, 32 or 64 bits. Not both are in memory. Also 8 bits of memory, with a
    /// constant.
    pub fn op(&mut self, op: Op, size: Bytes, dst: Rm, src: Src) {
        self.op_encoded(op, size, false, dst, src);
    }

    /// The same in memory, atomically for all CPUs.
    pub fn op_locked(&mut self, op: Op, size: Bytes, dst: Mem, src: Src) {
        self.op_encoded(op, size, true, Rm::Mem(dst), src);
    }

    /// Adds 1 or subtracts 1 in memory.
    pub fn step(&mut self, size: Bytes, dst: Mem, down: bool, lock: bool) {
        self.writes_flags();
        let shape = Shape {
            size,
            lock,
            rex: false,
            code: &[0xff],
        };
        self.encode(shape, u8::from(down), Rm::Mem(dst));
    }

    /// Sets the flags by `a & b`.
    pub fn test(&mut self, size: Bytes, a: Rm, b: Src) {
        self.writes_flags();
        match b {
            Src::Imm(imm) => {
                self.wide(size, &[0xf7], 0, a);
                self.put(&imm.to_le_bytes());
            }
            Src::Rm(Rm::Reg(b)) => self.wide(size, &[0x85], b.0, a),
            Src::Rm(b) => match a {
                Rm::Reg(a) => self.wide(size, &[0x85], a.0, b),
                Rm::Mem(_) => unreachable!("one operand is a register"),
            },
        }
    }

    /// `dst <<= count`, or `>>=`.
    pub fn shift(&mut self, shift: Shift, size: Bytes, dst: Gpr, count: u8) {
        if count == 0 {
            return;
        }
        self.writes_flags();
        self.writes(dst);
        self.wide(size, &[0xc1], shift as u8, Rm::Reg(dst));
        self.put(&[count]);
    }

    /// The same, by `cl`.
    pub fn shift_by_cl(&mut self, shift: Shift, size: Bytes, dst: Gpr) {
        self.writes_flags();
        self.writes(dst);
        self.wide(size, &[0xd3], shift as u8, Rm::Reg(dst));
    }

    /// Reverses the low two bytes.
    pub fn rotate_16_by_8(&mut self, dst: Gpr) {
        self.writes_flags();
        self.writes(dst);
        self.wide(Bytes::B2, &[0xc1], 0, Rm::Reg(dst));
        self.put(&[8]);
    }

    pub fn bswap(&mut self, size: Bytes, dst: Gpr) {
        self.writes(dst);
        let rex = u8::from(size == Bytes::B8) << 3 | dst.0 >> 3;
        if rex != 0 {
            self.put(&[0x40 | rex]);
        }
        self.put(&[0x0f, 0xc8 | dst.0 & 7]);
    }

    pub fn neg(&mut self, size: Bytes, dst: Gpr) {
        self.writes_flags();
        self.writes(dst);
        self.wide(size, &[0xf7], 3, Rm::Reg(dst));
    }

    /// `dst *= src`.
    pub fn imul(&mut self, size: Bytes, dst: Gpr, src: Rm) {
        self.writes_flags();
        self.writes(dst);
        self.wide(size, &[0x0f, 0xaf], dst.0, src);
    }

    /// `dst = src * factor`.
    pub fn imul_imm(&mut self, size: Bytes, dst: Gpr, src: Rm, factor: i32) {
        self.writes_flags();
        self.writes(dst);
        self.wide(size, &[0x69], dst.0, src);
        self.put(&factor.to_le_bytes());
    }

    /// `rax, rdx = rdx:rax / src, rdx:rax % src`. Without `signed`, `rdx` is to be 0; with it, the
    /// sign is extended into it first.
    pub fn divide(&mut self, size: Bytes, src: Gpr, signed: bool) {
        self.writes_flags();
        self.writes(RAX);
        self.writes(RDX);
        if signed {
            if size == Bytes::B8 {
                self.put(&[0x48]);
            }
            self.put(&[0x99]);
        }
        self.wide(size, &[0xf7], if signed { 7 } else { 6 }, Rm::Reg(src));
    }

    /// `dst = ` the number of the highest set bit of `src`. If there is none, `dst` stays.
    pub fn bsr(&mut self, dst: Gpr, src: Rm) {
        self.writes_flags();
        self.writes(dst);
        self.wide(Bytes::B8, &[0x0f, 0xbd], dst.0, src);
    }

    /// `dst = cc`, the low byte.
    pub fn set(&mut self, cc: Cc, dst: Gpr) {
        self.writes(dst);
        let shape = Shape {
            size: Bytes::B1,
            lock: false,
            rex: dst.0 >= 4,
            code: &[0x0f, 0x90 | cc as u8],
        };
        self.encode(shape, 0, Rm::Reg(dst));
    }

    fn locked(&mut self, size: Bytes, code: &[u8], mem: Mem, reg: Gpr) {
        self.writes_flags();
        let shape = Shape {
            size,
            lock: true,
            rex: false,
            code,
        };
        self.encode(shape, reg.0, Rm::Mem(mem));
    }

    /// `mem, reg = mem + reg, mem`.
    pub fn lock_xadd(&mut self, size: Bytes, mem: Mem, reg: Gpr) {
        self.writes(reg);
        self.locked(size, &[0x0f, 0xc1], mem, reg);
    }

    /// If `mem == rax`, `mem = reg`, else `rax = mem`. The zero flag says which.
    pub fn lock_cmpxchg(&mut self, size: Bytes, mem: Mem, reg: Gpr) {
        self.writes(RAX);
        self.locked(size, &[0x0f, 0xb1], mem, reg);
    }

    /// `mem, reg = reg, mem`, which is atomic without a prefix.
    pub fn xchg(&mut self, size: Bytes, mem: Mem, reg: Gpr) {
        self.writes(reg);
        self.wide(size, &[0x87], reg.0, Rm::Mem(mem));
    }

    pub fn push(&mut self, register: Gpr) {
        if register.0 >= 8 {
            self.put(&[0x41]);
        }
        self.put(&[0x50 | register.0 & 7]);
    }

    pub fn pop(&mut self, register: Gpr) {
        self.writes(register);
        if register.0 >= 8 {
            self.put(&[0x41]);
        }
        self.put(&[0x58 | register.0 & 7]);
    }

    pub fn pushfq(&mut self) {
        self.put(&[0x9c]);
    }

    pub fn popfq(&mut self) {
        self.writes_flags();
        self.put(&[0x9d]);
    }

    /// `dst = cs`.
    pub fn mov_cs(&mut self, dst: Gpr) {
        self.writes(dst);
        self.wide(Bytes::B4, &[0x8c], 1, Rm::Reg(dst));
    }

    /// `dst = ss`.
    pub fn mov_ss(&mut self, dst: Gpr) {
        self.writes(dst);
        self.wide(Bytes::B4, &[0x8c], 2, Rm::Reg(dst));
    }

    /// `edx:eax = ` the time stamp counter.
    pub fn rdtsc(&mut self) {
        self.writes(RAX);
        self.writes(RDX);
        self.put(&[0x0f, 0x31]);
    }

    pub fn cld(&mut self) {
        self.writes_flags();
        self.put(&[0xfc]);
    }

    pub fn clac(&mut self) {
        self.writes_flags();
        self.put(&[0x0f, 0x01, 0xca]);
    }

    pub fn ret(&mut self) {
        self.put(&[0xc3]);
    }

    /// Calls what is `distance` from the end of the instruction. Returns the place of the distance.
    pub fn call_relative(&mut self) -> u32 {
        self.put(&[0xe8, 0, 0, 0, 0]);
        self.here().saturating_sub(4)
    }

    pub fn call(&mut self, target: Gpr) {
        self.wide(Bytes::B4, &[0xff], 2, Rm::Reg(target));
    }

    pub fn jmp(&mut self) -> Hole {
        self.put(&[0xe9, 0, 0, 0, 0]);
        Hole(self.here().saturating_sub(4))
    }

    pub fn jcc(&mut self, cc: Cc) -> Hole {
        self.put(&[0x0f, 0x80 | cc as u8, 0, 0, 0, 0]);
        Hole(self.here().saturating_sub(4))
    }

    /// Makes the jump lead to `target`.
    pub fn fill(&mut self, hole: Hole, target: u32) {
        let distance = i64::from(target) - i64::from(hole.0) - 4;
        let place = self.bytes.get_mut(hole.0 as usize..hole.0 as usize + 4);
        match (place, i32::try_from(distance)) {
            (Some(place), Ok(distance)) => place.copy_from_slice(&distance.to_le_bytes()),
            _ => self.failed = true,
        }
    }

    /// Makes the jump lead here.
    pub fn fill_here(&mut self, hole: Hole) {
        self.fill(hole, self.here());
    }
}
