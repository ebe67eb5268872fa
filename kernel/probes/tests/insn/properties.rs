//! Properties of replacements at arbitrary addresses, by executing them symbolically.
//!
//! Forms, operands and addresses are drawn at random, and a failure is shrunk. In the kernel's 2
//! GiB each form keeps its meaning in a slot; anywhere else it does so with literals. No
//! instruction is executed by the processor, so any address will do.

use instruction_cases::{
    Random,
    encoding::{self, tame_displacement},
};
use probes::insn::{SLOT_BYTES, Translation, classify, decode};
use proptest::{prelude::*, test_runner::RngSeed};

use crate::symbolic::check;

/// Every form that is rewritten, and some that are copied. `d` stands for a random byte.
const FORMS: &[&str] = &[
    "90",
    "48 89 c3",
    "48 83 ec dd",
    "48 8b 44 24 dd",
    "55",
    "c9",
    "f3 48 ab",
    "f0 48 0f c7 09",
    "65 48 8b 04 25 dd dd dd 00",
    "eb dd",
    "e9 dd dd dd 00",
    "e9 dd dd dd ff",
    "67 e9 dd dd dd 00",
    "7d dd",
    "0f 8d dd dd dd ff",
    "2e 72 dd",
    "f2 0f 84 dd dd dd 00",
    "e0 dd",
    "e1 dd",
    "e2 dd",
    "e3 dd",
    "67 e0 dd",
    "67 e1 dd",
    "67 e2 dd",
    "67 e3 dd",
    "2e 67 e2 dd",
    "e8 dd dd dd 00",
    "e8 dd dd dd ff",
    "67 e8 dd dd dd 00",
    "48 e8 dd dd dd 00",
    "66 48 e8 dd dd dd 00",
    "2e 67 3e e8 dd dd dd ff",
    "ff d0",
    "ff d4",
    "41 ff d4",
    "41 ff d7",
    "3e ff d1",
    "66 48 ff d3",
    "ff e0",
    "ff e4",
    "41 ff e4",
    "3e 41 ff e7",
    "f2 ff e6",
    "ff 14 24",
    "ff 54 24 dd",
    "ff 94 24 dd dd dd ff",
    "ff 10",
    "ff 55 dd",
    "41 ff 14 24",
    "41 ff 55 dd",
    "43 ff 94 c8 dd dd dd 00",
    "65 67 43 ff 94 88 dd dd dd 00",
    "64 ff 14 25 dd dd dd 00",
    "2e ff 14 cd dd dd dd 00",
    "4f ff 10",
    "66 48 ff 10",
    "67 ff 54 24 dd",
    "ff 24 24",
    "ff 64 24 dd",
    "ff 20",
    "42 ff 24 e0",
    "65 ff 24 25 dd dd dd 00",
    "67 ff 60 dd",
    "c3",
    "f3 c3",
    "f2 c3",
    "c2 dd dd",
    "c2 00 00",
    "f3 c2 dd 00",
    "9c",
    "66 9c",
    "9d",
    "66 9d",
    "fa",
];

/// Forms with a RIP-relative operand, which need the slot near.
const NEAR_FORMS: &[&str] = &[
    "48 8b 05 dd dd dd 00",
    "48 8d 3d dd dd dd ff",
    "c7 05 dd dd dd 00 dd dd dd dd",
    "80 3d dd dd dd ff dd",
    "ff 15 dd dd dd 00",
    "ff 25 dd dd dd ff",
    "2e ff 15 dd dd dd 00",
    "3e ff 25 dd dd dd 00",
    "f0 48 0f b1 0d dd dd dd 00",
    "c4 e3 71 0f 05 dd dd dd 00 dd",
    "62 f3 75 08 25 05 dd dd dd ff dd",
    "65 ff 15 dd dd dd 00",
    "48 ff 15 dd dd dd 00",
];

/// Those, with an address of 32 bits: in reach from everywhere.
const EIP_FORMS: &[&str] = &[
    "67 48 8b 05 dd dd dd dd",
    "67 ff 15 dd dd dd dd",
    "67 ff 25 dd dd dd dd",
    "67 c7 05 dd dd dd dd 01 02 03 04",
];

fn form(forms: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    (0..forms.len(), any::<[u8; 8]>()).prop_map(move |(n, random)| {
        let mut random = random.into_iter();
        let byte = |word| {
            if word == "dd" {
                random.next().unwrap()
            } else {
                u8::from_str_radix(word, 16).unwrap()
            }
        };
        forms[n].split_whitespace().map(byte).collect()
    })
}

/// Addresses of a kernel in the top 2 GiB, clear of its ends so that branches stay in the kernel.
fn kernel_address() -> impl Strategy<Value = u64> {
    0xffff_ffff_8200_0000..0xffff_ffff_fd00_0000_u64
}

fn user_address() -> impl Strategy<Value = u64> {
    prop_oneof![
        0x1000_0000..0x7000_0000_u64,
        0x5000_0000_0000..0x7fff_0000_0000_u64
    ]
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(0x6b70_726f_6265),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn in_the_kernel_every_form_keeps_its_meaning_in_a_slot(
        bytes in prop_oneof![3 => form(FORMS), 1 => form(NEAR_FORMS), 1 => form(EIP_FORMS)],
        ip in kernel_address(),
        slot in kernel_address(),
        stub in kernel_address(),
    ) {
        prop_assume!(ip.abs_diff(slot) > 64 && stub.abs_diff(slot) > 64 && stub.abs_diff(ip) > 64);
        check(&bytes, ip, slot, stub, SLOT_BYTES);
    }

    #[test]
    fn anywhere_else_every_form_keeps_its_meaning_with_literals(
        bytes in prop_oneof![form(FORMS), form(EIP_FORMS)],
        ip in user_address(),
        slot in user_address(),
        stub in user_address(),
    ) {
        prop_assume!(ip.abs_diff(slot) > 0x200_0000);
        prop_assume!(stub.abs_diff(slot) > 64 && stub.abs_diff(ip) > 0x200_0000);
        check(&bytes, ip, slot, stub, Translation::MAX_BYTES);
    }
}

#[test]
fn random_instructions_of_all_maps_keep_their_meaning() {
    let mut random = Random::new(0xfeed);
    let mut checked = 0;
    while checked < 20_000 {
        let ip = 0xffff_ffff_8200_0000 + random.below(0x1000_0000);
        let slot = 0xffff_ffff_a200_0000 + random.below(0x1000_0000);
        let Some(bytes) = tame_displacement(
            &mut encoding::draw(&mut random),
            ip,
            ip + random.below(0x100_0000),
        ) else {
            continue;
        };
        let Ok(insn) = decode(&bytes, ip) else {
            continue;
        };
        let branches_out = insn
            .branch_target()
            .is_some_and(|target| target < 0xffff_ffff_8000_0000 || target.abs_diff(slot) < 64);
        if classify(&insn, &[]).is_err() || branches_out {
            continue;
        }
        check(&bytes, ip, slot, 0xffff_ffff_8100_0000, SLOT_BYTES);
        checked += 1;
    }
}
