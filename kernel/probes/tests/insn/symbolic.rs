//! Executes replacements symbolically.
//!
//! A replacement is decoded by another use of the decoder and walked with a symbolic stack, every
//! branch both ways. Each exit must be one that the original has, with the original's stack, and at
//! each step the replacement's own [`Position`] must describe the symbolic state.

use std::collections::BTreeMap;

use iced_x86::{Code, FlowControl, Instruction, OpKind, Register};
use instruction_cases::encoding::decode_plainly;
use probes::insn::{
    Class, Ending, FlagsOp, Insn, Position, ResumeIp, SavedFlagsOperand, Translation, classify,
    decode, translate,
};

const GS_OFFSET: u32 = 0x1230;

/// A word on the symbolic stack, or an instruction pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Known(u64),
    /// The value of the original branch's operand.
    Operand,
    /// The word that lies at this distance from the original RSP when the original starts.
    Original(i64),
    SavedFlags,
}

/// Where the code leaves, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Exit {
    taken: Option<bool>,
    ip: Value,
    /// RSP relative to its original value.
    rsp: i64,
    /// Words written at or above the final RSP.
    live: BTreeMap<i64, Value>,
}

struct Walk<'a> {
    insn: &'a Insn,
    original: Instruction,
    translation: &'a Translation,
    /// Where its code is to be.
    slot: u64,
    stub: Option<u64>,
    exits: Vec<Exit>,
}

#[derive(Clone)]
struct State {
    offset: usize,
    rsp: i64,
    stack: BTreeMap<i64, Value>,
    taken: Option<bool>,
    /// The original's effect is complete.
    done: bool,
}

impl Walk<'_> {
    fn literal(&self, address: u64) -> u64 {
        let offset = (address - self.slot) as usize;
        u64::from_le_bytes(
            self.translation.code()[offset..offset + 8]
                .try_into()
                .unwrap(),
        )
    }

    fn is_inside(&self, address: u64) -> bool {
        address.wrapping_sub(self.slot) < self.translation.code().len() as u64
    }

    fn word(state: &State, at: i64) -> Value {
        state.stack.get(&at).copied().unwrap_or(Value::Original(at))
    }

    fn leave(&mut self, state: &State, ip: Value) {
        let (ip, rsp) = match (ip, self.stub) {
            (Value::Known(address), Some(stub)) if address == stub => {
                (Self::word(state, state.rsp), state.rsp + 8)
            }
            (_, None) => (ip, state.rsp),
            _ => panic!("leaves to {ip:x?}, not to the stub"),
        };
        let live = state
            .stack
            .range(rsp..)
            .map(|(&at, &value)| (at, value))
            .collect();
        self.exits.push(Exit {
            taken: state.taken,
            ip,
            rsp,
            live,
        });
    }

    fn check_position(&self, state: &State, instruction: &Instruction) {
        let position = self.translation.position(state.offset);
        if !state.done && position.ip == ResumeIp::Known(self.insn.ip()) {
            // Not necessarily uncommitted by its own words: `jmp` to the target is the whole of a
            // `jmp`.
            if i64::from(position.rsp_correction) == -state.rsp {
                return;
            }
            assert_eq!(
                self.insn.branch_target(),
                Some(self.insn.ip()),
                "{position:x?} before {instruction:?}, rsp {:x}",
                state.rsp
            );
        }
        // Committed: the position must describe an exit that is reached from here.
        let mut ahead = Walk {
            exits: Vec::new(),
            original: self.original,
            ..*self
        };
        ahead.run_unchecked(state.clone());
        let described = |exit: &Exit| {
            let ip = match position.ip {
                ResumeIp::Known(ip) => Value::Known(ip),
                ResumeIp::Stacked(offset) => Self::word(state, state.rsp + i64::from(offset)),
            };
            ip == exit.ip && state.rsp + i64::from(position.rsp_correction) == exit.rsp
        };
        assert!(
            ahead.exits.iter().any(described),
            "{position:x?} at {} describes none of {:x?}",
            state.offset,
            ahead.exits
        );
    }

    fn run(&mut self, state: State) {
        self.walk(state, true);
    }

    fn run_unchecked(&mut self, state: State) {
        self.walk(state, false);
    }

    fn walk(&mut self, mut state: State, checked: bool) {
        loop {
            let ip = self.slot + state.offset as u64;
            let code = &self.translation.code()[state.offset..];
            let i = decode_plainly(code, ip).expect("a replacement is made of instructions");
            if checked {
                self.check_position(&state, &i);
            }
            state.offset += i.len();
            let rsp_operand =
                i.memory_base() == Register::RSP && i.memory_index() == Register::None;
            let is_literal =
                i.is_ip_rel_memory_operand() && self.is_inside(i.ip_rel_memory_address());
            let is_copy = match self.class() {
                Class::Ordinary => true,
                Class::Flags(_) => self.stub.is_none(),
                _ => false,
            };
            if is_copy && !state.done {
                self.assert_same(&i);
                state.done = true;
                continue;
            }
            match i.code() {
                Code::Pushq_imm32 | Code::Pushd_imm32 => {
                    Self::push(&mut state, Value::Known(i.immediate(0)))
                }
                Code::Push_rm64 if is_literal => {
                    let value = Value::Known(self.literal(i.ip_rel_memory_address()));
                    Self::push(&mut state, value);
                }
                Code::Push_rm64 | Code::Push_rm16
                    if i.memory_segment() == Register::GS
                        && i.memory_base() == Register::None
                        && i.memory_displacement32() == GS_OFFSET
                        && self.insn.bytes().ends_with(&[0x9c]) =>
                {
                    assert!(!state.done);
                    let bytes = if i.code() == Code::Push_rm16 { 2 } else { 8 };
                    state.rsp -= bytes;
                    state.stack.insert(state.rsp, Value::SavedFlags);
                    state.done = true;
                }
                Code::Push_rm64
                    if rsp_operand
                        && i.memory_displacement64() == 0
                        && !self.is_branch_operand(&i, &state) =>
                {
                    let value = Self::word(&state, state.rsp);
                    Self::push(&mut state, value);
                }
                Code::Push_rm64 | Code::Push_r64 => {
                    self.assert_branch_operand(&i, &state);
                    Self::push(&mut state, Value::Operand);
                }
                Code::Mov_rm64_imm32 if rsp_operand && state.rsp < 0 => {
                    let at = state.rsp + i.memory_displacement64() as i64;
                    state.stack.insert(at, Value::Known(i.immediate(1)));
                }
                Code::Pop_rm64 if rsp_operand && state.rsp < 0 => {
                    let value = Self::word(&state, state.rsp);
                    state.rsp += 8;
                    let at = state.rsp + i.memory_displacement64() as i64;
                    state.stack.insert(at, value);
                }
                Code::Lea_r64_m
                    if rsp_operand
                        && i.op0_register() == Register::RSP
                        && self.class() == Class::Return =>
                {
                    state.rsp += i.memory_displacement64() as i64;
                }
                Code::Retnq if self.class() == Class::IndirectCall => {
                    let ip = Self::word(&state, state.rsp);
                    state.rsp += 8;
                    return self.leave(&state, ip);
                }
                Code::Retnq | Code::Retnq_imm16 => {
                    let ip = Self::word(&state, state.rsp);
                    state.rsp += 8 + if i.op_count() > 0 {
                        i64::from(i.immediate16())
                    } else {
                        0
                    };
                    return self.leave(&state, ip);
                }
                Code::Jmp_rm64 if is_literal => {
                    let target = self.literal(i.ip_rel_memory_address());
                    return self.leave(&state, Value::Known(target));
                }
                Code::Jmp_rm64 => {
                    self.assert_branch_operand(&i, &state);
                    return self.leave(&state, Value::Operand);
                }
                Code::Jmp_rel32_64 => return self.leave(&state, Value::Known(i.near_branch64())),
                _ if i.flow_control() == FlowControl::ConditionalBranch => {
                    assert!(matches!(
                        self.class(),
                        Class::ConditionalJump | Class::CountedJump
                    ));
                    assert_eq!(i.mnemonic(), self.original.mnemonic());
                    if self.class() == Class::CountedJump {
                        assert_eq!(
                            i.code(),
                            self.original.code(),
                            "the counter keeps its width"
                        );
                    }
                    let mut taken = state.clone();
                    (taken.taken, state.taken) = (Some(true), Some(false));
                    (taken.done, state.done) = (true, true);
                    if self.is_inside(i.near_branch64()) {
                        taken.offset = (i.near_branch64() - self.slot) as usize;
                        self.walk(taken, checked);
                    } else {
                        self.leave(&taken, Value::Known(i.near_branch64()));
                    }
                }
                _ => panic!("no part of a replacement: {i:?}"),
            }
        }
    }

    fn push(state: &mut State, value: Value) {
        state.rsp -= 8;
        state.stack.insert(state.rsp, value);
    }

    fn class(&self) -> Class {
        classify(self.insn, self.insn.bytes()).unwrap()
    }

    fn is_branch_operand(&self, i: &Instruction, state: &State) -> bool {
        state.rsp == 0
            && matches!(self.class(), Class::IndirectCall | Class::IndirectJump)
            && self.original.op0_kind() == i.op0_kind()
    }

    /// The instruction refers to the operand of the original branch, with the original RSP if it
    /// depends on that.
    fn assert_branch_operand(&self, i: &Instruction, state: &State) {
        let original = &self.original;
        assert!(
            matches!(self.class(), Class::IndirectCall | Class::IndirectJump),
            "{i:?}"
        );
        assert_eq!(i.op0_kind(), original.op0_kind());
        if i.op0_kind() == OpKind::Register {
            assert_eq!(i.op0_register(), original.op0_register());
            assert!(i.op0_register() != Register::RSP || state.rsp == 0);
        } else {
            assert_same_memory(i, original);
            assert_eq!(
                state.rsp, 0,
                "the operand is read before anything is written"
            );
        }
    }

    /// The instruction is the original, as far as memory, registers and immediates go.
    fn assert_same(&self, i: &Instruction) {
        let original = &self.original;
        assert_eq!(i.code(), original.code());
        assert_eq!(i.op_count(), original.op_count());
        for n in 0..i.op_count() {
            assert_eq!(i.op_kind(n), original.op_kind(n));
            match i.op_kind(n) {
                OpKind::Register => assert_eq!(i.op_register(n), original.op_register(n)),
                OpKind::Memory => assert_same_memory(i, original),
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                    panic!("a branch was copied")
                }
                kind if is_immediate(kind) => assert_eq!(i.immediate(n), original.immediate(n)),
                _ => {}
            }
        }
        assert_eq!(
            (
                i.has_lock_prefix(),
                i.has_rep_prefix(),
                i.has_repne_prefix(),
                i.segment_prefix(),
                i.is_broadcast(),
                i.op_mask(),
                i.zeroing_masking()
            ),
            (
                original.has_lock_prefix(),
                original.has_rep_prefix(),
                original.has_repne_prefix(),
                original.segment_prefix(),
                original.is_broadcast(),
                original.op_mask(),
                original.zeroing_masking()
            )
        );
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

fn assert_same_memory(a: &Instruction, b: &Instruction) {
    let operand = |i: &Instruction| {
        // The other segments have no base, and overrides naming them are ignored.
        let segment = i.memory_segment();
        let based = matches!(segment, Register::FS | Register::GS).then_some(segment);
        (
            i.memory_base(),
            i.memory_index(),
            i.memory_index_scale(),
            i.memory_displacement64(),
            based,
        )
    };
    assert_eq!(operand(a), operand(b));
}

/// The effect of the original, by the manual.
fn expected_exits(insn: &Insn, original: &Instruction, post: bool, emulated: bool) -> Vec<Exit> {
    let next = Value::Known(insn.next_ip());
    let exit = |taken, ip, rsp, live: &[(i64, Value)]| Exit {
        taken,
        ip,
        rsp,
        live: live.iter().copied().collect(),
    };
    let target = || Value::Known(insn.branch_target().unwrap());
    match classify(insn, insn.bytes()).unwrap() {
        Class::Ordinary => vec![exit(None, next, 0, &[])],
        Class::Flags(_) if !post || emulated => vec![exit(None, next, 0, &[])],
        Class::Flags(op) => vec![exit(
            None,
            next,
            op.rsp_delta(),
            &[(op.rsp_delta(), Value::SavedFlags)],
        )],
        Class::Jump => vec![exit(None, target(), 0, &[])],
        Class::ConditionalJump | Class::CountedJump => {
            vec![
                exit(Some(true), target(), 0, &[]),
                exit(Some(false), next, 0, &[]),
            ]
        }
        Class::Call => vec![exit(None, target(), -8, &[(-8, next)])],
        Class::IndirectJump => vec![exit(None, Value::Operand, 0, &[])],
        Class::IndirectCall => vec![exit(None, Value::Operand, -8, &[(-8, next)])],
        Class::Return => {
            let discarded = if original.op_count() > 0 {
                i64::from(original.immediate16())
            } else {
                0
            };
            vec![exit(None, Value::Original(0), 8 + discarded, &[])]
        }
    }
}

/// The instruction that is left to the caller of its replacement, by the documentation of
/// [`translate`]: with a post ending each that looks at or changes IF, but for `pushf` where the
/// code finds the saved flags.
pub fn emulated(insn: &Insn, ending: Ending) -> Option<FlagsOp> {
    let Class::Flags(op) = classify(insn, insn.bytes()).ok()? else {
        return None;
    };
    match (op, ending) {
        (_, Ending::Fall | Ending::Resume) => None,
        (FlagsOp::Push(_), Ending::Post { saved_flags, .. }) if saved_flags.is_some() => None,
        (_, Ending::Post { .. }) => Some(op),
    }
}

/// Checks every translation of the instruction in `bytes` at `ip`, for a slot at `slot`. None may
/// be longer than `limit`.
pub fn check(bytes: &[u8], ip: u64, slot: u64, stub: u64, limit: usize) {
    let insn = decode(bytes, ip).unwrap();
    let original = decode_plainly(bytes, ip).unwrap();
    let saved_flags = SavedFlagsOperand {
        gs_offset: GS_OFFSET,
    };
    for ending in [
        Ending::Resume,
        Ending::Post {
            stub,
            saved_flags: Some(saved_flags),
        },
        Ending::Post {
            stub,
            saved_flags: None,
        },
    ] {
        let translation =
            translate(&insn, slot, ending).unwrap_or_else(|e| panic!("{insn:?}: {}", e.name()));
        assert!(
            translation.code().len() <= limit,
            "{} bytes: {insn:?}, {ending:x?}",
            translation.code().len()
        );
        let post = ending != Ending::Resume;
        let mut walk = Walk {
            insn: &insn,
            original,
            translation: &translation,
            slot,
            stub: post.then_some(stub),
            exits: Vec::new(),
        };
        // An emulated instruction is complete when the code is entered.
        let is_emulated = emulated(&insn, ending).is_some();
        let start = if is_emulated { insn.next_ip() } else { ip };
        assert_eq!(
            translation.position(0),
            Position {
                ip: ResumeIp::Known(start),
                rsp_correction: 0
            }
        );
        walk.run(State {
            offset: 0,
            rsp: 0,
            stack: BTreeMap::new(),
            taken: None,
            // Nothing is left to the code if the core does it all.
            done: is_emulated,
        });
        let expected = expected_exits(&insn, &original, post, is_emulated);
        assert_eq!(
            walk.exits,
            expected,
            "{insn:?}, {ending:x?}: {:02x?}",
            translation.code()
        );
    }
}
