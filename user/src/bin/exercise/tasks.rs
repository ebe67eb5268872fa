//! Exercises about processes: fork, exec, wait, exit, kill, and sleeping.
//!
//! A parent waits for each child that it has made and checks how it ended, so a check that fails in
//! a child fails the exercise. Where an order between processes matters, they watch each other by
//! calls (`getppid`, `stat`, `kill` with signal 0) and give their CPU away meanwhile.

use user::{
    Args,
    abi::{Timespec, nr, open, signal, wait as options},
    syscall::{self, Errno, raw},
    text::Text,
};

const SELF: &core::ffi::CStr = c"/bin/exercise";

/// A time so long that only a signal ends it.
const FOREVER: Timespec = Timespec {
    seconds: 1 << 40,
    nanoseconds: 0,
};

/// Forks a child that calls `f` and exits with its result; returns its pid.
fn spawn(f: impl FnOnce() -> i32) -> u32 {
    match syscall::fork().expect("fork") {
        0 => syscall::exit(f()),
        pid => pid,
    }
}

fn expect_code(pid: u32, code: i32) {
    let (waited, status) = syscall::wait4(pid as i32, 0).expect("wait4");
    assert_eq!((waited, status.code()), (pid, Some(code)), "{status:?}");
}

pub fn identity() {
    let me = syscall::getpid();
    assert!(me > 1 && me == syscall::getpid());
    let parent = syscall::getppid();
    let child = spawn(|| {
        assert_eq!(syscall::getppid(), me);
        assert_eq!(
            syscall::noted_tid(),
            syscall::getpid(),
            "CLONE_CHILD_SETTID"
        );
        assert_ne!(syscall::getpid(), me);
        0
    });
    assert!(child > me);
    expect_code(child, 0);
    assert_eq!(syscall::getppid(), parent);

    // SAFETY: fork takes no arguments.
    match unsafe { raw(nr::FORK, [0; 6]) }.expect("fork") {
        0 => syscall::exit(9),
        pid => expect_code(pid as u32, 9),
    }
    // The kernel refuses children that share memory: vfork, threads.
    for flags in [0x0000_4111, 0x003d_0f00] {
        // SAFETY: the kernel refuses the call. A kernel that knows these flags must not run this.
        let result = unsafe { raw(nr::CLONE, [flags, 0, 0, 0, 0, 0]) };
        assert_eq!(result, Err(Errno::EINVAL));
    }
    // SAFETY: no such call.
    assert_eq!(unsafe { raw(999, [0; 6]) }, Err(Errno::ENOSYS));
    // SAFETY: no such call.
    assert_eq!(unsafe { raw(u64::MAX, [0; 6]) }, Err(Errno::ENOSYS));
}

pub fn wait() {
    assert_eq!(syscall::wait4(-1, 0), Err(Errno::ECHILD));
    let slow = spawn(|| {
        for _ in 0..20 {
            syscall::sched_yield();
        }
        300 // its low eight bits are 44
    });
    let other = spawn(|| 7);
    assert_eq!(syscall::wait4(1, 0), Err(Errno::ECHILD), "not a child");
    expect_code(other, 7);
    assert_eq!(
        syscall::wait4(other as i32, 0),
        Err(Errno::ECHILD),
        "only once"
    );
    loop {
        let (pid, status) = syscall::wait4(-1, options::NOHANG).expect("wait4");
        if pid == slow {
            assert_eq!(status.code(), Some(44));
            break;
        }
        assert_eq!(pid, 0);
        syscall::sched_yield();
    }
    assert_eq!(syscall::wait4(-1, options::NOHANG), Err(Errno::ECHILD));
    assert_eq!(syscall::wait4(-1, 1 << 20), Err(Errno::EINVAL));

    // Children that end in any order are all found, each once.
    let mut sum = 0;
    for code in 1..=10 {
        sum += u64::from(spawn(|| {
            for _ in 0..10 - code {
                syscall::sched_yield();
            }
            code
        }));
    }
    let mut codes = 0;
    for _ in 1..=10 {
        let (pid, status) = syscall::wait4(-1, 0).expect("wait4");
        sum -= u64::from(pid);
        codes += status.code().expect("a code");
    }
    assert_eq!((sum, codes), (0, 55));
}

pub fn exec() {
    // Arguments arrive as they were, and the new program starts with fresh memory.
    let child = spawn(|| {
        let error = syscall::execve(SELF, &[c"exercise", c"exec_target", c"", c"two words"]);
        panic!("{error:?}");
    });
    expect_code(child, 33);

    let script = c"/tmp/script";
    let fd = syscall::open(script, open::CREAT | open::WRONLY, 0o755).expect("open");
    assert_eq!(syscall::write(fd, b"#!/bin/sh\n"), Ok(10));
    assert_eq!(syscall::execve(c"/bin/none", &[]), Errno::ENOENT);
    assert_eq!(syscall::execve(c"/tmp", &[]), Errno::EACCES);
    syscall::close(fd).expect("close");
    let result = syscall::execve(script, &[]);
    assert!(
        result == Errno::ENOEXEC || result == Errno::ENOENT,
        "{result:?}"
    );
    syscall::unlink(script).expect("unlink");

    static mut LONG: [u8; 140_000] = [0; 140_000];
    // SAFETY: the program has one thread, and this is the only reference.
    let long = unsafe { (&raw mut LONG).as_mut_unchecked() };
    long[..139_999].fill(b'x');
    let long = core::ffi::CStr::from_bytes_until_nul(long).expect("a NUL");
    assert_eq!(syscall::execve(SELF, &[long]), Errno::E2BIG);
}

/// Checks the arguments that [`exec`] passes.
pub fn exec_target(mut args: Args) -> i32 {
    assert_eq!(args.next(), Some(c""));
    assert_eq!(args.next(), Some(c"two words"));
    assert_eq!(args.next(), None);
    assert_eq!(syscall::noted_tid(), 0, "memory of the old program");
    33
}

/// Open files pass to a new program, but for those opened with O_CLOEXEC.
pub fn descriptors_across_exec() {
    let kept = syscall::open(c"/tmp", open::RDONLY, 0).expect("open");
    let closed = syscall::open(c"/tmp", open::RDONLY | open::CLOEXEC, 0).expect("open");
    assert_eq!((kept, closed), (3, 4));
    let child = spawn(|| {
        assert!(syscall::fstat(closed).is_ok(), "fork keeps it");
        let error = syscall::execve(SELF, &[c"exercise", c"only_descriptor_3"]);
        panic!("{error:?}");
    });
    expect_code(child, 0);
}

/// The program that [`descriptors_across_exec`] executes.
pub fn only_descriptor_3() {
    assert!(syscall::fstat(3).is_ok());
    assert_eq!(syscall::fstat(4), Err(Errno::EBADF));
}

/// Sleeps for as many milliseconds as the argument says, in `nanosleep`s of 10.
pub fn sleep(mut args: Args) {
    let milliseconds: u32 = args.parse_next().expect("milliseconds");
    for _ in 0..milliseconds / 10 {
        let time = Timespec {
            seconds: 0,
            nanoseconds: 10_000_000,
        };
        syscall::nanosleep(time).expect("nanosleep");
    }
    syscall::nanosleep(Timespec::default()).expect("nanosleep");
    for (seconds, nanoseconds) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
        let time = Timespec {
            seconds,
            nanoseconds,
        };
        assert_eq!(syscall::nanosleep(time), Err(Errno::EINVAL));
    }
}

/// A process whose parent ends becomes a child of `init`.
pub fn orphan() {
    let report = c"/tmp/orphan";
    let middle = spawn(|| {
        let me = syscall::getpid();
        spawn(|| {
            while syscall::getppid() == me {
                syscall::sched_yield();
            }
            let parent = Text::<16>::format(format_args!("{}", syscall::getppid()));
            let fd =
                syscall::open(c"/tmp/orphan.new", open::CREAT | open::WRONLY, 0o644).expect("open");
            assert_eq!(
                syscall::write(fd, parent.as_bytes()),
                Ok(parent.as_bytes().len())
            );
            let fd = syscall::open(report, open::CREAT | open::WRONLY, 0o644).expect("open");
            syscall::close(fd).expect("close");
            0
        });
        5
    });
    expect_code(middle, 5);
    assert_eq!(
        syscall::wait4(-1, 0),
        Err(Errno::ECHILD),
        "a grandchild is no child"
    );
    while syscall::stat(report).is_err() {
        syscall::sched_yield();
    }
    let fd = syscall::open(c"/tmp/orphan.new", open::RDONLY, 0).expect("open");
    let mut parent = [0; 8];
    let len = syscall::read(fd, &mut parent).expect("read");
    assert_eq!(&parent[..len], b"1");
    syscall::unlink(report).expect("unlink");
    syscall::unlink(c"/tmp/orphan.new").expect("unlink");
}

/// Kills children wherever they are.
pub fn kill() {
    let spinning = spawn(|| {
        loop {
            core::hint::spin_loop();
        }
    });
    let sleeping = spawn(|| {
        block();
        1
    });
    let waiting = spawn(|| {
        spawn(|| {
            block();
            1
        });
        syscall::wait4(-1, 0).expect("wait4");
        1
    });
    let busy = spawn(|| {
        loop {
            syscall::getpid();
        }
    });
    for _ in 0..10 {
        syscall::sched_yield();
    }
    for pid in [spinning, sleeping, waiting, busy] {
        assert_eq!(syscall::kill(pid, 0), Ok(()));
        assert_eq!(
            syscall::wait4(pid as i32, options::NOHANG).map(|(pid, _)| pid),
            Ok(0)
        );
        assert_eq!(syscall::kill(pid, signal::KILL), Ok(()));
        let (_, status) = syscall::wait4(pid as i32, 0).expect("wait4");
        assert_eq!(status.signal(), Some(signal::KILL), "{status:?}");
        assert_eq!(syscall::kill(pid, signal::KILL), Err(Errno::ESRCH));
    }
    // A zombie can be killed, without effect.
    let zombie = spawn(|| 6);
    while syscall::kill(zombie, 0).is_ok() && !ended(zombie) {
        syscall::sched_yield();
    }
    let (_, status) = syscall::wait4(zombie as i32, 0).expect("wait4");
    assert!(
        status.code() == Some(6) || status.signal() == Some(signal::KILL),
        "{status:?}"
    );
    // Oneself.
    let suicide = spawn(|| {
        let _ = syscall::kill(syscall::getpid(), signal::KILL);
        1
    });
    let (_, status) = syscall::wait4(suicide as i32, 0).expect("wait4");
    assert_eq!(status.signal(), Some(signal::KILL), "{status:?}");
}

/// Sends SIGKILL to a child that is ending by itself; true when that changes nothing any more.
fn ended(pid: u32) -> bool {
    for _ in 0..5 {
        syscall::sched_yield();
    }
    syscall::kill(pid, signal::KILL).is_ok()
}

/// Runs until it is killed.
pub fn spin() {
    loop {
        core::hint::spin_loop();
    }
}

/// Sleeps until it is killed.
pub fn block() {
    loop {
        let _ = syscall::nanosleep(FOREVER);
    }
}

/// Runs as many children, one after the other, as the argument says: fork, execve, exit, wait4.
pub fn rounds(mut args: Args) {
    let rounds: i32 = args.parse_next().expect("a number");
    for round in 0..rounds {
        let child = spawn(|| {
            let code = Text::<16>::format(format_args!("{}", round % 256));
            panic!(
                "{:?}",
                syscall::execve(c"/bin/child", &[c"child", code.as_c_str()])
            );
        });
        expect_code(child, round % 256);
    }
}

/// Makes known numbers of calls each round: 3 of getpid, 2 of getppid, 1 of mkdir.
pub fn calls(mut args: Args) {
    let rounds: u32 = args.parse_next().expect("a number");
    for _ in 0..rounds {
        assert_eq!(syscall::getpid(), syscall::getpid());
        assert!(syscall::getpid() > 1);
        assert_eq!(syscall::getppid(), syscall::getppid());
        syscall::mkdir(c"/tmp/calls", 0o755).expect("mkdir");
        syscall::rmdir(c"/tmp/calls").expect("rmdir");
    }
}

/// Forks until the kernel says that it is enough, then ends all children.
pub fn fork_limit() {
    let mut children = [0; 4096];
    let mut count = 0;
    let error = loop {
        match syscall::fork() {
            Ok(0) => {
                block();
            }
            Ok(pid) => {
                children[count] = pid;
                count += 1;
            }
            Err(error) => break error,
        }
        assert!(count < children.len(), "no limit");
    };
    assert!(
        error == Errno(11) || error == Errno(12),
        "EAGAIN or ENOMEM: {error:?}"
    );
    assert!(count > 100, "{count} children only");
    for pid in &children[..count] {
        syscall::kill(*pid, signal::KILL).expect("kill");
    }
    for _ in 0..count {
        let (_, status) = syscall::wait4(-1, 0).expect("wait4");
        assert_eq!(status.signal(), Some(signal::KILL), "{status:?}");
    }
}
