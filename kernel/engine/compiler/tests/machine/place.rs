//! The memory that all runs share, the data of the CPU, and the handler of faults.
//!
//! The mapping of the code has the thunks of helpers after it, and the call that leads to the code
//! in front of it. One thread at a time has them all.

use super::*;

/// The data of the CPU that the GS base points to.
#[repr(C, align(64))]
pub(super) struct Cpu {
    pub(super) own_address: u64,
    pub(super) number: u32,
    pub(super) preempt_count: u32,
    pub(super) faults: u64,
    /// What the running probe is, and it.
    pub(super) running: u64,
    pub(super) probe: [u64; 2],
    pub(super) records_off: u64,
    pub(super) pid: u32,
    pub(super) between: u32,
    pub(super) tgid: u32,
    /// The same two, side by side.
    pub(super) pid_of_both: u32,
    pub(super) tgid_of_both: u32,
    /// Added to an array's base by [`PerCpu::Word`].
    pub(super) part: u64,
    /// Arrays of [`PerCpu::Gs`].
    pub(super) arrays: [u8; ARRAYS],
}

pub(super) const ARRAYS: usize = 1 << 16;
pub(super) const HIGH: usize = 1 << 28;
pub(super) const CODE_BYTES: usize = 1 << 20;
pub(super) const STACK_BYTES: usize = 1 << 16;
/// The handle of map 0; each next one is 1 higher.
pub(super) const HANDLES: u64 = 0xffff_8000_0bad_0000;
pub const CPUS: u32 = 4;

/// The memory that all runs share.
pub(super) struct Place {
    pub(super) code: *mut u8,
    pub(super) stack: *mut u8,
    pub(super) cpu: Box<Cpu>,
    /// Below 2 GiB, so that it is addressed without a register.
    pub(super) low: *mut u8,
    /// Anywhere.
    pub(super) high: *mut u8,
    /// A signal's stack, because that of the code may be odd.
    pub(super) signals: *mut u8,
    pub(super) thunks: BTreeMap<u32, u64>,
    /// The same helpers, but they keep what a [`Routine`] keeps.
    pub(super) routines: BTreeMap<u32, u64>,
}

// SAFETY: the mutex lets one thread at a time use it.
unsafe impl Send for Place {}

pub(super) static PLACE: Mutex<Option<Place>> = Mutex::new(None);
/// The world of the run, for helpers and signals; null between runs.
pub(super) static mut WORLD: *mut World = null_mut();
pub(super) static mut CODE: (u64, u64) = (0, 0);

pub(super) fn map_memory(bytes: usize, flags: i32) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let memory = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

impl Place {
    pub(super) fn new() -> Self {
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
            // SAFETY: inside the mapping, after all code.
            unsafe { code.add(at).copy_from(thunk.as_ptr(), thunk.len()) };
            thunks.insert(helper.number(), code as u64 + at as u64);
            // push rbp; mov rbp, rsp; push r8 to r11; and rsp, -16; call thunk;
            // mov r8 to r11, [rbp - 8 …]; leave; ret
            let mut routine = vec![0x55, 0x48, 0x89, 0xe5];
            routine.extend([0x41, 0x50, 0x41, 0x51, 0x41, 0x52, 0x41, 0x53]);
            // pushfq; and qword ptr [rsp], ~DF; popfq
            routine.extend([0x9c, 0x48, 0x81, 0x24, 0x24, 0xff, 0xfb, 0xff, 0xff, 0x9d]);
            routine.extend([0x48, 0x83, 0xe4, 0xf0, 0xe8]);
            let distance = at as i32 - (routine_at + routine.len() + 4) as i32;
            routine.extend(distance.to_le_bytes());
            routine.extend([0x4c, 0x8b, 0x45, 0xf8, 0x4c, 0x8b, 0x4d, 0xf0]);
            routine.extend([0x4c, 0x8b, 0x55, 0xe8, 0x4c, 0x8b, 0x5d, 0xe0, 0xc9, 0xc3]);
            // SAFETY: as above, after all thunks.
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

    /// The word that says whether records are taken: after the low arrays.
    pub(super) fn not_recording(&self) -> *mut u32 {
        self.low.wrapping_add(ARRAYS).cast()
    }

    /// Makes the calling thread the CPU.
    pub(super) fn adopt_thread(&self) {
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

pub(super) extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
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

pub(super) fn place() -> MutexGuard<'static, Option<Place>> {
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

/// Puts the code into the mapping, with the call that leads to it. Returns the call's address.
pub(super) fn put_code(code: &Code, place: &Place, probed: u64) -> u64 {
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
