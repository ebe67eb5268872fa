//! Kernels, built once in a run of this program: to ask cargo costs half a second of a processor's
//! time even when there is nothing to do.

use std::sync::LazyLock;

use boot::{
    image::Kernel,
    prerequisites::{self, Install},
};

/// The kernel that users run. Panics if it cannot be built.
pub fn kernel() -> &'static Kernel {
    static KERNEL: LazyLock<Kernel> = LazyLock::new(|| build("kernel"));
    &KERNEL
}

/// The kernel with the guest tests in it. Panics if it cannot be built.
pub fn testkernel() -> &'static Kernel {
    static KERNEL: LazyLock<Kernel> = LazyLock::new(|| build("testkernel"));
    &KERNEL
}

fn build(name: &str) -> Kernel {
    prerequisites::toolchain(Install::Allowed).unwrap();
    Kernel::build(name).unwrap()
}
