//! Interrupts at any access to the ring's memory.
//!
//! Code under test runs at a depth. Before each of its accesses it is asked whether an interrupt
//! comes now. The handler runs to its end at the next depth, where another one may interrupt it.

use core::cell::RefCell;
use std::{rc::Rc, thread_local, vec::Vec};

/// An interrupt: how many accesses of the code below it come first, and its handler.
pub(crate) type Interrupt = (usize, Rc<dyn Fn()>);

#[derive(Default)]
struct Plan {
    /// By depth. A handler runs once.
    interrupts: Vec<Option<Interrupt>>,
    depth: usize,
}

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// The code at the current depth is about to make an access.
pub(crate) fn step() {
    let due = PLAN.with_borrow_mut(|plan| {
        let next = plan.interrupts.get_mut(plan.depth)?;
        match next {
            Some((0, _)) => {
                plan.depth += 1;
                next.take()
            }
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    });
    if let Some((_, handler)) = due {
        handler();
        PLAN.with_borrow_mut(|plan| plan.depth -= 1);
    }
}

/// Runs `body` with an interrupt at each depth, as far as they come. Returns how many came.
pub(crate) fn with(interrupts: &[Interrupt], body: impl FnOnce()) -> usize {
    PLAN.set(Plan {
        interrupts: interrupts.iter().cloned().map(Some).collect(),
        depth: 0,
    });
    body();
    let plan = PLAN.take();
    plan.interrupts.iter().filter(|left| left.is_none()).count()
}
