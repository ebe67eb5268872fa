//! The cost of a boot, from the kernel's entry to the first hit.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kernel::{probes::ProbeError, time::read_tsc};
use test_protocol::Quantity;

use crate::{handlers::register_empty_at, targets::Target, tell, wanted};

/// The time stamp counter at the kernel's entry.
static ENTRY: AtomicU64 = AtomicU64::new(0);

/// Notes the time. The first thing that the kernel does.
pub fn note_entry() {
    ENTRY.store(read_tsc(), Relaxed);
}

/// Measures, if this is requested. Only the first measurement of a boot is meaningful.
///
/// # Errors
/// That of the registration.
pub fn measure() -> Result<(), ProbeError> {
    const NAME: &str = "boot_to_first_hit";
    if wanted(NAME) {
        let target = Target::named("bench_empty");
        let probe = register_empty_at(target.address())?;
        target.call(1);
        let ticks = read_tsc() - ENTRY.load(Relaxed);
        assert_eq!(probe.hits(), 1, "hits");
        tell(Quantity::Boot, NAME, ticks, 1);
    }
    Ok(())
}
