//! The crates that an adopter needs are ready to publish.
//!
//! In this tree a package is called as its library is. Some of these names are taken in the
//! registry of crates, so each package says there under which name it goes out
//! (`package.metadata.registry.name`). This test lays out copies of these packages under these
//! names, with the licence texts, as a workspace of their own: what `cargo publish` would take. It
//! has cargo package them, and builds them for a target without a standard library.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use boot::layout;
use serde_json::Value;

/// A package of this tree that has a name for the registry.
struct Package {
    metadata: Value,
    registry_name: String,
}

impl Package {
    fn text(&self, key: &str) -> &str {
        self.metadata[key].as_str().unwrap_or_default()
    }

    fn folder(&self) -> &Path {
        let manifest = Path::new(self.text("manifest_path"));
        manifest.parent().expect("a manifest is in a folder")
    }

    /// Its dependencies, but those of tests.
    fn dependencies(&self) -> impl Iterator<Item = &Value> {
        let all = self.metadata["dependencies"]
            .as_array()
            .into_iter()
            .flatten();
        all.filter(|dependency| dependency["kind"].is_null())
    }

    /// Its manifest for the registry. `names` has the registry's names of packages of this tree.
    fn manifest(&self, names: &BTreeMap<String, String>) -> String {
        let mut text = String::from("[package]\n");
        writeln!(text, "name = {:?}", self.registry_name).unwrap();
        for key in [
            "version",
            "edition",
            "description",
            "license",
            "rust_version",
            "readme",
        ] {
            if let Some(value) = self.metadata[key].as_str() {
                writeln!(text, "{} = {value:?}", key.replace('_', "-")).unwrap();
            }
        }
        for key in ["keywords", "categories"] {
            writeln!(text, "{key} = {}", self.metadata[key]).unwrap();
        }
        let docs = &self.metadata["metadata"]["docs"]["rs"];
        writeln!(
            text,
            "\n[package.metadata.docs.rs]\nall-features = {}\ndefault-target = {}\ntargets = {}",
            docs["all-features"] == true,
            docs["default-target"],
            docs["targets"]
        )
        .unwrap();
        writeln!(text, "\n[lib]\nname = {:?}", self.text("name")).unwrap();
        text += "\n[features]\n";
        for (name, parts) in self.metadata["features"].as_object().into_iter().flatten() {
            writeln!(text, "{name:?} = {parts}").unwrap();
        }
        text += "\n[dependencies]\n";
        for dependency in self.dependencies() {
            let name = dependency["name"]
                .as_str()
                .expect("a dependency has a name");
            let source = match names.get(name) {
                Some(name) => {
                    format!("package = {name:?}, path = \"../{name}\", version = \"0.1.0\"")
                }
                None => format!("version = {}", dependency["req"]),
            };
            writeln!(
                text,
                "{name} = {{ {source}, default-features = {}, features = {}, optional = {} }}",
                dependency["uses_default_features"], dependency["features"], dependency["optional"]
            )
            .unwrap();
        }
        text
    }
}

/// Runs cargo in the workspace of the copies, or here.
fn cargo(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", layout::target().join("publish/target"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .expect("cargo can be started");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}:\n{text}");
    String::from_utf8(output.stdout).expect("cargo prints text")
}

fn packages() -> Vec<Package> {
    let arguments = [
        "metadata",
        "--format-version",
        "1",
        "--no-deps",
        "--offline",
    ];
    let all: Value = serde_json::from_str(&cargo(layout::workspace(), &arguments)).unwrap();
    let all = all["packages"].as_array().cloned().unwrap_or_default();
    let named = all.into_iter().filter_map(|metadata| {
        let registry_name = metadata["metadata"]["registry"]["name"]
            .as_str()?
            .to_owned();
        Some(Package {
            metadata,
            registry_name,
        })
    });
    named.collect()
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else if from.exists() {
        fs::copy(from, to).unwrap();
    }
}

/// Lays out the copies. Returns their folder.
fn lay_out(packages: &[Package]) -> PathBuf {
    let top = layout::target().join("publish/crates");
    if top.exists() {
        fs::remove_dir_all(&top).unwrap();
    }
    let name = |package: &Package| {
        (
            package.text("name").to_owned(),
            package.registry_name.clone(),
        )
    };
    let names: BTreeMap<_, _> = packages.iter().map(name).collect();
    for package in packages {
        let folder = top.join(&package.registry_name);
        for part in ["src", "docs", "README.md", "CHANGELOG.md"] {
            let from = package.folder().join(part);
            fs::create_dir_all(&folder).unwrap();
            copy(&from, &folder.join(part));
        }
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            copy(&layout::workspace().join(licence), &folder.join(licence));
        }
        fs::write(folder.join("Cargo.toml"), package.manifest(&names)).unwrap();
    }
    let members: Vec<_> = names.values().collect();
    let workspace = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n");
    fs::write(top.join("Cargo.toml"), workspace).unwrap();
    // The versions that this tree has been built with, which are on this machine.
    copy(
        &layout::workspace().join("Cargo.lock"),
        &top.join("Cargo.lock"),
    );
    top
}

#[test]
fn the_crates_of_an_adopter_can_be_published() {
    let packages = packages();
    assert!(packages.len() >= 10, "{} packages", packages.len());
    for package in &packages {
        let in_tree = |dependency: &&Value| dependency["path"].is_string();
        for dependency in package.dependencies().filter(in_tree) {
            let is_there = packages
                .iter()
                .any(|other| other.text("name") == dependency["name"]);
            assert!(
                is_there,
                "{} needs {}",
                package.registry_name, dependency["name"]
            );
        }
        assert_ne!(package.text("description"), "", "{}", package.registry_name);
        // Its example is a test of the crate's documentation.
        let folder = package.folder();
        let readme = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
        let library = fs::read_to_string(folder.join("src/lib.rs")).unwrap_or_default();
        assert!(
            readme.contains("```rust") && library.contains("include_str!(\"../README.md\")"),
            "{}",
            package.registry_name
        );
        assert_ne!(
            package.text("rust_version"),
            "",
            "{}",
            package.registry_name
        );
    }
    let top = lay_out(&packages);
    for package in &packages {
        let name = package.registry_name.as_str();
        let list = [
            "package",
            "--list",
            "--allow-dirty",
            "--offline",
            "--package",
            name,
        ];
        let files = cargo(&top, &list);
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"] {
            assert!(
                files.lines().any(|line| line == file),
                "{name} lacks {file}"
            );
        }
    }
    let all = [
        "package",
        "--workspace",
        "--allow-dirty",
        "--offline",
        "--no-verify",
    ];
    cargo(&top, &all);
    let bare = [
        "check",
        "--workspace",
        "--offline",
        "--target",
        "x86_64-unknown-none",
    ];
    cargo(&top, &bare);
}
