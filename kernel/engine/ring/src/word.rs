//! The word that the ring consists of: an atomic of 64 bits, with two operations more.
//!
//! The *local* operations are one instruction without a `lock` prefix. An interrupt comes before
//! or after an instruction and never within it, so they are atomic against all that runs on the
//! same CPU. They are not atomic against stores of other CPUs. So a word that is changed by a
//! local operation is changed by no other CPU. Other CPUs may load it at any time, because an
//! aligned store of 8 bytes does not tear (Intel SDM vol. 3A, 9.1.1).

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// A word of the ring's memory.
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// Does what `AtomicU64::load` does.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u64 {
        Self::step();
        self.0.load(order)
    }

    /// Does what `AtomicU64::store` does.
    #[inline(always)]
    pub fn store(&self, value: u64, order: Ordering) {
        Self::step();
        self.0.store(value, order);
    }

    /// Does what `AtomicU64::compare_exchange` does, with a relaxed load if it fails. Atomic
    /// against all CPUs.
    #[inline(always)]
    pub fn compare_exchange(&self, old: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        Self::step();
        self.0
            .compare_exchange(old, new, success, Ordering::Relaxed)
    }

    /// Same as `compare_exchange`, but atomic against this CPU alone.
    ///
    /// The processor orders its stores, so that each of them has Release order; `success` says
    /// which order is needed.
    #[inline(always)]
    pub fn local_compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
    ) -> Result<u64, u64> {
        Self::step();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let _ = success;
            let seen;
            // SAFETY: the place is an aligned word that is valid for writes, because there is a
            // reference to an atomic. No other CPU changes it (the module's text).
            unsafe {
                core::arch::asm!(
                    "cmpxchg qword ptr [{place}], {new}",
                    place = in(reg) self.0.as_ptr(),
                    new = in(reg) new,
                    inout("rax") old => seen,
                    options(nostack),
                );
            }
            if seen == old { Ok(seen) } else { Err(seen) }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        self.0
            .compare_exchange(old, new, success, Ordering::Relaxed)
    }

    /// Adds `addend`, atomic against this CPU alone.
    #[inline(always)]
    pub fn local_add(&self, addend: u64) {
        Self::step();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: as in `local_compare_exchange`.
        unsafe {
            core::arch::asm!(
                "add qword ptr [{place}], {addend}",
                place = in(reg) self.0.as_ptr(),
                addend = in(reg) addend,
                options(nostack),
            );
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        self.0.fetch_add(addend, Ordering::Relaxed);
    }

    /// Tests interrupt a writer or a reader before each of its accesses.
    #[inline(always)]
    fn step() {
        #[cfg(test)]
        super::tests::interrupt::step();
    }
}

/// Keeps the compiler from moving accesses across. It costs no instruction: a CPU sees its own
/// accesses in their order, so an interrupt does, too.
#[inline(always)]
pub fn interrupt_fence() {
    compiler_fence(Ordering::SeqCst);
}
