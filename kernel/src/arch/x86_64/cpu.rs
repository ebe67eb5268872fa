//! The state in which every CPU starts to run: control registers and EFER.
//!
//! Firmware leaves them in different states (caches off, SSE on, and so on). So each is written
//! whole, from the answers of CPUID, and never updated bit by bit.

use core::{
    arch::x86_64::{__cpuid, __cpuid_count},
    sync::atomic::{AtomicBool, Ordering},
};
use x86_64::registers::{
    control::{Cr0, Cr0Flags, Cr4, Cr4Flags},
    model_specific::{Efer, EferFlags},
};

/// The optional features that this kernel uses when the processor has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Pages that no instruction may be fetched from.
    pub nx: bool,
    /// Ring 0 may not execute user pages.
    pub smep: bool,
    /// Ring 0 may not read or write user pages unless RFLAGS.AC is set.
    pub smap: bool,
    /// Ring 3 may not read descriptor-table registers.
    pub umip: bool,
    /// A machine check raises #MC.
    pub mce: bool,
    /// `cmpxchg16b`.
    pub cx16: bool,
    /// The TSC runs at one rate in every power state.
    pub invariant_tsc: bool,
}

impl Features {
    /// Asks CPUID (Intel SDM vol. 2A, CPUID).
    pub fn detect() -> Self {
        let max_basic = __cpuid(0).eax;
        let max_extended = __cpuid(0x8000_0000).eax;
        let leaf1 = __cpuid(1);
        let leaf7 = (max_basic >= 7).then(|| __cpuid_count(7, 0));
        let extended = |leaf: u32| (max_extended >= leaf).then(|| __cpuid(leaf));
        let bit = |word: u32, n: u32| word & (1 << n) != 0;
        Self {
            nx: extended(0x8000_0001).is_some_and(|r| bit(r.edx, 20)),
            smep: leaf7.is_some_and(|r| bit(r.ebx, 7)),
            smap: leaf7.is_some_and(|r| bit(r.ebx, 20)),
            umip: leaf7.is_some_and(|r| bit(r.ecx, 2)),
            mce: bit(leaf1.edx, 7),
            cx16: bit(leaf1.ecx, 13),
            invariant_tsc: extended(0x8000_0007).is_some_and(|r| bit(r.edx, 8)),
        }
    }
}

/// Writes CR0, CR4 and EFER of the current CPU. Call with interrupts off, once per CPU.
///
/// # Panics
/// Without NX, because W^X needs it, and under 5-level paging.
pub fn init() {
    let features = Features::detect();
    assert!(
        features.nx,
        "this kernel needs a processor with NX (execute disable)"
    );
    assert!(
        !Cr4::read().contains(Cr4Flags::L5_PAGING),
        "this kernel needs 4-level paging; switch 5-level paging (LA57) off in the firmware"
    );
    let mut cr4 = Cr4Flags::PHYSICAL_ADDRESS_EXTENSION;
    cr4.set(
        Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION,
        features.smep,
    );
    cr4.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, features.smap);
    cr4.set(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION, features.umip);
    cr4.set(Cr4Flags::MACHINE_CHECK_EXCEPTION, features.mce);
    let cr0 = Cr0Flags::PAGING
        | Cr0Flags::PROTECTED_MODE_ENABLE
        | Cr0Flags::WRITE_PROTECT
        | Cr0Flags::NUMERIC_ERROR
        | Cr0Flags::EXTENSION_TYPE
        | Cr0Flags::EMULATE_COPROCESSOR;
    // SAFETY: long mode stays on, and 4-level paging stays as it is. No kernel code needs the
    // features that are switched off here: vector units, global pages, PCIDs, FSGSBASE, and user
    // pages without STAC.
    unsafe {
        Efer::write(
            EferFlags::LONG_MODE_ENABLE
                | EferFlags::LONG_MODE_ACTIVE
                | EferFlags::NO_EXECUTE_ENABLE
                | EferFlags::SYSTEM_CALL_EXTENSIONS,
        );
        Cr0::write_raw(cr0.bits());
        Cr4::write_raw(cr4.bits());
    }
    SMAP.store(features.smap, Ordering::Relaxed);
}

static SMAP: AtomicBool = AtomicBool::new(false);

/// Whether ring 0 needs `stac` around an access to user pages. Any context; false until [`init`]
/// has run.
pub fn has_smap() -> bool {
    SMAP.load(Ordering::Relaxed)
}
