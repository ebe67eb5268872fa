//! One hit of a program, on the memory of a process.

use std::{fs::File, os::unix::fs::FileExt};

use bpf::{MapIndex, Program, Size, context::Register};
use bpf_interpreter::{Environment, Fault, Object, Space, TestMachine, run};
use trace_answers::{NoSymbols, Presentation};
use trace_compiler::Compiled;
use trace_interface::Frame;

/// A machine whose memory is that of a process. The rest is as in tests of the compiler.
struct World {
    machine: TestMachine,
    memory: File,
}

impl World {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.memory.read_exact_at(into, address).is_ok()
    }
}

/// What is printed at the entry of a function that gets an address.
pub fn shown(compiled: Compiled, process: u32, (function, argument): (u64, u64)) -> String {
    let script = compiled.script;
    let program = &script.programs[0];
    let def = |map: &u32| script.maps[*map as usize].clone();
    let program = Program {
        kind: program.kind,
        insns: bpf::wire::decode(&program.code).unwrap(),
        maps: program.maps.iter().map(def).collect(),
    };
    if let Err(refusal) = bpf::verifier::verify(program.clone()) {
        return refusal.to_string();
    }
    let mut world = World {
        machine: TestMachine::new(&program),
        memory: File::open(format!("/proc/{process}/mem")).unwrap(),
    };
    world.machine.func_ip = function;
    world.machine.set_register(Register::Di, argument);
    run(&program, &mut world, 100_000).unwrap();
    let mut presentation = Presentation::new(compiled.view);
    let mut out = String::new();
    for record in &world.machine.published {
        let frame = Frame::Record {
            cpu: 0,
            tsc: 0,
            bytes: record.bytes.clone(),
        };
        drop(presentation.frame(&frame, &NoSymbols, &mut out).unwrap());
    }
    out.trim_end_matches('\n').into()
}

impl Environment for World {
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
