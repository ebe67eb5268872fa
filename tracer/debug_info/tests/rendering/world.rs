//! Hits of a script, on the memory of a process.
//!
//! The programs of the script run by the interpreter. What they load from the kernel is the memory
//! of a process that is stopped or waits, and what they read of registers is given. At a return the
//! program of the entry has run first, and what it has kept is there.

use std::{fs::File, os::unix::fs::FileExt};

use bpf::{MapIndex, Program, ProgramKind, Size, context::Register};
use bpf_interpreter::{EntryData, Environment, Fault, Object, Space, TestMachine, run};
use trace_answers::{NoSymbols, Presentation};
use trace_compiler::Compiled;
use trace_interface::{
    Frame,
    script::{Attachment, Script},
};

/// A machine whose memory is that of a process. The rest is as in tests of the compiler.
struct World<'a> {
    machine: TestMachine,
    memory: &'a File,
}

impl World<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.memory.read_exact_at(into, address).is_ok()
    }
}

/// The registers that a program can read.
pub type Registers = Vec<(Register, u64)>;

/// A process, and a function of it that is called.
pub struct Call<'a> {
    pub memory: &'a File,
    pub function: u64,
    pub entry: Registers,
    /// Those when the function has returned, if programs run then.
    pub on_return: Option<Registers>,
}

impl Call<'_> {
    /// What is printed at the entry of the function, or at its return.
    pub fn shown(&self, compiled: Compiled) -> String {
        let mut presentation = Presentation::new(compiled.view);
        let mut out = String::new();
        let script = &compiled.script;
        let (first, last) = match script.attachments[0] {
            Attachment::Call {
                entry, on_return, ..
            } => (entry, Some(on_return)),
            _ => (Some(0), None),
        };
        let mut entry_data = EntryData::default();
        let programs = [(first, Some(&self.entry)), (last, self.on_return.as_ref())];
        for (program, registers) in programs {
            let (Some(program), Some(registers)) = (program, registers) else {
                continue;
            };
            let ran = self.run(script, program as usize, registers, &mut entry_data);
            let published = match ran {
                Ok(published) => published,
                Err(refusal) => return refusal,
            };
            for bytes in published {
                let frame = Frame::Record {
                    cpu: 0,
                    tsc: 0,
                    bytes,
                };
                drop(presentation.frame(&frame, &NoSymbols, &mut out).unwrap());
            }
        }
        out.trim_end_matches('\n').into()
    }

    /// The records of a program.
    fn run(
        &self,
        script: &Script,
        program: usize,
        registers: &Registers,
        entry_data: &mut EntryData,
    ) -> Result<Vec<Vec<u8>>, String> {
        let program = &script.programs[program];
        let def = |map: &u32| script.maps[*map as usize].clone();
        let program = Program {
            kind: program.kind,
            insns: bpf::wire::decode(&program.code).unwrap(),
            maps: program.maps.iter().map(def).collect(),
        };
        bpf::verifier::verify(program.clone()).map_err(|refusal| refusal.to_string())?;
        let mut world = World {
            machine: TestMachine::new(&program),
            memory: self.memory,
        };
        world.machine.func_ip = self.function;
        for (register, value) in registers {
            world.machine.set_register(*register, *value);
        }
        if matches!(program.kind, ProgramKind::Return { .. }) {
            world.machine.entry_data = core::mem::take(entry_data);
        }
        run(&program, &mut world, 100_000).unwrap();
        *entry_data = core::mem::take(&mut world.machine.entry_data);
        let published = world.machine.published.into_iter();
        Ok(published.map(|record| record.bytes).collect())
    }
}

impl Environment for World<'_> {
    fn kernel_load(&mut self, address: u64, size: Size) -> u64 {
        let mut word = [0; 8];
        let bytes = match size {
            Size::B1 => 1,
            Size::B2 => 2,
            Size::B4 => 4,
            Size::B8 => 8,
        };
        self.read(address, &mut word[..bytes]);
        u64::from_le_bytes(word)
    }

    fn read_byte(&mut self, _: Space, address: u64) -> Result<u8, Fault> {
        let mut byte = [0];
        match self.read(address, &mut byte) {
            true => Ok(byte[0]),
            false => Err(Fault),
        }
    }

    fn register(&self, register: Register) -> u64 {
        self.machine.register(register)
    }

    fn map_address(&self, map: MapIndex) -> u64 {
        self.machine.map_address(map)
    }

    fn address(&self, object: Object) -> u64 {
        self.machine.address(object)
    }

    fn bytes(&mut self, object: Object) -> &mut [u8] {
        self.machine.bytes(object)
    }

    fn lookup(&mut self, map: MapIndex, key: &[u8]) -> Option<u32> {
        self.machine.lookup(map, key)
    }

    fn insert(&mut self, map: MapIndex, key: &[u8]) -> Option<u32> {
        self.machine.insert(map, key)
    }

    fn remove(&mut self, map: MapIndex, key: &[u8]) -> bool {
        self.machine.remove(map, key)
    }

    fn word_on(&mut self, map: MapIndex, cpu: u32, key: &[u8], word: u64) -> Option<u64> {
        self.machine.word_on(map, cpu, key, word)
    }

    fn use_key(&mut self, map: MapIndex, key: &[u8], how: u64) {
        self.machine.use_key(map, key, how);
    }

    fn remove_everywhere(&mut self, map: MapIndex, key: &[u8]) -> bool {
        self.machine.remove_everywhere(map, key)
    }

    fn next_key(&mut self, map: MapIndex, place: u64) -> Option<(Vec<u8>, u64)> {
        self.machine.next_key(map, place)
    }

    fn count_frames(&mut self, map: MapIndex, number: u64) -> u64 {
        self.machine.count_frames(map, number)
    }

    fn stack_id(&mut self, map: MapIndex, flags: u64) -> i64 {
        self.machine.stack_id(map, flags)
    }

    fn reserve(&mut self, ring: MapIndex, size: u32, room: u32, event: Option<u16>) -> Option<u32> {
        self.machine.reserve(ring, size, room, event)
    }

    fn submit(&mut self, record: u32, bytes: u32) {
        self.machine.submit(record, bytes);
    }

    fn discard(&mut self, record: u32) {
        self.machine.discard(record);
    }

    fn cpu(&mut self) -> u32 {
        self.machine.cpu()
    }

    fn pid_tgid(&mut self) -> u64 {
        self.machine.pid_tgid()
    }

    fn comm(&mut self) -> [u8; 16] {
        self.machine.comm()
    }

    fn tsc(&mut self) -> u64 {
        self.machine.tsc()
    }

    fn func_ip(&mut self) -> u64 {
        self.machine.func_ip()
    }

    fn return_address(&mut self) -> u64 {
        self.machine.return_address()
    }
}
