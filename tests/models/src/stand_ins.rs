//! Stand-ins for other names in the included files: types with the fields that they use, and hooks
//! of the kernel.

use core::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::cell::Cell;

use crate::weakness::{Weakness, is_weak};

pub(crate) use probes::insn;

pub(crate) mod limits {
    /// Small, so that searches meet each other and run around the end.
    pub(crate) const TABLE_BITS: u32 = 3;
    pub(crate) const PART_BYTES: usize = 4096;
}

pub(crate) mod pt_regs {
    pub(crate) use probes::PtRegs;
}

pub(crate) mod sync {
    pub(crate) use crate::atomic;
}

pub(crate) mod hint {
    /// Lets the others go on, or the model would spin for ever.
    pub(crate) fn spin_loop() {
        loom::thread::yield_now();
    }
}

pub(crate) mod time {
    /// Models have no time. The other threads go on meanwhile, however long it is.
    pub(crate) fn delay_ns(_: u64) {
        super::hint::spin_loop();
    }

    /// The same as above.
    pub(crate) fn ktime_get() -> u64 {
        0
    }
}

pub(crate) mod mm {
    pub(crate) mod paging {
        use x86_64::VirtAddr;

        pub(crate) fn text_alias(_: VirtAddr) -> *mut u8 {
            unreachable!("models store to text themselves")
        }
    }
}

/// Stands for the probes where an interrupt asks about the `ip` that it found.
pub(crate) struct Places;

pub(crate) static PROBES: Places = Places;

impl Places {
    /// An `ip` outside slots.
    pub(crate) const OUTSIDE: u64 = 0;

    /// The `ip` in the slot of a site, which is in the table while `published` is true.
    pub(crate) fn slot(published: &'static AtomicBool) -> u64 {
        std::ptr::from_ref(published).addr() as u64
    }

    pub(crate) fn may_preempt(&self, ip: u64) -> bool {
        ip == Self::OUTSIDE || is_weak(Weakness::AlwaysQuiescent)
    }

    pub(crate) fn is_settled(&self, ip: u64) -> bool {
        // SAFETY: an `ip` other than `OUTSIDE` is that of a flag, which lives as long as the model.
        unsafe { &*(ip as *const AtomicBool) }.load(Acquire)
    }
}

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

pub(crate) mod arch {
    pub(crate) use std::arch::x86_64;

    pub(crate) mod idt {
        pub(crate) mod vector {
            pub(crate) const PROBES_SYNC: u8 = 0;
        }
    }

    pub(crate) mod percpu {
        pub(crate) const MAX_CPUS: usize = 2;

        /// The calling thread is this CPU from now on.
        pub(crate) fn become_cpu(cpu: usize) {
            super::super::CPU.with(|this| this.set(cpu));
        }

        pub(crate) fn cpu_id() -> usize {
            super::super::CPU.with(std::cell::Cell::get)
        }

        pub(crate) fn preempt_disable() {}
        pub(crate) fn preempt_enable() {}
    }

    pub(crate) mod smp {
        use core::sync::atomic::{AtomicBool, Ordering};
        use std::cell::Cell;

        use loom::sync::{Condvar, Mutex};

        thread_local! {
            static WAKE: Cell<Option<&'static (Mutex<bool>, Condvar)>> = const { Cell::new(None) };
        }

        /// For an execution.
        pub(crate) fn init() {
            WAKE.set(Some(crate::memory::keep((
                Mutex::new(false),
                Condvar::new(),
            ))));
        }

        /// The other CPU idles until there is an interrupt, or the end of the model.
        pub(crate) fn idle() {
            let (awake, wake) = WAKE.get().expect("initialised");
            let mut guard = awake.lock().expect("no panic");
            while !*guard {
                guard = wake.wait(guard).expect("no panic");
            }
            *guard = false;
        }

        pub(crate) fn wake() {
            let (awake, wake) = WAKE.get().expect("initialised");
            *awake.lock().expect("no panic") = true;
            wake.notify_one();
        }

        pub(crate) fn online_cpus() -> usize {
            super::percpu::MAX_CPUS
        }

        /// Whether the IPI is on its way to each CPU.
        pub(crate) static PENDING: [AtomicBool; super::percpu::MAX_CPUS] =
            [const { AtomicBool::new(false) }; super::percpu::MAX_CPUS];

        /// The handler of an interrupt sees all stores before the interrupt was sent: a message of
        /// the local APIC is ordered after stores (Intel SDM vol. 3A, 10.12.3 for the
        /// memory-mapped one).
        pub(crate) fn send_ipi(cpu: usize, _vector: u8) {
            PENDING[cpu].swap(true, Ordering::Release);
            wake();
        }
    }
}
