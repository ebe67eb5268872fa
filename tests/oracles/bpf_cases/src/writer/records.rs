//! Records: reserved, filled, and given back.

use bpf::{
    Helper, Insn, MOST_RECORD_BYTES, MapKind,
    Reg::{R0, R1, R2, R3, R4, R10},
    Size,
};

use super::{HeldRecord, Holds, Writer, bit};
use crate::mistakes::imm;

impl Writer<'_> {
    /// Reserves a record, fills it, and gives it back.
    pub(super) fn take_record(&mut self) {
        if self.record.is_some() {
            return;
        }
        let Some(reg) = self.saved() else { return };
        let Some(ring) = self.map_of(&[MapKind::Ring]) else {
            return;
        };
        let is_event = self.random.one_in(2);
        let size = if self.random.one_in(16) {
            MOST_RECORD_BYTES
        } else {
            8 * (1 + self.random.below(6) as u32)
        };
        self.insns.push(Insn::LoadMap { dst: R1, map: ring });
        self.mov(R2, size as i32);
        if is_event {
            let (room, number) = (self.random.below(32) as i32, imm(self.random));
            self.mov(R3, room);
            self.mov(R4, number);
            self.call(Helper::EventReserve, Holds::Nothing);
        } else {
            self.mov(R3, 0);
            self.call(Helper::RingReserve, Holds::Nothing);
        }
        self.unless_null(Holds::Record(size), |writer| {
            let kept = writer.kept;
            writer.mov(reg, R0);
            writer.set(reg, Holds::Record(size));
            writer.kept |= bit(reg);
            writer.record = Some(HeldRecord { reg, is_event });
            for _ in 0..1 + writer.random.below(3) {
                writer.access();
                writer.append();
            }
            writer.block();
            writer.record = None;
            writer.kept = kept;
            writer.mov(R1, reg);
            writer.mov(R2, 0);
            let helper = if writer.random.one_in(4) {
                Helper::RingDiscard
            } else {
                Helper::RingSubmit
            };
            writer.call(helper, Holds::Number);
            // All pointers to it are lost.
            let registers = writer.state.registers.iter_mut();
            for holds in registers.chain(&mut writer.state.pointers) {
                if matches!(holds, Holds::Record(_)) {
                    *holds = Holds::Nothing;
                }
            }
        });
        // A slot that held a pointer to it is not known to be set any more.
        for (slot, pointer) in self.state.pointers.iter().enumerate() {
            if *pointer == Holds::Nothing && !self.in_loop {
                let bytes = slot * 8..slot * 8 + 8;
                let is_partly_set = self.state.is_set[bytes.clone()].iter().any(|set| !set);
                if is_partly_set {
                    self.state.is_set[bytes].fill(false);
                }
            }
        }
    }

    /// Appends to an event.
    pub(super) fn append(&mut self) {
        let Some(HeldRecord {
            reg,
            is_event: true,
        }) = self.record
        else {
            return;
        };
        let helper = self.random.of(&[
            Helper::AppendStr,
            Helper::AppendUserStr,
            Helper::AppendBytes,
        ]);
        if helper == Helper::AppendBytes {
            let Some(offset) = self.buffer(8) else { return };
            self.insns.push(Insn::Store {
                base: R10,
                offset,
                size: Size::B8,
                value: imm(self.random).into(),
            });
            self.stack_pointer(R2, offset);
            let bytes = 1 + self.random.below(8) as i32;
            self.mov(R3, bytes);
        } else {
            self.number_argument(R2);
            let length = self.random.below(30) as i32;
            self.mov(R3, length);
        }
        self.mov(R1, reg);
        self.call(helper, Holds::Number);
    }
}
