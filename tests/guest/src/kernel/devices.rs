//! Registers of devices, which nothing but their drivers reads: a read may have effects.

use kernel::{
    errno::Errno,
    mm::{
        paging::{DEVICES_START, translate_kernel},
        phys_map::phys_to_virt,
        uaccess::copy_from_anywhere_nofault,
    },
};
use x86_64::{PhysAddr, VirtAddr};

/// Where the local APIC's version is.
const APIC_VERSION: u64 = 0xfee0_0030;
const SCREEN: [u64; 2] = [0xa_0000, 0xb_8000];

#[guest_test]
fn the_physical_map_has_no_registers_of_devices() {
    for phys in [APIC_VERSION, 0xfec0_0000, SCREEN[0], SCREEN[1]] {
        let address = phys_to_virt(PhysAddr::new(phys));
        assert_eq!(translate_kernel(address), None, "{phys:#x}");
        let mut word = [0; 4];
        let read = copy_from_anywhere_nofault(&mut word, address.as_u64());
        assert_eq!(read, Err(Errno::EFAULT), "{phys:#x}");
    }
    // What is beside them is there.
    for phys in [0x9_f000, 0xc_0000, 0x10_0000] {
        let address = phys_to_virt(PhysAddr::new(phys));
        let (at, _) = translate_kernel(address).unwrap();
        assert_eq!(at.as_u64(), phys);
    }
}

#[guest_test]
fn registers_that_are_mapped_are_read_by_nothing_but_their_drivers() {
    let (at, _) = translate_kernel(VirtAddr::new(DEVICES_START)).unwrap();
    assert_eq!(at.as_u64(), APIC_VERSION & !0xfff);
    let start = DEVICES_START;
    for address in [start, start + 0x30, start - 2, u64::MAX - 1] {
        let read = copy_from_anywhere_nofault(&mut [0; 4], address);
        assert_eq!(read, Err(Errno::EFAULT), "{address:#x}");
    }
}
