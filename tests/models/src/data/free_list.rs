//! The twin of the probes' `free_list.rs`, whose pop is assembly: the same accesses in the same
//! order. One instruction can exchange both head and tag there. Here they are the low and the high
//! bits of one atomic.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{
    data::instance::Instance,
    weakness::{Weakness, is_weak},
};

/// Bits of a pointer of ours.
const HEAD_BITS: u32 = 48;

fn head(both: u64) -> *mut Instance {
    std::ptr::with_exposed_provenance_mut((both & ((1 << HEAD_BITS) - 1)) as usize)
}

fn tag(both: u64) -> u64 {
    both >> HEAD_BITS
}

fn join(tag: u64, head: *mut Instance) -> u64 {
    tag << HEAD_BITS | head.expose_provenance() as u64
}

/// The same as in the probes.
pub(crate) struct FreeList(AtomicU64);

impl FreeList {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn pop(&self) -> *mut Instance {
        // mov rdx, [rdi + 8]; mov rax, [rdi]: two loads, and the processor keeps loads in order.
        let (mut popped_tag, mut popped);
        if is_weak(Weakness::HeadBeforeTag) {
            popped = head(self.0.load(Ordering::Acquire));
            popped_tag = tag(self.0.load(Ordering::Acquire));
        } else {
            popped_tag = tag(self.0.load(Ordering::Acquire));
            popped = head(self.0.load(Ordering::Acquire));
        }
        loop {
            // SAFETY: memory of the holder, which outlives this.
            let Some(instance) = (unsafe { popped.as_ref() }) else {
                return popped;
            };
            let next = instance.next.load(Ordering::Relaxed);
            let raised = popped_tag + u64::from(!is_weak(Weakness::Tag));
            let old = join(popped_tag, popped);
            match self.0.compare_exchange(
                old,
                join(raised, next),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return popped,
                Err(now) => (popped_tag, popped) = (tag(now), head(now)),
            }
        }
    }

    pub(crate) fn push(&self, instance: *mut Instance) {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let expected = head(now);
            // SAFETY: in hand.
            unsafe { (*instance).next.store(expected, Ordering::Relaxed) };
            // An exchange of the head alone: a tag that was raised meanwhile does not make it fail.
            loop {
                match self.0.compare_exchange(
                    now,
                    join(tag(now), instance),
                    Ordering::Release,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return,
                    Err(found) => now = found,
                }
                if head(now) != expected {
                    break;
                }
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        let mut at = head(self.0.load(Ordering::Acquire));
        std::iter::from_fn(|| {
            // SAFETY: on the list, and no thread takes it.
            at = unsafe { at.as_ref() }?.next.load(Ordering::Relaxed);
            Some(())
        })
        .count()
    }
}
