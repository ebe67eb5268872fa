//! Writing kernel text under running CPUs, and waiting for them.
//!
//! Kernel text is never writable where it executes. One byte is stored through the physical alias; the caller then waits
//! until every CPU has executed a serialising instruction (Intel SDM vol. 3A, 8.1.3, cross-modifying code). The waits
//! go by one IPI, whose handler tells two things of its CPU:
//!
//! - `seen`: it has serialised. The handler runs with interrupts off, so a #BP handler that it had entered before is left.
//! - `quiescent`: the IPI found it outside slots and probe handlers. Interrupt handlers do not nest and no task is
//!   switched away from inside, so nothing is left of a hit that began before.
//!
//! # Invariants
//! W1. A generation number is raised before its IPIs are sent, and a CPU reports the number it reads in the handler: a
//!     report of `n` was made after wait `n` began.
//! W2. The waiting task keeps its CPU (preemption off) and interrupts on, so two CPUs that wait for each other both answer.
//!
//! # Contexts
//! Waits: tasks only, with interrupts on and no spinlock held: a CPU that spins for such a lock with interrupts off would never
//! answer. Stores: under the registration lock.

use core::{
    arch::x86_64::__cpuid,
    hint, ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use x86_64::{VirtAddr, instructions::interrupts};

use crate::{
    arch::{idt::vector, percpu, smp},
    mm::paging,
    time,
};

/// What a CPU has answered last; on a cache line of its own.
#[repr(align(64))]
struct Answer {
    /// How many IPIs it has handled.
    handled: AtomicU64,
    seen: AtomicU64,
    quiescent: AtomicU64,
}

static GENERATION: AtomicU64 = AtomicU64::new(0);
static ANSWERS: [Answer; percpu::MAX_CPUS] = [const {
    Answer {
        handled: AtomicU64::new(0),
        seen: AtomicU64::new(0),
        quiescent: AtomicU64::new(0),
    }
}; percpu::MAX_CPUS];

/// How many times hits have been waited for.
static HIT_WAITS: AtomicU64 = AtomicU64::new(0);

/// How many times [`synchronize_hits`] was called since the boot.
pub fn hit_waits() -> u64 {
    HIT_WAITS.load(Ordering::Relaxed)
}

/// The page of text that was stored to last, and its alias: breakpoints of a batch lie close together. Text is never mapped
/// elsewhere while it is live. Written under the registration lock.
static LAST_PAGE: AtomicU64 = AtomicU64::new(0);
static LAST_ALIAS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Stores one byte of kernel text through the writable alias of its page.
///
/// # Safety
/// 1. `addr` is live kernel text.
/// 2. An instruction starts there, with the old byte and with the new one; so a CPU that fetches it meanwhile decodes one of
///    the two.
/// 3. Nobody else calls this function now.
#[inline(never)]
pub unsafe fn store(addr: u64, byte: u8) {
    if page_of(addr) != LAST_PAGE.load(Ordering::Relaxed) {
        // SAFETY: by the contract.
        return unsafe { store_in_another_page(addr, byte) };
    }
    let alias = LAST_ALIAS.load(Ordering::Relaxed);
    // SAFETY: the alias of live text (1) is mapped and writable to the end of the page, and one byte cannot tear.
    unsafe { alias.add((addr % PAGE_BYTES) as usize).write_volatile(byte) };
}

/// Stores to a page that is not [`LAST_PAGE`] yet.
///
/// # Safety
/// As for [`store`].
#[cold]
#[inline(never)]
unsafe fn store_in_another_page(addr: u64, byte: u8) {
    let page = page_of(addr);
    let alias = paging::text_alias(VirtAddr::new(page));
    LAST_ALIAS.store(alias, Ordering::Relaxed);
    LAST_PAGE.store(page, Ordering::Relaxed);
    // SAFETY: as in `store`.
    unsafe { alias.add((addr % PAGE_BYTES) as usize).write_volatile(byte) };
}

const PAGE_BYTES: u64 = 4096;

fn page_of(addr: u64) -> u64 {
    addr & !(PAGE_BYTES - 1)
}

/// The synchronising IPI has arrived; `quiescent`: it found its CPU outside slots and probe
/// handlers. Interrupts off. A function of its own, so that a probe can count the IPIs.
#[inline(never)]
pub fn on_ipi(quiescent: bool) {
    // Acquire pairs with the raise of the generation: what was stored before is fetched after.
    let generation = GENERATION.load(Ordering::Acquire);
    serialise();
    let answer = &ANSWERS[percpu::cpu_id()];
    if quiescent {
        answer.quiescent.store(generation, Ordering::Release);
    }
    answer.seen.store(generation, Ordering::Release);
    answer.handled.fetch_add(1, Ordering::Release);
}

/// Discards what the processor has fetched and decoded ahead.
fn serialise() {
    let _ = __cpuid(0);
}

/// Returns when every CPU has serialised after this was called. Sleeps on nothing, but takes as long as the slowest CPU keeps
/// interrupts off.
pub fn synchronize_cores() {
    wait(|answer| &answer.seen);
}

/// Returns when every CPU has been outside slots and probe handlers at some time after this was called.
pub fn synchronize_hits() {
    HIT_WAITS.fetch_add(1, Ordering::Relaxed);
    wait(|answer| &answer.quiescent);
}

/// How long a CPU whose answer was no is left alone at least before it is asked again. Not much longer, if it answers fast: one that is in
/// slots nearly always has to be asked in one of the few moments in which it is not.
const PAUSE_NS: u64 = 5_000;

/// Waits until the chosen answer of every other CPU has caught up. An answer may be no, so a CPU is asked again and again, but not before it has
/// had time to leave the IPI's handler, which it does about as fast as it gets there: an IPI that has come by then is taken before another
/// instruction of what was interrupted, which would never be left. Where the handler is probed all over that takes milliseconds.
fn wait(answer_of: impl Fn(&Answer) -> &AtomicU64) {
    debug_assert!(
        interrupts::are_enabled(),
        "a CPU that waits for us would wait for ever"
    );
    percpu::preempt_disable();
    // This CPU is in a task, so in no slot and no handler.
    serialise();
    let this = percpu::cpu_id();
    let generation = GENERATION.fetch_add(1, Ordering::AcqRel) + 1;
    let others = || (0..smp::online_cpus()).filter(|cpu| *cpu != this);
    let ask = |cpu: usize| {
        let handled = ANSWERS[cpu].handled.load(Ordering::Acquire);
        smp::send_ipi(cpu, vector::PROBES_SYNC);
        handled
    };
    let mut asked = [0; percpu::MAX_CPUS];
    for cpu in others() {
        asked[cpu] = ask(cpu);
    }
    for cpu in others() {
        let mut asked_at = time::ktime_get();
        let mut fastest = u64::MAX;
        loop {
            // Before the answer: the IPIs counted here have been answered.
            let handled = ANSWERS[cpu].handled.load(Ordering::Acquire);
            if answer_of(&ANSWERS[cpu]).load(Ordering::Acquire) >= generation {
                break;
            }
            if handled > asked[cpu] {
                fastest = fastest.min(time::ktime_get() - asked_at);
                time::delay_ns(PAUSE_NS.max(2 * fastest));
                asked_at = time::ktime_get();
                asked[cpu] = ask(cpu);
            }
            hint::spin_loop();
        }
    }
    percpu::preempt_enable();
}
