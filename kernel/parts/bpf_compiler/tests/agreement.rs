//! The machine code does what the interpreter does, in all forms, and keeps what it must keep.

mod machine;
#[path = "machine/random.rs"]
mod random;

use bpf::verifier::verify;
use machine::{Variant, agree, with_result};
use random::Random;

/// How many random programs; `BPF_PROGRAMS` says otherwise.
fn programs(usual: u64) -> u64 {
    let set = std::env::var("BPF_PROGRAMS").ok();
    set.map_or(usual, |set| set.parse().expect("BPF_PROGRAMS is a number"))
}

#[test]
fn random_programs_agree_with_the_interpreter() {
    let mut taken = 0;
    let only = std::env::var("BPF_SEED").ok();
    let only: Option<u64> = only.map(|seed| seed.parse().expect("BPF_SEED is a number"));
    for seed in 0..programs(10_000) {
        let seed = only.unwrap_or(seed);
        let mut random = Random::new(seed);
        let length = random.below(40) as usize;
        let calls = random.below(2) == 0;
        let program = with_result(&random::program(&mut random, length, calls));
        let Ok(verified) = verify(program.clone()) else {
            continue;
        };
        taken += 1;
        for _ in 0..2 {
            let world = random.world(&program);
            let variant = Variant(random.next());
            if let Err(difference) = agree(&verified, &world, variant) {
                let insns = program.insns.iter().enumerate();
                let text: String = insns.map(|(at, insn)| format!("{at}: {insn}\n")).collect();
                panic!("BPF_SEED={seed}: {difference}\n{text}");
            }
        }
        if only.is_some() {
            return;
        }
    }
    let all = programs(10_000);
    println!("{taken} of {all}");
    assert!(taken * 2 > all, "the verifier takes most: {taken} of {all}");
}
