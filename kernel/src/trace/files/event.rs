//! The files of an event and of a group of events.
//!
//! [`OF_EVENTS`] puts them into the tree when an event comes, and takes them away when it goes. An
//! open file may outlive its event. It has the event's name and number, and says ENODEV when the
//! list has no such event any more, also if another one has the name by now. The file of a group
//! says so when the list has no event of the group.
//!
//! # Contexts
//! Task context, may sleep. Each use takes the lock of the list. [`OF_EVENTS`] is called under it.

use alloc::string::String;
use core::{fmt::Write, ops::DerefMut};

use fallible::{copied, written};
use tracefs::{
    filter::{self, FilterError},
    trigger::{self, Command},
};

use super::{
    input::{switch, text},
    paths::{Path, READ, ROOTS, WRITE},
};
use crate::{
    errno::Errno,
    fs::{
        self, How,
        pseudo::{self, VirtualFile},
    },
    time::ktime_get,
    trace::{
        event::Event,
        events::{EVENTS, Events, Name, Watcher},
        names::KernelSymbols,
        shared::Shared,
    },
};

/// Keeps the files of events as the list of events is.
pub(super) const OF_EVENTS: Watcher = Watcher {
    added: create,
    removed: remove,
};

/// A file of an event.
struct EventFile {
    name: Shared<Name>,
    /// The event's number. Another event may have the name later.
    id: u16,
    kind: EventFileKind,
}

#[derive(Clone, Copy)]
enum EventFileKind {
    Enable,
    Filter,
    Format,
    Id,
    Trigger,
    Hist,
    Profile,
}

const EVENT_FILES: [(&str, u32, EventFileKind); 7] = [
    ("enable", READ | WRITE, EventFileKind::Enable),
    ("filter", READ | WRITE, EventFileKind::Filter),
    ("format", READ, EventFileKind::Format),
    ("id", READ, EventFileKind::Id),
    ("trigger", READ | WRITE, EventFileKind::Trigger),
    ("hist", READ, EventFileKind::Hist),
    ("profile", READ, EventFileKind::Profile),
];

impl VirtualFile for EventFile {
    /// Histograms begin anew with `> trigger`. Other triggers stay.
    fn open(&self, how: How) -> Result<(), Errno> {
        match self.kind {
            EventFileKind::Trigger if how.truncate => {
                let mut events = EVENTS.lock();
                events.numbered(&self.name, self.id)?.remove_histograms()
            }
            _ => Ok(()),
        }
    }

    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let mut events = EVENTS.lock();
        let event = events.numbered(&self.name, self.id)?;
        match self.kind {
            EventFileKind::Enable => writeln!(out, "{}", event.enabled_text())?,
            EventFileKind::Filter => match (&event.refused_filter, &event.filter) {
                (Some(refused), _) => out.write_str(refused)?,
                (None, Some(filter)) => writeln!(out, "{}", filter.text())?,
                (None, None) => writeln!(out, "none")?,
            },
            EventFileKind::Format => event.layout.write_format(&self.name.1, event.id, out)?,
            EventFileKind::Id => writeln!(out, "{}", event.id)?,
            EventFileKind::Trigger if event.triggers.is_empty() => {
                write!(out, "{}", trigger::Available(&Command::ALL))?;
            }
            EventFileKind::Trigger => event.show_triggers(out)?,
            EventFileKind::Hist => event.show_histograms(out)?,
            // Not a file of Linux, whose `kprobe_profile` has no column for what a filter rejects.
            EventFileKind::Profile => {
                let profile = event.profile();
                writeln!(out, "hits: {}", profile.hits)?;
                writeln!(out, "filtered: {}", profile.filtered)?;
                writeln!(out, "unasked: {}", profile.unasked)?;
                writeln!(out, "missed: {}", profile.misses)?;
            }
        }
        Ok(())
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        let mut events = EVENTS.lock();
        let event = events.numbered(&self.name, self.id)?;
        match self.kind {
            EventFileKind::Enable => event.enable(switch(data)?),
            EventFileKind::Filter => {
                let text = text(data)?;
                let Some(error) = set_filter(event, text)? else {
                    return Ok(());
                };
                event.refused_filter = written(&error.shown(text)).ok();
                events.errors.add_refused_filter(ktime_get(), &error, text);
                Err(Errno::from_code(error.errno()).unwrap_or(Errno::EINVAL))
            }
            EventFileKind::Trigger => {
                for line in text(data)?.lines().filter(|line| !line.trim().is_empty()) {
                    events.set_trigger(&self.name, line)?;
                }
                Ok(())
            }
            EventFileKind::Format
            | EventFileKind::Id
            | EventFileKind::Hist
            | EventFileKind::Profile => Err(Errno::EINVAL),
        }
    }
}

/// Sets or clears the filter of an event, as `text` says. Returns why the text is refused; then the
/// old filter stays.
///
/// # Errors
/// ENOMEM, and that of a probe that is refused.
fn set_filter(event: &mut Event, text: &str) -> Result<Option<FilterError>, Errno> {
    let filter = match filter::Request::parse(text, &event.layout.fields, &KernelSymbols) {
        Ok(filter::Request::Clear) => None,
        Ok(filter::Request::Set(filter)) => Some(filter),
        Err(error) => return Ok(Some(error)),
    };
    match event.set_filter(filter) {
        Ok(()) => {
            event.refused_filter = None;
            Ok(None)
        }
        Err(Errno::EINVAL) => Ok(Some(FilterError::TOO_LARGE)),
        Err(errno) => Err(errno),
    }
}

/// A file of a group. Without events there is no group, and it says ENODEV.
struct GroupFile {
    group: String,
    kind: GroupFileKind,
}

#[derive(Clone, Copy)]
enum GroupFileKind {
    Enable,
    Filter,
}

const GROUP_FILES: [(&str, GroupFileKind); 2] = [
    ("enable", GroupFileKind::Enable),
    ("filter", GroupFileKind::Filter),
];

impl GroupFile {
    fn has(&self, (group, _): &Name) -> bool {
        *group == self.group
    }

    /// The list of events, if it has some of the group.
    fn events(&self) -> Result<impl DerefMut<Target = Events>, Errno> {
        let events = EVENTS.lock();
        let is_there = events.iter().any(|(name, _)| self.has(name));
        is_there.then_some(events).ok_or(Errno::ENODEV)
    }
}

impl VirtualFile for GroupFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let events = self.events()?;
        match self.kind {
            GroupFileKind::Enable => writeln!(out, "{}", events.enabled(|name| self.has(name)))?,
            GroupFileKind::Filter => out.write_str(filter::GROUP_TEXT)?,
        }
        Ok(())
    }

    /// A filter is set or cleared for each event that it fits. As on Linux, those that it does not
    /// fit have a message, and the write succeeds.
    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        if let GroupFileKind::Enable = self.kind {
            let enabled = switch(data)?;
            return self.events()?.enable(enabled, |name| self.has(name));
        }
        let text = text(data)?;
        let mut events = self.events()?;
        events.for_each(|name, event, errors| {
            if !self.has(name) || set_filter(event, text)?.is_none() {
                return Ok(());
            }
            let error = FilterError::BAD_GROUP_FILTER;
            event.refused_filter = written(&error.shown(text)).ok();
            errors.add_refused_filter(ktime_get(), &error, text);
            Ok(())
        })
    }
}

/// Puts the files of an event into the tree; those of its group, too, if `with_group`. The list of
/// events is locked.
///
/// # Errors
/// ENOMEM; then none is there.
fn create(name: &Name, id: u16, with_group: bool) -> Result<(), Errno> {
    let result = create_files(name, id, with_group);
    if result.is_err() {
        remove(name, with_group);
    }
    result
}

fn create_files(name: &Name, id: u16, with_group: bool) -> Result<(), Errno> {
    let own = |text: &str| copied(text).map_err(|_| Errno::ENOMEM);
    let shared = Shared::try_new((own(&name.0)?, own(&name.1)?))?;
    for root in ROOTS {
        if with_group {
            for (file, kind) in GROUP_FILES {
                let path = Path::of(format_args!("{root}/events/{}/{file}", name.0))?;
                let group = own(&name.0)?;
                pseudo::create(path.text(), READ | WRITE, GroupFile { group, kind })?;
            }
        }
        for (file, permissions, kind) in EVENT_FILES {
            let path = Path::of(format_args!("{root}/events/{}/{}/{file}", name.0, name.1))?;
            let name = shared.clone();
            pseudo::create(path.text(), permissions, EventFile { name, id, kind })?;
        }
    }
    Ok(())
}

/// Takes the files of an event away, and its group with them if `with_group`. It takes no memory.
/// The list of events is locked. Files that are open stay so, and say ENODEV.
fn remove(name: &Name, with_group: bool) {
    for root in ROOTS {
        let path = match with_group {
            true => Path::of(format_args!("{root}/events/{}", name.0)),
            false => Path::of(format_args!("{root}/events/{}/{}", name.0, name.1)),
        };
        // A file that is not there need not go.
        let _ = path.and_then(|path| fs::uninstall_all(path.text().as_bytes()));
    }
}
