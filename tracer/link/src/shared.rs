//! The memory that a guest shares with this process, and what the guest has told of it.

use std::{
    io::Write,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{Ordering, fence},
    },
};

use anyhow::{Context, Result};
use boot::qemu::Machine;
use trace_wire::{
    Extent, MemoryPlace,
    outbox::{FED, MAPS},
};

use crate::{
    maps::{LiveMap, MapInMemory},
    ram::{Inbox, Ram},
    received::RingCopy,
};

/// The guest's account of its memory.
#[derive(Debug)]
pub struct Shared {
    ram: Ram,
    inbox: OnceLock<Inbox>,
    /// The rings by CPU.
    rings: Mutex<Vec<Vec<Extent>>>,
    maps: Mutex<Vec<MapInMemory>>,
}

impl Shared {
    /// Has QEMU take the guest's memory from a file, and maps it here, too.
    pub fn new(machine: &mut Machine) -> Result<Self> {
        let file = memory_file(&[])?;
        let mib = machine.memory_mib;
        let ram = Ram::new(&file, u64::from(mib) << 20)?;
        machine.further.extend([
            "-object".into(),
            format!(
                "memory-backend-file,id=ram,size={mib}M,mem-path=/dev/fd/{},share=on",
                file.as_raw_fd()
            ),
            "-machine".into(),
            "memory-backend=ram".into(),
        ]);
        machine.inherited.push(Arc::new(file));
        Ok(Self {
            ram,
            inbox: OnceLock::new(),
            rings: Mutex::new(Vec::new()),
            maps: Mutex::new(Vec::new()),
        })
    }

    /// Notes what the guest says of its memory.
    pub fn note(&self, place: MemoryPlace) {
        match place {
            MemoryPlace::Outbox(extents) => {
                if let Some(inbox) = Inbox::new(&self.ram, extents) {
                    // There is one outbox; a second message about it changes nothing.
                    let _ = self.inbox.set(inbox);
                }
            }
            MemoryPlace::Ring(extents) => self.rings().push(extents),
            MemoryPlace::Map(part) => self.map_places().extend(MapInMemory::new(part)),
        }
    }

    /// Takes all bytes that are in the outbox. None: there is no outbox, or the kernel has written
    /// over its header, and so is about to end.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let inbox = self.inbox.get()?;
        inbox.take(&self.ram, &mut bytes).then_some(bytes)
    }

    /// Copies of the rings, by CPU.
    pub fn copy_rings(&self) -> Vec<RingCopy> {
        let copy = |extents: &Vec<Extent>| {
            let count = extents.iter().map(|extent| extent.bytes).sum();
            let mut bytes = Vec::new();
            let copied = self.ram.copy(extents, 0, count, &mut bytes);
            copied.then_some(RingCopy { bytes, cut_off: 0 })
        };
        self.rings().iter().filter_map(copy).collect()
    }

    /// The maps as they are now. None: they are not there yet, or not any more.
    pub fn copy_maps(&self) -> Option<Vec<LiveMap>> {
        if !self.has_maps() {
            return None;
        }
        let places = self.map_places();
        let maps = places.iter().map(|place| place.read(&self.ram)).collect();
        // All loads above come before the next look.
        fence(Ordering::Acquire);
        self.has_maps().then_some(maps)
    }

    /// The guest's word [`FED`], which changes as long as it gets on.
    pub fn fed(&self) -> Option<u64> {
        let word = self.inbox.get()?.word(&self.ram, FED)?;
        Some(word.load(Ordering::Relaxed))
    }

    fn rings(&self) -> MutexGuard<'_, Vec<Vec<Extent>>> {
        // A list is as good as it was, whoever panicked.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_places(&self) -> MutexGuard<'_, Vec<MapInMemory>> {
        // As above.
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// OUTBOX-2.
    fn has_maps(&self) -> bool {
        let word = self
            .inbox
            .get()
            .and_then(|inbox| inbox.word(&self.ram, MAPS));
        word.is_some_and(|word| word.load(Ordering::Acquire) == 1)
    }
}

/// Memory that has a number, but no name (TRACE-1), with `contents`.
pub fn memory_file(contents: &[u8]) -> Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let file = rustix::fs::memfd_create("trace", rustix::fs::MemfdFlags::CLOEXEC)
        .context("cannot make a file in memory")?;
    #[cfg(not(target_os = "linux"))]
    let file = {
        let path = std::env::temp_dir().join(format!("trace.{}", std::process::id()));
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("cannot make the file {}", path.display()))?;
        // From here on it has no name.
        std::fs::remove_file(&path)
            .with_context(|| format!("cannot remove the file {}", path.display()))?;
        OwnedFd::from(file)
    };
    let mut file = std::fs::File::from(file);
    file.write_all(contents)
        .and_then(|()| std::io::Seek::rewind(&mut file))
        .context("cannot write to memory")?;
    Ok(file.into())
}
