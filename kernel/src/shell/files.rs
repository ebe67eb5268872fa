//! Commands about files, and the output of any command on its way to a file.
//!
//! Commands go through the kernel's own interface of files, as system calls do, with paths from the
//! task's working directory, but without a table of descriptors. They read in pieces of [`CHUNK`]
//! bytes, so a large file needs little memory. `tail` keeps the lines that it may have to show.
//!
//! Ctrl-C ends a command where it reads or writes next: a read that waits returns EINTR, and the
//! output takes no more.

use alloc::{collections::VecDeque, format, string::String, vec, vec::Vec};
use core::{
    fmt::{self, Write},
    ops::ControlFlow,
};

use abi::{mode, open};
use prompt::syntax::Redirect;

use super::command::{Failure, Next, no_arguments};
use crate::{
    errno::Errno,
    fs::{self, Attributes, CHUNK, File, FileKind, NodeRef},
    mm::shared::Shared,
    task,
    terminal::Command as Running,
};

/// Permission bits of a file that a command makes.
const PERMISSIONS: u32 = 0o644;
/// Those of a directory.
const DIRECTORY_PERMISSIONS: u32 = 0o755;

fn failure(path: &str) -> impl Fn(Errno) -> Failure {
    move |errno| Failure::File {
        path: path.into(),
        errno,
    }
}

/// The directory from which paths are taken.
pub fn cwd() -> NodeRef {
    task::current().process.cwd()
}

/// Goes to a directory.
pub fn cd(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    let path = match arguments {
        [] => "/",
        [path] => path,
        _ => return Err(Failure::Usage("it goes to one directory")),
    };
    let directory = fs::directory(&cwd(), path.as_bytes()).map_err(failure(path))?;
    task::current().process.set_cwd(directory);
    Ok(Next::Command)
}

/// Says the path of the directory.
pub fn pwd(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    no_arguments(arguments)?;
    let path = cwd().path().map_err(failure("."))?;
    writeln!(out, "{}", String::from_utf8_lossy(&path))?;
    Ok(Next::Command)
}

/// Lists directories and files: type and permissions, size, name.
pub fn ls(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    let cwd = cwd();
    for path in if arguments.is_empty() {
        &["."]
    } else {
        arguments
    } {
        let attributes = fs::attributes(&cwd, path.as_bytes()).map_err(failure(path))?;
        if attributes.kind != FileKind::Directory {
            entry(out, path.as_bytes(), &attributes)?;
            continue;
        }
        if arguments.len() > 1 {
            writeln!(out, "{path}:")?;
        }
        let mut entries = fs::entries(&cwd, path.as_bytes()).map_err(failure(path))?;
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

/// Reads a file from its start to its end, or until `each` has enough. `each` gets the pieces as
/// they come.
fn read(
    path: &str,
    mut each: impl FnMut(&[u8]) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let file = open_file(path, open::RDONLY)?;
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    loop {
        let len = file.read_at(at, &mut chunk).map_err(failure(path))?;
        if len == 0 || each(&chunk[..len])?.is_break() {
            return Ok(());
        }
        at += len as u64;
    }
}

/// The same, line by line, without the ends of the lines.
fn read_lines(
    path: &str,
    mut each: impl FnMut(&str) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let mut line = Vec::new();
    let mut is_over = false;
    read(path, |piece| {
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            line.extend_from_slice(part);
            if line.pop_if(|last| *last == b'\n').is_some() {
                is_over = each(&String::from_utf8_lossy(&line))?.is_break();
                line.clear();
            }
            if is_over {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if !line.is_empty() {
        let _ = each(&String::from_utf8_lossy(&line))?;
    }
    Ok(())
}

/// How many of the bytes are whole letters: all but those of one that goes on after them.
fn whole_letters(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let unfinished = last.map_or(&[][..], |chunk| chunk.invalid());
    match core::str::from_utf8(unfinished) {
        Err(error) if error.error_len().is_none() => bytes.len() - unfinished.len(),
        _ => bytes.len(),
    }
}

/// Shows what files hold, as it comes.
pub fn cat(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    if arguments.is_empty() {
        return Err(Failure::Usage("it needs a file"));
    }
    for path in arguments {
        let mut rest = Vec::new();
        read(path, |piece| {
            rest.extend_from_slice(piece);
            let whole = whole_letters(&rest);
            out.write_str(&String::from_utf8_lossy(&rest[..whole]))?;
            rest.drain(..whole);
            Ok(ControlFlow::Continue(()))
        })?;
        out.write_str(&String::from_utf8_lossy(&rest))?;
    }
    Ok(Next::Command)
}

/// The number of lines and the file that `head` and `tail` are given.
fn count_and_file<'a>(arguments: &[&'a str]) -> Result<(usize, &'a str), Failure> {
    let (count, path) = match arguments {
        [path] => ("10", path),
        ["-n", count, path] => (*count, path),
        _ => return Err(Failure::Usage("it needs one file")),
    };
    let count = count
        .parse()
        .map_err(|_| Failure::Usage("COUNT is a decimal number"))?;
    Ok((count, path))
}

/// Shows the first lines of a file.
pub fn head(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    let (mut count, path) = count_and_file(arguments)?;
    if count == 0 {
        return Ok(Next::Command);
    }
    read_lines(path, |line| {
        writeln!(out, "{line}")?;
        count -= 1;
        Ok(match count {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    })?;
    Ok(Next::Command)
}

/// Shows the last lines of a file.
pub fn tail(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    let (count, path) = count_and_file(arguments)?;
    let mut last = VecDeque::new();
    read_lines(path, |line| {
        last.push_back(String::from(line));
        if last.len() > count {
            last.pop_front();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for line in last {
        writeln!(out, "{line}")?;
    }
    Ok(Next::Command)
}

/// Shows or counts the lines of files that hold a text, or do not.
pub fn grep(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    let (mut counts, mut inverts) = (false, false);
    let mut arguments = arguments;
    while let [option, rest @ ..] = arguments {
        match *option {
            "-c" => counts = true,
            "-v" => inverts = true,
            "-cv" | "-vc" => (counts, inverts) = (true, true),
            _ => break,
        }
        arguments = rest;
    }
    let [text, paths @ ..] = arguments else {
        return Err(Failure::Usage("it needs a text and a file"));
    };
    if paths.is_empty() {
        return Err(Failure::Usage("it needs a file"));
    }
    for path in paths {
        let name = match paths {
            [_] => String::new(),
            _ => format!("{path}:"),
        };
        let mut count = 0;
        read_lines(path, |line| {
            if line.contains(text) != inverts {
                count += 1;
                if !counts {
                    writeln!(out, "{name}{line}")?;
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if counts {
            writeln!(out, "{name}{count}")?;
        }
    }
    Ok(Next::Command)
}

/// Does something with each of several files.
fn for_each(
    arguments: &[&str],
    usage: &'static str,
    act: impl Fn(&NodeRef, &[u8]) -> Result<(), Errno>,
) -> Result<Next, Failure> {
    if arguments.is_empty() {
        return Err(Failure::Usage(usage));
    }
    let cwd = cwd();
    for path in arguments {
        act(&cwd, path.as_bytes()).map_err(failure(path))?;
    }
    Ok(Next::Command)
}

/// Makes directories.
pub fn mkdir(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    for_each(arguments, "it needs a directory", |cwd, path| {
        fs::mkdir(cwd, path, DIRECTORY_PERMISSIONS)
    })
}

/// Removes files.
pub fn rm(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    for_each(arguments, "it needs a file", fs::unlink)
}

/// Removes empty directories.
pub fn rmdir(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    for_each(arguments, "it needs a directory", fs::rmdir)
}

/// Says its arguments.
pub fn echo(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    match arguments {
        ["-n", words @ ..] => out.write_str(&words.join(" "))?,
        words => writeln!(out, "{}", words.join(" "))?,
    }
    Ok(Next::Command)
}

/// The output of a command on its way to a file. It goes in pieces of [`CHUNK`] bytes. So a file
/// that obeys commands gets all that `echo` says at once.
pub struct Output<'a> {
    path: &'a str,
    file: Shared<File>,
    at: u64,
    waiting: Vec<u8>,
    /// The file has refused a piece. It gets no more.
    failure: Option<Failure>,
}

impl<'a> Output<'a> {
    /// Opens the file, and makes it if there is none. Unless the output is to be appended, the old
    /// content goes.
    pub fn open(redirect: &'a Redirect) -> Result<Self, Failure> {
        let path = &*redirect.path;
        let how = match redirect.append {
            true => open::APPEND,
            false => open::TRUNC,
        };
        let file = open_file(path, open::WRONLY | open::CREAT | how)?;
        let at = match redirect.append {
            true => file.attributes().map_err(failure(path))?.size,
            false => 0,
        };
        Ok(Self {
            path,
            file,
            at,
            waiting: Vec::new(),
            failure: None,
        })
    }

    /// Sends all that waits, and returns the failure if there was one.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.send(1);
        self.failure.map_or(Ok(()), Err)
    }

    /// Sends pieces while at least `least` bytes wait.
    fn send(&mut self, least: usize) {
        while self.failure.is_none() && self.waiting.len() >= least {
            let piece = &self.waiting[..self.waiting.len().min(CHUNK)];
            match self.file.write_at(self.at, piece) {
                Ok(0) => self.failure = Some(failure(self.path)(Errno::EIO)),
                Ok(taken) => {
                    self.at += taken as u64;
                    self.waiting.drain(..taken);
                }
                Err(errno) => self.failure = Some(failure(self.path)(errno)),
            }
        }
    }
}

impl Write for Output<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.failure.is_some() || Running::is_interrupted() {
            return Err(fmt::Error);
        }
        self.waiting
            .try_reserve(text.len())
            .map_err(|_| fmt::Error)?;
        self.waiting.extend_from_slice(text.as_bytes());
        self.send(CHUNK);
        match self.failure {
            None => Ok(()),
            Some(_) => Err(fmt::Error),
        }
    }
}

fn open_file(path: &str, flags: u32) -> Result<Shared<File>, Failure> {
    File::open(&cwd(), path.as_bytes(), flags, PERMISSIONS).map_err(failure(path))
}
