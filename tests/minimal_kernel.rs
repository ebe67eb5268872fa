//! The least kernel that has probes boots, and its probes fire. The page that explains it shows its
//! code and its log as they are: nothing stands there without a proof. It has none of the features
//! of the probes, and builds with any choice of them.

use std::{fs, path::Path, process::Command, time::Duration};

use boot::{
    cargo::Flags,
    firmware::Firmware,
    guest::End,
    image::Kernel,
    layout,
    prerequisites::{self, Install},
    qemu::Machine,
};
use object::{Endianness, Object as _, ObjectSymbol as _, read::elf::ElfFile64};
use regex::Regex;
use tests::{
    Document, Over,
    document::{Block, Masks},
    record,
};

/// The page, and the headings of its blocks that show what is printed.
const PAGE: &str = "kernel/probes/docs/your-kernel.md";
const START: &str = "7. Start";
const WORKS: &str = "8. It works";
const TRACE: &str = "10. `trace` from another machine";

/// The features of the crate `probes`, all of which are on by default.
fn features() -> Vec<String> {
    let manifest = fs::read_to_string(layout::workspace().join("kernel/probes/Cargo.toml"));
    let manifest = manifest.unwrap();
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("default = "));
    serde_json::from_str(line.expect("there are features")).unwrap()
}

/// The least kernel has none of what a kernel may leave out: no symbol of it.
fn has_no_features(elf: &Path) {
    let bytes = fs::read(elf).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let has = |name: &str| {
        let mut symbols = file.symbols();
        symbols.any(|symbol| symbol.name() == Ok(name) && !symbol.is_undefined())
    };
    assert!(has("kretprobe_trampoline") && has("kprobe_breakpoint"));
    for symbol in [
        "kprobe_action",
        "kretprobe_trampoline_action",
        "kretprobe_trampoline_trap3",
        "jprobe_return",
        "kretprobe_detour",
        "kprobe_debug",
    ] {
        assert!(!has(symbol), "{symbol} is in {}", elf.display());
    }
}

/// With none of the features, with each alone, with all but each, and with all: the crate, and the
/// least kernel, which expands its macros.
#[test]
fn each_choice_of_features_builds_without_a_warning() {
    let all = features();
    assert!(all.len() >= 5, "{all:?}");
    let others = |feature: &String| -> Vec<String> {
        let all = all.iter();
        all.filter(|other| *other != feature).cloned().collect()
    };
    let mut choices = vec![vec![], all.clone()];
    choices.extend(all.iter().map(|feature| vec![feature.clone()]));
    choices.extend(all.iter().map(others));
    for choice in choices {
        let output = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "minimal_kernel"])
            .args(["--target", layout::GUEST_TARGET])
            .args(["--features", &choice.join(",")])
            .current_dir(layout::workspace())
            .env("CARGO_TARGET_DIR", layout::target().join("features"))
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{choice:?}: {said}"
        );
    }
}

/// Boots the least kernel, built with these flags, and looks for the whole log, which it returns.
/// `addresses` is a pattern for the addresses of its text.
fn fires(flags: Flags, addresses: &str) -> String {
    prerequisites::toolchain(Install::Allowed).unwrap();
    let kernel = Kernel::build_minimal(flags).unwrap();
    has_no_features(&kernel.debug_elf);
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
        "the code of a hit: passed",
        "a stale breakpoint: passed",
        "a fault in a slot: passed",
        "an int3 of user code: skipped, because the kernel has no user_breakpoint",
        "an NMI in a handler: skipped, because the kernel has no send_nmi",
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
    log
}

/// The page shows the log, in two blocks.
#[test]
fn its_probes_fire() {
    let log = fires(Flags::Tree, "0xffffffff8[0-9a-f]{7}");
    let (_, log) = log.split_once("the CPU's data: ").unwrap();
    let (checks, calls) = log.split_once("plain call: ").unwrap();
    let lines = |text: String| {
        text.lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect()
    };
    let page = Document::open(PAGE);
    let masks = Masks::new(&[("0x[0-9a-f]+", "ADDRESS")]);
    let compared = page.compare(
        |block| match (block.heading, block.mark) {
            (START, "text") => Some(lines(format!("the CPU's data: {}", checks.trim_end()))),
            (WORKS, "text") => Some(lines(format!("plain call: {}", calls.trim_end()))),
            _ => None,
        },
        |_, text| text.lines().map(|line| masks.mask(line)).collect(),
    );
    assert_eq!(compared, 2);
}

/// With rustc's own flags for the target the kernel is position-independent, and the boot loader
/// puts it into the lower half.
#[test]
fn its_probes_fire_wherever_it_is() {
    fires(Flags::Rustc, "0x[0-9a-f]{1,12}");
}

/// The lines without the blanks that all of them begin with.
fn dedented(lines: &[&str]) -> Vec<String> {
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let full = lines.iter().filter(|line| !line.trim().is_empty());
    let common = full.map(indent).min().unwrap_or(0);
    let lines = lines.iter();
    lines
        .map(|line| line.get(common..).unwrap_or_default().to_owned())
        .collect()
}

/// A file that cargo compiles with the tests of its package.
const EXAMPLE: &str = "kernel/engine/agent/examples/glue.rs";

/// That the file is a module of a kernel that the tests build and boot.
fn is_of_a_kernel(path: &str, read: impl Fn(&str) -> String) {
    let folder = ["kernel/minimal/src/", "kernel/second/src/"]
        .into_iter()
        .find(|folder| path.starts_with(folder));
    let folder = folder.unwrap_or_else(|| panic!("{path} is in no kernel that is booted"));
    let module = path[folder.len()..].trim_end_matches(".rs");
    let roots = ["main.rs", "lib.rs"].map(|root| format!("{folder}{root}"));
    let mut roots = roots
        .iter()
        .filter(|root| layout::workspace().join(root).exists());
    let lines = ["mod", "pub mod"].map(|word| format!("\n{word} {module};\n"));
    let names = |root: &str| lines.iter().any(|line| root.contains(line));
    let is_built = module == "main" || roots.any(|root| names(&read(root)));
    assert!(is_built, "{path} is no module of the kernel");
}

/// A block of Rust is marked with a file of a kernel that the tests build and boot, or with the
/// example, and stands in it, letter for letter but for how far all of it is indented.
fn stands_in_its_file(block: &Block<'_>, path: &str) {
    let read = |path: &str| fs::read_to_string(layout::workspace().join(path)).unwrap();
    if path != EXAMPLE {
        is_of_a_kernel(path, read);
    }
    let source = read(path);
    let source: Vec<&str> = source.lines().collect();
    let code = dedented(&block.text.lines().collect::<Vec<_>>());
    let mut parts = source.windows(code.len());
    assert!(
        parts.any(|part| dedented(part) == code),
        "not in {path}: {code:#?}"
    );
}

/// Each block of the page is code of a kernel that is built, or what a command prints that a test
/// runs: that of [`fires`], or one of `tests/second_kernel.rs`.
#[test]
fn each_block_of_the_page_is_proved() {
    let page = Document::open(PAGE);
    let mut code = 0;
    for block in page.blocks() {
        match (block.heading, block.mark) {
            (_, mark) if let Some(path) = mark.strip_prefix("rs ") => {
                stands_in_its_file(&block, path);
                code += 1;
            }
            (START | WORKS, "text") | (TRACE, "console") => {}
            (heading, mark) => panic!("nothing proves the block {mark:?} under {heading:?}"),
        }
    }
    assert!(code >= 6, "{code} blocks of code");
}

#[test]
#[should_panic(expected = "not in kernel/minimal/src/main.rs")]
fn a_block_that_is_in_no_kernel_is_told() {
    let document = Document::of("a page", "```rs\n    fn nowhere() {}\n```\n");
    stands_in_its_file(&document.blocks()[0], "kernel/minimal/src/main.rs");
}

/// How many lines of code these are: not empty, and more than a comment. What is there only with
/// the feature `tracer` does not count.
fn lines_of_code(source: &str) -> usize {
    let mut count = 0;
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code == "#[cfg(feature = \"tracer\")]" {
            let first = lines.next().expect("an attribute is of something");
            let indent = &first[..first.len() - first.trim_start().len()];
            if first.ends_with('{') {
                lines.find(|line| *line == format!("{indent}}}"));
            }
        } else if !(code.is_empty()
            || code.starts_with("//")
            || code.starts_with("#[cfg_attr(feature = \"tracer\""))
        {
            count += 1;
        }
    }
    count
}

#[test]
fn what_is_only_there_with_the_tracer_does_not_count() {
    let source = r#"// a comment

#[cfg(feature = "tracer")]
mod a;
#[cfg_attr(feature = "tracer", path = "c.rs")]
mod b;

fn d() {
    #[cfg(feature = "tracer")]
    if e {
        if f {
        }
    }
    g
}
"#;
    assert_eq!(lines_of_code(source), 4);
}

/// The page and the READMEs say how long these kernels and their glue are.
#[test]
fn the_numbers_of_lines_are_true() {
    let text = |path: &str| fs::read_to_string(layout::workspace().join(path)).unwrap();
    let minimal = |name: &&str| lines_of_code(&text(&format!("kernel/minimal/src/{name}.rs")));
    let all: usize = ["main", "glue", "traps"].iter().map(minimal).sum();
    let glue = minimal(&"glue");
    // What stands for the rest of a kernel comes last.
    let example = text(EXAMPLE);
    let (whole, _) = example.split_once("\nmod kernel {").unwrap();
    let whole = lines_of_code(whole);
    for (path, told) in [
        (
            PAGE,
            format!("{all} lines of code, of which {glue} are its glue"),
        ),
        (PAGE, format!("is these {whole} lines of code")),
        (
            "kernel/probes/README.md",
            format!("a complete kernel of {all} lines of code"),
        ),
        ("README.md", format!("a complete one of {all} lines")),
        ("README.md", format!("ask for {whole} lines of glue")),
    ] {
        let text = text(path);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(
            words.join(" ").contains(&told),
            "{path} does not say: {told}"
        );
    }
}
