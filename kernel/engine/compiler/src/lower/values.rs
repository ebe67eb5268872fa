//! Where contents are: registers of the probed code, known values, the program's registers.
//!
//! A [`Place`] is a content where it is now. An operation takes it from there if the machine can,
//! else it is loaded into a scratch register. Scratch registers of an instruction are in `taken`.
//! They hold nothing that this instruction or a later one needs.

use bpf::{Operand, ProgramKind, Reg, Width, context::Register};

use super::{ALL, CALLER_SAVED, CONTEXT, HEAVY, INSTANCE, LIGHT, Lower, Place, gpr_of};
use crate::{
    BreakpointFrame, EntryFrame, Form, WatchpointFrame,
    asm::{self, Bytes, Gpr, GprSet, Mem, Rm, Src},
    flow::{self, Value},
};

/// The offset of a register of the context in the frame of a form that has one.
fn in_frame(form: Form, register: Register) -> Option<i32> {
    let offset = match register {
        Register::Ax => BreakpointFrame::AX,
        Register::Cx => BreakpointFrame::CX,
        Register::Dx => BreakpointFrame::DX,
        Register::Si => BreakpointFrame::SI,
        Register::Di => BreakpointFrame::DI,
        Register::OrigAx => BreakpointFrame::ORIG_AX,
        Register::Ip => BreakpointFrame::IP,
        Register::Cs => BreakpointFrame::CS,
        Register::Flags => BreakpointFrame::FLAGS,
        Register::Sp => BreakpointFrame::SP,
        Register::Ss => BreakpointFrame::SS,
        _ => return None,
    };
    Some(match (form, register) {
        (Form::Watchpoint, Register::OrigAx) => WatchpointFrame::OLD,
        (Form::Watchpoint, Register::Ss) => WatchpointFrame::NEW,
        (Form::Watchpoint, _) => WatchpointFrame::REST + offset,
        _ => offset,
    })
}

/// A place in the call's instance. May change `scratch`.
pub(super) fn in_instance(lower: &mut Lower, scratch: Gpr, offset: i32) -> Mem {
    let instance = match lower.env.form {
        Form::Call => Rm::Mem(lower.above_return(8 + EntryFrame::INSTANCE)),
        _ => lower.entry_register(INSTANCE),
    };
    let base = match instance {
        Rm::Reg(gpr) => gpr,
        memory => {
            lower.asm.mov(Bytes::B8, scratch, memory);
            scratch
        }
    };
    Mem::at(base, offset)
}

/// The content at `place` as an operand whose other one is in memory: a constant, or a register.
pub(super) fn beside_memory(lower: &mut Lower, width: Width, place: Place) -> Src {
    match lower.source(width, place) {
        Src::Rm(rm) => Src::Rm(Rm::Reg(lower.in_register(Place::Rm(rm)))),
        imm => imm,
    }
}

impl Lower<'_> {
    /// A register's content at the entry, where it is now. The arguments of a handler are in some.
    pub(super) fn entry_register(&self, gpr: Gpr) -> Rm {
        match self.frame.saved[usize::from(gpr.0)] {
            Some((level, depth)) if level <= self.level => Rm::Mem(self.at_depth(depth)),
            _ => Rm::Reg(gpr),
        }
    }

    /// The base of the context of a handler.
    pub(super) fn context(&self) -> Gpr {
        match self.frame.context_in_bp {
            Some(level) if level <= self.level => asm::RBP,
            _ => CONTEXT,
        }
    }

    /// Where a register of the probed code is, if it is in one place.
    pub(super) fn probed(&self, register: Register) -> Place {
        let form = self.env.form;
        let frame = in_frame(form, register);
        Place::Rm(match (form, frame, gpr_of(register)) {
            (Form::Handler, ..) => Rm::Mem(Mem::at(self.context(), i32::from(register.offset()))),
            (Form::Breakpoint | Form::Watchpoint, Some(offset), _) => {
                Rm::Mem(self.above_return(8 + offset))
            }
            (Form::Call, Some(offset), Some(_)) => Rm::Mem(self.above_return(8 + offset)),
            (Form::Call, ..) if register == Register::Flags => {
                Rm::Mem(self.above_return(8 + EntryFrame::FLAGS))
            }
            (Form::Call, _, None) => {
                let slot = 8 + EntryFrame::RETURN_SLOT;
                return Place::Address(match self.env.kind() {
                    ProgramKind::Return { .. } => self.above_return(slot + 8),
                    _ => self.above_return(slot),
                });
            }
            (_, _, Some(gpr)) => self.entry_register(gpr),
            (Form::Jump { .. }, ..) if register == Register::Flags => {
                // The frame has them because the program asks.
                let depth = self.frame.saved_flags.map_or(0, |(_, depth)| depth);
                Rm::Mem(self.at_depth(depth))
            }
            // `rsp` of a jump. The others are not asked for here.
            _ => return Place::Address(self.above_return(8)),
        })
    }

    pub(super) fn place_of(&self, value: Value) -> Place {
        match value {
            Value::Const(value) => Place::Imm(value),
            Value::Probed(register) => self.probed(register),
            Value::Stack(offset) => Place::Address(self.stack(offset)),
            Value::Map(map) => Place::Imm(self.env.handle(map)),
            Value::Context if self.env.form == Form::Handler => Place::Rm(Rm::Reg(self.context())),
            // No helper looks at it.
            Value::Context | Value::Unknown => Place::Address(self.above_return(8)),
        }
    }

    pub(super) fn stack(&self, offset: i32) -> Mem {
        self.stack_used.set(true);
        self.at_depth(self.frame.stack_top).plus(offset)
    }

    pub(super) fn place(&self, reg: Reg) -> Place {
        match flow::of(&self.before, reg) {
            Value::Unknown => Place::Rm(Rm::Reg(self.phys(reg))),
            value => self.place_of(value),
        }
    }

    pub(super) fn operand(&self, operand: Operand) -> Place {
        match operand {
            Operand::Reg(reg) => self.place(reg),
            Operand::Imm(imm) => Place::Imm(i64::from(imm) as u64),
        }
    }

    /// `dst = ` the content at `place`.
    pub(super) fn load(&mut self, dst: Gpr, place: Place) {
        match place {
            Place::Imm(value) => self.asm.mov_imm(dst, value),
            Place::Rm(Rm::Reg(src)) if src == dst => {}
            Place::Rm(src) => self.asm.mov(Bytes::B8, dst, src),
            Place::Address(mem) => self.asm.lea(dst, mem),
        }
    }

    /// A register that holds nothing that this instruction or a later one needs.
    pub(super) fn scratch(&mut self) -> Gpr {
        let live = self.flow.live_in[self.at].or(self.out());
        let mut busy = self.taken.or(GprSet::of(&[asm::RSP, asm::RBP]));
        for reg in live.iter() {
            busy.add(self.phys(reg));
        }
        if self.env.form == Form::Handler && self.asked.context && self.context() == CONTEXT {
            busy.add(CONTEXT);
        }
        let asked = self.asked.registers.or(self.asked.arguments);
        let needed = asked
            .iter()
            .filter(|&gpr| self.entry_register(gpr) == Rm::Reg(gpr))
            .fold(GprSet::default(), |mut set, gpr| {
                set.add(gpr);
                set
            });
        let mut saved = self.hints[self.level].written;
        if self.level == HEAVY {
            saved = saved.or(self.calls_change());
            saved = saved.or(self.hints[LIGHT].written);
        }
        let free = |set: GprSet| set.without(busy).iter().next();
        let found = free(saved.without(needed))
            .or_else(|| free(CALLER_SAVED.without(needed)))
            .or_else(|| free(ALL.without(needed)))
            .or_else(|| free(ALL));
        let gpr = found.unwrap_or_else(|| {
            self.asm.failed = true;
            asm::RAX
        });
        self.taken.add(gpr);
        gpr
    }

    /// A register with that content; a scratch register if it is in none.
    pub(super) fn in_register(&mut self, place: Place) -> Gpr {
        match place {
            Place::Rm(Rm::Reg(gpr)) => gpr,
            place => {
                let gpr = self.scratch();
                self.load(gpr, place);
                gpr
            }
        }
    }

    /// The same, but it may stay in memory.
    pub(super) fn in_rm(&mut self, place: Place) -> Rm {
        match place {
            Place::Rm(rm) => rm,
            place => Rm::Reg(self.in_register(place)),
        }
    }

    /// The same, and a constant that an operation can have may stay one.
    pub(super) fn source(&mut self, width: Width, place: Place) -> Src {
        match (width, place) {
            (Width::W32, Place::Imm(value)) => Src::Imm(value as i32),
            (Width::W64, Place::Imm(value)) if i32::try_from(value as i64).is_ok() => {
                Src::Imm(value as i32)
            }
            (_, place) => Src::Rm(self.in_rm(place)),
        }
    }

    /// The machine register of `reg`, with its content.
    pub(super) fn own(&mut self, reg: Reg) -> Gpr {
        let gpr = self.phys(reg);
        let place = self.place(reg);
        self.load(gpr, place);
        gpr
    }

    /// Whether a register other than `except` needs what `gpr` holds, after this instruction.
    pub(super) fn is_needed(&self, gpr: Gpr, except: Option<Reg>) -> bool {
        let mut live = self.out().iter();
        live.any(|reg| Some(reg) != except && self.phys(reg) == gpr)
    }
}
