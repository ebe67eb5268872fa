//! Interrupts at any access to the ring's memory.
//!
//! Code under test runs at a depth. Before each of its accesses it is asked whether an interrupt
//! comes now. The handler runs to its end at the next depth, where another one may interrupt it.

use core::{cell::RefCell, fmt};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    thread_local, vec,
    vec::Vec,
};

/// An interrupt: how many accesses of the code below it come first, and its handler.
pub(crate) type Interrupt = (usize, Rc<dyn Fn()>);

#[derive(Default)]
struct Plan {
    /// The interrupts by depth. A handler runs once.
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

/// Runs `acts` on a new world, each one interrupted by the next at an access of it, in all ways.
/// `check` looks at each world afterwards. Returns in how many ways. `case` says which world it is.
pub(crate) fn explore<W: 'static, A: Copy + fmt::Debug + 'static>(
    case: impl fmt::Display,
    new: impl Fn() -> W,
    run: fn(&W, A),
    acts: &[A],
    check: impl Fn(&W),
) -> usize {
    let mut steps = vec![0; acts.len() - 1];
    let mut runs = 0;
    loop {
        let world = Rc::new(new());
        let interrupts: Vec<_> = (steps.iter().zip(&acts[1..]))
            .map(|(&step, &act)| {
                let world = Rc::clone(&world);
                let handler: Rc<dyn Fn()> = Rc::new(move || run(&world, act));
                (step, handler)
            })
            .collect();
        let came = with(&interrupts, || run(&world, acts[0]));
        let closed = catch_unwind(AssertUnwindSafe(|| check(&world)));
        assert!(closed.is_ok(), "{case}, {acts:?} at {steps:?}");
        runs += 1;
        // The innermost interrupt moves on first. One that did not come was the last of its kind.
        let Some(depth) = came.checked_sub(1) else {
            return runs;
        };
        steps[depth] += 1;
        steps[depth + 1..].fill(0);
    }
}
