//! Random programs: what they are like, and what the verifier and the interpreter say about them.

use std::collections::BTreeSet;

use bpf::{
    Helper, Insn,
    verifier::verify,
    wire::{decode, encode},
};
use bpf_cases::{Case, LIMIT};
use bpf_interpreter::{Addresses, run};

const CASES: u64 = 1_000;

/// A generator that drifts away from what the verifier takes would make the other tests empty.
#[test]
fn many_programs_are_taken_and_they_use_everything() {
    let (mut taken, mut instructions) = (0, 0);
    let mut helpers = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for case in (0..CASES).map(Case::of) {
        if verify(case.program.clone()).is_err() {
            continue;
        }
        taken += 1;
        instructions += case.program.insns.len();
        for insn in &case.program.insns {
            let name = format!("{insn:?}");
            kinds.insert(name.split(' ').next().unwrap_or_default().to_owned());
            if let Insn::Call { helper } = insn {
                helpers.insert(helper.number());
            }
        }
    }
    assert!(taken > CASES / 3, "{taken} of {CASES}");
    assert!(CASES - taken > CASES / 10, "{taken} of {CASES}");
    assert!(instructions as u64 > taken * 20, "{instructions}");
    let all = Helper::ALL.map(Helper::number);
    assert_eq!(helpers, BTreeSet::from(all));
    assert_eq!(kinds.len(), 13, "{kinds:?}");
}

/// So a case can be given to other verifiers and compilers.
#[test]
fn what_the_verifier_takes_has_a_wire_form() {
    for case in (0..CASES).map(Case::of) {
        if verify(case.program.clone()).is_ok() {
            let wire =
                encode(&case.program.insns).unwrap_or_else(|error| panic!("{error}\n{case}"));
            assert_eq!(decode(&wire), Ok(case.program.insns));
        }
    }
}

#[test]
fn a_seed_gives_the_same_case_and_machine_again() {
    for seed in 0..50 {
        let (case, again) = (Case::of(seed), Case::of(seed));
        assert_eq!(case.program, again.program);
        let result = |case: &Case| {
            let mut machine = case.machine();
            let result = run(&case.program, &mut machine, LIMIT);
            (result, machine.published, machine.faults)
        };
        assert_eq!(result(&case), result(&again));
    }
}

/// The verifier lets no program use a pointer as a number, so it cannot matter where the memory is.
#[test]
fn results_do_not_depend_on_addresses() {
    for case in (0..CASES).map(Case::of) {
        if verify(case.program.clone()).is_err() {
            continue;
        }
        let result = |addresses| {
            let mut machine = case.machine();
            machine.addresses = addresses;
            let result = run(&case.program, &mut machine, LIMIT);
            let maps: Vec<_> = (0..case.program.maps.len() as u16)
                .map(|map| machine.values(bpf::MapIndex(map)))
                .collect();
            (result, maps, machine.published, machine.faults)
        };
        assert_eq!(result(Addresses::Own), result(Addresses::Real), "{case}");
    }
}
