//! How probes come, go and are switched, alone and in batches, and that a refusal changes nothing.
//!
//! After each step the text is compared with what it has to be: a breakpoint or jump exactly while
//! an enabled probe is there and the knob is on. A probe that was refused or unregistered can be
//! registered again, and comes back without its past.

use probes::{Kprobe, Kretprobe, PreVerdict, ProbeError, PtRegs, kprobe::flags};

use super::{code::Code, targets::*, *};

const INT3: u8 = 0xcc;

#[test]
fn a_refused_probe_can_be_mended_and_registered() {
    let _machine = boot();
    let probe = leak(
        Kprobe::new()
            .at(address("step_by_step") + 2)
            .pre(pre::<1>)
            .disabled(),
    );
    refused(probe, "MidInstruction", 84);
    probe.set_addr(address("step_by_step") + 4);
    PROBES.register(probe).unwrap();
    assert_eq!(probe.flags(), flags::DISABLED);
    assert_eq!(list(), ["step_by_step+0x4 k 2"]);
    PROBES.unregister(probe).unwrap();
}

#[test]
fn a_registered_probe_cannot_be_registered_again() {
    let _machine = boot();
    let probe = leak(Kprobe::new().symbol("add").pre(pre::<1>));
    PROBES.register(probe).unwrap();
    refused(probe, "AlreadyRegistered", 22);
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [1], "it still fires");
    PROBES.unregister(probe).unwrap();

    let call = leak(Kretprobe::new().symbol("add").handler(returned::<2, ()>));
    PROBES.register(call).unwrap();
    refused(call, "AlreadyRegistered", 22);
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [2]);
    PROBES.unregister(call).unwrap();
}

/// More than are written between two waits for all CPUs.
#[test]
fn a_large_batch_is_armed_and_disarmed_to_the_last_probe() {
    let _machine = boot();
    let code: Vec<_> = (0..42).map(|_| Code::new(|_| vec![0x90; 100])).collect();
    let places = code.iter().flat_map(|code| code.start..code.start + 100);
    let batch: Vec<_> = places.map(|at| leak(Kprobe::new().at(at))).collect();
    let all_are = |byte| {
        let others = batch.iter().filter(|probe| byte_at(probe.addr()) != byte);
        others.count() == 0
    };
    PROBES.register_batch(&batch).unwrap();
    assert!(all_are(INT3));
    PROBES.set_enabled(false).unwrap();
    assert!(all_are(0x90));
    PROBES.set_enabled(true).unwrap();
    assert!(all_are(INT3));
    PROBES.unregister_batch(&batch).unwrap();
    assert!(code.iter().all(|code| {
        let mut bytes = code.start..code.start + 100;
        bytes.all(|at| byte_at(at) == 0x90)
    }));
}

#[test]
fn a_probe_can_be_registered_again_and_again() {
    let _machine = boot();
    let probes = [
        leak(Kprobe::new().symbol("step_by_step").offset(7).pre(pre::<1>)),
        leak(
            Kprobe::new()
                .at(address("step_by_step"))
                .offset(7)
                .pre(pre::<1>),
        ),
        leak(Kprobe::new().at(address("step_by_step") + 7).pre(pre::<1>)),
    ];
    for probe in probes {
        for round in 0..3 {
            PROBES.register(probe).unwrap();
            assert_eq!(list(), ["step_by_step+0x7 k 0"], "round {round}");
            assert_eq!((probe.hits(), probe.nmissed()), (0, 0));
            assert_eq!(step_by_step(1), 4);
            assert_eq!(journal::take(), [1]);
            assert_eq!(probe.hits(), 1);
            PROBES.disable(probe).unwrap();
            PROBES.unregister(probe).unwrap();
            assert_eq!(
                probe.addr(),
                address("step_by_step") + 7,
                "where it was can still be told"
            );
        }
    }
    let pad = leak(
        Kretprobe::<()>::new()
            .at(address("landed"))
            .handler(returned::<2, ()>),
    );
    for _ in 0..2 {
        PROBES.register(pad).unwrap();
        assert_eq!(landed(1), 2);
        PROBES.unregister(pad).unwrap();
    }
    assert_eq!(journal::take(), [2, 2]);
}

/// Nothing of an earlier life counts: misses, marks and neighbours.
#[test]
fn a_probe_comes_back_without_its_past() {
    let _machine = boot();
    fn call_again(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(add(3, 4));
        PreVerdict::Execute
    }
    // Misses, of a kprobe and of a return probe.
    let missed = leak(Kprobe::new().symbol("add").pre(call_again));
    let call = leak(
        Kretprobe::new()
            .symbol("recurse")
            .handler(returned::<1, ()>)
            .maxactive(1),
    );
    for _ in 0..2 {
        PROBES.register(missed).unwrap();
        PROBES.register(call).unwrap();
        assert_eq!((missed.hits(), missed.nmissed()), (0, 0));
        assert_eq!((call.hits(), call.nmissed()), (0, 0));
        assert_eq!((add(1, 2), recurse(3)), (3, 6));
        assert_eq!((missed.hits(), missed.nmissed()), (1, 1));
        assert_eq!((call.hits(), call.nmissed()), (1, 3));
        assert_eq!(journal::take(), [7, 1]);
        PROBES.unregister(call).unwrap();
        PROBES.unregister(missed).unwrap();
    }

    // Its neighbours in the list of an address.
    let three = [
        leak(Kprobe::new().at(address("add")).pre(pre::<1>)),
        leak(Kprobe::new().at(address("add")).pre(pre::<2>)),
        leak(Kprobe::new().at(address("add")).pre(pre::<3>)),
    ];
    PROBES.register_batch(&three).unwrap();
    PROBES.unregister(three[1]).unwrap();
    three[1].set_addr(address("neighbour"));
    PROBES.register(three[1]).unwrap();
    assert_eq!((add(1, 1), neighbour()), (2, 17));
    assert_eq!(journal::take(), [3, 1, 2]);
    PROBES.unregister_batch(&three).unwrap();

    // The mark of text that is gone.
    let code = Code::new(|_| vec![0x90, 0xc3]); // nop; ret
    let mover = leak(Kprobe::new().at(code.start).pre(pre::<4>));
    PROBES.register(mover).unwrap();
    PROBES.text_freed(code.start..code.start + 2);
    assert_eq!(mover.flags() & !OPTIMIZED, flags::GONE);
    PROBES.unregister(mover).unwrap();
    mover.set_addr(address("neighbour"));
    PROBES.register(mover).unwrap();
    assert_eq!(mover.flags() & !OPTIMIZED, 0);
    assert_eq!(list(), ["neighbour+0x0 k 0"]);
    assert_eq!(neighbour(), 17);
    assert_eq!(journal::take(), [4]);
    PROBES.unregister(mover).unwrap();
}

#[test]
fn a_thousand_probes_share_one_address_and_leave_one_by_one() {
    let _machine = boot();
    let slots = PROBES.slots_in_use();
    let probes: Vec<_> = (0..1000)
        .map(|_| leak(Kprobe::new().symbol("add").pre(pre::<1>)))
        .collect();
    for probe in &probes {
        PROBES.register(*probe).unwrap();
    }
    let each = if stepping() { 2 } else { 1 };
    assert_eq!(PROBES.slots_in_use(), slots + each, "they share a slot");
    assert_eq!(add(1, 1), 2);
    assert_eq!(journal::take().len(), 1000);
    for (n, probe) in probes.iter().enumerate() {
        PROBES.unregister(*probe).unwrap();
        if n % 97 == 0 {
            assert_eq!(add(1, 1), 2);
            assert_eq!(journal::take().len(), 999 - n);
        }
    }
    assert_eq!(byte_at(address("add")), 0x48, "the instruction is back");
}

#[test]
fn a_probe_without_handlers_arms_and_counts() {
    let _machine = boot();
    let probe = leak(Kprobe::new().symbol("add"));
    PROBES.register(probe).unwrap();
    assert_eq!(byte_at(address("add")), INT3);
    assert_eq!(add(20, 22), 42);
    assert_eq!((probe.hits(), probe.nmissed()), (1, 0));
    // A miss counts as well.
    fn call_add(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(add(20, 22));
        PreVerdict::Execute
    }
    let outer = leak(Kprobe::new().symbol("neighbour").pre(call_add));
    PROBES.register(outer).unwrap();
    assert_eq!(neighbour(), 17);
    assert_eq!(journal::take(), [42]);
    assert_eq!((probe.hits(), probe.nmissed()), (1, 1));
    PROBES.unregister(outer).unwrap();
    PROBES.unregister(probe).unwrap();
}

#[test]
fn text_is_armed_exactly_while_some_probe_there_is_enabled() {
    let _machine = boot();
    let text_byte = || byte_at(address("add"));
    let a = leak(Kprobe::new().symbol("add").pre(pre::<1>).disabled());
    PROBES.register(a).unwrap();
    assert_eq!(list(), ["add+0x0 k 2"]);
    assert_eq!(text_byte(), 0x48);
    add(1, 1);
    assert_eq!(journal::take(), []);

    PROBES.enable(a).unwrap();
    PROBES.enable(a).unwrap();
    assert_eq!(text_byte(), INT3);
    let b = leak(Kprobe::new().symbol("add").pre(pre::<2>).disabled());
    PROBES.register(b).unwrap();
    add(1, 1);
    assert_eq!(journal::take(), [1], "a disabled newcomer changes nothing");

    PROBES.disable(a).unwrap();
    PROBES.disable(a).unwrap();
    assert_eq!(text_byte(), 0x48, "all are disabled");
    let c = leak(Kprobe::new().symbol("add").pre(pre::<3>));
    PROBES.register(c).unwrap();
    assert_eq!(text_byte(), INT3, "an enabled newcomer arms again");
    add(1, 1);
    assert_eq!(journal::take(), [3]);
    PROBES.enable(b).unwrap();
    add(1, 1);
    assert_eq!(journal::take(), [3, 2]);
    PROBES.unregister(c).unwrap();
    PROBES.disable(b).unwrap();
    assert_eq!(text_byte(), 0x48);
    PROBES.enable(a).unwrap();
    PROBES.unregister(a).unwrap();
    assert_eq!(text_byte(), 0x48, "only a disabled one is left");
    PROBES.unregister(b).unwrap();
}

#[test]
fn enabling_needs_a_registered_probe() {
    let _machine = boot();
    let probe = leak(Kprobe::new().symbol("add"));
    for error in [PROBES.enable(probe), PROBES.disable(probe)] {
        assert_eq!(error.unwrap_err(), ProbeError::NotRegistered);
    }
    assert_eq!(ProbeError::NotRegistered.errno(), 22);
    PROBES.register(probe).unwrap();
    PROBES.unregister(probe).unwrap();
    assert_eq!(PROBES.enable(probe).unwrap_err(), ProbeError::NotRegistered);
}

#[test]
fn the_knob_takes_all_probes_out_and_puts_the_enabled_ones_back() {
    let _machine = boot();
    let text_bytes = || (byte_at(address("add")), byte_at(address("step_by_step")));
    let a = leak(Kprobe::new().symbol("add").pre(pre::<1>));
    let b = leak(
        Kprobe::new()
            .symbol("step_by_step")
            .pre(pre::<2>)
            .disabled(),
    );
    PROBES.register(a).unwrap();
    PROBES.register(b).unwrap();
    let before = list();

    PROBES.set_enabled(false).unwrap();
    assert!(!PROBES.enabled());
    assert_eq!(text_bytes(), (0x48, 0x55));
    assert_eq!(list(), before, "no probe's own state changes");
    let writes = text::stamp();
    PROBES.set_enabled(false).unwrap();
    assert_eq!(text::stamp(), writes, "off twice is off");
    add(1, 1);
    assert_eq!(journal::take(), []);

    // Registered while off: succeeds, and is armed later.
    let c = leak(Kprobe::new().symbol("neighbour").pre(pre::<3>));
    PROBES.register(c).unwrap();
    assert_eq!(neighbour(), 17);
    // Enabled and disabled while off: takes effect later.
    PROBES.enable(b).unwrap();
    PROBES.disable(a).unwrap();
    assert_eq!(text_bytes(), (0x48, 0x55));
    assert_eq!(journal::take(), []);

    PROBES.set_enabled(true).unwrap();
    assert_eq!(text_bytes(), (0x48, INT3));
    assert_eq!((add(1, 1), step_by_step(1), neighbour()), (2, 4, 17));
    assert_eq!(journal::take(), [2, 3]);
    PROBES.set_enabled(false).unwrap();
    PROBES.unregister_batch(&[a, b, c]).unwrap();
    PROBES.set_enabled(true).unwrap();
    assert_eq!(text_bytes(), (0x48, 0x55));
}

#[test]
fn a_batch_is_registered_whole_or_not_at_all() {
    let _machine = boot();
    let probe = |name, n: u32| leak(Kprobe::new().symbol(name).offset(n).pre(pre::<1>));
    assert_eq!(
        PROBES.register_batch::<Kprobe>(&[]).unwrap_err(),
        ProbeError::EmptyBatch
    );
    assert_eq!(ProbeError::EmptyBatch.errno(), 22);

    let good = [
        probe("add", 0),
        probe("step_by_step", 0),
        probe("step_by_step", 4),
    ];
    PROBES.register_batch(&good).unwrap();
    assert_eq!(list().len(), 3);
    PROBES.unregister_batch(&good).unwrap();

    // In the order of the array: the last one of an address is the newest there.
    let older = probe("add", 0);
    let newer = leak(Kprobe::new().symbol("add").pre(pre::<2>));
    for (batch, order) in [([older, newer], [2, 1]), ([newer, older], [1, 2])] {
        PROBES.register_batch(&batch).unwrap();
        add(1, 1);
        assert_eq!(journal::take(), order);
        PROBES.unregister_batch(&batch).unwrap();
    }

    let resident = probe("add", 0);
    PROBES.register(resident).unwrap();
    let disabled = leak(Kprobe::new().symbol("neighbour").pre(pre::<2>).disabled());
    let bad = probe("step_by_step", 2);
    let behind = leak(Kprobe::new().symbol("neighbour").pre(pre::<1>));
    let before = list();
    for _ in 0..2 {
        let error = PROBES
            .register_batch(&[good[0], good[1], disabled, bad, behind])
            .unwrap_err();
        assert_eq!(error.name(), "MidInstruction");
        assert_eq!(list(), before);
        assert!(!good[0].is_registered() && !behind.is_registered());
        let addresses = [good[0], good[1], disabled, bad, behind].map(Kprobe::addr);
        assert_eq!(addresses, [0; 5], "none was given");
        assert_eq!(
            disabled.flags(),
            flags::DISABLED,
            "as its owner has made it"
        );
        assert_eq!(byte_at(address("step_by_step")), 0x55);
        add(1, 1);
        assert_eq!(journal::take(), [1], "the resident is undisturbed");
    }

    let error = PROBES
        .register_batch(&[good[1], good[2], good[1]])
        .unwrap_err();
    assert_eq!(error.name(), "AlreadyRegistered");
    assert_eq!(list(), before);
    assert!(!good[1].is_registered());
    PROBES.unregister(resident).unwrap();
}

#[test]
fn a_batch_is_unregistered_with_one_wait_whatever_is_in_it() {
    let _machine = boot();
    let probes: Vec<_> = (0..1000)
        .map(|n| {
            let offset = STEP_BY_STEP[n % STEP_BY_STEP.len()];
            leak(Kprobe::new().symbol("step_by_step").offset(offset))
        })
        .collect();
    PROBES.register_batch(&probes).unwrap();
    let stranger = leak(Kprobe::new().at(address("add")));
    let mut all = probes.clone();
    all.push(stranger);
    all.push(probes[3]);
    let waits = cpu::waits_for_hits();
    PROBES.unregister_batch(&all).unwrap();
    // A kernel that leaves the waits to the crate does not count them.
    assert_eq!(cpu::waits_for_hits(), waits.map(|waits| waits + 1));
    assert_eq!(list(), [""; 0]);
    assert_eq!(stranger.addr(), 0, "a stranger only loses its address");
    PROBES.unregister_batch::<Kprobe>(&[]).unwrap();

    PROBES.unregister(probes[0]).unwrap();
    assert_eq!(probes[0].addr(), 0);
    let call = leak(Kretprobe::<u64>::new().symbol("add"));
    PROBES.unregister(call).unwrap();
    PROBES.register(call).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES.unregister(call).unwrap();
}

#[test]
fn nothing_can_be_changed_from_inside_a_handler() {
    let _machine = boot();
    static VICTIM: Kprobe = Kprobe::new().symbol("step_by_step");
    static PROBE: Kprobe = Kprobe::new().symbol("add").pre(before).post(after);
    static CALL: Kretprobe = Kretprobe::new()
        .symbol("chain_a")
        .entry(enter)
        .handler(leave);
    static MIRROR: probes::Jprobe = probes::Jprobe::new().symbol("tail_g").entry(mirror);
    fn meddle() {
        let results = [
            PROBES.register(&VICTIM),
            PROBES.unregister(&VICTIM),
            PROBES.enable(&PROBE),
            PROBES.disable(&PROBE),
            PROBES.set_enabled(false),
            PROBES.reap().map(|_| ()),
        ];
        for result in results {
            journal::note(
                result
                    .is_err_and(|error| error == ProbeError::AtomicContext)
                    .into(),
            );
        }
    }
    fn before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        meddle();
        PreVerdict::Execute
    }
    fn after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        meddle();
    }
    fn enter(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        meddle();
        EntryVerdict::Track
    }
    fn leave(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
        meddle();
    }
    probes::jprobe! {
        fn mirror(_a: u64) {
            meddle();
        }
    }
    PROBES.register(&PROBE).unwrap();
    PROBES.register(&CALL).unwrap();
    PROBES.register(&MIRROR).unwrap();
    assert_eq!(add(1, 1), 2);
    assert_eq!(journal::take(), [1; 2 * 6], "before and after");
    assert_eq!(chain_a(1), 13);
    assert_eq!(journal::take(), [1; 2 * 6], "at entry and return");
    assert_eq!(tail_g(4), 8);
    assert_eq!(journal::take(), [1; 6], "in a mirror");
    PROBES.unregister(&MIRROR).unwrap();
    PROBES.unregister(&CALL).unwrap();
    PROBES.unregister(&PROBE).unwrap();
    assert_eq!(ProbeError::AtomicContext.errno(), 16);
}

#[test]
fn kretprobes_want_a_function_entry_and_reasonable_sizes() {
    let _machine = boot();
    refused(
        leak(Kretprobe::<()>::new().symbol("step_by_step").offset(4)),
        "NotFunctionEntry",
        22,
    );
    refused(
        leak(Kretprobe::<()>::new().at(address("add") + 4)),
        "NotFunctionEntry",
        22,
    );
    refused(
        leak(Kretprobe::<()>::new().symbol("no_such_function")),
        "UnknownSymbol",
        2,
    );
    refused(
        leak(Kretprobe::<()>::new().symbol("add").at(address("add"))),
        "SymbolAndAddress",
        22,
    );
    // The kernel's switch of stacks has another name, and a test of its own.
    #[cfg(target_os = "linux")]
    refused(
        leak(Kretprobe::<()>::new().symbol("switch_stacks")),
        "Blacklisted",
        22,
    );

    #[derive(Clone, Copy)]
    struct Large<const N: usize>([u8; N]);
    impl<const N: usize> Default for Large<N> {
        fn default() -> Self {
            Self([0; N])
        }
    }
    refused(
        leak(Kretprobe::<Large<4097>>::new().symbol("add")),
        "DataTooLarge",
        7,
    );
    let large = leak(Kretprobe::<Large<4096>>::new().symbol("add"));
    PROBES.register(large).unwrap();
    assert_eq!(add(1, 1), 2);
    assert_eq!(large.hits(), 1);
    PROBES.unregister(large).unwrap();

    let default = (2 * cpu::possible() as i32).max(10);
    for (given, in_force) in [(0, default), (-5, default), (3, 3), (5000, 5000)] {
        let call = leak(Kretprobe::<()>::new().symbol("add").maxactive(given));
        PROBES.register(call).unwrap();
        assert_eq!(call.maxactive_in_force(), in_force);
        PROBES.unregister(call).unwrap();
    }
    let huge = leak(
        Kretprobe::<Large<4096>>::new()
            .symbol("add")
            .maxactive(i32::MAX),
    );
    refused(huge, "OutOfMemory", 12);
}

#[test]
fn freed_text_is_never_written_again() {
    let _machine = boot();
    let code = Code::new(|_| vec![0x8d, 0x47, 0x01, 0xc3]); // lea eax, [rdi + 1]; ret
    let probe = leak(Kprobe::new().at(code.start).pre(pre::<1>));
    let call = leak(Kretprobe::<()>::new().at(code.start));
    PROBES.register(probe).unwrap();
    PROBES.register(call).unwrap();
    assert_eq!(code.call(1, 0), 2);
    assert_eq!(journal::take(), [1]);

    PROBES.text_freed(code.start..code.start + 4);
    text::fill(code.start, &[0x5a; 4]);
    assert_eq!(probe.flags() & !OPTIMIZED, flags::GONE);
    assert_eq!(list().len(), 2);
    PROBES.for_each(|listed| assert!(!listed.armed, "freed text has no breakpoint"));
    let error = PROBES.enable(probe).unwrap_err();
    assert_eq!((error.name(), error.errno()), ("Gone", 22));
    PROBES.disable(probe).unwrap();
    PROBES.set_enabled(false).unwrap();
    PROBES.set_enabled(true).unwrap();
    PROBES.unregister(probe).unwrap();
    PROBES.unregister(call).unwrap();
    assert_eq!(text::read(code.start, 4), [0x5a; 4]);
    // The kernel's text of the boot is freed before any test begins.
    #[cfg(target_os = "linux")]
    {
        symbols::remove(code.start);
        symbols::add(probes::platform::Symbol {
            start: code.start,
            size: 4,
            text: probes::platform::Text::Freed,
            exported: true,
            entry: probes::insn::EntryFacts::UNKNOWN,
        });
        refused(leak(Kprobe::new().at(code.start)), "NoSymbolAt", 2);
    }
}

#[test]
fn nothing_is_registered_before_the_probes_are_initialised() {
    let _machine = boot();
    static FRESH: probes::Probes<platform::Kernel> = probes::Probes::new();
    let probe = leak(Kprobe::new().symbol("add").pre(pre::<1>));
    let error = FRESH.register(probe).unwrap_err();
    assert_eq!((error.name(), error.errno()), ("NotReady", 16), "{error}");
    assert_eq!((probe.is_registered(), probe.addr()), (false, 0));
    PROBES.register(probe).unwrap();
    PROBES.unregister(probe).unwrap();
}
