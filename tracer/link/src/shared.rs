//! The memory that a guest shares with this process, and what the guest has told of it.
//!
//! The guest says once where its outbox, its rings and its maps are. From then on they are read in
//! place. What it says may be wrong: a place outside of its memory is as good as none.

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

#[cfg(test)]
mod tests {
    use super::*;
    use trace_wire::outbox::{CAPACITY, HEADER_BYTES, MAGIC, MAGIC_WORD, READ, WRITTEN};

    #[test]
    fn a_guests_memory_is_read_where_it_says() {
        let file = memory_file(&[]).unwrap();
        let shared = Shared {
            ram: Ram::new(&file, 1 << 20).unwrap(),
            inbox: OnceLock::new(),
            rings: Mutex::default(),
            maps: Mutex::default(),
        };
        let extent = |start, bytes| Extent { start, bytes };
        let set = |place: u64, value| {
            let word = shared.ram.word(place).unwrap();
            word.store(value, Ordering::Relaxed);
        };
        let outbox = |start: u64| {
            set(start + MAGIC as u64, MAGIC_WORD);
            set(start + CAPACITY as u64, 16);
            MemoryPlace::Outbox(vec![extent(start, HEADER_BYTES as u64 + 16)])
        };
        // Nothing is known of a guest that has said nothing.
        assert_eq!((shared.fed(), shared.take()), (None, None));
        assert!(shared.copy_maps().is_none() && shared.copy_rings().is_empty());
        // An outbox is one if its memory says so.
        shared.note(MemoryPlace::Outbox(vec![extent(0x2_0000, 1 << 16)]));
        assert_eq!(shared.fed(), None);
        shared.note(outbox(0x8000));
        // There is one.
        shared.note(outbox(0x4_0000));
        for fed in [3, 4, u64::MAX] {
            set(0x8000 + FED as u64, fed);
            assert_eq!(shared.fed(), Some(fed));
        }
        set(
            0x8000 + HEADER_BYTES as u64,
            u64::from_le_bytes(*b"a letter"),
        );
        set(0x8000 + READ as u64, 2);
        set(0x8000 + WRITTEN as u64, 8);
        assert_eq!(shared.take().as_deref(), Some(&b"letter"[..]));
        for (is_there, maps) in [(0, None), (1, Some(0)), (2, None)] {
            set(0x8000 + MAPS as u64, is_there);
            assert_eq!(shared.copy_maps().map(|maps| maps.len()), maps);
        }
        // A ring whose memory is not all there is left out.
        for (start, value) in [(0x1000, 1), (0x3000, 2), (0x5000, 3)] {
            set(start, value);
        }
        for extents in [
            vec![extent(0x1000, 8), extent(0x5000, 8)],
            vec![extent(0x3000, 8), extent(1 << 20, 8)],
            vec![extent(0x3000, 8)],
        ] {
            shared.note(MemoryPlace::Ring(extents));
        }
        let rings = shared.copy_rings();
        let rings = rings.iter().map(|ring| {
            let words = ring.bytes.chunks(8);
            let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            (words.collect(), ring.cut_off)
        });
        assert_eq!(Vec::from_iter(rings), [(vec![1, 3], 0), (vec![2], 0)]);
    }
}
