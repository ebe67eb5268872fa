//! A kernel of a few symbols.
#![allow(dead_code, reason = "no test file uses all of it")]

pub mod generate;
pub mod lines;

use tracefs::field::{LookupError, Named, ProgramError, SymbolAt, Symbols};

/// Functions and data: name, address, size.
const SYMBOLS: [(&str, u64, u64); 8] = [
    ("vfs_read", 0xffff_8000_0000_1000, 0x120),
    ("kernel_clone", 0xffff_8000_0000_2000, 0x300),
    ("do_exit", 0xffff_8000_0000_3000, 0x80),
    ("name_show", 0xffff_8000_0000_4000, 0x10),
    ("name_show", 0xffff_8000_0000_4010, 0x10),
    ("func.isra.0", 0xffff_8000_0000_4100, 0x10),
    (LONG, 0xffff_8000_0000_4200, 0x10),
    ("linux_proc_banner", 0xffff_8000_0010_0000, 0x40),
];

/// A symbol whose automatic name is too long.
pub const LONG: &str = "_ZN9workspace7modules9submodule8function17h0123456789abcdefE_and_more";

/// The only program, but for `/a:b/c`.
pub const PROGRAM: &str = "/bin/my-shell";

/// The address of `vfs_read`.
pub const VFS_READ: u64 = SYMBOLS[0].1;

/// The kernel of the tests. The module `loaded` has the function `start` and no other; other
/// modules are not loaded. To look for `memory_is_out` takes memory that is not there.
pub struct Kernel;

impl Symbols for Kernel {
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
        let holds = |&&(_, start, size): &&(_, u64, u64)| (start..start + size).contains(&address);
        let &(name, start, size) = SYMBOLS.iter().find(holds)?;
        Some(SymbolAt {
            name,
            offset: address - start,
            size,
            module: None,
        })
    }

    fn address(&self, name: &str) -> Result<u64, LookupError> {
        let mut found = SYMBOLS.iter().filter(|symbol| symbol.0 == name);
        match (found.next(), found.count()) {
            _ if name == "memory_is_out" => Err(LookupError::OutOfMemory),
            (None, _) => Err(LookupError::NotFound),
            (Some((_, address, _)), 0) => Ok(*address),
            (Some(_), more) => Err(LookupError::NotUnique(more + 1)),
        }
    }

    fn name_offset(&self, object: Named) -> Option<u32> {
        Some(match object {
            Named::File => 24,
            Named::Node => 8,
        })
    }

    fn program(&self, path: &str) -> Result<(), ProgramError> {
        match path {
            PROGRAM | "/a:b/c" => Ok(()),
            "/bin" => Err(ProgramError::NotRegular),
            _ => Err(ProgramError::NotFound),
        }
    }

    fn program_offset(&self, _path: &str, name: &str) -> Result<u64, LookupError> {
        match name {
            "main" => Ok(0x1230),
            "my::path" => Ok(0x1240),
            "new" => Err(LookupError::NotUnique(2)),
            _ => Err(LookupError::NotFound),
        }
    }

    fn program_address(&self, _path: &str, offset: u64) -> Option<u64> {
        (0x1000..0x3000)
            .contains(&offset)
            .then_some(0x40_0000 + offset)
    }

    fn address_in_module(&self, module: &str, name: &str) -> Result<Option<u64>, LookupError> {
        match (module, name) {
            ("loaded", "start") => Ok(Some(0xffff_9000_0000_0000)),
            ("loaded", _) => Err(LookupError::NotFound),
            _ => Ok(None),
        }
    }
}
