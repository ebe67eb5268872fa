//! A set of tasks, as `set_ftrace_pid` holds it.
//!
//! # Contexts
//! Task context.

use alloc::vec::Vec;
use core::fmt::Write;

use fallible::{push, try_vec};
use trace_agent::graph::Tasks;

use crate::errno::Errno;

/// The numbers of the tasks, in the order in which they were written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TaskSet {
    numbers: Vec<u32>,
}

impl TaskSet {
    /// The set without tasks, which stands for all.
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

    /// The set with the numbers of `text`, too.
    ///
    /// # Errors
    /// EINVAL if a word is no number of a task; ENOSPC for more than [`Tasks::MOST`]; ENOMEM.
    pub fn changed(&self, text: &str) -> Result<Self, Errno> {
        let mut set = self.copy()?;
        for word in text.split_ascii_whitespace() {
            let number = word.parse::<i32>().ok();
            let number = number.and_then(|number| u32::try_from(number).ok());
            let number = number.ok_or(Errno::EINVAL)?;
            if set.numbers.contains(&number) {
                continue;
            }
            if set.numbers.len() == Tasks::MOST {
                return Err(Errno::ENOSPC);
            }
            push(&mut set.numbers, number)?;
        }
        Ok(set)
    }

    /// Writes the text of the file.
    ///
    /// # Errors
    /// That of `out`.
    pub fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        if self.numbers.is_empty() {
            return Ok(out.write_str("no pid\n")?);
        }
        for number in &self.numbers {
            writeln!(out, "{number}")?;
        }
        Ok(())
    }
}
