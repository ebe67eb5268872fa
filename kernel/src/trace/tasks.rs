//! Sets of tasks, as `set_ftrace_pid`, `set_event_pid` and their opposites hold them.
//!
//! # Contexts
//! Task context.

use alloc::vec::Vec;
use core::fmt::Write;

use fallible::{push, try_vec};
use trace_agent::tasks::Tasks;

use crate::{errno::Errno, task::Pid};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskList {
    /// These tasks only.
    Only,
    /// Not these.
    Without,
}

impl TaskList {
    /// How many sets there are.
    pub const COUNT: usize = 2;

    /// Those of each user, with the names of their files.
    pub const FILES: [(&str, TaskUser, Self); 2 * Self::COUNT] = [
        ("set_ftrace_pid", TaskUser::Tracers, Self::Only),
        ("set_ftrace_notrace_pid", TaskUser::Tracers, Self::Without),
        ("set_event_pid", TaskUser::Events, Self::Only),
        ("set_event_notrace_pid", TaskUser::Events, Self::Without),
    ];
}

/// Who records by the sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskUser {
    /// The tracers of all functions.
    Tracers,
    /// The events.
    Events,
}

/// The numbers of the tasks, in the order in which they were written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TaskSet {
    numbers: Vec<u32>,
}

impl TaskSet {
    /// The set without tasks, which leaves none out.
    pub const fn empty() -> Self {
        Self {
            numbers: Vec::new(),
        }
    }

    /// The numbers.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The same set once more.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn copy(&self) -> Result<Self, Errno> {
        let mut numbers = try_vec(self.numbers.len())?;
        numbers.extend_from_slice(&self.numbers);
        Ok(Self { numbers })
    }

    /// Adds the number that `word` is.
    ///
    /// # Errors
    /// EINVAL if it is no number of a task; ENOSPC for more than [`Tasks::MOST`]; ENOMEM. Nothing
    /// has changed then.
    pub fn change(&mut self, word: &str) -> Result<(), Errno> {
        let number = word.parse::<i32>().ok();
        let number = number.and_then(|number| u32::try_from(number).ok());
        self.add(number.ok_or(Errno::EINVAL)?)
    }

    /// The set with a child, if its parent is in it.
    ///
    /// # Errors
    /// As [`TaskSet::change`].
    pub fn with_child(&self, parent: Pid, child: Pid) -> Result<Option<Self>, Errno> {
        if !self.numbers.contains(&parent.unsigned_abs()) {
            return Ok(None);
        }
        let mut set = self.copy()?;
        set.add(child.unsigned_abs())?;
        Ok(Some(set))
    }

    /// The set without a task, if that is in it and not the last one.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn without(&self, task: Pid) -> Result<Option<Self>, Errno> {
        let task = task.unsigned_abs();
        if self.numbers.len() <= 1 || !self.numbers.contains(&task) {
            return Ok(None);
        }
        let mut set = self.copy()?;
        set.numbers.retain(|number| *number != task);
        Ok(Some(set))
    }

    fn add(&mut self, number: u32) -> Result<(), Errno> {
        if self.numbers.contains(&number) {
            return Ok(());
        }
        if self.numbers.len() == Tasks::MOST {
            return Err(Errno::ENOSPC);
        }
        Ok(push(&mut self.numbers, number)?)
    }

    /// Writes the text of the file, which is `empty` if there is no task.
    ///
    /// # Errors
    /// That of `out`.
    pub fn show(&self, empty: &str, out: &mut dyn Write) -> Result<(), Errno> {
        if self.numbers.is_empty() {
            return Ok(out.write_str(empty)?);
        }
        for number in &self.numbers {
            writeln!(out, "{number}")?;
        }
        Ok(())
    }
}
