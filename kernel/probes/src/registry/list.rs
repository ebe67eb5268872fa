//! A list that runs through its members, so it needs no memory and cannot fail.
//!
//! The sites of an operation are in one, the detours that come or go, and the instances that
//! unregistered kretprobes have left behind.
//!
//! # Invariants
//! LIST-1. The link of a member is null exactly while the member is in no list. The last member
//!     links to itself.
//! LIST-2. A member lives while it is in a list.
//!
//! # Contexts
//! Under the registry's lock, which gives each list one user at a time.

use core::{
    ptr::{NonNull, eq, null_mut},
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

/// A type whose values can be in a [`List`], in one at a time.
pub(crate) trait Linked: Sized {
    /// The link to the next member (LIST-1).
    fn link(&self) -> &AtomicPtr<Self>;
}

/// See the module's text. The newest member comes first.
pub(crate) struct List<T> {
    first: *mut T,
}

impl<T: Linked> List<T> {
    pub(crate) const fn new() -> Self {
        Self { first: null_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds `member`, unless it is in a list.
    ///
    /// # Safety
    /// It lives until it is taken out.
    pub(crate) unsafe fn push(&mut self, member: NonNull<T>) {
        // SAFETY: live, by the contract.
        let link = unsafe { member.as_ref() }.link();
        if link.load(Relaxed).is_null() {
            let next = if self.is_empty() {
                member.as_ptr()
            } else {
                self.first
            };
            link.store(next, Relaxed);
            self.first = member.as_ptr();
        }
    }

    /// Takes out the newest member.
    pub(crate) fn pop(&mut self) -> Option<NonNull<T>> {
        let first = NonNull::new(self.first)?;
        // SAFETY: LIST-2.
        let member = unsafe { first.as_ref() };
        self.first = unless_itself(member, member.link().swap(null_mut(), Relaxed));
        Some(first)
    }

    /// Takes out all members.
    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        let mut at = self.first;
        core::iter::from_fn(move || {
            // SAFETY: LIST-2; the list is borrowed meanwhile.
            let member = unsafe { at.as_ref() }?;
            at = unless_itself(member, member.link().load(Relaxed));
            Some(member)
        })
    }
}

/// The member after `member`, whose link is `next`; null after the last one.
fn unless_itself<T>(member: &T, next: *mut T) -> *mut T {
    if eq(next, member) { null_mut() } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    struct Member(u8, AtomicPtr<Member>);

    impl Linked for Member {
        fn link(&self) -> &AtomicPtr<Self> {
            &self.1
        }
    }

    #[test]
    fn members_are_in_it_once_and_can_come_again() {
        let members = [1, 2, 3].map(|number| Member(number, AtomicPtr::new(null_mut())));
        let mut list = List::new();
        assert!(list.is_empty() && list.pop().is_none());
        for _round in 0..2 {
            for member in members.iter().chain(&members) {
                // SAFETY: the members outlive the list.
                unsafe { list.push(NonNull::from(member)) };
            }
            assert!(!list.is_empty());
            let numbers = |list: &List<Member>| Vec::from_iter(list.iter().map(|member| member.0));
            assert_eq!(numbers(&list), [3, 2, 1]);
            let newest = list.pop().unwrap();
            // SAFETY: one of the members above.
            assert_eq!(unsafe { newest.as_ref() }.0, 3);
            assert_eq!(numbers(&list), [2, 1]);
            list.clear();
            assert!(list.is_empty() && list.iter().next().is_none());
            assert!(
                members
                    .iter()
                    .all(|member| member.1.load(Relaxed).is_null())
            );
        }
    }
}
