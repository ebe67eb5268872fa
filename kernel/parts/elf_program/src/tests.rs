//! Files of programs, made byte by byte: what is taken, what is refused, and by which name.
//!
//! A file has a header, program headers, and nothing else; what its segments hold does not matter
//! to the crate. Symbols are read from the file of this test itself.

use super::*;
use elf::abi::ET_DYN;
use proptest::prelude::*;

const USER: Range<u64> = 0x1000..0x7fff_ffff_f000;
const RX: u32 = PF_R | PF_X;
const RW: u32 = PF_R | PF_W;

/// A program header as the tests write it: type, flags, offset, address, bytes in the file, bytes
/// in memory.
type Load = (u32, u32, u64, u64, u64, u64);

const TEXT: Load = (PT_LOAD, RX, 0x1000, 0x40_0000, 0x1234, 0x1234);
const DATA: Load = (PT_LOAD, RW, 0x3000, 0x40_2000, 0x10, 0x5000);

fn file(entry: u64, loads: &[Load]) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [ET_EXEC, EM_X86_64] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    for word in [entry, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [64, 56, loads.len() as u16, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    for (kind, flags, offset, address, in_file, in_memory) in loads {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        for word in [offset, address, address, in_file, in_memory, &0x1000] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

fn parse(loads: &[Load]) -> Result<Executable, Error> {
    Executable::parse(&file(0x40_0010, loads), USER)
}

#[test]
fn good_program_is_described() {
    let note = (4, PF_R, 0, 0, 0x20, 0x20);
    let program = parse(&[DATA, note, TEXT]).unwrap();
    assert_eq!(program.entry, 0x40_0010);
    assert_eq!(
        program.segments,
        [
            Segment {
                access: Access {
                    read: true,
                    write: false,
                    execute: true
                },
                memory: 0x40_0000..0x40_1234,
                file_offset: 0x1000,
                file_bytes: 0x1234,
            },
            Segment {
                access: Access {
                    read: true,
                    write: true,
                    execute: false
                },
                memory: 0x40_2000..0x40_7000,
                file_offset: 0x3000,
                file_bytes: 0x10,
            },
        ]
    );
    assert_eq!(program.end(), 0x40_7000);
}

#[test]
fn each_fault_has_its_name() {
    let with = |change: fn(&mut Load)| {
        let mut data = DATA;
        change(&mut data);
        parse(&[TEXT, data])
    };
    assert_eq!(with(|data| data.4 = 0x5001), Err(Error::BadSegment));
    assert_eq!(with(|data| data.5 = u64::MAX), Err(Error::BadSegment));
    assert_eq!(with(|data| data.2 = u64::MAX), Err(Error::BadSegment));
    assert_eq!(with(|data| data.3 = 0), Err(Error::OutOfRange));
    assert_eq!(
        with(|data| data.3 = USER.end - 0x4fff),
        Err(Error::OutOfRange)
    );
    assert_eq!(
        with(|data| data.3 = 0xffff_ffff_8000_0000),
        Err(Error::OutOfRange)
    );
    assert_eq!(with(|data| data.3 = 0x40_1800), Err(Error::Overlap));
    assert_eq!(
        with(|data| data.1 |= PF_X),
        Err(Error::WritableAndExecutable)
    );
    assert_eq!(with(|data| data.0 = PT_INTERP), Err(Error::Dynamic));
    assert_eq!(with(|data| data.0 = PT_DYNAMIC), Err(Error::Dynamic));
    assert_eq!(parse(&[DATA]), Err(Error::BadEntry));
    assert_eq!(parse(&[]), Err(Error::BadEntry));
    assert!(with(|data| data.3 = USER.end - 0x5000).is_ok());
}

#[test]
fn each_wrong_header_has_its_name() {
    let good = file(0x40_0010, &[TEXT, DATA]);
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Executable::parse(&file, USER)
    };
    assert_eq!(with(0, b"#!/b"), Err(Error::NotElf));
    assert_eq!(with(4, &[1]), Err(Error::WrongMachine));
    assert_eq!(with(5, &[2]), Err(Error::NotElf));
    assert_eq!(with(16, &ET_DYN.to_le_bytes()), Err(Error::WrongMachine));
    assert_eq!(with(18, &[3, 0]), Err(Error::WrongMachine));
    assert_eq!(
        with(32, &u64::MAX.to_le_bytes()),
        Err(Error::HeadersOutOfReach)
    );
    assert_eq!(with(54, &[55, 0]), Err(Error::NotElf));
    assert_eq!(with(56, &[0xff, 0xff]), Err(Error::HeadersOutOfReach));
    for len in 0..good.len() {
        assert!(
            Executable::parse(&good[..len], USER).is_err(),
            "cut to {len} bytes"
        );
    }
}

/// Code is found by its place in the file and by its address, and data is no code.
#[test]
fn code_has_a_place_in_the_file_and_an_address() {
    let program = Executable::parse(&file(0x40_0010, &[TEXT, DATA]), USER).unwrap();
    let [text, data] = &program.segments[..] else {
        panic!("{program:?}");
    };
    let start = text.file_offset;
    for distance in [0, 1, text.file_bytes - 1] {
        let address = program.code_address(start + distance);
        assert_eq!(address, Some(text.memory.start + distance));
        assert_eq!(
            program.code_offset(text.memory.start + distance),
            Some(start + distance)
        );
    }
    assert_eq!(program.code_address(start + text.file_bytes), None);
    assert_eq!(program.code_offset(text.memory.start - 1), None);
    assert_eq!(program.code_offset(data.memory.start), None);
}

/// The symbols of this test's own program: a function and a static are there, each where it is, and
/// a file without a table, or a part of one, has none.
#[test]
fn symbols_are_found_by_their_type() {
    static OF_FORTY_BYTES: [u8; 40] = [7; 40];
    #[inline(never)]
    fn an_own_function(at: usize) -> u8 {
        OF_FORTY_BYTES[std::hint::black_box(at)]
    }
    assert_eq!(an_own_function(3), 7);
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    // The names are mangled.
    let is_function = |symbol: &Symbol<'_>| symbol.name.contains("an_own_function");
    let is_object = |symbol: &Symbol<'_>| symbol.name.contains("OF_FORTY_BYTES");
    let function = functions(&own).find(is_function);
    assert!(function.is_some_and(|function| function.size > 0));
    assert_eq!(
        objects(&own).find(is_object).map(|object| object.size),
        Some(40)
    );
    assert!(!functions(&own).any(|symbol| is_object(&symbol)));
    assert!(!objects(&own).any(|symbol| is_function(&symbol)));
    assert_eq!(functions(&file(0x40_0010, &[TEXT, DATA])).count(), 0);
    for len in [0, 10, 64, 1000] {
        assert_eq!(functions(&own[..len]).count(), 0, "{len} bytes");
    }
}

proptest! {
    /// Damaged files never panic. An accepted file keeps the promises of the crate's first lines.
    #[test]
    fn what_is_accepted_is_sound(
        changes in prop::collection::vec((0..176usize, any::<u8>()), 0..6)
    ) {
        let mut file = file(0x40_0010, &[TEXT, DATA]);
        for (at, byte) in changes {
            file[at] = byte;
        }
        if let Ok(program) = Executable::parse(&file, USER) {
            let mut end = USER.start;
            for segment in &program.segments {
                prop_assert!(segment.pages().start >= end && segment.memory.end <= USER.end);
                prop_assert!(segment.memory.start < segment.memory.end);
                prop_assert!(segment.file_bytes <= segment.memory.end - segment.memory.start);
                prop_assert!(segment.file_offset.checked_add(segment.file_bytes).is_some());
                prop_assert!(!(segment.access.write && segment.access.execute));
                end = segment.pages().end;
            }
        }
    }
}
