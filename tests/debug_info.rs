//! The debug information of the kernel that users trace: each function that can be probed has a
//! name, and values that tools for C do not find are there.

use std::fs;

use debug_info::DebugInfo;
use object::{Object, ObjectSection};
use tests::built;
use trace_interface::{
    Kernel,
    symbols::{Moment, ProbePlace, Type},
};

fn kernel() -> DebugInfo {
    DebugInfo::open(&built::kernel().debug_elf).unwrap()
}

#[test]
fn each_function_of_the_kernel_is_found_by_its_path_and_by_its_symbol() {
    let info = kernel();
    let all = info.functions("*");
    assert!(all.len() > 2000, "{}", all.len());
    for function in &all {
        for name in [&function.path, &function.symbol] {
            assert!(info.functions(name).contains(function), "{name}");
        }
    }
}

/// Each is where an instruction begins, and has the byte of that instruction.
#[test]
fn instructions_are_found_by_their_mnemonics_and_texts() {
    let info = kernel();
    let file = fs::read(&built::kernel().debug_elf).unwrap();
    let elf = object::File::parse(&*file).unwrap();
    let bytes = |address: u64, count: u64| {
        let mut sections = elf.sections();
        let section = sections.find(|section| {
            (section.address()..section.address() + section.size()).contains(&address)
        });
        let data = section.unwrap().data_range(address, count).unwrap();
        data.unwrap().to_vec()
    };
    let byte = |address| bytes(address, 1)[0];
    for (mnemonic, first) in [("cli", 0xfa), ("sti", 0xfb), ("hlt", 0xf4)] {
        let found = info.instructions(mnemonic).unwrap();
        assert!(found.is_sorted() && !found.is_empty(), "{mnemonic}");
        for address in &found {
            assert_eq!(byte(*address), first, "{address:#x}");
            let function = info.function_at(*address).unwrap();
            info.instruction(&function, address - function.address)
                .unwrap();
        }
        let by_pattern = info.instructions(&format!("{}*", &mnemonic[..2])).unwrap();
        assert!(
            found.iter().all(|address| by_pattern.contains(address)),
            "{mnemonic}"
        );
    }
    // With a blank it is the text.
    let found = info.instructions("inc dword ptr gs:[0x24]").unwrap();
    assert!(found.is_sorted() && found.len() > 20, "{}", found.len());
    for address in &found {
        let code = [0x65, 0xff, 0x04, 0x25, 0x24, 0, 0, 0];
        assert_eq!(bytes(*address, 8), code, "{address:#x}");
    }
    let by_pattern = info.instructions("inc dword ptr gs:*").unwrap();
    assert!(by_pattern.len() > found.len());
    assert!(found.iter().all(|address| by_pattern.contains(address)));
    let reschedule = &info.functions("kernel::task::scheduler::reschedule")[0];
    let code = reschedule.address..reschedule.address + reschedule.bytes;
    let clis = info.instructions("cli").unwrap();
    assert!(clis.iter().any(|address| code.contains(address)));
    let refused = info.instructions("cmpxchf").unwrap_err();
    assert!(refused.help.contains("cmpxchg"), "{refused}");
}

#[test]
fn arguments_and_results_of_the_kernel_have_their_types() {
    let info = kernel();
    let function = &info.functions("vfs_write")[0];
    assert_eq!(function.path, "kernel::fs::file::vfs_write");
    let signature = info.signature(function);
    assert_eq!(
        signature.text,
        "fn vfs_write(file: &File, buf: u64, count: usize, pos: &mut u64) -> i64"
    );
    assert_eq!(signature.place.unwrap().0, "kernel/src/fs/file.rs");
    let place = ProbePlace {
        address: function.address,
        moment: Moment::At,
    };
    assert_eq!(info.variables(place)[..4], ["file", "buf", "count", "pos"]);
    let count = info.variable(place, "count").unwrap();
    assert!(matches!(
        *info.describe(count.type_id),
        Type::Integer {
            bytes: 8,
            signed: false
        }
    ));
    let result = info.returned(function.address).unwrap();
    assert!(matches!(
        *info.describe(result.type_id),
        Type::Integer {
            bytes: 8,
            signed: true
        }
    ));
}

/// A mark at the end of a section has an address that no code has.
#[test]
fn marks_of_the_linker_are_no_functions() {
    let info = kernel();
    for mark in ["__text_end", "__data_start"] {
        assert_eq!(info.functions(mark), [], "{mark}");
    }
}

/// The kernel's entry point and its handlers are assembly; nearly all else is Rust.
#[test]
fn nearly_all_arguments_of_the_kernel_are_known_at_the_entry() {
    let info = kernel();
    let (mut functions, mut known) = (0, 0);
    for function in info.functions("kernel::*") {
        let place = ProbePlace {
            address: function.address,
            moment: Moment::At,
        };
        let text = info.signature(&function).text;
        if text.contains("()") || text.contains("(?)") {
            continue;
        }
        functions += 1;
        known += usize::from(!info.variables(place).is_empty());
    }
    assert!(functions > 300, "{functions}");
    assert!(known * 10 > functions * 8, "{known} of {functions}");
}

/// Places of functions are shown without the directories of this machine, and a probe takes each
/// one as it is shown.
#[test]
fn each_place_that_is_listed_has_code() {
    let info = kernel();
    let all = info.functions("*");
    let mut count = 0;
    // Each of them reads its file's lines anew.
    for (function, signature) in all.iter().zip(info.signatures(&all)).step_by(41) {
        let Some((file, line)) = signature.place else {
            continue;
        };
        assert!(!file.starts_with('/'), "{function:?}: {file}");
        let found = info.line(&file, line);
        assert!(found.is_ok(), "{file}:{line}: {found:?}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}

/// A probe inside of a function is at an instruction, or it is refused with those nearby.
#[test]
fn instructions_of_a_function_are_told_from_the_bytes_between_them() {
    let info = kernel();
    let function = &info.functions("vfs_write")[0];
    let begins: Vec<u64> = (0..function.bytes)
        .filter(|offset| info.instruction(function, *offset).is_ok())
        .collect();
    // It begins by saving registers: a byte or two each.
    assert_eq!(begins[0], 0);
    let between = (1..function.bytes).find(|offset| !begins.contains(offset));
    let between = between.unwrap();
    let before = begins.iter().rev().find(|begin| **begin < between).unwrap();
    let after = begins.iter().find(|begin| **begin > between).unwrap();
    assert!((2..=15).contains(&(after - before)));
    let error = info.instruction(function, between).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "no instruction of `kernel::fs::file::vfs_write` begins at `+{between}`; instructions \
             begin at `+{before}` and at `+{after}`"
        )
    );
    for outside in [function.bytes, u64::MAX] {
        let error = info.instruction(function, outside).unwrap_err().to_string();
        assert!(error.contains("bytes of code"), "{error}");
    }
    // Steps of a processor are as long as what is between two of them.
    assert!(begins.windows(2).all(|pair| pair[1] - pair[0] <= 15));
}
