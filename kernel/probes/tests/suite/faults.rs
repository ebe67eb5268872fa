//! Faults: in the displaced instruction, and in handlers.
//!
//! A fault shows at the probed address, as without a probe, and goes to the fault handlers of that
//! place's probes first. A fault in a handler goes to the handler's own probe alone. What none of
//! them takes is the kernel's. Several addresses fault in different ways: not mapped, and not
//! canonical.

use probes::{FaultVerdict, Kprobe, PreVerdict, PtRegs};

use super::flags::{IF, TF};
use super::{
    code::{self, Bench, Code, End, Outcome, Registers},
    targets::*,
    *,
};
use crate::platform::traps::{PAGE_FAULT, PROTECTION};

/// An address at which nothing is mapped.
const NOWHERE: u64 = 0x10;
/// An address that no page table can map.
const NON_CANONICAL: u64 = 0x8000_0000_0000_0000;

/// An address that page tables with four levels cannot map, and those with five can.
const HALFWAY: u64 = 0x8000_0000_0000;

/// Notes the vector `v` as 100 × `N` + v and leaves the fault to the kernel.
fn fault<const N: u64>(_: &Kprobe, _: &mut PtRegs, vector: u8) -> FaultVerdict {
    journal::note(N * 100 + u64::from(vector));
    FaultVerdict::Unhandled
}

#[test]
fn a_fault_in_the_instruction_is_seen_at_its_own_address() {
    let _machine = boot();
    static SEEN: Mutex<PtRegs> = Mutex::new(PtRegs::new());
    fn see(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
        *SEEN.lock() = *regs;
        journal::note(vector.into());
        FaultVerdict::Unhandled
    }
    let mut bench = Bench::new();
    // Instruction, rdi, vector.
    let table: &[(&[u8], u64, u8)] = &[
        (&[0x48, 0x8b, 0x07], NOWHERE, PAGE_FAULT), // mov rax, [rdi]
        (&[0x48, 0x89, 0x07], NOWHERE, PAGE_FAULT), // mov [rdi], rax
        (&[0x48, 0x8b, 0x07], NON_CANONICAL, PROTECTION), // mov rax, [rdi]
        (&[0x48, 0xf7, 0xf7], 0, 0),                // div rdi
        (&[0xff, 0x17], NOWHERE, PAGE_FAULT),       // call [rdi]
        (&[0xff, 0x17], NON_CANONICAL, PROTECTION), // call [rdi]
        (&[0xff, 0x27], NOWHERE, PAGE_FAULT),       // jmp [rdi]
        (&[0xff, 0x37], NOWHERE, PAGE_FAULT),       // push [rdi]
        (&[0x8f, 0x07], NOWHERE, PAGE_FAULT),       // pop [rdi]
        (&[0xff, 0xd7], NON_CANONICAL, PROTECTION), // call rdi
        (&[0xff, 0xe7], NON_CANONICAL, PROTECTION), // jmp rdi
        #[cfg(target_os = "linux")] // where it is not allowed
        (&[0xfa], 0, PROTECTION), // cli
    ];
    for &(bytes, di, vector) in table {
        let code = Code::with_exit(bytes);
        let registers = Registers {
            di,
            cx: 0xc1,
            flags: flags::PLAIN | flags::STATUS,
            ..Registers::default()
        };
        let bare = bench.run(code.start, registers);
        // QEMU has a branch to no address fault at its target, where it is no fault of the branch
        // any more.
        let at_target = bare.end == End::Fault(vector, NON_CANONICAL);
        assert!(
            bare.end == End::Fault(vector, code.start) || at_target && di == NON_CANONICAL,
            "{bytes:x?}: {bare:?}"
        );
        for with_post in [false, true] {
            let emulated = bytes == [0xfa] && with_post && !stepping();
            let shape = Kprobe::new().at(code.start).pre(pre::<1>).fault(see);
            let probe = leak(if with_post {
                shape.post(post::<2>)
            } else {
                shape
            });
            PROBES.register(probe).unwrap();
            let probed = bench.run(code.start, registers);
            if emulated {
                // With a post handler it is carried out on the frame, as it would be in ring 0, and
                // does not fault.
                assert_eq!((probed.end, journal::take()), (End::Exit(1), vec![1, 2]));
            } else if at_target {
                assert_eq!(probed, bare, "{bytes:x?}");
                assert_eq!(journal::take()[0], 1, "{bytes:x?}");
            } else {
                assert_eq!(probed, bare, "{bytes:x?}");
                assert_eq!(journal::take(), [1, vector.into()], "{bytes:x?}");
                let seen = *SEEN.lock();
                assert_eq!(seen.ip, code.start);
                assert_eq!(seen.flags & (TF | IF), IF, "TF is gone, IF is the code's");
                assert_eq!(seen.sp, bench.sp());
            }
            assert!(cpu::can_sleep(), "the guard is not left behind");
            PROBES.unregister(probe).unwrap();
        }
    }
}

#[test]
fn a_fault_handler_may_mend_the_cause_and_have_the_instruction_run_again() {
    let _machine = boot();
    fn mend(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
        journal::note(100 + u64::from(vector));
        regs.di = code::data();
        FaultVerdict::Handled
    }
    let load = Code::with_exit(&[0x48, 0x8b, 0x07]); // mov rax, [rdi]
    let mut bench = Bench::new();
    let registers = Registers {
        di: NOWHERE,
        ..Registers::default()
    };
    let good = bench.run(
        load.start,
        Registers {
            di: code::data(),
            ..registers
        },
    );
    for (shape, last) in [
        (Kprobe::new(), &[][..]),
        (Kprobe::new().post(post::<2>), &[2]),
    ] {
        let probe = leak(shape.at(load.start).pre(pre::<1>).fault(mend));
        PROBES.register(probe).unwrap();
        assert_eq!(bench.run(load.start, registers), good);
        assert_eq!(
            journal::take(),
            [&[1, 114, 1], last].concat(),
            "the pre handler runs again"
        );
        assert_eq!((probe.hits(), probe.nmissed()), (2, 0));
        PROBES.unregister(probe).unwrap();
    }
}

#[test]
fn a_fault_handler_may_resume_elsewhere() {
    let _machine = boot();
    fn skip(_: &Kprobe, regs: &mut PtRegs, _: u8) -> FaultVerdict {
        regs.ax = 0xbad;
        regs.ip += 3;
        FaultVerdict::Handled
    }
    let load = Code::with_exit(&[0x48, 0x8b, 0x07]); // mov rax, [rdi]
    let mut bench = Bench::new();
    for shape in [Kprobe::new(), Kprobe::new().post(post::<2>)] {
        let probe = leak(shape.at(load.start).pre(pre::<1>).fault(skip));
        PROBES.register(probe).unwrap();
        for _ in 0..3 {
            let outcome = bench.run(load.start, Registers::default());
            assert_eq!((outcome.end, outcome.registers.ax), (End::Exit(1), 0xbad));
        }
        assert_eq!(journal::take(), [1; 3]);
        PROBES.unregister(probe).unwrap();
    }
}

#[test]
fn all_enabled_probes_of_the_instruction_are_asked_newest_first() {
    let _machine = boot();
    fn mend(_: &Kprobe, regs: &mut PtRegs, _: u8) -> FaultVerdict {
        journal::note(300);
        regs.di = code::data();
        FaultVerdict::Handled
    }
    let load = Code::with_exit(&[0x48, 0x8b, 0x07]); // mov rax, [rdi]
    let mut bench = Bench::new();
    let probes = [
        leak(Kprobe::new().at(load.start).fault(fault::<1>)),
        leak(Kprobe::new().at(load.start).fault(mend)),
        leak(Kprobe::new().at(load.start).fault(fault::<4>).disabled()),
        leak(Kprobe::new().at(load.start)),
        leak(Kprobe::new().at(load.start).fault(fault::<5>)),
    ];
    PROBES.register_batch(&probes).unwrap();
    assert_eq!(
        bench.run(load.start, Registers::default()).end,
        End::Exit(1)
    );
    assert_eq!(journal::take(), [514, 300]);
    PROBES.unregister_batch(&probes).unwrap();
}

/// A fault handler's fix for [`peek`]: its result becomes -1.
fn mend_peek(regs: &mut PtRegs) {
    assert_eq!(regs.ip, address("peek"));
    regs.ax = !0;
    regs.ip += 3;
}

#[test]
fn a_fault_inside_a_handler_goes_to_that_probes_fault_handler_alone() {
    let _machine = boot();
    fn peek_before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(peek(NOWHERE));
        PreVerdict::Execute
    }
    fn peek_after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        journal::note(peek(NOWHERE));
    }
    fn mend(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
        journal::note(vector.into());
        mend_peek(regs);
        FaultVerdict::Handled
    }
    let sibling = leak(Kprobe::new().symbol("add").pre(pre::<1>).fault(fault::<9>));
    let newer = leak(Kprobe::new().symbol("add").pre(pre::<2>).fault(fault::<8>));
    let peeks = leak(
        Kprobe::new()
            .symbol("add")
            .pre(peek_before)
            .post(peek_after)
            .fault(mend),
    );
    PROBES.register_batch(&[sibling, peeks, newer]).unwrap();
    for _ in 0..3 {
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), [2, 14, !0, 1, 14, !0]);
    }
    PROBES.unregister_batch(&[sibling, peeks, newer]).unwrap();
}

#[test]
fn a_fault_inside_a_handler_that_nobody_takes_is_the_kernels() {
    let _machine = boot();
    fn peek_before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(peek(NOWHERE));
        PreVerdict::Execute
    }
    fn exception_table(regs: &mut PtRegs, vector: u8) -> bool {
        journal::note(1000 + u64::from(vector));
        mend_peek(regs);
        true
    }
    traps::on_exception(exception_table);
    let without = leak(Kprobe::new().symbol("add").pre(peek_before));
    let unhandled = leak(
        Kprobe::new()
            .symbol("neighbour")
            .pre(peek_before)
            .fault(fault::<1>),
    );
    PROBES.register(without).unwrap();
    PROBES.register(unhandled).unwrap();
    assert_eq!((add(1, 2), neighbour()), (3, 17));
    assert_eq!(journal::take(), [1014, !0, 114, 1014, !0]);
    PROBES.unregister(without).unwrap();
    PROBES.unregister(unhandled).unwrap();
}

// A fault handler runs as part of a hit, but the handlers before it are over: a fault in it is not
// for its own probe. Nor is one of other code, when the hit is over.
#[test]
fn a_fault_handler_is_not_asked_about_its_own_faults_nor_those_behind_the_hit() {
    let _machine = boot();
    fn exception_table(regs: &mut PtRegs, vector: u8) -> bool {
        journal::note(1000 + u64::from(vector));
        mend_peek(regs);
        true
    }
    fn peek_again(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
        journal::note(vector.into());
        journal::note(add(1, 2));
        journal::note(peek(NOWHERE));
        mend_peek(regs);
        FaultVerdict::Handled
    }
    traps::on_exception(exception_table);
    let peeks = leak(Kprobe::new().symbol("peek").pre(pre::<1>).fault(peek_again));
    let missed = leak(Kprobe::new().symbol("add").pre(pre::<9>));
    PROBES.register_batch(&[peeks, missed]).unwrap();
    assert_eq!(peek(NOWHERE), !0);
    assert_eq!(journal::take(), [1, 14, 3, 1014, !0]);
    for probe in [peeks, missed] {
        let hits = u64::from(probe.addr() == address("peek"));
        assert_eq!((probe.hits(), probe.nmissed()), (hits, 1));
    }
    PROBES.unregister_batch(&[peeks, missed]).unwrap();
    let over = leak(
        Kprobe::new()
            .symbol("neighbour")
            .pre(pre::<2>)
            .fault(fault::<7>),
    );
    PROBES.register(over).unwrap();
    assert_eq!((neighbour(), peek(NOWHERE)), (17, !0));
    assert_eq!(journal::take(), [2, 1014]);
    PROBES.unregister(over).unwrap();
}

// The instruction of a missed hit is part of the handler that has run into it.
#[test]
fn a_fault_in_a_missed_hits_instruction_belongs_to_the_handler_around_it() {
    let _machine = boot();
    fn peek_before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(peek(NOWHERE));
        PreVerdict::Execute
    }
    fn mend(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
        journal::note(vector.into());
        mend_peek(regs);
        FaultVerdict::Handled
    }
    let outer = leak(Kprobe::new().symbol("add").pre(peek_before).fault(mend));
    let inner = leak(
        Kprobe::new()
            .symbol("peek")
            .pre(pre::<8>)
            .post(post::<7>)
            .fault(fault::<9>),
    );
    PROBES.register(outer).unwrap();
    PROBES.register(inner).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [14, !0]);
    assert_eq!((inner.hits(), inner.nmissed()), (0, 1));
    PROBES.unregister(inner).unwrap();
    PROBES.unregister(outer).unwrap();
}

// The kernel maps no page while a task is in the middle of an instruction of its own; `programs`
// has what user memory does.
#[cfg(target_os = "linux")]
#[test]
fn a_string_instruction_that_faults_halfway_is_completed() {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    let _machine = boot();
    /// The part of the buffer that is mapped when the fault happens.
    static BUFFER: AtomicU64 = AtomicU64::new(0);
    fn map_the_rest(regs: &mut PtRegs, vector: u8) -> bool {
        journal::note(vector.into());
        journal::note(regs.cx);
        journal::note(regs.ip);
        let page =
            core::ptr::with_exposed_provenance_mut((BUFFER.load(Relaxed) as usize) + text::PAGE);
        // SAFETY: the second page of the test's own mapping.
        unsafe { libc::mprotect(page, text::PAGE, libc::PROT_READ | libc::PROT_WRITE) == 0 }
    }
    let copy = Code::with_exit(&[0xf3, 0xa4]); // rep movsb
    let mut bench = Bench::new();
    traps::on_exception(map_the_rest);
    let probe = leak(Kprobe::new().at(copy.start).pre(pre::<1>).post(post::<2>));
    PROBES.register(probe).unwrap();
    // SAFETY: a fresh private mapping, unmapped below.
    unsafe {
        let pages = libc::mmap(
            core::ptr::null_mut(),
            2 * text::PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        BUFFER.store(pages.expose_provenance() as u64, Relaxed);
        libc::mprotect(pages.byte_add(text::PAGE), text::PAGE, libc::PROT_NONE);
        let source: Vec<u8> = (0..100).collect();
        let registers = Registers {
            cx: 100,
            si: source.as_ptr().expose_provenance() as u64,
            di: BUFFER.load(Relaxed) + text::PAGE as u64 - 40,
            ..Registers::default()
        };
        let outcome = bench.run(copy.start, registers);
        assert_eq!((outcome.end, outcome.registers.cx), (End::Exit(1), 0));
        let copied = core::slice::from_raw_parts(pages.cast::<u8>().add(text::PAGE - 40), 100);
        assert_eq!(copied, source);
        libc::munmap(pages, 2 * text::PAGE);
    }
    assert_eq!(journal::take(), [1, 14, 60, copy.start, 1, 2]);
    PROBES.unregister(probe).unwrap();
}

// The probes must not be the ones that resume at such an address.
#[test]
fn branches_to_impossible_addresses_fault_as_they_do_without_a_probe() {
    let _machine = boot();
    let mut bench = Bench::new();
    // The code that puts rdi where the branch looks for it; the branch.
    let table: [(&[u8], &[u8]); 6] = [
        (&[], &[0xff, 0xd7]),           // call rdi
        (&[], &[0xff, 0xe7]),           // jmp rdi
        (&[0x57], &[0xc3]),             // push rdi; ret
        (&[0x57], &[0xc2, 0, 0]),       // push rdi; ret 0
        (&[0x57], &[0xff, 0x14, 0x24]), // push rdi; call [rsp]
        (&[0x57], &[0xff, 0x24, 0x24]), // push rdi; jmp [rsp]
    ];
    traps::on_exception(code::take_fault_in_steps);
    // Without a debugger, and with one that steps through the code.
    let ways = [flags::PLAIN | flags::STATUS, flags::PLAIN | TF];
    let targets = [NON_CANONICAL, HALFWAY, 0x7fff_ffff_0000, NOWHERE];
    for (target, flags) in targets.into_iter().flat_map(|to| ways.map(|way| (to, way))) {
        for (setup, branch) in table {
            let code = Code::with_exit(&[setup, branch].concat());
            let registers = Registers {
                di: target,
                flags,
                ..Registers::default()
            };
            let bare = bench.run(code.start, registers);
            let shapes = [
                (Kprobe::new(), &[][..]),
                (Kprobe::new().post(post::<2>), &[2]),
            ];
            for (shape, when_complete) in shapes {
                let probe = leak(shape.at(code.start + setup.len() as u64).fault(fault::<1>));
                PROBES.register(probe).unwrap();
                assert_eq!(
                    bench.run(code.start, registers),
                    bare,
                    "{branch:x?} to {target:#x}"
                );
                let noted = journal::take();
                // Fetching from there is no fault of the branch, which is complete then.
                let of_branch = End::Fault(PROTECTION, code.start + setup.len() as u64);
                if bare.end == of_branch {
                    assert_eq!(noted, [100 + u64::from(PROTECTION)]);
                } else if [NON_CANONICAL, HALFWAY].contains(&target) {
                    // Processors fault before such a branch is complete, so a slot runs no post
                    // handler. QEMU faults after it; a single step ends there before.
                    let is_told = noted.is_empty() || noted == when_complete;
                    assert!(is_told, "{noted:?}: {branch:x?} to {target:#x}");
                } else {
                    assert_eq!(noted, when_complete, "{branch:x?} to {target:#x}");
                }
                assert!(cpu::can_sleep());
                assert!(PROBES.may_preempt(address("add")), "the hit is over");
                PROBES.unregister(probe).unwrap();
            }
        }
    }
}

// Stack instructions whose operand faults leave the stack alone.
#[test]
fn stack_words_are_untouched_by_a_faulting_call() {
    let _machine = boot();
    let mut bench = Bench::new();
    for bytes in [
        &[0xff, 0x94, 0x24, 0, 0, 0, 0x70][..], // call [rsp + 0x70000000]
        &[0xff, 0xb4, 0x24, 0, 0, 0, 0x70],     // push [rsp + 0x70000000]
        &[0xff, 0xa4, 0x24, 0, 0, 0, 0x70],     // jmp [rsp + 0x70000000]
    ] {
        let code = Code::with_exit(bytes);
        let bare = bench.run(code.start, Registers::default());
        assert!(matches!(bare.end, End::Fault(..)), "{bare:?}");
        let mut outcomes: Vec<Outcome> = Vec::new();
        for shape in [Kprobe::new(), Kprobe::new().post(post::<2>)] {
            let probe = leak(shape.at(code.start));
            PROBES.register(probe).unwrap();
            outcomes.push(bench.run(code.start, Registers::default()));
            PROBES.unregister(probe).unwrap();
        }
        assert_eq!(outcomes, [bare.clone(), bare]);
    }
    assert_eq!(journal::take(), []);
}
