//! Single-steps a function of this test program and all that it calls, and unwinds from each
//! instruction.
//!
//! The caller that is found must be the true one at each of them. Walks that cannot go on must end
//! where they are, without an access outside the stack.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use elf::{ElfBytes, endian::LittleEndian};
use std::{
    arch::{asm, global_asm},
    cell::RefCell,
    fs,
    hint::black_box,
    mem,
    ops::Range,
    ptr,
    sync::LazyLock,
};
use unwind::{
    Frame, Memory, Section, Stop, Tables,
    fast::{FastTable, Found, Walker},
    register,
};

static FILE: LazyLock<Vec<u8>> =
    LazyLock::new(|| fs::read(std::env::current_exe().unwrap()).unwrap());
static TABLES: LazyLock<Tables<'static>> = LazyLock::new(|| {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(&FILE).unwrap();
    let bias = load_bias();
    let section = |name| {
        let header = elf.section_header_by_name(name).unwrap().unwrap();
        Section {
            address: header.sh_addr + bias,
            bytes: elf.section_data(&header).unwrap().0,
        }
    };
    Tables::new(section(".eh_frame_hdr"), section(".eh_frame"), &[], |_| {
        true
    })
});

static FAST: LazyLock<FastTable> =
    LazyLock::new(|| FastTable::new(&TABLES, |address| TEXT.contains(&address), &[]).unwrap());

/// Where the program was loaded.
fn load_bias() -> u64 {
    unsafe extern "C" {
        static __ehdr_start: u8;
    }
    (&raw const __ehdr_start).addr() as u64
}

/// This program's own code. Libraries run beside it, and the linker's stubs that lead there.
static TEXT: LazyLock<Range<u64>> = LazyLock::new(|| {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(&FILE).unwrap();
    let header = elf.section_header_by_name(".text").unwrap().unwrap();
    let start = header.sh_addr + load_bias();
    start..start + header.sh_size
});

struct OwnStack;

impl Memory for OwnStack {
    fn read(&self, address: u64) -> Option<u64> {
        // SAFETY: the tests only ask for words of their own stack.
        Some(unsafe { ptr::read_volatile(address as *const u64) })
    }
}

// Typical functions in assembly: without a frame, with registers saved late, and with a return in
// the middle.
global_asm!(
    r#"
    .pushsection .text.routines, "ax", @progbits
    .globl routine
    .type routine, @function
routine:
    .cfi_startproc
    test rdi, rdi
    jz 2f
    .cfi_remember_state
    push rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbx, 0
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    sub rsp, 24
    .cfi_adjust_cfa_offset 24
    mov rbx, rdi
    xor ebp, ebp
    lea rdi, [rbx - 1]
    call routine
    lea rax, [rax + rbx]
    add rsp, 24
    .cfi_adjust_cfa_offset -24
    pop rbp
    .cfi_adjust_cfa_offset -8
    .cfi_same_value rbp
    pop rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore rbx
    ret
    .cfi_restore_state
2:  xor eax, eax
    ret
    .cfi_endproc
    .size routine, . - routine

    .globl bottom
    .type bottom, @function
bottom:
    .cfi_startproc
    .cfi_undefined rip
    nop
    .cfi_endproc
    .size bottom, . - bottom

    .globl undescribed
    .type undescribed, @function
undescribed:
    nop
    .size undescribed, . - undescribed
    .popsection
    "#
);

unsafe extern "C" {
    fn routine(depth: u64) -> u64;
    fn bottom();
    fn undescribed();
}

#[inline(never)]
extern "C" fn leaf(x: u64) -> u64 {
    x.wrapping_mul(3)
}

/// Sets up its frame only on one of its ways.
#[inline(never)]
extern "C" fn shrink_wrapped(x: u64) -> u64 {
    if x & 1 == 0 {
        return leaf(x);
    }
    let mut words = [x; 40];
    black_box(&mut words);
    words.iter().sum::<u64>() + leaf(x)
}

#[inline(never)]
extern "C" fn with_strings(x: u64) -> u64 {
    let text = format!("{x} {x:#x} {:?}", Some(x));
    black_box(&text).len() as u64 + x.to_string().parse::<u64>().unwrap()
}

/// The state of the stepping handler. The handler may interrupt the allocator, so nothing here
/// grows beyond its capacity.
#[derive(Default)]
struct Steps {
    /// The return address of each call under way, and the stack pointer after the return. Each step
    /// must find these.
    calls: Vec<(u64, u64)>,
    /// The last instruction: its address and the stack pointer before it.
    last: Option<(u64, u64)>,
    count: u64,
    /// How many of these are in the program, not in a library.
    inside: u64,
    /// How many of these the table for fast walks describes.
    fast: u64,
    wrong: Vec<Wrong>,
}

/// An instruction at which the unwinder found another caller than there was.
#[derive(Debug)]
#[allow(dead_code, reason = "printed")]
struct Wrong {
    ip: u64,
    depth: usize,
    found: Result<(u64, u64), Stop>,
    wanted: (u64, u64),
}

thread_local! {
    static STEPS: RefCell<Steps> = RefCell::default();
}

/// How many callers each step must find.
const DEPTH: usize = 3;

fn frame_of(context: &libc::ucontext_t) -> Frame {
    let saved = &context.uc_mcontext.gregs;
    let mut registers = [0; register::COUNT];
    for (number, source) in [
        (register::AX, libc::REG_RAX),
        (register::BX, libc::REG_RBX),
        (register::CX, libc::REG_RCX),
        (register::DX, libc::REG_RDX),
        (register::SI, libc::REG_RSI),
        (register::DI, libc::REG_RDI),
        (register::BP, libc::REG_RBP),
        (register::SP, libc::REG_RSP),
        (register::R8, libc::REG_R8),
        (register::R9, libc::REG_R9),
        (register::R10, libc::REG_R10),
        (register::R11, libc::REG_R11),
        (register::R12, libc::REG_R12),
        (register::R13, libc::REG_R13),
        (register::R14, libc::REG_R14),
        (register::R15, libc::REG_R15),
        (register::IP, libc::REG_RIP),
    ] {
        registers[number] = saved[source as usize] as u64;
    }
    Frame {
        registers,
        interrupted: true,
    }
}

/// Keeps the list of calls by watching the stack pointer. The unwinder is then checked against it.
extern "C" fn on_step(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a `ucontext_t`.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let mut frame = frame_of(context);
    STEPS.with_borrow_mut(|steps| {
        let (ip, sp) = (frame.ip(), frame.sp());
        // The last instruction was a call if it pushed the address of the instruction after it.
        if let Some((last_ip, last_sp)) = steps.last
            && sp.wrapping_add(8) == last_sp
        {
            let pushed = OwnStack.read(sp).unwrap();
            if ip.wrapping_sub(last_ip) > 7 && (2..=7).contains(&pushed.wrapping_sub(last_ip)) {
                assert!(steps.calls.len() < steps.calls.capacity());
                steps.calls.push((pushed, last_sp));
            }
        }
        // A call is over when the stack pointer is back.
        while steps.calls.last().is_some_and(|&(_, after)| sp >= after) {
            steps.calls.pop();
        }
        steps.last = Some((ip, sp));
        steps.count += 1;
        if !TEXT.contains(&ip) {
            return;
        }
        steps.inside += 1;
        let mut walker = Walker {
            ip,
            sp,
            bp: frame.registers[register::BP],
            interrupted: true,
        };
        let read = |address| OwnStack.read(address).unwrap();
        if walker.step(&FAST, u64::MAX, read) == Found::Caller {
            steps.fast += 1;
            let found = TABLES.step(&frame, &OwnStack);
            let wanted = (walker.ip, walker.sp);
            let bp = |caller: Frame| caller.registers[register::BP];
            if found.map(|caller| (caller.ip(), caller.sp(), bp(caller)))
                != Ok((walker.ip, walker.sp, walker.bp))
                && steps.wrong.len() < steps.wrong.capacity()
            {
                steps.wrong.push(Wrong {
                    ip,
                    depth: usize::MAX,
                    found: found.map(|caller| (caller.ip(), caller.sp())),
                    wanted,
                });
            }
        }
        for (depth, &(address, after)) in steps.calls.iter().rev().take(DEPTH).enumerate() {
            match TABLES.step(&frame, &OwnStack) {
                Ok(caller) if (caller.ip(), caller.sp()) == (address, after) => frame = caller,
                other => {
                    if steps.wrong.len() < steps.wrong.capacity() {
                        steps.wrong.push(Wrong {
                            ip,
                            depth,
                            found: other.map(|caller| (caller.ip(), caller.sp())),
                            wanted: (address, after),
                        });
                    }
                    break;
                }
            }
        }
    });
}

/// Calls `f` and unwinds at each of its instructions. Returns how many there were.
fn step_through(f: extern "C" fn(u64) -> u64, argument: u64) -> u64 {
    LazyLock::force(&TABLES);
    LazyLock::force(&TEXT);
    LazyLock::force(&FAST);
    // SAFETY: `on_step` has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_step as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
    STEPS.replace(Steps {
        calls: Vec::with_capacity(1000),
        wrong: Vec::with_capacity(10),
        ..Steps::default()
    });
    // SAFETY: sets the trap flag, calls, and clears it again. The handler restores everything. The
    // stack is moved past the red zone.
    unsafe {
        asm!(
            "mov r12, rsp",
            "sub rsp, 256",
            "and rsp, -16",
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "call {f}",
            "pushfq",
            "and qword ptr [rsp], ~0x100",
            "popfq",
            "mov rsp, r12",
            f = in(reg) f,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    let steps = STEPS.take();
    assert!(
        steps.wrong.is_empty(),
        "of {} instructions: {:#x?}",
        steps.count,
        steps.wrong
    );
    // The libraries beside the program are not in its table.
    let (fast, inside) = (steps.fast, steps.inside);
    assert!(fast * 100 > inside * 98, "{fast} of {inside} instructions");
    steps.count
}

extern "C" fn call_routine(depth: u64) -> u64 {
    // SAFETY: the routine keeps to the C calling convention.
    black_box(unsafe { routine(depth) })
}

#[test]
fn callers_are_right_at_each_instruction_of_assembly() {
    assert!(step_through(call_routine, 5) > 60);
}

#[test]
fn callers_are_right_at_each_instruction_of_small_functions() {
    step_through(leaf, 5);
    assert!(step_through(shrink_wrapped, 4) < step_through(shrink_wrapped, 5));
}

#[test]
fn callers_are_right_at_each_instruction_of_the_standard_library() {
    assert!(step_through(with_strings, 123_456_789) > 500);
}

#[test]
fn walk_from_a_called_function_reaches_the_bottom_of_the_stack() {
    let mut registers = [0; register::COUNT];
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "lea {ip}, [rip]",
            "mov {sp}, rsp",
            "mov {bp}, rbp",
            "mov {bx}, rbx",
            ip = out(reg) registers[register::IP],
            sp = out(reg) registers[register::SP],
            bp = out(reg) registers[register::BP],
            bx = out(reg) registers[register::BX],
        );
    }
    let mut frame = Frame {
        registers,
        interrupted: true,
    };
    let mut depth = 0;
    // The thread starts in the C library, which our tables do not describe.
    while TABLES.describes(frame.code_address()) {
        frame = TABLES.step(&frame, &OwnStack).unwrap();
        depth += 1;
    }
    assert!(depth > 5, "only {depth} frames");
}

#[test]
fn function_without_a_caller_ends_the_walk() {
    let at = |address: unsafe extern "C" fn()| Frame {
        registers: {
            let mut registers = [0; register::COUNT];
            registers[register::IP] = address as usize as u64;
            registers
        },
        interrupted: true,
    };
    assert_eq!(TABLES.step(&at(bottom), &OwnStack), Err(Stop::Outermost));
    let unknown = at(undescribed);
    assert_eq!(
        TABLES.step(&unknown, &OwnStack),
        Err(Stop::NoInformation { code: unknown.ip() })
    );
    assert!(!TABLES.describes(unknown.ip()));
}

#[test]
fn unreadable_stack_ends_the_walk() {
    struct Nothing;
    impl Memory for Nothing {
        fn read(&self, _: u64) -> Option<u64> {
            None
        }
    }
    let mut registers = [0; register::COUNT];
    registers[register::IP] = leaf as *const () as u64;
    registers[register::SP] = 0x1000;
    let frame = Frame {
        registers,
        interrupted: true,
    };
    assert_eq!(
        TABLES.step(&frame, &Nothing),
        Err(Stop::Unreadable { address: 0x1000 })
    );
}

#[test]
fn frame_pointer_leads_to_the_caller_where_nothing_else_does() {
    let stack = [0x7000_u64, 0x1234, 0];
    struct Words<'a>(&'a [u64]);
    impl Memory for Words<'_> {
        fn read(&self, address: u64) -> Option<u64> {
            self.0
                .get((address as usize).checked_sub(0x6000)? / 8)
                .copied()
        }
    }
    let mut registers = [0; register::COUNT];
    registers[register::SP] = 0x6000;
    registers[register::BP] = 0x6000;
    let frame = Frame {
        registers,
        interrupted: false,
    };
    let caller = Tables::step_by_frame_pointer(&frame, &Words(&stack)).unwrap();
    assert_eq!(
        (caller.ip(), caller.sp(), caller.registers[register::BP]),
        (0x1234, 0x6010, 0x7000)
    );
    // 0x7000 is no stack.
    assert!(Tables::step_by_frame_pointer(&caller, &Words(&stack)).is_err());
}
