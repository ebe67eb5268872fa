//! Kprobes, jprobes and kretprobes of this kernel: the `probes` crate, given what it asks of a kernel.
//!
//! [`Kernel`] implements [`Platform`]; [`PROBES`] is the one registry. Traps, faults, the scheduler and IPIs call the `on_*` and
//! `task_*` functions below; modules use the `register_*` family.
//!
//! # Contexts
//! Registration: tasks that may sleep. The hooks say for themselves. Interrupt handlers of this kernel run with interrupts off
//! throughout, and no task is switched away while [`may_preempt`] is false, so an IPI that finds a CPU
//! outside slots and handlers finds it outside them at every depth.

mod blacklist;
pub mod debugfs;
pub mod handler_rules;
mod names;
pub mod survey;

pub use ::probes::{
    EntryVerdict, FaultVerdict, Jprobe, JprobeEntry, Kprobe, Kretprobe, KretprobeInstance,
    PreVerdict, ProbeError, PtRegs, jprobe, kprobe,
    registry::{Owner, Probe, ReturnMethod, StepMethod},
};

use core::{arch::asm, fmt, ops::Range};

use ::probes::{
    Host, PerCpu, Platform, Probes,
    platform::{EntryPoints, SlotPage, Symbol, Text},
};
use abi::{WaitStatus, signal};
use x86_64::{
    VirtAddr,
    instructions::interrupts,
    registers::debug::{Dr6, Dr6Flags},
};

use crate::{
    arch::{entry, gdt, percpu, smp},
    errno::Errno,
    mm::{frame::Frame, init_text, kernel_stack, paging, uaccess},
    symbols::{self, Kind},
    sync::RawMutex,
    task, text_poke,
};

/// This kernel, as the probes see it.
pub struct Kernel;

/// The probes of this kernel.
pub static PROBES: Probes<Kernel> = Probes::new();

/// A registered probe that its holder owns; dropping it unregisters.
pub type Registered<O> = ::probes::Registered<Kernel, O>;

::probes::entry_points!(Kernel, cs = gdt::KERNEL_CS, ss = gdt::KERNEL_DS);
::probes::breakpoint_entry!(
    Kernel,
    PROBES,
    other = entry::asm_breakpoint_other,
    // As `clac_if_smap` in the other stubs.
    clear_ac = "77: .byte 0x0f, 0x1f, 0x00; .pushsection .clac_sites, \"a\", @progbits; .quad 77b; .popsection"
);

// SAFETY: clause by clause of `Platform`:
// 1. per-CPU data hold one `probes` each, reached by nobody else. 2. `text_of` answers from the linker's bounds, and what was
// freed is told. 3. and 4. see `text_poke`. 5. The scheduler asks `may_preempt` before it switches on an
// interrupt's exit, and handlers neither sleep nor schedule. 6. Frames are taken for good and mapped in the text pool.
unsafe impl Platform for Kernel {
    type RawMutex = RawMutex;

    const PER_CPU_GS_OFFSET: u32 = percpu::PROBES as u32;

    #[inline(always)]
    fn this_cpu() -> &'static PerCpu {
        &percpu::this().probes
    }

    #[inline(always)]
    fn slots() -> Range<u64> {
        paging::TEXT_POOL_START..paging::TEXT_POOL_END
    }

    fn stack_of(sp: u64) -> Range<u64> {
        kernel_stack::bounds(sp)
    }

    #[cold]
    #[inline(never)]
    fn fatal(message: fmt::Arguments<'_>) -> ! {
        panic!("{message}")
    }

    #[cold]
    #[inline(never)]
    fn orphan_return(message: fmt::Arguments<'_>) -> ! {
        crate::pr_emerg!("{message}");
        if task::current_has_mm() {
            interrupts::enable();
            task::exit::do_exit(WaitStatus::killed(signal::KILL).0.into());
        }
        panic!("a kernel task returned from a probed call and its way back is lost")
    }

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        (cpu < smp::online_cpus()).then(|| &percpu::of(cpu).probes)
    }

    fn can_sleep() -> bool {
        task::may_sleep()
    }

    fn entry_points() -> EntryPoints {
        with_breakpoint_entry(probe_entry_points())
    }

    fn lookup_symbol(name: &str) -> Result<u64, ProbeError> {
        names::lookup(name)
    }

    fn symbol_at(addr: u64) -> Option<Symbol> {
        let symbol = symbols::lookup_addr(addr)?;
        Some(Symbol {
            start: symbol.start,
            size: symbol.size,
            text: text_of(symbol.kind),
            exported: symbol.is_exported(),
        })
    }

    fn blacklisted(addr: u64) -> Option<&'static str> {
        blacklist::reason(addr)
    }

    fn return_blacklisted(addr: u64) -> Option<&'static str> {
        blacklist::return_reason(addr)
    }

    unsafe fn write_text(addr: u64, byte: u8) {
        // SAFETY: handed on.
        unsafe { text_poke::store(addr, byte) }
    }

    fn slot_page(index: usize) -> Option<SlotPage> {
        let exec = Self::slots().start + index as u64 * 4096;
        let frame = Frame::alloc_zeroed().ok()?;
        let alias = paging::phys_to_virt(frame.phys()).as_mut_ptr();
        paging::map_kernel_rx(VirtAddr::new(exec), frame).ok()?;
        Some(SlotPage { exec, alias })
    }

    fn synchronize_cores() {
        text_poke::synchronize_cores();
    }

    fn synchronize_hits() {
        text_poke::synchronize_hits();
    }

    fn may_fault(range: Range<u64>) -> bool {
        uaccess::may_fault_in(range)
    }

    fn wait_for_preempted(inside: &dyn Fn(u64) -> bool) {
        while task::scheduler::is_preempted_in(inside) {
            task::schedule();
        }
    }

    fn log(message: fmt::Arguments<'_>) {
        crate::pr_info!("{message}");
    }
}

impl Host for Kernel {
    fn probes() -> &'static Probes<Self> {
        &PROBES
    }
}

/// What kind of memory a symbol lies in. Freed text stays freed, so under the registry's lock, which [`init_text_freed`] takes
/// between the decision and the deed, text that is found is there.
fn text_of(kind: Kind) -> Text {
    match kind {
        Kind::Text => Text::Kernel,
        Kind::Init if init_text::is_freed() => Text::Freed,
        Kind::Init => Text::Init,
        Kind::Rodata | Kind::Data | Kind::Bss => Text::No,
    }
}

/// Lets breakpoints be looked up. On the CPU that boots, before the IDT.
pub fn init_table() {
    PROBES.init_table();
}

/// Makes the probes ready. After heap, symbols and per-CPU data; before the first module.
pub fn init() {
    blacklist::init();
    let step = choose(
        "kprobes.step",
        [
            ("translate", StepMethod::Translate),
            ("tf", StepMethod::TrapFlag),
        ],
    );
    let returns = choose(
        "kprobes.return",
        [
            ("asm", ReturnMethod::Asm),
            ("trap3", ReturnMethod::Trap3),
            ("trap4", ReturnMethod::Trap4),
        ],
    );
    let optimize = choose("kprobes.optimize", [("1", true), ("0", false)]);
    PROBES.init(step, returns, optimize);
}

/// The method that the command line names, or the first one.
fn choose<T: Copy, const N: usize>(parameter: &str, methods: [(&str, T); N]) -> T {
    let (default, method) = methods[0];
    let Some(given) = crate::cmdline::get(parameter) else {
        return method;
    };
    let known = methods.iter().find(|(name, _)| *name == given);
    known.map_or_else(
        || {
            let names = methods.map(|(name, _)| name).join(", ");
            crate::pr_warn!("{parameter}={given} is unknown; {names} are known. Using {default}");
            method
        },
        |(_, method)| *method,
    )
}

/// Registers a probe of any kind that the returned handle owns. Task context, may sleep.
///
/// # Errors
/// [`ProbeError`]; nothing has changed then.
pub fn register<O: Owner>(probe: O) -> Result<Registered<O>, ProbeError> {
    PROBES.register_owned(probe)
}

/// Defines Linux's six functions for one kind of probe.
macro_rules! linux_api {
    ($kind:literal, $type:ty $(, $generic:ident)?; $register:ident $unregister:ident $register_all:ident $unregister_all:ident $enable:ident $disable:ident) => {
        #[doc = concat!("Registers a ", $kind, ". Task context, may sleep.")]
        ///
        /// # Errors
        /// [`ProbeError`]; nothing has changed then.
        pub fn $register$(<$generic: Copy + Default + Send + 'static>)?(probe: &'static $type) -> Result<(), ProbeError> {
            PROBES.register(probe)
        }

        #[doc = concat!("Unregisters a ", $kind, ": when it returns no handler runs or will. Task context, sleeps.")]
        ///
        /// # Errors
        /// [`ProbeError::AtomicContext`].
        pub fn $unregister$(<$generic: Copy + Default + Send + 'static>)?(probe: &'static $type) -> Result<(), ProbeError> {
            PROBES.unregister(probe)
        }

        #[doc = concat!("Registers several ", $kind, "s, all or none. Task context, may sleep.")]
        ///
        /// # Errors
        /// That of the first one refused; nothing has changed then.
        pub fn $register_all$(<$generic: Copy + Default + Send + 'static>)?(probes: &[&'static $type]) -> Result<(), ProbeError> {
            PROBES.register_batch(probes)
        }

        #[doc = concat!("Unregisters several ", $kind, "s with one wait. Task context, sleeps.")]
        ///
        /// # Errors
        /// [`ProbeError::AtomicContext`].
        pub fn $unregister_all$(<$generic: Copy + Default + Send + 'static>)?(probes: &[&'static $type]) -> Result<(), ProbeError> {
            PROBES.unregister_batch(probes)
        }

        #[doc = concat!("Lets a disabled ", $kind, " fire again. Task context, may sleep.")]
        ///
        /// # Errors
        /// [`ProbeError::NotRegistered`], [`ProbeError::Gone`], [`ProbeError::AtomicContext`].
        pub fn $enable$(<$generic: Copy + Default + Send + 'static>)?(probe: &$type) -> Result<(), ProbeError> {
            PROBES.enable(probe)
        }

        #[doc = concat!("Keeps a ", $kind, " from firing; does not wait for a handler that runs. Task context, may sleep.")]
        ///
        /// # Errors
        /// [`ProbeError::NotRegistered`], [`ProbeError::Gone`], [`ProbeError::AtomicContext`].
        pub fn $disable$(<$generic: Copy + Default + Send + 'static>)?(probe: &$type) -> Result<(), ProbeError> {
            PROBES.disable(probe)
        }
    };
}

linux_api!("kprobe", Kprobe; register_kprobe unregister_kprobe register_kprobes unregister_kprobes enable_kprobe disable_kprobe);
linux_api!("jprobe", Jprobe; register_jprobe unregister_jprobe register_jprobes unregister_jprobes enable_jprobe disable_jprobe);
linux_api!("kretprobe", Kretprobe<D>, D; register_kretprobe unregister_kretprobe register_kretprobes unregister_kretprobes enable_kretprobe disable_kretprobe);

/// Asks the probes whether a #BP is theirs. Called first by the #BP handler, interrupts off, kernel mode. True: resume with `regs`.
#[inline]
pub fn on_breakpoint(regs: &mut PtRegs) -> bool {
    PROBES.on_breakpoint(regs)
}

/// Asks the probes whether a #DB is theirs. Called first by the #DB handler, interrupts off, kernel mode. True: resume with `regs`.
pub fn on_debug(regs: &mut PtRegs) -> bool {
    let status = Dr6::read_raw();
    let ours = PROBES.on_debug(regs, status);
    if ours {
        let rest = status & !Dr6Flags::STEP.bits();
        // The processor only ever sets bits here (Intel SDM vol. 3B, 17.2.3), so the next reader would be misled.
        // SAFETY: clearing a status bit has no other effect.
        unsafe { asm!("mov dr6, {}", in(reg) rest, options(nomem, nostack, preserves_flags)) };
    }
    ours
}

/// Whether a hit has this CPU single-step a copy of its instruction. Interrupts off.
#[inline]
pub fn is_stepping() -> bool {
    PROBES.is_stepping()
}

/// Runs `work` on top of an instruction that may be a displaced one whose hit is not over: what an NMI does.
#[inline(always)]
pub fn aside<R>(work: impl FnOnce() -> R) -> R {
    PROBES.aside(work)
}

/// Where code goes on that is told to go on at `ip`: elsewhere if a jump has replaced what is there. Interrupts off until it has gone on.
pub fn executable_ip(ip: u64) -> u64 {
    PROBES.executable_ip(ip)
}

/// Lets the probes look at a fault first: an ip in a slot becomes the probed address, then fault handlers are
/// asked. Interrupts off, kernel mode. True: handled, resume with `regs`.
#[inline(never)]
pub fn on_fault(regs: &mut PtRegs, vector: u8) -> bool {
    PROBES.on_fault(regs, vector)
}

/// Whether an interrupt that found the kernel at `ip` may switch tasks on its way out. Interrupts off.
pub fn may_preempt(ip: u64) -> bool {
    PROBES.may_preempt(ip)
}

/// Runs on a CPU that gets the synchronising IPI, interrupts off.
pub fn on_sync_ipi(regs: &PtRegs) {
    text_poke::on_ipi(PROBES.is_quiescent(regs.ip));
}

/// A task is gone and its last switch is over: gives its return instances back. Any context.
pub fn flush_task(task: u64) {
    PROBES.flush_task(task);
}

/// The scheduler makes `task` current on this CPU. In the switch, interrupts off.
#[inline(always)]
pub fn task_switched(task: u64) {
    PROBES.task_switched(task);
}

/// The init text `range` is about to be unmapped. Task context.
pub fn init_text_freed(range: Range<u64>) {
    PROBES.text_freed(range);
}

/// The address that code found at `ip` really is at: the probed instruction for an ip in a slot. Any context.
pub fn original_ip(ip: u64) -> u64 {
    PROBES.original_ip(ip)
}

/// Where the code is whose call frame information describes the code at `ip`: elsewhere for the detours of optimised probes. Any
/// context.
pub fn described_ip(ip: u64) -> u64 {
    PROBES.described_ip(ip)
}

/// What the word `value` in the return slot at `slot_addr` of `task`'s stack really returns to. Any context.
pub fn real_return_address(task: u64, slot_addr: u64, value: u64) -> u64 {
    PROBES.return_address(task, slot_addr, value)
}

impl From<ProbeError> for Errno {
    fn from(error: ProbeError) -> Self {
        Errno::from_code(error.errno()).unwrap_or(Errno::EINVAL)
    }
}

/// The trampolines that return-probed functions return to. Any context.
pub fn return_trampolines() -> [Range<u64>; 3] {
    [
        kretprobe_trampoline,
        kretprobe_trampoline_trap3,
        kretprobe_trampoline_trap4,
    ]
    .map(|trampoline| {
        let start = trampoline as *const () as u64;
        start..start + symbols::lookup_addr(start).map_or(1, |symbol| symbol.size)
    })
}

/// Whether `code` is an address in a trampoline that return-probed functions return to. Any context.
pub fn in_return_trampoline(code: u64) -> bool {
    return_trampolines()
        .iter()
        .any(|trampoline| trampoline.contains(&code))
}

/// Where the call of `task` returns to whose return slot, at `slot_addr`, is borrowed; `None` if it is not, or not any more. Any
/// context.
pub fn borrowed_return_address(task: u64, slot_addr: u64) -> Option<u64> {
    let trampoline = kretprobe_trampoline as *const () as u64;
    let address = PROBES.return_address(task, slot_addr, trampoline);
    (address != trampoline).then_some(address)
}

/// The instruction and the stack pointer of the probed code, for code that is found at `ip` with stack pointer `sp`. `read` reads a
/// word of the stack. Any context.
pub fn original_position(ip: u64, sp: u64, read: impl FnOnce(u64) -> Option<u64>) -> (u64, u64) {
    PROBES.original_position(ip, sp, read)
}

/// The address that the registers of a handler stand for: in a pre handler, where `ip` is behind the breakpoint, the probed
/// one. Any context.
pub fn probed_ip(ip: u64) -> u64 {
    if PROBES.in_pre_handler() {
        before_breakpoint(ip)
    } else {
        ip
    }
}

/// The probed address, if a #BP that left `ip` is a probe's. Any context.
pub fn before_breakpoint(ip: u64) -> u64 {
    if PROBES.is_breakpoint(ip) { ip - 1 } else { ip }
}
