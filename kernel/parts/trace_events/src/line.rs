//! Lines of `trace` and `trace_pipe`: a record as text.
//!
//! ```text
//!            bash-1234    [002] d..2.    12.345678: p_vfs_read_0: (vfs_read+0x0/0x120) arg1=0x2a
//! ```

use crate::{
    definition::EventKind,
    digits::{write_decimal, write_signed},
    field::{FAULT, SymbolAt, Symbols, print_symbol},
    record::Layout,
};
use core::fmt::{self, Write};

/// The bits of `common_flags`.
pub mod flags {
    /// Interrupts were off.
    pub const IRQS_OFF: u8 = 0x01;
    /// The task had to give way.
    pub const NEED_RESCHED: u8 = 0x04;
    /// In an interrupt.
    pub const HARDIRQ: u8 = 0x08;
    /// In a soft interrupt.
    pub const SOFTIRQ: u8 = 0x10;
    /// The task had to give way as soon as preemption was on.
    pub const PREEMPT_RESCHED: u8 = 0x20;
    /// In an NMI.
    pub const NMI: u8 = 0x40;
    /// Soft interrupts were off.
    pub const BH_OFF: u8 = 0x80;
}

/// The records of call stacks, which are of no event. Linux has the same, `ftrace:kernel_stack`.
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

/// Where and when a record was written.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The name of the task; `<...>` if it is not known.
    pub comm: &'a str,
    /// The CPU.
    pub cpu: u32,
    /// Nanoseconds since the boot.
    pub time_ns: u64,
}

/// Writes the line of `record`, which the event `name` left, with its newline.
pub fn write_line(
    name: &str,
    layout: &Layout,
    record: &[u8],
    origin: &Origin<'_>,
    symbols: &dyn Symbols,
    out: &mut dyn Write,
) -> fmt::Result {
    write_prefix(record, origin, out)?;
    out.write_str(name)?;
    out.write_str(": ")?;
    write_body(layout, record, symbols, out)?;
    out.write_char('\n')
}

/// Writes task, CPU, state and time: all that stands before the name of the event.
pub fn write_prefix(record: &[u8], origin: &Origin<'_>, out: &mut dyn Write) -> fmt::Result {
    // The same for all events: type 2, flags 1, preemption count 1, pid 4.
    let byte = |at: usize| record.get(at).copied().unwrap_or(0);
    let pid = i32::from_le_bytes([byte(4), byte(5), byte(6), byte(7)]);
    let Origin { comm, cpu, time_ns } = origin;
    // At once, because a padded text is written letter by letter.
    const BLANKS: &str = "                ";
    let missing = BLANKS.len().saturating_sub(comm.chars().count());
    out.write_str(&BLANKS[..missing])?;
    out.write_str(comm)?;
    out.write_str("-")?;
    write_signed(pid.into(), out)?;
    // The number and the blanks behind it have 7 letters at least.
    let digits = match pid {
        0.. => pid.checked_ilog10().unwrap_or(0) as usize + 1,
        _ => pid.unsigned_abs().ilog10() as usize + 2,
    };
    out.write_str(&BLANKS[..7_usize.saturating_sub(digits)])?;
    out.write_str(" [")?;
    write_decimal((*cpu).into(), b'0', 3, out)?;
    let mut text = *b"] ..... ";
    for (byte, letter) in text[2..].iter_mut().zip(state(byte(2), byte(3))) {
        *byte = letter as u8;
    }
    out.write_str(core::str::from_utf8(&text).unwrap_or("] ..... "))?;
    let micros = time_ns.saturating_add(500) / 1000;
    write_decimal(micros / 1_000_000, b' ', 5, out)?;
    out.write_str(".")?;
    write_decimal(micros % 1_000_000, b'0', 6, out)?;
    out.write_str(": ")
}

/// Writes the lines of a record of a call stack.
pub fn write_stack(
    record: &[u8],
    origin: &Origin<'_>,
    symbols: &dyn Symbols,
    out: &mut dyn Write,
) -> fmt::Result {
    write_prefix(record, origin, out)?;
    out.write_str("<stack trace>\n")?;
    let frames = record.get(stack::HEADER_BYTES as usize..).unwrap_or(&[]);
    let (frames, _) = frames.as_chunks::<8>();
    for frame in frames {
        let frame = u64::from_le_bytes(*frame);
        match symbols.symbol(frame) {
            Some(SymbolAt { name, .. }) => writeln!(out, " => {name}")?,
            None => writeln!(out, " => {frame:#x}")?,
        }
    }
    Ok(())
}

/// Writes `(PLACE) NAME=VALUE …`, as it stands behind the name of the event.
pub fn write_body(
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
            out.write_str(space)?;
            out.write_str(&field.name)?;
            out.write_str("=")?;
            field.print(record, symbols, out)?;
        }
        return Ok(());
    }
    out.write_str("(")?;
    match layout.kind {
        EventKind::Probe => write_address(address(0), true, symbols, out)?,
        EventKind::Return => {
            write_address(address(1), true, symbols, out)?;
            out.write_str(" <- ")?;
            write_address(address(0), false, symbols, out)?;
        }
    }
    out.write_char(')')?;
    for field in layout.arguments() {
        out.write_str(" ")?;
        out.write_str(&field.name)?;
        out.write_str("=")?;
        field.print(record, symbols, out)?;
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
pub fn state(flags: u8, preempt_count: u8) -> [char; 5] {
    let has = |bits| flags & bits == bits;
    let interrupts = match (has(flags::IRQS_OFF), has(flags::BH_OFF)) {
        (true, true) => 'D',
        (true, false) => 'd',
        (false, true) => 'b',
        (false, false) => '.',
    };
    let resched = match (has(flags::NEED_RESCHED), has(flags::PREEMPT_RESCHED)) {
        (true, true) => 'N',
        (true, false) => 'n',
        (false, true) => 'p',
        (false, false) => '.',
    };
    let context = match (has(flags::NMI), has(flags::HARDIRQ), has(flags::SOFTIRQ)) {
        (true, true, _) => 'Z',
        (true, false, _) => 'z',
        (false, true, true) => 'H',
        (false, true, false) => 'h',
        (false, false, true) => 's',
        (false, false, false) => '.',
    };
    let depth = |depth: u8| match depth {
        0 => '.',
        depth => char::from_digit(depth.into(), 16).unwrap_or('.'),
    };
    [
        interrupts,
        resched,
        context,
        depth(preempt_count & 0xf),
        depth(preempt_count >> 4),
    ]
}

/// Writes the head of `trace`: the number of records that are there and that were written, and the
/// number of CPUs.
pub fn write_header(
    tracer: &str,
    entries: u64,
    written: u64,
    cpus: usize,
    out: &mut dyn Write,
) -> fmt::Result {
    write!(
        out,
        "# tracer: {tracer}\n\
         #\n\
         # entries-in-buffer/entries-written: {entries}/{written}   #P:{cpus}\n\
         #\n\
         #                                _-----=> irqs-off/BH-disabled\n\
         #                               / _----=> need-resched\n\
         #                              | / _---=> hardirq/softirq\n\
         #                              || / _--=> preempt-depth\n\
         #                              ||| / _-=> migrate-disable\n\
         #                              |||| /     delay\n\
         #           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n\
         #              | |         |   |||||     |         |\n"
    )
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

/// Writes that records of a CPU are lost.
pub fn write_lost(cpu: u32, lost: u64, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "CPU:{cpu} [LOST {lost} EVENTS]")
}
