//! A program from its instructions to its result: verified, run by the interpreter, compiled, and
//! called as machine code.
//!
//! The program is a filter at the entry of a call: it lets calls through whose first argument is
//! above 4096. The interpreter is the judge of the machine code: both must say the same.

use std::ptr::null_mut;

use bpf::{Builder, Condition, ProgramKind, Reg, Verified, context::Register, verifier::verify};
use bpf_compiler::{Calls, Form, Machine, compile};
use bpf_interpreter::{TestMachine, run};

/// The filter: 0 for calls that are let through, else 1.
pub fn filter() -> Verified {
    let mut program = Builder::new(ProgramKind::Entry { data: 0 });
    let large = program.label();
    program
        .load_register(Reg::R2, Register::Di)
        .branch(Condition::Above, Reg::R2, 4096, large)
        .exit(1)
        .place(large)
        .exit(0);
    let program = program.finish().expect("each label is placed");
    // What the verifier takes reads nothing that it may not, and ends.
    verify(program).expect("the filter is right")
}

/// What the interpreter says of a call with this first argument.
pub fn interpreted(filter: &Verified, argument: u64) -> u64 {
    const MOST_STEPS: u64 = 100;
    let mut machine = TestMachine::new(filter.program());
    machine.registers[Register::Di as usize] = argument;
    run(filter.program(), &mut machine, MOST_STEPS).expect("the verifier has taken it")
}

/// The registers of the probed code, in the order of [`Register::ALL`].
type Context = [u64; Register::ALL.len()];
/// How the code of [`Form::Handler`] is called.
type Handler = extern "C" fn(*const (), &Context, *mut u8, u64, u64) -> u8;

/// Compiles the filter. Its code may be called for as long as the process runs.
fn compiled(filter: &Verified) -> Handler {
    // The filter has no maps, calls no helpers and loads nothing but its context. So of the machine
    // only this matters: that the code need not clear AC.
    let machine = Machine {
        cpu_number: 0,
        preempt_count: 0,
        running: 0,
        marks_of_running: 0,
        address_in_probe: 0,
        faults: 0,
        pid_tgid: None,
        clears_ac: false,
        calls: Calls::Far,
        not_recording: None,
        records_off: None,
        helper: &|_| 0,
        routine: &|_, _| None,
    };
    let code = compile(filter, Form::Handler, &[], &machine).expect("there is memory");
    assert!(code.relocations.is_empty() && !code.calls_helpers);
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: new memory, of which nothing else knows.
    let memory = unsafe { libc::mmap(null_mut(), code.bytes.len(), protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED, "no memory for the code");
    // SAFETY: the memory is as long as the code. It is a function of this type, as `Form::Handler`
    // says, which keeps to the C calling convention.
    unsafe {
        memory
            .cast::<u8>()
            .copy_from_nonoverlapping(code.bytes.as_ptr(), code.bytes.len());
        std::mem::transmute::<*mut libc::c_void, Handler>(memory)
    }
}

pub fn main() {
    let filter = filter();
    let handler = compiled(&filter);
    for argument in [0, 4096, 4097, u64::MAX] {
        let mut context: Context = [0; Register::ALL.len()];
        context[Register::Di as usize] = argument;
        let called = handler(null_mut(), &context, null_mut(), 0, 0);
        assert_eq!(u64::from(called), interpreted(&filter, argument));
        println!("an argument of {argument:#x}: {called}");
    }
}
