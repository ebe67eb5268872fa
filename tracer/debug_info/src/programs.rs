//! User programs: names of the functions that their call stacks have.
//!
//! All programs are linked to the same addresses, so an address means something only with the name
//! of its program.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
};

use trace_interface::symbols::Symbol;

use crate::{image, index};

/// How many bytes of a file's name a task's name has.
const COMM: usize = 15;

/// Programs by their names.
#[derive(Default)]
pub struct Programs {
    all: Vec<Program>,
}

struct Program {
    name: Vec<u8>,
    elf: PathBuf,
    /// Symbols by address, read when they are asked for. Empty if the file cannot be read.
    symbols: OnceCell<Vec<image::Symbol>>,
}

impl Programs {
    pub fn add(&mut self, name: &str, elf: &Path) {
        let bytes = name.as_bytes();
        self.all.push(Program {
            name: bytes[..bytes.len().min(COMM)].to_vec(),
            elf: elf.into(),
            symbols: OnceCell::new(),
        });
    }

    /// The function of a frame.
    pub fn frame(&self, name: &str, address: u64) -> Option<Symbol> {
        let mut all = self.all.iter();
        let program = all.find(|program| program.name == name.as_bytes())?;
        let symbols = program.symbols.get_or_init(|| {
            let image = image::Image::read(&program.elf);
            image.map_or_else(|_| Vec::new(), |image| image.symbols())
        });
        let within = |address: u64| {
            let end = symbols.partition_point(|symbol| symbol.address <= address);
            let symbol = &symbols[end.checked_sub(1)?];
            let offset = address - symbol.address;
            // Symbols of assembly may have no size.
            (offset < symbol.bytes.max(1) || symbol.bytes == 0).then_some((symbol, offset))
        };
        // After a call that never returns the address is that of the next function.
        let found = within(address).filter(|(_, offset)| *offset > 0);
        let found = found.or_else(|| {
            let (symbol, offset) = within(address.checked_sub(1)?)?;
            Some((symbol, offset + 1))
        });
        let (symbol, offset) = found.or_else(|| within(address))?;
        Some(Symbol {
            name: index::demangled(&symbol.name),
            offset,
        })
    }
}
