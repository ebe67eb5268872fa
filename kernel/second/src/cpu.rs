//! The data of each CPU, and what a CPU is told at its start: its GS base and its descriptors.
//!
//! A per-CPU variable is a static in the section `percpu`, made by [`per_cpu!`]. The section itself
//! is only a template. Each CPU has a copy of it, and its GS base points to the start of that copy.
//! So a variable is as far from the GS base as its static is from the start of the section, and
//! only the linker knows how far that is.
//!
//! ```text
//!   the section percpu                     __start_percpu ─► │ BASE │ … │ probes_per_cpu │ …
//!   of a CPU     GS base ─► │ what the tracer keeps │ copy: │ BASE │ … │ probes_per_cpu │ …
//! ```
//!
//! In front of the copy is what the tracer's compiled code reaches by a constant.
//!
//! # Invariants
//! CPU-1. The section is never written, so a copy that is made late is like one that is made early.
//! CPU-2. The GS base is that of the CPU's copy while ring 0 runs, except in the first instructions
//!     after a trap from ring 3 and in the last ones before the return. Ring 3 has the GS base 0.
//!
//! # Contexts
//! [`Variable::here`] any, where the CPU cannot change meanwhile; [`Variable::of`] any.

use core::{
    arch::asm,
    cell::UnsafeCell,
    mem::offset_of,
    ptr,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use x86_64::{
    VirtAddr,
    instructions::{
        segmentation::{CS, SS, Segment},
        tables::load_tss,
    },
    registers::model_specific::{GsBase, KernelGsBase},
    structures::{
        gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector},
        tss::TaskStateSegment,
    },
};

/// How many CPUs there can be.
pub const MAX_CPUS: usize = 4;

/// The selectors of the segments.
pub const KERNEL_CODE: u16 = 0x08;
pub const KERNEL_DATA: u16 = 0x10;
pub const USER_DATA: u16 = 0x1b;
pub const USER_CODE: u16 = 0x23;
const TASK_STATE: u16 = 0x28;

/// Where the stack for double faults is in the table of interrupt stacks.
pub const DOUBLE_FAULT_STACK: u16 = 0;

/// A variable of which each CPU has its own.
#[repr(transparent)]
pub struct Variable<T>(T);

/// Makes a static a [`Variable`].
macro_rules! per_cpu {
    ($(#[$about:meta])* $visible:vis static $name:ident: $type:ty = $value:expr;) => {
        $(#[$about])*
        #[unsafe(link_section = "percpu")]
        $visible static $name: $crate::cpu::Variable<$type> =
            // SAFETY: a static in the section `percpu`.
            unsafe { $crate::cpu::Variable::new($value) };
    };
}
pub(crate) use per_cpu;

impl<T: Sync> Variable<T> {
    /// A variable with this value on each CPU.
    ///
    /// # Safety
    /// It is a static in the section `percpu`.
    pub const unsafe fn new(value: T) -> Self {
        Self(value)
    }

    /// How far its copies are from the GS base, in bytes.
    fn offset(&'static self) -> usize {
        VARIABLES + ptr::from_ref(self).addr() - (&raw const __start_percpu).addr()
    }

    /// This CPU's own.
    #[inline(always)]
    pub fn here(&'static self) -> &'static T {
        // SAFETY: the area has a copy of the section, which this variable is part of.
        unsafe { &*base().add(self.offset()).cast() }
    }

    /// That of CPU number `cpu`, which need not have started.
    pub fn of(&'static self, cpu: usize) -> &'static T {
        // SAFETY: as above.
        unsafe { &*AREAS[cpu].start().add(self.offset()).cast() }
    }
}

/// Where this CPU's area is.
#[inline(always)]
fn base() -> *const u8 {
    let base: *const u8;
    // SAFETY: `BASE` of each CPU holds the address of its area.
    unsafe {
        asm!(
            "mov {}, gs:[{}]",
            out(reg) base,
            in(reg) BASE.offset(),
            options(nostack, preserves_flags, readonly)
        );
    }
    base
}

unsafe extern "C" {
    // The linker defines these for each section whose name is one of C.
    static __start_percpu: u8;
    static __stop_percpu: u8;
}

/// All data of a CPU. The GS base leads here.
#[repr(C, align(64))]
struct Area {
    tracing: trace_agent::PerCpu,
    variables: UnsafeCell<[u8; VARIABLE_BYTES]>,
}
const VARIABLE_BYTES: usize = 16 * 1024;

/// Where the section's copy begins, in bytes from the GS base.
pub const VARIABLES: usize = offset_of!(Area, variables);

// SAFETY: what is in it is shared as the variables are, each of which may be.
unsafe impl Sync for Area {}

impl Area {
    const fn new() -> Self {
        Self {
            tracing: trace_agent::PerCpu::new(),
            variables: UnsafeCell::new([0; VARIABLE_BYTES]),
        }
    }

    /// Its address.
    fn start(&self) -> *const u8 {
        ptr::from_ref(self).cast()
    }
}

static AREAS: [Area; MAX_CPUS] = [const { Area::new() }; MAX_CPUS];

/// What the tracer keeps for CPU number `cpu`.
pub fn tracing(cpu: usize) -> Option<&'static trace_agent::PerCpu> {
    Some(&AREAS.get(cpu)?.tracing)
}

/// What the tracer keeps for this CPU.
#[inline(always)]
pub fn tracing_here() -> &'static trace_agent::PerCpu {
    // SAFETY: the area that the GS base leads to is one of the statics above.
    unsafe { &(*base().cast::<Area>()).tracing }
}

per_cpu! {
    /// Where the CPU's area is.
    static BASE: AtomicU64 = AtomicU64::new(0);
}
per_cpu! {
    /// The number of the CPU, from 0.
    pub static NUMBER: AtomicUsize = AtomicUsize::new(0);
}
per_cpu! {
    static TABLES: Tables = Tables(UnsafeCell::new((
        TaskStateSegment::new(),
        GlobalDescriptorTable::new(),
    )));
}

/// The tables that the processor reads.
struct Tables(UnsafeCell<(TaskStateSegment, GlobalDescriptorTable)>);

// SAFETY: only its own CPU uses it, with interrupts off.
unsafe impl Sync for Tables {}

/// Makes the copies of all CPUs. Once, before anything else of this file.
pub fn make_copies() {
    let template = &raw const __start_percpu;
    let bytes = (&raw const __stop_percpu).addr() - template.addr();
    assert!(bytes <= VARIABLE_BYTES, "the per-CPU data need {bytes}");
    for (number, area) in AREAS.iter().enumerate() {
        // SAFETY: the section is as long as that, and no CPU uses a copy yet.
        unsafe { ptr::copy_nonoverlapping(template, area.variables.get().cast(), bytes) };
        let base = area.start().expose_provenance() as u64;
        NUMBER.of(number).store(number, Relaxed);
        BASE.of(number).store(base, Relaxed);
        area.tracing.init(number, base);
    }
}

/// Makes the calling CPU number `number`: its GS base and its descriptors. Once for each,
/// interrupts off. `double_fault_stack` is the end of a stack.
pub fn init(number: usize, double_fault_stack: u64) {
    GsBase::write(VirtAddr::new(BASE.of(number).load(Relaxed)));
    KernelGsBase::write(VirtAddr::zero());
    // SAFETY: this CPU uses them only here and in `set_trap_stack`, and loads them only now.
    let (state, descriptors) = unsafe { &mut *TABLES.here().0.get() };
    state.interrupt_stack_table[usize::from(DOUBLE_FAULT_STACK)] =
        VirtAddr::new(double_fault_stack);
    for segment in [
        Descriptor::kernel_code_segment(),
        Descriptor::kernel_data_segment(),
        Descriptor::user_data_segment(),
        Descriptor::user_code_segment(),
        // SAFETY: it is a static.
        unsafe { Descriptor::tss_segment_unchecked(state) },
    ] {
        descriptors.append(segment);
    }
    // SAFETY: static tables, with the selectors in the order above.
    unsafe {
        descriptors.load_unsafe();
        CS::set_reg(SegmentSelector(KERNEL_CODE));
        SS::set_reg(SegmentSelector(KERNEL_DATA));
        load_tss(SegmentSelector(TASK_STATE));
    }
}

/// Has traps from ring 3 begin at `end`, the end of a stack. Interrupts off.
pub fn set_trap_stack(end: u64) {
    // SAFETY: as in `init`.
    unsafe { (*TABLES.here().0.get()).0.privilege_stack_table[0] = VirtAddr::new(end) };
}
