//! Calls in programs, followed by return probes with handlers: which call returns, with which data,
//! in which process.
//!
//! The program is `/bin/exercise`, which knows the results of its functions. What the stub of the
//! breakpoint does by itself is the matter of `user_returns`.

use super::user_probes::{
    SEEN, WRONG, at, end_of, goes_well, note_result, probe, reset, return_of, return_probe,
    semaphore, start,
};
use abi::WaitStatus;
use core::sync::atomic::Ordering::SeqCst;
use kernel::{
    probes::{EntryVerdict, PtRegs},
    uprobes::UserCall,
};

/// Return probes see each result: of plain and recursive calls, of a function that ends in a jump
/// to another probed one, of one that takes its arguments off the stack. A call that is left by
/// another way is not seen, and harms nothing.
#[guest_test]
fn return_probes_see_each_result() {
    reset();
    let factorial = return_probe(return_of("probed_factorial").handler(note_result));
    goes_well(&["probed", "2"]);
    let all: u64 = (1..=10).map(|n: u64| (1..=n).product::<u64>()).sum();
    assert_eq!((factorial.hits(), SEEN.load(SeqCst)), (20, 2 * all));
    assert_eq!((factorial.nmissed(), factorial.active()), (0, 0));
    drop(factorial);

    reset();
    let add = return_probe(return_of("probed_add").handler(note_result));
    let tail = return_probe(return_of("probed_tail").handler(|call, regs| {
        // The sum and 1.
        WRONG.fetch_add(u64::from(regs.ax != 6), SeqCst);
        WRONG.fetch_add(u64::from(regs.ip != call.return_address()), SeqCst);
    }));
    let pops = return_probe(return_of("probed_pops").handler(note_result));
    goes_well(&["probed", "1"]);
    assert_eq!((add.hits(), tail.hits(), pops.hits()), (5, 1, 1));
    // 3; 4, 5 and 5 by the calls; 6 by the tail; 7.
    assert_eq!(
        (SEEN.load(SeqCst), WRONG.load(SeqCst)),
        (3 + 4 + 5 + 5 + 6 + 7, 0)
    );
    drop((add, tail, pops));

    let inner = return_probe(return_of("probed_inner").handler(note_result));
    let outer = return_probe(return_of("probed_outer").handler(note_result));
    reset();
    goes_well(&["probed", "100"]);
    assert_eq!(
        (inner.hits(), outer.hits(), SEEN.load(SeqCst)),
        (0, 100, 500)
    );
    assert_eq!((inner.nmissed(), inner.active(), outer.active()), (0, 0, 0));
}

/// What the entry handler leaves is there at the return of the same call; a call that it declines
/// is not followed; and no more calls are followed than the probe says.
#[guest_test]
fn calls_carry_data_and_are_limited() {
    fn entry(call: &mut UserCall, regs: &mut PtRegs) -> EntryVerdict {
        call.data()[0] = regs.di;
        match regs.di % 2 {
            0 => EntryVerdict::Decline,
            _ => EntryVerdict::Track,
        }
    }
    fn leave(call: &mut UserCall, regs: &mut PtRegs) {
        let product: u64 = (1..=call.data()[0]).product();
        WRONG.fetch_add(u64::from(product != regs.ax), SeqCst);
    }
    reset();
    let odd = return_probe(
        return_of("probed_factorial")
            .entry_handler(entry)
            .handler(leave),
    );
    goes_well(&["probed", "1"]);
    assert_eq!((odd.hits(), odd.nmissed(), WRONG.load(SeqCst)), (5, 0, 0));
    drop(odd);
    let few = return_probe(
        return_of("probed_factorial")
            .maxactive(3)
            .handler(note_result),
    );
    goes_well(&["probed", "1"]);
    assert_eq!((few.hits(), few.nmissed(), few.active()), (3, 7, 0));
    drop(few);
    // A task has 64.
    let deep = return_probe(return_of("probed_factorial").handler(note_result));
    goes_well(&["probed_deep", "100"]);
    assert_eq!((deep.hits(), deep.nmissed(), deep.active()), (64, 36, 0));
}

/// A function that takes its arguments off the stack leaves the stack pointer at the return address
/// of its caller, and above those of calls that were left. It returns from its own call.
#[guest_test]
fn a_return_that_takes_arguments_is_of_its_own_call() {
    reset();
    let pops = return_probe(return_of("probed_pops").handler(note_result));
    let around = ["probed_pops_caller", "probed_pops_after", "probed_leaves"];
    let around = around.map(|name| return_probe(return_of(name).handler(|_, _| {})));
    goes_well(&["probed_taken"]);
    assert_eq!((pops.hits(), SEEN.load(SeqCst)), (2, 8 + 10));
    assert_eq!(around.each_ref().map(|probe| probe.hits()), [1, 1, 0]);
    assert_eq!(around.each_ref().map(|probe| probe.active()), [0; 3]);
}

/// A child of `fork` has the parent's breakpoints, and returns from the calls that the parent was
/// in.
#[guest_test]
fn a_child_returns_from_the_calls_of_its_parent() {
    reset();
    let fork = return_probe(return_of("probed_fork").handler(|_, regs| {
        SEEN.fetch_add(u64::from(regs.ax == 0), SeqCst);
    }));
    let add = probe(at("probed_add"));
    goes_well(&["probed_fork"]);
    assert_eq!((fork.hits(), SEEN.load(SeqCst), add.hits()), (2, 1, 2));
    assert_eq!(fork.active(), 0);
    drop(fork);
    // Both copies of a page that they still share are put right.
    let one = return_probe(return_of("probed_fork").maxactive(1).handler(note_result));
    goes_well(&["probed_fork"]);
    assert_eq!((one.hits(), one.nmissed(), one.active()), (1, 1, 0));
}

/// A probe for one process is not for the process's child: that returns from the call unseen, and
/// its word of probes counts none.
#[guest_test]
fn a_probe_for_one_process_is_not_for_its_child() {
    reset();
    let parent = start(&["probed_fork_of_one"]);
    let fork = return_of("probed_fork").reference_counter(semaphore());
    let fork = return_probe(fork.only(parent).handler(|_, regs| {
        SEEN.fetch_add(1 + u64::from(regs.ax == 0), SeqCst);
    }));
    assert_eq!(end_of(parent), WaitStatus::exited(0));
    assert_eq!((fork.hits(), SEEN.load(SeqCst)), (1, 1));
    assert_eq!((fork.nmissed(), fork.active()), (0, 0));
}
