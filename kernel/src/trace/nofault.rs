//! Reads of memory that may not be there, for the helpers of actions.
//!
//! The kernel's own copies mend their faults in `do_page_fault`, which may be probed. An action on
//! it would come here again for each fault, for ever. So the faults of this file are mended before
//! anything that can be probed, in [`mend`]. It needs no table in memory: the instructions that may
//! fault are known by their symbols.
//!
//! # Contexts
//! Any, with the CPU kept: interrupts off, or the probes' guard held.

use core::arch::naked_asm;

use crate::{
    arch::{PtRegs, cpu},
    mm::paging::USER_END,
};

/// The memory that an address is to lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Kernel,
    User,
}

/// Whether the `len` bytes from `address` on lie in `space`, as far as the numbers say.
#[inline(always)]
fn is_in(space: Space, address: u64, len: u64) -> bool {
    match space {
        Space::Kernel => (address as i64) < 0 && (address.wrapping_add(len) as i64) <= 0,
        Space::User => address < USER_END && len <= USER_END.wrapping_sub(address),
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

/// Copies a text up to its NUL, which is copied, too, or up to `most` bytes. Returns how many bytes
/// those were, 0 if the text cannot be read. With `to` null it only counts them. `open` as above.
/// Whole words are read first. If a word cannot be read, or has a zero byte, its bytes are read one
/// by one.
///
/// # Safety
/// `to` is null or may be written for `most` bytes, and reading from `from` has no effect.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_copy_text(to: *mut u8, from: u64, most: u64, open: bool) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        // r8: bytes done; r9, r10: the constants of the test for a zero byte.
        "xor r8d, r8d",
        "movabs r9, 0x0101010101010101",
        "movabs r10, 0x8080808080808080",
        "test cl, cl",
        "jz 2f",
        "stac",
        "2: lea rax, [r8 + 8]",
        "cmp rax, rdx",
        "ja trace_text_bytes",
        ".globl trace_text_word_may_fault",
        "trace_text_word_may_fault: mov rax, [rsi + r8]",
        // A byte of rax is zero if one of (rax - 01…) & !rax & 80… is set.
        "mov r11, rax",
        "sub r11, r9",
        "not rax",
        "and r11, rax",
        "not rax",
        "test r11, r10",
        "jnz trace_text_bytes",
        "test rdi, rdi",
        "jz 3f",
        "mov [rdi + r8], rax",
        "3: add r8, 8",
        "jmp 2b",
        ".globl trace_text_bytes",
        "trace_text_bytes: cmp r8, rdx",
        "jae 5f",
        ".globl trace_text_byte_may_fault",
        "trace_text_byte_may_fault: movzx eax, byte ptr [rsi + r8]",
        "test rdi, rdi",
        "jz 4f",
        "mov [rdi + r8], al",
        "4: inc r8",
        "test al, al",
        "jnz trace_text_bytes",
        "5: test cl, cl",
        "jz 6f",
        "clac",
        "6: mov rax, r8",
        "ret",
        ".globl trace_text_fault",
        "trace_text_fault: xor r8d, r8d",
        "jmp 5b",
        ".cfi_endproc",
    )
}

/// The length of a text with its NUL, at most `most`, which is not 0; 0 if it cannot be read up to
/// there. `open` as above. As [`trace_copy_text`], but of the last word only the NUL is looked for.
///
/// # Safety
/// Reading from `from` has no effect.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn trace_text_length(from: u64, most: u64, open: bool) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "xor r8d, r8d",
        "movabs r9, 0x0101010101010101",
        "movabs r10, 0x8080808080808080",
        "test dl, dl",
        "jz 2f",
        "stac",
        ".globl trace_length_word_may_fault",
        "2: trace_length_word_may_fault: mov rax, [rdi + r8]",
        "mov r11, rax",
        "sub r11, r9",
        "not rax",
        "and r11, rax",
        "and r11, r10",
        "jnz 3f",
        "add r8, 8",
        "cmp r8, rsi",
        "jb 2b",
        "mov rax, rsi",
        "jmp 4f",
        // The lowest of the bits is right: the subtraction has borrowed nothing up to there.
        "3: bsf r11, r11",
        "shr r11d, 3",
        "lea rax, [r8 + r11 + 1]",
        "cmp rax, rsi",
        "cmova rax, rsi",
        "4: test dl, dl",
        "jz 5f",
        "clac",
        "5: ret",
        // The word may reach into memory that is not there, and the text not.
        ".globl trace_length_bytes",
        "trace_length_bytes: cmp r8, rsi",
        "jae 6f",
        ".globl trace_length_byte_may_fault",
        "trace_length_byte_may_fault: movzx eax, byte ptr [rdi + r8]",
        "inc r8",
        "test al, al",
        "jnz trace_length_bytes",
        "6: mov rax, r8",
        "jmp 4b",
        ".globl trace_length_fault",
        "trace_length_fault: xor eax, eax",
        "jmp 4b",
        ".cfi_endproc",
    )
}

unsafe extern "C" {
    static trace_length_word_may_fault: u8;
    static trace_length_bytes: u8;
    static trace_length_byte_may_fault: u8;
    static trace_length_fault: u8;
    static trace_copy_may_fault: u8;
    static trace_copy_fault: u8;
    static trace_text_word_may_fault: u8;
    static trace_text_bytes: u8;
    static trace_text_byte_may_fault: u8;
    static trace_text_fault: u8;
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
            &raw const trace_text_byte_may_fault,
            &raw const trace_text_fault,
        ),
        (
            &raw const trace_length_word_may_fault,
            &raw const trace_length_bytes,
        ),
        (
            &raw const trace_length_byte_may_fault,
            &raw const trace_length_fault,
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

/// Copies `len` bytes from `from`, in `space`, to `to`. False if not all of it can be read; then
/// `to` holds zeros.
///
/// # Safety
/// `to` may be written for `len` bytes.
#[inline(always)]
pub unsafe fn copy(space: Space, to: *mut u8, from: u64, len: u64) -> bool {
    let open = space == Space::User && cpu::has_smap();
    // SAFETY: by the contract. Devices are mapped only at addresses that their drivers alone know.
    let done = is_in(space, from, len) && unsafe { trace_copy(to, from, len, open) } == 0;
    if !done {
        // SAFETY: by the contract.
        unsafe { clear(to, len) };
    }
    done
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
pub fn text_length(space: Space, from: u64, most: u64) -> u64 {
    if most == 0 || !is_in(space, from, 1) {
        return 0;
    }
    // SAFETY: as in `copy`. No text goes on into the other half.
    unsafe { trace_text_length(from, most, space == Space::User && cpu::has_smap()) }
}

/// Copies a text with its NUL, at most `most` bytes, from `from` in `space` to `to`, and returns
/// how many bytes those were. 0: it cannot be read. The last byte is a NUL also where the text was
/// cut off. With `to` null it only counts.
///
/// # Safety
/// `to` is null or may be written for `most` bytes.
#[inline(always)]
pub unsafe fn copy_text(space: Space, to: *mut u8, from: u64, most: u64) -> u64 {
    let open = space == Space::User && cpu::has_smap();
    if most == 0 || !is_in(space, from, 1) {
        return 0;
    }
    // No text goes on into the other half, because pages between them are not mapped.
    // SAFETY: by the contract, and as in `copy`.
    let len = unsafe { trace_copy_text(to, from, most, open) };
    if len > 0 && !to.is_null() {
        // SAFETY: within the bytes that were written.
        unsafe { to.add(len as usize - 1).write_volatile(0) };
    }
    len
}
