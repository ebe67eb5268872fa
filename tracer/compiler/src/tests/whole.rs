//! Whole programs, against a reference that follows docs/trace-language.md.
//!
//! A random program is a tree (`tree`, drawn by `draw`). Its text is compiled and run by the
//! interpreter, and `meaning` follows the tree itself. Both must print the same, at each hit and at
//! the end. A failure names the seed and shows the text.

mod draw;
mod meaning;
mod memory;
mod shown;
mod tree;
mod value;

use std::{
    env,
    fmt::Debug,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread::{self, Builder},
};

use bpf::context::Register::Ax;

use self::{
    draw::{Draw, TEXT_ARGUMENT},
    meaning::{At, Event, Machine},
    memory::{FILE_COUNT, FILE_STEP, FILES},
    shown::INTERVAL,
};
use super::{
    arithmetic::{Random, hit},
    fake::{Fake, READ, WRITE, compiled_with},
    world::{Hit, World},
};
use crate::Options;

/// How many programs there are without another wish.
const PROGRAMS: u64 = 120;

/// So many wrong ones a thread does not go on from.
const ENOUGH: usize = 3;

/// The texts that an argument may lead to.
const TEXTS: [(u64, &str); 3] = [
    (0xffff_8000_0030_0000, "cat"),
    (0xffff_8000_0030_1000, ""),
    (0xffff_8000_0030_2000, "a text in memory"),
];

fn event(random: &mut Random, time: u64) -> Event {
    let mut arguments = core::array::from_fn(|_| match random.below(2) {
        0 => random.below(4),
        _ => random.number(),
    });
    arguments[TEXT_ARGUMENT] = random.of(&TEXTS).0;
    if random.below(3) == 0 {
        arguments[0] = FILES + FILE_STEP * random.below(FILE_COUNT);
    }
    let mut at = At {
        cpu: random.below(3) as u32,
        tid: 7 + random.below(2) as u32,
        arguments,
        result: match random.below(2) {
            0 => random.of(&[0, 0x201, 0x901]),
            _ => random.number(),
        },
        is_read: false,
        time,
    };
    let kind = random.below(6);
    at.is_read = matches!(kind, 3 | 5);
    match kind {
        0..=2 => Event::Write(at),
        3 => Event::Read(at),
        4 => Event::Call(at),
        _ => Event::CallRead(at),
    }
}

/// The program of a seed, and what happens to it.
fn drawn(seed: u64) -> (tree::Program, Vec<Event>) {
    let mut random = Random(seed);
    let program = Draw::new(&mut random).program();
    let mut events = Vec::new();
    let mut time = 50_000_000;
    for _ in 0..4 {
        time += 1000 + INTERVAL * random.below(3);
        events.push(event(&mut random, time));
        if random.below(2) == 0 {
            events.push(Event::Tick);
        }
    }
    events.push(Event::Tick);
    (program, events)
}

/// The lines of an output: keys in one order, and histograms in a line each, without bars.
fn settled(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let is_frame =
            line.starts_with("hh:mm:ss") || line.starts_with("  ") && !line.ends_with('|');
        match (bucket(line), lines.last_mut()) {
            _ if is_frame => {}
            (None, Some(last)) if let Some((time, value)) = point(line) => {
                *last += &format!(" {time} {value}");
            }
            (Some((label, count)), Some(last)) => {
                if count != "0" {
                    *last += &format!(" {label} {count}");
                }
            }
            _ => lines.push(line.into()),
        }
    }
    // Of maps, and of loops over them.
    let is_loose = |line: &String| line.starts_with(['@', '~']);
    for run in lines.chunk_by_mut(|a, b| is_loose(a) && is_loose(b)) {
        run.sort();
    }
    lines.join("\n")
}

/// A step of a histogram, and its count.
fn bucket(line: &str) -> Option<(&str, &str)> {
    let (step, bar) = line.strip_suffix('|')?.split_once('|')?;
    let (label, count) = step.trim_end().rsplit_once(' ')?;
    let is_bar = bar.bytes().all(|byte| matches!(byte, b'@' | b' '));
    (is_bar && line.starts_with(['[', '('])).then_some((label.trim_end(), count))
}

/// The time of an interval of a series, and its value.
fn point(line: &str) -> Option<(&str, &str)> {
    let (time, rest) = line.split_once(' ')?;
    let (_, value) = rest.rsplit_once(' ')?;
    let is_time = time.len() > 8 && time.as_bytes()[2] == b':' && time.as_bytes()[5] == b':';
    is_time.then_some((time, value))
}

/// The fate of a program.
enum Fate {
    Right,
    /// It is refused, or a loop of it has too many turns.
    Left,
    Wrong(String),
}

fn fate(seed: u64) -> Fate {
    let (program, events) = drawn(seed);
    let text = program.text();
    let Ok(compiled) = compiled_with(&text, &Fake::new(), &Options::default()) else {
        return Fate::Left;
    };
    let mut world = World::of(compiled);
    for (address, text) in TEXTS {
        let bytes = text.bytes().chain([0]).collect();
        world.memory.push((address, bytes));
    }
    world.memory.extend(memory::contents());
    // So each `nsecs` of a hit is the same.
    world.tsc_step = 0;
    let mut machine = Machine::new(&program, &TEXTS);
    let mut wrong = None;
    let mut compare = |when: &dyn Debug, is: &str, meant: &str| {
        let (is, meant) = (settled(is), settled(meant));
        if is != meant && wrong.is_none() {
            wrong = Some(format!(
                "TRACE_SEED={seed}, {when:x?}\n--- printed\n{is}\n--- meant\n{meant}\n\
                 --- by\n{text}"
            ));
        }
    };
    for event in &events {
        machine.event(event);
        let at = |at: &At| {
            let mut hit = Hit {
                cpu: at.cpu,
                tid: at.tid,
                // A tick is 2 nanoseconds.
                tsc: at.time / 2,
                address: if at.is_read { READ } else { WRITE },
                ..hit(&at.arguments)
            };
            hit.registers.push((Ax, at.result));
            hit
        };
        match event {
            Event::Write(is) | Event::Read(is) => world.hit(&at(is)),
            Event::Call(is) | Event::CallRead(is) => {
                // Then the registers have something else.
                let after = At {
                    arguments: is.arguments.map(|word| !word),
                    ..is.clone()
                };
                world.call(&at(is), &at(&after));
            }
            Event::Tick => world.tick(),
        }
        compare(event, &world.out, &machine.out);
        world.out.clear();
        machine.out.clear();
    }
    let is = world.end();
    if is.contains("ended early") {
        return Fate::Left;
    }
    let books = is.rfind("3 hits = ").unwrap_or(is.len());
    compare(&"at the end", &is[..books], &machine.ended());
    wrong.map_or(Fate::Right, Fate::Wrong)
}

/// Each seed once, by two threads. The wrong programs, and how many are right.
fn judged(seeds: Range<u64>) -> (Vec<String>, u64) {
    let next = AtomicU64::new(seeds.start);
    let right = AtomicU64::new(0);
    let work = || {
        let mut wrong = Vec::new();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if !seeds.contains(&seed) || wrong.len() == ENOUGH {
                return wrong;
            }
            match fate(seed) {
                Fate::Right => {
                    right.fetch_add(1, Relaxed);
                }
                Fate::Left => {}
                Fate::Wrong(text) => wrong.push(text),
            }
        }
    };
    let wrong = thread::scope(|scope| {
        // Trees are followed from part to part.
        let with_stack = || Builder::new().stack_size(1 << 25).spawn_scoped(scope, work);
        let workers = [with_stack(), with_stack()].map(|worker| worker.expect("a thread"));
        let found = workers.map(|worker| worker.join().expect("a program fails, see above"));
        found.concat()
    });
    (wrong, right.into_inner())
}

/// A few programs; `TRACE_PROGRAMS=100000` is the long form. `TRACE_SEED=…` repeats one, or begins
/// with it.
#[test]
fn programs_print_what_the_reference_says() {
    let set = |name| {
        let set = env::var(name).ok()?;
        Some(set.parse().expect("it is a number"))
    };
    let seeds = match (set("TRACE_SEED"), set("TRACE_PROGRAMS")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 0..count.unwrap_or(PROGRAMS),
    };
    let (mut wrong, right) = judged(seeds.clone());
    wrong.sort_by_key(String::len);
    let least = wrong.iter().take(ENOUGH).cloned().collect::<Vec<_>>();
    assert!(
        wrong.is_empty(),
        "{} are wrong, {right} right\n{}",
        wrong.len(),
        least.join("\n")
    );
    println!("{right} are right");
    // Those that are refused say nothing.
    let all = seeds.end - seeds.start;
    assert!(
        all == 1 || right * 4 > all * 3,
        "of {all} only {right} were compared"
    );
}
