//! Lines of the source, and the code that begins there.
//!
//! Files are named as users name them: by the end of their path, without the directories of the
//! machine that built the kernel.

use crate::{
    files,
    image::{Image, Unit},
    session::Session,
};

/// A row of a line table: where a line's code begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub line: u32,
    pub address: u64,
}

/// Whether a path ends with the segments of a shorter one.
pub fn ends_with(path: &str, shorter: &str) -> bool {
    let shorter = shorter.trim_start_matches("./");
    path.strip_suffix(shorter).is_some_and(|before| {
        before.is_empty() || before.ends_with('/') || shorter.starts_with('/')
    })
}

/// The rows of some files in a unit that begin a statement, in no order.
pub fn rows(
    session: &Session,
    image: &Image,
    unit: u64,
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<Row> {
    let mut rows = read(session, unit, is_wanted).unwrap_or_default();
    // Code that the linker threw away has lines, too.
    rows.retain(|row| image.is_code(row.address));
    rows
}

fn read(session: &Session, start: u64, is_wanted: impl Fn(&str) -> bool) -> Option<Vec<Row>> {
    let unit = session.unit(start)?;
    let program = unit.line_program.clone()?;
    let header = program.header();
    // Files are numbered from one on before version 5 of the format.
    let first = u64::from(header.version() < 5);
    let wanted: Vec<bool> = header
        .file_names()
        .iter()
        .map(|file| {
            files::path(&session.dwarf, &unit, header, file).is_ok_and(|path| is_wanted(&path))
        })
        .collect();
    let mut rows = Vec::new();
    let mut all = program.rows();
    let mut last = (0, 0);
    while let Ok(Some((_, row))) = all.next_row() {
        if row.end_sequence() {
            last = (0, 0);
            continue;
        }
        let file = row
            .file_index()
            .checked_sub(first)
            .and_then(|file| usize::try_from(file).ok());
        let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
        let is_wanted = file.and_then(|file| wanted.get(file)).copied() == Some(true);
        let now = (row.file_index(), line.unwrap_or_default());
        if row.is_stmt()
            && is_wanted
            && last != now
            && let Some(line) = line
        {
            rows.push(Row {
                line,
                address: row.address(),
            });
        }
        last = now;
    }
    Some(rows)
}

/// A row of a unit's table. It holds up to the next one.
#[derive(Clone, Debug)]
pub struct At {
    pub address: u64,
    pub file: u64,
    /// 0 where no line of the source is meant.
    pub line: u32,
    /// Whether the function's frame stands from here on.
    pub prologue_end: bool,
    /// Whether the function begins to give up its frame here.
    pub epilogue: bool,
    /// Whether code ends here.
    end: bool,
}

/// The rows of a unit, by address.
pub fn table(session: &Session, start: u64) -> Vec<At> {
    let Some(program) = session
        .unit(start)
        .and_then(|unit| unit.line_program.clone())
    else {
        return Vec::new();
    };
    let mut found: Vec<At> = Vec::new();
    let mut rows = program.rows();
    while let Ok(Some((_, row))) = rows.next_row() {
        let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
        let row = At {
            address: row.address(),
            file: row.file_index(),
            line: line.filter(|_| !row.end_sequence()).unwrap_or_default(),
            prologue_end: row.prologue_end(),
            epilogue: row.epilogue_begin(),
            end: row.end_sequence(),
        };
        found.push(row);
    }
    // A beginning comes after an end at the same address. Of several rows at an address the
    // last one holds.
    found.sort_by_key(|row| (row.address, !row.end));
    found
}

/// The row that holds at an address.
pub fn at(table: &[At], address: u64) -> Option<&At> {
    let next = table.partition_point(|row| row.address <= address);
    table.get(next.checked_sub(1)?)
}

/// File and line where the name of the function with that entry stands.
pub fn declared(session: &Session, entry: u64) -> Option<(String, u32)> {
    session.inherited(entry, |found| {
        let number = found.file(gimli::DW_AT_decl_file)?;
        let line = found.number(gimli::DW_AT_decl_line)?;
        let file = file(session, &found.unit, number)?;
        Some((file, u32::try_from(line).ok()?))
    })
}

/// The path of a file of a unit's table, as one names it: from the directory of the build on.
pub fn file(session: &Session, unit: &Unit, number: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(number)?;
    let path = files::path(&session.dwarf, unit, header, file).ok()?;
    let directory = unit.comp_dir.as_ref()?.to_string_lossy();
    Some(shown(&path, &directory).to_string())
}

/// A path without the directory of the build, and without the place where this machine keeps what
/// the build depends on: `hashbrown-0.15.2/src/lib.rs`, `library/core/src/fmt/mod.rs`. What is left
/// is the end of the path.
pub fn shown<'a>(path: &'a str, directory: &str) -> &'a str {
    /// What stands in front of the path of a dependency, and how many segments after it are the
    /// machine's, too.
    const KEPT: [(&str, usize); 4] = [
        ("/registry/src/", 1),
        ("/git/checkouts/", 0),
        ("/lib/rustlib/src/rust/", 0),
        ("/rustc/", 1),
    ];
    for (mark, skipped) in KEPT {
        if let Some((_, rest)) = path.split_once(mark) {
            return rest.splitn(skipped + 1, '/').last().unwrap_or(rest);
        }
    }
    path.strip_prefix(directory)
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_without_what_is_this_machines() {
        for (path, expected) in [
            ("/home/x/tree/kernel/src/lib.rs", "kernel/src/lib.rs"),
            ("/home/x/treetop/lib.rs", "/home/x/treetop/lib.rs"),
            (
                "/root/.cargo/registry/src/index.crates.io-6f17/hashbrown-0.15/src/lib.rs",
                "hashbrown-0.15/src/lib.rs",
            ),
            (
                "/root/.cargo/git/checkouts/a-12/34ab/src/lib.rs",
                "a-12/34ab/src/lib.rs",
            ),
            (
                "/root/.rustup/toolchains/x/lib/rustlib/src/rust/library/core/src/ops.rs",
                "library/core/src/ops.rs",
            ),
            (
                "/rustc/0123abc/library/core/src/ops.rs",
                "library/core/src/ops.rs",
            ),
        ] {
            assert_eq!(shown(path, "/home/x/tree"), expected);
            assert!(ends_with(path, expected), "{path}");
        }
        // A dependency is built in its own directory.
        let own = "/root/.cargo/registry/src/index/spin-0.10/src/lib.rs";
        let directory = "/root/.cargo/registry/src/index/spin-0.10";
        assert_eq!(shown(own, directory), "spin-0.10/src/lib.rs");
    }
}
