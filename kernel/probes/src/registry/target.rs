//! Where a probe goes, and whether it may go there.
//!
//! ```text
//!   resolve          symbol, address and offset ─► an address in text, and its symbol
//!   check_container  jprobe, kretprobe: only at a function's entry, and so on
//!   target           the instruction there, decoded from the function's start and classified
//! ```
//!
//! The first two need no memory, and the third only for the text of the function, which a batch
//! keeps from one probe to the next ([`Function`]). Each refusal is a [`ProbeError`]; nothing has
//! changed then. An entry of which facts are known is not decoded.
//!
//! # Contexts
//! Under the registry's lock, because text and sites change under it alone. [`Probes::judge`] asks
//! about an instruction alone and takes no lock.

use alloc::{string::String, vec::Vec};
use core::sync::atomic::Ordering::Relaxed;

use crate::{
    data::{
        kprobe::{Kprobe, ProbeKind},
        kretprobe::KretprobeCore,
        method::StepMethod,
        probe::{Container, Probe},
    },
    error::{MAX_INSTANCE_DATA, ProbeError},
    insn::{
        self, BoundaryError, BoundaryWalk, Class, Ending, EntryFacts, Insn, MAX_INSN_BYTES,
        translate,
    },
    platform::{Platform, Symbol, Text},
    registry::{
        replacement::{fitting, post_ending},
        state::{Host, Probes, State},
        text::{Pristine, text},
    },
};

/// Where a probe goes, after all checks that need no memory.
pub(crate) struct Target<'a> {
    pub(super) addr: u64,
    pub(super) insn: TargetInsn<'a>,
    /// The facts about it, if it is an entry of which some are known, to be translated.
    pub(super) entry: EntryFacts,
}

/// The instruction there.
pub(super) enum TargetInsn<'a> {
    Decoded(&'a Insn, Class),
    /// These bytes, to be translated: they are executed unchanged at any address.
    Plain(&'a [u8]),
}

/// The function that was probed last, so that a batch decodes it once. Text does not change before
/// a batch is all linked.
#[derive(Default)]
pub(crate) struct Function {
    start: u64,
    size: u64,
    /// Its first bytes as they are without probes, as many as the probes so far have needed.
    bytes: Vec<u8>,
    walk: BoundaryWalk,
}

/// What a user has named, before the offset: the symbol, or the address that is not 0.
pub(super) fn base<P: Platform>(symbol_name: Option<&str>, given: u64) -> Result<u64, ProbeError> {
    match (symbol_name, given) {
        (Some(_), 1..) => Err(ProbeError::SymbolAndAddress),
        (None, 0) => Err(ProbeError::NoTarget),
        (Some(name), 0) => P::lookup_symbol(name),
        (None, addr) => Ok(addr),
    }
}

/// The symbol at `addr`, if code of it may be probed.
pub(super) fn permitted<P: Platform>(addr: u64) -> Result<Symbol, ProbeError> {
    let symbol = P::symbol_at(addr).ok_or(ProbeError::NoSymbolAt { addr })?;
    if symbol.text == Text::No {
        return Err(ProbeError::NotText { addr });
    }
    if let Some(reason) = P::blacklisted(addr) {
        return Err(ProbeError::Blacklisted { addr, reason });
    }
    if symbol.text == Text::Freed {
        return Err(ProbeError::NoSymbolAt { addr });
    }
    Ok(symbol)
}

impl<P: Host> Probes<P> {
    /// Where `kprobe` goes and the symbol there, or why it may not.
    pub(super) fn resolve(&self, kprobe: &Kprobe) -> Result<(u64, Symbol), ProbeError> {
        let given = kprobe.given.load(Relaxed);
        if kprobe.is_registered() {
            let addr = kprobe.addr();
            if !kprobe.told_of_double.swap(true, Relaxed) {
                P::log(format_args!(
                    "kprobes: the probe at {addr:#x} is being registered a second time"
                ));
            }
            return Err(ProbeError::AlreadyRegistered { addr });
        }
        let base = base::<P>(kprobe.symbol_name(), given)?;
        let mut addr = base.wrapping_add(u64::from(kprobe.offset));
        let symbol = permitted::<P>(addr).map_err(|error| match error {
            ProbeError::NoSymbolAt { .. } if P::symbol_at(addr).is_none() => {
                no_symbol_at::<P>(kprobe, base, addr)
            }
            error => error,
        })?;
        // The landing pad of indirect branches must stay. The entry of such a function is after
        // it.
        if addr == symbol.start {
            addr = self.entry_of(&symbol);
        }
        Ok((addr, symbol))
    }

    /// Where a probe of the function's entry goes.
    pub(super) fn entry_of(&self, symbol: &Symbol) -> u64 {
        let known = symbol.known_entry();
        known.unwrap_or_else(|| symbol.start + Pristine(self).landing_pad_len(symbol) as u64)
    }

    /// The further checks for jprobes and kretprobes.
    pub(super) fn check_container<T: Probe + ?Sized>(
        &self,
        state: &State,
        probe: &T,
        addr: u64,
        symbol: &Symbol,
    ) -> Result<(), ProbeError> {
        let container = probe.container();
        if matches!(container, Container::None) {
            return Ok(());
        }
        let entry = self.entry_of(symbol);
        if addr != entry {
            return Err(ProbeError::NotFunctionEntry { addr, entry });
        }
        match container {
            Container::None => Ok(()),
            Container::Jprobe(jprobe) if jprobe.entry.is_none() => Err(ProbeError::NoHandler),
            Container::Jprobe(jprobe) if !is_function::<P>(jprobe.entry_addr()) => {
                Err(ProbeError::HandlerNotFunction {
                    handler: jprobe.entry_addr(),
                })
            }
            Container::Jprobe(_) if !symbol.exported => Err(ProbeError::NotExternC { addr }),
            Container::Jprobe(_) => match self.site_at(addr) {
                Some(site) if site.probes().any(|other| other.kind == ProbeKind::Jprobe) => {
                    Err(ProbeError::SecondJprobe { addr })
                }
                _ => Ok(()),
            },
            Container::Kretprobe(core) => {
                let method = core.method.unwrap_or(state.returns);
                let trampoline = self.trampoline_of(method);
                if let Some(site) = self.site_at(addr)
                    && site
                        .probes()
                        .filter_map(KretprobeCore::of)
                        .any(|other| other.trampoline.load(Relaxed) != trampoline)
                {
                    return Err(ProbeError::MixedReturnMethods { addr });
                }
                match core.data.size() {
                    bytes @ MAX_INSTANCE_DATA.. if bytes > MAX_INSTANCE_DATA => {
                        Err(ProbeError::DataTooLarge { bytes })
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// The instruction at `addr`, where no site is, if it may be probed. `step`: the method by
    /// which hits will execute it.
    pub(crate) fn target<'a>(
        &self,
        addr: u64,
        symbol: &Symbol,
        step: StepMethod,
        function: &'a mut Function,
    ) -> Result<Target<'a>, ProbeError> {
        // A copy to be stepped is made from the decoded instruction.
        if step == StepMethod::Translate && symbol.known_entry() == Some(addr) {
            // SAFETY: part of the symbol, under the lock. No site is there, so neither a breakpoint
            // nor a jump.
            let bytes = unsafe { text(addr, symbol.entry.first_len()) };
            return Ok(Target {
                addr,
                insn: TargetInsn::Plain(bytes),
                entry: symbol.entry,
            });
        }
        if function.start != symbol.start || function.size != symbol.size {
            function.start = symbol.start;
            function.size = symbol.size;
            function.bytes.clear();
            function.walk = BoundaryWalk::new();
        }
        let Function {
            start,
            size,
            bytes,
            walk,
        } = function;
        // The instruction, and the one after it, which may matter.
        let needed = (addr - *start + 2 * MAX_INSN_BYTES as u64).min(*size);
        let known = bytes.len() as u64;
        if known < needed {
            // Twice as many, so that ascending targets do not read all bytes again and again.
            let end = *start + needed.max(2 * known).min(*size);
            Pristine(self).read(*start..end, bytes)?;
        }
        let insn = walk
            .find(bytes, *start, addr)
            .map_err(|error| match error {
                BoundaryError::MidInstruction { start } => {
                    ProbeError::MidInstruction { addr, start }
                }
                // So it is, too, in a function that ends with its landing pad.
                BoundaryError::Undecodable(cause) => ProbeError::Undecodable { addr, cause },
            })?;
        let behind = bytes
            .get((insn.next_ip() - *start) as usize..)
            .unwrap_or_default();
        let class = insn::classify(insn, behind)
            .map_err(|refusal| ProbeError::Instruction { addr, refusal })?;
        let is_plain = step == StepMethod::Translate && insn::is_plain(insn, class);
        Ok(Target {
            addr,
            insn: match is_plain {
                true => TargetInsn::Plain(insn.bytes()),
                false => TargetInsn::Decoded(insn, class),
            },
            entry: EntryFacts::UNKNOWN,
        })
    }

    /// Judges an instruction by itself, as a registration would: whether it can be executed
    /// elsewhere. `behind` is the function's original code after it. Changes nothing. Task
    /// context.
    ///
    /// # Errors
    /// [`ProbeError::Instruction`].
    pub fn judge(&self, insn: &Insn, behind: &[u8]) -> Result<(), ProbeError> {
        let addr = insn.ip();
        let refused = |refusal| ProbeError::Instruction { addr, refusal };
        insn::classify(insn, behind).map_err(refused)?;
        // Slots differ in nothing but their addresses, all of which are within reach or none.
        let slot = P::slots().start;
        for ending in [Ending::Resume, post_ending::<P>()] {
            fitting::<P>(&translate(insn, slot, ending)).map_err(refused)?;
        }
        Ok(())
    }
}

/// Why `kprobe` cannot be put anywhere: there is no symbol at `addr`, which its offset makes of
/// `base`.
fn no_symbol_at<P: Platform>(kprobe: &Kprobe, base: u64, addr: u64) -> ProbeError {
    let (Some(given), Some(symbol)) = (&kprobe.symbol_name, P::symbol_at(base)) else {
        return ProbeError::NoSymbolAt { addr };
    };
    let mut name = String::new();
    if name.try_reserve(given.len()).is_ok() {
        name.push_str(given);
    }
    ProbeError::OffsetTooLarge {
        name,
        size: symbol.size,
        offset: kprobe.offset,
    }
}

/// Whether a function of the kernel begins at `addr`.
fn is_function<P: Platform>(addr: u64) -> bool {
    P::symbol_at(addr).is_some_and(|symbol| {
        symbol.start == addr && matches!(symbol.text, Text::Kernel | Text::Init)
    })
}
