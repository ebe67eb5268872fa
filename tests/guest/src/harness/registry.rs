//! The list of all tests, collected by the linker.
//!
//! The attributes `guest_test` and `test` put a descriptor of each test into the section
//! `guest_tests`, whose start and end the linker marks.

use alloc::{format, string::String};
use core::{mem::size_of, slice};
use test_protocol::{Descriptor, PARAMETER, parse_selection};

/// A descriptor in the section; nothing else may be there.
#[doc(hidden)]
#[repr(transparent)]
pub struct Registered(pub Descriptor);

/// Returns all tests. A test's position is its index in a selection.
pub fn tests() -> &'static [Registered] {
    unsafe extern "C" {
        // The linker defines these for each section whose name is one of C.
        static __start_guest_tests: u8;
        static __stop_guest_tests: u8;
    }
    let (start, end) = (
        &raw const __start_guest_tests,
        &raw const __stop_guest_tests,
    );
    let count = (end.addr() - start.addr()) / size_of::<Registered>();
    // SAFETY: the linker puts both symbols around the input sections `guest_tests`. Only the
    // attributes make such, each holding one `Registered`; as a `Registered` is a multiple of its
    // alignment long, there are no gaps.
    unsafe { slice::from_raw_parts(start.cast(), count) }
}

/// Calls `run` with the index of each test of `selection`, and with the test, in that order. An
/// error says what is wrong with the selection.
///
/// A part of the runner, which is not probed where everything else is.
#[inline(always)]
pub fn for_each_selected(
    selection: &str,
    mut run: impl FnMut(usize, &'static Descriptor),
) -> Result<(), String> {
    let tests = tests();
    for range in parse_selection(selection) {
        let selected = range
            .ok()
            .and_then(|range| Some((*range.start(), tests.get(range)?)));
        let Some((start, selected)) = selected else {
            return Err(format!(
                "{PARAMETER}={selection}: a list of indices below {} is wanted, such as 0-2,5",
                tests.len()
            ));
        };
        for (test, index) in selected.iter().zip(start..) {
            run(index, &test.0);
        }
    }
    Ok(())
}
