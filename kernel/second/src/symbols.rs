//! The symbols of the running kernel, from the file that the boot loader has booted.
//!
//! # Contexts
//! Any, after [`init`]. Nothing changes.

use alloc::vec::Vec;
use core::{ops::Range, slice};

use bootloader_api::BootInfo;
use elf::{
    ElfBytes,
    abi::{PF_X, PT_LOAD, STT_FUNC},
    endian::LittleEndian,
};
use probes::{
    Code, ProbeError,
    insn::EntryFacts,
    platform::{Symbol, Text},
};
use spin::Once;

use crate::memory;

/// A function.
pub struct Function {
    pub name: &'static str,
    pub start: u64,
    pub size: u64,
}

struct Symbols {
    /// By address.
    functions: Vec<Function>,
    text: Range<u64>,
    notes: &'static [u8],
    slide: u64,
}

static SYMBOLS: Once<Symbols> = Once::new();

/// Reads the file. Once; there is a heap.
pub fn init(info: &BootInfo) {
    let file = memory::physical(info.kernel_addr);
    // SAFETY: the boot loader keeps the kernel's ELF file there, and nothing writes it.
    let file = unsafe { slice::from_raw_parts(file, info.kernel_len as usize) };
    let moved = info.kernel_image_offset;
    let file = ElfBytes::<LittleEndian>::minimal_parse(file).expect("it was booted");
    let table = file.symbol_table().expect("the linker wrote it");
    let (table, names) = table.expect("the kernel is not stripped");
    let functions = table
        .iter()
        .filter(|symbol| symbol.st_symtype() == STT_FUNC);
    let functions = functions.filter_map(|symbol| {
        Some(Function {
            name: names.get(symbol.st_name as usize).ok()?,
            start: moved + symbol.st_value,
            size: symbol.st_size,
        })
    });
    let mut functions: Vec<_> = functions.collect();
    functions.sort_unstable_by_key(|function| function.start);
    let notes = file.section_header_by_name(".note.gnu.build-id");
    let notes = notes.ok().flatten();
    let notes = notes.and_then(|notes| Some(file.section_data(&notes).ok()?.0));
    let notes = notes.unwrap_or_default();
    let mut segments = file.segments().expect("it was loaded").iter();
    let text = segments.find(|segment| segment.p_type == PT_LOAD && segment.p_flags & PF_X != 0);
    let text = text.expect("it has code");
    let start = moved + text.p_vaddr;
    SYMBOLS.call_once(|| Symbols {
        functions,
        text: start..start + text.p_memsz,
        notes,
        slide: moved,
    });
}

fn symbols() -> &'static Symbols {
    SYMBOLS.get().expect("`init` comes first")
}

/// What the probes and the tracer ask about them.
pub fn code() -> Option<&'static dyn Code> {
    SYMBOLS.get().map(|symbols| symbols as &dyn Code)
}

impl Code for Symbols {
    fn lookup(&self, name: &str) -> Result<u64, ProbeError> {
        let function = lookup(name).map(|function| function.start);
        function.ok_or_else(|| ProbeError::UnknownSymbol {
            name: name.into(),
            hint: "see the list of `nm`".into(),
        })
    }

    fn symbol_at(&self, addr: u64) -> Option<Symbol> {
        let function = covering(addr)?;
        Some(Symbol {
            start: function.start,
            size: function.size,
            text: Text::Kernel,
            exported: !is_mangled(function.name),
            entry: EntryFacts::UNKNOWN,
        })
    }

    fn refused(&self, addr: u64) -> Option<&'static str> {
        let probeable = (&raw const __start_probeable)..(&raw const __stop_probeable);
        let may_be = probeable.contains(&(addr as *const u8)) || is_of_self_test(addr);
        (!may_be).then_some("a hit may run through it")
    }

    fn build_id_notes(&self) -> &[u8] {
        self.notes
    }

    fn slide(&self) -> u64 {
        self.slide
    }
}

unsafe extern "C" {
    // The linker defines these for each section whose name is one of C.
    static __start_probeable: u8;
    static __stop_probeable: u8;
}

/// The function of that name.
pub fn lookup(name: &str) -> Option<&'static Function> {
    let mut functions = symbols().functions.iter();
    functions.find(|function| function.name == name)
}

/// The function that `address` is in.
pub fn covering(address: u64) -> Option<&'static Function> {
    let functions = &symbols().functions;
    let next = functions.partition_point(|function| function.start <= address);
    let found = &functions[next.checked_sub(1)?];
    (address - found.start < found.size).then_some(found)
}

/// Whether `name` is one that the compiler made for a function that is not exported by its own.
fn is_mangled(name: &str) -> bool {
    name.starts_with("_R") || name.starts_with("_ZN")
}

/// Whether `address` is in one of the functions that the probes' self-test probes.
fn is_of_self_test(address: u64) -> bool {
    covering(address).is_some_and(|function| function.name.starts_with("probes_self_test_"))
}

/// All of the kernel's code.
pub fn text() -> &'static [u8] {
    let text = symbols().text.clone();
    // SAFETY: it is mapped, and changes only where a probe comes or goes.
    unsafe { slice::from_raw_parts(text.start as *const u8, (text.end - text.start) as usize) }
}
