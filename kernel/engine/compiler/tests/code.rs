//! The code as such: what a decoder sees in it.

mod machine;

use bpf::{
    Builder, Helper, MapDef, MapIndex, MapKind, ProgramKind,
    Reg::{R1, R2, R3, R6},
    Size,
    verifier::verify,
};
use bpf_cases::Case;
use bpf_compiler::{Base, Code, Form, mend};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use machine::{FORMS, Variant, compiled};

fn instructions(code: &Code) -> Vec<Instruction> {
    let decoder = Decoder::with_ip(64, &code.bytes, 0, DecoderOptions::NONE);
    decoder.into_iter().collect()
}

/// Some programs that the verifier takes, in each of their forms.
fn programs() -> impl Iterator<Item = (u64, Form, Code)> {
    (0..2_000).flat_map(|seed| {
        let verified = verify(Case::of(seed).program).ok();
        let of_form = move |form| {
            let verified = verified.as_ref()?;
            let variant = Variant(seed.wrapping_mul(0x1234_5678_9abc_def1));
            Some((seed, form, compiled(verified, form, variant).ok()?))
        };
        FORMS.into_iter().filter_map(of_form)
    })
}

/// The place below the return address and the register that it is counted from, at an offset.
fn depth(code: &Code, offset: u64) -> (Base, i64) {
    let known = code.depth.iter().rev();
    let found = known
        .into_iter()
        .find(|depth| u64::from(depth.offset) <= offset);
    let found = found.expect("the first entry is at 0");
    (found.base, i64::from(found.bytes))
}

/// The number of bytes by which an instruction lowers `rsp`.
fn pushed(insn: &Instruction) -> i64 {
    if insn.mnemonic() == Mnemonic::Lea && insn.op0_register() == Register::RSP {
        assert_eq!(insn.memory_base(), Register::RSP);
        return -(insn.memory_displacement64() as i64);
    }
    let flow = insn.flow_control();
    if matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
        // The helper returns.
        return 0;
    }
    -i64::from(insn.stack_pointer_increment())
}

#[test]
fn the_return_address_is_where_the_table_says() {
    let mut seen = 0;
    for (seed, form, code) in programs() {
        assert_eq!(code.depth[0].offset, 0);
        assert!(code.depth.is_sorted_by_key(|depth| depth.offset));
        for insn in instructions(&code) {
            let at = depth(&code, insn.ip());
            let next = depth(&code, insn.next_ip());
            let what = || format!("seed {seed}, {form:?}, {:#x}: {insn:?}", insn.ip());
            let target = match insn.flow_control() {
                FlowControl::Return => {
                    assert_eq!(at, (Base::Sp, 0), "{}", what());
                    continue;
                }
                FlowControl::UnconditionalBranch => Some(insn.near_branch_target()),
                FlowControl::ConditionalBranch => Some(insn.near_branch_target()),
                _ => None,
            };
            if let Some(target) = target {
                assert_eq!(depth(&code, target), at, "{}", what());
            }
            if insn.flow_control() == FlowControl::UnconditionalBranch {
                continue;
            }
            let moves = insn.mnemonic() == Mnemonic::Mov && insn.op_kind(1) == OpKind::Register;
            let expected = match (insn.op0_register(), insn.op1_register(), at) {
                // An address by `rbp` is good from here on, and until here.
                (Register::RBP, Register::RSP, (Base::Sp, bytes)) if moves => (Base::Bp, bytes),
                (Register::RSP, Register::RBP, (Base::Bp, bytes)) if moves => (Base::Sp, bytes),
                (_, _, (Base::Bp, bytes)) => (Base::Bp, bytes),
                (_, _, (Base::Sp, bytes)) => (Base::Sp, bytes + pushed(&insn)),
            };
            assert_eq!(next, expected, "{}", what());
            seen += 1;
        }
    }
    assert!(seen > 10_000, "{seen} instructions");
}

/// Two CPUs that add to one number at the same time lose nothing. Nothing else adds to what is a
/// CPU's own, and a lock would take as long as all the rest.
#[test]
fn an_addition_is_locked_where_other_cpus_add() {
    let shared = MapDef {
        kind: MapKind::Array,
        ..MapDef::counters("shared", 4)
    };
    let own = MapDef::counters("own", 4);
    for delta in [Some(1), Some(-1), Some(5), None] {
        for (map, is_shared) in [(&shared, true), (&own, false)] {
            let mut b = Builder::new(ProgramKind::Probe);
            b.map(map.clone());
            b.mov(R6, R1).load_map(R1, MapIndex(0)).mov(R2, 2);
            match delta {
                Some(delta) => b.mov(R3, delta),
                None => b.load(R3, R6, 0, Size::B8),
            };
            b.call(Helper::Add).exit(0);
            let program = verify(b.finish().unwrap()).unwrap();
            for (form, variant) in FORMS
                .into_iter()
                .flat_map(|form| (0..16).map(move |n| (form, n)))
            {
                let variant = Variant(0x1234_5678_9abc_def1_u64.wrapping_mul(variant));
                let code = compiled(&program, form, variant).unwrap();
                // The adding instructions that write to memory but for the stack.
                let adding = instructions(&code).into_iter().filter(|insn| {
                    use Mnemonic::{Add, Dec, Inc, Sub};
                    matches!(insn.mnemonic(), Add | Dec | Inc | Sub)
                        && insn.op0_kind() == OpKind::Memory
                });
                let locks: Vec<_> = adding.map(|insn| insn.has_lock_prefix()).collect();
                assert_eq!(locks, [is_shared], "{delta:?} in {form:?}");
            }
        }
    }
}

/// A load through a register that holds any number has the shape that [`mend`] knows. All others
/// go to the stack, to what the CPU's segment has, or where the verifier says that memory is. As
/// these are not told apart by their code, the loads that can be mended are counted: there is one
/// for each kernel load.
#[test]
fn what_mend_decodes_is_what_a_decoder_sees() {
    let mut factory = InstructionInfoFactory::new();
    let mut mended_loads = 0;
    for (seed, form, code) in programs() {
        for insn in instructions(&code) {
            let at = insn.ip() as usize;
            let Some(bytes) = code.bytes.get(at..).and_then(|bytes| bytes.first_chunk()) else {
                continue;
            };
            let Some(mended) = mend(bytes) else {
                continue;
            };
            let what = format!("seed {seed}, {form:?}, {at:#x}: {insn:?}");
            assert_eq!(usize::from(mended.length), insn.len(), "{what}");
            let to = insn.op0_register().full_register().number();
            assert_eq!(usize::from(mended.register), to, "{what}");
            let info = factory.info(&insn);
            let reads = info
                .used_memory()
                .iter()
                .all(|m| m.access() == OpAccess::Read);
            assert!(reads && info.used_memory().len() == 1, "{what}");
            mended_loads += 1;
        }
    }
    assert!(mended_loads > 1_000, "{mended_loads} loads");
}

#[test]
fn mend_knows_no_other_instruction() {
    let others: [&[u8]; 6] = [
        // mov rax, [rsp + 0]; mov rax, [rcx]; mov [rcx + 0], rax; mov eax, [rcx + 0] without REX;
        // inc qword [rcx + 0]; imul eax, [rcx + 0]
        &[0x48, 0x8b, 0x84, 0x24, 0, 0, 0, 0],
        &[0x48, 0x8b, 0x01, 0, 0, 0, 0, 0],
        &[0x48, 0x89, 0x81, 0, 0, 0, 0, 0],
        &[0x8b, 0x81, 0, 0, 0, 0, 0, 0],
        &[0x48, 0xff, 0x81, 0, 0, 0, 0, 0],
        &[0x40, 0x0f, 0xaf, 0x81, 0, 0, 0, 0],
    ];
    for code in others {
        assert_eq!(mend(code.first_chunk().unwrap()), None, "{code:02x?}");
    }
}
