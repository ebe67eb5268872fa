//! The data of a CPU: that of the probes and that of the agent, in one value.
//!
//! # Contexts
//! Once for each CPU, before its first hit.

use core::{arch::asm, mem::offset_of, ptr};

use crate::PerCpu;

/// What the probes and the agent keep for a CPU. A kernel has one for each, alone or in its own
/// structure, [`Platform::PER_CPU_GS_OFFSET`](probes::Platform::PER_CPU_GS_OFFSET) bytes from the
/// GS base. Then the methods of [`Agent`](crate::Agent) that ask for the agent's part need not be
/// implemented.
#[repr(C)]
#[derive(Default)]
pub struct Local {
    /// For [`Platform::per_cpu`](probes::Platform::per_cpu).
    pub probes: probes::PerCpu,
    /// The agent's.
    pub tracing: PerCpu,
}

impl Local {
    /// Where [`Local::tracing`] is, from [`Local::probes`].
    pub(crate) const TRACING: u32 = offset_of!(Self, tracing) as u32;

    /// The agent's part of the value whose other part is `probes`.
    ///
    /// # Safety
    /// It is part of a [`Local`].
    #[inline(always)]
    pub(crate) unsafe fn tracing_beside(probes: &'static probes::PerCpu) -> &'static PerCpu {
        let tracing = ptr::from_ref(probes).addr() + Self::TRACING as usize;
        // SAFETY: by the contract, and a `Local` is a static: see `init`.
        unsafe { &*ptr::with_exposed_provenance(tracing) }
    }

    /// A CPU that has not run yet.
    pub const fn new() -> Self {
        Self {
            probes: probes::PerCpu::new(),
            tracing: PerCpu::new(),
        }
    }

    /// Tells it the number of its CPU, from 0, and what the GS base is there in kernel code. Before
    /// the CPU's first hit and its first interrupt.
    pub fn init(&'static self, number: usize, gs_base: u64) {
        // The agent's part is found by its address.
        ptr::from_ref(self).expose_provenance();
        self.probes.init(number);
        self.tracing.init(number, gs_base);
    }

    /// The same for the CPU that calls, with a GS base that leads here: for kernels that use it for
    /// nothing else, and whose `PER_CPU_GS_OFFSET` is 0.
    ///
    /// # Safety
    /// Nothing on this CPU needs another GS base, or will have one.
    pub unsafe fn start(&'static self, number: usize) {
        const GS_BASE: u32 = 0xc000_0101;
        let base = ptr::from_ref(self).addr() as u64;
        self.init(number, base);
        // SAFETY: by the contract nothing else uses it.
        unsafe {
            asm!(
                "wrmsr",
                in("ecx") GS_BASE,
                in("eax") base as u32,
                in("edx") (base >> 32) as u32,
                options(nostack, preserves_flags),
            );
        }
    }
}
