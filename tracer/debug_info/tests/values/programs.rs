//! User programs beside the kernel: what belongs to which of them.

use std::{cell::RefCell, collections::BTreeSet};

use trace_interface::{Kernel, symbols::TypeId};

use crate::{Mangling, fixture, open};

/// All types that a value of one leads to.
fn led_to(info: &dyn Kernel, from: TypeId) -> BTreeSet<TypeId> {
    let mut found = BTreeSet::from([from]);
    let mut waiting = vec![from];
    while let Some(id) = waiting.pop() {
        let parts = RefCell::new(Vec::new());
        let _ = info.describe(id).renumbered(|id| {
            parts.borrow_mut().push(id);
            id
        });
        waiting.extend(parts.take().into_iter().filter(|id| found.insert(*id)));
    }
    found
}

/// The kernel is asked about the types of all, so their numbers must say whose they are.
#[test]
fn a_type_of_a_program_leads_to_types_of_that_program() {
    let mut kernel = open(Mangling::Legacy);
    kernel.add_program("first", fixture(Mangling::V0));
    kernel.add_program("second", fixture(Mangling::V0));
    kernel.add_program_names("another", fixture(Mangling::V0));
    // Of a program that may be of another build, nothing but names is told.
    for path in ["/bin/another", "/bin/firs", "first"] {
        assert!(kernel.program(path).is_none(), "{path}");
    }
    let first = kernel.program("/bin/first").unwrap();
    let second = kernel.program("/bin/second").unwrap();
    let mut seen = BTreeSet::new();
    for info in [&kernel as &dyn Kernel, first, second] {
        let mixed = info.type_named("shapes::Mixed").unwrap();
        let types = led_to(info, mixed);
        assert!(types.len() > 3, "{types:?}");
        for id in &types {
            assert_eq!(kernel.describe(*id), info.describe(*id));
        }
        let known = types.intersection(&seen).collect::<Vec<_>>();
        assert!(known.is_empty(), "{known:?}");
        seen.extend(types);
    }
}
