//! Code made at run time: any bytes, at any place, with a symbol, and run with any registers.
//!
//! [`Code`] puts bytes where they can be executed and probed. [`Bench::run`] enters them with given
//! registers on a stack of their own and tells what they have left behind, so that a probed run can
//! be compared with a bare one. Code ends at an exit of the bench, or in a fault. One runs at a
//! time.

use core::{
    arch::naked_asm,
    fmt,
    mem::offset_of,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use probes::{Platform, PtRegs};

use super::*;
use crate::platform::{Kernel, task::Stack};

/// Bytes that can be executed, as a function of their own. Gone when dropped.
pub struct Code {
    /// Where they are.
    pub start: u64,
}

impl Code {
    /// Places what `make` returns for the address that it is given: at most [`text::PLACE_BYTES`]
    /// bytes.
    pub fn new(make: impl FnOnce(u64) -> Vec<u8>) -> Self {
        let start = text::free_place();
        let code = make(start);
        assert!(code.len() as u64 <= text::PLACE_BYTES);
        Self::place(start, &code)
    }

    /// Places `code` so that its last byte is the last one that is mapped.
    #[cfg(target_os = "linux")]
    pub fn at_the_end(code: &[u8]) -> Self {
        Self::place(text::end_of_places() - code.len() as u64, code)
    }

    fn place(start: u64, code: &[u8]) -> Self {
        text::place(start, code);
        Self { start }
    }

    /// Places `body` and an exit, number 1, after it.
    pub fn with_exit(body: &[u8]) -> Self {
        Self::new(|start| [body, &exit(start + body.len() as u64, 1)].concat())
    }

    /// Places `body` with exit number 1 after it, if `falls_through`, and exit number 2
    /// [`Self::FAR`] bytes from its start: for branches.
    pub fn with_exits(body: &[u8], falls_through: bool) -> Self {
        Self::new(|start| {
            let mut code = body.to_vec();
            if falls_through {
                code.extend(exit(start + code.len() as u64, 1));
            }
            assert!(code.len() <= Self::FAR);
            code.resize(Self::FAR, 0xcc);
            code.extend(exit(start + Self::FAR as u64, 2));
            code
        })
    }

    /// Where the exit of a branch is, in bytes from the start.
    const FAR: usize = 32;

    /// A call of the function at `function`, and behind it exit number `number`.
    pub fn calling(function: u64, number: u32) -> Self {
        Self::new(|start| {
            let distance = (function.wrapping_sub(start + 5) as u32).to_le_bytes();
            [&[0xe8][..], &distance, &exit(start + 5, number)].concat()
        })
    }

    /// Calls it as a function.
    pub fn call(&self, a: u64, b: u64) -> u64 {
        let function = ptr::with_exposed_provenance::<()>(self.start as usize);
        // SAFETY: the test has placed a function there.
        let function: extern "C" fn(u64, u64) -> u64 = unsafe { core::mem::transmute(function) };
        function(a, b)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        text::remove(self.start);
    }
}

/// The general registers, numbered as in instructions, and RFLAGS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub bx: u64,
    pub sp: u64,
    pub bp: u64,
    pub si: u64,
    pub di: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub flags: u64,
}

impl Registers {
    /// The registers of a trap, without its ip.
    pub fn of(regs: &PtRegs) -> Self {
        Self {
            ax: regs.ax,
            cx: regs.cx,
            dx: regs.dx,
            bx: regs.bx,
            sp: regs.sp,
            bp: regs.bp,
            si: regs.si,
            di: regs.di,
            r8: regs.r8,
            r9: regs.r9,
            r10: regs.r10,
            r11: regs.r11,
            r12: regs.r12,
            r13: regs.r13,
            r14: regs.r14,
            r15: regs.r15,
            flags: regs.flags,
        }
    }

    /// Register number `n`, as in instructions.
    pub fn set(&mut self, n: usize, value: u64) {
        let all = [
            &mut self.ax,
            &mut self.cx,
            &mut self.dx,
            &mut self.bx,
            &mut self.sp,
            &mut self.bp,
            &mut self.si,
            &mut self.di,
            &mut self.r8,
            &mut self.r9,
            &mut self.r10,
            &mut self.r11,
            &mut self.r12,
            &mut self.r13,
            &mut self.r14,
            &mut self.r15,
        ];
        *all.into_iter().nth(n).expect("there are 16 registers") = value;
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At this exit.
    Exit(u32),
    /// In a fault, with its vector, at this address.
    Fault(u8, u64),
}

/// The results of a run.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    pub end: End,
    pub registers: Registers,
    /// The live words at the top of the stack.
    pub stack: Vec<u64>,
    pub data: Vec<u8>,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:x?} stack {:x?}",
            self.end, self.registers, self.stack
        )?;
        let changed: Vec<_> = (0..DATA_BYTES)
            .filter(|n| self.data[*n] != DATA_PATTERN(*n))
            .map(|n| (n, self.data[n]))
            .collect();
        write!(f, " data {changed:x?}")
    }
}

/// Bytes of memory that code may use as it likes, within 2 GiB of it.
pub const DATA_BYTES: usize = 4096;
/// The memory's contents at the start of a run.
const DATA_PATTERN: fn(usize) -> u8 = |n| (n * 7 + n / 256) as u8;

static DATA: Mutex<[u8; DATA_BYTES]> = Mutex::new([0; DATA_BYTES]);

/// The address of the memory.
pub fn data() -> u64 {
    DATA.lock().as_ptr().expose_provenance() as u64
}

/// State that is kept while code runs; [`RUN`] points here.
#[repr(C)]
struct Run {
    registers: Registers,
    host_sp: u64,
    fault: Option<(u8, u64)>,
}

/// The run that is under way: one at a time.
static RUN: AtomicPtr<Run> = AtomicPtr::new(ptr::null_mut());
/// Where it is entered, and a register while it is left.
static ENTRY: AtomicU64 = AtomicU64::new(0);
/// The exit by which it was left.
static EXIT: AtomicU32 = AtomicU32::new(0);

/// A place to run code on: a stack.
pub struct Bench {
    stack: Stack,
}

/// Words of the stack that are set before a run and compared after it.
const LIVE_WORDS: usize = 32;

impl Bench {
    /// A bench. The hook for exceptions is its own from now on.
    pub fn new() -> Self {
        traps::on_exception(take_fault);
        Self {
            stack: Stack::new(),
        }
    }

    /// Where RSP is at the start of a run: with 16 live words above it, 16-aligned.
    pub fn sp(&self) -> u64 {
        self.stack.range().end - LIVE_WORDS as u64 / 2 * 8
    }

    /// The end of its stack.
    pub fn end(&self) -> u64 {
        self.stack.range().end
    }

    /// Runs the code at `entry`, with [`Bench::sp`] for an RSP of 0.
    pub fn run(&mut self, entry: u64, mut registers: Registers) -> Outcome {
        let top = self.end();
        for (n, word) in self.stack.last_words(LIVE_WORDS).iter_mut().enumerate() {
            *word = 0x5157_0000 + n as u64;
        }
        for (n, byte) in DATA.lock().iter_mut().enumerate() {
            *byte = DATA_PATTERN(n);
        }
        if registers.sp == 0 {
            registers.sp = self.sp();
        }
        let mut run = Run {
            registers,
            host_sp: 0,
            fault: None,
        };
        ENTRY.store(entry, Relaxed);
        let outer = RUN.swap(&raw mut run, Release);
        // SAFETY: the test has placed code at `entry` that leaves by an exit or by a fault.
        unsafe { enter(&raw mut run) };
        RUN.store(outer, Release);
        // SAFETY: enter's callee has written through the pointer.
        let run = unsafe { (&raw const run).read_volatile() };
        let live = (top.saturating_sub(run.registers.sp) as usize / 8).min(LIVE_WORDS);
        Outcome {
            end: match run.fault {
                Some((vector, ip)) => End::Fault(vector, ip),
                None => End::Exit(EXIT.load(Relaxed)),
            },
            registers: run.registers,
            stack: self.stack.last_words(live).to_vec(),
            data: DATA.lock().to_vec(),
        }
    }
}

/// Code for the address `at` that leaves by exit number `exit` and changes nothing: 15 bytes.
pub fn exit(at: u64, exit: u32) -> Vec<u8> {
    let exit = exit.to_le_bytes();
    // mov dword ptr [rip + EXIT], exit: ten bytes; then jmp leave: five.
    let place = (EXIT.as_ptr().addr() as u64).wrapping_sub(at + 10) as u32;
    let leave = (leave as *const () as u64).wrapping_sub(at + 15) as u32;
    let (place, leave) = (place.to_le_bytes(), leave.to_le_bytes());
    [&[0xc7, 0x05][..], &place, &exit, &[0xe9], &leave].concat()
}

/// Ends a run at a fault of its code.
fn take_fault(regs: &mut PtRegs, vector: u8) -> bool {
    // SAFETY: while it is set, it points to the run that is under way, which waits for its end.
    let Some(run) = (unsafe { RUN.load(Acquire).as_mut() }) else {
        return false;
    };
    // Its own, or what it has jumped to; not the test's.
    if !text::places().contains(&regs.ip) && Kernel::symbol_at(regs.ip).is_some() {
        return false;
    }
    run.fault = Some((vector, regs.ip));
    regs.ip = leave as *const () as u64;
    true
}

/// The same while a debugger steps through the code, which lets it go on after each instruction.
pub fn take_fault_in_steps(regs: &mut PtRegs, vector: u8) -> bool {
    vector == traps::DEBUG || take_fault(regs, vector)
}

/// Loads the registers of `run` and jumps to [`ENTRY`]. Returns when [`leave`] is reached.
///
/// ```text
///   rsp at the call   return address
///   -0x08 .. -0x30    the caller's rbx, rbp, r12 to r15
///   -0x38             its flags                          <- `Run::host_sp`
/// ```
#[unsafe(naked)]
unsafe extern "C" fn enter(run: *mut Run) {
    naked_asm!(
        ".cfi_startproc",
        "push rbx; push rbp; push r12; push r13; push r14; push r15; pushfq",
        ".cfi_adjust_cfa_offset 56",
        "mov [rdi + {host_sp}], rsp",
        "push [rdi + 16 * 8]",
        "popfq",
        "mov rax, [rdi]",
        "mov rcx, [rdi + 1 * 8]",
        "mov rdx, [rdi + 2 * 8]",
        "mov rbx, [rdi + 3 * 8]",
        "mov rsp, [rdi + 4 * 8]",
        "mov rbp, [rdi + 5 * 8]",
        "mov rsi, [rdi + 6 * 8]",
        "mov r8, [rdi + 8 * 8]",
        "mov r9, [rdi + 9 * 8]",
        "mov r10, [rdi + 10 * 8]",
        "mov r11, [rdi + 11 * 8]",
        "mov r12, [rdi + 12 * 8]",
        "mov r13, [rdi + 13 * 8]",
        "mov r14, [rdi + 14 * 8]",
        "mov r15, [rdi + 15 * 8]",
        "mov rdi, [rdi + 7 * 8]",
        "jmp [rip + {entry}]",
        ".cfi_endproc",
        host_sp = const offset_of!(Run, host_sp),
        entry = sym ENTRY,
    )
}

/// Stores the registers in [`RUN`] and returns from [`enter`].
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    naked_asm!(
        ".cfi_startproc",
        "mov [rip + {entry}], rax",
        "mov rax, [rip + {run}]",
        "mov [rax + 1 * 8], rcx",
        "mov rcx, [rip + {entry}]",
        "mov [rax], rcx",
        "mov [rax + 2 * 8], rdx",
        "mov [rax + 3 * 8], rbx",
        "mov [rax + 4 * 8], rsp",
        "mov [rax + 5 * 8], rbp",
        "mov [rax + 6 * 8], rsi",
        "mov [rax + 7 * 8], rdi",
        "mov [rax + 8 * 8], r8",
        "mov [rax + 9 * 8], r9",
        "mov [rax + 10 * 8], r10",
        "mov [rax + 11 * 8], r11",
        "mov [rax + 12 * 8], r12",
        "mov [rax + 13 * 8], r13",
        "mov [rax + 14 * 8], r14",
        "mov [rax + 15 * 8], r15",
        "mov rsp, [rax + {host_sp}]",
        "pushfq",
        "pop [rax + 16 * 8]",
        // Rust code wants AC and DF clear, and interrupts as they were.
        "popfq; pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
        "ret",
        ".cfi_endproc",
        entry = sym ENTRY,
        run = sym RUN,
        host_sp = const offset_of!(Run, host_sp),
    )
}
