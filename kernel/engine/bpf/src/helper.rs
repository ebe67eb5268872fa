//! Helpers: the calls that a program may make.
//!
//! A helper that Linux has too has Linux's number and meaning. Our own begin with
//! [`Helper::FIRST_OWN`]. The interpreter of the tests (`bpf_interpreter`) is the reference of what
//! each one does to the last byte.
//!
//! A negated errno is one of [`errno`]. `EFAULT` means that memory cannot be read.

use crate::{MapKind, Reg};

/// A helper. Its arguments are in `r1` to `r5`, in the order of [`Helper::arguments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Helper {
    /// `(map, &key)`: the value of the key, or null.
    MapLookup = 1,
    /// `(map, &key, &value, flags)`: stores a value: flags 0 in any case, 1 if the key is new, 2 if
    /// it is there. 0, or a negated errno: `EINVAL` for other flags, `EEXIST`, `ENOENT`, `E2BIG` if
    /// there is no room. An array has all its indices and no other: with flags 1 `EEXIST`, and
    /// `E2BIG` for an index past its end, whatever the flags.
    MapUpdate = 2,
    /// `(map, &key)`: takes the key away. 0, or `ENOENT`, negated.
    MapDelete = 3,
    /// `()`: the number of the CPU.
    CpuId = 8,
    /// `()`: process in the upper, task in the lower 32 bits.
    PidTgid = 14,
    /// `(&buffer, size)`: the task's name, shortened to size, with a NUL. The rest of the buffer is
    /// zero. Returns 0.
    Comm = 16,
    /// `(context, map, flags)`: the number of the call stack in a map of stacks, or a negated
    /// errno: `EFAULT` if no frame is left, `E2BIG` if there is no room. The low 8 bits of flags
    /// are how many frames to skip. With [`USER_STACK`] it is the stack of the program in ring 3,
    /// and after its frames, which are two fewer than the map keeps, come two words with the task's
    /// name, because the addresses of programs mean nothing without their names. The other flags
    /// mean nothing.
    StackId = 27,
    /// `(&buffer, size, address)`: copies user memory. 0, or `EFAULT`, negated, with the buffer
    /// zero.
    ReadUser = 112,
    /// The same for kernel memory.
    ReadKernel = 113,
    /// `(&buffer, size, address)`: copies a NUL-terminated text from user memory. If it does not
    /// fit, its first size - 1 bytes and a NUL; the text after them is not read. The rest of the
    /// buffer is zero, because a buffer is often a key. Returns the bytes with the NUL, or
    /// `EFAULT`, negated, with the buffer zero.
    ReadUserStr = 114,
    /// The same for kernel memory.
    ReadKernelStr = 115,
    /// `(ring, size, 0)`: a record of constant size, or null if there is no room, or if no records
    /// are taken ([`Helper::NotRecording`]), which is counted. It must be submitted or discarded.
    /// Its bytes are not cleared; they may be read and mean nothing.
    RingReserve = 131,
    /// `(record, 0)`: gives the record to the reader.
    RingSubmit = 132,
    /// `(record, 0)`: drops the record.
    RingDiscard = 133,
    /// `(context)`: the probed address; for a return, the function's address.
    FuncIp = 173,

    /// `()`: the time stamp counter, raw.
    Tsc = 0x1000,
    /// `(value)`: the bucket of a histogram by powers of two: 0 for 0, else 1 + floor(log2(value)),
    /// at most 64.
    Log2,
    /// `(map, index, delta)`: adds to the first 8 bytes of a value of an array, whose values have 8
    /// bytes or more. An index (64 bits) that the array does not have adds nothing. Returns 0.
    Add,
    /// `(map, &key, delta)`: adds to the first 8 bytes of a hash's value, which begins with zero.
    /// 0, or `E2BIG`, negated, if there is no room.
    AddByKey,
    /// `(ring, size, dynamic, type)`: a record as [`Helper::RingReserve`] gives, of constant size,
    /// with room for `dynamic` more bytes after it, and with the common header of 8 bytes filled
    /// in: the low 16 bits of type, 8 bits of flags, 8 of preemption count, and the low 32 of
    /// [`Helper::PidTgid`]. The program sees `size` bytes. If `size + dynamic` is more than
    /// [`crate::MOST_RECORD_BYTES`], the room is what is left of that. The reader gets `size` bytes
    /// and what was appended.
    EventReserve,
    /// `(address, most)`: the length of a NUL-terminated text in kernel memory, with the NUL, at
    /// most `most`; more than [`crate::MOST_RECORD_BYTES`] counts as that. Returns `most` if none
    /// of these bytes is NUL, and 0 if the text cannot be read up to there.
    StrLen,
    /// The same in user memory.
    UserStrLen,
    /// `(record, address, length)`: appends a text of kernel memory to the dynamic part of a record
    /// of [`Helper::EventReserve`], at most `length` bytes and what is left, the last one NUL.
    /// Returns its place: offset in the record, and length with the NUL << 16. If it cannot be
    /// read, if length is 0, or if nothing is left, nothing is appended, and the length is 0.
    AppendStr,
    /// The same for user memory.
    AppendUserStr,
    /// `(record, &buffer, size)`: appends bytes of the program's own, of constant size, as many as
    /// are left room for. Returns their place as [`Helper::AppendStr`] does.
    AppendBytes,
    /// `()`: the data that the entry and the return of one call share. Zero at the entry. Not for a
    /// [`Probe`](crate::ProgramKind::Probe).
    EntryData,
    /// `()`: where the call of a return program returns to. For a
    /// [`Return`](crate::ProgramKind::Return) only.
    ReturnAddress,
    /// `(number, value)`: acts as the trigger of that number says, for example switches recording
    /// off, or aims a watchpoint at the value. 1, or 0 if nothing is to be done: no trigger has the
    /// number, or it has acted as often as it may.
    Trigger,
    /// `()`: 0 while the trace buffer takes records, a number up to 2^32 - 1 while it takes none.
    /// So a program that would only record can end early.
    NotRecording,
    /// `(map, &key, word)`: the sum over all CPUs of a word (8 bytes) of the key's value. A key or
    /// a word that is not there counts as 0. A value that changes meanwhile is seen as it was or
    /// as it is.
    SumOfCpus,
    /// `(map, &key, word)`: the greatest, as unsigned numbers. 0 if the key is nowhere.
    MostOfCpus,
    /// `(map, &key)`: takes the key away on all CPUs; of an array, sets its value to zero there. 0,
    /// or `ENOENT`, negated, if it was nowhere.
    DeleteOfCpus,
    /// `(map, place, &buffer, size)`: copies the key that is next from a place on, as far as it
    /// fits; the rest of the buffer is zero. Returns the place after it, never 0, or 0 if there is
    /// no further key. The first place is 0, and only places that it has returned mean something.
    /// Each key that is there all the while comes once, whatever CPUs have it.
    NextKey,
    /// `(context, ring, flags)`: records the call stack, with the common header. The low 8 bits of
    /// flags are added to those of the header; the others mean nothing. 0.
    RecordStack,
    /// `(map)`: how many keys there are. One that several CPUs have counts once. It takes as long
    /// as the map is large.
    CountKeys,
    /// `(map, number)`: how many words the call stack of that number has; 0 if there is no such
    /// number, for example because it is a negated errno of [`Helper::StackId`].
    CountFrames,
    /// `(&buffer, size, address, length)`: copies the first `length` bytes of kernel memory, at
    /// most size. The rest of the buffer is zero. 0, or `EFAULT`, negated, with the buffer zero. Of
    /// a length of 0 nothing is read, wherever the address is.
    ReadPart,
    /// The same for user memory.
    ReadUserPart,
    /// `(address, length, space)`: 1 if all these bytes can be read, of the first
    /// [`MOST_CHECKED`], else 0. Space 0 is the kernel's memory, any other that of the program.
    CanRead,
    /// `(number, address)`: aims the watchpoint of the script that has this number at the memory
    /// from the address on. 1, or 0 if there is no such watchpoint, or if that memory cannot be
    /// watched; then it watches nothing until the next call.
    AimWatch,
    /// `()`: the address that the watchpoint of this hit watches; 0 at other hits.
    WatchedAddress,
    /// `(map, &key, how)`: notes that the key is used: read ([`USE_READ`]), set ([`USE_CHANGED`]),
    /// or going to be set, with the most keys that there may be then in place of `how`. In the last
    /// case, if the key is not there and the map has so many, another key is deleted: the one that
    /// was probably not used for longest. CPUs that insert keys at the same time may exceed the
    /// number, so the map needs some entries more. 0. A map of which no program says so forgets
    /// nothing.
    UseKey,
    /// `(slot, value)`: the return address that belongs at the address `slot` of the kernel's
    /// stack, which holds `value`: the true one if a return probe has borrowed it, else `value`.
    TrueAddress,
}

/// The most bytes that [`Helper::CanRead`] looks at, so that a hit ends soon.
pub const MOST_CHECKED: u64 = 1 << 16;

/// The flag of [`Helper::StackId`] for the stack of the program, with Linux's number.
pub const USER_STACK: u64 = 0x100;

/// For [`Helper::UseKey`]: the key's value is read.
pub const USE_READ: u64 = 0;
/// For [`Helper::UseKey`]: the key was set.
pub const USE_CHANGED: u64 = u64::MAX;

/// The errors that helpers return, negated as they return them.
pub mod errno {
    /// The key is not there.
    pub const ENOENT: i64 = -(abi::errno::ENOENT as i64);
    /// There is no room, or the array has no such index.
    pub const E2BIG: i64 = -(abi::errno::E2BIG as i64);
    /// The memory cannot be read, or there is no call stack.
    pub const EFAULT: i64 = -(abi::errno::EFAULT as i64);
    /// The key is in the hands of an operation that this one has interrupted.
    pub const EBUSY: i64 = -(abi::errno::EBUSY as i64);
    /// The key is there already.
    pub const EEXIST: i64 = -(abi::errno::EEXIST as i64);
    /// There are no such flags.
    pub const EINVAL: i64 = -(abi::errno::EINVAL as i64);
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// `r1` as the program got it.
    Context,
    /// A map of one of these kinds.
    Map(&'static [MapKind]),
    /// A pointer to as many readable bytes as the map's keys have. Memory of an argument is the
    /// program's own: its stack (each byte set, if it is read), a value, a record, the data of
    /// entry and return. The context is not such memory.
    Key,
    /// A pointer to as many readable bytes as the map's values have.
    Value,
    /// A pointer to as many readable bytes as the next argument says.
    Readable,
    /// A pointer to as many writable bytes as the next argument says.
    Writable,
    /// The size of the memory of the argument before: a known constant, not 0.
    SizeOfIt,
    /// The size of a record: a known constant, 1 (8 with a header) to [`crate::MOST_RECORD_BYTES`].
    RecordSize,
    /// A known constant. That of [`Helper::RingReserve`] is 0.
    Constant,
    /// Any number. A pointer has one, too.
    Scalar,
    /// A record that is reserved, by the beginning of it. The call gives it back.
    ReleasedRecord,
    /// A record that is reserved by [`Helper::EventReserve`], by the beginning of it.
    Record,
}

/// The type of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    Scalar,
    /// A number of at most this.
    AtMost(u64),
    /// A value of the map in `r1`, or null.
    ValueOrNull,
    /// A record of the size in the argument, or null.
    RecordOrNull,
    /// The data that entry and return share.
    EntryData,
}

const ARRAYS: &[MapKind] = &[MapKind::Array, MapKind::PerCpuArray];
const HASHES: &[MapKind] = &[MapKind::Hash, MapKind::PerCpuHash];
const WITH_KEYS: &[MapKind] = &[
    MapKind::Array,
    MapKind::PerCpuArray,
    MapKind::Hash,
    MapKind::PerCpuHash,
];
const STACKS: &[MapKind] = &[MapKind::Stacks];
const RING: &[MapKind] = &[MapKind::Ring];

impl Helper {
    /// The number of the first helper that Linux does not have.
    pub const FIRST_OWN: u32 = Self::Tsc as u32;

    /// All of them.
    pub const ALL: [Self; 43] = [
        Self::MapLookup,
        Self::MapUpdate,
        Self::MapDelete,
        Self::CpuId,
        Self::PidTgid,
        Self::Comm,
        Self::StackId,
        Self::ReadUser,
        Self::ReadKernel,
        Self::ReadUserStr,
        Self::ReadKernelStr,
        Self::RingReserve,
        Self::RingSubmit,
        Self::RingDiscard,
        Self::FuncIp,
        Self::Tsc,
        Self::Log2,
        Self::Add,
        Self::AddByKey,
        Self::EventReserve,
        Self::StrLen,
        Self::UserStrLen,
        Self::AppendStr,
        Self::AppendUserStr,
        Self::AppendBytes,
        Self::EntryData,
        Self::ReturnAddress,
        Self::Trigger,
        Self::NotRecording,
        Self::SumOfCpus,
        Self::MostOfCpus,
        Self::DeleteOfCpus,
        Self::NextKey,
        Self::RecordStack,
        Self::CountKeys,
        Self::CountFrames,
        Self::ReadPart,
        Self::ReadUserPart,
        Self::CanRead,
        Self::AimWatch,
        Self::WatchedAddress,
        Self::UseKey,
        Self::TrueAddress,
    ];

    /// Its number in the wire form.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The helper with that number.
    pub fn numbered(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|helper| helper.number() == number)
    }

    /// The types of its arguments, from `r1` on.
    pub const fn arguments(self) -> &'static [Argument] {
        use Argument as A;
        match self {
            Self::MapLookup => &[A::Map(WITH_KEYS), A::Key],
            Self::MapUpdate => &[A::Map(WITH_KEYS), A::Key, A::Value, A::Scalar],
            Self::MapDelete => &[A::Map(HASHES), A::Key],
            Self::Comm => &[A::Writable, A::SizeOfIt],
            Self::StackId => &[A::Context, A::Map(STACKS), A::Scalar],
            Self::RecordStack => &[A::Context, A::Map(RING), A::Scalar],
            Self::ReadUser | Self::ReadKernel | Self::ReadUserStr | Self::ReadKernelStr => {
                &[A::Writable, A::SizeOfIt, A::Scalar]
            }
            Self::RingReserve => &[A::Map(RING), A::RecordSize, A::Constant],
            Self::RingSubmit | Self::RingDiscard => &[A::ReleasedRecord, A::Scalar],
            Self::FuncIp => &[A::Context],
            Self::CpuId
            | Self::PidTgid
            | Self::Tsc
            | Self::EntryData
            | Self::ReturnAddress
            | Self::NotRecording
            | Self::WatchedAddress => &[],
            Self::Log2 => &[A::Scalar],
            Self::Trigger | Self::AimWatch | Self::TrueAddress => &[A::Scalar, A::Scalar],
            Self::Add => &[A::Map(ARRAYS), A::Scalar, A::Scalar],
            Self::AddByKey => &[A::Map(HASHES), A::Key, A::Scalar],
            Self::EventReserve => &[A::Map(RING), A::RecordSize, A::Scalar, A::Constant],
            Self::StrLen | Self::UserStrLen => &[A::Scalar, A::Scalar],
            Self::AppendStr | Self::AppendUserStr => &[A::Record, A::Scalar, A::Scalar],
            Self::AppendBytes => &[A::Record, A::Readable, A::SizeOfIt],
            Self::SumOfCpus | Self::MostOfCpus => &[A::Map(WITH_KEYS), A::Key, A::Scalar],
            Self::DeleteOfCpus => &[A::Map(WITH_KEYS), A::Key],
            Self::NextKey => &[A::Map(HASHES), A::Scalar, A::Writable, A::SizeOfIt],
            Self::UseKey => &[A::Map(HASHES), A::Key, A::Scalar],
            Self::CountKeys => &[A::Map(HASHES)],
            Self::CountFrames => &[A::Map(STACKS), A::Scalar],
            Self::ReadPart | Self::ReadUserPart => {
                &[A::Writable, A::SizeOfIt, A::Scalar, A::Scalar]
            }
            Self::CanRead => &[A::Scalar, A::Scalar, A::Scalar],
        }
    }

    /// The type of its result.
    pub const fn returns(self) -> Returns {
        match self {
            Self::MapLookup => Returns::ValueOrNull,
            Self::RingReserve | Self::EventReserve => Returns::RecordOrNull,
            Self::EntryData => Returns::EntryData,
            Self::Log2 => Returns::AtMost(64),
            Self::CpuId | Self::NotRecording => Returns::AtMost(u32::MAX as u64),
            Self::Trigger | Self::CanRead | Self::AimWatch => Returns::AtMost(1),
            _ => Returns::Scalar,
        }
    }

    /// Whether it gets the registers of the probe, so that it can walk up the stack.
    pub const fn walks_the_stack(self) -> bool {
        matches!(self, Self::StackId | Self::RecordStack)
    }

    /// Whether it may read memory of the program in ring 3, or need more of its registers than the
    /// program of BPF itself names.
    pub const fn asks_the_program(self) -> bool {
        matches!(
            self,
            Self::StackId
                | Self::RecordStack
                | Self::ReadUser
                | Self::ReadUserStr
                | Self::ReadUserPart
                | Self::UserStrLen
                | Self::AppendUserStr
                | Self::CanRead
                | Self::Trigger
                | Self::AimWatch
        )
    }

    /// The registers that a call of it reads.
    pub fn reads(self) -> impl Iterator<Item = Reg> {
        (1..=self.arguments().len() as u8).filter_map(Reg::numbered)
    }
}
