//! The least kernel that has probes boots, and its probes fire. The page that explains it shows its
//! code as it is.

use std::{fs, time::Duration};

use boot::{
    cargo::Flags,
    firmware::Firmware,
    guest::End,
    image::Kernel,
    layout,
    prerequisites::{self, Install},
    qemu::Machine,
};
use regex::Regex;
use tests::{Document, Over, record};

/// Boots the least kernel, built with these flags, and looks for the whole log. `addresses` is a
/// pattern for the addresses of its text.
fn fires(flags: Flags, addresses: &str) {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build_minimal(flags).unwrap();
    let image = kernel.image(Firmware::Bios).unwrap();
    let machine = Machine {
        cpus: 1,
        ..Machine::new(image)
    };
    let (over, log) = record(&machine, Duration::from_secs(120)).unwrap();
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    let kprobe = format!(r"kprobe at {addresses}: add\(3, 4\)");
    let expected = [
        "the CPU's data: passed",
        "CPUs that answer: passed",
        "a probe that fires: passed",
        "a stale breakpoint: passed",
        "a fault in a slot: passed",
        "an int3 of user code: skipped, because the kernel has no user_breakpoint",
        "an NMI in a handler: skipped, because the kernel has no in_nmi",
        "a probe removed under fire: skipped, because the kernel has no spawn",
        "preemption in a slot: skipped, because the kernel has no spawn",
        "plain call: 3",
        &kprobe,
        "kretprobe: add returned 7",
        "probed call: 7",
        "plain call: 11",
        "hits: 1 at the entry, 1 at the return",
    ];
    let expected = Regex::new(&format!(r"{}\s*$", expected.join(r"\s+"))).unwrap();
    assert!(expected.is_match(&log), "{log}");
}

#[test]
fn its_probes_fire() {
    fires(Flags::Tree, "0xffffffff8[0-9a-f]{7}");
}

/// With rustc's own flags for the target the kernel is position-independent, and the boot loader
/// puts it into the lower half.
#[test]
fn its_probes_fire_wherever_it_is() {
    fires(Flags::Rustc, "0x[0-9a-f]{1,12}");
}

/// Each block of Rust on the page stands in the kernel's sources, line for line but for how far
/// it is indented.
#[test]
fn the_page_shows_its_code() {
    let top = layout::workspace();
    let read = |path: &str| fs::read_to_string(top.join(path)).unwrap();
    let lines =
        |text: &str| -> Vec<String> { text.lines().map(|line| line.trim().into()).collect() };
    let sources: Vec<_> = ["main", "glue", "traps"]
        .iter()
        .map(|file| lines(&read(&format!("kernel/minimal/src/{file}.rs"))))
        .collect();
    let page = Document::open("kernel/probes/docs/your-kernel.md");
    let blocks = page.blocks();
    let code: Vec<_> = blocks.iter().filter(|block| block.mark == "rs").collect();
    for block in &code {
        let code = lines(block.text);
        let stands_in = |source: &Vec<String>| source.windows(code.len()).any(|part| part == code);
        assert!(
            sources.iter().any(stands_in),
            "not in the kernel: {code:#?}"
        );
    }
    assert!(code.len() >= 5, "{} blocks of code", code.len());
}
