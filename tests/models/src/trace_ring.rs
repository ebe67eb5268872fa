//! The trace ring: the files that its two sides consist of.

#[path = "../../../kernel/engine/ring/src/layout.rs"]
#[allow(dead_code)]
pub(crate) mod layout;
#[path = "../../../kernel/engine/ring/src/read.rs"]
#[allow(dead_code)]
pub(crate) mod read;
#[path = "../../../kernel/engine/ring/src/ring.rs"]
#[allow(dead_code)]
pub(crate) mod ring;
#[path = "../../../kernel/engine/ring/src/spare.rs"]
#[allow(dead_code)]
pub(crate) mod spare;

pub(crate) use read::{Event, Source, Stats};
pub(crate) use ring::{Mode, Ring};

mod error {
    #[derive(Debug)]
    #[allow(dead_code)]
    pub enum InitError {
        NoPages,
        TooManyPages { pages: usize },
        Misaligned { address: usize },
    }

    #[derive(Debug)]
    #[allow(dead_code)]
    pub struct Damaged {
        pub offset: u32,
        pub sequence: u64,
    }
}

pub(crate) mod limits {
    /// Two records with a word of payload.
    pub(crate) const PAGE_BYTES: usize = 64;
}

pub(crate) mod word {
    use core::sync::atomic::{AtomicU64, Ordering};

    #[repr(transparent)]
    pub struct Word(AtomicU64);

    impl Word {
        pub fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        pub fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        pub fn compare_exchange(&self, old: u64, new: u64, success: Ordering) -> Result<u64, u64> {
            self.0
                .compare_exchange(old, new, success, Ordering::Relaxed)
        }

        /// Only the writing thread stores to such words, so a load and a store are as good as one
        /// instruction for all others.
        pub fn local_compare_exchange(
            &self,
            old: u64,
            new: u64,
            success: Ordering,
        ) -> Result<u64, u64> {
            let now = self.0.load(Ordering::Relaxed);
            if now != old {
                return Err(now);
            }
            self.0.store(new, success);
            Ok(now)
        }

        /// The same as above.
        pub fn local_add(&self, addend: u64) {
            let sum = self.0.load(Ordering::Relaxed).wrapping_add(addend);
            self.0.store(sum, Ordering::Relaxed);
        }
    }

    /// The model's interrupts come where the model says.
    pub fn interrupt_fence() {}
}
