//! Places where designs have gone wrong before: branches to themselves and to each other, arguments
//! that the probed instruction overwrites, locked instructions on several CPUs.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use probes::{Kprobe, PreVerdict, PtRegs};

use super::{code::Code, targets::*, *};
use crate::platform::{allocator::allocations, log};

/// How often the handlers below let a loop go round.
const ROUNDS: u64 = 1000;

static RUNS: AtomicU64 = AtomicU64::new(0);
static STACK_POINTER: AtomicU64 = AtomicU64::new(0);

/// The RSP that the first run saw is what every other sees, too.
fn same_stack(regs: &PtRegs) -> bool {
    let first = STACK_POINTER.compare_exchange(0, regs.sp, Relaxed, Relaxed);
    first.is_ok() || first == Err(regs.sp)
}

/// A jump to itself is hit once each time round, until a handler goes on after it; nothing grows
/// meanwhile.
#[test]
fn a_jump_to_itself_is_hit_once_each_time_round() {
    let _machine = boot();
    fn end_at_last(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        if !same_stack(regs) {
            journal::note(regs.sp);
        }
        if RUNS.fetch_add(1, Relaxed) + 1 < ROUNDS {
            return PreVerdict::Execute;
        }
        regs.ip += 1;
        PreVerdict::Resume
    }
    fn after(_: &Kprobe, regs: &mut PtRegs, _: u64) {
        // It goes on at its own address.
        journal::note(regs.ip);
    }
    for with_post in [false, true] {
        RUNS.store(0, Relaxed);
        STACK_POINTER.store(0, Relaxed);
        let code = Code::new(|_| vec![0xeb, 0xfe, 0x89, 0xf8, 0xc3]); // jmp here; mov eax, edi; ret
        let probe = Kprobe::new().at(code.start).pre(end_at_last);
        let probe = leak(if with_post { probe.post(after) } else { probe });
        PROBES.register(probe).unwrap();
        assert_eq!(code.call(7, 0), 7);
        assert_eq!(probe.hits(), ROUNDS);
        let posts = if with_post { ROUNDS - 1 } else { 0 };
        assert_eq!(journal::take(), vec![code.start; posts as usize]);
        PROBES.unregister(probe).unwrap();
    }
}

/// Each execution of an instruction is a hit, also of a branch's target, and of a branch to itself.
#[test]
fn a_branch_to_a_probed_address_hits_there() {
    let _machine = boot();
    let code = Code::new(|_| {
        vec![
            0xff, 0xcf, // dec edi
            0x75, 0xfc, // jnz to the dec
            0x89, 0xf9, // mov ecx, edi
            0xe2, 0xfe, // loop to itself: ecx is 0, so 2⁶⁴ rounds but for the handler
            0x89, 0xf8, // mov eax, edi
            0xc3, // ret
        ]
    });
    fn last_round(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        if regs.cx == 0 {
            regs.cx = 5;
        }
        PreVerdict::Execute
    }
    let target = leak(Kprobe::new().at(code.start));
    let branch = leak(Kprobe::new().at(code.start + 2).post(post::<1>));
    let itself = leak(Kprobe::new().at(code.start + 6).pre(last_round));
    PROBES.register_batch(&[target, branch, itself]).unwrap();
    assert_eq!(code.call(ROUNDS, 0), 0);
    assert_eq!(
        (target.hits(), branch.hits(), itself.hits()),
        (ROUNDS, ROUNDS, 5)
    );
    assert_eq!(journal::take().len() as u64, ROUNDS);
    PROBES.unregister_batch(&[target, branch, itself]).unwrap();
}

/// The handler of an instruction that overwrites an argument sees the argument.
#[test]
fn a_pre_handler_sees_what_the_instruction_overwrites() {
    let _machine = boot();
    fn argument(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        journal::note(regs.di);
        PreVerdict::Execute
    }
    // mov edi, 7; mov eax, edi; ret
    let code = Code::new(|_| vec![0xbf, 7, 0, 0, 0, 0x89, 0xf8, 0xc3]);
    let probe = leak(Kprobe::new().at(code.start).pre(argument));
    PROBES.register(probe).unwrap();
    assert_eq!(code.call(42, 0), 7);
    assert_eq!(journal::take(), [42]);
    PROBES.unregister(probe).unwrap();
}

/// A locked instruction stays one while several CPUs run its copy.
#[test]
fn a_locked_instruction_stays_atomic() {
    const CPUS: u64 = 3;
    const TIMES: u64 = 20_000;
    let _machine = boot();
    let code = Code::new(|_| vec![0xf0, 0x48, 0xff, 0x07, 0xc3]); // lock inc qword ptr [rdi]; ret
    let plain = leak(Kprobe::new().at(code.start));
    let with_post = leak(Kprobe::new().at(code.start).post(|_, _, _| {}));
    for probes in [&[plain][..], &[plain, with_post]] {
        PROBES.register_batch(probes).unwrap();
        let total = AtomicU64::new(0);
        cpu::on_cpus(CPUS as usize, |_| {
            for _ in 0..TIMES {
                code.call(total.as_ptr().addr() as u64, 0);
            }
        });
        assert_eq!(total.load(Relaxed), CPUS * TIMES);
        assert_eq!(plain.hits(), CPUS * TIMES);
        PROBES.unregister_batch(probes).unwrap();
    }
}

/// A hit takes no memory and says nothing.
#[test]
fn hits_are_silent() {
    let _machine = boot();
    let outer = leak(Kprobe::new().symbol("add").pre(call_again).post(post::<1>));
    fn call_again(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(add(1, 1));
        PreVerdict::Execute
    }
    PROBES.register(outer).unwrap();
    let lines = log().len();
    let made = allocations(|| {
        for _ in 0..100 {
            assert_eq!(add(1, 2), 3);
        }
    });
    assert_eq!((made, log().len()), (0, lines));
    assert_eq!(journal::take(), [2, 1].repeat(100));
    assert_eq!((outer.hits(), outer.nmissed()), (100, 100));
    PROBES.unregister(outer).unwrap();
}
