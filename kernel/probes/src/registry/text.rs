//! Text: breakpoints come and go, and what it is without them.

use alloc::vec::Vec;
use core::{ops::Range, slice, sync::atomic::Ordering::Relaxed};

use crate::{
    data::site::Site,
    error::ProbeError,
    insn::{self, INT3, JUMP, JUMP_BYTES},
    platform::{Platform, Symbol, Text},
    registry::state::{Host, Probes},
};

/// How many breakpoints are written between two synchronisations, in all rounds. A batch may probe
/// the code that writes breakpoints. Writing so many at a time keeps that code unprobed for most of
/// the work.
const WRITTEN_AT_ONCE: usize = 4096;

/// Flips the breakpoints of those among `sites` that are marked `to_write`. Returns when every
/// CPU sees the new text.
pub(super) fn write_breakpoints<'a, P: Platform>(
    mut sites: impl Iterator<Item = &'a Site> + Clone,
) {
    let is_marked = |site: &&Site| site.to_write.load(Relaxed);
    while sites.clone().next().is_some() {
        let mut any = false;
        for site in sites.clone().take(WRITTEN_AT_ONCE).filter(is_marked) {
            any = true;
            flip::<P>(site);
        }
        if any {
            P::synchronize_cores();
        }
        for site in sites.by_ref().take(WRITTEN_AT_ONCE) {
            if is_marked(&site) {
                flip::<P>(site);
                site.armed.store(!site.armed.load(Relaxed), Relaxed);
                site.to_write.store(false, Relaxed);
            }
        }
        if any {
            P::synchronize_cores();
        }
    }
}

/// Writes the breakpoint of `site`, or the byte that it has replaced.
#[inline(always)]
fn flip<P: Platform>(site: &Site) {
    let byte = if site.armed.load(Relaxed) {
        site.opcode()
    } else {
        INT3
    };
    debug_assert!(!site.gone.load(Relaxed));
    // SAFETY: the first byte of an instruction, under the lock. Text that is gone is neither
    // armed nor wants to be, so its site is not marked.
    unsafe { P::write_text(site.addr(), byte) };
}

impl<P: Host> Probes<P> {
    /// The bytes of `range`, part of one symbol, as they are without probes. Task context, may
    /// sleep.
    ///
    /// # Errors
    /// [`ProbeError::NoSymbolAt`] where there is no kernel text; [`ProbeError::OutOfMemory`].
    pub fn original_text(&self, range: Range<u64>) -> Result<Vec<u8>, ProbeError> {
        // Locked, so that no text is freed and no site disappears while it is read.
        let _state = self.state();
        let addr = range.start;
        match P::symbol_at(addr) {
            Some(symbol)
                if matches!(symbol.text, Text::Kernel | Text::Init)
                    && range.end <= symbol.start + symbol.size =>
            {
                Pristine(self).copy(range)
            }
            _ => Err(ProbeError::NoSymbolAt { addr }),
        }
    }
}

/// Text as it is.
///
/// # Safety
/// It is part of an executable symbol, so mapped and readable (clause 2 of
/// [`Platform`]). The registry's lock is held as long as it is used, because
/// text is written under the lock only.
pub(super) unsafe fn text<'a>(start: u64, len: usize) -> &'a [u8] {
    // SAFETY: the caller keeps the same contract.
    unsafe { slice::from_raw_parts(start as *const u8, len) }
}

/// Text as it is without probes. Its methods run under the registry's lock.
pub(super) struct Pristine<'a, P: Host>(pub(super) &'a Probes<P>);

impl<P: Host> Pristine<'_, P> {
    /// A copy of `range`, part of a symbol, as it is without probes.
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`].
    pub(super) fn copy(&self, range: Range<u64>) -> Result<Vec<u8>, ProbeError> {
        let mut bytes = Vec::new();
        self.read(range, &mut bytes)?;
        Ok(bytes)
    }

    /// Makes `bytes` a copy of `range`, part of a symbol, as it is without probes. Under the
    /// registry's lock.
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`]; `bytes` are as before.
    pub(super) fn read(&self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), ProbeError> {
        // SAFETY: part of a symbol, under the lock.
        let text = unsafe { text(range.start, (range.end - range.start) as usize) };
        bytes
            .try_reserve_exact(text.len().saturating_sub(bytes.len()))
            .map_err(|_| ProbeError::OutOfMemory)?;
        bytes.clear();
        bytes.extend_from_slice(text);
        self.undo_probes(bytes, range.start);
        Ok(())
    }

    /// The length of the landing pad of the function `symbol`. Under the registry's lock.
    pub(super) fn landing_pad_len(&self, symbol: &Symbol) -> usize {
        // SAFETY: part of the symbol, under the lock.
        let text = unsafe { text(symbol.start, symbol.size.min(4) as usize) };
        let mut pad = [0; 4];
        let pad = &mut pad[..text.len()];
        pad.copy_from_slice(text);
        self.undo_probes(pad, symbol.start);
        insn::landing_pad_len(pad)
    }

    /// Replaces in `bytes`, read at `start`, what probes have replaced.
    fn undo_probes(&self, bytes: &mut [u8], start: u64) {
        for_each(INT3, bytes, |bytes, at| {
            if let Some(site) = self.0.site_at(start + at as u64)
                && site.armed.load(Relaxed)
            {
                bytes[at] = site.opcode();
            }
        });
        if self.0.detour_count.load(Relaxed) == 0 {
            return;
        }
        for addr in start.saturating_sub(JUMP_BYTES as u64 - 1)..start {
            self.undo_jump(bytes, start, addr);
        }
        for_each(JUMP, bytes, |bytes, at| {
            self.undo_jump(bytes, start, start + at as u64);
        });
    }

    /// Replaces in `bytes`, read at `start`, what a jump at `addr` has replaced.
    fn undo_jump(&self, bytes: &mut [u8], start: u64, addr: u64) {
        let Some(detour) = self.0.site_at(addr).and_then(Site::detour) else {
            return;
        };
        if !detour.installed.load(Relaxed) {
            return;
        }
        for (at, original) in (addr..).zip(detour.original) {
            if let Some(byte) = (at.checked_sub(start)).and_then(|at| bytes.get_mut(at as usize)) {
                *byte = original;
            }
        }
    }
}

/// Calls `visit` with the offset of each byte in `bytes` that is `wanted`, in order. It may change
/// bytes, and sees those that it has changed further on.
fn for_each(wanted: u8, bytes: &mut [u8], mut visit: impl FnMut(&mut [u8], usize)) {
    // Much text has no such byte, and this search takes words at a time.
    if bytes.contains(&wanted) {
        for at in 0..bytes.len() {
            if bytes[at] == wanted {
                visit(bytes, at);
            }
        }
    }
}
