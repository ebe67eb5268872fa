//! The world of the machine code: its arrays, and how it differs from the interpreter's.

use super::*;

/// One array of the machine code's world.
pub(super) struct ArrayMemory {
    pub(super) array: Array,
    /// Where the part of each CPU is, or of all.
    pub(super) parts: Vec<*mut u8>,
    pub(super) bytes: usize,
    /// The content at the end of the run, because the next run uses the same memory.
    pub(super) found: Vec<Option<Vec<u8>>>,
}

/// The world of the machine code.
pub struct World {
    pub machine: TestMachine,
    pub(super) maps: Vec<MapDef>,
    pub(super) arrays: Vec<Option<ArrayMemory>>,
    pub(super) records: Vec<helpers::Record>,
    /// Mistakes that a helper found.
    pub errors: Vec<String>,
    pub(super) sample: Sample,
    pub(super) cpu: *const Cpu,
    pub(super) counts_preemption: bool,
    pub calls: usize,
}

/// The memory of a program's arrays, laid out as `variant` says.
pub(super) fn arrays(maps: &[MapDef], place: &Place, variant: Variant) -> Vec<Option<ArrayMemory>> {
    let (mut low, mut high) = (place.low, place.high);
    let mut gs = (&raw const place.cpu.arrays).cast_mut().cast::<u8>();
    let own = &raw const *place.cpu as u64;
    let end = high.wrapping_add(HIGH);
    let array = |(number, def): (usize, &MapDef)| {
        let per_cpu = match def.kind {
            MapKind::Array => false,
            MapKind::PerCpuArray => true,
            _ => return None,
        };
        let stride = def.value_size.next_multiple_of(8);
        let bytes = (stride * def.entries) as usize;
        let shift = (bytes.max(64) as u64).next_power_of_two().trailing_zeros();
        let parts = if per_cpu { CPUS as usize } else { 1 };
        let total = parts << shift;
        let choice = variant.pick(number as u32, 4);
        let is_small = total <= ARRAYS / 8;
        let memory = match choice {
            0 if is_small => {
                let memory = low;
                low = low.wrapping_add(total);
                memory
            }
            2 if is_small && per_cpu => {
                let memory = gs;
                gs = gs.wrapping_add(bytes.next_multiple_of(64));
                memory
            }
            _ => {
                let memory = high;
                high = high.wrapping_add(total);
                memory
            }
        };
        assert!(high <= end, "the maps fit");
        // SAFETY: at least so many bytes, of which none is in use.
        unsafe { memory.write_bytes(0, if choice == 2 { bytes } else { total }) };
        let base = memory as u64;
        let cpu = u64::from(place.cpu.number);
        let part = |number: u64| memory.wrapping_add((number << shift) as usize);
        let mut parts: Vec<_> = (0..parts as u64).map(part).collect();
        let (base, cpu) = match (per_cpu, choice) {
            (false, _) => (base, PerCpu::Shared),
            (true, 0 | 1) => (base, PerCpu::Shift(shift as u8)),
            (true, 2) => {
                parts = vec![null_mut(); CPUS as usize];
                parts[cpu as usize] = memory;
                let own_address = std::mem::offset_of!(Cpu, own_address) as i32;
                (base.wrapping_sub(own), PerCpu::Gs { own_address })
            }
            (true, _) => {
                let at = std::mem::offset_of!(Cpu, part) as i32;
                let base = (parts[cpu as usize] as u64).wrapping_sub(place.cpu.part);
                (base, PerCpu::Word(at))
            }
        };
        Some(ArrayMemory {
            array: Array {
                handle: HANDLES + number as u64,
                base,
                cpu,
                stride,
                entries: def.entries,
            },
            parts,
            bytes,
            found: Vec::new(),
        })
    };
    maps.iter().enumerate().map(array).collect()
}

impl World {
    /// The first 8 bytes of an array that all CPUs share.
    pub fn array_word(&self, map: MapIndex) -> u64 {
        let array = self.arrays[usize::from(map.0)].as_ref();
        let bytes = array.and_then(|array| array.found[0].as_ref()?.first_chunk());
        u64::from_le_bytes(*bytes.expect("the map is an array with 8 bytes"))
    }

    /// All that is different from the world of the interpreter.
    pub fn differences(&self, expected: &TestMachine) -> Vec<String> {
        let mut found = self.errors.clone();
        let own = &self.machine;
        compare(&mut found, "records", &own.published, &expected.published);
        compare(&mut found, "discarded", &own.discarded, &expected.discarded);
        compare(&mut found, "refused", &own.refused, &expected.refused);
        compare(
            &mut found,
            "records off",
            &own.records_off,
            &expected.records_off,
        );
        compare(
            &mut found,
            "recorded stacks",
            &own.recorded_stacks,
            &expected.recorded_stacks,
        );
        compare(&mut found, "held", &own.held(), &expected.held());
        compare(&mut found, "faults", &own.faults, &expected.faults);
        compare(&mut found, "readings", &own.tsc, &expected.tsc);
        compare(
            &mut found,
            "shared",
            &own.entry_data[..],
            &expected.entry_data[..],
        );
        for (number, def) in self.maps.iter().enumerate() {
            let map = MapIndex(number as u16);
            let Some(array) = &self.arrays[number] else {
                compare(&mut found, "map", &own.values(map), &expected.values(map));
                compare(
                    &mut found,
                    "stacks",
                    &own.stacks(map),
                    &expected.stacks(map),
                );
                continue;
            };
            let mut memory = vec![0; array.bytes * array.parts.len()];
            for ((cpu, key), value) in expected.values(map) {
                let index = u32::from_le_bytes(*key.first_chunk().unwrap());
                let at = array.bytes * cpu as usize + (index * array.array.stride) as usize;
                memory[at..at + def.value_size as usize].copy_from_slice(&value);
            }
            for (cpu, part) in array.found.iter().enumerate() {
                let Some(part) = part else { continue };
                let expected = &memory[array.bytes * cpu..][..array.bytes];
                if part == expected {
                    continue;
                }
                for (word, (a, b)) in part.chunks(8).zip(expected.chunks(8)).enumerate() {
                    compare(
                        &mut found,
                        &format!("map {number}, {cpu}, word {word}"),
                        &a,
                        &b,
                    );
                }
            }
        }
        found
    }
}

pub(super) fn compare<T: ?Sized + PartialEq + std::fmt::Debug>(
    found: &mut Vec<String>,
    what: &str,
    a: &T,
    b: &T,
) {
    if a != b {
        found.push(format!("{what}: machine code {a:x?}, interpreter {b:x?}"));
    }
}
