//! File descriptors: the open files of one process.

use super::File;
use crate::{errno::Errno, mm::shared::Shared, sync::Mutex};
use alloc::vec::Vec;

/// Most files that one process may have open.
pub const MAX_FILES: usize = 64;

#[derive(Clone)]
struct Descriptor {
    file: Shared<File>,
    close_on_exec: bool,
}

/// The descriptors of one process, by number. Task context. A file may be closed, and its locks
/// taken, when its last descriptor goes.
#[derive(Default)]
pub struct FileTable {
    slots: Mutex<Vec<Option<Descriptor>>>,
}

impl FileTable {
    /// Makes a table whose descriptors 0, 1 and 2 are `file`.
    pub fn with_standard(file: Shared<File>) -> Self {
        let descriptor = Descriptor {
            file,
            close_on_exec: false,
        };
        Self {
            slots: Mutex::new(alloc::vec![Some(descriptor); 3]),
        }
    }

    /// Gives `file` the lowest free number; EMFILE if there is none.
    pub fn insert(&self, file: Shared<File>, close_on_exec: bool) -> Result<u32, Errno> {
        let mut slots = self.slots.lock();
        let number = match slots.iter().position(Option::is_none) {
            Some(number) => number,
            None if slots.len() < MAX_FILES => {
                slots.push(None);
                slots.len() - 1
            }
            None => return Err(Errno::EMFILE),
        };
        slots[number] = Some(Descriptor {
            file,
            close_on_exec,
        });
        Ok(number as u32)
    }

    /// Returns the file of descriptor `number`; EBADF if there is none.
    pub fn get(&self, number: u32) -> Result<Shared<File>, Errno> {
        match self.slots.lock().get(number as usize) {
            Some(Some(descriptor)) => Ok(descriptor.file.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// Frees descriptor `number`; EBADF if there is none.
    pub fn close(&self, number: u32) -> Result<(), Errno> {
        let slot = self
            .slots
            .lock()
            .get_mut(number as usize)
            .and_then(Option::take);
        // If this was the last descriptor of the file, the file is closed here, after the lock is
        // released.
        slot.map(drop).ok_or(Errno::EBADF)
    }

    /// Makes a copy for a child process: the same open files, positions shared.
    pub fn duplicate(&self) -> Self {
        Self {
            slots: Mutex::new(self.slots.lock().clone()),
        }
    }

    /// Frees the descriptors that a new program is not to get.
    pub fn close_on_exec(&self) {
        let closed: Vec<_> = self
            .slots
            .lock()
            .iter_mut()
            .filter_map(|slot| slot.take_if(|descriptor| descriptor.close_on_exec))
            .collect();
        drop(closed);
    }

    /// Frees all descriptors.
    pub fn close_all(&self) {
        let closed = core::mem::take(&mut *self.slots.lock());
        drop(closed);
    }
}
