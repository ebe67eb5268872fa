//! Runs machine code in this process with every register chosen, and reports where and how it
//! stopped.
//!
//! A run starts at an `int3` in [`Machine::resume`]: its SIGTRAP handler saves the interrupted
//! context and returns into the wanted one. Whatever stops the code (an `int3`, a fault, a single
//! step) raises a signal again, whose handler records the registers and returns into the saved
//! context. So the code under test runs natively, needs no entry or exit stub of its own, and may
//! fault, lose its stack or step with TF.
//!
//! The text and slot pages are full of `int3` but for the code under test, so every exit stops at
//! its target.

use std::{
    mem, ptr,
    sync::{
        Mutex, MutexGuard, Once,
        atomic::{AtomicI32, AtomicPtr, Ordering},
    },
};

/// Index of a register in [`Cpu::gpr`], by its number in the instruction encoding.
pub const RAX: usize = 0;
pub const RCX: usize = 1;
pub const RDX: usize = 2;
pub const RBX: usize = 3;
pub const RSP: usize = 4;
pub const RBP: usize = 5;
pub const RSI: usize = 6;
pub const RDI: usize = 7;

/// The same registers in the kernel's `gregset_t`.
const GREGS: [i32; 16] = [
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

/// x87 and SSE state in FXSAVE layout (Intel SDM vol. 1, 10.5.1).
const FXSAVE_BYTES: usize = 512;
/// FOP, FIP and FDP: where the last x87 instruction stood, which a replacement does not preserve.
const FX_LAST_INSTRUCTION: std::ops::Range<usize> = 6..24;
/// Bytes that the processor leaves to software.
const FX_SOFTWARE: std::ops::Range<usize> = 416..512;
const FX_XMM0: usize = 160;
/// Where the operating system says what follows in the frame, in the bytes left to software: a
/// magic number, and which components.
const FX_MAGIC: usize = 464;
const FX_COMPONENTS: usize = 472;

/// The components of XSAVE that hold the rest of the vector registers (Intel SDM vol. 1, 13.1),
/// with their sizes: upper halves of YMM0 to YMM15, K0 to K7, upper halves of ZMM0 to ZMM15, ZMM16
/// to ZMM31.
const COMPONENTS: [(u32, usize); 4] = [(2, 256), (5, 64), (6, 512), (7, 1024)];
/// All of them, one after the other.
const UPPER_BYTES: usize = 256 + 64 + 512 + 1024;

/// The registers of a run.
#[derive(Clone)]
pub struct Cpu {
    pub gpr: [u64; 16],
    pub ip: u64,
    pub flags: u64,
    pub fx: [u8; FXSAVE_BYTES],
    /// The parts that [`COMPONENTS`] lists; zero where the processor or the signal frame lacks it.
    pub upper: [u8; UPPER_BYTES],
}

impl Cpu {
    pub fn new() -> Self {
        let mut fx = [0; FXSAVE_BYTES];
        fx[0..2].copy_from_slice(&0x37f_u16.to_le_bytes()); // all x87 exceptions masked
        fx[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes()); // all SSE exceptions masked
        for (i, byte) in fx[FX_XMM0..FX_XMM0 + 256].iter_mut().enumerate() {
            *byte = (i as u8).wrapping_mul(37) ^ 0x5a;
        }
        let upper = std::array::from_fn(|i| (i as u8).wrapping_mul(91) ^ (i >> 8) as u8 ^ 0xa5);
        Self {
            gpr: [0; 16],
            ip: 0,
            flags: 0x202,
            fx,
            upper,
        }
    }

    /// The vector and x87 state without what a replacement need not keep.
    pub fn comparable_fx(&self) -> [u8; FXSAVE_BYTES] {
        let mut fx = self.fx;
        fx[FX_LAST_INSTRUCTION].fill(0);
        fx[FX_SOFTWARE].fill(0);
        fx
    }
}

/// The end of a run. Addresses are those of the saved frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An `int3` at this address.
    Int3 { at: u64 },
    /// An instruction fetch from this address failed.
    Fetch { at: u64 },
    /// #DB.
    Debug,
    /// Any other exception; `address` is CR2 for a page fault, else 0.
    Fault {
        vector: u64,
        error: u64,
        address: u64,
    },
}

/// Where text, data and slot lie in relation to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All in the lowest 2 GiB: addresses fit into sign-extended 32 bits, as in the kernel.
    Low,
    /// All near each other, beyond 4 GiB.
    High,
    /// Text and data low, slot out of their reach.
    FarSlot,
    /// Text and data high, slot low.
    FarText,
}

/// Whether the processor at hand is a program's, by what tests/processors.rs says.
pub fn is_emulated() -> bool {
    std::env::var_os("PROBES_INSN_EMULATED").is_some()
}

const PAGE: usize = 4096;
const TEXT_BYTES: usize = 2 * PAGE;
const DATA_BYTES: usize = 2 * PAGE;
const SLOT_PAGE_BYTES: usize = PAGE;

/// Memory for runs: text, data, stack and slot, and the exclusive right to use the signal handlers.
pub struct Machine {
    pub layout: Layout,
    text: *mut u8,
    arena: *mut u8,
    arena_bytes: usize,
    slot: *mut u8,
    snapshot: Vec<u8>,
    mappings: Vec<(*mut u8, usize)>,
    _exclusive: MutexGuard<'static, ()>,
}

static EXCLUSIVE: Mutex<()> = Mutex::new(());

impl Machine {
    pub fn new(layout: Layout, stack_bytes: usize) -> Self {
        let exclusive = EXCLUSIVE.lock().unwrap_or_else(|e| e.into_inner());
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(install_handlers);
        install_signal_stack();

        let arena_bytes = DATA_BYTES + stack_bytes;
        let main_bytes = TEXT_BYTES + PAGE + arena_bytes + PAGE;
        let text_low = matches!(layout, Layout::Low | Layout::FarSlot);
        let slot_low = matches!(layout, Layout::Low | Layout::FarText);
        let mut mappings = Vec::new();
        let mut map = |bytes: usize, low: bool| {
            let mapping = map_pages(bytes, low);
            mappings.push((mapping, bytes));
            mapping
        };
        let (main, slot) = if text_low == slot_low {
            let main = map(main_bytes + SLOT_PAGE_BYTES, text_low);
            (main, main.wrapping_add(main_bytes))
        } else {
            (map(main_bytes, text_low), map(SLOT_PAGE_BYTES, slot_low))
        };
        protect(
            main,
            TEXT_BYTES,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        );
        protect(
            slot,
            SLOT_PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        );
        let arena = main.wrapping_add(TEXT_BYTES + PAGE);
        protect(arena, arena_bytes, libc::PROT_READ | libc::PROT_WRITE);
        let snapshot = (0..arena_bytes)
            .map(|i| (i as u8).wrapping_mul(73) ^ (i >> 8) as u8)
            .collect();
        let machine = Self {
            layout,
            text: main,
            arena,
            arena_bytes,
            slot,
            snapshot,
            mappings,
            _exclusive: exclusive,
        };
        set_gs_base(machine.data());
        machine
    }

    /// Start of the text pages.
    pub fn text(&self) -> u64 {
        self.text as u64
    }

    /// Start of the data. The GS base points here. The page before it is not mapped.
    pub fn data(&self) -> u64 {
        self.arena as u64
    }

    /// End of the data and start of the stack.
    pub fn stack(&self) -> u64 {
        self.data() + DATA_BYTES as u64
    }

    /// End of the stack. The page after it is not mapped.
    pub fn stack_end(&self) -> u64 {
        self.data() + self.arena_bytes as u64
    }

    /// Where replacements go.
    pub fn slot(&self) -> u64 {
        self.slot as u64 + 0x100
    }

    /// An address near the slot where a post stub may be assumed.
    pub fn stub(&self) -> u64 {
        self.slot as u64 + 0x800
    }

    /// Whether `address` is in the slot page.
    pub fn in_slot_page(&self, address: u64) -> bool {
        address.wrapping_sub(self.slot as u64) < SLOT_PAGE_BYTES as u64
    }

    /// Sets a quad word of the snapshot.
    pub fn set(&mut self, address: u64, value: u64) {
        let offset = (address - self.data()) as usize;
        self.snapshot[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Data and stack as the last run left them.
    pub fn memory(&self) -> &[u8] {
        // SAFETY: the arena is mapped readable until `self` is dropped, and only `&mut self`
        // methods write to it.
        unsafe { std::slice::from_raw_parts(self.arena, self.arena_bytes) }
    }

    /// The quad word at `address`, if it is in the arena.
    pub fn read(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.data())?).ok()?;
        Some(u64::from_le_bytes(
            self.memory()
                .get(offset..offset.checked_add(8)?)?
                .try_into()
                .unwrap(),
        ))
    }

    /// Stores bytes into data or stack.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let offset = (address - self.data()) as usize;
        assert!(offset + bytes.len() <= self.arena_bytes);
        // SAFETY: within the arena by the assertion; no other reference to it lives while `self` is
        // borrowed mutably.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.arena.add(offset), bytes.len()) }
    }

    /// Restores data and stack, and places `code` at `at`, the only code but `int3` in its pages.
    pub fn prepare(&mut self, at: u64, code: &[u8]) {
        for (start, bytes) in [(self.text, TEXT_BYTES), (self.slot, SLOT_PAGE_BYTES)] {
            let offset = at.wrapping_sub(start as u64);
            // SAFETY: both are mapped writable, and no Rust reference to them exists.
            unsafe {
                ptr::write_bytes(start, 0xcc, bytes);
                if offset < bytes as u64 {
                    assert!(offset as usize + code.len() <= bytes);
                    ptr::copy_nonoverlapping(code.as_ptr(), start.add(offset as usize), code.len());
                }
            }
        }
        // SAFETY: the snapshot is as long as the arena, which is mapped writable and not
        // referenced.
        unsafe { ptr::copy_nonoverlapping(self.snapshot.as_ptr(), self.arena, self.arena_bytes) }
    }

    /// Runs from `cpu` until something stops the code; leaves the registers of that moment in
    /// `cpu`.
    pub fn resume(&mut self, cpu: &mut Cpu) -> Stop {
        let mut exchange = Exchange {
            cpu: cpu.clone(),
            stop: None,
            running: false,
            saved_gregs: [0; 23],
            saved_fx: [0; FXSAVE_BYTES],
        };
        // SAFETY: gettid has no preconditions.
        OWNER.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        EXCHANGE.store(&mut exchange, Ordering::Release);
        // SAFETY: the handler returns here with all registers as they were; memory may have
        // changed, which `asm!` assumes. `exchange` outlives the run, and the handler forgets it
        // before it returns here.
        unsafe { std::arch::asm!("int3", clobber_abi("sysv64")) };
        *cpu = exchange.cpu;
        exchange
            .stop
            .expect("the handler records why the run stopped")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        set_gs_base(0);
        for &(start, bytes) in &self.mappings {
            // SAFETY: mapped by `map_pages` with this length; no reference survives `self`.
            unsafe { libc::munmap(start.cast(), bytes) };
        }
    }
}

/// Fresh pages without access, in the lowest 2 GiB or well above them.
fn map_pages(bytes: usize, low: bool) -> *mut u8 {
    // Asked for by address: not every emulator of Linux heeds MAP_32BIT.
    let places = if low { 0x1000_0000..0x7000_0000 } else { 0..1 };
    for place in places.step_by(0x10_0000) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, at an address that the kernel may refuse, so it replaces
        // nothing.
        let start = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(place),
                bytes,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        if ((start as u64) < 1 << 31) == low {
            return start.cast();
        }
        // SAFETY: the mapping that was just made, to which nothing refers.
        unsafe { libc::munmap(start, bytes) };
    }
    panic!("no {bytes} bytes are free where they are wanted")
}

fn protect(start: *mut u8, bytes: usize, protection: i32) {
    // SAFETY: part of a mapping of ours that nothing refers to yet.
    let result = unsafe { libc::mprotect(start.cast(), bytes, protection) };
    assert_eq!(result, 0);
}

fn set_gs_base(base: u64) {
    const ARCH_SET_GS: i32 = 0x1001;
    // SAFETY: user code on x86-64 Linux does not use GS; thread-local storage is reached by FS.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(result, 0);
}

/// The FS base of this thread.
pub fn fs_base() -> u64 {
    const ARCH_GET_FS: i32 = 0x1003;
    let mut base = 0_u64;
    // SAFETY: the call stores a quad word at the address given.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &raw mut base) };
    assert_eq!(result, 0);
    base
}

/// The run that the signal handler serves.
struct Exchange {
    cpu: Cpu,
    stop: Option<Stop>,
    running: bool,
    saved_gregs: [i64; 23],
    saved_fx: [u8; FXSAVE_BYTES],
}

static EXCHANGE: AtomicPtr<Exchange> = AtomicPtr::new(ptr::null_mut());
static OWNER: AtomicI32 = AtomicI32::new(0);

fn install_handlers() {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = signal_entry as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is fully initialised; the handler is for the signals that an instruction can
    // raise.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        for signal in [
            libc::SIGTRAP,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGILL,
            libc::SIGFPE,
        ] {
            assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
        }
    }
}

/// Gives this thread a signal stack, since the code under test may have none. Never freed: the
/// thread keeps using it.
fn install_signal_stack() {
    const BYTES: usize = 256 * 1024;
    let stack = Vec::leak(vec![0_u8; BYTES]);
    let description = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: BYTES,
    };
    // SAFETY: the memory is leaked, so it stays valid.
    let result = unsafe { libc::sigaltstack(&description, ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Clears AC, which the kernel leaves set in a handler and Rust code does not survive, and aligns
/// the stack, which QEMU's emulation of Linux does not; calls [`on_signal`].
#[unsafe(naked)]
extern "C" fn signal_entry() {
    std::arch::naked_asm!(
        "pushfq",
        "and qword ptr [rsp], ~0x40000",
        "popfq",
        "push rbp",
        "mov rbp, rsp",
        "and rsp, -16",
        "call {on_signal}",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
        on_signal = sym on_signal,
    )
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    let exchange = EXCHANGE.load(Ordering::Acquire);
    // SAFETY: gettid has no preconditions.
    if exchange.is_null() || OWNER.load(Ordering::Relaxed) != unsafe { libc::gettid() } {
        // Not ours: let it happen again and take its usual course.
        // SAFETY: restores the default action of a valid signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the kernel passes a valid context; `exchange` is alive until the run ends, and its
    // thread is this one.
    let (context, exchange) = unsafe { (&mut (*context).uc_mcontext, &mut *exchange) };
    // SAFETY: every signal frame on x86-64 has x87 and SSE state, at least in FXSAVE layout.
    let fx = unsafe { &mut *context.fpregs.cast::<[u8; FXSAVE_BYTES]>() };
    let frame = context.fpregs.cast::<u8>();
    if exchange.running {
        // SAFETY: the kernel passes a valid description of the signal.
        let vector = vector(signal, unsafe { (*info).si_code }, &context.gregs);
        record(exchange, vector, &context.gregs, fx);
        // SAFETY: `frame` is that of the signal.
        unsafe {
            each_component(frame, |place, upper, present, bit| {
                let upper = &mut exchange.cpu.upper[upper];
                match *present & bit {
                    // In its initial state it is not stored.
                    0 => upper.fill(0),
                    _ => upper.copy_from_slice(place),
                }
            })
        };
        context.gregs = exchange.saved_gregs;
        *fx = exchange.saved_fx;
        EXCHANGE.store(ptr::null_mut(), Ordering::Release);
        return;
    }
    exchange.running = true;
    exchange.saved_gregs = context.gregs;
    exchange.saved_fx = *fx;
    for (&register, &value) in GREGS.iter().zip(&exchange.cpu.gpr) {
        context.gregs[register as usize] = value as i64;
    }
    context.gregs[libc::REG_RIP as usize] = exchange.cpu.ip as i64;
    context.gregs[libc::REG_EFL as usize] = exchange.cpu.flags as i64;
    fx[..FX_SOFTWARE.start].copy_from_slice(&exchange.cpu.fx[..FX_SOFTWARE.start]);
    // SAFETY: `frame` is that of the signal.
    unsafe {
        each_component(frame, |place, upper, present, bit| {
            const X87_SSE: u64 = 0b11;
            const AMX: u64 = 0b11 << 17;
            place.copy_from_slice(&exchange.cpu.upper[upper]);
            *present = (*present | X87_SSE | bit) & !AMX;
        })
    };
}

/// Calls `visit` for each of [`COMPONENTS`] that a signal frame has: with its place in the frame,
/// its range in [`Cpu::upper`], the bitmap of what is present in the frame, and its bit there.
///
/// # Safety
/// `frame` is the floating-point state of a signal frame, and nothing else refers to what lies
/// after its first 512 bytes.
unsafe fn each_component(
    frame: *mut u8,
    mut visit: impl FnMut(&mut [u8], std::ops::Range<usize>, &mut u64, u64),
) {
    const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
    // SAFETY: the first 512 bytes are there.
    let (magic, components) = unsafe {
        (
            frame.add(FX_MAGIC).cast::<u32>().read(),
            frame.add(FX_COMPONENTS).cast::<u64>().read(),
        )
    };
    if magic != FP_XSTATE_MAGIC1 {
        return;
    }
    let mut start = 0;
    for (number, bytes) in COMPONENTS {
        let range = start..start + bytes;
        start = range.end;
        let Some(offset) = component_offset(number, bytes) else {
            continue;
        };
        if components >> number & 1 == 0 {
            continue;
        }
        // SAFETY: the magic says that an XSAVE header follows, whose first word is the bitmap of
        // what is present, and after it the components named, in the standard layout, which CPUID
        // describes.
        let (present, place) = unsafe {
            (
                &mut *frame.add(FXSAVE_BYTES).cast::<u64>(),
                std::slice::from_raw_parts_mut(frame.add(offset), bytes),
            )
        };
        visit(place, range, present, 1 << number);
    }
}

/// Where a component of so many bytes lies in the standard layout of XSAVE (Intel SDM vol. 1,
/// 13.4.3), if the processor has it.
fn component_offset(number: u32, bytes: usize) -> Option<usize> {
    let component = std::arch::x86_64::__cpuid_count(0xd, number);
    (component.eax as usize == bytes).then_some(component.ebx as usize)
}

/// Whether signal frames hold a component, so that runs begin with it as chosen, and tell what
/// became of it.
pub fn keeps_component(number: u32) -> bool {
    let mut machine = Machine::new(Layout::Low, PAGE);
    let mut cpu = Cpu::new();
    cpu.ip = machine.text();
    machine.prepare(cpu.ip, &[]);
    let (before, at) = (cpu.upper, cpu.ip);
    assert_eq!(machine.resume(&mut cpu), Stop::Int3 { at });
    let index = COMPONENTS
        .iter()
        .position(|component| component.0 == number);
    let index = index.expect("a component of vector registers");
    let start: usize = COMPONENTS[..index]
        .iter()
        .map(|component| component.1)
        .sum();
    let range = start..start + COMPONENTS[index].1;
    cpu.upper[range.clone()] == before[range]
}

/// The number of the exception that a signal stands for.
fn vector(signal: i32, code: i32, gregs: &[i64; 23]) -> u64 {
    const SI_KERNEL: i32 = 0x80;
    const BUS_ADRALN: i32 = 1;
    const FPE_INTDIV: i32 = 1;
    let number = gregs[libc::REG_TRAPNO as usize];
    if number >= 0 {
        return number as u64;
    }
    // QEMU's emulation of Linux does not fill it in. All else in the frame is right.
    match (signal, code) {
        (libc::SIGTRAP, SI_KERNEL) => 3,
        (libc::SIGTRAP, _) => 1,
        (libc::SIGSEGV, SI_KERNEL) => 13,
        (libc::SIGSEGV, _) => 14,
        (libc::SIGBUS, BUS_ADRALN) => 17,
        (libc::SIGBUS, _) => 12,
        (libc::SIGFPE, FPE_INTDIV) => 0,
        (libc::SIGFPE, _) => 16,
        (libc::SIGILL, _) => 6,
        _ => unreachable!("no handler is installed for other signals"),
    }
}

fn record(exchange: &mut Exchange, vector: u64, gregs: &[i64; 23], fx: &[u8; FXSAVE_BYTES]) {
    let greg = |register: i32| gregs[register as usize] as u64;
    let cpu = &mut exchange.cpu;
    for (register, value) in GREGS.iter().zip(&mut cpu.gpr) {
        *value = greg(*register);
    }
    cpu.ip = greg(libc::REG_RIP);
    cpu.flags = greg(libc::REG_EFL);
    cpu.fx = *fx;
    const INSTRUCTION_FETCH: u64 = 1 << 4;
    let (error, address) = (greg(libc::REG_ERR), greg(libc::REG_CR2));
    exchange.stop = Some(match vector {
        3 => Stop::Int3 { at: cpu.ip - 1 },
        1 => Stop::Debug,
        // The bit is not set by each emulator. No code reads its own first byte: that can be read,
        // or it would not run.
        14 if error & INSTRUCTION_FETCH != 0 || address == cpu.ip => Stop::Fetch { at: cpu.ip },
        14 => Stop::Fault {
            vector,
            error,
            address,
        },
        _ => Stop::Fault {
            vector,
            error,
            address: 0,
        },
    });
}
