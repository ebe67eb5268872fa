//! Time since boot, in nanoseconds, from the time stamp counter (TSC).
//!
//! The TSC's rate is measured once against the interval timer. [`ktime_get`] is a multiplication
//! without a lock, for any context, also NMI and probe handlers. It never goes back on one CPU.
//! Across CPUs it agrees as well as their TSCs do. If the TSC of a CPU is seen to be off when the
//! CPU starts, it gets a correction ([`synchronise_cpu`]).
//!
//! Under QEMU's `-icount` the TSC counts instructions. The interval timer and the APIC timer do the
//! same, so all stay in proportion.

use crate::{
    arch::{
        percpu::{self, MAX_CPUS},
        pit::{PIT_HZ, PitCounter},
    },
    pr_warn,
    sync::SpinLock,
};
use core::{
    arch::x86_64::_rdtsc,
    hint,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

/// Nanoseconds in a second.
pub const NSEC_PER_SEC: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub const NSEC_PER_MSEC: u64 = 1_000_000;

/// Time between two ticks of the scheduler, unless the command line says otherwise ([`tick_ns`]).
pub const TICK_NS: u64 = 4 * NSEC_PER_MSEC;
/// The longest time between two ticks that the command line may ask for, in milliseconds.
const MAX_TICK_MS: u64 = 1000;

/// Nanoseconds per TSC tick, in units of 2^-32; 0 before [`init`].
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
/// The TSC when the kernel started.
static BOOT_TSC: AtomicU64 = AtomicU64::new(0);

/// The difference between the TSC of the CPU that booted and that of each CPU; it is added to the
/// latter.
static CORRECTION: [AtomicI64; MAX_CPUS] = [const { AtomicI64::new(0) }; MAX_CPUS];

/// The time between two ticks of the scheduler. `given` is the value of `tick_ms=N` on the command
/// line, from 1 to 1000. Without it the time is [`TICK_NS`].
///
/// A tick must be over before the next one is due. Longer times are for kernels in which each
/// instruction of the tick is probed.
pub(crate) fn tick_ns(given: Option<&str>) -> u64 {
    let Some(given) = given else {
        return TICK_NS;
    };
    match given.parse() {
        Ok(milliseconds @ 1..=MAX_TICK_MS) => milliseconds * NSEC_PER_MSEC,
        _ => {
            pr_warn!("tick_ms={given} is ignored: it is a number from 1 to {MAX_TICK_MS}");
            TICK_NS
        }
    }
}

/// The time stamp counter of this CPU.
#[inline]
pub fn read_tsc() -> u64 {
    // SAFETY: every x86_64 processor has `rdtsc`, and CR4.TSD is clear.
    unsafe { _rdtsc() }
}

/// The time that `ticks` of the TSC take.
pub(crate) fn ticks_to_ns(ticks: u64) -> u64 {
    ((u128::from(ticks) * u128::from(NS_PER_TICK.load(Ordering::Relaxed))) >> 32) as u64
}

/// Nanoseconds since boot. Zero until the clock is set up. Any context.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ktime_get() -> u64 {
    let now = loop {
        let cpu = percpu::cpu_id();
        let tsc = read_tsc();
        // The task may be moved meanwhile; the counter and its correction must be the same CPU's.
        if percpu::cpu_id() == cpu {
            break tsc.wrapping_add_signed(CORRECTION[cpu].load(Ordering::Relaxed));
        }
    };
    ticks_to_ns(now.saturating_sub(BOOT_TSC.load(Ordering::Relaxed)))
}

/// Ticks of the time stamp counter in a second; 0 before [`init`].
pub fn tsc_hz() -> u64 {
    match NS_PER_TICK.load(Ordering::Relaxed) {
        0 => 0,
        ns => (NSEC_PER_SEC << 32) / ns,
    }
}

/// The time since boot at which the counter of CPU `cpu` had the value `tsc`, in nanoseconds.
pub fn tsc_to_ns(cpu: usize, tsc: u64) -> u64 {
    let correction = CORRECTION
        .get(cpu)
        .map_or(0, |correction| correction.load(Ordering::Relaxed));
    let now = tsc.wrapping_add_signed(correction);
    ticks_to_ns(now.saturating_sub(BOOT_TSC.load(Ordering::Relaxed)))
}

/// Keeps the CPU busy for `ns` nanoseconds.
pub fn delay_ns(ns: u64) {
    let end = ktime_get().saturating_add(ns);
    while ktime_get() < end {
        hint::spin_loop();
    }
}

/// Reads another clock and the TSC at nearly the same time, and returns the TSC first. The emulator
/// may stop the machine between two instructions for long, so the result is the fastest of several
/// readings.
pub(crate) fn read_with_tsc<T>(read: impl Fn() -> T) -> (u64, T) {
    let reading = || {
        let before = read_tsc();
        let value = read();
        let took = read_tsc() - before;
        (took, (before + took / 2, value))
    };
    let readings = (0..8).map(|_| reading());
    let narrowest = readings.min_by_key(|(took, _)| *took);
    narrowest.expect("eight readings").1
}

/// Measures the TSC's rate. Takes about 20 ms. Call once, on the CPU that boots.
///
/// A busy host may stop the machine for longer than the interval timer counts. Then the measured
/// rate is wrong by any factor. So a measurement counts only if the next one agrees with it.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init() {
    BOOT_TSC.store(read_tsc(), Ordering::Relaxed);
    let mut ns_per_tick = measure();
    loop {
        let again = measure();
        if again.abs_diff(ns_per_tick) <= ns_per_tick / 200 {
            break;
        }
        ns_per_tick = again;
    }
    NS_PER_TICK.store(ns_per_tick, Ordering::Relaxed);
    crate::pr_info!("tsc: {} MHz", (1000 << 32) / ns_per_tick);
}

/// Nanoseconds per TSC tick, in units of 2^-32, as 10 ms of the interval timer tell.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn measure() -> u64 {
    const MEASURED_TICKS: u16 = (PIT_HZ / 100) as u16;
    let pit = PitCounter::start();
    let (start_tsc, start_pit) = read_with_tsc(|| pit.elapsed());
    let mut reads = 0u32;
    while pit.elapsed().wrapping_sub(start_pit) < MEASURED_TICKS {
        reads += 1;
        // Each read takes a microsecond on a PC.
        assert!(
            reads < 10_000_000,
            "the interval timer (8254) stands still; this kernel has no other clock to start from"
        );
    }
    let (end_tsc, end_pit) = read_with_tsc(|| pit.elapsed());
    let ns = u64::from(end_pit.wrapping_sub(start_pit)) * NSEC_PER_SEC / PIT_HZ;
    ((u128::from(ns) << 32) / u128::from(end_tsc - start_tsc)) as u64
}

/// Asks the CPU that boots for its TSC.
static QUESTION: AtomicBool = AtomicBool::new(false);
/// Its answer; 0 is none.
static ANSWER: AtomicU64 = AtomicU64::new(0);

/// Compares the TSC of the calling CPU with that of the CPU that boots, which is in [`answer_cpus`]
/// meanwhile. Corrects it only if the two cannot be the same counter. A difference that the time of
/// question and answer explains is no error.
pub fn synchronise_cpu() {
    static ONE_AT_A_TIME: SpinLock<()> = SpinLock::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let round = || {
        ANSWER.store(0, Ordering::Relaxed);
        let before = read_tsc();
        // Release pairs with the Acquire in `answer_cpus`; below it is the other way round.
        QUESTION.store(true, Ordering::Release);
        let theirs = loop {
            match ANSWER.load(Ordering::Acquire) {
                0 => hint::spin_loop(),
                tsc => break tsc,
            }
        };
        (before, theirs, read_tsc())
    };
    let narrowest = (0..5)
        .map(|_| round())
        .min_by_key(|(before, _, after)| after - before);
    let (before, theirs, after) = narrowest.expect("five rounds");
    if !(before..=after).contains(&theirs) {
        let ours = before + (after - before) / 2;
        CORRECTION[percpu::cpu_id()].store(theirs.wrapping_sub(ours) as i64, Ordering::Relaxed);
    }
}

/// Answers a CPU that waits in [`synchronise_cpu`], if there is one.
pub fn answer_cpus() {
    if QUESTION.swap(false, Ordering::Acquire) {
        ANSWER.store(read_tsc(), Ordering::Release);
    }
}
