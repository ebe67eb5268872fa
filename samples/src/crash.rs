//! Ends the kernel on purpose, so that its last calls can be looked at: a panic, a triple fault, or
//! a CPU that hangs with its interrupts off.
//!
//! `crash.how=panic|triple_fault|hang` chooses the end, and `crash.at=N` the Nth directory that is
//! made.

#![expect(unsafe_code, reason = "it is to fault")]

use alloc::boxed::Box;
use core::{
    arch::asm,
    fmt, hint,
    sync::atomic::{AtomicU32, Ordering},
};

use kernel::{
    errno::Errno,
    pr_info,
    probes::{Kprobe, PreVerdict, ProbeError, PtRegs, Registered, register},
    sync::Mutex,
};

kernel::module! {
    name: crash,
    description: "Ends the kernel when the Nth directory is made",
    params: {
        /// How it ends: panic, triple_fault or hang.
        how: &str = "panic",
        /// At which directory.
        at: u32 = 1,
    },
    init: init,
    exit: exit,
}

static PROBE: Mutex<Option<Registered<Box<Kprobe>>>> = Mutex::new(None);
static HITS: AtomicU32 = AtomicU32::new(0);

fn pre_handler(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    if HITS.fetch_add(1, Ordering::Relaxed) + 1 == params().at {
        end(params().how);
    }
    PreVerdict::Execute
}

/// Interrupts are off, as in every handler.
fn end(how: &str) {
    match how {
        "triple_fault" => {
            let empty_idt = [0_u8; 10];
            // SAFETY: does not return: with an IDT of no entries the exception cannot be delivered,
            // nor the double fault that follows, and the processor shuts down.
            unsafe { asm!("lidt [{}]", "ud2", in(reg) &empty_idt, options(noreturn)) }
        }
        "hang" => loop {
            hint::spin_loop();
        },
        _ => panic!("crash: as it was asked for"),
    }
}

/// Why it cannot be loaded.
enum Refusal {
    How(&'static str),
    Probe(ProbeError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::How(how) => write!(
                f,
                "crash.how does not take {how:?}; give panic, triple_fault or hang"
            ),
            Self::Probe(error) => write!(f, "{error}"),
        }
    }
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::How(_) => Self::EINVAL,
            Refusal::Probe(error) => error.into(),
        }
    }
}

fn init() -> Result<(), Refusal> {
    let how = params().how;
    if !matches!(how, "panic" | "triple_fault" | "hang") {
        return Err(Refusal::How(how));
    }
    HITS.store(0, Ordering::Relaxed);
    let kprobe = Kprobe::new().symbol("sys_mkdir").pre(pre_handler);
    let registered = register(Box::new(kprobe)).map_err(Refusal::Probe)?;
    *PROBE.lock() = Some(registered);
    pr_info!("crash: {how} at directory {}", params().at);
    Ok(())
}

fn exit() {
    PROBE.lock().take();
}
