//! Drawing a case: operands, registers and memory are chosen so that the instruction harms nothing.
//!
//! What an instruction takes without naming it is set first, then its memory operand, the stack
//! pointer and the target of a branch. At last all accesses are checked, and a case that cannot be
//! made harmless is not drawn.

use iced_x86::{
    Code as C, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    UsedMemory,
};

use crate::{
    Ground, GroundPlace, RSP, Random, branches,
    case::{Case, Unpredictable, number},
    emulator,
    encoding::{self, HARMLESS_PORT, decode_plainly, tame_displacement, tame_immediate},
    followers, stack,
};

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSI: usize = 6;
const RDI: usize = 7;

/// A register that only `rdtscp` and `rdpid` read (Intel SDM vol. 4, IA32_TSC_AUX).
const TSC_AUX: u64 = 0xc000_0103;
/// EFER, STAR, LSTAR, CSTAR, FMASK, the bases of FS and GS, TSC_AUX. A kernel sets them up once.
const STEADY_REGISTERS: [u64; 8] = [
    0xc000_0080,
    0xc000_0081,
    0xc000_0082,
    0xc000_0083,
    0xc000_0084,
    0xc000_0100,
    0xc000_0101,
    TSC_AUX,
];
/// Trap after each instruction.
const TF: u64 = 1 << 8;
/// Iterations of a string instruction, at most.
const MOST_ITERATIONS: u64 = 16;

impl Case {
    /// A case for `ground`. `None` if the random bytes are no encoding, or if nothing can make it
    /// harmless.
    pub fn draw(random: &mut Random, ground: &Ground<'_>) -> Option<Self> {
        let mut bytes = encoding::draw(random);
        let drawn = decode_plainly(&bytes, ground.at)?;
        if drawn.is_vsib() || drawn.memory_base() == Register::EIP {
            return None;
        }
        // Only the first window is within reach of a displacement alone.
        let is_near = drawn.memory_base() == Register::RIP
            || (drawn.memory_base(), drawn.memory_index()) == (Register::None, Register::None);
        let window = match is_near {
            true => 0,
            false => random.below(ground.windows.len() as u64) as usize,
        };
        let mut operand = ground.operand(random, window);
        if is_near && ground.place(window, operand, 8) == GroundPlace::Hole {
            operand = ground.windows[0].start;
        }
        let displaced = operand.wrapping_sub(segment_base(ground, &drawn));
        let mut code = tame_displacement(&mut bytes, ground.at, displaced)?;
        if let Some(branch) = branches::aim(random, ground, &code) {
            code = branch?;
        }
        tame_immediate(&mut code, ground.at);
        let instruction = decode_plainly(&code, ground.at)?;
        if ground.emulated && emulator::errs(&instruction, &code) {
            return None;
        }
        let mut case = Self {
            code,
            instruction,
            registers: core::array::from_fn(|_| register(random, ground, window)),
            flags: ground.flags(random),
            window,
            unpredictable: Unpredictable::default(),
            touches_system: false,
            dead_below: 0,
            fill: random.next(),
            words: [(0, 0); 4],
            word_count: 0,
        };
        case.registers[RSP] = ground.stack_pointer(random);
        case.set_implicit_operands(random, ground, operand)?;
        case.point_operand_to(random, ground, operand)?;
        stack::fit(&mut case, random, ground)?;
        branches::fit(&mut case, random, ground);
        if ground.ring0 {
            case.tame_privileged(random)?;
        }
        case.check_accesses(ground)?;
        case.note_unpredictable();
        followers::append(&mut case, random, ground);
        Some(case)
    }

    /// Counts and pointers that an instruction takes from registers which it does not name.
    fn set_implicit_operands(
        &mut self,
        random: &mut Random,
        ground: &Ground<'_>,
        operand: u64,
    ) -> Option<()> {
        let instruction = self.instruction;
        if instruction.is_string_instruction() {
            self.registers[RSI] = ground.operand(random, self.window);
            self.registers[RDI] = operand;
            if has_repeat(&instruction) {
                // A debugger is told of a probed instruction once and not of each iteration.
                self.flags &= !TF;
                self.registers[RCX] = random.below(MOST_ITERATIONS + 1);
            }
        }
        // The trap after a branch comes before the fault of its target (Intel SDM vol. 3A, 6.9),
        // but not always in the emulator.
        if instruction.op0_kind() == OpKind::NearBranch64
            && ground.place(self.window, instruction.near_branch64(), 1) == GroundPlace::Hole
        {
            self.flags &= !TF;
        }
        match instruction.mnemonic() {
            // Whether it holds off the trap after it differs from processor to processor.
            Mnemonic::Sti => self.flags &= !TF,
            // The emulator traps one instruction late.
            Mnemonic::Pause => self.flags &= !TF,
            Mnemonic::Xlatb => {
                self.registers[RBX] = operand.wrapping_sub(self.registers[RAX] & 0xff);
            }
            Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne => {
                // One to itself would take 0 for the highest count of all.
                let least = u64::from(instruction.near_branch64() == instruction.ip());
                self.registers[RCX] = least + random.below(4);
            }
            Mnemonic::Jrcxz | Mnemonic::Jecxz if random.one_in(2) => self.registers[RCX] = 0,
            // The bit's number is an offset, too.
            Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
                if instruction.op0_kind() == OpKind::Memory
                    && instruction.op1_kind() == OpKind::Register =>
            {
                let bit = number(instruction.op1_register())?;
                let named = [instruction.memory_base(), instruction.memory_index()];
                if bit == RSP || named.iter().any(|&r| number(r) == Some(bit)) {
                    return None;
                }
                self.registers[bit] = random.below(64);
            }
            // In one of two cases it compares with the value that is there.
            Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b
                if random.one_in(2)
                    && ground.place(self.window, operand, 16) == GroundPlace::Inside =>
            {
                self.set_word(operand, self.registers[RAX]);
                if instruction.mnemonic() == Mnemonic::Cmpxchg16b {
                    self.set_word(operand + 8, self.registers[RDX]);
                }
            }
            // No overflow in one of two cases.
            Mnemonic::Div | Mnemonic::Idiv if random.one_in(2) => {
                self.registers[RDX] = 0;
                self.registers[RAX] &= 0x7f;
            }
            _ => {}
        }
        Some(())
    }

    /// Chooses base and index of the memory operand so that it lies at `address`.
    fn point_operand_to(
        &mut self,
        random: &mut Random,
        ground: &Ground<'_>,
        address: u64,
    ) -> Option<()> {
        let instruction = self.instruction;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let scale = u64::from(instruction.memory_index_scale());
        let rest = address
            .wrapping_sub(instruction.memory_displacement64())
            .wrapping_sub(segment_base(ground, &instruction));
        match (number(base), number(index)) {
            (Some(RSP), index) => {
                if let Some(index) = index {
                    self.registers[index] = random.below(8);
                }
            }
            (Some(base), Some(index)) if base == index => {
                self.registers[base] = rest / (1 + scale);
            }
            (Some(base), Some(index)) => {
                self.registers[index] = random.below(8);
                self.registers[base] = rest.wrapping_sub(self.registers[index] * scale);
            }
            (Some(base), None) => self.registers[base] = rest,
            (None, Some(index)) => self.registers[index] = rest / scale,
            (None, None) => {}
        }
        Some(())
    }

    /// Keeps those privileged instructions that do no harm. `None` for the others.
    fn tame_privileged(&mut self, random: &mut Random) -> Option<()> {
        match self.instruction.code() {
            // The low word of rdx is the port.
            C::In_AL_DX
            | C::In_AX_DX
            | C::In_EAX_DX
            | C::Out_DX_AL
            | C::Out_DX_AX
            | C::Out_DX_EAX
            | C::Insb_m8_DX
            | C::Insw_m16_DX
            | C::Insd_m32_DX
            | C::Outsb_DX_m8
            | C::Outsw_DX_m16
            | C::Outsd_DX_m32 => self.registers[RDX] = HARMLESS_PORT.into(),
            C::Rdmsr => self.registers[RCX] = random.of(&STEADY_REGISTERS),
            C::Wrmsr => {
                self.registers[RCX] = TSC_AUX;
                self.registers[RDX] = 0;
                self.touches_system = true;
            }
            C::Mov_Sreg_rm16
            | C::Mov_Sreg_r32m16
            | C::Mov_Sreg_r64m16
            | C::Popw_FS
            | C::Popq_FS
            | C::Lfs_r16_m1616
            | C::Lfs_r32_m1632
            | C::Lfs_r64_m1664
            | C::Mov_cr_r64 => self.touches_system = true,
            // A breakpoint of the debug registers would hit any code.
            C::Mov_dr_r64 => return None,
            _ => {}
        }
        Some(())
    }

    /// `None` if the case may access memory that is not its own.
    fn check_accesses(&self, ground: &Ground<'_>) -> Option<()> {
        let fits = |address: u64, len: u64| {
            (ground.place(self.window, address, len) != GroundPlace::Elsewhere).then_some(())
        };
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(&self.instruction);
        for used in info.used_memory() {
            if matches!(used.access(), OpAccess::None | OpAccess::NoMemAccess) {
                continue;
            }
            let address =
                used.virtual_address(0, |register, _, _| Some(self.value(ground, register)))?;
            let (address, len) = self.extent(used, address);
            fits(address, len)?;
        }
        Some(())
    }

    /// All bytes that an access at `address` may touch.
    fn extent(&self, used: &UsedMemory, address: u64) -> (u64, u64) {
        /// Longer than the access of any instruction with a size of its own, and than the reach of
        /// [`Mnemonic::Bt`] and the like.
        const UNKNOWN: u64 = 64;
        let size = match used.memory_size().size() as u64 {
            0 => UNKNOWN,
            size => size + 8,
        };
        if !self.instruction.is_string_instruction() {
            return (address, size);
        }
        let all = (MOST_ITERATIONS + 1) * 8;
        const DF: u64 = 1 << 10;
        if self.flags & DF == 0 {
            (address, all)
        } else {
            (address.wrapping_sub(all), all + 8)
        }
    }

    fn note_unpredictable(&mut self) {
        let is_random = matches!(
            self.instruction.mnemonic(),
            Mnemonic::Rdrand | Mnemonic::Rdseed
        );
        let is_volatile = is_random
            || matches!(
                self.instruction.mnemonic(),
                Mnemonic::Rdtsc | Mnemonic::Rdtscp | Mnemonic::Rdpmc | Mnemonic::Rdpru
            )
            // The last page fault's address and the last debug exception belong to any code that
            // ran before.
            || matches!(self.instruction.op1_register(), Register::CR2 | Register::DR6);
        if !is_volatile {
            return;
        }
        self.unpredictable.flags = is_random;
        let mut factory = InstructionInfoFactory::new();
        for used in factory.info(&self.instruction).used_registers() {
            let writes = matches!(
                used.access(),
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            );
            if let (true, Some(number)) = (writes, number(used.register())) {
                self.unpredictable.registers |= 1 << number;
            }
        }
    }
}

/// A value for a register that nothing is known of.
fn register(random: &mut Random, ground: &Ground<'_>, window: usize) -> u64 {
    match random.below(4) {
        0 => random.next(),
        1 => random.below(64),
        2 => ground.target(random),
        _ => ground.operand(random, window),
    }
}

/// Base of the segment of the memory operand.
fn segment_base(ground: &Ground<'_>, instruction: &Instruction) -> u64 {
    match instruction.memory_segment() {
        Register::FS => ground.fs_base,
        Register::GS => ground.gs_base,
        _ => 0,
    }
}

fn has_repeat(instruction: &Instruction) -> bool {
    instruction.has_rep_prefix() || instruction.has_repne_prefix()
}
