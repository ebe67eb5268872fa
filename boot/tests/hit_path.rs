//! Small kernels, linked as the real one is. Each keeps the rules of the hit path or breaks one.

use std::{fs, path::PathBuf, process::Command};

use ::hit_path::{Rules, Violation, rules::KERNEL};
use boot::{
    hit_path, layout,
    prerequisites::{self, Install},
};

/// A function in assembly, without its final `ret`.
fn function((name, body): (&str, &str)) -> String {
    format!(
        ".globl \"{name}\"\n.type \"{name}\", @function\n\"{name}\":\n{body}\nret\n\
         .size \"{name}\", . - \"{name}\"\n"
    )
}

/// Links a kernel that has all roots.
///
/// The first root executes `root`. `functions` and `data` are its other contents, and `stub` is an
/// entry stub.
fn link(name: &str, root: &str, functions: &[(&str, &str)], stub: &str, data: &str) -> PathBuf {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let directory = layout::target().join("tmp/hit_path");
    fs::create_dir_all(&directory).unwrap();
    let bodies = [root].into_iter().chain(std::iter::repeat("nop"));
    let roots: String = KERNEL
        .roots
        .iter()
        .zip(bodies)
        .map(|((name, _), body)| function((name, body)))
        .collect();
    let functions: String = functions.iter().copied().map(function).collect();
    let stub = function(("asm_stub", stub));
    let source = format!(
        "#![no_std]\n#![no_main]\n\
         core::arch::global_asm!(r#\".text\n{roots}{functions}\
         .globl __entry_text_start\n__entry_text_start:\n{stub}\
         .globl __entry_text_end\n__entry_text_end: nop\n{data}\"#);\n\
         #[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! {{ loop {{}} }}\n",
    );
    let (file, kernel) = (
        directory.join(format!("{name}.rs")),
        directory.join(format!("{name}.elf")),
    );
    fs::write(&file, source).unwrap();
    let linked = Command::new("rustc")
        .args(["--edition", "2024", "--crate-type", "bin"])
        .args(["--target", layout::GUEST_TARGET])
        .args(["-C", "relocation-model=static", "-C", "panic=abort"])
        .args(["-C", "link-dead-code"])
        .arg("-o")
        .args([&kernel, &file])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&linked.stderr);
    assert!(linked.status.success(), "{said}");
    kernel
}

/// The message about a kernel whose root calls `helper`, which has this body.
fn refusal(name: &str, helper: &str, functions: &[(&str, &str)], data: &str) -> String {
    let functions = [&[("helper", helper)], functions].concat();
    let kernel = link(name, "call helper", &functions, "nop", data);
    let error = hit_path::check(&kernel).expect_err("it breaks a rule");
    let text = format!("{error:#}");
    let head = "breaks the rules for the code that a hit runs through:\n";
    assert!(text.contains(head), "{text}");
    text
}

#[test]
fn a_kernel_that_keeps_the_rules_is_accepted() {
    let root = "call helper\ncall [rip + constant]\nsub rsp, 32\nlea rsp, [rsp + 32]";
    let functions = [
        ("helper", "call __switch_to"),
        ("__switch_to", "mov rsp, [rsi]"),
        ("unreached", "call rax\nmov rsp, rax"),
    ];
    let data = ".section .rodata\nconstant: .quad helper\n";
    hit_path::check(&link("keeps", root, &functions, "call unreached", data)).unwrap();
}

#[test]
fn a_call_to_where_nobody_knows_is_refused() {
    let text = refusal("indirect", "nop\ncall rax", &[], "");
    let told = "helper+0x1 calls or jumps to an unknown target";
    assert!(text.contains(told), "{text}");
}

#[test]
fn what_a_constant_points_to_is_followed() {
    let functions = [("lost", "jmp rax")];
    let data = ".section .rodata\nconstant: .quad lost\n";
    let text = refusal("constant", "call [rip + constant]", &functions, data);
    assert!(text.contains("  lost+0x0 calls or jumps"), "{text}");
}

#[test]
fn a_variable_is_not_believed_though_its_first_value_is_known() {
    let functions = [("known", "nop")];
    let data = ".section .data\nvariable: .quad known\n";
    let text = refusal("variable", "call [rip + variable]", &functions, data);
    assert!(text.contains("  helper+0x0 calls or jumps"), "{text}");
}

#[test]
fn a_call_of_panicking_code_is_refused() {
    let functions = [("core::panicking::panic_bounds_check", "nop")];
    let call = "nop\ncall \"core::panicking::panic_bounds_check\"";
    let text = refusal("panics", call, &functions, "");
    let told = "helper+0x1 calls core::panicking::panic_bounds_check, on the hit path, \
                which must not panic";
    assert!(text.contains(told), "{text}");
}

#[test]
fn a_change_of_the_stack_is_refused() {
    let text = refusal("switches", "nop\nmov rsp, rdi", &[], "");
    assert!(text.contains("helper+0x1 changes the stack"), "{text}");
}

#[test]
fn a_change_of_the_stack_in_an_entry_stub_is_refused() {
    let kernel = link("stub", "nop", &[], "mov rsp, rax", "");
    let text = format!("{:#}", hit_path::check(&kernel).unwrap_err());
    assert!(text.contains("asm_stub+0x0 changes the stack"), "{text}");
}

#[test]
fn bytes_that_are_no_instruction_are_refused() {
    let text = refusal("undecodable", ".byte 0x06", &[], "");
    assert!(text.contains("helper+0x0 is no instruction"), "{text}");
}

#[test]
fn a_root_that_is_not_there_is_missed() {
    let rules = Rules {
        roots: &[("nowhere", "a hit begins in it")],
        ..KERNEL
    };
    let kernel = fs::read(link("plain", "nop", &[], "nop", "")).unwrap();
    let name = "nowhere".into();
    let found = ::hit_path::file::check(&kernel, &rules).unwrap();
    assert_eq!(found, [Violation::NoRoot { name }]);
}

#[test]
fn a_file_that_is_no_kernel_is_told() {
    let path = layout::target().join("tmp/hit_path/none.elf");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "nothing").unwrap();
    let text = format!("{:#}", hit_path::check(&path).unwrap_err());
    assert!(text.contains("cannot read the symbols of"), "{text}");
}
