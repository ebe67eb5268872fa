#![doc = include_str!("../README.md")]
//! The hit path: the code that a hit of a probe itself runs through, derived from the linked
//! kernel.
//!
//! A probe in that code would need a hit to handle a hit. So it must not be probed, and no edge of
//! it may lead to a place that the derivation cannot find.
//!
//! Decoding starts at the roots. It follows direct calls and jumps. It also follows indirect ones
//! through a constant word of the image that holds an address of text: words that the linker has
//! left, and jump tables. It ends at the functions in [`Rules::ends`].
//!
//! A hit leaves this code on purpose when it calls a handler. Only the functions in
//! [`Rules::callers`] may have indirect calls that cannot be followed. Functions that change the
//! stack are listed too ([`Rules::stack_switchers`]), because a hit after such a change would find
//! neither its frame nor its task.
//!
//! The rules are in [`rules`]: those of the probes, which hold in any kernel, and with them those
//! of the kernel of this tree. A kernel derives its blacklist when it boots: [`Blacklist::of_file`]
//! takes its own ELF file, [`Blacklist::of_image`] its symbols and text as it has them.
//! [`Symbols`] answers all that the probes ask about code, from the same file. The host
//! checks the linked file before it is booted ([`file::check`]), so a violation fails the build.
//!
//! # Contexts
//! All functions are pure functions of an [`Image`], and allocate.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod blacklist;
pub mod file;
pub mod rules;
pub mod symbols;

pub use blacklist::Blacklist;
pub use symbols::Symbols;

use alloc::{format, string::String, vec::Vec};
use core::{fmt, ops::Range};

use kallsyms::Symbol;
use memchr::memchr_iter;
use probes::insn::{IndirectBranch, Insn, Instructions};

/// A linked kernel: its symbols, and its bytes as they are without probes.
pub trait Image {
    /// The symbol that covers `address`.
    fn symbol_at(&self, address: u64) -> Option<Symbol<'_>>;
    /// The bytes at `range`, if the image holds them and they stay the same while it runs: text
    /// without probes, and constants.
    fn bytes(&self, range: Range<u64>) -> Option<&[u8]>;
    /// The range of the entry stubs: the path from interrupted code and back to it.
    ///
    /// They save the registers before they call anything, and these calls do not belong to a hit.
    /// So the closure does not go through stubs. Functions that a hit goes through are roots.
    fn stubs(&self) -> Range<u64>;
    /// The word at `address`, if it stays the same while the image runs. An image that does not run
    /// yet has words that are not in its bytes: those that are moved with it.
    fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.bytes(address..address.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// An image whose functions can be named and listed.
pub trait Functions: Image {
    /// The functions of that name, as the linker or Rust writes it. A generic function has several:
    /// its instances. None if there is no memory to find them.
    fn functions_named(&self, name: &str) -> Vec<Symbol<'_>>;
    /// All functions.
    fn functions(&self) -> impl Iterator<Item = Symbol<'_>>;
}

/// The rules for a closure: where it begins and ends, and which functions may be in it. Names are
/// as in Rust, each with a reason. A beginning of a name that starts with `*` is an end of a name.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The functions it begins with.
    pub roots: &'a [(&'a str, &'a str)],
    /// Beginnings of the names of functions that do not belong to it.
    pub ends: &'a [(&'a str, &'a str)],
    /// Beginnings of the names of functions that may call or jump to an unknown target.
    pub callers: &'a [(&'a str, &'a str)],
    /// The functions that may leave on another stack than they were entered on.
    pub stack_switchers: &'a [(&'a str, &'a str)],
}

impl Rules<'static> {
    /// No rules: for kernels that have none to add to those of the probes.
    pub const NONE: Self = Self {
        roots: &[],
        ends: &[],
        callers: &[],
        stack_switchers: &[],
    };

    /// These functions leave on another stack than they were entered on, and nothing else is to be
    /// added: for kernels that switch tasks, and whose traps all come to the probes by
    /// `probes::kernel!`.
    pub const fn of_stack_switchers(functions: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            stack_switchers: functions,
            ..Self::NONE
        }
    }
}

/// A violation of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An indirect call or jump whose target is not known.
    Indirect { place: String },
    /// A call of code that panics.
    Panics { place: String, callee: String },
    /// Bytes that are no instruction.
    Undecodable { place: String },
    /// A value for RSP that is neither its own, moved or aligned, nor the frame pointer's.
    StackSwitch { place: String },
    /// A root that the image does not have.
    NoRoot { name: String },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Indirect { place } => write!(
                f,
                "{place} calls or jumps to an unknown target, on the hit path; call the function \
                 directly, or name this one among the callers of handlers \
                 (kernel/parts/hit_path/src/rules.rs) if that is what it does"
            ),
            Self::Panics { place, callee } => write!(
                f,
                "{place} calls {callee}, on the hit path, which must not panic; use get, wrapping \
                 or checked operations"
            ),
            Self::Undecodable { place } => write!(
                f,
                "{place} is no instruction, on the hit path; put data out of the text, or end the \
                 function before it"
            ),
            Self::StackSwitch { place } => write!(
                f,
                "{place} changes the stack, on the hit path; use the stack as it is, or name this \
                 function among those that switch stacks (kernel/parts/hit_path/src/rules.rs) if \
                 it comes back to where it was"
            ),
            Self::NoRoot { name } => write!(
                f,
                "there is no function {name}, where hits come from; keep its symbol, or take it \
                 out of the roots \
                 (kernel/parts/hit_path/src/rules.rs)"
            ),
        }
    }
}

/// The edges that leave a function.
#[derive(Clone, Debug, Default)]
pub struct Edges {
    /// The addresses outside the function that it calls or jumps to, each after the offset of the
    /// instruction.
    pub targets: Vec<(u64, u64)>,
    /// The offsets of its indirect calls and jumps that cannot be followed.
    pub unknown: Vec<u64>,
    /// The offset after its last instruction, if that is not its end.
    pub undecodable: Option<u64>,
}

/// Where `function` leads to.
pub fn edges(image: &impl Image, function: &Symbol<'_>) -> Edges {
    let own = function.start..function.start + function.size;
    let mut edges = Edges::default();
    let mut next = own.start;
    for insn in
        Instructions::new(image.bytes(own.clone()).unwrap_or(&[]), own.start).map_while(Result::ok)
    {
        next = insn.next_ip();
        let target = match (insn.branch_target(), insn.indirect_branch()) {
            (None, None) => continue,
            (Some(target), _) => Some(target),
            (None, Some(branch)) => follow(image, &own, branch),
        };
        match target {
            Some(target) if own.contains(&target) => {}
            Some(target) => edges.targets.push((insn.ip() - own.start, target)),
            None => edges.unknown.push(insn.ip() - own.start),
        }
    }
    edges.undecodable = (next != own.end).then(|| next - own.start);
    edges
}

/// The targets of an indirect branch of the function `own`, if constant words of the image tell.
///
/// If the first entry of a jump table lies in the function, all are taken to.
fn follow(image: &impl Image, own: &Range<u64>, branch: IndirectBranch) -> Option<u64> {
    match branch {
        IndirectBranch::Word(at) => image
            .word(at)
            .filter(|target| image.symbol_at(*target).is_some_and(|s| s.kind.is_text())),
        IndirectBranch::Table(at) => image.word(at).filter(|target| own.contains(target)),
        IndirectBranch::Unknown => None,
    }
}

/// Calls `visit` for each function of the closure of `root`. If `visit` returns `false`, the walk
/// does not go through that function, because it is known already.
pub fn walk<'a>(
    image: &'a impl Image,
    rules: &Rules<'_>,
    root: Symbol<'a>,
    visit: impl FnMut(&Symbol<'a>, &Edges) -> bool,
) {
    walk_until(image, &|symbol| begins(symbol, rules.ends), root, visit);
}

/// The same, where the closure ends at the functions for which `is_end` is true.
fn walk_until<'a>(
    image: &'a impl Image,
    is_end: &dyn Fn(&Symbol<'_>) -> bool,
    root: Symbol<'a>,
    mut visit: impl FnMut(&Symbol<'a>, &Edges) -> bool,
) {
    let mut open = Vec::from([root]);
    while let Some(function) = open.pop() {
        let edges = edges(image, &function);
        if !visit(&function, &edges) {
            continue;
        }
        for (_, target) in edges.targets {
            let reached = image.symbol_at(target);
            open.extend(
                reached
                    .filter(|reached| !image.stubs().contains(&reached.start) && !is_end(reached)),
            );
        }
    }
}

/// The violations in the closure of `roots`.
pub fn violations<'a>(
    image: &'a impl Image,
    rules: &Rules<'_>,
    roots: impl IntoIterator<Item = Symbol<'a>>,
) -> Vec<Violation> {
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for root in roots {
        walk(image, rules, root, |function, edges| {
            if seen.contains(&function.start) {
                return false;
            }
            seen.push(function.start);
            let place = |offset: u64| format!("{function}+{offset:#x}");
            if !begins(function, rules.callers) {
                let unknown = edges.unknown.iter();
                found.extend(unknown.map(|offset| Violation::Indirect {
                    place: place(*offset),
                }));
            }
            for (offset, target) in &edges.targets {
                let callee = image.symbol_at(*target);
                found.extend(callee.filter(panics).map(|callee| Violation::Panics {
                    place: place(*offset),
                    callee: format!("{callee}"),
                }));
            }
            found.extend(edges.undecodable.map(|offset| Violation::Undecodable {
                place: place(offset),
            }));
            found.extend(unlisted_stack_switches(image, rules, function));
            true
        });
    }
    found
}

/// The stack switches of `function`, unless it is one that may have them.
pub fn unlisted_stack_switches(
    image: &impl Image,
    rules: &Rules<'_>,
    function: &Symbol<'_>,
) -> Vec<Violation> {
    if begins(function, rules.stack_switchers) {
        return Vec::new();
    }
    stack_switches(image, function)
        .iter()
        .map(|offset| Violation::StackSwitch {
            place: format!("{function}+{offset:#x}"),
        })
        .collect()
}

/// The offsets of instructions of `function` that change RSP in another way than pushes, pops,
/// frames and their alignment do.
pub fn stack_switches(image: &impl Image, function: &Symbol<'_>) -> Vec<u64> {
    let own = function.start..function.start + function.size;
    Instructions::new(image.bytes(own).unwrap_or(&[]), function.start)
        .map_while(Result::ok)
        .filter(Insn::switches_stacks)
        .map(|insn| insn.ip() - function.start)
        .collect()
}

/// Whether `function` leaves by `iretq`: the processor enters it at a trap, or what it jumps to
/// does. The bytes are looked for first, because few functions have them, and the second of them
/// before that, because it is rarer.
pub(crate) fn ends_by_iret(image: &impl Image, function: &Symbol<'_>) -> bool {
    const IRETQ: [u8; 2] = [0x48, 0xcf];
    let own = function.start..function.start + function.size;
    let code = image.bytes(own).unwrap_or(&[]);
    let is_there = |insn: &Insn| code[(insn.ip() - function.start) as usize..].starts_with(&IRETQ);
    memchr_iter(IRETQ[1], code).any(|at| code[..=at].ends_with(&IRETQ))
        && Instructions::new(code, function.start)
            .map_while(Result::ok)
            .any(|insn| is_there(&insn))
}

fn panics(symbol: &Symbol<'_>) -> bool {
    begins(symbol, &rules::PANICS)
}

fn begins(symbol: &Symbol<'_>, names: &[(&str, &str)]) -> bool {
    let name = format!("{symbol}");
    names
        .iter()
        .any(|(begin, _)| match begin.strip_prefix('*') {
            Some(end) => name.ends_with(end),
            None => name.starts_with(begin),
        })
}

#[cfg(test)]
mod tests;
