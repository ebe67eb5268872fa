//! Tells the tests' own code in the test kernel, which holds instructions that no kernel has.

use alloc::format;
use kernel::symbols::Symbol;

use crate::platform::suite::targets;

/// Whether the function is the kernel's, not one of the tests. Task context.
pub fn is_of_the_kernel(symbol: &Symbol<'_>) -> bool {
    let made_for_tests = ["form_", "case_", "suite_place"]
        .iter()
        .any(|prefix| symbol.name.starts_with(prefix))
        || targets::NAMES.contains(&symbol.name);
    !made_for_tests && !format!("{symbol}").contains("guest_tests")
}

/// Whether the function belongs to the probes' suite or to what it has of this platform. Task
/// context.
pub fn is_of_the_suite(symbol: &Symbol<'_>) -> bool {
    let name = format!("{symbol}");
    targets::NAMES.contains(&symbol.name)
        || ["suite_place", "guest_tests::platform::"]
            .iter()
            .any(|part| name.contains(part))
}
