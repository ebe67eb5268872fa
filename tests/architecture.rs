//! The packages in docs/architecture.md against those of the workspace: each is listed once, in its
//! family, with its folder and its description, and names only packages that its family may name.
//!
//! The document is the rule. A package that is new is refused until it stands in a family, and an
//! arrow that is new is refused until the family's line allows it. A family may name only families
//! above it, so no arrow between families can lead back.
//!
//! Nothing is built or booted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use boot::layout::workspace;
use serde_json::Value;

/// The section of the document, and the line of a family that lists others.
const SECTION: &str = "## The packages\n";
const MAY_NAME: &str = "May name: ";
/// The family whose packages the tests inside any package may name.
const TESTS: &str = "Tests";

/// A package, as the document or cargo has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    /// Its folder in the tree.
    folder: String,
    description: String,
}

/// A part of the section: packages, and the families that they may name.
#[derive(Debug)]
struct Family {
    name: String,
    may_name: Vec<String>,
    packages: BTreeMap<String, Package>,
}

/// The entry `` - `folder` (`name`): description. `` of a package, its lines joined. The name is
/// left out where it is that of the folder.
fn entry(text: &str) -> (String, Package) {
    let (head, description) = text.split_once(": ").expect("an entry has a description");
    let mut words = head.split('`').skip(1).step_by(2);
    let folder = words.next().expect("an entry begins with a folder");
    let last = folder.rsplit('/').next().expect("a path has a last part");
    let description = description.strip_suffix('.').expect("it is a sentence");
    let package = Package {
        folder: folder.into(),
        description: description.into(),
    };
    (words.next().unwrap_or(last).into(), package)
}

/// The families of the document, in its order.
fn families(document: &str) -> Vec<Family> {
    let (_, section) = document.split_once(SECTION).expect("the section is there");
    let section = section
        .split("\n## ")
        .next()
        .expect("a text has a beginning");
    let family = |text: &str| {
        let (name, rest) = text.split_once('\n').expect("a family has a heading");
        let line = rest.lines().find_map(|line| line.strip_prefix(MAY_NAME));
        let others = line.unwrap_or_else(|| panic!("{name} has no line {MAY_NAME:?}"));
        let others = others.strip_suffix('.').expect("it is a sentence");
        let (_, list) = rest.split_once("\n- ").expect("a family has packages");
        let mut packages = BTreeMap::new();
        for text in list.split("\n- ") {
            let words: Vec<&str> = text.split_whitespace().collect();
            let (name, package) = entry(&words.join(" "));
            let twice = packages.insert(name, package);
            assert!(twice.is_none(), "{twice:?} stands twice in one family");
        }
        Family {
            name: name.into(),
            may_name: others
                .split(", ")
                .filter(|other| *other != "none")
                .map(str::to_owned)
                .collect(),
            packages,
        }
    };
    section.split("\n### ").skip(1).map(family).collect()
}

/// The answer of `cargo metadata` about the packages of the workspace.
fn metadata() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(workspace())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("cargo answers with JSON");
    answer["packages"].as_array().expect("a list").clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The family of each package.
fn family_of(families: &[Family]) -> BTreeMap<&str, &Family> {
    let mut all = BTreeMap::new();
    for family in families {
        for name in family.packages.keys() {
            let other: Option<&Family> = all.insert(name.as_str(), family);
            assert!(other.is_none(), "{name} stands in two families");
        }
    }
    all
}

/// The arrows of `packages`, those of cargo's answer, that `families` do not allow.
fn forbidden(packages: &[Value], families: &[Family]) -> Vec<String> {
    let family_of = family_of(families);
    let mut found = Vec::new();
    for package in packages {
        let name = text(&package["name"]);
        let Some(family) = family_of.get(name) else {
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("a list") {
            let named = text(&dependency["name"]);
            let Some(other) = family_of.get(named).map(|family| &family.name) else {
                continue;
            };
            let is_own = *other == family.name;
            let is_test = text(&dependency["kind"]) == "dev" && other == TESTS;
            if !is_own && !is_test && !family.may_name.contains(other) {
                let family = &family.name;
                found.push(format!("{name} ({family}) names {named} ({other})"));
            }
        }
    }
    found
}

fn document() -> Vec<Family> {
    families(&fs::read_to_string(workspace().join("docs/architecture.md")).expect("it is there"))
}

#[test]
fn each_package_is_listed_with_its_folder_and_its_description() {
    let listed: BTreeMap<String, Package> = document()
        .into_iter()
        .flat_map(|family| family.packages)
        .collect();
    let root = workspace().to_str().expect("the path is UTF-8");
    let package = |package: &Value| {
        let manifest = text(&package["manifest_path"]).strip_prefix(root);
        let folder = manifest.and_then(|path| path.strip_suffix("/Cargo.toml"));
        let package_is = Package {
            folder: folder.expect("it lies in the tree")[1..].into(),
            description: text(&package["description"]).into(),
        };
        (text(&package["name"]).to_owned(), package_is)
    };
    let there: BTreeMap<String, Package> = metadata().iter().map(package).collect();
    assert!(there.len() > 40, "{} packages are too few", there.len());
    for (name, package) in &there {
        assert_eq!(
            listed.get(name),
            Some(package),
            "{name} in the document, and in cargo"
        );
    }
    let names: BTreeSet<&String> = there.keys().collect();
    assert_eq!(listed.keys().collect::<BTreeSet<_>>(), names);
}

#[test]
fn a_package_names_only_what_its_family_may_name() {
    let families = document();
    for (at, family) in families.iter().enumerate() {
        for other in &family.may_name {
            let is_above = families[..at].iter().any(|above| above.name == *other);
            assert!(
                is_above,
                "{} names {other}, which is not above it",
                family.name
            );
        }
    }
    assert_eq!(forbidden(&metadata(), &families), [""; 0]);
}

#[test]
fn a_new_arrow_is_refused() {
    let document = "## The packages\n\n### Low\n\nMay name: none.\n\n- `a/low`: Low.\n\n\
        ### High\n\nMay name: Low.\n\n- `a/high` (`tall`): High,\n  really.\n\n\
        ### Tests\n\nMay name: Low, High.\n\n- `b`: Tests.\n\n## More\n\n- `c`: No package.\n";
    let families = families(document);
    assert_eq!(families.len(), 3);
    assert_eq!(families[1].packages["tall"].folder, "a/high");
    assert_eq!(families[1].packages["tall"].description, "High, really");
    let package = |name: &str, named: &str, kind: Option<&str>| {
        serde_json::json!({
            "name": name,
            "dependencies": [{ "name": named, "kind": kind }, { "name": "x", "kind": null }],
        })
    };
    for (name, named, kind, is_allowed) in [
        ("tall", "low", None, true),
        ("low", "tall", None, false),
        ("low", "tall", Some("dev"), false),
        ("low", "b", Some("dev"), true),
        ("low", "b", Some("build"), false),
        ("low", "b", None, false),
        ("b", "tall", None, true),
    ] {
        let found = forbidden(&[package(name, named, kind)], &families);
        assert_eq!(
            found.is_empty(),
            is_allowed,
            "{name} names {named}: {found:?}"
        );
    }
}
