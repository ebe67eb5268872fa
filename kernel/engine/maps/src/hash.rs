//! Hashes: values by key, in one table for all CPUs or in one for each CPU ([`Table`]).
//!
//! A hash with a table for each CPU is for counting: CPUs share no cache line, and a key's value is
//! the sum of its values on all CPUs. A value that one CPU sets and another one reads, such as the
//! time at which a task has entered a function, needs a shared hash.

use alloc::vec::Vec;

use crate::{
    block::OutOfMemory,
    steps::{NoSteps, Steps},
    table::{Bytes, Copied, Lost, NotUpdated, Read, Shape, Table, Use, When},
};

/// How many operations of hits were lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostCounts {
    /// There was no room.
    pub full: u64,
    /// The key was in the hands of another operation.
    pub busy: u64,
}

impl LostCounts {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.full.wrapping_add(self.busy)
    }
}

/// A hash.
pub struct Hash {
    /// The tables, at least one. Their addresses stay, because compiled code has them.
    tables: Vec<Table>,
    shared: bool,
}

/// The binary logarithm of the distance in bytes from one CPU's table to the next one's.
pub const TABLE_SHIFT: u32 = size_of::<Table>().trailing_zeros();
const _: () = assert!(size_of::<Table>().is_power_of_two());

impl Hash {
    /// Empty tables. The sizes were checked.
    pub(crate) fn new(shape: Shape, tables: usize, shared: bool) -> Result<Self, OutOfMemory> {
        let mut all = Vec::new();
        all.try_reserve_exact(tables).map_err(|_| OutOfMemory {
            bytes: tables.saturating_mul(size_of::<Table>()),
        })?;
        for _ in 0..tables {
            all.push(Table::new(shape)?);
        }
        Ok(Self {
            tables: all,
            shared,
        })
    }

    /// The table of CPU 0, for the functions of [`crate::compiled`]. That of another CPU lies
    /// `cpu << TABLE_SHIFT` bytes after it. It lives as long as the hash, even if that is moved.
    pub fn tables(&self) -> *const Table {
        self.tables.as_ptr()
    }

    /// The address of the first slot of each table, and how many slots it has.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, usize)> {
        let tables = self.tables.iter();
        tables.map(|table| (table.address(), table.places()))
    }

    /// Whether all CPUs use the table of CPU 0.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// How many tables there are.
    pub fn cpus(&self) -> usize {
        self.tables.len()
    }

    /// Bytes of a key.
    pub fn key_size(&self) -> usize {
        self.shape().key_bytes
    }

    /// Words of a value.
    pub fn value_words(&self) -> usize {
        self.shape().value_bytes.div_ceil(8)
    }

    fn shape(&self) -> Shape {
        self.tables.first().map_or(
            Shape {
                key_bytes: 0,
                value_bytes: 0,
                entries: 0,
            },
            Table::shape,
        )
    }

    fn table(&self, cpu: usize) -> Option<&Table> {
        self.tables.get(if self.shared { 0 } else { cpu })
    }

    /// How many keys there are, on all CPUs together.
    pub fn len(&self) -> u64 {
        self.tables.iter().map(Table::len).sum()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counts of lost operations since the hash was made, exact when no hit is under way.
    pub fn lost(&self) -> LostCounts {
        let mut lost = LostCounts::default();
        for (full, busy) in self.tables.iter().map(Table::lost) {
            lost.full = lost.full.wrapping_add(full);
            lost.busy = lost.busy.wrapping_add(busy);
        }
        lost
    }

    /// Adds `delta` to the first word of the value of `key`. False if there is no such CPU, or the
    /// key has another size.
    pub fn add(&self, cpu: usize, key: &[u8], delta: u64) -> Option<Result<(), Lost>> {
        self.add_in_steps::<NoSteps>(cpu, key, delta)
    }

    /// Same as [`Hash::add`], with `S` before each access.
    pub fn add_in_steps<S: Steps>(
        &self,
        cpu: usize,
        key: &[u8],
        delta: u64,
    ) -> Option<Result<(), Lost>> {
        let table = self.table_for(cpu, key)?;
        Some(if key.len() == 8 {
            let mut word = [0; 8];
            word.copy_from_slice(key);
            table.add_word::<S>(u64::from_le_bytes(word), delta)
        } else {
            table.add::<S>(&table.key(Bytes::new(key)), delta)
        })
    }

    fn table_for(&self, cpu: usize, key: &[u8]) -> Option<&Table> {
        self.table(cpu)
            .filter(|table| table.shape().key_bytes == key.len())
    }

    /// Sets the value of `key`. `None` if there is no such CPU, or a size is another one.
    pub fn update(
        &self,
        cpu: usize,
        key: &[u8],
        value: &[u8],
        when: When,
    ) -> Option<Result<(), NotUpdated>> {
        self.update_in_steps::<NoSteps>(cpu, key, value, when)
    }

    /// Same as [`Hash::update`], with `S` before each access.
    pub fn update_in_steps<S: Steps>(
        &self,
        cpu: usize,
        key: &[u8],
        value: &[u8],
        when: When,
    ) -> Option<Result<(), NotUpdated>> {
        let table = self.table_for(cpu, key)?;
        if table.shape().value_bytes != value.len() {
            return None;
        }
        Some(table.update::<S>(&table.key(Bytes::new(key)), Bytes::new(value), when))
    }

    /// Notes that `key` is used. If it is not there and is going to be set, makes room for it:
    /// where there are as many keys as there may be, the one that was probably not used for longest
    /// is deleted. False if there is no such CPU, or the key has another size.
    pub fn use_key(&self, cpu: usize, key: &[u8], how: Use) -> bool {
        self.use_key_in_steps::<NoSteps>(cpu, key, how)
    }

    /// Same as [`Hash::use_key`], with `S` before each access.
    pub fn use_key_in_steps<S: Steps>(&self, cpu: usize, key: &[u8], how: Use) -> bool {
        let table = self.table_for(cpu, key);
        if let Some(table) = table {
            table.use_key::<S>(&table.key(Bytes::new(key)), how);
        }
        table.is_some()
    }

    /// Deletes `key`. Returns whether it was there.
    pub fn delete(&self, cpu: usize, key: &[u8]) -> bool {
        self.delete_in_steps::<NoSteps>(cpu, key)
    }

    /// Same as [`Hash::delete`], with `S` before each access.
    pub fn delete_in_steps<S: Steps>(&self, cpu: usize, key: &[u8]) -> bool {
        self.table_for(cpu, key)
            .is_some_and(|table| table.delete::<S>(&table.key(Bytes::new(key))))
    }

    /// The address of the value of `key`, as long as the key is not deleted. After that it is still
    /// memory of this map, but perhaps of another key's value.
    pub fn lookup(&self, cpu: usize, key: &[u8]) -> Option<*mut u64> {
        self.lookup_in_steps::<NoSteps>(cpu, key)
    }

    /// Same as [`Hash::lookup`], with `S` before each access.
    pub fn lookup_in_steps<S: Steps>(&self, cpu: usize, key: &[u8]) -> Option<*mut u64> {
        let table = self.table_for(cpu, key)?;
        let value = table.lookup::<S>(&table.key(Bytes::new(key)));
        (!value.is_null()).then_some(value)
    }

    /// Calls `visit` with the CPU, the key and the value of each entry. An entry is as it was at
    /// one moment; different entries may be from different moments. Returns how many entries were
    /// left out, because an update did not finish while they were looked at.
    pub fn for_each(&self, visit: impl FnMut(usize, &[u8], &[u64])) -> usize {
        self.for_each_in_steps::<NoSteps>(visit)
    }

    /// Same as [`Hash::for_each`], with `S` before each access.
    pub fn for_each_in_steps<S: Steps>(
        &self,
        mut visit: impl FnMut(usize, &[u8], &[u64]),
    ) -> usize {
        let cpus = 0..self.tables.len();
        cpus.map(|cpu| self.for_each_of::<S>(cpu, |key, value| visit(cpu, key, value)))
            .sum()
    }

    /// Same as [`Hash::for_each`], for the entries in the table of `cpu`.
    pub fn for_each_of_cpu(&self, cpu: usize, visit: impl FnMut(&[u8], &[u64])) -> usize {
        self.for_each_of::<NoSteps>(cpu, visit)
    }

    fn for_each_of<S: Steps>(&self, cpu: usize, mut visit: impl FnMut(&[u8], &[u64])) -> usize {
        let mut unsettled = 0;
        let mut copied = Copied::new();
        let tables = self.tables.get(cpu).into_iter();
        for (table, index) in tables.flat_map(|table| (0..table.places()).map(move |n| (table, n)))
        {
            match table.read::<S>(index, &mut copied) {
                Read::Nothing => {}
                Read::Unsettled => unsettled += 1,
                Read::Entry => visit(
                    &copied.key_bytes()[..self.key_size()],
                    &copied.value[..self.value_words()],
                ),
            }
        }
        unsettled
    }

    /// How many keys there are in the table of `cpu`.
    pub fn len_of_cpu(&self, cpu: usize) -> u64 {
        self.tables.get(cpu).map_or(0, Table::len)
    }

    /// All keys in ascending order of their bytes, each with the sum of its values on all CPUs.
    pub fn summary(&self) -> Result<Summary, OutOfMemory> {
        let mut summary = Summary {
            key_size: self.key_size(),
            value_words: self.value_words(),
            keys: Vec::new(),
            values: Vec::new(),
            order: Vec::new(),
            unsettled: 0,
        };
        let mut short = None;
        summary.unsettled = self.for_each(|_, key, value| {
            if short.is_none() {
                short = summary.push(key, value).err();
            }
        });
        if let Some(error) = short {
            return Err(error);
        }
        summary.merge();
        Ok(summary)
    }

    /// Deletes all keys. A hit that comes meanwhile is either deleted or stays, as a whole.
    pub fn clear(&self) {
        self.clear_in_steps::<NoSteps>();
    }

    /// Same as [`Hash::clear`], with `S` before each access.
    pub fn clear_in_steps<S: Steps>(&self) {
        for table in &self.tables {
            table.clear::<S>();
        }
    }
}

/// The keys of a hash and their sums over all CPUs.
pub struct Summary {
    key_size: usize,
    value_words: usize,
    keys: Vec<u8>,
    values: Vec<u64>,
    /// The rows, by their keys.
    order: Vec<u32>,
    unsettled: usize,
}

impl Summary {
    fn push(&mut self, key: &[u8], value: &[u64]) -> Result<(), OutOfMemory> {
        let error = OutOfMemory {
            bytes: self.keys.len() + self.values.len() * 8,
        };
        self.keys.try_reserve(key.len()).map_err(|_| error)?;
        self.values.try_reserve(value.len()).map_err(|_| error)?;
        self.order.try_reserve(1).map_err(|_| error)?;
        self.order.push(self.order.len() as u32);
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
        Ok(())
    }

    fn key_of(&self, row: u32) -> &[u8] {
        let start = row as usize * self.key_size;
        &self.keys[start..start + self.key_size]
    }

    /// Sorts the rows, and adds those of the same key up.
    fn merge(&mut self) {
        let mut order = core::mem::take(&mut self.order);
        order.sort_unstable_by(|a, b| self.key_of(*a).cmp(self.key_of(*b)));
        let words = self.value_words;
        order.dedup_by(|row, kept| {
            let same = self.key_of(*row) == self.key_of(*kept);
            for index in 0..if same { words } else { 0 } {
                let more = self.values[*row as usize * words + index];
                let sum = &mut self.values[*kept as usize * words + index];
                *sum = sum.wrapping_add(more);
            }
            same
        });
        self.order = order;
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many entries are left out, because an update did not finish while they were looked at.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// The keys and their values, in ascending order of the keys' bytes.
    pub fn rows(&self) -> impl Iterator<Item = (&[u8], &[u64])> {
        self.order.iter().map(|&row| {
            let start = row as usize * self.value_words;
            (
                self.key_of(row),
                &self.values[start..start + self.value_words],
            )
        })
    }
}
