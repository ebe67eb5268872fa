//! The files that a line table names.

use gimli::{FileEntry, LineProgramHeader};

use crate::image::{Dwarf, Slice, Unit};

/// The path of a file of a line table, as the compiler was given it.
pub fn path(
    dwarf: &Dwarf,
    unit: &Unit,
    header: &LineProgramHeader<Slice>,
    file: &FileEntry<Slice>,
) -> gimli::Result<String> {
    let text = |value| Ok::<_, gimli::Error>(dwarf.attr_string(unit, value)?.to_string_lossy());
    let directory = file.directory(header).map(text).transpose()?;
    let compiled_in = unit.comp_dir.as_ref().map(|of| of.to_string_lossy());
    Ok(joined(&[
        &compiled_in.unwrap_or_default(),
        &directory.unwrap_or_default(),
        &text(file.path_name())?,
    ]))
}

/// A path of parts, each from the one before it on. One that begins at the root stands for itself.
fn joined(parts: &[&str]) -> String {
    let mut path = String::new();
    for part in parts {
        if part.starts_with('/') {
            path.clear();
        } else if !path.is_empty() && !part.is_empty() {
            path.push('/');
        }
        path.push_str(part);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn a_path_begins_where_its_last_part_with_a_root_does() {
        for (parts, path) in [
            (["/home/me", "src", "a.rs"], "/home/me/src/a.rs"),
            (["/home/me", "/usr/lib", "a.rs"], "/usr/lib/a.rs"),
            (["/home/me", "src", "/tmp/a.s"], "/tmp/a.s"),
            (["/home/me", "/usr/lib", "/tmp/a.s"], "/tmp/a.s"),
            (["/home/me", "", "src/a.rs"], "/home/me/src/a.rs"),
            (["/home/me", "", "/tmp/a.s"], "/tmp/a.s"),
            (["", "src", "a.rs"], "src/a.rs"),
            (["", "", "a.rs"], "a.rs"),
        ] {
            assert_eq!(joined(&parts), path, "{parts:?}");
        }
    }
}
