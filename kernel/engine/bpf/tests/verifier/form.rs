//! Instructions and limits that are looked at before any path.

use super::*;

#[test]
fn a_program_has_instructions_but_not_too_many() {
    refuses_program(
        "expected 1 to 4096 instructions, found none; a program ends with `exit`",
        of_insns(Vec::new()),
    );
    let of_length = |length: usize| {
        let mov = Insn::LoadImm { dst: R0, value: 0 };
        let mut insns = vec![mov; length - 1];
        insns.push(Insn::Exit);
        of_insns(insns)
    };
    verify(of_length(MOST_INSNS)).unwrap();
    refuses_program(
        "expected at most 4096 instructions, found 4097; make it shorter",
        of_length(MOST_INSNS + 1),
    );
}

#[test]
fn maps_and_entry_data_are_limited() {
    let of_maps = |count: usize| Program {
        maps: vec![array(8); count],
        ..alone(Insn::LoadImm { dst: R0, value: 0 })
    };
    verify(of_maps(MOST_MAPS)).unwrap();
    refuses_program(
        "expected at most 16 maps, found 17; use fewer",
        of_maps(MOST_MAPS + 1),
    );
    let mut program = of_maps(2);
    program.maps[1].key_size = 5;
    refuses_program(
        "map 1 has a key of 5 bytes; this kind of map takes 4 to 4; change its definition",
        program,
    );
    let sharing = |data| {
        built(ProgramKind::Entry { data }, |b| {
            b.exit(0);
        })
    };
    verify(sharing(MOST_ENTRY_BYTES)).unwrap();
    refuses_program(
        "expected at most 256 bytes of entry data, found 257; share less",
        sharing(MOST_ENTRY_BYTES + 1),
    );
}

#[test]
fn instructions_are_well_formed_even_where_no_path_leads() {
    let jump = |target| {
        of_insns(vec![
            Insn::LoadImm { dst: R0, value: 0 },
            Insn::Exit,
            Insn::Jump {
                target: Target(target),
            },
        ])
    };
    verify(jump(2)).unwrap();
    refuses_program(
        "insn 2, `goto 3`: expected a jump to one of the instructions 0 to 2, found one to 3; jump \
         to an instruction of the program",
        jump(3),
    );
    refuses_program(
        "insn 0, `r1 = map 0`: expected one of the program's 0 maps, found map 0; add the map to \
         the program",
        alone(Insn::LoadMap {
            dst: R1,
            map: MapIndex(0),
        }),
    );
    for insn in [
        Insn::LoadImm { dst: R10, value: 0 },
        Insn::Load {
            dst: R10,
            base: R1,
            offset: 0,
            size: Size::B8,
            signed: false,
        },
    ] {
        refuses_program(
            &format!(
                "insn 0, `{insn}`: expected one of r0 to r9 to write, found r10; r10 is read-only: \
                 copy it first"
            ),
            alone(insn),
        );
    }
    let extend = |width, bits| {
        built(ProgramKind::Probe, |b| {
            b.mov(R1, 5)
                .push(Insn::SignExtend {
                    width,
                    bits,
                    dst: R1,
                    src: R1,
                })
                .exit(0);
        })
    };
    verify(extend(Width::W64, 32)).unwrap();
    refuses_program(
        "insn 1, `w1 = (s32)w1`: expected a sign extension of 8 or 16 bits, found one of 32; use \
         one of these",
        extend(Width::W32, 32),
    );
    refuses_program(
        "insn 1, `r1 = (s7)r1`: expected a sign extension of 8, 16 or 32 bits, found one of 7; use \
         one of these",
        extend(Width::W64, 7),
    );
    refuses_program(
        "insn 0, `r1 = be8 r1`: expected a reordering of 16, 32 or 64 bits, found one of 8; use \
         one of these",
        alone(Insn::Swap {
            swap: Swap::ToBig,
            bits: 8,
            dst: R1,
        }),
    );
    refuses_program(
        "insn 0, `lock *(u16 *)(r10 - 8) += r1`: expected an atomic operation on 4 or 8 bytes, \
         found 2; use one of these",
        alone(atomic_add(R10, -8, Size::B2, R1)),
    );
    refuses_program(
        "insn 0, `r0 = 0x0 ll`: expected a next instruction, found the end of the program; end it \
         with `exit`",
        of_insns(vec![Insn::LoadImm { dst: R0, value: 0 }]),
    );
}
