//! Bad pointers passed to system calls: each must give EFAULT and nothing else.

use core::{ffi::CStr, ptr::null};
use user::{
    abi::{nr, open},
    syscall::{self, Errno, raw},
};

/// Addresses at which nothing can be read or written: null, in the first page, unmapped, the last
/// byte of the user's half and the one after it, not canonical, the kernel's text, the physical
/// map, the last byte of all.
const BAD: [u64; 9] = [
    0,
    0xfff,
    0x1234_5000,
    0x0000_7fff_ffff_ffff,
    0x0000_8000_0000_0000,
    0x8000_0000_0000_0000,
    0xffff_ffff_8000_0000,
    0xffff_8000_0000_0000,
    u64::MAX,
];

/// Makes a call whose pointers the kernel must refuse.
fn call(number: u64, args: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: the kernel refuses the arguments (that is the test), or they are valid for the call.
    unsafe { raw(number, args) }
}

fn expect_efault(what: &str, address: u64, result: Result<u64, Errno>) {
    assert_eq!(result, Err(Errno::EFAULT), "{what} with {address:#x}");
}

pub fn run() {
    let path = c"/tmp/bad_pointers";
    let file = syscall::open(path, open::CREAT | open::RDWR | open::TRUNC, 0o644).expect("open");
    assert_eq!(syscall::write(file, b"content"), Ok(7));
    let directory = syscall::open(c"/", open::RDONLY, 0).expect("open /");
    let file = file as u64;

    for bad in BAD {
        for (name, number) in [
            ("open", nr::OPEN),
            ("stat", nr::STAT),
            ("execve", nr::EXECVE),
            ("chdir", nr::CHDIR),
            ("mkdir", nr::MKDIR),
            ("rmdir", nr::RMDIR),
            ("unlink", nr::UNLINK),
        ] {
            expect_efault(name, bad, call(number, [bad, 0, 0, 0, 0, 0]));
        }
        expect_efault("nanosleep", bad, call(nr::NANOSLEEP, [bad, 0, 0, 0, 0, 0]));
        expect_efault("write", bad, call(nr::WRITE, [file, bad, 3, 0, 0, 0]));
        expect_unwritable(file, directory as u64, path, bad);
    }
    // The program's own code can be read, not written.
    let text = run as *const () as u64;
    expect_unwritable(file, directory as u64, path, text);
    expect_efault_in_arrays(path);
    string_may_end_where_memory_ends();
    partial_transfers_count(file as i32);

    syscall::unlink(path).expect("unlink");
}

/// Calls that write to memory.
fn expect_unwritable(file: u64, directory: u64, path: &CStr, bad: u64) {
    syscall::lseek(file as i32, 0, 0).expect("lseek");
    expect_efault("read", bad, call(nr::READ, [file, bad, 3, 0, 0, 0]));
    assert_eq!(
        syscall::lseek(file as i32, 0, 1),
        Ok(0),
        "a failed read moves nothing"
    );
    expect_efault(
        "stat",
        bad,
        call(nr::STAT, [path.as_ptr() as u64, bad, 0, 0, 0, 0]),
    );
    expect_efault("fstat", bad, call(nr::FSTAT, [file, bad, 0, 0, 0, 0]));
    expect_efault("getcwd", bad, call(nr::GETCWD, [bad, 100, 0, 0, 0, 0]));
    expect_efault(
        "getdents64",
        bad,
        call(nr::GETDENTS64, [directory, bad, 1000, 0, 0, 0]),
    );
    // A null status or usage says that the caller does not want it.
    if bad != 0 {
        for args in [[u64::MAX, bad, 0, 0, 0, 0], [u64::MAX, 0, 0, bad, 0, 0]] {
            let pid = syscall::fork().expect("fork");
            if pid == 0 {
                syscall::exit(0);
            }
            expect_efault("wait4", bad, call(nr::WAIT4, args));
            assert_eq!(
                syscall::wait4(-1, 0),
                Err(Errno::ECHILD),
                "wait4 took the child all the same"
            );
        }
    }
}

fn expect_efault_in_arrays(path: &CStr) {
    for bad in BAD.into_iter().filter(|&bad| bad != 0) {
        let program = path.as_ptr() as u64;
        let bad_string = [bad, 0];
        for args in [
            [program, bad, 0, 0, 0, 0],
            [program, 0, bad, 0, 0, 0],
            [program, bad_string.as_ptr() as u64, 0, 0, 0, 0],
            [program, 0, bad_string.as_ptr() as u64, 0, 0, 0],
        ] {
            // On Linux the file is looked at first, and may not be executed.
            let result = call(nr::EXECVE, args);
            assert!(
                matches!(result, Err(Errno::EFAULT | Errno::EACCES)),
                "execve with {bad:#x}: {result:?}"
            );
        }
    }
}

/// The last page of the heap, with nothing after it.
fn last_page() -> u64 {
    let start = syscall::brk(0).next_multiple_of(4096);
    let end = start + 4096;
    assert_eq!(syscall::brk(end), end);
    start
}

/// Fills the end of a page with `bytes` and returns their address.
fn at_end_of_page(page: u64, bytes: &[u8]) -> u64 {
    let address = page + 4096 - bytes.len() as u64;
    // SAFETY: `page` is a page of the heap that nothing else uses.
    unsafe { core::slice::from_raw_parts_mut(address as *mut u8, bytes.len()) }
        .copy_from_slice(bytes);
    address
}

/// The longest path has so many bytes with its NUL.
const PATH_MAX: usize = 4096;

fn string_may_end_where_memory_ends() {
    let page = last_page();
    let whole = at_end_of_page(page, b"/tmp\0");
    assert_eq!(call(nr::CHDIR, [whole, 0, 0, 0, 0, 0]), Ok(0));
    let endless = at_end_of_page(page, b"/tmp");
    expect_efault("chdir", endless, call(nr::CHDIR, [endless, 0, 0, 0, 0, 0]));
    // The kernel reads as many bytes of a path as it may have, and no more.
    let mut slashes = [b'/'; PATH_MAX];
    let endless = at_end_of_page(page, &slashes[1..]);
    expect_efault("chdir", endless, call(nr::CHDIR, [endless, 0, 0, 0, 0, 0]));
    let too_long = at_end_of_page(page, &slashes);
    assert_eq!(
        call(nr::CHDIR, [too_long, 0, 0, 0, 0, 0]),
        Err(Errno::ENAMETOOLONG)
    );
    slashes[PATH_MAX - 1] = 0;
    let longest = at_end_of_page(page, &slashes);
    assert_eq!(call(nr::CHDIR, [longest, 0, 0, 0, 0, 0]), Ok(0));
    // A string on two pages: both of its parts count.
    let next = last_page();
    assert_eq!(next, page + 4096);
    let split = at_end_of_page(page, b"/t");
    // SAFETY: the page is one of the heap that nothing else uses.
    unsafe { core::slice::from_raw_parts_mut(next as *mut u8, 3) }.copy_from_slice(b"mp\0");
    assert_eq!(call(nr::CHDIR, [split, 0, 0, 0, 0, 0]), Ok(0));
    syscall::chdir(c"/").expect("chdir");
}

/// A buffer that is bad only from its second part on. The good part counts, or nothing happened.
fn partial_transfers_count(file: i32) {
    let page = last_page();
    let end = at_end_of_page(page, b"abc");
    match call(nr::WRITE, [file as u64, end, 10, 0, 0, 0]) {
        Err(Errno::EFAULT) => {}
        Ok(written) => assert!(written <= 3, "{written} bytes of 3 were written"),
        other => panic!("{other:?}"),
    }
    let nothing = call(nr::WRITE, [file as u64, null::<u8>() as u64, 0, 0, 0, 0]);
    assert_eq!(nothing, Ok(0));
}
