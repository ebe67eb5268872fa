//! Tracers that come to the kernel while it runs: [`trace_agent::remote`] at the second serial
//! port. A machine without the port has no task for them.
//!
//! # Contexts
//! Task context, except [`tell_tracer`].

use core::{fmt, hint};

use trace_agent::{
    last_words,
    remote::{Facts, Line, serve},
};
use trace_compiler::EventTable;

use super::com2::{Com2, PATIENCE_NS};
use crate::{
    pr_err,
    probes::Kernel,
    serial::SerialPort,
    task::{self, sleep::sleep_ns},
    time::ktime_get,
};

/// The most bytes of a script: one for each function of the kernel has about a tenth.
const MOST_SCRIPT_BYTES: u32 = 8 << 20;

/// Starts the task that waits for tracers, if the machine has a second serial port.
///
/// # Safety
/// Nothing else uses COM2 from here on.
pub unsafe fn wait_for_tracers() {
    // SAFETY: by the contract.
    let mut port = unsafe { Com2::new() };
    if !port.works() {
        return;
    }
    let wait = move || {
        let events = EventTable::default().lines();
        let facts = Facts {
            kernel: concat!("kernel ", env!("CARGO_PKG_VERSION")),
            build_id_notes: notes(),
            slide: 0,
            events: &events,
            most_script_bytes: MOST_SCRIPT_BYTES,
        };
        serve::<Kernel>(&mut port, &facts)
    };
    if task::spawn_kthread("trace", wait).is_err() {
        pr_err!("trace: there is no memory for the task that waits for a tracer");
    }
}

/// Tells a tracer that is there that the kernel has died, and sends it the last records and the
/// maps. Any context.
///
/// # Safety
/// All other CPUs have stopped for good, and the caller ends the kernel.
pub unsafe fn tell_tracer(why: impl fmt::Display) {
    // SAFETY: the task that has the port does not run any more.
    let mut port = unsafe { SerialPort::com2() };
    let mut is_ready = false;
    let mut is_dead = false;
    let mut write = |mut bytes: &[u8]| {
        if !core::mem::replace(&mut is_ready, true) {
            port.init();
        }
        let mut since = ktime_get();
        while !bytes.is_empty() && !is_dead {
            match port.write(bytes) {
                0 => {
                    is_dead = ktime_get() - since > PATIENCE_NS;
                    hint::spin_loop();
                }
                sent => (bytes, since) = (&bytes[sent..], ktime_get()),
            }
        }
    };
    // SAFETY: by the contract.
    let told = unsafe { last_words::tell::<Kernel>(why, &mut write) };
    if told {
        port.flush();
    }
}

impl Line for Com2 {
    fn read(&mut self) -> Option<u8> {
        Self::read(self)
    }

    fn write(&mut self, bytes: &[u8]) {
        Self::write(self, bytes);
    }

    fn is_dead(&self) -> bool {
        Self::is_dead(self)
    }

    fn revive(&mut self) {
        Self::revive(self);
    }

    fn wait(&mut self, nanoseconds: u64) {
        sleep_ns(nanoseconds);
    }
}

/// The notes that the linker has left: the build id is one of them.
fn notes() -> &'static [u8] {
    unsafe extern "C" {
        static __notes_start: u8;
        static __notes_end: u8;
    }
    let (start, end) = (&raw const __notes_start, &raw const __notes_end);
    let bytes = end.addr() - start.addr();
    // SAFETY: the linker script puts both around a section of the kernel's constants.
    unsafe { core::slice::from_raw_parts(start, bytes) }
}
