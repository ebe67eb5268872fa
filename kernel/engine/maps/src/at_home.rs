//! The operations on keys of 8 bytes, as routines in assembly for the usual case: the key is in
//! the first slot of its window, or that slot was never used. Everything else is done in Rust, from
//! the beginning: a key that another one has moved from its home, the first insertion of a key, an
//! entry that somebody else is about to change.
//!
//! ```text
//!             rdi     rsi   rdx     returns
//!   find      table   key           where the key's value is; null
//!   set       table   key   value   0; a negative number      values of 8 bytes
//!   add       table   key   delta   0; a negative number      to the first word of the value
//!   delete    table   key           0; ENOENT
//! ```
//!
//! Each does what the operation of its name in `table/` does, access by access, so the invariants
//! and orders of that file hold for it. All accesses are loads, stores and locked instructions,
//! which the processor keeps in order, except that a load may come before an older store of another
//! word. No routine has such a pair that matters.
//!
//! # Invariants
//! HOME-1. They change `rax`, `rcx`, `rdx`, `rsi`, `rdi` and the flags only, and need no aligned
//!     stack.
//!
//! # Contexts
//! As for all operations of hits. DF and AC may be set: they are cleared before Rust is called.

use core::{arch::naked_asm, mem::offset_of};

use crate::{
    compiled::{ABSENT, hash_add_word, hash_delete_word, hash_find_word, hash_set_word},
    table::{LIVE, MULTIPLIER, OWNED, PIN, PINS, TURNED, Table, USED, VALUE, VERSION},
};

/// `rsi`: the tag of the key; `rax`: its home. Changes `rdx`. Goes to label 9 with the key whose
/// tag is 0.
macro_rules! home {
    () => {
        "
    movabs rax, {turned}
    xor rsi, rax
    jz 9f
    movabs rax, {multiplier}
    mul rsi
    xor rax, rdx
    and rax, [rdi + {mask}]
    imul rax, [rdi + {stride}]
    add rax, [rdi + {first}]
    "
    };
}

/// Pins the slot at `rax`, which was seen live with the tag `rsi`, and looks at both again
/// (TABLE-3). Changes `rdx`. Goes to label 8 if the slot is another key's, or not live.
macro_rules! pin {
    () => {
        "
    mov edx, {pin}
    lock xadd [rax + 8], rdx
    test edx, {live}
    jz 8f
    cmp [rax], rsi
    jne 8f
    "
    };
}

/// Calls a C function at the end of a routine, which keeps all but what HOME-1 names. Any of the
/// flags may be set that C code wants clear: DF and AC.
///
/// ```text
///     rbp + 8    the return address
///     rbp        the caller's rbp
///     rbp - 32   r8, r9, r10, r11
///     rsp        aligned
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! call_slowly {
    ($function:literal) => {
        concat!(
            "
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    push r8
    push r9
    push r10
    push r11
    pushfq
    and qword ptr [rsp], ~0x40400
    popfq
    and rsp, -16
    call ",
            $function,
            "
    mov r8, [rbp - 8]
    mov r9, [rbp - 16]
    mov r10, [rbp - 24]
    mov r11, [rbp - 32]
    leave
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    "
        )
    };
}

/// The whole of a routine: its lines and their own operands; then, from label 9 on, the call of
/// `$slowly`, with the third argument from `rcx`.
macro_rules! at_home {
    ($slowly:ident, $($line:expr),+; $($name:ident = const $value:expr),+) => {
        naked_asm!(
            ".cfi_startproc",
            $($line,)+
            "9: mov rdx, rcx",
            "movabs rax, {turned}",
            "xor rsi, rax",
            crate::call_slowly!("{slowly}"),
            ".cfi_endproc",
            turned = const TURNED,
            multiplier = const MULTIPLIER,
            mask = const offset_of!(Table, mask),
            stride = const offset_of!(Table, stride),
            first = const offset_of!(Table, first),
            live = const LIVE,
            $($name = const $value,)+
            slowly = sym $slowly,
        )
    };
}

/// The value of the key `word`, as [`hash_lookup`](crate::compiled::hash_lookup) finds it.
///
/// # Safety
/// 1. The table lives, and its keys have 8 bytes. If it belongs to one CPU, that is this CPU, which
///    the caller does not leave.
#[unsafe(naked)]
pub unsafe extern "C" fn hash_find_word_at_home(table: *const Table, word: u64) -> *mut u64 {
    at_home!(
        hash_find_word,
        home!(),
        "cmp [rax], rsi",
        "jne 2f",
        "test dword ptr [rax + 8], {live}",
        "jz 3f",
        // Again, because the state may be that of a key that came meanwhile.
        "cmp [rax], rsi",
        "jne 9f",
        "add rax, 8 * {value}",
        "ret",
        // If the home is free, the key has no slot.
        "2: cmp qword ptr [rax], 0",
        "jne 9f",
        "3: xor eax, eax",
        "ret";
        value = const VALUE
    )
}

/// Sets the value of the key `word`, as [`hash_update`](crate::compiled::hash_update) does in any
/// case.
///
/// # Safety
/// (1) of [`hash_find_word_at_home`]; and values have 8 bytes.
#[unsafe(naked)]
pub unsafe extern "C" fn hash_set_word_at_home(table: *const Table, word: u64, value: u64) -> i64 {
    at_home!(
        hash_set_word,
        "mov rcx, rdx",
        home!(),
        "cmp [rax], rsi",
        "jne 9f",
        "mov rdx, [rax + 8]",
        "test edx, {live}",
        "jz 2f",
        pin!(),
        "mov [rax + 8 * {value}], rcx",
        "lock sub qword ptr [rax + 8], {pin}",
        "xor eax, eax",
        "ret",
        // A key that was deleted comes back. r8: its slot; rdx: the state to be, rax: that before.
        "2: test edx, {taken}",
        "jnz 9f",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r8, 0",
        "mov r8, [rdi + {count}]",
        "cmp r8, [rdi + {entries}]",
        "jge 7f",
        "mov r8, rax",
        "mov rax, rdx",
        "or rdx, {owned}",
        "lock cmpxchg [r8 + 8], rdx",
        "jne 7f",
        "cmp [r8], rsi",
        "jne 6f",
        "mov [r8 + 8 * {value}], rcx",
        "not eax",
        "and eax, {used}",
        "movabs rdx, {done}",
        "add rdx, rax",
        "lock add [r8 + 8], rdx",
        "lock inc qword ptr [rdi + {count}]",
        "xor eax, eax",
        ".cfi_remember_state",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r8",
        "ret",
        ".cfi_restore_state",
        ".cfi_def_cfa_offset 16",
        "6: lock sub qword ptr [r8 + 8], {owned}",
        "7: pop r8",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r8",
        "jmp 9f",
        "8: lock sub qword ptr [rax + 8], {pin}";
        pin = const PIN,
        value = const VALUE,
        taken = const OWNED | PINS,
        owned = const OWNED,
        used = const USED,
        done = const (LIVE + VERSION).wrapping_sub(OWNED),
        count = const offset_of!(Table, live),
        entries = const offset_of!(Table, shape.entries)
    )
}

/// Adds `delta` to the value of the key `word`, as [`hash_add`](crate::compiled::hash_add) does.
///
/// # Safety
/// (1) of [`hash_find_word_at_home`].
#[unsafe(naked)]
pub unsafe extern "C" fn hash_add_word_at_home(table: *const Table, word: u64, delta: u64) -> i64 {
    at_home!(
        hash_add_word,
        "mov rcx, rdx",
        home!(),
        "cmp [rax], rsi",
        "jne 9f",
        "test dword ptr [rax + 8], {live}",
        "jz 9f",
        pin!(),
        "lock add [rax + 8 * {value}], rcx",
        "lock sub qword ptr [rax + 8], {pin}",
        "xor eax, eax",
        "ret",
        "8: lock sub qword ptr [rax + 8], {pin}";
        pin = const PIN,
        value = const VALUE
    )
}

/// Deletes the key `word`, as [`hash_delete`](crate::compiled::hash_delete) does.
///
/// # Safety
/// (1) of [`hash_find_word_at_home`], but the table may be that of any CPU.
#[unsafe(naked)]
pub unsafe extern "C" fn hash_delete_word_at_home(table: *const Table, word: u64) -> i64 {
    at_home!(
        hash_delete_word,
        home!(),
        "cmp [rax], rsi",
        "jne 2f",
        "test dword ptr [rax + 8], {live}",
        "jz 3f",
        pin!(),
        // Before the entry goes, because its value must not be taken for zeros then.
        "lock or qword ptr [rax + 8], {used}",
        "lock btr qword ptr [rax + 8], {live_bit}",
        "jnc 4f",
        "lock dec qword ptr [rdi + {count}]",
        "movabs rdx, {done}",
        "lock add [rax + 8], rdx",
        "xor eax, eax",
        "ret",
        // Another hit has deleted it meanwhile.
        "4: movabs rdx, {done}",
        "lock add [rax + 8], rdx",
        "3: mov rax, {absent}",
        "ret",
        // If the home is free, the key has no slot.
        "2: cmp qword ptr [rax], 0",
        "je 3b",
        "jmp 9f",
        "8: lock sub qword ptr [rax + 8], {pin}";
        pin = const PIN,
        used = const USED,
        live_bit = const LIVE.trailing_zeros(),
        done = const VERSION.wrapping_sub(PIN),
        count = const offset_of!(Table, live),
        absent = const ABSENT
    )
}
