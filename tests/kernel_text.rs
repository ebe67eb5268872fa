//! Checks of the linked kernel: its text, instruction by instruction, and its data.
//!
//! Handlers run in the middle of any code, on its stack and with its registers. So nothing may be
//! alive below the stack pointer, or in registers that a hit does not save.

// Its instructions, held against a disassembler's and translated one by one.
#[path = "../kernel/probes/tests/insn/own_text.rs"]
mod own_text;

use std::{fs, path::PathBuf};

use boot::image::Kernel;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind, read::elf::ElfFile64};

/// The program that [`own_text`] reads.
fn subject() -> PathBuf {
    Kernel::build("kernel").unwrap().elf
}

/// The address table alone would be 16 MiB, and a boot loader takes seconds for a megabyte.
#[test]
fn statics_that_are_zero_take_no_room_in_the_file() {
    let kernel = Kernel::build("kernel").unwrap();
    let bytes = fs::read(&kernel.elf).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let data = file.section_by_name(".data").unwrap().size();
    assert!(data < 128 << 10, "{data} bytes");
}

/// A probe on such padding would never be hit, so it would have to be refused by its symbol.
#[test]
fn no_symbol_stands_for_padding_in_front_of_a_function() {
    let kernel = Kernel::build("kernel").unwrap();
    let bytes = fs::read(&kernel.elf).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let names: Vec<_> = file
        .symbols()
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert!(names.contains(&"do_page_fault"), "{} symbols", names.len());
    let padding = |name: &&&str| name.starts_with("__pfx_") || name.starts_with("__cfi_");
    let padding: Vec<_> = names.iter().filter(padding).collect();
    assert!(padding.is_empty(), "{padding:?}");
}

/// All instructions of all functions, each with the name of its function.
fn instructions() -> Vec<(String, Instruction)> {
    let kernel = Kernel::build("kernel").unwrap();
    let bytes = fs::read(&kernel.elf).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let mut all = Vec::new();
    for symbol in file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
    {
        let section = symbol.section_index().expect("functions lie in sections");
        let section = ObjectSection::data_range(
            &file.section_by_index(section).unwrap(),
            symbol.address(),
            symbol.size(),
        );
        let Ok(Some(text)) = section else { continue };
        let name = symbol.name().unwrap().to_owned();
        let decoder = Decoder::with_ip(64, text, symbol.address(), DecoderOptions::NONE);
        all.extend(
            decoder
                .into_iter()
                .map(|instruction| (name.clone(), instruction)),
        );
    }
    assert!(all.len() > 50_000, "{} instructions", all.len());
    all
}

fn show((name, instruction): &(String, Instruction)) -> String {
    format!(
        "{:#x} in {name}: {:?}",
        instruction.ip(),
        instruction.code()
    )
}

#[test]
fn nothing_lives_below_the_stack_pointer_or_in_vector_registers() {
    let all = instructions();
    let red_zone = all.iter().filter(|(_, instruction)| {
        let accesses =
            (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory);
        accesses
            && instruction.memory_base() == Register::RSP
            && (instruction.memory_displacement64() as i64) < 0
            // Computes an address only.
            && instruction.mnemonic() != iced_x86::Mnemonic::Lea
    });
    let red_zone: Vec<_> = red_zone.map(show).collect();
    assert!(red_zone.is_empty(), "{red_zone:#?}");

    let vectors = all.iter().filter(|(_, instruction)| {
        (0..instruction.op_count()).any(|n| {
            let register = instruction.op_register(n);
            register.is_vector_register() || register.is_st() || register.is_mm()
        }) || instruction.is_save_restore_instruction()
    });
    let vectors: Vec<_> = vectors.map(show).collect();
    assert!(vectors.is_empty(), "{vectors:#?}");
}
