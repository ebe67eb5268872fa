//! Which instructions can be probed: nearly all of them, and all in the functions that people look
//! for first.

use crate::tools::own_code::is_of_the_kernel;
use alloc::{boxed::Box, vec::Vec};
use kernel::{
    pr_info,
    probes::{
        Kprobe, register_kprobe,
        survey::{self, Survey},
        unregister_kprobes,
    },
    symbols::{self, Symbol, SymbolKind},
};

/// Functions that users of kprobes look for, by their names: none of them is on a hit's own way.
const SOUGHT_AFTER: [&str; 14] = [
    "printk",
    "schedule",
    "do_fork",
    "do_execve",
    "do_exit",
    "sys_mkdir",
    "vfs_open",
    "vfs_read",
    "vfs_write",
    "do_page_fault",
    "timer_interrupt",
    "ktime_get",
    "block_heap::BlockHeap::allocate",
    "block_heap::BlockHeap::deallocate",
];

/// The functions of that name, as written in Rust.
fn functions_called(name: &str) -> Vec<Symbol<'static>> {
    let fits = |symbol: &Symbol<'_>| alloc::format!("{symbol}") == name;
    symbols::functions().filter(fits).collect()
}

#[guest_test]
fn most_instructions_can_be_probed() {
    let survey = Survey::take(is_of_the_kernel).unwrap();
    pr_info!("{survey}");
    let all = survey.instructions();
    assert!(all > 10_000);
    assert_eq!(survey.undecoded(), [], "what follows is no instruction");
    assert!(
        survey.blacklisted() * 20 <= all,
        "the blacklist holds more than 5 %"
    );
    let free = all - survey.blacklisted();
    assert!(
        survey.accepted() * 1000 >= free * 995,
        "less than 99.5 % of the rest can be probed"
    );
}

#[guest_test]
fn sought_after_functions_can_be_probed_from_the_first_instruction_to_the_last() {
    for name in SOUGHT_AFTER {
        let functions = functions_called(name);
        assert!(!functions.is_empty(), "there is no {name}");
        for symbol in functions {
            for judged in survey::function(&symbol).unwrap() {
                // An instruction that is meant to trap is no place for a probe.
                let traps = judged.insn.bytes() == [0x0f, 0x0b];
                assert!(
                    judged.verdict.is_ok() || traps,
                    "{symbol}: {:?}",
                    judged.verdict
                );
            }
        }
    }
}

/// Registers a disabled probe on every sixteenth instruction of the kernel in turn.
#[guest_test(timeout = 300)]
fn registration_judges_as_the_survey_does() {
    const BATCH: usize = 1000;
    let probes: Vec<&'static Kprobe> = (0..BATCH)
        .map(|_| &*Box::leak(Box::new(Kprobe::new().disabled())))
        .collect();
    let mut used = 0;
    let mut seen = 0_usize;
    let mut count = 0;
    for symbol in symbols::functions().filter(|symbol| symbol.kind == SymbolKind::Text) {
        for judged in survey::function(&symbol).unwrap() {
            seen += 1;
            if !seen.is_multiple_of(16) {
                continue;
            }
            let probe = probes[used];
            probe.set_addr(judged.insn.ip());
            let result = register_kprobe(probe);
            assert_eq!(
                result.as_ref().map_err(|error| error.name()),
                judged.verdict.as_ref().map_err(|error| error.name()),
                "{symbol}+{:#x}",
                judged.insn.ip() - symbol.start
            );
            count += 1;
            used += usize::from(result.is_ok());
            if used == BATCH {
                unregister_kprobes(&probes).unwrap();
                used = 0;
            }
        }
    }
    unregister_kprobes(&probes[..used]).unwrap();
    pr_info!("{count} instructions");
}
