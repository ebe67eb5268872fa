//! Compiles histograms to instructions.
//!
//! A hit builds the packed key on the stack and adds to its entry:
//!
//! ```text
//!   filter ─► keys, values to the stack ─► AddByKey ─► look up, add the values ─► end
//!      └─► end                                └─► no room: count the drop ─► end
//! ```
//!
//! All the stack that it uses lies in the 128 bytes that a filter has for strings, because the
//! filter has finished with them.

use fallible::{OutOfMemory, copied, written};

use bpf::{
    AluOp, AtomicOp, Builder, Condition, Helper, Insn, Label, MapDef, MapIndex, Operand, Reg, Size,
    Width as Bits,
};

use super::{Column, Hist, KEY_BYTES, Modifier, Source};
use crate::{
    field::Width,
    filter::{COMM_BYTES, CompileError, Frame, Load, Loaded, load_number},
};

/// The offsets of the values and of a task's name, from the beginning of the packed key.
const VALUES: i16 = KEY_BYTES as i16;
const COMM: i16 = VALUES + 8 * Hist::MOST_VALUES as i16;
const _: () = assert!(COMM + COMM_BYTES <= Frame::TEXT_BYTES);

/// The text in a key for a string that could not be read: 8 bytes with the NUL.
const UNREAD: [u8; 8] = *b"(fault)\0";

/// The maps of a histogram in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maps {
    pub table: MapIndex,
    /// Counts at index 0 the hits that found no room.
    pub drops: MapIndex,
    pub stacks: Option<MapIndex>,
}

impl Hist {
    /// Adds its maps to the program: `NAME`, `NAME.drops` and, if need be, `NAME.stacks`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_maps(&self, builder: &mut Builder, name: &str) -> Result<Maps, OutOfMemory> {
        let drops = written(&format_args!("{name}.drops"))?;
        let stacks = written(&format_args!("{name}.stacks"))?;
        Ok(Maps {
            table: builder.map(self.table_map(copied(name)?)),
            drops: builder.map(MapDef::counters(drops, 1)),
            stacks: self.stacks_map(stacks).map(|map| builder.map(map)),
        })
    }

    /// Appends instructions that count the hit, if the filter keeps it. All paths fall through.
    /// `context` holds the program's context and stays as it is; it is one of `r6` to `r9`.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn compile(
        &self,
        builder: &mut Builder,
        frame: Frame,
        context: Reg,
        maps: Maps,
        load: &mut Load<'_>,
    ) -> Result<(), CompileError> {
        let end = builder.label();
        if let Some(filter) = &self.filter {
            filter.compile(builder, frame, end, load)?;
        }
        let mut emitter = Emitter {
            builder,
            frame,
            context,
            maps,
            load,
        };
        if self.is_log2_array() {
            emitter.number(&self.keys[0])?;
            emitter
                .builder
                .mov(Reg::R2, Reg::R0)
                .load_map(Reg::R1, maps.table)
                .mov(Reg::R3, 1)
                .call(Helper::Add);
        } else {
            emitter.entry(self, end)?;
        }
        builder.place(end);
        Ok(())
    }
}

struct Emitter<'b, 'l> {
    builder: &'b mut Builder,
    frame: Frame,
    context: Reg,
    maps: Maps,
    load: &'b mut Load<'l>,
}

impl Emitter<'_, '_> {
    fn entry(&mut self, hist: &Hist, end: Label) -> Result<(), CompileError> {
        for (key, (offset, size)) in hist.keys.iter().zip(hist.key_places()) {
            let at = self.frame.text + offset as i16;
            match &key.source {
                Source::Stack => {
                    let Some(stacks) = self.maps.stacks else {
                        return Err(CompileError::Mismatch);
                    };
                    self.builder
                        .mov(Reg::R1, self.context)
                        .load_map(Reg::R2, stacks)
                        .mov(Reg::R3, 0)
                        .call(Helper::StackId)
                        .store(Reg::R10, at, Size::B8, Reg::R0);
                }
                source if source.is_text() => self.text(source, at, size as i16)?,
                _ => {
                    let register = self.number(key)?;
                    self.builder.store(Reg::R10, at, Size::B8, register);
                }
            }
        }
        for (value, at) in hist
            .values
            .iter()
            .zip((self.frame.text + VALUES..).step_by(8))
        {
            let register = self.number(value)?;
            self.builder.store(Reg::R10, at, Size::B8, register);
        }
        let goes_on = !hist.values.is_empty() || hist.has_exec_name();
        let added = if goes_on { self.builder.label() } else { end };
        self.table_and_key();
        self.builder
            .mov(Reg::R3, 1)
            .call(Helper::AddByKey)
            .branch(Condition::Equal, Reg::R0, 0, added)
            .add(self.maps.drops, 0, 1);
        if goes_on {
            self.builder.jump(end).place(added);
            self.look_up(end);
        }
        for index in 0..hist.values.len() as i16 {
            let at = self.frame.text + VALUES + 8 * index;
            self.builder
                .load(Reg::R1, Reg::R10, at, Size::B8)
                .push(Insn::Atomic {
                    op: AtomicOp::Add { fetch: false },
                    base: Reg::R0,
                    offset: 8 * (1 + index),
                    size: Size::B8,
                    reg: Reg::R1,
                });
        }
        if hist.has_exec_name() {
            self.exec_name(hist.exec_name_offset() as i16, end);
        }
        Ok(())
    }

    /// `r1 = ` the table, `r2 = ` the key.
    fn table_and_key(&mut self) {
        self.builder.load_map(Reg::R1, self.maps.table);
        self.address(Reg::R2, self.frame.text);
    }

    /// `r0 = ` the value of the key.
    fn look_up(&mut self, end: Label) {
        self.table_and_key();
        self.builder
            .call(Helper::MapLookup)
            .branch(Condition::Equal, Reg::R0, 0, end);
    }

    /// Stores the name of the task in the value, `r0`, if it has none yet.
    fn exec_name(&mut self, offset: i16, end: Label) {
        let at = self.frame.text + COMM;
        self.builder
            .load(Reg::R1, Reg::R0, offset, Size::B8)
            .branch(Condition::NotEqual, Reg::R1, 0, end);
        self.address(Reg::R1, at);
        self.builder
            .mov(Reg::R2, i32::from(COMM_BYTES))
            .call(Helper::Comm);
        // The call has lost the value.
        self.look_up(end);
        for part in (0..COMM_BYTES).step_by(8) {
            self.builder
                .load(Reg::R1, Reg::R10, at + part, Size::B8)
                .store(Reg::R0, offset + part, Size::B8, Reg::R1);
        }
    }

    fn address(&mut self, dst: Reg, offset: i16) {
        self.builder
            .mov(dst, Reg::R10)
            .alu(AluOp::Add, dst, i32::from(offset));
    }

    /// Puts a string into the key.
    fn text(&mut self, source: &Source, at: i16, size: i16) -> Result<(), CompileError> {
        let loaded = match source {
            Source::Field(field) => (self.load)(self.builder, field, self.frame.value)?,
            _ => Loaded::Comm,
        };
        let helper = match loaded {
            Loaded::Number => return Err(CompileError::Mismatch),
            Loaded::Constant(text) => {
                self.constant(text, at, size);
                return Ok(());
            }
            Loaded::Comm => Helper::Comm,
            Loaded::KernelText => Helper::ReadKernelStr,
            Loaded::UserText => Helper::ReadUserStr,
        };
        self.address(Reg::R1, at);
        self.builder.mov(Reg::R2, i32::from(size));
        if helper == Helper::Comm {
            self.builder.call(helper);
            return Ok(());
        }
        let read = self.builder.label();
        self.builder
            .mov(Reg::R3, self.frame.value)
            .call(helper)
            .branch(Condition::GreaterOrEqual, Reg::R0, 0, read)
            .set(Reg::R0, i64::from_le_bytes(UNREAD))
            .store(Reg::R10, at, Size::B8, Reg::R0)
            .place(read);
        Ok(())
    }

    fn constant(&mut self, text: &[u8], at: i16, size: i16) {
        let mut bytes = [0; KEY_BYTES];
        let len = text.len().min(size as usize - 1);
        bytes[..len].copy_from_slice(&text[..len]);
        let bytes = &bytes[..size as usize];
        for (word, at) in bytes.as_chunks::<8>().0.iter().zip((at..).step_by(8)) {
            self.builder.set(Reg::R0, i64::from_le_bytes(*word)).store(
                Reg::R10,
                at,
                Size::B8,
                Reg::R0,
            );
        }
    }

    /// Puts a number, grouped as its modifier says, into the register that it returns.
    fn number(&mut self, column: &Column) -> Result<Reg, CompileError> {
        let value = match &column.source {
            Source::Cpu => {
                self.builder.call(Helper::CpuId);
                Reg::R0
            }
            Source::Field(field) => {
                load_number(self.builder, field, self.frame.value, self.load)?;
                self.frame.value
            }
            Source::HitCount => {
                self.builder.mov(Reg::R0, 1);
                return Ok(Reg::R0);
            }
            Source::Comm | Source::Stack => return Err(CompileError::Mismatch),
        };
        let Some((width, signed)) = column.source.number() else {
            return Err(CompileError::Mismatch);
        };
        self.widen(value, width, signed);
        match column.modifier {
            Modifier::Log2 => {
                // The bucket of the helper holds the numbers below a power of two; that of Linux
                // holds the power itself, too. 0 and 1 are one bucket in Linux.
                let zero = self.builder.label();
                self.builder
                    .mov(Reg::R1, value)
                    .branch(Condition::Equal, Reg::R1, 0, zero)
                    .alu(AluOp::Sub, Reg::R1, 1)
                    .place(zero)
                    .call(Helper::Log2);
                return Ok(Reg::R0);
            }
            Modifier::Buckets(size) => {
                let operand = match i32::try_from(size) {
                    Ok(size) => Operand::Imm(size),
                    Err(_) => {
                        self.builder.set(Reg::R1, size as i64);
                        Operand::Reg(Reg::R1)
                    }
                };
                self.builder
                    .alu(AluOp::Div, value, operand)
                    .alu(AluOp::Mul, value, operand);
            }
            _ => {}
        }
        Ok(value)
    }

    /// Widens a number to 64 bits.
    fn widen(&mut self, register: Reg, width: Width, signed: bool) {
        match (width, signed) {
            (Width::W64, _) => {}
            (_, true) => {
                self.builder.push(Insn::SignExtend {
                    width: Bits::W64,
                    bits: width.bits() as u8,
                    dst: register,
                    src: register,
                });
            }
            (Width::W32, false) => {
                self.builder.push(Insn::Alu {
                    width: Bits::W32,
                    op: AluOp::Mov,
                    dst: register,
                    operand: Operand::Reg(register),
                });
            }
            (_, false) => {
                self.builder
                    .alu(AluOp::And, register, width.truncate(u64::MAX) as i32);
            }
        }
    }
}
