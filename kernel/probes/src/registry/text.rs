//! Text: breakpoints come and go, and what it is without them.

use alloc::vec::Vec;
use core::{ops::Range, slice, sync::atomic::Ordering::Relaxed};

use crate::{
    data::site::Site,
    error::ProbeError,
    insn::JUMP_BYTES,
    platform::Text,
    registry::{Host, Probes, optimize::JUMP},
};

/// How many breakpoints are written between two synchronisations, in all rounds. A batch may probe
/// the code that writes breakpoints. Writing so many at a time keeps that code unprobed for most of
/// the work.
const WRITTEN_AT_ONCE: usize = 4096;

/// The breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;

impl<P: Host> Probes<P> {
    /// Flips the breakpoints of those among `sites` that are marked `to_write`. Returns when every
    /// CPU sees the new text.
    pub(crate) fn write_text<'a>(&self, mut sites: impl Iterator<Item = &'a Site> + Clone) {
        while sites.clone().next().is_some() {
            self.write_some_text(sites.clone().take(WRITTEN_AT_ONCE));
            sites.nth(WRITTEN_AT_ONCE - 1);
        }
    }

    /// The same for [`WRITTEN_AT_ONCE`] sites at the most.
    fn write_some_text<'a>(&self, sites: impl Iterator<Item = &'a Site> + Clone) {
        for _round in 0..2 {
            let mut any = false;
            for site in sites.clone() {
                if !site.to_write.load(Relaxed) || site.gone.load(Relaxed) {
                    continue;
                }
                any = true;
                let byte = if site.armed.load(Relaxed) {
                    site.opcode()
                } else {
                    INT3
                };
                // SAFETY: live text (not gone), the first byte of an instruction, under the lock.
                unsafe { P::write_text(site.addr(), byte) };
            }
            if !any {
                return;
            }
            P::synchronize_cores();
        }
        for site in sites {
            if site.to_write.swap(false, Relaxed) && !site.gone.load(Relaxed) {
                site.armed.store(!site.armed.load(Relaxed), Relaxed);
            }
        }
    }

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
                self.pristine(range)
            }
            _ => Err(ProbeError::NoSymbolAt { addr }),
        }
    }

    /// A copy of `range`, part of a symbol, as it is without probes.
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`].
    pub(crate) fn pristine(&self, range: Range<u64>) -> Result<Vec<u8>, ProbeError> {
        let mut bytes = Vec::new();
        let len = (range.end - range.start) as usize;
        bytes
            .try_reserve_exact(len)
            .map_err(|_| ProbeError::OutOfMemory)?;
        bytes.resize(len, 0);
        self.read_pristine(range.start, &mut bytes);
        Ok(bytes)
    }

    /// Fills `bytes` with those from `start` on, all in one symbol, as they are without probes.
    /// Under the registry's lock.
    pub(super) fn read_pristine(&self, start: u64, bytes: &mut [u8]) {
        // SAFETY: inside an executable symbol, so mapped and readable (clause 2 of `Platform`).
        // Text is written under the lock only.
        bytes.copy_from_slice(unsafe { slice::from_raw_parts(start as *const u8, bytes.len()) });
        // Little text has this byte, and the search for the first one takes words at a time.
        if bytes.contains(&INT3) {
            for (at, byte) in (start..).zip(&mut *bytes) {
                if *byte == INT3
                    && let Some(site) = self.site_at(at)
                    && site.armed.load(Relaxed)
                {
                    *byte = site.opcode();
                }
            }
        }
        self.undo_jumps(bytes, start);
    }

    /// Replaces in `bytes`, read at `start`, what jumps have replaced.
    fn undo_jumps(&self, bytes: &mut [u8], start: u64) {
        if self.detour_count.load(Relaxed) == 0 {
            return;
        }
        let end = start + bytes.len() as u64;
        for addr in start.saturating_sub(JUMP_BYTES as u64 - 1)..end {
            let first = addr.checked_sub(start).map(|offset| bytes[offset as usize]);
            if first.is_some_and(|byte| byte != JUMP) {
                continue;
            }
            let Some(detour) = self.site_at(addr).and_then(Site::detour) else {
                continue;
            };
            if !detour.installed.load(Relaxed) {
                continue;
            }
            for (at, byte) in (addr..).zip(detour.original) {
                if (start..end).contains(&at) {
                    bytes[(at - start) as usize] = byte;
                }
            }
        }
    }
}
