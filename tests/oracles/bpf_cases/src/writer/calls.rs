//! Calls of helpers, with arguments that fit.
//!
//! What a helper wants is looked for in the registers, or made. A result that may be null is
//! compared before it is used.

use bpf::{
    AluOp, Condition, Helper, Insn, MapIndex, MapKind, ProgramKind,
    Reg::{self, R0, R1, R2, R3, R4, R5, R6, R10},
    STACK_BYTES, Size,
    context::Register,
};

use super::{Holds, SAVED, Writer};
use crate::{mistakes::imm, world};

impl Writer<'_> {
    pub(super) fn call(&mut self, helper: Helper, result: Holds) {
        self.insns.push(Insn::Call { helper });
        self.state.call(result);
    }

    /// The result of a call is often kept.
    fn keep_result(&mut self) {
        if self.random.one_in(2)
            && let Some(reg) = self.saved()
        {
            self.mov(reg, R0);
            self.set(reg, self.holds(R0));
        }
    }

    /// A helper that only takes numbers and the context.
    pub(super) fn ask(&mut self) {
        let helper = self.random.of(&[
            Helper::CpuId,
            Helper::PidTgid,
            Helper::Tsc,
            Helper::Log2,
            Helper::FuncIp,
            Helper::StrLen,
            Helper::UserStrLen,
            Helper::CanRead,
            Helper::ReturnAddress,
            Helper::StackId,
            Helper::RecordStack,
            Helper::CountFrames,
            Helper::CountKeys,
            Helper::NotRecording,
            Helper::Trigger,
            Helper::AimWatch,
            Helper::WatchedAddress,
            Helper::TrueAddress,
        ]);
        match helper {
            Helper::ReturnAddress if !matches!(self.kind, ProgramKind::Return { .. }) => return,
            Helper::Log2 => self.number_argument(R1),
            Helper::Trigger | Helper::AimWatch | Helper::TrueAddress => {
                self.number_argument(R1);
                self.number_argument(R2);
            }
            Helper::FuncIp => self.mov(R1, R6),
            Helper::StrLen | Helper::UserStrLen => {
                self.number_argument(R1);
                let most = self.random.below(40) as i32;
                self.mov(R2, most);
            }
            Helper::CanRead => {
                self.number_argument(R1);
                let (length, space) = (self.random.below(40), self.random.below(2));
                self.mov(R2, length as i32);
                self.mov(R3, space as i32);
            }
            Helper::StackId | Helper::RecordStack => {
                let kind = match helper {
                    Helper::StackId => MapKind::Stacks,
                    _ => MapKind::Ring,
                };
                let Some(map) = self.map_of(&[kind]) else {
                    return;
                };
                let flags = self.random.below(4) as i32 | self.random.of(&[0, 0x100]);
                self.mov(R1, R6);
                self.insns.push(Insn::LoadMap { dst: R2, map });
                self.mov(R3, flags);
            }
            Helper::CountFrames => {
                let Some(map) = self.map_of(&[MapKind::Stacks]) else {
                    return;
                };
                self.number_argument(R2);
                self.insns.push(Insn::LoadMap { dst: R1, map });
            }
            Helper::CountKeys => {
                let Some(map) = self.map_of(&[MapKind::Hash, MapKind::PerCpuHash]) else {
                    return;
                };
                self.insns.push(Insn::LoadMap { dst: R1, map });
            }
            _ => {}
        }
        self.call(helper, Holds::Number);
        self.keep_result();
    }

    pub(super) fn map_of(&mut self, kinds: &[MapKind]) -> Option<MapIndex> {
        let count = self.maps.len();
        let first = self.random.below(count as u64) as usize;
        let mut maps = (0..count).cycle().skip(first).take(count);
        maps.find(|map| kinds.contains(&self.maps[*map].kind))
            .map(|map| MapIndex(map as u16))
    }

    /// A place of the stack for that many bytes, a multiple of 8, where no pointer has to stay.
    pub(super) fn buffer(&mut self, bytes: u32) -> Option<i16> {
        let slots = i32::try_from(bytes.div_ceil(8)).ok()?;
        let first = slots + self.random.below(8) as i32;
        let start = STACK_BYTES - first as usize * 8;
        self.overwrite(start, slots as usize * 8)
            .then_some(-8 * first as i16)
    }

    /// `dst = r10 + offset`.
    pub(super) fn stack_pointer(&mut self, dst: Reg, offset: i16) {
        self.mov(dst, R10);
        self.alu(AluOp::Add, dst, i32::from(offset));
    }

    /// The key that is next from some place on.
    fn next_key(&mut self) {
        let Some(map) = self.map_of(&[MapKind::Hash, MapKind::PerCpuHash]) else {
            return;
        };
        let size = 8 * (1 + self.random.below(4) as u32);
        let Some(offset) = self.buffer(size) else {
            return;
        };
        self.stack_pointer(R3, offset);
        let place = self.random.below(4) as i32;
        self.mov(R2, place);
        self.mov(R4, size as i32);
        self.insns.push(Insn::LoadMap { dst: R1, map });
        self.call(Helper::NextKey, Holds::Number);
        self.keep_result();
    }

    /// A helper that fills memory: the stack, or what a pointer points to.
    pub(super) fn fill_buffer(&mut self) {
        let helper = self.random.of(&[
            Helper::Comm,
            Helper::ReadUser,
            Helper::ReadKernel,
            Helper::ReadUserStr,
            Helper::ReadKernelStr,
            Helper::ReadPart,
            Helper::ReadUserPart,
            Helper::NextKey,
        ]);
        if helper == Helper::NextKey {
            self.next_key();
            return;
        }
        let pointer = SAVED
            .into_iter()
            .find(|reg| matches!(self.holds(*reg), Holds::Value(_) | Holds::Record(_)));
        let size = match pointer {
            Some(reg) if self.random.one_in(2) => {
                let (_, size) = self.extent(self.holds(reg)).unwrap_or((0, 1));
                let size = 1 + self.random.below(size.min(64) as u64) as i32;
                self.mov(R1, reg);
                size
            }
            _ => {
                let size = 1 + self.random.below(32) as u32;
                // All of the slots count as set, so all of them are filled.
                let size = size.next_multiple_of(8);
                let Some(offset) = self.buffer(size) else {
                    return;
                };
                self.stack_pointer(R1, offset);
                size as i32
            }
        };
        self.mov(R2, size);
        if helper != Helper::Comm {
            if self.random.one_in(2) {
                let (from, bytes) = match helper {
                    Helper::ReadUser | Helper::ReadUserStr | Helper::ReadUserPart => {
                        (world::USER, world::USER_BYTES)
                    }
                    _ => (world::KERNEL, world::KERNEL_BYTES),
                };
                let value = from + self.random.below(bytes);
                self.insns.push(Insn::LoadImm { dst: R3, value });
            } else {
                self.number_argument(R3);
            }
        }
        if matches!(helper, Helper::ReadPart | Helper::ReadUserPart) {
            let length = self.random.below(40) as i32;
            self.mov(R4, length);
        }
        self.call(helper, Holds::Number);
    }

    /// Stores a key and points `dst` to it.
    fn key(&mut self, map: MapIndex, dst: Reg) -> bool {
        let def = &self.maps[usize::from(map.0)];
        let (bytes, entries) = (def.key_size, u64::from(def.entries));
        let is_array = matches!(def.kind, MapKind::Array | MapKind::PerCpuArray);
        let Some(offset) = self.buffer(bytes) else {
            return false;
        };
        let known = SAVED
            .into_iter()
            .find(|reg| self.holds(*reg) == Holds::Number);
        for at in (0..bytes.next_multiple_of(8) as i16).step_by(8) {
            let value = match known {
                Some(reg) if self.random.one_in(3) => reg.into(),
                // Few keys, so that they meet again; now and then an index past the end.
                _ if is_array => (self.random.below(entries + 1) as i32).into(),
                _ => (self.random.below(3) as i32).into(),
            };
            self.insns.push(Insn::Store {
                base: R10,
                offset: offset + at,
                size: Size::B8,
                value,
            });
        }
        if self.random.one_in(8) {
            self.blur(offset);
        }
        self.stack_pointer(dst, offset);
        true
    }

    /// Stores a number in one half of the slot at `offset` or the other, as a register of the
    /// machine says: what the slot held before is not known any more.
    fn blur(&mut self, offset: i16) {
        let half = self.random.of(&Register::ALL).offset();
        self.insns.push(Insn::Load {
            dst: R5,
            base: R6,
            offset: half,
            size: Size::B8,
            signed: false,
        });
        self.alu(AluOp::And, R5, 4);
        self.alu(AluOp::Add, R5, R10);
        self.set(R5, Holds::Nothing);
        let value = imm(self.random).into();
        self.insns.push(Insn::Store {
            base: R5,
            offset,
            size: Size::B4,
            value,
        });
    }

    /// Writes a block for the case that `r0` is not null and holds this.
    pub(super) fn unless_null(&mut self, holds: Holds, block: impl FnOnce(&mut Self)) {
        let copy = if self.random.one_in(2) {
            self.saved()
        } else {
            None
        };
        if let Some(copy) = copy {
            self.mov(copy, R0);
            self.set(copy, Holds::Nothing);
        }
        self.state.registers[0] = Holds::Nothing;
        let checked = match copy {
            Some(copy) if self.random.one_in(2) => copy,
            _ => R0,
        };
        let mut null = self.state.clone();
        if self.random.one_in(2) {
            let jump = self.branch(Condition::Equal, checked, 0.into());
            self.fill_in(copy, holds);
            block(self);
            self.land(jump);
        } else {
            // The other way round, with a block of its own for null.
            let jump = self.branch(Condition::NotEqual, checked, 0.into());
            let (kept, before) = (self.kept, self.state.clone());
            if self.record.is_none() {
                self.block();
            }
            null = core::mem::replace(&mut self.state, before);
            self.kept = kept;
            let over = self.jump();
            self.land(jump);
            self.fill_in(copy, holds);
            block(self);
            self.land(over);
        }
        let not_null = self.state.clone();
        self.state = not_null.join(null);
    }

    fn fill_in(&mut self, copy: Option<Reg>, holds: Holds) {
        self.set(R0, holds);
        if let Some(copy) = copy {
            self.set(copy, holds);
        }
    }

    pub(super) fn lookup(&mut self) {
        let with_keys = [
            MapKind::Array,
            MapKind::PerCpuArray,
            MapKind::Hash,
            MapKind::PerCpuHash,
        ];
        let Some(map) = self.map_of(&with_keys) else {
            return;
        };
        if !self.key(map, R2) {
            return;
        }
        self.insns.push(Insn::LoadMap { dst: R1, map });
        self.call(Helper::MapLookup, Holds::Nothing);
        self.unless_null(Holds::Value(usize::from(map.0)), |writer| {
            writer.access();
            writer.block();
        });
    }

    pub(super) fn add(&mut self) {
        let Some(map) = self.map_of(&[MapKind::Array, MapKind::PerCpuArray]) else {
            return;
        };
        let def = &self.maps[usize::from(map.0)];
        let entries = u64::from(def.entries);
        if def.value_size < 8 {
            return;
        }
        self.insns.push(Insn::LoadMap { dst: R1, map });
        if self.random.one_in(3) {
            self.number_argument(R2);
        } else {
            let index = self.random.below(entries + 1) as i32;
            self.mov(R2, index);
        }
        self.number_argument(R3);
        self.call(Helper::Add, Holds::Number);
    }

    pub(super) fn change_hash(&mut self) {
        let Some(map) = self.map_of(&[MapKind::Hash, MapKind::PerCpuHash]) else {
            return;
        };
        let helper = self.random.of(&[
            Helper::AddByKey,
            Helper::AddByKey,
            Helper::MapUpdate,
            Helper::MapDelete,
            Helper::DeleteOfCpus,
            Helper::UseKey,
            Helper::SumOfCpus,
            Helper::MostOfCpus,
        ]);
        if helper == Helper::MapUpdate {
            let bytes = self.maps[usize::from(map.0)].value_size;
            let Some(offset) = self.buffer(bytes) else {
                return;
            };
            for at in (0..bytes as i16).step_by(8) {
                self.insns.push(Insn::Store {
                    base: R10,
                    offset: offset + at,
                    size: Size::B8,
                    value: imm(self.random).into(),
                });
            }
            self.stack_pointer(R3, offset);
        }
        if !self.key(map, R2) {
            return;
        }
        match helper {
            Helper::AddByKey | Helper::SumOfCpus | Helper::MostOfCpus => self.number_argument(R3),
            // Which key a full map forgets is not said.
            Helper::UseKey => {
                let how = self.random.of(&[0, -1]);
                self.mov(R3, how);
            }
            Helper::MapUpdate => {
                let flags = self.random.below(3) as i32;
                self.mov(R4, flags);
            }
            _ => {}
        }
        self.insns.push(Insn::LoadMap { dst: R1, map });
        self.call(helper, Holds::Number);
        self.keep_result();
    }

    pub(super) fn entry_data(&mut self) {
        if self.kind.shared_bytes() == 0 {
            return;
        }
        self.call(Helper::EntryData, Holds::EntryData);
        self.keep_result();
        self.access();
    }
}
