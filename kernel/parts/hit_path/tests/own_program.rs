//! Checks a linked program as a kernel is checked: this test program, with code that keeps the
//! rules and code that does not.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use hit_path::{
    Blacklist, Rules, Violation,
    blacklist::{BlacklistError, HAS_CLONE},
    file::check,
};
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

global_asm!(
    r#"
    .pushsection .text.blacklisted, "ax", @progbits
    .globl kretprobe_trampoline
    .type kretprobe_trampoline, @function
kretprobe_trampoline:
    call reached_by_a_call
    jmp [rip + word_of_reached_by_a_word]
    .size kretprobe_trampoline, . - kretprobe_trampoline
    .type reached_by_a_call, @function
reached_by_a_call:
    ret
    .size reached_by_a_call, . - reached_by_a_call
    .type reached_by_a_word, @function
reached_by_a_word:
    jmp end_of_own
    .size reached_by_a_word, . - reached_by_a_word
    .type reached_by_a_word.cold, @function
reached_by_a_word.cold:
    ret
    .size reached_by_a_word.cold, . - reached_by_a_word.cold
    .type end_of_own, @function
end_of_own:
    ret
    .size end_of_own, . - end_of_own
    .globl root_of_own
    .type root_of_own, @function
root_of_own:
    ret
    .size root_of_own, . - root_of_own
    .popsection
    .pushsection .data.rel.ro, "aw", @progbits
    .balign 8
word_of_reached_by_a_word:
    .quad reached_by_a_word
    .popsection
    "#
);

unsafe extern "C" {
    fn kretprobe_trampoline();
    fn root_of_own();
}

/// The list of this program, which runs where it was not linked to, by the names of functions.
#[test]
fn the_blacklist_of_a_program_that_was_moved_names_what_a_hit_reaches() {
    const OWN: Rules<'static> = Rules {
        roots: &[("root_of_own", "it asks the probes")],
        ends: &[("end_of_own", "")],
        ..Rules::NONE
    };
    black_box((kretprobe_trampoline as *const (), root_of_own as *const ()));
    let file = fs::read(env::current_exe().unwrap()).unwrap();
    let linked = kallsyms::Table::read(&file).unwrap();
    let here = kretprobe_trampoline as *const () as u64;
    let distance = here.wrapping_sub(linked.lookup("kretprobe_trampoline").unwrap().start);
    let list = Blacklist::of_file(&file, distance, &OWN).unwrap();
    let symbols = kallsyms::Table::read_moved(&file, distance).unwrap();
    let reason = |name: &str| list.reason(symbols.lookup(name).unwrap().start);
    let returns = Some("return-probed functions return to it");
    assert_eq!(reason("kretprobe_trampoline"), returns);
    assert_eq!(reason("reached_by_a_call"), returns);
    assert_eq!(reason("reached_by_a_word"), returns);
    assert_eq!(reason("reached_by_a_word.cold"), Some(HAS_CLONE));
    assert_eq!(reason("root_of_own"), Some("it asks the probes"));
    assert_eq!(reason("end_of_own"), None);
    assert_eq!(reason("root_that_keeps_the_rules"), None);
    let in_order = list
        .entries()
        .windows(2)
        .all(|two| two[0].end <= two[1].start);
    assert!(in_order, "{:?}", list.entries());
}

#[test]
fn a_kernel_whose_own_root_is_gone_gets_no_blacklist() {
    const OWN: Rules<'static> = Rules {
        roots: &[("root_that_is_gone", "")],
        ..Rules::NONE
    };
    let file = fs::read(env::current_exe().unwrap()).unwrap();
    let error = Blacklist::of_file(&file, 0, &OWN).unwrap_err();
    let name = "root_that_is_gone".into();
    assert_eq!(error, BlacklistError::NoRoot { name });
}
