//! Interrupts come while a task is in a slot: it stays on its CPU, and the slot stays as long as
//! the task is in it.

use super::{count_before, frame_of, spawn_on, troubled_target};
use alloc::{boxed::Box, sync::Arc, vec, vec::Vec};
use core::{
    arch::naked_asm,
    hint::{self, black_box},
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::percpu,
    probes::{Kprobe, PROBES, PreVerdict, PtRegs, register},
    symbols,
};

/// Fills `len` bytes at `to`, by one instruction at +5 that takes long: interrupts come in the
/// middle of it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn fill_slowly(to: *mut u8, byte: u8, len: usize) {
    naked_asm!(
        ".cfi_startproc",
        "mov rcx, rdx", // +0
        "mov eax, esi", // +3
        "rep stosb",    // +5
        "ret",          // +7
        ".cfi_endproc",
    )
}

/// The offset of its `rep stosb`.
const FILLING: u32 = 5;
/// Long enough for many ticks.
const LEN: usize = 4 << 20;

/// Whether the probed code that an interrupt has found at these registers was in a slot of
/// [`fill_slowly`].
fn in_slot_of_filling(regs: &PtRegs) -> bool {
    let at = PROBES.original_ip(regs.ip);
    at != regs.ip && symbols::lookup_addr(at).is_some_and(|symbol| symbol.name == "fill_slowly")
}

/// Ticks come while a task is in a slot, and another task waits for the CPU: it does not get it
/// before the slot is left, and gets it then.
#[guest_test(timeout = 120)]
fn a_task_is_interrupted_but_not_switched_away_from_in_a_slot() {
    /// How far the other task has come.
    static OTHER: AtomicU64 = AtomicU64::new(0);
    /// The same at the last tick in the slot, and how much was left to fill then.
    static OTHER_THEN: AtomicU64 = AtomicU64::new(0);
    static LEFT_THEN: AtomicU64 = AtomicU64::new(0);
    /// How many pairs of ticks came in one execution of the instruction, and in how many of them
    /// the other task ran.
    static PAIRS: AtomicU64 = AtomicU64::new(0);
    static SWITCHED: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    fn tick(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let interrupted = frame_of(regs);
        if percpu::cpu_id() != 1 || !in_slot_of_filling(interrupted) {
            return PreVerdict::Execute;
        }
        let other = OTHER.load(SeqCst);
        let left_then = LEFT_THEN.swap(interrupted.cx, SeqCst);
        let other_then = OTHER_THEN.swap(other, SeqCst);
        // With less left than before, it is the same execution.
        if interrupted.cx < left_then {
            PAIRS.fetch_add(1, SeqCst);
            SWITCHED.fetch_add(u64::from(other != other_then), SeqCst);
        }
        PreVerdict::Execute
    }
    let probe = register(Box::new(
        Kprobe::new()
            .symbol("fill_slowly")
            .offset(FILLING)
            .pre(count_before),
    ))
    .unwrap();
    let ticks = register(Box::new(Kprobe::new().symbol("timer_interrupt").pre(tick))).unwrap();
    let other = spawn_on(1, || {
        while !STOP.load(SeqCst) {
            OTHER.fetch_add(1, SeqCst);
        }
    });
    let filler = spawn_on(1, || {
        let mut memory: Vec<u8> = vec![0; LEN];
        while PAIRS.load(SeqCst) < 10 || OTHER.load(SeqCst) < 1_000 {
            // A new execution starts with all there is.
            LEFT_THEN.store(0, SeqCst);
            // SAFETY: the memory is that long.
            unsafe { fill_slowly(memory.as_mut_ptr(), 0x5a, LEN) };
            assert!(memory.iter().all(|byte| *byte == 0x5a));
            memory.fill(0);
        }
        STOP.store(true, SeqCst);
    });
    filler.wait_released();
    other.wait_released();
    assert_eq!(
        SWITCHED.load(SeqCst),
        0,
        "of {} pairs of ticks",
        PAIRS.load(SeqCst)
    );
    assert!(probe.hits() > 0 && probe.nmissed() == 0);
    drop((ticks, probe));
}

/// A task is interrupted in a slot, and a probe's handler runs on top of the interrupt, when the
/// slot's probe is unregistered by another CPU. The slot lives until the task has left it.
#[guest_test(timeout = 120)]
fn a_slot_below_interrupt_frames_outlives_its_probe() {
    static ARMED: AtomicBool = AtomicBool::new(false);
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static TEXT: AtomicU64 = AtomicU64::new(0);
    fn tick(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let interrupted = frame_of(regs);
        // Early in the instruction: it has long to go when this handler is done.
        let early = interrupted.cx as usize > LEN / 2;
        if percpu::cpu_id() == 1
            && in_slot_of_filling(interrupted)
            && early
            && ARMED.swap(false, SeqCst)
        {
            INSIDE.store(true, SeqCst);
            // SAFETY: text of the kernel.
            while unsafe { (TEXT.load(SeqCst) as *const u8).read_volatile() } == 0xcc {
                hint::spin_loop();
            }
        }
        PreVerdict::Execute
    }
    TEXT.store(
        symbols::lookup_name("fill_slowly").unwrap().start + u64::from(FILLING),
        SeqCst,
    );
    let ticks = register(Box::new(Kprobe::new().symbol("timer_interrupt").pre(tick))).unwrap();
    for round in 1..=5u8 {
        let memory: Arc<Vec<AtomicU64>> =
            Arc::new((0..LEN / 8).map(|_| AtomicU64::new(0)).collect());
        let probe = register(Box::new(
            Kprobe::new()
                .symbol("fill_slowly")
                .offset(FILLING)
                .pre(count_before),
        ))
        .unwrap();
        INSIDE.store(false, SeqCst);
        ARMED.store(true, SeqCst);
        let full = u64::from_ne_bytes([round; 8]);
        let filler = {
            let memory = memory.clone();
            spawn_on(1, move || {
                while !INSIDE.load(SeqCst) {
                    memory.iter().for_each(|word| word.store(0, Relaxed));
                    // SAFETY: the memory is that long, and may change under shared references.
                    unsafe { fill_slowly(memory.as_ptr().cast_mut().cast(), round, LEN) };
                }
            })
        };
        while !INSIDE.load(SeqCst) {
            hint::spin_loop();
        }
        drop(probe);
        assert_eq!(
            memory[LEN / 8 - 1].load(SeqCst),
            full,
            "unregistered with a task in the slot"
        );
        // Whatever takes the slot now must not harm the task.
        let next = register(Box::new(
            Kprobe::new().symbol("troubled_target").pre(count_before),
        ))
        .unwrap();
        assert_eq!(troubled_target(black_box(1)), 2);
        filler.wait_released();
        assert!(memory.iter().all(|word| word.load(Relaxed) == full));
        drop(next);
    }
    drop(ticks);
}
