//! Values of a program as the tracer prints them, held against `{:?}` of the same values.
//!
//! The fixture is a program that writes its values and waits. For each value the language's
//! compiler makes a program of `print(*args.value)`, with the types of the fixture's debug
//! information. The interpreter runs that on the memory of the fixture's process, and what the
//! reader makes of the record must be the same text. Values that are handed over by themselves,
//! as arguments and results, are printed where a process has been stopped at the call.

#[path = "../values/process.rs"]
mod process;

mod handed_over;
mod world;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use bpf::context::Register;
use debug_info::DebugInfo;
use trace_compiler::{Compiled, Options, compile};
use trace_interface::Kernel;

use crate::world::Call;

/// A fixture, compiled.
fn fixture(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture");
    let source = directory.join(name).with_extension("rs");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new("rustc");
    command.arg(source).args(["--edition=2024", "-o"]);
    command.arg(&program).args([
        "-Copt-level=1",
        "-Cdebuginfo=full",
        "-Crelocation-model=static",
    ]);
    let output = command.output().expect("rustc runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    program
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

/// The text of a value in a trace of a call with its address.
fn printed(info: &DebugInfo, running: &Running, known: &Known, value: &str) -> String {
    let text = format!("kprobe:{} {{ print({value}); }}", known.name);
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
        .unwrap_or(text)
}

/// Prints each value of a fixture, and returns what is not as `{:?}` of it, by name.
fn differing(fixture_name: &str, least: usize) -> BTreeMap<String, String> {
    let program = fixture(fixture_name);
    let info = DebugInfo::open(&program).unwrap();
    let running = Running::start(&program);
    assert!(running.values.len() >= least, "{}", running.values.len());
    let mut differing = BTreeMap::new();
    for known in &running.values {
        let shown = printed(&info, &running, known, "*args.value");
        let followed = printed(&info, &running, known, "args.value");
        if followed != shown {
            let by_reference = format!("{shown}\n    by its reference: {followed}");
            differing.insert(known.name.clone(), by_reference);
        } else if shown != unquoted(&known.text) {
            differing.insert(known.name.clone(), shown);
        }
    }
    differing
}

#[test]
fn values_of_all_types_have_the_text_of_debug() {
    assert_eq!(differing("values", 170), BTreeMap::new());
}

#[test]
fn values_of_odd_types_have_the_text_of_debug() {
    assert_eq!(differing("odd_values", 130), BTreeMap::new());
}

/// A text without the digits of its addresses.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let first = parts.next().unwrap_or_default();
    parts.fold(first.into(), |text, part| {
        text + "0x" + part.trim_start_matches(|letter: char| letter.is_ascii_hexdigit())
    })
}

/// The rare values that have another form than `{:?}`, and which.
const IN_ANOTHER_FORM: [(&str, &str); 17] = [
    // Of values behind a pointer with more than an address only those of the library are followed.
    ("v_unsized_slice", "&Unsized { data_ptr: 0x, length: 3 }"),
    ("v_unsized_slice_box", "Box { data_ptr: 0x, length: 2 }"),
    (
        "v_unsized_slice_rc",
        "Rc { ptr: *const RcInner { data_ptr: 0x, length: 2 }, phantom: \
         PhantomData<alloc::rc::RcInner<rare_values::Unsized<[u16]>>>, alloc: Global }",
    ),
    (
        "v_unsized_arc",
        "Arc { ptr: *const ArcInner { data_ptr: 0x, length: 2 }, phantom: \
         PhantomData<alloc::sync::ArcInner<rare_values::Unsized<[u64]>>>, alloc: Global }",
    ),
    (
        "v_rc_ref_cell_slice",
        "Rc { ptr: *const RcInner { data_ptr: 0x, length: 2 }, phantom: \
         PhantomData<alloc::rc::RcInner<core::cell::RefCell<[u8]>>>, alloc: Global }",
    ),
    (
        "v_arc_mutex_slice",
        "Arc { ptr: *const ArcInner { data_ptr: 0x, length: 3 }, phantom: \
         PhantomData<alloc::sync::ArcInner<std::sync::poison::mutex::Mutex<[u32]>>>, alloc: \
         Global }",
    ),
    (
        "v_c_string",
        "(CString { inner: [99, 115, 10, 0] }, &CStr { data_ptr: 0x, length: 5 })",
    ),
    // What `Debug` may not read is there to be read.
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
    // More than fits into a record.
    ("v_option_vec_vec", "[None, Some(None), …and 1 more]"),
    // Other iterators than those of slices and of `Vec` are structures.
    ("v_iter_chars", "Chars { iter: Iter([97, 98]) }"),
    ("v_iter_deque", "IntoIter { inner: [1, 2] }"),
    // Words of the processor are arrays.
    ("v_simd", "__m128i([1, -1])"),
];

#[test]
fn values_of_rare_shapes_have_the_text_of_debug_or_another_form_that_is_known() {
    let differing = differing("rare_values", 240);
    let differing: BTreeMap<&str, String> = differing
        .iter()
        .map(|(name, shown)| (name.as_str(), without_addresses(shown)))
        .collect();
    let expected = IN_ANOTHER_FORM.map(|(name, shown)| (name, shown.to_string()));
    assert_eq!(differing, expected.into());
}

#[test]
fn trial() {
    let program = fixture("new_values");
    let texts: BTreeMap<String, String> = Running::start(&program)
        .values
        .iter()
        .map(|known| (known.name.clone(), unquoted(&known.text).to_string()))
        .collect();
    let differing = differing("new_values", 100);
    println!("{} of {} differ", differing.len(), texts.len());
    for (name, shown) in &differing {
        println!("{name}\n   is {}\n   shown {shown}", texts[name]);
    }
}
