//! One step up the stack: from the registers of a function to those of its caller, by call frame
//! information (DWARF 5, 6.4, and the `.eh_frame` variant of it in the Linux Standard Base).
//!
//! The compiler describes for each instruction of a function where its caller's registers are. So
//! the step is right from any instruction: before the frame is set up, in a function without a
//! frame, and while the frame is taken down. Frame pointers alone lose the caller there.
//!
//! # Sources of the information
//! - `.eh_frame`, with the sorted table `.eh_frame_hdr`: code that is compiled with unwind tables.
//! - `.debug_frame`: the ready-made `core` and `alloc` of the toolchain, which have nothing else.
//!   It is not loaded and has no table; [`Tables::new`] sorts one.
//!
//! # Two kinds of frames
//! The address of a *called* frame is a return address. It belongs to the call before it: after a
//! call that never returns it may lie in the next function. The address of an *interrupted* frame
//! (an exception, an interrupt, a probe hit) is that of the instruction itself. A frame above a
//! signal frame is interrupted. If it has been saved with the selector of code in ring 3, it is not
//! there: its address may be any, also one of the kernel, and nothing of its stack may be read.
//!
//! Compilers still say that a register is saved on the stack after it has been popped. This cannot
//! happen in a called frame. In an interrupted one, the stack below the stack pointer may be
//! overwritten already (there is no red zone), but the register has its value back. So the register
//! counts then.
//!
//! [`fast`] makes a table in advance, for walks that must cost little.
//!
//! # Contexts
//! A step works in any context, even NMI and panic, because it allocates nothing, takes no lock and
//! reads the stack through [`Memory`] only. It uses about 3 KiB of stack.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod fast;

use alloc::vec::Vec;
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, EhFrameHdr, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow,
};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Numbers of registers in call frame information (System V psABI, figure 3.36).
pub mod register {
    /// How many are followed: the general registers and the instruction pointer.
    pub const COUNT: usize = 17;
    pub const AX: usize = 0;
    pub const DX: usize = 1;
    pub const CX: usize = 2;
    pub const BX: usize = 3;
    pub const SI: usize = 4;
    pub const DI: usize = 5;
    pub const BP: usize = 6;
    pub const SP: usize = 7;
    pub const R8: usize = 8;
    pub const R9: usize = 9;
    pub const R10: usize = 10;
    pub const R11: usize = 11;
    pub const R12: usize = 12;
    pub const R13: usize = 13;
    pub const R14: usize = 14;
    pub const R15: usize = 15;
    /// The return address.
    pub const IP: usize = 16;
}
use register::{BP, COUNT, IP, SP};

/// The known registers of one function on the stack.
///
/// Registers that calls do not preserve are left over from the frames below. Only if a frame below
/// is an interruption are they right, because it has saved all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The registers by number, see [`register`].
    pub registers: [u64; COUNT],
    /// Whether the function was interrupted at its instruction pointer. Otherwise it waits there
    /// for a call to return.
    pub interrupted: bool,
}

impl Frame {
    /// The instruction pointer.
    pub const fn ip(&self) -> u64 {
        self.registers[IP]
    }

    /// The stack pointer.
    pub const fn sp(&self) -> u64 {
        self.registers[SP]
    }

    /// An address inside the frame's instruction: its own address, or the last byte of the call.
    pub const fn code_address(&self) -> u64 {
        if self.interrupted {
            self.ip()
        } else {
            self.ip().wrapping_sub(1)
        }
    }
}

/// Reads stacks.
pub trait Memory {
    /// The word at `address`, or `None` where there is no stack.
    fn read(&self, address: u64) -> Option<u64>;
}

/// Why there is no further frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The function has no caller, or it serves ring 3.
    Outermost,
    /// Nothing describes the code at this address.
    NoInformation {
        /// The address.
        code: u64,
    },
    /// The information uses something that neither the compiler nor our assembly uses.
    Unsupported {
        /// The address of the code.
        code: u64,
    },
    /// A register had to be read from an address outside the stack.
    Unreadable {
        /// The address.
        address: u64,
    },
}

/// A section as it is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Where it is.
    pub address: u64,
    /// Its contents.
    pub bytes: &'a [u8],
}

/// Whether code with this selector runs in ring 3.
pub(crate) const fn is_of_ring_3(selector: u64) -> bool {
    selector & 3 == 3
}

/// The call frame information of one linked image.
pub struct Tables<'a> {
    header: EhFrameHdr<Bytes<'a>>,
    eh_frame: EhFrame<Bytes<'a>>,
    bases: BaseAddresses,
    debug_frame: DebugFrame<Bytes<'a>>,
    /// The first address, the end and the offset of each entry of `debug_frame`, by address.
    debug_entries: Vec<(u64, u64, usize)>,
}

/// Room for the rules of one function, without allocation: one rule for each register, and rows
/// for the initial state, the current one, and one that was put aside.
struct OnStack;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); COUNT];
    type Stack = [UnwindTableRow<usize, Self>; 3];
}

impl<'a> Tables<'a> {
    /// Takes the sections of an image. `debug_frame` may be empty. Its entries for addresses that
    /// `is_text` does not accept are left out, because the linker leaves those of discarded
    /// functions in it.
    pub fn new(
        eh_frame_hdr: Section<'a>,
        eh_frame: Section<'a>,
        debug_frame: &'a [u8],
        is_text: impl Fn(u64) -> bool,
    ) -> Self {
        let mut tables = Self {
            header: EhFrameHdr::new(eh_frame_hdr.bytes, LittleEndian),
            eh_frame: EhFrame::new(eh_frame.bytes, LittleEndian),
            bases: BaseAddresses::default()
                .set_eh_frame_hdr(eh_frame_hdr.address)
                .set_eh_frame(eh_frame.address),
            debug_frame: DebugFrame::new(debug_frame, LittleEndian),
            debug_entries: Vec::new(),
        };
        let mut entries = tables.debug_frame.entries(&tables.bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            if let Ok(entry) = partial.parse(DebugFrame::cie_from_offset)
                && is_text(entry.initial_address())
            {
                tables.debug_entries.push((
                    entry.initial_address(),
                    entry.end_address(),
                    entry.offset(),
                ));
            }
        }
        tables.debug_entries.sort_unstable();
        tables
    }

    /// Whether there is information on the code at `address`.
    pub fn describes(&self, address: u64) -> bool {
        self.in_eh_frame(address).is_some() || self.in_debug_frame(address).is_some()
    }

    fn in_eh_frame(&self, address: u64) -> Option<FrameDescriptionEntry<Bytes<'a>>> {
        let header = self.header.parse(&self.bases, 8).ok()?;
        header
            .table()?
            .fde_for_address(
                &self.eh_frame,
                &self.bases,
                address,
                EhFrame::cie_from_offset,
            )
            .ok()
    }

    fn in_debug_frame(&self, address: u64) -> Option<FrameDescriptionEntry<Bytes<'a>>> {
        let after = self
            .debug_entries
            .partition_point(|&(start, ..)| start <= address);
        let &(_, end, offset) = self.debug_entries[..after].last()?;
        if address >= end {
            return None;
        }
        self.debug_frame
            .fde_from_offset(&self.bases, offset.into(), DebugFrame::cie_from_offset)
            .ok()
    }

    /// The frame of the caller, or the interrupted frame, above `frame`.
    ///
    /// # Errors
    /// [`Stop`].
    pub fn step(&self, frame: &Frame, memory: &impl Memory) -> Result<Frame, Stop> {
        let code = frame.code_address();
        let mut context = UnwindContext::<usize, OnStack>::new_in();
        let unsupported = Stop::Unsupported { code };
        let (row, is_signal_frame) = if let Some(entry) = self.in_eh_frame(code) {
            (
                entry.unwind_info_for_address(&self.eh_frame, &self.bases, &mut context, code),
                entry.is_signal_trampoline(),
            )
        } else if let Some(entry) = self.in_debug_frame(code) {
            (
                entry.unwind_info_for_address(&self.debug_frame, &self.bases, &mut context, code),
                entry.is_signal_trampoline(),
            )
        } else {
            return Err(Stop::NoInformation { code });
        };
        let row = row.map_err(|_| unsupported)?;

        let value = |register: Register| frame.registers.get(usize::from(register.0)).copied();
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
            return Err(unsupported);
        };
        let cfa = value(register)
            .ok_or(unsupported)?
            .wrapping_add_signed(offset);

        let mut caller = Frame {
            registers: frame.registers,
            interrupted: is_signal_frame,
        };
        // The caller's stack pointer is the CFA by definition, unless a rule says otherwise.
        caller.registers[SP] = cfa;
        for &(register, ref rule) in row.registers() {
            let Some(register_value) = caller.registers.get_mut(usize::from(register.0)) else {
                continue;
            };
            *register_value = match *rule {
                RegisterRule::Undefined if usize::from(register.0) == IP => {
                    return Err(Stop::Outermost);
                }
                RegisterRule::Undefined => continue,
                RegisterRule::SameValue => frame.registers[usize::from(register.0)],
                RegisterRule::Offset(offset) => {
                    let slot = cfa.wrapping_add_signed(offset);
                    if is_signal_frame && usize::from(register.0) == IP {
                        // The processor has stored the selector above the address.
                        let selector = slot.wrapping_add(8);
                        if selector >= frame.sp() && memory.read(selector).is_some_and(is_of_ring_3)
                        {
                            return Err(Stop::Outermost);
                        }
                    }
                    if frame.interrupted && slot < frame.sp() {
                        frame.registers[usize::from(register.0)]
                    } else {
                        memory
                            .read(slot)
                            .ok_or(Stop::Unreadable { address: slot })?
                    }
                }
                RegisterRule::ValOffset(offset) => cfa.wrapping_add_signed(offset),
                RegisterRule::Register(other) => value(other).ok_or(unsupported)?,
                _ => return Err(unsupported),
            };
        }
        Ok(caller)
    }

    /// The frame above `frame` by the frame pointer alone, for code without call frame information.
    ///
    /// It is wrong if that code does not keep a frame pointer. So it suits a called frame, but
    /// hardly an interrupted one.
    pub fn step_by_frame_pointer(frame: &Frame, memory: &impl Memory) -> Result<Frame, Stop> {
        let bp = frame.registers[BP];
        let read = |address| memory.read(address).ok_or(Stop::Unreadable { address });
        if bp < frame.sp() {
            return Err(Stop::Outermost);
        }
        let mut caller = *frame;
        caller.registers[BP] = read(bp)?;
        caller.registers[IP] = read(bp.wrapping_add(8))?;
        caller.registers[SP] = bp.wrapping_add(16);
        caller.interrupted = false;
        Ok(caller)
    }
}
