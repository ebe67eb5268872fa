//! What a plain `cargo run` builds for this machine: little, because its user waits for it.

use std::{env, process::Command};

/// The packages that `boot` is built from, as `cargo tree` shows them.
fn packages() -> Vec<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--package", "boot", "--edges", "normal,build"])
        .args(["--prefix", "none"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let packages = String::from_utf8(output.stdout).expect("names are text");
    packages.lines().map(String::from).collect()
}

#[test]
fn a_plain_run_builds_nothing_of_the_tracer() {
    let packages = packages();
    assert!(packages.iter().any(|line| line.starts_with("anyhow ")));
    let wrong: Vec<&String> = packages
        .iter()
        .filter(|line| line.contains("/tracer/") || line.contains("/kernel/engine/"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
