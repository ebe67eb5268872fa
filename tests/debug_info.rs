//! The debug information of the kernel that users trace: each function that can be probed has a
//! name, and values that tools for C do not find are there.

use debug_info::DebugInfo;
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
