//! The last words of a kernel: its panic handler sends the tracer what is in the rings and the maps
//! of the script that runs.
//!
//! ```text
//!   Session ─► Exposed: which maps there are ─┐                 the kernel panics
//!   CPU n ──► its live ring ──────────────────┴─► tell: Died, rings, maps, Over ─► the same line
//! ```
//!
//! # Invariants
//! LAST-1. [`tell`] needs nothing that somebody may be in the middle of changing: no lock, no heap,
//!     nothing of the task that has served the tracer. It reads two words that name the tracer's
//!     call and the list of maps, the words of the live rings, and memory that they lead to.
//! LAST-2. The list of maps is one that was made before it was named, and it is freed after its
//!     name has gone. So whichever instruction the other CPUs have stopped at, a list that is named
//!     is whole, and the maps in it are there.
//! LAST-3. The kernel speaks once. A panic in the middle of that is silent.
//!
//! # Contexts
//! [`tell`]: any in which the kernel has panicked. The rest: the task that serves tracers.

use alloc::{boxed::Box, vec::Vec};
use core::{
    fmt,
    ptr::{NonNull, null_mut, with_exposed_provenance},
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use fallible::{OutOfMemory, try_box, try_vec};
use trace_maps::image::Part;
use trace_ring::{
    Ring,
    layout::{HEADER_BYTES, Header},
    limits::PAGE_BYTES,
};
use trace_wire::stream::{Deathbed, Fill, Piece, Whole, memory::MOST_WHOLE};

use crate::{Agent, script::Session};

/// Bytes of a map that are looked at together: those that are all 0 are not sent.
const MAP_PIECE: u64 = 1024;
/// Stands for the number of the call, if it is there.
const IS_THERE: u64 = 1 << 32;

/// What [`tell`] reads.
pub(crate) struct LastWords {
    /// The number of the tracer's call and [`IS_THERE`], or 0.
    call: AtomicU64,
    /// The script that runs, or null.
    exposed: AtomicPtr<Exposed>,
    has_spoken: AtomicBool,
}

impl LastWords {
    pub(crate) const fn new() -> Self {
        Self {
            call: AtomicU64::new(0),
            exposed: AtomicPtr::new(null_mut()),
            has_spoken: AtomicBool::new(false),
        }
    }

    /// Notes which tracer is there.
    pub(crate) fn note_call(&self, call: Option<u32>) {
        let call = call.map_or(0, |call| IS_THERE | u64::from(call));
        self.call.store(call, Relaxed);
    }
}

/// What there is of a script that runs.
pub(crate) struct Exposed {
    has_ring: bool,
    /// The parts of the maps, with the numbers of the maps.
    parts: Vec<(u32, Part)>,
}

/// Names a script as long as it exists: it goes before the session does.
pub(crate) struct Naming<A: Agent>(core::marker::PhantomData<fn(A)>);

impl<A: Agent> Naming<A> {
    pub(crate) fn of(session: &Session<A>) -> Result<Self, OutOfMemory> {
        let mut count = 0;
        session.for_each_map_part(|_, _| count += 1);
        let mut parts = try_vec(count)?;
        session.for_each_map_part(|map, part| parts.push((map, part)));
        let exposed = try_box(Exposed {
            has_ring: session.has_ring(),
            parts,
        })?;
        // LAST-2: all of it was written before.
        let place = &A::tracing().last_words.exposed;
        place.store(Box::into_raw(exposed), Release);
        Ok(Self(core::marker::PhantomData))
    }
}

impl<A: Agent> Drop for Naming<A> {
    fn drop(&mut self) {
        let exposed = A::tracing().last_words.exposed.swap(null_mut(), Relaxed);
        if !exposed.is_null() {
            // SAFETY: `of` has made it of a box, and one session runs at a time (RUN-4), so nobody
            // else takes it. A CPU that dies reads it only if this one has stopped before.
            drop(unsafe { Box::from_raw(exposed) });
        }
    }
}

/// Sends pieces: what they are, how many bytes they have, and what writes these.
pub(crate) type Send<'s> = &'s mut dyn FnMut(&Piece, u64, Fill<'_>);

/// Sends what is in the rings of all CPUs, the newest pages first. Nothing is written to them
/// meanwhile.
pub(crate) fn send_rings<A: Agent>(send: Send<'_>) {
    let ring = |cpu| {
        let live = A::cpu_tracing(cpu)?.rings().0.load(Acquire);
        // SAFETY: the live ring of a CPU, which lives while no ring is exchanged: the caller has
        // paused that, or nothing but the caller runs.
        Some(unsafe { Ring::from_raw(NonNull::new(live)?) })
    };
    let rings = || (0..A::possible_cpus()).filter_map(|cpu| Some((cpu, ring(cpu)?)));
    let mut send_piece = |cpu, ring: Ring<'_>, start: usize, bytes: usize| {
        let piece = Piece {
            of: Whole::Ring { cpu: cpu as u32 },
            whole: ring.memory_bytes() as u64,
            at: start as u64,
        };
        send(&piece, bytes as u64, &mut |at, to| {
            ring.copy_bytes(start + at as usize, to);
        });
    };
    for (cpu, ring) in rings() {
        // The rest of the page is 0.
        send_piece(cpu, ring, 0, size_of::<Header>());
    }
    const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);
    let mut back = 0;
    loop {
        let mut is_over = true;
        for (cpu, ring) in rings() {
            if let Some(start) = ring.page_back(back) {
                send_piece(cpu, ring, start, PAGE_BYTES);
                is_over = false;
            }
        }
        if is_over {
            return;
        }
        back += 1;
    }
}

/// Sends a part of a map, without what is 0.
fn send_map(map: u32, part: &Part, send: Send<'_>) {
    let whole = part.layout.bytes() as u64;
    if whole > MOST_WHOLE {
        return;
    }
    let of = Whole::Map {
        map,
        cpu: part.cpu as u32,
        layout: part.layout.encode(),
    };
    let words = with_exposed_provenance::<AtomicU64>(part.address as usize);
    // SAFETY: a word of the part, by the loops below. The map is there (LAST-2).
    let load = |at: u64| unsafe { &*words.add((at / 8) as usize) }.load(Relaxed);
    let mut at = 0;
    while at < whole {
        let bytes = (whole - at).min(MAP_PIECE);
        if (at..at + bytes).step_by(8).any(|at| load(at) != 0) {
            send(&Piece { of, whole, at }, bytes, &mut |from, to| {
                for (index, word) in to.chunks_mut(8).enumerate() {
                    let found = load(at + from + 8 * index as u64).to_le_bytes();
                    word.copy_from_slice(&found[..word.len()]);
                }
            });
        }
        at += bytes;
    }
    // A part of which all is 0 is there, too.
    send(&Piece { of, whole, at }, 0, &mut |_, _| {});
}

/// Tells the tracer that is there that this kernel has died, and why, and sends it the rings and
/// the maps of the script that runs: the tracer shows the last calls. For the panic handler of a
/// kernel that serves tracers ([`crate::remote::serve`]). Records are not taken any more from then
/// on, so that what the handler itself calls does not push out what led there;
/// [`Tracing::stop_recording`](crate::Tracing::stop_recording) at its very beginning does this for
/// what it calls before.
///
/// `write` sends all bytes to the line that [`Line::write`](crate::remote::Line::write) sends to.
/// It must not wait for a lock or for other tasks: it takes the device by force. It does not matter
/// how much of a frame was sent there before, but the bytes of that call must not be mixed with
/// those of this one.
///
/// This takes no lock and allocates nothing, so the panicking code may hold any lock, the heap's
/// among them. It takes about 3 KiB of stack. The time is that of the line: the rings and those
/// parts of the maps that are not 0.
///
/// Returns whether a tracer was told. False: none is there, or this was called before.
///
/// # Safety
/// 1. No other CPU runs code of the kernel from here on: each was stopped, for example by an NMI
///    whose handler does not return, or has never been started.
/// 2. The caller does not return to the code that has panicked.
pub unsafe fn tell<A: Agent>(why: impl fmt::Display, write: &mut dyn FnMut(&[u8])) -> bool {
    A::tracing().stop_recording();
    let last = &A::tracing().last_words;
    let call = last.call.load(Relaxed);
    // LAST-3
    if call & IS_THERE == 0 || last.has_spoken.swap(true, Relaxed) {
        return false;
    }
    let mut out = |bytes: &[u8]| write(bytes);
    let mut deathbed = Deathbed::new(call as u32, why, &mut out);
    // SAFETY: LAST-2, by clause 1. Nothing takes it away, by clause 2.
    if let Some(exposed) = unsafe { last.exposed.load(Acquire).as_ref() } {
        let mut send = |piece: &Piece, bytes: u64, fill: Fill<'_>| {
            deathbed.memory(piece, bytes, fill, &mut out);
        };
        if exposed.has_ring {
            send_rings::<A>(&mut send);
        }
        for (map, part) in &exposed.parts {
            send_map(*map, part, &mut send);
        }
    }
    deathbed.over(&mut out);
    true
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::{collections::BTreeSet, vec};
    use trace_maps::image::Layout;

    /// After the map there is memory that is not its own.
    #[test]
    fn a_map_is_sent_whole_but_for_what_is_zero() {
        for (entries, set) in [
            (1, &[0][..]),
            (127, &[126]),
            (128, &[0, 127]),
            (129, &[128]),
            (300, &[5, 299]),
            (600, &[]),
        ] {
            let layout = Layout::Array {
                entries,
                value_words: 1,
            };
            let mut memory = vec![0; entries as usize];
            for at in set {
                memory[*at] = u64::MAX - *at as u64;
            }
            memory.extend([7; 1024]);
            let whole = layout.bytes() as u64;
            let part = Part {
                cpu: 3,
                layout,
                address: memory.as_ptr().expose_provenance() as u64,
            };
            let mut found = vec![0_u8; layout.bytes()];
            let mut pieces = BTreeSet::new();
            send_map(9, &part, &mut |piece, bytes, fill| {
                let of = Whole::Map {
                    map: 9,
                    cpu: 3,
                    layout: layout.encode(),
                };
                assert_eq!((piece.of, piece.whole), (of, whole));
                assert!(piece.at + bytes <= whole, "{bytes} at {}", piece.at);
                pieces.insert((piece.at, bytes));
                let to = &mut found[piece.at as usize..][..bytes as usize];
                for (number, to) in to.chunks_mut(40).enumerate() {
                    fill(40 * number as u64, to);
                }
            });
            let words = memory[..entries as usize].iter();
            assert_eq!(
                found,
                Vec::from_iter(words.flat_map(|word| word.to_le_bytes()))
            );
            // The last one is empty: the map is there, whatever is in it.
            let with_words: BTreeSet<_> = set.iter().map(|at| *at as u64 * 8 / MAP_PIECE).collect();
            assert_eq!(pieces.pop_last(), Some((whole, 0)));
            let sent = pieces.iter().map(|(at, _)| at / MAP_PIECE).collect();
            assert_eq!(with_words, sent, "{entries}");
        }
    }
}
