//! The world as a displaced instruction finds it during a hit, and whatever comes on top of it: the
//! same as without a probe.
//!
//! A hit whose post handler waits is not over while the instruction runs. The kernel's own code
//! asks in many places whether a handler runs, by one read of per-CPU data, and any of these reads
//! may be the probed instruction.

use crate::tools::preserved_registers::{pop_preserved, push_preserved};
use alloc::{boxed::Box, vec::Vec};
use core::{
    arch::{asm, naked_asm},
    hint::black_box,
    ptr,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use kernel::{
    arch::{
        idt::vector,
        percpu, smp,
        traps::{self, Exception},
    },
    probes::{
        Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs, Registered, ReturnMethod,
        StepMethod, register, register_kprobes, survey, unregister_kprobes,
    },
    symbols::{self, Address, SymbolKind},
    task,
};
use x86_64::instructions::interrupts::{self, without_interrupts};

/// An instruction that reads per-CPU data and writes nothing but a register or the flags.
struct Read {
    instruction: Instruction,
    /// The word that is read: offset from the GS base, bytes.
    offset: usize,
    len: usize,
}

impl Read {
    fn of(instruction: Instruction) -> Option<Self> {
        let is_operand = |n| instruction.op_kind(n) == OpKind::Memory;
        let at_fixed_offset = instruction.segment_prefix() == Register::GS
            && (0..instruction.op_count()).any(is_operand)
            && instruction.memory_base() == Register::None
            && instruction.memory_index() == Register::None;
        if !at_fixed_offset {
            return None;
        }
        match instruction.mnemonic() {
            Mnemonic::Mov if is_operand(1) => {}
            Mnemonic::Cmp if is_operand(0) && instruction.op_kind(1) == OpKind::Immediate8to32 => {}
            // They write what they read.
            Mnemonic::Mov | Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Xchg => return None,
            _ => panic!(
                "the test does not know what {:?} at {} reads",
                instruction.code(),
                Address::of_instruction(instruction.ip())
            ),
        }
        Some(Self {
            instruction,
            offset: instruction.memory_displacement64() as usize,
            len: instruction.memory_size().size(),
        })
    }

    /// The word that the calling CPU has there. Interrupts off.
    fn value(&self) -> u64 {
        let mut bytes = [0; 8];
        let from = ptr::from_ref(percpu::this()).cast::<u8>();
        // SAFETY: inside the CPU's own data, as an instruction of the kernel reads it there, and
        // nothing else runs on the CPU.
        unsafe { ptr::copy_nonoverlapping(from.add(self.offset), bytes.as_mut_ptr(), self.len) };
        u64::from_le_bytes(bytes)
    }

    /// The effect of the instruction if it finds `value`, and the effect that it has had in
    /// `regs`.
    fn outcome(&self, value: u64, regs: &PtRegs) -> (u64, u64) {
        const ZF: u64 = 1 << 6;
        if self.instruction.mnemonic() == Mnemonic::Cmp {
            let equal = value as u32 == self.instruction.immediate32();
            return (u64::from(equal), u64::from(regs.flags & ZF != 0));
        }
        let registers = [
            regs.ax, regs.cx, regs.dx, regs.bx, regs.sp, regs.bp, regs.si, regs.di, regs.r8,
            regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ];
        let number = self.instruction.op0_register().full_register().number();
        (value, registers[number])
    }
}

/// The reads of per-CPU data in the kernel's text that can be probed.
fn reads() -> Vec<Read> {
    let mut reads = Vec::new();
    let mut end = 0;
    for symbol in symbols::functions().filter(|symbol| symbol.kind == SymbolKind::Text) {
        if symbol.start < end {
            // Another name for what was there already.
            continue;
        }
        end = symbol.start + symbol.size;
        let judged = survey::function(&symbol).unwrap();
        let accepted = judged.iter().filter(|judged| judged.verdict.is_ok());
        reads.extend(accepted.filter_map(|judged| {
            let (bytes, ip) = (judged.insn.bytes(), judged.insn.ip());
            Read::of(Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode())
        }));
    }
    reads
}

/// The stack pointer of the one that executes an instruction alone; 0: none does.
static STACK: AtomicU64 = AtomicU64::new(0);
/// The effect of the instruction.
static LEFT: kernel::sync::SpinLock<PtRegs> = kernel::sync::SpinLock::new(PtRegs::new());

unsafe extern "C" {
    static executed_alone: u8;
}

/// Goes to the instruction at `at`, after which [`come_back`] leads back. `stack` is told the
/// stack pointer there.
///
/// ```text
///   S       return address
///   S-0x08  rbx, rbp, r12 to r15      <- rsp at `at`
/// ```
///
/// # Safety
/// The instruction changes general registers and flags only, and has a probe with that post
/// handler.
#[unsafe(naked)]
unsafe extern "C" fn execute_alone(at: u64, stack: *mut u64) {
    naked_asm!(
        ".cfi_startproc",
        push_preserved!(),
        ".cfi_adjust_cfa_offset 48",
        "mov [rsi], rsp",
        "jmp rdi",
        ".globl executed_alone",
        "executed_alone:",
        pop_preserved!(),
        ".cfi_adjust_cfa_offset -48",
        "ret",
        ".cfi_endproc",
    )
}

fn come_back(_: &Kprobe, regs: &mut PtRegs, _: u64) {
    if regs.sp == STACK.load(Relaxed) {
        *LEFT.lock() = *regs;
        regs.ip = (&raw const executed_alone) as u64;
    }
}

/// Probes all `reads` with [`come_back`] while `body` runs.
fn with_probes(reads: &[Read], step: StepMethod, body: impl FnOnce(&[&'static Kprobe])) {
    let probe = |read: &Read| -> &'static Kprobe {
        let at = read.instruction.ip();
        Box::leak(Box::new(
            Kprobe::new().at(at).post(come_back).step_method(step),
        ))
    };
    let probes: Vec<_> = reads.iter().map(probe).collect();
    register_kprobes(&probes).unwrap();
    body(&probes);
    unregister_kprobes(&probes).unwrap();
    // SAFETY: made by `Box::leak` above, and not registered any more.
    probes
        .iter()
        .for_each(|probe| unsafe { drop(Box::from_raw(ptr::from_ref(*probe).cast_mut())) });
}

/// Each instruction of the kernel that reads per-CPU data reads the same with a post handler as
/// without a probe: the check for handlers finds none, as none runs.
#[guest_test(timeout = 120)]
fn reads_of_per_cpu_data_find_what_they_find_without_a_probe() {
    let reads = reads();
    let guard = ::probes::PerCpu::guard_gs_offset::<kernel::probes::Kernel>() as usize;
    let of_guard = reads.iter().filter(|read| read.offset == guard).count();
    assert!(
        of_guard > 50,
        "{of_guard} reads of the guard: the check is no longer a read of its own"
    );
    for step in [StepMethod::Translate, StepMethod::TrapFlag] {
        with_probes(&reads, step, |_| {
            for read in &reads {
                let (expected, found) = without_interrupts(|| {
                    let value = read.value();
                    // SAFETY: `Read::of` has accepted the instruction, and it is probed so.
                    unsafe { execute_alone(read.instruction.ip(), STACK.as_ptr()) };
                    STACK.store(0, Relaxed);
                    read.outcome(value, &LEFT.lock())
                });
                let at = Address::of_instruction(read.instruction.ip());
                assert_eq!(found, expected, "{at} with {step:?}");
            }
        });
    }
}

/// The same while the kernel goes about its work, which ends if a displaced check takes itself for
/// a handler.
#[guest_test(timeout = 120)]
fn the_kernel_works_with_a_post_handler_on_each_check_for_handlers() {
    let reads = reads();
    for step in [StepMethod::Translate, StepMethod::TrapFlag] {
        with_probes(&reads, step, |probes| {
            let hits = || probes.iter().map(|probe| probe.hits()).sum::<u64>();
            let (before, forks) = (hits(), 20);
            for _ in 0..forks {
                let thread = task::kthread::spawn_kthread("checked", || {
                    drop(black_box(Box::new([0_u8; 4096])))
                })
                .unwrap();
                thread.wait_released();
                task::sleep::sleep_ns(1);
            }
            // Each thread is made, switched to, allocates, ends and is waited for.
            assert!(
                hits() - before > 20 * forks,
                "{} hits with {step:?}",
                hits() - before
            );
        });
    }
}

fn schedule_returned(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {}

/// A probe on `schedule`, which begins with the check for handlers.
fn probe_on_schedule(at: u64, method: ReturnMethod) -> Registered<Box<Kretprobe<()>>> {
    let probe = Kretprobe::new()
        .at(at)
        .handler(schedule_returned)
        .step_method(StepMethod::TrapFlag);
    register(Box::new(probe.return_method(method))).unwrap()
}

/// `schedule` asks first of all whether a handler has called it.
#[guest_test]
fn schedule_can_be_probed_at_its_entry_by_every_method() {
    let at = task::schedule as *const () as u64;
    let call = || {
        for _ in 0..10 {
            task::schedule();
        }
    };
    for method in [ReturnMethod::Asm, ReturnMethod::Trap3, ReturnMethod::Trap4] {
        let probe = probe_on_schedule(at, method);
        call();
        assert!(
            probe.hits() >= 10,
            "{} returns with {method:?}",
            probe.hits()
        );
    }
    for step in [StepMethod::Translate, StepMethod::TrapFlag] {
        let probe = register(Box::new(
            Kprobe::new().at(at).post(come_back).step_method(step),
        ))
        .unwrap();
        call();
        assert!(probe.hits() >= 10, "{} hits with {step:?}", probe.hits());
    }
}

static WATCHED: AtomicU64 = AtomicU64::new(0);
/// How often the debugger was told, and what it had then called.
static TOLD: AtomicU64 = AtomicU64::new(0);
static POSTS: AtomicU64 = AtomicU64::new(0);
/// NMIs, and those that found a hit that was not over.
static NMIS: AtomicU64 = AtomicU64::new(0);
static NMIS_IN_HITS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

/// Writes `value` to `to` by its instruction at +0.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn writes_watched(value: u64, to: *mut u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov [rsi], rdi",       // +0
        "lea rax, [rdi + rdi]", // +3
        "ret",
        ".cfi_endproc",
    )
}

/// The function that is called on top of a displaced instruction. Its hits are paused, too.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn called_on_top(value: u64) -> u64 {
    black_box(value + 13)
}

fn count_post(_: &Kprobe, _: &mut PtRegs, _: u64) {
    POSTS.fetch_add(1, SeqCst);
}

fn debugger(_: &mut PtRegs, exception: &Exception) -> bool {
    // The match is told of once.
    end_watch();
    WRONG.fetch_add(u64::from(percpu::in_probe_handler()), SeqCst);
    TOLD.fetch_add(1, SeqCst);
    WRONG.fetch_add(u64::from(called_on_top(black_box(4)) != 17), SeqCst);
    exception.vector == vector::DEBUG
}

fn end_watch() {
    // SAFETY: no debug register is in force then, and none has matched.
    unsafe {
        asm!("mov dr7, {}", in(reg) 0x400_u64, options(nostack, preserves_flags));
        asm!("mov dr6, {}", in(reg) 0xffff_0ff0_u64, options(nostack, preserves_flags));
    }
}

/// Has the first access to `at` raise #DB on this CPU while `body` runs. Preemption or interrupts
/// off.
fn watching(at: u64, body: impl FnOnce()) {
    // DR7: DR0, for reads and writes of 8 bytes (Intel SDM vol. 3B, 17.2.4).
    // SAFETY: the debug registers only have the processor raise #DB, which `debugger` takes.
    unsafe {
        asm!(
            "mov dr0, {}",
            "mov dr7, {}",
            in(reg) at,
            in(reg) 0xb_0402_u64,
            options(nostack, preserves_flags)
        );
    }
    body();
    end_watch();
}

fn nmi(regs: &PtRegs) {
    NMIS.fetch_add(1, SeqCst);
    let is_displaced = PROBES.original_ip(regs.ip) != regs.ip
        || symbols::lookup_name("kprobe_post_stub").is_ok_and(|stub| stub.start == regs.ip);
    NMIS_IN_HITS.fetch_add(u64::from(is_displaced), SeqCst);
    WRONG.fetch_add(u64::from(called_on_top(black_box(4)) != 17), SeqCst);
}

/// The ways of a hit on top of a displaced instruction: by a breakpoint, in a post slot, stepped.
fn probes_on_top() -> [Registered<Box<Kprobe>>; 3] {
    let at = called_on_top as *const () as u64;
    let symbol = symbols::lookup_addr(at).unwrap();
    let instructions = survey::function(&symbol).unwrap();
    let probe = |number: usize| Kprobe::new().at(instructions[number].insn.ip());
    [
        probe(0).pre(|_, _| PreVerdict::Execute),
        probe(1).post(count_post),
        probe(2).post(count_post).step_method(StepMethod::TrapFlag),
    ]
    .map(|probe| register(Box::new(probe)).unwrap())
}

/// A watchpoint matches in a displaced instruction whose post handler waits. The hits that the
/// debugger then does hits probes as anything else does, with post handlers, and the hit below it
/// ends as it should, with the interrupt flag of its own. Not while it is stepped: QEMU tells of
/// the match alone, and never of the step, where a processor tells of both at once.
#[guest_test]
fn a_debugger_that_a_displaced_instruction_calls_hits_probes() {
    let at = WATCHED.as_ptr() as u64;
    let on_top = probes_on_top();
    let probe = Kprobe::new()
        .symbol("writes_watched")
        .post(count_post)
        .step_method(StepMethod::Translate);
    let probe = register(Box::new(probe)).unwrap();
    let write = || {
        watching(at, || {
            assert_eq!(writes_watched(black_box(21), WATCHED.as_ptr()), 42);
        });
        interrupts::are_enabled()
    };
    for (round, interrupts_are_on) in (1..).zip([false, true]) {
        for count in [&WATCHED, &TOLD, &POSTS, &WRONG] {
            count.store(0, SeqCst);
        }
        traps::set_exception_handler(Some(debugger));
        percpu::preempt_disable();
        let are_on = match interrupts_are_on {
            true => write(),
            false => without_interrupts(write),
        };
        percpu::preempt_enable();
        traps::set_exception_handler(None);
        assert_eq!(are_on, interrupts_are_on);
        assert_eq!(
            (WATCHED.load(SeqCst), TOLD.load(SeqCst), WRONG.load(SeqCst)),
            (21, 1, 0)
        );
        // Its own, and two of the function that the debugger calls.
        let hits = (POSTS.load(SeqCst), probe.hits(), probe.nmissed());
        assert_eq!(hits, (3, round, 0));
        for probe in &on_top {
            assert_eq!((probe.hits(), probe.nmissed()), (round, 0));
        }
    }
}

/// Jumps to the address that is at `from`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn jumps_by_watched(from: *const u64) {
    naked_asm!(
        ".cfi_startproc",
        "jmp [rdi]", // +0
        "ret",       // +2
        ".cfi_endproc",
    )
}

/// The stack pointer that the probed code has.
static OWN_STACK: AtomicU64 = AtomicU64::new(0);

/// The same where the displaced instruction leads to an address that the processor refuses. The
/// hit is given up then, and the exception finds the stack as the instruction had it.
#[guest_test]
fn a_debugger_that_a_displaced_jump_to_nowhere_calls_hits_probes() {
    fn note_stack(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        OWN_STACK.store(regs.sp, SeqCst);
        PreVerdict::Execute
    }
    fn debugger_of_jump(regs: &mut PtRegs, exception: &Exception) -> bool {
        if exception.vector == vector::DEBUG {
            return debugger(regs, exception);
        }
        TOLD.fetch_add(100, SeqCst);
        let stack = OWN_STACK.load(SeqCst);
        WRONG.fetch_add(u64::from(regs.sp != stack), SeqCst);
        (regs.ip, regs.sp) = (jumps_by_watched as *const () as u64 + 2, stack);
        true
    }
    let on_top = probes_on_top();
    let probe = Kprobe::new()
        .symbol("jumps_by_watched")
        .pre(note_stack)
        .post(count_post)
        .step_method(StepMethod::Translate);
    let probe = register(Box::new(probe)).unwrap();
    for count in [&TOLD, &POSTS, &WRONG] {
        count.store(0, SeqCst);
    }
    WATCHED.store(1 << 63, SeqCst);
    traps::set_exception_handler(Some(debugger_of_jump));
    without_interrupts(|| {
        watching(WATCHED.as_ptr() as u64, || {
            jumps_by_watched(WATCHED.as_ptr())
        })
    });
    traps::set_exception_handler(None);
    // A match, and the exception of the jump.
    assert_eq!((TOLD.load(SeqCst), WRONG.load(SeqCst)), (101, 0));
    // Those of the function that the debugger calls.
    assert_eq!((POSTS.load(SeqCst), probe.hits()), (2, 1));
    drop(on_top);
}

/// The same with an NMI, which the CPU sends itself by a displaced store.
#[guest_test]
fn an_nmi_on_top_of_a_displaced_instruction_hits_probes() {
    for step in [StepMethod::Translate, StepMethod::TrapFlag] {
        let on_top = probes_on_top();
        let mut senders = Vec::new();
        for name in [
            "kernel::arch::x86_64::apic::send_nmi",
            "kernel::arch::x86_64::smp::send_nmi",
        ] {
            // The compiler may have put one into the other.
            let Ok(symbol) = symbols::lookup_name(name) else {
                continue;
            };
            for judged in survey::function(&symbol).unwrap() {
                let probe = Kprobe::new()
                    .at(judged.insn.ip())
                    .post(count_post)
                    .step_method(step);
                senders.extend(
                    judged
                        .verdict
                        .ok()
                        .map(|()| register(Box::new(probe)).unwrap()),
                );
            }
        }
        assert!(
            !senders.is_empty(),
            "{step:?}: the sender is not a function any more"
        );
        for count in [&POSTS, &NMIS, &NMIS_IN_HITS, &WRONG] {
            count.store(0, SeqCst);
        }
        traps::set_nmi_handler(Some(nmi));
        let mut sent = 0;
        // A step's own trap comes before the NMI, which finds a handler then.
        while sent < 10 || step == StepMethod::Translate && NMIS_IN_HITS.load(SeqCst) == 0 {
            without_interrupts(|| smp::send_nmi(percpu::cpu_id()));
            sent += 1;
            while NMIS.load(SeqCst) < sent {
                core::hint::spin_loop();
            }
        }
        traps::set_nmi_handler(None);
        assert_eq!(
            (NMIS.load(SeqCst), WRONG.load(SeqCst)),
            (sent, 0),
            "{step:?}"
        );
        let posts: u64 = senders
            .iter()
            .chain(&on_top[1..])
            .map(|probe| probe.hits())
            .sum();
        assert_eq!(POSTS.load(SeqCst), posts, "each hit had its post handler");
        for probe in &on_top {
            assert_eq!(probe.hits() + probe.nmissed(), sent, "{step:?}");
        }
        assert!(senders.iter().all(|probe| probe.nmissed() == 0));
        assert!(step == StepMethod::TrapFlag || on_top.iter().all(|probe| probe.hits() > 0));
    }
}
