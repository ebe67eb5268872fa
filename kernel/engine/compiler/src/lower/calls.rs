//! Helpers: those that are compiled in place, and calls of the others.
//!
//! A count in an array, a lookup in one, the number of the CPU and the like are a few instructions.
//! For the rest a C function is called, or a [`Routine`](crate::Routine) that changes fewer
//! registers.

use bpf::{Helper, ProgramKind, Reg, Width, context::Register};
use fallible::push;

use super::{
    Lower, Place, SAMPLE,
    memory::load_function,
    routine,
    values::{beside_memory, in_instance},
};
use crate::{
    Array, Calls, CompileError, Form, Given, INSTANCE_RETURN_ADDRESS, INSTANCE_WORDS, PerCpu,
    Relocation, Sample,
    asm::{self, Bytes, Cc, Gpr, GprSet, Mem, Op, Rm, Shift, Src},
    flow::{self, Call},
};

/// Before the program of an entry: clears the data that it shares with the return.
pub(super) fn clear_entry_data(lower: &mut Lower) {
    let ProgramKind::Entry { data } = lower.env.kind() else {
        return;
    };
    if data == 0 {
        return;
    }
    let words = in_instance(lower, asm::RAX, INSTANCE_WORDS);
    for word in 0..data.div_ceil(8) as i32 {
        lower.asm.store_imm(words.plus(8 * word), 0, Bytes::B8);
    }
    // In a form in which the instance is no register, `rax` need not be kept.
    lower.forget_writes();
}

impl Lower<'_> {
    pub(super) fn call(&mut self, helper: Helper) -> Result<(), CompileError> {
        let to = self.phys(Reg::R0);
        match (helper, self.env.call(self.at, helper)) {
            (Helper::Add, Call::Array(array)) => self.add(array),
            (_, Call::Array(array)) => self.lookup(array),
            (helper, Call::Out) => return self.call_out(helper),
            (Helper::CpuId, _) => {
                let number = Mem::gs(self.machine.cpu_number);
                self.asm.mov(Bytes::B4, to, Rm::Mem(number));
            }
            (Helper::PidTgid, _) => self.pid_tgid(to),
            (Helper::NotRecording, _) => self.not_recording(to),
            (Helper::Tsc, _) => self.tsc(to),
            (Helper::Log2, _) => {
                let place = self.place(Reg::R1);
                let src = self.in_rm(place);
                let to_is_free = src != Rm::Reg(to);
                let bit = if to_is_free { to } else { self.scratch() };
                // For 0 the machine leaves the destination as it is, as all processors with
                // 64 bits do.
                self.asm.mov_imm(bit, u64::MAX);
                self.asm.bsr(bit, src);
                self.asm.lea(to, Mem::at(bit, 1));
            }
            (Helper::EntryData, _) => {
                let words = in_instance(self, to, INSTANCE_WORDS);
                self.asm.lea(to, words);
            }
            (Helper::ReturnAddress, _) => {
                let address = in_instance(self, to, INSTANCE_RETURN_ADDRESS);
                self.asm.mov(Bytes::B8, to, Rm::Mem(address));
            }
            // FuncIp
            _ => match self.env.kind() {
                ProgramKind::Entry { .. } | ProgramKind::Return { .. } => load_function(self, to),
                ProgramKind::Probe => self.load_ip(to),
            },
        }
        Ok(())
    }

    fn pid_tgid(&mut self, to: Gpr) {
        let Some(at) = self.machine.pid_tgid else {
            return;
        };
        if at.tgid == at.pid.wrapping_add(4) {
            self.asm.mov(Bytes::B8, to, Rm::Mem(Mem::gs(at.pid)));
            return;
        }
        let pid = self.scratch();
        self.asm.mov(Bytes::B4, to, Rm::Mem(Mem::gs(at.tgid)));
        self.asm.shift(Shift::Left, Bytes::B8, to, 32);
        self.asm.mov(Bytes::B4, pid, Rm::Mem(Mem::gs(at.pid)));
        self.asm
            .op(Op::Or, Bytes::B8, Rm::Reg(to), Src::Rm(Rm::Reg(pid)));
    }

    fn not_recording(&mut self, to: Gpr) {
        let word = Rm::Mem(Mem::absolute(
            self.machine.not_recording.unwrap_or_default(),
        ));
        if self.flow.is_only_compared(self.env, self.at) {
            self.asm.op(Op::Cmp, Bytes::B4, word, Src::Imm(0));
            self.compared = true;
        } else {
            self.asm.mov(Bytes::B4, to, word);
        }
    }

    fn tsc(&mut self, to: Gpr) {
        self.taken = self.taken.or(GprSet::of(&[asm::RAX, asm::RDX]));
        let saved = [asm::RAX, asm::RDX].map(|gpr| {
            let saved = self.is_needed(gpr, Some(Reg::R0)).then(|| self.scratch())?;
            self.asm.mov(Bytes::B8, saved, Rm::Reg(gpr));
            Some((saved, gpr))
        });
        self.asm.rdtsc();
        self.asm.shift(Shift::Left, Bytes::B8, asm::RDX, 32);
        let (low, high) = (Rm::Reg(asm::RAX), Rm::Reg(asm::RDX));
        if to == asm::RDX {
            self.asm.op(Op::Or, Bytes::B8, high, Src::Rm(low));
        } else {
            self.asm.op(Op::Or, Bytes::B8, low, Src::Rm(high));
            self.load(to, Place::Rm(low));
        }
        for (saved, gpr) in saved.into_iter().flatten() {
            self.asm.mov(Bytes::B8, gpr, Rm::Reg(saved));
        }
    }

    /// The scale of an index by `stride`, and the register with the index if it is not `index`.
    fn scaled(&mut self, index: Gpr, stride: u32) -> (Gpr, u8) {
        match stride {
            1 => (index, 0),
            2 => (index, 1),
            4 => (index, 2),
            8 => (index, 3),
            _ => {
                let product = self.scratch();
                self.asm
                    .imul_imm(Bytes::B8, product, Rm::Reg(index), stride as i32);
                (product, 0)
            }
        }
    }

    /// The place `offset + index` in the calling CPU's part of an array.
    fn element(&mut self, array: Array, index: Option<(Gpr, u8)>, offset: u64) -> Mem {
        let start = array.base.wrapping_add(offset);
        let near = i32::try_from(start as i64).ok();
        let part = match array.cpu {
            PerCpu::Shared | PerCpu::Gs { .. } => None,
            PerCpu::Shift(shift) => {
                let part = self.scratch();
                let number = Mem::gs(self.machine.cpu_number);
                self.asm.mov(Bytes::B4, part, Rm::Mem(number));
                self.asm.shift(Shift::Left, Bytes::B8, part, shift);
                Some(part)
            }
            PerCpu::Word(at) => {
                let part = self.scratch();
                self.asm.mov(Bytes::B8, part, Rm::Mem(Mem::gs(at)));
                Some(part)
            }
        };
        let gs = matches!(array.cpu, PerCpu::Gs { .. });
        let mem = |base, index, disp| Mem {
            gs,
            base,
            index,
            disp,
        };
        if let Some(disp) = near {
            return mem(part, index, disp);
        }
        let far = self.scratch();
        self.asm.mov_imm(far, start);
        match (part, index) {
            (None, index) => mem(Some(far), index, 0),
            (Some(part), None) => mem(Some(part), Some((far, 0)), 0),
            (Some(part), Some(index)) => {
                let (part, far) = (Rm::Reg(part), Rm::Reg(far));
                self.asm.op(Op::Add, Bytes::B8, part, Src::Rm(far));
                let Rm::Reg(part) = part else { unreachable!() };
                mem(Some(part), Some(index), 0)
            }
        }
    }

    pub(super) fn add(&mut self, array: Array) {
        let mut skip = None;
        let (index, offset) = match self.place(Reg::R2) {
            Place::Imm(index) if index >= u64::from(array.entries) => return,
            Place::Imm(index) => (None, index * u64::from(array.stride)),
            place => {
                if self.env.is_index_checked(self.at, array.entries) {
                    let rm = self.in_rm(place);
                    let entries = Src::Imm(array.entries as i32);
                    self.asm.op(Op::Cmp, Bytes::B8, rm, entries);
                    skip = Some(self.asm.jcc(Cc::AboveOrEqual));
                    let index = self.in_register(Place::Rm(rm));
                    (Some(self.scaled(index, array.stride)), 0)
                } else {
                    let index = self.in_register(place);
                    (Some(self.scaled(index, array.stride)), 0)
                }
            }
        };
        let delta = self.place(Reg::R3);
        let delta = beside_memory(self, Width::W64, delta);
        let mem = self.element(array, index, offset);
        let shared = array.cpu == PerCpu::Shared;
        match delta {
            Src::Imm(1) => self.asm.step(Bytes::B8, mem, false, shared),
            Src::Imm(-1) => self.asm.step(Bytes::B8, mem, true, shared),
            delta if shared => self.asm.op_locked(Op::Add, Bytes::B8, mem, delta),
            delta => self.asm.op(Op::Add, Bytes::B8, Rm::Mem(mem), delta),
        }
        if let Some(skip) = skip {
            self.asm.fill_here(skip);
        }
    }

    fn lookup(&mut self, array: Array) {
        let to = self.phys(Reg::R0);
        self.taken.add(to);
        let (index, offset, absent) = if self.env.most_index(self.at) == Some(0) {
            (None, 0, None)
        } else {
            let key = match self.place(Reg::R2) {
                Place::Address(mem) => mem,
                place => Mem::at(self.in_register(place), 0),
            };
            let index = self.scratch();
            self.asm.mov(Bytes::B4, index, Rm::Mem(key));
            let absent = self.env.is_index_checked(self.at, array.entries).then(|| {
                let entries = Src::Imm(array.entries as i32);
                self.asm.op(Op::Cmp, Bytes::B4, Rm::Reg(index), entries);
                self.asm.jcc(Cc::AboveOrEqual)
            });
            (Some(self.scaled(index, array.stride)), 0, absent)
        };
        let mem = self.element(array, index, offset);
        match (array.cpu, mem) {
            (PerCpu::Gs { own_address }, mem) => {
                let own = Rm::Mem(Mem::gs(own_address));
                if mem.base.is_none() && mem.index.is_none() {
                    self.asm.mov(Bytes::B8, to, own);
                    self.asm.lea(to, Mem::at(to, mem.disp));
                } else {
                    self.asm.lea(to, Mem { gs: false, ..mem });
                    self.asm.op(Op::Add, Bytes::B8, Rm::Reg(to), Src::Rm(own));
                }
            }
            (
                _,
                Mem {
                    base: None,
                    index: None,
                    disp,
                    ..
                },
            ) => self.asm.mov_imm(to, i64::from(disp) as u64),
            (
                _,
                Mem {
                    base: Some(base),
                    index: None,
                    disp: 0,
                    ..
                },
            ) => self.load(to, Place::Rm(Rm::Reg(base))),
            (_, mem) => self.asm.lea(to, mem),
        }
        if let Some(absent) = absent {
            let found = self.asm.jmp();
            self.asm.fill_here(absent);
            self.asm.mov_imm(to, 0);
            self.asm.fill_here(found);
        }
    }

    fn call_out(&mut self, helper: Helper) -> Result<(), CompileError> {
        self.calls_helpers = true;
        self.ask_whether_taken(self.at)?;
        for argument in [asm::RDI, asm::RSI, asm::RDX, asm::RCX, asm::R8] {
            self.taken.add(argument);
        }
        if helper.walks_the_stack() {
            self.sample();
        }
        let target = match routine(self.env, self.flow, self.machine, self.at) {
            Some(routine) => {
                for (reg, given) in [Reg::R1, Reg::R2, Reg::R3, Reg::R4]
                    .into_iter()
                    .zip(routine.arguments)
                {
                    let gpr = self.phys(reg);
                    match given {
                        Given::Nothing => {}
                        Given::Argument => self.load(gpr, self.place(reg)),
                        Given::Word => {
                            let word = match self.place(reg) {
                                Place::Address(mem) => mem,
                                place => {
                                    self.load(gpr, place);
                                    Mem::at(gpr, 0)
                                }
                            };
                            self.asm.mov(Bytes::B8, gpr, Rm::Mem(word));
                        }
                        Given::Constant(value) => self.asm.mov_imm(gpr, value),
                    }
                }
                routine.address
            }
            None => {
                for (reg, argument) in flow::arguments(helper) {
                    let place = match argument {
                        bpf::Argument::Context => Place::Address(SAMPLE),
                        _ => self.place(reg),
                    };
                    let gpr = self.phys(reg);
                    self.load(gpr, place);
                }
                (self.machine.helper)(helper)
            }
        };
        match self.machine.calls {
            Calls::Near => {
                let offset = self.asm.call_relative();
                let relocation = Relocation { offset, target };
                if push(&mut self.relocations, relocation).is_err() {
                    self.asm.failed = true;
                }
            }
            Calls::Far => {
                self.asm.mov_imm(asm::RAX, target);
                self.asm.call(asm::RAX);
            }
        }
        self.asm.written = self.asm.written.or(self.calls_change());
        self.asm.flags_written = true;
        Ok(())
    }

    /// Writes the [`Sample`].
    fn sample(&mut self) {
        const FIELDS: [(Register, usize); 3] = [
            (Register::Ip, core::mem::offset_of!(Sample, ip)),
            (Register::Sp, core::mem::offset_of!(Sample, sp)),
            (Register::Bp, core::mem::offset_of!(Sample, bp)),
        ];
        let value = self.scratch();
        for (register, offset) in FIELDS {
            self.load_context(value, register, Bytes::B8, false);
            let field = SAMPLE.plus(offset as i32);
            self.asm.store(field, value, Bytes::B8);
        }
    }

    /// The result, where the caller expects it.
    pub(super) fn result(&mut self) {
        match (self.env.form, self.env.kind()) {
            (Form::Handler, _) | (Form::Call, ProgramKind::Entry { .. }) => {}
            _ => return,
        }
        let place = match self.env.kind() {
            ProgramKind::Entry { .. } => self.place(Reg::R0),
            ProgramKind::Probe | ProgramKind::Return { .. } => Place::Imm(0),
        };
        match place {
            Place::Imm(value) => self.asm.mov_imm(asm::RAX, u64::from(value != 0)),
            place => {
                let r0 = Rm::Reg(self.in_register(place));
                self.asm.test(Bytes::B8, r0, Src::Rm(r0));
                self.asm.set(Cc::NotEqual, asm::RAX);
            }
        }
    }
}
