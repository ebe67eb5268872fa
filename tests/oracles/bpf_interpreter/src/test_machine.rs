//! A world for programs under test: sparse memory, maps of ordinary collections, a list of records.
//!
//! It is cloned to run a program twice from the same beginning. Objects have addresses of the
//! machine's own, or their real ones, so that machine code can run in the same world
//! ([`Addresses`]).

use alloc::{boxed::Box, collections::BTreeMap, vec, vec::Vec};
use core::ops::{Deref, DerefMut};

use bpf::{
    MapDef, MapIndex, MapKind, Program, Size, USE_CHANGED, USE_READ, USER_STACK, context::Register,
    errno,
};

use crate::{Environment, Fault, Object, Space};

/// The numbers that programs see for objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// An address space of the machine's own, the same in each run. Nothing is mapped there.
    Own,
    /// Where the objects really are, for machine code that accesses them itself. An object does not
    /// move as long as the machine is there.
    Real,
}

/// A record as the reader gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub ring: MapIndex,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Map {
    def: MapDef,
    /// The value of each key; of a map for each CPU, with the CPU in front.
    numbers: BTreeMap<(u32, Vec<u8>), u32>,
    /// The keys whose uses were noted, the one that was not used for longest first.
    used: Vec<(u32, Vec<u8>)>,
    values: Vec<Box<[u8]>>,
    /// Values whose keys were taken out.
    free: Vec<u32>,
    /// All keys that ever were there, so that a key keeps its place.
    known: Vec<Vec<u8>>,
    stacks: Vec<Vec<u64>>,
}

#[derive(Clone, Debug)]
struct Reserved {
    ring: MapIndex,
    bytes: Box<[u8]>,
    is_held: bool,
}

/// See the module's text. Everything that is public may be set before a run and read after it.
#[derive(Clone, Debug)]
pub struct TestMachine {
    pub addresses: Addresses,
    /// In the order of [`Register::ALL`].
    pub registers: [u64; Register::ALL.len()],
    pub cpu: u32,
    pub pid_tgid: u64,
    pub comm: [u8; 16],
    /// The number that the next reading of the counter gives; each reading adds `tsc_step`.
    pub tsc: u64,
    pub tsc_step: u64,
    pub func_ip: u64,
    pub return_address: u64,
    pub not_recording: u32,
    /// Records that were not begun because of that.
    pub records_off: u64,
    pub call_stack: Vec<u64>,
    /// That of the program in ring 3.
    pub user_call_stack: Vec<u64>,
    /// The flags of each call stack that was recorded.
    pub recorded_stacks: Vec<u8>,
    /// The flags and the preemption count in the header of an event.
    pub event_flags: u8,
    pub preempt_count: u8,
    /// The data that entry and return share.
    pub entry_data: EntryData,
    /// How many more records there is room for.
    pub room_for_records: usize,
    /// The submitted records, in this order.
    pub published: Vec<Published>,
    /// How many records were discarded, and how many were refused.
    pub discarded: u64,
    pub refused: u64,
    /// Loads through numbers that found nothing.
    pub faults: u64,
    kernel: BTreeMap<u64, u8>,
    user: BTreeMap<u64, u8>,
    maps: Vec<Map>,
    records: Vec<Reserved>,
}

/// The data that entry and return share, with what is in front of it in memory where code of the
/// machine runs: the call's instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryData {
    bytes: Box<[u8]>,
}

impl EntryData {
    /// How many bytes are in front of the data.
    pub const IN_FRONT: usize = 32;

    /// The instance and the data.
    pub fn instance(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl From<Vec<u8>> for EntryData {
    fn from(data: Vec<u8>) -> Self {
        let mut bytes = vec![0; Self::IN_FRONT];
        bytes.extend(data);
        Self {
            bytes: bytes.into(),
        }
    }
}

impl Deref for EntryData {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(Self::IN_FRONT..).unwrap_or_default()
    }
}

impl DerefMut for EntryData {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(Self::IN_FRONT..).unwrap_or_default()
    }
}

/// Where the objects of [`Addresses::Own`] begin.
const MAPS: u64 = 0xffff_fd00_0000_0000;
const VALUES: u64 = 0xffff_fd10_0000_0000;
const RECORDS: u64 = 0xffff_fd20_0000_0000;
const ENTRY_DATA: u64 = 0xffff_fd30_0000_0000;
/// The CPUs that a key is looked for on.
const CPUS: u32 = 8;
/// Bytes from one object to the next one, more than the largest one has.
const STRIDE: u64 = 0x2000;

impl TestMachine {
    /// A machine for `program`, with empty maps.
    pub fn new(program: &Program) -> Self {
        let map = |def: &MapDef| Map {
            def: def.clone(),
            numbers: BTreeMap::new(),
            used: Vec::new(),
            values: Vec::new(),
            free: Vec::new(),
            known: Vec::new(),
            stacks: Vec::new(),
        };
        Self {
            addresses: Addresses::Own,
            registers: [0; Register::ALL.len()],
            cpu: 0,
            pid_tgid: 0x1_0000_0001,
            comm: *b"test\0\0\0\0\0\0\0\0\0\0\0\0",
            tsc: 1_000,
            tsc_step: 1,
            func_ip: 0,
            return_address: 0,
            not_recording: 0,
            records_off: 0,
            recorded_stacks: Vec::new(),
            call_stack: Vec::new(),
            user_call_stack: Vec::new(),
            event_flags: 0,
            preempt_count: 0,
            entry_data: vec![0; program.kind.shared_bytes() as usize].into(),
            room_for_records: usize::MAX,
            published: Vec::new(),
            discarded: 0,
            refused: 0,
            faults: 0,
            kernel: BTreeMap::new(),
            user: BTreeMap::new(),
            maps: program.maps.iter().map(map).collect(),
            records: Vec::new(),
        }
    }

    /// Sets a register of the probed code.
    pub fn set_register(&mut self, register: Register, value: u64) {
        self.registers[register as usize] = value;
    }

    /// Puts bytes into memory that is not the program's.
    pub fn put(&mut self, space: Space, address: u64, bytes: &[u8]) {
        let memory = match space {
            Space::Kernel => &mut self.kernel,
            Space::User => &mut self.user,
        };
        memory.extend((address..).zip(bytes.iter().copied()));
    }

    /// The value of `key` in a map, as CPU `cpu` sees it; `None` if nothing asked for it so far.
    pub fn value(&self, map: MapIndex, cpu: u32, key: &[u8]) -> Option<&[u8]> {
        let map = &self.maps[usize::from(map.0)];
        let number = *map.numbers.get(&(map.table(cpu), key.to_vec()))?;
        Some(&map.values[number as usize])
    }

    /// All values of a map, by CPU (0 if it is one for all) and key.
    pub fn values(&self, map: MapIndex) -> BTreeMap<(u32, Vec<u8>), Vec<u8>> {
        let map = &self.maps[usize::from(map.0)];
        let value = |(key, number): (&(u32, Vec<u8>), &u32)| {
            (key.clone(), map.values[*number as usize].to_vec())
        };
        map.numbers.iter().map(value).collect()
    }

    /// Gives `key` of a map a value, as CPU `cpu` sees it. So a map lives on from one run of a
    /// program to the next, or to that of another program.
    pub fn set_value(&mut self, map: MapIndex, cpu: u32, key: &[u8], value: &[u8]) {
        let map = self.map(map);
        let table = map.table(cpu);
        let known = map.numbers.get(&(table, key.to_vec())).copied();
        let number = known.unwrap_or_else(|| map.add(table, key));
        let stored = &mut map.values[number as usize];
        let bytes = stored.len().min(value.len());
        stored[..bytes].copy_from_slice(&value[..bytes]);
    }

    /// Gives a map the order in which its keys were used.
    pub fn set_used(&mut self, map: MapIndex, used: &[(u32, Vec<u8>)]) {
        self.map(map).used = used.to_vec();
    }

    /// The order in which keys of a map were used, with the CPU (0 if it is one for all).
    pub fn used(&self, map: MapIndex) -> &[(u32, Vec<u8>)] {
        &self.maps[usize::from(map.0)].used
    }

    /// Gives a map call stacks, by number.
    pub fn set_stacks(&mut self, map: MapIndex, stacks: &[Vec<u64>]) {
        self.map(map).stacks = stacks.to_vec();
    }

    /// The call stacks of a map, by number.
    pub fn stacks(&self, map: MapIndex) -> &[Vec<u64>] {
        &self.maps[usize::from(map.0)].stacks
    }

    /// How many records are reserved and neither submitted nor discarded.
    pub fn held(&self) -> usize {
        self.records.iter().filter(|record| record.is_held).count()
    }

    fn map(&mut self, map: MapIndex) -> &mut Map {
        &mut self.maps[usize::from(map.0)]
    }
}

impl Map {
    fn is_array(&self) -> bool {
        matches!(self.def.kind, MapKind::Array | MapKind::PerCpuArray)
    }

    /// Which of the map's tables a CPU uses.
    fn table(&self, cpu: u32) -> u32 {
        match self.def.kind {
            MapKind::PerCpuArray | MapKind::PerCpuHash => cpu,
            _ => 0,
        }
    }

    /// A value of zeros for a key that has none.
    fn add(&mut self, table: u32, key: &[u8]) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let value = vec![0; self.def.value_size as usize];
            self.values.push(value.into());
            self.values.len() as u32 - 1
        });
        self.values[number as usize].fill(0);
        self.numbers.insert((table, key.to_vec()), number);
        if !self.known.iter().any(|known| known == key) {
            self.known.push(key.to_vec());
        }
        number
    }
}

impl Environment for TestMachine {
    fn register(&self, register: Register) -> u64 {
        self.registers[register as usize]
    }

    fn map_address(&self, map: MapIndex) -> u64 {
        MAPS + u64::from(map.0) * STRIDE
    }

    fn address(&self, object: Object) -> u64 {
        if self.addresses == Addresses::Real {
            let bytes = match object {
                Object::Value { map, number } => {
                    &self.maps[usize::from(map.0)].values[number as usize]
                }
                Object::Record { number } => &self.records[number as usize].bytes,
                Object::EntryData => &*self.entry_data,
            };
            return bytes.as_ptr().expose_provenance() as u64;
        }
        match object {
            Object::Value { map, number } => {
                VALUES + (u64::from(map.0) << 36) + u64::from(number) * STRIDE
            }
            Object::Record { number } => RECORDS + u64::from(number) * STRIDE,
            Object::EntryData => ENTRY_DATA,
        }
    }

    fn bytes(&mut self, object: Object) -> &mut [u8] {
        match object {
            Object::Value { map, number } => &mut self.map(map).values[number as usize],
            Object::Record { number } => &mut self.records[number as usize].bytes,
            Object::EntryData => &mut self.entry_data,
        }
    }

    fn kernel_load(&mut self, address: u64, size: Size) -> u64 {
        let mut bytes = [0; 8];
        for (index, byte) in (0..).zip(&mut bytes[..size.bytes() as usize]) {
            let found = address
                .checked_add(index)
                .and_then(|address| self.kernel.get(&address));
            let Some(found) = found else {
                self.faults += 1;
                return 0;
            };
            *byte = *found;
        }
        u64::from_le_bytes(bytes)
    }

    fn read_byte(&mut self, space: Space, address: u64) -> Result<u8, Fault> {
        let memory = match space {
            Space::Kernel => &self.kernel,
            Space::User => &self.user,
        };
        memory.get(&address).copied().ok_or(Fault)
    }

    fn lookup(&mut self, map: MapIndex, key: &[u8]) -> Option<u32> {
        let cpu = self.cpu;
        let map = self.map(map);
        let table = map.table(cpu);
        if let Some(number) = map.numbers.get(&(table, key.to_vec())) {
            return Some(*number);
        }
        let index = u32::from_le_bytes(*key.first_chunk()?);
        (map.is_array() && index < map.def.entries).then(|| map.add(table, key))
    }

    fn insert(&mut self, map: MapIndex, key: &[u8]) -> Option<u32> {
        let cpu = self.cpu;
        let map = self.map(map);
        let table = map.table(cpu);
        let of_table = map.numbers.range((table, Vec::new())..);
        let taken = of_table.take_while(|((of, _), _)| *of == table).count();
        (taken < map.def.entries as usize).then(|| map.add(table, key))
    }

    fn remove(&mut self, map: MapIndex, key: &[u8]) -> bool {
        let cpu = self.cpu;
        let map = self.map(map);
        let removed = map.numbers.remove(&(map.table(cpu), key.to_vec()));
        map.free.extend(removed);
        removed.is_some()
    }

    fn word_on(&mut self, map: MapIndex, cpu: u32, key: &[u8], word: u64) -> Option<u64> {
        let map = self.map(map);
        if cpu >= CPUS || (cpu > 0 && map.table(cpu) == map.table(0)) {
            return None;
        }
        let number = map.numbers.get(&(map.table(cpu), key.to_vec()));
        let value = number.map_or(&[][..], |number| &map.values[*number as usize]);
        // A value whose bytes are no whole words is followed by zeros.
        let word = usize::try_from(word).ok()?.saturating_mul(8);
        let bytes = value.iter().skip(word).take(8).rev();
        Some(bytes.fold(0, |word, byte| word << 8 | u64::from(*byte)))
    }

    fn use_key(&mut self, map: MapIndex, key: &[u8], how: u64) {
        let cpu = self.cpu;
        let map = self.map(map);
        let table = map.table(cpu);
        let at = (table, key.to_vec());
        if map.numbers.contains_key(&at) {
            map.used.retain(|other| *other != at);
            map.used.push(at);
            return;
        }
        let of_table = map.numbers.range((table, Vec::new())..);
        let keys = of_table.map(|(at, _)| at).take_while(|at| at.0 == table);
        let last_use = |at: &&(u32, Vec<u8>)| map.used.iter().position(|other| other == *at);
        let oldest = keys.clone().min_by_key(last_use);
        let inserts = ![USE_READ, USE_CHANGED].contains(&how);
        if inserts
            && keys.count() as u64 >= how
            && let Some(at) = oldest.cloned()
        {
            let removed = map.numbers.remove(&at);
            map.free.extend(removed);
        }
    }

    fn remove_everywhere(&mut self, map: MapIndex, key: &[u8]) -> bool {
        let map = self.map(map);
        let mut numbers = Vec::new();
        map.numbers.retain(|(_, of), number| {
            let is_other = of != key;
            if !is_other {
                numbers.push(*number);
            }
            is_other
        });
        let index = key.first_chunk().map(|index| u32::from_le_bytes(*index));
        let was_there = match map.is_array() {
            true => index.is_some_and(|index| index < map.def.entries),
            false => !numbers.is_empty(),
        };
        map.free.extend(numbers);
        was_there
    }

    fn next_key(&mut self, map: MapIndex, place: u64) -> Option<(Vec<u8>, u64)> {
        let map = self.map(map);
        let is_there = |key: &Vec<u8>| map.numbers.keys().any(|(_, known)| known == key);
        let from = usize::try_from(place).ok()?;
        let mut further = map.known.iter().enumerate().skip(from);
        let (place, key) = further.find(|(_, key)| is_there(key))?;
        Some((key.clone(), place as u64 + 1))
    }

    fn count_frames(&mut self, map: MapIndex, number: u64) -> u64 {
        let stacks = &self.map(map).stacks;
        let number = usize::try_from(number).ok();
        let stack = number.and_then(|number| stacks.get(number));
        stack.map_or(0, |stack| stack.len() as u64)
    }

    fn stack_id(&mut self, map: MapIndex, flags: u64) -> i64 {
        let is_user = flags & USER_STACK != 0;
        let (stack, name) = match is_user {
            true => (&self.user_call_stack, self.comm.as_chunks::<8>().0),
            false => (&self.call_stack, &[][..]),
        };
        let map = &mut self.maps[usize::from(map.0)];
        let most = (map.def.value_size as usize / 8).saturating_sub(name.len());
        let frames = stack.iter().skip(usize::from(flags as u8)).take(most);
        let mut stack: Vec<u64> = frames.copied().collect();
        if stack.is_empty() {
            return errno::EFAULT;
        }
        stack.extend(name.iter().copied().map(u64::from_le_bytes));
        if let Some(number) = map.stacks.iter().position(|known| *known == stack) {
            return number as i64;
        }
        if map.stacks.len() == map.def.entries as usize {
            return errno::E2BIG;
        }
        map.stacks.push(stack);
        map.stacks.len() as i64 - 1
    }

    fn reserve(&mut self, ring: MapIndex, size: u32, room: u32, event: Option<u16>) -> Option<u32> {
        if self.not_recording != 0 {
            self.records_off += 1;
            return None;
        }
        if self.room_for_records == 0 {
            self.refused += 1;
            return None;
        }
        self.room_for_records -= 1;
        let mut bytes = vec![0; (size + room) as usize].into_boxed_slice();
        if let Some(event) = event {
            bytes[..2].copy_from_slice(&event.to_le_bytes());
            bytes[2] = self.event_flags;
            bytes[3] = self.preempt_count;
            bytes[4..8].copy_from_slice(&(self.pid_tgid as u32).to_le_bytes());
        }
        self.records.push(Reserved {
            ring,
            bytes,
            is_held: true,
        });
        Some(self.records.len() as u32 - 1)
    }

    fn submit(&mut self, record: u32, bytes: u32) {
        let record = &mut self.records[record as usize];
        record.is_held = false;
        self.published.push(Published {
            ring: record.ring,
            bytes: record.bytes[..bytes as usize].to_vec(),
        });
    }

    fn discard(&mut self, record: u32) {
        self.records[record as usize].is_held = false;
        self.discarded += 1;
    }

    fn cpu(&mut self) -> u32 {
        self.cpu
    }

    fn pid_tgid(&mut self) -> u64 {
        self.pid_tgid
    }

    fn comm(&mut self) -> [u8; 16] {
        self.comm
    }

    fn tsc(&mut self) -> u64 {
        let now = self.tsc;
        self.tsc = now.wrapping_add(self.tsc_step);
        now
    }

    fn func_ip(&mut self) -> u64 {
        self.func_ip
    }

    fn return_address(&mut self) -> u64 {
        self.return_address
    }

    fn trigger(&mut self, number: u64, value: u64) -> bool {
        number.wrapping_mul(3).wrapping_add(value) % 2 == 1
    }

    fn aim_watch(&mut self, number: u64, address: u64) -> bool {
        number.wrapping_add(address >> 1) % 2 == 1
    }

    fn watched_address(&mut self) -> u64 {
        self.func_ip.wrapping_mul(5)
    }

    // Any number that depends on both.
    fn true_address(&mut self, slot: u64, value: u64) -> u64 {
        slot.rotate_left(7) ^ value
    }

    fn record_stack(&mut self, flags: u8) {
        self.recorded_stacks.push(flags);
    }

    fn not_recording(&mut self) -> u32 {
        self.not_recording
    }
}
