//! Stores to kernel text while other CPUs run, and waits for those CPUs.
//!
//! Kernel text is never writable where it executes, so a byte is stored through the physical
//! alias of its page. The stores are inlined into the loops of the registry: while all functions
//! are probed, each call would be a hit. Then the caller waits until every CPU has executed a
//! serialising instruction (Intel SDM vol. 3A, 8.1.3, cross-modifying code). The waits below send
//! one kind of IPI. Its handler stores three answers for its CPU:
//!
//! - `seen`: the CPU has serialised. It has also left any #BP handler that it was in, because the
//!   IPI's handler can only start when that one has ended: both run with interrupts off.
//! - `quiescent`: the IPI found the CPU outside slots and probe handlers. No hit that began before
//!   is left on it, because interrupt handlers do not nest and no task is switched away from
//!   inside a hit.
//! - `settled`: the IPI found the CPU there, or in a slot that stays and that comes out under no
//!   jump. No hit on it needs what was removed before.
//!
//! # Invariants
//! POKE-1. A generation number is raised before its IPIs are sent, and the handler of the IPI
//!     reports the number that it reads. So an answer `n` was given after wait `n` began.
//! POKE-2. A waiting task keeps its CPU (preemption off) and keeps interrupts on. So two CPUs that
//!     wait for each other both answer.
//!
//! # Contexts
//! Waits: tasks with interrupts on and no spinlock held. With a lock held, another CPU might spin
//! for that lock with interrupts off, and would never answer. Stores: under the registration lock.

use core::{
    arch::x86_64::__cpuid,
    hint, ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use x86_64::{VirtAddr, instructions::interrupts};

use super::PROBES;
use crate::{
    arch::{idt::vector, percpu, smp},
    mm::paging,
    time,
};

/// The last answers of a CPU, on a cache line of its own.
#[repr(align(64))]
struct Answer {
    /// How many IPIs it has handled.
    handled: AtomicU64,
    seen: AtomicU64,
    quiescent: AtomicU64,
    settled: AtomicU64,
}

static GENERATION: AtomicU64 = AtomicU64::new(0);
static ANSWERS: [Answer; percpu::MAX_CPUS] = [const {
    Answer {
        handled: AtomicU64::new(0),
        seen: AtomicU64::new(0),
        quiescent: AtomicU64::new(0),
        settled: AtomicU64::new(0),
    }
}; percpu::MAX_CPUS];

/// The number of waits for hits.
static HIT_WAITS: AtomicU64 = AtomicU64::new(0);

/// How many times [`synchronize_hits`] or [`synchronize_settled`] was called since the boot.
pub fn hit_waits() -> u64 {
    HIT_WAITS.load(Ordering::Relaxed)
}

/// A page of text, by its number, and its alias.
struct KnownPage {
    number: AtomicU64,
    alias: AtomicPtr<u8>,
}

/// The pages of text to which bytes were stored last, each where its number says: enough for 4 MiB
/// of text. They are kept because a batch stores to each page in several rounds, and a search in
/// the page tables would be hit while it is probed. They stay valid because live text is never
/// mapped elsewhere. Written under the registration lock.
static KNOWN_PAGES: [KnownPage; 1024] = [const {
    KnownPage {
        number: AtomicU64::new(0),
        alias: AtomicPtr::new(ptr::null_mut()),
    }
}; 1024];

/// Stores one byte of kernel text through the writable alias of its page.
///
/// # Safety
/// 1. `addr` is live kernel text.
/// 2. An instruction starts there, both with the old byte and with the new one. So a CPU that
///    fetches it meanwhile decodes one of the two.
/// 3. No other CPU is in this function.
#[inline(always)]
pub unsafe fn store(addr: u64, byte: u8) {
    let alias = alias_of(addr);
    // SAFETY: the alias of live text (1) is writable, and a store of one byte cannot tear.
    unsafe { alias.write_volatile(byte) };
}

/// Stores four bytes of kernel text that follow each other.
///
/// # Safety
/// The same as for [`store`], with each of them. All are after a breakpoint, where no CPU executes.
#[inline(always)]
pub unsafe fn store_tail(addr: u64, bytes: [u8; 4]) {
    if addr % PAGE_BYTES > PAGE_BYTES - 4 {
        for (at, byte) in (addr..).zip(bytes) {
            // SAFETY: the contract is the same.
            unsafe { store(at, byte) };
        }
        return;
    }
    let alias = alias_of(addr);
    // SAFETY: the alias of live text (1) is writable to the end of the page. No CPU fetches these
    // bytes, so the store may tear.
    unsafe { alias.cast::<[u8; 4]>().write(bytes) };
}

/// The writable alias of `addr`, live kernel text.
#[inline(always)]
fn alias_of(addr: u64) -> *mut u8 {
    let (number, offset) = (addr / PAGE_BYTES, addr % PAGE_BYTES);
    let page = &KNOWN_PAGES[number as usize % KNOWN_PAGES.len()];
    if page.number.load(Ordering::Relaxed) != number {
        find_alias(page, number);
    }
    let alias = page.alias.load(Ordering::Relaxed);
    alias.wrapping_add(offset as usize)
}

/// Makes `page` the one of that number.
#[cold]
#[inline(never)]
fn find_alias(page: &KnownPage, number: u64) {
    let alias = paging::text_alias(VirtAddr::new(number * PAGE_BYTES));
    page.alias.store(alias, Ordering::Relaxed);
    page.number.store(number, Ordering::Relaxed);
}

const PAGE_BYTES: u64 = 4096;

/// Called on a CPU that gets the synchronising IPI, which found it at `ip`. Interrupts off. Not
/// inlined, so that a probe can count the IPIs.
#[inline(never)]
pub fn on_ipi(ip: u64) {
    // Acquire pairs with the raise of the generation: text that was stored before it is fetched
    // after this, and the questions below see what was removed before it. A generation that is
    // read after the questions could be of a removal that they have not seen.
    let generation = GENERATION.load(Ordering::Acquire);
    serialise();
    let answer = &ANSWERS[percpu::cpu_id()];
    let is_outside = PROBES.may_preempt(ip);
    if is_outside {
        answer.quiescent.store(generation, Ordering::Release);
    }
    if is_outside || PROBES.is_settled(ip) {
        answer.settled.store(generation, Ordering::Release);
    }
    answer.seen.store(generation, Ordering::Release);
    answer.handled.fetch_add(1, Ordering::Release);
}

/// Discards the instructions that the processor has fetched and decoded ahead.
fn serialise() {
    let _ = __cpuid(0);
}

/// Waits until every CPU has serialised since the call. Does not sleep, and takes as long as the
/// slowest CPU keeps interrupts off. Linux calls this `text_poke_sync`.
pub fn synchronize_cores() {
    wait(|answer| &answer.seen);
}

/// Waits for a grace period: until every CPU was outside slots and probe handlers at some time
/// since the call.
pub fn synchronize_hits() {
    HIT_WAITS.fetch_add(1, Ordering::Relaxed);
    wait(|answer| &answer.quiescent);
}

/// Waits until no hit uses what was removed before the call, and none comes out under a jump that
/// is about to be written.
pub fn synchronize_settled() {
    HIT_WAITS.fetch_add(1, Ordering::Relaxed);
    wait(|answer| &answer.settled);
}

/// Minimum pause before a CPU that was inside a slot or a handler is asked again. It is short,
/// because some CPUs are in slots nearly always: such a CPU has to be asked in one of the few
/// moments in which it is not.
const PAUSE_NS: u64 = 5_000;

/// Waits until the chosen answer of every other CPU has caught up.
///
/// A CPU can be inside a slot each time it is asked, so it is asked again and again, with a pause
/// between. If the next IPI arrives while the handler of the last one still runs, it is taken at
/// once when that handler ends. The interrupted code would execute nothing in between, and would
/// never leave its slot. So the pause is longer than the handler takes. That time is measured,
/// because it is milliseconds where all of the handler is probed.
fn wait(answer_of: impl Fn(&Answer) -> &AtomicU64) {
    debug_assert!(
        interrupts::are_enabled(),
        "a CPU that waits for us would wait for ever"
    );
    percpu::preempt_disable();
    // This CPU runs a task, so it is in no slot and no handler.
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
            // Read before the answer: so the IPIs that are counted here have been answered.
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
