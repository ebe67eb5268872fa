//! Holders that are counted by other code, and pointers that stand for holders.

use std::{
    cell::Cell,
    ptr::NonNull,
    rc::Rc,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use fallible::Shared;

/// Says when it is dropped.
struct Noted(Rc<Cell<u32>>, u64);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn noted() -> (Shared<Noted>, Rc<Cell<u32>>) {
    let drops = Rc::new(Cell::new(0));
    let value = Shared::try_new(Noted(drops.clone(), 77)).expect("there is memory");
    (value, drops)
}

#[test]
fn a_pointer_stands_for_a_holder() {
    let (value, drops) = noted();
    let other = value.clone().into_raw();
    assert_eq!(value.holders(), 2);
    // SAFETY: the pointer is a holder's.
    assert_eq!(unsafe { other.as_ref() }.1, 77);
    drop(value);
    assert_eq!(drops.get(), 0);
    // SAFETY: from `into_raw`, once.
    let back = unsafe { Shared::from_raw(other) };
    assert_eq!(back.holders(), 1);
    drop(back);
    assert_eq!(drops.get(), 1);
}

#[test]
fn other_code_counts_a_holder() {
    let (value, drops) = noted();
    let pointer: NonNull<Noted> = value.clone().into_raw();
    // SAFETY: the count is there, as `HOLDERS` says, and the value is held.
    let count = unsafe {
        pointer
            .byte_offset(Shared::<Noted>::HOLDERS)
            .cast::<AtomicUsize>()
    };
    // SAFETY: as above.
    unsafe { count.as_ref() }.fetch_add(1, Relaxed);
    assert_eq!(value.holders(), 3);
    // SAFETY: `into_raw` was called once, and the count raised once.
    drop(unsafe { (Shared::from_raw(pointer), Shared::from_raw(pointer)) });
    assert_eq!((value.holders(), drops.get()), (1, 0));
    drop(value);
    assert_eq!(drops.get(), 1);
}
