//! The initial files: a cpio archive in the `newc` format that the loader put into memory.

/// Finds a regular file by its absolute path. Boot context and later; nothing is copied.
pub fn find<'a>(archive: &'a [u8], path: &str) -> Option<&'a [u8]> {
    let wanted = path.trim_start_matches('/');
    cpio_reader::iter_files(archive)
        .find(|entry| {
            entry
                .name()
                .trim_start_matches("./")
                .trim_start_matches('/')
                == wanted
        })
        .map(|entry| entry.file())
}
