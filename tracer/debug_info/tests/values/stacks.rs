//! Addresses as functions and lines, held against another implementation.

use std::path::Path;

use addr2line::Context;
use debug_info::DebugInfo;
use gimli::{EndianSlice, LittleEndian};
use object::{Object, ObjectSection, read::elf::ElfFile64};
use trace_interface::Kernel;

use crate::{Mangling, fixture, open};

/// File and line of each frame at an address, innermost first.
type Places = Vec<Option<(String, u32)>>;

fn second_opinion(program: &Path, addresses: &[u64]) -> Vec<Places> {
    let bytes = std::fs::read(program).unwrap();
    let file: ElfFile64 = ElfFile64::parse(&*bytes).unwrap();
    let section = |id: gimli::SectionId| {
        let section = file.section_by_name(id.name());
        let data = section.map_or(&[][..], |section| section.data().unwrap());
        Ok::<_, gimli::Error>(EndianSlice::new(data, LittleEndian))
    };
    let context = Context::from_dwarf(gimli::Dwarf::load(section).unwrap()).unwrap();
    let places = |address: &u64| {
        let mut frames = context.find_frames(*address).skip_all_loads().unwrap();
        let mut places = Vec::new();
        while let Some(frame) = frames.next().unwrap() {
            let place = frame.location.and_then(|location| {
                let line = location.line.filter(|line| *line > 0)?;
                Some((location.file?.to_string(), line))
            });
            places.push(place);
        }
        places
    };
    addresses.iter().map(places).collect()
}

#[test]
fn addresses_are_in_the_functions_and_lines_that_another_implementation_finds() {
    for mangling in [Mangling::Legacy, Mangling::V0] {
        compare_with_second_opinion(mangling);
    }
}

fn compare_with_second_opinion(mangling: Mangling) {
    let program = fixture(mangling);
    let info: DebugInfo = open(mangling);
    let mut addresses = Vec::new();
    for function in info.functions("*") {
        addresses.extend(
            (0..function.bytes)
                .step_by(3)
                .map(|at| function.address + at),
        );
    }
    let mut inlined = 0;
    for (address, expected) in addresses.iter().zip(second_opinion(program, &addresses)) {
        let frames = info.symbolise(*address);
        // Assembly is known by its symbol only.
        if expected.is_empty() {
            assert_eq!(frames.len(), 1, "{address:#x}");
            continue;
        }
        inlined += frames.len() - 1;
        assert_eq!(
            frames.len(),
            expected.len(),
            "{address:#x}: {frames:?} {expected:?}"
        );
        for (frame, place) in frames.iter().zip(&expected) {
            match (&frame.place, place) {
                (Some((file, line)), Some((path, expected))) => {
                    assert!(
                        path.ends_with(file) && line == expected,
                        "{address:#x} {frame:?}"
                    );
                }
                (found, expected) => {
                    assert_eq!(
                        found.is_some(),
                        expected.is_some(),
                        "{address:#x} {frame:?}"
                    );
                }
            }
        }
        assert_eq!(
            frames.last().map(|frame| frame.offset.is_some()),
            Some(true)
        );
    }
    assert!(
        addresses.len() > 3000 && inlined > 1000,
        "{} {inlined}",
        addresses.len()
    );
}

#[test]
fn copies_are_named_with_the_function_that_they_are_in() {
    let info = open(Mangling::Legacy);
    let copies = info.copies("only_inlined");
    let starts: Vec<u64> = copies.iter().map(|copy| copy.ranges[0].start).collect();
    assert_eq!(starts, info.inlined("only_inlined"));
    for copy in &copies {
        assert_eq!(copy.function, "shapes::only_inlined");
        let frames = info.symbolise(copy.ranges[0].start);
        assert_eq!(frames.last().unwrap().function, copy.within);
        let names: Vec<&str> = frames.iter().map(|frame| &*frame.function).collect();
        assert!(names.contains(&"shapes::only_inlined"), "{names:?}");
    }
    assert_eq!(info.symbolise(1), []);
}
