//! Runs code from any state of the registers, in ring 3, and tells how it ended.
//!
//! The code is that of a program which has nothing but places for code, among breakpoints, and
//! memory. Whatever it does ends in an exception, which [`traps::set_program_exception_handler`]
//! brings to [`hold`]: there the program waits until it is told with which registers and memory it
//! is to go on.
//!
//! ```text
//!   0x401000  landing: breakpoints, and the entry; then the places      may be executed
//!   0x600000  four pages, and nothing around them                       may be written
//!   0x700000  four pages of stack, and nothing around them              may be written
//! ```
//!
//! # Contexts
//! One task at a time has a program, on a machine with one CPU.

use alloc::{vec, vec::Vec};
use core::{
    ops::Range,
    ptr::null_mut,
    sync::atomic::{
        AtomicI32, AtomicPtr, AtomicU8,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use kernel::{
    arch::{
        gdt,
        traps::{self, Exception},
    },
    fs::{self, NodeRef},
    mm::uaccess::{copy_from_user, copy_to_user},
    probes::PtRegs,
    task::{
        self, Comm, Pid, exec::start_program, exit::do_exit, process::Which, wait::wait_for_child,
        wait_queue::WaitQueue,
    },
    uprobes::hit::original_position,
};

use crate::instructions::{
    case_outcome::{Memory, WORDS},
    case_runner::Ending,
};

/// How many places for code there are.
pub const PLACES: usize = 256;
/// Bytes of one. No power of two, so that code in some of them crosses lines and pages.
const PLACE_BYTES: usize = 88;
const LANDING_BYTES: usize = 256;

const INT3: u8 = 0xcc;
const PAGE: u64 = 4096;
const TEXT: u64 = 0x40_1000;
const TEXT_BYTES: usize = LANDING_BYTES + PLACES * PLACE_BYTES;
/// Where the text is in the file.
const TEXT_OFFSET: u64 = PAGE;
const DATA: Range<u64> = 0x60_0000..0x60_4000;
const STACK: Range<u64> = 0x70_0000..0x70_4000;
const WINDOW_BYTES: u64 = 8 * WORDS as u64;
/// Below the end of the heap at its largest begin the slots of the probes.
pub const HEAP: Range<u64> = STACK.end..STACK.end + (64 << 20);

const PATH: &str = "/tmp/cases";
/// The name of its task.
const NAME: &str = "cases";

/// Addresses that all hold breakpoints.
pub fn landing() -> Range<u64> {
    TEXT..TEXT + LANDING_BYTES as u64
}

/// The addresses of place number `place`.
pub fn place(place: usize) -> Range<u64> {
    let start = TEXT + (LANDING_BYTES + place * PLACE_BYTES) as u64;
    start..start + PLACE_BYTES as u64
}

/// Pieces of memory that can be written: one in the middle, and one at each end, behind which
/// nothing is.
pub fn windows() -> [Range<u64>; 3] {
    let middle = DATA.start + 0x1800;
    [
        middle..middle + WINDOW_BYTES,
        DATA.start..DATA.start + WINDOW_BYTES,
        DATA.end - WINDOW_BYTES..DATA.end,
    ]
}

/// The part of the stack that is compared.
pub fn live_stack() -> Range<u64> {
    STACK.end - WINDOW_BYTES..STACK.end
}

/// Whether the program has memory at `address`.
pub fn is_mapped(address: u64) -> bool {
    let text = TEXT / PAGE * PAGE..(TEXT + TEXT_BYTES as u64).next_multiple_of(PAGE);
    let stack = task::exec::STACK_TOP - task::exec::STACK_BYTES..task::exec::STACK_TOP;
    let slots = HEAP.end..HEAP.end + (16 << 20);
    [text, DATA, STACK, stack, slots]
        .iter()
        .any(|range| range.contains(&address))
}

/// The file of a program with these pieces of code, each at its address (ELF-64 object file format,
/// figures 2 and 6).
fn file(code: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut text = vec![INT3; TEXT_BYTES];
    for (at, code) in code {
        let offset = (at - TEXT) as usize;
        text[offset..offset + code.len()].copy_from_slice(code);
    }
    let mut file = Vec::new();
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // An executable for x86_64.
    for half in [2_u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    // The entry, the program headers, no section headers.
    for word in [TEXT, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 3, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    const READ_EXECUTE: u32 = 5;
    const READ_WRITE: u32 = 6;
    let size = |range: &Range<u64>| range.end - range.start;
    for (flags, offset, address, in_file, in_memory) in [
        (
            READ_EXECUTE,
            TEXT_OFFSET,
            TEXT,
            TEXT_BYTES as u64,
            TEXT_BYTES as u64,
        ),
        (READ_WRITE, 0, DATA.start, 0, size(&DATA)),
        (READ_WRITE, 0, STACK.start, 0, size(&STACK)),
    ] {
        file.extend(1_u32.to_le_bytes());
        file.extend(flags.to_le_bytes());
        for word in [offset, address, address, in_file, in_memory, PAGE] {
            file.extend(word.to_le_bytes());
        }
    }
    file.resize(TEXT_OFFSET as usize, 0);
    file.extend(text);
    file
}

/// What the program is to do.
struct Run {
    start: PtRegs,
    /// Where its window is.
    window: u64,
    /// Before and after.
    memory: Memory,
    ending: Option<Ending>,
}

/// The run that is under way.
static RUN: AtomicPtr<Run> = AtomicPtr::new(null_mut());
/// The process of the program; 0: there is none.
static PROCESS: AtomicI32 = AtomicI32::new(0);
static STATE: AtomicU8 = AtomicU8::new(WAITS);
/// The program waits for its next run.
const WAITS: u8 = 0;
/// It is to begin with the run, or has begun.
const RUNS: u8 = 1;
/// It is to end.
const ENDS: u8 = 2;
/// It starts, and has not come to its first breakpoint.
const STARTS: u8 = 3;

static PROGRAM_WAITS: WaitQueue = WaitQueue::new();
static TEST_WAITS: WaitQueue = WaitQueue::new();

fn bytes_of(words: &mut [u64; WORDS]) -> &mut [u8] {
    // SAFETY: integers, whose bytes may be anything.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// Whether the running task is the program. When it comes here first, its pages are brought in:
/// faults tell whether a page is there.
fn is_ours() -> bool {
    let task = task::current();
    if STATE.load(Acquire) == STARTS && task.comm() == Comm::new(NAME) {
        PROCESS.store(task.pid(), Relaxed);
        let pages = DATA.chain(STACK).step_by(PAGE as usize);
        pages.for_each(|page| copy_to_user(page, &[0]).expect("it has the page"));
    }
    task.pid() == PROCESS.load(Relaxed)
}

/// Notes how the run under way has ended, waits for the next one and begins it, or ends the
/// program. False: this is another program.
fn hold(regs: &mut PtRegs, exception: &Exception) -> bool {
    if !is_ours() {
        return false;
    }
    if STATE.load(Acquire) == RUNS {
        // SAFETY: the test waits until the state says that the program does, with the run in its
        // frame.
        let run = unsafe { &mut *RUN.load(Relaxed) };
        let (ip, sp) = original_position(regs.ip, regs.sp);
        run.ending = Some(Ending {
            regs: PtRegs { ip, sp, ..*regs },
            exception: *exception,
        });
        let stack = live_stack().start;
        copy_from_user(bytes_of(&mut run.memory.window), run.window).expect("it has the window");
        copy_from_user(bytes_of(&mut run.memory.stack), stack).expect("it has the stack");
    }
    STATE.store(WAITS, Release);
    TEST_WAITS.wake_all();
    PROGRAM_WAITS.wait_until(|| STATE.load(Acquire) != WAITS);
    if STATE.load(Acquire) == ENDS {
        do_exit(0);
    }
    // SAFETY: as above.
    let run = unsafe { &mut *RUN.load(Relaxed) };
    let stack = live_stack().start;
    copy_to_user(run.window, bytes_of(&mut run.memory.window)).expect("it has the window");
    copy_to_user(stack, bytes_of(&mut run.memory.stack)).expect("it has the stack");
    *regs = PtRegs {
        cs: gdt::USER_CS.into(),
        ss: gdt::USER_DS.into(),
        ..run.start
    };
    true
}

/// A program of places with code. It ends when this is dropped.
pub struct Program {
    process: Pid,
}

impl Program {
    /// Starts the program with these pieces of code, each at its address in a place.
    pub fn start(code: &[(u64, Vec<u8>)]) -> Self {
        fs::install_file(PATH.as_bytes(), 0o755, file(code)).expect("there is room");
        traps::set_program_exception_handler(Some(hold));
        STATE.store(STARTS, Relaxed);
        let process = start_program(PATH, &[]).expect("it can be started");
        TEST_WAITS.wait_until(|| STATE.load(Acquire) == WAITS);
        Self { process }
    }

    /// The path of its file.
    pub fn path(&self) -> &'static str {
        PATH
    }

    /// Where the instruction at `address` is in its file.
    pub fn offset(&self, address: u64) -> u64 {
        TEXT_OFFSET + (address - TEXT)
    }

    /// Executes from `start`, with this memory in the window at `window` and on the stack, until an
    /// exception. Returns how it ended, and the memory then.
    pub fn run(&mut self, start: &PtRegs, window: u64, memory: &Memory) -> (Ending, Memory) {
        let mut run = Run {
            start: *start,
            window,
            memory: memory.clone(),
            ending: None,
        };
        RUN.store(&raw mut run, Relaxed);
        STATE.store(RUNS, Release);
        PROGRAM_WAITS.wake_all();
        TEST_WAITS.wait_until(|| STATE.load(Acquire) == WAITS);
        let ending = run.ending.take();
        (
            ending.expect("the program says how the run ended"),
            run.memory,
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        STATE.store(ENDS, Release);
        PROGRAM_WAITS.wake_all();
        let ended = wait_for_child(Which::Pid(self.process), false).expect("it is a child");
        let (_, status) = ended.expect("the wait waits");
        assert!(status.success(), "{status:?}");
        PROCESS.store(0, Relaxed);
        traps::set_program_exception_handler(None);
        fs::unlink(&NodeRef::root(), PATH.as_bytes()).expect("it is there");
    }
}
