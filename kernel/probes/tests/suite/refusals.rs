//! Which of several mistakes is told, and what else a refusal says.
//!
//! A registration with two mistakes tells the one that is looked for first, and mistakes before a
//! want of memory. Contexts in which nothing can be changed are tried with every call that changes
//! something.

#[cfg(target_os = "linux")]
use probes::platform::{Symbol, Text};
use probes::{Jprobe, Kprobe, Kretprobe, ProbeError};

use super::{code::Code, targets::*, *};
use crate::platform::{allocator::with_room_for, log};

probes::jprobe! {
    fn arguments(_a: u64, _b: u64) {}
}

/// Data of a call that is too large.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "only its size counts")]
struct Large([u64; 600]);

impl Default for Large {
    fn default() -> Self {
        Self([0; 600])
    }
}

/// Has `text` say of the function `name` what kind of memory it lies in, while `work` runs.
#[cfg(target_os = "linux")]
fn with_text(name: &str, size: u64, text: Text, work: impl FnOnce()) {
    let start = address(name);
    symbols::add(Symbol {
        start,
        size,
        text,
        exported: true,
        entry: probes::insn::EntryFacts::UNKNOWN,
    });
    work();
    symbols::remove(start);
}

// Each pair of mistakes, in the order in which they are looked for.
#[test]
fn the_first_of_several_mistakes_is_told() {
    let _machine = boot();
    let both = Kretprobe::<Large>::new().symbol("no_such_function").at(8);
    refused(leak(both), "SymbolAndAddress", 22);
    let unknown = Jprobe::new().symbol("no_such_function").offset(1);
    refused(leak(unknown), "UnknownSymbol", 2);

    // The kind of memory is judged first, then whether it may be probed, then its end. The
    // kernel's symbols say what they say.
    #[cfg(target_os = "linux")]
    {
        with_text("blacklisted", 2, Text::No, || {
            refused(leak(Kprobe::new().symbol("blacklisted")), "NotText", 22);
        });
        with_text("blacklisted", 2, Text::Freed, || {
            refused(leak(Kprobe::new().symbol("blacklisted")), "Blacklisted", 22);
        });
        with_text("step_by_step", 30, Text::Freed, || {
            let inside = Kprobe::new().symbol("step_by_step").offset(2);
            refused(leak(inside), "NoSymbolAt", 2);
            let call = Kretprobe::<Large>::new().symbol("step_by_step").offset(2);
            refused(leak(call), "NoSymbolAt", 2);
        });
    }
    let (blacklisted, _) = platform::BLACKLISTED;
    let in_blacklisted = Kretprobe::<Large>::new().symbol(blacklisted).offset(1);
    refused(leak(in_blacklisted), "Blacklisted", 22);

    // The function, before what is asked of it.
    let call = Kretprobe::<Large>::new().symbol("step_by_step").offset(2);
    refused(leak(call), "NotFunctionEntry", 22);
    let jprobe = Jprobe::new().symbol("step_by_step").offset(2);
    refused(leak(jprobe), "NotFunctionEntry", 22);

    // The boundary, before the instruction.
    let trap = Code::new(|_| vec![0xcd, 0x80, 0xc3]);
    refused(leak(Kprobe::new().at(trap.start + 1)), "MidInstruction", 84);
    let behind = Code::new(|_| vec![0x06, 0xcc]);
    refused(leak(Kprobe::new().at(behind.start + 1)), "Undecodable", 84);
}

// Memory is asked for last.
#[test]
fn mistakes_are_told_even_without_memory() {
    let _machine = boot();
    let registered = leak(Kprobe::new().symbol("add"));
    PROBES.register(registered).unwrap();
    // The first time it is logged, and this machine's log needs memory.
    refused(registered, "AlreadyRegistered", 22);
    let too_large = leak(Kretprobe::<Large>::new().at(address("step_by_step")));
    let blacklisted = leak(Kprobe::new().at(address(platform::BLACKLISTED.0)));
    let far = Code::new(|_| vec![0xcb]);
    let refused_instruction = leak(Kprobe::new().at(far.start));
    let errors = [
        with_room_for(0, || PROBES.register(registered).unwrap_err().name()).0,
        with_room_for(0, || PROBES.register(too_large).unwrap_err().name()).0,
        with_room_for(0, || PROBES.register(blacklisted).unwrap_err().name()).0,
        with_room_for(1, || {
            PROBES.register(refused_instruction).unwrap_err().name()
        })
        .0,
    ];
    assert_eq!(
        errors,
        [
            "AlreadyRegistered",
            "DataTooLarge",
            "Blacklisted",
            "far-transfer"
        ]
    );
    PROBES.unregister(registered).unwrap();
}

#[test]
fn encodings_that_are_not_known_are_told_from_bytes_that_are_none() {
    let _machine = boot();
    let table: &[(&[u8], i32)] = &[
        (&[0xd5, 0x00, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8], 95),
        (&[0x62, 0xf4, 0x7c, 0x08, 0x01, 0xc0], 95),
        (&[0x06], 84),
        #[cfg(target_os = "linux")]
        (&[0x48, 0x8d], 84), // cut off by the end of the function
    ];
    for (bytes, errno) in table {
        let (bytes, errno) = (*bytes, *errno);
        let code = Code::new(|_| [&[0x90], bytes].concat());
        refused(leak(Kprobe::new().at(code.start + 1)), "Undecodable", errno);
        let before = leak(Kprobe::new().at(code.start));
        PROBES.register(before).unwrap();
        PROBES.unregister(before).unwrap();
    }
    // Nothing is after a landing pad that is all of its function. A place in the kernel is longer.
    #[cfg(target_os = "linux")]
    {
        let pad = Code::new(|_| vec![0xf3, 0x0f, 0x1e, 0xfa]);
        refused(leak(Kprobe::new().at(pad.start)), "Undecodable", 84);
    }
}

#[test]
fn a_second_registration_is_logged_once() {
    let _machine = boot();
    let probe = leak(Kprobe::new().symbol("add"));
    PROBES.register(probe).unwrap();
    for _ in 0..3 {
        refused(probe, "AlreadyRegistered", 22);
    }
    let place = format!("{:#x}", address("add"));
    let lines = log();
    let about = lines.iter().filter(|line| line.contains(&place));
    assert_eq!(about.count(), 1, "{lines:?}");
    PROBES.unregister(probe).unwrap();
}

// In an interrupt nothing can be changed, and nothing is.
#[test]
fn nothing_can_be_changed_from_an_interrupt() {
    let _machine = boot();
    static REGISTERED: Kprobe = Kprobe::new().symbol("add");
    static OTHER: Kretprobe = Kretprobe::new().symbol("add");
    traps::on_interrupt(|_, _| {
        let results = [
            PROBES.register(&OTHER),
            PROBES.register_batch(&[&OTHER]),
            PROBES.unregister(&REGISTERED),
            PROBES.unregister_batch(&[&REGISTERED]),
            PROBES.enable(&REGISTERED),
            PROBES.disable(&REGISTERED),
            PROBES.set_enabled(false),
        ];
        for result in results {
            journal::note((result == Err(ProbeError::AtomicContext)).into());
        }
        true
    });
    PROBES.register(&REGISTERED).unwrap();
    let before = list();
    cpu::interrupt();
    assert_eq!(journal::take(), [1; 7]);
    assert_eq!(list(), before);
    PROBES.unregister(&REGISTERED).unwrap();
}

#[test]
fn a_disabling_does_not_wait_for_handlers_that_run() {
    let _machine = boot();
    fn disabled_meanwhile<T: Probe + Send>(probe: &'static T) {
        PROBES.register(probe).unwrap();
        cpu::scope(|scope| {
            waiting_handlers::enter(scope);
            // The handler goes on only after the call has returned.
            PROBES.disable(probe).unwrap();
            journal::note(0);
            waiting_handlers::let_go();
        });
        assert_eq!(journal::take(), [0, 1]);
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), []);
        PROBES.unregister(probe).unwrap();
    }
    // A text that changes under a handler would wait for the trap, not for the handler: so another
    // probe stays enabled where handlers run in a trap. So would a jump that goes, as its detour is
    // freed when no CPU is in it.
    let stays = leak(Kprobe::new().symbol("add"));
    let stays_from_the_start = returning_by_trap() || platform::jumps();
    if stays_from_the_start {
        PROBES.register(stays).unwrap();
    }
    disabled_meanwhile(leak(
        Kretprobe::new()
            .symbol("add")
            .handler(waiting_handlers::returned),
    ));
    if !stays_from_the_start {
        PROBES.register(stays).unwrap();
    }
    disabled_meanwhile(leak(Kprobe::new().symbol("add").pre(waiting_handlers::pre)));
    PROBES.unregister(stays).unwrap();
}

#[test]
fn a_kretprobe_may_have_an_entry_handler_alone() {
    let _machine = boot();
    let call = leak(Kretprobe::new().symbol("add").entry(entry::<1, ()>));
    PROBES.register(call).unwrap();
    for n in 0..3 {
        assert_eq!(add(n, n), 2 * n);
    }
    assert_eq!(journal::take(), [1; 3]);
    assert_eq!((call.hits(), call.nmissed()), (3, 0));
    PROBES.unregister(call).unwrap();
}

/// An address after all symbols, by an offset: the function is named, with its size.
#[test]
fn an_offset_that_leads_out_of_all_symbols_is_told_with_its_function() {
    let _machine = boot();
    let probe = leak(Kprobe::new().symbol("add").offset(1 << 30));
    let error = refused(probe, "OffsetTooLarge", 2);
    let ProbeError::OffsetTooLarge { name, offset, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((name.as_str(), offset), ("add", 1 << 30));
}

/// Original text is that of one symbol of the kernel's code, from its start to its end.
#[cfg(target_os = "linux")]
#[test]
fn only_text_of_one_symbol_has_an_original() {
    let _machine = boot();
    let start = address("step_by_step");
    for (text, has_original) in [
        (Text::Kernel, true),
        (Text::Init, true),
        (Text::Freed, false),
        (Text::No, false),
    ] {
        with_text("step_by_step", 30, text, || {
            let original = PROBES.original_text(start..start + 30);
            assert_eq!(original.is_ok(), has_original, "{text:?}");
            let refused = Err(ProbeError::NoSymbolAt { addr: start });
            assert_eq!(PROBES.original_text(start..start + 31), refused);
        });
    }
}

/// A handler may lie in text of the boot, which its jprobe may be, too.
#[cfg(target_os = "linux")]
#[test]
fn a_jprobes_handler_may_be_a_function_of_the_boot() {
    let _machine = boot();
    let jprobe = leak(Jprobe::new().symbol("add").entry(arguments));
    with_text("step_by_step", 30, Text::Init, || {
        let start = address("step_by_step") as *const ();
        // SAFETY: it is not called.
        let entry = unsafe { probes::JprobeEntry::new(start) };
        let jprobe = leak(Jprobe::new().symbol("add").entry(entry));
        PROBES.register(jprobe).unwrap();
        PROBES.unregister(jprobe).unwrap();
    });
    PROBES.register(jprobe).unwrap();
    PROBES.unregister(jprobe).unwrap();
}
