//! Links the stage where stage 2 loads it.
fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/stage-3.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
}
