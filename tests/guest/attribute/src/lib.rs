//! `#[test]` in the kernel.
//!
//! Sources that are compiled for a process and for the kernel mark their tests in the one way that the process knows. Where they are
//! compiled for the kernel, this attribute stands for the built-in one, whose name it shadows.

use proc_macro::{TokenStream, TokenTree};

/// Leaves the function as it is and has the linker collect it, as `guest_test!` does.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut words = function.clone().into_iter();
    words
        .find(|word| matches!(word, TokenTree::Ident(word) if word.to_string() == "fn"))
        .expect("a test is a function");
    let name = words.next().expect("a function has a name");
    let registration = format!("crate::platform::collect! {{ {name} }}");
    let registration: TokenStream = registration.parse().expect("it is a macro's call");
    function.into_iter().chain(registration).collect()
}
