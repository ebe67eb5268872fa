//! The work that the samples watch. It forks children one after the other, and each executes
//! `/bin/child`. It makes a directory for each child, inside one with its own pid in the name. It
//! leaves no directory behind if it comes to its end.
//!
//! The argument is the number of children, 3 by default. It exits with 0 only if every call did
//! what it should and every child exited with the code that it was given.
#![forbid(unsafe_code)]
#![no_std]
#![no_main]

use core::ffi::CStr;
use user::{Args, USAGE_EXIT, abi, eprintln, println, syscall, text::Text};

user::main!(main);

const CHILD: &CStr = c"/bin/child";

fn main(mut args: Args) -> i32 {
    args.next();
    let Some(children) = args.parse_last_or(3) else {
        eprintln!(
            "workload: usage: workload [CHILDREN], a number from 0 to {}",
            u32::MAX
        );
        return USAGE_EXIT;
    };
    println!("workload: {children} children");
    let base = base();
    syscall::mkdir(base.as_c_str(), 0o755).expect("mkdir of the base directory");
    let mut last = 0;
    for i in 0..children {
        let pid = run_child(i as i32 % 256);
        assert!(pid > last, "child {pid} does not come after {last}");
        last = pid;
        make_directory(i);
    }
    for i in 0..children {
        syscall::rmdir(directory(i).as_c_str()).expect("rmdir");
    }
    syscall::rmdir(base.as_c_str()).expect("rmdir of the base directory");
    println!("workload: done");
    0
}

/// Runs one child that must exit with `code`; returns its pid.
// A place that documents name.
#[inline(never)]
fn run_child(code: i32) -> u32 {
    let pid = syscall::fork().expect("fork");
    if pid == 0 {
        let code = Text::<12>::format(format_args!("{code}"));
        let error = syscall::execve(CHILD, &[c"child", code.as_c_str()]);
        panic!("execve of {CHILD:?}: {error:?}");
    }
    let (waited, status) = syscall::wait4(-1, 0).expect("wait4");
    assert_eq!(
        (waited, status.code()),
        (pid, Some(code)),
        "child ended with {status:?}"
    );
    pid
}

/// The path of the directory around the others.
fn base() -> Text<64> {
    Text::format(format_args!("/tmp/workload.{}", syscall::getpid()))
}

/// The path of the `i`th directory.
fn directory(i: u32) -> Text<64> {
    Text::format(format_args!("/tmp/workload.{}/{i}", syscall::getpid()))
}

/// Makes the `i`th directory and checks that it is there, once.
fn make_directory(i: u32) {
    let path = directory(i);
    let path = path.as_c_str();
    syscall::mkdir(path, 0o755).expect("mkdir");
    assert_eq!(syscall::mkdir(path, 0o755), Err(syscall::Errno::EEXIST));
    let mode = syscall::stat(path).expect("stat").mode;
    assert_eq!(mode & abi::mode::TYPE_MASK, abi::mode::DIRECTORY);
}
