//! Returns of a program's functions, by handlers and by compiled actions: what the stub of the
//! breakpoint serves by itself, and what it leaves to Rust. Both see the same, and count the same.
//!
//! The program is `/bin/exercise`. It knows the results of its functions, and enters one of them
//! with stacks and return addresses that no compiler makes.

use super::user_probes::{exercise, goes_well, kill, start};
use crate::harness::waiting::expect_soon;
use abi::{WaitStatus, signal};
use alloc::vec::Vec;
use bpf::{AluOp, Builder, Condition, MapDef, MapIndex, ProgramKind, Reg, Size, context::Register};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use kernel::{
    mm::shared::Shared,
    probes::{Kernel, PtRegs},
    trace::program::Program,
    uprobes::{Uretprobe, UserCall, registry::RegisteredUserProbe},
};
use trace_agent::{
    Agent as _,
    facts::{InProgram, PlaceInProgram},
};

const EXERCISE: &str = "/bin/exercise";

fn return_probe(
    symbol: &'static str,
    handler: fn(&mut UserCall, &mut PtRegs),
) -> RegisteredUserProbe<Uretprobe> {
    let probe = Uretprobe::new().program(EXERCISE).symbol(symbol);
    RegisteredUserProbe::new(probe.handler(handler)).expect("the function is there")
}

/// A compiled action at a function or its returns, and its counters.
pub struct Action {
    attached: alloc::boxed::Box<dyn InProgram>,
    program: Shared<Program>,
    counters: MapIndex,
}

impl Action {
    /// Attaches what `build` makes, which counts in as many `counters`, at the returns of a
    /// function.
    fn at_returns_of(
        symbol: &str,
        counters: u32,
        build: impl FnOnce(&mut Builder, MapIndex),
    ) -> Self {
        Self::at(symbol, true, counters, build)
    }

    fn at(
        symbol: &str,
        returns: bool,
        counters: u32,
        build: impl FnOnce(&mut Builder, MapIndex),
    ) -> Self {
        let mut builder = Builder::new(ProgramKind::Probe);
        let map = builder.map(MapDef::counters("counters", counters));
        build(&mut builder, map);
        builder.exit(0);
        let program = Program::load(builder.finish().expect("it is right"));
        let program = program.expect("it is verified, and there is memory");
        let run = Program::in_program(&program).expect("there is memory");
        let place = PlaceInProgram {
            path: EXERCISE,
            function: Some(symbol),
            offset: 0,
            counter: None,
            returns,
        };
        let attached = Kernel::attach_to_program(run, &place).expect("the function is there");
        Self {
            attached,
            program,
            counters: map,
        }
    }

    /// One that counts returns.
    pub fn counting(symbol: &str) -> Self {
        Self::at_returns_of(symbol, 1, |builder, map| {
            builder.add(map, 0, 1);
        })
    }

    /// One that counts hits of the function.
    pub fn counting_hits(symbol: &str) -> Self {
        Self::at(symbol, false, 1, |builder, map| {
            builder.add(map, 0, 1);
        })
    }

    /// One that counts the returns that are of the function.
    pub fn looking_at_the_function(symbol: &str) -> Self {
        let function = super::user_probes::address(symbol);
        Self::at_returns_of(symbol, 1, |builder, map| {
            let other = builder.label();
            builder
                .load_register(Reg::R6, Register::OrigAx)
                .set(Reg::R7, function as i64)
                .branch(Condition::NotEqual, Reg::R6, Reg::R7, other)
                .add(map, 0, 1)
                .place(other);
        })
    }

    fn counter(&self, index: usize) -> u64 {
        self.program.counter(self.counters, index)
    }

    /// Takes it away. Returns how many it counted first, and how many were missed.
    pub fn end(self) -> (u64, u64) {
        let missed = self.attached.detach();
        (self.program.counter(self.counters, 0), missed)
    }
}

static SEEN: AtomicU64 = AtomicU64::new(0);

/// A call is followed wherever its return address can be replaced: at odd addresses, across pages,
/// in a page that a child shares with its parent. Where it cannot, it is missed: in memory that may
/// only be read, in the kernel's, and in none.
#[guest_test]
fn calls_are_followed_on_any_stack_that_can_be_written() {
    SEEN.store(0, SeqCst);
    goes_well(&["probed_stacks"]);
    let handled = return_probe("probed_anywhere", |_, regs| {
        SEEN.fetch_add(regs.ax, SeqCst);
    });
    goes_well(&["probed_stacks"]);
    assert_eq!((handled.hits(), handled.nmissed()), (4, 7));
    assert_eq!((SEEN.load(SeqCst), handled.active()), (4 * 9, 0));
    drop(handled);
    let counted = Action::counting("probed_anywhere");
    goes_well(&["probed_stacks"]);
    assert_eq!(counted.end(), (4, 7));
}

/// A program that returns to an address which it may not have is ended there, and so is one that
/// comes to the trampoline without a call, with whatever stack pointer.
#[guest_test]
fn returns_to_nowhere_end_the_program_alone() {
    let segv = WaitStatus::killed(signal::SEGV);
    let outcomes = || ["kernel", "none"].map(|to| exercise(&["probed_wild_return", to]));
    assert_eq!(outcomes(), [segv, segv]);
    let handled = return_probe("probed_anywhere", |_, _| {});
    assert_eq!(outcomes(), [segv, segv]);
    assert_eq!(
        (handled.hits(), handled.nmissed(), handled.active()),
        (2, 0, 0)
    );
    drop(handled);
    let counted = Action::counting("probed_anywhere");
    assert_eq!(outcomes(), [segv, segv]);
    assert_eq!(counted.end(), (2, 0));
    let forged = return_probe("probed_own_return", |_, _| {});
    for sp in ["own", "behind"] {
        let outcome = exercise(&["probed_forge", sp]);
        assert_eq!(outcome, WaitStatus::killed(signal::TRAP), "{sp}");
    }
    assert_eq!((forged.hits(), forged.active()), (2, 0));
}

/// A call that is still open is not over because the program comes to the trampoline: it would be
/// taken for the return of a call with no slot, and go on at an address that `iretq` refuses.
#[guest_test]
fn an_open_call_is_not_taken_for_one_that_returns() {
    let own = return_probe("probed_own_return", |_, _| {});
    let ended = || exercise(&["probed_forge", "open"]);
    let handled = return_probe("probed_anywhere", |_, _| {});
    assert_eq!(ended(), WaitStatus::killed(signal::TRAP));
    assert_eq!((handled.hits(), handled.active()), (0, 0));
    drop(handled);
    let counted = Action::counting("probed_anywhere");
    assert_eq!(ended(), WaitStatus::killed(signal::TRAP));
    assert_eq!(counted.end(), (0, 0));
    assert_eq!((own.hits(), own.active()), (2, 0));
}

/// An action counts each return that a handler would count: in recursion, after a jump to another
/// probed function, where arguments are taken off the stack, after calls that were left by another
/// way, at the limit of a task, and in a child.
#[guest_test]
fn actions_count_the_returns_that_handlers_count() {
    let names = ["factorial", "add", "tail", "pops", "inner", "outer"];
    let at = |name| match name {
        "factorial" => Action::counting("probed_factorial"),
        "add" => Action::counting("probed_add"),
        "tail" => Action::counting("probed_tail"),
        "pops" => Action::counting("probed_pops"),
        "inner" => Action::counting("probed_inner"),
        _ => Action::counting("probed_outer"),
    };
    let actions = names.map(at);
    goes_well(&["probed", "3"]);
    let counts = actions.map(Action::end);
    let expected = [30, 15, 3, 3, 0, 3].map(|count| (count, 0));
    assert_eq!(counts, expected, "{names:?}");
    let deep = Action::counting("probed_factorial");
    goes_well(&["probed_deep", "100"]);
    assert_eq!(deep.end(), (64, 36));
    let fork = Action::counting("probed_fork");
    goes_well(&["probed_fork"]);
    assert_eq!(fork.end(), (2, 0));
}

/// An action finds the result, the function, the address that the call returns to, and what DI was
/// at the entry. The program finds its registers as they were.
#[guest_test]
fn actions_find_the_words_of_the_call() {
    let function = super::user_probes::address("probed_add");
    let (ax, di, si, context) = (Reg::R6, Reg::R7, Reg::R8, Reg::R9);
    let added = Action::at_returns_of("probed_add", 4, |builder, map| {
        let [no_sum, no_function, no_di] = [(); 3].map(|()| builder.label());
        builder
            .mov(context, Reg::R1)
            .add(map, 0, 1)
            .load(ax, context, Register::Ax.offset(), Size::B8)
            .load(di, context, Register::Di.offset(), Size::B8)
            .load(si, context, Register::Si.offset(), Size::B8)
            .alu(AluOp::Add, si, di)
            .branch(Condition::NotEqual, ax, si, no_sum)
            .add(map, 1, 1)
            .place(no_sum)
            .load(ax, context, Register::OrigAx.offset(), Size::B8)
            .set(si, function as i64)
            .branch(Condition::NotEqual, ax, si, no_function)
            .add(map, 2, 1)
            .place(no_function)
            // The function does not change it.
            .load(ax, context, Register::Ss.offset(), Size::B8)
            .branch(Condition::NotEqual, ax, di, no_di)
            .add(map, 3, 1)
            .place(no_di);
    });
    goes_well(&["probed", "3"]);
    let counts = [0, 1, 2, 3].map(|index| added.counter(index));
    assert_eq!(counts, [15; 4]);
    // All return to one place.
    let back = super::user_probes::address("probed_way_back");
    let returned = Action::at_returns_of("probed_anywhere", 2, |builder, map| {
        let elsewhere = builder.label();
        builder
            .mov(context, Reg::R1)
            .add(map, 0, 1)
            .load(ax, context, Register::Ip.offset(), Size::B8)
            .set(si, back as i64)
            .branch(Condition::NotEqual, ax, si, elsewhere)
            .add(map, 1, 1)
            .place(elsewhere);
    });
    goes_well(&["probed_stacks"]);
    assert_eq!((returned.counter(0), returned.counter(1)), (4, 4));
}

/// Actions and handlers come to the returns of programs that run on four CPUs, and go while calls
/// are under way. The programs check their results.
#[guest_test(smp = 4, timeout = 120)]
fn returns_are_served_while_their_probes_come_and_go() {
    let running: Vec<_> = (0..6).map(|_| start(&["probed_forever"])).collect();
    for round in 0..40 {
        let counted = Action::counting("probed_factorial");
        let handled = (round % 2 == 0).then(|| return_probe("probed_add", |_, _| {}));
        expect_soon("returns", || {
            counted.counter(0) > 20 && handled.as_ref().is_none_or(|probe| probe.hits() > 20)
        });
        let (_, missed) = counted.end();
        assert_eq!(missed, 0);
        if let Some(handled) = handled {
            assert_eq!(handled.nmissed(), 0);
        }
    }
    running.into_iter().for_each(kill);
}
