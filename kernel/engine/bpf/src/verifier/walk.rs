//! The walk over all paths of a program.
//!
//! It goes along one path to its end, then back to the last branch with a way not gone yet. It
//! keeps the state at each target of a jump. A later path that arrives there with nothing new,
//! after the walk from there has ended, need not be walked again.
//!
//! ```text
//!   entry ──► node ──► node ──► exit        A node is a kept state. It is open until all paths
//!               └────────► node ──► exit    from it have ended; then `remaining` is the longest.
//! ```
//!
//! # Invariants
//! WALK-1. A path ends at a node only if the node is closed. An open one is on the way that led
//!     here, so its paths would go round and never end.
//! WALK-2. The steps from the entry to a node and those that remain from it are at most
//!     [`MOST_PATH`] on every path.
//! WALK-3. `bytes` counts all kept and waiting states and all nodes, and is at most
//!     [`MOST_STATE_BYTES`].

use alloc::vec::Vec;

use super::{
    Cause, MOST_PATH, MOST_STATE_BYTES, MOST_WALK, Refusal, STEPS_OF_CALL, STEPS_OF_KERNEL_LOAD,
    liveness,
    state::State,
    step::{Next, Stepper},
};
use crate::{Cost, Fact, Insn, Program};

/// The most states that are kept for one instruction. Each arrival is compared with them.
const MOST_KEPT: usize = 128;
/// How many comparisons of states count as a step of the walk.
const COMPARISONS_OF_STEP: u32 = 16;

/// A place on a path whose state was kept.
struct Node {
    /// The node before it on its path.
    before: Option<u32>,
    /// Steps from there to here.
    steps: u32,
    /// Ways from here that have not ended.
    open: u32,
    /// The steps of the longest way from here to an end.
    remaining: u32,
    /// When it was closed: how many nodes were before it.
    closed: u32,
}

struct Kept {
    state: State,
    node: u32,
}

/// The end of a path that is being walked.
struct Path {
    state: State,
    at: usize,
    /// The last node.
    node: Option<u32>,
    /// Steps since then.
    since: u32,
    /// Steps from the entry.
    steps: u32,
}

struct Walk<'a> {
    program: &'a Program,
    stepper: Stepper<'a>,
    live: Vec<u16>,
    /// What is known of the paths that came to each instruction that a jump leads to.
    kept: Vec<Option<Vec<Kept>>>,
    nodes: Vec<Node>,
    /// Ways not gone yet.
    waiting: Vec<Path>,
    bytes: usize,
    walked: u32,
    compared: u32,
    /// How many nodes were closed.
    closed: u32,
    /// The steps of the longest path so far.
    longest: u32,
}

/// The kept states that are least wanted come first: those that were closed longest ago. A loop is
/// walked to its last turn first, and then back from turn to turn. So the states that the next way
/// meets are those of the turn that was closed last. The open ones are wanted when they are closed,
/// the latest of them first.
fn age(nodes: &[Node], known: &Kept) -> (bool, u32) {
    let node = &nodes[known.node as usize];
    match node.open > 0 {
        true => (true, known.node),
        false => (false, node.closed),
    }
}

/// The facts about each instruction, and the bytes of stack that are used. The jumps of `program`
/// lead into it, and its maps are there.
pub(super) fn walk(program: &Program) -> Result<(Vec<Fact>, u16, Cost), Refusal> {
    let out_of_memory = |_| Refusal {
        at: None,
        cause: Cause::OutOfMemory,
    };
    let mut kept = Vec::new();
    kept.try_reserve_exact(program.insns.len())
        .map_err(out_of_memory)?;
    kept.resize_with(program.insns.len(), || None);
    for insn in &program.insns {
        if let Insn::Jump { target } | Insn::Branch { target, .. } = insn {
            kept[usize::from(target.0)] = Some(Vec::new());
        }
    }
    let mut walk = Walk {
        program,
        stepper: Stepper::new(program).map_err(out_of_memory)?,
        live: liveness::live(&program.insns).map_err(out_of_memory)?,
        kept,
        nodes: Vec::new(),
        waiting: Vec::new(),
        bytes: 0,
        walked: 0,
        compared: 0,
        closed: 0,
        longest: 0,
    };
    let mut next = Some(Path {
        state: State::at_entry(),
        at: 0,
        node: None,
        since: 0,
        steps: 0,
    });
    while let Some(mut path) = next {
        walk.follow(&mut path).map_err(|cause| Refusal {
            at: Some((path.at, program.insns[path.at])),
            cause,
        })?;
        next = walk.waiting.pop();
        if let Some(path) = &next {
            walk.bytes -= path.state.bytes();
        }
    }
    let cost = Cost {
        path: walk.longest,
        walk: walk.walked + walk.compared / COMPARISONS_OF_STEP,
    };
    let (facts, stack_bytes) = walk.stepper.finish().map_err(out_of_memory)?;
    Ok((facts, stack_bytes, cost))
}

impl Walk<'_> {
    /// Walks a path to its end. If it is refused there, `path.at` tells where.
    fn follow(&mut self, path: &mut Path) -> Result<(), Cause> {
        loop {
            if self.kept[path.at].is_some() && self.arrive(path)? {
                return Ok(());
            }
            let at = path.at;
            self.walked += 1;
            if self.walked + self.compared / COMPARISONS_OF_STEP > MOST_WALK {
                return Err(Cause::WalkTooLong);
            }
            let next = self.stepper.step(at, &mut path.state)?;
            let steps = match self.program.insns[at] {
                Insn::Call { .. } => STEPS_OF_CALL,
                Insn::Load { .. } if self.stepper.loads_kernel(at) => STEPS_OF_KERNEL_LOAD,
                _ => 1,
            };
            path.steps += steps;
            path.since += steps;
            if path.steps > MOST_PATH {
                return Err(Cause::PathTooLong);
            }
            self.longest = self.longest.max(path.steps);
            let on = at + 1;
            let goes_on = !matches!(
                next,
                Next::End
                    | Next::To(_)
                    | Next::Either {
                        not_taken: None,
                        ..
                    }
            );
            if goes_on && on == self.program.insns.len() {
                return Err(Cause::NoExit);
            }
            match next {
                Next::End => {
                    self.ended(path.node, path.since);
                    return Ok(());
                }
                Next::On => path.at = on,
                Next::To(target) => path.at = target,
                Next::Either {
                    target,
                    taken: Some(change),
                    not_taken: None,
                } => {
                    change.apply(&mut path.state);
                    path.at = target;
                }
                Next::Either {
                    taken: None,
                    not_taken: Some(change),
                    ..
                } => {
                    change.apply(&mut path.state);
                    path.at = on;
                }
                // Both ways contradict what is known, so what is known does: no machine is here.
                Next::Either {
                    taken: None,
                    not_taken: None,
                    ..
                } => {
                    self.ended(path.node, path.since);
                    return Ok(());
                }
                Next::Either {
                    target,
                    taken: Some(taken),
                    not_taken: Some(not_taken),
                } => {
                    // The way further down leads out of a loop: gone first, it leaves one way
                    // waiting, where a turn of the loop would leave one for each turn.
                    let ((first, first_change), (later, later_change)) = if target > on {
                        ((target, taken), (on, not_taken))
                    } else {
                        ((on, not_taken), (target, taken))
                    };
                    self.wait(path, later, |state| later_change.apply(state))?;
                    first_change.apply(&mut path.state);
                    path.at = first;
                }
            }
        }
    }

    /// Leaves a way for later.
    fn wait(
        &mut self,
        path: &Path,
        at: usize,
        change: impl FnOnce(&mut State),
    ) -> Result<(), Cause> {
        // The change is made first: it may be about a register that is not read from here on, and
        // tell about a copy of it that is.
        let mut state = path.state.try_clone()?;
        change(&mut state);
        state.keep(self.live[at]);
        self.bytes += state.bytes();
        if self.bytes > MOST_STATE_BYTES {
            return Err(Cause::StatesTooLarge);
        }
        self.waiting.try_reserve(1)?;
        self.waiting.push(Path { state, at, ..*path });
        if let Some(node) = path.node {
            self.nodes[node as usize].open += 1;
        }
        Ok(())
    }

    /// A path has come to where a jump leads. Returns whether it ends here, because all that it can
    /// do is known.
    fn arrive(&mut self, path: &mut Path) -> Result<bool, Cause> {
        path.state.keep(self.live[path.at]);
        let Some(kept) = &mut self.kept[path.at] else {
            return Ok(false);
        };
        let mut latest_open: Option<&Kept> = None;
        // The one that was closed last is most like what comes now.
        let closed = |known: &&Kept| self.nodes[known.node as usize].open == 0;
        let latest_closed = kept.iter().filter(closed);
        let latest_closed = latest_closed.max_by_key(|known| age(&self.nodes, known));
        for known in latest_closed.into_iter().chain(kept.iter()) {
            let node = &self.nodes[known.node as usize];
            if node.open > 0 {
                if latest_open.is_none_or(|latest| latest.node < known.node) {
                    latest_open = Some(known);
                }
                continue;
            }
            self.compared += 1;
            if known.state.includes(&path.state) {
                let remaining = node.remaining;
                self.longest = self.longest.max(path.steps + remaining);
                if path.steps + remaining > MOST_PATH {
                    return Err(Cause::PathTooLong);
                }
                self.ended(path.node, path.since + remaining);
                return Ok(true);
            }
        }
        // A loop that changes nothing is found at its second turn. One that does, and still has no
        // end, is found by the length of its path.
        if latest_open.is_some_and(|latest| latest.state == path.state) {
            return Err(Cause::EndlessLoop);
        }
        let state = path.state.try_clone()?;
        let bytes = state.bytes() + size_of::<Node>();
        // Half of the memory is for ways that wait, because these cannot be done without.
        if self.bytes + bytes > MOST_STATE_BYTES / 2 {
            self.forget_older_half();
            if self.bytes + bytes > MOST_STATE_BYTES / 2 {
                return Ok(false);
            }
        }
        let Some(kept) = &mut self.kept[path.at] else {
            return Ok(false);
        };
        if kept.len() == MOST_KEPT {
            let age = |known: &Kept| age(&self.nodes, known);
            if let Some(oldest) = (0..kept.len()).min_by_key(|number| age(&kept[*number])) {
                self.bytes -= kept.swap_remove(oldest).state.bytes();
            }
        }
        let node = self.nodes.len() as u32;
        self.nodes.try_reserve(1)?;
        kept.try_reserve(1)?;
        self.nodes.push(Node {
            before: path.node,
            steps: path.since,
            open: 1,
            remaining: 0,
            closed: 0,
        });
        kept.push(Kept { state, node });
        self.bytes += bytes;
        path.node = Some(node);
        path.since = 0;
        Ok(false)
    }

    /// Makes room.
    fn forget_older_half(&mut self) {
        let nodes = &self.nodes;
        for kept in self.kept.iter_mut().flatten() {
            kept.sort_unstable_by_key(|known| age(nodes, known));
            for known in kept.drain(..kept.len().div_ceil(2)) {
                self.bytes -= known.state.bytes();
            }
        }
    }

    /// A way from the node `last` has ended after `steps` steps.
    fn ended(&mut self, mut last: Option<u32>, mut steps: u32) {
        while let Some(number) = last {
            let node = &mut self.nodes[number as usize];
            node.remaining = node.remaining.max(steps);
            node.open -= 1;
            if node.open > 0 {
                return;
            }
            self.closed += 1;
            node.closed = self.closed;
            steps = node.steps + node.remaining;
            last = node.before;
        }
    }
}
