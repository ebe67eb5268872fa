//! Code made at run time: any bytes, at any place, with a symbol, and run with any registers.
//!
//! [`Code`] puts bytes where they can be executed and probed. [`Bench::run`] enters them with given registers on a stack of
//! their own and tells what they have left behind, so that a probed run can be compared with a bare one. Code
//! ends at an exit of the bench, or in a fault.

use std::{
    arch::naked_asm,
    mem::offset_of,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use probes::{
    PtRegs,
    platform::{Symbol, Text},
};

use super::{
    cpu::{self, Cpu},
    lock, symbols,
    task::Stack,
    text::{PAGE, SCRATCH},
    traps,
};

/// Bytes that can be executed, as a function of their own. Gone when dropped.
pub struct Code {
    /// Where they are.
    pub start: u64,
}

/// How much of the region is in use; code of one test stays where it is until the test is over.
static USED: AtomicU64 = AtomicU64::new(0);

impl Code {
    /// Places what `make` returns for the address that it is given: at most 256 bytes.
    pub fn new(make: impl FnOnce(u64) -> Vec<u8>) -> Self {
        let range = SCRATCH.range();
        let offset = USED.fetch_add(256, Relaxed);
        let start = range.start + offset;
        assert!(start + 256 < range.end - PAGE as u64, "the region is full");
        let code = make(start);
        assert!(code.len() <= 256);
        Self::place(start, &code)
    }

    /// Places `code` so that its last byte is the last one that is mapped.
    pub fn at_the_end(code: &[u8]) -> Self {
        let end = SCRATCH.range().end - PAGE as u64;
        Self::place(end - code.len() as u64, code)
    }

    fn place(start: u64, code: &[u8]) -> Self {
        SCRATCH.fill(start, code);
        symbols::add(Symbol {
            start,
            size: code.len() as u64,
            text: Text::Kernel,
            exported: true,
        });
        Self { start }
    }

    /// Places `body` and an exit, number 1, behind it.
    pub fn with_exit(body: &[u8]) -> Self {
        Self::new(|start| [body, &exit(start + body.len() as u64, 1)].concat())
    }

    /// Calls it as a function.
    pub fn call(&self, a: u64, b: u64) -> u64 {
        let function = std::ptr::with_exposed_provenance::<()>(self.start as usize);
        // SAFETY: the test has placed a function there.
        let function: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(function) };
        function(a, b)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        symbols::remove(self.start);
    }
}

/// Forgets all places. No code is in use.
pub fn clear() {
    USED.store(0, Relaxed);
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

/// What a run has left behind.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    pub end: End,
    pub registers: Registers,
    /// The live words at the top of the stack.
    pub stack: Vec<u64>,
    pub data: Vec<u8>,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
/// What is in the memory at the start of a run.
const DATA_PATTERN: fn(usize) -> u8 = |n| (n * 7 + n / 256) as u8;

static DATA: Mutex<[u8; DATA_BYTES]> = Mutex::new([0; DATA_BYTES]);

/// The address of the memory.
pub fn data() -> u64 {
    lock(&DATA).as_ptr().expose_provenance() as u64
}

/// What a CPU needs while it runs code; [`Cpu::run`] points here.
#[repr(C)]
struct Run {
    registers: Registers,
    entry: u64,
    host_sp: u64,
    exit: u64,
    fault: Option<(u8, u64)>,
}

/// A place to run code on: a stack.
pub struct Bench {
    stack: Box<[u64]>,
    known: Stack,
}

/// Words of the stack that are set before a run and compared after it.
const LIVE_WORDS: usize = 32;

impl Bench {
    /// A bench. The hook for exceptions is its own from now on.
    pub fn new() -> Self {
        traps::on_exception(take_fault);
        let stack = vec![0u64; 32 * 1024].into_boxed_slice();
        let bounds = stack.as_ptr_range();
        Self {
            known: Stack::new(bounds.start.addr() as u64..bounds.end.addr() as u64),
            stack,
        }
    }

    /// Where RSP is at the start of a run: with 16 live words above it, 16-aligned.
    pub fn sp(&self) -> u64 {
        self.stack.as_ptr_range().end.addr() as u64 - LIVE_WORDS as u64 / 2 * 8
    }

    /// Runs the code at `entry`, with [`Bench::sp`] for an RSP of 0.
    pub fn run(&mut self, entry: u64, mut registers: Registers) -> Outcome {
        let words = self.stack.len();
        for (n, word) in self.stack[words - LIVE_WORDS..].iter_mut().enumerate() {
            *word = 0x5157_0000 + n as u64;
        }
        for (n, byte) in lock(&DATA).iter_mut().enumerate() {
            *byte = DATA_PATTERN(n);
        }
        if registers.sp == 0 {
            registers.sp = self.sp();
        }
        let mut run = Run {
            registers,
            entry,
            host_sp: 0,
            exit: 0,
            fault: None,
        };
        let cpu = cpu::this();
        let outer = cpu.run.swap((&raw mut run).cast(), Relaxed);
        // SAFETY: the test has placed code at `entry` that leaves by an exit or by a fault.
        unsafe { enter(&raw mut run) };
        cpu.run.store(outer, Relaxed);
        // SAFETY: enter's callee has written through the pointer.
        let run = unsafe { (&raw const run).read_volatile() };
        let top = self.stack.as_ptr_range().end.addr() as u64;
        let live = (top.saturating_sub(run.registers.sp) as usize / 8).min(LIVE_WORDS);
        Outcome {
            end: match run.fault {
                Some((vector, ip)) => End::Fault(vector, ip),
                None => End::Exit(run.exit as u32),
            },
            registers: run.registers,
            stack: self.stack[words - live..].to_vec(),
            data: lock(&DATA).to_vec(),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.known.forget();
    }
}

/// Code for the address `at` that leaves by exit number `exit` and changes nothing.
pub fn exit(at: u64, exit: u32) -> Vec<u8> {
    let place = (offset_of!(Cpu, run_exit) as u32).to_le_bytes();
    let store = [&[0x65, 0xc7, 0x04, 0x25][..], &place, &exit.to_le_bytes()].concat(); // mov dword ptr gs:[place], exit
    let leave = (leave as *const () as u64).wrapping_sub(at + store.len() as u64 + 5);
    [&store, &[0xe9][..], &(leave as u32).to_le_bytes()].concat() // jmp leave
}

/// Ends a run at a fault of its code.
fn take_fault(regs: &mut PtRegs, vector: u8) -> bool {
    // SAFETY: while it is set, it points to the run of this CPU, which waits for its end.
    let Some(run) = (unsafe { cpu::this().run.load(Relaxed).cast::<Run>().as_mut() }) else {
        return false;
    };
    // Its own, or what it has jumped to; not the test's.
    if !SCRATCH.range().contains(&regs.ip) && symbols::covering(regs.ip).is_some() {
        return false;
    }
    run.fault = Some((vector, regs.ip));
    regs.ip = leave as *const () as u64;
    true
}

/// Loads the registers of `run` and jumps to its code. Returns when [`leave`] is reached.
#[unsafe(naked)]
unsafe extern "C" fn enter(run: *mut Run) {
    naked_asm!(
        "push rbx; push rbp; push r12; push r13; push r14; push r15",
        "mov [rdi + {host_sp}], rsp",
        "mov rax, [rdi + {entry}]",
        "mov gs:[{cpu_entry}], rax",
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
        "jmp gs:[{cpu_entry}]",
        host_sp = const offset_of!(Run, host_sp),
        entry = const offset_of!(Run, entry),
        cpu_entry = const offset_of!(Cpu, run_entry),
    )
}

/// Stores the registers in this CPU's [`Run`] and returns from [`enter`].
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    naked_asm!(
        "mov gs:[{cpu_entry}], rax",
        "mov rax, gs:[{run}]",
        "mov [rax + 1 * 8], rcx",
        "mov rcx, gs:[{cpu_entry}]",
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
        "mov ecx, gs:[{cpu_exit}]",
        "mov [rax + {exit}], rcx",
        // Rust code wants AC and DF clear.
        "push 2",
        "popfq",
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
        "ret",
        cpu_entry = const offset_of!(Cpu, run_entry),
        cpu_exit = const offset_of!(Cpu, run_exit),
        run = const offset_of!(Cpu, run),
        host_sp = const offset_of!(Run, host_sp),
        exit = const offset_of!(Run, exit),
    )
}
