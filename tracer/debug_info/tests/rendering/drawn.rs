//! Values that nobody chose, of types that are drawn with them.
//!
//! A record has room for so much, and a program for so many instructions. So a text may be cut: it
//! has `…` or an address in place of a value, or is refused because of its size. What it has must
//! be as `{:?}` has it.

use std::{
    collections::BTreeMap,
    env, fs,
    ops::Range,
    path::{Path, PathBuf},
};

use debug_info::DebugInfo;

use crate::{Known, Running, build_in, draw::Draw, fixtures, handed_over, printed};

/// How many values a program has.
const VALUES: usize = 120;
const HANDED_OVER: usize = 30;

/// The programs that are drawn: that of `VALUES_SEED`, and as many as `VALUES_PROGRAMS` says.
fn seeds() -> Range<u64> {
    let set = |name| {
        env::var(name)
            .ok()
            .map(|set| set.parse().expect("it is a number"))
    };
    let first = set("VALUES_SEED").unwrap_or(1);
    first..first + set("VALUES_PROGRAMS").unwrap_or(1)
}

/// The program of a seed.
fn program(seed: u64, has_system: bool) -> PathBuf {
    let fixtures = fixtures();
    let (name, count) = match has_system {
        true => (format!("drawn_{seed}"), VALUES),
        false => (format!("handed_{seed}"), HANDED_OVER),
    };
    let source = Draw::source(seed, count, fixtures.to_str().unwrap(), has_system);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drawn");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(format!("{name}.rs")), source).unwrap();
    match has_system {
        true => build_in(&directory, &name, "drawn", 1, &["-Ccodegen-units=1"]),
        false => build_in(&directory, &name, "drawn", 3, &handed_over::OF_KERNEL),
    }
}

/// How a text is related to that of `{:?}`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Verdict {
    Same,
    Cut,
    /// The program would be too large.
    Refused,
    /// The compiler did not hand over all of it, such as the tag of a single variant.
    LeftOut,
    Wrong,
}

/// Words of messages that a value or a program is too large.
const TOO_LARGE: [&str; 3] = ["instructions; at most", "at most 256 fit", "bytes of stack"];
const LEFT_OUT: [&str; 1] = ["left this part of the value out"];

fn verdict(shown: &str, debug: &str) -> Verdict {
    let says = |words: &[&str]| words.iter().any(|words| shown.contains(words));
    if shown == debug {
        Verdict::Same
    } else if shown.starts_with("[Diagnostic") && says(&TOO_LARGE) {
        Verdict::Refused
    } else if shown.starts_with("[Diagnostic") && says(&LEFT_OUT) {
        Verdict::LeftOut
    } else if is_cut(shown, debug) {
        Verdict::Cut
    } else {
        Verdict::Wrong
    }
}

/// Where the value ends that a text begins with: before what is `after` it, or the closing bracket
/// around it. Nothing in other brackets or in a text is looked at.
fn end_of_value(text: &str, after: &[&str]) -> usize {
    let mut depth = 0;
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        let ends = [" }", ")", "]", "}"].iter().chain(after);
        if depth == 0 && ends.into_iter().any(|end| text[at..].starts_with(end)) {
            return at;
        }
        match letter {
            '"' | '\'' => {
                // Lifetimes are not in such texts.
                while let Some((_, inside)) = letters.next().filter(|(_, l)| *l != letter) {
                    if inside == '\\' {
                        letters.next();
                    }
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Whether a text is `full` but for what it says it leaves out.
fn is_cut(mut shown: &str, mut full: &str) -> bool {
    // After a value there is the next one, the value of a key, or the end of a range, unless it is
    // a range.
    let is_without_a_value = |rest: &str, full: &str| {
        let ends = [&[",", ": ", ".."][..], &[",", ": "]].map(|after| end_of_value(full, after));
        ends.into_iter().any(|end| is_cut(rest, &full[end..]))
    };
    loop {
        if let Some(rest) = shown.strip_prefix("…and ") {
            let Some((count, rest)) = rest.split_once(" more") else {
                return false;
            };
            let mut left_out = 0;
            loop {
                left_out += 1;
                full = &full[end_of_value(full, &[","])..];
                match full.strip_prefix(", ") {
                    Some(next) => full = next,
                    None => break,
                }
            }
            if count != left_out.to_string() {
                return false;
            }
            shown = rest;
        } else if let Some(rest) = shown.strip_prefix('…') {
            return is_without_a_value(rest, full);
        } else if let Some(rest) = shown.strip_prefix("0x") {
            let rest = rest.trim_start_matches(|letter: char| letter.is_ascii_hexdigit());
            return is_without_a_value(rest, full);
        } else {
            let mut letters = (shown.chars(), full.chars());
            match (letters.0.next(), letters.1.next()) {
                (None, None) => return true,
                (a, b) if a != b => return false,
                _ => (shown, full) = (letters.0.as_str(), letters.1.as_str()),
            }
        }
    }
}

/// What was found of the values, by how they were printed.
#[derive(Default)]
struct Found {
    verdicts: BTreeMap<String, BTreeMap<Verdict, usize>>,
    wrong: Vec<String>,
}

impl Found {
    fn add(&mut self, name: &str, how: &str, shown: &str, debug: &str) {
        let verdict = verdict(shown, debug);
        let verdicts = self.verdicts.entry(how.into()).or_default();
        *verdicts.entry(verdict).or_default() += 1;
        if verdict == Verdict::Wrong {
            self.wrong
                .push(format!("{name}, {how}:\n  {shown}\n  {debug}"));
        }
    }

    /// No value is wrong. Of those that were printed as in `complete`, none was refused, and two
    /// of three were whole.
    fn judge(&self, complete: &[&str]) {
        println!("{:#?}", self.verdicts);
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        for how in complete {
            let of = |verdict| self.verdicts[*how].get(&verdict).copied().unwrap_or(0);
            assert_eq!(of(Verdict::Refused), 0, "{how}");
            let (same, cut) = (of(Verdict::Same), of(Verdict::Cut));
            assert!(same > cut * 2, "{how}: {same} whole, {cut} cut");
        }
    }
}

#[test]
fn drawn_values_have_the_text_of_debug() {
    let mut found = Found::default();
    let complete = ["print(*args.value);", "print(args.value);"];
    for seed in seeds() {
        let program = program(seed, true);
        let info = DebugInfo::open(&program).unwrap();
        let running = Running::start(&program);
        assert!(running.values.len() > VALUES, "parts are drawn, too");
        for known in &running.values {
            let name = format!("VALUES_SEED={seed}: {}", known.name);
            let function = known.name.split(['.', '[']).next().unwrap_or_default();
            let path = &known.name[function.len()..];
            let value = Known {
                name: function.into(),
                address: known.address,
                text: known.text.clone(),
            };
            let printed = |block: &str| printed(&info, &running, &value, block);
            if !path.is_empty() {
                let shown = printed(&format!("print(args.value{path});"));
                found.add(&name, "part", &shown, &known.text);
                continue;
            }
            for block in complete {
                found.add(&name, block, &printed(block), &known.text);
            }
            // A variable makes a text of bytes.
            if !function.ends_with("_bytes") {
                let shown = printed("$kept = (*args.value, 1); print($kept.0);");
                found.add(&name, "kept", &shown, &known.text);
            }
        }
    }
    found.judge(&complete);
}

#[test]
fn drawn_values_that_are_handed_over_have_the_text_of_debug() {
    let mut found = Found::default();
    for seed in seeds() {
        for judged in handed_over::judged(&program(seed, false)) {
            let shown = judged.shown.unwrap_or_else(|why| why);
            let (function, how) = judged.name.split_once(' ').unwrap();
            // Of a result that has no bytes the debug information tells no type. And what a value
            // led to is no more when the function that took it has returned.
            let is_gone = function.ends_with("::fails") && how != "a";
            if !(is_gone || how == "result" && shown == "()") {
                let name = format!("VALUES_SEED={seed}: {function}");
                found.add(&name, how, &shown, &judged.debug);
            }
        }
    }
    found.judge(&["a", "result"]);
}
