//! Kretprobes: which calls are followed, what their handlers see, and that every call finds its way
//! home.
//!
//! Functions recurse, call each other in the tail and return by several instructions, with fewer
//! instances than calls. A call that is not followed is counted, and returns all the same. All
//! registers but those that a handler changes survive the way back.

use core::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use probes::{EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs};

use super::{
    code::{Bench, Code, End, Registers},
    targets::*,
    *,
};

#[test]
fn both_handlers_see_the_call_and_its_true_return_address() {
    let _machine = boot();
    static SEEN: Mutex<[(PtRegs, u64, u64, u64); 2]> =
        Mutex::new([(PtRegs::new(), 0, 0, 0), (PtRegs::new(), 0, 0, 0)]);
    fn see(n: usize, instance: &KretprobeInstance<()>, regs: &PtRegs) {
        SEEN.lock()[n] = (
            *regs,
            instance.ret_addr(),
            instance.task(),
            instance.return_slot(),
        );
    }
    fn at_entry(instance: &mut KretprobeInstance<()>, regs: &mut PtRegs) -> EntryVerdict {
        see(0, instance, regs);
        EntryVerdict::Track
    }
    fn at_return(instance: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        see(1, instance, regs);
        let own = instance.kretprobe().map_or(0, |kretprobe| kretprobe.addr());
        journal::note(own);
    }
    let call = leak(
        Kretprobe::new()
            .symbol("add")
            .entry(at_entry)
            .handler(at_return),
    );
    PROBES.register(call).unwrap();
    let caller = Code::calling(address("add"), 1);
    let mut bench = Bench::new();
    let mut registers = Registers::default();
    for n in 0..16 {
        registers.set(n, 0x2222_0000_0000_0000 + n as u64);
    }
    (registers.sp, registers.flags) = (bench.sp(), flags::PLAIN | flags::STATUS);
    let outcome = bench.run(caller.start, registers);
    assert_eq!(outcome.end, End::Exit(1));
    assert_eq!(outcome.registers.ax, registers.si + registers.di);
    assert_eq!(
        outcome.registers.flags, registers.flags,
        "nothing changes them"
    );

    let [
        (before, entry_ret, entry_task, entry_frame),
        (after, ret, task, frame),
    ] = *SEEN.lock();
    let called = Registers {
        sp: registers.sp - 8,
        ..registers
    };
    assert_eq!(Registers::of(&before), called);
    assert_eq!(before.ip, address("add") + 1);
    assert_eq!(Registers::of(&after), outcome.registers);
    let ip = if returning_by_trap() {
        trampoline() + 1
    } else {
        caller.start + 5
    };
    assert_eq!(after.ip, ip);
    assert_eq!(after.return_value(), outcome.registers.ax);
    assert_eq!(
        (after.cs, after.ss, after.orig_ax),
        (platform::CS, platform::SS, !0)
    );
    assert_eq!((entry_ret, ret), (caller.start + 5, caller.start + 5));
    assert_eq!((entry_frame, frame), (called.sp, called.sp));
    let this_task = task::current();
    assert_eq!((entry_task, task), (this_task, this_task));
    assert_eq!(journal::take(), [address("add")]);
    assert_eq!((call.hits(), call.nmissed()), (1, 0));
    PROBES.unregister(call).unwrap();
}

#[test]
fn a_declined_call_is_let_go_and_costs_no_instance() {
    let _machine = boot();
    fn odd_only(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) -> EntryVerdict {
        if regs.di % 2 == 1 {
            EntryVerdict::Track
        } else {
            EntryVerdict::Decline
        }
    }
    let call = leak(
        Kretprobe::new()
            .symbol("add")
            .entry(odd_only)
            .handler(returned::<1, ()>)
            .maxactive(2),
    );
    PROBES.register(call).unwrap();
    for n in 0..50 {
        assert_eq!(add(n, 1), n + 1);
    }
    assert_eq!(journal::take(), [1; 25]);
    assert_eq!(
        (call.hits(), call.nmissed(), call.kprobe().nmissed()),
        (25, 0, 0)
    );
    PROBES.unregister(call).unwrap();
}

#[test]
fn recursion_deeper_than_maxactive_is_followed_that_deep_and_counted() {
    let _machine = boot();
    /// Entry handlers that ran, and calls whose return address is the trampoline, which the older
    /// kprobe sees after them.
    static ENTERED: AtomicU64 = AtomicU64::new(0);
    static BORROWED: AtomicU64 = AtomicU64::new(0);
    fn depth_in(instance: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
        **instance = regs.di;
        ENTERED.fetch_add(1, Relaxed);
        EntryVerdict::Track
    }
    fn look(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        // SAFETY: the return address of the call that is being entered.
        let back = unsafe { (regs.sp as *const u64).read() };
        BORROWED.fetch_add((back == trampoline()).into(), Relaxed);
        PreVerdict::Execute
    }
    let older = leak(Kprobe::new().symbol("recurse").pre(look));
    PROBES.register(older).unwrap();
    fn depth_out(instance: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
        let n = **instance;
        journal::note(n);
        journal::note((regs.return_value() == n * (n + 1) / 2).into());
    }
    for (maxactive, deepest) in [(1, 9), (3, 9), (10, 9), (100, 99), (7, 400)] {
        let call = leak(
            Kretprobe::<u64>::new()
                .symbol("recurse")
                .entry(depth_in)
                .handler(depth_out)
                .maxactive(maxactive),
        );
        PROBES.register(call).unwrap();
        ENTERED.store(0, Relaxed);
        BORROWED.store(0, Relaxed);
        assert_eq!(recurse(deepest), deepest * (deepest + 1) / 2);
        let tracked = (maxactive as u64).min(deepest + 1);
        let entered = (ENTERED.load(Relaxed), BORROWED.load(Relaxed));
        assert_eq!(entered, (tracked, tracked), "a missed call is left alone");
        assert_eq!(
            (call.hits(), call.nmissed()),
            (tracked, deepest + 1 - tracked)
        );
        // The deepest one that was followed returns first.
        let expected: Vec<u64> = (0..tracked)
            .rev()
            .flat_map(|depth| [deepest - depth, 1])
            .collect();
        assert_eq!(journal::take(), expected);
        assert_eq!(recurse(0), 0);
        assert_eq!(journal::take(), [0, 1], "all instances are back");
        PROBES.unregister(call).unwrap();
    }
    PROBES.unregister(older).unwrap();
}

#[test]
fn mutual_recursion_is_followed_as_deep_as_each_has_instances() {
    let _machine = boot();
    fn depth_in(instance: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
        **instance = regs.di;
        EntryVerdict::Track
    }
    fn depth_out(instance: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
        let n = **instance;
        journal::note(n);
        journal::note((regs.return_value() == n / 2 * 3 + n % 2).into());
    }
    let of = |name, maxactive| {
        let call = Kretprobe::<u64>::new()
            .symbol(name)
            .entry(depth_in)
            .handler(depth_out);
        leak(call.maxactive(maxactive))
    };
    let (pings, pongs) = (of("ping", 3), of("pong", 20));
    PROBES.register(pings).unwrap();
    PROBES.register(pongs).unwrap();
    for _ in 0..2 {
        // ping(9), pong(8), ping(7), … pong(0); of the pings the first three have an instance.
        assert_eq!(ping(9), 13);
        let order = [0, 2, 4, 5, 6, 7, 8, 9];
        assert_eq!(journal::take(), order.map(|n| [n, 1]).concat());
    }
    assert_eq!((pings.hits(), pings.nmissed()), (6, 4));
    assert_eq!((pongs.hits(), pongs.nmissed()), (10, 0));
    PROBES.unregister(pings).unwrap();
    PROBES.unregister(pongs).unwrap();
}

#[test]
fn each_call_has_data_of_its_own_that_starts_with_the_default() {
    let _machine = boot();
    #[derive(Clone, Copy, PartialEq, Debug)]
    #[repr(align(32))]
    struct Data {
        words: [u64; 5],
        tail: u8,
    }
    impl Default for Data {
        fn default() -> Self {
            Self {
                words: [7; 5],
                tail: 9,
            }
        }
    }
    fn fill(instance: &mut KretprobeInstance<Data>, regs: &mut PtRegs) -> EntryVerdict {
        journal::note((**instance == Data::default()).into());
        journal::note(core::ptr::from_ref(&**instance).addr() as u64 % 32);
        instance.words = [regs.di; 5];
        instance.tail = regs.di as u8;
        EntryVerdict::Track
    }
    fn check(instance: &mut KretprobeInstance<Data>, _: &mut PtRegs) {
        journal::note((instance.words == [u64::from(instance.tail); 5]).into());
        journal::note(instance.tail.into());
    }
    let call = leak(
        Kretprobe::<Data>::new()
            .symbol("recurse")
            .entry(fill)
            .handler(check)
            .maxactive(4),
    );
    PROBES.register(call).unwrap();
    for _ in 0..3 {
        assert_eq!(recurse(3), 6);
        let expected = [[1, 0].repeat(4), vec![1, 0, 1, 1, 1, 2, 1, 3]].concat();
        assert_eq!(journal::take(), expected);
    }
    PROBES.unregister(call).unwrap();
}

#[test]
fn the_caller_sees_what_a_return_handler_has_changed() {
    let _machine = boot();
    fn change(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        regs.set_return_value(regs.return_value() * 10);
        regs.dx = 0x1234;
        regs.flags |= 1; // CF
        regs.ip = 0xdead;
        regs.sp = 0xbeef;
    }
    let call = leak(Kretprobe::new().symbol("add").handler(change));
    PROBES.register(call).unwrap();
    let caller = Code::calling(address("add"), 1);
    let mut bench = Bench::new();
    let registers = Registers {
        di: 3,
        si: 4,
        flags: flags::PLAIN,
        ..Registers::default()
    };
    let outcome = bench.run(caller.start, registers);
    let expected = Registers {
        ax: 70,
        dx: 0x1234,
        flags: flags::PLAIN | flags::CF,
        sp: bench.sp(),
        ..registers
    };
    assert_eq!(outcome.registers, expected);
    PROBES.unregister(call).unwrap();
}

#[test]
fn all_registers_survive_the_trampoline() {
    let _machine = boot();
    let caller = Code::calling(address("leaves_a_mess"), 1);
    let mut bench = Bench::new();
    let mut registers = Registers::default();
    for n in 0..16 {
        registers.set(n, 0x3333_0000_0000_0000 + n as u64);
    }
    registers.sp = bench.sp();
    let bare = bench.run(caller.start, registers);
    let call = leak(
        Kretprobe::new()
            .symbol("leaves_a_mess")
            .handler(returned::<1, ()>),
    );
    PROBES.register(call).unwrap();
    assert_eq!(bench.run(caller.start, registers), bare);
    assert_eq!(journal::take(), [1]);
    PROBES.unregister(call).unwrap();
}

#[test]
fn many_probes_of_every_kind_share_a_function() {
    let _machine = boot();
    fn address_seen(instance: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        let ip = match returning_by_trap() {
            true => trampoline() + 1,
            false => instance.ret_addr(),
        };
        journal::note((instance.ret_addr() != trampoline() && regs.ip == ip).into());
    }
    probes::jprobe! {
        fn arguments(a: u64, b: u64) {
            journal::note(1000 + a * 10 + b);
        }
    }
    let jprobe = leak(probes::Jprobe::new().symbol("add").entry(arguments));
    let first = leak(
        Kretprobe::new()
            .symbol("add")
            .entry(entry::<1, ()>)
            .handler(returned::<11, ()>),
    );
    let second = leak(
        Kretprobe::new()
            .symbol("add")
            .entry(entry::<2, ()>)
            .handler(returned::<12, ()>),
    );
    let third = leak(Kretprobe::new().symbol("add").handler(address_seen));
    let kprobe = leak(Kprobe::new().symbol("add").pre(pre::<3>).post(post::<13>));
    PROBES.register(jprobe).unwrap();
    PROBES.register(first).unwrap();
    PROBES.register(kprobe).unwrap();
    PROBES.register(second).unwrap();
    PROBES.register(third).unwrap();
    for _ in 0..3 {
        assert_eq!(add(4, 2), 6);
        // Entries newest first and the jprobe last; returns oldest first.
        assert_eq!(journal::take(), [2, 3, 1, 1042, 13, 11, 12, 1]);
    }
    PROBES.unregister(first).unwrap();
    assert_eq!(add(4, 2), 6);
    assert_eq!(journal::take(), [2, 3, 1042, 13, 12, 1]);
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(third).unwrap();
    assert_eq!(add(4, 2), 6);
    assert_eq!(journal::take(), [2, 3, 13, 12]);
    PROBES.unregister(second).unwrap();
    PROBES.unregister(kprobe).unwrap();
}

#[test]
fn nested_calls_of_different_functions_return_in_order() {
    let _machine = boot();
    fn value(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        journal::note(regs.return_value());
    }
    let calls = ["chain_a", "chain_b", "chain_c"]
        .map(|name| leak(Kretprobe::new().symbol(name).handler(value)));
    PROBES.register_batch(&calls).unwrap();
    assert_eq!(chain_a(1), 13);
    assert_eq!(journal::take(), [6, 12, 13]);
    PROBES.unregister_batch(&calls).unwrap();
}

#[test]
fn a_tail_call_returns_to_both_functions_handlers() {
    let _machine = boot();
    static ADDRESSES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    fn f(instance: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        ADDRESSES[0].store(instance.ret_addr(), Relaxed);
        journal::note(100 + regs.return_value());
    }
    fn g(instance: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        ADDRESSES[1].store(instance.ret_addr(), Relaxed);
        journal::note(200 + regs.return_value());
    }
    let call_f = leak(Kretprobe::new().symbol("tail_f").handler(f));
    let call_g = leak(Kretprobe::new().symbol("tail_g").handler(g));
    PROBES.register(call_f).unwrap();
    assert_eq!(tail_f(4), 10);
    assert_eq!(journal::take(), [110]);
    PROBES.register(call_g).unwrap();
    assert_eq!(tail_f(4), 10);
    assert_eq!(journal::take(), [210, 110], "the inner one first");
    let [of_f, of_g] = ADDRESSES.each_ref().map(|addr| addr.load(Relaxed));
    assert_eq!(of_f, of_g);
    assert_ne!(of_f, trampoline());
    assert_eq!(tail_g(3), 6);
    assert_eq!(journal::take(), [206]);
    PROBES.unregister(call_f).unwrap();
    PROBES.unregister(call_g).unwrap();
}

#[test]
fn two_kretprobes_of_one_function_run_out_separately() {
    let _machine = boot();
    let few = leak(
        Kretprobe::new()
            .symbol("recurse")
            .handler(returned::<1, ()>)
            .maxactive(2),
    );
    let many = leak(
        Kretprobe::new()
            .symbol("recurse")
            .handler(returned::<2, ()>)
            .maxactive(20),
    );
    PROBES.register(few).unwrap();
    PROBES.register(many).unwrap();
    assert_eq!(recurse(9), 45);
    assert_eq!((few.hits(), few.nmissed()), (2, 8));
    assert_eq!((many.hits(), many.nmissed()), (10, 0));
    assert_eq!(journal::take(), [[2; 8].as_slice(), &[1, 2, 1, 2]].concat());
    PROBES.unregister(few).unwrap();
    PROBES.unregister(many).unwrap();
}

// Where the stack is not aligned, the way back is served in Rust. No code has its stack at an odd
// address, because the lowest bit marks the kretprobes that join a call: Rust tells one of them of
// such a call and counts it as missed by the others. The kernel's stub for several kretprobes does
// not look.
#[test]
fn a_call_on_an_unaligned_stack_finds_its_way_home() {
    let _machine = boot();
    fn note_ip(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        // A reference is aligned, also where the stack is not.
        assert_eq!(
            black_box(core::ptr::from_mut(regs).addr()) % align_of::<PtRegs>(),
            0
        );
        journal::note(regs.ip);
    }
    let caller = Code::calling(address("add"), 1);
    let calls = [(); 2].map(|()| leak(Kretprobe::new().symbol("add").handler(note_ip)));
    PROBES.register_batch(&calls).unwrap();
    let mut bench = Bench::new();
    let is_served = |down: &u64| cfg!(target_os = "linux") || down.is_multiple_of(2);
    for down in (0..16).filter(is_served) {
        let registers = Registers {
            di: 1,
            si: 2,
            sp: bench.sp() - down,
            flags: flags::PLAIN,
            ..Registers::default()
        };
        assert_eq!(bench.run(caller.start, registers).registers.ax, 3, "{down}");
        let told = if down % 2 == 0 { 2 } else { 1 };
        let ip = if returning_by_trap() {
            trampoline() + 1
        } else {
            caller.start + 5
        };
        assert_eq!(journal::take(), vec![ip; told], "{down}");
    }
    // The newest one takes the call.
    let odd = (0..16)
        .filter(is_served)
        .filter(|down| down % 2 == 1)
        .count() as u64;
    assert_eq!(
        calls.map(|call| (call.hits(), call.nmissed())),
        [(8, odd), (8 + odd, 0)]
    );
    PROBES.unregister_batch(&calls).unwrap();
}

#[test]
fn a_kretprobe_without_handlers_follows_calls_all_the_same() {
    let _machine = boot();
    let call = leak(Kretprobe::<()>::new().symbol("add").maxactive(1));
    PROBES.register(call).unwrap();
    for n in 0..10 {
        assert_eq!(add(n, n), 2 * n);
    }
    assert_eq!((call.hits(), call.nmissed()), (10, 0));
    PROBES.unregister(call).unwrap();
}

#[test]
fn calls_from_entry_and_return_handlers_are_missed() {
    let _machine = boot();
    fn call_in(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        journal::note(add(1, 2));
        EntryVerdict::Track
    }
    fn call_out(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
        journal::note(add(3, 4));
        journal::note(chain_a(1));
    }
    let call = leak(
        Kretprobe::new()
            .symbol("add")
            .entry(call_in)
            .handler(call_out),
    );
    let chain = leak(
        Kretprobe::new()
            .symbol("chain_c")
            .handler(returned::<1, ()>),
    );
    PROBES.register(call).unwrap();
    PROBES.register(chain).unwrap();
    assert_eq!(add(5, 6), 11);
    assert_eq!(journal::take(), [3, 7, 13]);
    assert_eq!(
        (call.hits(), call.nmissed(), call.kprobe().nmissed()),
        (1, 0, 2)
    );
    assert_eq!(
        (chain.hits(), chain.nmissed(), chain.kprobe().nmissed()),
        (0, 0, 1)
    );
    assert_eq!(chain_a(1), 13);
    assert_eq!(journal::take(), [1], "nothing is left behind");
    PROBES.unregister(call).unwrap();
    PROBES.unregister(chain).unwrap();
}

#[test]
fn entry_every_return_instruction_and_the_return_can_be_probed_together() {
    let _machine = boot();
    let at = |offset| leak(Kprobe::new().symbol("at_most_nine").offset(offset));
    let probes = [
        at(0),
        leak(
            Kprobe::new()
                .symbol("at_most_nine")
                .offset(9)
                .pre(pre::<1>)
                .post(post::<11>),
        ),
        leak(
            Kprobe::new()
                .symbol("at_most_nine")
                .offset(15)
                .pre(pre::<2>),
        ),
    ];
    let call = leak(
        Kretprobe::new()
            .symbol("at_most_nine")
            .handler(returned::<3, ()>),
    );
    PROBES.register_batch(&probes).unwrap();
    PROBES.register(call).unwrap();
    assert_eq!((at_most_nine(4), at_most_nine(12)), (4, 9));
    assert_eq!(journal::take(), [1, 11, 3, 2, 3]);
    PROBES.unregister(call).unwrap();
    PROBES.unregister_batch(&probes).unwrap();
}

#[test]
fn a_stack_walk_finds_the_true_callers() {
    let _machine = boot();
    static FRAMES: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    fn remember(instance: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        FRAMES
            .lock()
            .push((instance.return_slot(), instance.ret_addr()));
        EntryVerdict::Track
    }
    fn walk(above: u64) {
        let task = task::current();
        // The slot of a call that has returned is the trampoline's.
        let frames = FRAMES.lock();
        for (frame, expected) in frames.iter().filter(|(frame, _)| *frame >= above) {
            // SAFETY: a return slot of a call that is in flight, on this stack.
            let value = unsafe { (*frame as *const u64).read() };
            let raw = u64::from(value == trampoline());
            let seen = PROBES.return_address(task, *frame, value);
            // Only a trampoline stands for another address.
            let is_itself = PROBES.return_address(task, *frame, 0x1234) == 0x1234;
            journal::note(raw << 1 | u64::from(seen == *expected && is_itself));
        }
    }
    fn walk_at_return(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        walk(regs.sp);
    }
    fn walk_before(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        walk(regs.sp);
        PreVerdict::Execute
    }
    // Handlers may not ask for memory.
    *FRAMES.lock() = Vec::with_capacity(16);
    let calls = ["chain_a", "chain_b", "chain_c"]
        .map(|name| leak(Kretprobe::new().symbol(name).entry(remember)));
    let twice = leak(
        Kretprobe::new()
            .symbol("chain_c")
            .entry(remember)
            .handler(walk_at_return),
    );
    let inside = leak(Kprobe::new().symbol("chain_c").offset(4).pre(walk_before));
    PROBES.register_batch(&calls).unwrap();
    PROBES.register(twice).unwrap();
    PROBES.register(inside).unwrap();
    assert_eq!(chain_a(1), 13);
    assert_eq!(
        journal::take(),
        [3; 6],
        "four frames and then two, all borrowed, all known"
    );
    let frame = FRAMES.lock()[0].0;
    let task = task::current();
    assert_eq!(
        PROBES.return_address(task, frame, 0x1234),
        0x1234,
        "an ordinary one is as it is"
    );
    PROBES.unregister(inside).unwrap();
    PROBES.unregister(twice).unwrap();
    PROBES.unregister_batch(&calls).unwrap();
}

#[test]
fn a_return_costs_no_trap() {
    let _machine = boot();
    let traps = || {
        let cpu = cpu::counts();
        (cpu.breakpoints.load(Relaxed), cpu.debug_traps.load(Relaxed))
    };
    let call = || {
        Kretprobe::new()
            .symbol("add")
            .return_method(ReturnMethod::Asm)
            .handler(returned::<1, ()>)
    };
    let calls = [leak(call()), leak(call())];
    PROBES.register_batch(&calls).unwrap();
    for _ in 0..5 {
        let before = traps();
        assert_eq!(add(1, 2), 3);
        let after = traps();
        // That of the entry, if it is no jump, and of its step.
        assert_eq!(
            (after.0 - before.0, after.1 - before.1),
            ((!platform::jumps()).into(), stepping().into())
        );
        assert_eq!(journal::take(), [1, 1]);
    }
    PROBES.unregister_batch(&calls).unwrap();
}
