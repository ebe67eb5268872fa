//! The example runs, and says of each argument what its text promises.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../examples/filter.rs"]
mod filter;

#[test]
fn the_example_verifies_interprets_compiles_and_calls() {
    filter::main();
    let program = filter::filter();
    let results = [0, 4096, 4097, u64::MAX].map(|argument| filter::interpreted(&program, argument));
    assert_eq!(results, [1, 1, 0, 0]);
}
