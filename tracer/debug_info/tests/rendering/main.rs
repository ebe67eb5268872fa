//! Values of a program as the tracer prints them, held against `{:?}` of the same values.
//!
//! The fixture is a program that writes its values and waits. For each value the language's
//! compiler makes a program of `print(*args.value)`, with the types of the fixture's debug
//! information. The interpreter runs that on the memory of the fixture's process, and what the
//! reader makes of the record must be the same text. Values that are handed over by themselves,
//! as arguments and results, are printed where a process has been stopped at the call.

#[path = "../values/process.rs"]
mod process;

mod draw;
mod drawn;
mod handed_over;
mod world;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use bpf::context::Register;
use debug_info::DebugInfo;
use trace_compiler::{Compiled, Options, compile};
use trace_interface::Kernel;

use crate::world::Call;

/// A fixture, compiled with an optimisation. With more than 1 functions of values become one. One
/// unit of code generation is a fifth less work than 16.
fn fixture(name: &str, optimisation: u8) -> PathBuf {
    let folder = format!("plain{optimisation}");
    build(name, &folder, optimisation, &["-Ccodegen-units=1"])
}

/// The fixture `name`, compiled with an optimisation and `flags`, in a folder for these. What an
/// earlier run has compiled by the same recipe is kept, because compiling takes most of the time of
/// these tests.
fn build(name: &str, folder: &str, optimisation: u8, flags: &[&str]) -> PathBuf {
    build_in(&fixtures(), name, folder, optimisation, flags)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture")
}

/// The same for a source in `directory`.
fn build_in(
    directory: &Path,
    name: &str,
    folder: &str,
    optimisation: u8,
    flags: &[&str],
) -> PathBuf {
    let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&programs).unwrap();
    let program = programs.join(name);
    // The source is named without its folder, because a `Location` prints the name that it has.
    let source = format!("{name}.rs");
    let mut command = Command::new("rustc");
    command
        .current_dir(directory)
        .args([&*source, "-o"])
        .arg(&program)
        .arg("--edition=2024")
        .arg(format!("-Copt-level={optimisation}"))
        .args(["-Cdebuginfo=full", "-Crelocation-model=static"])
        .args(flags);
    let text = fs::read_to_string(directory.join(source)).unwrap();
    let recipe = format!("{}{command:?}\n{text}", rustc_version());
    let noted = program.with_extension("recipe");
    if fs::read_to_string(&noted).is_ok_and(|noted| noted == recipe) {
        return program;
    }
    // A compilation that is broken off leaves no recipe.
    let _ = fs::remove_file(&noted);
    let output = command.output().expect("rustc runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    fs::write(noted, recipe).unwrap();
    program
}

/// The compiler, as it names itself.
fn rustc_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let output = Command::new("rustc").arg("-vV").output();
        String::from_utf8(output.expect("rustc runs").stdout).unwrap()
    })
}

/// A value of the fixture: its function, its address, and its text.
struct Known {
    name: String,
    address: u64,
    text: String,
}

/// The fixture, running.
struct Running {
    child: Child,
    values: Vec<Known>,
}

impl Running {
    fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut values = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "end" {
                break;
            }
            let mut parts = line.splitn(3, '\t').map(String::from);
            let mut part = || parts.next().unwrap();
            let (name, address, text) = (part(), part(), part());
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
            values.push(Known {
                name,
                address,
                text,
            });
        }
        Self { child, values }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compiled(info: &DebugInfo, text: &str) -> Result<Compiled, String> {
    let tree = trace_language::parse(text).map_err(|errors| format!("{errors:?}"))?;
    compile(&tree, info, &Options::default()).map_err(|errors| format!("{errors:?}"))
}

/// What a program prints in a trace of a call with the address of a value.
fn printed(info: &DebugInfo, running: &Running, known: &Known, block: &str) -> String {
    let text = format!("kprobe:{} {{ {block} }}", known.name);
    let function = info.functions(&known.name)[0].address;
    match compiled(info, &text) {
        Ok(compiled) => {
            let memory = File::open(format!("/proc/{}/mem", running.child.id())).unwrap();
            let call = Call {
                memory: &memory,
                function,
                entry: vec![(Register::Di, known.address)],
                on_return: None,
            };
            call.shown(compiled)
        }
        Err(why) => why,
    }
}

/// Texts by themselves stand without quotes.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        // A range of texts begins and ends with quotes, too.
        .filter(|text| !text.contains("\".."))
        .unwrap_or(text)
}

/// Bytes that are shown as a text where they are kept.
const BYTES: [&str; 6] = [
    "v_iter_words_ascii",
    "v_slice_bytes",
    "v_vec_bytes",
    "v_heap_empty",
    "v_slices",
    "v_string_capacity",
];

/// Prints each value of a fixture, and returns what is not as `{:?}` of it, by name. A value that
/// is kept in a variable has the same text, unless parts of it are left out there.
fn differing(program: &Path, least: usize) -> BTreeMap<String, String> {
    let info = DebugInfo::open(program).unwrap();
    let running = Running::start(program);
    assert!(running.values.len() >= least, "{}", running.values.len());
    let mut differing = BTreeMap::new();
    for known in &running.values {
        let printed = |block: &str| printed(&info, &running, known, block);
        let shown = printed("print(*args.value);");
        let followed = printed("print(args.value);");
        let kept = printed("$kept = (*args.value, 1); print($kept.0);");
        let is_less = ["…", "0x", "\\x"].iter().any(|part| kept.contains(part))
            || BYTES.contains(&&*known.name);
        if followed != shown {
            let by_reference = format!("{shown}\n    by its reference: {followed}");
            differing.insert(known.name.clone(), by_reference);
        } else if kept != shown && !is_less {
            let kept = format!("{shown}\n    kept: {kept}");
            differing.insert(known.name.clone(), kept);
        } else if shown != unquoted(&known.text) {
            differing.insert(known.name.clone(), shown);
        }
    }
    differing
}

#[test]
fn values_of_all_types_have_the_text_of_debug() {
    assert_eq!(differing(&fixture("values", 1), 170), BTreeMap::new());
}

#[test]
fn values_of_odd_types_have_the_text_of_debug() {
    assert_eq!(differing(&fixture("odd_values", 1), 130), BTreeMap::new());
}

/// Such code puts its arguments into its frame first, and finds that by the stack pointer.
#[test]
fn values_of_code_that_was_not_optimised_have_the_text_of_debug() {
    assert_eq!(differing(&fixture("odd_values", 0), 130), BTreeMap::new());
}

/// A text without the digits of its addresses.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let first = parts.next().unwrap_or_default();
    parts.fold(first.into(), |text, part| {
        text + "0x" + part.trim_start_matches(|letter: char| letter.is_ascii_hexdigit())
    })
}

fn differs(name: &str, least: usize, expected: &[(&str, &str)]) {
    let differing = differing(&fixture(name, 1), least);
    let differing: BTreeMap<&str, String> = differing
        .iter()
        .map(|(name, shown)| (name.as_str(), without_addresses(shown)))
        .collect();
    let expected = expected
        .iter()
        .map(|(name, shown)| (*name, shown.to_string()));
    assert_eq!(differing, expected.collect());
}

/// What `Debug` may not read is there to be read.
const NOT_READ_BY_DEBUG: [(&str, &str); 6] = [
    ("v_unsafe_cell", "(1, 2)"),
    ("v_unsafe_cell_alone", "[1]"),
    ("v_ref_cell_mut", "RefCell { value: 5 }"),
    (
        "v_ref_cell_in",
        "RefCell { value: Some(RefCell { value: 7 }) }",
    ),
    ("v_mutex_locked", "Mutex { data: 4, poisoned: false, .. }"),
    (
        "v_rw_lock_written",
        "RwLock { data: 4, poisoned: false, .. }",
    ),
];

#[test]
fn values_of_rare_shapes_have_the_text_of_debug_or_more() {
    differs("rare_values", 240, &NOT_READ_BY_DEBUG);
}

/// The values of nested shapes that have another form than `{:?}`, and why.
const IN_ANOTHER_FORM: [(&str, &str); 6] = [
    // The type has a `Debug` that says less than there is.
    ("v_dyn_any", "5"),
    // More types implement the trait than are told apart at a hit.
    ("v_dyn_debug", "&dyn Debug { pointer: 0x, vtable: 0x }"),
    // The debug information has no lifetimes.
    (
        "v_tagged_fn",
        "Tagged { of: PhantomData<fn(&u8) -> alloc::boxed::Box<dyn core::error::Error>>, id: 9 }",
    ),
    // More than fits into a record.
    ("v_tokens", "[Word(\"w\"), Num(-0.5), …and 2 more]"),
    // Iterators over trees hold places in them.
    ("v_iter_keys", TREE_KEYS),
    ("v_iter_tree", TREE),
];

const TREE: &str = "Iter { range: LazyLeafRange { front: Some(Root(NodeRef { height: 0, node: 0x, \
     _marker: PhantomData<(alloc::collections::btree::node::marker::Immut, \
     alloc::collections::btree::node::marker::LeafOrInternal)> })), back: Some(Root(NodeRef { \
     height: 0, node: 0x, _marker: PhantomData<(alloc::collections::btree::node::marker::Immut, \
     alloc::collections::btree::node::marker::LeafOrInternal)> })) }, length: 2 }";

const TREE_KEYS: &str = "Iter { iter: Keys { inner: Iter { range: LazyLeafRange { front: \
     Some(Root(NodeRef { height: 0, node: 0x, _marker: \
     PhantomData<(alloc::collections::btree::node::marker::Immut, \
     alloc::collections::btree::node::marker::LeafOrInternal)> })), back: Some(Root(NodeRef { \
     height: 0, node: 0x, _marker: PhantomData<(alloc::collections::btree::node::marker::Immut, \
     alloc::collections::btree::node::marker::LeafOrInternal)> })) }, length: 2 } } }";

#[test]
fn values_of_nested_shapes_have_the_text_of_debug_or_another_form_that_is_known() {
    differs("nested_values", 230, &IN_ANOTHER_FORM);
}

/// The values of a stranger that have another form than `{:?}`, and why.
const OF_A_STRANGER_IN_ANOTHER_FORM: [(&str, &str); 11] = [
    // More than fits into a record.
    (
        "v_in_tree",
        "[Tree({1: [2]}), Deque([3]), Set({4}), …and 1 more]",
    ),
    (
        "v_tree_backwards",
        "{-19: \"x\", -18: \"x\", -17: \"x\", -16: \"x\", -15: \"x\", -14: \"x\", -13: \"x\", \
         -12: \"x\", -11: \"x\", -10: \"x\", -9: \"x\", -8: \"x\", …and 8 more}",
    ),
    (
        "v_tree_high",
        "{0: true, 1: false, 2: false, 3: true, 4: false, 5: false, 6: true, 7: false, 8: false, \
         9: true, 10: false, 11: false, 12: true, 13: false, 14: false, 15: true, 16: false, 17: \
         false, 18: true, 19: false, 20: false, 21: true, 22: false, 23: false, …and 976 more}",
    ),
    (
        "v_tree_of_trees",
        "{0: {'a', 'b', 'c', 'd', 'e', …and 8 more}, 1: {'a', 'b', 'c', 'd', 'e', …and 8 more}, \
         2: {'a', 'b', 'c', 'd', 'e', …and 8 more}}",
    ),
    // Nothing says how a structure of the source around an object is aligned.
    ("v_tail_dyn", "&Tail { pointer: 0x, vtable: 0x }"),
    // The types have a `Debug` that calculates something.
    (
        "v_io_errors",
        "[Error { repr: Repr(0x, PhantomData<std::io::error::ErrorData<alloc::boxed::Box<\
         std::io::error::Custom>>>) }, Error { repr: Repr(0x, PhantomData<\
         std::io::error::ErrorData<alloc::boxed::Box<std::io::error::Custom>>>) }]",
    ),
    (
        "v_io_slice",
        "IoSlice(IoSlice { vec: iovec { iov_base: 0x, iov_len: 2 }, _p: PhantomData<&[u8]> })",
    ),
    (
        "v_iter_escape",
        "EscapeUnicode(EscapeIterInner { data: MaybeEscapedCharacter { .. }, alive: 4..10, \
         escaping: PhantomData<core::escape::AlwaysEscaped> })",
    ),
    (
        "v_iter_repeat_n",
        "(RepeatN { inner: Some(RepeatNInner { count: 3, element: 1 }) }, RepeatWith { .. })",
    ),
    (
        "v_iter_string_drain",
        "Drain { string: 0x, start: 1, end: 3, iter: Chars(['b', 'c']) }",
    ),
    ("v_peek_mut", "PeekMut { heap: [2, 1], original_len: None }"),
];

#[test]
fn values_that_a_stranger_draws_have_the_text_of_debug_or_another_form_that_is_known() {
    differs("foreign_values", 240, &OF_A_STRANGER_IN_ANOTHER_FORM);
}

/// Fields, elements and lengths behind pointers with more than an address.
#[test]
fn parts_of_values_behind_wide_pointers_are_values() {
    let program = fixture("nested_values", 1);
    let info = DebugInfo::open(&program).unwrap();
    let running = Running::start(&program);
    for (name, block, text) in [
        (
            "v_dst_slice",
            "print(args.value.len); print(args.value.body);",
            "2\n[7, 8]",
        ),
        (
            "v_dst_slice",
            "print(args.value.body[1]); print(args.value.body.len);",
            "8\n2",
        ),
        (
            "v_dst_slice",
            "$body = args.value.body; print($body[0]); @[$body] = 1;",
            "7",
        ),
        ("v_dst_slice", "print(args.value.body[2]);", "-"),
        ("v_dst_str", "print(args.value.body[0]);", "a"),
        ("v_dst_dst", "print(args.value.body.body);", "[1, 2]"),
        (
            "v_dst_dst",
            "$inner = args.value.body; print($inner);",
            "Dst { len: 2, body: [1, 2] }",
        ),
        ("v_dst_enum", "print(args.value.body[1]);", "Some(High)"),
        (
            "v_dyn_ref",
            "print(args.value.Square); print(args.value.Square.0);",
            "Square(4)\n4",
        ),
        (
            "v_dyn_ref",
            "print(args.value.Rect); print(args.value.Rect.w);",
            "-\n-",
        ),
        ("v_dyn_box", "print(args.value.Rect.h);", "3"),
        ("v_dyn_rc", "print(args.value.Square.0);", "5"),
        ("v_heap", "print((*args.value)[0]);", "(7, 'd')"),
        ("v_pin_arc", "print((*args.value)[1]);", "2"),
        (
            "v_holder_array",
            "$of = args.value.of; print($of[1]); print($of[1][0]);",
            "[3, 4]\n3",
        ),
        ("v_dyn_list", "print((*args.value)[1].Rect.h);", "2"),
        (
            "v_dyn_list",
            "print(args.value[1].Rect.h); print(args.value[2]);",
            "2\n-",
        ),
        (
            "v_dyn_list",
            "$list = args.value; print($list[1].Rect.h); print($list[2]);",
            "2\n-",
        ),
        (
            "v_deque_front",
            "print(args.value[1]); print(args.value[4]);",
            "-6\n-",
        ),
        (
            "v_shared_slice",
            "print(args.value[1]); print(args.value[2]);",
            "6\n-",
        ),
    ] {
        let known = running.values.iter().find(|known| known.name == name);
        let shown = printed(&info, &running, known.unwrap(), block);
        assert_eq!(shown, text, "{name}: {block}");
    }
}

/// Values behind wide pointers that are shown as those pointers, and why.
const NOT_FOLLOWED: [(&str, &str); 4] = [
    // Two types share the table.
    ("v_dyn_bare_1", "dyn Bare { pointer: 0x, vtable: 0x }"),
    ("v_dyn_bare_2", "dyn Bare { pointer: 0x, vtable: 0x }"),
    // Nothing says how a structure of the source around an object is aligned.
    (
        "v_dyn_own",
        "Rc { ptr: Pointer { addr: 0x, metadata: DynMetadata(0x) }, phantom: \
         PhantomData<alloc::rc::RcInner<wide_values::Wrap<dyn wide_values::Far>>>, alloc: Global }",
    ),
    // The table is that of another trait, of which this one is a part.
    ("v_upcast", "dyn Animal { pointer: 0x, vtable: 0x }"),
];

#[test]
fn values_behind_wide_pointers_have_the_text_of_debug_or_another_form_that_is_known() {
    differs("wide_values", 65, &NOT_FOLLOWED);
}
