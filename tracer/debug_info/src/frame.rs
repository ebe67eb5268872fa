//! Call frames: where the frame of a function is at each of its instructions.
//!
//! DWARF names places in a frame by the frame base, which is a register of the function's *body*:
//! the frame pointer, or the stack pointer once it has moved down. At the first instructions the
//! base is not there yet. What it is going to be follows from the unwind information, which says at
//! each instruction how far the address above the return address is from a register.
//!
//! A file may come without that information. Then the frame pointer is known where it is set up.

use gimli::{BaseAddresses, CfaRule, DebugFrame, EhFrame, UnwindContext, UnwindSection};
use trace_interface::symbols::{Expression, Register};

use crate::{
    image::{Image, Slice},
    value,
};

/// The address that a frame is named by, the one above the return address, as a register and an
/// offset, in a range of addresses.
#[derive(Clone, Debug)]
struct Row {
    start: u64,
    end: u64,
    register: Option<Register>,
    offset: i64,
}

/// The expressions of frame bases that compilers write.
const FRAME_POINTER: [u8; 1] = [gimli::DW_OP_reg6.0];
const STACK_POINTER: [u8; 1] = [gimli::DW_OP_reg7.0];
const ABOVE_RETURN: [u8; 1] = [gimli::DW_OP_call_frame_cfa.0];

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    rows: Vec<Row>,
}

impl Frames {
    /// Those of the function at an address.
    pub fn read(image: &Image, address: u64) -> Self {
        let bases = BaseAddresses::default()
            .set_eh_frame(image.section_at(".eh_frame").0)
            .set_text(image.section_at(".text").0);
        let eh_frame = EhFrame::new(image.section(".eh_frame"), gimli::LittleEndian);
        let mut debug_frame = DebugFrame::new(image.section(".debug_frame"), gimli::LittleEndian);
        debug_frame.set_address_size(8);
        read(&eh_frame, &bases, address)
            .or_else(|| read(&debug_frame, &bases, address))
            .unwrap_or_default()
    }

    fn row(&self, address: u64) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.start <= address && address < row.end)
    }

    /// The address above the return address, at an instruction.
    fn above_return(&self, address: u64) -> Option<(Register, i64)> {
        let row = self.row(address)?;
        Some((row.register?, row.offset))
    }

    /// The function's frame base, at any of its instructions.
    pub fn base(
        &self,
        frame_base: Option<&[u8]>,
        address: u64,
        moment: value::Moment,
    ) -> Option<Expression> {
        if frame_base? == FRAME_POINTER {
            self.frame_pointer(address, moment)
        } else if frame_base? == STACK_POINTER {
            self.stack_pointer(address, moment)
        } else if frame_base? == ABOVE_RETURN {
            let (register, offset) = self.above_return(address)?;
            Some(value::plus(moment.register(register), offset))
        } else {
            None
        }
    }

    /// Where the first word above the return address is in the function's body: the register of the
    /// frame base, if it is one, and the offset from the frame base.
    pub fn first_argument(&self, frame_base: Option<&[u8]>) -> Option<(Option<Register>, i64)> {
        let base = frame_base?;
        if base == ABOVE_RETURN {
            return Some((None, 0));
        }
        let register = match base {
            _ if base == FRAME_POINTER => Register::Bp,
            _ if base == STACK_POINTER => Register::Sp,
            _ => return None,
        };
        let by_register = self
            .rows
            .iter()
            .filter(|row| row.register == Some(register));
        Some((Some(register), by_register.map(|row| row.offset).max()?))
    }

    /// Whether a place is in the function's own frame, not above its return address.
    pub fn is_own(&self, frame_base: Option<&[u8]>, offset: i64) -> bool {
        let first = self.first_argument(frame_base).map_or(8, |(_, at)| at);
        offset < first - 8
    }

    /// Whether a register is the frame base at an instruction that uses it for a place in the
    /// frame. The stack pointer is so only in the function's body. For the frame pointer, nothing
    /// need be known of the frame.
    pub fn is_base(&self, frame_base: Option<&[u8]>, register: Register, address: u64) -> bool {
        if register == Register::Bp {
            return frame_base == Some(&FRAME_POINTER);
        }
        let body = self.first_argument(frame_base);
        body.is_some_and(|(base, first)| {
            base == Some(register) && self.above_return(address) == Some((register, first))
        })
    }

    /// The stack pointer that the function has in its body, where its frame is largest.
    fn stack_pointer(&self, address: u64, moment: value::Moment) -> Option<Expression> {
        let by_stack = |row: &Row| row.register == Some(Register::Sp);
        if !self.rows.iter().all(by_stack) {
            return None;
        }
        let body = self.rows.iter().map(|row| row.offset).max()?;
        let (register, offset) = self.above_return(address)?;
        Some(value::plus(moment.register(register), offset - body))
    }

    /// The frame pointer that the function has in its body, at any of its instructions: at the
    /// first ones it is another function's still.
    pub fn frame_pointer(&self, address: u64, moment: value::Moment) -> Option<Expression> {
        let body = |row: &&Row| row.register == Some(Register::Bp);
        let body = self.rows.iter().find(body)?.offset;
        let (register, offset) = self.above_return(address)?;
        Some(value::plus(moment.register(register), offset - body))
    }
}

fn read<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    address: u64,
) -> Option<Frames> {
    let description = section
        .fde_for_address(bases, address, S::cie_from_offset)
        .ok()?;
    let mut context = UnwindContext::new();
    let mut table = description.rows(section, bases, &mut context).ok()?;
    let mut rows = Vec::new();
    while let Ok(Some(row)) = table.next_row() {
        let (register, offset) = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                (value::register(register.0).ok(), *offset)
            }
            CfaRule::Expression(_) => (None, 0),
        };
        rows.push(Row {
            start: row.start_address(),
            end: row.end_address(),
            register,
            offset,
        });
    }
    Some(Frames { rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_argument_on_the_stack_is_above_the_largest_frame() {
        let row = |register, offset| Row {
            start: 0,
            end: 1,
            register: Some(register),
            offset,
        };
        let with_frame = [(Register::Sp, 8), (Register::Sp, 16), (Register::Bp, 16)];
        let without_frame = [(Register::Sp, 8), (Register::Sp, 32), (Register::Sp, 8)];
        let first = |rows: [(Register, i64); 3], base: &[u8]| {
            let rows = rows
                .into_iter()
                .map(|(register, offset)| row(register, offset));
            let rows = rows.collect();
            Frames { rows }.first_argument(Some(base))
        };
        assert_eq!(
            first(with_frame, &FRAME_POINTER),
            Some((Some(Register::Bp), 16))
        );
        assert_eq!(
            first(without_frame, &STACK_POINTER),
            Some((Some(Register::Sp), 32))
        );
        assert_eq!(first(without_frame, &FRAME_POINTER), None);
        assert_eq!(first(with_frame, &ABOVE_RETURN), Some((None, 0)));
        assert_eq!(first(with_frame, &[gimli::DW_OP_reg5.0]), None);
    }

    /// The word above the return address is at 1000, wherever the stack pointer is.
    #[test]
    fn the_frame_base_is_one_place_at_all_instructions() {
        use trace_interface::symbols::Operation;
        const WITH_FRAME: [(Register, i64); 3] =
            [(Register::Sp, 8), (Register::Sp, 16), (Register::Bp, 16)];
        const WITHOUT_FRAME: [(Register, i64); 3] =
            [(Register::Sp, 8), (Register::Sp, 32), (Register::Sp, 8)];
        for (kinds, base, place) in [
            (WITH_FRAME, &FRAME_POINTER[..], Some(984)),
            (WITH_FRAME, &STACK_POINTER, None),
            (WITH_FRAME, &ABOVE_RETURN, Some(1000)),
            (WITHOUT_FRAME, &FRAME_POINTER, None),
            (WITHOUT_FRAME, &STACK_POINTER, Some(968)),
            (WITHOUT_FRAME, &ABOVE_RETURN, Some(1000)),
            (WITH_FRAME, &[gimli::DW_OP_reg5.0], None),
            (WITH_FRAME, &[], None),
        ] {
            let rows = kinds.into_iter().zip(0..);
            let rows = rows.map(|((register, offset), start)| Row {
                start,
                end: start + 1,
                register: Some(register),
                offset,
            });
            let frames = Frames {
                rows: rows.collect(),
            };
            for (address, (register, offset)) in (0..).zip(kinds) {
                let found = frames.base(Some(base), address, value::Moment::Inside);
                let found = found.map(|of| match of {
                    Expression::Register(of) if of == register => 1000 - offset,
                    Expression::Binary(Operation::Add, a, b) => match (*a, *b) {
                        (Expression::Register(of), Expression::Constant(b)) if of == register => {
                            1000 - offset + b.cast_signed()
                        }
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                });
                assert_eq!(found, place, "{base:?} at {address} of {kinds:?}");
            }
            assert!(frames.base(Some(base), 3, value::Moment::Inside).is_none());
            assert!(frames.base(None, 0, value::Moment::Inside).is_none());
        }
    }

    /// Programs may come without unwind information.
    #[test]
    fn the_frame_pointer_is_a_base_where_nothing_is_known_of_the_frame() {
        let unknown = Frames::default();
        assert!(unknown.is_base(Some(&FRAME_POINTER), Register::Bp, 0));
        assert!(!unknown.is_base(Some(&STACK_POINTER), Register::Bp, 0));
        assert!(!unknown.is_base(Some(&STACK_POINTER), Register::Sp, 0));
        assert!(!unknown.is_base(None, Register::Bp, 0));
    }
}
