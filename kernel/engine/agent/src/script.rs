//! A script of the tracer: programs, their maps and places, loaded, attached and run as one.
//!
//! ```text
//!   trace_interface::Script ─► Session::start ─► all is attached    else: Refused, nothing is left
//!                              │
//!        records of the ring ──┤ Session::serve, again and again: the reader's task
//!        timers of intervals ──┤    ─► Record, Comm, Map … frames, in the order of time
//!                              ▼
//!                          Session::end ─► detached, the rest sent, END run, books closed
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`loader`], [`refusal`] | programs and maps, loaded; why a script does not run |
//! | [`attach`] | where programs run: probes, calls, timer ticks |
//! | [`own_tasks`] | the tasks that are kept out of the trace |
//! | [`maps`] | maps as entries of a frame; clearing them |
//!
//! # Invariants
//! RUN-1. A script runs as a whole or not at all. If any part cannot be loaded or attached, the
//!     parts before it are taken back, and the answer is one [`Frame::Refused`].
//! RUN-2. Each program begins with the count of its hit, which the kernel puts in front of it. So
//!     the books do not depend on the script's compiler.
//! RUN-3. A request is served when its record comes out of the ring, between the records before and
//!     after it. But a map that is to be printed and then emptied is emptied as it is read: reading
//!     and sending take long, and what is counted meanwhile would be shown nowhere.
//! RUN-4. One script runs at a time, because the trace buffer has one reader. While it runs, the
//!     buffer keeps its oldest records when it is full, unless the script is a flight recorder
//!     ([`How::overwrite`]). Afterwards its mode is what it was.
//! RUN-5. The frames of call stacks come before the records and maps that name them: a program has
//!     put a stack into its map before it submits a record with the stack's number, and the map is
//!     looked through when records have been taken out of the ring, before they are sent.
//! RUN-6. Where a script keeps the tracer out ([`How::own`]), no program at a probe or in a profile
//!     acts in its own tasks. The kernel puts that in front of the program, too, and counts those
//!     hits apart from the others, all attachments together. Without it, a trace of all functions
//!     is one of the tracer: what sends a record is hit, and that makes records. What it keeps out
//!     is what these tasks run, interrupts on top of them included. Event sources and watches are
//!     for all tasks: the switch from the tracer's task to another one is the other's, too, and a
//!     word has been written, whoever did it.
//!
//! # Contexts
//! Task context, may sleep. Only the handler of timer ticks in [`attach`] is on the hit path.

mod attach;
mod loader;
mod maps;
mod own_tasks;
mod refusal;

use alloc::{collections::BTreeSet, format, string::String, vec::Vec};
use core::sync::atomic::{AtomicBool, Ordering};

use fallible::{OutOfMemory, Shared, try_vec};
use probes::Platform;
use trace_interface::{
    Frame, Script,
    frame::Books,
    script::{self, Attachment, RECORD_TYPE, Request},
};
use trace_wire::Options;

pub(crate) use self::attach::Profiles;
use self::{
    attach::{Attached, Timer, registers_here},
    loader::{Loader, set_clock},
    maps::Emptied,
};
pub use self::{
    maps::{clear as clear_map, read as read_map},
    own_tasks::OwnTasks,
    refusal::Refusal,
};
use crate::{
    Agent,
    buffer::{Item, Totals},
    facts::NSEC_PER_SEC,
    per_cpu::misplaced,
    program::{LoadedMap, Program},
    records::read_tsc,
};

/// Bytes of the header that all records have: see [`bpf::Helper::EventReserve`].
const HEADER_BYTES: usize = 8;

/// A record that came out of the ring.
struct Taken {
    cpu: u32,
    tsc: u64,
    bytes: Vec<u8>,
    /// Its request was served with one before it (RUN-3).
    is_served: bool,
}

/// How many records are sent before the reader looks at its timers again.
const MOST_AT_ONCE: usize = 512;

/// Whether a record is one of a script.
fn is_of_a_script(record: &[u8]) -> bool {
    let kind = record.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    kind == Some(RECORD_TYPE)
}

/// A word of a record.
fn word(record: &[u8], at: usize) -> Option<u32> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// How a script is to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// The ring keeps the newest records, and they stay there: none is sent, no request is served.
    pub overwrite: bool,
    /// The tasks that are kept out of the trace.
    pub own: OwnTasks,
}

/// Reads the bytes of a script, and makes the rings as large as it wants them. The task
/// that calls is to serve the session: it is kept out unless the options want it.
///
/// # Errors
/// [`Refusal`].
pub fn read<A: Agent>(script: &[u8], options: &Options<'_>) -> Result<(Script, How), Refusal> {
    // The decoder takes what it needs without asking. So it is tried first whether that is there.
    const ROOM: usize = 16;
    drop(try_vec::<u8>(script.len().saturating_mul(ROOM))?);
    let script = Script::decode(script).map_err(|error| Refusal::new(None, error))?;
    if let Some(kib) = options.ring_kib {
        let resized = A::tracing().buffer.resize(None, kib as usize);
        resized.map_err(|error| {
            Refusal::new(
                None,
                format_args!("rings of {kib} KiB for each CPU: {error}"),
            )
        })?;
    }
    let how = How {
        overwrite: options.overwrite,
        own: match options.with_tracer || script.with_tracer {
            true => OwnTasks::default(),
            false => OwnTasks::of_caller::<A>(),
        },
    };
    Ok((script, how))
}

/// The answers' way to the reader.
pub trait Outlet {
    /// Sends a frame. Waits as long as the reader wants.
    fn send(&mut self, frame: &Frame);
}

/// The right to run a script: one at a time.
struct Turn(&'static AtomicBool);

impl Turn {
    fn take(runs: &'static AtomicBool) -> Result<Self, Refusal> {
        if runs.swap(true, Ordering::Acquire) {
            return Err(Refusal::new(
                None,
                "another script runs; end it first, because the trace buffer has one reader",
            ));
        }
        Ok(Self(runs))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A script that runs. Dropped: all is detached.
pub struct Session<A: Agent> {
    // Detached first.
    attached: Vec<Attached<A>>,
    timers: Vec<Timer<A>>,
    ends: Vec<Shared<Program<A>>>,
    /// The maps, by their numbers in the script.
    maps: Vec<Shared<LoadedMap>>,
    requests: Vec<Request>,
    /// The counters of hits, by attachment.
    hits: Vec<Shared<LoadedMap>>,
    /// That of the hits of the tracer's own tasks.
    kept_out: Shared<LoadedMap>,
    /// Records are to be read.
    has_ring: bool,
    how: How,
    status: Option<i32>,
    /// The hits that were missed, by attachment, as far as they are detached.
    missed: Vec<u64>,
    /// Numbers of call stacks that were sent, by map.
    sent_stacks: BTreeSet<(u32, u64)>,
    /// Records that were taken out of the ring when there was no memory to send them.
    not_sent: u64,
    /// The tasks whose names were sent.
    named: BTreeSet<u32>,
    before: Before,
    _turn: Turn,
}

/// The state of things that outlive a script, from before it.
struct Before {
    totals: Totals,
    bad_loads: u64,
    overwrote: bool,
}

fn own_bytes(bytes: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    let mut own = try_vec(bytes.len())?;
    own.extend_from_slice(bytes);
    Ok(own)
}

impl<A: Agent> Session<A> {
    /// Loads and attaches all of `script`, and runs its BEGIN. Sends [`Frame::Started`].
    ///
    /// # Errors
    /// [`Refusal`]; nothing is attached then, and nothing was sent.
    pub fn start(script: &Script, how: How, out: &mut dyn Outlet) -> Result<Self, Refusal> {
        if let Some(cpu) = misplaced::<A>() {
            return Err(Refusal::new(
                None,
                format_args!(
                    "the kernel has not said where the agent's data of CPU {cpu} is; have that CPU \
                     call trace_agent::PerCpu::init with its number and its GS base, from which \
                     the data is GS_OFFSET bytes away"
                ),
            ));
        }
        let turn = Turn::take(&A::tracing().recording.script_runs)?;
        let loader = Loader::<A>::new(script, how.own)?;
        let has_ring = script.maps.iter().any(|map| map.kind == bpf::MapKind::Ring);
        let mut session = Self {
            attached: try_vec(script.attachments.len())?,
            timers: try_vec(script.attachments.len())?,
            ends: try_vec(script.attachments.len())?,
            maps: try_vec(loader.maps.len())?,
            requests: try_vec(script.requests.len())?,
            hits: try_vec(loader.hits.len())?,
            kept_out: loader.kept_out.clone(),
            has_ring,
            how,
            status: None,
            missed: Vec::new(),
            sent_stacks: BTreeSet::new(),
            not_sent: 0,
            named: BTreeSet::new(),
            before: Before {
                totals: A::tracing().buffer.totals(),
                bad_loads: A::tracing().bad_loads(),
                overwrote: A::tracing().buffer.overwrites(),
            },
            _turn: turn,
        };
        session.maps.extend(loader.maps.iter().cloned());
        session.hits.extend(loader.hits.iter().cloned());
        session.requests.extend(script.requests.iter().cloned());
        let mut begins = try_vec(script.attachments.len())?;
        // All programs are loaded before the first one is attached, so that what a refused script
        // has done is nothing.
        let mut ready = try_vec(script.attachments.len())?;
        for (index, attachment) in script.attachments.iter().enumerate() {
            ready.push(attach::load(&loader, index, attachment)?);
            match attachment {
                Attachment::Begin { program } => begins.push(loader.load_own(*program, index)?),
                Attachment::End { program } => session.ends.push(loader.load_own(*program, index)?),
                Attachment::Interval {
                    program,
                    nanoseconds,
                } => session.timers.push(Timer::new(
                    loader.load_own(*program, index)?,
                    index,
                    *nanoseconds,
                )),
                _ => {}
            }
        }
        if has_ring {
            A::tracing().buffer.set_overwrite(how.overwrite);
            A::tracing().buffer.clear(None);
            session.before.totals = A::tracing().buffer.totals();
        }
        set_clock(&loader);
        for begin in &begins {
            begin.run(&registers_here());
        }
        let mut places: Vec<u32> = try_vec(script.attachments.len())?;
        let mut left_out = try_vec(script.attachments.len())?;
        for (index, ready) in ready.into_iter().enumerate() {
            let attached = match ready.attach() {
                // PLACES-1
                Err(refusal) if refusal.is_of_place => {
                    left_out.push((index, refusal));
                    Attached::Nothing
                }
                result => result?,
            };
            places.push(attached.places());
            session.attached.push(attached);
        }
        let probe = |index| script.probes.get(index);
        let has_place = |wanted| (0..places.len()).any(|at| places[at] > 0 && probe(at) == wanted);
        for (index, refusal) in left_out {
            let is_optional = probe(index) == Some(&script::OPTIONAL);
            if !is_optional && (probe(index).is_none() || !has_place(probe(index))) {
                return Err(refusal);
            }
        }
        A::tracing().profiles.begin();
        let now = A::now();
        for timer in &mut session.timers {
            timer.begin(now);
        }
        out.send(&Frame::Started {
            tsc_hz: A::tsc_hz(),
            tsc: read_tsc(),
            epoch_nanoseconds: A::seconds_since_1970().saturating_mul(NSEC_PER_SEC),
            cpus: A::possible_cpus() as u32,
            places,
        });
        Ok(session)
    }

    /// Runs the intervals that are due, and sends what is in the ring, but not for ever: when the
    /// records keep coming, it returns true, and is to be called again soon.
    pub fn serve(&mut self, out: &mut dyn Outlet) -> bool {
        let now = A::now();
        for timer in &mut self.timers {
            timer.run_if_due(now);
        }
        self.send_records(u64::MAX, out)
    }

    /// When an interval is due next, in nanoseconds since boot.
    pub fn next_due(&self) -> Option<u64> {
        self.timers.iter().map(Timer::next).min()
    }

    /// Whether a program has asked for the end.
    pub fn is_over(&self) -> bool {
        self.status.is_some()
    }

    /// Whether there is something to read now and then.
    pub fn has_ring(&self) -> bool {
        self.has_ring
    }

    /// Sends records that were written before `end`, by the time stamp counter, and serves their
    /// requests. Returns whether there may be more. Without an end there may always be: what sends
    /// them can run through an event.
    fn send_records(&mut self, end: u64, out: &mut dyn Outlet) -> bool {
        if !self.has_ring || self.how.overwrite {
            return false;
        }
        let Ok(mut taken) = try_vec(MOST_AT_ONCE) else {
            // There may be memory later.
            return false;
        };
        let mut left = MOST_AT_ONCE;
        let mut is_end = false;
        let outcome = A::tracing().buffer.consume_while(None, |item| {
            if let Item::Record { cpu, tsc, bytes } = item {
                if !is_of_a_script(bytes) {
                    // Of an event or a tracer that somebody has enabled meanwhile.
                    is_end = tsc > end;
                } else if let Ok(bytes) = own_bytes(bytes) {
                    taken.push(Taken {
                        cpu: cpu as u32,
                        tsc,
                        bytes,
                        is_served: false,
                    });
                } else {
                    self.not_sent += 1;
                }
            }
            left -= 1;
            left > 0 && !is_end
        });
        if outcome.is_err() {
            // The records are still in the rings.
            return false;
        }
        if !taken.is_empty() {
            self.send_stacks(out);
        }
        let mut rest = &mut taken[..];
        while let Some((record, later)) = core::mem::take(&mut rest).split_first_mut() {
            self.send_record(record, later, out);
            rest = later;
        }
        left == 0 && !is_end
    }

    /// Sends all records that were written until now.
    fn send_all(&mut self, out: &mut dyn Outlet) {
        let now = read_tsc();
        while self.send_records(now, out) {}
    }

    /// The request of a record.
    fn request(&self, record: &[u8]) -> Option<&Request> {
        self.requests.get(word(record, HEADER_BYTES)? as usize)
    }

    /// Sends a record and serves its request. `later` are those after it that were taken with it.
    fn send_record(&mut self, record: &mut Taken, later: &mut [Taken], out: &mut dyn Outlet) {
        let bytes = core::mem::take(&mut record.bytes);
        let (Some(tid), Some(_)) = (word(&bytes, 4), word(&bytes, HEADER_BYTES)) else {
            return;
        };
        let request = self.request(&bytes).cloned();
        let status = word(&bytes, HEADER_BYTES + 4).unwrap_or(0) as i32;
        if self.named.insert(tid) {
            let mut name = String::new();
            // Writing to a text cannot fail.
            let _ = A::write_task_name(tid, &mut name);
            out.send(&Frame::Comm { tid, name });
        }
        let watched = bytes
            .get(HEADER_BYTES + 8..)
            .and_then(|of| of.first_chunk());
        let watched = watched.copied().map(u64::from_le_bytes);
        out.send(&Frame::Record {
            cpu: record.cpu,
            tsc: record.tsc,
            bytes,
        });
        match request {
            Some(Request::Print { map }) => {
                self.send_stacks(out);
                let emptied = self.emptied_next(map, later);
                self.send_map(map, emptied, out);
            }
            Some(Request::Clear { .. } | Request::Zero { .. }) if record.is_served => {}
            Some(Request::Clear { map }) => {
                if let Some(map) = self.map(map) {
                    maps::clear::<A>(map);
                }
            }
            Some(Request::Zero { map }) => {
                if let Some(map) = self.map(map) {
                    maps::zero::<A>(map);
                }
            }
            Some(Request::Unwatch) => {
                if let Some(address) = watched {
                    self.attached.iter().for_each(|of| of.unwatch(address));
                }
            }
            Some(Request::Exit) => _ = self.status.get_or_insert(status),
            Some(Request::Forward) | None => {}
        }
    }

    /// How a map is emptied if that is the next thing that `later` ask of it, which is served then.
    fn emptied_next(&self, map: u32, later: &mut [Taken]) -> Option<Emptied> {
        for record in later {
            let emptied = match self.request(&record.bytes) {
                Some(Request::Print { map: other }) if *other == map => return None,
                Some(Request::Clear { map: other }) if *other == map => Emptied::Cleared,
                Some(Request::Zero { map: other }) if *other == map => Emptied::Zeroed,
                _ => continue,
            };
            record.is_served = true;
            return Some(emptied);
        }
        None
    }

    /// Sends the call stacks that are new (RUN-5).
    fn send_stacks(&mut self, out: &mut dyn Outlet) {
        for (number, map) in self.maps.iter().enumerate() {
            let Some(trace_maps::Map::Stacks(stacks)) = map.own() else {
                continue;
            };
            let number = number as u32;
            stacks.for_each(|stack, frames| {
                if self.sent_stacks.insert((number, stack))
                    && let Ok(mut addresses) = try_vec(frames.len())
                {
                    addresses.extend_from_slice(frames);
                    out.send(&Frame::Stack {
                        map: number,
                        number: stack,
                        addresses,
                    });
                }
            });
        }
    }

    fn map(&self, number: u32) -> Option<&trace_maps::Map> {
        self.maps.get(number as usize)?.own()
    }

    /// Sends a map as it is, and empties it.
    fn send_map(&self, number: u32, emptied: Option<Emptied>, out: &mut dyn Outlet) {
        let Some(map) = self.map(number) else {
            return;
        };
        match maps::entries::<A>(map, emptied) {
            Ok(entries) => out.send(&Frame::Map {
                map: number,
                entries,
            }),
            Err(error) => {
                <A as Platform>::log(format_args!("trace: map {number} cannot be sent: {error}"));
            }
        }
    }

    /// Visits the parts of all maps that have memory of their own, with the number of the map.
    pub fn for_each_map_part(&self, mut visit: impl FnMut(u32, trace_maps::image::Part)) {
        for (number, map) in (0..).zip(&self.maps) {
            if let Some(map) = map.own() {
                map.for_each_part(|part| visit(number, part));
            }
        }
    }

    /// Whether the rings keep the newest records, none of which is sent.
    pub(crate) fn keeps_records(&self) -> bool {
        self.has_ring && self.how.overwrite
    }

    /// Detaches all: no program runs any more at a place.
    pub fn detach(&mut self) {
        if self.missed.is_empty() {
            self.missed = self.attached.iter_mut().map(Attached::detach).collect();
        }
    }

    /// Detaches all, sends the records that are left, runs END, sends all maps, and closes the
    /// books. Returns the status of the script.
    pub fn end(mut self, out: &mut dyn Outlet) -> i32 {
        self.detach();
        let mut missed = core::mem::take(&mut self.missed);
        for timer in &self.timers {
            if let Some(missed) = missed.get_mut(timer.attachment()) {
                *missed += timer.missed();
            }
        }
        self.send_all(out);
        for end in &self.ends {
            end.run(&registers_here());
        }
        self.send_all(out);
        self.send_stacks(out);
        for number in 0..self.maps.len() {
            self.send_map(number as u32, None, out);
        }
        let count = |map: Option<&Shared<LoadedMap>>| match map.and_then(|map| map.own()) {
            Some(trace_maps::Map::Array(array)) => {
                let mut sum = [0];
                array.read_sum(0, &mut sum);
                sum[0]
            }
            _ => 0,
        };
        let books = missed.iter().enumerate().map(|(index, missed)| Books {
            hits: count(self.hits.get(index)) + missed,
            missed: *missed,
        });
        let status = self.status.unwrap_or(0);
        let frame = Frame::Ended {
            status,
            books: books.collect(),
            kept_out: count(Some(&self.kept_out)),
            lost: self.lost(),
            bad_loads: A::tracing().bad_loads() - self.before.bad_loads,
        };
        out.send(&frame);
        status
    }

    /// Losses since the start, by reason.
    fn lost(&self) -> Vec<(String, u64)> {
        let mut lost = Vec::new();
        let mut add = |reason: String, count: u64| {
            if count > 0 {
                lost.push((reason, count));
            }
        };
        if self.has_ring {
            let (now, before) = (A::tracing().buffer.totals(), &self.before.totals);
            add(
                "records: the trace buffer was full".into(),
                now.dropped - before.dropped,
            );
            add(
                "records: overwritten before they were read".into(),
                now.overwritten - before.overwritten,
            );
            add("records: no memory to send them".into(), self.not_sent);
            add(
                "records: the file tracing_on says no".into(),
                now.off - before.off,
            );
        }
        for (number, map) in self.maps.iter().enumerate() {
            if let Some(map) = map.own() {
                let counts = map.lost();
                add(
                    format!("map {number}: no room for another key"),
                    counts.full,
                );
                add(format!("map {number}: the key was in use"), counts.busy);
            }
        }
        lost
    }
}

impl<A: Agent> Drop for Session<A> {
    fn drop(&mut self) {
        // The programs are gone before the next script may run.
        self.attached.clear();
        A::tracing().buffer.set_overwrite(self.before.overwrote);
    }
}
