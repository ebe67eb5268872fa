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
use trace_interface::symbols::{Expression, Operation, Piece, Register, Source};

const BREAKPOINT: u8 = 0xcc;

/// See the module's text.
pub struct Process {
    child: Child,
    pid: Pid,
    memory: File,
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
        let child = unsafe { command.pre_exec(traced) }.spawn().unwrap();
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
        Self {
            child,
            pid,
            memory,
            breakpoints: HashMap::new(),
        }
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
        ptrace::getregs(self.pid).unwrap()
    }

    /// Runs to the next breakpoint, and returns the registers in front of its instruction. None is
    /// the end of the program.
    pub fn run(&mut self) -> Option<Registers> {
        self.step()?;
        if self.breakpoints.contains_key(&self.registers().rip) {
            return Some(self.registers());
        }
        ptrace::cont(self.pid, None).unwrap();
        if !self.stopped() {
            return None;
        }
        let mut registers = self.registers();
        registers.rip -= 1;
        assert!(self.breakpoints.contains_key(&registers.rip));
        ptrace::setregs(self.pid, registers).unwrap();
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
        ptrace::step(self.pid, None).unwrap();
        if !self.stopped() {
            return None;
        }
        if held.is_some() {
            self.write(at, BREAKPOINT);
        }
        Some(self.registers())
    }

    fn stopped(&self) -> bool {
        match waitpid(self.pid, None).unwrap() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => true,
            WaitStatus::Exited(_, status) => {
                assert_eq!(status, 0, "the fixture failed");
                false
            }
            other => panic!("the fixture failed: {other:?}"),
        }
    }

    /// The text that the program has written.
    pub fn output(mut self) -> String {
        let mut text = String::new();
        let mut pipe = self.child.stdout.take().unwrap();
        pipe.read_to_string(&mut text).unwrap();
        text
    }

    /// The bytes of a value. Those that are nowhere are `filling`.
    pub fn bytes(
        &self,
        pieces: &[Piece],
        filling: u8,
        registers: &Registers,
        at_entry: &Registers,
    ) -> Result<Vec<u8>, String> {
        let number = |expression| self.number(expression, registers, at_entry);
        let mut content = Vec::new();
        for piece in pieces {
            let bytes = piece.bytes as usize;
            match &piece.source {
                Source::Memory(address) => content.extend(self.read(number(address)?, bytes)?),
                Source::Value(value) => {
                    content.extend(&number(value)?.to_le_bytes()[..bytes]);
                }
                Source::Missing => content.extend(vec![filling; bytes]),
            }
        }
        Ok(content)
    }

    fn number(
        &self,
        expression: &Expression,
        registers: &Registers,
        at_entry: &Registers,
    ) -> Result<u64, String> {
        let number = |expression| self.number(expression, registers, at_entry);
        Ok(match expression {
            Expression::Constant(value) => *value,
            Expression::Register(name) => register(registers, *name),
            Expression::AtEntry(name) => register(at_entry, *name),
            Expression::Load { address, bytes } => {
                let mut word = [0; 8];
                let bytes = usize::from(*bytes);
                word[..bytes].copy_from_slice(&self.read(number(address)?, bytes)?);
                u64::from_le_bytes(word)
            }
            Expression::Binary(operation, a, b) => {
                let (a, b) = (number(a)?, number(b)?);
                match operation {
                    Operation::Add => a.wrapping_add(b),
                    Operation::Subtract => a.wrapping_sub(b),
                    Operation::Multiply => a.wrapping_mul(b),
                    Operation::And => a & b,
                    Operation::Or => a | b,
                    Operation::Xor => a ^ b,
                    Operation::ShiftLeft => a << b,
                    Operation::ShiftRight => a >> b,
                    Operation::ShiftRightSigned => (a.cast_signed() >> b).cast_unsigned(),
                }
            }
        })
    }
}

fn register(registers: &Registers, name: Register) -> u64 {
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
