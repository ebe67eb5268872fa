//! Links this kernel as `kernel/second` is linked, and so that the harness can read the tests.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // As in `kernel/second/build.rs`.
    println!("cargo:rustc-link-arg-bins=--defsym=probes_gs_offset=probes_per_cpu-__start_percpu");
    // The addresses in the descriptors are in the file, too, and not only in its relocations.
    println!("cargo:rustc-link-arg-bins=--apply-dynamic-relocs");
}
