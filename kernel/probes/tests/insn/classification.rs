//! The instructions that are refused, with which errno, and those that are not.
//!
//! Each reason to refuse has the encodings that it is for, and neighbours that differ in one field
//! and may be probed. Its sentence is compared word by word here, so that no reason can give
//! another's advice.

use std::collections::BTreeSet;

use probes::insn::{
    Class, Ending, FlagsOp, OperandSize,
    Refusal::{self, *},
    classify, decode, step_copy, translate,
};

const IP: u64 = 0xffff_ffff_8012_3450;
const SLOT: u64 = 0xffff_ffff_a000_0000;

fn bytes(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect()
}

fn classify_text(text: &str) -> Result<Class, Refusal> {
    let all = bytes(text);
    let insn = decode(&all, IP).unwrap_or_else(|e| panic!("{text}: {e}"));
    classify(&insn, &[0x90])
}

const REFUSED: &[(Refusal, i32, &[&str])] = &[
    (Breakpoint, 84, &["cc", "48 cc"]),
    (SoftwareInterrupt, 84, &["cd 80", "cd 03", "f1"]),
    (
        Undefined,
        84,
        &[
            "0f 0b",
            "48 0f 0b",
            "0f ff c0",
            "0f ff 05 00 00 00 00",
            "0f b9 c0",
            "67 0f b9 40 10",
        ],
    ),
    (ForcedEmulation, 22, &["0f 0b 78 65 6e", "0f 0b 6b 76 6d"]),
    (
        StackSegmentLoad,
        22,
        &["8e d0", "8e 10", "66 8e d0", "48 8e d0"],
    ),
    (
        FarTransfer,
        95,
        &[
            "cb",
            "ca 08 00",
            "48 cb",
            "48 ca 08 00",
            "66 cb",
            "ff 18",
            "48 ff 18",
            "ff 28",
            "48 ff 28",
            "ff 2d 00 00 00 00",
            "66 ff 1c 24",
        ],
    ),
    (
        InterruptReturn,
        95,
        &[
            "cf",
            "48 cf",
            "66 cf",
            "f3 0f 01 ec",
            "f2 0f 01 ca",
            "f3 0f 01 ca",
        ],
    ),
    (Wait, 95, &["f4", "0f 01 c9", "0f 01 fb", "f2 0f ae f0"]),
    (
        SystemCall,
        95,
        &["0f 05", "0f 07", "48 0f 07", "0f 34", "0f 35", "48 0f 35"],
    ),
    (
        GsBase,
        95,
        &[
            "0f 01 f8",
            "f3 0f ae d8",
            "f3 48 0f ae d8",
            "8e e8",
            "8e 28",
            "0f a9",
            "66 0f a9",
            "0f b5 00",
            "48 0f b5 00",
            "0f 01 da",
            "67 0f 01 da",
        ],
    ),
    (Transaction, 95, &["c7 f8 00 00 00 00", "66 c7 f8 00 00"]),
    (
        VirtualMachineEntry,
        95,
        &["0f 01 c2", "0f 01 c3", "0f 01 d8"],
    ),
    (SystemManagementReturn, 95, &["0f aa"]),
    (
        ControlRegister,
        95,
        &["0f 22 c0", "0f 22 d8", "0f 22 e0", "0f 01 f0", "0f 01 30"],
    ),
    (
        DescriptorTable,
        95,
        &[
            "0f 01 10",
            "0f 01 18",
            "0f 01 15 00 00 00 00",
            "0f 00 d8",
            "0f 00 d0",
            "0f 00 18",
            "0f 00 10",
        ],
    ),
    (
        ShadowStack,
        95,
        &[
            "f3 0f ae e8",
            "f3 48 0f ae e8",
            "f3 0f 1e c8",
            "f3 48 0f 1e c8",
            "f3 0f 01 ea",
            "f3 0f 01 28",
            "f3 0f 01 e8",
            "f3 0f ae 30",
            "0f 38 f6 00",
            "48 0f 38 f6 00",
            "66 0f 38 f5 00",
            "66 48 0f 38 f5 00",
        ],
    ),
    (
        OperandSizeBranch,
        95,
        &[
            "66 e8 00 00 00 00",
            "66 e9 00 00 00 00",
            "66 eb 00",
            "66 74 00",
            "66 0f 84 00 00 00 00",
            "66 c3",
            "66 c2 08 00",
            "66 e2 00",
            "66 e3 00",
            "66 67 e3 00",
            "66 ff d0",
            "66 ff e0",
            "66 ff 10",
            "66 ff 20",
            "66 2e ff e0",
            "f2 66 c3",
            "66 f3 e1 00",
        ],
    ),
    (
        Prefix,
        95,
        &[
            // REX in front of another prefix
            "48 66 c3",
            "48 48 89 c0",
            "41 67 ff e0",
            "48 f3 a4",
            "40 2e 90",
            "44 f2 e1 00",
            // Repeat prefixes on what becomes another instruction
            "f3 e8 00 00 00 00",
            "f3 e9 00 00 00 00",
            "f3 eb 00",
            "f3 ff d0",
            "f3 ff 10",
            "f3 ff e0",
            "f3 ff 20",
            "f2 f3 e8 00 00 00 00",
            "f3 f2 48 ff e0",
            // On what is carried out by other means
            "f3 9c",
            "f2 9d",
            "67 9c",
            "2e fa",
            "64 fb",
            "f3 66 9d",
            // More than fit into a slot
            "2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 74 00",
            "3e 3e 3e 3e 3e 3e 3e 3e 3e 3e e2 00",
            "2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e c2 08 00",
            "2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e eb 00",
        ],
    ),
];

#[test]
fn what_cannot_run_out_of_line_is_refused_with_its_reason() {
    for &(reason, errno, texts) in REFUSED {
        for text in texts {
            assert_eq!(classify_text(text), Err(reason), "{text}");
            assert_eq!(reason.errno(), errno);
            let insn = decode(&bytes(text), IP).unwrap();
            assert_eq!(
                translate(&insn, SLOT, Ending::Resume).map(drop),
                Err(reason),
                "{text}"
            );
            assert_eq!(step_copy(&insn, SLOT).map(drop), Err(reason), "{text}");
        }
    }
}

#[test]
fn ordinary_instructions_are_accepted() {
    for text in [
        "90",
        "66 90",
        "f3 90",
        "0f 1f 84 00 00 00 00 00",
        "f3 0f 1e fa",
        "50",
        "5c",
        "54",
        "c9",
        "c8 10 00 00",
        "48 8d 05 00 00 00 00",
        "8c d0",
        "8e d8",
        "8e c0",
        "8e e0",
        "0f a1",
        "0f b2 00",
        "0f b4 00", // ss read; ds, es, fs, lss, lfs loads
        "0f 22 d0",
        "44 0f 22 c0",
        "0f 20 c0",
        "0f 20 d8",
        "0f 20 e0", // cr2, cr8 writes; reads
        "0f 06",
        "0f 23 f8",
        "0f 21 f8",
        "0f 01 38",
        "0f 00 c8",
        "0f 01 00",
        "0f 01 08",
        "0f 01 e0",
        "0f a2",
        "0f 31",
        "0f 32",
        "0f 30",
        "0f 01 c6",
        "0f 01 f9",
        "0f 01 d0",
        "0f 01 d1",
        "0f 33",
        "e4 60",
        "ec",
        "e6 60",
        "ee",
        "6c",
        "6e",
        "0f 08",
        "0f 09",
        "fc",
        "fd",
        "0f 01 ca",
        "0f 01 cb", // clac, stac
        "0f 01 c1",
        "0f 01 d9",
        "0f 01 c4",
        "f3 0f c7 30",
        "0f c7 30", // vmcall, vmmcall, vmxoff, vmxon, vmptrld
        "0f 01 e8",
        "0f 01 d6",
        "0f 01 d5",
        "c6 f8 00", // serialize, xtest, xend, xabort
        "f3 0f ae c0",
        "f3 48 0f ae c8",
        "f3 48 0f ae d0", // rdfsbase, rdgsbase, wrfsbase
        "0f 01 c8",
        "0f ae e8",
        "0f ae f0",
        "0f ae f8",
        "0f ae 38",
        "66 0f ae 38",
        "0f 18 08",
        "0f 0d 08",
        "f3 a4",
        "f3 48 ab",
        "f0 48 0f c7 09",
        "f0 0f c1 03",
        "f0 48 01 05 00 00 00 00",
        "d9 c0",
        "9b",
        "0f 77",
        "0f ae 00",
        "48 0f ae 00",
        "0f c7 20",
        "0f ae 20",
        "0f 0f 05 00 00 00 00 bf", // 3DNow! pavgusb
        "8f e9 78 81 c1",          // XOP vfrczps
        "c5 f1 eb c2",
        "c5 f8 77",
        "c5 f9 70 c1 1b",
        "c5 f1 e8 c2",
        "c5 f1 e9 c2",
        "c5 f0 c2 c2 01",
        "c5 f1 e0 c2",
        "c5 f1 fa c2",
        "c5 f1 fb c2",
        "c4 e2 f1 9c c2",
        "c4 e2 f1 9d c2",
        "62 f1 75 08 eb c2",
        "c5 f1 f1 c2",
        "c4 e2 71 8e 10",
        "0f e8 c1",
        "0f eb c1",
        "0f fa c1",
        "0f fb c1",
        "0f c2 c1 00",
        "0f e2 c1",
        "66 0f 38 f8 08",
        "66 0f ae f0",
        "65 48 8b 04 25 00 00 00 00",
        "64 48 8b 04 25 00 00 00 00",
        "62 f1 fd 48 6f 05 00 00 00 00",
    ] {
        assert_eq!(classify_text(text), Ok(Class::Ordinary), "{text}");
    }
}

#[test]
fn branches_and_flag_instructions_have_their_class() {
    use Class::*;
    for (text, class) in [
        ("eb 00", Jump),
        ("e9 00 00 00 00", Jump),
        ("66 48 e9 00 00 00 00", Jump),
        ("70 00", ConditionalJump),
        ("2e 7f 00", ConditionalJump),
        ("0f 80 00 00 00 00", ConditionalJump),
        ("0f 8f 00 00 00 00", ConditionalJump),
        ("e0 00", CountedJump),
        ("e1 00", CountedJump),
        ("e2 00", CountedJump),
        ("e3 00", CountedJump),
        ("67 e2 00", CountedJump),
        ("67 e3 00", CountedJump),
        ("f2 e1 00", CountedJump),
        ("f3 e0 00", CountedJump),
        ("f2 f3 67 48 e2 00", CountedJump),
        ("f3 74 00", ConditionalJump),
        ("2e 2e 2e 2e 2e 2e 2e 2e 2e 74 00", ConditionalJump),
        ("f2 e9 00 00 00 00", Jump),
        ("2e e8 00 00 00 00", Call),
        ("f2 ff d0", IndirectCall),
        ("e8 00 00 00 00", Call),
        ("67 e8 00 00 00 00", Call),
        ("66 48 e8 00 00 00 00", Call),
        ("ff d0", IndirectCall),
        ("ff 10", IndirectCall),
        ("ff 15 00 00 00 00", IndirectCall),
        ("65 ff 14 25 00 00 00 00", IndirectCall),
        ("66 48 ff d0", IndirectCall),
        ("ff e0", IndirectJump),
        ("3e ff e0", IndirectJump),
        ("ff 25 00 00 00 00", IndirectJump),
        ("c3", Return),
        ("f3 c3", Return),
        ("f2 c3", Return),
        ("c2 08 00", Return),
        ("fa", Flags(FlagsOp::Clear)),
        ("fb", Flags(FlagsOp::Set)),
        ("9c", Flags(FlagsOp::Push(OperandSize::Quad))),
        ("66 9c", Flags(FlagsOp::Push(OperandSize::Word))),
        ("66 48 9c", Flags(FlagsOp::Push(OperandSize::Quad))),
        ("9d", Flags(FlagsOp::Pop(OperandSize::Quad))),
        ("66 9d", Flags(FlagsOp::Pop(OperandSize::Word))),
    ] {
        assert_eq!(classify_text(text), Ok(class), "{text}");
    }
}

#[test]
fn sti_is_refused_where_its_shadow_is_needed() {
    let sti = decode(&[0xfb], IP).unwrap();
    for text in [
        "f4",
        "0f 01 c9",
        "0f 01 fb",
        "f2 0f ae f0",
        "66 0f ae f0",
        "0f 35",
        "48 0f 35",
        "0f 07",
        "48 0f 07",
        "cf",
        "48 cf",
        "c3",
        "c2 08 00",
        "cb",
        "0f 01 d8",
        "0f 01 c3",
    ] {
        assert_eq!(
            classify(&sti, &bytes(text)),
            Err(InterruptShadow),
            "sti; {text}"
        );
    }
    assert_eq!(
        classify(&sti, &[]),
        Err(InterruptShadow),
        "nothing is known to follow"
    );
    for text in ["90", "48 89 c3", "e8 00 00 00 00", "fa", "0f 0b"] {
        assert_eq!(
            classify(&sti, &bytes(text)),
            Ok(Class::Flags(FlagsOp::Set)),
            "sti; {text}"
        );
    }
    assert_eq!(InterruptShadow.errno(), 95);
}

#[test]
fn instructions_before_a_trap_are_accepted() {
    let insn = decode(&[0x90], IP).unwrap();
    assert_eq!(classify(&insn, &[0x0f, 0x0b]), Ok(Class::Ordinary));
}

#[test]
fn every_refusal_has_a_name_and_a_way_out() {
    let names: BTreeSet<_> = Refusal::ALL.iter().map(|r| r.name()).collect();
    assert_eq!(names.len(), Refusal::ALL.len());
    for refusal in Refusal::ALL {
        let (what, advice) = sentence(refusal);
        assert_eq!(refusal.to_string(), format!("{what}; {advice}"));
        assert!([22, 28, 84, 95].contains(&refusal.errno()));
    }
}

/// The sentence says where the fault lies and how to mend it: for each reason its own words, so
/// that no reason can give another's advice.
fn sentence(refusal: Refusal) -> (&'static str, &'static str) {
    match refusal {
        Breakpoint => (
            "it is a breakpoint already",
            "remove the other debugger's breakpoint, or probe the instruction before it if this is \
             padding",
        ),
        SoftwareInterrupt => (
            "it raises an interrupt by itself",
            "probe the interrupt's handler instead",
        ),
        Undefined => (
            "it is meant to trap (a panic or unreachable end)",
            "probe the instruction before it",
        ),
        ForcedEmulation => (
            "it asks the hypervisor to emulate the instruction after it",
            "probe a neighbour",
        ),
        StackSegmentLoad => (
            "loading SS holds off debug traps for one instruction",
            "probe the instruction after it",
        ),
        FarTransfer => (
            "far calls, jumps and returns do not run out of line",
            "probe the target or the caller",
        ),
        InterruptReturn => (
            "it returns from an interrupt",
            "probe the handler before that point",
        ),
        Wait => (
            "it waits for an interrupt, which must not happen out of line",
            "probe the instruction before it",
        ),
        SystemCall => (
            "it enters or leaves the kernel",
            "probe the system call's function instead",
        ),
        GsBase => (
            "it changes the GS base, through which the probes find their per-CPU data",
            "probe a neighbour",
        ),
        MsrWrite => (
            "it may write the GS base, through which a post handler is found",
            "leave the post handler out, or probe the instruction after it",
        ),
        Transaction => (
            "its abort address is relative to itself",
            "probe the fallback path or the instruction before it",
        ),
        VirtualMachineEntry => ("it enters a virtual machine", "probe the code around it"),
        SystemManagementReturn => (
            "it leaves system management mode",
            "there is nothing to probe there",
        ),
        ControlRegister => (
            "it may unmap the code that follows it out of line",
            "probe the instruction after it",
        ),
        DescriptorTable => (
            "it replaces tables that the next trap needs",
            "probe the instruction after it",
        ),
        ShadowStack => (
            "it works on the shadow stack, which the probes do not maintain",
            "probe a neighbour",
        ),
        OperandSizeBranch => (
            "processors disagree about a near branch with an operand-size prefix",
            "remove the 0x66 from the code, or probe a neighbour",
        ),
        Prefix => (
            "it has a prefix without a meaning there, which processors may take differently",
            "remove the prefix from the code, or probe a neighbour",
        ),
        InterruptShadow => (
            "the instruction after this sti relies on interrupts staying off until it has begun",
            "probe the instruction before the sti",
        ),
        DisplacementRange => (
            "its RIP-relative operand is more than 2 GiB away from every slot",
            "allocate slots nearer to the code",
        ),
        NoRoom => (
            "its replacement does not fit into a slot",
            "probe a neighbour",
        ),
    }
}

#[test]
fn operand_out_of_reach_of_the_slot_is_refused() {
    let load = decode(&[0x48, 0x8b, 0x05, 0, 0, 0, 0], 0x10_0000).unwrap();
    let far = 0x1_0010_0000;
    assert_eq!(
        translate(&load, far, Ending::Resume).map(drop),
        Err(DisplacementRange)
    );
    assert_eq!(step_copy(&load, far).map(drop), Err(DisplacementRange));
    // An address of 32 bits wraps, so it is always in reach.
    let load = decode(&[0x67, 0x48, 0x8b, 0x05, 0, 0, 0, 0], 0x10_0000).unwrap();
    assert!(translate(&load, far, Ending::Resume).is_ok());
    assert_eq!(DisplacementRange.errno(), 22);
}

/// A replacement is longer than its original, and keeps all prefixes.
#[test]
fn a_branch_may_have_as_many_prefixes_as_a_slot_has_room_for() {
    for branch in [
        &[0xeb, 0x00][..],
        &[0xe8, 0, 0, 0, 0],
        &[0xff, 0xe0],
        &[0xff, 0xd0],
        &[0x74, 0x00],
        &[0xe2, 0x00],
        &[0xc3],
    ] {
        let judged = |prefixes| {
            let bytes = [&[0x2e; 10][..prefixes], branch].concat();
            classify(&decode(&bytes, 0x1000).unwrap(), &[]).map(drop)
        };
        assert_eq!(judged(9), Ok(()), "{branch:02x?}");
        assert_eq!(judged(10), Err(Refusal::Prefix), "{branch:02x?}");
    }
}
