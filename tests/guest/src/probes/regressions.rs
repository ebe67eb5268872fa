//! Cases that have gone wrong in other designs: probes on the functions that registering,
//! allocating and logging use, and the cost of one hit among many probes.
//!
//! Registering, allocating and logging are done while each instruction that they use is probed. The
//! cost of a hit does not grow with the number of probes, and a hit is found even if its place in
//! the table is taken.

use crate::tools::nmi;
use alloc::{boxed::Box, collections::BTreeMap, format, vec::Vec};
use core::{
    arch::{global_asm, x86_64::_rdtsc},
    hint::black_box,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::traps,
    mm::frame,
    pr_info,
    probes::{
        Kprobe, PreVerdict, PtRegs, register, register_kprobe, register_kprobes, survey,
        unregister_kprobe, unregister_kprobes,
    },
    symbols::{self, SymbolKind},
    task::kthread::spawn_kthread_on,
};
use probes::asm::layout;
use x86_64::instructions::interrupts;

/// How many functions with probed instructions there are, and how many instructions each has.
const MANY_FUNCTIONS: usize = 320;
const MANY_IN_EACH: usize = 32;

global_asm!(
    ".pushsection .text.many_places, \"ax\"",
    ".globl many_places",
    ".macro many_places_function",
    ".type many_places_\\@, @function",
    "many_places_\\@:",
    ".cfi_startproc",
    ".rept {in_each}",
    "nop dword ptr [rax]",
    ".endr",
    "ret",
    ".cfi_endproc",
    ".size many_places_\\@, . - many_places_\\@",
    ".endm",
    "many_places:",
    ".rept {functions}",
    "many_places_function",
    ".endr",
    ".popsection",
    in_each = const MANY_IN_EACH,
    functions = const MANY_FUNCTIONS,
);

unsafe extern "C" {
    static many_places: u8;
}

/// The places in `many_places`: the function, and the instruction.
fn place(function: usize, instruction: usize) -> u64 {
    let start = (&raw const many_places).addr();
    (start + function * (3 * MANY_IN_EACH + 1) + 3 * instruction) as u64
}

/// Where the address table looks first for a probe at `addr`.
fn index(addr: u64) -> u32 {
    // A trap's frame points after the breakpoint.
    (addr as u32 + 1).wrapping_mul(layout::MULTIPLIER) >> layout::SHIFT
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn one_among_many(a: u64) -> u64 {
    black_box(a + 77)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn meanwhile_registered(a: u64) -> u64 {
    black_box(a + 78)
}

static RUNS: AtomicU64 = AtomicU64::new(0);

fn count(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    RUNS.fetch_add(1, Relaxed);
    PreVerdict::Execute
}

fn count_after(_probe: &Kprobe, _regs: &mut PtRegs, _zero: u64) {
    RUNS.fetch_add(1, Relaxed);
}

fn leak(probe: Kprobe) -> &'static Kprobe {
    Box::leak(Box::new(probe))
}

/// Probes with both handlers on the first instruction of every function that `wanted` picks and
/// that may be probed there.
fn probe_all(mut wanted: impl FnMut(&str) -> bool) -> Vec<&'static Kprobe> {
    let mut probes = Vec::new();
    for symbol in symbols::functions().filter(|symbol| symbol.kind == SymbolKind::Text) {
        if !wanted(&format!("{symbol}")) {
            continue;
        }
        let first = survey::function(&symbol).unwrap().swap_remove(0);
        if first.verdict.is_ok() {
            probes.push(leak(
                Kprobe::new().at(symbol.start).pre(count).post(count_after),
            ));
        }
    }
    probes
}

/// Registers a probe of one function while another CPU's NMIs come, calls the function, and
/// unregisters it.
fn register_something() {
    static PROBE: Kprobe = Kprobe::new().symbol("meanwhile_registered").pre(count);
    register_kprobe(&PROBE).unwrap();
    assert_eq!(meanwhile_registered(black_box(1)), 79);
    assert_eq!(PROBE.hits(), 1);
    unregister_kprobe(&PROBE).unwrap();
}

/// Instructions that 100 calls of the function take, at best of three: time counts instructions in
/// this boot.
fn cost_of_100_calls() -> u64 {
    let once = || {
        interrupts::without_interrupts(|| {
            // SAFETY: every processor of 64 bits has a time stamp counter.
            let start = unsafe { _rdtsc() };
            for n in 0..100 {
                one_among_many(black_box(n));
            }
            // SAFETY: as above.
            unsafe { _rdtsc() - start }
        })
    };
    once().min(once()).min(once())
}

/// The functions that register probes, write text, wait for CPUs and allocate all carry probes
/// while probes are registered; so do those that log. Handlers run there, nothing hangs, and all of
/// it works.
#[guest_test(timeout = 120)]
fn what_registering_and_logging_use_can_be_probed() {
    let probes = probe_all(|name| {
        (name.starts_with("probes::") || name.starts_with("<probes::"))
            && (name.contains("registry") || name.contains("slot"))
            || name.starts_with("kernel::probes::text_poke::")
            || name.starts_with("block_heap::")
            || name.starts_with("kernel::log::")
            || name == "printk"
    });
    let names: Vec<_> = probes
        .iter()
        .map(|probe| format!("{}", symbols::lookup_addr(probe.addr()).unwrap()))
        .collect();
    for part in ["registry", "text_poke", "block_heap", "printk"] {
        assert!(
            names.iter().any(|name| name.contains(part)),
            "{part} is in none of {names:?}"
        );
    }
    register_kprobes(&probes).unwrap();
    RUNS.store(0, SeqCst);
    for n in 0..20 {
        register_something();
        drop(Box::new(black_box([n; 100])));
        pr_info!("round {n} among {} probes", probes.len());
    }
    let runs = RUNS.load(SeqCst);
    unregister_kprobes(&probes).unwrap();
    assert!(runs > 20 * 20, "{runs} handlers ran");
    let hit = probes.iter().filter(|probe| probe.hits() > 0).count();
    assert!(hit > 10, "{hit} of {} were hit", probes.len());
}

/// NMIs whose handler hits a probe come at any point of registering and unregistering another one.
#[guest_test(timeout = 120)]
fn probes_come_and_go_under_nmis_that_hit_probes() {
    static DONE: AtomicBool = AtomicBool::new(false);
    static NMIS: AtomicU64 = AtomicU64::new(0);
    fn in_nmi(_: &PtRegs) {
        assert_eq!(one_among_many(black_box(1)), 78);
        NMIS.fetch_add(1, SeqCst);
    }
    let in_nmis = register(Box::new(
        Kprobe::new()
            .symbol("one_among_many")
            .pre(count)
            .post(count_after),
    ))
    .unwrap();
    DONE.store(false, SeqCst);
    NMIS.store(0, SeqCst);
    traps::set_nmi_handler(Some(in_nmi));
    let changer = spawn_kthread_on(1 << 1, "changer", || {
        while NMIS.load(SeqCst) < 2_000 {
            register_something();
        }
        DONE.store(true, SeqCst);
    })
    .unwrap();
    let sender = spawn_kthread_on(1 << 0, "sender", || {
        while !DONE.load(SeqCst) {
            nmi::send(1, &NMIS, || DONE.load(SeqCst));
        }
    })
    .unwrap();
    sender.wait_released();
    changer.wait_released();
    traps::set_nmi_handler(None);
    assert_eq!(in_nmis.hits() + in_nmis.nmissed(), NMIS.load(SeqCst));
    assert!(in_nmis.hits() > 0);
}

/// With ten thousand other probes registered, a hit takes the same instructions, but for a few
/// where places of the table collide; and each of them takes much less memory than a page.
#[guest_test(icount, smp = 1, timeout = 180)]
fn a_hit_costs_the_same_among_ten_thousand_probes() {
    let probe = register(Box::new(Kprobe::new().symbol("one_among_many").pre(count))).unwrap();
    let alone = cost_of_100_calls();
    let places =
        (0..MANY_FUNCTIONS * MANY_IN_EACH).map(|n| place(n / MANY_IN_EACH, n % MANY_IN_EACH));
    let probes: Vec<_> = places
        .map(|at| leak(Kprobe::new().at(at).pre(count)))
        .collect();
    assert!(probes.len() > 10_000);
    let before = frame::free_frames();
    register_kprobes(&probes).unwrap();
    // Frames for slots, and those by which the heap has grown.
    let each = (before - frame::free_frames()) * frame::FRAME_SIZE / probes.len();
    let among_many = cost_of_100_calls();
    unregister_kprobes(&probes).unwrap();
    assert_eq!(cost_of_100_calls(), alone);
    drop(probe);
    pr_info!(
        "100 hits alone: {alone} instructions, among many: {among_many}; \
         {each} bytes for each probe"
    );
    assert!(
        among_many.abs_diff(alone) < 100 * 20,
        "{among_many} instead of {alone}"
    );
    assert!(each < 1024, "{each} bytes for each probe");
}

/// Two probed places that the address table looks for at the same index: the hit of the one
/// registered last is found as well.
#[guest_test]
fn a_hit_whose_place_in_the_table_is_taken_is_found() {
    let places = (0..MANY_FUNCTIONS).flat_map(|function| {
        (0..MANY_IN_EACH).map(move |n| (index(place(function, n)), function, n))
    });
    let by_index: BTreeMap<u32, (usize, usize)> = places
        .map(|(index, function, n)| (index, (function, n)))
        .collect();
    // Function entries will do: about 30 have the index of one of the many places.
    let (first, (function, n)) = symbols::functions()
        .filter(|symbol| symbol.kind == SymbolKind::Text)
        .filter_map(|symbol| Some((symbol.start, *by_index.get(&index(symbol.start))?)))
        .filter(|(start, (function, n))| *start != place(*function, *n))
        .find_map(|(start, at)| {
            Some((
                register(Box::new(Kprobe::new().at(start).pre(count))).ok()?,
                at,
            ))
        })
        .expect("two places with the same index");
    let second = register(Box::new(Kprobe::new().at(place(function, n)).pre(count))).unwrap();
    assert_eq!(index(first.addr()), index(second.addr()));
    // SAFETY: the function does nothing and keeps to every calling convention.
    let call: extern "C" fn() = unsafe { core::mem::transmute(place(function, 0)) };
    for _ in 0..3 {
        call();
    }
    assert_eq!((second.hits(), second.nmissed()), (3, 0));
    drop(first);
    call();
    assert_eq!(second.hits(), 4, "what was before it in the table is gone");
    drop(second);
    call();
}
