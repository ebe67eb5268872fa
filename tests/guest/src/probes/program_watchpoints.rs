//! Watchpoints on memory of programs, and of one process: which accesses hit, with what values, and
//! that all others go on as if there were none.
//!
//! The program is `/bin/exercise`, whose exercises `watched_…` say how often they touch their
//! words, and with what.

use super::{
    user_probes::{address, kill, start},
    watchpoints::{address as kernel_address, watch, watched_store, word},
};
use crate::harness::waiting::expect_soon;
use abi::{WaitStatus, open};
use alloc::{string::ToString, vec, vec::Vec};
use core::{
    mem::replace,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    fs,
    probes::{PreVerdict, PtRegs, Touched, WATCHPOINTS, WatchAccess, Watchpoint, watch_scopes},
    sync::SpinLock,
    task::{self, Pid, exec::run_program, kthread::spawn_kthread, schedule},
    uprobes::{self, Uprobe, registry::RegisteredUserProbe},
};

const EXERCISE: &str = "/bin/exercise";

fn goes_well(args: &[&str]) {
    let status = run_program(EXERCISE, args).expect("the program can be run");
    assert_eq!(status, WaitStatus::exited(0), "{args:?}");
}

fn of_program(name: &str) -> Watchpoint {
    uprobes::watchpoint(EXERCISE, name).expect("the static is there")
}

/// An access, and who touched the word.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    pid: Pid,
    by_program: bool,
    touched: Touched,
}

static TOLD: SpinLock<([Option<Told>; 64], usize)> = SpinLock::new(([None; 64], 0));

/// Notes the first accesses, as many as fit.
fn note(_: &Watchpoint, regs: &mut PtRegs, touched: &Touched) {
    let mut told = TOLD.lock();
    let at = told.1;
    told.1 += 1;
    if let Some(place) = told.0.get_mut(at) {
        *place = Some(Told {
            pid: task::current().pid(),
            by_program: regs.user_mode(),
            touched: *touched,
        });
    }
}

fn told() -> Vec<Told> {
    let mut told = TOLD.lock();
    told.1 = 0;
    told.0.iter_mut().map_while(Option::take).collect()
}

/// The old and new values of those that `pid` has caused.
fn values_of(told: &[Told], pid: Pid) -> Vec<(u64, u64)> {
    let of_it = told.iter().filter(|told| told.pid == pid);
    of_it
        .map(|told| (told.touched.old, told.touched.new))
        .collect()
}

/// What is told if these values are stored one after the other.
fn chain(first: u64, rest: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut old = first;
    rest.into_iter()
        .map(|new| (replace(&mut old, new), new))
        .collect()
}

/// Where the program goes on after the store.
fn after_store() -> u64 {
    address("watched_store") + 3
}

/// The old value of the first store is the file's, though nothing touched the page before.
#[guest_test]
fn stores_of_a_program_hit_with_both_values() {
    let watch = watch(of_program("WATCHED_DATA").handler(note));
    goes_well(&["watched_stores", "5"]);
    let told = told();
    assert_eq!(values_of(&told, told[0].pid), chain(7, 1..=5));
    let place = (after_store(), watch.addr(), true);
    let is_there = |told: &Told| (told.touched.ip, told.touched.addr, told.by_program) == place;
    assert!(told.iter().all(is_there), "{told:x?}");
    assert_eq!((told.len(), watch.hits(), watch.nmissed()), (5, 5, 0));
}

/// Its page of zeros comes with the first store. A watchpoint that is gone is not hit.
#[guest_test]
fn a_word_of_zeros_begins_with_zero() {
    let watch = watch(of_program("WATCHED_ZERO").handler(note));
    goes_well(&["watched_stores", "3"]);
    let told_first = told();
    assert_eq!(values_of(&told_first, told_first[0].pid), chain(0, 1..=3));
    drop(watch);
    goes_well(&["watched_stores", "4"]);
    assert_eq!(told(), []);
}

/// Parent and child have a word each at that address, and run on several CPUs. Each sees its own
/// values only.
#[guest_test(smp = 4)]
fn each_process_has_its_own_values() {
    let watch = watch(of_program("WATCHED_DATA").handler(note));
    goes_well(&["watched_forks"]);
    let told = told();
    let parent = told[0].pid;
    let child = told.iter().map(|told| told.pid).find(|&pid| pid != parent);
    let child = child.expect("the child has stored, too");
    assert_eq!(values_of(&told, parent), chain(7, 10..20));
    assert_eq!(values_of(&told, child), chain(10, 100..110));
    assert_eq!((told.len(), watch.hits(), watch.nmissed()), (20, 20, 0));
}

/// The kernel may store byte by byte.
#[guest_test]
fn what_the_kernel_stores_for_a_program_is_seen() {
    let watch = watch(of_program("WATCHED_DATA").handler(note));
    goes_well(&["watched_copies"]);
    let told = told();
    let values = values_of(&told, told[0].pid);
    let last = values.last().expect("there is one");
    assert_eq!((values[0].0, last.1), (7, 0x1234));
    assert!(
        values.windows(2).all(|pair| pair[0].1 == pair[1].0),
        "{values:x?}"
    );
    assert!(told.iter().all(|told| !told.by_program), "{told:x?}");
    assert_eq!(watch.hits(), told.len() as u64);
}

/// One of two processes that run the same program. It is watched anew while it stores, so the first
/// old value is what it has stored before.
#[guest_test(smp = 2)]
fn one_process_is_watched_alone() {
    let [one, other] = [(); 2].map(|()| start(&["watched_stores", "100000000"]));
    let addr = of_program_address();
    for _ in 0..10 {
        let scope = watch_scopes::process(one);
        let watch = watch(Watchpoint::new().at(addr).in_programs(scope).handler(note));
        expect_soon("twenty stores", || watch.hits() >= 20);
        drop(watch);
        let told = told();
        assert!(told.iter().all(|told| told.pid == one), "{told:x?}");
        let values = values_of(&told, one);
        // It may not have stored before it was watched.
        let follows = |&(old, new)| old + 1 == new || (old, new) == (7, 1);
        assert!(values.iter().all(follows), "{values:?}");
        let is_chain = values.windows(2).all(|pair| pair[0].1 == pair[1].0);
        assert!(is_chain, "{values:?}");
    }
    kill(one);
    kill(other);
}

fn of_program_address() -> u64 {
    let watch = watch(of_program("WATCHED_DATA").disabled());
    watch.addr()
}

/// The program of another file may have the same address.
#[guest_test]
fn programs_of_other_files_are_not_watched() {
    let addr = of_program_address();
    let file = fs::open("/bin/workload", open::RDONLY).expect("it is there");
    let scope = watch_scopes::programs_of(file.node());
    let watch = watch(Watchpoint::new().at(addr).in_programs(scope).handler(note));
    goes_well(&["watched_stores", "2"]);
    assert_eq!((told(), watch.hits()), (vec![], 0));
}

/// A word of the kernel, for one of two tasks that store there.
#[guest_test(smp = 2)]
fn a_word_of_the_kernel_is_watched_for_one_task() {
    static MAY_STORE: AtomicBool = AtomicBool::new(false);
    static DONE: AtomicU64 = AtomicU64::new(0);
    MAY_STORE.store(false, SeqCst);
    DONE.store(0, SeqCst);
    let store = || {
        while !MAY_STORE.load(SeqCst) {
            schedule();
        }
        for value in 0..10 {
            // SAFETY: the word is there for that.
            unsafe { watched_store(word(0), value) };
            schedule();
        }
        DONE.fetch_add(1, SeqCst);
    };
    let one = spawn_kthread("one", store).expect("there is memory");
    let _other = spawn_kthread("other", store).expect("there is memory");
    let scope = watch_scopes::process(one.pid());
    let watch = watch(
        Watchpoint::new()
            .at(kernel_address(0))
            .only_in(scope)
            .handler(note),
    );
    MAY_STORE.store(true, SeqCst);
    expect_soon("both", || DONE.load(SeqCst) == 2);
    let told = told();
    assert!(
        told.iter()
            .all(|told| told.pid == one.pid() && !told.by_program)
    );
    let new: Vec<u64> = told.iter().map(|told| told.touched.new).collect();
    assert_eq!((new.len(), watch.hits(), watch.nmissed()), (10, 10, 0));
}

/// Where a user probe has displaced the store, the access is told as it is without the probe: by
/// the slot, and by the slot with a step for a post handler.
#[guest_test]
fn a_probe_on_the_store_does_not_change_what_is_told() {
    static POSTS: AtomicU64 = AtomicU64::new(0);
    POSTS.store(0, Relaxed);
    let watch = watch(of_program("WATCHED_DATA").handler(note));
    let probe = || {
        let probe = Uprobe::new().program(EXERCISE).symbol("watched_store");
        probe.handler(|_, _| PreVerdict::Execute)
    };
    let count_post = |_: &Uprobe, _: &mut PtRegs| {
        POSTS.fetch_add(1, Relaxed);
    };
    for probe in [probe(), probe().post_handler(count_post)] {
        let probe = RegisteredUserProbe::new(probe).expect("it can be probed");
        goes_well(&["watched_stores", "4"]);
        let told = told();
        assert_eq!(values_of(&told, told[0].pid), chain(7, 1..=4));
        let ips: Vec<u64> = told.iter().map(|told| told.touched.ip).collect();
        assert_eq!(ips, [after_store(); 4], "{ips:x?}");
        // Both words are stored there.
        assert_eq!(probe.hits(), 8);
    }
    assert_eq!((watch.hits(), POSTS.load(Relaxed)), (8, 8));
}

/// What cannot be watched is refused, and says why.
#[guest_test]
fn what_is_no_memory_of_a_program_is_refused() {
    fn refused(watch: Watchpoint) -> alloc::string::String {
        let error = WATCHPOINTS
            .register_owned(alloc::boxed::Box::new(watch))
            .expect_err("it is refused");
        assert_eq!((error.name(), error.errno()), ("NotWatchable", 22));
        error.to_string()
    }
    let addr = of_program_address();
    let scope = watch_scopes::process(1);
    let at = |addr| Watchpoint::new().at(addr).in_programs(scope);
    let text = refused(at(kernel_address(0)));
    assert!(text.ends_with("no program has memory there"), "{text}");
    let text = refused(at(addr).access(WatchAccess::ReadWrite));
    assert!(text.ends_with("watch for writes"), "{text}");
    let text = refused(Watchpoint::new().at(addr));
    assert!(
        text.ends_with("it is memory of programs; name the program"),
        "{text}"
    );
    let text = refused(
        Watchpoint::new()
            .at(kernel_address(0))
            .movable()
            .only_in(scope),
    );
    assert!(text.ends_with("give it no scope"), "{text}");
    let missing = uprobes::watchpoint(EXERCISE, "NOTHING").map(drop);
    let text = missing.expect_err("there is no such static").to_string();
    assert!(text.contains("the program has no symbol NOTHING"), "{text}");
}
