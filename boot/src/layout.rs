//! Directories: the workspace, and the place for built files.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::SystemTime,
};

use anyhow::{Context, Result};

/// The target of everything that runs in the guest.
pub const GUEST_TARGET: &str = "x86_64-unknown-none";

/// Returns the root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package `boot` lies in the workspace")
}

/// Returns cargo's target directory: the one that this program itself was built into.
pub fn target() -> &'static Path {
    static TARGET: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = env::current_exe().unwrap_or_default();
        // Cargo marks each target directory with this file.
        let found = program
            .ancestors()
            .find(|directory| directory.join("CACHEDIR.TAG").is_file());
        found.map_or_else(|| workspace().join("target"), Path::to_path_buf)
    });
    &TARGET
}

/// Returns the target directory of the cargo runs that we start.
///
/// It is not the outer cargo's, so that we never wait for a language server or another
/// `cargo build` that holds the lock.
pub fn nested_target() -> PathBuf {
    target().join("nested")
}

/// Returns the directory of the booted files: stripped kernels, initramfs, disk images. Makes it
/// if it is missing.
pub fn artifacts() -> Result<PathBuf> {
    let directory = target().join("boot");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    Ok(directory)
}

/// Tells whether `output` exists and is newer than all of `inputs`.
pub fn is_current<P: AsRef<Path>>(output: &Path, inputs: &[P]) -> bool {
    let modified = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let Some(written) = modified(output) else {
        return false;
    };
    inputs
        .iter()
        .all(|input| modified(input.as_ref()).is_some_and(|changed| changed < written))
}

/// Writes `path` through a temporary file beside it. `write` gets the temporary name; then the
/// file takes the place of `path`.
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    // Other processes and other threads may be replacing the same file.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut unfinished = path.to_path_buf().into_os_string();
    unfinished.push(format!(".{}.{count}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let written = write(&unfinished)
        .and_then(|()| Ok(fs::rename(&unfinished, path)?))
        .with_context(|| format!("cannot write {}", path.display()));
    if written.is_err() {
        // It may not exist; its removal is a courtesy.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Writes `content` to `path`, unless the file has that content already.
pub fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    replace(path, |unfinished| Ok(fs::write(unfinished, content)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A directory of its own for a test, empty.
    fn directory(test: &str) -> PathBuf {
        let directory = target().join("tmp/layout").join(test);
        // It may be left from an earlier run.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn set_age(path: &Path, seconds: u64) {
        let time = SystemTime::now() - Duration::from_secs(seconds);
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(time).unwrap();
    }

    #[test]
    fn output_is_current_if_newer_than_every_input() {
        let directory = directory("is_current");
        let [a, b, output] = ["a", "b", "output"].map(|name| directory.join(name));
        fs::write(&a, "").unwrap();
        fs::write(&b, "").unwrap();
        set_age(&a, 30);
        set_age(&b, 10);
        assert!(!is_current(&output, &[&a]), "it is missing");
        fs::write(&output, "").unwrap();
        set_age(&output, 20);
        assert!(is_current(&output, &[&a]));
        assert!(!is_current(&output, &[&a, &b]), "b is newer");
        assert!(!is_current(&output, &[&directory.join("no input")]));
    }

    #[test]
    fn unchanged_content_keeps_its_file() {
        let path = directory("write_if_changed").join("file");
        write_if_changed(&path, b"one").unwrap();
        set_age(&path, 30);
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        write_if_changed(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        write_if_changed(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
    }

    #[test]
    fn failed_replacement_leaves_the_old_file_and_nothing_else() {
        let directory = directory("replace");
        let path = directory.join("file");
        fs::write(&path, "old").unwrap();
        let error = replace(&path, |unfinished| {
            fs::write(unfinished, "half")?;
            anyhow::bail!("no more")
        })
        .unwrap_err();
        let sentence = format!("{error:#}");
        assert_eq!(
            sentence,
            format!("cannot write {}: no more", path.display())
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }
}
