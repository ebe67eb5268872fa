//! Names of tasks, also of those that have ended, for records of `trace` that are read later.
//!
//! A record has a task's number only. While the task lives, its name is asked for. When it ends,
//! the name is kept here, one for each remainder of the numbers. A later task with the same
//! remainder takes the place, so a name may be forgotten, but none is wrong.
//!
//! # Contexts
//! [`note`]: the scheduler, with no lock held but the run queue's. The rest: tasks.

use alloc::vec::Vec;
use core::mem;

use fallible::{OutOfMemory, try_vec};

use super::{Comm, IDLE, Pid, TASKS, comm_of};
use crate::sync::SpinLock;

const PLACES: usize = 256;
/// The most places that may be asked for.
pub const MOST_PLACES: usize = 32768;

/// A number and a name. The number 0: none is kept there.
type Place = (Pid, Comm);

const FREE: Place = (IDLE, Comm::EMPTY);

/// The places: those that are always there, until others are asked for.
struct Kept {
    first: [Place; PLACES],
    others: Vec<Place>,
}

impl Kept {
    fn places(&mut self) -> &mut [Place] {
        match self.others.is_empty() {
            true => &mut self.first,
            false => &mut self.others,
        }
    }

    /// The place of a number.
    fn of(&mut self, pid: Pid) -> &mut Place {
        let places = self.places();
        let at = pid as usize % places.len();
        &mut places[at]
    }
}

static KEPT: SpinLock<Kept> = SpinLock::new(Kept {
    first: [FREE; PLACES],
    others: Vec::new(),
});

/// The task `pid` ends.
pub fn note(pid: Pid, comm: Comm) {
    *KEPT.lock().of(pid) = (pid, comm);
}

/// The name of the task `pid`; `<...>` if it is not known.
pub fn of(pid: Pid) -> Comm {
    if pid == IDLE {
        return Comm::new("<idle>");
    }
    comm_of(pid).unwrap_or_else(|| {
        let (kept, comm) = *KEPT.lock().of(pid);
        match kept == pid {
            true => comm,
            false => Comm::new("<...>"),
        }
    })
}

/// How many names of ended tasks are kept.
pub fn places() -> usize {
    KEPT.lock().places().len()
}

/// Keeps so many, from 1 to [`MOST_PLACES`]. Those that are kept stay as far as there is room.
///
/// # Errors
/// [`OutOfMemory`].
pub fn set_places(count: usize) -> Result<(), OutOfMemory> {
    let mut places = try_vec(count)?;
    places.resize(count, FREE);
    let before = {
        let mut kept = KEPT.lock();
        for (pid, comm) in &*kept.places() {
            if *pid != IDLE {
                places[*pid as usize % count] = (*pid, *comm);
            }
        }
        mem::replace(&mut kept.others, places)
    };
    // With no lock held.
    drop(before);
    Ok(())
}

/// The numbers and names that are known, in the order of the numbers: of tasks that live, and of
/// ended ones.
///
/// # Errors
/// [`OutOfMemory`].
pub fn known() -> Result<Vec<(Pid, Comm)>, OutOfMemory> {
    // A task that ends meanwhile may be in both. Those that come find no room, and are left out.
    let mut known = try_vec(TASKS.lock().len() + places())?;
    let fits = |known: &Vec<Place>| known.len() < known.capacity();
    for (pid, task) in TASKS.lock().iter() {
        if let Some(task) = task.upgrade().filter(|_| fits(&known)) {
            known.push((*pid, task.comm()));
        }
    }
    for place in &*KEPT.lock().places() {
        if place.0 != IDLE && fits(&known) {
            known.push(*place);
        }
    }
    known.sort_unstable_by_key(|(pid, _)| *pid);
    known.dedup_by_key(|(pid, _)| *pid);
    Ok(known)
}
