//! Detours: what the jump of an optimised probe leads to.
//!
//! A detour is code of its own for one site. It does what a breakpoint's trap does, without one: builds a full
//! [`PtRegs`], runs the handlers, restores the registers, executes the displaced instructions and jumps back behind them.
//!
//! ```text
//!   start   miss     what happens inside another hit
//!           leave    the way out for a handler that has set the instruction pointer: iretq from the frame
//!   enter   frame    push ss, rsp, rflags, cs, ip, -1 and the general registers
//!           call     guard up; the `chain` of the site's first probe (see [`asm`](crate::asm)); leave, if it says so; guard down
//!           restore  pop all, flags last
//!   block            the displaced instructions, translated; a jump back
//! ```
//!
//! A function's entry with a return probe alone has one of its own, in which that probe's part is written out: with an entry handler or
//! data the frame is as above; without, no frame is built at all. Both name the probe; they are used only while it is alone
//! ([`KretprobeCore::lone_holder`](crate::data::kretprobe::KretprobeCore)), and leave whatever is unusual to the general way.
//!
//! `start` to `block` are a copy of one of four templates, which [`detour_templates!`](crate::detour_templates) defines as functions, with
//! their call frame information: a stack walk that meets code in a detour asks the template about it
//! ([`Detour::described`]). Handlers run with DF clear. At a function's entry the stack is aligned by the ABI, and
//! AC is clear, as the kernel sets it only where no jump can be; the template for other places sees to both.
//!
//! # Invariants
//! D1. The guard is up while handlers run, and detours lie in the slot region: a CPU is in no
//!     detour when a grace period ends, and no task is switched away from inside one. So the frameless one can do without the guard: an
//!     interrupt on top of it pushes calls of the task and pops them again, and finds and leaves the ledger whole.
//! D2. A detour is written before its site points to it, and freed a grace period after it does not any more.
//! D3. While a site points to a detour, nobody is told to go on under the jump: [`Probes::executable_ip`] leads to the
//!     displaced copy instead.
//!
//! # Contexts
//! Code in a detour runs with the interrupt flag of the probed code.

use alloc::{boxed::Box, vec::Vec};
use core::{
    ptr::{null, null_mut},
    sync::atomic::{AtomicBool, AtomicPtr},
};

use crate::{
    data::{
        entry_points::EntryPoints, kretprobe::KretprobeCore, position::PackedPosition, site::Site,
    },
    insn::{self, Block, Ending, Instructions, JUMP_BYTES, Region},
};

/// Bytes of a detour: nine to a page. The longest template takes about 390; displaced code of 5 to 19 bytes takes about twice that.
pub(crate) const DETOUR_BYTES: usize = 448;

/// Stands in a template for the address of the site.
#[doc(hidden)]
pub const SITE_MARK: u64 = 0x5173_5173_5173_5173;
/// Stands in a template for the address of the return probe that is alone there.
#[doc(hidden)]
pub const KRETPROBE_MARK: u64 = 0x4be7_4be7_4be7_4be7;
/// Stands in a template for the address of the return trampoline.
#[doc(hidden)]
pub const TRAMPOLINE_MARK: u64 = 0x7aa4_7aa4_7aa4_7aa4;

/// Where a template is.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Its first byte.
    pub start: u64,
    /// Where the jump leads to.
    pub enter: u64,
    /// Behind its last byte: where the displaced instructions follow.
    pub end: u64,
}

/// What [`entry_points!`](crate::entry_points) tells about detours.
#[derive(Clone, Copy, Debug)]
pub struct Templates {
    /// For functions' entries.
    pub at_entry: Template,
    /// For everywhere else.
    pub anywhere: Template,
    /// For functions' entries with nothing but a return probe that has an entry handler or data.
    pub lone_entry: Template,
    /// For functions' entries with nothing but a return probe that wants nothing there.
    pub lone_return: Template,
}

/// How deep the stack is at each instruction from `enter` on, until ip is pushed: offset from `enter`, bytes.
const PROLOGUE: [(usize, i16); 5] = [(0, 0), (2, 8), (3, 16), (4, 24), (6, 32)];
/// From so many bytes behind `enter` on the call frame information finds the frame above.
const FRAMED: usize = 11;
/// The `push imm32` of the ip, from `enter`.
const PUSH_IP: usize = 6;
/// How deep the stack still is at the instructions at the end: `popfq; lea rsp, [rsp + 16]`. Bytes before the end, bytes.
const EPILOGUE: [(usize, i16); 2] = [(6, 24), (5, 16)];

/// The most calls and jumps that lead out of a template.
const MOST_EXITS: usize = 8;

/// The calls and jumps that lead out of a template: what is different in each copy of it.
#[derive(Clone, Copy)]
struct Exits {
    /// Where the template is.
    template: u64,
    /// Where each ends, from the start of the template, and where it leads to.
    list: [(usize, u64); MOST_EXITS],
    count: usize,
}

/// The exits of the templates that were copied before: decoding one takes longer than making a detour. Under the registry's lock.
pub(crate) struct KnownExits([Option<Exits>; 4]);

impl KnownExits {
    pub(crate) const fn new() -> Self {
        Self([None; 4])
    }

    /// Those of `template`, whose bytes are `code`.
    fn of(&mut self, template: Template, code: &[u8]) -> Option<Exits> {
        let mut known = self.0.iter().flatten();
        if let Some(exits) = known.find(|exits| exits.template == template.start) {
            return Some(*exits);
        }
        let mut exits = Exits {
            template: template.start,
            list: [(0, 0); MOST_EXITS],
            count: 0,
        };
        for insn in Instructions::new(code, template.start) {
            let insn = insn.ok()?;
            if let Some(target) = insn.branch_target()
                && !(template.start..template.end).contains(&target)
            {
                let end = (insn.next_ip() - template.start) as usize;
                *exits.list.get_mut(exits.count)? = (end, target);
                exits.count += 1;
            }
        }
        if let Some(free) = self.0.iter_mut().find(|known| known.is_none()) {
            *free = Some(exits);
        }
        Some(exits)
    }
}

impl Template {
    /// A copy for a detour at `start` of `site`; none without memory, or if its targets are out of reach.
    fn copy(
        self,
        start: u64,
        site: &Site,
        kretprobe: *const KretprobeCore,
        trampoline: u64,
        frameless: bool,
        known: &mut KnownExits,
    ) -> Option<Vec<u8>> {
        let len = self.end.checked_sub(self.start)? as usize;
        // SAFETY: `entry_points!` gives the bounds of a function, which is mapped and readable, and never written.
        let template = unsafe { core::slice::from_raw_parts(self.start as *const u8, len) };
        let mut code = Vec::new();
        code.try_reserve_exact(len).ok()?;
        code.extend_from_slice(template);
        for (mark, value) in [
            (SITE_MARK, core::ptr::from_ref(site).addr() as u64),
            (KRETPROBE_MARK, kretprobe.addr() as u64),
            (TRAMPOLINE_MARK, trampoline),
        ] {
            while let Some(at) = code
                .windows(8)
                .position(|bytes| bytes == mark.to_le_bytes())
            {
                code[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        let exits = known.of(self, template)?;
        for (end, target) in &exits.list[..exits.count] {
            // Each is a call or jump with a 32-bit displacement at its end.
            let distance = i32::try_from(target.wrapping_sub(start + *end as u64) as i64).ok()?;
            code[end - 4..*end].copy_from_slice(&distance.to_le_bytes());
        }
        if !frameless {
            let field = (self.enter - self.start) as usize + PUSH_IP + 1;
            code[field..field + 4].copy_from_slice(&(site.key as u32).to_le_bytes());
        }
        Some(code)
    }
}

/// See the module's text.
pub(crate) struct Detour {
    /// Where it is executed.
    pub(crate) start: u64,
    /// Offset of where the jump leads to.
    enter: usize,
    /// Offset of the displaced instructions: the length of the template.
    block: usize,
    /// The template that it begins with.
    template: u64,
    /// The return probe that it names, if it is for one alone.
    pub(crate) kretprobe: *const KretprobeCore,
    /// Whether it builds no frame.
    frameless: bool,
    /// Whether it is that of a function's entry.
    pub(crate) at_entry: bool,
    /// The bytes that the jump replaces.
    pub(crate) original: [u8; JUMP_BYTES],
    /// For each address under the jump the offset of its displaced copy; 0 where no instruction begins.
    copies: [u16; JUMP_BYTES],
    /// What the probed code looks like in the block, which begins with the first of them; `from` counts from the block.
    positions: Vec<PackedPosition>,
    /// Whether the jump is in the text. Under the registry's lock.
    pub(crate) installed: AtomicBool,
    /// The site. Under the registry's lock.
    pub(crate) site: *const Site,
    /// The next detour of the operation under way. Under the registry's lock.
    pub(crate) next: AtomicPtr<Detour>,
}

impl Detour {
    /// Makes the detour of `site`, to be written to `start`. Returns it with its code. None: no memory, or the displaced instructions
    /// do not fit.
    pub(crate) fn build(
        entry: &EntryPoints,
        site: &Site,
        region: &Region,
        original: [u8; JUMP_BYTES],
        at_entry: bool,
        start: u64,
        known: &mut KnownExits,
    ) -> Option<(Box<Self>, Vec<u8>)> {
        let lone = if at_entry {
            site.lone_kretprobe()
        } else {
            None
        };
        let frameless = lone.is_some_and(|kretprobe| kretprobe.enter.is_none());
        let template = match lone {
            Some(_) if frameless => entry.detours.lone_return,
            // The ip that it pushes has 32 bits.
            Some(_) if i32::try_from(site.key as i64).is_ok() => entry.detours.lone_entry,
            _ if at_entry => entry.detours.at_entry,
            _ => entry.detours.anywhere,
        };
        let kretprobe = lone.map_or(null(), core::ptr::from_ref);
        let mut code = template.copy(start, site, kretprobe, entry.trampoline, frameless, known)?;
        let at = code.len();
        let mut block = Block::new(start + at as u64);
        let mut copies = [0; JUMP_BYTES];
        let mut last = None;
        for insn in region.insns() {
            copies[(insn.ip() - site.addr()) as usize] = (at + block.offset()).try_into().ok()?;
            block.append(insn, Ending::Fall).ok()?;
            last = Some(insn);
        }
        let last = last?;
        if insn::classify(last, None).map_or(true, insn::Class::falls_through) {
            block.jump(last.next_ip()).ok()?;
        }
        let len = block.finish().ok()?.len();
        let mut positions: Vec<PackedPosition> = Vec::new();
        for offset in 0..len {
            let packed = PackedPosition::new(offset as u8, block.position(offset)?, site.addr())?;
            if !positions
                .last()
                .is_some_and(|last| last.is_same_as(&packed))
            {
                positions.try_reserve(1).ok()?;
                positions.push(packed);
            }
        }
        code.try_reserve_exact(len).ok()?;
        code.extend_from_slice(block.finish().ok()?);
        if code.len() > DETOUR_BYTES {
            return None;
        }
        let detour = crate::registry::try_box(Self {
            start,
            enter: (template.enter - template.start) as usize,
            block: at,
            template: template.start,
            kretprobe,
            frameless,
            at_entry,
            original,
            copies,
            positions,
            installed: AtomicBool::new(false),
            site,
            next: AtomicPtr::new(null_mut()),
        });
        Some((detour.ok()?, code))
    }

    /// The site whose detour it is.
    pub(crate) fn site(&self) -> &Site {
        // SAFETY: a site is freed after its detours.
        unsafe { &*self.site }
    }

    /// Where the jump leads to.
    pub(crate) fn enter(&self) -> u64 {
        self.start + self.enter as u64
    }

    /// Whether `offset` is that of the breakpoint that stands for the one at the function's entry.
    pub(crate) fn is_fallback(&self, offset: usize) -> bool {
        self.frameless && offset + 1 == self.enter
    }

    /// Where the displaced instructions are.
    pub(crate) fn block(&self) -> u64 {
        self.start + self.block as u64
    }

    /// Where the copy is of the instruction that begins `behind` bytes behind the probed address, if one does.
    pub(crate) fn copy_of(&self, behind: usize) -> Option<u64> {
        match self.copies.get(behind) {
            None | Some(0) => None,
            Some(offset) => Some(self.start + u64::from(*offset)),
        }
    }

    /// The address of the displaced instruction whose copy begins at `offset`, if one does.
    pub(crate) fn address_of(&self, offset: usize) -> Option<u64> {
        let behind = self
            .copies
            .iter()
            .position(|copy| *copy != 0 && usize::from(*copy) == offset)?;
        Some(self.site().addr() + behind as u64)
    }

    /// The template's instruction that the one at `offset` is a copy of, whose call frame information describes it. None in the displaced
    /// instructions and where `ip` is not on the stack.
    pub(crate) fn described(&self, offset: usize) -> Option<u64> {
        let framed = if self.frameless {
            offset < self.block
        } else {
            let frame = self.enter + FRAMED..self.block - EPILOGUE[0].0;
            offset < self.enter || frame.contains(&offset)
        };
        framed.then_some(self.template + offset as u64)
    }

    /// What the probed code looks like at `offset`, where the template does not describe it.
    pub(crate) fn position(&self, offset: usize) -> PackedPosition {
        if let Some(from) = offset.checked_sub(self.block) {
            let before = self
                .positions
                .iter()
                .take_while(|packed| packed.from() <= from);
            return before.last().copied().unwrap_or(PackedPosition::PROBED);
        }
        let deep = match (self.block - offset, offset.checked_sub(self.enter)) {
            _ if self.frameless => 0,
            (1..=5, _) => EPILOGUE[1].1,
            (6, _) => EPILOGUE[0].1,
            (_, Some(from)) => {
                let before = PROLOGUE.iter().take_while(|(at, _)| *at <= from);
                before.last().map_or(0, |(_, deep)| *deep)
            }
            _ => 0,
        };
        PackedPosition::probed(deep)
    }
}
