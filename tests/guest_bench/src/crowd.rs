//! 100,000 instructions for other probes to sit on: 32 of 3 bytes each in every function.

use alloc::vec::Vec;
use core::arch::global_asm;

use kernel::probes::{Kprobe, ProbeError, register_kprobes, unregister_kprobes};
use probes::kprobe::flags;

use crate::handlers::{Empty, Handlers};

const FUNCTIONS: usize = 3125;
const PER_FUNCTION: usize = 32;
const INSTRUCTION_BYTES: usize = 3;

/// How many instructions there are.
pub const SIZE: usize = FUNCTIONS * PER_FUNCTION;

global_asm!(
    r#"
    .pushsection .text.bench_crowd, "ax", @progbits
.macro crowd number
    .type bench_crowd_\number, @function
bench_crowd_\number:
    .rept {per_function}
    mov rax, rdi
    .endr
    ret
    .size bench_crowd_\number, . - bench_crowd_\number
.endm
    .globl bench_crowd
bench_crowd:
    .altmacro
    .set number, 0
    .rept {functions}
    crowd %number
    .set number, number + 1
    .endr
    .noaltmacro
    .popsection
    "#,
    functions = const FUNCTIONS,
    per_function = const PER_FUNCTION,
);

/// The address of instruction `n`.
fn address(n: usize) -> u64 {
    unsafe extern "C" {
        static bench_crowd: u8;
    }
    let function_bytes = PER_FUNCTION * INSTRUCTION_BYTES + 1;
    let offset = n / PER_FUNCTION * function_bytes + n % PER_FUNCTION * INSTRUCTION_BYTES;
    (&raw const bench_crowd) as u64 + offset as u64
}

/// A probe for each of the instructions, with an empty handler. Made once: it is never freed.
pub struct Crowd {
    probes: Vec<&'static Kprobe>,
    registered: usize,
}

impl Crowd {
    /// A crowd of `size` probes, none of them registered, one on each instruction.
    ///
    /// # Panics
    /// If there are fewer instructions.
    pub fn new(size: usize) -> Self {
        Self::on(0..size)
    }

    /// A crowd of `size` probes, none of them registered, with two free instructions after each:
    /// room for a jump of 5 bytes.
    ///
    /// # Panics
    /// If there are too few instructions.
    pub fn apart(size: usize) -> Self {
        let has_room = |n: &usize| (n % PER_FUNCTION).is_multiple_of(3);
        Self::on((0..SIZE).filter(has_room).take(size))
    }

    fn on(instructions: impl Iterator<Item = usize>) -> Self {
        let probe = |n| {
            assert!(n < SIZE, "there are {SIZE} instructions");
            Kprobe::new().at(address(n)).pre(Empty::pre)
        };
        let probes: Vec<Kprobe> = instructions.map(probe).collect();
        Self {
            probes: probes.leak().iter().collect(),
            registered: 0,
        }
    }

    /// How many of those that are registered are jumps.
    pub fn jumps(&self) -> usize {
        let is_jump = |probe: &&&Kprobe| probe.flags() & flags::OPTIMIZED != 0;
        self.probes.iter().filter(is_jump).count()
    }

    /// Registers further ones in one batch, until `count` are.
    ///
    /// # Errors
    /// That of the first probe that is refused.
    pub fn register_up_to(&mut self, count: usize) -> Result<(), ProbeError> {
        if count > self.registered {
            register_kprobes(&self.probes[self.registered..count])?;
            self.registered = count;
        }
        Ok(())
    }

    /// Unregisters all in one batch.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn unregister(&mut self) -> Result<(), ProbeError> {
        unregister_kprobes(&self.probes[..self.registered])?;
        self.registered = 0;
        Ok(())
    }
}
