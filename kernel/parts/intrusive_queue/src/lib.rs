//! Queues whose links are part of their elements, so that queueing never allocates.
//!
//! A queue holds addresses and not ownership. The user that queues an element keeps it alive and in
//! place until it is removed. A queue is used under a lock of its owner, and the links of its
//! elements are only touched under that lock.
#![no_std]

use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed},
};

/// The link of an element to the next one of its queue. An element is in at most one queue through
/// one link. The lock of the queue orders its accesses.
pub struct Link<T> {
    next: AtomicPtr<T>,
    linked: AtomicBool,
}

impl<T> Link<T> {
    /// A link that is in no queue.
    pub const fn new() -> Self {
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            linked: AtomicBool::new(false),
        }
    }

    /// Whether the element is in a queue.
    pub fn is_linked(&self) -> bool {
        self.linked.load(Relaxed)
    }

    fn next(&self) -> *const T {
        self.next.load(Relaxed)
    }

    fn set_next(&self, next: *const T) {
        self.next.store(next.cast_mut(), Relaxed);
    }
}

impl<T> Default for Link<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Something that can be queued.
///
/// # Safety
/// 1. `link` returns the same link at each call.
/// 2. The element goes into one queue only, or into queues of one lock.
pub unsafe trait Linked: Sized {
    /// The element's link.
    fn link(&self) -> &Link<Self>;
}

/// A singly linked queue for few elements, because insertion and removal in the middle walk it.
pub struct Queue<T: Linked> {
    head: *const T,
    tail: *const T,
}

// SAFETY: a queue holds addresses of elements that its users share between CPUs under its lock.
unsafe impl<T: Linked + Sync> Send for Queue<T> {}

impl<T: Linked> Queue<T> {
    /// A queue with nothing in it.
    pub const fn new() -> Self {
        Self {
            head: ptr::null(),
            tail: ptr::null(),
        }
    }

    /// The first element.
    pub fn front(&self) -> Option<&T> {
        // SAFETY: elements live while they are queued (2 of `insert_before`).
        unsafe { self.head.as_ref() }
    }

    /// Whether `wanted` is true for any element.
    pub fn any(&self, wanted: impl Fn(&T) -> bool) -> bool {
        self.find(wanted).is_some()
    }

    /// The first element for which `wanted` is true.
    pub fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<&T> {
        let mut current = self.head;
        // SAFETY: elements live while they are queued (2 of `insert_before`).
        while let Some(queued) = unsafe { current.as_ref() } {
            if wanted(queued) {
                return Some(queued);
            }
            current = queued.link().next();
        }
        None
    }

    /// Appends `element`.
    ///
    /// # Safety
    /// Same as for [`Queue::insert_before`].
    pub unsafe fn push_back(&mut self, element: &T) {
        // SAFETY: the caller's promise; the last element is not gone either.
        unsafe { self.insert_after(self.tail, element) };
    }

    /// Inserts `element` before the first one for which `later` is true, else at the end.
    ///
    /// # Safety
    /// 1. `element` is in no queue.
    /// 2. It is removed before it moves or dies.
    pub unsafe fn insert_before(&mut self, element: &T, later: impl Fn(&T) -> bool) {
        let mut previous = ptr::null();
        let mut current = self.head;
        // SAFETY: elements live while they are queued (2).
        while let Some(queued) = unsafe { current.as_ref() } {
            if later(queued) {
                break;
            }
            previous = current;
            current = queued.link().next();
        }
        // SAFETY: `previous` is queued or null.
        unsafe { self.insert_after(previous, element) };
    }

    /// Inserts `element` after `previous`, or first if that is null.
    ///
    /// # Safety
    /// 1. `previous` is null or in this queue.
    /// 2. The promises of `insert_before` hold for `element`.
    unsafe fn insert_after(&mut self, previous: *const T, element: &T) {
        debug_assert!(!element.link().is_linked());
        // SAFETY: in the queue, so alive (1).
        let next = match unsafe { previous.as_ref() } {
            Some(previous) => {
                let next = previous.link().next();
                previous.link().set_next(element);
                next
            }
            None => core::mem::replace(&mut self.head, element),
        };
        element.link().set_next(next);
        if next.is_null() {
            self.tail = element;
        }
        element.link().linked.store(true, Relaxed);
    }

    /// Removes and returns the first element for which `wanted` is true. From here on the caller is
    /// responsible for the element's life.
    pub fn remove(&mut self, wanted: impl Fn(&T) -> bool) -> Option<NonNull<T>> {
        let mut previous = ptr::null::<T>();
        let mut current = self.head;
        // SAFETY: elements live while they are queued (2 of `insert_before`).
        while let Some(queued) = unsafe { current.as_ref() } {
            let next = queued.link().next();
            if wanted(queued) {
                // SAFETY: as above.
                match unsafe { previous.as_ref() } {
                    Some(previous) => previous.link().set_next(next),
                    None => self.head = next,
                }
                if next.is_null() {
                    self.tail = previous;
                }
                queued.link().linked.store(false, Relaxed);
                return NonNull::new(current.cast_mut());
            }
            previous = current;
            current = next;
        }
        None
    }

    /// Removes and returns the first element. The caller vouches for its life from here on.
    pub fn pop_front(&mut self) -> Option<NonNull<T>> {
        self.remove(|_| true)
    }

    /// Removes `element`, which is in this queue or in none. True if it was.
    pub fn remove_element(&mut self, element: &T) -> bool {
        element.link().is_linked() && self.remove(|queued| ptr::eq(queued, element)).is_some()
    }
}

impl<T: Linked> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    struct Element {
        key: u32,
        link: Link<Element>,
    }

    // SAFETY: one field, used by one thread.
    unsafe impl Linked for Element {
        fn link(&self) -> &Link<Self> {
            &self.link
        }
    }

    fn elements(keys: impl IntoIterator<Item = u32>) -> Vec<Element> {
        let element = |key| Element {
            key,
            link: Link::new(),
        };
        keys.into_iter().map(element).collect()
    }

    /// Empties the queue.
    fn drain(queue: &mut Queue<Element>) -> Vec<u32> {
        let mut keys = vec![];
        while let Some(element) = queue.pop_front() {
            // SAFETY: the tests keep their elements.
            keys.push(unsafe { element.as_ref() }.key);
        }
        keys
    }

    #[test]
    fn first_in_is_first_out() {
        let elements = elements(0..4);
        let mut queue = Queue::new();
        for element in &elements {
            // SAFETY: in no queue, and drained below.
            unsafe { queue.push_back(element) };
        }
        assert_eq!(queue.front().map(|element| element.key), Some(0));
        assert_eq!(drain(&mut queue), [0, 1, 2, 3]);
        assert!(
            queue.front().is_none() && elements.iter().all(|element| !element.link.is_linked())
        );
    }

    #[test]
    fn equal_keys_stay_in_order_of_insertion() {
        let elements = elements([5, 3, 5, 1, 3]);
        let mut queue = Queue::new();
        for element in &elements {
            // SAFETY: in no queue, and drained below.
            unsafe { queue.insert_before(element, |other| other.key > element.key) };
        }
        let order: Vec<_> = core::iter::from_fn(|| queue.pop_front()).collect();
        let expected = [3, 1, 4, 0, 2].map(|n: usize| NonNull::from(&elements[n]));
        assert_eq!(order, expected);
    }

    #[test]
    fn element_of_no_queue_is_not_removed() {
        let elements = elements([1]);
        let mut queue = Queue::new();
        assert!(!queue.remove_element(&elements[0]));
        // SAFETY: in no queue, and removed in the next line.
        unsafe { queue.push_back(&elements[0]) };
        assert!(queue.remove_element(&elements[0]) && !queue.remove_element(&elements[0]));
    }

    proptest! {
        /// Compares the queue with a vector: appending, inserting in order, removing from anywhere.
        #[test]
        fn behaves_like_a_vector(steps in proptest::collection::vec((0u8..3, 0usize..8), 0..200)) {
            let elements = elements(0..8);
            let mut queue = Queue::new();
            let mut model = vec![];
            for (step, n) in steps {
                let element = &elements[n];
                match step {
                    0 => prop_assert_eq!(queue.remove_element(element), model.contains(&n)),
                    _ if element.link.is_linked() => continue,
                    // SAFETY: in no queue; elements outlive the queue.
                    1 => unsafe { queue.push_back(element) },
                    // SAFETY: as above.
                    _ => unsafe { queue.insert_before(element, |other| other.key > element.key) },
                }
                match step {
                    0 => model.retain(|&other| other != n),
                    1 => model.push(n),
                    _ => {
                        let at = model.iter().position(|&other| other > n).unwrap_or(model.len());
                        model.insert(at, n);
                    }
                }
            let front = queue.front().map(|element| element.key as usize);
            prop_assert_eq!(front, model.first().copied());
            }
            let expected: Vec<u32> = model.iter().map(|&n| n as u32).collect();
            prop_assert_eq!(drain(&mut queue), expected);
        }
    }
}
