//! Exercises whose words are watched: they touch them as often, and with such values, as their
//! texts say.
//!
//! The store is an instruction of its own in assembly, so that it is known where the program goes
//! on after it: 3 bytes after the start of `watched_store`.

use core::{
    arch::global_asm,
    cell::Cell,
    hint::black_box,
    num::NonZeroU32,
    slice,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use user::{Args, abi::open, syscall};

/// In memory that comes from the file.
#[unsafe(no_mangle)]
static WATCHED_DATA: AtomicU64 = AtomicU64::new(7);

/// Alone in pages that nothing touches before.
#[repr(align(4096))]
struct Page(AtomicU64, [u8; 4088]);

#[unsafe(no_mangle)]
static WATCHED_ZERO: Page = Page(AtomicU64::new(0), [0; 4088]);

/// What an exercise does.
#[derive(Clone, Copy)]
enum Phase {
    Waiting,
    Working,
    Done,
}

/// How far an exercise is.
struct Progress {
    phase: Cell<Phase>,
    left: Cell<Option<NonZeroU32>>,
}

// SAFETY: a program has one thread.
unsafe impl Sync for Progress {}

static PROGRESS: Progress = Progress {
    phase: Cell::new(Phase::Waiting),
    left: Cell::new(None),
};

global_asm!(
    r#"
.pushsection .text.watched_store, "ax", @progbits
    .globl watched_store
    .type watched_store, @function
watched_store:
    mov [rdi], rsi
    ret
    .size watched_store, . - watched_store
.popsection
    "#
);

unsafe extern "C" {
    safe fn watched_store(to: &AtomicU64, value: u64);
}

/// Stores 1, 2, and so on up to `rounds`, in both words. Others run after each.
pub fn stores(mut args: Args) {
    let rounds: u64 = args.parse_last_or(1).expect("a number");
    let _ = WATCHED_ZERO.1[0];
    for value in 1..=rounds {
        watched_store(&WATCHED_DATA, value);
        watched_store(&WATCHED_ZERO.0, value);
        syscall::sched_yield();
    }
    assert_eq!(WATCHED_DATA.load(Relaxed), rounds);
    assert_eq!(WATCHED_ZERO.0.load(Relaxed), rounds);
}

/// Stores 10, 11, … 19. A child that is forked after the first stores 100, 101, … 109 meanwhile.
pub fn forks() {
    watched_store(&WATCHED_DATA, 10);
    let child = syscall::fork().expect("fork");
    let from = if child == 0 { 100 } else { 11 };
    for value in from..from / 10 * 10 + 10 {
        watched_store(&WATCHED_DATA, value);
        syscall::sched_yield();
    }
    if child == 0 {
        syscall::exit(0);
    }
    let (_, status) = syscall::wait4(child as i32, 0).expect("wait4");
    assert!(status.success(), "{status:?}");
    assert_eq!(WATCHED_DATA.load(Relaxed), 19);
}

/// Two rounds of work, with values that have types.
pub fn progress() {
    let progress = black_box(&PROGRESS);
    for left in [2, 1] {
        progress.left.set(NonZeroU32::new(left));
        progress.phase.set(Phase::Working);
        syscall::sched_yield();
        progress.phase.set(Phase::Waiting);
        syscall::sched_yield();
    }
    progress.left.set(None);
    progress.phase.set(Phase::Done);
}

/// Has the kernel store 0x1234 there, by reading it from a file.
pub fn copies() {
    let path = c"/tmp/watched";
    let flags = open::CREAT | open::RDWR | open::TRUNC;
    let file = syscall::open(path, flags, 0o600).expect("open");
    let written = syscall::write(file, &0x1234_u64.to_le_bytes());
    assert_eq!(written.expect("write"), 8);
    syscall::lseek(file, 0, 0).expect("lseek");
    // SAFETY: the program has one thread, and nothing else uses the word meanwhile.
    let word = unsafe { slice::from_raw_parts_mut(WATCHED_DATA.as_ptr().cast::<u8>(), 8) };
    assert_eq!(syscall::read(file, word).expect("read"), 8);
    syscall::close(file).expect("close");
    syscall::unlink(path).expect("unlink");
    assert_eq!(WATCHED_DATA.load(Relaxed), 0x1234);
}
