//! Lists the ready programs: each file `tracer/programs/NAME.bt` is one.

use std::{env, fs, path::Path};

fn main() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../programs");
    println!("cargo::rerun-if-changed={directory}");
    let entries = fs::read_dir(directory).expect("the directory of the ready programs");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry of that directory").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "bt"))
        .collect();
    paths.sort();
    let line = |path: &std::path::PathBuf| {
        let name = path.file_stem().expect("a file's name").to_string_lossy();
        let path = path.to_string_lossy();
        format!("({name:?}, include_str!({path:?})),\n")
    };
    let lines: String = paths.iter().map(line).collect();
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("ready.rs"), format!("&[\n{lines}]"))
        .expect("write the list of the ready programs");
}
