//! Making a detour from a template.

use alloc::{boxed::Box, vec::Vec};
use core::{
    ptr::{null, null_mut},
    sync::atomic::{AtomicBool, AtomicPtr},
};

use crate::{
    data::{
        action::Action,
        detour::{DETOUR_BYTES, Detour},
        entry_points::{EntryPoints, KRETPROBE_MARK, SITE_MARK, TRAMPOLINE_MARK, Template},
        kretprobe::KretprobeCore,
        position::PackedPosition,
        site::Site,
    },
    insn::{self, Block, Ending, Instructions, JUMP_BYTES},
    registry::{optimize::Displaceable, try_box},
};

/// The most holes of a template.
const MOST_HOLES: usize = 12;

/// The `push imm32` of the ip, from `enter`.
const PUSH_IP: usize = 6;

/// A field of a template that is filled in each copy of it.
#[derive(Clone, Copy)]
struct Hole {
    /// Where it begins, in bytes from the start of the template.
    at: usize,
    filling: Filling,
}

#[derive(Clone, Copy)]
enum Filling {
    /// The distance of a call or jump to this target, from the end of the field; 32 bits.
    Target(u64),
    /// An address, 64 bits.
    Site,
    Kretprobe,
    Trampoline,
}

/// The holes of a template.
struct Holes {
    /// Where the template is.
    template: u64,
    list: [Hole; MOST_HOLES],
    count: usize,
}

impl Holes {
    /// Those of `template`, whose bytes are `code`. None if there are too many, or if it cannot be
    /// decoded.
    fn find(template: Template, code: &[u8]) -> Option<Self> {
        let unused = Hole {
            at: 0,
            filling: Filling::Site,
        };
        let mut holes = Self {
            template: template.start,
            list: [unused; MOST_HOLES],
            count: 0,
        };
        for insn in Instructions::new(code, template.start) {
            let insn = insn.ok()?;
            if let Some(target) = insn.branch_target()
                && !(template.start..template.end).contains(&target)
            {
                let end = (insn.next_ip() - template.start) as usize;
                holes.add(end - 4, Filling::Target(target))?;
            }
        }
        for (at, bytes) in code.windows(8).enumerate() {
            for (mark, filling) in [
                (SITE_MARK, Filling::Site),
                (KRETPROBE_MARK, Filling::Kretprobe),
                (TRAMPOLINE_MARK, Filling::Trampoline),
            ] {
                if bytes == mark.to_le_bytes() {
                    holes.add(at, filling)?;
                }
            }
        }
        Some(holes)
    }

    fn add(&mut self, at: usize, filling: Filling) -> Option<()> {
        *self.list.get_mut(self.count)? = Hole { at, filling };
        self.count += 1;
        Some(())
    }
}

/// The holes of the templates that were copied before, because finding them takes longer than
/// making a detour. Under the registry's lock.
pub(crate) struct KnownHoles([Option<Holes>; 4]);

impl KnownHoles {
    pub(crate) const fn new() -> Self {
        Self([const { None }; 4])
    }

    /// Those of `template`, whose bytes are `code`.
    fn of(&mut self, template: Template, code: &[u8]) -> Option<&[Hole]> {
        let is_free_or_its = |known: &Option<Holes>| {
            known
                .as_ref()
                .is_none_or(|holes| holes.template == template.start)
        };
        let place = self.0.iter().position(is_free_or_its)?;
        let known = &mut self.0[place];
        if known.is_none() {
            *known = Some(Holes::find(template, code)?);
        }
        known.as_ref().map(|holes| &holes.list[..holes.count])
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
        known: &mut KnownHoles,
    ) -> Option<Vec<u8>> {
        let len = self.end.checked_sub(self.start)? as usize;
        // SAFETY: `entry_points!` gives the bounds of a function. It is mapped and readable, and
        // never written.
        let template = unsafe { core::slice::from_raw_parts(self.start as *const u8, len) };
        let mut code = Vec::new();
        code.try_reserve_exact(len).ok()?;
        code.extend_from_slice(template);
        for hole in known.of(self, template)? {
            let address = match hole.filling {
                Filling::Target(target) => {
                    let end = hole.at + 4;
                    let distance = target.wrapping_sub(start + end as u64) as i64;
                    let distance = i32::try_from(distance).ok()?;
                    code[hole.at..end].copy_from_slice(&distance.to_le_bytes());
                    continue;
                }
                Filling::Site => core::ptr::from_ref(site).addr(),
                Filling::Kretprobe => kretprobe.addr(),
                Filling::Trampoline => trampoline as usize,
            };
            code[hole.at..hole.at + 8].copy_from_slice(&address.to_le_bytes());
        }
        if !frameless {
            let field = (self.enter - self.start) as usize + PUSH_IP + 1;
            code[field..field + 4].copy_from_slice(&(site.key.0 as u32).to_le_bytes());
        }
        Some(code)
    }
}

/// Where the call of an action is, in bytes from the start of its detour.
const ACTION_ENTER: usize = 8;

/// The beginning of a detour for `action`, to be written to `start`. None if there is no memory, or
/// if the action is out of reach.
fn call(action: &Action, site: &Site, start: u64, flags_are_dead: bool) -> Option<Vec<u8>> {
    let routine = match flags_are_dead {
        true => action.jump,
        false => action.jump_keeping_flags,
    };
    let mut code = Vec::new();
    code.try_reserve_exact(ACTION_ENTER + 5).ok()?;
    code.extend_from_slice(&site.addr().to_le_bytes());
    code.push(0xe8);
    let end = start + ACTION_ENTER as u64 + 5;
    let distance = i32::try_from(routine.wrapping_sub(end) as i64).ok()?;
    code.extend_from_slice(&distance.to_le_bytes());
    Some(code)
}

impl Detour {
    /// Makes the detour of `site`, to be written to `start`. Returns it with its code. None: no
    /// memory, or the displaced instructions do not fit.
    pub(crate) fn build(
        entry: &EntryPoints,
        site: &Site,
        displaced: &Displaceable,
        start: u64,
        known: &mut KnownHoles,
    ) -> Option<(Box<Self>, Vec<u8>)> {
        let action = site.lone_action();
        let lone = if displaced.at_entry {
            site.lone_kretprobe()
        } else {
            None
        };
        let frameless = action.is_some() || lone.is_some_and(|kretprobe| kretprobe.enter.is_none());
        let template = match lone {
            Some(_) if frameless => entry.detours.lone_return,
            // The ip that it pushes has 32 bits.
            Some(_) if i32::try_from(site.key.0 as i64).is_ok() => entry.detours.lone_entry,
            _ if displaced.at_entry => entry.detours.at_entry,
            _ => entry.detours.anywhere,
        };
        let kretprobe = lone.map_or(null(), core::ptr::from_ref);
        let (mut code, enter, template) = match action {
            // SAFETY: a linked probe's action lives (contract of `Kprobe::action`).
            Some(action) => (
                call(
                    unsafe { action.as_ref() },
                    site,
                    start,
                    displaced.flags_are_dead,
                )?,
                ACTION_ENTER,
                0,
            ),
            None => (
                template.copy(start, site, kretprobe, entry.trampoline, frameless, known)?,
                (template.enter - template.start) as usize,
                template.start,
            ),
        };
        let at = code.len();
        let mut block = Block::new(start + at as u64);
        let mut copies = [0; JUMP_BYTES];
        let mut last = None;
        for insn in displaced.region.insns() {
            copies[(insn.ip() - site.addr()) as usize] = (at + block.offset()).try_into().ok()?;
            block.append(insn, Ending::Fall).ok()?;
            last = Some(insn);
        }
        let last = last?;
        if insn::classify(last, &[]).map_or(true, insn::Class::falls_through) {
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
            enter,
            block: at,
            template,
            kretprobe,
            frameless,
            action: action.map_or(null(), |action| action.as_ptr()),
            at_entry: displaced.at_entry,
            original: displaced.original,
            copies,
            positions,
            installed: AtomicBool::new(false),
            site,
            next: AtomicPtr::new(null_mut()),
        });
        Some((detour.ok()?, code))
    }
}
