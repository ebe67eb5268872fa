//! Watches of whole objects by the protection of their pages: each write is a hit of the object or
//! of a neighbour, with the words before and after, whatever executes it.
//!
//! The object lies in the middle of three pages of a static, so that it begins and ends inside of
//! pages, with neighbours before and behind.

use super::watchpoints::{watched_store, watched_store_4};
use crate::{
    harness::waiting::expect_soon,
    tools::{
        jumps::{Optimization, byte_at},
        nmi,
    },
};
use alloc::{boxed::Box, string::ToString, sync::Arc, vec, vec::Vec};
use core::{
    ptr,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp, traps},
    probes::{
        Kprobe, PreVerdict, PtRegs, StepMethod, Touched, WATCHPOINTS, Watchpoint, register,
        watched_objects::{MOST_WATCHES, ObjectError, ObjectWatch, RegisteredObjectWatch},
    },
    sync::SpinLock,
    task::kthread::spawn_kthread_on,
};

const WORDS: usize = 3 * 512;

#[repr(C, align(4096))]
pub struct Pages([AtomicU64; WORDS]);

pub static OBJECT_PAGES: Pages = Pages([const { AtomicU64::new(0) }; WORDS]);

/// The words of the object.
const FIRST: usize = 500;
const LAST: usize = 1100;

fn word(index: usize) -> &'static AtomicU64 {
    &OBJECT_PAGES.0[index]
}

fn address(index: usize) -> u64 {
    word(index).as_ptr().addr() as u64
}

type Told = Arc<SpinLock<Vec<Touched>>>;

/// Watches the object. What its handler is told is kept.
fn watch() -> (RegisteredObjectWatch, Told) {
    let told = Told::new(SpinLock::new(Vec::with_capacity(64)));
    let kept = told.clone();
    let handler = move |_: &mut PtRegs, touched: &Touched| {
        let mut told = kept.lock();
        // No memory may be taken here.
        if told.len() < 64 {
            told.push(*touched);
        }
    };
    (watch_from(FIRST, LAST, Box::new(handler)), told)
}

fn watch_from(
    first: usize,
    last: usize,
    handler: Box<kernel::probes::watched_objects::ObjectHandler>,
) -> RegisteredObjectWatch {
    let bytes = address(last) + 8 - address(first);
    let watch = ObjectWatch::new(address(first), bytes, handler);
    RegisteredObjectWatch::new(Box::new(watch)).expect("it can be watched")
}

fn counts(watch: &ObjectWatch) -> (u64, u64, u64) {
    (watch.hits(), watch.nmissed(), watch.beside())
}

fn store(index: usize, value: u64) {
    // SAFETY: the word is there for that.
    unsafe { watched_store(word(index).as_ptr(), value) };
    assert_eq!(word(index).load(Relaxed), value);
}

/// Where `watched_store` goes on after its store.
fn after_store() -> u64 {
    watched_store as *const () as u64 + 4 + 3
}

#[guest_test]
fn each_write_of_an_object_hits_with_the_words_before_and_after() {
    for index in [FIRST - 1, FIRST, 512, LAST, LAST + 1] {
        word(index).store(1000 + index as u64, Relaxed);
    }
    let (watch, told) = watch();
    for index in [FIRST - 1, FIRST, 512, LAST, LAST + 1] {
        store(index, index as u64);
    }
    let expected = [FIRST, 512, LAST].map(|index| Touched {
        ip: after_store(),
        addr: address(index),
        old: 1000 + index as u64,
        new: index as u64,
    });
    assert_eq!(*told.lock(), expected);
    assert_eq!(counts(&watch), (3, 0, 2));
    // A read is none, and neither is a write when the watch is over.
    assert_eq!(word(FIRST).load(Relaxed), FIRST as u64);
    assert_eq!(counts(&watch), (3, 0, 2));
    drop(watch);
    store(FIRST, 7);
    assert_eq!(told.lock().len(), 3);
}

/// A write of four bytes, one that begins in front of the object, and one that leaves it as it is.
#[guest_test]
fn a_write_over_the_edge_of_an_object_is_one_of_it_if_it_changes_it() {
    let half = |index: usize| address(index) + 4;
    word(20).store(0, Relaxed);
    let told = Arc::new(AtomicU64::new(0));
    let last = told.clone();
    let handler = move |_: &mut PtRegs, touched: &Touched| last.store(touched.addr, SeqCst);
    let watch = ObjectWatch::new(half(20), 4, Box::new(handler));
    let watch = RegisteredObjectWatch::new(Box::new(watch)).expect("it can be watched");
    // SAFETY: the word is there for that.
    unsafe { watched_store_4(word(20).as_ptr(), 5) };
    assert_eq!(counts(&watch), (0, 0, 1));
    store(20, 6);
    assert_eq!(counts(&watch), (0, 0, 2), "the upper half is as it was");
    store(20, 9 << 32);
    assert_eq!(
        (counts(&watch), told.load(SeqCst)),
        ((1, 0, 2), address(20))
    );
    // SAFETY: as above.
    unsafe { watched_store_4(ptr::with_exposed_provenance(half(20) as usize), 9) };
    assert_eq!((counts(&watch), told.load(SeqCst)), ((2, 0, 2), half(20)));
}

/// Locked instructions, and a repeated one, which writes byte by byte.
#[guest_test]
fn all_instructions_that_write_are_seen() {
    let (watch, told) = watch();
    word(FIRST).store(1, SeqCst);
    word(FIRST).fetch_add(1, SeqCst);
    word(FIRST).swap(9, SeqCst);
    let _ = word(FIRST).compare_exchange(9, 10, SeqCst, SeqCst);
    // It fails, and writes what is there.
    let _ = word(FIRST).compare_exchange(9, 11, SeqCst, SeqCst);
    let news: Vec<u64> = told.lock().iter().map(|touched| touched.new).collect();
    assert_eq!(news, [1, 2, 9, 10, 10]);
    assert_eq!(counts(&watch), (5, 0, 0));
    let bytes = ptr::with_exposed_provenance_mut::<u8>(address(LAST - 1) as usize);
    // SAFETY: 24 bytes of the static, of which the last eight are a neighbour.
    unsafe {
        core::arch::asm!(
            "rep stosb",
            inout("rcx") 24_u64 => _,
            inout("rdi") bytes => _,
            in("al") 0x5a_u8,
        );
    }
    assert_eq!(counts(&watch), (5 + 16, 0, 8));
    for index in [LAST - 1, LAST, LAST + 1] {
        assert_eq!(word(index).load(Relaxed), 0x5a5a_5a5a_5a5a_5a5a);
    }
}

/// Two objects share a page: each has its own hits, and the page stays watched as long as one is.
#[guest_test]
fn objects_in_one_page_are_told_apart() {
    let one = watch_from(8, 15, Box::new(|_, _| {}));
    let other = watch_from(12, 31, Box::new(|_, _| {}));
    for index in 8..32 {
        store(index, 3);
    }
    assert_eq!((counts(&one), counts(&other)), ((8, 0, 16), (20, 0, 4)));
    drop(one);
    store(30, 4);
    store(10, 4);
    assert_eq!(counts(&other), (21, 0, 5));
    let debug = WATCHPOINTS
        .register_owned(Box::new(Watchpoint::new().at(address(30))))
        .unwrap();
    store(30, 5);
    assert_eq!((counts(&other), debug.hits()), ((22, 0, 5), 1));
}

/// As many as there can be, ended one by one: after each end, every write to the others is told.
#[guest_test]
fn watches_of_objects_end_in_any_order() {
    // Numbers without a common divisor, so each watch has its turn.
    for step in [1, 5, 7, MOST_WATCHES - 1] {
        let all = (0..MOST_WATCHES).map(|index| watch_from(index, index, Box::new(|_, _| {})));
        let mut watches: Vec<_> = all.map(Some).collect();
        for ended in 0..MOST_WATCHES {
            watches[(ended * step + 3) % MOST_WATCHES] = None;
            for index in 0..MOST_WATCHES {
                store(index, (step * ended) as u64);
            }
            for watch in watches.iter().flatten() {
                assert_eq!(watch.hits(), ended as u64 + 1, "{step}");
            }
        }
    }
}

/// The store is displaced by probes of each kind: in a slot, with a post handler, by a step, in a
/// detour.
#[guest_test]
fn a_probe_on_the_store_does_not_change_what_is_told_of_an_object() {
    fn pre(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        PreVerdict::Execute
    }
    let (watch, told) = watch();
    let at = |offset| {
        Kprobe::new()
            .symbol("watched_store")
            .offset(offset)
            .pre(pre)
    };
    let kinds = [
        at(4),
        at(4).post(|_, _, _| {}),
        at(4).step_method(StepMethod::TrapFlag),
        at(0),
    ];
    for (round, probe) in kinds.into_iter().enumerate() {
        let is_jump = round == 3;
        let _optimization = Optimization::set(is_jump);
        let probe = register(Box::new(probe)).unwrap();
        let start = watched_store as *const () as u64;
        assert_eq!(byte_at(start) == 0xe9, is_jump);
        word(600).fetch_and(0, Relaxed);
        told.lock().clear();
        store(600, 1);
        store(600, 2);
        let list: Vec<_> = told.lock().iter().map(|t| (t.ip, t.old, t.new)).collect();
        assert_eq!(
            list,
            [(after_store(), 0, 1), (after_store(), 1, 2)],
            "{round}"
        );
        assert_eq!(probe.hits(), 2);
    }
    assert_eq!(watch.nmissed(), 0);
}

/// What a handler writes is done, and missed. Registers that it changes are taken.
#[guest_test]
fn handlers_of_objects_may_write_to_them() {
    let handler = |regs: &mut PtRegs, touched: &Touched| {
        store(FIRST + 1, touched.new + 1);
        regs.ax = 77;
    };
    let watch = watch_from(FIRST, LAST, Box::new(handler));
    let ax: u64;
    // SAFETY: the word is there for that.
    unsafe {
        core::arch::asm!(
            "xor eax, eax",
            "mov qword ptr [{at}], 5",
            at = in(reg) address(FIRST),
            out("rax") ax,
        );
    }
    assert_eq!((ax, word(FIRST + 1).load(Relaxed)), (77, 6));
    assert_eq!(counts(&watch), (1, 1, 0));
}

/// A copy from a place that is not there is over with its error, and the object as it was.
#[guest_test]
fn a_fault_of_the_same_instruction_comes_first() {
    let (watch, _told) = watch();
    let value = word(FIRST).load(Relaxed);
    let bytes = ptr::with_exposed_provenance_mut::<u8>(address(FIRST) as usize);
    // SAFETY: the words of the static are atomics, and may be written by anybody.
    let to = unsafe { core::slice::from_raw_parts_mut(bytes, 8) };
    for _ in 0..3 {
        let copied = kernel::mm::uaccess::copy_from_user(to, 0x10_0000);
        assert!(copied.is_err());
    }
    assert_eq!(
        (word(FIRST).load(Relaxed), counts(&watch)),
        (value, (0, 0, 0))
    );
    store(FIRST, 1);
    assert_eq!(counts(&watch), (1, 0, 0));
}

/// No write of any CPU is lost, while another watch of the page comes and goes.
#[guest_test(smp = 4)]
fn all_cpus_are_watched_and_no_write_is_lost() {
    const STORES: u64 = 200;
    static STOP: AtomicBool = AtomicBool::new(false);
    STOP.store(false, SeqCst);
    word(FIRST).store(0, SeqCst);
    let watch = watch_from(FIRST, LAST, Box::new(|_, _| {}));
    let cpus = smp::online_cpus();
    let threads: Vec<_> = (0..cpus)
        .map(|cpu| {
            let add = || {
                for _ in 0..STORES {
                    word(FIRST).fetch_add(1, SeqCst);
                }
            };
            spawn_kthread_on(1 << cpu, "adds", add).unwrap()
        })
        .collect();
    let mut rounds = 0;
    expect_soon("all stores", || {
        drop(watch_from(LAST + 1, LAST + 2, Box::new(|_, _| {})));
        rounds += 1;
        word(FIRST).load(SeqCst) == cpus as u64 * STORES
    });
    threads.iter().for_each(|thread| thread.wait_released());
    assert_eq!(counts(&watch), (cpus as u64 * STORES, 0, 0));
    assert!(rounds > 0);
}

/// NMIs come anywhere in hits, and their handler writes to the object as well. Those of its writes
/// that come while a write of the task is under way are not seen.
#[guest_test(smp = 2)]
fn nmis_come_anywhere_in_hits_of_an_object() {
    const STORES: u64 = 3000;
    static NMIS: AtomicU64 = AtomicU64::new(0);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    static OF_NMIS: AtomicU64 = AtomicU64::new(0);
    static WRONG: AtomicU64 = AtomicU64::new(0);
    static DONE: AtomicBool = AtomicBool::new(false);
    fn on_nmi(_: &PtRegs) {
        word(LAST).fetch_add(1, SeqCst);
        NMIS.fetch_add(1, SeqCst);
    }
    for count in [&NMIS, &SEEN, &OF_NMIS, &WRONG] {
        count.store(0, SeqCst);
    }
    DONE.store(false, SeqCst);
    word(FIRST).store(0, SeqCst);
    word(LAST).store(0, SeqCst);
    let handler = |_: &mut PtRegs, touched: &Touched| {
        let count = match touched.addr == address(FIRST) {
            true => &SEEN,
            false => &OF_NMIS,
        };
        count.fetch_add(1, SeqCst);
        WRONG.fetch_add(u64::from(touched.new != touched.old + 1), SeqCst);
    };
    let watch = watch_from(FIRST, LAST, Box::new(handler));
    traps::set_nmi_handler(Some(on_nmi));
    let stores = || {
        (1..=STORES).for_each(|value| store(FIRST, value));
        DONE.store(true, SeqCst);
    };
    let stores = spawn_kthread_on(1 << 1, "stores", stores).unwrap();
    let sender = spawn_kthread_on(1 << 0, "sends", || {
        while !DONE.load(SeqCst) {
            nmi::send(1, &NMIS, || DONE.load(SeqCst));
        }
    });
    stores.wait_released();
    sender.unwrap().wait_released();
    traps::set_nmi_handler(None);
    let (seen, of_nmis) = (SEEN.load(SeqCst), OF_NMIS.load(SeqCst));
    let nmis = NMIS.load(SeqCst);
    assert_eq!((seen, WRONG.load(SeqCst)), (STORES, 0));
    assert_eq!(word(LAST).load(SeqCst), nmis);
    assert!(
        nmis > 0 && of_nmis + watch.nmissed() <= nmis,
        "{of_nmis} of {nmis}"
    );
    assert_eq!(watch.hits(), seen + of_nmis);
}

#[guest_test]
fn what_is_no_object_is_refused() {
    let refused = |start, bytes| {
        let watch = ObjectWatch::new(start, bytes, Box::new(|_, _| {}));
        RegisteredObjectWatch::new(Box::new(watch))
            .err()
            .expect("it is refused")
    };
    assert_eq!(refused(address(0), 0), ObjectError::Size);
    assert_eq!(refused(address(0), 2 << 20), ObjectError::Size);
    let local = 0_u64;
    let on_stack = ptr::from_ref(&local).addr() as u64;
    let of_cpu = ptr::from_ref(percpu::this()).addr() as u64;
    let text = watched_store as *const () as u64;
    for (start, part) in [
        (on_stack, "neither a static"),
        (0x1000, "neither a static"),
        (text, "neither a static"),
        (of_cpu, "the entry of each interrupt"),
        (
            kernel::mm::paging::HEAP_END - 4096,
            "nothing is mapped there",
        ),
    ] {
        let error = refused(start, 8).to_string();
        assert!(error.contains(part), "{start:#x}: {error}");
    }
    let watches: Vec<_> = (0..MOST_WATCHES)
        .map(|index| watch_from(index, index, Box::new(|_, _| {})))
        .collect();
    assert_eq!(refused(address(90), 8), ObjectError::TooMany);
    store(3, 1);
    assert_eq!(watches[3].hits(), 1);
    let beside: u64 = watches.iter().map(|watch| watch.beside()).sum();
    assert_eq!(beside, MOST_WATCHES as u64 - 1);
    // An object of the heap.
    drop(watches);
    let object = vec![0_u64; 1000];
    let start = object.as_ptr().addr() as u64;
    let watch = ObjectWatch::new(start, 8000, Box::new(|_, _| {}));
    let watch = RegisteredObjectWatch::new(Box::new(watch)).expect("it can be watched");
    // SAFETY: the first word of the vector, to which nothing has a reference now.
    unsafe { watched_store(object.as_ptr(), 6) };
    assert_eq!(watch.hits(), 1);
}
