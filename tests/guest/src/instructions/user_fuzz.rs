//! Random instructions in ring 3, plain and probed: what they leave behind is the same.
//!
//! Each case ([`instruction_cases::Case`]) is the code of a place in a program
//! ([`super::user_runner`]). It is executed from its registers, flags and memory: plain, with a
//! user probe on it that has a handler, and with one that has a post handler, too. Registers,
//! flags, memory, and the exception that ended it (vector, error code, address) must be equal, also
//! the memory below the stack pointer, and handlers must have seen the registers before. Flags that
//! the manual leaves undefined are compared, too.
//!
//! Instructions that the kernel refuses to probe are not drawn, and neither are system calls, which
//! are the kernel's work, and loads of segment registers, which it does not keep for programs.
//!
//! # Replaying a case
//! As for the cases of ring 0 ([`super::instruction_fuzz`]): by the parameters `fuzz.seed`,
//! `fuzz.case` and `fuzz.count` of the kernel's command line.

use crate::instructions::{
    case_methods::{AFTER, BEFORE},
    case_outcome::{Memory, WORDS, same_registers, start},
    case_runner::Ending,
    instruction_fuzz::{NOP, parameter},
    user_runner::{HEAP, PLACES, Program, is_mapped, landing, live_stack, place, windows},
};
use alloc::{format, string::String, vec::Vec};
use core::ops::Range;
use iced_x86::{Decoder, DecoderOptions, FastFormatter, Mnemonic};
use instruction_cases::{Case, Ground, Random};
use kernel::{
    arch::idt::vector,
    mm::{paging::USER_END, shared::Shared},
    pr_info,
    probes::{PreVerdict, PtRegs},
    uprobes::{Uprobe, UserProbe, probe::ProbeRef, registry},
};
use probes::insn::{Ending as After, Insn, decode, translate};

use crate::platform::suite::flags::{STATUS, TF};

/// Where code begins in a place, at least: breakpoints come before it.
const FIRST_OFFSET: u64 = 20;
/// So many cases that differ are enough.
const MOST_FAILURES: usize = 12;
/// Programs may use so much of the stack below its pointer (System V psABI, 3.2.2).
const RED_ZONE: u64 = 128;
/// Flags that no way back to a program keeps: RF and NT.
const NOT_KEPT: u64 = 1 << 16 | 1 << 14;

/// How a probed instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// After a breakpoint, in its slot.
    Slot,
    /// Likewise, and a post handler runs.
    Post,
}

/// A case in its place.
struct Drawn {
    number: u64,
    case: Case,
    start: PtRegs,
    memory: Memory,
    /// The outcome without a probe.
    plain: Option<(Ending, Memory)>,
}

impl Drawn {
    fn window(&self) -> u64 {
        windows()[self.case.window].start
    }

    fn code(&self) -> Vec<u8> {
        [&self.case.code[..], &NOP].concat()
    }
}

/// What was executed.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    slot: u64,
    post: u64,
    /// Cases that ended by a fault.
    faults: u64,
}

/// Whether the kernel can probe it, wherever the slot is.
fn can_be_probed(insn: &Insn) -> bool {
    [insn.ip(), HEAP.end, HEAP.end + (1 << 20)]
        .iter()
        .all(|&slot| translate(insn, slot, After::Resume).is_ok())
}

/// Whether what it does can be repeated.
fn is_left_out(case: &Case) -> bool {
    let insn = &case.instruction;
    let loads_segment = (0..insn.op_count()).any(|n| insn.op_register(n).is_segment_register())
        && insn.op0_register().is_segment_register();
    loads_segment
        || matches!(
            insn.mnemonic(),
            Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Lfs | Mnemonic::Lgs | Mnemonic::Lss
        )
}

/// Case number `number`.
fn draw(seed: u64, number: u64) -> Drawn {
    let own = place(number as usize % PLACES);
    let at = own.start + FIRST_OFFSET + number % 8;
    let windows = windows();
    let ground = Ground {
        at,
        own,
        landing: landing(),
        windows: &windows,
        stack: live_stack(),
        fs_base: 0,
        gs_base: 0,
        holes: &[
            0,
            0x1234_5678_0000,
            0x8000_0000_0000,
            0xffff_fff0_0000_0000,
            1 << 63,
        ],
        is_mapped: &is_mapped,
        ring0: false,
        emulated: true,
    };
    let mut random = Random::of_case(seed, number);
    let case = loop {
        let Some(case) = Case::draw(&mut random, &ground) else {
            continue;
        };
        let code = [&case.code[..], &NOP].concat();
        if !is_left_out(&case) && decode(&code, at).is_ok_and(|insn| can_be_probed(&insn)) {
            break case;
        }
    };
    let mut memory = Memory {
        window: [0; WORDS],
        stack: [0; WORDS],
    };
    case.fill(windows[case.window].start, &mut memory.window);
    case.fill(live_stack().start, &mut memory.stack);
    Drawn {
        number,
        start: start(&case),
        case,
        memory,
        plain: None,
    }
}

fn see_before(_: &Uprobe, regs: &mut PtRegs) -> PreVerdict {
    BEFORE.note(regs);
    PreVerdict::Execute
}

fn see_after(_: &Uprobe, regs: &mut PtRegs) {
    AFTER.note(regs);
}

struct Fuzz {
    seed: u64,
    counts: Counts,
    failures: Vec<String>,
}

impl Fuzz {
    /// Executes the cases of `numbers`, of which there are not more than places.
    fn run(&mut self, numbers: Range<u64>) {
        let mut batch: Vec<Drawn> = numbers.map(|number| draw(self.seed, number)).collect();
        let code: Vec<_> = batch
            .iter()
            .map(|drawn| (drawn.start.ip, drawn.code()))
            .collect();
        let mut program = Program::start(&code);
        for drawn in &mut batch {
            let plain = program.run(&drawn.start, drawn.window(), &drawn.memory);
            self.counts.faults += u64::from(plain.0.exception.vector != vector::BREAKPOINT);
            drawn.plain = Some(plain);
        }
        for method in [Method::Slot, Method::Post] {
            self.compare(&mut program, &batch, method);
        }
    }

    /// Executes a batch by `method`, and compares.
    fn compare(&mut self, program: &mut Program, batch: &[Drawn], method: Method) {
        let probes: Vec<UserProbe> = batch
            .iter()
            .map(|drawn| {
                let probe = Uprobe::new()
                    .program(program.path())
                    .offset(program.offset(drawn.start.ip))
                    .handler(see_before);
                let probe = match method {
                    Method::Slot => probe,
                    Method::Post => probe.post_handler(see_after),
                };
                let probe = Shared::try_new(probe).expect("there is memory");
                ProbeRef::Shared(probe).into()
            })
            .collect();
        registry::register(&probes)
            .unwrap_or_else(|error| panic!("of a batch from case {}: {error}", batch[0].number));
        for drawn in batch {
            let probed = program.run(&drawn.start, drawn.window(), &drawn.memory);
            if let Err(difference) = judge(drawn, method, &probed) {
                self.fail(drawn, method, &probed, &difference);
            }
            *match method {
                Method::Slot => &mut self.counts.slot,
                Method::Post => &mut self.counts.post,
            } += 1;
        }
        registry::unregister(&probes).expect("this is a task");
    }

    /// Notes a case that differs.
    fn fail(&mut self, drawn: &Drawn, method: Method, probed: &(Ending, Memory), difference: &str) {
        let mut listing = String::new();
        let mut formatter = FastFormatter::new();
        let ip = drawn.start.ip;
        for insn in Decoder::with_ip(64, &drawn.case.code, ip, DecoderOptions::NONE).iter() {
            formatter.format(&insn, &mut listing);
            listing.push_str("; ");
        }
        let plain = drawn.plain.as_ref().expect("it was executed plain first");
        self.failures.push(format!(
            "case {} by {method:?}: {difference}\n  {listing}\n  {:x?}\n  plain: {:x?}\n  \
             probed: {:x?}\n  \
             replay: fuzz.seed={:#x} fuzz.case={} on the kernel command line",
            drawn.number, drawn.case, plain.0, probed.0, self.seed, drawn.number,
        ));
        if self.failures.len() >= MOST_FAILURES {
            self.report();
        }
    }

    /// Panics if cases differ.
    fn report(&self) {
        assert!(
            self.failures.is_empty(),
            "{} cases of seed {:#x} differ:\n{}",
            self.failures.len(),
            self.seed,
            self.failures.join("\n")
        );
    }
}

/// The differences between a probed execution and the plain one.
fn judge(drawn: &Drawn, method: Method, (ending, memory): &(Ending, Memory)) -> Result<(), String> {
    let (before, hits) = BEFORE.take();
    let (after, post_hits) = AFTER.take();
    let (plain, plain_memory) = drawn.plain.as_ref().expect("it was executed plain first");
    let case = &drawn.case;
    // A program that a trap finds at an address which it may not have goes on at the first such
    // address, so it faults there.
    let is_moved = method == Method::Post
        && plain.regs.ip >= USER_END
        && ending.regs.ip == USER_END
        && ending.exception.vector == vector::PAGE_FAULT;
    if plain.exception != ending.exception && !is_moved {
        return Err("exception".into());
    }
    let expected = PtRegs {
        ip: if is_moved { USER_END } else { plain.regs.ip },
        ..plain.regs
    };
    let faults = plain.regs.ip == drawn.start.ip && plain.exception.vector != vector::BREAKPOINT;
    // The trap of a step that the instruction did not live to see.
    let stepped = if method == Method::Post && faults {
        TF
    } else {
        0
    };
    let status = if case.unpredictable.flags { STATUS } else { 0 };
    same_registers(
        "",
        &expected,
        &ending.regs,
        case.unpredictable.registers,
        status | stepped | NOT_KEPT,
    )?;
    if plain_memory.window != memory.window {
        return Err("memory".into());
    }
    let live = live_stack();
    // The replacement of a call writes below its return address.
    let is_call = case.instruction.is_call_near() || case.instruction.is_call_near_indirect();
    let red_zone = if is_call { 0 } else { RED_ZONE };
    let dead = (plain.regs.sp.saturating_sub(red_zone)).max(case.dead_below);
    let dead = dead.clamp(live.start, live.end) - live.start;
    let words = plain_memory.stack.iter().zip(&memory.stack);
    for (n, (a, b)) in words.enumerate() {
        let dead = (dead as usize).saturating_sub(8 * n).min(8);
        if dead < 8 && (a ^ b) >> (8 * dead) != 0 {
            return Err(format!("stack word {:#x}", live.start + 8 * n as u64));
        }
    }
    // A loop to itself is hit each time around.
    let repeats = case.instruction.near_branch64() == drawn.start.ip;
    if hits != 1 && !(repeats && hits > 1) {
        return Err(format!("the handler ran {hits} times"));
    }
    same_registers("the handler's", &drawn.start, &before, 0, 0)?;
    let expected = if method == Method::Post && !faults {
        hits
    } else {
        0
    };
    // Where nothing can be fetched, the emulator tells the fault before the trap of the step.
    let goes_nowhere = plain.exception.vector == vector::PAGE_FAULT
        && plain.regs.ip == plain.exception.address
        || plain.exception.vector == vector::GENERAL_PROTECTION;
    if post_hits != expected && !goes_nowhere {
        return Err(format!("the post handler ran {post_hits} times"));
    }
    let is_alone = case.code.len() == case.first_len();
    if post_hits == 1 && is_alone && plain.exception.vector == vector::BREAKPOINT {
        let (next, at) = (case.instruction.next_ip(), plain.regs.ip - 1);
        let ip = if at == next + NOP.len() as u64 {
            next
        } else {
            at
        };
        let expected = PtRegs { ip, ..plain.regs };
        same_registers(
            "the post handler's",
            &expected,
            &after,
            case.unpredictable.registers,
            status | NOT_KEPT,
        )?;
    }
    Ok(())
}

/// Executes `count` cases of `seed`, or those that the command line wants.
fn fuzz(seed: u64, count: u64) {
    let mut fuzz = Fuzz {
        seed: parameter("fuzz.seed").unwrap_or(seed),
        counts: Counts::default(),
        failures: Vec::new(),
    };
    let first = parameter("fuzz.case");
    let count = parameter("fuzz.count").unwrap_or(if first.is_some() { 1 } else { count });
    let mut from = first.unwrap_or(0);
    let end = from + count;
    while from < end {
        let to = end.min(from + PLACES as u64);
        fuzz.run(from..to);
        from = to;
        if from == end || from.is_multiple_of(64 * PLACES as u64) {
            pr_info!(
                "fuzz: seed {:#x}, {from} of {end} cases in ring 3, {} differ: {:?}",
                fuzz.seed,
                fuzz.failures.len(),
                fuzz.counts
            );
        }
    }
    fuzz.report();
    assert_eq!((fuzz.counts.slot, fuzz.counts.post), (count, count));
    assert!(fuzz.counts.faults > count / 20 || count < 1000);
}

/// Whatever the instruction of a program is, whether it is probed makes no difference.
#[guest_test(smp = 1, timeout = 300)]
fn random_instructions_of_programs_do_the_same_probed_and_unprobed() {
    fuzz(0x7570_726f_6265_7331, 10_000);
}

/// The same for a million cases, of another seed.
#[guest_test(smp = 1, timeout = 14400, ignore)]
fn a_million_random_instructions_of_programs_do_the_same_probed_and_unprobed() {
    fuzz(0x7072_6f67, 1_000_000);
}
