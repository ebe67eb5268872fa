//! Triggers: what else a hit of an event does, as the lines of a `trigger` file say.
//!
//! ```text
//! traceoff:1 if common_pid == 12          stop tracing at the first such hit
//! enable_event:kprobes:read_ret           let another event record from the first hit on
//! enable_hist:kprobes:read_ret            let its histograms count from there on
//! hist:keys=common_pid                    count
//! set_wprobe:file:address                 watch the object that the hit has found
//! !traceoff                               take the trigger away
//! ```
//!
//! The language, the errnos and the file are those of Linux (`Documentation/trace/events.rst`,
//! section 6). [`Line::parse`] reads a line, and [`Line::apply`] says what it changes among the
//! triggers of an event. The owner does it, and keeps with each [`Trigger`] what runs: the count
//! that is left, the program and its maps.
//!
//! # Rules
//! TRIGGER-1. An event has at most one trigger of a kind ([`Trigger::same_place`]): `traceon` and
//!     `traceoff` are one kind, `enable_event` and `disable_event` of one event are one, and
//!     `enable_hist` and `disable_hist` of one are. Histograms differ if [`Hist::is_same`] says no.
//! TRIGGER-2. `!` takes away the trigger of the kind, whatever its count and filter are. Nothing
//!     happens if there is none, because scripts take away what an opening for writing took
//!     already.
//! TRIGGER-3. A line that the file shows can be written again, with `!` in front of it, too.

mod watch;

use alloc::{boxed::Box, string::String};
use core::{error::Error, fmt};

use fallible::{OutOfMemory, copied, try_box};

use abi::errno;

use crate::{
    field::{Field, Symbols},
    filter::{Filter, FilterError},
    hist::{Hist, HistError, HistReason, Order, split_filter},
    number,
};

pub use watch::{FieldAddress, WatchReason};

/// The name of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    TraceOn,
    TraceOff,
    Snapshot,
    StackTrace,
    EnableEvent,
    DisableEvent,
    EnableHist,
    DisableHist,
    SetWprobe,
    ClearWprobe,
    Hist,
}

impl Command {
    /// All of them, in the order in which an empty file lists them.
    pub const ALL: [Self; 11] = [
        Self::TraceOn,
        Self::TraceOff,
        Self::Snapshot,
        Self::StackTrace,
        Self::EnableEvent,
        Self::DisableEvent,
        Self::EnableHist,
        Self::DisableHist,
        Self::SetWprobe,
        Self::ClearWprobe,
        Self::Hist,
    ];

    /// How it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TraceOn => "traceon",
            Self::TraceOff => "traceoff",
            Self::Snapshot => "snapshot",
            Self::StackTrace => "stacktrace",
            Self::EnableEvent => "enable_event",
            Self::DisableEvent => "disable_event",
            Self::EnableHist => "enable_hist",
            Self::DisableHist => "disable_hist",
            Self::SetWprobe => "set_wprobe",
            Self::ClearWprobe => "clear_wprobe",
            Self::Hist => "hist",
        }
    }
}

/// The text of a file without triggers: the commands that exist.
#[derive(Clone, Copy, Debug)]
pub struct Available<'a>(pub &'a [Command]);

impl fmt::Display for Available<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# Available triggers:\n#")?;
        for command in self.0 {
            write!(f, " {}", command.name())?;
        }
        f.write_str("\n")
    }
}

/// The text of the file `README` on triggers: the part after [`EVENTS`](crate::readme::EVENTS). The
/// forms are written as in Linux's file, because tests search it for them.
pub const README: &str = r#"      trigger		- If set, a command to perform when event is hit
	    Format: <trigger>[:count][if <filter>]
	   trigger: traceon, traceoff
	            enable_event:<system>:<event>
	            disable_event:<system>:<event>
	            enable_hist:<system>:<event>
	            disable_hist:<system>:<event>
	            set_wprobe:<wprobe>:<field>[+|-<offset>]
	            clear_wprobe:<wprobe>[:<field>[+|-<offset>]]
		    stacktrace
		    snapshot
		    hist (see below)
	   example: echo traceoff:1 > events/kprobes/myprobe/trigger
	            echo 'enable_event:kprobes:other:3 if size > 1' > \
	                  events/kprobes/myprobe/trigger
	   A count says how often the trigger acts; a trigger that would change
	     nothing keeps its count.
	   To remove a trigger:
	     echo '!<trigger>' > events/<system>/<event>/trigger
	   Count and filter are ignored when removing a trigger, except the filter of
	     a hist trigger.
      hist trigger	- If set, event hits are aggregated into a hash table
	    Format: hist:keys=<field1[,field2,...]>
	            [:values=<field1[,field2,...]>]
	            [:sort=<field1[,field2,...]>]
	            [:size=#entries]
	            [:pause][:continue][:clear]
	            [:name=histname1]
	            [:nohitcount]
	            [if <filter>]
	    common_stacktrace, common_cpu, common_comm and the fields of the
	      event can be keys; hitcount is always a value.
	    Modifiers of a key:
	            .hex        display a number as a hex value
	            .sym        display an address as a symbol
	            .sym-offset display an address as a symbol and offset
	            .execname   display a common_pid as a program name
	            .syscall    display a syscall id as a syscall name
	            .log2       display log2 value rather than raw number
	            .buckets=size  display values in groups of size rather than raw number
	    Modifiers of a value, of hitcount, too:
	            .hex        display a number as a hex value
	            .percent    display a number of percentage value
	            .graph      display a bar-graph of a value
	    A sort field can have .descending.
	    The 'nohitcount' (or NOHC) parameter will suppress display of
	      raw hitcount in the histogram.
	    The enable_hist and disable_hist triggers start and stop the
	      histograms of another event.
	    The table is read in events/<system>/<event>/hist
"#;

/// What a trigger turns on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// That hits are recorded.
    Records,
    /// That hits are counted by the event's histograms.
    Histograms,
}

/// The act of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    TraceOn,
    TraceOff,
    Snapshot,
    StackTrace,
    /// Lets another event record, or its histograms count, or stops that.
    SetEvent {
        enable: bool,
        switched: Switched,
        group: String,
        event: String,
    },
    /// Aims a watch of the group `wprobes`: with `set` at that address if it is aimed at nothing,
    /// else at nothing, with an address if it is aimed there.
    AimWatch {
        set: bool,
        event: String,
        address: Option<FieldAddress>,
    },
    Hist(Box<Hist>),
}

impl Action {
    /// Its command.
    pub const fn command(&self) -> Command {
        match self {
            Self::TraceOn => Command::TraceOn,
            Self::TraceOff => Command::TraceOff,
            Self::Snapshot => Command::Snapshot,
            Self::StackTrace => Command::StackTrace,
            Self::SetEvent {
                enable, switched, ..
            } => match (switched, enable) {
                (Switched::Records, true) => Command::EnableEvent,
                (Switched::Records, false) => Command::DisableEvent,
                (Switched::Histograms, true) => Command::EnableHist,
                (Switched::Histograms, false) => Command::DisableHist,
            },
            Self::AimWatch { set: true, .. } => Command::SetWprobe,
            Self::AimWatch { set: false, .. } => Command::ClearWprobe,
            Self::Hist(_) => Command::Hist,
        }
    }
}

impl Action {
    /// Whether it is done when the hit has been recorded, and not before.
    pub const fn is_after_the_record(&self) -> bool {
        matches!(self, Self::StackTrace | Self::Snapshot)
    }
}

/// A trigger of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    pub action: Action,
    /// How often it acts; `None` is always. A histogram has no count.
    pub count: Option<u64>,
    /// The hits at which it acts. That of a histogram is in the [`Hist`].
    pub filter: Option<Filter>,
}

impl Trigger {
    /// Whether both are of one kind, so that an event has one of them at most.
    pub fn same_place(&self, other: &Self) -> bool {
        match (&self.action, &other.action) {
            (Action::TraceOn | Action::TraceOff, Action::TraceOn | Action::TraceOff)
            | (Action::Snapshot, Action::Snapshot)
            | (Action::StackTrace, Action::StackTrace) => true,
            (
                Action::SetEvent {
                    switched,
                    group,
                    event,
                    ..
                },
                Action::SetEvent {
                    switched: other_switched,
                    group: other_group,
                    event: other_event,
                    ..
                },
            ) => (switched, group, event) == (other_switched, other_group, other_event),
            (
                Action::AimWatch { set, event, .. },
                Action::AimWatch {
                    set: other_set,
                    event: other,
                    ..
                },
            ) => set == other_set && event == other,
            (Action::Hist(hist), Action::Hist(other)) => hist.is_same(other),
            _ => false,
        }
    }

    /// Its line in the file, without a newline. `left` is what is left of its count, `paused`
    /// whether its histogram does not count, and `missed` at how many hits it could not act.
    pub const fn line(&self, left: Option<u64>, paused: bool, missed: u64) -> Shown<'_> {
        Shown {
            trigger: self,
            left,
            paused,
            missed,
        }
    }
}

/// See [`Trigger::line`].
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    trigger: &'a Trigger,
    left: Option<u64>,
    paused: bool,
    missed: u64,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trigger { action, filter, .. } = self.trigger;
        if let Action::Hist(hist) = action {
            return hist.line(self.paused).fmt(f);
        }
        f.write_str(action.command().name())?;
        if let Action::SetEvent { group, event, .. } = action {
            write!(f, ":{group}:{event}")?;
        }
        if let Action::AimWatch { event, address, .. } = action {
            write!(f, ":{event}")?;
            if let Some(FieldAddress { field, adjust }) = address {
                write!(f, ":{}{adjust:+}", field.name)?;
            }
        }
        match self.left {
            None => f.write_str(":unlimited")?,
            Some(count) => write!(f, ":count={count}")?,
        }
        if let Some(filter) = filter {
            write!(f, " if {}", filter.text())?;
        }
        match self.missed {
            0 => Ok(()),
            missed => write!(f, " # missed: {missed}"),
        }
    }
}

/// The reason why a line is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerError {
    /// There is no command of that name.
    UnknownCommand,
    /// `enable_event` without a group and an event, or `hist` without keys.
    NoParameter,
    /// The count is no number.
    BadCount,
    /// The rest is not `if` and a filter.
    NoIf,
    /// There is a trigger of the kind.
    Exists,
    /// The event to set is not there. The owner of the events finds that out.
    NoSuchEvent,
    /// The filter is refused.
    Filter(FilterError),
    /// The histogram is refused.
    Hist(HistError),
    /// The watch is refused, because of what stands at that column of the line.
    Watch {
        reason: WatchReason,
        column: usize,
    },
    OutOfMemory,
}

impl From<OutOfMemory> for TriggerError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl TriggerError {
    /// The watch that `text` names is refused.
    pub fn watch(reason: WatchReason, text: &str) -> Self {
        let column = text.trim().find(':').map_or(0, |colon| colon + 1);
        Self::Watch { reason, column }
    }

    /// The errno of the write.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Exists => errno::EEXIST,
            Self::Filter(error) => error.errno(),
            Self::Hist(error) => error.errno(),
            Self::Watch { reason, .. } => reason.errno(),
            Self::OutOfMemory => errno::ENOMEM,
            _ => errno::EINVAL,
        }
    }

    /// The entry in `error_log` about the refusal of `text`, a line for the event `GROUP:EVENT`. As
    /// in Linux, only filters, histograms and watches are reported there.
    pub fn log_entry<'a>(&self, text: &'a str) -> Option<LogEntry<'a>> {
        if let Self::Watch { reason, column } = *self {
            return Some(LogEntry {
                source: LogSource::Watch,
                text: reason.text(),
                prefix: "",
                command: text.trim(),
                column,
            });
        }
        let rest = text.trim().split_once(SEPARATORS)?.1.trim_start();
        match *self {
            Self::Filter(error) | Self::Hist(HistError::Filter(error)) => Some(LogEntry {
                source: LogSource::Filter,
                text: error.reason.text(),
                prefix: "",
                command: behind_if(rest).or_else(|| split_filter(rest).1)?,
                column: error.column,
            }),
            Self::Hist(HistError::Trigger { reason, column }) => Some(LogEntry {
                source: LogSource::Hist,
                text: reason.text(),
                prefix: "hist:",
                command: rest,
                column,
            }),
            _ => None,
        }
    }
}

impl fmt::Display for TriggerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownCommand => "no trigger has this name; the empty file lists their names",
            Self::NoParameter => "more is needed: enable_event:GROUP:EVENT, hist:keys=FIELD",
            Self::BadCount => "the count is no number; write for example traceoff:1",
            Self::NoIf => "after the trigger only a count and `if FILTER` may follow",
            Self::Exists => "the event has a trigger of this kind; take it away with ! first",
            Self::NoSuchEvent => "there is no such event; available_events lists those there are",
            Self::Filter(error) => return error.fmt(f),
            Self::Hist(error) => return error.fmt(f),
            Self::Watch { reason, .. } => reason.text(),
            Self::OutOfMemory => "no memory is left; delete events or shrink buffers",
        })
    }
}

impl Error for TriggerError {}

/// Who reports a refusal in `error_log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSource {
    /// [`FilterError::LOCATION`].
    Filter,
    /// `hist:GROUP:EVENT`.
    Hist,
    /// [`WPROBE_TRIGGER`](crate::error_log::WPROBE_TRIGGER).
    Watch,
}

/// An entry of `error_log`: see [`TriggerError::log_entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry<'a> {
    pub source: LogSource,
    /// The reason.
    pub text: &'static str,
    prefix: &'static str,
    command: &'a str,
    /// Where the caret stands.
    pub column: usize,
}

impl LogEntry<'_> {
    /// The command that it shows.
    pub fn command(&self) -> impl fmt::Display {
        fmt::from_fn(move |f| write!(f, "{}{}", self.prefix, self.command))
    }
}

/// The signs that may follow a command.
const SEPARATORS: [char; 3] = [':', ' ', '\t'];

/// A line of a `trigger` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whether it takes the trigger away.
    pub remove: bool,
    pub trigger: Trigger,
}

/// The change that a line makes among the triggers of an event. An index is that of an existing
/// trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// The trigger is new. Its histogram does not count yet if `paused`.
    Add {
        paused: bool,
    },
    Remove(usize),
    /// The histogram shall not count.
    Pause(usize),
    /// The histogram shall count again.
    Continue(usize),
    /// The histogram shall be empty.
    Clear(usize),
}

impl Line {
    /// Reads a line for an event with `fields`. The common ones need not be among them.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub fn parse(
        text: &str,
        fields: &[Field],
        symbols: &dyn Symbols,
    ) -> Result<Self, TriggerError> {
        let line = text.trim();
        let (remove, text) = match line.strip_prefix('!') {
            Some(text) => (true, text),
            None => (false, line),
        };
        let (name, rest) = match text.split_once(SEPARATORS) {
            Some((name, rest)) => (name, rest.trim_start()),
            None => text.split_at(text.len()),
        };
        let command = Command::ALL
            .into_iter()
            .find(|command| command.name() == name);
        let (action, rest) = match command.ok_or(TriggerError::UnknownCommand)? {
            Command::TraceOn => (Action::TraceOn, rest),
            Command::TraceOff => (Action::TraceOff, rest),
            Command::Snapshot => (Action::Snapshot, rest),
            Command::StackTrace => (Action::StackTrace, rest),
            Command::EnableEvent => set_event(true, Switched::Records, rest)?,
            Command::DisableEvent => set_event(false, Switched::Records, rest)?,
            Command::EnableHist => set_event(true, Switched::Histograms, rest)?,
            Command::DisableHist => set_event(false, Switched::Histograms, rest)?,
            Command::SetWprobe => watch::parse(true, line, rest, fields)?,
            Command::ClearWprobe => watch::parse(false, line, rest, fields)?,
            Command::Hist => {
                if rest.is_empty() {
                    return Err(TriggerError::NoParameter);
                }
                let hist = Hist::parse(rest, fields, symbols).map_err(TriggerError::Hist)?;
                let action = Action::Hist(try_box(hist)?);
                return Ok(Self {
                    remove,
                    trigger: Trigger {
                        action,
                        count: None,
                        filter: None,
                    },
                });
            }
        };
        let (mut count, mut filter) = (None, None);
        // The trigger to take away is known by its kind, so the file's `:unlimited` needs no
        // reading.
        if !remove {
            // As in Linux, a colon after these names needs a count.
            let ends_in_colon = text.split_whitespace().next().is_some_and(|word| {
                matches!(action, Action::SetEvent { .. }) && word.ends_with(':')
            });
            if ends_in_colon {
                return Err(TriggerError::BadCount);
            }
            let condition;
            (count, condition) = split_count(rest)?;
            filter = read_filter(condition, fields, symbols)?;
        }
        Ok(Self {
            remove,
            trigger: Trigger {
                action,
                count,
                filter,
            },
        })
    }

    /// The change that it makes among the triggers `there`.
    ///
    /// # Errors
    /// [`TriggerError::Exists`], or those of a histogram.
    pub fn apply<'a>(
        &self,
        there: impl IntoIterator<Item = &'a Trigger>,
    ) -> Result<Change, TriggerError> {
        let index = there
            .into_iter()
            .position(|trigger| trigger.same_place(&self.trigger));
        let hist_error = |reason| Err(TriggerError::Hist(HistError::Trigger { reason, column: 0 }));
        if self.remove {
            return Ok(index.map_or(Change::None, Change::Remove));
        }
        let Action::Hist(hist) = &self.trigger.action else {
            return match index {
                None => Ok(Change::Add { paused: false }),
                Some(_) => Err(TriggerError::Exists),
            };
        };
        match (hist.order, index) {
            (Order::New, None) => Ok(Change::Add { paused: false }),
            (Order::New, Some(_)) => hist_error(HistReason::Exists),
            (Order::Pause, None) => Ok(Change::Add { paused: true }),
            (Order::Pause, Some(index)) => Ok(Change::Pause(index)),
            (Order::Continue, Some(index)) => Ok(Change::Continue(index)),
            (Order::Clear, Some(index)) => Ok(Change::Clear(index)),
            (Order::Continue | Order::Clear, None) => hist_error(HistReason::NoneToContinueOrClear),
        }
    }
}

/// Reads `GROUP:EVENT`. The rest begins with the count, if there is one.
fn set_event(enable: bool, switched: Switched, text: &str) -> Result<(Action, &str), TriggerError> {
    let names = &text[..text.find([' ', '\t']).unwrap_or(text.len())];
    let (group, rest) = names.split_once(':').ok_or(TriggerError::NoParameter)?;
    let event = &rest[..rest.find(':').unwrap_or(rest.len())];
    if group.is_empty() || event.is_empty() {
        return Err(TriggerError::NoParameter);
    }
    let left = &text[group.len() + 1 + event.len()..];
    let action = Action::SetEvent {
        enable,
        switched,
        group: copied(group)?,
        event: copied(event)?,
    };
    Ok((action, left.strip_prefix(':').unwrap_or(left)))
}

/// The count that all of `text` is. The largest number is none, as in Linux.
///
/// # Errors
/// [`TriggerError::BadCount`].
pub fn parse_count(text: &str) -> Result<Option<u64>, TriggerError> {
    let count = number::unsigned(text).ok_or(TriggerError::BadCount)?;
    Ok(Some(count).filter(|count| *count != u64::MAX))
}

/// Reads a count, if there is one.
fn split_count(text: &str) -> Result<(Option<u64>, &str), TriggerError> {
    if !text.starts_with(|letter: char| letter.is_ascii_digit()) {
        return Ok((None, text));
    }
    let (count, rest) = text.split_at(text.find([' ', '\t']).unwrap_or(text.len()));
    Ok((parse_count(count)?, rest))
}

/// Reads `if FILTER`, or nothing.
fn read_filter(
    text: &str,
    fields: &[Field],
    symbols: &dyn Symbols,
) -> Result<Option<Filter>, TriggerError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let filter = behind_if(text).ok_or(TriggerError::NoIf)?;
    Filter::parse(filter, fields, symbols)
        .map(Some)
        .map_err(TriggerError::Filter)
}

/// The filter of `if FILTER`.
fn behind_if(text: &str) -> Option<&str> {
    text.trim_start()
        .strip_prefix("if")?
        .strip_prefix([' ', '\t'])
}

#[cfg(test)]
mod tests;
