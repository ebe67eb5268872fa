//! Random instructions in ring 0, plain and probed: what they leave behind is the same.
//!
//! Each case ([`instruction_cases::Case`]) is executed from its registers, flags and memory: plain,
//! by a breakpoint with a pre handler (out of line in its slot), with a post handler too,
//! single-stepped, and by a jump where it can be displaced. Registers, flags, memory and the
//! exception that ended it (vector, error code, address) must be equal, and handlers must have seen
//! the registers before and after. Flags that the manual leaves undefined are compared too.
//!
//! # Replaying a case
//! A failure names the seed and the case. `fuzz.seed=S fuzz.case=N` on the kernel command line
//! executes that one alone, `fuzz.count=N` sets how many are executed from case `fuzz.case` on, and
//! `fuzz.list=1` logs each before it is executed, to tell which one it was that ended the kernel.

use crate::{
    instructions::case_methods::{AFTER, BEFORE, Method},
    instructions::case_outcome::{Memory, Outcome, System, WORDS, same_registers, start},
    instructions::case_runner::{self, Runner, SLOTS},
    platform::suite::flags::{STATUS, TF},
};
use alloc::{format, string::String, vec::Vec};
use core::{arch::asm, cell::UnsafeCell, ops::Range, ptr};
use iced_x86::{Decoder, DecoderOptions, FastFormatter};
use instruction_cases::{Case, Ground, HARMLESS_PORT, Random};
use kernel::{
    arch::idt::vector,
    cmdline,
    mm::paging::{TEXT_POOL_END, TEXT_POOL_START},
    mm::{kernel_stack::KernelStack, paging},
    pr_info,
    probes::{Kprobe, PROBES, PtRegs, register_kprobes, unregister_kprobes},
};
use probes::insn::{Ending, Insn, SLOT_BYTES, classify, decode, translate};
use x86_64::{VirtAddr, instructions::port::PortWriteOnly, registers::model_specific::GsBase};

/// DR6 after reset (Intel SDM vol. 3A, table 9-1).
const NO_DEBUG_STATUS: u64 = 0xffff_0ff0;

/// Bytes of a window, and of the stack that is compared.
const WINDOW_BYTES: u64 = 8 * WORDS as u64;
/// Where code begins in a slot, at least: breakpoints come before it.
const FIRST_OFFSET: u64 = 20;
/// So many cases that differ are enough.
const MOST_FAILURES: usize = 12;
/// A no-operation as long as a jump, after the code of each case.
pub const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// Writable memory where a displacement reaches it.
#[repr(C, align(64))]
struct Window(UnsafeCell<[u64; WORDS]>);

// SAFETY: only cases access it, and tests run one at a time.
unsafe impl Sync for Window {}

static NEAR: Window = Window(UnsafeCell::new([0; WORDS]));

/// A case in its slot.
struct Drawn {
    number: u64,
    slot: usize,
    case: Case,
    start: PtRegs,
    memory: Memory,
    /// How many instructions drawn before may not be probed.
    refused: u64,
    /// The outcome unprobed.
    plain: Option<Outcome>,
}

/// The cases that were executed, by method, and those that were not.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    slot: u64,
    post: u64,
    step: u64,
    jump: u64,
    faults: u64,
    refused: u64,
}

/// Whether replacements fit into each slot. Many prefixes and a target beyond the kernel's 2 GiB do
/// not, nor does an operand relative to RIP that is out of a slot's reach.
fn fits_slots(insn: &Insn) -> bool {
    let post = Ending::Post {
        stub: insn.ip(),
        saved_flags: None,
    };
    let slots = [TEXT_POOL_START, TEXT_POOL_END - SLOT_BYTES as u64];
    slots.iter().all(|&slot| {
        [Ending::Resume, post].iter().all(|&ending| {
            translate(insn, slot, ending).is_ok_and(|code| code.code().len() <= SLOT_BYTES)
        })
    })
}

struct Fuzz {
    seed: u64,
    runner: Runner,
    stack: KernelStack,
    edges: KernelStack,
    gs_base: u64,
    system: System,
    counts: Counts,
    /// Whether cases are logged.
    lists: bool,
    /// One text for each case that differs.
    failures: Vec<String>,
}

impl Fuzz {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            runner: Runner::new(),
            stack: KernelStack::new().unwrap(),
            edges: KernelStack::new().unwrap(),
            gs_base: GsBase::read().as_u64(),
            system: System::now(),
            counts: Counts::default(),
            lists: parameter("fuzz.list") == Some(1),
            failures: Vec::new(),
        }
    }

    fn windows(&self) -> [Range<u64>; 3] {
        let (near, edges) = (NEAR.0.get() as u64, self.edges.range());
        [
            near..near + WINDOW_BYTES,
            edges.start..edges.start + WINDOW_BYTES,
            edges.end - WINDOW_BYTES..edges.end,
        ]
    }

    /// The live part of the stack.
    fn live_stack(&self) -> Range<u64> {
        let end = self.stack.range().end;
        end - WINDOW_BYTES..end
    }

    /// Case number `number`.
    fn draw(&self, number: u64) -> Drawn {
        let slot = number as usize % SLOTS;
        let bytes = case_runner::slot(slot);
        let at = bytes.start + FIRST_OFFSET + number % 8;
        let windows = self.windows();
        let ground = Ground {
            at,
            own: bytes,
            landing: case_runner::landing(),
            windows: &windows,
            stack: self.live_stack(),
            fs_base: self.system.fs_base,
            gs_base: self.gs_base,
            holes: &[
                0,
                0x1234_5678_0000,
                0x8000_0000_0000,
                0xffff_fff0_0000_0000,
                1 << 63,
            ],
            is_mapped: &|address| {
                paging::translate_kernel(VirtAddr::new_truncate(address)).is_some()
            },
            ring0: true,
            emulated: true,
        };
        let mut random = Random::of_case(self.seed, number);
        let mut refused = 0;
        let case = loop {
            let Some(case) = Case::draw(&mut random, &ground) else {
                continue;
            };
            let mut code = case.code.to_vec();
            code.extend(NOP);
            // The probes refuse an instruction that they cannot decode.
            let Ok(insn) = decode(&code, at) else {
                refused += 1;
                continue;
            };
            match classify(&insn, &code[insn.len()..]) {
                Ok(_) if fits_slots(&insn) => break case,
                Ok(_) | Err(_) => refused += 1,
            }
        };
        let mut memory = Memory {
            window: [0; WORDS],
            stack: [0; WORDS],
        };
        case.fill(windows[case.window].start, &mut memory.window);
        case.fill(self.live_stack().start, &mut memory.stack);
        Drawn {
            number,
            slot,
            start: start(&case),
            case,
            memory,
            refused,
            plain: None,
        }
    }

    /// Executes a case as it is in the text now.
    fn execute(&mut self, drawn: &Drawn) -> Outcome {
        if self.lists {
            pr_info!("fuzz: case {}: {:x?}", drawn.number, drawn.case);
        }
        for port in 0..4 {
            // As wide as an access may be: what an earlier case wrote there may be read by this
            // one. SAFETY: nothing uses these ports, nor the memory access that they once belonged
            // to.
            unsafe { PortWriteOnly::new(u16::from(HARMLESS_PORT) + port).write(0u8) };
        }
        // SAFETY: the debug status only reports, and what an earlier case's trap has left there may
        // be read by this one.
        unsafe {
            asm!("mov dr6, {}", in(reg) NO_DEBUG_STATUS, options(nomem, nostack, preserves_flags))
        };
        let window = self.windows()[drawn.case.window].start as *mut [u64; WORDS];
        let stack = self.live_stack().start as *mut [u64; WORDS];
        // SAFETY: windows and stack are memory of this test, mapped and aligned. Nothing refers to
        // them. A case keeps to them, and has the rest of its stack below the live part; see
        // `instruction_cases`.
        let (ending, memory) = unsafe {
            ptr::copy_nonoverlapping(&drawn.memory.window, window, 1);
            ptr::copy_nonoverlapping(&drawn.memory.stack, stack, 1);
            let ending = self.runner.run(&drawn.start);
            let memory = Memory {
                window: *window,
                stack: *stack,
            };
            (ending, memory)
        };
        let system = drawn.case.touches_system.then(System::now);
        if system.is_some() {
            self.system.restore();
        }
        Outcome {
            ending,
            memory,
            system,
        }
    }

    /// Executes `batch` by `method` and compares.
    fn compare(&mut self, batch: &[Drawn], method: Method) {
        let suited = || batch.iter().filter(|drawn| method.suits(&drawn.case));
        let probes: Vec<&'static Kprobe> = suited()
            .map(|drawn| {
                let probe = &method.probes()[drawn.slot];
                probe.set_addr(drawn.start.ip);
                probe
            })
            .collect();
        register_kprobes(&probes)
            .unwrap_or_else(|error| panic!("of a batch from case {}: {error}", batch[0].number));
        for drawn in suited() {
            // SAFETY: the first byte of the code under test.
            let first = unsafe { (drawn.start.ip as *const u8).read_volatile() };
            if (first == 0xe9 && !drawn.case.code.starts_with(&[0xe9])) != (method == Method::Jump)
            {
                assert_eq!(method, Method::Jump, "no jump is allowed here");
                continue;
            }
            let probed = self.execute(drawn);
            let (before, hits) = BEFORE.take();
            let after = AFTER.take();
            if let Err(difference) = self.judge(drawn, method, &probed, (&before, hits), after) {
                self.fail(drawn, method, &probed, &difference);
            }
            *match method {
                Method::Slot => &mut self.counts.slot,
                Method::Post => &mut self.counts.post,
                Method::Step => &mut self.counts.step,
                Method::Jump => &mut self.counts.jump,
            } += 1;
        }
        unregister_kprobes(&probes).unwrap();
    }

    /// The differences between `probed` and the same unprobed.
    fn judge(
        &self,
        drawn: &Drawn,
        method: Method,
        probed: &Outcome,
        (before, hits): (&PtRegs, u32),
        (after, post_hits): (PtRegs, u32),
    ) -> Result<(), String> {
        let plain = drawn.plain.as_ref().expect("it was executed plain first");
        self.difference(drawn, plain, probed)?;
        // A loop to itself is hit each time around.
        let repeats = drawn.case.instruction.near_branch64() == drawn.start.ip;
        if hits != 1 && !(repeats && hits > 1) {
            return Err(format!("the pre handler ran {hits} times"));
        }
        let expected = PtRegs {
            ip: drawn.start.ip + 1,
            ..drawn.start
        };
        same_registers("the pre handler's", &expected, before, 0, 0)?;
        let (start, end) = (&drawn.start, &plain.ending);
        let is_stepped = end.exception.vector == vector::DEBUG;
        let faults =
            end.exception.vector != vector::BREAKPOINT && !is_stepped && end.regs.ip == start.ip;
        // A branch to no address is the branch's own fault, but the emulator tells it of the
        // target.
        let goes_nowhere = VirtAddr::try_new(end.regs.ip).is_err();
        let faults = faults || goes_nowhere;
        let expected_hits = if method.has_post_handler() && !faults {
            hits
        } else {
            0
        };
        if post_hits != expected_hits && !repeats && !goes_nowhere {
            return Err(format!("the post handler ran {post_hits} times"));
        }
        let is_alone = drawn.case.code.len() == drawn.case.first_len();
        let is_breakpoint = end.exception.vector == vector::BREAKPOINT;
        // The trap after the instruction itself; the one of a TF that it sets comes later.
        let is_stepped = start.flags & TF != 0 && end.exception.vector == vector::DEBUG;
        if post_hits == 1 && (is_stepped || is_alone && is_breakpoint) {
            let next = drawn.case.instruction.next_ip();
            let at = end.regs.ip - u64::from(is_breakpoint);
            let ip = if at == next + NOP.len() as u64 {
                next
            } else {
                at
            };
            let expected = PtRegs { ip, ..end.regs };
            let unpredictable = drawn.case.unpredictable;
            same_registers(
                "the post handler's",
                &expected,
                &after,
                unpredictable.registers,
                if unpredictable.flags { STATUS } else { 0 },
            )?;
        }
        Ok(())
    }

    fn difference(&self, drawn: &Drawn, plain: &Outcome, probed: &Outcome) -> Result<(), String> {
        let unpredictable = drawn.case.unpredictable;
        if plain.ending.exception != probed.ending.exception {
            return Err("exception".into());
        }
        same_registers(
            "",
            &plain.ending.regs,
            &probed.ending.regs,
            unpredictable.registers,
            if unpredictable.flags { STATUS } else { 0 },
        )?;
        if plain.system != probed.system {
            return Err("system registers".into());
        }
        if plain.memory.window != probed.memory.window {
            return Err("memory".into());
        }
        // Below the stack pointer nothing is alive.
        let live = self.live_stack();
        let dead = plain.ending.regs.sp.max(drawn.case.dead_below);
        let dead = dead.clamp(live.start, live.end) - live.start;
        let words = plain.memory.stack.iter().zip(&probed.memory.stack);
        for (n, (a, b)) in words.enumerate() {
            let dead = (dead as usize).saturating_sub(8 * n).min(8);
            if dead < 8 && (a ^ b) >> (8 * dead) != 0 {
                return Err(format!("stack word {:#x}", live.start + 8 * n as u64));
            }
        }
        Ok(())
    }

    /// Notes a case that differs.
    fn fail(&mut self, drawn: &Drawn, method: Method, probed: &Outcome, difference: &str) {
        let mut listing = String::new();
        let mut formatter = FastFormatter::new();
        let ip = drawn.start.ip;
        for insn in Decoder::with_ip(64, &drawn.case.code, ip, DecoderOptions::NONE).iter() {
            formatter.format(&insn, &mut listing);
            listing.push_str("; ");
        }
        let plain = drawn.plain.as_ref().expect("it was executed plain first");
        self.failures.push(format!(
            "case {} by {method:?}: {difference}\n  {listing}\n  {:x?}\n  plain: {}\n  \
             probed: {}\n  \
             replay: fuzz.seed={:#x} fuzz.case={} on the kernel command line",
            drawn.number,
            drawn.case,
            self.show(drawn, plain),
            self.show(drawn, probed),
            self.seed,
            drawn.number,
        ));
        if self.failures.len() >= MOST_FAILURES {
            self.report();
        }
    }

    /// Registers, and the words of memory that are not as they were at the start.
    fn show(&self, drawn: &Drawn, outcome: &Outcome) -> String {
        let Outcome {
            ending,
            memory,
            system,
        } = outcome;
        let mut text = format!("{:x?} {:x?}", ending.exception, ending.regs);
        if let Some(system) = system {
            text += &format!(" {system:x?}");
        }
        let window = self.windows()[drawn.case.window].start;
        for (start, before, after) in [
            (window, &drawn.memory.window, &memory.window),
            (self.live_stack().start, &drawn.memory.stack, &memory.stack),
        ] {
            for (n, (before, after)) in before.iter().zip(after).enumerate() {
                let address = start + 8 * n as u64;
                let is_dead = start == self.live_stack().start && address < ending.regs.sp;
                if before != after && !is_dead {
                    text += &format!(" [{address:#x}] {after:#x}");
                }
            }
        }
        text
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

    /// Executes the cases of `numbers`, plain and by `methods`.
    fn run(&mut self, numbers: Range<u64>, methods: &[Method]) {
        let mut from = numbers.start;
        while from < numbers.end {
            let to = numbers.end.min(from + SLOTS as u64);
            let mut batch = Vec::with_capacity(SLOTS);
            batch.extend((from..to).map(|number| self.draw(number)));
            for drawn in &mut batch {
                let code = [&drawn.case.code[..], &NOP].concat();
                case_runner::write(drawn.slot, drawn.start.ip, &code);
                let plain = self.execute(drawn);
                if methods.contains(&Method::Slot) {
                    let faulted = plain.ending.exception.vector != vector::BREAKPOINT;
                    self.counts.faults += u64::from(faulted);
                    self.counts.refused += drawn.refused;
                }
                drawn.plain = Some(plain);
            }
            for &method in methods {
                self.compare(&batch, method);
            }
            for drawn in &batch {
                case_runner::write(drawn.slot, drawn.start.ip, &[]);
            }
            from = to;
        }
    }
}

/// A number of the command line.
pub fn parameter(name: &str) -> Option<u64> {
    let text = cmdline::get(name)?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Executes `count` cases of `seed` by all methods, or those that the command line wants.
fn fuzz(seed: u64, count: u64) {
    let mut fuzz = Fuzz::new(parameter("fuzz.seed").unwrap_or(seed));
    let first = parameter("fuzz.case");
    let count = parameter("fuzz.count").unwrap_or(if first.is_some() { 1 } else { count });
    let mut from = first.unwrap_or(0);
    let end = from + count;
    while from < end {
        // Switching the optimisation is logged and pays two waits.
        const STRETCH: u64 = 40 * SLOTS as u64;
        let numbers = from..end.min(from + STRETCH);
        from = numbers.end;
        PROBES.set_optimization(false).unwrap();
        fuzz.run(numbers.clone(), &[Method::Slot, Method::Post, Method::Step]);
        PROBES.set_optimization(true).unwrap();
        fuzz.run(numbers, &[Method::Jump]);
        pr_info!(
            "fuzz: seed {:#x}, {from} of {end} cases, {} differ: {:?}",
            fuzz.seed,
            fuzz.failures.len(),
            fuzz.counts
        );
    }
    fuzz.report();
    assert_eq!(fuzz.counts.slot, count);
    assert!(fuzz.counts.post > count / 16 * 15);
    assert!(fuzz.counts.step > count / 16 * 15);
    assert!(
        fuzz.counts.jump > count / 2 || count < 1000,
        "{:?}",
        fuzz.counts
    );
}

/// Whatever the instruction is, whether it is probed makes no difference.
#[guest_test(smp = 1, timeout = 900)]
fn random_instructions_do_the_same_probed_and_unprobed() {
    fuzz(0x6b70_726f_6265_7331, 50_000);
}

/// The same for a million cases, of another seed.
#[guest_test(smp = 1, timeout = 14400, ignore)]
fn a_million_random_instructions_do_the_same_probed_and_unprobed() {
    fuzz(0x6c6f_6e67, 1_000_000);
}
