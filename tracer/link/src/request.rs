//! What a trace is asked for.

use std::time::Duration;

use trace_wire::Options;

/// The trace that is wanted.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// A `trace_interface::Script`, encoded.
    pub script: Vec<u8>,
    /// The program that runs meanwhile, and its arguments, divided by blanks. None: the workload.
    pub run: Option<String>,
    /// When the trace ends, if the program has not ended before.
    pub limit: Option<Duration>,
    /// How the kernel's messages come.
    pub transport: Transport,
    /// KiB of each CPU's ring. None: as the kernel makes them.
    pub ring_kib: Option<u32>,
    /// A flight recorder: the rings keep the newest records, which are not sent. They are read from
    /// memory at the end ([`Trace::rings`](crate::Trace::rings)).
    pub overwrite: bool,
    /// A guest that does not get on for so long is taken for hanging
    /// ([`Event::Hung`](crate::Event::Hung)).
    pub watchdog: Option<Duration>,
    /// Maps are to be read while the script runs ([`Trace::maps`](crate::Trace::maps)).
    pub maps: bool,
    /// The tracer's own tasks are traced like all.
    pub with_tracer: bool,
}

impl Request {
    /// The part that the kernel is told.
    pub(crate) fn options(&self) -> Options<'_> {
        let limit = self.limit.map(|limit| limit.as_nanos());
        Options {
            run: self.run.as_deref(),
            nanoseconds: limit.map(|limit| limit.try_into().unwrap_or(u64::MAX)),
            memory: self.transport == Transport::Memory,
            ring_kib: self.ring_kib,
            overwrite: self.overwrite,
            watchdog: self.watchdog.is_some(),
            maps: self.maps,
            with_tracer: self.with_tracer,
        }
    }

    /// The same of a kernel at the other end of a line: no program of its is run, and its memory is
    /// not read.
    pub(crate) fn options_of_remote(&self) -> Options<'_> {
        Options {
            run: None,
            memory: false,
            watchdog: false,
            maps: false,
            ..self.options()
        }
    }
}

/// How the kernel's messages come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through memory that the guest shares with this process.
    #[default]
    Memory,
    /// Through the second serial port, byte by byte.
    Serial,
}
