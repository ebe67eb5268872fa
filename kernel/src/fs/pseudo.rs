//! Virtual files: text that is made when it is read, and commands that are obeyed when they are
//! written.
//!
//! The kernel's files below `/proc` and `/sys` are such files. The whole text is made at the first
//! read of an open file, and again whenever the file is read from its start. So a reader that takes
//! it in pieces sees one state. A write hands over one command of up to [`super::CHUNK`] bytes; a
//! longer one comes as several, which divide no line if the file asks for that.
//!
//! A file may act when it is opened, or refuse it ([`VirtualFile::open`]). For example, `> FILE`
//! clears a list, and is refused with EBUSY while an entry is in use.
//!
//! The permission bits say whether a file can be read and written. Opening it otherwise is refused
//! with EACCES.

use super::{CHUNK, How, Opened, Special};
use crate::{
    errno::Errno,
    fs,
    mm::shared::{Shared, try_box},
    sync::Mutex,
};
use alloc::{boxed::Box, vec::Vec};
use core::fmt;

use fallible::Text;

/// The functions of a virtual file. All run in task context and may sleep. Of the vfs's locks, only
/// that of the open file's position is held, and none in `open`.
pub trait VirtualFile: Send + Sync + 'static {
    /// The file is being opened. It may refuse, and then nothing may have changed. A file whose
    /// content can be dropped drops it if `how.truncate` is set. Others leave their content to
    /// [`Self::store`], as all do unless they have this function.
    fn open(&self, how: How) -> Result<(), Errno> {
        let _ = how;
        Ok(())
    }

    /// Writes the file's whole text to `out`. An error of `out` (no memory) is to be passed on.
    fn show(&self, out: &mut dyn fmt::Write) -> Result<(), Errno>;

    /// Obeys the command `data`, all of it or not at all. A file of lines may also obey the lines
    /// before the first one that fails.
    fn store(&self, data: &[u8]) -> Result<(), Errno>;

    /// Whether each line of what is written is a command. Then a line is never divided between two
    /// calls of [`Self::store`]. A line that does not fit into one call is refused with EINVAL.
    fn is_of_lines(&self) -> bool {
        false
    }
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
    fn show(&self, out: &mut dyn fmt::Write) -> Result<(), Errno> {
        Ok(self.show.map_or(Ok(()), |show| show(out))?)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        self.store.ok_or(Errno::EINVAL)?(data)
    }
}

/// Puts a virtual file at the absolute `path`, and makes missing directories. `permissions` is 0400
/// or 0444 if the file can be read, 0200 if it can be written, and the sum if both. EEXIST if the
/// name is taken; ENOMEM, and then nothing has changed.
pub fn create(path: &str, permissions: u32, file: impl VirtualFile) -> Result<(), Errno> {
    create_special(path, permissions, Node(Shared::try_new(file)?))
}

/// The same for a file that needs a state of its own for each user, or reads that wait.
pub fn create_special(
    path: &str,
    permissions: u32,
    file: impl Special + 'static,
) -> Result<(), Errno> {
    fs::install_special(path.as_bytes(), permissions, file)
}

/// Takes the virtual file at `path` away. Tasks that have it open may go on: its functions can run
/// until the last open one is closed.
pub fn remove(path: &str) -> Result<(), Errno> {
    fs::uninstall(path.as_bytes())
}

/// A virtual file as it hangs in the tree.
struct Node<F>(Shared<F>);

impl<F: VirtualFile> Special for Node<F> {
    fn open(&self, how: How) -> Result<Box<dyn Opened>, Errno> {
        let opened = try_box(OpenVirtual {
            file: self.0.clone(),
            text: Snapshot::default(),
        })?;
        self.0.open(how)?;
        Ok(opened)
    }
}

/// A virtual file, opened.
struct OpenVirtual<F> {
    file: Shared<F>,
    text: Snapshot,
}

impl<F: VirtualFile> Opened for OpenVirtual<F> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.text.read(at, buf, |out| self.file.show(out))
    }

    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        let data = if self.file.is_of_lines() {
            whole_lines(data)?
        } else {
            data
        };
        self.file.store(data)?;
        Ok(data.len())
    }
}

/// The lines of `data`, which was written to a file. If more may follow, because `data` has the
/// greatest length that comes at once, these are the lines that have their end. EINVAL if no line
/// has.
pub fn whole_lines(data: &[u8]) -> Result<&[u8], Errno> {
    if data.len() < CHUNK {
        return Ok(data);
    }
    let end = data.iter().rposition(|&byte| byte == b'\n');
    end.map(|end| &data[..=end]).ok_or(Errno::EINVAL)
}

/// The text that one user of a virtual file reads. It is made at the first read, and again whenever
/// the user reads from the start.
#[derive(Default)]
pub struct Snapshot(Mutex<Option<Vec<u8>>>);

impl Snapshot {
    /// Copies the bytes from `at` on into `buf`, and returns how many those were. `show` makes the
    /// text.
    pub fn read(
        &self,
        at: u64,
        buf: &mut [u8],
        show: impl FnOnce(&mut dyn fmt::Write) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let mut text = self.0.lock();
        if at == 0 {
            *text = None;
        }
        let text = match &mut *text {
            Some(text) => text,
            none => {
                let mut out = Text::new();
                show(&mut out)?;
                none.insert(out.into_string().into_bytes())
            }
        };
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(text.len());
        let len = buf.len().min(text.len() - at);
        buf[..len].copy_from_slice(&text[at..at + len]);
        Ok(len)
    }
}

/// The error of a text that cannot grow, because there is no memory.
impl From<fmt::Error> for Errno {
    fn from(_: fmt::Error) -> Self {
        Self::ENOMEM
    }
}
