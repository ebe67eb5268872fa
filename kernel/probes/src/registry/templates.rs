//! Making a detour from a template.

use alloc::{boxed::Box, vec::Vec};
use core::{
    ptr::{null, null_mut},
    sync::atomic::{AtomicBool, AtomicPtr},
};

use crate::{
    data::{
        detour::{DETOUR_BYTES, Detour},
        entry_points::{EntryPoints, KRETPROBE_MARK, SITE_MARK, TRAMPOLINE_MARK, Template},
        kretprobe::KretprobeCore,
        position::PackedPosition,
        site::Site,
    },
    insn::{self, Block, Ending, Instructions, JUMP_BYTES, Region},
    registry::try_box,
};

/// The most calls and jumps that lead out of a template.
const MOST_EXITS: usize = 8;

/// The `push imm32` of the ip, from `enter`.
const PUSH_IP: usize = 6;

/// The calls and jumps that lead out of a template: what is different in each copy of it.
#[derive(Clone, Copy)]
struct Exits {
    /// Where the template is.
    template: u64,
    /// Where each ends, from the start of the template, and where it leads to.
    list: [(usize, u64); MOST_EXITS],
    count: usize,
}

/// The exits of the templates that were copied before, because decoding a template takes longer
/// than making a detour. Under the registry's lock.
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
    /// A copy for a detour at `start` of `site`. None if there is no memory, or if its targets are
    /// out of reach.
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
        // SAFETY: `entry_points!` gives the bounds of a function. It is mapped and readable, and
        // never written.
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
            code[field..field + 4].copy_from_slice(&(site.key.0 as u32).to_le_bytes());
        }
        Some(code)
    }
}

impl Detour {
    /// Makes the detour of `site`, to be written to `start`. Returns it with its code. None: no
    /// memory, or the displaced instructions do not fit.
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
            Some(_) if i32::try_from(site.key.0 as i64).is_ok() => entry.detours.lone_entry,
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
        let detour = try_box(Self {
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
}
