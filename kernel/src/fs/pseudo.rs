//! Virtual files: text that is made when it is read, and commands that are obeyed when they are
//! written.
//!
//! The kernel's files below `/proc` and `/sys` are such files. The whole text is made at the first
//! read of an open file, and again whenever the file is read from its start. So a reader that takes
//! it in pieces sees one state. A write hands over one command of up to [`super::CHUNK`] bytes; a
//! longer one comes as several.
//!
//! The permission bits say whether a file can be read and written. Opening it otherwise is refused
//! with EACCES.

use super::{Opened, Special, TREE};
use crate::{errno::Errno, sync::Mutex};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::fmt;
use file_tree::Install;

/// The functions of a virtual file. Both run in task context and may sleep. Of the vfs's locks,
/// only that of the open file's position is held.
pub trait VirtualFile: Send + Sync + 'static {
    /// Writes the file's whole text to `out`. An error of `out` (no memory) is to be passed on.
    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result;

    /// Obeys the command `data`, all of it or not at all.
    fn store(&self, data: &[u8]) -> Result<(), Errno>;
}

/// Makes the text of a virtual file.
pub type Show = fn(&mut dyn fmt::Write) -> fmt::Result;
/// Obeys a command that was written to a virtual file.
pub type Store = fn(&[u8]) -> Result<(), Errno>;

/// A virtual file from two plain functions, either of which may be missing.
pub struct Functions {
    pub show: Option<Show>,
    pub store: Option<Store>,
}

impl VirtualFile for Functions {
    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.show.map_or(Ok(()), |show| show(out))
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        self.store.ok_or(Errno::EINVAL)?(data)
    }
}

/// Puts a virtual file at the absolute `path`, and makes missing directories. `permissions` is 0400
/// or 0444 if the file can be read, 0200 if it can be written, and the sum if both. EEXIST if the
/// name is taken.
pub fn create(path: &str, permissions: u32, file: impl VirtualFile) -> Result<(), Errno> {
    let file: Arc<dyn Special> = Arc::new(Node(Arc::new(file)));
    TREE.lock()
        .install(path.as_bytes(), permissions, Install::Virtual(file))?;
    Ok(())
}

/// Takes the virtual file at `path` away. Tasks that have it open may go on: its functions can run
/// until the last open one is closed.
pub fn remove(path: &str) -> Result<(), Errno> {
    Ok(TREE.lock().uninstall(path.as_bytes())?)
}

/// A virtual file as it hangs in the tree.
struct Node<F>(Arc<F>);

impl<F: VirtualFile> Special for Node<F> {
    fn open(self: Arc<Self>) -> Result<Box<dyn Opened>, Errno> {
        Ok(Box::new(OpenVirtual {
            file: self.0.clone(),
            text: Mutex::new(None),
        }))
    }
}

/// A virtual file, opened.
struct OpenVirtual<F> {
    file: Arc<F>,
    /// The text that the reader is reading.
    text: Mutex<Option<Vec<u8>>>,
}

impl<F: VirtualFile> Opened for OpenVirtual<F> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut text = self.text.lock();
        if at == 0 {
            *text = None;
        }
        let text = match &mut *text {
            Some(text) => text,
            none => {
                let mut out = Text(Vec::new());
                self.file
                    .show(&mut out)
                    .map_err(|fmt::Error| Errno::ENOMEM)?;
                none.insert(out.0)
            }
        };
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(text.len());
        let len = buf.len().min(text.len() - at);
        buf[..len].copy_from_slice(&text[at..at + len]);
        Ok(len)
    }

    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        self.file.store(data)?;
        Ok(data.len())
    }
}

/// Text that grows until memory is out.
struct Text(Vec<u8>);

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.try_reserve(s.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(s.as_bytes());
        Ok(())
    }
}
