//! The least kernel that has probes boots, and its probes fire. The page that explains it shows its
//! code as it is.

use std::{fs, time::Duration};

use boot::{
    firmware::Firmware,
    guest::End,
    image::Kernel,
    layout,
    prerequisites::{self, Install},
    qemu::Machine,
};
use regex::Regex;
use tests::{Document, Over, record};

#[test]
fn its_probes_fire() {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build_minimal().unwrap();
    let image = kernel.image(Firmware::Bios).unwrap();
    let machine = Machine {
        cpus: 1,
        ..Machine::new(image)
    };
    let (over, log) = record(&machine, Duration::from_secs(120)).unwrap();
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    let expected = Regex::new(
        r"(?s)plain call: 3\s+\
          kprobe at 0xffffffff8[0-9a-f]{7}: add\(3, 4\)\s+\
          kretprobe: add returned 7\s+\
          probed call: 7\s+\
          plain call: 11\s+\
          hits: 1 at the entry, 1 at the return\s*$"
            .replace("\\\n          ", "")
            .as_str(),
    )
    .unwrap();
    assert!(expected.is_match(&log), "{log}");
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
