//! Refusals of a line: the reason, and the column where the caret stands.
//!
//! The texts of the reasons that Linux has too are Linux's, letter for letter
//! (`kernel/trace/trace_probe.h`), because tools compare them.

use core::{error::Error, fmt};

use abi::errno;
use fallible::OutOfMemory;

/// The reason why a line is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    // In Linux's order.
    FileNotFound,
    NoRegularFile,
    BadReferenceCounter,
    ReferenceCounterNotClosed,
    BadReferenceCounterSuffix,
    BadUserOffset,
    BadMaxactiveType,
    BadMaxactive,
    MaxactiveTooBig,
    BadProbeAddress,
    SymbolNotUnique,
    BadReturnProbe,
    BadAddressSuffix,
    NoGroupName,
    GroupTooLong,
    BadGroupName,
    NoEventName,
    EventTooLong,
    BadEventName,
    EventExists,
    RetvalOnProbe,
    BadStackNumber,
    BadArgumentNumber,
    BadVariable,
    BadRegister,
    BadMemoryAddress,
    BadImmediate,
    StringNotClosed,
    FileOnKprobe,
    BadFileOffset,
    SymbolOnUserProbe,
    TooManySteps,
    DereferenceNeedsBrace,
    BadDereferenceOffset,
    DereferenceNotClosed,
    CommDereferenced,
    BadFetch,
    ArrayNotClosed,
    BadArraySuffix,
    BadArrayNumber,
    ArrayTooBig,
    BadType,
    BadString,
    BadSymbolString,
    BadBitfield,
    ArgumentNameTooLong,
    NoArgumentName,
    BadArgumentName,
    UsedArgumentName,
    ArgumentTooLong,
    NoArgumentBody,
    BadInstructionBoundary,
    RegistrationFailed,
    DifferentProbeType,
    DifferentArgumentType,
    SameProbe,
    NoArgumentNames,
    NotFunctionEntry,
    NeedStringType,
    TooManyArguments,
    TooManyEntryArguments,
    EventTooBig,
    // Linux refuses these without a message.
    /// The line is longer than [`crate::commands::MOST_LINE_BYTES`].
    LineTooLong,
    /// The line is not UTF-8.
    NotText,
    /// A `#` inside a string.
    CommentInString,
    /// The first letter is no command.
    BadCommand,
    /// No place to probe follows.
    NoPlace,
    /// The place is one of user space.
    UserProbe,
    /// The place is one of the kernel.
    KernelProbe,
    /// What stands before the `@` of a watch, or no watch after a `w`.
    BadAccess,
    /// A watch of reads alone.
    ReadsAlone,
    /// The length of a watch, or an address that does not fit it.
    BadWatchLength,
    /// The name is that of a file beside groups or events.
    NameOfFile,
    /// A deletion without a name.
    BadDeletion,
    /// A deletion of what is not there.
    NotFound,
    /// A deletion of what is in use.
    Busy,
    /// No memory is left.
    OutOfMemory,
}

impl Reason {
    /// Its text in `error_log`.
    pub const fn text(self) -> &'static str {
        match self {
            Self::FileNotFound => "Failed to find the given file",
            Self::NoRegularFile => "Not a regular file",
            Self::BadReferenceCounter => "Invalid reference counter offset",
            Self::ReferenceCounterNotClosed => "Reference counter brace is not closed",
            Self::BadReferenceCounterSuffix => "Reference counter has wrong suffix",
            Self::BadUserOffset => "Invalid uprobe offset",
            Self::BadMaxactiveType => "Maxactive is only for function exit",
            Self::BadMaxactive => "Invalid maxactive number",
            Self::MaxactiveTooBig => "Maxactive is too big",
            Self::BadProbeAddress => "Invalid probed address or symbol",
            Self::SymbolNotUnique => "The symbol is not unique",
            Self::BadReturnProbe => "Retprobe address must be an function entry",
            Self::BadAddressSuffix => "Invalid probed address suffix",
            Self::NoGroupName => "Group name is not specified",
            Self::GroupTooLong => "Group name is too long",
            Self::BadGroupName => "Group name must follow the same rules as C identifiers",
            Self::NoEventName => "Event name is not specified",
            Self::EventTooLong => "Event name is too long",
            Self::BadEventName => "Event name must follow the same rules as C identifiers",
            Self::EventExists => "Given group/event name is already used by another event",
            Self::RetvalOnProbe => "$retval is not available on probe",
            Self::BadStackNumber => "Invalid stack number",
            Self::BadArgumentNumber => "Invalid argument number",
            Self::BadVariable => "Invalid $-variable specified",
            Self::BadRegister => "Invalid register name",
            Self::BadMemoryAddress => "Invalid memory address",
            Self::BadImmediate => "Invalid immediate value",
            Self::StringNotClosed => "String is not closed with '\"'",
            Self::FileOnKprobe => "File offset is not available with kprobe",
            Self::BadFileOffset => "Invalid file offset value",
            Self::SymbolOnUserProbe => "Symbol is not available with uprobe",
            Self::TooManySteps => "Dereference is too much nested",
            Self::DereferenceNeedsBrace => "Dereference needs a brace",
            Self::BadDereferenceOffset => "Invalid dereference offset",
            Self::DereferenceNotClosed => "Dereference brace is not closed",
            Self::CommDereferenced => "$comm can not be dereferenced",
            Self::BadFetch => "Invalid fetch argument",
            Self::ArrayNotClosed => "Array is not closed",
            Self::BadArraySuffix => "Array has wrong suffix",
            Self::BadArrayNumber => "Invalid array size",
            Self::ArrayTooBig => "Array number is too big",
            Self::BadType => "Unknown type is specified",
            Self::BadString => "String accepts only memory argument",
            Self::BadSymbolString => "Symbol String doesn't accept data/userdata",
            Self::BadBitfield => "Invalid bitfield",
            Self::ArgumentNameTooLong => "Argument name is too long",
            Self::NoArgumentName => "Argument name is not specified",
            Self::BadArgumentName => "Argument name must follow the same rules as C identifiers",
            Self::UsedArgumentName => "This argument name is already used",
            Self::ArgumentTooLong => "Argument expression is too long",
            Self::NoArgumentBody => "No argument expression",
            Self::BadInstructionBoundary => "Probe point is not an instruction boundary",
            Self::RegistrationFailed => "Failed to register probe event",
            Self::DifferentProbeType => "Probe type is different from existing probe",
            Self::DifferentArgumentType => "Argument type or name is different from existing probe",
            Self::SameProbe => "There is already the exact same probe event",
            Self::NoArgumentNames => "BTF is not available or not supported",
            Self::NotFunctionEntry => "$arg* can be used only on function entry or exit",
            Self::NeedStringType => "$comm and immediate-string only accepts string type",
            Self::TooManyArguments => "Too many arguments are specified",
            Self::TooManyEntryArguments => "Too many entry arguments specified",
            Self::EventTooBig => "Event too big (too many fields?)",
            Self::LineTooLong => "Line is longer than 4094 bytes; write one definition to a line",
            Self::NotText => "Line is not UTF-8 text",
            Self::CommentInString => {
                "A string cannot hold '#', which begins a comment; leave it out"
            }
            Self::BadCommand => "A definition begins with p, r or -; in dynamic_events also with w",
            Self::NoPlace => {
                "No place to probe is given; write SYMBOL, SYMBOL+OFFSET or an address"
            }
            Self::UserProbe => {
                "Places in user space are not for kprobe_events; write to uprobe_events"
            }
            Self::KernelProbe => {
                "Places in the kernel are not for uprobe_events; write PATH:OFFSET"
            }
            Self::BadAccess => "A watch is w@<address>[:<length>] or rw@<symbol>[+<offset>]",
            Self::ReadsAlone => "The processor cannot watch reads alone; write rw@",
            Self::BadWatchLength => {
                "A watch has 1, 2, 4 or 8 bytes, and its address is a multiple of that"
            }
            Self::NameOfFile => "A file of tracing has this name; choose another",
            Self::BadDeletion => "A deletion needs a name: -:[<group>/][<event>]",
            Self::NotFound => "No such event; dynamic_events lists those that are there",
            Self::Busy => "Event is in use; disable it and remove its triggers first",
            Self::OutOfMemory => "No memory is left; delete events or shrink buffers",
        }
    }

    /// The errno of the write.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotFound | Self::FileNotFound => errno::ENOENT,
            Self::ArgumentTooLong
            | Self::TooManyArguments
            | Self::TooManyEntryArguments
            | Self::EventTooBig => errno::E2BIG,
            Self::OutOfMemory => errno::ENOMEM,
            Self::Busy => errno::EBUSY,
            Self::EventExists
            | Self::NameOfFile
            | Self::DifferentProbeType
            | Self::DifferentArgumentType
            | Self::SameProbe => errno::EEXIST,
            Self::BadInstructionBoundary => errno::EILSEQ,
            Self::NoArgumentNames => errno::EOPNOTSUPP,
            _ => errno::EINVAL,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A refusal: a reason at a place in a line.
///
/// The place is a word and an offset into it, because the line is logged with single spaces between
/// its words. [`crate::commands::Words::column`] gives the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The number of the word. The number of words stands for the place after the last one.
    pub word: usize,
    /// The offset into the word.
    pub offset: usize,
}

impl Refusal {
    /// The word of the command and the name.
    pub const NAME: usize = 0;
    /// The word of the place.
    pub const PLACE: usize = 1;
    /// The word of the first argument.
    pub const ARGUMENTS: usize = 2;

    /// A refusal at `offset` of word `word`.
    pub const fn new(reason: Reason, word: usize, offset: usize) -> Self {
        Self {
            reason,
            word,
            offset,
        }
    }

    /// A refusal of the place: an unknown symbol, a wrong boundary, or a failed registration.
    pub const fn place(reason: Reason) -> Self {
        Self::new(reason, Self::PLACE, 0)
    }

    /// A refusal of the line as a whole.
    pub const fn line(reason: Reason) -> Self {
        Self::new(reason, Self::NAME, 0)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (word {}, letter {})",
            self.reason,
            self.word + 1,
            self.offset + 1
        )
    }
}

impl Error for Refusal {}

impl From<OutOfMemory> for Reason {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<OutOfMemory> for Refusal {
    fn from(_: OutOfMemory) -> Self {
        Self::line(Reason::OutOfMemory)
    }
}

/// The reason and the column if there is no memory for a part of a line.
pub(crate) fn no_memory(_: OutOfMemory) -> (Reason, usize) {
    (Reason::OutOfMemory, 0)
}
