//! Links the kernel in the top 2 GiB where the compiler's flags ask for fixed addresses. With
//! rustc's own flags for the target it is position-independent, and needs no script. With a tracer,
//! its file is numbered, so that the tracer knows whether it has the right one.

use std::env;

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/link.ld");
    println!("cargo:rerun-if-changed={script}");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if flags.contains("relocation-model=static") {
        println!("cargo:rustc-link-arg-bins=-T{script}");
    }
    if env::var_os("CARGO_FEATURE_TRACER").is_some() {
        println!("cargo:rustc-link-arg-bins=--build-id");
    }
}
