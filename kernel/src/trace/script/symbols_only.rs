//! The kernel as a compiler sees it at the prompt: functions by the symbol table, and no types.
//!
//! # Invariants
//! NAME-1. A pattern without `::` is held against the last segment of a path, one with more
//!     segments against as many of the last ones. With `*` or `?` it is held against the whole
//!     path, too. So it is with debug information on the host.
//!
//! # Contexts
//! Task context. A question goes through the whole table.

use alloc::{
    format,
    rc::Rc,
    string::{String, ToString},
    vec::Vec,
};

use trace_interface::symbols::{
    Function, Kernel, ProbePlace, Symbol, Symbolize, Type, TypeId, Unavailable, Variable, glob,
};

use crate::symbols;

/// See the module's text.
pub struct SymbolsOnly;

/// How many names are offered in place of one that is not there.
const OFFERED: usize = 3;

fn unavailable(what: &str) -> Unavailable {
    Unavailable {
        reason: format!("{what} needs debug information, which the kernel does not have in memory"),
        help: "give registers, such as arg0 or reg(\"di\"), or trace from the host: \
               cargo run -- trace"
            .into(),
    }
}

/// The last `count` segments of a path. Those inside of brackets do not count.
fn last_segments(path: &str, count: usize) -> Option<&str> {
    let bytes = path.as_bytes();
    let (mut depth, mut found, mut at) = (0_i32, 0, bytes.len());
    while at > 0 {
        at -= 1;
        match bytes[at] {
            // The arrow of a function's type closes nothing.
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b'>' | b')' | b']' | b'}' => depth += 1,
            b'<' | b'(' | b'[' | b'{' => depth -= 1,
            b':' if depth == 0 && at > 0 && bytes[at - 1] == b':' => {
                found += 1;
                if found == count {
                    return path.get(at + 1..);
                }
                at -= 1;
            }
            _ => {}
        }
    }
    (found + 1 == count).then_some(path)
}

/// How many segments a path has.
fn segments(path: &str) -> usize {
    (1..)
        .find(|count| last_segments(path, count + 1).is_none())
        .unwrap_or(1)
}

/// Whether a pattern means a path (NAME-1).
fn means(pattern: &str, path: &str) -> bool {
    let is_glob = pattern.contains(['*', '?']);
    last_segments(path, segments(pattern)).is_some_and(|end| glob(pattern, end))
        || is_glob && glob(pattern, path)
}

impl Kernel for SymbolsOnly {
    fn functions(&self, pattern: &str) -> Vec<Function> {
        let mut found = Vec::new();
        for symbol in symbols::functions() {
            let path = symbol.to_string();
            if symbol.name == pattern || means(pattern, &path) {
                found.push(Function {
                    path,
                    symbol: symbol.name.into(),
                    address: symbol.start,
                    bytes: symbol.size,
                });
            }
        }
        found
    }

    fn inlined(&self, _: &str) -> Vec<u64> {
        Vec::new()
    }

    fn line(&self, _: &str, _: u32) -> Result<Vec<u64>, Unavailable> {
        Err(unavailable("a line of the source"))
    }

    fn variables(&self, _: ProbePlace) -> Vec<String> {
        Vec::new()
    }

    fn variable(&self, _: ProbePlace, name: &str) -> Result<Variable, Unavailable> {
        Err(unavailable(&format!("the variable {name}")))
    }

    fn returned(&self, _: u64) -> Result<Variable, Unavailable> {
        Err(unavailable("the type of the result"))
    }

    fn describe(&self, _: TypeId) -> Rc<Type> {
        Rc::new(Type::Unit)
    }

    fn global(&self, path: &str) -> Result<Variable, Unavailable> {
        Err(unavailable(&format!("the static variable {path}")))
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        let most = name.len() / 3 + 1;
        let mut near: Vec<(usize, String)> = Vec::new();
        for symbol in symbols::functions() {
            let path = symbol.to_string();
            let end = last_segments(&path, segments(name)).unwrap_or(&path);
            let Some(far) = names::distance(name, end, most) else {
                continue;
            };
            if near.iter().all(|(_, other)| other != end) {
                near.push((far, end.into()));
                near.sort();
                near.truncate(OFFERED);
            }
        }
        near.into_iter().map(|(_, name)| name).collect()
    }
}

impl Symbolize for SymbolsOnly {
    fn symbol(&self, address: u64) -> Option<Symbol> {
        let symbol = symbols::lookup_addr(address)?;
        Some(Symbol {
            name: symbol.to_string(),
            offset: address - symbol.start,
        })
    }
}
