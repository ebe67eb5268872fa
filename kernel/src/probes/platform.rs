//! The kernel's side of the probes: the [`Platform`] that they ask for, and the assembly that they
//! bring.
//!
//! The trait says in which context the probes call each method. The waits for other CPUs are in
//! [`text_poke`], the text that may not be probed in [`blacklist`], and the names in [`names`].

use core::{fmt, ops::Range};

use ::probes::{
    Host, PerCpu, Platform, ProbeError, Probes,
    insn::EntryFacts,
    platform::{Entries, EntryPoints, SlotPage, Symbol, Text},
};
use abi::{WaitStatus, signal};
use trace_agent::nofault::Space;
use x86_64::{VirtAddr, instructions::interrupts};

use super::{PROBES, blacklist, every_cpu, names, text_poke, watched_memory};
use crate::{
    arch::{gdt, percpu, smp},
    mm::{frame::Frame, init_text, kernel_stack, paging, phys_map, uaccess},
    symbols::{self, SymbolKind},
    sync::RawMutex,
    task, uprobes,
};

/// This kernel, as the probes see it.
pub struct Kernel;

/// How many pages of the text pool the code of programs has: 64 MiB.
pub const ACTION_PAGES: usize = 16_384;

unsafe extern "C" {
    /// The entry of a #BP that is no probe's, in `arch/x86_64/user_breakpoint.rs`. The stack holds
    /// the first words of its frame, from `ss` to `ax`.
    fn asm_breakpoint_other();
    /// The same for a #DB that is no watchpoint's alone, in `arch/x86_64/entry.rs`.
    fn asm_debug_other();
}

::probes::entry_points!(Kernel, cs = gdt::KERNEL_CS, ss = gdt::KERNEL_DS);
::probes::breakpoint_entry!(
    Kernel,
    PROBES,
    other = asm_breakpoint_other,
    // As `clac_if_smap` in the stubs of `arch/x86_64/entry.rs`.
    clear_ac = "77: .byte 0x0f, 0x1f, 0x00; \
        .pushsection .clac_sites, \"a\", @progbits; .quad 77b; .popsection"
);

::probes::debug_entry!(
    Kernel,
    PROBES,
    other = asm_debug_other,
    clear_ac = "77: .byte 0x0f, 0x1f, 0x00; \
        .pushsection .clac_sites, \"a\", @progbits; .quad 77b; .popsection"
);

// SAFETY: clause by clause of `Platform`:
// 1. The data of each CPU hold one `probes`, which nothing else uses.
// 2. `text_of` answers from the linker's bounds, and the probes are told when init text is freed.
// 3. and 4. See `text_poke`.
// 5. The scheduler asks `may_preempt` before it switches on an interrupt's exit, and handlers
//    neither sleep nor schedule.
// 6. Frames are taken for good and mapped in the text pool.
unsafe impl Platform for Kernel {
    type RawMutex = RawMutex;

    const ACTION_PAGES: usize = ACTION_PAGES;

    // By `.cargo/config.toml` and the linker script.
    const IN_TOP_2_GIB: bool = true;

    const PER_CPU_GS_OFFSET: u32 = percpu::PROBES as u32;

    const PER_CPU_PAGES: bool = true;

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
        let percpu = percpu::get(cpu).filter(|_| cpu < smp::online_cpus());
        percpu.map(|percpu| &percpu.probes)
    }

    fn can_sleep() -> bool {
        task::may_sleep()
    }

    fn lookup_symbol(name: &str) -> Result<u64, ProbeError> {
        names::lookup(name)
    }

    fn symbol_at(addr: u64) -> Option<Symbol> {
        let symbol = symbols::lookup_addr(addr)?;
        let text = text_of(symbol.kind);
        Some(Symbol {
            start: symbol.start,
            size: symbol.size,
            text,
            exported: symbol.exported,
            // Functions that may fault have no notes.
            entry: match text {
                Text::Kernel => EntryFacts::from_bits(symbol.note),
                _ => EntryFacts::UNKNOWN,
            },
        })
    }

    fn blacklisted(addr: u64) -> Option<&'static str> {
        blacklist::reason(addr)
    }

    #[inline(always)]
    unsafe fn write_text(addr: u64, byte: u8) {
        // SAFETY: the caller keeps the same contract.
        unsafe { text_poke::store(addr, byte) }
    }

    #[inline(always)]
    unsafe fn write_tail(addr: u64, bytes: [u8; 4]) {
        // SAFETY: the caller keeps the same contract.
        unsafe { text_poke::store_tail(addr, bytes) }
    }

    fn slot_page(index: usize) -> Option<SlotPage> {
        let exec = Self::slots().start + index as u64 * 4096;
        let frame = Frame::alloc_zeroed().ok()?;
        let alias = phys_map::phys_to_virt(frame.phys()).as_mut_ptr();
        paging::map_kernel_rx(VirtAddr::new(exec), frame).ok()?;
        Some(SlotPage { exec, alias })
    }

    fn on_every_cpu(work: &(dyn Fn() + Sync)) {
        every_cpu::on_every_cpu(work);
    }

    fn synchronize_cores() {
        text_poke::synchronize_cores();
    }

    fn synchronize_hits(_: &(dyn Fn() -> bool + Sync)) {
        text_poke::synchronize_hits();
    }

    fn synchronize_settled(_: &(dyn Fn() -> bool + Sync)) {
        text_poke::synchronize_settled();
    }

    fn may_fault(range: Range<u64>) -> bool {
        uaccess::may_fault_in(range)
    }

    fn wait_for_preempted(inside: &dyn Fn(u64) -> bool) {
        while task::scheduler::is_preempted_in(inside) {
            task::schedule();
        }
    }

    fn not_watchable(range: Range<u64>) -> Option<&'static str> {
        watched_memory::refusal(&range)
    }

    const CAN_LOAD_WATCHES_ELSEWHERE: bool = true;

    #[inline(always)]
    fn watchable_value(addr: u64, len: u8) -> Option<u64> {
        watched_memory::value(addr, len)
    }

    fn not_watchable_in_programs(range: Range<u64>) -> Option<&'static str> {
        watched_memory::refusal_in_programs(&range)
    }

    #[inline(always)]
    fn value_in_program(addr: u64, len: u8) -> Option<u64> {
        watched_memory::value_in(Space::User, addr, len)
    }

    fn position_in_program(ip: u64) -> u64 {
        uprobes::hit::ip_after(ip)
    }

    fn load_watches_elsewhere() {
        every_cpu::load_watches_elsewhere();
    }

    fn log(message: fmt::Arguments<'_>) {
        crate::pr_info!("{message}");
    }
}

impl Entries for Kernel {
    fn entry_points() -> EntryPoints {
        with_debug_entry(with_breakpoint_entry(probe_entry_points()))
    }
}

impl Host for Kernel {
    fn probes() -> &'static Probes<Self> {
        &PROBES
    }
}

/// The kind of memory that a symbol lies in.
///
/// Text that is found under the registry's lock stays there as long as the lock is held. The
/// reason: [`init_text::free`] first marks init text as freed, then takes that lock in
/// `PROBES.text_freed`, and only then unmaps the text.
fn text_of(kind: SymbolKind) -> Text {
    match kind {
        SymbolKind::Text => Text::Kernel,
        SymbolKind::Init if init_text::is_freed() => Text::Freed,
        SymbolKind::Init => Text::Init,
        SymbolKind::Rodata | SymbolKind::Data | SymbolKind::Bss => Text::No,
    }
}

/// The trampolines that return-probed functions return to. Any context.
pub(super) fn return_trampolines() -> [*const (); 4] {
    [
        kretprobe_trampoline as *const (),
        core::ptr::with_exposed_provenance(probes::action_trampoline!() as usize),
        kretprobe_trampoline_trap3 as *const (),
        kretprobe_trampoline_trap4 as *const (),
    ]
}
