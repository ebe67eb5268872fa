//! Watchpoints on instructions: their text stays as it is, and each execution hits once, whatever
//! else is at the instruction or over it.
//!
//! The code that is watched is that of `watchpoints`, whose first instructions a jump covers.

use super::{
    user_probes::address,
    watchpoints::{watch, watched_store, watched_store_4, word},
};
use crate::tools::jumps::{Optimization, byte_at};
use abi::WaitStatus;
use alloc::{boxed::Box, string::ToString, vec::Vec};
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use kernel::{
    probes::{
        Kprobe, PreVerdict, PtRegs, Touched, WATCHPOINTS, WatchAccess, Watchpoint, register,
        watch_scopes,
    },
    symbols,
    task::exec::run_program,
    uprobes,
};

/// The first bytes of the code that is watched: `xor eax, eax`, `inc eax`, and the store.
const INC: u64 = 2;
const STORE: u64 = 4;
const INT3: u8 = 0xcc;
const JUMP: u8 = 0xe9;

static WRONG: AtomicU64 = AtomicU64::new(0);

/// Counts hits that are told otherwise than they are: the registers are those before it.
fn check(watch: &Watchpoint, regs: &mut PtRegs, touched: &Touched) {
    let expected = Touched {
        ip: watch.addr(),
        addr: watch.addr(),
        old: 0,
        new: 0,
    };
    let is_right = *touched == expected && regs.ip == watch.addr();
    WRONG.fetch_add(u64::from(!is_right), SeqCst);
}

fn instruction(addr: u64) -> Watchpoint {
    Watchpoint::new()
        .at(addr)
        .access(WatchAccess::Execute)
        .handler(check)
}

fn start_of(function: unsafe extern "C" fn(*const u64, u64)) -> u64 {
    function as *const () as u64
}

/// Calls it as often, and returns how often `watch` was hit.
fn hits_of(watch: &Watchpoint, calls: u64) -> u64 {
    let before = watch.hits();
    for value in 1..=calls {
        // SAFETY: the word is there for that.
        unsafe { watched_store(word(0), value) };
        // SAFETY: it may be read.
        assert_eq!(unsafe { word(0).read_volatile() }, value);
    }
    assert_eq!((watch.nmissed(), WRONG.load(SeqCst)), (0, 0));
    watch.hits() - before
}

#[guest_test]
fn each_execution_of_an_instruction_hits_once() {
    let start = start_of(watched_store);
    for offset in [0, INC, STORE] {
        let byte = byte_at(start + offset);
        let watched = watch(instruction(start + offset));
        assert_eq!(hits_of(&watched, 5), 5, "at +{offset}");
        assert_eq!((byte_at(start + offset), watched.bytes()), (byte, 1));
        WATCHPOINTS.disable(&watched).unwrap();
        assert_eq!(hits_of(&watched, 2), 0);
        WATCHPOINTS.enable(&watched).unwrap();
        assert_eq!(hits_of(&watched, 2), 2);
    }
}

/// Without a handler hits are counted.
#[guest_test]
fn executions_are_counted() {
    let at = Watchpoint::new().symbol("watched_store").offset(2);
    let watched = watch(at.access(WatchAccess::Execute));
    assert_eq!(hits_of(&watched, 7), 7);
}

/// A breakpoint, and a jump, at the same instruction.
#[guest_test]
fn a_probe_at_a_watched_instruction_hits_as_well() {
    let start = start_of(watched_store);
    for on in [false, true] {
        let _optimization = Optimization::set(on);
        let watched = watch(instruction(start));
        let at = Kprobe::new().symbol("watched_store");
        let probe = register(Box::new(at.pre(|_, _| PreVerdict::Execute))).unwrap();
        assert_eq!(byte_at(start), if on { JUMP } else { INT3 });
        assert_eq!((hits_of(&watched, 4), probe.hits()), (4, 4));
        drop(watched);
        let watched = watch(instruction(start));
        assert_eq!((hits_of(&watched, 4), probe.hits()), (4, 8));
    }
}

/// A jump over a watched instruction would have hits execute a copy of it. So it is a breakpoint
/// until the instruction is not watched any more.
#[guest_test]
fn a_jump_gives_way_to_a_watched_instruction() {
    let _optimization = Optimization::set(true);
    let start = start_of(watched_store);
    let at = Kprobe::new().symbol("watched_store");
    let probe = register(Box::new(at.pre(|_, _| PreVerdict::Execute))).unwrap();
    for _ in 0..2 {
        assert_eq!(byte_at(start), JUMP);
        let watched = watch(instruction(start + INC));
        assert_eq!(byte_at(start), INT3);
        let before = probe.hits();
        assert_eq!((hits_of(&watched, 3), probe.hits()), (3, before + 3));
        drop(watched);
        assert_eq!(byte_at(start), JUMP);
    }
    drop(probe);
    // The watchpoint is there first.
    let watched = watch(instruction(start + STORE));
    let at = Kprobe::new().symbol("watched_store");
    let probe = register(Box::new(at.pre(|_, _| PreVerdict::Execute))).unwrap();
    assert_eq!(byte_at(start), INT3);
    assert_eq!((hits_of(&watched, 3), probe.hits()), (3, 3));
}

/// An instruction that also touches a watched word: the hit of the first is before it, that of the
/// second after it.
#[guest_test]
fn an_instruction_and_the_word_that_it_stores_are_both_watched() {
    static ORDER: AtomicU64 = AtomicU64::new(0);
    ORDER.store(0, SeqCst);
    fn first(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        ORDER.store(ORDER.load(Relaxed) * 10 + 1, Relaxed);
    }
    fn second(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        ORDER.store(ORDER.load(Relaxed) * 10 + 2, Relaxed);
    }
    let start = start_of(watched_store);
    let executed = watch(instruction(start + STORE).handler(first));
    let stored = watch(Watchpoint::new().at(word(0).addr() as u64).handler(second));
    // And the one after it.
    let after = watch(instruction(start + STORE + 3).handler(first));
    // SAFETY: the word is there for that.
    unsafe { watched_store(word(0), 9) };
    assert_eq!(ORDER.load(Relaxed), 121);
    assert_eq!((executed.hits(), stored.hits(), after.hits()), (1, 1, 1));
}

/// A handler may send the code elsewhere.
#[guest_test]
fn a_handler_changes_the_registers() {
    fn skip(_: &Watchpoint, regs: &mut PtRegs, _: &Touched) {
        // The instruction before the return.
        regs.ip += 3;
    }
    let store = start_of(watched_store) + STORE;
    // SAFETY: the word is there for that.
    unsafe { watched_store(word(0), 5) };
    let watched = watch(instruction(store).handler(skip));
    // SAFETY: as above.
    unsafe { watched_store(word(0), 6) };
    assert_eq!(watched.hits(), 1);
    // SAFETY: it may be read.
    assert_eq!(unsafe { word(0).read_volatile() }, 5);
}

/// In all processes that run a program, and only there.
#[guest_test(smp = 2)]
fn an_instruction_of_a_program_is_watched() {
    let file = kernel::fs::open("/bin/exercise", abi::open::RDONLY).unwrap();
    let scope = watch_scopes::programs_of(file.node());
    let addr = address("watched_store");
    let at = Watchpoint::new().at(addr).in_programs(scope);
    let watched = watch(at.access(WatchAccess::Execute).handler(check));
    let probe = uprobes::Uprobe::new()
        .program("/bin/exercise")
        .symbol("watched_store");
    for (rounds, hits) in [("4", 8), ("6", 20)] {
        let status = run_program("/bin/exercise", &["watched_stores", rounds]).unwrap();
        assert_eq!(status, WaitStatus::exited(0));
        assert_eq!((watched.hits(), watched.nmissed()), (hits, 0));
    }
    // A breakpoint there hits as well.
    let probe = probe.handler(|_, _| PreVerdict::Execute);
    let probe = uprobes::registry::RegisteredUserProbe::new(probe).unwrap();
    let status = run_program("/bin/exercise", &["watched_stores", "3"]).unwrap();
    assert_eq!(status, WaitStatus::exited(0));
    assert_eq!(
        (watched.hits(), probe.hits(), WRONG.load(SeqCst)),
        (26, 6, 0)
    );
}

#[guest_test]
fn what_is_no_instruction_is_refused() {
    let start = start_of(watched_store_4);
    let hidden = symbols::lookup_name("kprobe_debug")
        .expect("it is there")
        .start;
    let of_instruction = |addr| Watchpoint::new().at(addr).access(WatchAccess::Execute);
    let refused = |watch: Watchpoint| {
        let error = WATCHPOINTS.register_owned(Box::new(watch)).unwrap_err();
        (error.name(), error.to_string())
    };
    let names: Vec<_> = [
        start + 1,
        hidden,
        word(0).addr() as u64,
        0xffff_8000_0000_0000,
    ]
    .map(|addr| refused(of_instruction(addr)).0)
    .into();
    assert_eq!(
        names,
        ["MidInstruction", "Blacklisted", "NotText", "NoSymbolAt"]
    );
    let (name, text) = refused(of_instruction(start).movable());
    assert_eq!(name, "NotWatchable");
    assert!(text.ends_with("a watchpoint of an instruction does not move; register another"));
}
