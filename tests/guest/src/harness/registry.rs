//! The list of all tests, collected by the linker.
//!
//! The attributes `guest_test` and `test` put a descriptor of each test into the section
//! `.guest_tests`. The linker script keeps them and marks start and end.

use core::{mem::size_of, slice};
use test_protocol::Descriptor;

/// A descriptor in the section; nothing else may be there.
#[doc(hidden)]
#[repr(transparent)]
pub struct Registered(pub Descriptor);

/// Returns all tests. A test's position is its index in a selection.
pub fn tests() -> &'static [Registered] {
    unsafe extern "C" {
        static __guest_tests_start: u8;
        static __guest_tests_end: u8;
    }
    let (start, end) = (&raw const __guest_tests_start, &raw const __guest_tests_end);
    let count = (end.addr() - start.addr()) / size_of::<Registered>();
    // SAFETY: the linker script puts both symbols around the input sections `.guest_tests`. Only
    // the attributes make such, each holding one `Registered`; as a `Registered` is a multiple of
    // its alignment long, there are no gaps.
    unsafe { slice::from_raw_parts(start.cast(), count) }
}
