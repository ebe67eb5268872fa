//! Decoding, boundaries, classification and the exact bytes of replacements.

use probes::insn::*;

const TEXT: u64 = 0xffff_ffff_8012_3450;
const SLOT: u64 = 0xffff_ffff_a000_0000;
const STUB: u64 = 0xffff_ffff_8000_1000;
const POST: Ending = Ending::Post {
    stub: STUB,
    saved_flags: Some(SavedFlagsOperand { gs_offset: 0x40 }),
};

fn code(bytes: &[u8], ending: Ending) -> String {
    let insn = decode(bytes, TEXT).unwrap();
    assert_eq!(insn.bytes(), bytes);
    let translation = translate(&insn, SLOT, ending).unwrap();
    translation
        .code()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[test]
fn smoke() {
    for bytes in [
        &[0x90][..],
        &[0xe8, 0, 0, 0, 0],
        &[0xff, 0x14, 0x24],
        &[0x74, 0xfe],
        &[0xc2, 8, 0],
        &[0xe2, 0x10],
        &[0x9c],
    ] {
        println!(
            "{bytes:02x?}: {}\n        {}",
            code(bytes, Ending::Resume),
            code(bytes, POST)
        );
    }
}
