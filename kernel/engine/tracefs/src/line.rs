//! Lines of `trace` and `trace_pipe`: a record as text.
//!
//! ```text
//!            bash-1234    [002] d..2.    12.345678: p_vfs_read_0: (vfs_read+0x0/0x120) arg1=0x2a
//! ```

use crate::{
    definition::EventKind,
    digits::Ascii,
    field::{FAULT, SymbolAt, Symbols, print_symbol},
    record::{self, Layout},
};
use core::fmt::{self, Write};

use bpf::context::ARGUMENTS;

/// The bits of `common_flags`.
pub mod flags {
    /// Interrupts were off.
    pub const IRQS_OFF: u8 = 0x01;
    /// The task had to give way.
    pub const NEED_RESCHED: u8 = 0x04;
    /// The hit was in an interrupt.
    pub const HARDIRQ: u8 = 0x08;
    /// The hit was in a soft interrupt.
    pub const SOFTIRQ: u8 = 0x10;
    /// The task had to give way as soon as preemption was on.
    pub const PREEMPT_RESCHED: u8 = 0x20;
    /// The hit was in an NMI.
    pub const NMI: u8 = 0x40;
    /// Soft interrupts were off.
    pub const BH_OFF: u8 = 0x80;
}

/// The records of call stacks, which belong to no event. Linux has the same, `ftrace:kernel_stack`.
///
/// ```text
///   0      8             16
///   |common| bytes, 8    | addresses of 8 bytes, the innermost first ...
/// ```
pub mod stack {
    /// Their type in the common header.
    pub const ID: u16 = 4;
    /// The bytes before the addresses.
    pub const HEADER_BYTES: u32 = 16;
}

/// The records of texts that tasks write to `trace_marker`. Linux has `ftrace:print`.
///
/// ```text
///   0      8             16
///   |common| bytes, 8    | the text ...
/// ```
pub mod mark {
    /// Their type in the common header.
    pub const ID: u16 = 5;
    /// The bytes before the text.
    pub const HEADER_BYTES: u32 = 16;
}

/// The records of the tracer `function`, as in Linux.
///
/// ```text
///   0      8          16                      24
///   |common| function | address in the caller | registers of arguments, if they are recorded
/// ```
pub mod function {
    /// Their type in the common header.
    pub const ID: u16 = 1;
    /// Their bytes.
    pub const BYTES: u32 = 24;
}

/// Where and when a record was written.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The name of the task; `<...>` if it is not known.
    pub comm: &'a str,
    /// The number of its thread group, 0 if it is not known. None: the lines have no column for it.
    pub group: Option<i32>,
    /// The CPU.
    pub cpu: u32,
    /// Nanoseconds since the boot.
    pub time_ns: u64,
}

/// Writes name and values of an event: all that stands after the time.
pub fn write_event(
    name: &str,
    layout: &Layout,
    record: &[u8],
    symbols: &dyn Symbols,
    out: &mut dyn Write,
) -> fmt::Result {
    out.write_str(name)?;
    out.write_str(": ")?;
    write_body(layout, record, symbols, out)
}

/// The letters of a task's name, with blanks before them.
const COMM_LETTERS: usize = 16;

/// Writes task, CPU, state and time: all that stands before the name of the event.
pub fn write_prefix(record: &[u8], origin: &Origin<'_>, out: &mut dyn Write) -> fmt::Result {
    // The same for all events: type 2, flags 1, preemption count 1, pid 4.
    let byte = |at: usize| record.get(at).copied().unwrap_or(0);
    let pid = i32::from_le_bytes([byte(4), byte(5), byte(6), byte(7)]);
    let Origin {
        comm,
        group,
        cpu,
        time_ns,
    } = origin;
    // Room for the largest numbers: 12 + 14 + 2 + 10 + 8 + 14 + 1 + 6 + 2 letters, and for the
    // name.
    let mut text = Ascii::<96>::new();
    if comm.is_ascii() && comm.len() <= COMM_LETTERS {
        // In halves, each of which is one store.
        let blanks = COMM_LETTERS - comm.len();
        text.pad_to(blanks.min(COMM_LETTERS / 2));
        text.pad_to(blanks);
        text.push(comm.as_bytes());
    } else {
        write!(out, "{comm:>COMM_LETTERS$}")?;
    }
    let number_at = text.len();
    text.push(b"-");
    text.push_signed(pid.into());
    // The number and the blanks after it have 7 letters at least.
    text.pad_to(number_at + 8);
    match *group {
        None => {}
        Some(0) => text.push(b" (-------)"),
        Some(group) => {
            text.push(b" (");
            text.push_decimal(group.unsigned_abs().into(), b' ', 7);
            text.push(b")");
        }
    }
    text.push(b" [");
    text.push_decimal((*cpu).into(), b'0', 3);
    text.push(b"] ");
    text.push(&state(byte(2), byte(3)));
    text.push(b" ");
    let micros = time_ns.saturating_add(500) / 1000;
    text.push_decimal(micros / 1_000_000, b' ', 5);
    text.push(b".");
    text.push_decimal(micros % 1_000_000, b'0', 6);
    text.push(b": ");
    text.write_to(out)
}

/// Writes the same in the form that Linux has for latencies and for dumps, in which the time is
/// whole microseconds. Before its colon is room for a mark, [`DELAY_MARK_FROM_END`] letters before
/// the end, which says how long the next record took to come.
pub fn write_short_prefix(record: &[u8], origin: &Origin<'_>, out: &mut dyn Write) -> fmt::Result {
    let byte = |at: usize| record.get(at).copied().unwrap_or(0);
    let pid = i32::from_le_bytes([byte(4), byte(5), byte(6), byte(7)]);
    let state = state(byte(2), byte(3));
    write!(
        out,
        "{:>8.8}-{pid:<7} {:3}{} {:4}us : ",
        origin.comm,
        origin.cpu,
        str::from_utf8(&state).unwrap_or("....."),
        origin.time_ns.saturating_add(500) / 1000,
    )
}

/// Where the mark is in the text of [`write_short_prefix`].
pub const DELAY_MARK_FROM_END: usize = 3;

/// Writes what a record of the tracer `function` says: a function, and its caller.
pub fn write_function(record: &[u8], symbols: &dyn Symbols, out: &mut dyn Write) -> fmt::Result {
    let word = |at| record::word(record, at);
    write_address(word(8), false, symbols, out)?;
    if let Some(arguments) = arguments(record, function::BYTES as usize) {
        write_arguments(Some(&arguments), out)?;
    }
    out.write_str(" <-")?;
    match word(16) {
        // A return probe has borrowed the address before this record was written.
        Some(caller)
            if symbols
                .symbol(caller)
                .is_some_and(|at| is_trampoline(at.name)) =>
        {
            out.write_str("[unknown/kretprobe'd]")
        }
        caller => write_address(caller, false, symbols, out),
    }
}

/// The registers of arguments in a record, from that offset on. None: it ends before them.
pub(crate) fn arguments(record: &[u8], at: usize) -> Option<[u64; 6]> {
    let mut arguments = [0; 6];
    for (argument, at) in arguments.iter_mut().zip((at..).step_by(8)) {
        *argument = record::word(record, at)?;
    }
    Some(arguments)
}

/// Writes the registers of arguments in parentheses; nothing in them if they are not known. The
/// registers have their own names, because how many of them are arguments is not known here.
pub(crate) fn write_arguments(arguments: Option<&[u64; 6]>, out: &mut dyn Write) -> fmt::Result {
    out.write_char('(')?;
    for (number, (register, value)) in ARGUMENTS
        .iter()
        .zip(arguments.into_iter().flatten())
        .enumerate()
    {
        let comma = if number == 0 { "" } else { ", " };
        write!(out, "{comma}{}={value:#x}", register.name())?;
    }
    out.write_char(')')
}

/// Whether this is the symbol that calls return to whose address is borrowed.
fn is_trampoline(name: &str) -> bool {
    name.starts_with("kretprobe_trampoline")
}

/// Writes the frames of a record of a call stack, each in a line of its own after the first one.
pub fn write_frames(record: &[u8], symbols: &dyn Symbols, out: &mut dyn Write) -> fmt::Result {
    out.write_str("<stack trace>")?;
    let frames = record.get(stack::HEADER_BYTES as usize..).unwrap_or(&[]);
    let (frames, _) = frames.as_chunks::<8>();
    for frame in frames {
        let frame = u64::from_le_bytes(*frame);
        match symbols.symbol(frame) {
            Some(SymbolAt { name, .. }) => write!(out, "\n => {name}")?,
            None => write!(out, "\n => {frame:#x}")?,
        }
    }
    Ok(())
}

/// Writes a mark as it comes after the time: Linux's function that records it, and its text.
pub fn write_mark(record: &[u8], out: &mut dyn Write) -> fmt::Result {
    out.write_str("tracing_mark_write: ")?;
    write_mark_text(record, out)
}

/// Writes the text of a mark, up to a NUL and without the newline at its end. What is no UTF-8 is
/// shown as U+FFFD.
pub fn write_mark_text(record: &[u8], out: &mut dyn Write) -> fmt::Result {
    let bytes = record::word(record, 8).unwrap_or(0) as usize;
    let text = record.get(mark::HEADER_BYTES as usize..).unwrap_or(&[]);
    let text = text.get(..bytes).unwrap_or(text);
    let text = text.split(|byte| *byte == 0).next().unwrap_or(text);
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    for chunk in text.utf8_chunks() {
        out.write_str(chunk.valid())?;
        if !chunk.invalid().is_empty() {
            out.write_char(char::REPLACEMENT_CHARACTER)?;
        }
    }
    Ok(())
}

/// Writes `(PLACE) NAME=VALUE …`, as it comes after the name of the event.
pub fn write_body(
    layout: &Layout,
    record: &[u8],
    symbols: &dyn Symbols,
    out: &mut dyn Write,
) -> fmt::Result {
    if !layout.fixed {
        out.write_str("(")?;
    }
    write_values(layout, record, symbols, out)
}

/// Writes what comes after the parenthesis of the place, or all of it if no place is shown.
fn write_values(
    layout: &Layout,
    record: &[u8],
    symbols: &dyn Symbols,
    out: &mut dyn Write,
) -> fmt::Result {
    let address = |number: usize| {
        let field = layout.own_fields().get(number)?;
        field.number(record)
    };
    if layout.fixed {
        for (number, field) in layout.arguments().iter().enumerate() {
            let space = if number == 0 { "" } else { " " };
            field.print_named(space, record, symbols, out)?;
        }
        return Ok(());
    }
    match layout.kind {
        EventKind::Probe | EventKind::Watch => write_address(address(0), true, symbols, out)?,
        EventKind::Return => {
            write_address(address(1), true, symbols, out)?;
            out.write_str(" <- ")?;
            write_address(address(0), false, symbols, out)?;
        }
    }
    let Some((first, others)) = layout.arguments().split_first() else {
        return out.write_char(')');
    };
    first.print_named(") ", record, symbols, out)?;
    for field in others {
        field.print_named(" ", record, symbols, out)?;
    }
    Ok(())
}

/// Writes the symbol of an address, with or without the offset into it.
fn write_address(
    address: Option<u64>,
    with_offset: bool,
    symbols: &dyn Symbols,
    out: &mut dyn Write,
) -> fmt::Result {
    let Some(address) = address else {
        return out.write_str(FAULT);
    };
    match symbols.symbol(address) {
        _ if address == 0 => out.write_char('0'),
        Some(SymbolAt { name, module, .. }) if !with_offset => {
            out.write_str(name)?;
            module.map_or(Ok(()), |module| write!(out, " [{module}]"))
        }
        _ => print_symbol(address, symbols, out),
    }
}

/// The five letters of the state: interrupts, rescheduling, context, preemption, migration.
pub fn state(flags: u8, preempt_count: u8) -> [u8; 5] {
    let has = |bits| flags & bits == bits;
    let interrupts = match (has(flags::IRQS_OFF), has(flags::BH_OFF)) {
        (true, true) => b'D',
        (true, false) => b'd',
        (false, true) => b'b',
        (false, false) => b'.',
    };
    let resched = match (has(flags::NEED_RESCHED), has(flags::PREEMPT_RESCHED)) {
        (true, true) => b'N',
        (true, false) => b'n',
        (false, true) => b'p',
        (false, false) => b'.',
    };
    let context = match (has(flags::NMI), has(flags::HARDIRQ), has(flags::SOFTIRQ)) {
        (true, true, _) => b'Z',
        (true, false, _) => b'z',
        (false, true, true) => b'H',
        (false, true, false) => b'h',
        (false, false, true) => b's',
        (false, false, false) => b'.',
    };
    let depth = |depth: u8| match depth {
        0 => b'.',
        depth => b"0123456789abcdef"[usize::from(depth & 0xf)],
    };
    [
        interrupts,
        resched,
        context,
        depth(preempt_count & 0xf),
        depth(preempt_count >> 4),
    ]
}

/// Writes a line of `enabled_functions` or `touched_functions`: how many are on the function now,
/// and whether one of them takes all registers. The other flags of Linux (`I`, `D`, `O` and `M`)
/// are blanks, because nothing here changes where a function goes.
pub fn write_traced(
    name: &str,
    users: usize,
    takes_registers: bool,
    out: &mut dyn Write,
) -> fmt::Result {
    let registers = if takes_registers { " R" } else { "  " };
    writeln!(out, "{name} ({users}){registers}         ")
}

/// What the head of `trace` says.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The name of the tracer.
    pub tracer: &'a str,
    /// How many records are there.
    pub entries: u64,
    /// How many were written.
    pub written: u64,
    /// How many CPUs there are.
    pub cpus: usize,
    /// Whether the lines have a column for [`Origin::group`].
    pub with_groups: bool,
}

/// Writes the head of `trace`.
pub fn write_header(head: &Head<'_>, out: &mut dyn Write) -> fmt::Result {
    let Head {
        tracer,
        entries,
        written,
        cpus,
        with_groups,
    } = head;
    write!(
        out,
        "# tracer: {tracer}\n\
         #\n\
         # entries-in-buffer/entries-written: {entries}/{written}   #P:{cpus}\n\
         #\n"
    )?;
    out.write_str(match with_groups {
        true => {
            "\
         #                                          _-----=> irqs-off/BH-disabled\n\
         #                                         / _----=> need-resched\n\
         #                                        | / _---=> hardirq/softirq\n\
         #                                        || / _--=> preempt-depth\n\
         #                                        ||| / _-=> migrate-disable\n\
         #                                        |||| /     delay\n\
         #           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION\n\
         #              | |           |       |   |||||     |         |\n"
        }
        false => {
            "\
         #                                _-----=> irqs-off/BH-disabled\n\
         #                               / _----=> need-resched\n\
         #                              | / _---=> hardirq/softirq\n\
         #                              || / _--=> preempt-depth\n\
         #                              ||| / _-=> migrate-disable\n\
         #                              |||| /     delay\n\
         #           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n\
         #              | |         |   |||||     |         |\n"
        }
    })
}

/// Writes the line before the first record of a CPU whose earlier records may be gone.
///
/// # Errors
/// That of `out`.
pub fn write_start(cpu: u32, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "##### CPU {cpu} buffer started ####")
}

/// Writes the text of `snapshot`, or of the file of one CPU, that has no records: whether there is
/// a buffer for them, and how the file is used.
///
/// The first lines and the marked one are those of Linux, because scripts look for them.
pub fn write_snapshot_help(
    tracer: &str,
    is_allocated: bool,
    is_of_cpu: bool,
    out: &mut dyn Write,
) -> fmt::Result {
    let state = if is_allocated { "allocated" } else { "freed" };
    write!(
        out,
        "# tracer: {tracer}\n#\n#\n# * Snapshot is {state} *\n#\n# Snapshot commands:\n"
    )?;
    out.write_str(match is_of_cpu {
        false => {
            "# echo 0 > snapshot : Frees the snapshot and its buffer\n\
             # echo 1 > snapshot : Takes a snapshot: its records are here then, and\n\
             #                      tracing goes on in an empty buffer. The first one\n\
             #                      allocates the buffer that this needs.\n\
             # echo 2 > snapshot : Clears the snapshot. Its buffer stays.\n\
             #                      (Any number but 0 and 1 does this.)\n"
        }
        true => {
            "# echo 0 > snapshot : Refused; the buffers of all CPUs are freed together\n\
             # echo 1 > snapshot : Takes a snapshot of this CPU; allocates as the file of all\n\
             # echo 2 > snapshot : Clears the snapshot of this CPU. Its buffer stays.\n\
             #                      (Any number but 0 and 1 does this.)\n"
        }
    })
}

/// Writes how many calls a tracer of all functions has missed, if there are some.
pub fn write_missed(calls: u64, out: &mut dyn Write) -> fmt::Result {
    match calls {
        0 => Ok(()),
        calls => writeln!(out, "# calls missed: {calls}"),
    }
}

/// Writes that records of a CPU are lost.
pub fn write_lost(cpu: u32, lost: u64, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "CPU:{cpu} [LOST {lost} EVENTS]")
}
