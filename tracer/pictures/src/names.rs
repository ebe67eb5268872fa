//! Shorter names of functions, where a full path does not fit.

/// The name without the modules: `kernel::fs::vfs::vfs_write` is `vfs_write`. A type stays, and so
/// does the function around a closure: `Ring::push`, `<File as Read>::read`,
/// `open::{closure#0}`.
pub fn short(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let segment = segment(rest);
        if segment == 0 {
            text.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        // Segments joined by `::`, as far as they go.
        let mut segments = vec![&rest[..segment]];
        rest = &rest[segment..];
        while let Some(behind) = rest.strip_prefix("::")
            && let length @ 1.. = self::segment(behind)
        {
            segments.push(&behind[..length]);
            rest = &behind[length..];
        }
        let mut kept = segments.len() - 1;
        while kept > 0 && segments[kept].starts_with('{') {
            kept -= 1;
        }
        if kept > 0 && segments[kept - 1].starts_with(char::is_uppercase) {
            kept -= 1;
        }
        text.push_str(&segments[kept..].join("::"));
    }
    text
}

/// How many bytes of an identifier, or of `{closure#0}` and the like, a text begins with.
fn segment(text: &str) -> usize {
    if text.starts_with('{') {
        return text.find('}').map_or(0, |end| end + 1);
    }
    let inside = |character: char| character.is_alphanumeric() || character == '_';
    text.find(|character| !inside(character))
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_go_and_types_stay() {
        let cases = [
            ("kernel::fs::vfs::vfs_write", "vfs_write"),
            ("vfs_write", "vfs_write"),
            ("kernel::f::{closure#0}::inner", "inner"),
            ("trace_ring::Ring::push", "Ring::push"),
            (
                "<kernel::fs::File as core::fmt::Write>::write_str",
                "<File as Write>::write_str",
            ),
            ("kernel::fs::open::{closure#0}", "open::{closure#0}"),
            (
                "kernel::fs::open::{closure#0}::{closure#1}",
                "open::{closure#0}::{closure#1}",
            ),
            (
                "core::ptr::drop_in_place::<alloc::vec::Vec<u8>>",
                "drop_in_place::<Vec<u8>>",
            ),
            ("kernel::a::f::<[u8; 4], &str>", "f::<[u8; 4], &str>"),
            ("{", "{"),
            ("::", "::"),
            ("", ""),
        ];
        for (path, expected) in cases {
            assert_eq!(short(path), expected, "{path}");
        }
    }
}
