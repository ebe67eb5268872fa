//! Queues whose links are part of their elements, so that queueing never allocates: the run queue, wait queues,
//! sleepers.
//!
//! A queue holds addresses, not ownership. It is used under the lock of whoever owns it.

use core::{
    cell::Cell,
    ptr::{self, NonNull},
};

/// The link of an element to the next one of its queue. An element is in at most one queue through one link.
pub struct Link<T> {
    next: Cell<*const T>,
    linked: Cell<bool>,
}

impl<T> Link<T> {
    /// A link that is in no queue.
    pub const fn new() -> Self {
        Self {
            next: Cell::new(ptr::null()),
            linked: Cell::new(false),
        }
    }

    /// Whether the element is in a queue.
    pub fn is_linked(&self) -> bool {
        self.linked.get()
    }
}

/// Something that can be queued.
///
/// # Safety
/// 1. `link` returns the same link at each call.
/// 2. The link is read and written only through a [`Queue`], under the lock of that queue.
pub unsafe trait Linked: Sized {
    /// The element's link.
    fn link(&self) -> &Link<Self>;
}

/// A singly linked queue. Removal from the middle walks it: these queues are short.
pub struct Queue<T: Linked> {
    head: *const T,
}

// SAFETY: a queue holds addresses of elements that its users share between CPUs under its lock.
unsafe impl<T: Linked + Sync> Send for Queue<T> {}

impl<T: Linked> Queue<T> {
    /// A queue with nothing in it.
    pub const fn new() -> Self {
        Self { head: ptr::null() }
    }

    /// The first element.
    pub fn front(&self) -> Option<&T> {
        // SAFETY: by the contract of `insert_before` elements live while they are queued.
        unsafe { self.head.as_ref() }
    }

    /// Appends `element`.
    ///
    /// # Safety
    /// As for [`Queue::insert_before`].
    pub unsafe fn push_back(&mut self, element: &T) {
        // SAFETY: the caller's promise.
        unsafe { self.insert_before(element, |_| false) };
    }

    /// Inserts `element` before the first one for which `later` is true, else at the end.
    ///
    /// # Safety
    /// 1. `element` is in no queue.
    /// 2. It is removed before it moves or dies.
    pub unsafe fn insert_before(&mut self, element: &T, later: impl Fn(&T) -> bool) {
        debug_assert!(!element.link().is_linked());
        let mut previous: Option<&T> = None;
        let mut current = self.head;
        // SAFETY: elements live while they are queued (2).
        while let Some(queued) = unsafe { current.as_ref() } {
            if later(queued) {
                break;
            }
            previous = Some(queued);
            current = queued.link().next.get();
        }
        element.link().next.set(current);
        element.link().linked.set(true);
        match previous {
            Some(previous) => previous.link().next.set(element),
            None => self.head = element,
        }
    }

    /// Removes and returns the first element for which `wanted` is true. The caller vouches for the element's life
    /// from here on.
    pub fn remove(&mut self, wanted: impl Fn(&T) -> bool) -> Option<NonNull<T>> {
        let mut previous: Option<&T> = None;
        let mut current = self.head;
        // SAFETY: by the contract of `insert_before` elements live while they are queued.
        while let Some(queued) = unsafe { current.as_ref() } {
            let next = queued.link().next.get();
            if wanted(queued) {
                match previous {
                    Some(previous) => previous.link().next.set(next),
                    None => self.head = next,
                }
                queued.link().linked.set(false);
                return NonNull::new(current.cast_mut());
            }
            previous = Some(queued);
            current = next;
        }
        None
    }

    /// Removes `element` if it is queued. True if it was.
    pub fn remove_element(&mut self, element: &T) -> bool {
        element.link().is_linked() && self.remove(|queued| ptr::eq(queued, element)).is_some()
    }
}
