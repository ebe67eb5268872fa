//! Making a detour from a template.
//!
//! ```text
//!   start   a copy of the template, its holes filled in     or the probed address, and the call
//!           (site, kretprobe, distances)                    of an action
//!   block   the displaced instructions, translated or unchanged, and a jump after the last
//! ```
//!
//! A template is assembly that is linked into the kernel. Its holes are found by decoding it once:
//! calls and jumps that leave it, and 64-bit marks where addresses go. A kretprobe that is alone at
//! a function's entry has templates of its own, which do less.
//!
//! [`Detour::build`] leaves the code in a [`Draft`], whose memory serves one detour after the
//! other. None of it is where a CPU executes: the caller writes it there.
//!
//! # Contexts
//! Under the registry's lock. If memory is short, or the code does not fit or reach, there is no
//! detour and the breakpoint stays.

use alloc::vec::Vec;
use core::{
    array,
    ptr::{null, null_mut},
    sync::atomic::{AtomicBool, AtomicPtr},
};

use crate::{
    data::{
        action::{ADDRESS_BEFORE_RETURN, Action},
        detour::{BlockPositions, DETOUR_BYTES, Detour},
        entry_points::{
            EntryPoints, KRETPROBE_MARK, KRETPROBE_ROUTINE_MARK, SITE_MARK, TRAMPOLINE_MARK,
            Template,
        },
        kretprobe::KretprobeCore,
        position::PackedPosition,
        site::Site,
    },
    insn::{self, Block, Ending, EntryFacts, Instructions, JUMP_BYTES, Region, jump},
    registry::displaceable::{Displaceable, Displaced},
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
    KretprobeRoutine,
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
                (KRETPROBE_ROUTINE_MARK, Filling::KretprobeRoutine),
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

/// Where the code of detours is put together. Under the registry's lock.
pub(crate) struct Draft {
    /// The holes of the templates that were copied before, because finding them takes longer than
    /// making a detour.
    known: [Option<Holes>; 7],
    /// The code of the detour that was made last. Its memory is kept for the next one.
    code: Vec<u8>,
}

impl Draft {
    pub(crate) const fn new() -> Self {
        Self {
            known: [const { None }; 7],
            code: Vec::new(),
        }
    }

    /// The code of the detour that was made last.
    pub(crate) fn code(&self) -> &[u8] {
        &self.code
    }
}

/// The holes of `template`, whose bytes are `code`. `known`: as in [`Draft`].
fn holes_of<'a>(
    known: &'a mut [Option<Holes>; 7],
    template: Template,
    code: &[u8],
) -> Option<&'a [Hole]> {
    let is_free_or_its = |known: &Option<Holes>| {
        known
            .as_ref()
            .is_none_or(|holes| holes.template == template.start)
    };
    let place = known.iter().position(is_free_or_its)?;
    let known = &mut known[place];
    if known.is_none() {
        *known = Some(Holes::find(template, code)?);
    }
    known.as_ref().map(|holes| &holes.list[..holes.count])
}

impl Template {
    /// Puts a copy for a detour at `start` of `site` into `draft`, which is empty and has room.
    /// None if its targets are out of reach.
    fn copy(
        self,
        start: u64,
        site: &Site,
        kretprobe: *const KretprobeCore,
        entry: &EntryPoints,
        frameless: bool,
        draft: &mut Draft,
    ) -> Option<()> {
        let Draft { known, code } = draft;
        // SAFETY: null, or that of a linked probe, which lives.
        let lone = unsafe { kretprobe.as_ref() };
        let trampoline = match lone.and_then(|lone| lone.jump_return) {
            Some(_) => entry.action_trampoline,
            None => entry.trampoline,
        };
        let len = self.end.checked_sub(self.start)? as usize;
        // SAFETY: `entry_points!` gives the bounds of a function. It is mapped and readable, and
        // never written.
        let template = unsafe { core::slice::from_raw_parts(self.start as *const u8, len) };
        code.extend_from_slice(template);
        for hole in holes_of(known, self, template)? {
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
                Filling::KretprobeRoutine => entry.routines.kretprobe as usize,
            };
            code[hole.at..hole.at + 8].copy_from_slice(&address.to_le_bytes());
        }
        if !frameless {
            let field = (self.enter - self.start) as usize + PUSH_IP + 1;
            code[field..field + 4].copy_from_slice(&(site.key.0 as u32).to_le_bytes());
        }
        Some(())
    }
}

/// Where the call of an action is, in bytes from the start of its detour. The probed address is
/// before it.
const ACTION_ENTER: usize = ADDRESS_BEFORE_RETURN - JUMP_BYTES;

/// Puts the beginning of a detour for `action`, to be written to `start`, into `code`, which is
/// empty and has room. None if the action is out of reach.
fn call(
    action: &Action,
    site: &Site,
    start: u64,
    flags_are_dead: bool,
    code: &mut Vec<u8>,
) -> Option<()> {
    let routine = match flags_are_dead {
        true => action.jump,
        false => action.jump_keeping_flags,
    };
    code.extend_from_slice(&site.addr().to_le_bytes());
    code.push(0xe8);
    let end = start + ADDRESS_BEFORE_RETURN as u64;
    let distance = i32::try_from(routine.wrapping_sub(end) as i64).ok()?;
    code.extend_from_slice(&distance.to_le_bytes());
    Some(())
}

/// Where the copies of the displaced instructions are ([`Detour::copies`]), and the positions in
/// the block.
type BlockFacts = ([u16; JUMP_BYTES], BlockPositions);

/// Appends to `code`, which will be at `start` and has room, the block of `region`. None: no
/// memory, or the block cannot be made.
fn append_translated(
    code: &mut Vec<u8>,
    region: &Region,
    site: &Site,
    start: u64,
) -> Option<BlockFacts> {
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
    code.extend_from_slice(block.finish().ok()?);
    Some((copies, BlockPositions::Translated(positions)))
}

/// The same with `displaced`, the bytes of an open entry of which `facts` are known.
fn append_unchanged(
    code: &mut Vec<u8>,
    displaced: &[u8],
    facts: EntryFacts,
    site: &Site,
    start: u64,
) -> BlockFacts {
    let at = code.len();
    let copies = array::from_fn(|behind| match facts.begins(behind) {
        true => (at + behind) as u16,
        false => 0,
    });
    let end = at + displaced.len();
    code.extend_from_slice(displaced);
    let behind = site.addr() + displaced.len() as u64;
    code.extend_from_slice(&jump(start + end as u64, behind));
    (copies, BlockPositions::Unchanged(displaced.len() as u8))
}

impl Detour {
    /// Makes the detour of `site`, whose code, to be written to `start`, it leaves in `draft`.
    /// None: no memory, or the displaced instructions do not fit.
    pub(crate) fn build(
        entry: &EntryPoints,
        site: &Site,
        displaced: &Displaceable,
        start: u64,
        draft: &mut Draft,
    ) -> Option<Self> {
        draft.code.clear();
        // The longest template, and the longest block.
        let room = DETOUR_BYTES + Block::MAX_BYTES;
        draft.code.try_reserve_exact(room).ok()?;
        let action = site.lone_action();
        let lone = if displaced.at_entry {
            site.lone_kretprobe()
        } else {
            None
        };
        let only_returns = displaced.at_entry && site.has_only_returns(|| entry.routines);
        let jump_entry = lone.is_some_and(|kretprobe| kretprobe.jump_entry.is_some());
        let frameless = action.is_some()
            || only_returns
            || jump_entry
            || lone.is_some_and(|kretprobe| kretprobe.enter.is_none());
        let template = match lone {
            Some(_) if jump_entry => entry.detours.lone_action,
            Some(_) if frameless && displaced.flags_are_dead => entry.detours.lone_return,
            Some(_) if frameless => entry.detours.lone_return_keeping_flags,
            // The ip that it pushes has 32 bits.
            Some(_) if i32::try_from(site.key.0 as i64).is_ok() => entry.detours.lone_entry,
            _ if only_returns => entry.detours.returns,
            _ if displaced.at_entry => entry.detours.at_entry,
            _ => entry.detours.anywhere,
        };
        let kretprobe = lone.map_or(null(), core::ptr::from_ref);
        let (enter, template) = match action {
            Some(action) => {
                // SAFETY: a linked probe's action lives (contract of `Kprobe::action`).
                let action = unsafe { action.as_ref() };
                call(
                    action,
                    site,
                    start,
                    displaced.flags_are_dead,
                    &mut draft.code,
                )?;
                (ACTION_ENTER, 0)
            }
            None => {
                template.copy(start, site, kretprobe, entry, frameless, draft)?;
                ((template.enter - template.start) as usize, template.start)
            }
        };
        let code = &mut draft.code;
        let at = code.len();
        let (copies, positions) = match &displaced.insns {
            Displaced::Decoded(region) => append_translated(code, region, site, start)?,
            Displaced::Plain(bytes, facts) => {
                append_unchanged(code, &bytes[..facts.displaced_len()], *facts, site, start)
            }
        };
        if code.len() > DETOUR_BYTES {
            return None;
        }
        Some(Self {
            start,
            enter,
            block: at,
            template,
            kretprobe,
            only_returns,
            frameless,
            action: action.map_or(null(), |action| action.as_ptr()),
            at_entry: displaced.at_entry,
            original: displaced.original,
            copies,
            positions,
            installed: AtomicBool::new(false),
            site,
            next: AtomicPtr::new(null_mut()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{data::trap_ip::TrapIp, insn::FunctionCode};
    use alloc::vec;

    const PROBED: u64 = 0xffff_ffff_8001_2340;
    const START: u64 = 0xffff_ffff_a000_0400;

    /// The code, where each copy is, and the position of the probed code at each byte.
    #[test]
    fn the_block_of_an_open_entry_is_the_one_that_translating_it_gives() {
        let functions: [&[u8]; 4] = [
            // push rbp; mov rbp, rsp; push r15
            &[0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0xc3],
            // sub rsp, 24; movabs rax, ..
            &[
                0x48, 0x83, 0xec, 0x18, 0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3,
            ],
            // movabs rax, ..
            &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3],
            &[0x90, 0x90, 0x90, 0x90, 0x90, 0xc3],
        ];
        let site = Site::sentinel(TrapIp::of(PROBED));
        for bytes in functions {
            let mut function = FunctionCode::new(bytes.to_vec(), PROBED);
            let facts = EntryFacts::of(&mut function);
            let displaced = &bytes[..facts.displaced_len()];
            assert_eq!(displaced.len(), bytes.len() - 1);
            let region = function.region(&[], PROBED).unwrap().unwrap();
            // After something else, as each block is.
            let (mut translated, mut unchanged) = (vec![0xcc; 13], vec![0xcc; 13]);
            let blocks = [
                append_translated(&mut translated, &region, &site, START).unwrap(),
                append_unchanged(&mut unchanged, displaced, facts, &site, START),
            ];
            assert_eq!(unchanged, translated);
            let [by_decoding, by_facts] = blocks.map(|(copies, positions)| Detour {
                start: START,
                enter: 8,
                block: 13,
                template: 0,
                kretprobe: null(),
                only_returns: false,
                frameless: false,
                action: null(),
                at_entry: true,
                original: [0x90; JUMP_BYTES],
                copies,
                positions,
                installed: AtomicBool::new(true),
                site: &site,
                next: AtomicPtr::new(null_mut()),
            });
            assert_eq!(by_facts.copies, by_decoding.copies);
            for offset in 13..translated.len() {
                let (known, found) = (by_facts.position(offset), by_decoding.position(offset));
                assert!(
                    known.is_same_as(&found),
                    "{displaced:x?} {offset}: {known:?} {found:?}"
                );
            }
        }
    }
}
