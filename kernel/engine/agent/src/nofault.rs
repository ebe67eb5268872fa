//! Reads of memory that may not be there, for the helpers of actions.
//!
//! A kernel's own copies mend their faults in its page fault handler, which may be probed. An
//! action on it would come here again for each fault, for ever. So the faults of this file are
//! mended before anything that can be probed, in [`mend`]. It needs no table in memory: the
//! instructions that may fault are known by their symbols.
//!
//! # Contexts
//! Any, with the CPU kept: interrupts off, or the probes' guard held.

use core::arch::naked_asm;

use bpf_compiler::KERNEL_MEMORY_END;
use probes::PtRegs;

use crate::Agent;

/// The memory that an address is to lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Kernel,
    User,
}

/// Whether the `len` bytes from `address` on lie in `space`, as far as the numbers say.
#[inline(always)]
fn is_in<A: Agent>(space: Space, address: u64, len: u64) -> bool {
    match space {
        Space::Kernel => {
            const END: u64 = KERNEL_MEMORY_END as i64 as u64;
            (A::KERNEL_START..END).contains(&address) && len <= END.wrapping_sub(address)
        }
        Space::User => address < A::USER_END && len <= A::USER_END.wrapping_sub(address),
    }
}

/// Copies `len` bytes. Returns how many were left when a fault stopped it. `open`: whether user
/// pages are to be opened.
///
/// # Safety
/// `to` may be written for `len` bytes, and reading from `from` has no effect.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_copy(to: *mut u8, from: u64, len: u64, open: bool) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, ecx",
        "mov rcx, rdx",
        "test al, al",
        "jz 2f",
        "stac",
        ".globl trace_copy_may_fault",
        "2: trace_copy_may_fault: rep movsb",
        ".globl trace_copy_fault",
        "trace_copy_fault: test al, al",
        "jz 4f",
        "clac",
        "4: mov rax, rcx",
        "ret",
        ".cfi_endproc",
    )
}

/// 1 in each byte.
static ONES: u64 = u64::from_ne_bytes([1; 8]);
/// The top bit of each byte.
static TOPS: u64 = u64::from_ne_bytes([0x80; 8]);
/// The same without the last byte of the word.
static TOPS_BUT_LAST: u64 = TOPS >> 8;

/// Copies a text from `rsi` to `rdi`: up to its NUL, which is copied, too, or up to `rdx` bytes,
/// the last of which then becomes a NUL. `rax`: how many bytes those were; 0 if the text cannot be
/// read or `rdx` is 0. The bytes after them, up to `rdx`, are changed. It goes on with `$end`.
///
/// # Theory
/// A word without a zero byte and without a byte above 0x80 has no bit of [`TOPS`] after [`ONES`]
/// is subtracted. Of the others, the bits that are clear in the word stand for zero bytes, and the
/// lowest is right: the subtraction has borrowed nothing up to there.
///
/// The last word ends where the room does, so it may begin among bytes that are copied already. It
/// is complete if no other byte than its last one is zero. If it is not, or if a word cannot be
/// read, the bytes that are not copied yet are read one by one: a word may reach into memory that
/// is not there, and the text not. So are those of a text with less room than a word. The byte that
/// becomes the NUL in any case is not among them, so nothing after a shortened text need be there.
///
/// It changes `rax`, `rcx`, `rdx` and the flags. `rcx`: bytes done; `rdx`: where the last word
/// begins, and for single bytes where the last of them is. It has no frame.
///
/// 20, 21 and 22 are the instructions that may fault. From 20 and 21 it goes on at 23, from 22 at
/// 24.
macro_rules! copy_text {
    ($end:literal) => {
        concat!(
            "
    xor ecx, ecx
    sub rdx, 8
    jbe 5f
2:
20: mov rax, [rsi + rcx]
    mov [rdi + rcx], rax
    sub rax, [rip + {ones}]
    test rax, [rip + {tops}]
    jnz 4f
3:  add rcx, 8
    cmp rcx, rdx
    jb 2b
21: mov rax, [rsi + rdx]
    mov [rdi + rdx], rax
    sub rax, [rip + {ones}]
    test rax, [rip + {tops_but_last}]
    jnz 23f
    lea rax, [rdx + 8]
    mov byte ptr [rdi + rax - 1], 0
    ",
            $end,
            "
4:  and rax, [rip + {tops}]
    # Those of them that are clear in the word.
    or rax, [rdi + rcx]
    xor rax, [rdi + rcx]
    jz 3b
    bsf rax, rax
    shr eax, 3
    lea rax, [rcx + rax + 1]
    ",
            $end,
            "
5:  je 21b
23: add rdx, 8
    jz 24f
    dec rdx
6:  cmp rcx, rdx
    jae 7f
22: movzx eax, byte ptr [rsi + rcx]
    mov [rdi + rcx], al
    inc rcx
    test al, al
    jnz 6b
    mov rax, rcx
    ",
            $end,
            "
7:  mov byte ptr [rdi + rcx], 0
    lea rax, [rcx + 1]
    ",
            $end,
            "
24: xor eax, eax
    ",
            $end,
        )
    };
}

/// The length of the text at `rdi` with its NUL, at most `rsi`, which is not 0: in `rax`; 0 if it
/// cannot be read up to there. It goes on with `$end`. The theory of words is that of
/// [`copy_text!`]; the last one may reach past `rsi`.
///
/// It changes `rax`, `rcx`, `rdx` and the flags. `rcx`: bytes done. It has no frame.
///
/// 20 and 22 are the instructions that may fault. From 20 it goes on at 22, from 22 at 24.
macro_rules! text_length {
    ($end:literal) => {
        concat!(
            "
    xor ecx, ecx
2:
20: mov rax, [rdi + rcx]
    sub rax, [rip + {ones}]
    test rax, [rip + {tops}]
    jnz 4f
3:  add rcx, 8
    cmp rcx, rsi
    jb 2b
    mov rax, rsi
    ",
            $end,
            "
    # The word again, and the bits that it does not have.
4:  mov rdx, rax
    add rdx, [rip + {ones}]
    not rdx
    and rax, rdx
    and rax, [rip + {tops}]
    jz 3b
    bsf rax, rax
    shr eax, 3
    lea rax, [rcx + rax + 1]
    cmp rax, rsi
    cmova rax, rsi
    ",
            $end,
            "
22: movzx eax, byte ptr [rdi + rcx]
    inc rcx
    test al, al
    jz 5f
    cmp rcx, rsi
    jb 22b
5:  mov rax, rcx
    ",
            $end,
            "
24: xor eax, eax
    ",
            $end,
        )
    };
}

/// Opens user pages if `r8b` is not 0, and closes them at 8, where it returns.
macro_rules! with_user_pages {
    ($code:expr) => {
        concat!(
            "
    test r8b, r8b
    jz 2f
    stac
2:
    ",
            $code,
            "
8:  test r8b, r8b
    jz 9f
    clac
9:  ret
    "
        )
    };
}

/// Gives the instructions above their names.
macro_rules! places {
    ($($label:literal: $name:literal,)*) => {
        concat!($(".globl ", $name, "\n.set ", $name, ", ", $label, "b\n"),*)
    };
}

/// [`copy_text!`] of the kernel's memory.
///
/// # Safety
/// `to` may be written for `most` bytes, and reading from `from` has no effect.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[doc(hidden)]
pub unsafe extern "C" fn trace_copy_text(to: *mut u8, from: u64, most: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        copy_text!("ret"),
        places! {
            "20": "trace_text_word_may_fault",
            "21": "trace_text_last_may_fault",
            "22": "trace_text_byte_may_fault",
            "23": "trace_text_bytes",
            "24": "trace_text_fault",
        },
        ".cfi_endproc",
        ones = sym ONES,
        tops = sym TOPS,
        tops_but_last = sym TOPS_BUT_LAST,
    )
}

/// [`copy_text!`] of user memory. `open` as above; `r8b` keeps it.
///
/// # Safety
/// The same as for [`trace_copy_text`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_copy_user_text(to: *mut u8, from: u64, most: u64, open: bool) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov r8d, ecx",
        with_user_pages!(copy_text!("jmp 8f")),
        places! {
            "20": "trace_user_text_word_may_fault",
            "21": "trace_user_text_last_may_fault",
            "22": "trace_user_text_byte_may_fault",
            "23": "trace_user_text_bytes",
            "24": "trace_user_text_fault",
        },
        ".cfi_endproc",
        ones = sym ONES,
        tops = sym TOPS,
        tops_but_last = sym TOPS_BUT_LAST,
    )
}

/// [`text_length!`] of the kernel's memory.
///
/// # Safety
/// Reading from `from` has no effect.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[doc(hidden)]
pub unsafe extern "C" fn trace_text_length(from: u64, most: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        text_length!("ret"),
        places! {
            "20": "trace_length_word_may_fault",
            "22": "trace_length_byte_may_fault",
            "24": "trace_length_fault",
        },
        ".cfi_endproc",
        ones = sym ONES,
        tops = sym TOPS,
    )
}

/// [`text_length!`] of user memory. `open` as above; `r8b` keeps it.
///
/// # Safety
/// The same as for [`trace_text_length`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_user_text_length(from: u64, most: u64, open: bool) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov r8d, edx",
        with_user_pages!(text_length!("jmp 8f")),
        places! {
            "20": "trace_user_length_word_may_fault",
            "22": "trace_user_length_byte_may_fault",
            "24": "trace_user_length_fault",
        },
        ".cfi_endproc",
        ones = sym ONES,
        tops = sym TOPS,
    )
}

unsafe extern "C" {
    static trace_copy_may_fault: u8;
    static trace_copy_fault: u8;
    static trace_text_word_may_fault: u8;
    static trace_text_bytes: u8;
    static trace_text_last_may_fault: u8;
    static trace_text_byte_may_fault: u8;
    static trace_text_fault: u8;
    static trace_length_word_may_fault: u8;
    static trace_length_byte_may_fault: u8;
    static trace_length_fault: u8;
    static trace_user_text_word_may_fault: u8;
    static trace_user_text_bytes: u8;
    static trace_user_text_last_may_fault: u8;
    static trace_user_text_byte_may_fault: u8;
    static trace_user_text_fault: u8;
    static trace_user_length_word_may_fault: u8;
    static trace_user_length_byte_may_fault: u8;
    static trace_user_length_fault: u8;
}

/// Sends `regs`, of a fault in one of the copies of this file, to where it is dealt with. False: it
/// is another fault.
#[inline(always)]
pub fn mend(regs: &mut PtRegs) -> bool {
    let places = [
        (&raw const trace_copy_may_fault, &raw const trace_copy_fault),
        (
            &raw const trace_text_word_may_fault,
            &raw const trace_text_bytes,
        ),
        (
            &raw const trace_text_last_may_fault,
            &raw const trace_text_bytes,
        ),
        (
            &raw const trace_text_byte_may_fault,
            &raw const trace_text_fault,
        ),
        (
            &raw const trace_length_word_may_fault,
            &raw const trace_length_byte_may_fault,
        ),
        (
            &raw const trace_length_byte_may_fault,
            &raw const trace_length_fault,
        ),
        (
            &raw const trace_user_text_word_may_fault,
            &raw const trace_user_text_bytes,
        ),
        (
            &raw const trace_user_text_last_may_fault,
            &raw const trace_user_text_bytes,
        ),
        (
            &raw const trace_user_text_byte_may_fault,
            &raw const trace_user_text_fault,
        ),
        (
            &raw const trace_user_length_word_may_fault,
            &raw const trace_user_length_byte_may_fault,
        ),
        (
            &raw const trace_user_length_byte_may_fault,
            &raw const trace_user_length_fault,
        ),
    ];
    for (at, resume) in places {
        if regs.ip == at as u64 {
            regs.ip = resume as u64;
            return true;
        }
    }
    false
}

/// Whether user pages are to be opened.
#[inline(always)]
fn opens<A: Agent>(space: Space) -> bool {
    space == Space::User && A::has_smap()
}

/// Copies `len` bytes from `from`, in `space`, to `to`. False if not all of it can be read; then
/// `to` holds zeros.
///
/// # Safety
/// `to` may be written for `len` bytes.
#[inline(always)]
pub unsafe fn copy<A: Agent>(space: Space, to: *mut u8, from: u64, len: u64) -> bool {
    // SAFETY: by the contract, and by clause 5 of `Agent`.
    let left = || unsafe { trace_copy(to, from, len, opens::<A>(space)) };
    let done = is_in::<A>(space, from, len) && left() == 0;
    if !done {
        // SAFETY: by the contract.
        unsafe { clear(to, len) };
    }
    done
}

/// Whether all of the `len` bytes from `from` on, in `space`, can be read: a byte of each page is.
#[inline(always)]
pub fn can_read<A: Agent>(space: Space, from: u64, len: u64) -> bool {
    const PAGE: u64 = 4096;
    let end = from.wrapping_add(len);
    let mut at = from;
    while at < end {
        let mut byte = 0_u8;
        // SAFETY: the byte may be written.
        if !unsafe { copy::<A>(space, &raw mut byte, at, 1) } {
            return false;
        }
        at = (at | (PAGE - 1)).wrapping_add(1);
        // The last page of all has none after it.
        if at == 0 {
            break;
        }
    }
    // What goes round the end of the addresses is nowhere.
    len == 0 || end.wrapping_sub(1) >= from
}

/// Fills with zeros.
///
/// # Safety
/// `to` may be written for `len` bytes.
#[inline(always)]
pub unsafe fn clear(to: *mut u8, len: u64) {
    for at in 0..len as usize {
        // SAFETY: by the contract. Volatile, so that it is no call of `memset`, which may be
        // probed.
        unsafe { to.add(at).write_volatile(0) };
    }
}

/// How many bytes a text in `space` has with its NUL, at most `most`. 0: it cannot be read.
#[inline(always)]
pub fn text_length<A: Agent>(space: Space, from: u64, most: u64) -> u64 {
    if most == 0 || !is_in::<A>(space, from, 1) {
        return 0;
    }
    // SAFETY: as in `copy`. No text goes on into the other half, nor to registers of devices,
    // because pages between them are not mapped.
    unsafe {
        match space {
            Space::Kernel => trace_text_length(from, most),
            Space::User => trace_user_text_length(from, most, opens::<A>(space)),
        }
    }
}

/// Copies a text with its NUL, at most `most` bytes, from `from` in `space` to `to`, and returns
/// how many bytes those were. 0: it cannot be read. The last byte is a NUL also where the text was
/// cut off. The bytes after it, up to `most`, are changed.
///
/// # Safety
/// `to` may be written for `most` bytes.
#[inline(always)]
pub unsafe fn copy_text<A: Agent>(space: Space, to: *mut u8, from: u64, most: u64) -> u64 {
    if !is_in::<A>(space, from, 1) {
        return 0;
    }
    // SAFETY: by the contract, and as in `copy` and `text_length`.
    unsafe {
        match space {
            Space::Kernel => trace_copy_text(to, from, most),
            Space::User => trace_copy_user_text(to, from, most, opens::<A>(space)),
        }
    }
}
