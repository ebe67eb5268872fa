//! The frame: which registers each level saves, building and leaving it, and what was written.
//!
//! [`Lower::plan`] takes from the last round what the code of each level writes. From each offset
//! of the code on, [`Lower::note`] says where the return address is, for walks of the stack.

use fallible::push;

use super::{ALL, CALLER_SAVED, CONTEXT, Frame, HEAVY, IN_FRAME, LIGHT, LevelFrame, Lower};
use crate::{
    Base, Depth, Form, Sample,
    asm::{self, Bytes, GprSet, Mem, Op, Rm, Src},
};

impl Lower<'_> {
    /// The frame for what the last round used.
    pub(super) fn plan(&self) -> Frame {
        let form = self.env.form;
        let preserved = match form {
            Form::Jump { .. } => ALL,
            Form::Breakpoint | Form::Watchpoint | Form::Call => ALL.without(IN_FRAME),
            Form::Handler => ALL.without(CALLER_SAVED),
        };
        let flags_live = matches!(
            form,
            Form::Jump {
                flags_live: true,
                ..
            }
        );
        let stack_bytes = self.env.verified.stack_bytes().next_multiple_of(8);
        let mut frame = Frame::default();
        let mut depth = 0u16;
        let mut done = GprSet::default();
        let mut stack_is_there = false;
        for level in [LIGHT, HEAVY] {
            let heavy = level == HEAVY;
            let mut clobbered = self.hints[level].written;
            if heavy {
                clobbered = clobbered.or(self.calls_change());
            }
            let mut here = LevelFrame::default();
            let asks = self.env.form.is_jump() && self.asked.flags && !heavy;
            let changes = flags_live && (self.hints[level].flags || heavy);
            if frame.saved_flags.is_none() && (asks || changes) {
                depth += 8;
                here.flags = true;
                frame.saved_flags = Some((level, depth));
            }
            let context_moves = form == Form::Handler
                && self.asked.context
                && frame.context_in_bp.is_none()
                && (heavy || clobbered.has(CONTEXT));
            let calls_c = heavy && !self.only_routines;
            let aligns = calls_c && matches!(form, Form::Jump { aligned: false, .. });
            let mut restored = clobbered.and(preserved);
            if context_moves || aligns {
                restored.add(asm::RBP);
            }
            let kept = clobbered.and(self.asked.arguments).without(preserved);
            here.restored = restored.without(done);
            here.kept = kept.without(done);
            done = done.or(here.restored).or(here.kept);
            for gpr in here.restored.iter().chain(here.kept.iter()) {
                depth += 8;
                frame.saved[usize::from(gpr.0)] = Some((level, depth));
            }
            if context_moves {
                frame.context_in_bp = Some(level);
            }
            if aligns {
                frame.aligned_from = Some(depth);
            }
            let inner = depth;
            if (self.hints[level].stack || calls_c) && !stack_is_there {
                frame.stack_top = depth;
                depth += stack_bytes;
                stack_is_there = true;
            }
            if heavy && self.asked.sample {
                depth += size_of::<Sample>() as u16;
            }
            if calls_c {
                // `rsp` is a multiple of 16 in front of a call. At the entry it is, too, at an
                // aligned probe; elsewhere it is 8 below one.
                let above = if form.is_jump() { 0 } else { 8 };
                depth = (depth + above).next_multiple_of(16) - above;
            }
            here.room = depth - inner;
            here.depth = depth;
            frame.levels[level] = here;
        }
        frame
    }

    /// The place at a depth.
    pub(super) fn at_depth(&self, depth: u16) -> Mem {
        self.above_return(-i32::from(depth))
    }

    /// The place this many bytes above the return address.
    pub(super) fn above_return(&self, bytes: i32) -> Mem {
        match self.frame.aligned_from {
            Some(from) if self.level == HEAVY => Mem::at(asm::RBP, i32::from(from) + bytes),
            _ => Mem::at(
                asm::RSP,
                i32::from(self.frame.levels[self.level].depth) + bytes,
            ),
        }
    }

    /// Notes where the return address is from here on.
    fn note(&mut self, base: Base, bytes: u16) {
        let offset = self.asm.here();
        // Pushed, and not popped yet.
        let saved_bp = match self.frame.saved[usize::from(asm::RBP.0)] {
            Some((_, depth)) if depth <= bytes => depth,
            _ => 0,
        };
        let depth = Depth {
            offset,
            base,
            bytes,
            saved_bp,
        };
        if let Some(last) = self.depth.last_mut() {
            if *last
                == (Depth {
                    offset: last.offset,
                    ..depth
                })
            {
                return;
            }
            if last.offset == offset {
                *last = depth;
                return;
            }
        }
        if push(&mut self.depth, depth).is_err() {
            self.asm.failed = true;
        }
    }

    /// The same, in the body of the level.
    pub(super) fn note_level(&mut self) {
        match self.frame.aligned_from {
            Some(from) if self.level == HEAVY => self.note(Base::Bp, from),
            _ => self.note(Base::Sp, self.frame.levels[self.level].depth),
        }
    }

    /// Builds the part of the frame that belongs to `level`. The code so far is on the level above.
    pub(super) fn enter(&mut self, level: usize) {
        let here = self.frame.levels[level];
        let mut depth = match level {
            LIGHT => 0,
            _ => self.frame.levels[LIGHT].depth,
        };
        self.note(Base::Sp, depth);
        if here.flags {
            self.asm.pushfq();
            depth += 8;
            self.note(Base::Sp, depth);
        }
        for gpr in here.restored.iter().chain(here.kept.iter()) {
            self.asm.push(gpr);
            depth += 8;
            self.note(Base::Sp, depth);
        }
        if level == HEAVY && self.frame.aligned_from.is_some() {
            self.asm.mov(Bytes::B8, asm::RBP, Rm::Reg(asm::RSP));
            self.note(Base::Bp, depth);
            if here.room != 0 {
                self.asm.adjust_sp(-i32::from(here.room));
            }
            self.asm
                .op(Op::And, Bytes::B8, Rm::Reg(asm::RSP), Src::Imm(-16));
        } else if here.room != 0 {
            self.asm.adjust_sp(-i32::from(here.room));
            self.note(Base::Sp, depth + here.room);
        }
        if self.frame.context_in_bp == Some(level) {
            self.asm.mov(Bytes::B8, asm::RBP, Rm::Reg(CONTEXT));
        }
        if level == HEAVY {
            match self.env.form {
                Form::Jump { flags_live, .. } => {
                    if flags_live {
                        self.clear_flags_for_c();
                    }
                    let count = Mem::gs(self.machine.preempt_count);
                    self.asm.step(Bytes::B4, count, false, false);
                }
                Form::Breakpoint | Form::Watchpoint => self.clear_flags_for_c(),
                Form::Handler | Form::Call => {}
            }
        }
        self.forget_writes();
        self.level = level;
        self.note_level();
    }

    /// Clears the flags that C code relies on, if there is any.
    fn clear_flags_for_c(&mut self) {
        if self.only_routines {
            return;
        }
        self.asm.cld();
        if self.machine.clears_ac {
            self.asm.clac();
        }
    }

    /// Takes down the frame, and returns.
    pub(super) fn leave(&mut self) {
        for level in (LIGHT..=self.level).rev() {
            let here = self.frame.levels[level];
            let mut depth = here.depth;
            if level == HEAVY && self.env.form.is_jump() {
                let count = Mem::gs(self.machine.preempt_count);
                self.asm.step(Bytes::B4, count, true, false);
            }
            let room = here.room + 8 * here.kept.iter().count() as u16;
            match self.frame.aligned_from {
                Some(from) if level == HEAVY => {
                    self.asm.mov(Bytes::B8, asm::RSP, Rm::Reg(asm::RBP));
                    depth = from;
                }
                _ => {
                    if room != 0 {
                        self.asm.adjust_sp(i32::from(room));
                    }
                    depth -= room;
                }
            }
            self.note(Base::Sp, depth);
            for gpr in here.restored.iter().rev() {
                self.asm.pop(gpr);
                depth -= 8;
                self.note(Base::Sp, depth);
            }
            if here.flags {
                self.asm.popfq();
                depth -= 8;
                self.note(Base::Sp, depth);
            }
        }
        self.asm.ret();
        self.forget_writes();
    }

    /// A register that only the frame's code writes need not be saved.
    pub(super) fn forget_writes(&mut self) {
        self.asm.written = GprSet::default();
        self.asm.flags_written = false;
    }

    /// Books what the code since the last call has written.
    pub(super) fn book_writes(&mut self) {
        let used = &mut self.used[self.level];
        used.written = used.written.or(self.asm.written);
        used.flags |= self.asm.flags_written;
        used.stack |= self.stack_used.take();
        self.forget_writes();
    }
}
