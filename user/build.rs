//! Links the programs where the kernel's loader expects them: static, at 4 MiB, one segment per
//! kind of access.
fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/user.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
}
