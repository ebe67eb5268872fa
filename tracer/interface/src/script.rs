//! A compiled text, as the kernel takes it: programs, their maps, where they run, and what the
//! kernel does itself when a program asks.
//!
//! SCRIPT-1. There is one map per name: programs of a script that name the same map share it. Their
//!     definitions are equal.
//! SCRIPT-2. A record of a script is one of [`bpf::Helper::EventReserve`] with the type
//!     [`RECORD_TYPE`]. After the common header of 8 bytes come the index of a [`Request`] in 4
//!     bytes, the status of [`Request::Exit`] or 0 in 4 bytes, and the values that the program
//!     stored.
//! SCRIPT-3. The map with the name [`CLOCK`], if there is one, is an array with one value of 24
//!     bytes. The kernel fills it before the first program runs: 8 bytes, the nanoseconds of a tick
//!     of the time stamp counter times 2^24; 8 bytes, the counter at that moment; 8 bytes, the
//!     number of CPUs. So programs can calculate with nanoseconds, although the compiler does not
//!     know the machine.

use alloc::{string::String, vec::Vec};

use bpf::{MapDef, ProgramKind};
use serde::{Deserialize, Serialize};

/// The type of records that scripts write; no event has it.
pub const RECORD_TYPE: u16 = u16::MAX;
/// See SCRIPT-3.
pub const CLOCK: &str = "(clock)";
/// The version of this form. A kernel refuses another one.
pub const VERSION: u32 = 5;

/// The time between two ticks of a CPU's timer, unless `tick_ms=N` on the kernel's command line
/// says otherwise. A profile runs at ticks, so it cannot run more often.
pub const TICK_NANOSECONDS: u64 = 4_000_000;

/// See [`Script::probes`].
pub const OPTIONAL: u32 = u32::MAX;

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    pub version: u32,
    pub maps: Vec<MapDef>,
    pub programs: Vec<Program>,
    pub attachments: Vec<Attachment>,
    /// The number of the probe in the text that each attachment was made for. The places of a probe
    /// stand for each other: those that cannot be probed are left out while others remain. An
    /// attachment that is not in the list is a probe of its own, and one with the number
    /// [`OPTIONAL`] is left out wherever it cannot be.
    pub probes: Vec<u32>,
    pub requests: Vec<Request>,
    /// The attachments for which all tasks count, also the tracer's own: events of the kernel. The
    /// switch from the tracer's task to another one is the other's, too.
    pub of_all_tasks: Vec<u32>,
    /// The tracer's own tasks are traced like all, because the script follows things that tasks
    /// hand to each other.
    pub with_tracer: bool,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub kind: ProgramKind,
    /// The instructions in the form of [`bpf::wire`].
    pub code: Vec<u8>,
    /// Indices into [`Script::maps`], in the order of the program's own numbers.
    pub maps: Vec<u32>,
}

/// Where and when programs run. Numbers are indices into [`Script::programs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attachment {
    /// Runs a program of [`ProgramKind::Probe`] at each of these instructions.
    Probe { program: u32, addresses: Vec<u64> },
    /// Runs programs at the entry and the return of calls of each of these functions.
    Call {
        entry: Option<u32>,
        on_return: u32,
        functions: Vec<u64>,
    },
    /// Runs a program of [`ProgramKind::Probe`] at an event source of the kernel, by its name, for
    /// example `sched:sched_switch`, with the registers of the probed place.
    Source { program: u32, name: String },
    /// Runs once, before anything is attached. Its context is all zero.
    Begin { program: u32 },
    /// Runs once, when everything is detached. Its context is all zero.
    End { program: u32 },
    /// Runs a program of [`ProgramKind::Probe`] after instructions that have touched the memory, in
    /// the processes that run the file at `path`, or else in the kernel's memory. The context has
    /// the registers after the instruction. In place of `orig_ax` it has the value before it, and
    /// in place of `ss` the one after it.
    Watch {
        program: u32,
        path: Option<String>,
        at: WatchedAt,
        bytes: u32,
        access: WatchedAccess,
    },
    /// Runs a program of [`ProgramKind::Probe`] in each process that runs the file at `path`: at an
    /// instruction, or with `returns` when a call of the function there has returned. The place is
    /// `offset` bytes after the start of the function, or of the file if none is named. As long as
    /// it is attached, the word of 16 bits is one larger in each process that is `counter` bytes
    /// after the start of the file.
    User {
        program: u32,
        path: String,
        function: Option<String>,
        offset: u64,
        counter: Option<u64>,
        returns: bool,
    },
    /// Runs at this interval on one CPU. Its context is all zero.
    Interval { program: u32, nanoseconds: u64 },
    /// Runs at this interval on each CPU, with the registers of the code that the timer
    /// interrupted.
    Profile { program: u32, nanoseconds: u64 },
}

/// Which instructions a watch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchedAccess {
    /// Those that write the memory.
    Write,
    /// Those that read or write it.
    ReadWrite,
    /// The one that is there, before it. There are no values then, and the length means nothing.
    Execute,
}

/// Where the memory of a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchedAt {
    /// 1, 2, 4 or 8 bytes from there on.
    Address(u64),
    /// An object of any size from there on, for writes. The values are those of the 8 bytes around
    /// the first byte that was written.
    Object(u64),
    /// Where programs aim it by this number, below 4: [`Helper::AimWatch`](bpf::Helper::AimWatch).
    /// Nowhere at first.
    Aimed(u32),
}

/// What the kernel does at a record. All records go to the reader, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Nothing more: the reader formats it.
    Forward,
    /// Sends the map as it is then ([`crate::Frame::Map`]).
    Print { map: u32 },
    /// Takes all keys away.
    Clear { map: u32 },
    /// Sets all values to zero.
    Zero { map: u32 },
    /// Ends the script. The status is in the 4 bytes after the request's index.
    Exit,
    /// Ends the watches of an address, which is in 8 bytes after the status.
    Unwatch,
}

impl Script {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        // Only a buffer of a fixed size can be too short.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The script of those bytes.
    ///
    /// # Errors
    /// The bytes are no script, or one of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let script: Self = postcard::from_bytes(bytes).map_err(|_| Malformed)?;
        if script.version == VERSION {
            Ok(script)
        } else {
            Err(Malformed)
        }
    }
}

/// The bytes are cut off, damaged, or of another version of the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(
            "the bytes are cut off, damaged, or of another version of the tracer; build the \
             kernel and the tracer from one tree",
        )
    }
}

impl core::error::Error for Malformed {}
