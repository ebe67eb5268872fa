//! Instructions that the processor refuses to a program.

use crate::SURVIVED;
use core::{arch::asm, hint::black_box};
use user::{Args, syscall};

/// Touches memory that the program may not: the first argument says how.
pub fn wild(mut args: Args) -> i32 {
    let how = args.next_str().unwrap_or("");
    let text = wild as *const () as u64;
    let address: u64 = match how {
        "null_read" | "null_write" | "null_call" => 0,
        "kernel_read" | "kernel_write" | "kernel_call" => 0xffff_ffff_8000_0000,
        "unmapped_read" => 0x1234_5678,
        "last_byte_read" => 0x0000_7fff_ffff_ffff,
        "non_canonical_read" => 0x8000_0000_0000_0000,
        "text_write" => text,
        "rodata_write" => &raw const CONSTANT as u64,
        "data_call" => &raw const DATA as u64,
        "rodata_call" => &raw const RETURNS as u64,
        "stack_overflow" => {
            black_box(recurse(0, u64::MAX));
            return SURVIVED;
        }
        _ => panic!("there is no wild access {how:?}"),
    };
    // SAFETY: none. The access must be refused, and the program ended.
    unsafe {
        if how.ends_with("read") {
            black_box((address as *const u8).read_volatile());
        } else if how.ends_with("write") {
            (address as *mut u8).write_volatile(0xc3);
        } else {
            if how == "rodata_call" {
                // The page is there then, so only the page table can refuse the call.
                black_box((address as *const u8).read_volatile());
            }
            asm!("call {}", in(reg) address, clobber_abi("C"));
        }
    }
    SURVIVED
}

static CONSTANT: [u8; 16] = [1; 16];

/// A function, if it could be executed: `ret`.
static RETURNS: [u8; 16] = [0xc3; 16];

/// `ret`, in data.
static mut DATA: [u8; 16] = [0xc3; 16];

/// Uses at least 512 bytes of stack for each of `limit` levels.
#[inline(never)]
fn recurse(depth: u64, limit: u64) -> u64 {
    let room = black_box([depth; 64]);
    let deeper = if depth < limit {
        recurse(depth + 1, limit)
    } else {
        0
    };
    black_box(room)[63] + deeper
}

/// Executes an instruction that raises an exception: the first argument says which.
pub fn raise(mut args: Args) -> i32 {
    let what = args.next_str().unwrap_or("");
    // SAFETY: none. The instruction must be refused and the program ended. Its effects are
    // declared, as far as the compiler relies on them.
    unsafe {
        match what {
            "divide" => {
                asm!(
                    "xor edx, edx",
                    "xor ecx, ecx",
                    "div ecx",
                    out("rdx") _,
                    out("rcx") _,
                    inout("rax") 1u64 => _,
                )
            }
            "single_step" => asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "nop"),
            "breakpoint" => asm!("int3"),
            "undefined" => asm!("ud2"),
            "sse" => asm!(".byte 0x0f, 0x57, 0xc0"), // xorps xmm0, xmm0
            "x87" => asm!(".byte 0xd9, 0xe8"),       // fld1
            "avx" => asm!(".byte 0xc5, 0xfc, 0x57, 0xc0"), // vxorps ymm0, ymm0, ymm0
            "privileged" => asm!("hlt"),
            "port" => asm!("out dx, al", in("dx") 0xf4u16, in("al") 0x10u8),
            "no_gate" => asm!("int 0x80", inout("rax") 0u64 => _),
            "kernel_gate" => asm!("int 0x20"),
            "bad_stack" => asm!("mov rsp, {}", "push rax", in(reg) 0x8000_0000_0000_0000u64),
            // The flags that `syscall` saves must not make the kernel fail.
            "syscall_flags" => {
                asm!("pushfq", "or qword ptr [rsp], 0x40400", "popfq"); // AC and DF
                let pid = syscall::getpid();
                asm!("cld");
                return if pid > 0 { 0 } else { SURVIVED };
            }
            _ => panic!("there is no exception {what:?}"),
        }
    }
    SURVIVED
}
