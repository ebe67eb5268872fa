//! The text that may not be probed, as a list that a kernel derives once and then asks.
//!
//! It is everything that calls and jumps reach from the roots, with the functions that switch
//! stacks, the entry stubs, and whatever else ends by `iretq`. A function has the same fate as its
//! clones, which the compiler makes of it: copies with a suffix in their names, and the instances
//! of a generic function. So one of them may be refused although no hit comes through it. Another
//! version of the compiler may lead a hit there.
//!
//! # Contexts
//! [`Blacklist::of_file`] and [`Blacklist::of_image`] allocate; once, before the first probe.
//! [`Blacklist::reason`] anywhere.

use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use kallsyms::{LastSearch, ReadError, Symbol};

use crate::{Functions, Rules, begins, ends_by_iret, file::File, rules::PROBES, walk_until};

/// A piece of text that may not be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedText {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Why not.
    pub reason: &'static str,
}

/// The reason of functions that are refused only because of a clone.
pub const HAS_CLONE: &str = "a hit runs through a clone of it";

/// The reason of stubs that are never called. A return probe would take the interrupted code for
/// their caller.
pub const IS_STUB: &str = "it ends by `iretq`: nobody has called it, so it has no caller";

/// Vectors of exceptions, for which `trap_entry!` labels what it defines `kprobe_trap_VECTOR`.
const EXCEPTIONS: u8 = 32;

/// Why no list was derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlacklistError {
    /// The file has no symbols, or is none.
    File(ReadError),
    /// A root is not there, or its code is not, so what hits run through is not known.
    NoRoot {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for BlacklistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::NoRoot { name } => write!(
                f,
                "there is no code of {name}, where hits come from; keep its symbol and its text, \
                 which can be executed, or take it out of the roots"
            ),
        }
    }
}

impl core::error::Error for BlacklistError {}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Blacklist {
    /// By address, once it is derived.
    entries: Vec<RefusedText>,
    last_search: LastSearch,
}

impl Blacklist {
    /// Derives the list from the kernel's own ELF file, which runs `distance` bytes above the
    /// addresses that the linker gave it, modulo 2<sup>64</sup>. `own` has the kernel's own roots:
    /// its handlers of traps that ask the probes, by name, each with a reason. What the macros of
    /// the probes define is known, so a kernel whose traps go there has [`Rules::NONE`].
    ///
    /// # Errors
    /// [`BlacklistError`].
    pub fn of_file(
        file: &[u8],
        distance: u64,
        own: &Rules<'static>,
    ) -> Result<Self, BlacklistError> {
        let file = File::read_moved(file, distance).map_err(BlacklistError::File)?;
        Self::of_image(&file, own)
    }

    /// The same, for a kernel whose symbols and text are found at run time.
    ///
    /// # Errors
    /// [`BlacklistError::NoRoot`].
    pub fn of_image(image: &impl Functions, own: &Rules<'static>) -> Result<Self, BlacklistError> {
        let mut roots = Vec::new();
        for (name, reason) in PROBES.roots {
            // A kernel with an entry of its own for breakpoints has no stubs for them.
            let named = image.functions_named(name).into_iter();
            roots.extend(named.map(|root| (root, *reason)));
        }
        for vector in 0..EXCEPTIONS {
            let labels = image.functions_named(&format!("kprobe_trap_{vector}"));
            roots.extend(labels.into_iter().map(|label| {
                let entry = image.symbol_at(label.start).unwrap_or(label);
                (entry, "a trap of a probed instruction runs through it")
            }));
        }
        let no_root = |name: &str| BlacklistError::NoRoot {
            name: name.to_owned(),
        };
        if roots.is_empty() {
            return Err(no_root(PROBES.roots[0].0));
        }
        for (name, reason) in own.roots {
            let named = image.functions_named(name);
            if named.is_empty() {
                return Err(no_root(name));
            }
            roots.extend(named.into_iter().map(|root| (root, *reason)));
        }
        let has_code = |root: &Symbol<'_>| image.bytes(root.start..root.start + root.size);
        if let Some((root, _)) = roots.iter().find(|(root, _)| has_code(root).is_none()) {
            return Err(no_root(&root.demangled().to_string()));
        }
        let mut list = Self::default();
        let stubs = image.stubs();
        if !stubs.is_empty() {
            list.entries.push(RefusedText {
                start: stubs.start,
                end: stubs.end,
                reason: "entry from and exit to interrupted code, between saved and live registers",
            });
        }
        let is_end = |symbol: &Symbol<'_>| begins(symbol, own.ends) || begins(symbol, PROBES.ends);
        for (root, reason) in roots {
            walk_until(image, &is_end, root, |function, _| {
                list.add(function, reason)
            });
        }
        for (name, _) in own.stack_switchers.iter().chain(PROBES.stack_switchers) {
            for symbol in image.functions_named(name) {
                list.add(&symbol, "it switches stacks");
            }
        }
        for stub in image.functions().filter(|stub| ends_by_iret(image, stub)) {
            list.add(&stub, IS_STUB);
        }
        list.add_clones(image);
        list.entries.sort_unstable_by_key(|entry| entry.start);
        Ok(list)
    }

    /// The entries, by address.
    pub fn entries(&self) -> &[RefusedText] {
        &self.entries
    }

    /// Why `addr` may not be probed, if it may not. Any context.
    pub fn reason(&self, addr: u64) -> Option<&'static str> {
        let entries = &self.entries;
        let next = self.last_search.of(entries, |entry| entry.start <= addr);
        let entry = entries.get(next.checked_sub(1)?)?;
        (addr < entry.end).then_some(entry.reason)
    }

    /// Adds a function. False if it is there already.
    fn add(&mut self, symbol: &Symbol<'_>, reason: &'static str) -> bool {
        let is_in = |entry: &RefusedText| entry.start <= symbol.start && symbol.start < entry.end;
        let fresh = !self.entries.iter().any(is_in);
        if fresh {
            self.entries.push(RefusedText {
                start: symbol.start,
                end: symbol.start + symbol.size,
                reason,
            });
        }
        fresh
    }

    /// Adds the clones of the functions that are on the list.
    fn add_clones(&mut self, image: &impl Functions) {
        let mut names: Vec<_> = (self.entries.iter())
            .filter_map(|entry| image.symbol_at(entry.start))
            .map(|symbol| symbol.name_of_all_clones().to_owned())
            .collect();
        names.sort_unstable();
        for symbol in image.functions() {
            let name = symbol.name_of_all_clones();
            if names.binary_search_by(|one| one.as_str().cmp(name)).is_ok() {
                self.add(&symbol, HAS_CLONE);
            }
        }
    }
}
