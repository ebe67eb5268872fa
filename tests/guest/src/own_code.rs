//! What in the test kernel is the tests' own code, which holds instructions that no kernel has.

use alloc::format;
use kernel::symbols::Symbol;

use crate::suite::targets;

/// Whether the function is the kernel's, not one of the tests. Task context.
pub fn is_of_the_kernel(symbol: &Symbol<'_>) -> bool {
    let made_for_tests = ["form_", "case_", "suite_place"]
        .iter()
        .any(|prefix| symbol.name.starts_with(prefix))
        || targets::NAMES.contains(&symbol.name);
    !made_for_tests && !format!("{symbol}").contains("guest_tests")
}
