//! A machine that runs scripts: programs by the interpreter, answers by the presentation.
//!
//! It does what a kernel does with a script: it keeps the maps, gives records their stacks, and
//! acts on requests. Script and frames go through their encoded forms.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use bpf::{MapIndex, MapKind, ProgramKind};
use bpf_interpreter::{Space, TestMachine, run};
use trace_answers::{Event, Presentation, Symbolize};
use trace_interface::{
    Frame,
    frame::{Books, MapEntry},
    script::{self, Attachment, Request, Script},
    symbols::Register,
    view::View,
};

/// Where a hit is, unless it says otherwise.
pub const PLACE: u64 = 0xffff_8000_0000_1000;
/// The hits of all scripts.
const HITS: u64 = 3;
/// The caller of that place, and of the caller.
const CALLER: u64 = PLACE + 0x1000;

/// A hit: which attachment, and what the machine is like then.
pub struct Hit {
    pub registers: Vec<(Register, u64)>,
    pub address: u64,
    pub cpu: u32,
    pub tid: u32,
    pub tsc: u64,
}

impl Default for Hit {
    fn default() -> Self {
        Self {
            registers: Vec::new(),
            address: PLACE,
            cpu: 0,
            tid: 7,
            tsc: 1000,
        }
    }
}

/// Values of a map, by CPU and key.
type Content = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

/// A kernel that runs a script by the interpreter.
pub struct World {
    pub script: Script,
    pub presentation: Presentation,
    /// Who tells the names of addresses.
    symbols: Box<dyn Symbolize>,
    /// What was shown.
    pub out: String,
    /// What is added to [`World::out`] for an event; none: its text.
    pub form: Option<Form>,
    /// Memory of the kernel's.
    pub memory: Vec<(u64, Vec<u8>)>,
    pub user: Vec<(u64, Vec<u8>)>,
    /// The maps' content: by CPU and key.
    maps: Vec<Content>,
    stacks: Vec<Vec<Vec<u64>>>,
    /// The keys of the maps in the order in which they were used.
    used: Vec<Vec<(u32, Vec<u8>)>>,
    entry_data: Vec<u8>,
    /// The programs that have run, each of which was verified before.
    verified: BTreeSet<u32>,
    pub call_stack: Vec<u64>,
    pub user_call_stack: Vec<u64>,
    pub status: Option<i32>,
    pub faults: u64,
    /// The name of the task.
    pub comm: [u8; 16],
    /// How far the time of a hit goes on each time that it is asked for.
    pub tsc_step: u64,
}

/// The program as the kernel sees it.
fn bpf_program(script: &Script, number: u32) -> bpf::Program {
    let program = &script.programs[number as usize];
    let def = |map: &u32| script.maps[*map as usize].clone();
    bpf::Program {
        kind: program.kind,
        insns: bpf::wire::decode(&program.code).unwrap(),
        maps: program.maps.iter().map(def).collect(),
    }
}

/// Makes lines of an event and its text.
pub type Form = fn(&Event, &str, &Presentation, &dyn Symbolize) -> String;

impl World {
    /// A machine for a script, whose answers are read by the view. The trace has begun.
    pub fn new(script: &Script, view: View, symbols: Box<dyn Symbolize>) -> Self {
        // As the host gets it.
        let script = Script::decode(&script.encode()).unwrap();
        let count = script.maps.len();
        let mut world = Self {
            script,
            presentation: Presentation::new(view),
            symbols,
            out: String::new(),
            form: None,
            memory: Vec::new(),
            user: Vec::new(),
            maps: vec![BTreeMap::new(); count],
            stacks: vec![Vec::new(); count],
            used: vec![Vec::new(); count],
            entry_data: Vec::new(),
            verified: BTreeSet::new(),
            call_stack: vec![PLACE + 1, CALLER + 0x20],
            user_call_stack: vec![0x40_0010, 0x40_0123],
            status: None,
            faults: 0,
            comm: *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0",
            tsc_step: 1,
        };
        // A tick is 2 nanoseconds; the script starts at 500; there are 4 CPUs.
        for (map, content) in world.script.maps.iter().zip(&mut world.maps) {
            if map.name == script::CLOCK {
                let mut value = (2_u64 << 24).to_le_bytes().to_vec();
                value.extend(500_u64.to_le_bytes());
                value.extend(4_u64.to_le_bytes());
                content.insert((0, vec![0; 4]), value);
            }
        }
        let places = vec![1; world.script.attachments.len()];
        world.frame(&Frame::Started {
            tsc_hz: 500_000_000,
            tsc: 500,
            epoch_nanoseconds: 86_400_000_000_000,
            cpus: 2,
            places,
        });
        world
    }

    pub fn frame(&mut self, frame: &Frame) {
        let frame = Frame::decode(&frame.encode()).unwrap();
        let mut text = String::new();
        let event = self
            .presentation
            .frame(&frame, &*self.symbols, &mut text)
            .unwrap();
        self.out += &match self.form {
            Some(form) => form(&event, &text, &self.presentation, &*self.symbols),
            None => text,
        };
    }

    /// Runs a program; returns its result.
    pub fn run(&mut self, number: u32, hit: &Hit) -> u64 {
        let program = bpf_program(&self.script, number);
        if self.verified.insert(number) {
            bpf::verifier::verify(program.clone()).unwrap_or_else(|refusal| panic!("{refusal}"));
        }
        let mut machine = TestMachine::new(&program);
        machine.func_ip = hit.address;
        machine.cpu = hit.cpu;
        machine.pid_tgid = u64::from(hit.tid) << 32 | u64::from(hit.tid);
        machine.tsc = hit.tsc;
        machine.tsc_step = self.tsc_step;
        machine.call_stack = self.call_stack.clone();
        machine.user_call_stack = self.user_call_stack.clone();
        machine.return_address = CALLER + 0x30;
        machine.comm = self.comm;
        for (register, value) in &hit.registers {
            machine.set_register(*register, *value);
        }
        for (address, bytes) in &self.memory {
            machine.put(Space::Kernel, *address, bytes);
        }
        for (address, bytes) in &self.user {
            machine.put(Space::User, *address, bytes);
        }
        let of_script = self.script.programs[number as usize].maps.clone();
        for (number, map) in (0..).zip(&of_script) {
            let index = MapIndex(number);
            for ((cpu, key), value) in &self.maps[*map as usize] {
                machine.set_value(index, *cpu, key, value);
            }
            machine.set_stacks(index, &self.stacks[*map as usize]);
            machine.set_used(index, &self.used[*map as usize]);
        }
        if matches!(program.kind, ProgramKind::Return { .. }) {
            machine.entry_data = self.entry_data.clone().into();
        }
        let result = run(&program, &mut machine, 100_000).unwrap_or_else(|objection| {
            panic!("{objection}");
        });
        if matches!(program.kind, ProgramKind::Entry { .. }) {
            self.entry_data = machine.entry_data.to_vec();
        }
        self.faults += machine.faults;
        for (number, map) in (0..).zip(&of_script) {
            self.maps[*map as usize] = machine.values(MapIndex(number));
            self.stacks[*map as usize] = machine.stacks(MapIndex(number)).to_vec();
            self.used[*map as usize] = machine.used(MapIndex(number)).to_vec();
        }
        for record in &machine.published {
            self.record(hit, &record.bytes);
        }
        result
    }

    fn record(&mut self, hit: &Hit, bytes: &[u8]) {
        self.send_stacks();
        let request = u32::from_le_bytes(*bytes[8..].first_chunk().unwrap());
        self.frame(&Frame::Record {
            cpu: hit.cpu,
            tsc: hit.tsc,
            bytes: bytes.to_vec(),
        });
        match self.script.requests[request as usize] {
            // It has no watches.
            Request::Forward | Request::Unwatch => {}
            Request::Print { map } => self.send_map(map),
            Request::Clear { map } => self.maps[map as usize].clear(),
            Request::Zero { map } => {
                for value in self.maps[map as usize].values_mut() {
                    value.fill(0);
                }
            }
            Request::Exit => {
                let status = i32::from_le_bytes(*bytes[12..].first_chunk().unwrap());
                self.status = Some(status);
            }
        }
    }

    /// Makes all call stacks the same, under the numbers that they have.
    pub fn equal_stacks(&mut self) {
        for stacks in &mut self.stacks {
            let first = stacks.first().cloned().unwrap_or_default();
            stacks.fill(first);
        }
    }

    fn send_stacks(&mut self) {
        for (map, stacks) in (0..).zip(self.stacks.clone()) {
            for (number, addresses) in (0..).zip(stacks) {
                self.frame(&Frame::Stack {
                    map,
                    number,
                    addresses,
                });
            }
        }
    }

    fn send_map(&mut self, map: u32) {
        let entries = self.maps[map as usize].iter();
        let entries = entries.map(|((cpu, key), value)| MapEntry {
            cpu: *cpu,
            key: key.clone(),
            value: value.clone(),
        });
        let entries = entries.collect();
        self.frame(&Frame::Map { map, entries });
    }

    /// Runs what is attached at a place.
    pub fn hit(&mut self, hit: &Hit) {
        for attachment in self.script.attachments.clone() {
            match attachment {
                Attachment::Probe { program, addresses } if addresses.contains(&hit.address) => {
                    self.run(program, hit);
                }
                _ => {}
            }
        }
    }

    /// Runs what is attached to places in the program of that path.
    pub fn hit_in_program(&mut self, program_path: &str, hit: &Hit) {
        for attachment in self.script.attachments.clone() {
            match attachment {
                Attachment::User { program, path, .. } if path == program_path => {
                    self.run(program, hit);
                }
                _ => {}
            }
        }
    }

    /// Runs what is attached to a call: at its entry, and, if that wants it, at its return.
    pub fn call(&mut self, entry: &Hit, on_return: &Hit) {
        for attachment in self.script.attachments.clone() {
            if let Attachment::Call {
                entry: first,
                on_return: last,
                functions,
            } = attachment
                && functions.contains(&entry.address)
            {
                let declined = first.is_some_and(|first| self.run(first, entry) != 0);
                if !declined {
                    self.run(last, on_return);
                }
            }
        }
    }

    /// Runs the programs of begin, end, intervals.
    pub fn tick(&mut self) {
        for attachment in self.script.attachments.clone() {
            if let Attachment::Begin { program }
            | Attachment::End { program }
            | Attachment::Interval { program, .. }
            | Attachment::Profile { program, .. } = attachment
            {
                self.run(program, &Hit::default());
            }
        }
    }

    /// Ends the script; the text that was shown.
    pub fn end(&mut self) -> String {
        self.send_stacks();
        for map in 0..self.script.maps.len() as u32 {
            let has_keys = !matches!(
                self.script.maps[map as usize].kind,
                MapKind::Ring | MapKind::Stacks
            );
            if has_keys {
                self.send_map(map);
            }
        }
        self.frame(&Frame::Ended {
            status: self.status.unwrap_or(0),
            books: vec![Books {
                hits: HITS,
                missed: 1,
            }],
            kept_out: 0,
            lost: vec![("ring: full".into(), 2)],
            bad_loads: self.faults,
        });
        core::mem::take(&mut self.out)
    }

    /// The text of the maps, without the books.
    pub fn maps(&mut self) -> String {
        let text = self.end();
        let books = text.rfind(&format!("{HITS} hits = ")).unwrap_or(text.len());
        text[..books].into()
    }
}
