//! Calls of helpers: the reference of what each one does.
//!
//! Arguments are checked against [`Helper::arguments`](bpf::Helper::arguments) first, and memory
//! that a helper reads is copied. Then the helper does its work on the environment. `r1` to `r5`
//! are lost in each call.

use alloc::vec::Vec;

use bpf::{
    Argument, Helper, MOST_CHECKED, MOST_RECORD_BYTES, MapDef, MapIndex, MapKind, ProgramKind,
    errno::{E2BIG, EEXIST, EFAULT, EINVAL, ENOENT},
};

use crate::{Environment, Fault, Held, Machine, Object, Pointee, Reason, Space, Value};

/// The arguments of a call, checked.
#[derive(Default)]
struct Arguments {
    numbers: [u64; 5],
    map: Option<(MapIndex, u32)>,
    /// A call has at most one argument of each kind.
    key: Vec<u8>,
    value: Vec<u8>,
    readable: Vec<u8>,
    writable: Option<(Value, usize)>,
    record: u32,
}

impl<E: Environment + ?Sized> Machine<'_, E> {
    /// Executes a call; returns `r0`.
    pub(super) fn call(&mut self, helper: Helper) -> Result<Value, Reason> {
        self.check_kind(helper)?;
        let arguments = self.arguments(helper)?;
        let [_, second, third, fourth, _] = arguments.numbers;
        let (map, entries) = arguments.map.unwrap_or((MapIndex(0), 0));
        let number = match helper {
            Helper::MapLookup => {
                return Ok(match self.environment.lookup(map, &arguments.key) {
                    Some(number) => self.pointer(Object::Value { map, number }),
                    None => Value::number(0),
                });
            }
            Helper::MapUpdate => self.update(map, &arguments, fourth) as u64,
            Helper::MapDelete => match self.environment.remove(map, &arguments.key) {
                true => 0,
                false => ENOENT as u64,
            },
            Helper::CpuId => u64::from(self.environment.cpu()),
            Helper::PidTgid => self.environment.pid_tgid(),
            Helper::Comm => {
                let mut name = self.environment.comm();
                let (buffer, size) = arguments.writable.unwrap_or((Value::number(0), 0));
                let mut text = zeros(size)?;
                let length = size.min(name.len());
                name[length - 1] = 0;
                text[..length].copy_from_slice(&name[..length]);
                self.write(buffer, &text)?;
                0
            }
            Helper::StackId => self.environment.stack_id(map, third) as u64,
            Helper::ReadUser => self.copy(&arguments, Space::User, false)?,
            Helper::ReadKernel => self.copy(&arguments, Space::Kernel, false)?,
            Helper::ReadUserStr => self.copy(&arguments, Space::User, true)?,
            Helper::ReadKernelStr => self.copy(&arguments, Space::Kernel, true)?,
            Helper::RingReserve => return self.reserve(map, second as u32, 0, None),
            Helper::EventReserve => {
                let size = second as u32;
                let most = u64::from(MOST_RECORD_BYTES - size);
                return self.reserve(map, size, third.min(most) as u32, Some(fourth as u16));
            }
            Helper::RingSubmit | Helper::RingDiscard => {
                let held = self.held(arguments.record)?;
                let bytes = held.size + held.used;
                self.held.retain(|held| held.number != arguments.record);
                if helper == Helper::RingSubmit {
                    self.environment.submit(arguments.record, bytes);
                } else {
                    self.environment.discard(arguments.record);
                }
                0
            }
            Helper::FuncIp => self.environment.func_ip(),
            Helper::Tsc => self.environment.tsc(),
            Helper::Log2 => u64::from(64 - arguments.numbers[0].leading_zeros()),
            Helper::Add => {
                if second < u64::from(entries) {
                    let key = (second as u32).to_le_bytes();
                    if let Some(number) = self.environment.lookup(map, &key) {
                        self.add(Object::Value { map, number }, third);
                    }
                }
                0
            }
            Helper::AddByKey => {
                let found = self.environment.lookup(map, &arguments.key);
                let number = found.or_else(|| self.environment.insert(map, &arguments.key));
                match number {
                    Some(number) => {
                        self.add(Object::Value { map, number }, third);
                        0
                    }
                    None => E2BIG as u64,
                }
            }
            Helper::StrLen => self.text_length(Space::Kernel, arguments.numbers[0], second),
            Helper::UserStrLen => self.text_length(Space::User, arguments.numbers[0], second),
            Helper::AppendStr => {
                self.append_text(arguments.record, Space::Kernel, second, third)?
            }
            Helper::AppendUserStr => {
                self.append_text(arguments.record, Space::User, second, third)?
            }
            Helper::AppendBytes => {
                let left = self.left(arguments.record)?;
                let fitting = arguments.readable.len().min(left);
                self.append(arguments.record, &arguments.readable[..fitting])?
            }
            Helper::EntryData => return Ok(self.pointer(Object::EntryData)),
            Helper::ReturnAddress => self.environment.return_address(),
            Helper::Trigger => self
                .environment
                .trigger(arguments.numbers[0], second)
                .into(),
            Helper::AimWatch => self
                .environment
                .aim_watch(arguments.numbers[0], second)
                .into(),
            Helper::WatchedAddress => self.environment.watched_address(),
            Helper::TrueAddress => self.environment.true_address(arguments.numbers[0], second),
            Helper::RecordStack => {
                self.environment.record_stack(third as u8);
                0
            }
            Helper::NotRecording => self.environment.not_recording().into(),
            Helper::SumOfCpus => {
                let words = self.words_of_cpus(map, &arguments.key, third);
                words.fold(0, u64::wrapping_add)
            }
            Helper::MostOfCpus => {
                let words = self.words_of_cpus(map, &arguments.key, third);
                words.max().unwrap_or(0)
            }
            Helper::UseKey => {
                self.environment.use_key(map, &arguments.key, third);
                0
            }
            Helper::DeleteOfCpus => match self.environment.remove_everywhere(map, &arguments.key) {
                true => 0,
                false => ENOENT as u64,
            },
            Helper::CountKeys => {
                let (mut count, mut place) = (0, 0);
                while let Some((_, next)) = self.environment.next_key(map, place) {
                    (count, place) = (count + 1, next);
                }
                count
            }
            Helper::CountFrames => self.environment.count_frames(map, second),
            Helper::ReadPart => self.copy_part(&arguments, Space::Kernel)?,
            Helper::ReadUserPart => self.copy_part(&arguments, Space::User)?,
            Helper::CanRead => {
                let space = match third {
                    0 => Space::Kernel,
                    _ => Space::User,
                };
                let mut bytes = zeros(second.min(MOST_CHECKED) as usize)?;
                self.read_all(space, arguments.numbers[0], &mut bytes)
                    .is_ok()
                    .into()
            }
            Helper::NextKey => {
                let (buffer, size) = arguments.writable.unwrap_or((Value::number(0), 0));
                let mut bytes = zeros(size)?;
                let next = self.environment.next_key(map, second);
                if let Some((key, _)) = &next {
                    let fitting = key.len().min(size);
                    bytes[..fitting].copy_from_slice(&key[..fitting]);
                }
                self.write(buffer, &bytes)?;
                next.map_or(0, |(_, place)| place)
            }
        };
        Ok(Value::number(number))
    }

    fn check_kind(&self, helper: Helper) -> Result<(), Reason> {
        let fits = match helper {
            Helper::EntryData => self.program.kind != ProgramKind::Probe,
            Helper::ReturnAddress => matches!(self.program.kind, ProgramKind::Return { .. }),
            _ => true,
        };
        fits.then_some(()).ok_or(Reason::NotInThisKind(helper))
    }

    fn pointer(&self, object: Object) -> Value {
        Value {
            number: self.environment.address(object),
            to: Pointee::Object(object),
        }
    }

    /// Checks the arguments and copies those that are memory.
    fn arguments(&mut self, helper: Helper) -> Result<Arguments, Reason> {
        let mut arguments = Arguments::default();
        // The size of memory follows it, so its pointer waits for it.
        let mut waiting = None;
        let mut def: Option<&MapDef> = None;
        for (index, (register, expected)) in helper.reads().zip(helper.arguments()).enumerate() {
            let value = self.get(register)?;
            let wrong = Reason::WrongArgument {
                helper,
                register,
                expected: *expected,
            };
            arguments.numbers[index] = value.number;
            match expected {
                Argument::Context => {
                    if value.to != Pointee::Context || value.number != crate::CONTEXT_ADDRESS {
                        return Err(wrong);
                    }
                }
                Argument::Map(kinds) => {
                    let Pointee::Map(map) = value.to else {
                        return Err(wrong);
                    };
                    let found = &self.program.maps[usize::from(map.0)];
                    if !kinds.contains(&found.kind) || too_small(helper, found) {
                        return Err(wrong);
                    }
                    arguments.map = Some((map, found.entries));
                    def = Some(found);
                }
                Argument::Key => {
                    let size = def.map_or(0, |def| def.key_size);
                    arguments.key = self.copied(value, size as usize, wrong)?;
                }
                Argument::Value => {
                    let size = def.map_or(0, |def| def.value_size);
                    arguments.value = self.copied(value, size as usize, wrong)?;
                }
                Argument::Readable | Argument::Writable => {
                    waiting = Some((value, *expected, register));
                }
                Argument::SizeOfIt => {
                    let Some((pointer, of, register)) = waiting.take() else {
                        return Err(wrong);
                    };
                    let size = usize::try_from(value.number).map_err(|_| wrong)?;
                    if size == 0 {
                        return Err(wrong);
                    }
                    let wrong = Reason::WrongArgument {
                        helper,
                        register,
                        expected: of,
                    };
                    if of == Argument::Readable {
                        arguments.readable = self.copied(pointer, size, wrong)?;
                    } else {
                        if !pointer.is_pointer() || pointer.to == Pointee::Context {
                            return Err(wrong);
                        }
                        self.inside(pointer, size)?;
                        arguments.writable = Some((pointer, size));
                    }
                }
                Argument::RecordSize => {
                    let least = match helper {
                        Helper::EventReserve => 8,
                        _ => 1,
                    };
                    if !(least..=u64::from(MOST_RECORD_BYTES)).contains(&value.number) {
                        return Err(wrong);
                    }
                }
                // The flags of a record.
                Argument::Constant if helper == Helper::RingReserve && value.number != 0 => {
                    return Err(wrong);
                }
                Argument::Constant | Argument::Scalar => {}
                Argument::ReleasedRecord | Argument::Record => {
                    let Pointee::Object(Object::Record { number }) = value.to else {
                        return Err(wrong);
                    };
                    let held = self.held(number)?;
                    let is_begin =
                        value.number == self.environment.address(Object::Record { number });
                    let fits = held.is_event || *expected == Argument::ReleasedRecord;
                    if !is_begin || !fits {
                        return Err(wrong);
                    }
                    arguments.record = number;
                }
            }
        }
        Ok(arguments)
    }

    /// `size` bytes that a pointer points to. Of the context only whole registers are memory, so it
    /// is none.
    fn copied(&mut self, pointer: Value, size: usize, wrong: Reason) -> Result<Vec<u8>, Reason> {
        if !pointer.is_pointer() || pointer.to == Pointee::Context {
            return Err(wrong);
        }
        self.inside(pointer, size)?;
        let mut bytes = zeros(size)?;
        self.read(pointer, &mut bytes)?;
        Ok(bytes)
    }

    fn update(&mut self, map: MapIndex, arguments: &Arguments, flags: u64) -> i64 {
        if flags > 2 {
            return EINVAL;
        }
        let found = self.environment.lookup(map, &arguments.key);
        let is_array = matches!(
            self.program.maps[usize::from(map.0)].kind,
            MapKind::Array | MapKind::PerCpuArray
        );
        let number = match (found, flags) {
            // An index that an array does not have is no key that could be new.
            (None, _) if is_array => return E2BIG,
            (Some(_), 1) => return EEXIST,
            (None, 2) => return ENOENT,
            (Some(number), _) => number,
            (None, _) => match self.environment.insert(map, &arguments.key) {
                Some(number) => number,
                None => return E2BIG,
            },
        };
        let bytes = self.environment.bytes(Object::Value { map, number });
        bytes[..arguments.value.len()].copy_from_slice(&arguments.value);
        0
    }

    /// A word of a key's value on each CPU.
    fn words_of_cpus(&mut self, map: MapIndex, key: &[u8], word: u64) -> impl Iterator<Item = u64> {
        (0..).map_while(move |cpu| {
            debug_assert!(cpu < 1 << 16, "no CPU of the environment is the last one");
            self.environment.word_on(map, cpu, key, word)
        })
    }

    fn add(&mut self, object: Object, delta: u64) {
        let bytes = self.environment.bytes(object);
        if let Some(counter) = bytes.first_chunk_mut::<8>() {
            *counter = u64::from_le_bytes(*counter)
                .wrapping_add(delta)
                .to_le_bytes();
        }
    }

    /// The helpers that copy memory which is not the program's into its own.
    fn copy(&mut self, arguments: &Arguments, space: Space, is_text: bool) -> Result<u64, Reason> {
        let (buffer, size) = arguments.writable.unwrap_or((Value::number(0), 0));
        let address = arguments.numbers[2];
        let mut bytes = zeros(size)?;
        let copied = if is_text {
            self.read_text(space, address, &mut bytes)
        } else {
            self.read_all(space, address, &mut bytes)
        };
        if copied.is_err() {
            bytes.fill(0);
        }
        self.write(buffer, &bytes)?;
        Ok(copied.unwrap_or(EFAULT as u64))
    }

    /// Copies as many bytes as the fourth argument says; zeros follow.
    fn copy_part(&mut self, arguments: &Arguments, space: Space) -> Result<u64, Reason> {
        let (buffer, size) = arguments.writable.unwrap_or((Value::number(0), 0));
        let [_, _, address, length, _] = arguments.numbers;
        let mut bytes = zeros(size)?;
        let length = usize::try_from(length).map_or(size, |length| length.min(size));
        let copied = self.read_all(space, address, &mut bytes[..length]);
        if copied.is_err() {
            bytes.fill(0);
        }
        self.write(buffer, &bytes)?;
        Ok(copied.unwrap_or(EFAULT as u64))
    }

    fn read_all(&mut self, space: Space, address: u64, into: &mut [u8]) -> Result<u64, Fault> {
        for (byte, address) in into.iter_mut().zip(addresses(address)) {
            *byte = self.environment.read_byte(space, address?)?;
        }
        Ok(0)
    }

    /// Copies a text with its NUL, which replaces the last byte of what does not fit. Returns the
    /// bytes with the NUL.
    fn read_text(&mut self, space: Space, address: u64, into: &mut [u8]) -> Result<u64, Fault> {
        let most = into.len().saturating_sub(1);
        for (index, address) in (0..most).zip(addresses(address)) {
            into[index] = self.environment.read_byte(space, address?)?;
            if into[index] == 0 {
                return Ok(index as u64 + 1);
            }
        }
        Ok(into.len() as u64)
    }

    fn text_length(&mut self, space: Space, address: u64, most: u64) -> u64 {
        let most = most.min(u64::from(MOST_RECORD_BYTES));
        for (index, address) in (0..most).zip(addresses(address)) {
            let read = address.and_then(|address| self.environment.read_byte(space, address));
            match read {
                Ok(0) => return index + 1,
                Ok(_) => {}
                Err(Fault) => return 0,
            }
        }
        most
    }

    fn reserve(
        &mut self,
        ring: MapIndex,
        size: u32,
        room: u32,
        event: Option<u16>,
    ) -> Result<Value, Reason> {
        self.held.try_reserve(1).map_err(|_| Reason::OutOfMemory)?;
        let Some(number) = self.environment.reserve(ring, size, room, event) else {
            return Ok(Value::number(0));
        };
        self.held.push(Held {
            number,
            size,
            room,
            used: 0,
            is_event: event.is_some(),
        });
        Ok(self.pointer(Object::Record { number }))
    }

    /// Bytes that are left behind a record.
    fn left(&self, record: u32) -> Result<usize, Reason> {
        let held = self.held(record)?;
        Ok((held.room - held.used) as usize)
    }

    fn append_text(
        &mut self,
        record: u32,
        space: Space,
        address: u64,
        length: u64,
    ) -> Result<u64, Reason> {
        let left = self.left(record)?;
        let mut text = zeros(left.min(usize::try_from(length).unwrap_or(usize::MAX)))?;
        let bytes = match text.is_empty() {
            true => 0,
            false => self.read_text(space, address, &mut text).unwrap_or(0),
        };
        self.append(record, &text[..bytes as usize])
    }

    /// Appends bytes, for which there is room. Returns their place.
    fn append(&mut self, record: u32, bytes: &[u8]) -> Result<u64, Reason> {
        let held = self.held.iter_mut().find(|held| held.number == record);
        let held = held.ok_or(Reason::RecordReleased)?;
        let start = (held.size + held.used) as usize;
        held.used += bytes.len() as u32;
        let object = Object::Record { number: record };
        self.environment.bytes(object)[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(start as u64 | (bytes.len() as u64) << 16)
    }
}

/// Whether the values of a map have no room for a counter that the helper adds to.
fn too_small(helper: Helper, def: &MapDef) -> bool {
    helper == Helper::Add && def.value_size < 8
}

/// The addresses from there on. After the last one is nothing.
fn addresses(from: u64) -> impl Iterator<Item = Result<u64, Fault>> {
    (0..).map(move |index| from.checked_add(index).ok_or(Fault))
}

fn zeros(bytes: usize) -> Result<Vec<u8>, Reason> {
    let mut zeros = Vec::new();
    zeros
        .try_reserve_exact(bytes)
        .map_err(|_| Reason::OutOfMemory)?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}
