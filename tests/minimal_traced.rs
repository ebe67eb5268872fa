//! The least kernel with the tracer: what `trace_agent::kernel!` writes is all of its glue, and the
//! command `trace` attaches to it.

use boot::{
    firmware::Firmware,
    image::Kernel,
    prerequisites::{self, Install},
    qemu::Machine,
};
use tests::Traced;

/// Both traces in one boot, because the second one is to find the kernel as the first has left it.
#[test]
fn the_glue_of_one_macro_serves_a_tracer() {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build_minimal_traced().unwrap();
    let machine = Machine {
        cpus: 1,
        ..Machine::new(kernel.image(Firmware::Bios).unwrap())
    };
    let kernel = Traced::boot(kernel, machine, "minimal");

    // An address that no memory can have raises 13, and not 14 as one that is not mapped.
    let program = "kprobe:sell / @calls < 3 / { @word = *(uint64*)0x8765432100000000; \
                   @calls++; if (@calls == 3) { exit() } }";
    let (said, complaints) = kernel.trace(&[program], 0);
    assert!(said.contains("@word: 0\n"), "{said}{complaints}");
    assert!(said.contains("; 3 loads found nothing\n"), "{said}");

    // Three calls follow each other, and each has another result.
    let program = "session:sell { $article = args.order.article; $pieces = args.order.pieces; } \
                   return { if (@calls < 3) { print(($article, $pieces, retval, comm)); } \
                   @calls++; if (@calls == 3) { exit() } }";
    let (said, complaints) = kernel.trace(&[program], 0);
    let mut lines: Vec<&str> = said.lines().take(3).collect();
    lines.sort_unstable();
    let expected = [
        "(bread, 9, Err(TooMany { left: 5 }), shop)",
        "(salt, 0, Err(Nothing), shop)",
        "(tea, 3, Ok(9), shop)",
    ];
    assert_eq!(lines, expected, "{said}");
    // Nothing was lost, and the file has the kernel's number.
    assert!(said.ends_with(" recorded + 0 missed\n"), "{said}");
    assert_eq!(complaints, "");
}
