//! Functions to be probed.
//!
//! Assembly, so that every instruction, its length and its place are known, and so that nothing
//! lies in the red zone.

use core::arch::global_asm;

use probes::Kprobe;

use crate::platform::code_section;

/// Defines functions in assembly, with symbols as a compiler would give them.
macro_rules! functions {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? {
            $($line:literal),* $(,)?
        }
    )*) => {
        $(
            global_asm!(
                concat!(".pushsection ", code_section!(), ", \"ax\", @progbits"),
                concat!(".globl ", stringify!($name)),
                concat!(".type ", stringify!($name), ", @function"),
                ".p2align 4, 0xcc",
                concat!(stringify!($name), ":"),
                ".cfi_startproc",
                $($line,)*
                ".cfi_endproc",
                concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
                ".popsection",
            );
        )*
        /// The names of these functions.
        #[allow(dead_code, reason = "for platforms whose own code is looked at, too")]
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        #[allow(dead_code, reason = "some are only probed, or called by each other")]
        unsafe extern "C" {
            $($(#[$attribute])* pub safe fn $name($($argument: $type),*) $(-> $result)?;)*
        }
    };
}

functions! {
    /// a + b.
    fn add(a: u64, b: u64) -> u64 { "lea rax, [rdi + rsi]", "ret" }

    /// a × 3 + 1. See [`STEP_BY_STEP`].
    fn step_by_step(a: u64) -> u64 {
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        "mov rbp, rsp",
        "mov rax, rdi",
        "add rax, rax",
        "nop",
        "movabs rcx, 0",
        "add rax, rdi",
        "add rax, 1",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        "ret",
    }

    /// a + 1, after a landing pad.
    fn landed(a: u64) -> u64 { "endbr64", "lea rax, [rdi + 1]", "ret" }

    /// a + 1, after the no-op that replaces a landing pad.
    fn sealed(a: u64) -> u64 { ".byte 0x66, 0x0f, 0x1f, 0x00", "lea rax, [rdi + 1]", "ret" }

    /// 1 if a is not 0, else 2; with padding in the middle.
    fn padded(a: u64) -> u64 {
        "test rdi, rdi",             // +0
        "jz 2f",                     // +3
        "mov eax, 1",                // +5
        "ret",                       // +10
        "int3; int3; int3",          // +11
        "2: mov eax, 2",             // +14
        "ret",                       // +19
    }

    /// Does nothing; has a byte in it that is no instruction.
    fn undecodable() { "nop", "ret", ".byte 0x06", "nop", "ret" }

    /// May not be probed.
    fn blacklisted() { "nop", "ret" }

    /// Calls `callback(argument)` and returns argument + 1.
    fn calls_back(callback: extern "C" fn(u64), argument: u64) -> u64 {
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "mov rbx, rsi",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "lea rax, [rbx + 1]",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "ret",
    }

    /// 8 if the caller has aligned the stack for the call, as the psABI demands.
    fn alignment() -> u64 { "mov rax, rsp", "and eax, 15", "ret" }

    /// RFLAGS.
    fn current_flags() -> u64 {
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "ret",
    }

    /// chain_b(a) + 1.
    fn chain_a(a: u64) -> u64 {
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call chain_b",
        "inc rax",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
    }
    /// chain_c(a) × 2.
    fn chain_b(a: u64) -> u64 {
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call chain_c",
        "add rax, rax",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
    }
    /// a + 5.
    fn chain_c(a: u64) -> u64 { "lea rax, [rdi + 5]", "ret" }

    /// 1 + 2 + … + n, recursively: n + 1 calls.
    fn recurse(n: u64) -> u64 {
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "xor eax, eax",
        "mov rbx, rdi",
        "test rdi, rdi",
        "jz 2f",
        "lea rdi, [rbx - 1]",
        "call recurse",
        "add rax, rbx",
        "2: pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "ret",
    }

    /// 0 for 0, else pong(n - 1) + 1.
    fn ping(n: u64) -> u64 {
        "xor eax, eax",
        "test rdi, rdi",
        "jz 2f",
        "sub rsp, 8",
        "dec rdi",
        "call pong",
        "inc rax",
        "add rsp, 8",
        "2: ret",
    }
    /// 0 for 0, else ping(n - 1) + 2.
    fn pong(n: u64) -> u64 {
        "xor eax, eax",
        "test rdi, rdi",
        "jz 2f",
        "sub rsp, 8",
        "dec rdi",
        "call ping",
        "add rax, 2",
        "add rsp, 8",
        "2: ret",
    }

    /// tail_g(a + 1), by a jump.
    fn tail_f(a: u64) -> u64 { "inc rdi", "jmp tail_g" }
    /// a × 2.
    fn tail_g(a: u64) -> u64 { "lea rax, [rdi + rdi]", "ret" }

    /// Calls `callback(argument)` and then jumps to [`tail_g`] with argument.
    fn calls_back_then_jumps(callback: extern "C" fn(u64), argument: u64) -> u64 {
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "mov rbx, rsi",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov rdi, rbx",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "jmp tail_g",
    }

    /// a or, if that is above 9, 9; with a `ret` for each, at +7 and +13.
    fn at_most_nine(a: u64) -> u64 {
        "mov rax, rdi",              // +0
        "cmp rax, 9",                // +3
        "ja 2f",                     // +7
        "ret",                       // +9
        "2: mov eax, 9",             // +10
        "ret",                       // +15
    }

    /// Leaves something of its own in every register that a function may change, and in the flags.
    fn leaves_a_mess() {
        "mov eax, 0xa1",
        "mov ecx, 0xc1",
        "mov edx, 0xd1",
        "mov esi, 0x51",
        "mov edi, 0xd2",
        "mov r8d, 0x81",
        "mov r9d, 0x91",
        "mov r10d, 0x101",
        "mov r11d, 0x111",
        "cmp rcx, rdx",
        "ret",
    }

    /// Calls `body(argument)`; 0 if that returns, 1 if [`throw`] ends it.
    fn catch(body: extern "C" fn(u64), argument: u64) -> u64 {
        "push rbx; push rbp; push r12; push r13; push r14; push r15",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 56",
        "mov [rip + CATCHER], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "catch_end:",
        "add rsp, 8",
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
        ".cfi_adjust_cfa_offset -56",
        "ret",
    }
    /// Abandons all calls since the last [`catch`], which returns 1.
    fn throw() { "mov rsp, [rip + CATCHER]", "mov eax, 1", "jmp catch_end" }

    /// The word at `address`, loaded by the first three bytes.
    fn peek(address: u64) -> u64 { "mov rax, [rdi]", "ret" }

    /// a + 2 b + 3 c + … + 14 n.
    fn sum(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64,
           i: u64, j: u64, k: u64, l: u64, m: u64, n: u64) -> u64 {
        "lea rax, [rdi + 2 * rsi]",
        "imul rdx, rdx, 3; add rax, rdx",
        "lea rax, [rax + 4 * rcx]",
        "imul r8, r8, 5; add rax, r8",
        "imul r9, r9, 6; add rax, r9",
        "imul rdx, [rsp + 0x08], 7; add rax, rdx",
        "imul rdx, [rsp + 0x10], 8; add rax, rdx",
        "imul rdx, [rsp + 0x18], 9; add rax, rdx",
        "imul rdx, [rsp + 0x20], 10; add rax, rdx",
        "imul rdx, [rsp + 0x28], 11; add rax, rdx",
        "imul rdx, [rsp + 0x30], 12; add rax, rdx",
        "imul rdx, [rsp + 0x38], 13; add rax, rdx",
        "imul rdx, [rsp + 0x40], 14; add rax, rdx",
        "ret",
    }

    /// Stores `small` at `place` and returns what was there.
    fn store(place: *mut u32, small: u8, yes: bool, letter: i16) -> u32 {
        "mov eax, [rdi]",
        "movzx esi, sil",
        "mov [rdi], esi",
        "ret",
    }

    /// Changes no register and no flag.
    fn tail_nothing() { "nop", "ret" }

    /// Exactly 16 bytes, so that its end is the start of [`neighbour`].
    fn sixteen_bytes() -> u64 { "mov eax, 16", "ret", ".skip 10, 0x90" }

    /// Right after [`sixteen_bytes`].
    fn neighbour() -> u64 { "mov eax, 17", "ret" }
}

global_asm!(".local CATCHER; .comm CATCHER, 8, 8");

/// The offset of each instruction of [`step_by_step`].
pub const STEP_BY_STEP: [u32; 10] = [0, 1, 4, 7, 10, 11, 21, 24, 28, 29];
/// The number of bytes of [`step_by_step`].
pub const STEP_BY_STEP_BYTES: u32 = 30;

/// A probe on each instruction of [`step_by_step`], in order.
pub fn on_each_step() -> impl Iterator<Item = Kprobe> {
    STEP_BY_STEP
        .iter()
        .map(|offset| Kprobe::new().symbol("step_by_step").offset(*offset))
}
