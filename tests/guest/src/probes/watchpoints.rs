//! Watchpoints: which accesses hit, what their handlers are told, and how they get on with probes.
//!
//! Stores and loads are instructions of their own in assembly, so that it is known how often a word
//! is touched and where the code goes on. Under QEMU 7.2 with several CPUs a locked instruction
//! does not hit a watchpoint in a page that has one for reads as well (docs/emulators.md). So the
//! tests of locked instructions watch for writes, and have no other watchpoint.

use crate::tools::jumps::Optimization;
use abi::open;
use alloc::{boxed::Box, format, string::String, vec, vec::Vec};
use core::{
    arch::global_asm,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{percpu, smp},
    fs,
    probes::{
        Kprobe, PROBES, PreVerdict, PtRegs, RegisteredWatchpoint, StepMethod, Touched, WATCHPOINTS,
        WatchAccess, Watchpoint, register,
    },
    sync::SpinLock,
    task::{kthread::spawn_kthread_on, schedule},
};
use x86_64::instructions::interrupts;

global_asm!(
    r#"
.pushsection .text.watched_code, "ax", @progbits

.macro watched_code name, instruction:vararg
    .globl \name, \name\()_next
    .type \name, @function
\name:
    .cfi_startproc
    # So short that a jump at the entry covers the instruction, too.
    xor eax, eax
    inc eax
    \instruction
\name\()_next:
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

    watched_code watched_store, mov [rdi], rsi
    watched_code watched_store_4, mov [rdi], esi
    watched_code watched_store_2, mov [rdi], si
    watched_code watched_store_1, mov [rdi], sil
    watched_code watched_load, mov rax, [rdi]
    watched_code watched_add, lock add [rdi], rsi
    watched_code watched_exchange, xchg [rdi], rsi
    watched_code watched_compare, lock cmpxchg [rdi], rsi
    watched_code watched_fill, rep stosb

.popsection
    "#
);

unsafe extern "C" {
    pub fn watched_store(to: *const u64, value: u64);
    pub fn watched_store_4(to: *const u64, value: u64);
    fn watched_store_2(to: *const u64, value: u64);
    fn watched_store_1(to: *const u64, value: u64);
    pub fn watched_load(from: *const u64, unused: u64) -> u64;
    fn watched_add(to: *const u64, value: u64);
    fn watched_exchange(to: *const u64, value: u64);
    fn watched_compare(to: *const u64, value: u64);
    /// Stores al, which is 1, as often as the last argument says.
    fn watched_fill(to: *const u64, unused: u64, unused: u64, count: u64);
    static watched_store_next: u8;
    static watched_store_4_next: u8;
    static watched_store_2_next: u8;
    static watched_store_1_next: u8;
    static watched_load_next: u8;
    static watched_add_next: u8;
    static watched_exchange_next: u8;
    static watched_compare_next: u8;
}

/// Alone in its page, so that no other access takes the emulator's slow path.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "room")] [u64; 512]);

#[repr(C, align(4096))]
pub struct Words {
    pub words: [AtomicU64; 4],
    room: Page,
}

#[unsafe(no_mangle)]
pub static WATCHED_WORDS: Words = Words {
    words: [const { AtomicU64::new(0) }; 4],
    room: Page([0; 512]),
};

pub fn word(index: usize) -> *const u64 {
    let _ = &WATCHED_WORDS.room;
    WATCHED_WORDS.words[index].as_ptr()
}

pub fn address(index: usize) -> u64 {
    word(index).addr() as u64
}

/// What handlers were told, in order.
static TOLD: SpinLock<([Touched; 64], usize)> = SpinLock::new((
    [Touched {
        ip: 0,
        addr: 0,
        old: 0,
        new: 0,
    }; 64],
    0,
));

pub fn note(_: &Watchpoint, _: &mut PtRegs, touched: &Touched) {
    let mut told = TOLD.lock();
    let at = told.1;
    told.0[at] = *touched;
    told.1 += 1;
}

pub fn told() -> Vec<Touched> {
    let mut told = TOLD.lock();
    let list = told.0[..told.1].to_vec();
    told.1 = 0;
    list
}

pub fn watch(watch: Watchpoint) -> RegisteredWatchpoint {
    WATCHPOINTS.register_owned(Box::new(watch)).unwrap()
}

fn refused(watch: Watchpoint) -> (&'static str, i32, String) {
    let error = WATCHPOINTS
        .register_owned(Box::new(watch))
        .expect_err("it was taken");
    (error.name(), error.errno(), format!("{error}"))
}

fn next(of: &u8) -> u64 {
    core::ptr::from_ref(of).addr() as u64
}

/// One instruction, on a word that holds `before`; returns what handlers were told.
fn told_of(call: unsafe extern "C" fn(*const u64, u64), before: u64, value: u64) -> Vec<Touched> {
    WATCHED_WORDS.words[0].store(before, Relaxed);
    told();
    // SAFETY: it stores to or loads from the word.
    unsafe { call(word(0), value) };
    told()
}

/// The store that sets the word up is seen as well, so `old` is known.
#[guest_test(smp = 2)]
fn a_write_of_each_width_is_told_with_both_values_and_where_the_code_goes_on() {
    const BEFORE: u64 = 0x1111_2222_3333_4444;
    const VALUE: u64 = 0xaaaa_bbbb_cccc_dddd;
    // SAFETY: labels in the code above.
    let cases = unsafe {
        [
            (
                watched_store as unsafe extern "C" fn(_, _),
                8,
                &watched_store_next,
            ),
            (watched_store_4, 4, &watched_store_4_next),
            (watched_store_2, 2, &watched_store_2_next),
            (watched_store_1, 1, &watched_store_1_next),
        ]
    };
    for (store, width, after) in cases {
        for len in [1, 2, 4, 8] {
            let watched = watch(
                Watchpoint::new()
                    .symbol("WATCHED_WORDS")
                    .len(len)
                    .handler(note),
            );
            let low = |value: u64, bytes: u8| value & (u64::MAX >> (64 - 8 * u32::from(bytes)));
            let stored = BEFORE & !low(u64::MAX, width) | low(VALUE, width);
            assert_eq!(
                told_of(store, BEFORE, VALUE),
                [Touched {
                    ip: next(after),
                    addr: address(0),
                    old: low(BEFORE, len),
                    new: low(stored, len),
                }],
                "{width} bytes into {len}"
            );
            // The same value is a write, too, and a load is none.
            assert_eq!(told_of(store, stored, VALUE).len(), 1);
            // SAFETY: as above.
            unsafe { watched_load(word(0), 0) };
            assert_eq!((told().len(), watched.nmissed()), (0, 0));
        }
    }
}

/// Each part of a word has watchpoints of its own, and an access hits those that it overlaps.
#[guest_test]
fn four_watchpoints_are_told_apart() {
    static HITS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    fn count(watch: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        HITS[(watch.addr() - address(0)) as usize / 8].fetch_add(1, SeqCst);
    }
    let all = (0..4).map(|index| {
        watch(
            Watchpoint::new()
                .at(address(0))
                .offset(8 * index)
                .handler(count),
        )
    });
    let all: Vec<_> = all.collect();
    for (index, times) in [3_usize, 0, 1, 2].into_iter().enumerate() {
        for _ in 0..times {
            // SAFETY: it stores to the word.
            unsafe { watched_store(word(index), 7) };
        }
    }
    assert_eq!(
        all.iter().map(|watch| watch.hits()).collect::<Vec<_>>(),
        [3, 0, 1, 2]
    );
    assert_eq!(HITS.each_ref().map(|hits| hits.load(SeqCst)), [3, 0, 1, 2]);
}

#[guest_test(smp = 2)]
fn locked_instructions_are_writes_also_where_they_change_nothing() {
    let watched = watch(Watchpoint::new().at(address(0)).handler(note));
    // SAFETY: labels in the code above.
    let after = unsafe {
        [
            &watched_add_next,
            &watched_exchange_next,
            &watched_compare_next,
        ]
    };
    let calls = [
        (watched_add as unsafe extern "C" fn(_, _), 12),
        (watched_exchange, 5),
        // The word is not 1, so this one changes nothing.
        (watched_compare, 7),
    ];
    for ((call, new), after) in calls.into_iter().zip(after) {
        let ip = next(after);
        let (addr, old) = (address(0), 7);
        let expected = Touched { ip, addr, old, new };
        assert_eq!(told_of(call, 7, 5), [expected]);
    }
    assert_eq!(watched.hits(), 6);
    // SAFETY: it fills the word.
    unsafe { watched_fill(word(0), 0, 0, 8) };
    let values: Vec<u64> = told().iter().map(|touched| touched.new).collect();
    // One trap for each byte, or one for some of them (Intel SDM vol. 3B, 17.3.1.2).
    assert_eq!(values.last(), Some(&0x0101_0101_0101_0101), "{values:x?}");
}

#[guest_test]
fn loads_hit_where_they_are_wanted() {
    let watched = watch(
        Watchpoint::new()
            .at(address(0))
            .access(WatchAccess::ReadWrite)
            .handler(note),
    );
    WATCHED_WORDS.words[0].store(9, Relaxed);
    told();
    // SAFETY: it loads the word.
    assert_eq!(unsafe { watched_load(word(0), 0) }, 9);
    // SAFETY: a label in the code above.
    let ip = next(unsafe { &watched_load_next });
    let (addr, old, new) = (address(0), 9, 9);
    assert_eq!(told(), [Touched { ip, addr, old, new }]);
    // SAFETY: it stores to the word.
    unsafe { watched_store(word(0), 10) };
    assert_eq!(watched.hits(), 3);
    told();
}

/// The registers are those after the instruction, and what the handler changes is taken.
#[guest_test]
fn a_handler_sees_and_changes_the_registers() {
    fn change(watch: &Watchpoint, regs: &mut PtRegs, touched: &Touched) {
        if regs.di == watch.addr() && regs.si == touched.new && regs.ip == touched.ip {
            regs.ax = touched.old;
        }
    }
    let _watched = watch(Watchpoint::new().at(address(1)).handler(change));
    WATCHED_WORDS.words[1].store(77, Relaxed);
    // SAFETY: the store leaves 1 in rax, so to call it as one that returns a word is right.
    let store = unsafe {
        core::mem::transmute::<
            unsafe extern "C" fn(*const u64, u64),
            unsafe extern "C" fn(*const u64, u64) -> u64,
        >(watched_store)
    };
    // SAFETY: as above.
    assert_eq!(unsafe { store(word(1), 78) }, 77);
}

#[guest_test(smp = 4)]
fn each_cpu_is_watched_and_no_store_is_lost() {
    const STORES: u64 = 200;
    static STARTED: AtomicU64 = AtomicU64::new(0);
    static CPUS: AtomicU64 = AtomicU64::new(0);
    fn count(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        CPUS.fetch_or(1 << percpu::cpu_id(), SeqCst);
    }
    let watched = watch(Watchpoint::new().at(address(0)).handler(count));
    let cpus = smp::online_cpus() as u64;
    let threads = (0..cpus).map(|cpu| {
        let work = move || {
            STARTED.fetch_add(1, SeqCst);
            while STARTED.load(SeqCst) < cpus {
                schedule();
            }
            for value in 0..STORES {
                // SAFETY: it stores to the word.
                unsafe { watched_store(word(0), value) };
            }
        };
        spawn_kthread_on(1 << cpu, "stores", work).expect("memory for a thread")
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.wait_released();
    }
    assert_eq!((watched.hits(), watched.nmissed()), (cpus * STORES, 0));
    assert_eq!(CPUS.load(SeqCst), (1 << cpus) - 1);
}

/// The displaced instruction is the one that touches the word: in a slot, in a post slot, in a
/// detour and in single steps.
#[guest_test(smp = 2)]
fn the_instruction_of_a_probe_is_told_where_it_would_be_without_the_probe() {
    fn pass(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        PreVerdict::Execute
    }
    fn after(_: &Kprobe, _: &mut PtRegs, _: u64) {}
    // SAFETY: a label in the code above.
    let ip = next(unsafe { &watched_store_next });
    // `mov [rdi], rsi` has three bytes.
    let probe = || Kprobe::new().at(ip - 3).pre(pass);
    let _watched = watch(Watchpoint::new().at(address(0)).handler(note));
    for optimized in [false, true] {
        let _knob = Optimization::set(optimized);
        for (probe, what) in [
            (probe(), "a slot"),
            (probe().post(after), "a post slot"),
            (probe().step_method(StepMethod::TrapFlag), "steps"),
            (
                probe().post(after).step_method(StepMethod::TrapFlag),
                "steps, a post handler",
            ),
        ] {
            let probe = register(Box::new(probe)).unwrap();
            for value in [4, 5] {
                assert_eq!(
                    told_of(watched_store, 3, value),
                    [Touched {
                        ip,
                        addr: address(0),
                        old: 3,
                        new: value
                    }],
                    "{what}, jumps {optimized}"
                );
            }
            assert_eq!((probe.hits(), probe.nmissed()), (2, 0), "{what}");
        }
        // At the entry, where a jump covers the store.
        let entry = register(Box::new(Kprobe::new().symbol("watched_store").pre(pass))).unwrap();
        let told = told_of(watched_store, 3, 6);
        let (addr, old, new) = (address(0), 3, 6);
        let expected = Touched { ip, addr, old, new };
        assert_eq!(told, [expected], "jumps {optimized}");
        assert_eq!(entry.hits(), 1);
    }
}

/// A handler of a probe touches the word: that is a miss, and the next hit knows the value.
#[guest_test]
fn what_handlers_touch_is_missed_and_remembered() {
    fn store(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        // SAFETY: it stores to the word.
        unsafe { watched_store_4(word(0), 50) };
        PreVerdict::Execute
    }
    fn store_too(_: &Watchpoint, _: &mut PtRegs, touched: &Touched) {
        // The debug registers of this CPU are off.
        // SAFETY: it stores to the word.
        unsafe { watched_store_2(word(0), touched.new + 1) };
    }
    let probe = register(Box::new(Kprobe::new().symbol("watched_store").pre(store))).unwrap();
    let watched = watch(Watchpoint::new().at(address(0)).handler(note));
    let told = told_of(watched_store, 3, 4);
    assert_eq!(
        told.iter().map(|t| (t.old, t.new)).collect::<Vec<_>>(),
        [(50, 4)]
    );
    assert_eq!((watched.hits(), watched.nmissed(), probe.hits()), (2, 1, 1));
    drop((watched, probe));

    let watched = watch(Watchpoint::new().at(address(0)).handler(store_too));
    // SAFETY: it stores to the word.
    unsafe { watched_store(word(0), 60) };
    assert_eq!(WATCHED_WORDS.words[0].load(Relaxed), 61);
    assert_eq!((watched.hits(), watched.nmissed()), (1, 0));
}

#[guest_test]
fn a_watchpoint_that_is_off_sees_nothing() {
    let hits = |watched: &Watchpoint| {
        let before = watched.hits();
        // SAFETY: it stores to the word.
        unsafe { watched_store(word(0), before) };
        watched.hits() - before
    };
    let watched = watch(Watchpoint::new().at(address(0)).disabled());
    assert_eq!(hits(&watched), 0);
    WATCHPOINTS.enable(&watched).unwrap();
    assert_eq!(hits(&watched), 1);
    PROBES.set_enabled(false).unwrap();
    assert_eq!(hits(&watched), 0);
    PROBES.set_enabled(true).unwrap();
    assert_eq!(hits(&watched), 1);
    WATCHPOINTS.disable(&watched).unwrap();
    assert_eq!(hits(&watched), 0);
    // The old value is the one of the moment when it was enabled.
    drop(watched);
    let watched = watch(Watchpoint::new().at(address(0)).handler(note).disabled());
    WATCHED_WORDS.words[0].store(31, Relaxed);
    WATCHPOINTS.enable(&watched).unwrap();
    told();
    // SAFETY: it stores to the word.
    unsafe { watched_store(word(0), 32) };
    assert_eq!(told().first().map(|touched| touched.old), Some(31));
    drop(watched);
    // Registered again, it begins as at first. Unregistered, it says so.
    static AGAIN: Watchpoint = Watchpoint::new().symbol("WATCHED_WORDS");
    for _ in 0..2 {
        WATCHPOINTS.register(&AGAIN).unwrap();
        assert_eq!((hits(&AGAIN), AGAIN.addr()), (1, address(0)));
        let twice = WATCHPOINTS.register(&AGAIN).unwrap_err();
        assert_eq!((twice.name(), twice.errno()), ("AlreadyRegistered", 22));
        WATCHPOINTS.unregister(&AGAIN).unwrap();
        assert_eq!(hits(&AGAIN), 0);
        let gone = WATCHPOINTS.enable(&AGAIN).unwrap_err();
        assert_eq!(gone.name(), "NotRegistered");
    }
}

#[guest_test(smp = 2)]
fn watchpoints_that_cannot_be_are_refused_with_the_reason() {
    let at = |addr| Watchpoint::new().at(addr);
    let of_cpu = core::ptr::from_ref(percpu::of(1)).addr() as u64;
    let own = core::ptr::from_ref(&PROBES).addr() as u64;
    let local = 0_u64;
    let on_stack = core::ptr::from_ref(&local).addr() as u64;
    let unmapped = kernel::mm::paging::TEXT_POOL_END - 4096;
    for (wrong, name, part) in [
        (Watchpoint::new(), "NoTarget", "give one of them"),
        (
            at(address(0)).symbol("WATCHED_WORDS"),
            "SymbolAndAddress",
            "give one",
        ),
        (
            Watchpoint::new().symbol("no_such_word"),
            "UnknownSymbol",
            "no_such_word",
        ),
        (
            at(address(0)).len(3),
            "WatchLength",
            "1, 2, 4 or 8 bytes, not 3",
        ),
        (at(address(0)).len(0), "WatchLength", "not 0"),
        (
            at(address(0) + 4),
            "WatchUnaligned",
            "is not a multiple of 8; ",
        ),
        (at(address(0)).offset(1).len(2), "WatchUnaligned", "of 2"),
        (at(0x40_0000), "NotWatchable", "memory of programs"),
        (at(unmapped), "NotWatchable", "nothing is mapped"),
        (at(u64::MAX - 7), "NotWatchable", "device"),
        (at(1 << 62), "NotWatchable", ""),
        (at(of_cpu), "NotWatchable", "entry of each interrupt"),
        (at(own), "NotWatchable", "the trap itself"),
        (at(on_stack), "NotWatchable", "on a stack"),
    ] {
        let (found, _, text) = refused(wrong);
        assert_eq!(found, name, "{text}");
        assert!(text.contains(part), "{text}");
    }
    let all: Vec<_> = (0..4).map(|index| watch(at(address(index)))).collect();
    let (name, errno, text) = refused(at(address(0)));
    assert_eq!((name, errno), ("NoWatchRegister", 16));
    for index in 0..4 {
        assert!(text.contains(&format!("{:#x}", address(index))), "{text}");
    }
    drop(all);
    drop(watch(at(address(0))));
    let watched = watch(at(address(0)));
    let atomic = interrupts::without_interrupts(|| WATCHPOINTS.disable(&watched));
    assert_eq!(atomic.unwrap_err().name(), "AtomicContext");
}

/// Where dropping may not wait, the next operation that may wait finishes it.
#[guest_test]
fn a_handle_may_be_dropped_anywhere() {
    let watched = watch(Watchpoint::new().at(address(0)).handler(note));
    interrupts::without_interrupts(|| drop(watched));
    let others: Vec<_> = (0..4)
        .map(|index| watch(Watchpoint::new().at(address(index))))
        .collect();
    told();
    // SAFETY: it stores to the word.
    unsafe { watched_store(word(0), 1) };
    assert_eq!((told(), others[0].hits()), (vec![], 1));
}

#[guest_test]
fn lists_name_watchpoints_last() {
    let watched = watch(Watchpoint::new().symbol("WATCHED_WORDS").offset(8));
    // SAFETY: it stores to the word.
    unsafe { watched_store(word(1), 1) };
    let line = |rest: &str| format!("{:016x}  w  WATCHED_WORDS+0x8{rest}\n", address(1));
    let read = |name: &str| {
        let path = format!("/sys/kernel/debug/kprobes/{name}");
        let file = fs::open(&path, open::RDONLY).unwrap();
        let mut text = vec![0; 1 << 16];
        let bytes = file.read_at(0, &mut text).unwrap();
        text.truncate(bytes);
        String::from_utf8(text).unwrap()
    };
    assert!(read("list").ends_with(&line("    ")), "{}", read("list"));
    assert!(read("stats").ends_with(&line("  1 0")), "{}", read("stats"));
    WATCHPOINTS.disable(&watched).unwrap();
    assert!(
        read("list").ends_with(&line("    [DISABLED]")),
        "{}",
        read("list")
    );
    drop(watched);
    assert!(!read("list").contains("  w  "));
}

/// One watchpoint stays while the others come and go: it loses no store.
#[guest_test(smp = 4)]
fn watchpoints_come_and_go_under_fire() {
    const ROUNDS: usize = 10;
    static STOP: AtomicU64 = AtomicU64::new(0);
    /// Stores to the word whose watchpoint stays.
    static STORES: AtomicU64 = AtomicU64::new(0);
    STOP.store(0, SeqCst);
    STORES.store(0, SeqCst);
    let stays = watch(Watchpoint::new().at(address(0)));
    let cpus = smp::online_cpus() as u64;
    let threads = (1..cpus).map(|cpu| {
        let work = || {
            while STOP.load(SeqCst) == 0 {
                for index in 0..3 {
                    // SAFETY: it stores to the word.
                    unsafe { watched_store(word(index), 1) };
                }
                STORES.fetch_add(1, SeqCst);
            }
        };
        spawn_kthread_on(1 << cpu, "stores", work).expect("memory for a thread")
    });
    let threads: Vec<_> = threads.collect();
    for _ in 0..ROUNDS {
        let before = STORES.load(SeqCst);
        while STORES.load(SeqCst) < before + 10 {
            schedule();
        }
        let others = [1, 2].map(|index| watch(Watchpoint::new().at(address(index))));
        WATCHPOINTS.disable(&others[1]).unwrap();
        WATCHPOINTS.enable(&others[1]).unwrap();
    }
    STOP.store(1, SeqCst);
    for thread in threads {
        thread.wait_released();
    }
    assert_eq!((stays.hits(), stays.nmissed()), (STORES.load(SeqCst), 0));
}

/// A CPU that has not heard yet that the last watchpoint is off is hit by it once more.
#[guest_test(smp = 4)]
fn the_last_watchpoint_goes_under_fire() {
    static STOP: AtomicU64 = AtomicU64::new(0);
    STOP.store(0, SeqCst);
    let threads = (1..smp::online_cpus()).map(|cpu| {
        let work = || {
            while STOP.load(SeqCst) == 0 {
                // SAFETY: it stores to the word.
                unsafe { watched_store(word(0), 1) };
            }
        };
        spawn_kthread_on(1 << cpu, "stores", work).expect("memory for a thread")
    });
    let threads: Vec<_> = threads.collect();
    let watched = watch(Watchpoint::new().at(address(0)));
    for _ in 0..20 {
        let before = watched.hits();
        while watched.hits() == before {
            schedule();
        }
        WATCHPOINTS.disable(&watched).unwrap();
        let off = watched.hits();
        // SAFETY: it stores to the word.
        unsafe { watched_store(word(0), 2) };
        assert_eq!(watched.hits(), off);
        WATCHPOINTS.enable(&watched).unwrap();
    }
    STOP.store(1, SeqCst);
    for thread in threads {
        thread.wait_released();
    }
}
