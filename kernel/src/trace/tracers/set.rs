//! A set of functions, as `set_ftrace_filter` and its like hold it.
//!
//! A text changes it word by word: `NAME` adds a function, `!NAME` takes it away. A name may be a
//! pattern with `*` and `?`, the name of `available_filter_functions`, or the linker's. Several
//! functions may have the name; then it is for all of them.
//!
//! # Contexts
//! Task context.

use alloc::vec::Vec;
use core::fmt::Write;

use fallible::{OutOfMemory, push, try_vec};
use names::glob;
use tracefs::field::Symbols;

use super::super::names::{KernelSymbols, symbol_at, traceable};
use crate::errno::Errno;

/// The sets of the tracers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// These functions only.
    Filter,
    /// Not these.
    Notrace,
    /// Calls of these, and what they call.
    GraphFunction,
    /// No calls of these, nor what they call.
    GraphNotrace,
}

impl Which {
    /// How many sets there are.
    pub const COUNT: usize = 4;

    /// Each with the name of its file.
    pub const FILES: [(&str, Self); Self::COUNT] = [
        ("set_ftrace_filter", Self::Filter),
        ("set_ftrace_notrace", Self::Notrace),
        ("set_graph_function", Self::GraphFunction),
        ("set_graph_notrace", Self::GraphNotrace),
    ];

    /// What the file says while the set is empty.
    const fn when_empty(self) -> &'static str {
        match self {
            Self::Filter | Self::GraphFunction => "#### all functions enabled ####\n",
            Self::Notrace | Self::GraphNotrace => "#### no functions disabled ####\n",
        }
    }
}

/// What a name or a pattern means.
struct Names<'a> {
    name: &'a str,
    is_pattern: bool,
    /// The function with that name of the linker's.
    address: Option<u64>,
}

impl<'a> Names<'a> {
    /// Of a word.
    fn of(name: &'a str) -> Self {
        let is_pattern = name.contains(['*', '?']);
        let address = match is_pattern {
            true => None,
            false => KernelSymbols.address(name).ok(),
        };
        Self {
            name,
            is_pattern,
            address,
        }
    }

    /// Calls `visit` with the beginning of each function that is meant and can be traced, by
    /// address.
    ///
    /// # Errors
    /// ENOMEM, and those of `visit`.
    fn for_each(&self, mut visit: impl FnMut(u64) -> Result<(), OutOfMemory>) -> Result<(), Errno> {
        for (start, known) in traceable()? {
            let is_meant = match self.is_pattern {
                true => glob(self.name, known),
                false => known == self.name || self.address == Some(start),
            };
            if is_meant {
                visit(start)?;
            }
        }
        Ok(())
    }
}

/// The name of the function that begins at `address`, as the files show it.
pub(super) fn function_name(address: u64) -> &'static str {
    symbol_at(address).map_or("?", |symbol| symbol.name)
}

/// See the module's text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FunctionSet {
    /// Where they begin, ascending.
    addresses: Vec<u64>,
}

impl FunctionSet {
    /// The set without functions.
    pub const fn empty() -> Self {
        Self {
            addresses: Vec::new(),
        }
    }

    /// The set of the function that begins at `address`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn one(address: u64) -> Result<Self, OutOfMemory> {
        let mut addresses = try_vec(1)?;
        addresses.push(address);
        Ok(Self { addresses })
    }

    /// Where they begin, ascending.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// Leaves those in that `stays` is true of.
    pub fn retain(&mut self, stays: impl Fn(u64) -> bool) {
        self.addresses.retain(|address| stays(*address));
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Whether the function that begins at `address` is in it.
    pub fn has(&self, address: u64) -> bool {
        self.addresses.binary_search(&address).is_ok()
    }

    /// The same set once more.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn copy(&self) -> Result<Self, Errno> {
        let mut addresses = try_vec(self.addresses.len())?;
        addresses.extend_from_slice(&self.addresses);
        Ok(Self { addresses })
    }

    /// Changes the set as `word` says.
    ///
    /// # Errors
    /// EINVAL if the word means no function that can be traced; ENOMEM, and part of the change is
    /// made then.
    pub fn change(&mut self, word: &str) -> Result<(), Errno> {
        let (name, is_added) = match word.strip_prefix('!') {
            Some(name) => (name, false),
            None => (word, true),
        };
        let mut is_known = false;
        Names::of(name).for_each(|start| {
            is_known = true;
            match (self.addresses.binary_search(&start), is_added) {
                (Err(place), true) => {
                    push(&mut self.addresses, start)?;
                    self.addresses[place..].rotate_right(1);
                }
                (Ok(place), false) => _ = self.addresses.remove(place),
                (Ok(_), true) | (Err(_), false) => {}
            }
            Ok(())
        })?;
        match is_known {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }

    /// Writes the text of the file `which`: a name in each line, by address.
    ///
    /// # Errors
    /// ENOMEM, and that of `out`.
    pub fn show(&self, which: Which, out: &mut dyn Write) -> Result<(), Errno> {
        if self.is_empty() {
            return Ok(out.write_str(which.when_empty())?);
        }
        for (start, name) in traceable()? {
            if self.has(start) {
                writeln!(out, "{name}")?;
            }
        }
        Ok(())
    }
}
