//! The probes' suite, and the kernel as it sees it.
//!
//! The suite (`kernel/probes/tests/suite`) is compiled for a process, where threads are CPUs and
//! signals are traps, and the hits are served in Rust; there `kernel/probes/tests/process` says
//! what stands here. Here its tests run in ring 0: hits come by `kprobe_breakpoint` and by jumps,
//! and the stubs serve them. This is compiled for two kernels, this tree's and `kernel/second`.
//! What differs between these is in `crate::glue`.
//!
//! | in the suite | here |
//! |---|---|
//! | CPU | a kernel thread that is bound to one ([`cpu`]) |
//! | task | a kernel thread ([`task`]) |
//! | interrupt | an IPI to this CPU, with a vector of its own ([`traps`]) |
//! | code made at run time | functions of breakpoints, filled through an alias of text ([`text`]) |
//! | memory that is short | an allocator that refuses ([`allocator`]) |
//!
//! A test begins with [`boot`], on CPU 0. At its end the machine looks at what it has left behind:
//! probes, slots, detours, calls in flight, CPUs in handlers, and every byte of text.

pub mod allocator;
pub mod code_places;
pub mod cpu;
#[path = "../../../../kernel/probes/tests/suite/mod.rs"]
pub mod suite;
pub mod symbols;
pub mod task;
pub mod text;
pub mod traps;

pub(crate) use crate::glue::code_section;
pub use crate::glue::{
    BLACKLISTED, CLEARS_AC, CS, Kernel, Mutex, PROBES, SS, UNEXPECTED_BREAKPOINT, log, say,
};

use alloc::{boxed::Box, format, vec::Vec};

use probes::{Kretprobe, Platform, ReturnMethod, StepMethod};
use spin::Once;

use crate::glue::argument;

/// How much slower than the process this machine is, roughly: its CPUs are emulated, and so are the
/// IPIs for which each registration waits.
pub const SLOWNESS: u64 = 10;

/// Seconds after which a test counts as hanging.
pub const TIMEOUT: u32 = 180;

/// How displaced instructions are executed unless a probe says otherwise.
pub fn step_method() -> StepMethod {
    match argument("kprobes.step") {
        Some("tf") => StepMethod::TrapFlag,
        _ => StepMethod::Translate,
    }
}

/// How calls come back unless a kretprobe says otherwise.
pub fn return_method() -> ReturnMethod {
    match argument("kprobes.return") {
        Some("trap3") => ReturnMethod::Trap3,
        Some("trap4") => ReturnMethod::Trap4,
        _ => ReturnMethod::Asm,
    }
}

/// Whether breakpoints become jumps where they can.
pub fn jumps() -> bool {
    PROBES.optimization() && step_method() == StepMethod::Translate
}

/// How many CPUs the machine has.
pub const CPUS: u32 = 4;

/// Has a test end the kernel with these words in its log. Only a process looks
/// at the rest of what is printed.
macro_rules! dies {
    (#[test] fn $name:ident() saying $words:expr $(, $check:expr)? => $body:block) => {
        $(const _: fn(&str) -> bool = $check;)?
        #[guest_test(
            smp = $crate::platform::CPUS,
            timeout = $crate::platform::TIMEOUT,
            should_panic = $words
        )]
        fn $name() $body
    };
}
pub(crate) use dies;

/// A test that fails ends the kernel, so nothing is to be cleaned up then.
pub fn at_failure(_clean_up: impl FnOnce() + Send + 'static) {}

/// The kernel, for one test. Dropping it checks that the test has cleaned up.
pub struct Machine {
    slots: usize,
    detours: usize,
    /// Whether the knob for jumps goes on again in the end.
    jumps: bool,
}

/// All of the kernel's text as it was before the first test.
static TEXT: Once<Vec<u64>> = Once::new();

/// Takes the machine for one test, which runs on CPU 0.
pub fn boot() -> Machine {
    crate::glue::begin_log();
    cpu::stay_on(0);
    TEXT.call_once(|| {
        // Has the breakpoints that return methods need placed, which they keep.
        for method in [ReturnMethod::Trap3, ReturnMethod::Trap4] {
            let first = Kretprobe::<()>::new().symbol("add").return_method(method);
            PROBES
                .register_owned(Box::new(first))
                .expect("it is a function");
        }
        text::words().to_vec()
    });
    suite::journal::clear();
    traps::clear_hooks();
    text::clear();
    Machine {
        slots: PROBES.slots_in_use(),
        detours: PROBES.detours_in_use(),
        jumps: false,
    }
}

impl Machine {
    /// Breakpoints stay breakpoints until the test is over.
    pub fn without_jumps(mut self) -> Self {
        self.jumps = PROBES.optimization();
        PROBES
            .set_optimization(false)
            .expect("tests begin in task context");
        self
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        suite::assert_nothing_is_left(self.slots);
        assert_eq!(PROBES.detours_in_use(), self.detours, "detours in use");
        for number in 0..cpu::possible() {
            let cpu = Kernel::per_cpu(number).expect("it is possible");
            assert!(!cpu.is_busy(), "CPU {number} was left busy");
        }
        traps::clear_hooks();
        let before = TEXT.get().expect("it was taken before the test");
        let mut now = before.iter().zip(text::words());
        let differs = now.position(|(before, now)| before != now);
        let differs = differs.map(|n| {
            let at = text::range().start + 8 * n as u64;
            format!("in the eight bytes at {}", symbols::describe(at))
        });
        assert_eq!(differs, None, "text was left changed");
        if self.jumps {
            PROBES
                .set_optimization(true)
                .expect("tests end in task context");
        }
        cpu::go_anywhere();
    }
}
