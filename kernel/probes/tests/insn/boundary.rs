//! Where instructions start and end: lengths, the starts in a function, and what is none.
//!
//! Bytes are written by hand and hold what the manuals leave open to a decoder: 15 bytes and 16,
//! code that ends in the middle, encodings that are not known, a prefix of a hypervisor. A walk
//! that goes on from its last answer is compared with a search from the function's start.

use probes::insn::{
    BoundaryError, BoundaryWalk, DecodeError, Insn, Instructions, MAX_INSN_BYTES, decode,
    landing_pad_len,
};

const START: u64 = 0xffff_ffff_8010_0000;

/// A search from the function's start.
fn find_boundary(function: &[u8], start: u64, target: u64) -> Result<Insn, BoundaryError> {
    BoundaryWalk::new().find(function, start, target).copied()
}

#[test]
fn lengths_from_1_to_15_bytes_are_exact() {
    let longest_first = [
        0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0,
    ];
    for skipped in 0..=6 {
        let nop = &longest_first[skipped..];
        assert_eq!(decode(nop, START).unwrap().len(), nop.len());
    }
    for (bytes, len) in [
        (&[0x90][..], 1),
        (&[0x48, 0x8b, 0x05, 1, 2, 3, 4], 7),
        (&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], 10),
        (
            &[0x65, 0xf0, 0x48, 0x81, 0x8c, 0x24, 1, 2, 3, 4, 5, 6, 7, 8],
            14,
        ),
        (&[0x62, 0xf1, 0xfd, 0x48, 0x6f, 0x05, 1, 2, 3, 4], 10),
        (&[0x67, 0xe8, 1, 2, 3, 4], 6),
        (&[0x66, 0xe8, 1, 2, 3, 4], 6),
    ] {
        let mut padded = bytes.to_vec();
        padded.resize(15, 0xcc);
        let insn = decode(&padded, START).unwrap();
        assert_eq!(
            (insn.len(), insn.bytes(), insn.ip(), insn.next_ip()),
            (len, bytes, START, START + len as u64)
        );
    }
}

#[test]
fn only_the_instructions_own_bytes_are_needed() {
    for bytes in [
        &[0xc3][..],
        &[0x48, 0x8b, 0x05, 1, 2, 3, 4],
        &[0x0f, 0x0b],
        &[0xe8, 0, 0, 0, 0],
    ] {
        assert_eq!(decode(bytes, START).unwrap().bytes(), bytes);
        for shorter in 0..bytes.len() {
            assert_eq!(
                decode(&bytes[..shorter], START).unwrap_err(),
                DecodeError::Truncated { ip: START }
            );
        }
    }
}

#[test]
fn more_than_15_bytes_are_no_instruction() {
    let mut bytes = [0x66; 17];
    bytes[16] = 0x90;
    assert_eq!(
        decode(&bytes, START).unwrap_err(),
        DecodeError::Invalid { ip: START }
    );
    assert_eq!(
        decode(&bytes[1..], START).unwrap_err(),
        DecodeError::Invalid { ip: START }
    );
    assert_eq!(decode(&bytes[2..], START).unwrap().len(), 15);
}

#[test]
fn unknown_encodings_are_refused() {
    for bytes in [
        &[0x06, 0, 0][..],         // push es
        &[0x0f, 0x0a, 0],          // unassigned
        &[0x9a, 0, 0, 0, 0, 0, 0], // call far imm
        &[0xea, 0, 0, 0, 0, 0, 0], // jmp far imm
        &[0xce, 0, 0],             // into
        &[0x17, 0, 0],             // pop ss
        &[0x0f, 0x0f, 0xc1, 0x00], // 3DNow! with an unknown suffix
        &[0xf0, 0x90, 0],          // lock nop
        &[0xf0, 0x48, 0x8b, 0x03], // lock mov
        &[0xff, 0xf8, 0],          // group 5, /7
        &[0xd6, 0, 0],
    ] {
        let error = decode(bytes, START).unwrap_err();
        assert_eq!(
            (error, error.errno()),
            (DecodeError::Invalid { ip: START }, 84),
            "{bytes:02x?}"
        );
    }
}

#[test]
fn apx_encodings_are_not_supported() {
    for bytes in [
        &[0xd5, 0x00, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8][..], // jmpabs
        &[0xd5, 0x10, 0x01, 0xd8],                       // add with REX2
        &[0x66, 0xd5, 0x10, 0x01, 0xd8],
        &[0x62, 0xf4, 0x7c, 0x18, 0x01, 0xd8], // EVEX map 4
    ] {
        let error = decode(bytes, START).unwrap_err();
        assert_eq!(
            (error, error.errno()),
            (DecodeError::Apx { ip: START }, 95),
            "{bytes:02x?}"
        );
    }
}

#[test]
fn every_offset_is_a_start_or_names_the_nearest_one() {
    let function = [
        0x55, // push rbp
        0x48, 0x89, 0xe5, // mov rbp, rsp
        0x48, 0x8b, 0x05, 0x10, 0x00, 0x00, 0x00, // mov rax, [rip + 16]
        0x5d, // pop rbp
        0xc3, // ret
    ];
    let starts = [0, 1, 4, 11, 12];
    for offset in 0..function.len() as u64 {
        let found = find_boundary(&function, START, START + offset);
        if starts.contains(&offset) {
            assert_eq!(found.unwrap().ip(), START + offset);
        } else {
            let start = START + starts.iter().rev().find(|s| **s < offset).unwrap();
            assert_eq!(found.unwrap_err(), BoundaryError::MidInstruction { start });
        }
    }
}

#[test]
fn the_last_instruction_of_the_text_is_found() {
    let insn = find_boundary(&[0x90, 0xc3], START, START + 1).unwrap();
    assert_eq!(insn.bytes(), [0xc3]);
}

#[test]
fn breakpoint_padding_does_not_hide_what_follows() {
    let function = [
        0xc3, 0xcc, 0xcc, 0xcc, 0x48, 0x89, 0xe5, 0xe9, 0, 0, 0, 0, 0xcc, 0x90,
    ];
    for offset in [0, 1, 2, 3, 4, 7, 12, 13] {
        assert!(
            find_boundary(&function, START, START + offset).is_ok(),
            "{offset}"
        );
    }
    assert!(
        find_boundary(&function, START, START + 1)
            .unwrap()
            .is_int3()
    );
}

#[test]
fn nothing_is_a_start_behind_undecodable_bytes() {
    let function = [0x90, 0x06, 0x90, 0x90];
    assert!(find_boundary(&function, START, START).is_ok());
    for offset in 1..4 {
        let error = find_boundary(&function, START, START + offset).unwrap_err();
        let cause = DecodeError::Invalid { ip: START + 1 };
        assert_eq!(error, BoundaryError::Undecodable(cause));
    }
}

#[test]
fn a_truncated_last_instruction_is_no_start() {
    let error = find_boundary(&[0x90, 0xe8, 0, 0], START, START + 1).unwrap_err();
    let cause = DecodeError::Truncated { ip: START + 1 };
    assert_eq!(error, BoundaryError::Undecodable(cause));
    assert_eq!(cause.errno(), 84);
}

#[test]
fn addresses_outside_the_function_are_refused() {
    for at in [START - 1, START + 2, 0, u64::MAX] {
        let error = find_boundary(&[0x90, 0xc3], START, at).unwrap_err();
        let cause = DecodeError::Truncated { ip: at };
        assert_eq!(error, BoundaryError::Undecodable(cause));
    }
}

#[test]
fn a_function_at_the_very_end_of_the_address_space_works() {
    let start = 0u64.wrapping_sub(2);
    assert_eq!(
        find_boundary(&[0x90, 0xc3], start, u64::MAX)
            .unwrap()
            .bytes(),
        [0xc3]
    );
}

#[test]
fn the_instruction_behind_a_forced_emulation_prefix_belongs_to_it() {
    for signature in [*b"xen", *b"kvm"] {
        let mut function = vec![0x90, 0x0f, 0x0b];
        function.extend(signature);
        function.extend([0x0f, 0xa2, 0xc3]); // cpuid; ret
        assert!(
            find_boundary(&function, START, START + 1)
                .unwrap()
                .is_forced_emulation_prefix()
        );
        assert_eq!(
            find_boundary(&function, START, START + 6).unwrap_err(),
            BoundaryError::MidInstruction { start: START + 1 }
        );
        assert_eq!(
            find_boundary(&function, START, START + 8).unwrap().bytes(),
            [0xc3]
        );
    }
}

#[test]
fn a_walk_answers_in_any_order_as_a_search_from_the_start_does() {
    let function = [
        0x55, // push rbp
        0x48, 0x89, 0xe5, // mov rbp, rsp
        0x0f, 0x0b, b'x', b'e', b'n', // forced emulation of
        0x0f, 0xa2, // cpuid
        0xfb, // sti
        0x90, // nop
        0x06, // no instruction
        0xc3,
    ];
    let end = function.len() as u64 + 1;
    let answer = |at| {
        let fresh = find_boundary(&function, START, START + at);
        fresh.map(|insn| (insn.ip(), insn.len()))
    };
    let targets =
        (0..end).flat_map(|a| (0..end).flat_map(move |b| (0..end).map(move |c| [a, b, c])));
    for order in targets {
        let mut walk = BoundaryWalk::new();
        for at in order {
            let found = walk.find(&function, START, START + at).copied();
            let found = found.map(|insn| (insn.ip(), insn.len()));
            assert_eq!(found, answer(at), "{order:?} at {at}");
        }
    }
}

/// As a batch asks, which reads the bytes of a function as far as its targets need them.
#[test]
fn a_walk_answers_right_while_more_bytes_become_known() {
    const NEEDED: usize = 2 * MAX_INSN_BYTES;
    const LONG_NOP: [u8; 9] = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    for before in 0..NEEDED * 4 {
        for signature in [b"xen", b"kvm"] {
            // Nops, then the prefix of a cpuid.
            let mut function = LONG_NOP.repeat(before / LONG_NOP.len());
            function.resize(before, 0x90);
            function.extend([0x0f, 0x0b]);
            function.extend(signature);
            function.extend([0x0f, 0xa2]);
            function.extend([0xcc; 2 * NEEDED]);
            let nops = (0..before / LONG_NOP.len()).map(|nop| nop * LONG_NOP.len());
            let nops: Vec<usize> = nops.collect();
            for (first, last) in nops.iter().flat_map(|a| nops.iter().map(move |b| (*a, *b))) {
                // Two nops, then each byte from the prefix on.
                let targets = [first, last].into_iter().chain(before..before + 9);
                let (mut walk, mut known) = (BoundaryWalk::new(), 0);
                for target in targets {
                    if known < target + NEEDED {
                        known = (target + NEEDED).max(2 * known).min(function.len());
                    }
                    let bytes = &function[..known];
                    let at = START + target as u64;
                    let place = |insn: &Insn| (insn.ip(), insn.len());
                    let found = walk.find(bytes, START, at).map(place);
                    let fresh = BoundaryWalk::new().find(bytes, START, at).map(place);
                    let told = (first, last, target, before);
                    assert_eq!(found, fresh, "{signature:?} {told:?}");
                }
            }
        }
    }
}

#[test]
fn iteration_stops_at_the_first_error() {
    let results: Vec<_> = Instructions::new(&[0x90, 0x06, 0x90], START).collect();
    assert_eq!(results.len(), 2);
    assert!(results[0].is_ok() && results[1].is_err());
}

#[test]
fn landing_pads_are_recognised() {
    assert_eq!(landing_pad_len(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55]), 4);
    assert_eq!(landing_pad_len(&[0x66, 0x0f, 0x1f, 0x00, 0x55]), 4);
    assert_eq!(landing_pad_len(&[0x0f, 0x1f, 0x40, 0x00, 0x55]), 0);
    assert_eq!(landing_pad_len(&[0xf3, 0x0f]), 0);
    assert_eq!(decode(&[0xf3, 0x0f, 0x1e, 0xfa], START).unwrap().len(), 4);
}
