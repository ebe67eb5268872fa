//! A kernel that runs already, at the other end of a line of bytes.
//!
//! ```text
//!   Remote::call ─ hello, welcome ─► what the kernel says of itself
//!        │ the tool compiles for it
//!        ▼
//!   Remote::start ─► a thread that has the line: script, control out; messages in ─► Events
//! ```
//!
//! # Invariants
//! DEATH-1. A kernel that dies says so, and its memory comes. Damage is told only when that has not
//!     begun within [`DYING_SECONDS`], because a frame that was cut off is how a death begins.
//! CALL-1. Whatever the kernel does, a call ends within its patience, and a trace with an event
//!     that says what happened: silence, damage, the end of the line, a refusal.
//! CALL-2. A trace that is dropped tells the kernel to detach, as far as the line takes it at
//!     once. A kernel that does not hear it detaches when it has heard nothing for
//!     [`SILENCE_SECONDS`].

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, anyhow, bail};
use boot::guest::End;
use trace_wire::stream::{About, DYING_SECONDS, Damage, HostEnd, SILENCE_SECONDS, Said, VERSION};

use crate::{
    Event, Request, Trace,
    address::{Address, Line},
    received::Received,
};

/// How often a hello is sent until it is answered.
const AGAIN: Duration = Duration::from_millis(500);
/// How often a sign of life is sent.
const ALIVE: Duration = Duration::from_secs(1);
/// How long the thread waits at most until it looks at what is wanted.
const LOOK: Duration = Duration::from_millis(20);
/// How long the kernel may take to load and attach a script.
const LOADING: Duration = Duration::from_secs(120);
/// How long the last words to the kernel may take.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A kernel that has answered.
#[derive(Debug)]
pub struct Remote {
    address: Address,
    line: Line,
    end: HostEnd,
    about: String,
}

impl Remote {
    /// Calls the kernel at an address, and waits at most so long for its answer.
    ///
    /// # Errors
    /// There is no answer, or one in another version of the protocol.
    pub fn call(address: &Address, patience: Duration) -> Result<Self> {
        let line = Line::open(address)?;
        // Another number than that of a call before, whose answers may still be on the line.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut end = HostEnd::new(now.unwrap_or_default().subsec_nanos() ^ std::process::id());
        let cannot = || format!("cannot talk to {address}");
        let begin = Instant::now();
        let (mut outgoing, mut next_hello) = (Vec::new(), begin);
        let mut chunk = vec![0; 1 << 16];
        loop {
            let now = Instant::now();
            if now.duration_since(begin) >= patience {
                bail!(
                    "the kernel at {address} does not answer within {} s; it does not wait for a \
                     tracer at that port, or another tracer has the line",
                    patience.as_secs()
                );
            }
            if outgoing.is_empty() && now >= next_hello {
                outgoing = end.hello();
                next_hello = now + AGAIN;
            }
            let ready = line.wait(!outgoing.is_empty(), LOOK).with_context(cannot)?;
            if ready.write {
                let sent = line.write(&outgoing).with_context(cannot)?;
                outgoing.drain(..sent);
            }
            if !ready.read {
                continue;
            }
            let count = line.read(&mut chunk).with_context(cannot)?;
            if count == Some(0) {
                bail!("{address} was closed before the kernel has answered");
            }
            let mut input = &chunk[..count.unwrap_or(0)];
            while let Some(said) = end.next(&mut input) {
                match said.map_err(|damage| damaged(address, damage))? {
                    Said::Welcome { version, about } if version == VERSION => {
                        // A hello that was cut off would spoil what comes after it.
                        finish(&line, &outgoing).with_context(cannot)?;
                        return Ok(Self {
                            address: address.clone(),
                            line,
                            end,
                            about,
                        });
                    }
                    Said::Welcome { version, .. } => bail!(
                        "the kernel at {address} speaks version {version} of the protocol, and \
                         this tool version {VERSION}; take both from one tree"
                    ),
                    Said::Refusal(why) => bail!("the kernel at {address}: {why}"),
                    Said::Died(why) => bail!("the kernel at {address} has died: {why}"),
                    Said::Message(_) | Said::Memory { .. } | Said::Over | Said::Alive => {}
                }
            }
        }
    }

    /// What the kernel says of itself.
    pub fn about(&self) -> About<'_> {
        About::parse(&self.about)
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Has the kernel run the request's script.
    ///
    /// # Errors
    /// The request cannot be told to this kernel.
    pub fn start(mut self, request: &Request) -> Result<Trace> {
        let most = self.about().most_script_bytes as usize;
        if request.script.len() > most {
            bail!(
                "the program has {} bytes with all its places, and the kernel at {} has room for \
                 {most}; probe fewer functions",
                request.script.len(),
                self.address
            );
        }
        let options = request.options_of_remote().to_string();
        let outgoing = self.end.script(&request.script, &options);
        let outgoing = outgoing.context("the options of the trace are too long")?;
        let wishes = Arc::new(Wishes::default());
        let received = Arc::new(Mutex::new(Received::default()));
        Ok(Trace::remote(
            wishes.clone(),
            received.clone(),
            move |sender| {
                let mut follower = Follower {
                    remote: self,
                    wishes,
                    received,
                    damage: None,
                    has_died: false,
                    is_mute: false,
                    outgoing,
                    said_at: Instant::now(),
                    heard_at: Instant::now(),
                    has_begun: false,
                    has_asked: false,
                };
                let last = match follower.follow(sender) {
                    Ok(Stop::Over) if follower.has_died => Event::End(End::Failure),
                    Ok(Stop::Over) => Event::End(End::Success),
                    Ok(Stop::Unwanted) => return,
                    Err(error) => Event::Failed(error),
                };
                // Nothing misses it if the trace has been dropped.
                let _ = sender.send(last);
            },
        ))
    }
}

/// What a trace's holder wants of the thread that has the line.
#[derive(Debug, Default)]
pub struct Wishes {
    /// The trace is to end, and its last answers are wanted.
    pub end: AtomicBool,
    /// Nothing is wanted any more.
    pub stop: AtomicBool,
}

/// Why the thread ends.
enum Stop {
    /// All has come.
    Over,
    /// It is not wanted any more.
    Unwanted,
}

/// The thread that has the line.
struct Follower {
    remote: Remote,
    wishes: Arc<Wishes>,
    received: Arc<Mutex<Received>>,
    /// What was wrong with bytes that came, and until when a death is waited for (DEATH-1).
    damage: Option<(Damage, Instant)>,
    has_died: bool,
    /// Nobody hears what is sent.
    is_mute: bool,
    outgoing: Vec<u8>,
    /// When something was sent, and when something came.
    said_at: Instant,
    heard_at: Instant,
    /// The first answer has come.
    has_begun: bool,
    /// The end was asked for.
    has_asked: bool,
}

impl Follower {
    fn follow(&mut self, sender: &SyncSender<Event>) -> Result<Stop> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            if self.wishes.stop.load(Ordering::Acquire) {
                return Ok(self.leave(Stop::Unwanted));
            }
            self.add_wishes();
            let lost = format!("the line to {} is lost", self.remote.address);
            let line = &self.remote.line;
            let ready = line
                .wait(!self.outgoing.is_empty(), LOOK)
                .context(lost.clone())?;
            if ready.write {
                match line.write(&self.outgoing) {
                    Ok(sent) => _ = self.outgoing.drain(..sent),
                    // What the kernel has sent before the line has ended may still be read.
                    Err(_) => (self.is_mute, self.outgoing) = (true, Vec::new()),
                }
            }
            if !ready.read {
                self.check_damage()?;
                match self.check_silence() {
                    // It has sent what it could.
                    Err(_) if self.has_died => return Ok(Stop::Over),
                    result => result?,
                }
                continue;
            }
            let count = line.read(&mut chunk).context(lost)?;
            if count == Some(0) {
                if self.has_died {
                    return Ok(Stop::Over);
                }
                if let Some((damage, _)) = self.damage {
                    return Err(damaged(&self.remote.address, damage));
                }
                bail!(
                    "{} was closed before the trace was over; the kernel has ended, or the line \
                     was unplugged",
                    self.remote.address
                );
            }
            let mut input = &chunk[..count.unwrap_or(0)];
            while let Some(said) = self.remote.end.next(&mut input) {
                match said {
                    Ok(said) => {
                        if let Some(stop) = self.hear(said, sender)? {
                            return Ok(stop);
                        }
                    }
                    // Its last words have come damaged, and so nothing more can be told of them.
                    Err(_) if self.has_died => return Ok(Stop::Over),
                    Err(damage) => {
                        let until = Instant::now() + Duration::from_secs(DYING_SECONDS);
                        if self.damage.is_none() {
                            self.damage = Some((damage, until));
                            self.leave(Stop::Over);
                        }
                    }
                }
            }
            self.check_damage()?;
        }
    }

    /// What the kernel has said. None: the trace goes on.
    fn hear(&mut self, said: Said, sender: &SyncSender<Event>) -> Result<Option<Stop>> {
        self.heard_at = Instant::now();
        let event = match said {
            Said::Message(message) => {
                self.has_begun = true;
                Event::Message(message)
            }
            Said::Died(why) => {
                (self.has_died, self.has_begun, self.damage) = (true, true, None);
                (self.is_mute, self.outgoing) = (true, Vec::new());
                Event::Died(why)
            }
            Said::Memory { piece, bytes } => {
                let address = &self.remote.address;
                if !self.received().add(piece, &bytes) {
                    bail!("{address} has sent memory of no known form; run it again");
                }
                Event::Memory
            }
            Said::Refusal(why) => bail!("the kernel at {}: {why}", self.remote.address),
            Said::Over => {
                self.received().end();
                return Ok(Some(self.leave(Stop::Over)));
            }
            Said::Alive | Said::Welcome { .. } => return Ok(None),
        };
        if sender.send(event).is_err() {
            return Ok(Some(self.leave(Stop::Unwanted)));
        }
        // That may have waited for the reader.
        self.add_wishes();
        Ok(None)
    }

    fn received(&self) -> std::sync::MutexGuard<'_, Received> {
        // What has come is as good as it was, whoever panicked.
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of damage after which no death has come.
    fn check_damage(&self) -> Result<()> {
        match self.damage {
            Some((damage, until)) if Instant::now() >= until => {
                Err(damaged(&self.remote.address, damage))
            }
            _ => Ok(()),
        }
    }

    /// Adds to what is to be sent.
    fn add_wishes(&mut self) {
        if self.is_mute {
            return;
        }
        let now = Instant::now();
        if self.wishes.end.load(Ordering::Acquire) && !self.has_asked {
            self.has_asked = true;
            self.outgoing.extend(self.remote.end.end());
        }
        if self.outgoing.is_empty() && now.duration_since(self.said_at) >= ALIVE {
            self.said_at = now;
            self.outgoing.extend(self.remote.end.alive());
        }
    }

    fn check_silence(&self) -> Result<()> {
        let limit = match self.has_begun {
            true => Duration::from_secs(SILENCE_SECONDS),
            false => LOADING,
        };
        if self.heard_at.elapsed() < limit {
            return Ok(());
        }
        bail!(
            "the kernel at {} has said nothing for {} s; it hangs, or the line was unplugged",
            self.remote.address,
            limit.as_secs()
        );
    }

    /// Tells the kernel that nothing more is wanted, if the line takes it.
    fn leave(&mut self, stop: Stop) -> Stop {
        if !self.is_mute {
            let bytes = self.remote.end.leave();
            self.outgoing.extend(bytes);
            // Otherwise the kernel finds out by the silence.
            let _ = finish(&self.remote.line, &self.outgoing);
            (self.is_mute, self.outgoing) = (true, Vec::new());
        }
        stop
    }
}

/// Sends bytes, but does not wait for long.
fn finish(line: &Line, mut bytes: &[u8]) -> io::Result<()> {
    let begin = Instant::now();
    while !bytes.is_empty() {
        if begin.elapsed() >= LAST_WORDS {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if line.wait(true, LOOK)?.write {
            bytes = &bytes[line.write(bytes)?..];
        }
    }
    Ok(())
}

fn damaged(address: &Address, damage: Damage) -> anyhow::Error {
    anyhow!(
        "bytes from {address} were lost or changed ({damage}); what was shown before is right, and \
         nothing after it can be, so run it again"
    )
}
