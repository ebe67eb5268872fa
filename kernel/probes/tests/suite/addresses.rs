//! Which address a probe gets, and which addresses and instructions are refused.
//!
//! A place can be given as a symbol, an address and an offset; whatever leads into no text, into
//! the middle of an instruction, or to one that cannot run elsewhere is an error with its own name.
//! Every byte of some functions is tried, also while others of them are probed.

use probes::{Jprobe, Kprobe, Kretprobe, PreVerdict, ProbeError, PtRegs};

use super::{
    code::{Bench, Code, End, Registers},
    targets::*,
    *,
};

#[test]
fn symbol_and_address_together_are_refused() {
    let machine = boot();
    let both = leak(Kprobe::new().symbol("add").at(address("add")));
    refused(both, "SymbolAndAddress", 22);
    // The first mistake is the one that is told.
    let unknown = leak(Kprobe::new().symbol("no_such_function").at(address("add")));
    refused(unknown, "SymbolAndAddress", 22);
    drop(machine);
}

#[test]
fn a_probe_without_a_target_is_refused() {
    let _machine = boot();
    refused(leak(Kprobe::new()), "NoTarget", 22);
    refused(leak(Kprobe::new().offset(4)), "NoTarget", 22);
    refused(leak(Kretprobe::<()>::new()), "NoTarget", 22);
    refused(leak(Jprobe::new()), "NoTarget", 22);
}

#[test]
fn an_unknown_symbol_is_refused() {
    let _machine = boot();
    let error = refused(
        leak(Kprobe::new().symbol("no_such_function")),
        "UnknownSymbol",
        2,
    );
    assert!(error.to_string().contains("no_such_function"));
}

#[test]
fn an_address_outside_every_symbol_is_refused() {
    let _machine = boot();
    let on_heap = Box::new(0x90u8);
    let on_stack = 0x90u8;
    for addr in [
        core::ptr::from_ref(&*on_heap).addr() as u64,
        core::ptr::from_ref(&on_stack).addr() as u64,
        1,
        0x1000,
        0xffff_ffff_ffff_fff0,
    ] {
        refused(leak(Kprobe::new().at(addr)), "NoSymbolAt", 2);
    }
    no_symbol_makes_text_of_slots();
}

#[cfg(not(target_os = "linux"))]
fn no_symbol_makes_text_of_slots() {}

/// The kernel's symbols are its own, so only the process can say so.
#[cfg(target_os = "linux")]
fn no_symbol_makes_text_of_slots() {
    let slots = text::slots();
    symbols::add(probes::platform::Symbol {
        start: slots.start,
        size: 0,
        text: probes::platform::Text::Kernel,
        exported: true,
        entry: probes::insn::EntryFacts::UNKNOWN,
    });
    refused(leak(Kprobe::new().at(slots.start)), "NotText", 22);
    symbols::remove(slots.start);
}

#[test]
fn data_is_refused() {
    let _machine = boot();
    #[unsafe(no_mangle)]
    static SOME_DATA: [u8; 16] = [0x90; 16];
    assert_eq!(core::hint::black_box(&SOME_DATA)[0], 0x90);
    refused(leak(Kprobe::new().symbol("SOME_DATA")), "NotText", 22);
    refused(
        leak(Kprobe::new().at(address("SOME_DATA") + 3)),
        "NotText",
        22,
    );
}

#[test]
fn offsets_count_from_symbols_and_addresses_alike() {
    let machine = boot();
    let by_symbol = leak(Kprobe::new().symbol("step_by_step").offset(4).pre(pre::<1>));
    let by_address = leak(
        Kprobe::new()
            .at(address("step_by_step"))
            .offset(4)
            .pre(pre::<2>),
    );
    let absolute = leak(Kprobe::new().at(address("step_by_step") + 4).pre(pre::<3>));
    for probe in [by_symbol, by_address, absolute] {
        PROBES.register(probe).unwrap();
        assert_eq!(probe.addr(), address("step_by_step") + 4);
    }
    assert_eq!(list(), vec!["step_by_step+0x4 k 0"; 3]);
    assert_eq!(step_by_step(5), 16);
    assert_eq!(journal::take(), [3, 2, 1]);
    PROBES
        .unregister_batch(&[by_symbol, by_address, absolute])
        .unwrap();
    drop(machine);
}

#[test]
fn an_offset_past_the_symbol_belongs_to_the_next_one() {
    let _machine = boot();
    let probe = leak(
        Kprobe::new()
            .symbol("sixteen_bytes")
            .offset(16)
            .pre(pre::<1>),
    );
    PROBES.register(probe).unwrap();
    assert_eq!(list(), ["neighbour+0x0 k 0"]);
    assert_eq!((sixteen_bytes(), neighbour()), (16, 17));
    assert_eq!(journal::take(), [1]);
    PROBES.unregister(probe).unwrap();
    // All later checks look at the neighbour, too.
    let inside = leak(Kprobe::new().symbol("sixteen_bytes").offset(17));
    refused(inside, "MidInstruction", 84);
    let its_entry = leak(Kretprobe::<()>::new().symbol("sixteen_bytes").offset(16));
    PROBES.register(its_entry).unwrap();
    PROBES.unregister(its_entry).unwrap();
}

#[test]
fn the_entry_of_a_function_is_behind_its_landing_pad() {
    let _machine = boot();
    type Function = extern "C" fn(u64) -> u64;
    for (name, function) in [("landed", landed as Function), ("sealed", sealed)] {
        let pad = text::read(address(name), 4);
        for offset in [0, 4] {
            let probe = leak(Kprobe::new().symbol(name).offset(offset).pre(pre::<1>));
            PROBES.register(probe).unwrap();
            assert_eq!(list(), [format!("{name}+0x4 k 0")]);
            assert_eq!(text::read(address(name), 4), pad, "the pad stays");
            assert_eq!(function(1), 2);
            assert_eq!(journal::take(), [1]);
            PROBES.unregister(probe).unwrap();

            let call = leak(
                Kretprobe::new()
                    .symbol(name)
                    .offset(offset)
                    .handler(returned::<2, ()>),
            );
            PROBES.register(call).unwrap();
            assert_eq!(function(1), 2);
            assert_eq!(journal::take(), [2]);
            PROBES.unregister(call).unwrap();
        }
        for offset in [1, 2, 3] {
            refused(
                leak(Kprobe::new().symbol(name).offset(offset)),
                "MidInstruction",
                84,
            );
        }
    }
}

#[test]
fn blacklisted_functions_are_refused_at_every_byte() {
    let _machine = boot();
    let (blacklisted, reason) = platform::BLACKLISTED;
    for name in [
        blacklisted,
        "kretprobe_trampoline",
        "kprobe_post_stub",
        "jprobe_return",
    ] {
        // Also off an instruction's start: the first check tells.
        for offset in [0, 1] {
            refused(
                leak(Kprobe::new().symbol(name).offset(offset)),
                "Blacklisted",
                22,
            );
        }
    }
    let error = refused(leak(Kprobe::new().symbol(blacklisted)), "Blacklisted", 22);
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn instructions_that_cannot_run_elsewhere_are_refused() {
    let _machine = boot();
    let table: &[(&[u8], &str, i32)] = &[
        (&[0xcc], "breakpoint", 84),
        (&[0xcd, 0x80], "software-interrupt", 84),
        (&[0xf1], "software-interrupt", 84),
        (&[0x0f, 0x0b], "undefined", 84),
        (&[0x0f, 0xff, 0xc0], "undefined", 84),
        (&[0x0f, 0xb9, 0xc0], "undefined", 84),
        (&[0x0f, 0x0b, b'x', b'e', b'n'], "forced-emulation", 22),
        (&[0x0f, 0x0b, b'k', b'v', b'm'], "forced-emulation", 22),
        (&[0x8e, 0xd0], "stack-segment-load", 22),
        (&[0xcb], "far-transfer", 95),
        (&[0xca, 8, 0], "far-transfer", 95),
        (&[0xff, 0x1f], "far-transfer", 95),
        (&[0xff, 0x2f], "far-transfer", 95),
        (&[0xcf], "interrupt-return", 95),
        (&[0x48, 0xcf], "interrupt-return", 95),
        (&[0xf4], "wait", 95),
        (&[0x0f, 0x01, 0xc9], "wait", 95),
        (&[0x0f, 0x05], "system-call", 95),
        (&[0x0f, 0x07], "system-call", 95),
        (&[0x0f, 0x34], "system-call", 95),
        (&[0x0f, 0x35], "system-call", 95),
        (&[0x0f, 0x01, 0xf8], "gs-base", 95),
        (&[0x8e, 0xe8], "gs-base", 95),
        (&[0xc7, 0xf8, 0, 0, 0, 0], "transaction", 95),
        (&[0x0f, 0x01, 0xc2], "vm-entry", 95),
        (&[0x0f, 0xaa], "smm-return", 95),
        (&[0x0f, 0x22, 0xd8], "control-register", 95),
        (&[0x0f, 0x01, 0x10], "descriptor-table", 95),
        (&[0x66, 0xe9, 0, 0, 0, 0], "operand-size-branch", 95),
        (&[0x66, 0xc3], "operand-size-branch", 95),
        (&[0x66, 0x74, 0], "operand-size-branch", 95),
    ];
    for (bytes, name, errno) in table {
        let code = Code::new(|_| [bytes, &[0x90; 8][..]].concat());
        refused(leak(Kprobe::new().at(code.start)), name, *errno);
    }
}

#[test]
fn a_write_of_a_model_specific_register_takes_no_post_handler() {
    let _machine = boot();
    // wrmsr, wrmsrns, wrmsrlist
    for bytes in [
        &[0x0f, 0x30][..],
        &[0x0f, 0x01, 0xc6],
        &[0xf3, 0x0f, 0x01, 0xc6],
    ] {
        let code = Code::new(|_| [bytes, &[0x90; 8][..]].concat());
        let plain = leak(Kprobe::new().at(code.start));
        PROBES.register(plain).unwrap();
        let post = || leak(Kprobe::new().at(code.start).post(|_, _, _| {}));
        refused(post(), "msr-write", 95);
        PROBES.unregister(plain).unwrap();
        refused(post(), "msr-write", 95);
    }
    // rdmsr
    let code = Code::new(|_| vec![0x0f, 0x32, 0xc3]);
    let post = leak(Kprobe::new().at(code.start).post(|_, _, _| {}));
    PROBES.register(post).unwrap();
    PROBES.unregister(post).unwrap();
}

#[test]
fn an_sti_whose_shadow_matters_is_refused() {
    let _machine = boot();
    for follower in [&[0xf4][..], &[0xc3], &[0x0f, 0x01, 0xc9], &[0x48, 0xcf]] {
        let code = Code::new(|_| [&[0xfb], follower].concat());
        refused(leak(Kprobe::new().at(code.start)), "interrupt-shadow", 95);
    }
    let code = Code::new(|_| vec![0xfb, 0x90, 0xc3]);
    let harmless = leak(Kprobe::new().at(code.start));
    PROBES.register(harmless).unwrap();
    PROBES.unregister(harmless).unwrap();
}

#[test]
fn only_instruction_starts_are_accepted_whatever_is_probed_already() {
    let _machine = boot();
    let at = |offset| leak(Kprobe::new().symbol("step_by_step").offset(offset));
    for order in [0u32, 13, 27] {
        let mut registered = Vec::new();
        for n in 0..STEP_BY_STEP_BYTES {
            let offset = (n * 7 + order) % STEP_BY_STEP_BYTES;
            if STEP_BY_STEP.contains(&offset) {
                let probe = at(offset);
                PROBES.register(probe).unwrap();
                registered.push(probe);
            } else {
                let nearest = STEP_BY_STEP
                    .iter()
                    .rev()
                    .find(|start| **start < offset)
                    .unwrap();
                let error = refused(at(offset), "MidInstruction", 84);
                let ProbeError::MidInstruction { start, .. } = error else {
                    unreachable!()
                };
                assert_eq!(start, address("step_by_step") + u64::from(*nearest));
            }
        }
        assert_eq!(registered.len(), STEP_BY_STEP.len());
        assert_eq!(step_by_step(33), 100);
        assert!(registered.iter().all(|probe| probe.hits() == 1));
        PROBES.set_enabled(false).unwrap();
        for offset in 0..STEP_BY_STEP_BYTES {
            if !STEP_BY_STEP.contains(&offset) {
                refused(at(offset), "MidInstruction", 84);
            }
        }
        PROBES.set_enabled(true).unwrap();
        PROBES.unregister_batch(&registered).unwrap();
    }
}

#[test]
fn padding_inside_a_function_does_not_hide_what_follows() {
    let _machine = boot();
    refused(
        leak(Kprobe::new().symbol("padded").offset(12)),
        "breakpoint",
        84,
    );
    let behind = leak(Kprobe::new().symbol("padded").offset(14).pre(pre::<1>));
    PROBES.register(behind).unwrap();
    refused(
        leak(Kprobe::new().symbol("padded").offset(15)),
        "MidInstruction",
        84,
    );
    assert_eq!((padded(1), padded(0)), (1, 2));
    assert_eq!(journal::take(), [1]);
    PROBES.unregister(behind).unwrap();
}

#[test]
fn nothing_behind_undecodable_bytes_is_accepted() {
    let _machine = boot();
    for offset in [2, 3, 4] {
        refused(
            leak(Kprobe::new().symbol("undecodable").offset(offset)),
            "Undecodable",
            84,
        );
    }
    let before = leak(Kprobe::new().symbol("undecodable").offset(1).pre(pre::<1>));
    PROBES.register(before).unwrap();
    undecodable();
    PROBES.unregister(before).unwrap();
    assert_eq!(journal::take(), [1]);
}

// In the kernel no function ends where its mapping does.
#[cfg(target_os = "linux")]
#[test]
fn the_last_instruction_of_the_mapping_can_be_probed() {
    let _machine = boot();
    let code = Code::at_the_end(&[0x8d, 0x47, 0x05, 0xc3]); // lea eax, [rdi + 5]; ret
    for offset in [0, 3] {
        let probe = leak(Kprobe::new().at(code.start + offset).pre(pre::<1>));
        PROBES.register(probe).unwrap();
        assert_eq!(code.call(37, 0), 42);
        PROBES.unregister(probe).unwrap();
    }
    assert_eq!(journal::take(), [1, 1]);
}

// The text about an address in a slot names the slot's start, the offset, and by both the address.
// Only the process lets a test look at every place where a slot can be.
#[cfg(target_os = "linux")]
#[test]
fn each_address_in_a_slot_is_told_with_the_slots_start() {
    use probes::hit::Displaced;

    let _machine = boot();
    let probe = leak(Kprobe::new().symbol("add").pre(pre::<1>).post(post::<2>));
    PROBES.register(probe).unwrap();
    let mut starts = Vec::new();
    for ip in text::slots() {
        if PROBES.original_ip(ip) != probe.addr() {
            continue;
        }
        let Some(Displaced::Slot { start, offset }) = PROBES.displaced(ip) else {
            panic!("{ip:#x} is in a slot of a probe that no jump serves");
        };
        assert_eq!(start + offset as u64, ip);
        assert_eq!(PROBES.original_ip(start), probe.addr());
        if offset == 0 {
            starts.push(start);
        }
        assert_eq!(starts.last(), Some(&start));
    }
    // The displaced instruction, and the one before a post handler.
    assert!(starts.len() >= 2, "{starts:x?}");
    assert_eq!(PROBES.displaced(probe.addr()), None);
    PROBES.unregister(probe).unwrap();
}

// A jump is longer than a short function. It takes padding after the function, which no symbol
// owns.
#[test]
fn a_jump_may_take_the_padding_behind_a_function() {
    let _machine = boot();
    // Three bytes, and breakpoints up to the next function.
    assert_eq!(PROBES.allows_jump(address("current_flags")), Ok(()));
}

// Where code stands in a slot: at the probed instruction, with the stack as without the probe.
#[cfg(target_os = "linux")]
#[test]
fn a_position_in_a_slot_is_told_with_the_stack_of_the_probed_code() {
    const SP: u64 = 0x7000;
    let _machine = boot();
    let code = Code::with_exit(&[0xff, 0xd0]); // call rax: its slot pushes the return address
    let probe = leak(Kprobe::new().at(code.start).pre(pre::<1>));
    PROBES.register(probe).unwrap();
    let positions: Vec<_> = text::slots()
        .filter(|ip| PROBES.original_ip(*ip) == code.start)
        .map(|ip| PROBES.original_position(ip, SP, |_| None))
        .collect();
    assert!(positions.iter().all(|(ip, _)| *ip == code.start));
    let count = |sp| positions.iter().filter(|(_, at)| *at == sp).count();
    let (before, behind) = (count(SP), count(SP + 8));
    assert_eq!(before + behind, positions.len());
    assert!(before > 0, "the push is not done");
    // The stepped copy is the call itself.
    assert!(behind > 0 || stepping(), "the push is done");
    assert_eq!(
        PROBES.original_position(code.start, SP, |_| None),
        (code.start, SP)
    );
    PROBES.unregister(probe).unwrap();
}

// A probe that is not on an instruction of its own function's flow still runs it right.
#[test]
fn every_instruction_of_a_function_can_be_probed_at_once() {
    let _machine = boot();
    let probes: Vec<_> = on_each_step()
        .map(|probe| leak(probe.pre(pre::<1>).post(post::<2>)))
        .collect();
    PROBES.register_batch(&probes).unwrap();
    assert_eq!(step_by_step(33), 100);
    assert_eq!(journal::take(), [1, 2].repeat(STEP_BY_STEP.len()));
    let mut bench = Bench::new();
    let code = Code::with_exit(&[]);
    assert_eq!(
        bench.run(code.start, Registers::default()).end,
        End::Exit(1)
    );
    PROBES.unregister_batch(&probes).unwrap();
}

/// Branches to probed instructions, their own ones included, lead to hits.
#[test]
fn what_branches_to_a_probed_instruction_hits_it() {
    const ZF: u64 = 1 << 6;
    /// Has a `jnz` branch twice and go on then.
    fn branch_twice(probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        regs.flags = regs.flags & !ZF | if probe.hits() < 3 { 0 } else { ZF };
        PreVerdict::Execute
    }
    let _machine = boot();
    #[rustfmt::skip]
    let code = Code::new(|_| vec![
        0x31, 0xc0, // xor eax, eax
        0xff, 0xc0, // 2: inc eax
        0xff, 0xcf, // dec edi
        0x75, 0xfa, // jnz 2
        0x89, 0xf1, // mov ecx, esi
        0xe2, 0xfe, // 10: loop 10
        0x75, 0xfe, // 12: jnz 12
        0xc3,
    ]);
    for has_post in [false, true] {
        let probes = [2, 6, 10, 12, 14].map(|offset| {
            let probe = Kprobe::new().at(code.start + offset);
            let probe = match offset {
                12 => probe.pre(branch_twice),
                _ => probe,
            };
            leak(if has_post {
                probe.post(post::<2>)
            } else {
                probe
            })
        });
        PROBES.register_batch(&probes).unwrap();
        assert_eq!(code.call(4, 5), 4);
        assert_eq!(
            probes.map(Kprobe::hits),
            [4, 4, 5, 3, 1],
            "post: {has_post}"
        );
        let posts = if has_post { 17 } else { 0 };
        assert_eq!(journal::take(), [2].repeat(posts));
        PROBES.unregister_batch(&probes).unwrap();
    }
}
