//! Tests the symbols of this test program itself. Like a kernel it has Rust and C names, generic
//! functions, and assembly labels with and without sizes.
//!
//! Some orders of symbols that a linker does not make are built by hand.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use elf::{ElfBytes, endian::LittleEndian};
use kallsyms::{Binding, LookupError, Symbol, SymbolKind, Table};
use std::{
    arch::global_asm,
    fs,
    hint::black_box,
    sync::{LazyLock, atomic::AtomicU64},
};

static FILE: LazyLock<Vec<u8>> =
    LazyLock::new(|| fs::read(std::env::current_exe().unwrap()).unwrap());
static TABLE: LazyLock<Table<'static>> = LazyLock::new(|| Table::read(&FILE).unwrap());

global_asm!(
    r#"
    .pushsection .text.labels, "ax", @progbits
    .globl sized_routine
    .type sized_routine, @function
sized_routine:
    nop
sized_routine_inside:
    nop
    ret
    .size sized_routine, . - sized_routine
    .weak weak_alias
    .set weak_alias, sized_routine
    .globl second_of_equals, first_of_equals
    .type second_of_equals, @function
    .type first_of_equals, @function
second_of_equals:
first_of_equals:
    ret
    .size second_of_equals, . - second_of_equals
    .size first_of_equals, . - first_of_equals
unsized_routine:
    nop
    nop
    ret
unsized_neighbour:
    ret
    .popsection

    .pushsection .section_of_two, "ax", @progbits
    .balign 16
    .globl first_of_two
    .type first_of_two, @function
first_of_two:
    ret
    .size first_of_two, . - first_of_two
unsized_end_of_section:
    nop
    ret
    .popsection

    # Not loaded.
    .pushsection .only_in_the_file, "", @progbits
    .globl word_in_the_file
    .type word_in_the_file, @object
word_in_the_file:
    .quad 0
    .size word_in_the_file, 8
    .popsection

    # Notes, but not one for each function.
    .pushsection .function_notes, "", @progbits
    .byte 1, 2, 3, 4
    .popsection

    # Behind a gap, so that the end of the section before it is no symbol.
    .pushsection .init.text, "ax", @progbits
    .balign 64
    .globl init_routine
    .type init_routine, @function
init_routine:
    ret
    .size init_routine, . - init_routine
    .popsection
    "#
);

unsafe extern "C" {
    fn sized_routine();
    fn init_routine();
    fn first_of_two();
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn plain_function(x: u64) -> u64 {
    black_box(x) + 1
}

mod inner {
    use std::hint::black_box;

    #[inline(never)]
    pub fn unmistakable(x: u64) -> u64 {
        black_box(x) + 2
    }

    #[inline(never)]
    pub fn generic<T: Default + PartialEq>(x: &T) -> bool {
        black_box(x) == &T::default()
    }

    pub struct Left;
    pub struct Right;

    pub trait Side {
        fn name(&self) -> &'static str;
    }

    impl Side for Left {
        #[inline(never)]
        fn name(&self) -> &'static str {
            black_box("left")
        }
    }

    impl Side for Right {
        #[inline(never)]
        fn name(&self) -> &'static str {
            black_box("right")
        }
    }

    pub static mut COUNTER: u64 = 1;
}

/// Keeps all of the above in the program. Returns the load bias: run-time minus link-time
/// addresses.
fn load_bias() -> u64 {
    use inner::Side;
    black_box(inner::unmistakable(1));
    black_box(inner::generic(&1_u32) | inner::generic(&1_u8) | inner::generic(&String::new()));
    black_box((inner::Left.name(), inner::Right.name()));
    black_box((
        sized_routine as *const (),
        init_routine as *const (),
        first_of_two as *const (),
        &raw const inner::COUNTER,
    ));
    let linked = TABLE.lookup("plain_function").unwrap().start;
    black_box(plain_function as *const () as u64) - linked
}

fn lookup(name: &str) -> Symbol<'static> {
    TABLE.lookup(name).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn plain_mangled_and_demangled_names_find_the_function() {
    let bias = load_bias();
    let linked = |address: *const ()| address as u64 - bias;
    let plain = lookup("plain_function");
    assert_eq!(plain.start, linked(plain_function as *const ()));
    assert!(plain.exported);

    let rust = lookup("own_symbols::inner::unmistakable");
    assert_eq!(rust.start, linked(inner::unmistakable as *const ()));
    assert!(!rust.exported);
    assert_eq!(lookup(rust.name), rust);
    let with_hash = format!("{}", rustc_demangle::demangle(rust.name));
    assert_eq!(lookup(&with_hash), rust);
    assert_eq!(rust.to_string(), "own_symbols::inner::unmistakable");

    let method = lookup("<own_symbols::inner::Left as own_symbols::inner::Side>::name");
    assert_eq!(
        method.start,
        linked(<inner::Left as inner::Side>::name as *const ())
    );
}

#[test]
fn every_function_is_found_again_by_name_and_by_address() {
    let mut count = 0;
    for symbol in TABLE.functions() {
        count += 1;
        for address in [
            symbol.start,
            symbol.start + symbol.size / 2,
            symbol.start + symbol.size - 1,
        ] {
            assert_eq!(TABLE.symbol_at(address), Some(symbol));
        }
        match TABLE.lookup(symbol.name) {
            Ok(found) => assert_eq!(found.start, symbol.start),
            Err(LookupError::Ambiguous { candidates, .. }) => {
                assert!(
                    candidates
                        .iter()
                        .any(|candidate| candidate.start == symbol.start)
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(count > 500, "only {count} functions");
}

#[test]
fn functions_are_sorted_and_do_not_overlap() {
    let functions: Vec<_> = TABLE.functions().collect();
    for pair in functions.windows(2) {
        assert!(pair[0].start < pair[1].start, "{pair:x?}");
        assert!(pair[0].start + pair[0].size <= pair[1].start, "{pair:x?}");
    }
}

#[test]
fn demangled_name_of_several_functions_is_refused_with_all_of_them() {
    load_bias();
    let name = TABLE
        .functions()
        .map(|symbol| symbol.to_string())
        .find(|name| name.starts_with("own_symbols::inner::generic"))
        .expect("the generic function is in the program");
    // The two kinds of mangling differ: one shows the type arguments, the other has three equal
    // names.
    match TABLE.lookup(&name) {
        Err(LookupError::Ambiguous { candidates, .. }) => {
            assert_eq!(candidates.len(), 3);
            for candidate in &candidates {
                assert_eq!(candidate.to_string(), name);
                assert_eq!(&lookup(candidate.name), candidate);
            }
        }
        other => assert!(name.contains('<') && other.is_ok(), "{name}: {other:?}"),
    }
}

#[test]
fn label_without_size_reaches_to_the_next_symbol() {
    let routine = lookup("unsized_routine");
    assert_eq!(
        (routine.size, routine.kind, routine.binding),
        (3, SymbolKind::Text, Binding::Local)
    );
    assert_eq!(TABLE.symbol_at(routine.start + 2), Some(routine));
    assert_eq!(
        TABLE.symbol_at(routine.start + 3),
        Some(lookup("unsized_neighbour"))
    );
}

#[test]
fn a_file_without_a_table_says_why() {
    let says = |file: &[u8], text: &str| {
        assert_eq!(Table::read(file).err().unwrap().to_string(), text);
    };
    says(&FILE[..100], "not a whole 64-bit little-endian ELF file");
    // Without its section headers it is whole, but has no symbols.
    let mut bare = FILE[..64].to_vec();
    bare[0x20..0x30].fill(0); // e_phoff, e_shoff
    bare[0x36..0x40].fill(0); // their sizes and numbers
    says(&bare, "no symbol table; strip debug information only");
}

#[test]
fn what_is_not_loaded_has_no_symbol() {
    load_bias();
    let is_in_file = FILE
        .windows(WORD_IN_THE_FILE.len())
        .any(|name| name == WORD_IN_THE_FILE.as_bytes());
    assert!(is_in_file, "the linker keeps it");
    assert!(matches!(
        TABLE.lookup("word_in_the_file"),
        Err(LookupError::Unknown { .. })
    ));
}

/// The word as the table of names has it, between two NULs.
const WORD_IN_THE_FILE: &str = concat!("\0word_in", "_the_file\0");

#[test]
fn label_without_size_ends_with_its_section() {
    load_bias();
    let routine = lookup("unsized_end_of_section");
    assert_eq!((routine.size, routine.kind), (2, SymbolKind::Text));
    assert_ne!(TABLE.symbol_at(routine.start + 2), Some(routine));
}

#[test]
fn label_inside_a_function_covers_nothing() {
    let routine = lookup("sized_routine");
    let inside = lookup("sized_routine_inside");
    assert_eq!((inside.start, inside.size), (routine.start + 1, 0));
    assert_eq!(TABLE.symbol_at(inside.start), Some(routine));
    assert!(
        TABLE
            .functions()
            .all(|function| function.name != "sized_routine_inside")
    );
}

#[test]
fn alias_is_found_by_name_and_the_stronger_symbol_by_address() {
    let routine = lookup("sized_routine");
    let alias = lookup("weak_alias");
    assert_eq!((alias.start, alias.size), (routine.start, routine.size));
    assert_eq!(alias.letter(), 'W');
    assert_eq!(TABLE.symbol_at(alias.start).unwrap().name, "sized_routine");
}

/// The linker may order symbols as it likes, so the file itself is asked which one comes first.
#[test]
fn the_first_of_equal_symbols_in_the_file_names_the_address() {
    let names = ["first_of_equals", "second_of_equals"];
    let elf = ElfBytes::<LittleEndian>::minimal_parse(&FILE).unwrap();
    let (symbols, texts) = elf.symbol_table().unwrap().unwrap();
    let mut in_file = symbols.iter().filter_map(|symbol| {
        let name = texts.get(symbol.st_name as usize).unwrap();
        names.into_iter().find(|equal| *equal == name)
    });
    let (first, second) = (in_file.next().unwrap(), in_file.next().unwrap());
    assert_eq!((lookup(first).start, lookup(first).size), {
        let other = lookup(second);
        (other.start, other.size)
    });
    let at = lookup(first).start;
    assert_eq!(TABLE.symbol_at(at).unwrap().name, first);
    let listed = TABLE.functions().filter(|function| function.start == at);
    assert_eq!(
        listed.map(|function| function.name).collect::<Vec<_>>(),
        [first]
    );
}

#[test]
fn kinds_follow_the_sections() {
    load_bias();
    assert_eq!(lookup("plain_function").kind, SymbolKind::Text);
    assert_eq!(lookup("plain_function").letter(), 'T');
    assert_eq!(lookup("init_routine").kind, SymbolKind::Init);
    let counter = lookup("own_symbols::inner::COUNTER");
    assert_eq!((counter.kind, counter.size), (SymbolKind::Data, 8));
    black_box((&KIND_OF_CONSTANTS, &KIND_OF_ZEROS));
    let constant = lookup("KIND_OF_CONSTANTS");
    assert_eq!(
        (constant.kind, constant.letter()),
        (SymbolKind::Rodata, 'R')
    );
    let zeros = lookup("KIND_OF_ZEROS");
    assert_eq!((zeros.kind, zeros.letter()), (SymbolKind::Bss, 'B'));
}

#[unsafe(no_mangle)]
static KIND_OF_CONSTANTS: [u8; 3] = [1, 2, 3];
#[unsafe(no_mangle)]
static KIND_OF_ZEROS: AtomicU64 = AtomicU64::new(0);

#[test]
fn unknown_name_offers_the_nearest_and_the_usual_reason() {
    load_bias();
    let error = TABLE.lookup("plain_funktion").unwrap_err();
    let LookupError::Unknown { nearest, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(nearest[0].name, "plain_function");
    let text = error.to_string();
    assert!(
        text.starts_with("no symbol plain_funktion; did you mean plain_function"),
        "{text}"
    );
    assert!(
        text.ends_with("it may have been inlined: then name a function that calls it"),
        "{text}"
    );

    for name in [
        "unmistakable",
        "elsewhere::unmistakable",
        "own_symbols::inner::unmistakeable",
    ] {
        let Err(LookupError::Unknown { nearest, .. }) = TABLE.lookup(name) else {
            panic!("{name} was found");
        };
        assert_eq!(
            nearest[0].to_string(),
            "own_symbols::inner::unmistakable",
            "for {name}"
        );
    }
}

#[test]
fn address_outside_of_everything_has_no_symbol() {
    assert_eq!(TABLE.symbol_at(0), None);
    assert_eq!(TABLE.symbol_at(u64::MAX), None);
    let last = TABLE
        .iter()
        .map(|symbol| symbol.start + symbol.size)
        .max()
        .unwrap();
    assert_eq!(TABLE.symbol_at(last), None);
}

#[test]
fn files_that_are_no_use_are_refused() {
    assert!(Table::read(b"").is_err());
    assert!(
        Table::read(b"not an ELF file at all, but long enough to hold a header, nearly 80 bytes")
            .is_err()
    );
    assert!(Table::read(&FILE[..FILE.len() / 2]).is_err());
}

#[test]
fn an_error_lists_the_candidates_with_commas_between() {
    let candidates: Vec<_> = TABLE.functions().take(3).collect();
    let [a, b, c] = candidates[..] else {
        panic!("too few functions")
    };
    let error = LookupError::Ambiguous {
        name: "name".into(),
        candidates: vec![a, b, c],
    };
    let shown = |symbol: Symbol<'_>| format!("{} at {:#x}", symbol.name, symbol.start);
    assert_eq!(
        error.to_string(),
        format!(
            "name fits 3 symbols; give an address or a full name: {}, {}, {}",
            shown(a),
            shown(b),
            shown(c)
        )
    );
}

#[test]
fn an_error_offers_names_as_a_sentence_does() {
    let candidates: Vec<_> = TABLE.functions().take(3).collect();
    let text = |count: usize| {
        let nearest = candidates[..count].to_vec();
        let name = "name".into();
        LookupError::Unknown { name, nearest }.to_string()
    };
    let [a, b, c] = candidates[..] else {
        panic!("too few functions")
    };
    for (count, offer) in [
        (0, String::new()),
        (1, format!("; did you mean {a}")),
        (2, format!("; did you mean {a} or {b}")),
        (3, format!("; did you mean {a}, {b} or {c}")),
    ] {
        assert_eq!(
            text(count),
            format!(
                "no symbol name{offer}; it may have been inlined: then name a function that calls \
                 it"
            )
        );
    }
}

#[test]
fn clones_of_a_function_share_a_name() {
    let named = |name| Symbol {
        name,
        start: 1,
        size: 1,
        kind: SymbolKind::Text,
        binding: Binding::Local,
        exported: false,
        note: 0,
    };
    for (name, of_all) in [
        ("sized_routine", "sized_routine"),
        ("sized_routine.llvm.123", "sized_routine"),
        ("sized_routine.part.0.cold", "sized_routine"),
        // A label of an assembler.
        (".Lend", ".Lend"),
        ("_ZN1a1f17h0123456789abcdefE", "_ZN1a1f"),
        ("_ZN1a1f17h0123456789abcdefE.llvm.1", "_ZN1a1f"),
        // Full stops within a name of this mangling, and a part that is called as a hash begins.
        (
            "_ZN9_$LT$a..b$GT$17h123456789abcdefgh17hfedcba9876543210E",
            "_ZN9_$LT$a..b$GT$17h123456789abcdefgh",
        ),
        ("_ZN1a17hfedcba987654321E", "_ZN1a17hfedcba987654321E"),
        ("_RNvC1a1f.llvm.1", "_RNvC1a1f"),
    ] {
        assert_eq!(named(name).name_of_all_clones(), of_all, "{name}");
    }
}

#[test]
fn a_symbol_contains_its_bytes_and_no_others() {
    let symbol = TABLE.lookup("sized_routine").unwrap();
    assert_eq!(symbol.size, 3);
    let contains = |address: u64| symbol.contains(address);
    assert!(contains(symbol.start) && contains(symbol.start + 2));
    assert!(!contains(symbol.start + 3) && !contains(symbol.start - 1));
}

#[test]
fn notes_are_those_of_the_functions_in_their_order() {
    load_bias();
    // Notes of another number, and half a note, are of no use.
    assert!(TABLE.iter().all(|symbol| symbol.note == 0));
    let count = TABLE.functions().count();
    let notes: Vec<u8> = (1..=count as u16).flat_map(u16::to_le_bytes).collect();
    let noted = |notes: &[u8]| -> Vec<_> {
        let file = with_notes(notes);
        let table = Table::read(&file).unwrap();
        let note = |symbol: Symbol<'_>| (symbol.start, symbol.note);
        assert!(table.functions().map(note).is_sorted());
        table.functions().map(|function| function.note).collect()
    };
    assert!(noted(&notes).into_iter().eq(1..=count as u16));
    assert_eq!(noted(&notes[1..]), vec![0; count]);
    assert_eq!(noted(&[&notes[..], &[0]].concat()), vec![0; count]);

    let file = with_notes(&notes);
    let table = Table::read(&file).unwrap();
    let routine = table.lookup("sized_routine").unwrap();
    assert!(routine.note > 0);
    assert_eq!(
        table.symbol_at(routine.start + 2).unwrap().note,
        routine.note
    );
    assert_eq!(
        table.lookup("sized_routine_inside").unwrap().note,
        0,
        "a label"
    );
}

/// This program's file with another content of the section of notes.
fn with_notes(notes: &[u8]) -> Vec<u8> {
    let mut file = FILE.clone();
    let word = |at: usize| u64::from_le_bytes(FILE[at..at + 8].try_into().unwrap());
    let (headers, count) = (word(0x28) as usize, word(0x3c) as u16);
    // The offset and the size of its content.
    let mut fields = (0..usize::from(count)).map(|number| headers + 64 * number + 0x18);
    let is_of_notes = |at: &usize| {
        let content = FILE.get(word(*at) as usize..).unwrap_or_default();
        word(*at + 8) == 4 && content.starts_with(&[1, 2, 3, 4])
    };
    let field = fields.find(is_of_notes).expect("the section of notes");
    let place = [file.len() as u64, notes.len() as u64].map(u64::to_le_bytes);
    file[field..field + 16].copy_from_slice(place.as_flattened());
    file.extend(notes);
    file
}

#[test]
fn a_list_without_sizes_has_names_to_the_next_symbol() {
    const LIST: &str = "\
0000000000001000 T _ZN6kernel4task7do_fork17h0123456789abcdefE
0000000000001040 t plain.cold\t[module]
                 U undefined
0000000000001040 T plain
0000000000002000 D counter
nonsense
0000000000003000 B zeroed
";
    let table = Table::read_list(LIST, 0x10000).unwrap();
    let fork = table.lookup("kernel::task::do_fork").unwrap();
    assert_eq!((fork.start, fork.size), (0x11000, 0x40));
    assert_eq!(fork.kind, SymbolKind::Text);
    assert!(!fork.exported);
    let plain = table.symbol_at(0x11041).unwrap();
    assert_eq!((plain.name, plain.size), ("plain", 0xfc0));
    assert!(plain.exported);
    assert_eq!(table.lookup("plain.cold").unwrap().start, 0x11040);
    assert_eq!(table.lookup("counter").unwrap().kind, SymbolKind::Data);
    assert_eq!(table.lookup("zeroed").unwrap().kind, SymbolKind::Bss);
    assert_eq!(table.iter().count(), 5);
    assert!(table.symbol_at(0x10fff).is_none());
    assert!(Table::read_list("no symbols\n", 0).is_err());
}
