//! Registration errors, one by one: the errno, the sentence, and that nothing has changed.
//!
//! A refused call must leave no trace. So a test of an error also looks at what was there before:
//! the list of probes, the text, the hits of a probe that shares the batch.

use alloc::{boxed::Box, format, string::ToString, vec::Vec};
use core::hint::black_box;
use kernel::{
    mm::init_text,
    probes::{
        Jprobe, Kprobe, Kretprobe, PROBES, PreVerdict, ProbeError, PtRegs, disable_kprobe,
        enable_kprobe, jprobe, register, register_jprobe, register_kprobe, register_kprobes,
        register_kretprobe, unregister_jprobe, unregister_kprobe, unregister_kprobes,
        unregister_kretprobe,
    },
    symbols,
};

/// No other function here does this. The linker may merge two that are the same, and then the
/// address has the other one's symbol, too.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn error_target(a: u64) -> u64 {
    black_box(black_box(a) + 601)
}

/// Its constant is in no other function, for the same reason.
#[inline(never)]
fn rust_target(a: u64) -> u64 {
    black_box(a + 0x7275_7374)
}

fn nothing(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

/// The bytes of a function's text.
fn text(name: &str) -> &'static [u8] {
    let symbol = symbols::lookup_name(name).expect("a function of this file");
    // SAFETY: kernel text is mapped and readable for ever.
    unsafe { core::slice::from_raw_parts(symbol.start as *const u8, symbol.size as usize) }
}

/// Expects `result` to be an error with this name and errno, whose sentence says what to do, and
/// the text untouched.
fn refused<T>(result: Result<T, ProbeError>, name: &str, errno: i32) {
    match result {
        Ok(_) => panic!("accepted instead of refused with {name}"),
        Err(error) => {
            assert_eq!((error.name(), error.errno()), (name, errno), "{error}");
            assert!(error.to_string().len() > 30, "{error}");
        }
    }
    assert_eq!(PROBES.slots_in_use(), 0, "{name} leaves a slot behind");
}

jprobe! {
    fn mirror(_a: u64) {}
}

/// More than a call may keep.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "only its size counts")]
struct Large([u64; 600]);

impl Default for Large {
    fn default() -> Self {
        Self([0; 600])
    }
}

/// Every wrong target is refused by its own error.
#[guest_test]
fn wrong_targets_are_refused() {
    let before = text("error_target").to_vec();
    let kprobe = || Kprobe::new().pre(nothing);
    let addr = error_target as *const () as u64;
    refused(register(Box::new(kprobe())), "NoTarget", 22);
    refused(
        register(Box::new(kprobe().symbol("error_target").at(addr))),
        "SymbolAndAddress",
        22,
    );
    refused(
        register(Box::new(kprobe().symbol("no_such_function_anywhere"))),
        "UnknownSymbol",
        2,
    );
    refused(register(Box::new(kprobe().at(8))), "NoSymbolAt", 2);
    let on_heap = Box::new(0u64);
    refused(
        register(Box::new(kprobe().at(&raw const *on_heap as u64))),
        "NoSymbolAt",
        2,
    );
    // Exported: of a constant that no other crate knows the compiler may make one with an unnamed
    // constant.
    #[unsafe(no_mangle)]
    static ERROR_TARGET_DATA: u64 = 5;
    refused(
        register(Box::new(kprobe().at(&raw const ERROR_TARGET_DATA as u64))),
        "NotText",
        22,
    );
    // Text that was there for the boot alone.
    assert!(init_text::is_freed());
    refused(
        register(Box::new(kprobe().symbol("kernel::init::finish_boot"))),
        "NoSymbolAt",
        2,
    );
    assert_eq!(text("error_target"), before);
}

/// An offset inside an instruction is refused and names the nearest start; with a probe there, too.
#[guest_test]
fn an_offset_inside_an_instruction_is_refused() {
    let before = text("do_page_fault").to_vec();
    let (mut inside, mut starts) = (0, 0);
    for offset in 0..before.len().min(200) as u32 {
        match register(Box::new(
            Kprobe::new().symbol("do_page_fault").offset(offset),
        )) {
            Ok(_) => starts += 1,
            Err(ProbeError::MidInstruction { addr, start }) => {
                inside += 1;
                assert!(start < addr && addr - start < 15);
                assert_eq!(ProbeError::MidInstruction { addr, start }.errno(), 84);
            }
            Err(error) => panic!("do_page_fault+{offset:#x}: {error}"),
        }
    }
    assert!(
        inside > 50 && starts > 20,
        "{inside} inside, {starts} starts"
    );
    let probe = register(Box::new(Kprobe::new().symbol("do_page_fault"))).unwrap();
    let error = register(Box::new(Kprobe::new().symbol("do_page_fault").offset(2)))
        .map(drop)
        .unwrap_err();
    drop(probe);
    assert!(
        matches!(error, ProbeError::MidInstruction { .. }),
        "{error}"
    );
    assert_eq!(text("do_page_fault"), before);
}

/// How many calls a return probe follows that leaves the number to the kernel.
fn default_maxactive() -> [i32; 2] {
    [0, -5].map(|given| {
        let probe = Kretprobe::<()>::new()
            .symbol("error_target")
            .maxactive(given);
        let handle = register(Box::new(probe)).unwrap();
        handle.maxactive_in_force()
    })
}

/// Ten calls at least, however few the CPUs are.
#[guest_test(smp = 2)]
fn two_cpus_have_ten_instances() {
    assert_eq!(default_maxactive(), [10; 2]);
}

/// Two for each CPU, where that is more.
#[guest_test(smp = 6)]
fn six_cpus_have_twelve_instances() {
    assert_eq!(default_maxactive(), [12; 2]);
}

/// The switch of stacks can carry no probe of any kind.
#[guest_test]
fn the_stack_switch_is_refused_for_all_three_kinds() {
    refused(
        register(Box::new(Kprobe::new().symbol("__switch_to"))),
        "Blacklisted",
        22,
    );
    refused(
        register(Box::new(Kretprobe::<()>::new().symbol("__switch_to"))),
        "Blacklisted",
        22,
    );
    refused(
        register(Box::new(Jprobe::new().symbol("__switch_to").entry(mirror))),
        "Blacklisted",
        22,
    );
    let error = register(Box::new(Kprobe::new().symbol("__switch_to")))
        .map(drop)
        .unwrap_err();
    assert!(
        matches!(error, ProbeError::Blacklisted { reason, .. } if reason == "it switches stacks"),
        "{error}"
    );
}

/// Code that every hit runs through is refused: entry stubs, trampoline, dispatcher.
#[guest_test]
fn the_way_of_a_hit_is_refused() {
    for name in ["kretprobe_trampoline", "kprobe_post_stub", "jprobe_return"] {
        refused(
            register(Box::new(Kprobe::new().symbol(name))),
            "Blacklisted",
            22,
        );
    }
    // Each instance of a generic function is on the way.
    let instances = symbols::all_named("probes::asm::on_return");
    assert!(!instances.is_empty());
    for symbol in instances {
        let probe = Box::new(Kprobe::new().at(symbol.start));
        refused(register(probe), "Blacklisted", 22);
    }
}

/// Return probes and jprobes go to function entries; jprobes need the C calling convention and a
/// handler, once.
#[guest_test]
fn containers_are_checked() {
    refused(
        register(Box::new(
            Kretprobe::<()>::new().symbol("do_page_fault").offset(1),
        )),
        "NotFunctionEntry",
        22,
    );
    refused(
        register(Box::new(
            Jprobe::new()
                .symbol("do_page_fault")
                .offset(1)
                .entry(mirror),
        )),
        "NotFunctionEntry",
        22,
    );
    refused(
        register(Box::new(Jprobe::new().symbol("error_target"))),
        "NoHandler",
        22,
    );
    let rust = rust_target as *const () as u64;
    refused(
        register(Box::new(Jprobe::new().at(rust).entry(mirror))),
        "NotExternC",
        22,
    );
    refused(
        register(Box::new(Kretprobe::<Large>::new().symbol("error_target"))),
        "DataTooLarge",
        7,
    );
    let first = register(Box::new(Jprobe::new().symbol("error_target").entry(mirror))).unwrap();
    let second = register(Box::new(Jprobe::new().symbol("error_target").entry(mirror))).map(drop);
    assert_eq!(second.unwrap_err().errno(), 17);
    drop(first);
    assert_eq!(error_target(black_box(1)), 602);
}

static AGAIN: Kprobe = Kprobe::new().symbol("error_target").pre(nothing);
static BAD: Kprobe = Kprobe::new().symbol("no_such_function_anywhere");
static OTHER: Kprobe = Kprobe::new().symbol("error_target").pre(nothing);

/// Registering twice, unregistering twice, enabling what is not registered: defined and harmless.
#[guest_test]
fn registration_state_is_checked() {
    let before = text("error_target").to_vec();
    refused(enable_kprobe(&AGAIN), "NotRegistered", 22);
    refused(disable_kprobe(&AGAIN), "NotRegistered", 22);
    register_kprobe(&AGAIN).unwrap();
    let error = register_kprobe(&AGAIN).unwrap_err();
    assert_eq!((error.name(), error.errno()), ("AlreadyRegistered", 22));
    assert_eq!(error_target(black_box(1)), 602);
    assert_eq!(
        AGAIN.hits(),
        1,
        "the refused call left the registration alone"
    );
    unregister_kprobe(&AGAIN).unwrap();
    unregister_kprobe(&AGAIN).unwrap();
    assert_eq!(text("error_target"), before);
    register_kprobe(&AGAIN).unwrap();
    assert_eq!(error_target(black_box(1)), 602);
    assert_eq!(AGAIN.hits(), 1, "counted anew");
    unregister_kprobe(&AGAIN).unwrap();
}

/// A batch with a bad member registers nothing.
#[guest_test]
fn a_batch_with_a_bad_member_is_undone() {
    let before = text("error_target").to_vec();
    refused(
        register_kprobes(&[&AGAIN, &OTHER, &BAD]),
        "UnknownSymbol",
        2,
    );
    assert!(!AGAIN.is_registered() && !OTHER.is_registered());
    assert_eq!(text("error_target"), before);
    refused(register_kprobes(&[]), "EmptyBatch", 22);
    register_kprobes(&[&AGAIN, &OTHER]).unwrap();
    error_target(black_box(1));
    assert_eq!((AGAIN.hits(), OTHER.hits()), (1, 1));
    unregister_kprobes(&[&AGAIN, &OTHER]).unwrap();
    assert_eq!(text("error_target"), before);
}

static NEVER: Jprobe = Jprobe::new().symbol("error_target").entry(mirror);
static NEVER_RETURNING: Kretprobe = Kretprobe::new().symbol("error_target");

/// Unregistering what never was registered is harmless for all kinds.
#[guest_test]
fn unregistering_the_unregistered_is_harmless() {
    unregister_kprobe(&BAD).unwrap();
    unregister_jprobe(&NEVER).unwrap();
    unregister_kretprobe(&NEVER_RETURNING).unwrap();
    register_jprobe(&NEVER).unwrap();
    register_kretprobe(&NEVER_RETURNING).unwrap();
    assert_eq!(error_target(black_box(1)), 602);
    unregister_jprobe(&NEVER).unwrap();
    unregister_kretprobe(&NEVER_RETURNING).unwrap();
}

static OFF: Kprobe = Kprobe::new().symbol("error_target").pre(nothing).disabled();

/// A disabled probe leaves the text alone; enabling and disabling writes one byte.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn a_disabled_probe_is_not_in_the_text() {
    let before = text("error_target").to_vec();
    register_kprobe(&OFF).unwrap();
    assert_eq!(text("error_target"), before);
    error_target(black_box(1));
    assert_eq!(OFF.hits(), 0);
    enable_kprobe(&OFF).unwrap();
    assert_eq!(text("error_target")[0], 0xcc);
    assert_eq!(text("error_target")[1..], before[1..]);
    error_target(black_box(1));
    disable_kprobe(&OFF).unwrap();
    assert_eq!(text("error_target"), before);
    error_target(black_box(1));
    assert_eq!(OFF.hits(), 1);
    unregister_kprobe(&OFF).unwrap();
}

fn recursive(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    error_target(black_box(1));
    PreVerdict::Execute
}

fn recursive_after(_probe: &Kprobe, _regs: &mut PtRegs, _flags: u64) {
    error_target(black_box(1));
}

/// A handler that calls the probed function: the inner calls run without handlers and are counted.
#[guest_test]
fn hits_inside_handlers_are_missed_and_counted() {
    let before = || Kprobe::new().symbol("error_target").pre(recursive);
    for (probe, missed) in [(before(), 100), (before().post(recursive_after), 200)] {
        let probe = register(Box::new(probe)).unwrap();
        for n in 1..=100 {
            assert_eq!(error_target(black_box(n)), n + 601);
        }
        assert_eq!((probe.hits(), probe.nmissed()), (100, missed));
        drop(probe);
    }
}

/// Errors are text for people.
#[guest_test]
fn errors_say_what_to_do() {
    let error = register(Box::new(Kprobe::new().symbol("do_page_falut")))
        .map(drop)
        .unwrap_err();
    assert_eq!((error.name(), error.errno()), ("UnknownSymbol", 2));
    let told = format!("{error}");
    assert!(
        told.contains("do_page_fault") && told.contains("inlined"),
        "{told}"
    );
    // A Rust name that several functions have, without the hash that tells them apart.
    let (name, candidates) = symbols::functions()
        .map(|symbol| format!("{symbol}"))
        .find_map(|name| match symbols::lookup_name(&name) {
            Err(symbols::LookupError::Ambiguous { candidates, .. }) => {
                let candidates: Vec<_> = candidates.into_iter().map(|symbol| symbol.name).collect();
                // Two copies of one instance have one full name.
                (candidates[0] != candidates[1]).then_some((name, candidates))
            }
            _ => None,
        })
        .expect("some generic function is there twice");
    let error = register(Box::new(Kprobe::new().symbol(name.leak())))
        .map(drop)
        .unwrap_err();
    assert_eq!((error.name(), error.errno()), ("AmbiguousSymbol", 99));
    let told = format!("{error}");
    assert!(candidates.len() > 1);
    assert!(
        candidates
            .iter()
            .take(2)
            .all(|candidate| told.contains(candidate)),
        "{told}"
    );
}

/// Two copies of one instance have one full name, so only the address tells them apart.
#[guest_test]
fn an_ambiguous_name_is_told_with_addresses() {
    let (name, candidates) = symbols::functions()
        .map(|symbol| format!("{symbol}"))
        .find_map(|name| match symbols::lookup_name(&name) {
            Err(symbols::LookupError::Ambiguous { candidates, .. }) => Some((name, candidates)),
            _ => None,
        })
        .expect("some generic function is there twice");
    let told = register(Box::new(Kprobe::new().symbol(name.leak())))
        .map(drop)
        .unwrap_err();
    let told = format!("{told}");
    for symbol in candidates {
        let candidate = format!("{} at {:#x}", symbol.name, symbol.start);
        assert!(told.contains(&candidate), "{candidate} is not in: {told}");
    }
}
