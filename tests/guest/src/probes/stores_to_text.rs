//! The order in which a breakpoint becomes a jump and one again, seen by watchpoints on what is
//! stored.
//!
//! A processor may fetch the bytes at any time, so the order matters: the breakpoint first, then
//! the tail, then the first byte, with all CPUs synchronised in between. Watchpoints on the bytes
//! and a probe on the synchronisation write that order down.

use crate::{
    platform::cpu::{go_anywhere, stay_on},
    tools::jumps::Optimization,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    arch::{asm, naked_asm},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};
use kernel::{
    arch::{
        idt::vector,
        traps::{self, Exception},
    },
    mm::paging::text_alias,
    probes::{Kprobe, PROBES, PreVerdict, PtRegs, register},
};
use probes::kprobe::flags;
use x86_64::{
    VirtAddr,
    registers::debug::{Dr6, Dr6Flags},
};

/// Takes a jump at its fourth byte, where the instruction is as long as one. The four bytes after
/// that one are aligned, because a watchpoint has to be.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn stored_target() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "nop",             // +0
        "nop",             // +1
        "nop",             // +2
        "mov eax, 0x5061", // +3
        "ret",
        ".cfi_endproc"
    )
}

/// Where the jump comes.
fn jump_address() -> u64 {
    stored_target as *const () as u64 + 3
}

/// The bytes there.
fn bytes() -> [u8; 5] {
    // SAFETY: kernel text is mapped and readable for ever.
    unsafe { (jump_address() as *const [u8; 5]).read_volatile() }
}

/// The events that were seen, in order.
static SEEN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The parts of what is seen: the five bytes, and above them what has happened.
const BYTES: u64 = (1 << 40) - 1;
const FIRST_BYTE_WAS_STORED: u64 = 1 << 40;
const TAIL_WAS_STORED: u64 = 1 << 41;
const ALL_CPUS_SAW_IT: u64 = 1 << 42;

fn note(event: u64) {
    let [first, tail @ ..] = bytes();
    let bytes = u64::from(first) | u64::from(u32::from_le_bytes(tail)) << 8;
    SEEN[COUNT.fetch_add(1, SeqCst)].store(event | bytes, SeqCst);
}

/// A store raises #DB when it is over (Intel SDM vol. 3B, 17.3.1.2).
fn note_store(_: &mut PtRegs, exception: &Exception) -> bool {
    if exception.vector != vector::DEBUG {
        return false;
    }
    let matched = Dr6::read();
    if matched.contains(Dr6Flags::TRAP0) {
        note(FIRST_BYTE_WAS_STORED);
    }
    if matched.contains(Dr6Flags::TRAP1) {
        note(TAIL_WAS_STORED);
    }
    // SAFETY: the bits of matches are cleared, which the processor never does.
    unsafe { asm!("mov dr6, {}", in(reg) 0xffff_0ff0_u64, options(nostack, preserves_flags)) };
    // QEMU remembers which watchpoint has matched until it is set anew, and tells of it again when
    // another one matches.
    control(WATCH_NOTHING);
    control(WATCH_STORES);
    matched.intersects(Dr6Flags::TRAP0 | Dr6Flags::TRAP1)
}

fn note_synchronisation(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    note(ALL_CPUS_SAW_IT);
    PreVerdict::Execute
}

/// DR7: DR0 for writes of a byte, DR1 for those of four (Intel SDM vol. 3B, 17.2.4).
const WATCH_STORES: u64 = 0xd1_040a;
const WATCH_NOTHING: u64 = 0x400;

fn control(dr7: u64) {
    // SAFETY: the debug registers only have the processor raise #DB, which `note_store` takes.
    unsafe { asm!("mov dr7, {}", in(reg) dr7, options(nostack, preserves_flags)) };
}

/// Watches this CPU's stores to the first byte, by DR0, and to the four after it, by DR1.
fn watch() {
    let alias = text_alias(VirtAddr::new(jump_address())) as u64;
    assert!((alias + 1).is_multiple_of(4));
    // SAFETY: addresses without effect until DR7 says so.
    unsafe {
        asm!(
            "mov dr0, {}",
            "mov dr1, {}",
            in(reg) alias,
            in(reg) alias + 1,
            options(nostack, preserves_flags)
        );
    }
    control(WATCH_STORES);
}

/// The stores that are seen while `operation` runs: those between two synchronisations as one
/// string.
fn order(operation: impl FnOnce()) -> Vec<String> {
    COUNT.store(0, SeqCst);
    stay_on(0);
    traps::set_exception_handler(Some(note_store));
    watch();
    operation();
    control(WATCH_NOTHING);
    traps::set_exception_handler(None);
    go_anywhere();
    let seen: Vec<_> = SEEN[..COUNT.load(SeqCst)]
        .iter()
        .map(|seen| seen.load(SeqCst))
        .collect();
    let store = |seen: &u64| match seen & !BYTES {
        FIRST_BYTE_WAS_STORED => format!("first {:02x} ", seen & 0xff),
        _ => format!("tail {:08x} ", (seen & BYTES) >> 8),
    };
    seen.split(|seen| seen & ALL_CPUS_SAW_IT != 0)
        .filter(|round| !round.is_empty())
        .map(|round| round.iter().map(store).collect())
        .collect()
}

/// First the breakpoint, then the bytes after it, then the first byte: all CPUs see each store
/// before the next kind comes. A first byte is stored twice, because an emulator may keep a
/// translation that it made during the first store. Bytes after a breakpoint are stored once.
/// Where a jump goes, they are the second round of its breakpoint.
#[guest_test(smp = 2)]
fn jumps_are_stored_behind_a_breakpoint_and_taken_away_behind_one() {
    let synchronisations = Kprobe::new().symbol("kernel::probes::text_poke::synchronize_cores");
    let synchronisations = register(Box::new(synchronisations.pre(note_synchronisation))).unwrap();
    let target = || {
        let probe = Kprobe::new().at(jump_address());
        register(Box::new(probe.pre(|_, _| PreVerdict::Execute))).unwrap()
    };
    // The detour's address, which each jump has anew.
    let tail = || {
        let [jump, tail @ ..] = bytes();
        assert_eq!(jump, 0xe9);
        format!("tail {:08x} ", u32::from_le_bytes(tail))
    };

    let mut probe = None;
    let coming = order(|| probe = Some(target()));
    assert_eq!(
        coming,
        ["first cc ", "first cc ", &tail(), "first e9 ", "first e9 "]
    );
    assert_eq!(stored_target(), 0x5061);

    let original = "tail 00005061 ";
    assert_eq!(
        order(|| PROBES.set_optimization(false).unwrap()),
        ["first cc ", original]
    );
    let coming = order(|| PROBES.set_optimization(true).unwrap());
    assert_eq!(coming, [&tail(), "first e9 ", "first e9 "]);
    assert_eq!(
        order(|| drop(probe)),
        ["first cc ", original, "first b8 ", "first b8 "]
    );
    assert_eq!(stored_target(), 0x5061);
    drop(synchronisations);
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
/// CPUs know of it before the first hit comes out after the jump, where no slot leads any more.
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
