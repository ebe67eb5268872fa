//! Refusals of filters.
//!
//! The texts that Linux has too are Linux's, letter for letter
//! (`kernel/trace/trace_events_filter.c`), and so are the columns, because tools compare them. A
//! column inside a test counts from 1, one between tests from 0, as in Linux.

use core::{error::Error, fmt};

use fallible::OutOfMemory;

use abi::errno;

/// The reason why a filter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterReason {
    InvalidOperator,
    TooManyOpen,
    TooManyClose,
    MissingQuote,
    OperandTooLong,
    ExpectString,
    ExpectDigit,
    IllegalFieldOperation,
    FieldNotFound,
    /// A field whose value is made with the record, which a filter comes before.
    OnlyInRecords,
    IllegalInteger,
    TooManyTerms,
    /// The event's program would be too large. The owner of the event finds that out.
    TooLarge,
    Meaningless,
    InvalidValue,
    FunctionNotFound,
    NoFilter,
    /// A filter for a whole group that does not fit one of its events.
    BadGroupFilter,
    OutOfMemory,
}

impl FilterReason {
    /// Its text in `error_log`.
    pub const fn text(self) -> &'static str {
        match self {
            Self::InvalidOperator => "Invalid operator",
            Self::TooManyOpen => "Too many '('",
            Self::TooManyClose => "Too few '('",
            Self::MissingQuote => "Missing matching quote",
            Self::OperandTooLong => "Operand too long",
            Self::ExpectString => "Expecting string field",
            Self::ExpectDigit => "Expecting numeric field",
            Self::IllegalFieldOperation => "Illegal operation for field type",
            Self::FieldNotFound => "Field not found",
            Self::OnlyInRecords => "This field is known only in a record",
            Self::IllegalInteger => "Illegal integer value",
            Self::TooManyTerms => "Too many terms in predicate expression",
            Self::TooLarge => {
                "The program of the event's filters and triggers is too large; use fewer patterns \
                 or histograms"
            }
            Self::Meaningless => "Meaningless filter expression",
            Self::InvalidValue => "Invalid value (did you forget quotes)?",
            Self::FunctionNotFound => "Function not found",
            Self::NoFilter => "No filter found",
            Self::BadGroupFilter => "Couldn't find or set field in one of a subsystem's events",
            Self::OutOfMemory => "No memory is left",
        }
    }

    const fn advice(self) -> &'static str {
        match self {
            Self::InvalidOperator => "operators are == != < <= > >= & ~",
            Self::TooManyOpen => "close each parenthesis, and open at most 16 at one place",
            Self::TooManyClose => "take the parenthesis away, or open one before it",
            Self::MissingQuote => "close the string with the quote that opens it",
            Self::OperandTooLong => "a string has at most 126 bytes, a number 23 letters",
            Self::ExpectString => "compare a string with a text in quotes",
            Self::ExpectDigit => "compare a number with a number, without quotes",
            Self::IllegalFieldOperation => {
                "numbers take == != < <= > >= &, strings == != ~, arrays nothing"
            }
            Self::FieldNotFound => "the event's format file lists its fields",
            Self::OnlyInRecords => "filter what you read, or by another field",
            Self::IllegalInteger => "write decimal, 0x and hexadecimal, or 0 and octal digits",
            Self::TooManyTerms => "join tests with && or ||",
            Self::TooLarge => "a * before the end of a pattern takes the most room",
            Self::Meaningless => "a test is missing here",
            Self::InvalidValue => "write a number, or a text in quotes",
            Self::FunctionNotFound => "kallsyms lists the functions",
            Self::NoFilter => "write a test, or 0 to keep all",
            Self::BadGroupFilter => "the event's own filter file says what is wrong with it",
            Self::OutOfMemory => "delete events or shrink buffers",
        }
    }
}

/// A refusal: a reason, and the column of the caret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The reason.
    pub reason: FilterReason,
    /// The column, counted as Linux counts it.
    pub column: usize,
}

impl FilterError {
    /// The name that filters have in [`ErrorLog`](crate::error_log::ErrorLog::add).
    pub const LOCATION: &'static str = "event filter parse error";

    /// See [`FilterReason::TooLarge`].
    pub const TOO_LARGE: Self = Self::new(FilterReason::TooLarge, 0);

    /// A filter for a whole group does not fit the event.
    pub const BAD_GROUP_FILTER: Self = Self::new(FilterReason::BadGroupFilter, 0);

    /// The errno of the write.
    pub const fn errno(self) -> i32 {
        match self.reason {
            FilterReason::OutOfMemory => errno::ENOMEM,
            _ => errno::EINVAL,
        }
    }

    pub(super) const fn new(reason: FilterReason, column: usize) -> Self {
        Self { reason, column }
    }

    /// The content of the `filter` file after the refusal of `text`: the text, a caret below it,
    /// and the reason.
    pub fn shown<'a>(&self, text: &'a str) -> Shown<'a> {
        Shown {
            error: *self,
            text: text.trim_end(),
        }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, column } = self;
        write!(
            f,
            "{} (column {column}): {}",
            reason.text(),
            reason.advice()
        )
    }
}

impl Error for FilterError {}

impl From<OutOfMemory> for FilterError {
    fn from(_: OutOfMemory) -> Self {
        Self::new(FilterReason::OutOfMemory, 0)
    }
}

/// See [`FilterError::shown`].
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    error: FilterError,
    text: &'a str,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = self.error.column.min(self.text.len());
        let width = if column == 0 { 0 } else { column + 1 };
        let reason = self.error.reason.text();
        writeln!(f, "{}\n{:>width$}\nparse_error: {reason}", self.text, '^')
    }
}
