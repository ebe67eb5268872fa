//! The agent of the tracer in this kernel: what it asks for, and the line on which tracers come,
//! the second serial port.
//!
//! # Contexts
//! [`init`] once in the boot; [`serve`] is the body of a task.

use core::{fmt, hint};

use probes::Platform;
use spin::Once;
use trace_agent::{
    Agent, CodePage, PerCpu, Tracing,
    facts::EntryPoints,
    remote::{self, Facts, Line},
};
use uart_16550::{Config, Uart16550, backend::PioBackend};

use crate::{cpu, fuse, probes::Second, smp, symbols, tasks};

static CODE: [CodePage; Second::ACTION_PAGES] = [const { CodePage::new() }; Second::ACTION_PAGES];
pub static TRACING: Tracing<Second> = Tracing::new(&CODE);
trace_agent::entry_points!(Second);

/// Ticks of the time stamp counter in a millisecond.
static CLOCK: Once<u64> = Once::new();

/// Starts the clock. Before the local APIC's timer is used.
pub fn init() {
    CLOCK.call_once(smp::tsc_in_a_millisecond);
}

// SAFETY: clause by clause of `Agent`:
// 1. `cpu` has one for each CPU, at the GS base. 2. Interrupts are off, and an interrupt on each
// CPU is what ends a grace period. 3. and 4. These statics are for this type. 5. `traps` asks
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

    fn tracing() -> &'static Tracing<Self> {
        &TRACING
    }

    fn tracing_entry_points() -> EntryPoints {
        trace_entry_points()
    }

    fn tsc_hz() -> u64 {
        CLOCK.get().expect("`init` comes first") * 1000
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

fn send(port: &mut Uart16550<PioBackend>, bytes: &[u8]) {
    for byte in bytes {
        while port.try_send_byte(*byte).is_err() {
            hint::spin_loop();
        }
    }
}

/// Sends bytes on that port when nothing else runs any more, whatever [`serve`] was doing with it.
/// The port is set up.
pub fn write_by_force(bytes: &[u8]) {
    // SAFETY: COM2 is at this address on every PC, and the task that uses it does not run.
    if let Ok(mut port) = unsafe { Uart16550::new_port(0x2f8) } {
        send(&mut port, bytes);
    }
}

/// The second serial port.
struct Com2(Uart16550<PioBackend>);

impl Line for Com2 {
    fn read(&mut self) -> Option<u8> {
        fuse::is_heard(TRACING.script_runs());
        let byte = self.0.try_receive_byte().ok()?;
        fuse::was_read();
        Some(byte)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        send(&mut self.0, first);
        fuse::is_written();
        send(&mut self.0, rest);
        fuse::was_written(TRACING.script_runs());
    }

    /// A port whose other end is not there takes bytes, too, and loses them.
    fn is_dead(&self) -> bool {
        false
    }

    fn revive(&mut self) {}

    fn wait(&mut self, nanoseconds: u64) {
        let end = Second::now() + nanoseconds;
        while Second::now() < end {
            tasks::yield_now();
        }
    }
}

/// Serves tracers for ever.
pub extern "C" fn serve(_: u64) {
    // SAFETY: COM2 is at this address on every PC, and only this task uses it.
    let port = unsafe { Uart16550::new_port(0x2f8) };
    let mut port = port.expect("it is a port");
    port.init(Config::DEFAULT)
        .expect("there is a second serial port");
    let facts = Facts {
        kernel: concat!("second kernel ", env!("CARGO_PKG_VERSION")),
        build_id_notes: symbols::notes(),
        slide: symbols::slide(),
        events: "",
        most_script_bytes: 64 << 10,
    };
    remote::serve::<Second>(&mut Com2(port), &facts)
}
