//! Refusals of `hist` triggers.
//!
//! The texts that Linux has too are Linux's, letter for letter
//! (`kernel/trace/trace_events_hist.c`), because tools compare them.

use core::{error::Error, fmt};

use fallible::OutOfMemory;

use abi::errno;

use crate::filter::{FilterError, FilterReason};

/// The reason why a `hist` trigger is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HistReason {
    Exists,
    NoneToContinueOrClear,
    BadModifier,
    FieldNotFound,
    EmptyAssignment,
    BadSortModifier,
    EmptySortField,
    TooManySortFields,
    BadSortField,
    StringOperand,
    /// `nohitcount` without another value.
    NoValueBesideHits,
    // Linux refuses these without a message.
    /// There is no `keys=`.
    NoKeys,
    TooManyKeys,
    TooManyValues,
    BadSize,
    /// An array or a `symstr`.
    NotOneValue,
    /// A field whose value is made with the record.
    OnlyInRecords,
    /// A variable, an expression or an action.
    NotSupported,
    /// A part that is none of the above.
    UnknownPart,
    /// The event's program would be too large. The owner of the event finds that out.
    TooLarge,
    OutOfMemory,
}

impl HistReason {
    /// Its text in `error_log`.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Exists => "Hist trigger already exists",
            Self::NoneToContinueOrClear => "Can't clear or continue a nonexistent hist trigger",
            Self::BadModifier => "Invalid field modifier",
            Self::FieldNotFound => "Couldn't find field",
            Self::EmptyAssignment => "Empty assignment",
            Self::BadSortModifier => "Invalid sort modifier",
            Self::EmptySortField => "Empty sort field",
            Self::TooManySortFields => "Too many sort fields (Max = 2)",
            Self::BadSortField => "Sort field must be a key or a val",
            Self::StringOperand => "String type can not be an operand in expression",
            Self::NoValueBesideHits => "Non-hitcount value is required for 'nohitcount'",
            Self::NoKeys => "No keys; write keys=FIELD",
            Self::TooManyKeys => "Too many keys (Max = 3)",
            Self::TooManyValues => "Too many vals (Max = 2 besides hitcount)",
            Self::BadSize => "The size must be a number from 65 to 131072",
            Self::NotOneValue => "An array or a symstr can be neither key nor val",
            Self::OnlyInRecords => "This field is known only in a record",
            Self::NotSupported => "Variables, expressions and actions are not supported",
            Self::UnknownPart => {
                "Unknown part; there are keys vals sort size name nohitcount pause cont clear"
            }
            Self::TooLarge => FilterReason::TooLarge.text(),
            Self::OutOfMemory => "No memory is left; delete events or shrink buffers",
        }
    }

    /// The errno of the write.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoneToContinueOrClear | Self::NoValueBesideHits => errno::ENOENT,
            Self::OutOfMemory => errno::ENOMEM,
            Self::Exists => errno::EEXIST,
            _ => errno::EINVAL,
        }
    }
}

impl fmt::Display for HistReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistError {
    /// A refusal of the trigger. The column counts from 0, from the `h` of `hist:`.
    Trigger { reason: HistReason, column: usize },
    /// A refusal of the filter after `if`. Its column counts in the filter.
    Filter(FilterError),
}

impl HistError {
    pub(super) const fn new(reason: HistReason, column: usize) -> Self {
        Self::Trigger { reason, column }
    }

    /// The errno of the write.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Trigger { reason, .. } => reason.errno(),
            Self::Filter(error) => error.errno(),
        }
    }
}

impl fmt::Display for HistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trigger { reason, column } => write!(f, "{reason} (column {column})"),
            Self::Filter(error) => error.fmt(f),
        }
    }
}

impl Error for HistError {}

impl From<OutOfMemory> for HistError {
    fn from(_: OutOfMemory) -> Self {
        Self::new(HistReason::OutOfMemory, 0)
    }
}
