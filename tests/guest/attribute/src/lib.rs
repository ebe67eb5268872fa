//! The attributes of tests that run in the kernel.
//!
//! `#[guest_test]` is for those of the crate `guest_tests`, whose documentation lists the options.
//! `#[test]` is for the probes' suite, which a process and a second kernel run as well: its sources
//! mark tests in the one way that a process knows, and here this attribute shadows the built-in
//! one.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Leaves the function as it is, and has the linker collect a descriptor of the test.
#[proc_macro_attribute]
pub fn guest_test(options: TokenStream, function: TokenStream) -> TokenStream {
    let name = name(&function);
    let mut descriptor = code(&format!(
        "::test_protocol::Descriptor::new(
            concat!(module_path!(), \"::\", stringify!({name})),
            {name},
        )"
    ));
    for option in options_in(options) {
        descriptor.extend(code("."));
        descriptor.extend([option.name, parentheses(option.value)]);
    }
    let mut registration = code(
        "#[used]
        #[unsafe(link_section = \"guest_tests\")]
        static TEST: crate::Registered = crate::Registered",
    );
    registration.extend([parentheses(descriptor)]);
    registration.extend(code(";"));
    // A scope of its own, so that there can be many.
    let mut both = function;
    both.extend(code("const _: () ="));
    both.extend([TokenTree::from(Group::new(Delimiter::Brace, registration))]);
    both.extend(code(";"));
    both
}

/// Has the linker collect a test of the suite, with the machine and the time that the suite wants.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let options = "smp = crate::platform::CPUS, timeout = crate::platform::TIMEOUT";
    guest_test(code(options), function)
}

/// An option: the name of a method of `Descriptor`, and the argument, if it takes one.
struct TestOption {
    name: TokenTree,
    value: TokenStream,
}

/// Reads `name` and `name = value`, with commas between them.
fn options_in(tokens: TokenStream) -> Vec<TestOption> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    tokens
        .split(|token| is(token, ','))
        .filter(|option| !option.is_empty())
        .map(|option| {
            let value = match &option[1..] {
                [] => &[],
                [sign, value @ ..] if is(sign, '=') => value,
                _ => panic!("an option is `name` or `name = value`"),
            };
            TestOption {
                name: option[0].clone(),
                value: value.iter().cloned().collect(),
            }
        })
        .collect()
}

/// Returns the name of a function.
fn name(function: &TokenStream) -> TokenTree {
    let mut words = function.clone().into_iter();
    words
        .find(|word| matches!(word, TokenTree::Ident(word) if word.to_string() == "fn"))
        .expect("a test is a function");
    words.next().expect("a function has a name")
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

fn parentheses(tokens: TokenStream) -> TokenTree {
    Group::new(Delimiter::Parenthesis, tokens).into()
}

fn code(text: &str) -> TokenStream {
    text.parse().expect("it is Rust")
}
