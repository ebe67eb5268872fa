//! Tells the linker how far the probes' per-CPU data is from the GS base, and has it number the
//! kernel's file, so that a tracer can tell whether it has the right one.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A per-CPU variable is as far from the GS base as its static is from the section's start.
    println!("cargo:rustc-link-arg-bins=--defsym=probes_gs_offset=probes_per_cpu-__start_percpu");
    println!("cargo:rustc-link-arg-bins=--build-id");
}
