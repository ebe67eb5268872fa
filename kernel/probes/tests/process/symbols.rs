//! The binary's symbols, and those of code that tests make at run time.

use std::{collections::HashMap, ops::Range, sync::OnceLock};

use object::{Object, ObjectSection, ObjectSymbol, SectionKind};
use probes::{
    insn::EntryFacts,
    platform::{Symbol, Text},
};

use super::Mutex;

/// Functions that may not be probed, with the reason.
const BLACKLIST: &[(&str, &str)] = &[
    ("kretprobe_trampoline", "it is part of every hit"),
    ("kretprobe_trampoline_trap3", "it is part of every hit"),
    ("kretprobe_trampoline_trap4", "it is part of every hit"),
    ("kprobe_post_stub", "it is part of every hit"),
    ("jprobe_return", "it is part of every hit"),
    ("blacklisted", "a test asks for it"),
    (
        "switch_stacks",
        "it returns on another stack than it was called on",
    ),
];

struct Table {
    /// Sorted by start.
    symbols: Vec<Symbol>,
    by_name: HashMap<String, u64>,
    text_sections: Vec<Range<u64>>,
}

/// Code made at run time, and functions whose text was freed.
static DYNAMIC: Mutex<Vec<Symbol>> = Mutex::new(Vec::new());

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let binary = std::fs::read("/proc/self/exe").expect("a process can read its binary");
        let file = object::File::parse(&*binary).expect("the binary is an ELF file");
        let linked = file
            .symbols()
            .find(|symbol| symbol.name() == Ok("kretprobe_trampoline"))
            .expect("the trampoline has a symbol")
            .address();
        let here = super::kretprobe_trampoline as *const () as u64;
        let bias = here.wrapping_sub(linked);
        let executable = |section: &object::Section<'_, '_>| section.kind() == SectionKind::Text;
        let mut table = Table {
            symbols: Vec::new(),
            by_name: HashMap::new(),
            text_sections: file
                .sections()
                .filter(executable)
                .map(|section| (bias.wrapping_add(section.address()), section.size()))
                .map(|(start, size)| start..start + size)
                .collect(),
        };
        for symbol in file.symbols().filter(|symbol| symbol.size() > 0) {
            let section = symbol
                .section_index()
                .and_then(|index| file.section_by_index(index).ok());
            let (Some(section), Ok(name)) = (section, symbol.name()) else {
                continue;
            };
            let start = bias.wrapping_add(symbol.address());
            table.by_name.insert(name.into(), start);
            table.symbols.push(Symbol {
                start,
                size: symbol.size(),
                text: if executable(&section) {
                    Text::Kernel
                } else {
                    Text::No
                },
                exported: !name.starts_with("_ZN") && !name.starts_with("_R"),
                entry: EntryFacts::UNKNOWN,
            });
        }
        table.symbols.sort_by_key(|symbol| symbol.start);
        table
    })
}

/// Where the binary's text is.
pub fn text_sections() -> Vec<Range<u64>> {
    table().text_sections.clone()
}

/// The address of a symbol, by the name that the symbol table has for it.
pub fn lookup(name: &str) -> Option<u64> {
    table().by_name.get(name).copied()
}

/// The symbol that covers `addr`.
pub fn covering(addr: u64) -> Option<Symbol> {
    let covers = |symbol: &&Symbol| addr.wrapping_sub(symbol.start) < symbol.size;
    if let Some(symbol) = DYNAMIC.lock().iter().find(covers) {
        return Some(*symbol);
    }
    let table = table();
    let after = table.symbols.partition_point(|symbol| symbol.start <= addr);
    table.symbols[..after]
        .iter()
        .rev()
        .take(4)
        .find(covers)
        .copied()
}

/// Adds a symbol, or changes one of the binary, until [`remove`].
pub fn add(symbol: Symbol) {
    DYNAMIC.lock().push(symbol);
}

/// Takes back what was added for `start`.
pub fn remove(start: u64) {
    DYNAMIC.lock().retain(|symbol| symbol.start != start);
}

/// Why `addr` may not be probed, if it may not.
pub fn refused(addr: u64) -> Option<&'static str> {
    let start = covering(addr)?.start;
    BLACKLIST
        .iter()
        .find(|(name, _)| lookup(name) == Some(start))
        .map(|(_, reason)| *reason)
}

/// `symbol+0x4`, for messages.
pub fn describe(addr: u64) -> String {
    let Some(symbol) = covering(addr) else {
        return format!("{addr:#x}");
    };
    let name = table()
        .by_name
        .iter()
        .find(|(_, start)| **start == symbol.start)
        .map_or("code", |(name, _)| name);
    format!("{name}+{:#x}", addr - symbol.start)
}
