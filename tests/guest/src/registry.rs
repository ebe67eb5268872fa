//! The list of all tests, collected by the linker.
//!
//! [`guest_test!`](crate::guest_test) puts a descriptor of each test into the section `.guest_tests`; the linker script
//! keeps them and marks start and end.

use core::{mem::size_of, slice};
use test_protocol::Descriptor;

/// Declares tests; the crate's documentation tells how.
#[macro_export]
macro_rules! guest_test {
    ($($test:tt)+) => { $crate::__guest_test! { [] [] $($test)+ } };
}

/// Takes the attributes of a test one by one: `[those for the function] [options as method calls] what is left`.
#[doc(hidden)]
#[macro_export]
macro_rules! __guest_test {
    ($attributes:tt [$($options:tt)*] #[smp($cpus:expr)] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .smp($cpus)] $($rest)+ }
    };
    ($attributes:tt [$($options:tt)*] #[memory($mib:expr)] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .memory($mib)] $($rest)+ }
    };
    ($attributes:tt [$($options:tt)*] #[cmdline($arguments:expr)] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .cmdline($arguments)] $($rest)+ }
    };
    ($attributes:tt [$($options:tt)*] #[icount] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .icount()] $($rest)+ }
    };
    ($attributes:tt [$($options:tt)*] #[timeout($seconds:expr)] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .timeout($seconds)] $($rest)+ }
    };
    ($attributes:tt [$($options:tt)*] #[should_panic($text:expr)] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .should_panic($text)] $($rest)+ }
    };
    ($attributes:tt [$($options:tt)*] #[ignore] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .ignore()] $($rest)+ }
    };
    ($attributes:tt [$($options:tt)*] #[hidden] $($rest:tt)+) => {
        $crate::__guest_test! { $attributes [$($options)* .hidden()] $($rest)+ }
    };
    ([$($attributes:tt)*] $options:tt #[$other:meta] $($rest:tt)+) => {
        $crate::__guest_test! { [$($attributes)* #[$other]] $options $($rest)+ }
    };
    ([$($attributes:tt)*] [$($options:tt)*] fn $name:ident() $body:block $($rest:tt)*) => {
        $($attributes)*
        fn $name() $body

        const _: () = {
            #[used]
            #[unsafe(link_section = ".guest_tests")]
            static TEST: $crate::Registered = $crate::Registered(
                ::test_protocol::Descriptor::new(concat!(module_path!(), "::", stringify!($name)), $name)
                    $($options)*,
            );
        };

        $crate::__guest_test! { [] [] $($rest)* }
    };
    ([] []) => {};
}

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
    // SAFETY: the linker script puts both symbols around the input sections `.guest_tests`. Only `guest_test!` makes
    // such, each holding one `Registered`; as a `Registered` is a multiple of its alignment long, there are no gaps.
    unsafe { slice::from_raw_parts(start.cast(), count) }
}
