//! Probes that are registered a second time: a module that is loaded again finds its statics as it
//! left them.

use probes::{Jprobe, Kretprobe, kprobe::flags};

use super::{targets::*, *};

/// The life of a probe while it is registered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turned {
    No,
    On,
    Off,
}

probes::jprobe! {
    fn arguments(_a: u64, _b: u64) {
        note(1);
    }
}

fn at_entry(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
    note(1);
    EntryVerdict::Track
}

/// Registers `probe`, which is on `add`, again and again. Each time it must begin as it was built,
/// disabled or not, whatever was done to it before.
fn begins_as_it_was_built(probe: &'static impl Probe, is_disabled: bool) {
    let before = byte_at(address("add"));
    for turned in [Turned::No, Turned::On, Turned::Off, Turned::No] {
        PROBES.register(probe).unwrap();
        let flag = if is_disabled { flags::DISABLED } else { 0 };
        let kind = probe.kprobe().kind();
        let found = probe.kprobe().flags() & flags::DISABLED;
        assert_eq!(found, flag, "{kind:?}, before it is turned {turned:?}");
        assert_eq!(byte_at(address("add")) == before, is_disabled);
        assert_eq!(add(1, 2), 3);
        let noted: &[u64] = if is_disabled { &[] } else { &[1] };
        assert_eq!(journal::take(), noted, "{kind:?}");
        match turned {
            Turned::No => {}
            Turned::On => PROBES.enable(probe).unwrap(),
            Turned::Off => PROBES.disable(probe).unwrap(),
        }
        PROBES.unregister(probe).unwrap();
        assert_eq!(byte_at(address("add")), before);
    }
}

#[test]
fn each_registration_begins_as_the_probe_was_built() {
    let _machine = boot();
    let kprobe = || Kprobe::new().symbol("add").pre(pre::<1>);
    begins_as_it_was_built(leak(kprobe()), false);
    begins_as_it_was_built(leak(kprobe().disabled()), true);
    let kretprobe = || Kretprobe::new().symbol("add").entry(at_entry);
    begins_as_it_was_built(leak(kretprobe()), false);
    begins_as_it_was_built(leak(kretprobe().disabled()), true);
    let jprobe = || Jprobe::new().symbol("add").entry(arguments);
    begins_as_it_was_built(leak(jprobe()), false);
    begins_as_it_was_built(leak(jprobe().disabled()), true);
}
