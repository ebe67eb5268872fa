//! Links the image in the top 2 GiB, where the kernel code model expects it. Checks that the kernel
//! is stable Rust.
use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=RUSTC_BOOTSTRAP");
    assert!(
        env::var_os("RUSTC_BOOTSTRAP").is_none(),
        "RUSTC_BOOTSTRAP is set: unset it, or unstable features slip into the kernel"
    );

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    println!("cargo:rustc-link-arg-bins=--eh-frame-hdr");
    // By it a tracer knows whether a file is that of the kernel that runs.
    println!("cargo:rustc-link-arg-bins=--build-id=sha1");
}
