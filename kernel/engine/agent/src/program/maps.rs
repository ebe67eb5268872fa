//! Maps of loaded programs: their memory, and what compiled code is told of them.
//!
//! A map may belong to several programs, so it is [`Shared`]. A counter (an array by CPU of one
//! value of 8 bytes) is lent a word of the CPU's own data while there is one ([`counters`]),
//! because a hit then counts with one instruction. All others have memory of their own. A hash has
//! a table for each CPU, or one for all; [`Tables`] tells compiled code where they are.
//!
//! # Contexts
//! Tasks that may sleep, while hits go on. A map's memory is freed with its last holder
//! (PROGRAM-2).

use alloc::{boxed::Box, vec::Vec};

use bpf::{MapDef, MapKind};
use bpf_compiler::{Array, MapRuntime, PerCpu as PerCpuPart};
use fallible::{Shared, try_box, try_vec};
use trace_maps::Map;

use super::error::LoadError;
use crate::{Agent, counters, facts::MAX_CPUS, helpers::Tables, per_cpu};

/// A map of a loaded program.
pub enum LoadedMap {
    /// A map with memory of its own, and where compiled code finds the tables of a hash.
    Own(Map, Option<Box<Tables>>),
    /// The trace buffer.
    Ring,
}

impl LoadedMap {
    /// Takes the memory of a map.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn new<A: Agent>(def: &MapDef) -> Result<Shared<Self>, LoadError> {
        if def.kind == MapKind::Ring {
            A::tracing().buffer.ready()?;
            return Ok(Shared::try_new(Self::Ring)?);
        }
        let is_counter = (def.kind, def.value_size, def.entries) == (MapKind::PerCpuArray, 8, 1);
        let counter = if is_counter {
            counters::take::<A>()
        } else {
            None
        };
        let map = match counter {
            Some(counter) => Map::Array(counter),
            None => Map::new(def, A::possible_cpus())?,
        };
        let tables = match &map {
            Map::Hash(hash) => Some(tables(hash)?),
            Map::Array(array) => Some(try_box(Tables {
                tables: [core::ptr::null(); MAX_CPUS],
                cpus: array.cpus(),
                array: Some((array.place(), def.value_size as usize)),
            })?),
            Map::Stacks(_) => None,
        };
        Ok(Shared::try_new(Self::Own(map, tables))?)
    }

    /// The sum of a counter over all CPUs, of an array. 0 if there is none.
    pub fn counter(&self, index: usize) -> u64 {
        let mut sum = [0; 1];
        match self.own() {
            Some(Map::Array(array)) => array.read_sum(index, &mut sum),
            _ => false,
        };
        sum[0]
    }

    /// The map, if it has memory of its own.
    pub fn own(&self) -> Option<&Map> {
        match self {
            Self::Own(map, _) => Some(map),
            Self::Ring => None,
        }
    }
}

/// Takes the memory of a program's maps, except those that `shared` knows.
pub(super) fn make_maps<A: Agent>(
    program: &bpf::Program,
    shared: impl Fn(&str) -> Option<Shared<LoadedMap>>,
) -> Result<Vec<Shared<LoadedMap>>, LoadError> {
    let mut maps = try_vec(program.maps.len())?;
    for def in &program.maps {
        maps.push(match shared(&def.name) {
            Some(map) => map,
            None => LoadedMap::new::<A>(def)?,
        });
    }
    Ok(maps)
}

/// Where the table of each CPU is.
fn tables(hash: &trace_maps::Hash) -> Result<Box<Tables>, LoadError> {
    let first = hash.tables();
    let count = if hash.is_shared() { 1 } else { hash.cpus() };
    let mut tables = try_box(Tables {
        tables: [first; MAX_CPUS],
        cpus: count,
        array: None,
    })?;
    for (cpu, table) in tables.tables.iter_mut().enumerate().take(count) {
        *table = first.wrapping_add(cpu);
    }
    Ok(tables)
}

/// A map as the compiler sees it.
pub(super) fn runtime<A: Agent>(map: &LoadedMap) -> MapRuntime {
    match map {
        LoadedMap::Own(Map::Array(array), tables) => {
            let place = array.place();
            let tables = tables
                .as_deref()
                .map_or(core::ptr::null(), core::ptr::from_ref);
            MapRuntime::Array(Array {
                handle: tables.addr() as u64,
                base: match place.is_lent {
                    true => counters::offset::<A>(place.base) as u64,
                    false => place.base,
                },
                cpu: match place.cpu_shift {
                    _ if place.is_lent => PerCpuPart::Gs {
                        own_address: per_cpu::gs_base::<A>() as i32,
                    },
                    Some(shift) => PerCpuPart::Shift(shift as u8),
                    None => PerCpuPart::Shared,
                },
                stride: place.stride,
                entries: place.entries,
            })
        }
        LoadedMap::Own(Map::Hash(_), tables) => {
            let tables = tables
                .as_deref()
                .map_or(core::ptr::null(), core::ptr::from_ref);
            MapRuntime::Handle(tables.addr() as u64)
        }
        LoadedMap::Own(Map::Stacks(stacks), _) => {
            MapRuntime::Handle(core::ptr::from_ref(stacks).addr() as u64)
        }
        LoadedMap::Ring => MapRuntime::Handle(0),
    }
}
