//! The messages of a guest, from its serial port and from the outbox in its memory.

use std::{
    io::Read,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
};

use trace_wire::{MemoryPlace, Reader, WireError};

use crate::{event::Event, shared::Shared};

/// Where messages come from.
pub struct Messages {
    socket: UnixStream,
    shared: Option<Arc<Shared>>,
    /// Is set by the first message.
    begun: Arc<AtomicBool>,
}

/// Why no more messages come.
enum Stop {
    Damaged(WireError),
    /// The trace has been dropped.
    Unheard,
}

impl Messages {
    /// The messages of the guest at the other end of `socket`, with which memory is `shared`.
    pub fn new(socket: UnixStream, shared: Option<Arc<Shared>>, begun: Arc<AtomicBool>) -> Self {
        Self {
            socket,
            shared,
            begun,
        }
    }

    /// Passes messages on until the socket ends, and then those that are left in the outbox.
    pub fn pass_on(mut self, sender: &SyncSender<Event>) {
        let (mut port, mut outbox) = (Reader::new(), Reader::new());
        let mut chunk = vec![0; 1 << 16];
        let mut result = Ok(());
        // An error, like the end, means that there is nothing more to read.
        while result.is_ok()
            && let Ok(length @ 1..) = self.socket.read(&mut chunk)
        {
            port.push(&chunk[..length]);
            result = self.read_port(&mut port, &mut outbox, sender);
        }
        let result = result.and_then(|()| self.read_outbox(&mut outbox, sender));
        if let Err(Stop::Damaged(error)) = result {
            // If the trace has been dropped, nothing is missed.
            let _ = sender.send(Event::Damaged(error));
        }
    }

    fn read_port(
        &self,
        port: &mut Reader,
        outbox: &mut Reader,
        sender: &SyncSender<Event>,
    ) -> Result<(), Stop> {
        let mut has_news = false;
        while let Some(message) = port.next_message().map_err(Stop::Damaged)? {
            if message.is_empty() {
                has_news = true;
            } else if let Some(place) = MemoryPlace::decode(message) {
                if let Some(shared) = &self.shared {
                    shared.note(place);
                }
            } else {
                self.pass_on_one(message, sender)?;
            }
        }
        match has_news {
            true => self.read_outbox(outbox, sender),
            false => Ok(()),
        }
    }

    fn read_outbox(&self, outbox: &mut Reader, sender: &SyncSender<Event>) -> Result<(), Stop> {
        let taken = self.shared.as_ref().and_then(|shared| shared.take());
        outbox.push(&taken.unwrap_or_default());
        while let Some(message) = outbox.next_message().map_err(Stop::Damaged)? {
            self.pass_on_one(message, sender)?;
        }
        Ok(())
    }

    fn pass_on_one(&self, message: &[u8], sender: &SyncSender<Event>) -> Result<(), Stop> {
        // Release: whoever sees it writes to a port that the kernel has set up.
        self.begun.store(true, Ordering::Release);
        let event = Event::Message(message.to_vec());
        sender.send(event).map_err(|_| Stop::Unheard)
    }
}
