//! Copies between the kernel and user memory.
//!
//! An address from a user program is only a number until it is checked, and its page may be missing
//! at any time. So the kernel touches user memory at few instructions only: the `rep movsb` of
//! `copy_user`, and the moves of one word for hits of user probes, here and in the stub of their
//! breakpoint, after the range was found to lie in the user's half. A fault there is first resolved
//! like a fault of the program (a page of zeros, a copy on write). If that fails, control goes on
//! at the fix-up that the exception table names, and the copy reports how much is left:
//!
//! ```text
//!   __ex_table:  { address of an instruction that may fault, address where to go on instead } …
//! ```
//!
//! Where the processor has SMAP, user memory is open between `stac` and `clac` in these functions,
//! in that stub, in the reads of actions (`trace/nofault.rs`), and nowhere else.
//!
//! # Contexts
//! The functions of this file are for task context, because resolving a fault may sleep. In an
//! atomic context a fault is not resolved: the copy fails with EFAULT although the page may be the
//! program's. Atomic means that interrupts or preemption are off, or that a probe handler runs,
//! even with interrupts on. The `_nofault` variants resolve no fault in any context.

use crate::{
    arch::{PtRegs, cpu},
    errno::Errno,
    mm::{
        frame::FRAME_SIZE,
        paging::{DEVICES_START, USER_END},
    },
};
use abi::{Stat, Timespec};
use alloc::vec::Vec;
use core::{arch::naked_asm, mem::MaybeUninit, ops::Range, slice};
use x86_64::instructions::interrupts::without_interrupts;

/// Copies `len` bytes. Returns how many were left when a fault stopped it; 0 if none did. `smap`:
/// whether user pages need `stac`.
///
/// # Safety
/// 1. The kernel's side of the copy, `to` or `from`, may be written or read for `len` bytes.
/// 2. The user's side lies below [`USER_END`], which holds no memory of the kernel; or it is
///    `from`, and reading there has no effect.
/// 3. `smap` is the value of [`cpu::has_smap`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn copy_user(to: u64, from: u64, len: usize, smap: bool) -> usize {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, ecx",
        "mov rcx, rdx",
        "test al, al",
        "jz 2f",
        "stac",
        "2: rep movsb", // on a fault, rcx, rsi and rdi say how far it came (Intel SDM vol. 2B, REP)
        "3: test al, al",
        "jz 4f",
        "clac",
        "4: mov rax, rcx",
        "ret",
        ".cfi_endproc",
        ".pushsection __ex_table, \"a\", @progbits",
        ".balign 8",
        ".quad 2b, 3b",
        ".popsection",
    )
}

/// An entry of the exception table.
#[repr(C)]
struct Fixup {
    /// An instruction that may fault.
    at: u64,
    /// Where to go on if it does.
    resume: u64,
}

unsafe extern "C" {
    static __ex_table_start: Fixup;
    static __ex_table_end: Fixup;
}

fn fixups() -> &'static [Fixup] {
    let (start, end) = (&raw const __ex_table_start, &raw const __ex_table_end);
    // SAFETY: the linker script puts both symbols around the table, which only the assembler
    // writes.
    unsafe { slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

/// Whether the kernel may fault at `ip`. Any context.
pub fn may_fault(ip: u64) -> bool {
    fixups().iter().any(|fixup| fixup.at == ip)
}

/// Whether the kernel may fault somewhere in `code`, or go on there after a fault. Any context.
pub fn may_fault_in(code: Range<u64>) -> bool {
    fixups()
        .iter()
        .any(|fixup| code.contains(&fixup.at) || code.contains(&fixup.resume))
}

/// Lets `regs` go on at the fix-up of the instruction at which they are. False: that instruction
/// has none. Any context.
pub fn fix_up(regs: &mut PtRegs) -> bool {
    match fixups().iter().find(|fixup| fixup.at == regs.ip) {
        Some(fixup) => {
            regs.ip = fixup.resume;
            true
        }
        None => false,
    }
}

/// Refuses with EFAULT a range that leaves the user's half. Non-canonical addresses are outside it.
pub fn check_range(address: u64, len: usize) -> Result<(), Errno> {
    match address.checked_add(len as u64) {
        Some(end) if end <= USER_END => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Copies user memory at `from` into all of `to`. EFAULT if not all of it may be read; `to` may
/// then have changed.
pub fn copy_from_user(to: &mut [u8], from: u64) -> Result<(), Errno> {
    check_range(from, to.len())?;
    // SAFETY: `to` is ours to write (1), `from` was checked (2).
    let left = unsafe { copy_user(to.as_mut_ptr() as u64, from, to.len(), cpu::has_smap()) };
    if left == 0 {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Copies all of `from` to user memory at `to`. EFAULT if not all of it may be written; the start
/// of it may then have been written.
pub fn copy_to_user(to: u64, from: &[u8]) -> Result<(), Errno> {
    check_range(to, from.len())?;
    // SAFETY: `from` is readable (1), `to` was checked (2).
    let left = unsafe { copy_user(to, from.as_ptr() as u64, from.len(), cpu::has_smap()) };
    if left == 0 {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// The same as [`copy_from_user`], but it never waits and never brings a page in. For probe
/// handlers. Any context.
pub fn copy_from_user_nofault(to: &mut [u8], from: u64) -> Result<(), Errno> {
    // The page fault handler resolves nothing for code that has interrupts off.
    without_interrupts(|| copy_from_user(to, from))
}

/// Reads the word at `from`. Returns it, and whether it could be read. `smap` as in [`copy_user`].
///
/// # Safety
/// 1. `from` and the seven bytes after it lie below [`USER_END`].
/// 2. `smap` is the value of [`cpu::has_smap`].
#[unsafe(naked)]
unsafe extern "C" fn read_user_word(from: u64, smap: bool) -> Word {
    naked_asm!(
        ".cfi_startproc",
        "xor edx, edx",
        "test sil, sil",
        "jz 4f",
        "stac",
        "2: mov rax, [rdi]",
        "inc edx",
        "3: clac",
        "ret",
        "4: mov rax, [rdi]",
        "inc edx",
        "5: ret",
        ".cfi_endproc",
        ".pushsection __ex_table, \"a\", @progbits",
        ".balign 8",
        ".quad 2b, 3b",
        ".quad 4b, 5b",
        ".popsection",
    )
}

/// The same for a store of `word`.
///
/// # Safety
/// The same as for [`read_user_word`].
#[unsafe(naked)]
unsafe extern "C" fn write_user_word(to: u64, word: u64, smap: bool) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "xor eax, eax",
        "test dl, dl",
        "jz 4f",
        "stac",
        "2: mov [rdi], rsi",
        "inc eax",
        "3: clac",
        "ret",
        "4: mov [rdi], rsi",
        "inc eax",
        "5: ret",
        ".cfi_endproc",
        ".pushsection __ex_table, \"a\", @progbits",
        ".balign 8",
        ".quad 2b, 3b",
        ".quad 4b, 5b",
        ".popsection",
    )
}

/// The result of [`read_user_word`], in two registers.
#[repr(C)]
struct Word {
    word: u64,
    is_read: u64,
}

/// Reads a word of user memory without bringing its page in. Interrupts are off.
pub fn get_user_word_nofault(from: u64) -> Option<u64> {
    check_range(from, size_of::<u64>()).ok()?;
    // SAFETY: checked above (1).
    let Word { word, is_read } = unsafe { read_user_word(from, cpu::has_smap()) };
    (is_read != 0).then_some(word)
}

/// Stores a word of user memory without bringing its page in. Interrupts are off. False: it cannot
/// be written as it is.
pub fn put_user_word_nofault(to: u64, word: u64) -> bool {
    // SAFETY: checked before (1).
    check_range(to, size_of::<u64>()).is_ok()
        && unsafe { write_user_word(to, word, cpu::has_smap()) } != 0
}

/// The same as [`copy_to_user`], but it never waits and never brings a page in. For probe handlers.
/// Any context.
pub fn copy_to_user_nofault(to: u64, from: &[u8]) -> Result<(), Errno> {
    without_interrupts(|| copy_to_user(to, from))
}

/// Copies memory at `from` into all of `to`, also memory of the kernel. It is for probe handlers
/// that follow pointers. It never waits and never brings a page in. It reports an address that
/// cannot be read, because it is not mapped or not canonical, and the registers of devices. Any
/// context.
///
/// # Errors
/// EFAULT; the start of `to` may have changed.
pub fn copy_from_anywhere_nofault(to: &mut [u8], from: u64) -> Result<(), Errno> {
    if from.saturating_add(to.len() as u64) > DEVICES_START {
        return Err(Errno::EFAULT);
    }
    let (end, smap) = (to.as_mut_ptr() as u64, cpu::has_smap());
    // SAFETY: `to` may be written (1). Reading mapped memory has no effect on it, because devices
    // are mapped in their own region only (PAGING-4), of which nothing is read (2).
    let left = without_interrupts(|| unsafe { copy_user(end, from, to.len(), smap) });
    if left == 0 {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Copies the NUL-terminated string at `from` into `to` and returns its length without the NUL.
/// ENAMETOOLONG if `to` has no room for string and NUL.
pub fn strncpy_from_user(to: &mut [u8], from: u64) -> Result<usize, Errno> {
    let mut len = 0;
    while len < to.len() {
        let at = from.checked_add(len as u64).ok_or(Errno::EFAULT)?;
        // Up to the end of a page: the string may end there, with nothing after it.
        let page_left = FRAME_SIZE - at as usize % FRAME_SIZE;
        let end = to.len().min(len + page_left);
        let piece = &mut to[len..end];
        copy_from_user(piece, at)?;
        if let Some(nul) = piece.iter().position(|&byte| byte == 0) {
            return Ok(len + nul);
        }
        len = end;
    }
    Err(Errno::ENAMETOOLONG)
}

/// Copies the NUL-terminated string at `from`, without its NUL. ENAMETOOLONG if string and NUL
/// exceed `max_len` bytes.
pub fn strndup_from_user(from: u64, max_len: usize) -> Result<Vec<u8>, Errno> {
    /// Most strings are shorter.
    const PIECE: usize = 128;
    let mut string = Vec::new();
    loop {
        let len = string.len();
        let end = max_len.min(len + PIECE);
        string.resize(end, 0);
        let at = from.checked_add(len as u64).ok_or(Errno::EFAULT)?;
        match strncpy_from_user(&mut string[len..], at) {
            Ok(more) => {
                string.truncate(len + more);
                return Ok(string);
            }
            Err(Errno::ENAMETOOLONG) if end < max_len => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Values that user memory may hold.
///
/// # Safety
/// 1. Every pattern of bits is a value.
/// 2. There is no padding: all bytes of a value are initialised.
pub unsafe trait UserValue: Copy {}

// SAFETY: integers.
unsafe impl UserValue for u32 {}
// SAFETY: integers.
unsafe impl UserValue for i32 {}
// SAFETY: integers.
unsafe impl UserValue for u64 {}
// SAFETY: two integers of 8 bytes.
unsafe impl UserValue for Timespec {}
// SAFETY: integers, and the one gap between them is a field.
unsafe impl UserValue for Stat {}

/// Reads a value from user memory.
pub fn get_user<T: UserValue>(from: u64) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: all bytes were set to zero, and the slice is dropped before `value` is used.
    let bytes = unsafe { slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
    copy_from_user(bytes, from)?;
    // SAFETY: any bits are a value, by (1) of `UserValue`.
    Ok(unsafe { value.assume_init() })
}

/// Writes a value to user memory.
pub fn put_user<T: UserValue>(to: u64, value: &T) -> Result<(), Errno> {
    // SAFETY: all bytes are initialised, by (2) of `UserValue`.
    let bytes = unsafe { slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) };
    copy_to_user(to, bytes)
}
