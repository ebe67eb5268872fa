//! The blacklist from the other side: whatever a hit must not find in its way is refused.
//!
//! The kernel derives the list at boot by following calls from the ways of a hit. These tests
//! decode the kernel's text themselves, look for what must not be probed by what its code does
//! (switches of stacks, places that the boot patches, code that a hit reaches), and expect all of
//! it to be refused.

use crate::tools::own_code::is_of_the_kernel;
use alloc::{boxed::Box, collections::BTreeSet, format, string::String, vec::Vec};
use core::hint::black_box;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use kernel::{
    mm::init_text,
    probes::{HAS_CLONE, Kprobe, ProbeError, register, survey},
    symbols::{self, Symbol, SymbolKind},
};

/// An instruction and whether it may not be probed whatever it is, because of where it is.
struct Placed {
    instruction: Instruction,
    blacklisted: bool,
    /// Whether it is in the way of a hit, and not only in a clone of what is.
    on_the_way: bool,
}

/// The instructions of a function.
fn instructions(symbol: &Symbol<'_>) -> Vec<Placed> {
    survey::function(symbol)
        .unwrap()
        .into_iter()
        .map(|judged| Placed {
            instruction: Decoder::with_ip(
                64,
                judged.insn.bytes(),
                judged.insn.ip(),
                DecoderOptions::NONE,
            )
            .decode(),
            blacklisted: matches!(judged.verdict, Err(ProbeError::Blacklisted { .. })),
            on_the_way: matches!(
                judged.verdict,
                Err(ProbeError::Blacklisted { reason, .. }) if reason != HAS_CLONE
            ),
        })
        .collect()
}

/// All functions of the kernel that are mapped; tests hold instructions that no kernel has.
fn functions() -> impl Iterator<Item = Symbol<'static>> {
    symbols::functions()
        .filter(|symbol| symbol.kind == SymbolKind::Text || !init_text::is_freed())
        .filter(is_of_the_kernel)
}

/// Whether the instruction gives rsp a value that is not computed from rsp or the frame pointer.
fn loads_stack_pointer(instruction: &Instruction) -> bool {
    let is_stack_pointer = |n: u32| {
        n < instruction.op_count()
            && instruction.op_kind(n) == OpKind::Register
            && instruction.op_register(n).full_register() == Register::RSP
    };
    match instruction.mnemonic() {
        Mnemonic::Mov => {
            is_stack_pointer(0)
                && !(instruction.op_kind(1) == OpKind::Register
                    && instruction.op1_register() == Register::RBP)
        }
        Mnemonic::Lea => {
            is_stack_pointer(0)
                && !matches!(instruction.memory_base(), Register::RSP | Register::RBP)
        }
        Mnemonic::Pop => is_stack_pointer(0),
        Mnemonic::Xchg | Mnemonic::Xadd => is_stack_pointer(0) || is_stack_pointer(1),
        _ => false,
    }
}

/// Functions that may be probed although refused ones lead to them: there a hit is over, or the
/// kernel is, or an entry stub has saved the registers and goes on as ordinary code.
const ENDS: [&str; 22] = [
    "do_syscall",
    "kernel::arch::x86_64::traps::do_double_fault",
    "do_interrupt",
    "kernel::arch::x86_64::traps::do_nmi",
    "kernel::arch::x86_64::traps::exit_to_user",
    "kernel::task::scheduler::begin_task",
    "kernel::arch::x86_64::traps::do_exception",
    "do_page_fault",
    "kernel::arch::x86_64::traps::unclaimed",
    "kernel::arch::x86_64::traps::other_user_breakpoint",
    "kernel::arch::x86_64::traps::user_breakpoint",
    "kernel::arch::x86_64::traps::user_place",
    "kernel::uprobes::hit::run_user_handler",
    "kernel::uprobes::hit::run_user_return",
    "kernel::uprobes::hit::on_debug",
    "kernel::uprobes::hit::bring_in_for_action",
    "<kernel::probes::platform::Kernel as probes::platform::Platform>::fatal",
    "<kernel::probes::platform::Kernel as probes::platform::Platform>::orphan_return",
    "core::panicking::",
    "core::fmt::",
    "__rustc::rust_begin_unwind",
    "kernel::task::scheduler::preempt_before_breakpoint",
];

/// Code that switches stacks may not be probed, because the hit would find neither its frame nor
/// its task again.
#[guest_test]
fn what_switches_stacks_is_refused() {
    let mut found = 0;
    let mut free = Vec::new();
    for symbol in functions() {
        for placed in instructions(&symbol) {
            if loads_stack_pointer(&placed.instruction) {
                found += 1;
                if !placed.blacklisted {
                    free.push(format!("{:#x} in {symbol}", placed.instruction.ip()));
                }
            }
        }
    }
    assert!(found > 0, "the switch of tasks loads rsp");
    assert!(free.is_empty(), "{free:#?}");
}

/// The boot writes `clac` into entry stubs and into templates of detours. A probe there would put
/// the breakpoint's byte into what is written, and what is written over the breakpoint.
#[guest_test]
fn places_that_the_boot_patches_are_refused() {
    let sites = symbols::section(".clac_sites").as_chunks().0;
    assert!(sites.len() > 3, "{} places are patched", sites.len());
    for site in sites.iter().copied().map(u64::from_le_bytes) {
        for addr in site..site + 3 {
            let error = register(Box::new(Kprobe::new().at(addr)))
                .map(drop)
                .unwrap_err();
            assert!(
                matches!(error, ProbeError::Blacklisted { .. }),
                "{addr:#x}: {error}"
            );
            assert_eq!(error.errno(), 22);
        }
    }
}

/// The name that the compiler gives a copy of a function.
#[unsafe(export_name = "kprobe_handle_nothing.llvm.1234567890")]
#[inline(never)]
extern "C" fn copy_with_a_suffix(n: u64) -> u64 {
    black_box(n) + 701
}

/// The name that the compiler would give another instance of a function, were it generic.
#[unsafe(export_name = "_ZN6kernel6probes5hooks8on_debug17h0123456789abcdefE")]
#[inline(never)]
extern "C" fn other_instance(n: u64) -> u64 {
    black_box(n) + 702
}

/// Not a clone: the name goes on, and has no mark.
#[unsafe(export_name = "kprobe_handle_nothing_else")]
#[inline(never)]
extern "C" fn no_clone(n: u64) -> u64 {
    black_box(n) + 703
}

/// Clones of a function that a hit runs through are refused at each byte, although no hit comes
/// through these.
#[guest_test]
fn clones_of_what_a_hit_reaches_are_refused() {
    let symbol = |function: extern "C" fn(u64) -> u64| {
        let symbol = symbols::lookup_addr(function as usize as u64).unwrap();
        assert_eq!(symbol.start, function as usize as u64);
        symbol
    };
    for clone in [copy_with_a_suffix, other_instance].map(symbol) {
        assert!(clone.size > 3, "{clone:?}");
        for addr in clone.start..clone.start + clone.size {
            let error = register(Box::new(Kprobe::new().at(addr)))
                .map(drop)
                .unwrap_err();
            assert_eq!(
                (error.name(), error.errno()),
                ("Blacklisted", 22),
                "{clone}"
            );
        }
    }
    let other = symbol(no_clone).start;
    drop(register(Box::new(Kprobe::new().at(other))).unwrap());
}

/// Functions that refused ones call or jump to are refused as well, up to those at which the hit is
/// over. No hit comes through those that are refused because of a clone.
#[guest_test]
fn what_a_hit_reaches_is_refused() {
    let mut edges = 0;
    let mut free = BTreeSet::<String>::new();
    for symbol in functions() {
        for placed in instructions(&symbol)
            .iter()
            .filter(|placed| placed.on_the_way)
        {
            let instruction = &placed.instruction;
            let is_direct =
                instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
            let target = instruction.near_branch_target();
            if !is_direct || (symbol.start..symbol.start + symbol.size).contains(&target) {
                continue;
            }
            edges += 1;
            let Some(reached) = symbols::lookup_addr(target) else {
                panic!(
                    "{:#x} in {symbol} leads out of the kernel",
                    instruction.ip()
                );
            };
            let name = format!("{reached}");
            let is_refused = instructions(&reached)
                .iter()
                .all(|placed| placed.blacklisted);
            if !is_refused && !ENDS.iter().any(|end| name.starts_with(end)) {
                free.insert(format!("{symbol} reaches {name}"));
            }
        }
    }
    assert!(edges > 20, "{edges} calls and jumps between functions");
    assert!(free.is_empty(), "{free:#?}");
}
