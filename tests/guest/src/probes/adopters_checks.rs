//! The self-test that the probes bring for kernels that adopt them, on this one.

use ::probes::{self_test, self_test::Verdict};
use guest_test_attribute::guest_test;
use kernel::probes::Kernel;

#[guest_test(timeout = 120)]
fn the_self_test_of_the_probes_passes() {
    let report = self_test::<Kernel>();
    for check in report.checks() {
        match check.verdict {
            Verdict::Skipped(_) => assert_eq!(check.name, "an int3 of user code", "{check}"),
            _ => assert_eq!(check.verdict, Verdict::Passed, "{check}"),
        }
    }
    assert_eq!(report.checks().len(), 10);
}
