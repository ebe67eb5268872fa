//! Copies between the kernel and user memory, by a thread of the kernel that has some.

use alloc::{sync::Arc, vec};
use core::{
    arch::naked_asm,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{
        idt::vector,
        traps::{self, Exception},
    },
    errno::Errno,
    mm::{
        paging::{Protection, USER_END},
        uaccess::{
            check_range, copy_from_user, copy_from_user_nofault, copy_to_user,
            copy_to_user_nofault, strncpy_from_user, strndup_from_user,
        },
        user_space::{USER_START, UserSpace},
    },
    probes::PtRegs,
    task::{self, kthread::spawn_kthread},
};

const PAGE: u64 = 4096;

/// Runs `body` in a task with as many pages of user memory, none of which was touched before. It
/// gets the address of the first one.
fn with_pages(pages: u64, body: impl FnOnce(u64) + Send + 'static) {
    let body = move || {
        let space = UserSpace::new().unwrap();
        let range = USER_START..USER_START + pages * PAGE;
        space.add_region(range, Protection::ReadWrite).unwrap();
        drop(task::current().set_user_space(Some(Arc::new(space))));
        body(USER_START);
        drop(task::current().set_user_space(None));
    };
    spawn_kthread("user memory", body).unwrap().wait_released();
}

/// Strings that end before the next page begins, after it, and where nothing is after them.
#[guest_test]
fn a_string_is_copied_up_to_its_end_or_its_limit() {
    with_pages(2, |start| {
        for len in [0, 1, 9, 127, 128, 129, 300] {
            let text = vec![b'x'; len];
            let at_end = start + 2 * PAGE - len as u64 - 1;
            for at in [start, start + PAGE - 1, start + PAGE - 5, at_end] {
                copy_to_user(at, &[&text[..], &[0]].concat()).unwrap();
                let mut copy = vec![b'y'; len + 1];
                assert_eq!(
                    strncpy_from_user(&mut copy, at),
                    Ok(len),
                    "{len} at {at:#x}"
                );
                assert_eq!(copy[..len], text);
                assert_eq!(strndup_from_user(at, len + 1), Ok(text.clone()));
                // The NUL has no room.
                let too_long = Errno::ENAMETOOLONG;
                assert_eq!(strncpy_from_user(&mut copy[..len], at), Err(too_long));
                assert_eq!(strndup_from_user(at, len), Err(too_long));
            }
        }
        let end = start + 2 * PAGE;
        copy_to_user(end - 2, b"xx").unwrap();
        assert_eq!(strndup_from_user(end - 2, 100), Err(Errno::EFAULT));
    });
}

/// Where waiting is not allowed, no page is brought in, in either direction.
#[guest_test]
fn a_copy_that_may_not_wait_brings_no_page_in() {
    with_pages(2, |start| {
        let mut word = [7; 8];
        for at in [start, start + PAGE] {
            for _ in 0..2 {
                assert_eq!(copy_to_user_nofault(at, &word), Err(Errno::EFAULT));
                assert_eq!(copy_from_user_nofault(&mut word, at), Err(Errno::EFAULT));
            }
            assert_eq!(copy_to_user(at, &[1; 8]), Ok(()));
            assert_eq!(copy_from_user_nofault(&mut word, at), Ok(()));
            assert_eq!(word, [1; 8]);
            assert_eq!(copy_to_user_nofault(at, &[2; 8]), Ok(()));
        }
    });
}

#[guest_test]
fn a_range_may_end_where_the_users_half_does() {
    for (at, len) in [(USER_END - 8, 8), (USER_END, 0), (0, USER_END as usize)] {
        assert_eq!(check_range(at, len), Ok(()), "{at:#x}");
    }
    for (at, len) in [
        (USER_END - 8, 9),
        (USER_END, 1),
        (USER_END + 1, 0),
        (1, USER_END as usize),
        (u64::MAX - 3, 8),
        (1 << 63, 1),
    ] {
        assert_eq!(check_range(at, len), Err(Errno::EFAULT), "{at:#x}");
    }
}

/// Reads the word at `at`, with user memory open.
#[unsafe(naked)]
extern "C" fn reads(at: *const u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "or dword ptr [rsp], {ac}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "mov rax, [rdi]",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "and dword ptr [rsp], {not_ac}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        ac = const 1 << 18,
        not_ac = const !(1 << 18),
    )
}

/// A page is brought in for the one instruction that copies. Any other access of the kernel's is a
/// mistake, and told as one.
#[guest_test]
fn only_the_copying_instruction_has_a_page_brought_in() {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    fn pass_over(regs: &mut PtRegs, exception: &Exception) -> bool {
        TOLD.store(exception.address, SeqCst);
        // `mov rax, [rdi]`
        regs.ip += 3;
        regs.ax = 7;
        exception.vector == vector::PAGE_FAULT
    }
    with_pages(1, |start| {
        traps::set_exception_handler(Some(pass_over));
        let read = reads(start as *const u64);
        traps::set_exception_handler(None);
        assert_eq!((read, TOLD.load(SeqCst)), (7, start));
        // The page was to be had.
        assert_eq!(copy_from_user(&mut [0; 8], start), Ok(()));
    });
}
