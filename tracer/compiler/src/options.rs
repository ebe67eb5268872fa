//! How a script is compiled.

use alloc::rc::Rc;

use trace_interface::{script::TICK_NANOSECONDS, shape::StackForm};

use crate::EventTable;

/// What becomes of a probe whose place does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The program is refused.
    Refused,
    /// The probe is left out, and told in [`Compiled::missing`](crate::Compiled::missing).
    Told,
    /// The probe is left out.
    Ignored,
}

/// How a script is compiled.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether the kernel's answers come from debug information, so that results have types. If
    /// not, `retval` is the register.
    pub debug_info: bool,
    /// The most keys of a map; of one for each CPU, on each.
    pub map_keys: u32,
    /// The most bytes that are kept of a text, a multiple of 8; of one inside of another value, at
    /// most 64.
    pub text_bytes: u32,
    /// The most bytes that are kept of the elements of a slice or an array.
    pub slice_bytes: u32,
    /// Whether values in records are short: references inside of them are addresses, bytes are a
    /// text, and what is deep inside is left out.
    pub brief: bool,
    /// The most frames of a call stack, and how many stacks are kept.
    pub stack_frames: u32,
    pub stacks: u32,
    /// The most addresses for which a clause is compiled separately.
    pub most_places: usize,
    /// How a call stack is shown where the program does not say it.
    pub stack_form: StackForm,
    /// Whether the maps are shown at the end.
    pub shows_maps: bool,
    /// Whether the tracer's own tasks take hits like all.
    pub with_tracer: bool,
    /// Whether the program itself refuses `tseries`, which is unstable in bpftrace.
    pub refuses_series: bool,
    /// What becomes of a probe whose place does not exist.
    pub missing_probes: Missing,
    /// The time between two ticks of a CPU's timer. No profile runs more often.
    pub tick_nanoseconds: u64,
    /// The event sources of the kernel.
    pub events: Rc<EventTable>,
    /// Whether the stack has room for another level of the text
    /// ([`trace_language::BYTES_OF_LEVEL`]).
    pub has_room: fn() -> bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            debug_info: true,
            map_keys: 4096,
            text_bytes: 200,
            slice_bytes: 64,
            brief: false,
            stack_frames: 48,
            stacks: 2048,
            most_places: 1024,
            stack_form: StackForm::default(),
            shows_maps: true,
            with_tracer: false,
            refuses_series: false,
            missing_probes: Missing::Refused,
            tick_nanoseconds: TICK_NANOSECONDS,
            events: Rc::default(),
            has_room: || true,
        }
    }
}

impl Options {
    /// How many bytes are kept of a text: whole words, because texts are copied by words.
    pub(crate) fn set_text_bytes(&mut self, bytes: u32) {
        const MOST: u32 = 1 << 16;
        self.text_bytes = bytes.min(MOST).next_multiple_of(8);
    }

    /// For a kernel with that command line.
    pub fn of_kernel(command_line: &str) -> Self {
        const LONGEST_MS: u64 = 1000;
        let words = command_line.split_ascii_whitespace();
        // The last one counts.
        let given = words.rev().find_map(|word| word.strip_prefix("tick_ms="));
        let milliseconds = given.and_then(|given| given.parse().ok());
        let milliseconds = milliseconds.filter(|number| (1..=LONGEST_MS).contains(number));
        Self {
            tick_nanoseconds: milliseconds.map_or(TICK_NANOSECONDS, |number| number * 1_000_000),
            ..Self::default()
        }
    }
}
