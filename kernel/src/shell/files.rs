//! Commands about files.

use alloc::{string::String, vec};
use core::fmt::Write;

use abi::{mode, open};

use super::command::{Failure, Next};
use crate::{
    errno::Errno,
    fs::{self, Attributes, CHUNK, File, Kind, NodeRef},
};

/// Permission bits of a file that a command makes.
const PERMISSIONS: u32 = 0o644;

fn failure(path: &str) -> impl Fn(Errno) -> Failure {
    move |errno| Failure::File {
        path: path.into(),
        errno,
    }
}

/// Lists directories and files: type and permissions, size, name.
pub fn ls(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    let root = NodeRef::root();
    for path in if arguments.is_empty() {
        &["/"]
    } else {
        arguments
    } {
        let attributes = fs::attributes(&root, path.as_bytes()).map_err(failure(path))?;
        if attributes.kind != Kind::Directory {
            entry(out, path.as_bytes(), &attributes)?;
            continue;
        }
        if arguments.len() > 1 {
            writeln!(out, "{path}:")?;
        }
        let mut entries = fs::entries(&root, path.as_bytes()).map_err(failure(path))?;
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, attributes) in &entries {
            entry(out, name, attributes)?;
        }
    }
    Ok(Next::Command)
}

fn entry(out: &mut dyn Write, name: &[u8], attributes: &Attributes) -> Result<(), Failure> {
    let kind = match attributes.mode & mode::TYPE_MASK {
        mode::DIRECTORY => 'd',
        mode::CHARACTER_DEVICE => 'c',
        _ => '-',
    };
    let permissions: String = (0..9)
        .map(|bit| match attributes.mode & (0o400 >> bit) {
            0 => '-',
            _ => ['r', 'w', 'x'][bit % 3],
        })
        .collect();
    let slash = if kind == 'd' { "/" } else { "" };
    writeln!(
        out,
        "{kind}{permissions} {:8} {}{slash}",
        attributes.size,
        name.escape_ascii()
    )?;
    Ok(())
}

/// Shows what files hold.
pub fn cat(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    if arguments.is_empty() {
        return Err(Failure::Usage("it needs a file"));
    }
    for path in arguments {
        let file = open_file(path, open::RDONLY)?;
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        loop {
            let len = file.read_at(at, &mut chunk).map_err(failure(path))?;
            if len == 0 {
                break;
            }
            at += len as u64;
            out.write_str(&String::from_utf8_lossy(&chunk[..len]))?;
        }
    }
    Ok(Next::Command)
}

/// Says its arguments.
pub fn echo(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    writeln!(out, "{}", arguments.join(" "))?;
    Ok(Next::Command)
}

/// Writes `text` to a file, and makes the file if there is none. With `append` the text goes to its
/// end, else it replaces the content.
pub fn write(path: &str, text: &[u8], append: bool) -> Result<(), Failure> {
    let how = if append { open::APPEND } else { open::TRUNC };
    let file = open_file(path, open::WRONLY | open::CREAT | how)?;
    let mut at = match append {
        true => file.attributes().map_err(failure(path))?.size,
        false => 0,
    };
    for chunk in text.chunks(CHUNK) {
        at += file.write_at(at, chunk).map_err(failure(path))? as u64;
    }
    Ok(())
}

fn open_file(path: &str, flags: u32) -> Result<alloc::sync::Arc<File>, Failure> {
    File::open(&NodeRef::root(), path.as_bytes(), flags, PERMISSIONS).map_err(failure(path))
}
