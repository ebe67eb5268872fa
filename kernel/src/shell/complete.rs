//! The words that Tab offers: commands, paths, functions, modules and their parameters, programs.
//!
//! A command says by its [`Complete`](super::command::Complete) which words its arguments can be:
//! one of the functions here. They look into the tree of files, the symbols and the list of modules
//! at the moment of the question, and keep nothing. The file after `>` is a path in any case.
//!
//! Names that contain a path are offered piece by piece, a directory or a Rust module at a time.

use alloc::{
    format,
    string::{String, ToString},
};

use prompt::{Candidates, End, WordPlace};

use super::{command::Command, files::cwd, walkthrough::CALLABLE};
use crate::{
    fs::{self, FileKind, NodeRef},
    module::{self, ModuleState},
    symbols::{self, Symbol, SymbolKind},
};

/// The words that may stand in a place of a line, where there are these commands.
pub fn candidates(commands: &[Command], place: &WordPlace) -> Candidates {
    if place.is_output {
        return paths(place);
    }
    let Some(name) = place.words.first() else {
        return words(commands.iter().map(|command| command.name));
    };
    let command = commands.iter().find(|command| command.name == name);
    command.map_or_else(Candidates::default, |command| (command.complete)(place))
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Candidates {
    let mut candidates = Candidates::default();
    for word in words {
        candidates.add(word, End::Word);
    }
    candidates
}

/// The command takes no arguments, or none that are known.
pub fn nothing(_place: &WordPlace) -> Candidates {
    Candidates::default()
}

/// Files and directories.
pub fn paths(place: &WordPlace) -> Candidates {
    paths_at(place, 0)
}

/// The same for a path that begins at byte `start` of the word.
fn paths_at(place: &WordPlace, start: usize) -> Candidates {
    let path = &place.word[start..];
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    let directory = if name == 0 { "." } else { &path[..name] };
    let mut candidates = Candidates::behind(start + name);
    let entries = fs::entries(&cwd(), directory.as_bytes());
    for (name, attributes) in entries.unwrap_or_default() {
        let Ok(name) = core::str::from_utf8(&name) else {
            continue;
        };
        match attributes.kind {
            FileKind::Directory => candidates.add(format!("{name}/"), End::Open),
            FileKind::Regular | FileKind::Special => candidates.add(name, End::Word),
        }
    }
    candidates
}

/// Programs: names in `/bin`, and paths.
pub fn program(place: &WordPlace) -> Candidates {
    if place.words.len() > 1 {
        return nothing(place);
    }
    if place.word.contains('/') {
        return paths(place);
    }
    let mut candidates = Candidates::default();
    for (name, _) in fs::entries(&NodeRef::root(), b"/bin").unwrap_or_default() {
        candidates.add(String::from_utf8_lossy(&name), End::Word);
    }
    candidates
}

/// One function of the kernel.
pub fn function(place: &WordPlace) -> Candidates {
    match place.words.len() {
        1 => functions_at(place, 0),
        _ => nothing(place),
    }
}

/// The kernel's functions whose code is still there.
fn functions() -> impl Iterator<Item = Symbol<'static>> {
    symbols::functions().filter(|symbol| symbol.kind == SymbolKind::Text)
}

/// Functions whose names begin at byte `start` of the word. The path of a Rust function is offered
/// piece by piece, as directories are. The linker's name is offered for a word that begins like it.
fn functions_at(place: &WordPlace, start: usize) -> Candidates {
    let typed = &place.word[start..];
    if typed.starts_with("_R") || typed.starts_with("_Z") {
        let mut candidates = Candidates::behind(start);
        for symbol in functions() {
            candidates.add(symbol.name, End::Word);
        }
        return candidates;
    }
    let piece = pieces(typed).last().unwrap_or(0);
    let mut candidates = Candidates::behind(start + piece);
    for symbol in functions() {
        let name = symbol.to_string();
        if !name.starts_with(typed) {
            continue;
        }
        match pieces(&name).find(|next| *next > typed.len()) {
            Some(next) => candidates.add(&name[piece..next], End::Open),
            None => candidates.add(&name[piece..], End::Word),
        }
    }
    candidates
}

/// Where the pieces of a Rust path begin, the first one aside: after each `::` that is not inside
/// angle brackets.
fn pieces(path: &str) -> impl Iterator<Item = usize> {
    let mut depth = 0_usize;
    let bytes = path.as_bytes();
    (0..bytes.len()).filter_map(move |at| {
        match bytes[at] {
            b'<' => depth += 1,
            // Not that of an arrow.
            b'>' if at == 0 || bytes[at - 1] != b'-' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && at > 0 && bytes[at - 1] == b':' => return Some(at + 1),
            _ => {}
        }
        None
    })
}

/// Functions that `walkthrough` can call.
pub fn callable(place: &WordPlace) -> Candidates {
    match place.words.len() {
        1 => words(CALLABLE.iter().map(|(name, ..)| *name)),
        _ => nothing(place),
    }
}

/// A module that is loaded.
pub fn loaded_module(place: &WordPlace) -> Candidates {
    match place.words.len() {
        1 => words(module::loaded().iter().map(|module| module.name())),
        _ => nothing(place),
    }
}

/// A module that is not loaded, and then its parameters. The value of a parameter that names a
/// function is completed as well.
pub fn new_module(place: &WordPlace) -> Candidates {
    let Some(name) = place.words.get(1) else {
        let modules = module::list().iter();
        let unloaded = modules.filter(|module| module.state() == ModuleState::Unloaded);
        return words(unloaded.map(|module| module.name()));
    };
    if let Some((parameter, _)) = place.word.split_once('=') {
        return match parameter {
            "symbol" | "func" => functions_at(place, parameter.len() + 1),
            _ => nothing(place),
        };
    }
    let mut candidates = Candidates::default();
    let module = module::list().iter().find(|module| module.name() == name);
    for parameter in module.map_or(&[][..], |module| module.params()) {
        candidates.add(format!("{}=", parameter.name()), End::Open);
    }
    candidates
}

/// Text. The place in the definition of a probe is a function: `p:NAME FUNCTION` or `r FUNCTION`.
/// Other words may be paths.
pub fn text(place: &WordPlace) -> Candidates {
    // A definition is one word in quotes, or several.
    let start = place.word.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let earlier = place.words[1..].iter().map(String::as_str);
    let mut before = earlier
        .chain([&place.word[..start]])
        .flat_map(str::split_whitespace);
    if !before.next().is_some_and(is_probe) || before.next().is_some() {
        return paths_at(place, start);
    }
    let mut candidates = Candidates::behind(start);
    // Names that are paths do not fit into a definition. Arguments may follow in the quotation.
    let plain = functions().filter(|symbol| symbol.exported);
    for symbol in plain {
        candidates.add(symbol.name, End::Open);
    }
    candidates
}

/// Whether `word` begins the definition of a probe: `p`, `r` or `r8`, perhaps with `:NAME`.
fn is_probe(word: &str) -> bool {
    let kind = word.split_once(':').map_or(word, |(kind, _)| kind);
    match kind.strip_prefix(['p', 'r']) {
        Some(count) => count.bytes().all(|byte| byte.is_ascii_digit()),
        None => false,
    }
}
