//! Whatever the verifier takes runs in the checking interpreter without an objection, and as the
//! verifier's facts say.
//!
//! A second run has the facts written into the program: the stack is reached by `r10` at the known
//! place, and code that no path reaches stops it. Both must end alike. What was seen is counted, so
//! that a generator that drifts away is noticed.

use std::{ops::Range, thread};

use bpf::{
    Fact, Helper, Insn, MapIndex, Memory, Program, Reg, Size, Verified,
    context::Register,
    verifier::{MOST_PATH, verify},
};
use bpf_cases::Case;
use bpf_interpreter::{Environment, Fault, Object, Reason, Space, TestMachine, run};

/// The deeds of the taken programs among random ones. They show that the test has tested them.
#[derive(Debug, Default)]
struct Seen {
    programs: u64,
    taken: u64,
    /// Taken programs that have such an instruction, and reach it on some path.
    kernel_loads: u64,
    own_memory: u64,
    stack_by_copies: u64,
    records: u64,
    known_indexes: u64,
    loops: u64,
    unreached: u64,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.taken += other.taken;
        self.kernel_loads += other.kernel_loads;
        self.own_memory += other.own_memory;
        self.stack_by_copies += other.stack_by_copies;
        self.records += other.records;
        self.known_indexes += other.known_indexes;
        self.loops += other.loops;
        self.unreached += other.unreached;
    }

    fn note(&mut self, verified: &Verified) {
        let insns = &verified.program().insns;
        let any = |is_such: &dyn Fn(usize, &Insn, &Fact) -> bool| {
            let mut numbered = insns.iter().zip(verified.facts()).enumerate();
            u64::from(numbered.any(|(at, (insn, fact))| fact.reached && is_such(at, insn, fact)))
        };
        let memory = |insn: &Insn, fact: &Fact| match insn {
            Insn::Load { base, .. } | Insn::Store { base, .. } => fact.memory.map(|m| (*base, m)),
            _ => None,
        };
        self.taken += 1;
        self.kernel_loads += any(&|_, _, fact| fact.memory == Some(Memory::Kernel));
        self.own_memory += any(&|_, _, fact| fact.memory == Some(Memory::Own));
        self.stack_by_copies += any(&|_, insn, fact| {
            matches!(
                memory(insn, fact),
                Some((base, Memory::Stack { .. })) if base != Reg::R10
            )
        });
        self.records += any(&|_, insn, _| {
            *insn
                == Insn::Call {
                    helper: Helper::RingSubmit,
                }
        });
        self.known_indexes += any(&|_, _, fact| fact.most_index.is_some());
        self.loops += any(&|at, insn, _| match insn {
            Insn::Branch { target, .. } => usize::from(target.0) <= at,
            _ => false,
        });
        self.unreached += u64::from(verified.facts().iter().any(|fact| !fact.reached));
    }
}

/// The program with what the facts say put into its instructions: it stops where it never comes,
/// and reaches the stack by `r10`.
fn rewritten(verified: &Verified) -> Program {
    let mut program = verified.program().clone();
    for (insn, fact) in program.insns.iter_mut().zip(verified.facts()) {
        if !fact.reached {
            *insn = Insn::LoadImm {
                dst: Reg::R10,
                value: 0,
            };
        }
        if let Some(Memory::Stack { offset: known }) = fact.memory
            && let Insn::Load { base, offset, .. }
            | Insn::Store { base, offset, .. }
            | Insn::Atomic { base, offset, .. } = insn
        {
            (*base, *offset) = (Reg::R10, known);
        }
    }
    program
}

/// All that a run leaves behind.
fn outcome(program: &Program, mut machine: TestMachine) -> Result<impl PartialEq + use<>, String> {
    let result = run(program, &mut machine, MOST_PATH.into()).map_err(|e| e.to_string())?;
    let maps = (0..program.maps.len() as u16).map(MapIndex);
    let values: Vec<_> = maps.map(|map| machine.values(map)).collect();
    let counts = (machine.faults, machine.discarded, machine.refused);
    Ok((
        result,
        machine.published,
        machine.entry_data,
        values,
        counts,
    ))
}

/// Checks programs and runs those that are taken.
fn check(seeds: Range<u64>) -> Seen {
    let mut seen = Seen::default();
    for mut case in seeds.map(Case::of) {
        seen.programs += 1;
        let Ok(verified) = verify(case.program.clone()) else {
            continue;
        };
        seen.note(&verified);
        let known = rewritten(&verified);
        let seed = case.seed;
        // The same program on another machine, too.
        for seed in [seed, !seed] {
            case.seed = seed;
            let as_written = outcome(&case.program, case.machine());
            let as_known = outcome(&known, case.machine());
            match (as_written, as_known) {
                (Ok(as_written), Ok(as_known)) => {
                    assert!(as_written == as_known, "a fact is wrong about {case}");
                }
                (Err(objection), _) => panic!("{objection} in {case}"),
                (_, Err(objection)) => panic!("{objection} with the facts about {case}"),
            }
        }
        if seed.is_multiple_of(200) {
            check_each_step(&case, &verified);
        }
    }
    seen
}

/// Shares the seeds among the CPUs.
fn check_all(programs: u64) -> Seen {
    let threads = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let share = programs.div_ceil(threads);
    let mut all = Seen::default();
    thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|thread| {
                let from = thread * share;
                scope.spawn(move || check(from..programs.min(from + share)))
            })
            .collect();
        for run in runs {
            all.add(&run.join().expect("a check failed; see above"));
        }
    });
    all
}

#[test]
fn fifty_thousand_random_programs_run_as_the_verifier_says() {
    let seen = check_all(50_000);
    println!("{seen:?}");
    assert_eq!(seen.programs, 50_000);
    // Enough is taken to run, enough is refused to be tempting, and nothing is left out.
    let share = seen.taken * 100 / seen.programs;
    assert!((60..=95).contains(&share), "{seen:?}");
    for part in [
        seen.kernel_loads,
        seen.own_memory,
        seen.stack_by_copies,
        seen.records,
        seen.known_indexes,
        seen.loops,
        seen.unreached,
    ] {
        assert!(part * 30 > seen.taken, "{seen:?}");
    }
}

#[test]
#[ignore = "takes minutes"]
fn a_million_random_programs_run_as_the_verifier_says() {
    println!("{:?}", check_all(1_000_000));
}

/// A machine that tells what the last instruction asked of it.
struct Spy {
    machine: TestMachine,
    kernel_loads: u32,
    lookups: Vec<(MapIndex, Vec<u8>)>,
}

/// Compares each executed instruction with the facts about it.
fn check_each_step(case: &Case, verified: &Verified) {
    let machine = case.machine();
    let mut before = (0, 0);
    let mut last: Option<usize> = None;
    for limit in 0..300 {
        let mut spy = Spy {
            machine: machine.clone(),
            kernel_loads: 0,
            lookups: Vec::new(),
        };
        let end = run(&case.program, &mut spy, limit);
        if let Some(at) = last {
            let fact = verified.facts()[at];
            let context = format!("insn {at}: {fact:?} in {case}");
            assert!(fact.reached, "{context}");
            if let Insn::Load { .. } = case.program.insns[at] {
                let is_kernel = spy.kernel_loads > before.0;
                assert_eq!(fact.memory == Some(Memory::Kernel), is_kernel, "{context}");
            }
            for (map, key) in &spy.lookups[before.1..] {
                assert_eq!(fact.map, Some(*map), "{context}");
                if let (Some(most), Some(key)) = (fact.most_index, key.first_chunk()) {
                    assert!(u64::from(u32::from_le_bytes(*key)) <= most, "{context}");
                }
            }
        }
        match end {
            Err(objection) if objection.reason == Reason::LimitReached(limit) => {
                before = (spy.kernel_loads, spy.lookups.len());
                last = Some(objection.at);
            }
            _ => return,
        }
    }
}

impl Environment for Spy {
    fn kernel_load(&mut self, address: u64, size: Size) -> u64 {
        self.kernel_loads += 1;
        self.machine.kernel_load(address, size)
    }

    fn lookup(&mut self, map: MapIndex, key: &[u8]) -> Option<u32> {
        self.lookups.push((map, key.to_vec()));
        self.machine.lookup(map, key)
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

    fn read_byte(&mut self, space: Space, address: u64) -> Result<u8, Fault> {
        self.machine.read_byte(space, address)
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
