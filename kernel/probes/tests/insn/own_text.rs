//! Every instruction of a real program: that which the function `subject` of the test binary names.

use std::{collections::BTreeMap, env, fs, path::PathBuf, process::Command};

use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use probes::insn::{
    Ending, Insn, Instructions, Refusal, SLOT_BYTES, SavedFlagsOperand, classify, translate,
};

struct Function {
    name: String,
    start: u64,
    bytes: Vec<u8>,
}

fn functions() -> Vec<Function> {
    let data = fs::read(crate::subject()).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let mut functions: Vec<_> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| {
            let section = file.section_by_index(symbol.section_index()?).ok()?;
            let bytes = section.data_range(symbol.address(), symbol.size()).ok()??;
            (section.kind() == SectionKind::Text).then(|| Function {
                name: symbol.name().unwrap_or_default().into(),
                start: symbol.address(),
                bytes: bytes.to_vec(),
            })
        })
        .collect();
    functions.sort_by_key(|function| function.start);
    functions.dedup_by_key(|function| function.start);
    assert!(!functions.is_empty(), "symbols are needed");
    functions
}

#[test]
fn nearly_every_instruction_of_a_real_program_can_be_probed() {
    let mut total = 0_u64;
    let mut refused = BTreeMap::<Refusal, u64>::new();
    for function in functions() {
        let instructions: Vec<Insn> = Instructions::new(&function.bytes, function.start)
            .collect::<Result<_, _>>()
            .unwrap_or_else(|e| panic!("{}: {e}", function.name));
        let mut next = function.start;
        for insn in &instructions {
            assert_eq!(insn.ip(), next);
            next = insn.next_ip();
            total += 1;
            match classify(insn, &function.bytes[(next - function.start) as usize..]) {
                Ok(_) => check_translations(insn),
                Err(refusal) => *refused.entry(refusal).or_default() += 1,
            }
        }
        assert_eq!(
            next,
            function.start + function.bytes.len() as u64,
            "{}",
            function.name
        );
    }
    println!("{:<22} {:>9} {:>9}", "reason", "count", "share");
    let mut others = 0;
    for (&refusal, &count) in &refused {
        println!(
            "{:<22} {count:>9} {:>8.4} %",
            refusal.name(),
            100.0 * count as f64 / total as f64
        );
        // Padding and the ends of diverging functions are not instructions that anybody means to
        // execute.
        if !matches!(refusal, Refusal::Undefined | Refusal::Breakpoint) {
            others += count;
        }
    }
    let all_refused: u64 = refused.values().sum();
    println!(
        "accepted {} of {total}: {:.4} %",
        total - all_refused,
        100.0 - 100.0 * all_refused as f64 / total as f64
    );
    assert!(
        others * 200 <= total,
        "{others} of {total} refused, traps not counted"
    );
}

/// Both endings, as in the kernel: slots within reach.
fn check_translations(insn: &Insn) {
    let near = insn.ip().wrapping_add(0x1000_0000) & !0xf;
    let low = insn.ip() < 1 << 30 || insn.ip() >= 0u64.wrapping_sub(1 << 31);
    for ending in [
        Ending::Resume,
        Ending::Post {
            stub: near - 0x100,
            saved_flags: Some(SavedFlagsOperand { gs_offset: 0x40 }),
        },
    ] {
        let translation = translate(insn, near, ending).unwrap_or_else(|e| panic!("{insn:?}: {e}"));
        assert!(
            !low || translation.code().len() <= SLOT_BYTES,
            "{insn:?}: {:02x?}",
            translation.code()
        );
    }
}

#[test]
fn boundaries_agree_with_those_of_a_disassembler() {
    let output = Command::new(llvm_objdump())
        .args([
            "--disassemble",
            "--no-show-raw-insn",
            "--no-leading-headers",
        ])
        .arg(crate::subject())
        .output()
        .unwrap();
    assert!(output.status.success());
    let listing = String::from_utf8_lossy(&output.stdout);
    let mut starts = Vec::new();
    let mut behind_prefix = false;
    for line in listing.lines() {
        let Some((address, text)) = line.trim_start().split_once(':') else {
            continue;
        };
        let Ok(address) = u64::from_str_radix(address, 16) else {
            continue;
        };
        if !behind_prefix {
            starts.push((address, text.contains("<unknown>")));
        }
        // Prefixes have a line of their own.
        const PREFIXES: [&str; 5] = ["lock", "rep", "repne", "data16", "rex64"];
        behind_prefix = PREFIXES.contains(&text.trim());
    }
    let mut compared = 0;
    let functions = functions();
    for function in &functions {
        let end = function.start + function.bytes.len() as u64;
        let first = starts.partition_point(|&(address, _)| address < function.start);
        let listed = &starts[first..starts.partition_point(|&(address, _)| address < end)];
        // Encodings that the disassembler does not know have no length in its listing.
        let unknown = listed.iter().find(|&&(_, unknown)| unknown);
        assert_eq!(unknown, None, "{}", function.name);
        let ours: Vec<u64> = Instructions::new(&function.bytes, function.start)
            .map(|insn| insn.unwrap().ip())
            .collect();
        let theirs: Vec<u64> = listed.iter().map(|&(address, _)| address).collect();
        assert_eq!(ours, theirs, "{}", function.name);
        compared += ours.len();
    }
    println!(
        "{compared} instructions of {} functions compared",
        functions.len()
    );
    assert!(compared > 50_000, "{compared} instructions compared");
}

/// The disassembler of the toolchain that has built the program.
fn llvm_objdump() -> PathBuf {
    let sysroot = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--print", "sysroot"])
        .output()
        .expect("rustc is run");
    let sysroot = String::from_utf8(sysroot.stdout).expect("a path");
    let tool = PathBuf::from(sysroot.trim())
        .join("lib/rustlib")
        .join("x86_64-unknown-linux-gnu")
        .join("bin/llvm-objdump");
    assert!(
        tool.exists(),
        "{} is missing: rustup component add llvm-tools",
        tool.display()
    );
    tool
}
