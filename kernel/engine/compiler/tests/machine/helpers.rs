//! The helpers, with pointers to the memory that the machine code uses.
//!
//! They do to the world of the machine code what the interpreter does to its own. An argument that
//! is not what a helper may expect is a mistake that the world notes; a helper cannot panic,
//! because no frame of it can be unwound.

use bpf::{Helper, MOST_RECORD_BYTES, MapIndex, MapKind, errno};
use bpf_compiler::Sample;
use bpf_interpreter::{Environment, Object, Space};

use super::{DIRECTION, HANDLES, WORLD, World};

/// A record that the program holds.
pub struct Record {
    address: u64,
    number: u32,
    size: u32,
    room: u32,
    used: u32,
}

/// Called by the thunks. `sp` is that at the entry.
pub extern "C" fn enter(number: u32, arguments: *const [u64; 5], flags: u64, sp: u64) -> u64 {
    // SAFETY: the world is there while code runs; the thunk gives the arguments.
    let (world, arguments) = unsafe { (&mut *WORLD, *arguments) };
    let helper = Helper::numbered(number).expect("thunks have the numbers of helpers");
    let mut check = |holds: bool, what: &str| {
        if !holds {
            world.errors.push(format!("{helper:?}: {what}"));
        }
    };
    check(sp % 16 == 8, "rsp is not aligned");
    check(flags & DIRECTION == 0, "DF is set");
    // SAFETY: the CPU's data stays.
    let count = unsafe { (*world.cpu).preempt_count };
    let expected = 7 + u32::from(world.counts_preemption);
    check(count == expected, "preemption is not off");
    world.calls += 1;
    world.help(helper, arguments)
}

/// The program's own memory.
fn own<'a>(address: u64, bytes: usize) -> &'a mut [u8] {
    // SAFETY: the verifier says that it is the program's, and the program waits.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
}

impl World {
    fn help(&mut self, helper: Helper, [a, b, c, d, _]: [u64; 5]) -> u64 {
        match helper {
            Helper::MapLookup => {
                let (map, key) = self.key(a, b);
                let number = self.machine.lookup(map, key);
                number.map_or(0, |number| {
                    self.machine.address(Object::Value { map, number })
                })
            }
            Helper::MapUpdate => self.update(a, b, c, d) as u64,
            Helper::MapDelete => {
                let (map, key) = self.key(a, b);
                match self.machine.remove(map, key) {
                    true => 0,
                    false => errno::ENOENT as u64,
                }
            }
            Helper::AddByKey => {
                let (map, key) = self.key(a, b);
                let found = self.machine.lookup(map, key);
                let Some(number) = found.or_else(|| self.machine.insert(map, key)) else {
                    return errno::E2BIG as u64;
                };
                let counter = self.machine.bytes(Object::Value { map, number });
                let counter = counter.first_chunk_mut().unwrap();
                *counter = u64::from_le_bytes(*counter).wrapping_add(c).to_le_bytes();
                0
            }
            Helper::PidTgid => self.machine.pid_tgid,
            Helper::NotRecording => self.machine.not_recording.into(),
            Helper::Comm => {
                let name = self.machine.comm;
                let buffer = own(a, b as usize);
                buffer.fill(0);
                let length = buffer.len().min(name.len());
                buffer[..length].copy_from_slice(&name[..length]);
                buffer[length - 1] = 0;
                0
            }
            Helper::StackId => {
                self.check_sample(a);
                self.machine.stack_id(map(b), c) as u64
            }
            Helper::ReadUser => self.copy(a, b, c, Space::User, false),
            Helper::ReadKernel => self.copy(a, b, c, Space::Kernel, false),
            Helper::ReadUserStr => self.copy(a, b, c, Space::User, true),
            Helper::ReadKernelStr => self.copy(a, b, c, Space::Kernel, true),
            Helper::ReadPart => self.copy_part(a, b, (c, d), Space::Kernel),
            Helper::ReadUserPart => self.copy_part(a, b, (c, d), Space::User),
            Helper::CanRead => {
                let space = match c {
                    0 => Space::Kernel,
                    _ => Space::User,
                };
                let mut byte = |at: u64| {
                    let address = a.checked_add(at)?;
                    self.machine.read_byte(space, address).ok()
                };
                (0..b.min(bpf::MOST_CHECKED))
                    .all(|at| byte(at).is_some())
                    .into()
            }
            Helper::RingReserve => self.reserve(a, b as u32, 0, None),
            Helper::EventReserve => {
                let size = b as u32;
                let room = c.min(u64::from(MOST_RECORD_BYTES - size)) as u32;
                self.reserve(a, size, room, Some(d as u16))
            }
            Helper::RingSubmit | Helper::RingDiscard => {
                let at = self.record(a);
                let record = self.records.remove(at);
                if helper == Helper::RingSubmit {
                    self.machine
                        .submit(record.number, record.size + record.used);
                } else {
                    self.machine.discard(record.number);
                }
                0
            }
            Helper::StrLen => self.length(a, b, Space::Kernel),
            Helper::UserStrLen => self.length(a, b, Space::User),
            Helper::AppendStr => self.append_text(a, b, c, Space::Kernel),
            Helper::AppendUserStr => self.append_text(a, b, c, Space::User),
            Helper::AppendBytes => {
                let bytes = own(b, c as usize).to_vec();
                self.append(a, &bytes)
            }
            Helper::Trigger => self.machine.trigger(a, b).into(),
            Helper::AimWatch => self.machine.aim_watch(a, b).into(),
            Helper::WatchedAddress => self.machine.watched_address(),
            Helper::TrueAddress => self.machine.true_address(a, b),
            Helper::RecordStack => {
                self.check_sample(a);
                self.machine.record_stack(c as u8);
                0
            }
            Helper::SumOfCpus => self
                .words(a, b, c)
                .fold(0, |sum, word| sum.wrapping_add(word)),
            Helper::MostOfCpus => self.words(a, b, c).max().unwrap_or(0),
            Helper::UseKey => {
                let (map, key) = self.key(a, b);
                self.machine.use_key(map, key, c);
                0
            }
            Helper::DeleteOfCpus => {
                let (map, key) = self.key(a, b);
                let was_there = match self.values_of_array(map, key) {
                    Some(values) => {
                        for value in &values {
                            own(*value, self.maps[usize::from(map.0)].value_size as usize).fill(0);
                        }
                        !values.is_empty()
                    }
                    None => self.machine.remove_everywhere(map, key),
                };
                match was_there {
                    true => 0,
                    false => errno::ENOENT as u64,
                }
            }
            Helper::NextKey => {
                let buffer = own(c, d as usize);
                buffer.fill(0);
                match self.machine.next_key(map(a), b) {
                    Some((key, place)) => {
                        let fitting = key.len().min(buffer.len());
                        buffer[..fitting].copy_from_slice(&key[..fitting]);
                        place
                    }
                    None => 0,
                }
            }
            Helper::CountKeys => {
                let (mut count, mut place) = (0, 0);
                while let Some((_, next)) = self.machine.next_key(map(a), place) {
                    (count, place) = (count + 1, next);
                }
                count
            }
            Helper::CountFrames => self.machine.count_frames(map(a), b),
            Helper::CpuId
            | Helper::FuncIp
            | Helper::Tsc
            | Helper::Log2
            | Helper::Add
            | Helper::EntryData
            | Helper::ReturnAddress => {
                self.errors.push(format!("{helper:?} was called"));
                0
            }
        }
    }

    fn check_sample(&mut self, sample: u64) {
        // SAFETY: that is what the code passes.
        let sample = unsafe { *(sample as *const Sample) };
        if sample != self.sample {
            let expected = self.sample;
            self.errors
                .push(format!("sample {sample:x?}, expected {expected:x?}"));
        }
    }

    fn key<'a>(&self, handle: u64, key: u64) -> (MapIndex, &'a [u8]) {
        let map = map(handle);
        let size = self.maps[usize::from(map.0)].key_size;
        (map, own(key, size as usize))
    }

    /// Where the values of an index are on all CPUs. None: the map is no array.
    fn values_of_array(&self, map: MapIndex, key: &[u8]) -> Option<Vec<u64>> {
        let array = self.arrays[usize::from(map.0)].as_ref()?;
        let def = &self.maps[usize::from(map.0)];
        let index = u32::from_le_bytes(*key.first_chunk().unwrap());
        if index >= def.entries {
            return Some(Vec::new());
        }
        let parts = match def.kind {
            MapKind::PerCpuArray => &array.parts[..],
            _ => &array.parts[..1],
        };
        let at = |part: &*mut u8| *part as u64 + u64::from(index * array.array.stride);
        // An array in the data of this CPU has no parts for others.
        let parts = parts.iter().filter(|part| !part.is_null());
        Some(parts.map(at).collect())
    }

    /// A word of a key's value on all CPUs.
    fn words(&mut self, handle: u64, key: u64, word: u64) -> std::vec::IntoIter<u64> {
        let (map, key) = self.key(handle, key);
        let values = self.values_of_array(map, key);
        let size = u64::from(self.maps[usize::from(map.0)].value_size);
        let words: Vec<u64> = match values {
            Some(values) => values
                .into_iter()
                .map(|value| {
                    let bytes = size.saturating_sub(word.saturating_mul(8)).min(8);
                    let bytes = match bytes {
                        0 => &[][..],
                        _ => own(value + word * 8, bytes as usize),
                    };
                    let bytes = bytes.iter().rev();
                    bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
                })
                .collect(),
            None => (0..)
                .map_while(|cpu| self.machine.word_on(map, cpu, key, word))
                .collect(),
        };
        words.into_iter()
    }

    fn update(&mut self, handle: u64, key: u64, value: u64, flags: u64) -> i64 {
        let (map, key) = self.key(handle, key);
        let def = &self.maps[usize::from(map.0)];
        let value = own(value, def.value_size as usize).to_vec();
        if flags > 2 {
            return errno::EINVAL;
        }
        if let Some(array) = &self.arrays[usize::from(map.0)] {
            let index = u32::from_le_bytes(*key.first_chunk().unwrap());
            if index >= def.entries {
                return errno::E2BIG;
            }
            if flags == 1 {
                return errno::EEXIST;
            }
            let cpu = match def.kind {
                MapKind::PerCpuArray => self.machine.cpu as usize,
                _ => 0,
            };
            let at = array.parts[cpu] as u64 + u64::from(index * array.array.stride);
            own(at, value.len()).copy_from_slice(&value);
            return 0;
        }
        let number = match (self.machine.lookup(map, key), flags) {
            (Some(_), 1) => return errno::EEXIST,
            (None, 2) => return errno::ENOENT,
            (Some(number), _) => number,
            (None, _) => match self.machine.insert(map, key) {
                Some(number) => number,
                None => return errno::E2BIG,
            },
        };
        self.machine
            .bytes(Object::Value { map, number })
            .copy_from_slice(&value);
        0
    }

    fn text(&mut self, space: Space, address: u64, most: usize) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() + 1 < most {
            let address = address.checked_add(text.len() as u64)?;
            text.push(self.machine.read_byte(space, address).ok()?);
            if text.last() == Some(&0) {
                return Some(text);
            }
        }
        text.push(0);
        Some(text)
    }

    fn copy(&mut self, buffer: u64, size: u64, address: u64, space: Space, is_text: bool) -> u64 {
        let buffer = own(buffer, size as usize);
        buffer.fill(0);
        let copied = if is_text {
            self.text(space, address, buffer.len())
        } else {
            (0..size)
                .map(|i| {
                    let address = address.checked_add(i)?;
                    self.machine.read_byte(space, address).ok()
                })
                .collect()
        };
        match copied {
            None => errno::EFAULT as u64,
            Some(bytes) => {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                if is_text { bytes.len() as u64 } else { 0 }
            }
        }
    }

    fn copy_part(&mut self, to: u64, size: u64, (from, length): (u64, u64), space: Space) -> u64 {
        let buffer = own(to, size as usize);
        buffer.fill(0);
        let byte = |at: u64| {
            let address = from.checked_add(at)?;
            self.machine.read_byte(space, address).ok()
        };
        match (0..length.min(size)).map(byte).collect::<Option<Vec<u8>>>() {
            None => errno::EFAULT as u64,
            Some(bytes) => {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                0
            }
        }
    }

    fn length(&mut self, address: u64, most: u64, space: Space) -> u64 {
        let most = most.min(u64::from(MOST_RECORD_BYTES));
        for i in 0..most {
            let byte = address
                .checked_add(i)
                .and_then(|address| self.machine.read_byte(space, address).ok());
            match byte {
                None => return 0,
                Some(0) => return i + 1,
                Some(_) => {}
            }
        }
        most
    }

    fn reserve(&mut self, handle: u64, size: u32, room: u32, event: Option<u16>) -> u64 {
        let Some(number) = self.machine.reserve(map(handle), size, room, event) else {
            return 0;
        };
        let address = self.machine.address(Object::Record { number });
        self.records.push(Record {
            address,
            number,
            size,
            room,
            used: 0,
        });
        address
    }

    fn record(&self, address: u64) -> usize {
        let mut records = self.records.iter();
        records
            .position(|record| record.address == address)
            .expect("the program holds the record")
    }

    fn append_text(&mut self, record: u64, address: u64, length: u64, space: Space) -> u64 {
        let held = &self.records[self.record(record)];
        let left = (held.room - held.used) as usize;
        let most = left.min(usize::try_from(length).unwrap_or(usize::MAX));
        let text = match most {
            0 => None,
            _ => self.text(space, address, most),
        };
        self.append(record, &text.unwrap_or_default())
    }

    fn append(&mut self, record: u64, bytes: &[u8]) -> u64 {
        let at = self.record(record);
        let held = &mut self.records[at];
        let fitting = bytes.len().min((held.room - held.used) as usize);
        let start = held.size + held.used;
        held.used += fitting as u32;
        let number = held.number;
        let all = self.machine.bytes(Object::Record { number });
        all[start as usize..][..fitting].copy_from_slice(&bytes[..fitting]);
        u64::from(start) | (fitting as u64) << 16
    }
}

fn map(handle: u64) -> MapIndex {
    MapIndex((handle - HANDLES) as u16)
}
