//! The kernel itself, without samples, on each kind of machine: it boots, runs its workload and
//! powers off with success.

use std::time::Duration;

use boot::{firmware::Firmware, guest::End, qemu::Machine};
use tests::{Over, built, record};

fn runs_to_a_good_end(firmware: Firmware, change: impl FnOnce(&mut Machine)) {
    let mut machine = Machine {
        firmware,
        ..Machine::new(built::kernel().image(firmware).unwrap())
    };
    change(&mut machine);
    let (over, log) = record(&machine, Duration::from_secs(120)).unwrap();
    assert_eq!(over, Over::Ended(End::Success), "{log}");
    assert!(
        log.starts_with("[    0.0"),
        "not a log from its beginning: {log}"
    );
}

#[test]
fn bios_with_one_cpu() {
    runs_to_a_good_end(Firmware::Bios, |machine| machine.cpus = 1);
}

#[test]
fn bios_with_four_cpus() {
    runs_to_a_good_end(Firmware::Bios, |machine| machine.cpus = 4);
}

#[test]
fn bios_counting_time_by_instructions() {
    runs_to_a_good_end(Firmware::Bios, |machine| machine.icount = true);
}

#[test]
fn uefi_with_two_cpus() {
    runs_to_a_good_end(Firmware::Uefi, |_| {});
}
