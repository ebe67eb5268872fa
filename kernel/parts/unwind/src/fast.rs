//! The same step from a table that was made in advance: for stack walks of a hit, where each
//! instruction counts.
//!
//! [`FastTable`] keeps the part of the call frame information that leads to the caller: where the
//! frame ends, and where `rbp` is saved. The other registers are not followed, so a frame that is
//! found by another one than `rsp` or `rbp` has no rule. This kernel's code has no such frame.
//!
//! ```text
//!   blocks   for each 16 bytes of code: their rule, or the index of a mixed block; and whether
//!            the first byte has the rule of a function's entry
//!   mixed    for each byte of such a block: the index of its rule
//!   rules    the different rules that mixed blocks have
//!   usual    for each address a bit: the code in front of it has the rule of a function with a
//!            frame pointer, in its body. So it is asked for a return address as it is
//!
//!   rule   bits 0-1    0 none, 1 the frame ends at rsp + size, 2 at rbp + size
//!          bit 2       the frame of an exception or interrupt lies at the end of this one
//!          bits 5-16   size, in words
//!          bits 17-28  where rbp is saved, in words below the end; 0: it has not changed
//! ```
//!
//! # Invariants
//! FAST-1. Where the table has a rule, [`Walker::step`] gives the instruction pointer, `rsp` and
//!     `rbp` that [`Tables::step`] gives. If it goes no further, the table is silent, not wrong.
//!     [`Walker::leave_entry`] and [`Walker::climb`] do what steps would do, or stop.
//! FAST-2. A step reads the stack only from the frame's stack pointer up to the end of the stack,
//!     and the next frame is nearer to that end. So a walk ends.
//!
//! # Contexts
//! Making the table is for task context, because it allocates. A step works in any context: it
//! neither allocates, locks, panics nor calls anything.

use alloc::{collections::TryReserveError, vec::Vec};

use gimli::{
    CfaRule, CieOrFde, DebugFrame, EhFrame, FrameDescriptionEntry, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow,
};

use crate::{
    Bytes, OnStack, Tables,
    register::{BP, IP, SP},
};

/// The bits of a rule.
mod rule {
    /// Nothing is known here, or nothing that fits.
    pub const NONE: u32 = 0;
    pub const BY_SP: u32 = 1;
    pub const BY_BP: u32 = 2;
    pub const INTERRUPTION: u32 = 4;
    /// Shifting by this much less 3 gives bytes.
    pub const SIZE_SHIFT: u32 = 5;
    pub const SAVED_BP_SHIFT: u32 = 17;
    /// The most of both, in words.
    pub const MOST_WORDS: i64 = 0xfff;
    pub const BYTES: u32 = (MOST_WORDS as u32) << 3;
    /// The rule of a function with a frame pointer, in its body.
    pub const USUAL: u32 = BY_BP | 2 << SIZE_SHIFT | 2 << SAVED_BP_SHIFT;
    /// The rule at the first instruction of a function: all of the frame is the return address.
    pub const ENTRY: u32 = BY_SP | 1 << SIZE_SHIFT;
}

/// Where an exception or interrupt saves the instruction pointer, in bytes below the frame's end.
const SAVED_IP: i64 = 40;
/// The same for the stack pointer.
const SAVED_SP: i64 = 16;

const BLOCK_BYTES: usize = 16;
/// How many blocks have their bits in one word of `usual`.
const BLOCKS_A_WORD: u64 = 64 / BLOCK_BYTES as u64;

/// The bit of an entry of `blocks` which says that the rest is an index into `mixed`.
const MIXED: u32 = 1 << 31;
/// The bit of an entry of `blocks` which says that a function may begin there: the first byte has
/// the rule [`rule::ENTRY`].
const ENTRY: u32 = 1 << 30;

/// The rules for all code of one linked image.
#[derive(Debug, Default)]
pub struct FastTable {
    /// What makes an address its distance from the first one, which is a multiple of 64.
    below: u64,
    blocks: Vec<u32>,
    mixed: Vec<[u16; BLOCK_BYTES]>,
    rules: Vec<u32>,
    usual: Vec<u64>,
}

/// The return addresses of calls by functions with a frame pointer. None of those that are borrowed
/// is among them, because these have no rule.
#[derive(Clone, Copy, Debug)]
pub struct Usual<'a> {
    /// As in the table. A multiple of 64, so that an address has the number of its bit.
    below: u64,
    bits: &'a [u64],
}

impl Usual<'_> {
    #[inline(always)]
    pub fn contains(self, return_address: u64) -> bool {
        let word = return_address.wrapping_add(self.below) / 64;
        let word = self.bits.get(word as usize);
        word.is_some_and(|word| word >> (return_address % 64) & 1 != 0)
    }
}

/// A range of addresses with one rule.
struct Span {
    start: u64,
    end: u64,
    rule: u32,
}

impl FastTable {
    /// Makes the table of the code that `tables` describe and `is_text` accepts. At the address in
    /// front of each of `borrowed` it has no rule. So it goes no further from a frame with such a
    /// return address, for example that of a return probe's trampoline.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(
        tables: &Tables,
        is_text: impl Fn(u64) -> bool,
        borrowed: &[u64],
    ) -> Result<Self, TryReserveError> {
        let mut spans = Vec::new();
        let mut entries = tables.eh_frame.entries(&tables.bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry
                && let Ok(entry) = partial.parse(EhFrame::cie_from_offset)
                && is_text(entry.initial_address())
            {
                add(&mut spans, tables, &tables.eh_frame, &entry)?;
            }
        }
        for &(start, _, offset) in &tables.debug_entries {
            if tables.in_eh_frame(start).is_none()
                && let Ok(entry) = tables.debug_frame.fde_from_offset(
                    &tables.bases,
                    offset.into(),
                    DebugFrame::cie_from_offset,
                )
            {
                add(&mut spans, tables, &tables.debug_frame, &entry)?;
            }
        }
        for &address in borrowed {
            split(&mut spans, address.wrapping_sub(1))?;
        }
        spans.sort_unstable_by_key(|span| span.start);
        Self::of_spans(&spans)
    }

    /// Puts the spans, which ascend, into blocks.
    fn of_spans(spans: &[Span]) -> Result<Self, TryReserveError> {
        let start = spans.first().map_or(0, |span| span.start & !63);
        let mut table = Self {
            below: start.wrapping_neg(),
            ..Self::default()
        };
        let length = spans.last().map_or(0, |span| span.end - start);
        // The image is less than 2 GiB long, because all of it is reached by 32 bits. So there are
        // fewer blocks than an index can tell apart.
        let count = length
            .min(u64::from(u32::MAX / 2))
            .div_ceil(BLOCK_BYTES as u64);
        table.blocks.try_reserve_exact(count as usize)?;
        let words = count.div_ceil(BLOCKS_A_WORD) as usize;
        table.usual.try_reserve_exact(words)?;
        table.usual.resize(words, 0);
        let mut left = spans;
        let mut last_is_usual = 0;
        for block in 0..count {
            let first = start + block * BLOCK_BYTES as u64;
            let mut rules = [rule::NONE; BLOCK_BYTES];
            for (address, rule) in (first..).zip(&mut rules) {
                while let [span, rest @ ..] = left
                    && span.end <= address
                {
                    left = rest;
                }
                if let [span, ..] = left
                    && span.start <= address
                {
                    *rule = span.rule;
                }
            }
            let bits = (1..).zip(&rules).filter(|&(_, &rule)| rule == rule::USUAL);
            let bits = bits.fold(last_is_usual, |bits, (byte, _)| bits | 1_u64 << byte);
            last_is_usual = bits >> BLOCK_BYTES;
            let bits = bits & ((1 << BLOCK_BYTES) - 1);
            if let Some(word) = table.usual.get_mut((block / BLOCKS_A_WORD) as usize) {
                *word |= bits << (block % BLOCKS_A_WORD * BLOCK_BYTES as u64);
            }
            let block = if rules.iter().all(|&rule| rule == rules[0]) {
                rules[0]
            } else {
                MIXED | table.mix(&rules)?
            };
            let is_entry = rules[0] == rule::ENTRY;
            table
                .blocks
                .push(if is_entry { ENTRY | block } else { block });
        }
        Ok(table)
    }

    /// The index of a new mixed block with these rules.
    fn mix(&mut self, rules: &[u32; BLOCK_BYTES]) -> Result<u32, TryReserveError> {
        let mut block = [0; BLOCK_BYTES];
        let mut last = (rule::NONE, u16::MAX);
        for (index, &rule) in block.iter_mut().zip(rules) {
            if last.1 == u16::MAX || last.0 != rule {
                last = (rule, self.index_of(rule)?);
            }
            *index = last.1;
        }
        self.mixed.try_reserve(1)?;
        self.mixed.push(block);
        Ok(self.mixed.len() as u32 - 1)
    }

    /// The index of a rule in `rules`. If there are too many, that of none.
    fn index_of(&mut self, rule: u32) -> Result<u16, TryReserveError> {
        if let Some(index) = self.rules.iter().position(|&other| other == rule) {
            return Ok(index as u16);
        }
        if self.rules.len() >= usize::from(u16::MAX) {
            return Ok(u16::MAX);
        }
        self.rules.try_reserve(1)?;
        self.rules.push(rule);
        Ok((self.rules.len() - 1) as u16)
    }

    /// The rule at an address.
    #[inline(always)]
    fn rule(&self, address: u64) -> u32 {
        let offset = address.wrapping_add(self.below) as usize;
        match self.blocks.get(offset / BLOCK_BYTES) {
            None => rule::NONE,
            Some(&block) if block & MIXED == 0 => block & !ENTRY,
            Some(&block) => self
                .mixed
                .get((block & !(MIXED | ENTRY)) as usize)
                .and_then(|block| self.rules.get(usize::from(block[offset % BLOCK_BYTES])))
                .copied()
                .unwrap_or(rule::NONE),
        }
    }

    /// Whether a function may begin at `address`. Functions that do not begin at a multiple of 16
    /// are not found.
    #[inline(always)]
    fn is_entry(&self, address: u64) -> bool {
        let offset = address.wrapping_add(self.below) as usize;
        let block = self.blocks.get(offset / BLOCK_BYTES);
        block.is_some_and(|block| block & ENTRY != 0) && offset.is_multiple_of(BLOCK_BYTES)
    }

    /// Whether there is a rule for the code at `address`.
    pub fn describes(&self, address: u64) -> bool {
        self.rule(address) != rule::NONE
    }

    /// The return addresses of most calls.
    #[inline(always)]
    pub fn usual(&self) -> Usual<'_> {
        Usual {
            below: self.below,
            bits: &self.usual,
        }
    }

    /// How many bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.blocks)
            + size_of_val(&*self.mixed)
            + size_of_val(&*self.rules)
            + size_of_val(&*self.usual)
    }
}

/// Adds the spans of one function.
fn add<'a, S: UnwindSection<Bytes<'a>>>(
    spans: &mut Vec<Span>,
    tables: &Tables<'a>,
    section: &S,
    entry: &FrameDescriptionEntry<Bytes<'a>>,
) -> Result<(), TryReserveError> {
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let Ok(mut rows) = entry.rows(section, &tables.bases, &mut context) else {
        return Ok(());
    };
    while let Ok(Some(row)) = rows.next_row() {
        let span = Span {
            start: row.start_address(),
            end: row.end_address(),
            rule: rule_of(row, entry.is_signal_trampoline()),
        };
        if span.start < span.end {
            spans.try_reserve(1)?;
            spans.push(span);
        }
    }
    Ok(())
}

/// Takes the byte at `address` out of the span that has it.
fn split(spans: &mut Vec<Span>, address: u64) -> Result<(), TryReserveError> {
    spans.try_reserve(1)?;
    if let Some(span) = spans
        .iter_mut()
        .find(|span| (span.start..span.end).contains(&address))
    {
        let rest = Span {
            start: address + 1,
            ..*span
        };
        span.end = address;
        if rest.start < rest.end {
            spans.push(rest);
        }
        spans.retain(|span| span.start < span.end);
    }
    Ok(())
}

/// The rule that says the same as `row`; none if there is no such.
fn rule_of(row: &UnwindTableRow<usize, OnStack>, is_signal_frame: bool) -> u32 {
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
        return rule::NONE;
    };
    let mut rule = match usize::from(register.0) {
        SP => rule::BY_SP,
        BP => rule::BY_BP,
        _ => return rule::NONE,
    };
    let words = |bytes: i64| {
        let words = bytes / 8;
        (bytes % 8 == 0 && (1..=rule::MOST_WORDS).contains(&words)).then_some(words as u32)
    };
    let Some(size) = words(offset) else {
        return rule::NONE;
    };
    rule |= size << rule::SIZE_SHIFT;
    let (mut saved_ip, mut saved_sp) = (None, None);
    for &(register, ref found) in row.registers() {
        match (usize::from(register.0), found) {
            (IP, &RegisterRule::Offset(offset)) => saved_ip = Some(-offset),
            (SP, &RegisterRule::Offset(offset)) => saved_sp = Some(-offset),
            (BP, &RegisterRule::Offset(offset)) => match words(-offset) {
                Some(distance) => rule |= distance << rule::SAVED_BP_SHIFT,
                None => return rule::NONE,
            },
            (BP, RegisterRule::Undefined | RegisterRule::SameValue) => {}
            (IP | SP | BP, _) => return rule::NONE,
            _ => {}
        }
    }
    match (is_signal_frame, saved_ip, saved_sp) {
        (false, Some(8), None) => rule,
        (true, Some(SAVED_IP), Some(SAVED_SP)) => rule | rule::INTERRUPTION,
        _ => rule::NONE,
    }
}

/// A place in a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walker {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// Whether the function was interrupted at `ip`. Otherwise it waits there for a call to return.
    pub interrupted: bool,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The caller.
    Caller,
    /// The interrupted function, whose stack may be another one.
    Interrupted,
    /// No rule for the code, one that leads out of the stack, or one that leads to ring 3.
    Nothing,
}

impl Walker {
    /// Goes to the frame above, by `table`. `end` is the end of the stack that `sp` is in, and
    /// `read` reads a word of it.
    #[inline(always)]
    pub fn step(&mut self, table: &FastTable, end: u64, read: impl Fn(u64) -> u64) -> Found {
        let rule = table.rule(self.ip.wrapping_sub(u64::from(!self.interrupted)));
        let base = if rule & rule::BY_BP != 0 {
            self.bp
        } else {
            self.sp
        };
        let size = rule >> (rule::SIZE_SHIFT - 3) & rule::BYTES;
        let frame_end = base.wrapping_add(size.into());
        // Without a rule, the frame's end is not above the stack pointer.
        if frame_end <= self.sp || frame_end > end {
            return Found::Nothing;
        }
        let bp_distance = rule >> (rule::SAVED_BP_SHIFT - 3) & rule::BYTES;
        let bp_slot = frame_end.wrapping_sub(bp_distance.into());
        let bp_is_saved = bp_distance != 0 && bp_slot >= self.sp;
        if rule & rule::INTERRUPTION == 0 {
            if bp_is_saved {
                self.bp = read(bp_slot);
            }
            self.ip = read(frame_end.wrapping_sub(8));
            self.sp = frame_end;
            self.interrupted = false;
            return Found::Caller;
        }
        let ip_slot = frame_end.wrapping_sub(SAVED_IP as u64);
        if ip_slot < self.sp || crate::is_of_ring_3(read(ip_slot.wrapping_add(8))) {
            return Found::Nothing;
        }
        if bp_is_saved {
            self.bp = read(bp_slot);
        }
        self.ip = read(ip_slot);
        self.sp = read(frame_end.wrapping_sub(SAVED_SP as u64));
        self.interrupted = true;
        Found::Interrupted
    }

    /// Goes from the first instruction of a function, where it was interrupted, to its caller. Does
    /// nothing elsewhere. `end` and `read` as above.
    #[inline(always)]
    pub fn leave_entry(&mut self, table: &FastTable, end: u64, read: impl Fn(u64) -> u64) -> bool {
        let frame_end = self.sp.wrapping_add(8);
        if !self.interrupted || !table.is_entry(self.ip) || frame_end > end {
            return false;
        }
        *self = Self {
            ip: read(self.sp),
            sp: frame_end,
            interrupted: false,
            ..*self
        };
        true
    }

    /// Goes up through functions with a frame pointer that wait for a call to return, as most do.
    /// Tells each caller's ip to `found`, until that says false, or a function is of another kind.
    /// Only where this place waits for a call to return.
    #[inline(always)]
    pub fn climb(
        &mut self,
        table: &FastTable,
        end: u64,
        read: impl Fn(u64) -> u64,
        mut found: impl FnMut(u64) -> bool,
    ) {
        // Where the last frame of the stack can have its `rbp`.
        let last = end.saturating_sub(16);
        let usual = table.usual();
        while usual.contains(self.ip) && (self.sp..=last).contains(&self.bp) {
            self.sp = self.bp.wrapping_add(16);
            self.ip = read(self.bp.wrapping_add(8));
            self.bp = read(self.bp);
            if !found(self.ip) {
                break;
            }
        }
    }
}
