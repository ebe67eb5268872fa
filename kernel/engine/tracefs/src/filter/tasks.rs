//! Filters that keep the records of some tasks, as `set_event_pid` asks for.

use core::fmt;

use alloc::string::String;
use fallible::{OutOfMemory, written};

/// Writes a filter that keeps a record if the task of one of these fields is chosen: it is in
/// `only`, or that has no task, and it is not in `without`. None: all are chosen.
///
/// # Errors
/// [`OutOfMemory`].
pub fn of_tasks(
    fields: &[&str],
    only: &[u32],
    without: &[u32],
) -> Result<Option<String>, OutOfMemory> {
    if only.is_empty() && without.is_empty() {
        return Ok(None);
    }
    let text = OfTasks {
        fields,
        only,
        without,
    };
    written(&text).map(Some)
}

struct OfTasks<'a> {
    fields: &'a [&'a str],
    only: &'a [u32],
    without: &'a [u32],
}

impl fmt::Display for OfTasks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, field) in self.fields.iter().enumerate() {
            f.write_str(if number == 0 { "(" } else { " || (" })?;
            let mut join = "";
            for task in self.without {
                write!(f, "{join}{field} != {task}")?;
                join = " && ";
            }
            if !self.only.is_empty() {
                write!(f, "{join}(")?;
                join = "";
                for task in self.only {
                    write!(f, "{join}{field} == {task}")?;
                    join = " || ";
                }
                f.write_str(")")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_kept_for_the_chosen_tasks() {
        let text = |fields: &[&str], only: &[u32], without: &[u32]| {
            of_tasks(fields, only, without).unwrap().unwrap_or_default()
        };
        assert_eq!(text(&["a"], &[], &[]), "");
        assert_eq!(text(&["a"], &[7], &[]), "((a == 7))");
        assert_eq!(text(&["a"], &[7, 8], &[]), "((a == 7 || a == 8))");
        assert_eq!(text(&["a"], &[], &[9, 5]), "(a != 9 && a != 5)");
        assert_eq!(
            text(&["a", "b"], &[7, 8], &[9]),
            "(a != 9 && (a == 7 || a == 8)) || (b != 9 && (b == 7 || b == 8))"
        );
    }
}
