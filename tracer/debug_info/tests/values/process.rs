//! A program under the test's control: it stops where the test wants, and its registers and memory
//! can be read.
//!
//! The test is its tracer (`ptrace`), so all calls come from the thread that has started it. A
//! breakpoint is one byte in its memory. The byte that was there comes back while its instruction
//! is executed.

use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    os::unix::{fs::FileExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
};

use nix::{
    libc::user_regs_struct,
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use trace_interface::symbols::Register;

const BREAKPOINT: u8 = 0xcc;

/// See the module's text.
pub struct Process {
    /// Reads what the program writes, so that it never waits for a reader.
    output: JoinHandle<String>,
    child: Child,
    pub memory: File,
    /// The bytes in whose place breakpoints are.
    breakpoints: HashMap<u64, u8>,
}

pub type Registers = user_regs_struct;

impl Process {
    /// Starts a program and stops it in front of its first instruction.
    pub fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        command.stdout(Stdio::piped());
        let traced = || ptrace::traceme().map_err(std::io::Error::from);
        // SAFETY: the closure makes one system call and touches no memory of the parent.
        let mut child = unsafe { command.pre_exec(traced) }.spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert_eq!(
            waitpid(pid, None).unwrap(),
            WaitStatus::Stopped(pid, Signal::SIGTRAP)
        );
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        });
        Self {
            output,
            child,
            memory,
            breakpoints: HashMap::new(),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let mut content = vec![0; bytes];
        match self.memory.read_exact_at(&mut content, address) {
            Ok(()) => Ok(content),
            Err(error) => Err(format!("{bytes} bytes at {address:#x}: {error}")),
        }
    }

    fn write(&self, address: u64, byte: u8) {
        self.memory.write_all_at(&[byte], address).unwrap();
    }

    pub fn stop_at(&mut self, address: u64) {
        if !self.breakpoints.contains_key(&address) {
            let byte = self.read(address, 1).unwrap()[0];
            self.breakpoints.insert(address, byte);
            self.write(address, BREAKPOINT);
        }
    }

    pub fn registers(&self) -> Registers {
        ptrace::getregs(self.pid()).unwrap()
    }

    /// Runs to the next breakpoint, and returns the registers in front of its instruction. None is
    /// the end of the program.
    pub fn run(&mut self) -> Option<Registers> {
        self.step()?;
        if self.breakpoints.contains_key(&self.registers().rip) {
            return Some(self.registers());
        }
        ptrace::cont(self.pid(), None).unwrap();
        if !self.stopped() {
            return None;
        }
        let mut registers = self.registers();
        registers.rip -= 1;
        assert!(self.breakpoints.contains_key(&registers.rip));
        ptrace::setregs(self.pid(), registers).unwrap();
        Some(registers)
    }

    /// Executes one instruction, and returns the registers after it. None is the end of the
    /// program.
    pub fn step(&mut self) -> Option<Registers> {
        let at = self.registers().rip;
        let held = self.breakpoints.get(&at).copied();
        if let Some(byte) = held {
            self.write(at, byte);
        }
        ptrace::step(self.pid(), None).unwrap();
        if !self.stopped() {
            return None;
        }
        if held.is_some() {
            self.write(at, BREAKPOINT);
        }
        Some(self.registers())
    }

    fn stopped(&self) -> bool {
        match waitpid(self.pid(), None).unwrap() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => true,
            WaitStatus::Exited(_, status) => {
                assert_eq!(status, 0, "the fixture failed");
                false
            }
            other => panic!("the fixture failed: {other:?}"),
        }
    }

    /// The text that the program has written.
    pub fn output(self) -> String {
        self.output.join().unwrap()
    }
}

pub fn register(registers: &Registers, name: Register) -> u64 {
    match name {
        Register::R15 => registers.r15,
        Register::R14 => registers.r14,
        Register::R13 => registers.r13,
        Register::R12 => registers.r12,
        Register::Bp => registers.rbp,
        Register::Bx => registers.rbx,
        Register::R11 => registers.r11,
        Register::R10 => registers.r10,
        Register::R9 => registers.r9,
        Register::R8 => registers.r8,
        Register::Ax => registers.rax,
        Register::Cx => registers.rcx,
        Register::Dx => registers.rdx,
        Register::Si => registers.rsi,
        Register::Di => registers.rdi,
        Register::OrigAx => registers.orig_rax,
        Register::Ip => registers.rip,
        Register::Cs => registers.cs,
        Register::Flags => registers.eflags,
        Register::Sp => registers.rsp,
        Register::Ss => registers.ss,
    }
}
