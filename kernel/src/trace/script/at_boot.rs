//! A script that the host hands to the machine at its start, and its answers over the second serial
//! port.
//!
//! ```text
//!   two files ────► a task of its own: Session ─► COM2 ─► the tracer on the host
//!                         ▲   │
//!        the program ends │   │ exit(), a time limit, a control byte of the host
//!                         │   ▼
//!                    kernel_init, which runs the program and powers the machine off
//! ```
//!
//! The files come by fw_cfg, or in the initramfs where the machine has no fw_cfg.
//!
//! If the host shares the machine's memory, the answers go through an [`Outbox`] there, and the
//! port carries an empty message for each batch of them. If it wants to see the maps meanwhile, it
//! is told where they are, and reads them there: no hit and no task does anything for it.
//!
//! # The watchdog
//! A task of its own goes from CPU to CPU and counts up a word that the host looks at. It does not
//! get on where a CPU keeps its interrupts off or does not give itself away, so the word stands
//! still then.
//!
//! # Contexts
//! Task context.

use alloc::{string::String, vec::Vec};
use core::sync::atomic::{AtomicU8, Ordering};

use trace_interface::{Frame, Script};
use trace_wire::{Control, Header, MapPart, MemoryPlace, OPTIONS_FILE, Options, SCRIPT_FILE};

use super::{
    Outlet, Refusal, Session,
    com2::{Com2, PATIENCE_NS},
    outbox::{Outbox, Sign, extents},
};
use crate::{
    arch::smp,
    fw_cfg::FwCfg,
    pr_err,
    probes::Kernel,
    sync::SpinLock,
    task::{self, TaskRef, WaitQueue, exec::run_program_until, scheduler, sleep::sleep_ns},
    time::{NSEC_PER_MSEC, ktime_get},
    trace::{TRACING, shared::try_vec},
};

/// How often the reader looks into the ring and at the port.
const LOOK_NS: u64 = 20 * NSEC_PER_MSEC;

/// Where the run stands. Only rises.
static STATE: AtomicU8 = AtomicU8::new(STARTING);
const STARTING: u8 = 0;
const RUNNING: u8 = 1;
/// The program has ended, so the trace is to end.
const ENDING: u8 = 2;
/// All is sent.
const OVER: u8 = 3;
/// All is sent, and the script never ran. [`OVER`] does not tell this: a short trace may be over
/// before the task that waits for [`RUNNING`] has a CPU.
const REFUSED: u8 = 4;

/// Those who wait for another state.
static CHANGED: WaitQueue = WaitQueue::new();

/// The task that waits for the program.
static WAITER: SpinLock<Option<TaskRef>> = SpinLock::new(None);

fn advance(state: u8) {
    STATE.fetch_max(state, Ordering::SeqCst);
    CHANGED.wake_all();
}

/// A trace that was asked for, and may have been refused.
pub struct Trace {
    run: Option<String>,
    refused: bool,
}

/// Finds a file of the initramfs by its path.
pub type FindFile = fn(&str) -> Option<&'static [u8]>;

/// Starts the trace that the host asks for. None: it asks for none. `find` serves machines without
/// fw_cfg.
pub fn start(find: FindFile) -> Option<Trace> {
    let (script, options) = read(find)?;
    let options = String::from_utf8_lossy(&options).into_owned();
    let parsed = Options::parse(&options);
    let run = parsed.run.map(String::from);
    *WAITER.lock() = Some(task::current());
    let reader = task::spawn_kthread("trace", move || read_trace(script, &options));
    if reader.is_err() {
        pr_err!("trace: there is no memory for the reader's task");
        return Some(Trace { run, refused: true });
    }
    CHANGED.wait_until(|| STATE.load(Ordering::SeqCst) != STARTING);
    let refused = STATE.load(Ordering::SeqCst) == REFUSED;
    Some(Trace { run, refused })
}

impl Trace {
    /// Runs `default`, or the program that the host has named, to its end or to that of the trace.
    /// False: the trace was refused, or the program failed.
    pub fn run(self, default: &str) -> bool {
        if self.refused {
            return false;
        }
        let text = self.run.as_deref().unwrap_or(default);
        let mut words = text.split_ascii_whitespace();
        let program = words.next().unwrap_or(default);
        let path = match program.contains('/') {
            true => String::from(program),
            false => alloc::format!("/bin/{program}"),
        };
        let args: Vec<&str> = words.collect();
        let is_over = || STATE.load(Ordering::SeqCst) >= OVER;
        let result = run_program_until(&path, &args, is_over);
        let cut_short = is_over();
        advance(ENDING);
        CHANGED.wait_until(is_over);
        match result {
            _ if cut_short => true,
            Ok(status) if status.success() => true,
            Ok(status) => {
                pr_err!("{path}: {status:?}");
                false
            }
            Err(errno) => {
                pr_err!("{path} could not be run: {errno}");
                false
            }
        }
    }
}

/// The script and the options.
fn read(find: FindFile) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut device = FwCfg::open();
    let mut contents = |name| {
        let Some(device) = &mut device else {
            let file = find(name)?;
            let mut bytes = try_vec(file.len()).ok()?;
            bytes.extend_from_slice(file);
            return Some(bytes);
        };
        let file = device.find(name)?;
        let mut bytes = try_vec(file.size).ok()?;
        bytes.resize(file.size, 0);
        device.read(file, &mut bytes);
        Some(bytes)
    };
    let script = contents(SCRIPT_FILE)?;
    Some((script, contents(OPTIONS_FILE).unwrap_or_default()))
}

/// The reader's task.
fn read_trace(script: Vec<u8>, options: &str) {
    let options = Options::parse(options);
    // SAFETY: one task of this kind is started, and nothing else uses COM2.
    let mut line = unsafe { Line::new() };
    let mut outcome = OVER;
    if !line.port.works() {
        pr_err!("trace: there is no second serial port for the answers");
        outcome = REFUSED;
    } else if let Err(refusal) = trace(&script, &options, &mut line) {
        pr_err!("trace: {}", refusal.text);
        line.send(&refusal.frame());
        outcome = REFUSED;
    }
    line.flush();
    line.port.flush();
    advance(outcome);
    // A task is neither woken nor dropped under the lock.
    let waiter = WAITER.lock().take();
    if let Some(waiter) = waiter {
        scheduler::wake(&waiter);
    }
}

fn trace(script: &[u8], options: &Options<'_>, line: &mut Line) -> Result<(), Refusal> {
    let (script, mut how) = trace_agent::script::read::<Kernel>(script, options)?;
    if options.memory {
        line.share_memory(&script);
    }
    let sign = line.outbox.as_ref().filter(|_| options.watchdog);
    let sign = sign.map(Outbox::sign);
    let watchdog = sign.and_then(|sign| {
        // Without the task the host takes the guest for hanging, and that is better than a guest
        // that hangs unseen.
        task::spawn_kthread("watchdog", move || feed(sign)).ok()
    });
    if let Some(task) = watchdog {
        how.own = how.own.and(task.pid().cast_unsigned());
    }
    let mut session = Session::start(&script, how, line)?;
    if options.maps {
        line.share_maps(&session);
    }
    line.flush();
    drop(script);
    if let Some(sign) = sign {
        // From here on the host watches.
        sign.feed();
    }
    let end = options
        .nanoseconds
        .map(|limit| ktime_get().saturating_add(limit));
    advance(RUNNING);
    loop {
        let more = session.serve(line);
        line.flush();
        let now = ktime_get();
        let is_ending = || STATE.load(Ordering::SeqCst) >= ENDING;
        if session.is_over() || is_ending() || line.wants_end() || end.is_some_and(|end| now >= end)
        {
            break;
        }
        if more {
            continue;
        }
        let times = [session.next_due(), end];
        let next = times.into_iter().flatten().fold(now + LOOK_NS, u64::min);
        // Either way the loop looks at all again.
        let _ = CHANGED.wait_until_deadline(next, is_ending);
    }
    if let Some(outbox) = &line.outbox {
        outbox.set_maps(false);
    }
    session.end(line);
    Ok(())
}

/// The watchdog's task.
fn feed(sign: Sign) {
    CHANGED.wait_until(|| STATE.load(Ordering::SeqCst) != STARTING);
    let task = task::current();
    while STATE.load(Ordering::SeqCst) < OVER {
        for cpu in 0..smp::online_cpus() {
            task.set_allowed_cpus(1 << cpu);
            // It wakes up on that CPU.
            sleep_ns(LOOK_NS);
        }
        // All of them have run it.
        sign.feed();
    }
}

/// The second serial port, and the memory that the host reads.
struct Line {
    port: Com2,
    outbox: Option<Outbox>,
    /// There is something in the outbox that the host was not told of.
    has_news: bool,
    /// The host does not take what is in the outbox.
    is_stuck: bool,
}

impl Line {
    /// # Safety
    /// Nothing else uses COM2 while the value exists.
    unsafe fn new() -> Self {
        Self {
            // SAFETY: by the contract.
            port: unsafe { Com2::new() },
            outbox: None,
            has_news: false,
            is_stuck: false,
        }
    }

    /// Has the host read the answers from memory, and the rings if the script has them. If there is
    /// no memory to spare, all stays as it is.
    fn share_memory(&mut self, script: &Script) {
        use bpf::MapKind;
        let Some(outbox) = Outbox::new() else {
            return;
        };
        let Some(place) = outbox.place() else {
            return;
        };
        if script.maps.iter().any(|map| map.kind == MapKind::Ring) && TRACING.buffer.ready().is_ok()
        {
            TRACING.buffer.share(|start, bytes| {
                if let Some(extents) = extents(start, bytes) {
                    self.tell(&MemoryPlace::Ring(extents));
                }
            });
        }
        self.tell(&place);
        self.outbox = Some(outbox);
    }

    /// Has the host read the script's maps from memory. Those that it cannot see come at the end,
    /// like all.
    fn share_maps(&mut self, session: &Session) {
        if self.outbox.is_none() {
            return;
        }
        session.for_each_map_part(|map, part| {
            if let Some(extents) = extents(part.address, part.layout.bytes()) {
                self.tell(&MemoryPlace::Map(MapPart {
                    map,
                    cpu: part.cpu as u32,
                    layout: part.layout.encode(),
                    extents,
                }));
            }
        });
        if let Some(outbox) = &self.outbox {
            outbox.set_maps(true);
        }
    }

    /// Sends where something is, through the port.
    fn tell(&mut self, place: &MemoryPlace) {
        let message = place.encode();
        if let Some(header) = Header::of(&message) {
            self.port.write(&header.encode());
            self.port.write(&message);
        }
    }

    /// Tells the host that there is something in the outbox.
    fn flush(&mut self) {
        if core::mem::take(&mut self.has_news)
            && let Some(header) = Header::of(&[])
        {
            self.port.write(&header.encode());
        }
    }

    /// Whether the host has asked for the end.
    fn wants_end(&mut self) -> bool {
        while let Some(byte) = self.port.read() {
            if Control::of(byte) == Some(Control::End) {
                return true;
            }
        }
        false
    }

    fn write(&mut self, mut bytes: &[u8]) {
        let mut since = None;
        while !bytes.is_empty() && !self.is_stuck && !self.port.is_dead() {
            let Some(outbox) = &mut self.outbox else {
                return self.port.write(bytes);
            };
            match outbox.write(bytes) {
                0 => {
                    self.flush();
                    let since = *since.get_or_insert_with(|| ktime_get());
                    self.is_stuck = ktime_get() - since > PATIENCE_NS;
                    sleep_ns(NSEC_PER_MSEC);
                }
                sent => {
                    bytes = &bytes[sent..];
                    self.has_news = true;
                    since = None;
                }
            }
        }
    }
}

impl Outlet for Line {
    fn send(&mut self, frame: &Frame) {
        let bytes = frame.encode();
        let Some(header) = Header::of(&bytes) else {
            pr_err!(
                "trace: an answer of {} bytes is too long to be sent",
                bytes.len()
            );
            return;
        };
        self.write(&header.encode());
        self.write(&bytes);
    }
}
