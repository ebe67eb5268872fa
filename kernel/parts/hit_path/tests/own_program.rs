//! Checks a linked program as a kernel is checked: this test program, with code that keeps the
//! rules and code that does not.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use hit_path::{Rules, Violation, file::check};
use std::{arch::global_asm, env, fs, hint::black_box};

global_asm!(
    r#"
    .pushsection .text.roots, "ax", @progbits
    .globl root_that_keeps_the_rules
    .type root_that_keeps_the_rules, @function
root_that_keeps_the_rules:
    nop
    jmp root_that_calls_somewhere
    .size root_that_keeps_the_rules, . - root_that_keeps_the_rules
    .globl root_that_calls_somewhere
    .type root_that_calls_somewhere, @function
root_that_calls_somewhere:
    call rax
    ret
    .size root_that_calls_somewhere, . - root_that_calls_somewhere
    .popsection
    "#
);

unsafe extern "C" {
    fn root_that_keeps_the_rules();
}

fn violations(root: &'static str, callers: &'static [(&str, &str)]) -> Vec<Violation> {
    // Keeps the code in the program.
    black_box(root_that_keeps_the_rules as *const ());
    let file = fs::read(env::current_exe().unwrap()).unwrap();
    let roots = [(root, "")];
    let rules = Rules {
        roots: &roots,
        ends: &[],
        callers,
        stack_switchers: &[],
    };
    check(&file, &rules).unwrap()
}

#[test]
fn the_code_of_a_linked_program_is_followed() {
    let somewhere = Violation::Indirect {
        place: "root_that_calls_somewhere+0x0".into(),
    };
    let roots = ["root_that_keeps_the_rules", "root_that_calls_somewhere"];
    for root in roots {
        assert_eq!(violations(root, &[]), std::slice::from_ref(&somewhere));
        assert_eq!(violations(root, &[("root_that_calls_somewhere", "")]), []);
    }
}

#[test]
fn a_root_that_is_gone_is_named() {
    let name = "root_that_is_gone".into();
    let gone = Violation::NoRoot { name };
    assert_eq!(violations("root_that_is_gone", &[]), [gone]);
}
