//! The self-test on a kernel that is right, and on kernels that do one thing wrong each.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

use probes::{
    SelfTest, self_test,
    self_test::{Report, Verdict},
};

use crate::process::{Fault, PROBES, Process, boot, cpu, preempted};

/// The tasks that were started.
static TASKS: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

impl SelfTest for Process {
    fn spawn(work: fn()) -> bool {
        preempted::begin();
        let task = thread::spawn(move || {
            let _cpu = cpu::Online::new();
            work();
        });
        TASKS.lock().unwrap().push(task);
        true
    }

    fn cpus() -> usize {
        cpu::online()
    }

    fn in_nmi(work: fn()) -> bool {
        if Fault::Nmi.is_in() {
            work();
        } else {
            PROBES.aside(work);
        }
        true
    }

    fn user_breakpoint() -> Option<bool> {
        Some(!Fault::User.is_in())
    }
}

/// The report of a kernel with this fault, and a second CPU.
fn report(fault: Fault) -> Report {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    static IS_ONLINE: AtomicBool = AtomicBool::new(false);
    let machine = boot();
    IS_OVER.store(false, SeqCst);
    IS_ONLINE.store(false, SeqCst);
    let second = thread::spawn(|| {
        let _cpu = cpu::Online::new();
        IS_ONLINE.store(true, SeqCst);
        while !IS_OVER.load(SeqCst) {
            thread::yield_now();
        }
    });
    while !IS_ONLINE.load(SeqCst) {
        thread::yield_now();
    }
    fault.put_in();
    let report = self_test::<Process>();
    Fault::None.put_in();
    IS_OVER.store(true, SeqCst);
    for task in TASKS.lock().unwrap().drain(..).chain([second]) {
        task.join().expect("a task of the self-test ends");
    }
    drop(machine);
    report
}

/// The names of the checks that have failed.
fn failed(report: &Report) -> Vec<&'static str> {
    let checks = report.checks().iter();
    let failed = checks.filter(|check| matches!(check.verdict, Verdict::Failed(_)));
    failed.map(|check| check.name).collect()
}

#[test]
fn a_kernel_that_is_right_passes_every_check() {
    let report = report(Fault::None);
    let passed = |verdict: &Verdict| *verdict == Verdict::Passed;
    assert!(
        report.checks().iter().all(|check| passed(&check.verdict)),
        "{report}"
    );
    assert!(report.is_ok() && report.checks().len() == 10, "{report}");
}

/// Each kind of mistake fails the check that is for it, and no other.
#[test]
fn each_mistake_of_a_kernel_fails_its_check() {
    for (fault, check) in [
        (Fault::Distance, "the CPU's data"),
        (Fault::Cpus, "CPUs that answer"),
        (Fault::Text, "a probe that fires"),
        (Fault::Refusals, "the code of a hit"),
        (Fault::Stale, "a stale breakpoint"),
        (Fault::Faults, "a fault in a slot"),
        (Fault::User, "an int3 of user code"),
        (Fault::Nmi, "an NMI in a handler"),
        (Fault::Grace, "preemption in a slot"),
    ] {
        let report = report(fault);
        assert!(failed(&report).contains(&check), "{fault:?}:\n{report}");
        assert_eq!(
            failed(&report).len(),
            1 + usize::from(fault == Fault::Distance),
            "{report}"
        );
        assert!(!report.is_ok());
    }
    let report = report(Fault::Waits);
    assert!(
        failed(&report).contains(&"a probe removed under fire"),
        "{report}"
    );
}

#[test]
fn checks_that_rest_on_one_that_failed_are_skipped_and_say_so() {
    let report = report(Fault::Text);
    let after = &report.checks()[3..];
    assert!(!after.is_empty());
    for check in after {
        assert_eq!(
            check.to_string(),
            format!(
                "{}: skipped, because it rests on a check that has failed",
                check.name
            )
        );
    }
}
