//! Functions that user probes are put on: each has the instructions of one kind, and a result that
//! is known. `probed ROUNDS` calls them all and checks what they return, `probed_forge` does what
//! only a program does that wants to harm the probes.

use crate::SURVIVED;
use core::{
    arch::{asm, naked_asm},
    cell::UnsafeCell,
    hint::{self, black_box},
    sync::atomic::{AtomicU16, Ordering},
};
use user::{Args, abi::nr, syscall};

/// What a register relative to the instruction pointer finds.
static VALUE: u64 = 0x1234_5678_9abc_def0;

/// Counts the probes of a place, if they say so. In data of its own, so that its offset in the file
/// can be told from its address.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".data")]
static PROBED_SEMAPHORE: AtomicU16 = AtomicU16::new(0);

/// Defines functions in assembly.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($argument:ident),*): $($code:literal),+;)+) => {
        $(
            $(#[$doc])*
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: u64),*) -> u64 {
                naked_asm!($($code),+, value = sym VALUE)
            }
        )+
    };
}

functions! {
    /// The sum.
    probed_add(_a, _b): "lea rax, [rdi + rsi]", "ret", "/* {value} */";
    /// A value that is found relative to the instruction pointer.
    probed_constant(): "mov rax, [rip + {value}]", "ret";
    /// The sum, by way of the memory below the stack pointer.
    probed_red_zone(_a, _b):
        "mov [rsp - 8], rdi", "mov [rsp - 16], rsi", "mov qword ptr [rsp - 128], 1", "nop",
        "mov rax, [rsp - 8]", "add rax, [rsp - 16]", "sub rax, [rsp - 128]", "ret",
        "/* {value} */";
    /// 1 or -1.
    probed_sign(_a):
        "test rdi, rdi", "js 2f", "mov eax, 1", "ret", "2: mov rax, -1", "ret", "/* {value} */";
    /// Twice the argument.
    probed_loop(_a):
        "mov rcx, rdi", "xor eax, eax", "2: add rax, 2", "loop 2b", "ret", "/* {value} */";
    /// 1 for 0, else 2.
    probed_jrcxz(_a):
        "mov rcx, rdi", "mov eax, 1", "jrcxz 2f", "mov eax, 2", "2: ret", "/* {value} */";
    /// Twice the first plus the second, by three kinds of calls.
    probed_calls(_a, _b):
        "push rbx", "mov rbx, rdi",
        "lea rax, [rip + probed_add]", "call rax",
        "mov rdi, rax", "mov rsi, rbx", "call probed_add",
        "lea rcx, [rip + probed_add]", "push rcx", "mov rdi, rax", "xor esi, esi",
        "call [rsp]", "pop rcx", "pop rbx", "ret", "/* {value} */";
    /// The sum and 1, by a jump to another function.
    probed_tail(_a, _b): "add rdi, 1", "jmp probed_add", "/* {value} */";
    /// 7, by a jump to a register.
    probed_jump(): "lea rax, [rip + 2f]", "jmp rax", "ud2", "2: mov eax, 7", "ret", "/* {value} */";
    /// The flags.
    probed_flags(): "pushfq", "pop rax", "ret", "/* {value} */";
    /// 1, the carry flag that it sets.
    probed_restore():
        "pushfq", "or qword ptr [rsp], 1", "popfq", "setc al", "movzx eax, al", "ret",
        "/* {value} */";
    /// The number of the process.
    probed_pid(): "mov eax, 39", "syscall", "ret", "/* {value} */";
    /// The factorial.
    probed_factorial(_n):
        "cmp rdi, 1", "jbe 2f", "push rdi", "dec rdi", "call probed_factorial", "pop rdi",
        "imul rax, rdi", "ret", "2: mov eax, 1", "ret", "/* {value} */";
    /// The sum of two arguments on the stack, which it takes off.
    probed_pops(): "mov rax, [rsp + 8]", "add rax, [rsp + 16]", "ret 16", "/* {value} */";
    /// Calls it.
    probed_pops_caller(_a, _b): "push rdi", "push rsi", "call probed_pops", "ret", "/* {value} */";
    /// Does not return: it goes on at r11, in the function that has called it.
    probed_leaves(): "mov rsp, rbp", "jmp r11", "/* {value} */";
    /// The sum. An argument of it lies where the return address of a call was that was left.
    probed_pops_after(_a, _b):
        "push rbp", "mov rbp, rsp", "lea r11, [rip + 2f]", "call probed_leaves", "ud2",
        "2: push rdi", "push rsi", "call probed_pops", "pop rbp", "ret", "/* {value} */";
    /// Does not return: it leaves the function that has called it, too.
    probed_inner(): "mov rsp, rbp", "pop rbp", "mov eax, 5", "ret", "/* {value} */";
    /// 5, from the function that it calls.
    probed_outer(): "push rbp", "mov rbp, rsp", "call probed_inner", "ud2", "/* {value} */";
    /// The length of a text.
    probed_length(_text):
        "xor eax, eax", "2: cmp byte ptr [rdi + rax], 0", "je 3f", "inc rax", "jmp 2b", "3: ret",
        "/* {value} */";
    /// Reads at an address.
    probed_read(_address): "nop", "mov rax, [rdi]", "ret", "/* {value} */";
    /// 9. It goes on at r11, if that is not 0.
    probed_anywhere():
        "mov eax, 9", "test r11, r11", "jnz 2f", "ret", "2: jmp r11", "/* {value} */";
    /// Its return address, as it is on the stack.
    probed_own_return(): "mov rax, [rsp]", "ret", "/* {value} */";
}

/// Calls a function that takes its arguments off the stack, in two ways.
pub fn taken() {
    assert_eq!(probed_pops_caller(black_box(2), 6), 8);
    assert_eq!(probed_pops_after(black_box(3), 7), 10);
}

/// A text that nothing else touches: its page is brought in by whoever reads it first.
#[repr(align(4096))]
struct Untouched([u8; 4096]);
static UNTOUCHED: Untouched = {
    let mut bytes = [0; 4096];
    let text = b"not touched before";
    let mut at = 0;
    while at < text.len() {
        bytes[at] = text[at];
        at += 1;
    }
    Untouched(bytes)
};

/// Calls all functions so often, and checks what they return.
pub fn run(mut args: Args) {
    let rounds: u64 = args.parse_next().expect("a number of rounds");
    for round in 1..=rounds {
        assert_eq!(probed_add(round, 2), round + 2);
        assert_eq!(probed_constant(), VALUE);
        assert_eq!(probed_red_zone(round, 10), round + 9);
        assert_eq!(probed_sign(round), 1);
        assert_eq!(probed_sign(round.wrapping_neg()), u64::MAX);
        assert_eq!(probed_loop(round), 2 * round);
        assert_eq!((probed_jrcxz(0), probed_jrcxz(round)), (1, 2));
        assert_eq!(probed_calls(round, 3), 2 * round + 3);
        assert_eq!(probed_tail(round, 4), round + 5);
        assert_eq!(probed_jump(), 7);
        assert_eq!(probed_flags() & 0x100, 0, "no trap flag");
        assert_eq!(probed_restore(), 1);
        assert_eq!(probed_pid(), u64::from(syscall::getpid()));
        assert_eq!(probed_factorial(10), 3_628_800);
        assert_eq!(probed_pops_caller(round, 6), round + 6);
        assert_eq!(probed_outer(), 5);
    }
    assert_eq!(probed_length(UNTOUCHED.0.as_ptr() as u64), 18);
}

/// Recurses as deep as the argument says.
pub fn deep(mut args: Args) {
    let depth: u64 = args.parse_next().expect("a depth");
    assert_ne!(probed_factorial(depth), 1);
}

/// Reads at address 0 in a function that has a probe.
pub fn fault() -> i32 {
    probed_read(0);
    SURVIVED
}

/// The word that counts the probes.
pub fn semaphore(mut args: Args) {
    let wanted: u16 = args.parse_next().expect("a count");
    assert_eq!(PROBED_SEMAPHORE.load(Ordering::Relaxed), wanted);
    probed_add(1, 2);
}

/// The same in a child, whose word is a copy, and in the parent afterwards.
pub fn semaphore_fork(mut args: Args) {
    let wanted: u16 = args.parse_next().expect("a count");
    let is_right = || PROBED_SEMAPHORE.load(Ordering::Relaxed) == wanted;
    assert!(is_right());
    match syscall::fork().expect("there is room for a child") {
        0 => syscall::exit(if is_right() { 0 } else { 1 }),
        child => {
            let (_, status) = syscall::wait4(child as i32, 0).expect("wait4");
            assert_eq!(status.code(), Some(0));
        }
    }
    assert!(is_right());
}

/// Waits until somebody counts, and calls a function until nobody does any more.
pub fn semaphore_changes() {
    let count = || PROBED_SEMAPHORE.load(Ordering::Relaxed);
    while count() == 0 {
        syscall::sched_yield();
    }
    while count() != 0 {
        assert_eq!(probed_add(1, 2), 3);
    }
}

/// Waits until somebody counts, calls a function once, waits until nobody counts, and says so by
/// the call of another function: all that several times.
pub fn semaphore_rounds(mut args: Args) {
    let rounds: u32 = args.parse_next().expect("a count");
    let count = || PROBED_SEMAPHORE.load(Ordering::Relaxed);
    for _ in 0..rounds {
        while count() == 0 {
            hint::spin_loop();
        }
        probed_add(1, 2);
        while count() != 0 {
            hint::spin_loop();
        }
        probed_sign(1);
    }
}

/// The number of the child, and 0 in the child.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn probed_fork() -> u64 {
    naked_asm!("mov eax, {fork}", "syscall", "ret", fork = const nr::FORK)
}

/// Forks in a call that is followed: both processes return from it.
pub fn fork() {
    match probed_fork() {
        0 => {
            assert_eq!(probed_add(20, 3), 23);
            syscall::exit(23);
        }
        child => {
            let (waited, status) = syscall::wait4(child as i32, 0).expect("wait4");
            assert_eq!((u64::from(waited), status.code()), (child, Some(23)));
        }
    }
    assert_eq!(probed_add(30, 4), 34);
}

/// Waits until somebody counts in this process, and forks in a call that is followed. In the child
/// nobody counts.
pub fn fork_of_one() {
    let count = || PROBED_SEMAPHORE.load(Ordering::Relaxed);
    while count() == 0 {
        syscall::sched_yield();
    }
    match probed_fork() {
        0 => syscall::exit(count().into()),
        child => {
            let (_, status) = syscall::wait4(child as i32, 0).expect("wait4");
            assert_eq!((status.code(), count()), (Some(0), 1));
        }
    }
}

/// Stays in a function until there is a file `/released`, so that its probes can change while the
/// call is followed.
pub fn wait() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn probed_wait(result: u64) -> u64 {
        while syscall::stat(c"/released").is_err() {
            syscall::sched_yield();
        }
        black_box(result)
    }
    assert_eq!(probed_wait(black_box(6)), 6);
}

/// Calls functions until the process is killed.
pub fn forever() -> i32 {
    loop {
        assert_eq!(probed_add(30, 4), 34);
        assert_eq!(probed_factorial(5), 120);
        assert_eq!(probed_pid(), u64::from(syscall::getpid()));
    }
}

/// Jumps to the address that a call would return to, without a return: with a stack pointer that is
/// its `own` or right `behind` the memory that a program can have, where no call is followed; or
/// with 8, while there is an `open` call that would return to an address of no program.
pub fn forge(mut args: Args) -> i32 {
    let trampoline = probed_own_return();
    let sp = match args.next_str() {
        // SAFETY: none. The program is ended there.
        Some("own") => unsafe { asm!("jmp {}", in(reg) trampoline, options(noreturn)) },
        Some("open") => {
            enter_at(on_other_stack(128, NO_ADDRESS), true);
            8
        }
        _ => MEMORY_END + 1,
    };
    // SAFETY: as above.
    unsafe {
        asm!(
            "mov rsp, {}",
            "jmp {}",
            in(reg) sp,
            in(reg) trampoline,
            options(noreturn)
        )
    }
}

/// The processor does not go there.
const NO_ADDRESS: u64 = 0x1234_0000_0000_0000;

/// No program has memory from here on.
const MEMORY_END: u64 = 0x7fff_ffff_f000;

/// Has [`probed_anywhere`] find `sp` as its stack pointer, where its return address is; or goes on
/// without a look at the stack, if it `leaves`.
#[unsafe(naked)]
extern "C" fn enter_at(_sp: u64, _leaves: bool) -> u64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "mov rbx, rsp",
        "xor r11d, r11d",
        "test sil, sil",
        "jz 2f",
        "lea r11, [rip + probed_way_back]",
        "2: mov rsp, rdi",
        "jmp probed_anywhere",
        ".globl probed_way_back",
        ".type probed_way_back, @function",
        "probed_way_back:",
        "mov rsp, rbx",
        "pop rbp",
        "pop rbx",
        "ret",
        ".pushsection .rodata",
        ".balign 8",
        ".globl PROBED_READ_ONLY",
        "PROBED_READ_ONLY: .quad probed_way_back",
        ".popsection",
        ".pushsection .data",
        ".balign 8",
        ".globl PROBED_WRITABLE",
        "PROBED_WRITABLE: .quad probed_way_back",
        ".popsection",
    )
}

unsafe extern "C" {
    static PROBED_READ_ONLY: u64;
    static PROBED_WRITABLE: u64;
    fn probed_way_back();
}

/// A stack that nothing else touches.
#[repr(align(4096))]
struct OtherStack(UnsafeCell<[u8; 8192]>);

// SAFETY: there is one task.
unsafe impl Sync for OtherStack {}

static OTHER_STACK: OtherStack = OtherStack(UnsafeCell::new([0; 8192]));

/// The address of byte number `at` of the other stack, where `word` is then.
fn on_other_stack(at: usize, word: u64) -> u64 {
    // SAFETY: it is inside, and nothing refers to it.
    unsafe {
        let place = OTHER_STACK.0.get().cast::<u8>().add(at);
        place.cast::<u64>().write_unaligned(word);
        place.addr() as u64
    }
}

/// Enters a function on stacks of all kinds: four that can be written, the last one in the parent
/// and the child of a `fork`, and seven that cannot.
pub fn stacks() {
    let back = probed_way_back as *const () as u64;
    for odd_or_across_pages in [131, 4093] {
        assert_eq!(
            enter_at(on_other_stack(odd_or_across_pages, back), false),
            9
        );
    }
    assert_eq!(
        enter_at((&raw const PROBED_READ_ONLY).addr() as u64, false),
        9
    );
    for nowhere in [
        0,
        8,
        MEMORY_END - 4,
        MEMORY_END,
        0x8000_0000_0000_0000,
        0xffff_8000_0000_0000,
    ] {
        assert_eq!(enter_at(nowhere, true), 9);
    }
    // The page is the program's own, so that both have a copy of it.
    PROBED_SEMAPHORE.fetch_add(0, Ordering::Relaxed);
    let writable = (&raw const PROBED_WRITABLE).addr() as u64;
    match syscall::fork().expect("there is room for a child") {
        0 => syscall::exit(enter_at(writable, false) as i32),
        child => {
            let (_, status) = syscall::wait4(child as i32, 0).expect("wait4");
            assert_eq!(status.code(), Some(9));
        }
    }
    assert_eq!(enter_at(writable, false), 9);
}

/// Returns to an address of the kernel, or to one that is none.
pub fn wild_return(mut args: Args) -> i32 {
    let address: u64 = match args.next_str() {
        Some("kernel") => 0xffff_ffff_8000_0000,
        _ => NO_ADDRESS,
    };
    enter_at(on_other_stack(128, address), false);
    SURVIVED
}

/// Measures what calls cost, and reports it to whoever has a probe on `probed_report`.
pub fn cost() {
    const CALLS: u64 = 100;
    /// The first rounds bring pages in.
    const ROUNDS: usize = 20;
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    extern "C" fn probed_report(_ticks: u64, _calls: u64) {
        naked_asm!("nop", "ret")
    }
    /// The ticks of so many calls.
    #[unsafe(naked)]
    extern "C" fn ticks_of(_calls: u64) -> u64 {
        naked_asm!(
            "push rbx",
            "push r12",
            "mov rbx, rdi",
            "rdtsc",
            "shl rdx, 32",
            "lea r12, [rdx + rax]",
            "test rbx, rbx",
            "jz 3f",
            "2: call probed_add",
            "dec rbx",
            "jnz 2b",
            "3: rdtsc",
            "shl rdx, 32",
            "lea rax, [rdx + rax]",
            "sub rax, r12",
            "pop r12",
            "pop rbx",
            "ret",
        )
    }
    let shortest = |calls| (0..ROUNDS).map(|_| ticks_of(calls)).min().unwrap_or(0);
    let few = shortest(1);
    probed_report(shortest(1 + CALLS) - few, CALLS);
}

/// Makes a system call in two functions that have frames.
pub fn framed() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn probed_framed(a: u64) -> u64 {
        u64::from(syscall::getppid()) + black_box(a)
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn probed_framed_outer(a: u64) -> u64 {
        probed_framed(black_box(a) + 1) + 1
    }
    assert!(probed_framed_outer(1) >= 3);
}
