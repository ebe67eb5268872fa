//! Running a program: memory from a file, arguments on the stack, registers for its start.
//!
//! A program is first loaded into a space of its own, and then takes the place of the old one. So
//! an error on the way leaves the caller as it was. The stack at its start (System V psABI, 3.4.1):
//!
//! ```text
//!   STACK_TOP ─► strings of the arguments and the environment
//!                auxiliary vector, ending with AT_NULL
//!                0
//!                envp[0] …
//!                0
//!                argv[0] …
//!   rsp ───────► argc                                             16-aligned
//! ```

use super::{
    Pid, Task,
    process::{self, Group, Process, Which},
    scheduler,
    sleep::sleep_ns,
    wait::{wait_for_child, wait_for_child_unless},
};
use crate::{
    arch::{
        PtRegs,
        gdt::{USER_CS, USER_DS},
    },
    errno::Errno,
    fs::{self, File, FileTable, NodeRef},
    mm::{
        frame::FRAME_SIZE,
        paging::{Protection, USER_END},
        uaccess::{get_user, strndup_from_user},
        user_space::{USER_START, UserSpace},
    },
    pr_debug, task,
    time::TICK_NS,
    uprobes::registry,
};
use abi::{WaitStatus, auxv, open, signal};
use alloc::{sync::Arc, vec::Vec};
use core::ffi::{CStr, c_char};
use elf_program::{Access, Executable, Segment};
use fallible::{push, try_vec};
use x86_64::registers::rflags::RFlags;

/// End of the stack: 64 KiB below the end of user memory.
pub const STACK_TOP: u64 = USER_END - 0xf000;
/// Size of the stack, in bytes. Its pages come when they are touched.
pub const STACK_BYTES: u64 = 256 << 10;
/// Most bytes that arguments and environment may take, their pointers included.
const ARGUMENTS_MAX: usize = 128 << 10;
/// Bytes of a pointer.
const WORD: usize = size_of::<u64>();

/// The arguments and the environment of a program: each string with its NUL.
#[derive(Default)]
struct Arguments {
    argv: Vec<Vec<u8>>,
    envp: Vec<Vec<u8>>,
    bytes: usize,
}

impl Arguments {
    /// Accounts for a string of `len` bytes and the pointer to it; E2BIG if they do not fit.
    fn charge(&mut self, len: usize) -> Result<(), Errno> {
        self.bytes += len + WORD;
        if self.bytes > ARGUMENTS_MAX {
            return Err(Errno::E2BIG);
        }
        Ok(())
    }

    /// Copies the strings of a null-terminated array of pointers in user memory; none if `array` is
    /// null.
    fn strings_from_user(&mut self, array: u64) -> Result<Vec<Vec<u8>>, Errno> {
        let mut strings = Vec::new();
        if array == 0 {
            return Ok(strings);
        }
        for at in (array..).step_by(WORD) {
            let pointer: u64 = get_user(at)?;
            if pointer == 0 {
                break;
            }
            let left = ARGUMENTS_MAX - self.bytes;
            let mut string = strndup_from_user(pointer, left).map_err(|errno| match errno {
                Errno::ENAMETOOLONG => Errno::E2BIG,
                other => other,
            })?;
            push(&mut string, 0)?;
            self.charge(string.len())?;
            push(&mut strings, string)?;
        }
        Ok(strings)
    }

    fn from_user(argv: u64, envp: u64) -> Result<Self, Errno> {
        let mut arguments = Self::default();
        arguments.argv = arguments.strings_from_user(argv)?;
        arguments.envp = arguments.strings_from_user(envp)?;
        Ok(arguments)
    }

    /// Takes the program's path and `args` as its arguments, with an empty environment. EINVAL for
    /// a string with a NUL.
    fn from_kernel(path: &str, args: &[&str]) -> Result<Self, Errno> {
        let mut arguments = Self::default();
        for arg in [path].iter().chain(args) {
            if arg.contains('\0') {
                return Err(Errno::EINVAL);
            }
            arguments.charge(arg.len() + 1)?;
            arguments.argv.push([arg.as_bytes(), &[0]].concat());
        }
        Ok(arguments)
    }

    /// Lays everything out below [`STACK_TOP`]. Returns the address of `argc` and the bytes from
    /// there on.
    fn layout(&self, program: &Executable) -> Result<(u64, Vec<u8>), Errno> {
        let strings: usize = self.argv.iter().chain(&self.envp).map(Vec::len).sum();
        let auxiliary = [
            (auxv::PAGESZ, FRAME_SIZE as u64),
            (auxv::ENTRY, program.entry),
            (auxv::NULL, 0),
        ];
        let words = 1 + self.argv.len() + 1 + self.envp.len() + 1 + 2 * auxiliary.len();
        let total = (words * WORD + strings).next_multiple_of(16);
        let start = STACK_TOP - total as u64;

        let mut bytes = try_vec(total)?;
        let mut string = start + (words * WORD) as u64;
        let mut push_word = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
        push_word(self.argv.len() as u64);
        for strings in [&self.argv, &self.envp] {
            for s in strings {
                push_word(string);
                string += s.len() as u64;
            }
            push_word(0);
        }
        for (kind, value) in auxiliary {
            push_word(kind);
            push_word(value);
        }
        for s in self.argv.iter().chain(&self.envp) {
            bytes.extend_from_slice(s);
        }
        bytes.resize(total, 0);
        Ok((start, bytes))
    }
}

/// A program in memory, ready to start.
struct Loaded {
    space: Arc<UserSpace>,
    regs: PtRegs,
}

/// Loads the program at `path` with `arguments`. ENOENT, EACCES, ENOEXEC or ENOMEM, among others.
fn load(cwd: &NodeRef, path: &[u8], arguments: &Arguments) -> Result<Loaded, Errno> {
    let file = File::open(cwd, path, open::RDONLY, 0)?;
    file.permit_execution()?;
    let mut start = try_vec(FRAME_SIZE)?;
    start.resize(FRAME_SIZE, 0);
    let len = file.read_at(0, &mut start)?;
    let program =
        Executable::parse(&start[..len], USER_START..STACK_TOP - STACK_BYTES).map_err(|error| {
            pr_debug!("{}: {error}", path.escape_ascii());
            match error {
                elf_program::Error::OutOfMemory => Errno::ENOMEM,
                _ => Errno::ENOEXEC,
            }
        })?;
    let space = UserSpace::new()?;
    space.set_program(file.node().number());
    for segment in &program.segments {
        load_segment(&space, &file, segment)?;
    }
    space.start_heap(program.end());
    space.add_region(STACK_TOP - STACK_BYTES..STACK_TOP, Protection::ReadWrite)?;
    let (sp, stack) = arguments.layout(&program)?;
    space.fill(sp..STACK_TOP, |piece, at| {
        piece.copy_from_slice(&stack[at as usize..][..piece.len()]);
        Ok(())
    })?;
    Ok(Loaded {
        space: Arc::new(space),
        regs: PtRegs {
            ip: program.entry,
            sp,
            cs: USER_CS.into(),
            ss: USER_DS.into(),
            flags: RFlags::INTERRUPT_FLAG.bits() | 2, // bit 1 always reads as set
            orig_ax: u64::MAX,
            ..PtRegs::default()
        },
    })
}

/// Copies one segment from the file. ENOEXEC if the file is shorter than it says.
fn load_segment(space: &UserSpace, file: &File, segment: &Segment) -> Result<(), Errno> {
    let protection = match segment.access {
        Access { write: true, .. } => Protection::ReadWrite,
        Access { execute: true, .. } => Protection::ReadExecute,
        Access { .. } => Protection::Read,
    };
    space.add_region(segment.pages(), protection)?;
    let start = segment.memory.start;
    space.note_file(
        file.node().number(),
        segment.file_offset,
        start..start + segment.file_bytes,
    )?;
    space.fill(start..start + segment.file_bytes, |piece, at| {
        match file.read_at(segment.file_offset + at, piece)? {
            read if read == piece.len() => Ok(()),
            _ => Err(Errno::ENOEXEC),
        }
    })
}

/// The name of a task that runs the program at `path`.
fn comm(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Replaces the program of the running process by the one at `filename`, with the arguments and
/// environment that `argv` and `envp` point to in user memory. Changes `regs` so that the return
/// from the system call starts it, and returns 0. On failure returns a negated errno, and nothing
/// has changed.
///
/// # Safety
/// 1. `filename` points to a NUL-terminated string in kernel memory.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn do_execve(
    filename: *const c_char,
    argv: u64,
    envp: u64,
    regs: &mut PtRegs,
) -> i64 {
    // SAFETY: by (1).
    let path = unsafe { CStr::from_ptr(filename) };
    match exec(path, argv, envp, regs) {
        Ok(()) => 0,
        Err(errno) => errno.negated(),
    }
}

fn exec(path: &CStr, argv: u64, envp: u64, regs: &mut PtRegs) -> Result<(), Errno> {
    let task = task::current();
    let arguments = Arguments::from_user(argv, envp)?;
    let loaded = load(&task.process.cwd(), path.to_bytes(), &arguments)?;
    registry::program_starts(&loaded.space, task.pid())?;
    // SAFETY: (1) by the type of `path`.
    unsafe { begin_new_exec(path.as_ptr(), &loaded, regs) };
    Ok(())
}

/// Replaces the program of the running process by the one that is loaded from `filename`. This
/// cannot fail. A function of its own, because a tracer looks for it.
///
/// # Safety
/// 1. `filename` points to a NUL-terminated string in kernel memory.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn begin_new_exec(filename: *const c_char, loaded: &Loaded, regs: &mut PtRegs) {
    // SAFETY: by (1).
    let path = unsafe { CStr::from_ptr(filename) }.to_bytes();
    let task = task::current();
    task.process.files.close_on_exec();
    task.set_comm(comm(path));
    drop(task.set_user_space(Some(loaded.space.clone())));
    registry::program_ends();
    *regs = PtRegs {
        // The number of the system call, which a tracer reads when it returns.
        orig_ax: regs.orig_ax,
        ..loaded.regs
    };
}

/// Starts the program at `path` as a child of the running task, in a group of its own and in the
/// task's working directory, with the console as its standard files. Its arguments are its path and
/// `args`. Returns its pid. Task context.
pub fn start_program(path: &str, args: &[&str]) -> Result<Pid, Errno> {
    start_in_group(path, args, Group::fresh())
}

fn start_in_group(path: &str, args: &[&str], group: Group) -> Result<Pid, Errno> {
    let arguments = Arguments::from_kernel(path, args)?;
    let cwd = task::current().process.cwd();
    let loaded = load(&cwd, path.as_bytes(), &arguments)?;
    let console = fs::open("/dev/console", open::RDWR)?;
    let process = Process::new(FileTable::with_standard(console), Some(cwd), group);
    let space = loaded.space.clone();
    let child = Task::new_user(comm(path.as_bytes()), &loaded.regs, loaded.space, process)?;
    registry::program_starts(&space, child.pid())?;
    drop(space);
    process::add(child.clone(), task::current())?;
    let pid = child.pid();
    scheduler::start(child);
    Ok(pid)
}

/// Runs the program at `path` with `args` as [`start_program`] does and waits for its end.
pub fn run_program(path: &str, args: &[&str]) -> Result<WaitStatus, Errno> {
    let pid = start_program(path, args)?;
    match wait_for_child(Which::Pid(pid), false)? {
        Some((_, status)) => Ok(status),
        None => Err(Errno::ECHILD),
    }
}

/// The same, but ends the program and all processes that come from it as soon as `is_to_stop` is
/// true. The code that makes it true has to wake the task.
pub fn run_program_until(
    path: &str,
    args: &[&str],
    is_to_stop: impl Fn() -> bool,
) -> Result<WaitStatus, Errno> {
    let group = Group::fresh();
    let which = Which::Pid(start_in_group(path, args, group)?);
    if let Some((_, status)) = wait_for_child_unless(which, &is_to_stop)? {
        return Ok(status);
    }
    process::kill_group(group, signal::INT);
    let ended = wait_for_child(which, false)?;
    // A process that was being forked meanwhile has a parent that is gone.
    while process::kill_group(group, signal::INT) {
        sleep_ns(TICK_NS);
    }
    ended.map(|(_, status)| status).ok_or(Errno::ECHILD)
}
