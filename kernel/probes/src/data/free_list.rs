//! The free instances of a kretprobe: a stack without locks.
//!
//! A pop compares the head and a tag. Every pop raises the tag, so a pop notices an instance that
//! was taken and came back in between. A push needs no tag: whatever happened in between, the head
//! that it links to is the head.
//!
//! # Contexts and ordering
//! Any CPU, any context: no lock, no wait. The exchange that gives an instance back is a Release,
//! and the one that takes it is an Acquire. So the new owner finds all that the last one did with
//! it done. Stubs, detours and routines take an instance with the same instructions
//! ([`pop_instance!`](crate::pop_instance)). They give it back with the same words in the same
//! order.

use core::{
    arch::asm,
    cell::UnsafeCell,
    mem::offset_of,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::data::instance::Instance;

/// Takes an instance from the list that `list`, a register, points to. rax is the instance, or null
/// after a jump to `empty`. Changes rbx, rcx and rdx, which hold the words that the exchange
/// compares and stores. Operands: `next`, the offset of an instance's link.
#[macro_export]
macro_rules! pop_instance {
    ($list:literal, $empty:literal) => {
        ::core::concat!(
            // The tag before the head.
            "mov rdx, [",
            $list,
            " + 8]; ",
            "mov rax, [",
            $list,
            "]; ",
            "7: ",
            "test rax, rax; ",
            "jz ",
            $empty,
            "; ",
            "mov rbx, [rax + {next}]; ",
            "lea rcx, [rdx + 1]; ",
            "lock cmpxchg16b [",
            $list,
            "]; ",
            "jne 7b",
        )
    };
}

/// See the module's text.
#[repr(C, align(16))]
pub(crate) struct FreeList {
    head: AtomicPtr<Instance>,
    tag: UnsafeCell<u64>,
}

impl FreeList {
    /// A list without instances.
    pub(crate) const fn new() -> Self {
        Self {
            head: AtomicPtr::new(null_mut()),
            tag: UnsafeCell::new(0),
        }
    }

    /// Takes an instance, or null if there is none.
    pub(crate) fn pop(&self) -> *mut Instance {
        let popped: *mut Instance;
        // SAFETY: `self` is 16-aligned by its `repr`. The tag is read before the head. So if both
        // are unchanged at the exchange, no pop came between, the head was on the list all along,
        // and its `next` was constant. A head that another CPU pops meanwhile is still memory of
        // the holder (INSTANCE-4). rbx, which LLVM reserves, is restored.
        unsafe {
            asm!(
                "xchg {saved}, rbx",
                crate::pop_instance!("rdi", "3f"),
                "3:",
                "xchg {saved}, rbx",
                // Named, so that it is none of those above: `in(reg)` may be rbx.
                in("rdi") self,
                saved = inout(reg) 0u64 => _,
                next = const offset_of!(Instance, next),
                out("rax") popped,
                out("rcx") _,
                out("rdx") _,
                options(nostack),
            );
        }
        popped
    }

    /// Puts an instance on the list. The caller has it in hand (INSTANCE-1).
    pub(crate) fn push(&self, instance: *mut Instance) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: in hand.
            unsafe { (*instance).next.store(head, Ordering::Relaxed) };
            // Release: who pops the instance finds what was done with it done.
            match self.head.compare_exchange_weak(
                head,
                instance,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// How many instances are on the list, while none is taken. Acquire: the last use of every
    /// instance that is counted happened before.
    pub(crate) fn len(&self) -> usize {
        let mut at = self.head.load(Ordering::Acquire);
        core::iter::from_fn(|| {
            // SAFETY: on the list, and nothing takes it.
            at = unsafe { at.as_ref() }?.next.load(Ordering::Relaxed);
            Some(())
        })
        .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::alloc::Layout;

    use crate::data::instance::{Holder, give_back};

    /// Between the loads and the exchange of one pop, others may have come back to the same head.
    #[test]
    #[cfg_attr(miri, ignore = "a pop is assembly")]
    fn each_pop_raises_the_tag_and_nothing_else_does() {
        let holder = Holder::try_new(core::ptr::null(), || 0, 2, Layout::new::<()>()).unwrap();
        // SAFETY: a live holder, of this test alone; its free list is its first field.
        let list = unsafe { &*holder.cast::<FreeList>() };
        // SAFETY: nothing pops meanwhile.
        let tag = || unsafe { *list.tag.get() };
        let first = tag();
        let (one, two) = (list.pop(), list.pop());
        assert_eq!(tag(), first + 2);
        assert!(list.pop().is_null());
        assert_eq!(tag(), first + 2, "nothing was popped");
        // SAFETY: popped above.
        unsafe {
            give_back(one);
            give_back(two);
            assert_eq!(tag(), first + 2);
            assert!(Holder::try_free(holder));
        }
    }
}
