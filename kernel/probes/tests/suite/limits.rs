//! Tables and pools at their limits: a clear answer, and nothing lost.
//!
//! Only the process can be told that another task runs, a million times over.

#![cfg(target_os = "linux")]

use probes::Kretprobe;

use super::{targets::*, *};

/// More tasks inside return-probed functions than there is room for: the calls of the others are
/// missed, counted, and return as ever. When a task ends there is room for another one.
#[test]
fn calls_of_more_tasks_than_can_be_followed_are_missed() {
    let machine = boot();
    let call = leak(
        Kretprobe::<()>::new()
            .symbol("add")
            .maxactive(4)
            .handler(returned::<1, ()>),
    );
    PROBES.register(call).unwrap();
    let mut tasks = (1..).map(|n: u64| n << 8);
    let mut followed = Vec::new();
    let first_missed = loop {
        let task = tasks.next().unwrap();
        machine.run_task(task);
        assert_eq!(add(1, 2), 3);
        match journal::take().as_slice() {
            [1] => followed.push(task),
            [] => break task,
            other => panic!("{other:?}"),
        }
        assert!(followed.len() < 1 << 20, "the table has no end");
    };
    assert!(followed.len() > 1000, "{} tasks are few", followed.len());
    assert_eq!((call.hits(), call.nmissed()), (followed.len() as u64, 1));
    // Those that have a place keep it.
    for task in [followed[0], followed[followed.len() / 2]] {
        machine.run_task(task);
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), [1]);
    }
    // The end of one task makes room for one other, when it runs next.
    PROBES.flush_task(followed.pop().unwrap());
    machine.run_task(first_missed);
    for expected in [[1].as_slice(), &[1]] {
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), expected);
    }
    let one_more = tasks.next().unwrap();
    machine.run_task(one_more);
    assert_eq!(add(1, 2), 3);
    assert_eq!((journal::take(), call.nmissed()), (vec![], 2));
    machine.run_own_task();
    for task in followed.into_iter().chain([first_missed]) {
        PROBES.flush_task(task);
    }
    PROBES.unregister(call).unwrap();
}
