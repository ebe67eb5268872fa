//! The modules of a crate and the arrows between them, read from the text of its sources.
//!
//! A module is a file. An arrow leads from a file to the module that a path in it names, in `use`
//! or in code: `crate::`, `$crate::`, `super::` and `self::` with nested braces. The longest
//! beginning of the path that is a file counts, so `crate::a::b::f` leads to `a/b.rs` and not to
//! `a/mod.rs`. The root of the crate is no node, because it names every module. Unit tests are left
//! out.
//!
//! This is a reading of text and not of the language. A name that a `mod.rs` hands on leads to the
//! `mod.rs`, and a path in a macro counts where the macro stands.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    str::Chars,
};

/// The path of a module below the root of its crate, without `mod`.
pub type Module = Vec<String>;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Modules {
    arrows: BTreeMap<Module, BTreeSet<Module>>,
}

impl Modules {
    /// Those of the crate whose sources are in the folder `source`.
    ///
    /// # Panics
    /// A file cannot be read, or is no text.
    pub fn of(source: &Path) -> Self {
        let mut files = Vec::new();
        collect(source, &mut Vec::new(), &mut files);
        Self::of_files(&files)
    }

    /// Those of a crate with these files: the path below the root without `.rs`, and the text.
    pub fn of_files(files: &[(Module, String)]) -> Self {
        let modules: BTreeSet<Module> = files.iter().map(|(path, _)| module(path)).collect();
        let mut all = Self::default();
        for (path, text) in files {
            let from = module(path);
            let is_test = from.iter().any(|part| part.starts_with("test"));
            if from.is_empty() || is_test {
                continue;
            }
            let code: Vec<&str> = text.lines().map(without_comment).collect();
            let code = code.join("\n");
            let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            for path in paths(code, &from) {
                let beginnings = (1..=path.len()).rev().map(|length| &path[..length]);
                let named = beginnings
                    .into_iter()
                    .find(|beginning| modules.contains(*beginning));
                if let Some(to) = named.filter(|to| *to != from) {
                    all.arrows
                        .entry(from.clone())
                        .or_default()
                        .insert(to.to_vec());
                }
            }
        }
        all
    }

    /// The groups of modules each of which leads to every other one of its group.
    pub fn circles(&self) -> Vec<Vec<Module>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> = self
            .arrows
            .keys()
            .map(|from| (from, self.reached(from)))
            .collect();
        let leads = |from: &Module, to: &Module| {
            let all = reached.get(from);
            all.is_some_and(|all| all.contains(to))
        };
        let mut circles: Vec<Vec<Module>> = Vec::new();
        for from in self.arrows.keys().filter(|from| leads(from, from)) {
            if circles.iter().any(|circle| circle.contains(from)) {
                continue;
            }
            let others = self.arrows.keys();
            let group = others.filter(|to| leads(from, to) && leads(to, from));
            circles.push(group.cloned().collect());
        }
        circles
    }

    /// The modules to which one or more arrows lead from `from`.
    fn reached(&self, from: &Module) -> BTreeSet<&Module> {
        let mut found = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for to in self.arrows.get(at).into_iter().flatten() {
                if found.insert(to) {
                    open.push(to);
                }
            }
        }
        found
    }
}

/// The files below `folder`, with their paths below the root.
fn collect(folder: &Path, above: &mut Module, files: &mut Vec<(Module, String)>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        above.push(stem.expect("a name in UTF-8").to_owned());
        if path.is_dir() {
            collect(&path, above, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).expect("a source is text");
            files.push((above.clone(), text));
        }
        above.pop();
    }
}

fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// The module that the file `path` is.
fn module(path: &[String]) -> Module {
    match path.split_last() {
        Some((last, above)) if ["mod", "lib", "main"].contains(&last.as_str()) => above.to_vec(),
        _ => path.to_vec(),
    }
}

/// The paths that `code` names, from the root of the crate. The code is that of the module `me`.
fn paths(code: &str, me: &[String]) -> Vec<Module> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, separator) in code.match_indices("::") {
        let before = &code[..at];
        let first = &before[before.trim_end_matches(is_word).len()..];
        let is_inner = before[..at - first.len()].ends_with(':');
        let mut path = match first {
            _ if is_inner => continue,
            "crate" => Vec::new(),
            "self" => me.to_vec(),
            "super" => me[..me.len() - 1].to_vec(),
            _ => continue,
        };
        let mut rest = &code[at + separator.len()..];
        loop {
            let part = &rest[..rest.len() - rest.trim_start_matches(is_word).len()];
            rest = &rest[part.len()..];
            match part {
                "" => break,
                "super" => drop(path.pop()),
                part => path.push(part.into()),
            }
            match rest.strip_prefix("::") {
                Some(more) => rest = more,
                None => break,
            }
        }
        if let Some(inner) = rest.strip_prefix('{') {
            for mut tail in tree(&mut inner.chars()) {
                tail.retain(|part| part != "self");
                found.push(path.iter().cloned().chain(tail).collect());
            }
        } else {
            found.push(path);
        }
    }
    found
}

/// The paths in the braces of a `use` that have just been opened, up to their end.
fn tree(rest: &mut Chars<'_>) -> Vec<Module> {
    let parts = |text: &str| -> Module {
        let name = text.split(" as ").next().unwrap_or_default();
        let parts = name.split("::").map(str::trim);
        let parts = parts.filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    };
    let mut found = Vec::new();
    let mut text = String::new();
    while let Some(character) = rest.next() {
        match character {
            '{' => {
                let above = parts(&text);
                for inner in tree(rest) {
                    found.push(above.iter().cloned().chain(inner).collect());
                }
                text.clear();
            }
            ',' | '}' => {
                let path = parts(&text);
                if !path.is_empty() {
                    found.push(path);
                }
                text.clear();
                if character == '}' {
                    break;
                }
            }
            other => text.push(other),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let split = |path: &str| path.split('/').map(str::to_owned).collect();
        let files: Vec<(Module, String)> = files
            .iter()
            .map(|(path, text)| (split(path), (*text).to_owned()))
            .collect();
        let circles = Modules::of_files(&files).circles();
        let names = |circle: &Vec<Module>| circle.iter().map(|name| name.join("/")).collect();
        circles.iter().map(names).collect()
    }

    #[test]
    fn each_way_to_name_a_module_is_an_arrow() {
        for way in [
            "use crate::b::f;",
            "use crate::{c, b::{f, g}};",
            "use crate::{c::{x, y}, b};",
            "use super::b;",
            "use super::{\n    b::f,\n    c,\n};",
            "fn f() { crate::b::g() }",
            "macro_rules! m { () => { $crate::b::g() } }",
            "use crate::b as other;",
        ] {
            let files = [("lib", ""), ("a", way), ("b", "use crate::a;"), ("c", "")];
            assert_eq!(circles(&files), [["a", "b"]], "{way}");
        }
        for way in [
            "// use crate::b;",
            "#[cfg(test)]\nmod tests { use crate::b; }",
            "x::crate::b",
        ] {
            let files = [("lib", ""), ("a", way), ("b", "use crate::a;")];
            assert_eq!(circles(&files), [[""; 0]; 0], "{way}");
        }
    }

    #[test]
    fn a_path_leads_to_the_innermost_file() {
        let deep = |last| {
            let first = ("a/mod", "use self::deep::f; use crate::b;");
            circles(&[first, ("a/deep", ""), ("b", last)])
        };
        assert_eq!(deep("use crate::a::f;"), [["a", "b"]]);
        assert_eq!(deep("use crate::a::deep::f;"), [[""; 0]; 0]);
    }

    #[test]
    fn two_circles_are_two() {
        let files = [
            ("a", "crate::b::f"),
            ("b", "crate::c::f"),
            ("c", "crate::a::f"),
            ("d", "super::e::f; super::a::f"),
            ("e", "super::d::f"),
        ];
        assert_eq!(circles(&files), [vec!["a", "b", "c"], vec!["d", "e"]]);
    }
}
