//! The world around a program, as the interpreter asks for it.

use alloc::vec::Vec;

use bpf::{MapIndex, Size, context::Register};

/// Memory of the environment that a program can hold a pointer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A value of a map. The environment numbers the values of each map.
    Value { map: MapIndex, number: u32 },
    /// A record. The environment gives each record a number of its own and uses none again.
    Record { number: u32 },
    /// The data that the entry and the return of one call share.
    EntryData,
}

/// Memory that is not the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    User,
    Kernel,
}

/// Nothing is mapped there, or it belongs to the other [`Space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault;

/// The things that the interpreter needs to run a program. The interpreter checks all arguments
/// first, so the environment may rely on sizes: a key has the bytes that the map's definition says.
pub trait Environment {
    /// A register of the probed code.
    fn register(&self, register: Register) -> u64;

    /// The number that a program sees for a map. Not 0.
    fn map_address(&self, map: MapIndex) -> u64;

    /// Where the object begins, as a program sees it. Not 0.
    fn address(&self, object: Object) -> u64;

    /// The bytes of an object, as many as its definition says: of a value those of the map, of a
    /// record size and room, of the data of entry and return those of the kind of the program.
    fn bytes(&mut self, object: Object) -> &mut [u8];

    /// A load through a number. Zero, and counted, if not all of it can be read.
    fn kernel_load(&mut self, address: u64, size: Size) -> u64;

    /// A byte of the kernel's or of the task's memory, for the helpers that copy.
    ///
    /// # Errors
    /// [`Fault`].
    fn read_byte(&mut self, space: Space, address: u64) -> Result<u8, Fault>;

    /// The number of the value of `key` in an array or a hash. An array has a value for each index
    /// below its entries.
    fn lookup(&mut self, map: MapIndex, key: &[u8]) -> Option<u32>;

    /// Gives `key`, which a hash does not have, a value of zeros, and returns its number; `None`
    /// if there is no room.
    fn insert(&mut self, map: MapIndex, key: &[u8]) -> Option<u32>;

    /// Takes `key` out of a hash. Whether it was there.
    fn remove(&mut self, map: MapIndex, key: &[u8]) -> bool;

    /// A word of the value of `key` on the CPU `cpu`; 0 if the value or the word is not there.
    /// `None` past the last CPU. A map that all share has one.
    fn word_on(&mut self, map: MapIndex, cpu: u32, key: &[u8], word: u64) -> Option<u64>;

    /// Notes that `key` of a hash is used, as [`bpf::Helper::UseKey`] says it. Which key goes for
    /// another one is not said.
    fn use_key(&mut self, map: MapIndex, key: &[u8], how: u64);

    /// Takes `key` away on all CPUs; of an array, sets its value to zero there. Whether it was
    /// anywhere.
    fn remove_everywhere(&mut self, map: MapIndex, key: &[u8]) -> bool;

    /// The key from `place` on that no earlier place had, and the place after it.
    fn next_key(&mut self, map: MapIndex, place: u64) -> Option<(Vec<u8>, u64)>;

    /// How many words the call stack of that number has; 0 if there is none.
    fn count_frames(&mut self, map: MapIndex, number: u64) -> u64;

    /// The number of the call stack that the flags of [`crate::Helper::StackId`] ask for, or a
    /// negated errno.
    fn stack_id(&mut self, map: MapIndex, flags: u64) -> i64;

    /// Reserves a record of `size` bytes with `room` bytes after it; `None` if there is no room.
    /// With `event` the first 8 bytes are filled in: that type, flags, preemption count, pid.
    fn reserve(&mut self, ring: MapIndex, size: u32, room: u32, event: Option<u16>) -> Option<u32>;

    /// Gives the first `bytes` of the record to the reader.
    fn submit(&mut self, record: u32, bytes: u32);

    /// Drops the record.
    fn discard(&mut self, record: u32);

    fn cpu(&mut self) -> u32;

    fn pid_tgid(&mut self) -> u64;

    /// The task's name, filled up with zeros, the last byte one of them.
    fn comm(&mut self) -> [u8; 16];

    fn tsc(&mut self) -> u64;

    /// The probed address; of a return, the function's address.
    fn func_ip(&mut self) -> u64;

    /// Where the call of a return program returns to.
    fn return_address(&mut self) -> u64;

    /// Acts as the trigger of that number says, if there is one. Whether it did.
    fn trigger(&mut self, number: u64, value: u64) -> bool {
        let _ = (number, value);
        false
    }

    /// Aims the watchpoint of that number. Whether it did.
    fn aim_watch(&mut self, number: u64, address: u64) -> bool {
        let _ = (number, address);
        false
    }

    /// What the watchpoint of this hit watches.
    fn watched_address(&mut self) -> u64 {
        0
    }

    /// [`bpf::Helper::TrueAddress`].
    fn true_address(&mut self, _slot: u64, value: u64) -> u64 {
        value
    }

    /// Records the call stack.
    fn record_stack(&mut self, flags: u8) {
        let _ = flags;
    }

    /// 0 while the trace buffer takes records.
    fn not_recording(&mut self) -> u32 {
        0
    }
}
