//! The order in which a breakpoint becomes a jump and one again, seen by probes on what stores it.

use crate::optimization::Optimization;
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    arch::naked_asm,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};
use kernel::{
    probes::{Kprobe, PROBES, PreVerdict, PtRegs, register},
    symbols,
};
use probes::kprobe::flags;

/// Takes a jump at its entry: the instruction there is as long as one.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn stored_target() -> u64 {
    naked_asm!(".cfi_startproc", "mov eax, 0x5061", "ret", ".cfi_endproc")
}

/// The stores that were seen: 0 for a time at which all CPUs have seen the stores before it, else
/// the byte stored to [`stored_target`] and, above it, 1 + its offset.
static SEEN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn note(seen: u64) {
    SEEN[COUNT.fetch_add(1, SeqCst)].store(seen, SeqCst);
}

fn note_store(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let offset = regs.di.wrapping_sub(stored_target as *const () as u64);
    if offset < 8 {
        note((1 + offset) << 8 | regs.si & 0xff);
    }
    PreVerdict::Execute
}

fn note_tail(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let offset = regs.di.wrapping_sub(stored_target as *const () as u64);
    if offset < 8 {
        for (at, byte) in (1 + offset..).zip((regs.si as u32).to_le_bytes()) {
            note(at << 8 | u64::from(byte));
        }
    }
    PreVerdict::Execute
}

fn note_synchronisation(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    note(0);
    PreVerdict::Execute
}

/// The stores that are seen while `operation` runs: those between two synchronisations as one
/// string.
fn order(operation: impl FnOnce()) -> Vec<String> {
    COUNT.store(0, SeqCst);
    operation();
    let seen: Vec<_> = SEEN[..COUNT.load(SeqCst)]
        .iter()
        .map(|seen| seen.load(SeqCst))
        .collect();
    let store = |seen: &u64| format!("+{}={:02x} ", (seen >> 8) - 1, seen & 0xff);
    seen.split(|seen| *seen == 0)
        .filter(|round| !round.is_empty())
        .map(|round| round.iter().map(store).collect())
        .collect()
}

/// First the breakpoint, then what lies behind it, then the first byte: each store is seen by all
/// CPUs before the next kind comes, and is made twice, as an emulator may keep a translation of
/// what was there during the first.
#[guest_test]
fn jumps_are_stored_behind_a_breakpoint_and_taken_away_behind_one() {
    let at = |name| Kprobe::new().symbol(name);
    let stores = register(Box::new(
        at("kernel::probes::text_poke::store").pre(note_store),
    ))
    .unwrap();
    let tails = register(Box::new(
        at("kernel::probes::text_poke::store_tail").pre(note_tail),
    ))
    .unwrap();
    let synchronisations = register(Box::new(
        at("kernel::probes::text_poke::synchronize_cores").pre(note_synchronisation),
    ))
    .unwrap();
    let target = || {
        register(Box::new(
            Kprobe::new()
                .symbol("stored_target")
                .pre(|_, _| PreVerdict::Execute),
        ))
        .unwrap()
    };

    let mut probe = None;
    let coming = order(|| probe = Some(target()));
    let start = symbols::lookup_name("stored_target").unwrap().start;
    // The detour's address, which each jump has anew.
    let tail = || {
        // SAFETY: kernel text is mapped and readable for ever.
        let jump = unsafe { (start as *const [u8; 5]).read_volatile() };
        assert_eq!(jump[0], 0xe9);
        (1..5)
            .map(|n| format!("+{n}={:02x} ", jump[n]))
            .collect::<String>()
    };
    let twice = |rounds: &[&str]| {
        rounds
            .iter()
            .flat_map(|round| [String::from(*round), String::from(*round)])
            .collect::<Vec<_>>()
    };
    assert_eq!(coming, twice(&["+0=cc ", &tail(), "+0=e9 "]));
    assert_eq!(stored_target(), 0x5061);

    let original = "+1=61 +2=50 +3=00 +4=00 ";
    assert_eq!(
        order(|| PROBES.set_optimization(false).unwrap()),
        twice(&["+0=cc ", original])
    );
    let coming = order(|| PROBES.set_optimization(true).unwrap());
    assert_eq!(coming, twice(&[&tail(), "+0=e9 "]));
    assert_eq!(
        order(|| drop(probe)),
        twice(&["+0=cc ", original, "+0=b8 "])
    );
    assert_eq!(stored_target(), 0x5061);
    drop((stores, tails, synchronisations));
}

/// Its second instruction lies under a jump at the first one.
#[unsafe(naked)]
extern "C" fn entered_target() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "nop",
        "mov eax, 0x5062",
        "ret",
        ".cfi_endproc"
    )
}

static ENTERED: Kprobe = Kprobe::new().pre(|_, _| PreVerdict::Execute);
/// The states in which a wait for all CPUs has found the probe.
static STATES: AtomicU64 = AtomicU64::new(0);

/// Whether the probe has a detour, and whether hits go by it.
fn note_state(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    let second = entered_target as *const () as u64 + 1;
    let has_detour = ENTERED.flags() & flags::OPTIMIZED != 0;
    let is_used = PROBES.executable_ip(second) != second;
    let state = u64::from(has_detour) | u64::from(is_used) << 1;
    STATES.fetch_or(1 << state, SeqCst);
    PreVerdict::Execute
}

/// From the moment that a detour is there, no task may be preempted under the jump to come. All
/// CPUs know of it before the first hit comes out behind the jump, where no slot leads any more.
#[guest_test]
fn all_cpus_know_of_a_detour_before_a_hit_takes_it() {
    let _knob = Optimization::set(true);
    let waits = Kprobe::new().symbol("kernel::probes::text_poke::synchronize_cores");
    let waits = register(Box::new(waits.pre(note_state))).unwrap();
    ENTERED.set_addr(entered_target as *const () as u64);
    PROBES.register(&ENTERED).unwrap();
    // The breakpoint is written, the detour is there, it is used.
    assert_eq!(STATES.load(SeqCst), 1 << 0 | 1 << 1 | 1 << 3);
    assert_eq!((entered_target(), ENTERED.hits()), (0x5062, 1));
    PROBES.unregister(&ENTERED).unwrap();
    drop(waits);
}
