//! The machine code does what the interpreter does, in all forms, and keeps what it must keep.
//!
//! `BPF_PROGRAMS=1000000` is the long form of the random tests; `BPF_SEED=…` repeats one program.

mod machine;
#[path = "machine/random.rs"]
mod random;

use bpf::{Program, verifier::verify};
use bpf_cases::Case;
use bpf_compiler::Form;
use machine::{FORMS, Outcome, Variant, agree, with_result};
use random::Random;

/// The seeds of random programs.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let set = |name| {
        let set = std::env::var(name).ok()?;
        Some(set.parse().expect("it is a number"))
    };
    match set("BPF_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..set("BPF_PROGRAMS").unwrap_or(usual),
    }
}

/// Each form has its turn.
fn forms(seed: u64) -> [Form; 1] {
    [FORMS[seed as usize % FORMS.len()]]
}

fn listing(program: &Program) -> String {
    let insns = program.insns.iter().enumerate();
    insns.map(|(at, insn)| format!("{at}: {insn}\n")).collect()
}

/// How many programs were compared.
#[derive(Default)]
struct Compared {
    agreed: u64,
    objected: u64,
}

impl Compared {
    fn add(&mut self, outcome: Result<Outcome, String>, what: impl Fn() -> String) {
        match outcome {
            Ok(Outcome::Agreed) => self.agreed += 1,
            Ok(Outcome::Objected) => self.objected += 1,
            Err(difference) => panic!("{difference}\n{}", what()),
        }
    }

    /// A comparison of few programs says little.
    fn check(&self, seeds: std::ops::Range<u64>, one_in: u64) {
        let Self { agreed, objected } = self;
        println!("{agreed} agreed, {objected} objected to");
        let all = seeds.end - seeds.start;
        assert!(
            all == 1 || agreed * one_in > all && objected * 100 < *agreed,
            "of {seeds:?} {agreed} were compared, {objected} objected to"
        );
    }
}

#[test]
fn arithmetic_and_memory_agree_with_the_interpreter() {
    let seeds = seeds(20_000);
    let mut compared = Compared::default();
    for seed in seeds.clone() {
        let mut random = Random::new(seed);
        let length = random.below(40) as usize;
        let calls = random.below(2) == 0;
        let program = with_result(&random::program(&mut random, length, calls));
        let Ok(verified) = verify(program) else {
            continue;
        };
        let world = random.world(verified.program());
        let variant = Variant(random.next());
        compared.add(agree(&verified, &forms(seed), &world, variant), || {
            format!("BPF_SEED={seed}\n{}", listing(verified.program()))
        });
    }
    compared.check(seeds, 2);
}

#[test]
fn the_cases_of_the_verifier_agree_with_the_interpreter() {
    let seeds = seeds(50_000);
    let mut compared = Compared::default();
    for seed in seeds.clone() {
        let mut case = Case::of(seed);
        case.program = with_result(&case.program);
        let Ok(verified) = verify(case.program.clone()) else {
            continue;
        };
        let mut world = case.machine();
        // The compiler leaves out a reading that is not needed.
        world.tsc_step = 0;
        let variant = Variant(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        compared.add(agree(&verified, &forms(seed), &world, variant), || {
            format!("BPF_SEED={seed}\n{}", listing(verified.program()))
        });
    }
    compared.check(seeds, 4);
}
