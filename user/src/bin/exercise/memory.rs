//! The program's memory: copies on write, the heap, and the end of memory.

use core::{hint::black_box, slice};
use user::{
    Args,
    abi::{nr, open, signal},
    println,
    syscall::{self, Errno, raw},
    text::Text,
};

const PAGE: u64 = 4096;

static mut GLOBAL: [u64; 2048] = [1; 2048];

/// Makes the heap `bytes` larger and returns the new part. A program that calls this twice gets two
/// parts.
fn grow(bytes: u64) -> &'static mut [u8] {
    let start = syscall::brk(0);
    let end = start + bytes;
    assert_eq!(syscall::brk(end), end, "brk");
    // SAFETY: the kernel has just given this memory to this call alone.
    unsafe { slice::from_raw_parts_mut(start as *mut u8, bytes as usize) }
}

/// Parent and children write to the same addresses and must see their own values only.
pub fn copy_on_write() {
    // SAFETY: the program has one thread, and this is the only reference.
    let global = unsafe { (&raw mut GLOBAL).as_mut_unchecked() };
    let heap = grow(8 * PAGE);
    let mut stack = [1u64; 1024];
    heap.fill(1);
    black_box(&mut stack);
    for round in 2..6u64 {
        let pid = syscall::fork().expect("fork");
        let mine = if pid == 0 { round * 100 } else { round };
        assert!(
            global.iter().chain(&stack).all(|&word| word == round - 1),
            "before"
        );
        assert!(
            heap.iter().all(|&byte| u64::from(byte) == round - 1),
            "before"
        );
        global.fill(mine);
        stack.fill(mine);
        heap.fill(mine as u8);
        for _ in 0..3 {
            syscall::sched_yield();
        }
        black_box(&mut stack);
        assert!(
            global.iter().chain(&stack).all(|&word| word == mine),
            "after"
        );
        assert!(heap.iter().all(|&byte| byte == mine as u8), "after");
        if pid == 0 {
            // A copy of a copy, while the first one is still in use.
            let grandchild = syscall::fork().expect("fork");
            global[0] = if grandchild == 0 { 7 } else { 8 };
            assert_eq!(black_box(&*global)[0], if grandchild == 0 { 7 } else { 8 });
            if grandchild != 0 {
                let (_, status) = syscall::wait4(grandchild as i32, 0).expect("wait4");
                assert!(status.success(), "{status:?}");
            }
            syscall::exit(0);
        }
        let (_, status) = syscall::wait4(pid as i32, 0).expect("wait4");
        assert!(status.success(), "{status:?}");
        assert!(
            global.iter().chain(&stack).all(|&word| word == round),
            "after the child's end"
        );
    }
}

pub fn heap() {
    let start = syscall::brk(0);
    assert_eq!(syscall::brk(1), start, "a wrong end changes nothing");
    assert_eq!(syscall::brk(u64::MAX), start, "a wrong end changes nothing");
    let first = grow(3 * PAGE + 5);
    assert!(first.iter().all(|&byte| byte == 0));
    first.fill(0xaa);
    assert_eq!(syscall::brk(start + PAGE), start + PAGE);
    let again = grow(2 * PAGE);
    assert!(
        again[PAGE as usize..].iter().all(|&byte| byte == 0),
        "what was given back returns as zeros"
    );
    assert_eq!(syscall::brk(start), start);
    // A system call may be the first to touch a page.
    let buf = grow(2 * PAGE);
    assert_eq!(syscall::getcwd(&mut buf[PAGE as usize - 1..]), Ok(c"/"));
}

/// Touches as much memory as the kernel gives; ends with exit code 0 if it was not stopped.
pub fn hog() -> i32 {
    for _ in 0..63 {
        for page in grow(1 << 20).chunks_mut(PAGE as usize) {
            page[0] = 1;
        }
    }
    0
}

/// Runs more programs that touch memory than there is memory for, and fills the file system
/// meanwhile. The kernel must end some programs, and must keep the memory that it needs itself.
pub fn out_of_memory() {
    const CHILDREN: usize = 8;
    for _ in 0..CHILDREN {
        if syscall::fork().expect("fork") == 0 {
            let code = hog();
            // Keep the memory until the others are done with theirs, or until this program is
            // stopped.
            for _ in 0..200 {
                syscall::sched_yield();
            }
            syscall::exit(code);
        }
    }
    fill_file_system();
    let mut killed = 0;
    for _ in 0..CHILDREN {
        let (_, status) = syscall::wait4(-1, 0).expect("wait4");
        match status.signal() {
            Some(signal) => {
                assert_eq!(signal, signal::KILL);
                killed += 1;
            }
            None => assert!(status.success(), "{status:?}"),
        }
    }
    println!("out_of_memory: {killed} of {CHILDREN} ended");
    assert!(killed > 0, "there is too much memory for this");
    assert_eq!(syscall::wait4(-1, 0), Err(Errno::ECHILD));
}

/// Writes and creates until there is no room for anything more, then removes it all.
pub fn fill_file_system() {
    static DATA: [u8; 4096] = [1; 4096];
    let path = |i: u32| Text::<32>::format(format_args!("/tmp/fill.{i}"));
    let mut files = 0;
    let error = loop {
        let flags = open::CREAT | open::EXCL | open::WRONLY;
        let fd = match syscall::open(path(files).as_c_str(), flags, 0o644) {
            Ok(fd) => fd,
            Err(error) => break error,
        };
        files += 1;
        while let Ok(written) = syscall::write(fd, &DATA) {
            assert!(written > 0);
        }
        syscall::close(fd).expect("close");
        assert!(files < 200_000, "no limit");
    };
    assert_eq!(error, Errno::ENOSPC);
    for i in 0..files {
        syscall::unlink(path(i).as_c_str()).expect("unlink");
    }
}

/// Removes the directory named by the argument, which does not exist, and one whose name is in a
/// page that was never touched, and so is empty.
pub fn remove(mut args: Args) {
    let path = args.next().expect("a path");
    assert_eq!(syscall::rmdir(path), Err(Errno::ENOENT));
    let untouched = grow(2 * PAGE).as_ptr() as u64 + PAGE;
    // SAFETY: zeros are an empty path.
    let result = unsafe { raw(nr::RMDIR, [untouched, 0, 0, 0, 0, 0]) };
    assert_eq!(result, Err(Errno::ENOENT));
}
