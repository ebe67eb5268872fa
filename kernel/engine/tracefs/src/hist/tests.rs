//! Tests of the language, the program and the text of histograms.
//!
//! A histogram is read from its line, compiled, run by the interpreter on records, and shown from
//! the maps that this leaves. The text is compared with what Linux shows.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use bpf::{Builder, Program, ProgramKind, Reg, Size, context::Register};
use bpf_interpreter::{Space, TestMachine};
use proptest::prelude::*;

use super::*;
use crate::{
    field::{FieldKind, LookupError, SymbolAt, Symbols},
    filter::{FilterReason, Frame, LoadError, Loaded},
};
use HistReason as Reason;

struct Kernel;

impl Symbols for Kernel {
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
        (0x1000..0x1020).contains(&address).then(|| SymbolAt {
            name: "vfs_read",
            offset: address - 0x1000,
            size: 0x20,
            module: (address == 0x101f).then_some("ext"),
        })
    }

    fn address(&self, _name: &str) -> Result<u64, LookupError> {
        Err(LookupError::NotFound)
    }
}

impl Names for Kernel {
    fn frame(&self, stack: u64, frame: u32) -> Option<u64> {
        (stack == 7)
            .then_some([0x1004, 0x2000].get(frame as usize).copied())
            .flatten()
    }

    fn syscall(&self, number: u64) -> Option<&str> {
        (number == 0).then_some("sys_read")
    }
}

fn fields() -> Vec<Field> {
    let one = FieldKind::One;
    let mut offset = 8;
    [
        ("u8", one(Element::Unsigned(Width::W8))),
        ("s16", one(Element::Signed(Width::W16))),
        ("bytes_req", one(Element::Unsigned(Width::W32))),
        ("s32", one(Element::Signed(Width::W32))),
        ("bytes_alloc", one(Element::Unsigned(Width::W64))),
        ("call_site", one(Element::Symbol)),
        ("name", one(Element::String)),
        ("path", one(Element::String)),
        (
            "list",
            FieldKind::Array {
                element: Element::Unsigned(Width::W8),
                count: 4,
            },
        ),
    ]
    .into_iter()
    .map(|(name, kind)| {
        let field = Field::new(name, offset, kind);
        offset += kind.size();
        field
    })
    .chain([Field::symbol_string("where", 200)])
    .collect()
}

fn parse(text: &str) -> Result<Hist, HistError> {
    Hist::parse(text.strip_prefix("hist:").unwrap(), &fields(), &Kernel)
}

#[test]
fn lines_print_as_linux_prints_them_and_read_again() {
    for (text, line) in [
        (
            "hist:keys=u8",
            "hist:keys=u8:vals=hitcount:sort=hitcount:size=2048 [active]",
        ),
        (
            "hist:key=call_site.sym,u8.hex:val=bytes_req:size=1000",
            "hist:keys=call_site.sym,u8.hex:vals=hitcount,bytes_req:sort=hitcount:size=1024 \
             [active]",
        ),
        (
            "hist:vals=bytes_req,hitcount,bytes_alloc.hex:keys=stacktrace:\
             sort=bytes_req.descending",
            "hist:keys=common_stacktrace:vals=hitcount,bytes_req,bytes_alloc.hex:\
             sort=bytes_req.descending:size=2048 [active]",
        ),
        (
            "hist:name=foo:keys=common_pid.execname,cpu:sort=cpu,hitcount.descending",
            "hist:name=foo:keys=common_pid.execname,common_cpu:vals=hitcount:\
             sort=common_cpu,hitcount.descending:size=2048 [active]",
        ),
        (
            "hist:keys=u8.buckets=0x10,bytes_req.log2:sort=u8 if u8 > 1 && name ~ \"if\"",
            "hist:keys=u8.buckets=16,bytes_req.log2:vals=hitcount:sort=u8.buckets=16:size=2048 \
             if u8 > 1 && name ~ \"if\" [active]",
        ),
        (
            "hist: keys=name,comm:sort=name.ascending:size=128  if  u8 == 1",
            "hist:keys=name,common_comm:vals=hitcount:sort=name:size=128 if u8 == 1 [active]",
        ),
        (
            "hist:keys=u8.syscall,s32.sym-offset:sort=u8.descending,s32.ascending",
            "hist:keys=u8.syscall,s32.sym-offset:vals=hitcount:\
             sort=u8.syscall.descending,s32.sym-offset:size=2048 [active]",
        ),
        (
            "hist:keys=u8:vals=bytes_req.percent,hitcount.graph:sort=bytes_req.descending",
            "hist:keys=u8:vals=hitcount,bytes_req.percent,hitcount.graph:\
             sort=bytes_req.percent.descending:size=2048 [active]",
        ),
        (
            "hist:keys=u8:NOHC:vals=hitcount,bytes_req.graph,hitcount.percentage",
            "hist:keys=u8:vals=bytes_req.graph,hitcount.percent:sort=hitcount:size=2048:\
             nohitcount [active]",
        ),
    ] {
        let hist = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(hist.line(false).to_string(), line);
        // Scripts cut the state off, and write the rest with a `!` before it.
        let again = parse(line.strip_suffix("[active]").unwrap()).unwrap();
        assert_eq!(again, hist, "{line}");
        assert!(hist.line(true).to_string().ends_with(" [paused]"));
    }
}

#[test]
fn orders_are_read() {
    for (text, order) in [
        ("hist:keys=u8", Order::New),
        ("hist:keys=u8:pause", Order::Pause),
        ("hist:keys=u8:cont", Order::Continue),
        ("hist:keys=u8:continue", Order::Continue),
        ("hist:clear:keys=u8", Order::Clear),
    ] {
        assert_eq!(parse(text).unwrap().order, order, "{text}");
    }
}

#[test]
fn refusals_name_reason_and_column() {
    // A `^` marks the column.
    for (text, reason) in [
        // Those of Linux's selftest of syntax errors.
        (
            "hist:keys=common_pid:vals=bytes_req:sort=common_pid,^junk",
            Reason::BadSortField,
        ),
        (
            "hist:keys=common_pid:vals=bytes_req:^sort=",
            Reason::EmptyAssignment,
        ),
        (
            "hist:keys=common_pid:vals=bytes_req:^sort=common_pid,",
            Reason::EmptySortField,
        ),
        (
            "hist:keys=common_pid:vals=bytes_req:sort=common_pid.^junk",
            Reason::BadSortModifier,
        ),
        (
            "hist:keys=common_pid:vals=bytes_req,bytes_alloc:\
             ^sort=common_pid,bytes_req,bytes_alloc",
            Reason::TooManySortFields,
        ),
        ("hist:^", Reason::UnknownPart),
        ("hist:^vals=u8", Reason::NoKeys),
        ("hist:keys=u8:^junk", Reason::UnknownPart),
        ("hist:keys=u8:^", Reason::UnknownPart),
        ("hist:^keys=", Reason::EmptyAssignment),
        ("hist:keys=^junk", Reason::FieldNotFound),
        ("hist:keys=u8,^junk.hex", Reason::FieldNotFound),
        ("hist:keys=u8,^", Reason::FieldNotFound),
        ("hist:  keys=^junk", Reason::FieldNotFound),
        ("hist:keys=u8:vals=s16,^junk", Reason::FieldNotFound),
        ("hist:keys=u8.^junk", Reason::BadModifier),
        ("hist:keys=u8.^", Reason::BadModifier),
        ("hist:keys=u8.^execname", Reason::BadModifier),
        ("hist:keys=name.^hex", Reason::BadModifier),
        ("hist:keys=comm.^log2", Reason::BadModifier),
        ("hist:keys=u8.^buckets=0", Reason::BadModifier),
        ("hist:keys=u8.^buckets", Reason::BadModifier),
        ("hist:keys=u8:vals=^s16.log2", Reason::BadModifier),
        ("hist:keys=u8:vals=^name", Reason::StringOperand),
        ("hist:keys=u8:vals=^stacktrace", Reason::StringOperand),
        ("hist:keys=^list", Reason::NotOneValue),
        ("hist:keys=^where", Reason::NotOneValue),
        ("hist:keys=u8,s16,s32,^name", Reason::TooManyKeys),
        (
            "hist:keys=u8:vals=s16,s32,^bytes_req",
            Reason::TooManyValues,
        ),
        ("hist:keys=u8:size=^64", Reason::BadSize),
        ("hist:keys=u8:size=^131073", Reason::BadSize),
        ("hist:keys=u8:size=^4294967297", Reason::BadSize),
        ("hist:keys=u8:size=^x", Reason::BadSize),
        ("hist:keys=u8:^ts0=common_timestamp", Reason::NotSupported),
        ("hist:keys=u8:vals=^u8+s16", Reason::NotSupported),
        ("hist:keys=^$ts0", Reason::NotSupported),
        ("hist:keys=u8:^onmax($lat).save(u8)", Reason::NotSupported),
        ("hist:keys=u8:sort=^s16", Reason::BadSortField),
        (
            "hist:keys=stacktrace:sort=^common_stacktrace",
            Reason::BadSortField,
        ),
        ("hist:keys=u8.hex:sort=u8.^log2", Reason::BadSortModifier),
        ("hist:keys=u8:^sort=.descending", Reason::EmptySortField),
    ] {
        let (column, text) = (text.find('^').unwrap(), text.replace('^', ""));
        let error = parse(&text).expect_err(&text);
        assert_eq!(error, HistError::Trigger { reason, column }, "{text}");
    }
    let Err(HistError::Filter(error)) = parse("hist:keys=u8 if u8 == 1 && junk == 2") else {
        panic!("the field is not there");
    };
    assert_eq!(
        (error.reason, error.column),
        (FilterReason::FieldNotFound, 16)
    );
    let Err(HistError::Filter(error)) = parse("hist:keys=u8 if") else {
        panic!("there is no filter");
    };
    assert_eq!(error.reason, FilterReason::NoFilter);
    assert!(parse("hist:keys=u8:size=65").is_ok());
}

#[test]
fn the_same_histogram_is_known_again() {
    let hist = |text| parse(text).unwrap();
    let base = hist("hist:keys=u8:vals=s16 if u8 > 1");
    assert!(base.is_same(&hist("hist:keys=u8:vals=s16:size=128:pause if u8 > 1")));
    for other in [
        "hist:keys=s16:vals=s16 if u8 > 1",
        "hist:keys=u8 if u8 > 1",
        "hist:keys=u8.hex:vals=s16 if u8 > 1",
        "hist:keys=u8:vals=s16",
        "hist:keys=u8:vals=s16 if u8 > 2",
        "hist:keys=u8:vals=s16:sort=u8 if u8 > 1",
        "hist:keys=u8:vals=s16:name=x if u8 > 1",
    ] {
        assert!(!base.is_same(&hist(other)), "{other}");
    }
}

fn entry(hits: u64, rest: &[&[u8]]) -> Vec<u8> {
    [&hits.to_le_bytes()[..], &rest.concat()].concat()
}

fn shown(hist: &Hist, entries: &[(Vec<u8>, Vec<u8>)], dropped: u64) -> String {
    let mut table = Table::new(hist);
    for (key, value) in entries {
        table.add(key, value).unwrap();
    }
    table.dropped = dropped;
    table.sort();
    let mut out = String::new();
    table.write(false, &Kernel, &Kernel, &mut out).unwrap();
    out
}

#[test]
fn file_has_linuxs_format() {
    let hist = parse("hist:keys=call_site:vals=bytes_req,bytes_alloc.hex:sort=bytes_req").unwrap();
    let number = |number: u64| number.to_le_bytes();
    // Two CPUs have counted the first key.
    let text = shown(
        &hist,
        &[
            (number(0x2000).into(), entry(1, &[&number(500), &number(1)])),
            (number(0x1004).into(), entry(2, &[&number(16), &number(64)])),
            (
                number(0x2000).into(),
                entry(3, &[&number(24), &number(0xff)]),
            ),
        ],
        5,
    );
    assert_eq!(
        text,
        "# event histogram\n\
         #\n\
         # trigger info: hist:keys=call_site:vals=hitcount,bytes_req,bytes_alloc.hex:\
         sort=bytes_req:size=2048 [active]\n\
         #\n\
         \n\
         { call_site:       4100 } hitcount:          2  bytes_req:         16  \
         bytes_alloc:         40\n\
         { call_site:       8192 } hitcount:          4  bytes_req:        524  \
         bytes_alloc:        100\n\
         \n\
         Totals:\n    Hits: 6\n    Entries: 2\n    Dropped: 5\n"
    );
}

#[test]
fn each_modifier_prints_as_in_linux() {
    let number = |number: u64| number.to_le_bytes().to_vec();
    let mut text = b"main.rs".to_vec();
    text.resize(64, 0);
    let comm = *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for (keys, key, expected) in [
        ("u8", number(7), "u8:          7".into()),
        (
            "s32",
            number(-1_i64 as u64),
            "s32: 18446744073709551615".into(),
        ),
        ("u8.hex", number(255), "u8: ff".into()),
        (
            "call_site.sym",
            number(0x1004),
            format!("call_site: [1004] {:<45}", "vfs_read"),
        ),
        (
            "call_site.sym",
            number(0x101f),
            format!("call_site: [101f] {:<45}", "vfs_read [ext]"),
        ),
        (
            "call_site.sym",
            number(0x2000),
            format!("call_site: [2000] {:<45}", "0x2000"),
        ),
        (
            "call_site.sym-offset",
            number(0x1004),
            format!("call_site: [1004] {:<55}", "vfs_read+0x4/0x20"),
        ),
        (
            "common_pid.execname",
            number(12),
            "common_pid: cat             [        12]".into(),
        ),
        (
            "common_pid.execname",
            number(0),
            "common_pid: <idle>          [         0]".into(),
        ),
        (
            "u8.syscall",
            number(0),
            format!("u8: {:<30}[  0]", "sys_read"),
        ),
        (
            "u8.syscall",
            number(9),
            format!("u8: {:<30}[  9]", "unknown_syscall"),
        ),
        ("u8.buckets=10", number(20), "u8: ~ 20-29".into()),
        ("name", text, format!("name: {:<50}", "main.rs")),
        ("common_cpu", number(1), "common_cpu:          1".into()),
    ] {
        let hist = parse(&format!("hist:keys={keys}")).unwrap();
        let text = shown(&hist, &[(key, entry(1, &[&comm]))], 0);
        let line = text.lines().nth(5).unwrap();
        assert_eq!(line, format!("{{ {expected} }} hitcount:          1"));
    }
    let hist = parse("hist:keys=u8.log2").unwrap();
    let text = shown(
        &hist,
        &[
            (vec![3, 0, 0, 0], entry(1, &[])),
            (vec![4, 0, 0, 0], entry(0, &[])),
        ],
        0,
    );
    assert_eq!(
        text.lines().nth(5).unwrap(),
        "{ u8: ~ 2^3  } hitcount:          1"
    );
    assert!(
        text.ends_with("Entries: 1\n    Dropped: 0\n"),
        "an empty bucket is no entry"
    );
}

#[test]
fn values_are_shown_as_parts_and_bars() {
    let hist = parse("hist:keys=u8:vals=bytes_req.percent,hitcount.graph:sort=u8").unwrap();
    let row = |key: u64, hits: u64, bytes: u64| {
        let value = entry(hits, &[&u64::to_le_bytes(bytes), &u64::to_le_bytes(hits)]);
        (key.to_le_bytes().to_vec(), value)
    };
    let text = shown(&hist, &[row(1, 3, 1), row(2, 20, 2), row(3, 1, 0)], 0);
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(
        rows,
        [
            "{ u8:          1 } hitcount:          3  bytes_req (%):  33.33  \
             hitcount: ###                 ",
            "{ u8:          2 } hitcount:         20  bytes_req (%):  66.66  \
             hitcount: ####################",
            "{ u8:          3 } hitcount:          1  bytes_req (%):   0.00  \
             hitcount: #                   ",
        ]
    );

    let hist = parse("hist:keys=u8:vals=bytes_req.graph,bytes_alloc.percent:nohitcount").unwrap();
    let value = entry(1, &[&[0; 8], &u64::to_le_bytes(u64::MAX)]);
    let text = shown(&hist, &[(vec![1, 0, 0, 0, 0, 0, 0, 0], value)], 0);
    assert!(text.contains(
        "{ u8:          1 }  bytes_req:                       bytes_alloc (%): 100.00\n"
    ));

    // A sum that has begun anew.
    let hist = parse("hist:keys=u8:vals=bytes_req.percent,bytes_req.graph").unwrap();
    let half = u64::to_le_bytes(1 << 63);
    let halves = [1_u64, 2].map(|key| (key.to_le_bytes().to_vec(), entry(1, &[&half, &half])));
    let text = shown(&hist, &halves, 0);
    assert!(text.contains("  bytes_req (%):[ERROR]  bytes_req: ####################\n"));
}

#[test]
fn stacks_have_a_line_for_each_frame() {
    let hist = parse("hist:keys=stacktrace").unwrap();
    let text = shown(&hist, &[(7_u64.to_le_bytes().into(), entry(3, &[]))], 0);
    let lines: Vec<&str> = text.lines().skip(5).take(4).collect();
    assert_eq!(
        lines,
        [
            "{ common_stacktrace:",
            "         vfs_read+0x4/0x20",
            "         0x2000",
            "} hitcount:          3",
        ]
    );
    let hist = parse("hist:keys=u8,stacktrace").unwrap();
    let key = [1_u64, 7].map(u64::to_le_bytes).concat();
    let text = shown(&hist, &[(key, entry(3, &[]))], 0);
    assert_eq!(
        text.lines().nth(5).unwrap(),
        "{ u8:          1, common_stacktrace:"
    );
}

#[test]
fn entries_are_sorted_by_the_sort_keys_in_turn() {
    let rows = |sort: &str| {
        let hist = parse(&format!("hist:keys=s32:vals=u8:sort={sort}")).unwrap();
        let mut table = Table::new(&hist);
        for (key, hits, sum) in [(5_i64, 2, 1), (-1, 1, 9), (3, 2, 1), (4, 1, 7)] {
            let value = entry(hits, &[&u64::to_le_bytes(sum)]);
            table.add(&key.to_le_bytes(), &value).unwrap();
        }
        table.sort();
        let keys = table.rows().iter().map(|row| row.number((0, 8)) as i64);
        keys.collect::<Vec<i64>>()
    };
    assert_eq!(rows("hitcount,s32"), [-1, 4, 3, 5]);
    assert_eq!(rows("hitcount.descending,s32"), [3, 5, -1, 4]);
    assert_eq!(rows("s32"), [-1, 3, 4, 5], "the field has a sign");
    assert_eq!(rows("u8.descending,s32.descending"), [-1, 4, 5, 3]);
}

const RECORD: u64 = 0xffff_8000_0000_0000;
const NAME: u64 = 0xffff_8000_0001_0000;
const PATH: u64 = 0x7000_0000;

fn load(builder: &mut Builder, field: &Field, dst: Reg) -> Result<Loaded<'static>, LoadError> {
    for scratch in [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
        builder.mov(scratch, -1);
    }
    Ok(match &*field.name {
        "name" => {
            builder.load(dst, Reg::R6, Register::Si.offset(), Size::B8);
            Loaded::KernelText
        }
        "path" => {
            builder.load(dst, Reg::R6, Register::Dx.offset(), Size::B8);
            Loaded::UserText
        }
        _ => {
            let address = RECORD + u64::from(field.offset);
            builder.set(dst, address as i64).load(dst, dst, 0, Size::B8);
            Loaded::Number
        }
    })
}

fn compile(hist: &Hist) -> (Program, Maps) {
    let mut builder = Builder::new(ProgramKind::Probe);
    let maps = hist.add_maps(&mut builder, "hist").unwrap();
    builder.mov(Reg::R6, Reg::R1);
    let frame = Frame {
        value: Reg::R7,
        text: -Frame::TEXT_BYTES,
    };
    hist.compile(&mut builder, frame, Reg::R6, maps, &mut load)
        .unwrap();
    builder.exit(0);
    let program = builder.finish().unwrap();
    for map in &program.maps {
        map.check().unwrap();
    }
    bpf::verifier::verify(program.clone())
        .unwrap_or_else(|refusal| panic!("{}: {refusal}", hist.line(false)));
    (program, maps)
}

#[derive(Clone, Debug)]
struct Sample {
    cpu: u32,
    pid: u32,
    numbers: Vec<u64>,
    name: Option<&'static str>,
    path: Option<&'static str>,
}

impl Sample {
    /// The record without strings.
    fn record(&self) -> Vec<u8> {
        let mut record = vec![0; 240];
        for (field, number) in fields().iter().zip(&self.numbers) {
            let (start, size) = (field.offset as usize, field.size() as usize);
            record[start..start + size].copy_from_slice(&number.to_le_bytes()[..size]);
        }
        record
    }

    fn run(&self, program: &Program, machine: &mut TestMachine) {
        machine.cpu = self.cpu;
        machine.pid_tgid = u64::from(self.pid);
        machine.comm = [0; 16];
        machine.comm[0] = b'a' + self.pid as u8;
        machine.put(Space::Kernel, RECORD, &self.record());
        for (register, space, address, text) in [
            (Register::Si, Space::Kernel, NAME, self.name),
            (Register::Dx, Space::User, PATH, self.path),
        ] {
            machine.set_register(register, if text.is_some() { address } else { 0 });
            if let Some(text) = text {
                machine.put(space, address, text.as_bytes());
                machine.put(space, address + text.len() as u64, &[0]);
            }
        }
        bpf_interpreter::run(program, machine, 10_000).unwrap();
    }

    /// A key or value as the histogram groups it.
    fn value(&self, column: &Column) -> String {
        let number = match &column.source {
            Source::Field(field) if field.name == "common_pid" => self.pid.into(),
            Source::Field(field) => match &*field.name {
                "name" => return self.name.unwrap_or("(fault)").into(),
                "path" => return self.path.unwrap_or("(fault)").into(),
                _ => field.number(&self.record()).unwrap(),
            },
            Source::Cpu => self.cpu.into(),
            Source::Comm => return char::from(b'a' + self.pid as u8).to_string(),
            Source::Stack => 0,
            Source::HitCount => 1,
        };
        match column.modifier {
            // The least power of two that is not below the number.
            Modifier::Log2 => (0..64)
                .find(|&power| 1_u64 << power >= number)
                .unwrap_or(64),
            Modifier::Buckets(size) => number / size * size,
            _ => number,
        }
        .to_string()
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    let number =
        prop_oneof![4 => 0..5_u64, 1 => Just(0x8000), 1 => Just(u64::MAX), 1 => any::<u64>()];
    let text = prop::option::of(prop::sample::select(
        &["", "a", "main.rs", "a longer text"][..],
    ));
    (
        0..2_u32,
        0..3_u32,
        prop::collection::vec(number, 6),
        text.clone(),
        text,
    )
        .prop_map(|(cpu, pid, numbers, name, path)| Sample {
            cpu,
            pid,
            numbers,
            name,
            path,
        })
}

const KEYS: [&str; 15] = [
    "u8",
    "s16",
    "s32.hex",
    "bytes_alloc",
    "call_site.sym",
    "u8.log2",
    "bytes_alloc.log2",
    "u8.buckets=3",
    "bytes_alloc.buckets=0x100000000",
    "common_pid",
    "common_pid.execname",
    "common_cpu",
    "name",
    "path",
    "comm",
];

fn hist() -> impl Strategy<Value = Hist> {
    let keys = prop::sample::subsequence(&KEYS[..], 1..=3);
    let values = [
        "s16",
        "bytes_req.percent",
        "bytes_alloc",
        "cpu",
        "hitcount.graph",
    ];
    let values = prop::sample::subsequence(values.to_vec(), 0..=2);
    let filter = prop::sample::select(&["", " if u8 > 1", " if name ~ \"*a*\""][..]);
    (keys, values, filter).prop_map(|(keys, values, filter)| {
        let values = [&["hitcount"][..], &values].concat().join(",");
        parse(&format!(
            "hist:keys={}:vals={values}{filter}",
            keys.join(",")
        ))
        .unwrap()
    })
}

/// The rows of a table as the model has them.
fn rows(hist: &Hist, table: &Table<'_>) -> BTreeMap<Vec<String>, (u64, Vec<u64>)> {
    let row = |row: &Row| {
        let keys = hist.keys.iter().zip(hist.key_places()).map(|(key, place)| {
            match key.source.is_text() {
                true => String::from_utf8(row.text(place).into()).unwrap(),
                false => row.number(place).to_string(),
            }
        });
        (
            keys.collect(),
            (row.hits(), row.sums[..hist.values.len()].to_vec()),
        )
    };
    table.rows().iter().map(row).collect()
}

fn table<'a>(hist: &'a Hist, machine: &TestMachine, maps: Maps) -> Table<'a> {
    let mut table = Table::new(hist);
    for ((_, key), value) in machine.values(maps.table) {
        table.add(&key, &value).unwrap();
    }
    for value in machine.values(maps.drops).values() {
        table.dropped += u64::from_le_bytes(*value.first_chunk().unwrap());
    }
    table.sort();
    table
}

proptest! {
    #[test]
    fn shown_lines_read_as_the_same(hist in hist(), by in 0..8_usize, descending: bool) {
        // The name of the hits means the count that each row has.
        let values = hist.values.iter().filter(|value| value.source != Source::HitCount);
        let columns: Vec<&Column> = hist.keys.iter().chain(values).collect();
        let column = columns[by % columns.len()];
        let line = hist.line(true).to_string();
        let direction = if descending { ".descending" } else { "" };
        let line = line.replace("sort=hitcount", &format!("sort={column}{direction}"));
        let hist = parse(line.strip_suffix(" [paused]").unwrap()).unwrap();
        let shown = hist.line(true).to_string();
        prop_assert_eq!(parse(shown.strip_suffix(" [paused]").unwrap()).unwrap(), hist);
    }

    #[test]
    fn hits_are_counted_and_summed_by_key(
        hist in hist(),
        samples in prop::collection::vec(sample(), 1..20),
    ) {
        let (program, maps) = compile(&hist);
        let mut machine = TestMachine::new(&program);
        let mut model: BTreeMap<Vec<String>, (u64, Vec<u64>)> = BTreeMap::new();
        for sample in &samples {
            sample.run(&program, &mut machine);
            let kept = match hist.filter.as_ref().map(|filter| filter.text()) {
                Some(text) if text.starts_with("u8") => sample.numbers[0] as u8 > 1,
                Some(_) => sample.name.is_some_and(|name| name.contains('a')),
                None => true,
            };
            if kept {
                let key = hist.keys.iter().map(|key| sample.value(key)).collect();
                let entry = model.entry(key).or_insert((0, vec![0; hist.values.len()]));
                entry.0 += 1;
                for (sum, value) in entry.1.iter_mut().zip(&hist.values) {
                    *sum = sum.wrapping_add(sample.value(value).parse().unwrap());
                }
            }
        }
        prop_assert_eq!(rows(&hist, &table(&hist, &machine, maps)), model);
    }
}

#[test]
fn hits_without_room_are_counted_as_dropped() {
    let hist = parse("hist:keys=bytes_alloc:vals=u8:size=128").unwrap();
    let (program, maps) = compile(&hist);
    let mut machine = TestMachine::new(&program);
    for number in 0..131 {
        let numbers = vec![1, 0, 0, 0, number, 0];
        Sample {
            cpu: 0,
            pid: 0,
            numbers,
            name: None,
            path: None,
        }
        .run(&program, &mut machine);
    }
    let table = table(&hist, &machine, maps);
    assert_eq!(
        (table.rows().len(), table.hits(), table.dropped),
        (128, 128, 3)
    );
}

#[test]
fn name_of_the_first_task_with_a_pid_stays() {
    let hist = parse("hist:keys=common_pid.execname").unwrap();
    let (program, maps) = compile(&hist);
    let mut machine = TestMachine::new(&program);
    for comm in [*b"first", *b"later"] {
        machine.pid_tgid = 12;
        machine.comm = [0; 16];
        machine.comm[..5].copy_from_slice(&comm);
        bpf_interpreter::run(&program, &mut machine, 1000).unwrap();
    }
    let mut out = String::new();
    table(&hist, &machine, maps)
        .write(false, &Kernel, &Kernel, &mut out)
        .unwrap();
    assert!(
        out.contains("{ common_pid: first           [        12] } hitcount:          2"),
        "{out}"
    );
}

#[test]
fn cpus_may_have_noted_no_name_or_different_ones() {
    let hist = parse("hist:keys=common_pid.execname").unwrap();
    let key = 12_u64.to_le_bytes().to_vec();
    let of_cpu = |comm: &[u8; 4]| (key.clone(), entry(1, &[comm, &[0; 12]]));
    let mut cpus = [of_cpu(b"\0\0\0\0"), of_cpu(b"make"), of_cpu(b"cat\0")];
    let text = shown(&hist, &cpus, 0);
    assert!(
        text.contains("common_pid: cat             [        12] } hitcount:          3"),
        "{text}"
    );
    cpus.rotate_left(1);
    assert_eq!(shown(&hist, &cpus, 0), text);
}

#[test]
fn stacks_are_keys_by_their_number() {
    let hist = parse("hist:keys=stacktrace").unwrap();
    let (program, maps) = compile(&hist);
    let mut machine = TestMachine::new(&program);
    for stack in [[1, 2], [1, 3], [1, 2]] {
        machine.call_stack = stack.into();
        bpf_interpreter::run(&program, &mut machine, 1000).unwrap();
    }
    assert_eq!(machine.stacks(maps.stacks.unwrap()), [[1, 2], [1, 3]]);
    let table = table(&hist, &machine, maps);
    let found: Vec<(u64, u64)> = table
        .rows()
        .iter()
        .map(|row| (row.number((0, 8)), row.hits()))
        .collect();
    assert_eq!(found, [(1, 1), (0, 2)]);
}

#[test]
fn texts_share_the_key_and_are_shortened() {
    for (keys, sizes) in [
        ("name", vec![64]),
        ("name,u8", vec![56, 8]),
        ("name,path", vec![32, 32]),
        ("name,comm,path", vec![24, 16, 24]),
        ("u8,comm,stacktrace", vec![8, 16, 8]),
    ] {
        let hist = parse(&format!("hist:keys={keys}")).unwrap();
        assert_eq!(hist.key_sizes().collect::<Vec<_>>(), sizes, "{keys}");
    }
}

#[test]
fn histograms_take_few_instructions() {
    let insns = |text| {
        let hist = parse(text).unwrap();
        let mut builder = Builder::new(ProgramKind::Probe);
        let maps = hist.add_maps(&mut builder, "hist").unwrap();
        let frame = Frame {
            value: Reg::R7,
            text: -Frame::TEXT_BYTES,
        };
        hist.compile(
            &mut builder,
            frame,
            Reg::R6,
            maps,
            &mut |builder, _, dst| {
                builder.mov(dst, 0);
                Ok(Loaded::Number)
            },
        )
        .unwrap();
        builder.exit(0);
        builder.finish().unwrap().insns.len() - 3
    };
    // Without the load; the last four count a drop.
    assert_eq!(insns("hist:keys=bytes_alloc"), 1 + 6 + 4);
    assert_eq!(insns("hist:keys=bytes_alloc.log2"), 4 + 4);
}
