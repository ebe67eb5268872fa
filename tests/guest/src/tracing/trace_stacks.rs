//! Call stacks that programs take: of hits by jumps and by breakpoints, at entries, returns and in
//! interrupts; and walks through programs.
//!
//! A map of stacks counts hits by the whole chain of callers. The chains are those of functions
//! here, so each is known, with return probes on the way and across an interrupt. The fast walk by
//! a table is compared with the exact one at each instruction.

use abi::{WaitStatus, signal};
use alloc::{string::String, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use bpf::{Builder, Helper, MapDef, MapIndex, MapKind, ProgramKind, Reg::*, Size::B8, USER_STACK};
use bpf_compiler::Sample;
use kernel::{
    arch::{percpu, smp, traps},
    backtrace,
    probes::{Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs, register},
    symbols,
    task::exec::run_program,
    trace::{
        TRACING,
        program::{AttachedCall, AttachedProbe, Program},
        shared::Shared,
        stacks,
    },
    uprobes::{Uprobe, Uretprobe, registry::RegisteredUserProbe},
};
use trace_maps::{MAX_FRAMES, Map};

use crate::{tools::jumps::Optimization, tools::stepping::step_through};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_inner(a: u64) -> u64 {
    black_box(a) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_middle(a: u64) -> u64 {
    stack_inner(black_box(a)) + 10
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_outer(a: u64) -> u64 {
    stack_middle(black_box(a)) + 100
}

/// Calls the innermost by a shorter way.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_aside(a: u64) -> u64 {
    stack_inner(black_box(a)) + 1000
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_far_aside(a: u64) -> u64 {
    stack_aside(black_box(a)) + 10_000
}

/// The maps of [`count_stacks`].
#[derive(Clone, Copy)]
struct Maps {
    stacks: MapIndex,
    calls: MapIndex,
}

/// Counts by call stack of at most `frames` frames, without the first `skip`.
fn count_stacks(kind: ProgramKind, frames: u32, skip: i32) -> (Shared<Program>, Maps) {
    let mut b = Builder::new(kind);
    let stacks = b.map(MapDef {
        name: "stacks".into(),
        kind: MapKind::Stacks,
        key_size: 4,
        value_size: 8 * frames,
        entries: 64,
    });
    let calls = b.map(MapDef::counters_by_key("calls", 8, 64));
    b.load_map(R2, stacks)
        .mov(R3, skip)
        .call(Helper::StackId)
        .store(R10, -8, B8, R0)
        .add_by_key(calls, -8, 1)
        .exit(0);
    let program = Program::load(b.finish().unwrap()).unwrap();
    (program, Maps { stacks, calls })
}

/// The stacks that were counted, as the names of the first `depth` functions, each with its count.
fn counted(program: &Program, maps: Maps, depth: usize) -> Vec<(String, u64)> {
    let (Some(Map::Stacks(stacks)), Some(Map::Hash(calls))) =
        (program.map(maps.stacks), program.map(maps.calls))
    else {
        panic!("other maps");
    };
    let mut found = Vec::new();
    calls.for_each(|_, key, value| {
        let number = u64::from_le_bytes(key.try_into().unwrap());
        let mut text = String::new();
        stacks::print(stacks, number, &mut text).unwrap();
        let names: Vec<_> = text
            .lines()
            .map(|line| line.strip_prefix(" => ").expect("a frame"))
            .map(|frame| frame.split('+').next().unwrap_or_default())
            .take(depth)
            .collect();
        found.push((names.join(" "), value[0]));
    });
    found.sort();
    found
}

fn expect(found: &[(String, u64)], expected: &[(&str, u64)]) {
    let found: Vec<_> = found
        .iter()
        .map(|(stack, count)| (stack.as_str(), *count))
        .collect();
    assert_eq!(found, expected);
}

/// The call stack of a program has the addresses that the program knows: not those of a trampoline,
/// nor of a slot.
#[guest_test]
fn stacks_of_programs_do_not_show_the_probes_of_them() {
    let frames = || {
        let (program, maps) = count_stacks(ProgramKind::Probe, 16, USER_STACK as i32);
        let probe = AttachedProbe::new(program, Kprobe::new().symbol("sys_getppid")).unwrap();
        let ended = run_program("/bin/exercise", &["probed_framed"]);
        assert_eq!(ended.unwrap().code(), Some(0));
        let (Some(Map::Stacks(stacks)), Some(Map::Hash(calls))) = (
            probe.program().map(maps.stacks),
            probe.program().map(maps.calls),
        ) else {
            panic!("other maps");
        };
        let mut found = Vec::new();
        calls.for_each(|_, key, _| {
            let number = u64::from_le_bytes(key.try_into().unwrap());
            let mut frames = [0; MAX_FRAMES];
            let count = stacks.frames(number, &mut frames).unwrap();
            // The last two are the task's name.
            found.push(frames[..count - 2].to_vec());
        });
        assert_eq!(found.len(), 1);
        found.swap_remove(0)
    };
    let bare = frames();
    assert!(bare.len() >= 4, "{bare:x?}");
    let at = |symbol| Uprobe::new().program("/bin/exercise").symbol(symbol);
    let of = |symbol| Uretprobe::new().program("/bin/exercise").symbol(symbol);
    let _probes = (
        RegisteredUserProbe::new(of("probed_framed")).unwrap(),
        RegisteredUserProbe::new(of("probed_framed_outer")).unwrap(),
        RegisteredUserProbe::new(of("probed_framed_outer")).unwrap(),
        RegisteredUserProbe::new(at("probed_framed")).unwrap(),
    );
    assert_eq!(frames(), bare);
}

/// At the entry the frame is not yet set up, so a walk by frame pointers would lose the caller.
/// Only three frames are taken, because the compiler may call from several places of an unrolled
/// loop.
#[guest_test]
fn hits_are_counted_by_their_call_stack() {
    for optimized in [true, false] {
        let _knob = Optimization::set(optimized);
        for offset in [0, 1, 4] {
            let (program, maps) = count_stacks(ProgramKind::Probe, 3, 0);
            let probe = Kprobe::new().symbol("stack_inner").offset(offset);
            let probe = AttachedProbe::new(program, probe).unwrap();
            for _ in 0..30 {
                stack_outer(black_box(1));
            }
            for _ in 0..12 {
                stack_far_aside(black_box(1));
            }
            expect(
                &counted(probe.program(), maps, 3),
                &[
                    ("stack_inner stack_aside stack_far_aside", 12),
                    ("stack_inner stack_middle stack_outer", 30),
                ],
            );
        }
    }
}

/// The walk does not stop short: it finds what the exact one finds, up to the first function of the
/// task.
#[guest_test]
fn the_last_frame_is_the_first_function_of_the_task() {
    let (program, maps) = count_stacks(ProgramKind::Probe, 127, 0);
    let probe = AttachedProbe::new(program, Kprobe::new().symbol("stack_inner")).unwrap();
    stack_outer(black_box(1));
    let all = counted(probe.program(), maps, 127);
    let [(stack, 1)] = &all[..] else {
        panic!("{all:?}");
    };
    let own: Vec<_> = backtrace::walk_current()
        .filter_map(|frame| symbols::lookup_addr(frame.code_address()))
        .map(|symbol| alloc::format!("{symbol}"))
        .collect();
    let own = own.join(" ");
    let expected = alloc::format!("stack_inner stack_middle stack_outer {own}");
    assert_eq!(stack, &expected);
}

#[guest_test]
fn frames_are_skipped_and_cut_as_the_program_says() {
    let (program, maps) = count_stacks(ProgramKind::Probe, 1, 1);
    let probe = AttachedProbe::new(program, Kprobe::new().symbol("stack_inner")).unwrap();
    stack_outer(black_box(1));
    stack_aside(black_box(1));
    expect(
        &counted(probe.program(), maps, 9),
        &[("stack_aside", 1), ("stack_middle", 1)],
    );

    // No stack is so deep.
    let (program, maps) = count_stacks(ProgramKind::Probe, 1, 255);
    let probe = AttachedProbe::new(program, Kprobe::new().symbol("stack_inner")).unwrap();
    stack_outer(black_box(1));
    const BAD_ADDRESS: i64 = -14;
    assert_eq!(
        probe
            .program()
            .sum_of_key(maps.calls, &BAD_ADDRESS.to_le_bytes()),
        1
    );
}

/// A return address that a return probe has borrowed is shown as it is without it; also as the last
/// frame that there is room for.
#[guest_test]
fn calls_with_return_probes_are_seen_with_their_true_callers() {
    fn on_return(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {}
    let returns = ["stack_inner", "stack_middle", "stack_outer"].map(|name| {
        register(alloc::boxed::Box::new(
            Kretprobe::<u64>::new().symbol(name).handler(on_return),
        ))
        .unwrap()
    });
    for optimized in [true, false] {
        let _knob = Optimization::set(optimized);
        for frames in [2, 3] {
            let (program, maps) = count_stacks(ProgramKind::Probe, frames, 0);
            let probe = Kprobe::new().symbol("stack_inner").offset(4);
            let probe = AttachedProbe::new(program, probe).unwrap();
            for _ in 0..5 {
                stack_outer(black_box(1));
            }
            let expected = ["stack_inner", "stack_middle", "stack_outer"];
            let depth = frames as usize;
            expect(
                &counted(probe.program(), maps, depth),
                &[(&expected[..depth].join(" "), 5)],
            );
        }
    }
    for probe in returns {
        assert!(probe.hits() > 0);
    }
}

#[guest_test]
fn programs_of_entry_and_return_see_the_callers() {
    for optimized in [true, false] {
        let _knob = Optimization::set(optimized);
        let (entry, of_entry) = count_stacks(ProgramKind::Entry { data: 0 }, 3, 0);
        let (on_return, of_return) = count_stacks(ProgramKind::Return { data: 0 }, 2, 0);
        let probe = Kretprobe::new().symbol("stack_inner");
        let call = AttachedCall::new(Some(entry.clone()), on_return, probe).unwrap();
        for _ in 0..7 {
            stack_outer(black_box(1));
        }
        expect(
            &counted(&entry, of_entry, 3),
            &[("stack_inner stack_middle stack_outer", 7)],
        );
        expect(
            &counted(call.program(), of_return, 2),
            &[("stack_middle stack_outer", 7)],
        );
    }
}

/// A function that an interrupt's handler calls, and the loop that the interrupt comes to.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_in_nmi() -> u64 {
    SEEN.fetch_add(1, SeqCst)
}

static SEEN: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_interrupted() {
    let before = SEEN.load(SeqCst);
    smp::send_nmi(percpu::cpu_id());
    while SEEN.load(SeqCst) == before {
        core::hint::spin_loop();
    }
}

/// The walk goes from the NMI's stack to that of the task.
#[guest_test]
fn a_walk_crosses_an_interrupt() {
    fn in_nmi(_: &PtRegs) {
        stack_in_nmi();
    }
    for optimized in [true, false] {
        let _knob = Optimization::set(optimized);
        let (program, maps) = count_stacks(ProgramKind::Probe, 127, 0);
        let probe = AttachedProbe::new(program, Kprobe::new().symbol("stack_in_nmi")).unwrap();
        traps::set_nmi_handler(Some(in_nmi));
        for _ in 0..20 {
            stack_interrupted();
        }
        traps::set_nmi_handler(None);
        let all = counted(probe.program(), maps, 127);
        // The interrupted instruction differs.
        let whole: u64 = all
            .iter()
            .filter(|(stack, _)| {
                let names: Vec<_> = stack.split(' ').collect();
                let at = names.iter().position(|name| *name == "stack_interrupted");
                names[0] == "stack_in_nmi" && at.is_some_and(|at| at + 2 < names.len())
            })
            .map(|(_, count)| count)
            .sum();
        assert_eq!(whole, 20, "{all:?}");
    }
}

/// Instructions at which the two walks differ, and the first of these.
static DIFFERENT: AtomicU64 = AtomicU64::new(0);
static DIFFERENT_AT: AtomicU64 = AtomicU64::new(0);
static COMPARED: AtomicU64 = AtomicU64::new(0);

fn compare(regs: &PtRegs) {
    let sample = Sample {
        ip: regs.ip,
        sp: regs.sp,
        bp: regs.bp,
    };
    let mut frames = [0; MAX_FRAMES];
    // SAFETY: this call was interrupted.
    let count = unsafe { TRACING.stacks.take(&sample, &mut frames) };
    let exact = backtrace::walk_interrupted(regs).map(|frame| frame.ip());
    // An exact walk ends after so many.
    if !exact.eq(frames[..count].iter().copied()) && DIFFERENT.fetch_add(1, SeqCst) == 0 {
        DIFFERENT_AT.store(regs.ip, SeqCst);
    }
    COMPARED.fetch_add(1, SeqCst);
}

/// Formats numbers and allocates, so it runs code of the kernel and of the toolchain.
extern "C" fn long_call() {
    let text = alloc::format!("{:>8} {:?}", black_box(77), black_box(Some("text")));
    assert_eq!(text.len(), 21);
    let mut numbers: Vec<u64> = (0..black_box(100)).map(|n| n * 7919 % 101).collect();
    numbers.sort_unstable();
    assert_eq!(numbers[0], 0);
    assert_eq!(stack_outer(black_box(1)), 112);
}

/// Between any two instructions of a call, the fast walk finds what the exact one finds.
#[guest_test(timeout = 60)]
fn a_fast_walk_is_exact_at_each_instruction() {
    TRACING.stacks.ready().unwrap();
    for counter in [&DIFFERENT, &COMPARED] {
        counter.store(0, SeqCst);
    }
    step_through(long_call, compare);
    assert!(COMPARED.load(SeqCst) > 1000);
    assert_eq!(
        DIFFERENT.load(SeqCst),
        0,
        "of {} instructions; the first at {}",
        COMPARED.load(SeqCst),
        symbols::Address::of_instruction(DIFFERENT_AT.load(SeqCst))
    );
}

/// The stack pointer at the first instruction of the caller; 0 before it.
static CALLER_SP: AtomicU64 = AtomicU64::new(0);
/// Instructions of actions that were interrupted.
static IN_ACTION: AtomicU64 = AtomicU64::new(0);
/// Walks that did not lead to the caller, and where the first one began.
static LOST: AtomicU64 = AtomicU64::new(0);
static LOST_AT: AtomicU64 = AtomicU64::new(0);

extern "C" fn stack_stepped_caller() {
    stack_outer(black_box(1));
}

fn walk_to_the_caller(regs: &PtRegs) {
    let caller = stack_stepped_caller as *const () as u64;
    if CALLER_SP.load(SeqCst) == 0 && regs.ip == caller {
        CALLER_SP.store(regs.sp, SeqCst);
    }
    if regs.sp > CALLER_SP.load(SeqCst) {
        return;
    }
    IN_ACTION.fetch_add(u64::from(TRACING.code.code_at(regs.ip).is_some()), SeqCst);
    let is_found = backtrace::walk_interrupted(regs).any(|frame| {
        symbols::lookup_addr(frame.code_address()).is_some_and(|symbol| symbol.start == caller)
    });
    if !is_found && LOST.fetch_add(1, SeqCst) == 0 {
        LOST_AT.store(regs.ip, SeqCst);
    }
}

#[track_caller]
fn step_through_actions(what: &str) {
    for counter in [&CALLER_SP, &IN_ACTION, &LOST, &LOST_AT] {
        counter.store(0, SeqCst);
    }
    step_through(stack_stepped_caller, walk_to_the_caller);
    assert!(IN_ACTION.load(SeqCst) > 10, "{what}");
    assert_eq!(
        LOST.load(SeqCst),
        0,
        "{what}: walks lost their way, the first one at {}",
        symbols::Address::of_instruction(LOST_AT.load(SeqCst))
    );
}

/// Between any two instructions of a hit with a program, also in its code and in what it calls, a
/// walk leads to the caller of the probed function.
#[guest_test(timeout = 60)]
fn a_walk_leads_through_a_program_to_the_caller() {
    for optimized in [true, false] {
        let _knob = Optimization::set(optimized);
        // At the entry the stack is as at a call; after a push it must be aligned.
        for offset in [0, 1, 4] {
            let (program, maps) = count_stacks(ProgramKind::Probe, 8, 0);
            let probe = Kprobe::new().symbol("stack_inner").offset(offset);
            let probe = AttachedProbe::new(program, probe).unwrap();
            step_through_actions(&alloc::format!("optimized: {optimized}, offset {offset}"));
            let all = counted(probe.program(), maps, 2);
            expect(&all, &[("stack_inner stack_middle", 1)]);
        }
        let (entry, _) = count_stacks(ProgramKind::Entry { data: 8 }, 8, 0);
        let (on_return, _) = count_stacks(ProgramKind::Return { data: 8 }, 8, 0);
        let probe = Kretprobe::new().symbol("stack_inner");
        let _call = AttachedCall::new(Some(entry), on_return, probe).unwrap();
        step_through_actions(&alloc::format!("a call, optimized: {optimized}"));
    }
}

#[guest_test]
fn code_of_a_program_has_no_stack_of_the_kernel() {
    TRACING.stacks.ready().unwrap();
    let sample = Sample {
        ip: 0x40_1000,
        sp: 0x7fff_f000,
        bp: 0x7fff_f010,
    };
    let mut frames = [1; 4];
    // SAFETY: a sample of a program is looked at only; nothing is read by it.
    assert_eq!(unsafe { TRACING.stacks.take(&sample, &mut frames) }, 0);
    assert_eq!(frames, [1; 4]);
}

/// Frames of both walks in a hit, and how many of them had an address that the program has jumped
/// to.
static WALKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static OF_THE_PROGRAM: AtomicU64 = AtomicU64::new(0);

/// The program's address looks like one of the kernel.
#[guest_test]
fn a_program_that_has_jumped_into_the_kernel_has_no_frame_there() {
    const JUMPED_TO: u64 = 0xffff_ffff_8000_0000;
    fn walk(probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let sample = Sample {
            ip: probe.addr(),
            sp: regs.sp,
            bp: regs.bp,
        };
        let mut frames = [0; MAX_FRAMES];
        // SAFETY: the probed call was interrupted.
        let count = unsafe { TRACING.stacks.take(&sample, &mut frames) };
        let fast = frames[..count].iter().copied();
        let exact = backtrace::walk(regs).map(|frame| frame.ip());
        for (frame, walked) in fast.map(|ip| (ip, 0)).chain(exact.map(|ip| (ip, 1))) {
            WALKED[walked].fetch_add(1, SeqCst);
            OF_THE_PROGRAM.fetch_add(u64::from(frame == JUMPED_TO), SeqCst);
        }
        PreVerdict::Execute
    }
    TRACING.stacks.ready().unwrap();
    let probe = Kprobe::new().symbol("do_exit").pre(walk);
    let probe = register(alloc::boxed::Box::new(probe)).unwrap();
    let status = run_program("/bin/exercise", &["wild", "kernel_call"]);
    assert_eq!(status, Ok(WaitStatus::killed(signal::SEGV)));
    drop(probe);
    let [fast, exact] = [0, 1].map(|walk| WALKED[walk].load(SeqCst));
    assert!(fast > 2 && fast == exact, "{fast} and {exact} frames");
    assert_eq!(OF_THE_PROGRAM.load(SeqCst), 0);
}
