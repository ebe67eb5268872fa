//! The agent of the tracer in this kernel: what it asks for, and the line on which tracers come,
//! the second serial port.
//!
//! # Contexts
//! [`init`] once in the boot; [`serve`] is the body of a task.

use core::{fmt, hint};

use trace_agent::{
    Agent, PerCpu, Serial,
    remote::{self, Facts, Line},
};
use uart_16550::Uart16550;

use crate::{cpu, fuse, probes::Second, smp, tasks};

trace_agent::tracing!(Second, TRACING);

const COM2: u16 = 0x2f8;

/// Starts the clock.
pub fn init() {
    // SAFETY: this is a PC, and nothing else uses its timer of old.
    unsafe { TRACING.calibrate_by_pit() };
}

// SAFETY: clause by clause of `Agent`:
// 1. `cpu` has one for each CPU, at the GS base. 2. Interrupts are off, and an interrupt on each
// CPU is what ends a grace period. 3. and 4. By `tracing!`. 5. `traps` asks
// first. Registers of devices are out of the map of physical memory; those of the local APIC, the
// only ones that are mapped, are 1 MiB above the end of what is read. 6. Stacks are statics. 7. It
// is not implemented.
unsafe impl Agent for Second {
    const GS_OFFSET: u32 = 0;

    fn this_cpu_tracing() -> &'static PerCpu {
        cpu::tracing_here()
    }

    fn cpu_tracing(cpu: usize) -> Option<&'static PerCpu> {
        cpu::tracing(cpu)
    }

    fn online_cpus() -> usize {
        smp::online()
    }

    fn task_name() -> [u64; 2] {
        tasks::current().name()
    }

    fn write_task_name(task: u32, to: &mut dyn fmt::Write) -> fmt::Result {
        let name = tasks::numbered(task).map_or([0; 2], tasks::Task::name);
        let bytes = name.map(u64::to_le_bytes);
        let letters = bytes.as_flattened().iter().take_while(|byte| **byte != 0);
        letters
            .into_iter()
            .try_for_each(|byte| to.write_char(char::from(*byte)))
    }
}

/// Sends bytes on that port when nothing else runs any more, whatever [`serve`] was doing with it.
/// The port is set up.
pub fn write_by_force(bytes: &[u8]) {
    // SAFETY: COM2 is at this address on every PC, and the task that uses it does not run.
    if let Ok(mut port) = unsafe { Uart16550::new_port(COM2) } {
        for byte in bytes {
            while port.try_send_byte(*byte).is_err() {
                hint::spin_loop();
            }
        }
    }
}

/// The second serial port, with the fuses of tests.
struct Com2(Serial<Second>);

impl Line for Com2 {
    fn read(&mut self) -> Option<u8> {
        fuse::is_heard(TRACING.script_runs());
        let byte = self.0.read()?;
        fuse::was_read();
        Some(byte)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        self.0.write(first);
        fuse::is_written();
        self.0.write(rest);
        fuse::was_written(TRACING.script_runs());
    }

    fn is_dead(&self) -> bool {
        self.0.is_dead()
    }

    fn revive(&mut self) {
        self.0.revive();
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.0.wait(nanoseconds);
    }
}

/// Serves tracers for ever.
pub extern "C" fn serve(_: u64) {
    // SAFETY: COM2 is at this address on every PC, and only this task uses it.
    let port = unsafe { Serial::at(COM2) };
    let facts = Facts::of::<Second>(concat!("second kernel ", env!("CARGO_PKG_VERSION")));
    remote::serve::<Second>(&mut Com2(port), &facts)
}
