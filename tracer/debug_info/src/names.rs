//! Names of the source: how a path is taken apart, which paths a pattern means, and which names are
//! near to one that is not there.
//!
//! NAMES-1. A pattern without `::` is held against the last segment of a path, one with more
//!     segments against as many of the last ones. With `*` or `?` it is held against the whole
//!     path, too: `kernel::fs::*` means all below that module, `vfs_*` no module or closure.
//! NAMES-2. Generic arguments may be left out. Where they are given, they are the first ones, each
//!     by its last segments; `_`, `*` and a single capital letter stand for any.

use ::names::distance_with_swaps;
use trace_interface::symbols::glob;

/// Splits a path at each `::` that is not inside of brackets.
pub fn segments(path: &str) -> Vec<&str> {
    split(path, "::")
}

/// Splits a list at each comma that is not inside of brackets.
pub fn list(text: &str) -> Vec<&str> {
    split(text, ",").into_iter().map(str::trim).collect()
}

fn split<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let bytes = text.as_bytes();
    let mut parts = Vec::new();
    let (mut depth, mut start, mut at) = (0_i32, 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            // The arrow of a function's type closes nothing.
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b'>' | b')' | b']' | b'}' => depth -= 1,
            _ if depth <= 0 && text[at..].starts_with(separator) => {
                parts.push(&text[start..at]);
                at += separator.len();
                start = at;
                continue;
            }
            _ => {}
        }
        at += 1;
        while !text.is_char_boundary(at) {
            at += 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A segment without its generic arguments, and the text of those.
pub fn generics(segment: &str) -> (&str, Option<&str>) {
    if segment.starts_with('<') {
        return (segment, None);
    }
    match (segment.find('<'), segment.strip_suffix('>')) {
        (Some(at), Some(rest)) => (&segment[..at], Some(&rest[at + 1..])),
        _ => (segment, None),
    }
}

/// A type without the parameters that go without saying: the global allocator, and the hasher of
/// the standard library's maps and sets.
pub fn without_allocators(name: &str) -> String {
    let parameters = ["alloc::alloc::Global", "std::hash::random::RandomState"];
    let mut name = String::from(name);
    for parameter in parameters {
        name = name
            .replace(&format!(", {parameter}"), "")
            .replace(&format!(",{parameter}"), "");
    }
    name
}

/// A type as `type_name` of the library has it: without what goes without saying, without brackets
/// around trait objects, and with the signatures of functions (`dyn Fn(u8) -> u8`).
pub fn of_library(name: &str) -> String {
    let mut name = without_allocators(name);
    while let Some(begin) = name.find("(dyn ") {
        let inner = &name[begin + 1..];
        let Some(end) = closing(inner) else { break };
        name = format!("{}{}{}", &name[..begin], &inner[..end], &inner[end + 1..]);
    }
    for of in ["Fn", "FnMut", "FnOnce"] {
        let called = format!("dyn core::ops::function::{of}<(");
        let mut from = 0;
        while let Some(found) = name[from..].find(&called) {
            let begin = from + found + called.len();
            from = begin;
            let Some(end) = closing(&name[begin..]) else {
                break;
            };
            let after = &name[begin + end + 1..];
            let Some(result) = after.strip_prefix(", Output=") else {
                continue;
            };
            let Some(length) = closing(result) else {
                continue;
            };
            let arrow = match &result[..length] {
                "()" => String::new(),
                result => format!(" -> {result}"),
            };
            name = format!(
                "{}({}){arrow}{}",
                &name[..begin - 2],
                &name[begin..begin + end],
                &result[length + 1..]
            );
        }
    }
    let name = name.replace('=', " = ");
    // A tuple of one type has a comma.
    let mut out = String::with_capacity(name.len());
    let mut rest = name.as_str();
    while let Some(at) = rest.find('(') {
        let (before, inner) = (&rest[..at], &rest[at + 1..]);
        out.push_str(before);
        out.push('(');
        rest = inner;
        let is_of_function = out[..out.len() - 1].ends_with(|last: char| last.is_alphanumeric());
        let Some(end) = closing(inner).filter(|end| *end > 0 && !is_of_function) else {
            continue;
        };
        if list(&inner[..end]).len() == 1 {
            // What is inside may be such a tuple, too.
            out.push_str(&of_library(&inner[..end]));
            out.push_str(",)");
            rest = &inner[end + 1..];
        }
    }
    out.push_str(rest);
    out
}

/// Where the bracket closes that a text follows.
fn closing(text: &str) -> Option<usize> {
    find_in_brackets(text, |depth, _| depth < 0)
}

/// The first letter for which `is_wanted`, which gets how many brackets are open after it.
pub(crate) fn find_in_brackets(text: &str, is_wanted: impl Fn(i32, char) -> bool) -> Option<usize> {
    let mut depth = 0_i32;
    let mut before = ' ';
    text.find(|letter| {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
        before = letter;
        is_wanted(depth, letter)
    })
}

/// The end of the name that the compiler gives a table of methods: `<Type as Trait>::{vtable}`.
pub const TABLE: &str = "::{vtable}";

/// A type as one writes it: the last segment of each path, and no allocator that goes without
/// saying.
pub fn short(name: &str) -> String {
    let name = without_allocators(name);
    let mut out = String::with_capacity(name.len());
    // Where the path that is being read begins in `out`.
    let mut path = 0;
    let mut rest = name.as_str();
    while let Some(character) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("::") {
            // A closure alone would say nothing: the function around it stays.
            if after.starts_with('{') {
                out.push_str("::");
            } else {
                out.truncate(path);
            }
            rest = after;
            continue;
        }
        out.push(character);
        rest = &rest[character.len_utf8()..];
        let in_path = character.is_alphanumeric() || "_#{}$".contains(character);
        if !in_path {
            path = out.len();
        }
    }
    out
}

/// A function's path as one speaks of it: the last segment without its generic arguments, with its
/// type if it is a method, or with the function around it if it is a closure.
pub fn short_path(path: &str) -> String {
    let segments = segments(path);
    let (mut shown, mut at) = (String::new(), segments.len());
    while let Some(before) = at.checked_sub(1) {
        at = before;
        shown = match shown.is_empty() {
            true => short(generics(segments[at]).0),
            false => format!("{}::{shown}", short(segments[at])),
        };
        let is_type = |name: &str| name.starts_with(|letter: char| letter.is_uppercase());
        let is_closure = segments[at].starts_with('{');
        let outer = at.checked_sub(1).map_or("", |outer| segments[outer]);
        let is_method = !is_type(segments[at]) && (is_type(outer) || outer.starts_with('<'));
        if !is_closure && !is_method {
            break;
        }
    }
    shown
}

/// The names that a user means.
pub struct Pattern {
    text: String,
    parts: Vec<String>,
    glob: bool,
    /// A text that each name that is meant has in it.
    literal: String,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        // As one of the manglings writes closures, without their number.
        let text = text.trim().replace("{{closure}}", "{closure*}");
        let last = segments(&text).pop().unwrap_or_default();
        let mut literals = last.split(|character: char| "*?<>, ".contains(character));
        Self {
            literal: literals.next().unwrap_or_default().into(),
            parts: segments(&text).into_iter().map(String::from).collect(),
            glob: text.contains(['*', '?']),
            text,
        }
    }

    /// Whether a path of the source is meant.
    pub fn matches(&self, path: &str) -> bool {
        if !path.contains(&self.literal) {
            return false;
        }
        let parts = segments(path);
        if self.fits(&parts) || (self.glob && glob(&self.text, path)) {
            return true;
        }
        // `<A as B>::method` is `A::method` and `B::method`, too; `<impl A>::method` is
        // `A::method`.
        let Some(at) = parts.iter().position(|part| part.starts_with('<')) else {
            return false;
        };
        let Some(inner) = parts[at]
            .strip_prefix('<')
            .and_then(|inner| inner.strip_suffix('>'))
        else {
            return false;
        };
        let implemented = split(inner, " as ");
        implemented.into_iter().any(|name| {
            let name = name.strip_prefix("impl ").unwrap_or(name);
            let mut whole = segments(name);
            whole.extend(&parts[at + 1..]);
            self.fits(&whole) || (self.glob && glob(&self.text, &whole.join("::")))
        })
    }

    /// The linker's name, if the text is one and nothing else.
    pub fn symbol(&self) -> Option<&str> {
        let is_mangled = self.text.starts_with("_R") || self.text.starts_with("_ZN");
        (is_mangled && !self.glob).then_some(&self.text)
    }

    /// Whether the linker's name is meant.
    pub fn matches_symbol(&self, symbol: &str) -> bool {
        self.text == symbol || (self.glob && glob(&self.text, symbol))
    }

    /// Whether the last segments are those of the pattern.
    fn fits(&self, parts: &[&str]) -> bool {
        let Some(skipped) = parts.len().checked_sub(self.parts.len()) else {
            return false;
        };
        // The last ones differ most.
        self.parts
            .iter()
            .zip(&parts[skipped..])
            .rev()
            .all(|(pattern, part)| segment(pattern, part))
    }
}

fn segment(pattern: &str, part: &str) -> bool {
    if glob(pattern, part) {
        return true;
    }
    if let (Some(pattern), Some(part)) = (implementation(pattern), implementation(part)) {
        return pattern.iter().zip(&part).all(|(a, b)| type_fits(a, b))
            && pattern.len() == part.len();
    }
    let (base, arguments) = generics(part);
    match generics(pattern) {
        (pattern, None) => glob(pattern, base),
        (pattern, Some(wanted)) => {
            let arguments = arguments.map(list).unwrap_or_default();
            let wanted = list(wanted);
            glob(pattern, base)
                && wanted.len() <= arguments.len()
                && wanted.iter().zip(arguments).all(|(a, b)| type_fits(a, b))
        }
    }
}

/// The A and the B of `<A as B>`.
fn implementation(segment: &str) -> Option<Vec<&str>> {
    let inner = segment.strip_prefix('<')?.strip_suffix('>')?;
    Some(split(inner, " as "))
}

fn type_fits(pattern: &str, name: &str) -> bool {
    let any = pattern == "_"
        || (pattern.len() == 1 && pattern.starts_with(|first: char| first.is_ascii_uppercase()));
    if any || glob(pattern, name) {
        return true;
    }
    let (pattern, name) = (short(pattern), short(name));
    glob(&pattern, &name) || {
        let (base, arguments) = generics(&name);
        arguments.is_some() && glob(&pattern, base)
    }
}

/// The nearest of some names, best first, without repetition; at most `count`.
pub fn nearest<'a>(
    name: &str,
    names: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    let wanted = name.to_lowercase();
    let limit = wanted.chars().count() / 3 + 1;
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let mut found: Vec<(usize, &str)> = names
        .into_iter()
        .filter(|candidate| candidate.len() + limit >= wanted.len())
        .filter_map(|candidate| {
            let lower = candidate.to_lowercase();
            // A part of a name is nearer than another name of the same length.
            let within = wanted.len() >= 3 && lower.contains(&wanted);
            let distance = distance_with_swaps(&wanted, &lower, limit);
            match (distance, within) {
                (Some(0), _) => Some((0, candidate)),
                (Some(distance), false) => Some((2 * distance, candidate)),
                (Some(distance), true) => Some((distance, candidate)),
                (None, true) => Some((limit + lower.len() - wanted.len(), candidate)),
                (None, false) => None,
            }
        })
        .collect();
    found.sort_unstable();
    found
        .into_iter()
        .map(|(_, name)| name)
        .take(count)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_outside_of_brackets() {
        let cases: [(&str, &[&str]); 5] = [
            ("vfs_write", &["vfs_write"]),
            ("a::b::{closure#0}", &["a", "b", "{closure#0}"]),
            ("<a::B as c::D<e::F>>::g", &["<a::B as c::D<e::F>>", "g"]),
            (
                "a::B<fn(c::D) -> e::F>::g",
                &["a", "B<fn(c::D) -> e::F>", "g"],
            ),
            ("a::ä::b", &["a", "ä", "b"]),
        ];
        for (path, expected) in cases {
            assert_eq!(segments(path), expected);
        }
    }

    #[test]
    fn types_are_shown_as_one_writes_them() {
        let cases = [
            ("alloc::vec::Vec<u8, alloc::alloc::Global>", "Vec<u8>"),
            ("&mut kernel::fs::file::File", "&mut File"),
            (
                "core::result::Result<usize, kernel::errno::Errno>",
                "Result<usize, Errno>",
            ),
            ("&[(a::B, c::D); 4]", "&[(B, D); 4]"),
            ("&mut dyn core::fmt::Write", "&mut dyn Write"),
            ("fn(a::B) -> c::D", "fn(B) -> D"),
            (
                "*mut a::f::{closure_env#1}<b::C>",
                "*mut f::{closure_env#1}<C>",
            ),
        ];
        for (name, expected) in cases {
            assert_eq!(short(name), expected);
        }
    }

    #[test]
    fn types_are_shown_as_the_library_names_them() {
        let cases = [
            ("PhantomData<(u8)>", "PhantomData<(u8,)>"),
            ("P<(u8, (u16, ()))>", "P<(u8, (u16, ()))>"),
            ("P<((((u8))))>", "P<((((u8,),),),)>"),
            ("P<fn(u8) -> (u16)>", "P<fn(u8) -> (u16,)>"),
            (
                "P<extern \"C\" fn(u8, (u16))>",
                "P<extern \"C\" fn(u8, (u16,))>",
            ),
            ("P<(dyn a::A + b::B)>", "P<dyn a::A + b::B>"),
            ("P<dyn a::A<u8, Out=u16>>", "P<dyn a::A<u8, Out = u16>>"),
            (
                "P<dyn core::ops::function::Fn<(u8), Output=(u8)>>",
                "P<dyn core::ops::function::Fn(u8) -> (u8,)>",
            ),
            (
                "P<dyn core::ops::function::FnMut<(), Output=()>>",
                "P<dyn core::ops::function::FnMut()>",
            ),
            ("HashSet<u8, std::hash::random::RandomState>", "HashSet<u8>"),
        ];
        for (name, expected) in cases {
            assert_eq!(of_library(name), expected);
        }
    }

    #[test]
    fn patterns_mean_paths() {
        let push = "alloc::vec::Vec<u8>::push";
        let fmt = "<kernel::fs::File<u8> as core::fmt::Display>::fmt";
        let closure = "kernel::fs::vfs_write::{closure#1}";
        let yes = [
            (push, "push"),
            (push, "Vec::push"),
            (push, "Vec<T>::push"),
            (push, "Vec<u8>::push"),
            (push, "Vec<_>::push"),
            (push, "alloc::vec::*"),
            (push, "pu?h"),
            (push, "*"),
            (fmt, "fmt"),
            (fmt, "File::fmt"),
            (fmt, "File<u8>::fmt"),
            (fmt, "kernel::fs::File::fmt"),
            (fmt, "Display::fmt"),
            (fmt, "<File as Display>::fmt"),
            (fmt, "<File<u8> as core::fmt::Display>::fmt"),
            (fmt, "<* as Display>::fmt"),
            (fmt, "kernel::fs::*"),
            (closure, "vfs_write::{closure#1}"),
            (closure, "vfs_write::{{closure}}"),
            (closure, "{closure#1}"),
            (closure, "vfs_write::*"),
            ("core::str::<impl str>::trim", "str::trim"),
        ];
        for (path, pattern) in yes {
            assert!(Pattern::new(pattern).matches(path), "{pattern} for {path}");
        }
        let no = [
            (push, "pus"),
            (push, "vec::push"),
            (push, "Vec<u16>::push"),
            (push, "Vec<u8, u8, u8>::push"),
            (push, "vec::*"),
            (fmt, "Debug::fmt"),
            (fmt, "<File as Debug>::fmt"),
            (closure, "vfs_*"),
            (closure, "vfs_write"),
            (closure, "vfs_write::{closure#0}"),
        ];
        for (path, pattern) in no {
            assert!(!Pattern::new(pattern).matches(path), "{pattern} for {path}");
        }
    }

    #[test]
    fn near_names_come_best_first() {
        let names = ["vfs_read", "vfs_write", "write", "sys_write", "vfs_write"];
        assert_eq!(nearest("vfs_wirte", names, 8), ["vfs_write", "sys_write"]);
        assert_eq!(
            nearest("write", names, 8),
            ["write", "sys_write", "vfs_write"]
        );
        assert_eq!(nearest("vfs_red", names, 1), ["vfs_read"]);
        assert!(nearest("entirely_different", names, 8).is_empty());
    }
}
