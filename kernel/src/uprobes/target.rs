//! From a place in a file to the instruction there: what is probed, and whether it may be.
//!
//! A probe that names a function finds it in the file's symbol table. The table also says where the
//! function of an offset begins, so the address is found to be an instruction's start by decoding
//! from there. In a file without symbols only the bytes at the address can be judged.
//!
//! # Contexts
//! Task context, may sleep: files are read.

use alloc::{string::String, vec::Vec};
use core::ops::Range;

use ::probes::insn::{
    BoundaryError, BoundaryWalk, Ending, Insn, MAX_INSN_BYTES, Refusal, decode, translate,
};
use abi::open;
use elf_program::{Executable, Segment, Symbol};
use fallible::{collected, copied};

use super::{
    common::UserPlace,
    error::UprobeError,
    space::{Displaced, How},
};
use crate::{
    errno::Errno,
    fs::{self, File, FileKind, NodeRef},
    mm::{frame::FRAME_SIZE, paging::USER_END, shared::try_vec, user_space::USER_START},
    probes::{Watchpoint, watch_scopes},
};

/// An instruction of a program's file.
pub(super) struct Target {
    pub(super) node: NodeRef,
    /// Where it is in the file.
    pub(super) offset: u64,
    pub(super) displaced: Displaced,
    /// Its address in the program.
    address: u64,
    /// The start of the function that has it, if the symbols say.
    function: Option<u64>,
    /// Whether the program begins there.
    is_entry_point: bool,
}

impl Target {
    /// Refuses a place that no return probe can have.
    pub(super) fn permit_return(&self) -> Result<(), UprobeError> {
        match self.function {
            _ if self.is_entry_point => Err(UprobeError::EntryPoint),
            Some(entry) if entry != self.address => Err(UprobeError::NotFunctionEntry { entry }),
            _ => Ok(()),
        }
    }
}

/// The whole content of a file.
fn content(file: &File) -> Result<Vec<u8>, UprobeError> {
    let failed = |errno| UprobeError::File { errno };
    let size = file.attributes().map_err(failed)?.size as usize;
    let mut bytes = try_vec(size)?;
    bytes.resize(size, 0);
    let mut done = 0;
    while done < size {
        match file
            .read_at(done as u64, &mut bytes[done..])
            .map_err(failed)?
        {
            // It has become shorter.
            0 => bytes.truncate(done),
            read => done += read,
        }
        if bytes.len() == done {
            break;
        }
    }
    Ok(bytes)
}

/// Whether `name` is a name of `symbol`.
fn is_called(symbol: &Symbol<'_>, name: &str) -> bool {
    symbol.name == name || {
        let demangled = rustc_demangle::demangle(symbol.name);
        is_text_of(&format_args!("{demangled:#}"), name)
            || is_text_of(&format_args!("{demangled}"), name)
    }
}

/// Whether `value` is printed as `text`, without memory.
fn is_text_of(value: &dyn core::fmt::Display, text: &str) -> bool {
    struct Rest<'a>(&'a str);
    impl core::fmt::Write for Rest<'_> {
        fn write_str(&mut self, piece: &str) -> core::fmt::Result {
            self.0 = self.0.strip_prefix(piece).ok_or(core::fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    core::fmt::write(&mut rest, format_args!("{value}")).is_ok() && rest.0.is_empty()
}

/// A program's file that was read.
struct ProgramFile {
    path: String,
    node: NodeRef,
    bytes: Vec<u8>,
    program: Executable,
    /// The addresses of its functions, in ascending order.
    functions: Vec<Range<u64>>,
    /// The last one that was looked into, and how far. Places in ascending order cost one decoding.
    walk: (u64, BoundaryWalk),
}

impl ProgramFile {
    fn read(path: &str) -> Result<Self, UprobeError> {
        let failed = |errno| UprobeError::File { errno };
        let root = NodeRef::root();
        let file = File::open(&root, path.as_bytes(), open::RDONLY, 0).map_err(failed)?;
        file.permit_execution().map_err(failed)?;
        let bytes = content(&file)?;
        let start = &bytes[..bytes.len().min(FRAME_SIZE)];
        let program =
            Executable::parse(start, USER_START..USER_END).map_err(|reason| match reason {
                elf_program::Error::OutOfMemory => UprobeError::OutOfMemory,
                reason => UprobeError::NotProgram { reason },
            })?;
        let ranges = elf_program::functions(&bytes)
            .map(|function| function.start..function.start.saturating_add(function.size));
        let mut functions = collected(ranges.filter(|range| !range.is_empty()))?;
        functions.sort_unstable_by_key(|range| range.start);
        Ok(Self {
            path: copied(path)?,
            node: file.node().clone(),
            program,
            functions,
            bytes,
            walk: (0, BoundaryWalk::new()),
        })
    }

    /// The function called `name`.
    fn function(&self, name: &str) -> Result<Symbol<'_>, UprobeError> {
        self.symbol(elf_program::functions(&self.bytes), name)
    }

    /// The one of `all` that is called `name`.
    fn symbol<'a>(
        &self,
        all: impl Iterator<Item = Symbol<'a>>,
        name: &str,
    ) -> Result<Symbol<'a>, UprobeError> {
        let mut found: Option<Symbol<'_>> = None;
        for symbol in all.filter(|symbol| is_called(symbol, name)) {
            if symbol.name == name {
                return Ok(symbol);
            }
            if found.is_some_and(|found| found.start != symbol.start) {
                return Err(UprobeError::AmbiguousSymbol {
                    name: copied(name)?,
                });
            }
            found = Some(symbol);
        }
        match found {
            Some(symbol) => Ok(symbol),
            None => Err(UprobeError::UnknownSymbol {
                name: copied(name)?,
                stripped: self.functions.is_empty(),
            }),
        }
    }

    /// The offset of a place in the file.
    fn offset(&self, place: &UserPlace) -> Result<u64, UprobeError> {
        let Some(name) = &place.symbol else {
            return Ok(place.offset);
        };
        let function = self.function(name)?;
        if place.offset >= function.size.max(1) {
            return Err(UprobeError::OffsetTooLarge {
                size: function.size,
            });
        }
        let start = self.program.code_offset(function.start);
        let start = start.ok_or(UprobeError::NotText { offset: 0 })?;
        Ok(start + place.offset)
    }

    /// Refuses a reference counter that is no aligned word of the program's data.
    fn permit_counter(&self, counter: u64) -> Result<(), UprobeError> {
        let has_it = |segment: &Segment| {
            segment.access.write
                && counter.wrapping_sub(segment.file_offset) < segment.file_bytes
                && (segment.memory.start + (counter - segment.file_offset)).is_multiple_of(2)
        };
        match self.program.segments.iter().any(has_it) {
            true => Ok(()),
            false => Err(UprobeError::NotCounter { offset: counter }),
        }
    }

    /// The function that has `address`.
    fn function_at(&self, address: u64) -> Option<Range<u64>> {
        let after = self
            .functions
            .partition_point(|range| range.start <= address);
        let nearest = self.functions[..after].last()?;
        nearest.contains(&address).then(|| nearest.clone())
    }

    fn resolve(&mut self, place: &UserPlace) -> Result<Target, UprobeError> {
        let offset = self.offset(place)?;
        let address = self.program.code_address(offset);
        let address = address.ok_or(UprobeError::NotText { offset })?;
        if let Some(counter) = place.reference_counter {
            self.permit_counter(counter)?;
        }
        let function = self.function_at(address);
        let insn = self.instruction(function.as_ref(), offset, address)?;
        let start = function.map(|function| function.start);
        // Nothing has called that.
        let is_entry_point = address == self.program.entry;
        let begins_function = start == Some(address) && !is_entry_point;
        Ok(Target {
            node: self.node.clone(),
            offset,
            address,
            displaced: displaced(&insn, begins_function)?,
            function: start,
            is_entry_point,
        })
    }

    /// The instruction at `address`.
    fn instruction(
        &mut self,
        function: Option<&Range<u64>>,
        offset: u64,
        addr: u64,
    ) -> Result<Insn, UprobeError> {
        let undecodable = |cause| UprobeError::Undecodable { addr, cause };
        if let Some(function) = function
            && let Some(start) = self.program.code_offset(function.start)
        {
            if self.walk.0 != function.start {
                self.walk = (function.start, BoundaryWalk::new());
            }
            let code = part(&self.bytes, start, function.end - function.start);
            return match self.walk.1.find(code, function.start, addr) {
                Ok(insn) => Ok(*insn),
                Err(BoundaryError::MidInstruction { start }) => {
                    Err(UprobeError::MidInstruction { addr, start })
                }
                Err(BoundaryError::Undecodable(cause)) => Err(undecodable(cause)),
            };
        }
        decode(part(&self.bytes, offset, MAX_INSN_BYTES as u64), addr).map_err(undecodable)
    }
}

/// The bytes of a file from `offset` on, at most `most`.
fn part(bytes: &[u8], offset: u64, most: u64) -> &[u8] {
    let start = offset as usize;
    let end = start.saturating_add(most as usize).min(bytes.len());
    bytes.get(start..end).unwrap_or_default()
}

/// Files of programs, each read once for the probes of a batch that follow one another.
#[derive(Default)]
pub(super) struct Files {
    last: Option<ProgramFile>,
}

impl Files {
    /// Finds the instruction at `place`, and refuses it if it cannot be probed.
    pub(super) fn resolve(&mut self, place: &UserPlace) -> Result<Target, UprobeError> {
        let file = match self.last.take() {
            Some(file) if file.path == place.path => file,
            _ => ProgramFile::read(&place.path)?,
        };
        self.last.insert(file).resolve(place)
    }
}

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The instruction `popfq`.
const POPFQ: [u8; 1] = [0x9d];

/// How `insn` is carried out at a hit.
fn displaced(insn: &Insn, begins_function: bool) -> Result<Displaced, UprobeError> {
    let how = if insn.bytes() == SYSCALL {
        How::SystemCall
    } else {
        let refused = |refusal| UprobeError::Instruction {
            addr: insn.ip(),
            refusal,
        };
        translate(insn, insn.ip(), Ending::Resume).map_err(refused)?;
        match insn.bytes() == POPFQ {
            true => How::PopFlags,
            false => How::InSlot,
        }
    };
    let mut bytes = [0; MAX_INSN_BYTES];
    bytes[..insn.len()].copy_from_slice(insn.bytes());
    Ok(Displaced {
        bytes,
        len: insn.len() as u8,
        how,
        begins_function,
    })
}

/// The replacement of a displaced instruction, for the address `addr` of a program and the slot at
/// `slot`.
pub(super) fn replacement(
    displaced: &Displaced,
    addr: u64,
    slot: u64,
) -> Result<::probes::insn::Translation, UprobeError> {
    let insn = decode(displaced.bytes(), addr)
        .map_err(|cause| UprobeError::Undecodable { addr, cause })?;
    translate(&insn, slot, Ending::Resume).map_err(|refusal| match refusal {
        Refusal::DisplacementRange => UprobeError::NoRoom,
        refusal => UprobeError::Instruction { addr, refusal },
    })
}

/// Whether there is a regular file at `path`.
///
/// # Errors
/// ENOENT and others of the file system, EINVAL if it is no regular file.
pub fn check_file(path: &str) -> Result<(), Errno> {
    match fs::attributes(&NodeRef::root(), path.as_bytes())?.kind {
        FileKind::Regular => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// The offset in the file of the program at `path` at which the function called `name` begins.
///
/// # Errors
/// [`UprobeError`].
pub fn function_offset(path: &str, name: &str) -> Result<u64, UprobeError> {
    let file = ProgramFile::read(path)?;
    let start = file.function(name)?.start;
    let offset = file.program.code_offset(start);
    offset.ok_or(UprobeError::NotText { offset: 0 })
}

/// A watchpoint for the static called `name` in all processes that run the program at `path`, those
/// included that start later. It watches for writes of the whole static if that has 1, 2, 4 or 8
/// bytes, else of its first 8.
///
/// # Errors
/// [`UprobeError`].
pub fn watchpoint(path: &str, name: &str) -> Result<Watchpoint, UprobeError> {
    let file = ProgramFile::read(path)?;
    let object = file.symbol(elf_program::objects(&file.bytes), name)?;
    let len = match object.size {
        size @ (1 | 2 | 4) => size as u8,
        _ => 8,
    };
    let scope = watch_scopes::programs_of(&file.node);
    Ok(Watchpoint::new()
        .at(object.start)
        .len(len)
        .in_programs(scope))
}

/// The address at which the program at `path` has the byte at `offset` of its file.
pub fn address_in_memory(path: &str, offset: u64) -> Option<u64> {
    let file = ProgramFile::read(path).ok()?;
    let has_it = |segment: &&Segment| offset.wrapping_sub(segment.file_offset) < segment.file_bytes;
    let segment = file.program.segments.iter().find(has_it)?;
    Some(segment.memory.start + (offset - segment.file_offset))
}
