//! Exercises about files, directories and descriptors.
//!
//! Each makes the calls in an order that leaves no doubt about the answer, and compares: numbers of
//! descriptors, errnos, positions, contents. They work below `/tmp` and remove what they have made.
//! Those with arguments are told by a guest test which file to use.

use core::ffi::CStr;
use user::{
    Args,
    abi::{DirentHeader, mode, open, seek},
    syscall::{self, Errno},
    text::Text,
};

/// Most files that a process may have open.
const MAX_FILES: usize = 64;

pub fn descriptors() {
    let path = c"/tmp/descriptors";
    let flags = open::CREAT | open::RDWR | open::TRUNC;
    let first = syscall::open(path, flags, 0o644).expect("open");
    let second = syscall::open(path, open::RDONLY, 0).expect("open");
    assert_eq!((first, second), (3, 4), "the lowest free numbers");
    syscall::close(first).expect("close");
    assert_eq!(syscall::close(first), Err(Errno::EBADF));
    assert_eq!(syscall::read(first, &mut [0]), Err(Errno::EBADF));
    assert_eq!(syscall::write(-1, b"x"), Err(Errno::EBADF));
    assert_eq!(syscall::lseek(1000, 0, 0), Err(Errno::EBADF));
    assert_eq!(syscall::fstat(first), Err(Errno::EBADF));
    assert_eq!(
        syscall::open(path, open::RDWR, 0),
        Ok(3),
        "the lowest free number again"
    );

    assert_eq!(
        syscall::write(second, b"x"),
        Err(Errno::EBADF),
        "opened for reading"
    );
    let write_only = syscall::open(path, open::WRONLY, 0).expect("open");
    assert_eq!(
        syscall::read(write_only, &mut [0]),
        Err(Errno::EBADF),
        "opened for writing"
    );
    syscall::close(write_only).expect("close");

    let mut opened = 5;
    while let Ok(fd) = syscall::open(path, open::RDONLY, 0) {
        assert_eq!(fd, opened);
        opened += 1;
        if opened > 4096 {
            break;
        }
    }
    if opened as usize == MAX_FILES {
        assert_eq!(syscall::open(path, open::RDONLY, 0), Err(Errno::EMFILE));
    }
    for fd in 3..opened {
        syscall::close(fd).expect("close");
    }
    syscall::unlink(path).expect("unlink");
}

/// Reads the file at `path` from its start and compares.
fn expect_content(path: &CStr, content: &[u8]) {
    let fd = syscall::open(path, open::RDONLY, 0).expect("open");
    let mut buf = [0; 64];
    let len = syscall::read(fd, &mut buf).expect("read");
    assert_eq!(&buf[..len], content);
    assert_eq!(syscall::read(fd, &mut buf), Ok(0), "the end");
    syscall::close(fd).expect("close");
}

pub fn contents() {
    let path = c"/tmp/contents";
    let fd = syscall::open(path, open::CREAT | open::EXCL | open::RDWR, 0o644).expect("open");
    assert_eq!(
        syscall::open(path, open::CREAT | open::EXCL, 0o644),
        Err(Errno::EEXIST)
    );
    assert_eq!(syscall::write(fd, b"hello world"), Ok(11));
    assert_eq!(syscall::read(fd, &mut [0]), Ok(0));
    assert_eq!(syscall::lseek(fd, -5, seek::END), Ok(6));
    assert_eq!(syscall::write(fd, b"there"), Ok(5));
    expect_content(path, b"hello there");
    assert_eq!(syscall::lseek(fd, 2, seek::CUR), Ok(13));
    assert_eq!(syscall::write(fd, b"!"), Ok(1));
    expect_content(path, b"hello there\0\0!");
    assert_eq!(syscall::lseek(fd, -1, seek::SET), Err(Errno::EINVAL));
    assert_eq!(syscall::lseek(fd, 0, 77), Err(Errno::EINVAL));
    let stat = syscall::fstat(fd).expect("fstat");
    assert_eq!(
        (stat.size, stat.mode & mode::TYPE_MASK, stat.links),
        (14, mode::REGULAR, 1)
    );

    let append = syscall::open(path, open::WRONLY | open::APPEND, 0).expect("open");
    assert_eq!(syscall::write(append, b"?"), Ok(1));
    expect_content(path, b"hello there\0\0!?");
    syscall::close(append).expect("close");
    let truncated = syscall::open(path, open::WRONLY | open::TRUNC, 0).expect("open");
    syscall::close(truncated).expect("close");
    expect_content(path, b"");

    // The position is shared across fork.
    assert_eq!(syscall::lseek(fd, 0, seek::SET), Ok(0));
    let pid = syscall::fork().expect("fork");
    if pid == 0 {
        assert_eq!(syscall::write(fd, b"child"), Ok(5));
        syscall::exit(0);
    }
    let (_, status) = syscall::wait4(pid as i32, 0).expect("wait4");
    assert!(status.success(), "{status:?}");
    assert_eq!(syscall::write(fd, b"+parent"), Ok(7));
    expect_content(path, b"child+parent");

    // An open file outlives its name.
    syscall::unlink(path).expect("unlink");
    assert_eq!(syscall::stat(path), Err(Errno::ENOENT));
    assert_eq!(syscall::lseek(fd, 0, seek::SET), Ok(0));
    let mut buf = [0; 5];
    assert_eq!(syscall::read(fd, &mut buf), Ok(5));
    assert_eq!(&buf, b"child");
    syscall::close(fd).expect("close");
    large_file();
}

/// The kernel copies in pieces. This is more than one piece, at odd offsets.
fn large_file() {
    static mut BUFFER: [u8; 20_000] = [0; 20_000];
    // SAFETY: the program has one thread, and this is the only reference.
    let buffer = unsafe { (&raw mut BUFFER).as_mut_unchecked() };
    let path = c"/tmp/large";
    let fd = syscall::open(path, open::CREAT | open::RDWR | open::TRUNC, 0o644).expect("open");
    for (i, byte) in buffer.iter_mut().enumerate() {
        *byte = (i * 7 + i / 251) as u8;
    }
    assert_eq!(syscall::write(fd, &buffer[..19_997]), Ok(19_997));
    buffer.fill(0);
    assert_eq!(syscall::lseek(fd, 1, seek::SET), Ok(1));
    assert_eq!(syscall::read(fd, buffer), Ok(19_996));
    for (i, byte) in buffer[..19_996].iter().enumerate() {
        let i = i + 1;
        assert_eq!(*byte, (i * 7 + i / 251) as u8, "byte {i}");
    }
    syscall::close(fd).expect("close");
    syscall::unlink(path).expect("unlink");
}

/// Counts the entries of a directory whose name is `wanted`, reading with a buffer for few entries.
fn count_entries(path: &CStr, wanted: &[u8]) -> usize {
    let fd = syscall::open(path, open::RDONLY | open::DIRECTORY, 0).expect("open");
    let mut found = 0;
    let mut buf = [0; 80];
    loop {
        let len = syscall::getdents64(fd, &mut buf).expect("getdents64");
        if len == 0 {
            break;
        }
        let mut left = &buf[..len];
        while let Some((header, _)) = left.split_first_chunk() {
            let header = DirentHeader::from_bytes(header);
            let (entry, rest) = left.split_at(header.record_len.into());
            let name = CStr::from_bytes_until_nul(&entry[DirentHeader::SIZE..]).expect("a NUL");
            found += usize::from(name.to_bytes() == wanted);
            left = rest;
        }
    }
    assert_eq!(
        syscall::getdents64(fd, &mut buf),
        Ok(0),
        "the end stays the end"
    );
    syscall::close(fd).expect("close");
    found
}

pub fn directories() {
    let mut buf = [0; 256];
    syscall::mkdir(c"/tmp/d", 0o755).expect("mkdir");
    assert_eq!(syscall::mkdir(c"/tmp/d/", 0o755), Err(Errno::EEXIST));
    assert_eq!(syscall::mkdir(c"/tmp/no/d", 0o755), Err(Errno::ENOENT));
    syscall::chdir(c"/tmp/d").expect("chdir");
    syscall::mkdir(c"e", 0o700).expect("mkdir");
    syscall::chdir(c"./e//").expect("chdir");
    assert_eq!(syscall::getcwd(&mut buf), Ok(c"/tmp/d/e"));
    assert_eq!(syscall::getcwd(&mut buf[..8]), Err(Errno::ERANGE));
    assert_eq!(syscall::getcwd(&mut buf[..9]), Ok(c"/tmp/d/e"), "just fits");
    let stat = syscall::stat(c".").expect("stat");
    assert_eq!(stat.mode, mode::DIRECTORY | 0o700);

    let fd = syscall::open(c"../file", open::CREAT | open::WRONLY, 0o644).expect("open");
    syscall::close(fd).expect("close");
    assert_eq!(syscall::chdir(c"../file"), Err(Errno::ENOTDIR));
    assert_eq!(
        syscall::open(c"../file/x", open::CREAT, 0o644),
        Err(Errno::ENOTDIR)
    );
    assert_eq!(
        syscall::open(c"/tmp/d", open::WRONLY, 0),
        Err(Errno::EISDIR)
    );
    assert_eq!(syscall::getdents64(1, &mut buf), Err(Errno::ENOTDIR));
    let fd = syscall::open(c"..", open::RDONLY, 0).expect("open");
    assert_eq!(syscall::read(fd, &mut buf), Err(Errno::EISDIR));
    assert_eq!(syscall::getdents64(fd, &mut buf[..10]), Err(Errno::EINVAL));
    syscall::close(fd).expect("close");

    for name in [&b"."[..], b"..", b"e", b"file"] {
        assert_eq!(count_entries(c"..", name), 1);
    }
    for i in 0..20 {
        let name = Text::<16>::format(format_args!("../e/{i}"));
        syscall::mkdir(name.as_c_str(), 0o755).expect("mkdir");
    }
    for i in 0..20 {
        let name = Text::<16>::format(format_args!("{i}"));
        assert_eq!(count_entries(c".", name.as_bytes()), 1);
        syscall::rmdir(name.as_c_str()).expect("rmdir");
    }

    assert_eq!(syscall::rmdir(c"/tmp/d"), Err(Errno::ENOTEMPTY));
    assert_eq!(syscall::rmdir(c"/tmp/d/e/."), Err(Errno::EINVAL));
    assert_eq!(syscall::unlink(c"/tmp/d/e"), Err(Errno::EISDIR));
    syscall::rmdir(c"/tmp/d/e").expect("rmdir of the working directory");
    assert_eq!(syscall::getcwd(&mut buf), Err(Errno::ENOENT));
    assert_eq!(syscall::mkdir(c"f", 0o755), Err(Errno::ENOENT));
    syscall::chdir(c"/").expect("chdir");
    syscall::unlink(c"/tmp/d/file").expect("unlink");
    syscall::rmdir(c"/tmp/d").expect("rmdir");

    let long = [b'x'; 5000];
    let mut path = [0; 5000];
    path[..4999].copy_from_slice(&long[..4999]);
    let long = CStr::from_bytes_until_nul(&path).expect("a NUL");
    assert_eq!(syscall::stat(long), Err(Errno::ENAMETOOLONG));
    assert_eq!(syscall::stat(c""), Err(Errno::ENOENT));
}

/// The kernel's own files permit only the operations that their modes allow.
pub fn permissions() {
    let path = c"/tmp/read_only";
    let fd = syscall::open(path, open::CREAT | open::RDWR, 0o444).expect("open");
    assert_eq!(syscall::write(fd, b"x"), Ok(1), "its creator may write");
    assert_eq!(syscall::open(path, open::RDWR, 0), Err(Errno::EACCES));
    assert_eq!(syscall::execve(path, &[]), Errno::EACCES);
    syscall::close(fd).expect("close");
    syscall::unlink(path).expect("unlink");
    assert_eq!(syscall::mkdir(c"/proc/mine", 0o755), Err(Errno::EACCES));
    assert_eq!(
        syscall::read(0, &mut [0]),
        Ok(0),
        "the console has no input"
    );
    assert_eq!(syscall::lseek(0, 0, 0), Err(Errno(29)), "ESPIPE");
}

/// Writes the second argument to the virtual file at the first and reads it back, in small pieces.
pub fn virtual_file(mut args: Args) {
    let (Some(path), Some(value)) = (args.next(), args.next()) else {
        panic!("virtual_file PATH VALUE");
    };
    let value = value.to_bytes();
    let fd = syscall::open(path, open::RDWR, 0).expect("open");
    assert_eq!(syscall::write(fd, value), Ok(value.len()));
    syscall::lseek(fd, 0, seek::SET).expect("lseek");
    for byte in value {
        let mut piece = [0];
        assert_eq!(syscall::read(fd, &mut piece), Ok(1));
        assert_eq!(piece, [*byte]);
    }
    assert_eq!(syscall::read(fd, &mut [0]), Ok(0));
    assert_eq!(syscall::write(fd, b"refuse"), Err(Errno::EINVAL));
    syscall::close(fd).expect("close");
}

/// Reads from the file at the first argument once. Expects as many bytes as the second one says.
pub fn read(mut args: Args) {
    let path = args.next().expect("a path");
    let count: usize = args.parse_next().expect("a number");
    let fd = syscall::open(path, open::RDONLY, 0).expect("open");
    assert_eq!(syscall::read(fd, &mut [0; 64]), Ok(count));
}

/// Writes the file at the first argument to that at the second one. One write is asked to take all
/// of a file of up to 16 KiB, and the next ones take what it left.
pub fn copy(mut args: Args) {
    let (Some(from), Some(to)) = (args.next(), args.next()) else {
        panic!("copy FROM TO");
    };
    let from = syscall::open(from, open::RDONLY, 0).expect("open");
    let to = syscall::open(to, open::WRONLY, 0).expect("open");
    let mut bytes = [0; 16 * 1024];
    loop {
        let mut filled = 0;
        while filled < bytes.len() {
            match syscall::read(from, &mut bytes[filled..]).expect("read") {
                0 => break,
                read => filled += read,
            }
        }
        if filled == 0 {
            return;
        }
        let mut written = 0;
        while written < filled {
            written += syscall::write(to, &bytes[written..filled]).expect("write");
        }
    }
}
