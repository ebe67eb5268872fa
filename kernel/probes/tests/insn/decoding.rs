//! The decoder's account of single instructions, beyond their class.

use probes::insn::{IndirectBranch, Insn, decode, flags::bits};

const AT: u64 = 0xffff_ffff_8000_1000;

fn insn(bytes: &[u8]) -> Insn {
    let insn = decode(bytes, AT).unwrap();
    assert_eq!(insn.len(), bytes.len(), "{bytes:x?}");
    insn
}

#[test]
fn the_target_of_an_indirect_branch_is_told_where_memory_holds_it() {
    use IndirectBranch::{Table, Unknown, Word};
    let cases: [(&[u8], Option<IndirectBranch>); 12] = [
        // jmp, call [rip + 0x10]
        (&[0xff, 0x25, 0x10, 0, 0, 0], Some(Word(AT + 6 + 0x10))),
        (&[0xff, 0x15, 0x10, 0, 0, 0], Some(Word(AT + 6 + 0x10))),
        // jmp [0x40000000]
        (&[0xff, 0x24, 0x25, 0, 0, 0, 0x40], Some(Word(0x4000_0000))),
        // jmp [rax*8 + 0x40000000], and with a factor of 4
        (&[0xff, 0x24, 0xc5, 0, 0, 0, 0x40], Some(Table(0x4000_0000))),
        (&[0xff, 0x24, 0x85, 0, 0, 0, 0x40], Some(Unknown)),
        // jmp rax; call rax; jmp [rax]; jmp [rax + rcx*8]
        (&[0xff, 0xe0], Some(Unknown)),
        (&[0xff, 0xd0], Some(Unknown)),
        (&[0xff, 0x20], Some(Unknown)),
        (&[0xff, 0x24, 0xc8], Some(Unknown)),
        // jmp gs:[0x40000000]: what it reads depends on the CPU
        (&[0x65, 0xff, 0x24, 0x25, 0, 0, 0, 0x40], Some(Unknown)),
        // jmp +0; mov rax, [rip + 0x10]: no indirect branches
        (&[0xeb, 0], None),
        (&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0], None),
    ];
    for (bytes, target) in cases {
        assert_eq!(insn(bytes).indirect_branch(), target, "{bytes:x?}");
    }
}

#[test]
fn a_pushed_register_is_told_by_its_number() {
    for register in 0..8 {
        assert_eq!(
            insn(&[0x50 + register]).pushed_register(),
            Some(register.into())
        );
        assert_eq!(
            insn(&[0x41, 0x50 + register]).pushed_register(),
            Some(usize::from(register) + 8)
        );
    }
    // push ax; push rax, with 0x66 that REX.W overrides; fs push rax; push 1; push [rax]; pop rax
    for bytes in [
        &[0x66, 0x50][..],
        &[0x66, 0x48, 0x50],
        &[0x64, 0x50],
        &[0x6a, 1],
        &[0xff, 0x30],
        &[0x58],
    ] {
        assert_eq!(insn(bytes).pushed_register(), None, "{bytes:x?}");
    }
}

/// The bits are those of Intel SDM vol. 1, 3.4.3.
#[test]
fn flags_have_the_processors_bits() {
    let bits = [
        (bits::CF, 0),
        (bits::PF, 2),
        (bits::AF, 4),
        (bits::ZF, 6),
        (bits::SF, 7),
        (bits::TF, 8),
        (bits::IF, 9),
        (bits::DF, 10),
        (bits::OF, 11),
        (bits::NT, 14),
        (bits::RF, 16),
        (bits::VM, 17),
        (bits::AC, 18),
        (bits::VIF, 19),
        (bits::VIP, 20),
        (bits::ID, 21),
    ];
    for (flag, bit) in bits {
        assert_eq!(flag, 2_u64.pow(bit), "bit {bit}");
    }
    assert_eq!(probes::insn::flags::pushed_image(0x1_0202), 0x202);
    assert_eq!(probes::insn::flags::pushed_image(0x3_0000), 2);
}

#[test]
fn what_gives_the_stack_pointer_a_foreign_value_is_told_from_frames() {
    let cases: [(&[u8], bool); 19] = [
        (&[0x48, 0x8b, 0x26], true),              // mov rsp, [rsi]
        (&[0x48, 0x89, 0xc4], true),              // mov rsp, rax
        (&[0x5c], true),                          // pop rsp
        (&[0x48, 0x94], true),                    // xchg rsp, rax
        (&[0x48, 0x0f, 0xc1, 0xe0], true),        // xadd rax, rsp
        (&[0x48, 0x8d, 0x67, 0xc8], true),        // lea rsp, [rdi - 56]
        (&[0x48, 0x03, 0x20], true),              // add rsp, [rax]
        (&[0x48, 0x89, 0xec], false),             // mov rsp, rbp
        (&[0x48, 0x83, 0xc4, 0x20], false),       // add rsp, 32
        (&[0x48, 0x83, 0xec, 0x20], false),       // sub rsp, 32
        (&[0x48, 0x29, 0xc4], false),             // sub rsp, rax
        (&[0x48, 0x83, 0xe4, 0xf0], false),       // and rsp, -16
        (&[0x48, 0x8d, 0x65, 0xd8], false),       // lea rsp, [rbp - 40]
        (&[0x48, 0x8d, 0x64, 0x24, 0x08], false), // lea rsp, [rsp + 8]
        (&[0x48, 0x89, 0xe5], false),             // mov rbp, rsp
        (&[0x48, 0x39, 0xc4], false),             // cmp rsp, rax
        (&[0x48, 0x85, 0xe4], false),             // test rsp, rsp
        (&[0x54], false),                         // push rsp
        (&[0xc9], false),                         // leave
    ];
    for (bytes, switches) in cases {
        assert_eq!(insn(bytes).switches_stacks(), switches, "{bytes:02x?}");
    }
}

#[test]
fn writes_of_model_specific_registers_are_told() {
    let cases: [(&[u8], bool); 5] = [
        (&[0x0f, 0x30], true),        // wrmsr
        (&[0x0f, 0x01, 0xc6], true),  // wrmsrns
        (&[0x0f, 0x32], false),       // rdmsr
        (&[0x0f, 0x01, 0xf8], false), // swapgs
        (&[0x90], false),             // nop
    ];
    for (bytes, writes) in cases {
        assert_eq!(insn(bytes).writes_msr(), writes, "{bytes:02x?}");
    }
}
