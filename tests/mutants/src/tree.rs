//! The copy of the working tree that mutants are built in.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// See the module's text.
pub struct Tree {
    workspace: PathBuf,
    copy: PathBuf,
}

impl Tree {
    pub fn new(workspace: PathBuf) -> Self {
        let copy = workspace.join("target/mutants/tree");
        Self { workspace, copy }
    }

    /// A file of the working tree, by its path from the top.
    pub fn original(&self, path: &str) -> PathBuf {
        self.workspace.join(path)
    }

    /// The top of the copy.
    pub fn copy(&self) -> &Path {
        &self.copy
    }

    /// Makes the copy equal to the files of the working tree that git knows or would add. Files
    /// that are equal already keep their times.
    pub fn update(&self) -> Result<()> {
        let listed = |dir: &Path| -> Result<Vec<String>> {
            let output = Command::new("git")
                .args([
                    "ls-files",
                    "-z",
                    "--cached",
                    "--others",
                    "--exclude-standard",
                ])
                .current_dir(dir)
                .output()
                .context("cannot run git")?;
            ensure!(output.status.success(), "git cannot list the files");
            let text = String::from_utf8(output.stdout)?;
            Ok(text.split_terminator('\0').map(Into::into).collect())
        };
        let files = listed(&self.workspace)?;
        for file in &files {
            let original = self.workspace.join(file);
            if original.is_file() {
                copy_if_different(&original, &self.copy.join(file))?;
            }
        }
        // By this mark the harness finds its target directory. Cargo makes the mark only together
        // with the directory.
        let mark = "target/CACHEDIR.TAG";
        copy_if_different(&self.workspace.join(mark), &self.copy.join(mark))?;
        if !self.copy.join(".git").exists() {
            // For the list below.
            let made = Command::new("git")
                .args(["init", "-q"])
                .current_dir(&self.copy)
                .status()?;
            ensure!(made.success(), "git cannot make a repository");
        }
        for file in listed(&self.copy)? {
            if !files.contains(&file) {
                fs::remove_file(self.copy.join(file))?;
            }
        }
        Ok(())
    }

    /// The file at `path` of the copy.
    pub fn read(&self, path: &str) -> Result<String> {
        let path = self.copy.join(path);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Makes `text` the file at `path` of the copy, until [`Self::restore`].
    pub fn change(&self, path: &str, text: &str) -> Result<()> {
        let place = self.copy.join(path);
        let note = |name: &str, text: &str| fs::write(self.note(name), text);
        self.read(path)
            .and_then(|original| Ok(note(ORIGINAL, &original)?))
            .and_then(|()| Ok(note(CHANGED, path)?))
            .and_then(|()| Ok(fs::write(&place, text)?))
            .with_context(|| format!("cannot change {}", place.display()))
    }

    /// Takes the last change back, also one of a run that was ended meanwhile.
    pub fn restore(&self) -> Result<()> {
        if let Ok(path) = fs::read_to_string(self.note(CHANGED)) {
            fs::copy(self.note(ORIGINAL), self.copy.join(path))?;
            fs::remove_file(self.note(CHANGED))?;
        }
        Ok(())
    }

    /// The path of a note beside the copy.
    pub fn note(&self, name: &str) -> PathBuf {
        self.copy.join("..").join(name)
    }
}

/// Beside the copy: the path of the file that is changed, and what it held before.
const CHANGED: &str = "changed";
const ORIGINAL: &str = "original";

fn copy_if_different(from: &Path, to: &Path) -> Result<()> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == content) {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(to, content).with_context(|| format!("cannot write {}", to.display()))?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    Ok(())
}
