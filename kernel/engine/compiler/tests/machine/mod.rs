//! Runs compiled programs in this process, as a probe's hit would.
//!
//! A driver loads all registers and flags with patterns, calls the code, and stores what is in them
//! afterwards. The GS base points to a CPU's data. Helpers are thunks that check what a C function
//! may expect, and leave garbage in all registers that one may change. A load that faults comes to
//! a signal handler, which mends it as a kernel would; where the world of the test has memory, it
//! puts in what is there, because a process has none of the kernel's addresses.
//!
//! The worlds of the interpreter and of the machine code begin alike, and are compared afterwards.

#![allow(dead_code, reason = "each test file uses a part")]

mod helpers;
mod time_limit;

use std::{
    arch::global_asm,
    collections::BTreeMap,
    ptr::{addr_of, addr_of_mut, null_mut},
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use bpf::{
    Helper, Insn, Kind, MapDef, MapIndex, MapKind, Operand, Program, Reg, Size, Target, Verified,
    context::Register,
};
use bpf_compiler::{
    Array, BreakpointFrame, Calls, Code, CompileError, Form, Given, Machine, MapRuntime, PerCpu,
    PidTgid, Routine, Sample, compile, mend,
};
use bpf_interpreter::{Addresses, Environment, TestMachine};

/// The forms of a program of a probe.
pub const FORMS: [Form; 6] = [
    Form::Jump {
        flags_live: false,
        aligned: true,
    },
    Form::Jump {
        flags_live: false,
        aligned: false,
    },
    Form::Jump {
        flags_live: true,
        aligned: true,
    },
    Form::Jump {
        flags_live: true,
        aligned: false,
    },
    Form::Breakpoint,
    Form::Handler,
];

/// Registers by number, then the flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registers {
    gpr: [u64; 16],
    flags: u64,
}

const AX: usize = 0;
const CX: usize = 1;
const DX: usize = 2;
const BX: usize = 3;
const SP: usize = 4;
const BP: usize = 5;
const SI: usize = 6;
const DI: usize = 7;

static mut INPUT: Registers = Registers {
    gpr: [0; 16],
    flags: 0,
};
static mut OUTPUT: Registers = Registers {
    gpr: [0; 16],
    flags: 0,
};
static mut TARGET: u64 = 0;
static mut SAVED_SP: u64 = 0;

global_asm!(
    ".globl bpf_test_enter, bpf_test_back, bpf_test_helper",
    "bpf_test_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rip + {saved}], rsp",
    "push [rip + {input} + 128]",
    "popfq",
    "mov rax, [rip + {input}]",
    "mov rcx, [rip + {input} + 8]",
    "mov rdx, [rip + {input} + 16]",
    "mov rbx, [rip + {input} + 24]",
    "mov rsp, [rip + {input} + 32]",
    "mov rbp, [rip + {input} + 40]",
    "mov rsi, [rip + {input} + 48]",
    "mov rdi, [rip + {input} + 56]",
    "mov r8, [rip + {input} + 64]",
    "mov r9, [rip + {input} + 72]",
    "mov r10, [rip + {input} + 80]",
    "mov r11, [rip + {input} + 88]",
    "mov r12, [rip + {input} + 96]",
    "mov r13, [rip + {input} + 104]",
    "mov r14, [rip + {input} + 112]",
    "mov r15, [rip + {input} + 120]",
    "jmp [rip + {target}]",
    "bpf_test_back:",
    "mov [rip + {output}], rax",
    "mov [rip + {output} + 8], rcx",
    "mov [rip + {output} + 16], rdx",
    "mov [rip + {output} + 24], rbx",
    "mov [rip + {output} + 32], rsp",
    "mov [rip + {output} + 40], rbp",
    "mov [rip + {output} + 48], rsi",
    "mov [rip + {output} + 56], rdi",
    "mov [rip + {output} + 64], r8",
    "mov [rip + {output} + 72], r9",
    "mov [rip + {output} + 80], r10",
    "mov [rip + {output} + 88], r11",
    "mov [rip + {output} + 96], r12",
    "mov [rip + {output} + 104], r13",
    "mov [rip + {output} + 112], r14",
    "mov [rip + {output} + 120], r15",
    "mov rsp, [rip + {saved}]",
    "pushfq",
    "pop [rip + {output} + 128]",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    // From a thunk that has put the helper's number into eax.
    "bpf_test_helper:",
    "pushfq",
    "cld",
    "push r8",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "mov edi, eax",
    "mov rsi, rsp",
    "mov rdx, [rsp + 40]",
    "lea rcx, [rsp + 48]",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    "call {helper}",
    "mov rsp, rbp",
    "pop rbp",
    "add rsp, 48",
    "movabs rcx, 0x5a5a5a5a5a5a5a5a",
    "mov rdx, rcx",
    "mov rsi, rcx",
    "mov rdi, rcx",
    "mov r8, rcx",
    "mov r9, rcx",
    "mov r10, rcx",
    "mov r11, rcx",
    "cmp rcx, 0",
    "ret",
    saved = sym SAVED_SP,
    input = sym INPUT,
    output = sym OUTPUT,
    target = sym TARGET,
    helper = sym helpers::enter,
);

unsafe extern "C" {
    fn bpf_test_enter();
    fn bpf_test_back();
    fn bpf_test_helper();
}

/// The data of the CPU that the GS base points to.
#[repr(C, align(64))]
struct Cpu {
    own_address: u64,
    number: u32,
    preempt_count: u32,
    faults: u64,
    records_off: u64,
    pid: u32,
    between: u32,
    tgid: u32,
    /// The same two, side by side.
    pid_of_both: u32,
    tgid_of_both: u32,
    /// Added to an array's base by [`PerCpu::Word`].
    part: u64,
    /// Arrays of [`PerCpu::Gs`].
    arrays: [u8; ARRAYS],
}

const ARRAYS: usize = 1 << 16;
const HIGH: usize = 1 << 28;
const CODE_BYTES: usize = 1 << 20;
const STACK_BYTES: usize = 1 << 16;
/// The handle of map 0; each next one is 1 higher.
const HANDLES: u64 = 0xffff_8000_0bad_0000;
pub const CPUS: u32 = 4;

/// The memory that all runs share.
struct Place {
    code: *mut u8,
    stack: *mut u8,
    cpu: Box<Cpu>,
    /// Below 2 GiB, so that it is addressed without a register.
    low: *mut u8,
    /// Anywhere.
    high: *mut u8,
    /// A signal's stack, because that of the code may be odd.
    signals: *mut u8,
    thunks: BTreeMap<u32, u64>,
    /// The same helpers, but they keep what a [`Routine`] keeps.
    routines: BTreeMap<u32, u64>,
}

// SAFETY: the mutex lets one thread at a time use it.
unsafe impl Send for Place {}

static PLACE: Mutex<Option<Place>> = Mutex::new(None);
/// The world of the run, for helpers and signals; null between runs.
static mut WORLD: *mut World = null_mut();
static mut CODE: (u64, u64) = (0, 0);

fn map_memory(bytes: usize, flags: i32) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let memory = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

impl Place {
    fn new() -> Self {
        let code = map_memory(CODE_BYTES, 0);
        let mut thunks = BTreeMap::new();
        let mut routines = BTreeMap::new();
        let mut at = CODE_BYTES - 0x2000;
        let mut routine_at = CODE_BYTES - 0x1000;
        for helper in Helper::ALL {
            // mov eax, number; jmp [rip]; address
            let mut thunk = vec![0xb8];
            thunk.extend(helper.number().to_le_bytes());
            thunk.extend([0xff, 0x25, 0, 0, 0, 0]);
            thunk.extend((bpf_test_helper as *const () as u64).to_le_bytes());
            // SAFETY: inside the mapping, behind all code.
            unsafe { code.add(at).copy_from(thunk.as_ptr(), thunk.len()) };
            thunks.insert(helper.number(), code as u64 + at as u64);
            // push rbp; mov rbp, rsp; push r8 to r11; and rsp, -16; call thunk;
            // mov r8 to r11, [rbp - 8 …]; leave; ret
            let mut routine = vec![0x55, 0x48, 0x89, 0xe5];
            routine.extend([0x41, 0x50, 0x41, 0x51, 0x41, 0x52, 0x41, 0x53]);
            routine.extend([0x48, 0x83, 0xe4, 0xf0, 0xe8]);
            let distance = at as i32 - (routine_at + routine.len() + 4) as i32;
            routine.extend(distance.to_le_bytes());
            routine.extend([0x4c, 0x8b, 0x45, 0xf8, 0x4c, 0x8b, 0x4d, 0xf0]);
            routine.extend([0x4c, 0x8b, 0x55, 0xe8, 0x4c, 0x8b, 0x5d, 0xe0, 0xc9, 0xc3]);
            // SAFETY: as above, behind all thunks.
            unsafe {
                code.add(routine_at)
                    .copy_from(routine.as_ptr(), routine.len())
            };
            routines.insert(helper.number(), code as u64 + routine_at as u64);
            at += 32;
            routine_at += 64;
        }
        // SAFETY: all of it are numbers.
        let cpu = unsafe { Box::<Cpu>::new_zeroed().assume_init() };
        Self {
            code,
            stack: map_memory(STACK_BYTES, 0),
            cpu,
            low: map_memory(ARRAYS + 0x1000, libc::MAP_32BIT),
            high: map_memory(HIGH, 0),
            signals: map_memory(STACK_BYTES, 0),
            thunks,
            routines,
        }
    }

    /// The word that says whether records are taken: behind the low arrays.
    fn not_recording(&self) -> *mut u32 {
        self.low.wrapping_add(ARRAYS).cast()
    }

    /// Makes the calling thread the CPU.
    fn adopt_thread(&self) {
        const ARCH_SET_GS: i32 = 0x1001;
        let stack = libc::stack_t {
            ss_sp: self.signals.cast(),
            ss_flags: 0,
            ss_size: STACK_BYTES,
        };
        let base = &raw const *self.cpu as u64;
        // SAFETY: nothing else in this thread uses GS; the memory stays.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base), 0);
            assert_eq!(libc::sigaltstack(&raw const stack, null_mut()), 0);
        }
    }
}

/// One array of the machine code's world.
struct ArrayMemory {
    array: Array,
    /// Where the part of each CPU is, or of all.
    parts: Vec<*mut u8>,
    bytes: usize,
    /// The content at the end of the run, because the next run uses the same memory.
    found: Vec<Option<Vec<u8>>>,
}

/// The world of the machine code.
pub struct World {
    pub machine: TestMachine,
    maps: Vec<MapDef>,
    arrays: Vec<Option<ArrayMemory>>,
    records: Vec<helpers::Record>,
    /// Mistakes that a helper found.
    pub errors: Vec<String>,
    sample: Sample,
    cpu: *const Cpu,
    counts_preemption: bool,
    pub calls: usize,
}

/// How the outside of a program is laid out; any number will do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant(pub u64);

impl Variant {
    fn pick(self, what: u32, choices: u64) -> u64 {
        (self.0 >> (what % 32 * 2)) % choices
    }
}

extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const NUMBERS: [i32; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    // SAFETY: the kernel gives the context. The world is there while code runs, and the code that
    // was interrupted does not hold a reference to it.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let registers = &mut context.uc_mcontext.gregs;
        let ip = registers[libc::REG_RIP as usize] as u64;
        let (start, end) = CODE;
        if (start..end).contains(&ip) && *(ip as *const [u8; 2]) == [0x0f, 0x31] {
            let now = (*WORLD).machine.tsc();
            registers[libc::REG_RAX as usize] = i64::from(now as u32);
            registers[libc::REG_RDX as usize] = (now >> 32) as i64;
            registers[libc::REG_RIP as usize] = (ip + 2) as i64;
            return;
        }
        let mended = if (start..end).contains(&ip) && !WORLD.is_null() {
            mend(&*(ip as *const [u8; 8]))
        } else {
            None
        };
        let Some(mended) = mended else {
            // Happens again, and kills the process.
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            return;
        };
        let bytes = std::slice::from_raw_parts(ip as *const u8, 8);
        let insn = iced_x86::Decoder::with_ip(64, bytes, ip, 0).decode();
        assert_eq!(insn.len(), usize::from(mended.length));
        let base = insn.memory_base().full_register().number();
        let base = registers[NUMBERS[base] as usize] as u64;
        let address = base.wrapping_add(insn.memory_displacement64());
        let size = match insn.memory_size().size() {
            1 => Size::B1,
            2 => Size::B2,
            4 => Size::B4,
            _ => Size::B8,
        };
        let raw = (*WORLD).machine.kernel_load(address, size);
        let signed = insn.memory_size().is_signed();
        let shift = 64 - size.bytes() * 8;
        let value = match signed {
            true => ((raw << shift) as i64 >> shift) as u64,
            false => raw,
        };
        registers[NUMBERS[usize::from(mended.register)] as usize] = value as i64;
        registers[libc::REG_RIP as usize] = (ip + u64::from(mended.length)) as i64;
    }
}

fn place() -> MutexGuard<'static, Option<Place>> {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler fits the flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigaction(libc::SIGSEGV, &raw const action, null_mut());
            libc::sigaction(libc::SIGBUS, &raw const action, null_mut());
        }
    });
    PLACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of a program's arrays, laid out as `variant` says.
fn arrays(maps: &[MapDef], place: &Place, variant: Variant) -> Vec<Option<ArrayMemory>> {
    let (mut low, mut high) = (place.low, place.high);
    let mut gs = (&raw const place.cpu.arrays).cast_mut().cast::<u8>();
    let own = &raw const *place.cpu as u64;
    let end = high.wrapping_add(HIGH);
    let array = |(number, def): (usize, &MapDef)| {
        let per_cpu = match def.kind {
            MapKind::Array => false,
            MapKind::PerCpuArray => true,
            _ => return None,
        };
        let stride = def.value_size.next_multiple_of(8);
        let bytes = (stride * def.entries) as usize;
        let shift = (bytes.max(64) as u64).next_power_of_two().trailing_zeros();
        let parts = if per_cpu { CPUS as usize } else { 1 };
        let total = parts << shift;
        let choice = variant.pick(number as u32, 4);
        let is_small = total <= ARRAYS / 8;
        let memory = match choice {
            0 if is_small => {
                let memory = low;
                low = low.wrapping_add(total);
                memory
            }
            2 if is_small && per_cpu => {
                let memory = gs;
                gs = gs.wrapping_add(bytes.next_multiple_of(64));
                memory
            }
            _ => {
                let memory = high;
                high = high.wrapping_add(total);
                memory
            }
        };
        assert!(high <= end, "the maps fit");
        // SAFETY: at least so many bytes, of which none is in use.
        unsafe { memory.write_bytes(0, if choice == 2 { bytes } else { total }) };
        let base = memory as u64;
        let cpu = u64::from(place.cpu.number);
        let part = |number: u64| memory.wrapping_add((number << shift) as usize);
        let mut parts: Vec<_> = (0..parts as u64).map(part).collect();
        let (base, cpu) = match (per_cpu, choice) {
            (false, _) => (base, PerCpu::Shared),
            (true, 0 | 1) => (base, PerCpu::Shift(shift as u8)),
            (true, 2) => {
                parts = vec![null_mut(); CPUS as usize];
                parts[cpu as usize] = memory;
                let own_address = std::mem::offset_of!(Cpu, own_address) as i32;
                (base.wrapping_sub(own), PerCpu::Gs { own_address })
            }
            (true, _) => {
                let at = std::mem::offset_of!(Cpu, part) as i32;
                let base = (parts[cpu as usize] as u64).wrapping_sub(place.cpu.part);
                (base, PerCpu::Word(at))
            }
        };
        Some(ArrayMemory {
            array: Array {
                handle: HANDLES + number as u64,
                base,
                cpu,
                stride,
                entries: def.entries,
            },
            parts,
            bytes,
            found: Vec::new(),
        })
    };
    maps.iter().enumerate().map(array).collect()
}

/// Compiles `program`.
pub fn compiled(program: &Verified, form: Form, variant: Variant) -> Result<Code, CompileError> {
    let mut guard = place();
    let place = guard.get_or_insert_with(Place::new);
    place.cpu.number = 0;
    let arrays = arrays(&program.program().maps, place, variant);
    compile_for(program, form, &arrays, place, variant)
}

fn compile_for(
    program: &Verified,
    form: Form,
    arrays: &[Option<ArrayMemory>],
    place: &Place,
    variant: Variant,
) -> Result<Code, CompileError> {
    let maps: Vec<MapRuntime> = arrays
        .iter()
        .enumerate()
        .map(|(number, array)| match array {
            Some(memory) => MapRuntime::Array(memory.array),
            None => MapRuntime::Handle(HANDLES + number as u64),
        })
        .collect();
    let (thunks, routines) = (&place.thunks, &place.routines);
    let not_recording = place.not_recording();
    let offset = |field: usize| field as i32;
    let machine = Machine {
        cpu_number: offset(std::mem::offset_of!(Cpu, number)),
        preempt_count: offset(std::mem::offset_of!(Cpu, preempt_count)),
        faults: offset(std::mem::offset_of!(Cpu, faults)),
        pid_tgid: match variant.pick(20, 3) {
            0 => None,
            1 => Some(PidTgid {
                pid: offset(std::mem::offset_of!(Cpu, pid)),
                tgid: offset(std::mem::offset_of!(Cpu, tgid)),
            }),
            _ => Some(PidTgid {
                pid: offset(std::mem::offset_of!(Cpu, pid_of_both)),
                tgid: offset(std::mem::offset_of!(Cpu, tgid_of_both)),
            }),
        },
        clears_ac: false,
        calls: match variant.pick(21, 2) {
            0 => Calls::Near,
            _ => Calls::Far,
        },
        not_recording: (variant.pick(22, 2) == 1).then_some(not_recording as i32),
        records_off: (variant.pick(25, 2) == 1)
            .then_some(offset(std::mem::offset_of!(Cpu, records_off))),
        helper: &|helper| thunks[&helper.number()],
        routine: &|helper, constants| {
            let is_one = match variant.pick(23, 3) {
                0 => false,
                1 => true,
                _ => helper.number() % 2 == 0,
            };
            // The address of the sample is no argument that a routine can have.
            (is_one && !helper.walks_the_stack()).then(|| Routine {
                address: routines[&helper.number()],
                arguments: [0, 1, 2, 3].map(|number| match constants[number] {
                    Some(value) if variant.pick(24, 2) == 1 => Given::Constant(value),
                    _ if number < helper.arguments().len() => Given::Argument,
                    _ => Given::Nothing,
                }),
            })
        },
    };
    compile(program, form, &maps, &machine)
}

/// Compiles and runs `program` in a copy of `world`. Returns the world afterwards, and what `al`
/// was.
///
/// `world` is changed where the form leaves no choice: the registers of the probed code are those
/// that the code was called with.
pub fn run(
    program: &Verified,
    form: Form,
    world: &mut TestMachine,
    variant: Variant,
) -> (World, u8) {
    let mut guard = place();
    let _run = time_limit::begin();
    let place = guard.get_or_insert_with(Place::new);
    place.cpu.own_address = &raw const *place.cpu as u64;
    place.cpu.number = world.cpu;
    place.cpu.preempt_count = 7;
    place.cpu.faults = 0;
    place.cpu.records_off = 0;
    place.cpu.pid = world.pid_tgid as u32;
    place.cpu.tgid = (world.pid_tgid >> 32) as u32;
    place.cpu.pid_of_both = place.cpu.pid;
    place.cpu.tgid_of_both = place.cpu.tgid;
    place.cpu.part = 0x1234_5678_0000;
    // SAFETY: in the mapping.
    unsafe { place.not_recording().write(world.not_recording) };
    place.adopt_thread();
    let arrays = arrays(&program.program().maps, place, variant);
    let code = compile_for(program, form, &arrays, place, variant).expect("the program compiles");
    if let Ok(path) = std::env::var("BPF_CODE") {
        std::fs::write(path, &code.bytes).expect("the code can be written");
    }
    let mut registers = registers(form, program.program().kind, world, place);
    let address = put_code(&code, place, world.registers[Register::Ip as usize]);
    let mut run = World {
        machine: world.clone(),
        maps: program.program().maps.clone(),
        arrays,
        records: Vec::new(),
        errors: Vec::new(),
        sample: Sample {
            ip: match program.program().kind {
                Kind::Entry { .. } => world.func_ip,
                _ => world.registers[Register::Ip as usize],
            },
            sp: world.registers[Register::Sp as usize],
            bp: world.registers[Register::Bp as usize],
        },
        cpu: &raw const *place.cpu,
        counts_preemption: matches!(form, Form::Jump { .. }),
        calls: 0,
    };
    run.machine.addresses = Addresses::Real;
    // In a handler they are arguments.
    if form == Form::Handler && program.program().kind != Kind::Probe {
        registers.gpr[DX] = run.machine.entry_data.as_ptr() as u64;
    }
    let above = above_stack(&registers);
    // SAFETY: the mutex is held, so nobody else uses these. The code keeps the stack, and comes
    // back to `bpf_test_back`.
    let output = unsafe {
        WORLD = &raw mut run;
        CODE = (place.code as u64, place.code as u64 + CODE_BYTES as u64);
        addr_of_mut!(INPUT).write(registers);
        TARGET = address;
        read_counter(program.program(), libc::PR_TSC_SIGSEGV);
        bpf_test_enter();
        read_counter(program.program(), libc::PR_TSC_ENABLE);
        WORLD = null_mut();
        addr_of!(OUTPUT).read()
    };
    assert_eq!(above_stack(&registers), above, "memory above rsp is kept");
    assert_eq!(place.cpu.preempt_count, 7, "preemption is as before");
    run.machine.faults += place.cpu.faults;
    run.machine.records_off += place.cpu.records_off;
    for array in run.arrays.iter_mut().flatten() {
        let contents = |part: &*mut u8| {
            // SAFETY: the part has so many bytes.
            let contents = || unsafe { std::slice::from_raw_parts(*part, array.bytes).to_vec() };
            (!part.is_null()).then(contents)
        };
        array.found = array.parts.iter().map(contents).collect();
    }
    check_kept(form, &registers, &output, &code);
    (run, output.gpr[AX] as u8)
}

/// Lets a reading of the time stamp counter fault, or not, if the program reads it.
fn read_counter(program: &Program, how: i32) {
    let tsc = Insn::Call {
        helper: Helper::Tsc,
    };
    if program.insns.contains(&tsc) {
        // SAFETY: only this thread's readings change.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, how) }, 0);
    }
}

/// The memory from the stack pointer on, which belongs to the caller.
fn above_stack(registers: &Registers) -> Vec<u8> {
    // SAFETY: the stack has more above it.
    unsafe { std::slice::from_raw_parts(registers.gpr[SP] as *const u8, 0x200).to_vec() }
}

const STATUS: u64 = 0x8d5;
const DIRECTION: u64 = 0x400;

fn check_kept(form: Form, before: &Registers, after: &Registers, code: &Code) {
    let (lost, flags): (&[usize], u64) = match form {
        Form::Jump { flags_live, .. } => (&[], if flags_live { 0 } else { STATUS }),
        Form::Breakpoint => (&[AX, CX, DX, SI, DI], STATUS | DIRECTION),
        Form::Handler => (&[AX, CX, DX, SI, DI, 8, 9, 10, 11], STATUS),
    };
    for number in (0..16).filter(|number| !lost.contains(number)) {
        assert_eq!(
            after.gpr[number], before.gpr[number],
            "{form:?}: register {number} is kept: {:02x?}",
            code.bytes
        );
    }
    assert_eq!(
        after.flags | flags | 0x202,
        before.flags | flags | 0x202,
        "{form:?}: flags are kept"
    );
}

/// The registers at the call, and in `world` those of the probed code.
fn registers(form: Form, kind: Kind, world: &mut TestMachine, place: &Place) -> Registers {
    const GPRS: [Register; 16] = [
        Register::Ax,
        Register::Cx,
        Register::Dx,
        Register::Bx,
        Register::Sp,
        Register::Bp,
        Register::Si,
        Register::Di,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    let pattern = world.registers[Register::Flags as usize];
    let top = place.stack as u64 + STACK_BYTES as u64 - 0x800;
    // SAFETY: inside the stack's mapping.
    unsafe { (top as *mut u8).write_bytes(0xa5, 0x400) };
    let mut registers = Registers {
        gpr: GPRS.map(|register| world.registers[register as usize]),
        flags: pattern & STATUS | 0x202,
    };
    match form {
        Form::Jump {
            flags_live,
            aligned,
        } => {
            let misaligned = world.registers[Register::Sp as usize] & 15;
            registers.gpr[SP] = if aligned { top + 8 } else { top + misaligned };
            if flags_live {
                registers.flags |= pattern & DIRECTION;
            }
            let (cs, ss): (u16, u16);
            // SAFETY: reads registers.
            unsafe {
                std::arch::asm!("mov {:x}, cs", out(reg) cs, options(nomem, nostack));
                std::arch::asm!("mov {:x}, ss", out(reg) ss, options(nomem, nostack));
            }
            world.set_register(Register::Cs, u64::from(cs));
            world.set_register(Register::Ss, u64::from(ss));
            world.set_register(Register::OrigAx, u64::MAX);
            world.set_register(Register::Sp, registers.gpr[SP]);
            world.set_register(Register::Flags, registers.flags);
            world.func_ip = world.registers[Register::Ip as usize];
        }
        Form::Breakpoint => {
            registers.gpr[SP] = top;
            registers.flags |= pattern & DIRECTION;
            let fields = [
                (BreakpointFrame::AX, Register::Ax),
                (BreakpointFrame::CX, Register::Cx),
                (BreakpointFrame::DX, Register::Dx),
                (BreakpointFrame::SI, Register::Si),
                (BreakpointFrame::DI, Register::Di),
                (BreakpointFrame::ORIG_AX, Register::OrigAx),
                (BreakpointFrame::IP, Register::Ip),
                (BreakpointFrame::CS, Register::Cs),
                (BreakpointFrame::FLAGS, Register::Flags),
                (BreakpointFrame::SP, Register::Sp),
                (BreakpointFrame::SS, Register::Ss),
            ];
            for (offset, register) in fields {
                let behind = u64::from(register == Register::Ip);
                let value = world.registers[register as usize].wrapping_add(behind);
                // SAFETY: inside the stack's mapping, and aligned.
                unsafe { ((top as i64 + i64::from(offset)) as *mut u64).write(value) };
            }
            for number in [AX, CX, DX, SI, DI] {
                registers.gpr[number] = 0xdead_0000 + number as u64;
            }
            world.func_ip = world.registers[Register::Ip as usize];
        }
        Form::Handler => {
            registers.gpr[SP] = top;
            let context = top + 0x100;
            if kind == Kind::Probe {
                world.func_ip = world.registers[Register::Ip as usize];
            }
            if let Kind::Entry { .. } = kind {
                let ip = world.func_ip;
                world.set_register(Register::Ip, ip);
            }
            for register in Register::ALL {
                let behind = register == Register::Ip && kind == Kind::Probe;
                let value = world.registers[register as usize].wrapping_add(u64::from(behind));
                // SAFETY: inside the stack's mapping, and aligned.
                unsafe { ((context + register.offset() as u64) as *mut u64).write(value) };
            }
            registers.gpr[DI] = 0xdead_beef;
            registers.gpr[SI] = context;
            registers.gpr[CX] = world.func_ip;
            registers.gpr[8] = world.return_address;
        }
    }
    registers
}

/// Puts the code into the mapping, with the call that leads to it. Returns the call's address.
fn put_code(code: &Code, place: &Place, probed: u64) -> u64 {
    const ROUTINE: usize = 0x40;
    assert!(code.bytes.len() < CODE_BYTES - 0x2000);
    let mut bytes = probed.to_le_bytes().to_vec();
    // call ROUTINE; jmp [rip]; address
    bytes.push(0xe8);
    bytes.extend((ROUTINE as u32 - 13).to_le_bytes());
    bytes.extend([0xff, 0x25, 0, 0, 0, 0]);
    bytes.extend((bpf_test_back as *const () as u64).to_le_bytes());
    bytes.resize(ROUTINE, 0xcc);
    bytes.extend(&code.bytes);
    let start = place.code as u64;
    for relocation in &code.relocations {
        let at = ROUTINE + relocation.offset as usize;
        let distance = relocation.target.wrapping_sub(start + at as u64 + 4) as i64;
        let distance = i32::try_from(distance).expect("thunks are near");
        bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
    }
    bytes.extend([0xcc; 16]);
    // SAFETY: it fits in front of the thunks, and no code runs.
    unsafe { place.code.copy_from(bytes.as_ptr(), bytes.len()) };
    start + 8
}

impl World {
    /// The first 8 bytes of an array that all CPUs share.
    pub fn array_word(&self, map: MapIndex) -> u64 {
        let array = self.arrays[usize::from(map.0)].as_ref();
        let bytes = array.and_then(|array| array.found[0].as_ref()?.first_chunk());
        u64::from_le_bytes(*bytes.expect("the map is an array with 8 bytes"))
    }

    /// All that is different from the world of the interpreter.
    pub fn differences(&self, expected: &TestMachine) -> Vec<String> {
        let mut found = self.errors.clone();
        let own = &self.machine;
        compare(&mut found, "records", &own.published, &expected.published);
        compare(&mut found, "discarded", &own.discarded, &expected.discarded);
        compare(&mut found, "refused", &own.refused, &expected.refused);
        compare(
            &mut found,
            "records off",
            &own.records_off,
            &expected.records_off,
        );
        compare(
            &mut found,
            "recorded stacks",
            &own.recorded_stacks,
            &expected.recorded_stacks,
        );
        compare(&mut found, "held", &own.held(), &expected.held());
        compare(&mut found, "faults", &own.faults, &expected.faults);
        compare(&mut found, "readings", &own.tsc, &expected.tsc);
        compare(&mut found, "shared", &own.entry_data, &expected.entry_data);
        for (number, def) in self.maps.iter().enumerate() {
            let map = MapIndex(number as u16);
            let Some(array) = &self.arrays[number] else {
                compare(&mut found, "map", &own.values(map), &expected.values(map));
                compare(
                    &mut found,
                    "stacks",
                    &own.stacks(map),
                    &expected.stacks(map),
                );
                continue;
            };
            let mut memory = vec![0; array.bytes * array.parts.len()];
            for ((cpu, key), value) in expected.values(map) {
                let index = u32::from_le_bytes(*key.first_chunk().unwrap());
                let at = array.bytes * cpu as usize + (index * array.array.stride) as usize;
                memory[at..at + def.value_size as usize].copy_from_slice(&value);
            }
            for (cpu, part) in array.found.iter().enumerate() {
                let Some(part) = part else { continue };
                let expected = &memory[array.bytes * cpu..][..array.bytes];
                if part == expected {
                    continue;
                }
                for (word, (a, b)) in part.chunks(8).zip(expected.chunks(8)).enumerate() {
                    compare(
                        &mut found,
                        &format!("map {number}, {cpu}, word {word}"),
                        &a,
                        &b,
                    );
                }
            }
        }
        found
    }
}

fn compare<T: PartialEq + std::fmt::Debug>(found: &mut Vec<String>, what: &str, a: &T, b: &T) {
    if a != b {
        found.push(format!("{what}: machine code {a:x?}, interpreter {b:x?}"));
    }
}

/// The program with its result stored in one more map, because most forms have no result.
pub fn with_result(program: &Program) -> Program {
    let mut program = program.clone();
    let end = program.insns.len();
    for insn in &mut program.insns {
        if *insn == Insn::Exit {
            *insn = Insn::Jump {
                target: Target(end as u16),
            };
        }
    }
    let map = MapIndex(program.maps.len() as u16);
    let mut def = MapDef::counters("result", 1);
    def.kind = MapKind::Array;
    program.maps.push(def);
    let mov = |dst, operand: Operand| Insn::Alu {
        width: bpf::Width::W64,
        op: bpf::AluOp::Mov,
        dst,
        operand,
    };
    program.insns.extend([
        mov(Reg::R6, Reg::R0.into()),
        Insn::Store {
            base: Reg::R10,
            offset: -4,
            size: Size::B4,
            value: 0.into(),
        },
        Insn::LoadMap { dst: Reg::R1, map },
        mov(Reg::R2, Reg::R10.into()),
        Insn::Alu {
            width: bpf::Width::W64,
            op: bpf::AluOp::Add,
            dst: Reg::R2,
            operand: (-4).into(),
        },
        Insn::Call {
            helper: Helper::MapLookup,
        },
        Insn::Store {
            base: Reg::R0,
            offset: 0,
            size: Size::B8,
            value: Reg::R6.into(),
        },
        mov(Reg::R0, Reg::R6.into()),
        Insn::Exit,
    ]);
    program
}

/// The outcome of a comparison without a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Agreed,
    /// The interpreter objects to what the program does. The verifier's tests judge that.
    Objected,
}

/// Runs `program` in these forms, if it has them, and compares with the interpreter.
pub fn agree(
    program: &Verified,
    forms: &[Form],
    world: &TestMachine,
    variant: Variant,
) -> Result<Outcome, String> {
    let limit = 1 << 20;
    if bpf_interpreter::run(program.program(), &mut world.clone(), limit).is_err() {
        return Ok(Outcome::Objected);
    }
    let forms = match program.program().kind {
        Kind::Probe => forms,
        Kind::Entry { .. } | Kind::Return { .. } => &[Form::Handler],
    };
    for &form in forms {
        compiled(program, form, variant).map_err(|error| format!("{form:?}: {error}"))?;
        let mut world = world.clone();
        let (machine, al) = run(program, form, &mut world, variant);
        let result = bpf_interpreter::run(program.program(), &mut world, limit)
            .map_err(|objection| format!("the interpreter objects: {objection}"))?;
        let mut differences = machine.differences(&world);
        if form == Form::Handler {
            let expected = match program.program().kind {
                Kind::Entry { .. } => u8::from(result != 0),
                Kind::Probe | Kind::Return { .. } => 0,
            };
            if al != expected {
                differences.push(format!("al {al}, expected {expected}"));
            }
        }
        if !differences.is_empty() {
            return Err(format!("{form:?}: {}", differences.join("\n")));
        }
    }
    Ok(Outcome::Agreed)
}
