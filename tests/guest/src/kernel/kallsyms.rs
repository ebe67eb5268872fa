//! The kernel's own symbols.

use alloc::{format, string::ToString};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use kernel::{
    backtrace::unwind,
    symbols::{self, Address, LookupError, Symbol, SymbolKind},
};

/// The functions that users of probes look for, under the names that they look for.
const USUAL_NAMES: [&str; 12] = [
    "__switch_to",
    "do_execve",
    "do_exit",
    "do_fork",
    "do_page_fault",
    "printk",
    "schedule",
    "sys_mkdir",
    "timer_interrupt",
    "vfs_open",
    "vfs_read",
    "vfs_write",
];

/// Whether `name` finds `symbol`, alone or among others of that name.
fn finds(name: &str, symbol: &Symbol<'_>) -> bool {
    match symbols::lookup_name(name) {
        Ok(found) => found.start == symbol.start,
        Err(LookupError::Ambiguous { candidates, .. }) => candidates
            .iter()
            .any(|candidate| candidate.start == symbol.start),
        Err(_) => false,
    }
}

#[guest_test]
fn every_function_is_found_by_name_and_by_each_end() {
    let mut count = 0;
    for symbol in symbols::functions() {
        count += 1;
        assert!(finds(symbol.name, &symbol), "{symbol:?}");
        for address in [symbol.start, symbol.start + symbol.size - 1] {
            assert_eq!(symbols::lookup_addr(address), Some(symbol));
        }
    }
    assert!(count > 1000, "only {count} functions");
}

#[guest_test]
fn functions_are_found_by_their_demangled_names() {
    for symbol in symbols::functions().step_by(97) {
        assert!(finds(&symbol.to_string(), &symbol), "{symbol}");
    }
    let own = symbols::lookup_name("guest_tests::kernel::kallsyms::finds").unwrap();
    assert_eq!(own.start, finds as *const () as u64);
}

#[guest_test]
fn functions_that_users_probe_are_there_and_exported() {
    for name in USUAL_NAMES {
        let symbol = symbols::lookup_name(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(symbol.kind, SymbolKind::Text, "{name}");
        assert!(symbol.exported && symbol.size > 0, "{symbol:?}");
    }
}

#[guest_test]
fn unknown_name_offers_the_nearest() {
    let error = symbols::lookup_name("do_frok").unwrap_err().to_string();
    assert!(
        error.starts_with("no symbol do_frok; did you mean do_fork"),
        "{error}"
    );
    assert!(error.contains("inlined"), "{error}");
}

#[guest_test]
fn kinds_of_memory_are_told_apart() {
    let kind_of = |address: u64| symbols::lookup_addr(address).map(|symbol| symbol.kind);
    assert_eq!(kind_of(finds as *const () as u64), Some(SymbolKind::Text));
    static ZERO: AtomicU64 = AtomicU64::new(0);
    static ONE: AtomicU64 = AtomicU64::new(1);
    assert_eq!(ZERO.load(Relaxed) + ONE.load(Relaxed), 1);
    assert_eq!(
        kind_of((&raw const ZERO).addr() as u64),
        Some(SymbolKind::Bss)
    );
    assert_eq!(
        kind_of((&raw const ONE).addr() as u64),
        Some(SymbolKind::Data)
    );
    assert_eq!(
        symbols::lookup_name("kernel::kmain").unwrap().kind,
        SymbolKind::Init
    );
}

#[guest_test]
fn addresses_print_as_symbol_offset_and_size() {
    let printk = symbols::lookup_name("printk").unwrap();
    let at = |offset| Address::of_instruction(printk.start + offset).to_string();
    assert_eq!(at(0), format!("printk+0x0/{:#x}", printk.size));
    assert_eq!(at(5), format!("printk+0x5/{:#x}", printk.size));
    assert_eq!(
        Address::of_return(printk.start + printk.size).to_string(),
        format!("printk+{0:#x}/{0:#x}", printk.size)
    );
    assert_eq!(Address::of_instruction(0x1234).to_string(), "0x1234");
}

/// So that a backtrace is right from any instruction of any function. Left out are this crate's
/// routines in assembly, and labels that only mark an end.
#[guest_test]
fn every_function_has_call_frame_information() {
    let mut missing = 0;
    for symbol in symbols::functions().filter(|symbol| symbol.kind == SymbolKind::Text) {
        let name = symbol.to_string();
        if name.starts_with("guest_tests") || name.starts_with("form_") || name.ends_with("_end") {
            continue;
        }
        if ![symbol.start, symbol.start + symbol.size - 1]
            .into_iter()
            .all(unwind::describes)
        {
            kernel::pr_err!(
                "nothing describes {symbol} at {:#x}, {} bytes",
                symbol.start,
                symbol.size
            );
            missing += 1;
        }
    }
    assert_eq!(missing, 0, "functions without call frame information");
}
