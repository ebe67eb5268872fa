//! Each operation is interrupted at each of its accesses by a whole other operation, and that one
//! again. The result is that of the same operations one after the other, in some order, without
//! those that say that they were lost.
//!
//! The routines in assembly are interrupted between any two of their instructions.

use std::{
    arch::asm,
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    ptr::null_mut,
    rc::Rc,
    sync::Once,
};

use bpf::{MapDef, MapKind};
use trace_maps::{
    Hash, Lost, MAX_FRAMES, Map, NotUpdated, Stacks, Steps, Use, When,
    at_home::{
        hash_add_word_at_home, hash_delete_word_at_home, hash_find_word_at_home,
        hash_set_word_at_home,
    },
    compiled,
};

/// Runs the operations of a plan: the next one when the one before it has come to its step.
struct Interrupted;

/// The step of an operation at which the next one runs, and that one.
type Interruption = (u64, Box<dyn FnOnce()>);

thread_local! {
    /// The last entry is the next to run.
    static PLAN: RefCell<Vec<Interruption>> = const { RefCell::new(Vec::new()) };
}

impl Steps for Interrupted {
    fn step() {
        let due = PLAN.with_borrow_mut(|plan| {
            let (left, _) = plan.last_mut()?;
            if *left > 0 {
                *left -= 1;
                return None;
            }
            plan.pop()
        });
        if let Some((_, interrupt)) = due {
            interrupt();
        }
    }
}

/// The bit of the flags that makes the processor trap after each instruction.
const TRAP: i64 = 1 << 8;

thread_local! {
    /// Where the routine is that runs in steps.
    static ROUTINE: RefCell<Range<usize>> = const { RefCell::new(0..0) };
}

/// SIGTRAP: an instruction has run. If the next one is the routine's, that is a step.
extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: the kernel passes it to a handler of this kind.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let routine = ROUTINE.take();
    let is_over = PLAN.with_borrow(Vec::is_empty);
    if is_over || !routine.contains(&(registers[libc::REG_RIP as usize] as usize)) {
        // What the routine calls is Rust's, which has steps of its own.
        registers[libc::REG_EFL as usize] &= !TRAP;
        return;
    }
    // This may run another routine.
    Interrupted::step();
    ROUTINE.set(routine);
}

/// Calls a routine, each of whose instructions is a step.
fn call_in_steps(routine: usize, arguments: [u64; 3]) -> u64 {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: all zeros are an action, and the handler is one of this kind.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_trap as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &action, null_mut()), 0);
        }
    });
    // Where a routine calls Rust is at its end: `leave`, `ret`.
    // SAFETY: the code of a routine, which has these bytes.
    let end = (routine..).find(|&at| unsafe { (at as *const u16).read_unaligned() } == 0xc3c9);
    ROUTINE.set(routine..end.expect("a routine has an end"));
    let trap = match PLAN.with_borrow(Vec::is_empty) {
        true => 0,
        false => TRAP,
    };
    let result;
    let [first, second, third] = arguments;
    // SAFETY: the routine's contract is that of the callers, and the handler clears TF.
    unsafe {
        asm!(
            "pushfq",
            "or [rsp], {trap}",
            "popfq",
            "call {routine}",
            trap = in(reg) trap,
            routine = in(reg) routine,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            lateout("rax") result,
            clobber_abi("C"),
        );
    }
    result
}

/// Runs `outer`, interrupted as in `plan`. Returns whether all interruptions took place.
fn interrupted(mut plan: Vec<Interruption>, outer: impl FnOnce()) -> bool {
    plan.reverse();
    PLAN.set(plan);
    outer();
    PLAN.take().is_empty()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add(u64, u64),
    Update(u64, u64, When),
    Delete(u64),
    Lookup(u64),
    Clear,
}

use Operation::{Add, Clear, Delete, Lookup, Update};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Present,
    Absent,
    Found(u64),
    Lost(Lost),
    /// The outcome of a part of an operation.
    Whatever,
}

/// The sizes of a hash.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    key: usize,
    value: usize,
    entries: usize,
    /// Whether routines in assembly do what they can. Keys and values have 8 bytes then.
    by_routine: bool,
}

impl Sizes {
    fn hash(self) -> Hash {
        let definition = MapDef {
            name: "hash".into(),
            kind: MapKind::Hash,
            key_size: self.key as u32,
            value_size: self.value as u32,
            entries: self.entries as u32,
        };
        match Map::new(&definition, 1) {
            Ok(Map::Hash(hash)) => hash,
            _ => panic!("a hash"),
        }
    }

    /// Keys differ in all their words.
    fn key(self, key: u64) -> Vec<u8> {
        let words = (0..).flat_map(|n| (key.wrapping_mul(n * 2 + 1)).to_le_bytes());
        words.take(self.key).collect()
    }

    /// All words of a value that was set are the same.
    fn value(self, value: u64) -> Vec<u8> {
        let words = std::iter::repeat(value.to_le_bytes()).flatten();
        words.take(self.value).collect()
    }
}

/// Runs an operation by its routine, if there is one.
fn run_by_routine(hash: &Hash, operation: Operation) -> Option<Outcome> {
    let (routine, key, argument) = match operation {
        Add(key, delta) => (hash_add_word_at_home as *const (), key, delta),
        Update(key, value, When::Any) => (hash_set_word_at_home as *const (), key, value),
        Delete(key) => (hash_delete_word_at_home as *const (), key, 0),
        Lookup(key) => (hash_find_word_at_home as *const (), key, 0),
        Update(..) | Clear => return None,
    };
    let table = hash.tables() as u64;
    let result = call_in_steps(routine as usize, [table, key, argument]);
    Some(match (operation, result.cast_signed()) {
        (Lookup(_), 0) => Outcome::Absent,
        // SAFETY: a value of a map that lives, and nothing else runs in this thread.
        (Lookup(_), _) => Outcome::Found(unsafe { *(result as *const u64) }),
        (_, 0) => Outcome::Done,
        (_, compiled::ABSENT) => Outcome::Absent,
        (_, compiled::FULL) => Outcome::Lost(Lost::Full),
        (_, compiled::BUSY) => Outcome::Lost(Lost::Busy),
        (_, other) => panic!("{operation:?}: {other}"),
    })
}

fn run(hash: &Hash, sizes: Sizes, operation: Operation) -> Outcome {
    if sizes.by_routine
        && let Some(outcome) = run_by_routine(hash, operation)
    {
        return outcome;
    }
    match operation {
        Add(key, delta) => match hash.add_in_steps::<Interrupted>(0, &sizes.key(key), delta) {
            Some(Ok(())) => Outcome::Done,
            Some(Err(lost)) => Outcome::Lost(lost),
            None => panic!("sizes"),
        },
        Update(key, value, when) => {
            let (key, value) = (sizes.key(key), sizes.value(value));
            match hash.update_in_steps::<Interrupted>(0, &key, &value, when) {
                Some(Ok(())) => Outcome::Done,
                Some(Err(NotUpdated::Present)) => Outcome::Present,
                Some(Err(NotUpdated::Absent)) => Outcome::Absent,
                Some(Err(NotUpdated::Lost(lost))) => Outcome::Lost(lost),
                None => panic!("sizes"),
            }
        }
        Delete(key) => {
            if hash.delete_in_steps::<Interrupted>(0, &sizes.key(key)) {
                Outcome::Done
            } else {
                Outcome::Absent
            }
        }
        Lookup(key) => hash
            .lookup_in_steps::<Interrupted>(0, &sizes.key(key))
            // SAFETY: a value of a map that lives, and nothing else runs in this thread.
            .map_or(Outcome::Absent, |value| Outcome::Found(unsafe { *value })),
        Clear => {
            hash.clear_in_steps::<Interrupted>();
            Outcome::Done
        }
    }
}

/// The keys of a hash and their values.
type Content = BTreeMap<Vec<u8>, Vec<u64>>;

fn content(hash: &Hash) -> Content {
    let mut content = Content::new();
    let unsettled = hash.for_each(|_, key, value| {
        let before = content.insert(key.to_vec(), value.to_vec());
        assert_eq!(before, None, "a key is there twice");
    });
    assert_eq!(unsettled, 0);
    content
}

fn run_in_model(content: &mut Content, sizes: Sizes, operation: Operation) -> Outcome {
    let words = sizes.value.div_ceil(8);
    // Insertions that go on at the same time may all take the last place.
    let room = content.len() < sizes.entries + 2;
    match operation {
        Add(key, delta) => {
            let key = sizes.key(key);
            if !content.contains_key(&key) && !room {
                return Outcome::Lost(Lost::Full);
            }
            content.entry(key).or_insert_with(|| vec![0; words])[0] += delta;
            Outcome::Done
        }
        Update(key, value, when) => {
            let key = sizes.key(key);
            match (content.contains_key(&key), when) {
                (true, When::Absent) => return Outcome::Present,
                (false, When::Present) => return Outcome::Absent,
                (false, _) if !room => return Outcome::Lost(Lost::Full),
                _ => {}
            }
            content.insert(key, vec![value; words]);
            Outcome::Done
        }
        Delete(key) => content
            .remove(&sizes.key(key))
            .map_or(Outcome::Absent, |_| Outcome::Done),
        Lookup(key) => content
            .get(&sizes.key(key))
            .map_or(Outcome::Absent, |value| Outcome::Found(value[0])),
        Clear => {
            content.clear();
            Outcome::Done
        }
    }
}

/// Whether the operations that were not lost, in some order, come to the same.
///
/// An addition to a new key of up to 8 bytes is two operations: it inserts zeros, and adds. To
/// clear is to delete each key that was there before, and perhaps the one that came meanwhile.
fn explained(
    content: &Content,
    after: &Content,
    sizes: Sizes,
    left: &[(Operation, Outcome)],
) -> bool {
    if left.is_empty() {
        return content == after;
    }
    (0..left.len()).any(|n| {
        let (operation, outcome) = left[n];
        let mut next = content.clone();
        if operation == Clear {
            let left: Vec<_> = [&left[..n], &left[n + 1..]].concat();
            return [1, 2, 3, SPECIAL].into_iter().any(|key| {
                let mut next = content.clone();
                next.remove(&sizes.key(key));
                explained(&next, after, sizes, &left)
            });
        }
        let expected = run_in_model(&mut next, sizes, operation);
        if expected == outcome || outcome == Outcome::Whatever {
            let left: Vec<_> = [&left[..n], &left[n + 1..]].concat();
            if explained(&next, after, sizes, &left) {
                return true;
            }
        }
        let Add(key, _) = operation else { return false };
        let mut next = content.clone();
        let inserts = sizes.key <= 8 && !content.contains_key(&sizes.key(key));
        inserts
            && run_in_model(&mut next, sizes, Add(key, 0)) == Outcome::Done
            && explained(&next, after, sizes, left)
    })
}

/// The key whose word in a slot would be that of a free slot.
const SPECIAL: u64 = 0xd1b5_4a32_d192_ed03;

/// The operations before.
const PASTS: &[&[Operation]] = &[
    &[],
    &[Add(1, 100)],
    &[Update(1, 100, When::Any), Add(2, 200)],
    &[Add(1, 100), Delete(1)],
    &[Add(2, 100), Delete(2), Add(3, 100), Delete(3)],
    // No slot is free any more, and all keys but one are deleted.
    &[
        Add(4, 1),
        Delete(4),
        Add(5, 1),
        Delete(5),
        Add(6, 1),
        Delete(6),
        Add(7, 1),
        Delete(7),
        Add(8, 1),
        Delete(8),
        Add(9, 1),
        Delete(9),
        Add(10, 1),
        Delete(10),
        Add(11, 1),
        Delete(11),
        Add(12, 1),
        Delete(12),
        Add(13, 1),
        Delete(13),
        Add(2, 100),
    ],
    &[Add(SPECIAL, 100), Delete(SPECIAL), Add(2, 100)],
];

struct Run {
    ran: Vec<(Operation, Outcome)>,
    complete: bool,
}

/// Runs the first of `operations`, interrupted at step `steps[0]` by the second one, and so on.
fn nested(sizes: Sizes, past: &[Operation], operations: &[Operation], steps: &[u64]) -> Run {
    let inner: Vec<_> = operations[1..]
        .chunks(1)
        .zip(steps.iter().copied())
        .collect();
    interrupted_by(sizes, past, operations[0], &inner)
}

/// Runs `outer`, interrupted by some operations one after the other when it comes to a step; and
/// these by others in the same way, and so on.
fn interrupted_by(
    sizes: Sizes,
    past: &[Operation],
    outer: Operation,
    inner: &[(&[Operation], u64)],
) -> Run {
    let hash = Rc::new(sizes.hash());
    for &operation in past {
        run(&hash, sizes, operation);
    }
    let before = content(&hash);
    let lost_before = hash.lost();
    let ran = Rc::new(RefCell::new(Vec::new()));
    let plan = inner.iter().map(|&(operations, step)| {
        let (hash, ran) = (Rc::clone(&hash), Rc::clone(&ran));
        let operations = operations.to_vec();
        let interrupt = move || {
            for operation in operations {
                let outcome = run(&hash, sizes, operation);
                ran.borrow_mut().push((operation, outcome));
            }
        };
        (step, Box::new(interrupt) as Box<dyn FnOnce()>)
    });
    let mut outcome = None;
    let complete = interrupted(plan.collect(), || {
        outcome = Some(run(&hash, sizes, outer));
    });
    let mut ran = ran.take();
    ran.push((outer, outcome.unwrap()));
    let after = content(&hash);
    let context = || format!("{sizes:?} {past:?} {outer:?}, {inner:?}: {ran:?}");
    let mut kept = ran.clone();
    kept.retain(|(_, outcome)| !matches!(outcome, Outcome::Lost(_)));
    if kept.iter().any(|&(operation, _)| operation == Clear) {
        for key in [1, 2, 3, SPECIAL] {
            if before.contains_key(&sizes.key(key)) {
                kept.push((Delete(key), Outcome::Whatever));
            }
        }
    }
    assert!(
        explained(&before, &after, sizes, &kept),
        "{}\nbefore {before:?}\nafter {after:?}",
        context()
    );
    let count = |reason| {
        ran.iter()
            .filter(|(_, outcome)| *outcome == Outcome::Lost(reason))
            .count()
    };
    let lost = hash.lost();
    assert_eq!(
        lost.full - lost_before.full,
        count(Lost::Full) as u64,
        "{}",
        context()
    );
    assert_eq!(
        lost.busy - lost_before.busy,
        count(Lost::Busy) as u64,
        "{}",
        context()
    );
    assert_eq!(hash.len(), after.len() as u64, "{}", context());
    Run { ran, complete }
}

const SIZES: [Sizes; 5] = [
    Sizes {
        key: 8,
        value: 8,
        entries: 2,
        by_routine: true,
    },
    Sizes {
        key: 8,
        value: 8,
        entries: 2,
        by_routine: false,
    },
    Sizes {
        key: 4,
        value: 24,
        entries: 2,
        by_routine: false,
    },
    Sizes {
        key: 16,
        value: 8,
        entries: 2,
        by_routine: false,
    },
    Sizes {
        key: 20,
        value: 24,
        entries: 2,
        by_routine: false,
    },
];

#[test]
fn an_operation_in_the_middle_of_another_one_comes_before_or_after_it() {
    let operations = [
        Add(1, 1),
        Add(2, 2),
        Add(3, 3),
        Add(SPECIAL, 4),
        Update(1, 10, When::Any),
        Update(2, 20, When::Absent),
        Update(1, 30, When::Present),
        Delete(1),
        Delete(2),
        Lookup(1),
        Lookup(SPECIAL),
        Clear,
    ];
    for sizes in SIZES {
        for past in PASTS {
            for outer in operations {
                for inner in operations {
                    let complete =
                        |step: &u64| nested(sizes, past, &[outer, inner], &[*step]).complete;
                    let steps = (0..).take_while(complete).count();
                    assert!(steps > 0, "{outer:?} has no step");
                }
            }
        }
    }
}

#[test]
fn operations_nest_twice() {
    let operations = [
        Add(1, 1),
        Add(3, 3),
        Update(1, 10, When::Any),
        Delete(1),
        Delete(2),
    ];
    for sizes in [SIZES[1], SIZES[4]] {
        for past in PASTS {
            for outer in operations {
                for middle in operations {
                    for inner in operations {
                        let operations = [outer, middle, inner];
                        for first in 0.. {
                            let complete = |step: &u64| {
                                nested(sizes, past, &operations, &[first, *step]).complete
                            };
                            if (0..).take_while(complete).count() == 0 {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The slots have all had keys, so a new key takes one over whose key is deleted.
#[test]
fn a_routine_whose_slot_goes_to_another_key_does_not_touch_that_one() {
    let mut all = Vec::new();
    for key in 4..14 {
        all.extend([Add(key, 100), Delete(key)]);
    }
    let sizes = SIZES[0];
    for key in 4..14 {
        for is_there in [false, true] {
            let mut past = all.clone();
            if is_there {
                past.push(Add(key, 50));
            }
            for outer in [
                Add(key, 1),
                Update(key, 10, When::Any),
                Delete(key),
                Lookup(key),
            ] {
                // The address that it has found may be another key's value later.
                if outer == Lookup(key) && is_there {
                    continue;
                }
                let taken_over = [Delete(key), Add(1, 7)];
                let come_and_gone = [Delete(key), Add(1, 7), Delete(1)];
                let back = [Delete(key), Add(1, 7), Delete(1), Update(key, 3, When::Any)];
                for inner in [&taken_over[..], &come_and_gone, &back] {
                    let complete = |step: &u64| {
                        interrupted_by(sizes, &past, outer, &[(inner, *step)]).complete
                    };
                    let steps = (0..).take_while(complete).count();
                    assert!(steps > 0, "{outer:?} has no step");
                }
            }
        }
    }
}

#[test]
fn additions_to_keys_of_a_word_that_are_never_deleted_are_never_lost() {
    for past in [PASTS[0], PASTS[1]] {
        for key in [1, 2, SPECIAL] {
            let operations = [Add(1, 1), Add(key, 2), Add(1, 4)];
            let sizes = Sizes {
                key: 8,
                value: 16,
                entries: 4,
                by_routine: false,
            };
            for first in 0..40 {
                for second in 0..40 {
                    let run = nested(sizes, past, &operations, &[first, second]);
                    let done = run.ran.iter().all(|(_, outcome)| *outcome == Outcome::Done);
                    assert!(done, "{:?} at {first}, {second}", run.ran);
                }
            }
        }
    }
}

fn stacks() -> Stacks {
    let definition = MapDef {
        name: "stacks".into(),
        kind: MapKind::Stacks,
        key_size: 4,
        value_size: 4 * 8,
        entries: 8,
    };
    match Map::new(&definition, 1) {
        Ok(Map::Stacks(stacks)) => stacks,
        _ => panic!("stacks"),
    }
}

fn frames(stacks: &Stacks, number: u64) -> Option<Vec<u64>> {
    let mut frames = [0; MAX_FRAMES];
    let count = stacks.frames(number, &mut frames)?;
    Some(frames[..count].to_vec())
}

/// Two traces are inserted, one in the middle of the other one, and perhaps all are forgotten in
/// the middle of that. Each number leads to its own trace, or to none if it was forgotten.
/// A full map of three keys forgets one for another that comes, and is interrupted at each step by
/// one more, by the same one, or by a change of one that is there. Each value is that of its
/// key, and a key that came is there, counted as lost, or forgotten for the other one.
#[test]
fn a_key_that_has_another_one_forgotten_is_interrupted_by_the_next() {
    fn set(hash: &Hash, sizes: Sizes, key: u64, value: u64) {
        let (key, value) = (sizes.key(key), sizes.value(value));
        assert!(hash.use_key_in_steps::<Interrupted>(0, &key, Use::Change { keys: 3 }));
        let _counted = hash.update_in_steps::<Interrupted>(0, &key, &value, When::Any);
        assert!(hash.use_key_in_steps::<Interrupted>(0, &key, Use::Changed));
    }
    let mut forgotten = BTreeSet::new();
    for (key, value) in [(8, 8), (24, 8), (8, 24), (24, 24)] {
        let sizes = Sizes {
            key,
            value,
            entries: 5,
            by_routine: false,
        };
        for (inner, inner_value) in [(5, 50), (4, 41), (1, 11)] {
            for step in 0.. {
                let hash = Rc::new(sizes.hash());
                for key in 1..=3 {
                    set(&hash, sizes, key, key * 10);
                }
                let on_the_way = Rc::clone(&hash);
                let interrupt = move || set(&on_the_way, sizes, inner, inner_value);
                let plan: Vec<Interruption> = vec![(step, Box::new(interrupt))];
                if !interrupted(plan, || set(&hash, sizes, 4, 40)) {
                    assert!(step > 20, "it has that many steps");
                    break;
                }
                let after = content(&hash);
                let at = format!("{sizes:?}, {inner} at step {step}: {after:?}");
                assert_eq!(hash.len(), after.len() as u64, "{at}");
                // Two that come at the same time may both find the room of one. And one whose key
                // came meanwhile, or is lost, may have made room that it does not need.
                assert!((2..=4).contains(&after.len()), "{at}");
                // Of those that were there any may be forgotten, also when it was just changed; of
                // those that came, one by the other.
                let came = BTreeSet::from([4, inner.max(4)]);
                let absent = came
                    .iter()
                    .filter(|key| !after.contains_key(&sizes.key(**key)));
                let forgotten_at_once = u64::from(came.len() > 1);
                assert!(
                    absent.count() as u64 <= hash.lost().sum() + forgotten_at_once,
                    "{at}"
                );
                for key in 1..=5 {
                    let Some(words) = after.get(&sizes.key(key)) else {
                        forgotten.insert(key);
                        continue;
                    };
                    let known = [key * 10, if key == inner { inner_value } else { key * 10 }];
                    let is_one = |value: u64| words.iter().all(|word| *word == value);
                    assert!(known.into_iter().any(is_one), "{at}");
                }
            }
        }
    }
    assert!(forgotten.len() > 1, "{forgotten:?}");
}

#[test]
fn a_number_leads_to_its_own_trace_whatever_interrupts_its_insertion() {
    let traces: [&'static [u64]; 3] = [&[7, 8, 9], &[7, 8, 10], &[7]];
    let mut twice = BTreeSet::new();
    for outer in traces {
        for inner in traces {
            for known in [false, true] {
                for clears in [false, true] {
                    for step in (0..30).flat_map(|first| (0..30).map(move |second| [first, second]))
                    {
                        let stacks = Rc::new(stacks());
                        if known {
                            stacks.insert(outer).unwrap();
                        }
                        let inner_number = Rc::new(RefCell::new(None));
                        let (nested, number) = (Rc::clone(&stacks), Rc::clone(&inner_number));
                        let mut plan: Vec<Interruption> = vec![(
                            step[0],
                            Box::new(move || {
                                number.replace(nested.insert_in_steps::<Interrupted>(inner).ok());
                            }),
                        )];
                        if clears {
                            let nested = Rc::clone(&stacks);
                            plan.push((
                                step[1],
                                Box::new(move || {
                                    nested.clear_in_steps::<Interrupted>();
                                }),
                            ));
                        }
                        let mut outer_number = None;
                        let complete = interrupted(plan, || {
                            outer_number = stacks.insert_in_steps::<Interrupted>(outer).ok();
                        });
                        let outer_number = outer_number.expect("room");
                        let outer_frames = frames(&stacks, outer_number);
                        assert!(
                            outer_frames.as_deref() == Some(outer)
                                || clears && outer_frames.is_none()
                        );
                        if let Some(inner_number) = *inner_number.borrow() {
                            let inner_frames = frames(&stacks, inner_number);
                            assert!(
                                inner_frames.as_deref() == Some(inner)
                                    || clears && inner_frames.is_none()
                            );
                            if outer == inner && !clears {
                                twice.insert(outer_number == inner_number);
                                let first = stacks.first_equal(outer_number);
                                assert_eq!(stacks.first_equal(inner_number), first);
                            }
                        }
                        assert_eq!(stacks.full(), 0);
                        if !complete && !clears {
                            break;
                        }
                    }
                }
            }
        }
    }
    // Otherwise `first_equal` was not tested.
    assert_eq!(twice, BTreeSet::from([false, true]));
}
