//! The files that pictures go to.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
};

/// Whether a file can be written at `path`, for a tool that wants to know it before the work that
/// makes its contents. A file that is there stays as it is, and one that was not there is not there
/// afterwards.
///
/// # Errors
/// Those of opening it.
pub fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // A pipe has a reader, who would take the first writer that goes away for the last one.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => File::options().write(true).open(path).map(drop),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match File::options().write(true).create_new(true).open(path) {
                Ok(_) => fs::remove_file(path),
                // A link to a file that is not there yet.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_changes_where_a_file_can_be_written_and_elsewhere_it_is_told() {
        let directory = std::env::temp_dir().join(format!("pictures.{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let new = directory.join("new");
        check(&new).unwrap();
        assert!(!new.exists());
        fs::write(&new, "kept").unwrap();
        check(&new).unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"kept");
        check(Path::new("/dev/null")).unwrap();
        let kind = |path: &Path| check(path).unwrap_err().kind();
        assert_eq!(kind(&directory), ErrorKind::IsADirectory);
        assert_eq!(kind(&directory.join("a/b")), ErrorKind::NotFound);
        assert_eq!(kind(&new.join("a")), ErrorKind::NotADirectory);
        fs::remove_dir_all(&directory).unwrap();
    }
}
