//! The assembly: what [`entry_points!`](crate::entry_points!) and
//! [`breakpoint_entry!`](crate::breakpoint_entry!) expand to.
//!
//! Both define functions in the crate that implements the platform, so that these carry plain names
//! in backtraces and lists. So does [`debug_entry!`](crate::debug_entry!), which a kernel need not
//! expand. `breakpoint` has what the gate of #BP leads to, `watchpoints` what the gate of #DB leads
//! to, `handlers` what runs the probes of a site, `returns` where control comes back without an
//! exception, `detours` what the jump of an optimised probe leads to. They are written with the
//! assembler macros of `stub_macros`, with offsets from `layout`. Each function has call frame
//! information for every instruction, because an NMI may come at any and take a backtrace.
//!
//! They do the usual without Rust, which would cost a hit some hundred instructions. Each step that
//! exists in Rust, too, names it.
//!
//! # Contexts
//! All call Rust on the probed code's stack, with DF and AC clear and the stack 16-byte
//! aligned. Breakpoints: interrupts off. Detours and returns: with the interrupt flag of the probed
//! code; the guard keeps the CPU.

#[cfg_attr(not(feature = "actions"), path = "no_actions.rs")]
mod actions;
mod breakpoint;
#[cfg_attr(not(feature = "jumps"), path = "no_detours.rs")]
mod detours;
mod handlers;
#[cfg_attr(not(feature = "historic"), path = "no_historic.rs")]
mod historic;
#[cfg_attr(not(feature = "jprobes"), path = "no_jprobes.rs")]
mod jprobes;
mod kernel;
pub mod layout;
mod returns;
mod stub_macros;
pub mod traps;
#[cfg(feature = "watchpoints")]
mod watchpoints;

use core::mem::ManuallyDrop;

use crate::{
    data::{kprobe::Kprobe, site::Site},
    pt_regs::PtRegs,
    registry::Host,
};

// The macros name these.
pub use crate::{
    data::{
        entry_points::{
            EntryPoints, KRETPROBE_MARK, KRETPROBE_ROUTINE_MARK, Routines, SITE_MARK,
            TRAMPOLINE_MARK, Template, Templates, WatchStubs,
        },
        jprobe::STACK_WORDS,
        per_cpu::IN_POST,
    },
    hit::Flow,
    insn::flags::bits,
};

#[cfg(feature = "jprobes")]
unsafe extern "C" {
    /// Ends a jprobe handler: puts the stack pointer back to where the handler was entered and
    /// traps.
    ///
    /// # Safety
    /// Only at the end of a jprobe handler, with nothing left to drop: the frames in
    /// between vanish.
    pub unsafe fn jprobe_return() -> !;
}

/// What the macros take where the distance of [`PerCpu`](crate::PerCpu) from the GS base is a
/// constant of Rust: nothing is added to it.
pub const NO_SYMBOL: u32 = 0;

/// Defines what a hit jumps to and calls, for a [`Platform`](crate::Platform), and
/// `probe_entry_points`, which has the addresses. Once a program.
///
/// - `cs`, `ss`: the selectors of the kernel's code and stacks.
/// - `per_cpu`: may be left out. `sym OFFSET`, where `OFFSET` is declared as an `extern` static:
///   the linker script gives that symbol an absolute value, and it is added to
///   [`Platform::PER_CPU_GS_OFFSET`](crate::Platform::PER_CPU_GS_OFFSET). For kernels where only
///   the linker knows how far their variables are from the GS base.
#[macro_export]
macro_rules! entry_points {
    ($platform:ty, cs = $cs:expr, ss = $ss:expr) => {
        $crate::entry_points!(
            $platform,
            cs = $cs,
            ss = $ss,
            per_cpu = const $crate::asm::NO_SYMBOL
        );
    };
    ($platform:ty, cs = $cs:expr, ss = $ss:expr, per_cpu = $kind:tt $per_cpu:path) => {
        ::core::arch::global_asm!(
            $crate::stub_macros!(),
            $crate::instance_macros!(),
            $crate::handlers!(),
            $crate::returns!(),
            $crate::action_returns!(),
            $crate::historic_returns!(),
            $crate::jprobe_routines!(),
            $crate::detours!(),
            r#"
.pushsection .rodata.kprobe_per_cpu_offset, "a", @progbits
    .balign 4
    .globl kprobe_per_cpu_offset
kprobe_per_cpu_offset:
    .long {per_cpu}
.popsection
"#,
            $crate::end_of_instance_macros!(),
            $crate::end_of_stub_macros!(),
            // A site.
            key = const $crate::asm::layout::SITE_KEY,
            head = const $crate::asm::layout::SITE_HEAD,
            site_slot = const $crate::asm::layout::SITE_SLOT,
            // A probe.
            chain = const $crate::asm::layout::PROBE_CHAIN,
            probe_routine = const $crate::asm::layout::PROBE_ROUTINE,
            next_probe = const $crate::asm::layout::PROBE_NEXT,
            probe_site = const $crate::asm::layout::PROBE_SITE,
            probe_flags = const $crate::asm::layout::PROBE_FLAGS,
            silent = const $crate::asm::layout::SILENT,
            hits = const $crate::asm::layout::PROBE_HITS,
            pre = const $crate::asm::layout::PROBE_PRE,
            post = const $crate::asm::layout::PROBE_POST,
            // A kretprobe, and the holder of its instances.
            enter = const $crate::asm::layout::KRETPROBE_ENTER,
            kretprobe_trampoline = const $crate::asm::layout::KRETPROBE_TRAMPOLINE,
            jump_entry = const $crate::asm::layout::KRETPROBE_JUMP_ENTRY,
            jump_return = const $crate::asm::layout::KRETPROBE_JUMP_RETURN,
            to_action_trampoline = const $crate::asm::layout::TO_ACTION_TRAMPOLINE,
            handler = const $crate::asm::layout::KRETPROBE_HANDLER,
            kretprobe_holder = const $crate::asm::layout::KRETPROBE_HOLDER,
            nmissed = const $crate::asm::layout::KRETPROBE_NMISSED,
            lone_holder = const $crate::asm::layout::KRETPROBE_LONE_HOLDER,
            holder_kretprobe = const $crate::asm::layout::HOLDER_KRETPROBE,
            // An instance, and a task's cell.
            instance_holder = const $crate::asm::layout::INSTANCE_HOLDER,
            next = const $crate::asm::layout::INSTANCE_NEXT,
            ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
            return_frame = const $crate::asm::layout::INSTANCE_RETURN_FRAME,
            below_slot = const $crate::asm::layout::BELOW_SLOT,
            shared = const $crate::asm::layout::SHARED,
            cell_head = const $crate::asm::layout::CELL_HEAD,
            // A jprobe, and what its hit saves.
            jprobe_entry = const $crate::asm::layout::JPROBE_ENTRY,
            jprobe_site = const $crate::asm::layout::JPROBE_SITE,
            jprobe_kprobe = const $crate::asm::layout::JPROBE_KPROBE,
            jprobe_words = const $crate::asm::layout::JPROBE_WORDS,
            jprobe_plain = const $crate::asm::layout::JPROBE_PLAIN,
            jprobe_regs = const $crate::asm::layout::JPROBE_REGS,
            stack_words = const $crate::asm::STACK_WORDS,
            flow_jprobe = const $crate::asm::Flow::Jprobe as u8,
            // A frame, and its flags.
            cs = const $cs as i32,
            ss = const $ss as i32,
            ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
            flags = const ::core::mem::offset_of!($crate::PtRegs, flags),
            sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
            ss_at = const ::core::mem::offset_of!($crate::PtRegs, ss),
            frame_bytes = const ::core::mem::size_of::<$crate::PtRegs>(),
            df_and_ac = const $crate::asm::bits::DF | $crate::asm::bits::AC,
            if_and_tf = const $crate::asm::bits::IF | $crate::asm::bits::TF,
            // This CPU's data.
            per_cpu = $kind $per_cpu,
            guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
            running = const $crate::PerCpu::running_gs_offset::<$platform>(),
            in_post = const $crate::asm::IN_POST,
            cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
            per_cpu_pages = const <$platform as $crate::Platform>::PER_CPU_PAGES as u8,
            counter_part = const $crate::PerCpu::counter_part_gs_offset::<$platform>(),
            finishing = const $crate::PerCpu::finishing_gs_offset::<$platform>(),
            saved_flags = const $crate::PerCpu::saved_flags_gs_offset::<$platform>(),
            saved_sp = const $crate::PerCpu::saved_sp_gs_offset::<$platform>(),
            jprobe = const $crate::PerCpu::jprobe_gs_offset::<$platform>(),
            jprobe_in_cpu = const $crate::PerCpu::JPROBE_OFFSET,
            this = const $crate::PerCpu::this_gs_offset::<$platform>(),
            // A detour's copy has other values in place of these.
            site_mark = const $crate::asm::SITE_MARK,
            kretprobe_mark = const $crate::asm::KRETPROBE_MARK,
            trampoline_mark = const $crate::asm::TRAMPOLINE_MARK,
            kretprobe_routine_mark = const $crate::asm::KRETPROBE_ROUTINE_MARK,
            // Rust.
            handle_slow_path = sym $crate::asm::handle_slow_path::<$platform>,
            on_return = sym $crate::asm::on_return::<$platform>,
            miss = sym $crate::asm::miss_in_detour::<$platform>,
            resume = sym $crate::asm::resume_at::<$platform>,
        );

        unsafe extern "C" {
            fn kprobe_handle_nothing();
            fn kprobe_handle_count();
            fn kprobe_handle_kprobe();
            fn kprobe_handle_action();
            fn kprobe_handle_slow_path();
            fn kprobe_handle_chain();
            fn kprobe_handle_far();
            fn kprobe_handle_far_chain();
            fn kretprobe_handle();
            fn kretprobe_handle_entry();
            fn kretprobe_trampoline();
            fn kprobe_post_stub();
            static kprobe_per_cpu_offset: u32;
        }

        $crate::historic_declarations!();

        fn probe_entry_points() -> $crate::asm::EntryPoints {
            let [jprobe, jprobe_return] = $crate::jprobe_entries!();
            $crate::asm::EntryPoints {
                trampoline: kretprobe_trampoline as *const () as u64,
                action_trampoline: $crate::action_trampoline!(),
                historic_trampolines: $crate::historic_trampolines!(),
                post_stub: kprobe_post_stub as *const () as u64,
                jprobe_return,
                detours: $crate::detour_templates!(),
                routines: $crate::asm::Routines {
                    nothing: kprobe_handle_nothing as *const () as u64,
                    count: kprobe_handle_count as *const () as u64,
                    kprobe: kprobe_handle_kprobe as *const () as u64,
                    action: kprobe_handle_action as *const () as u64,
                    kretprobe: kretprobe_handle as *const () as u64,
                    kretprobe_entry: kretprobe_handle_entry as *const () as u64,
                    jprobe,
                    slow_path: kprobe_handle_slow_path as *const () as u64,
                    chain: kprobe_handle_chain as *const () as u64,
                    far: kprobe_handle_far as *const () as u64,
                    far_chain: kprobe_handle_far_chain as *const () as u64,
                },
                // SAFETY: a word of the assembly above, which nothing writes.
                per_cpu: unsafe { (&raw const kprobe_per_cpu_offset).read() },
                any_hit: 0,
                hit: 0,
                hit_post: 0,
                one_kretprobe: 0,
                kretprobes: 0,
                action: 0,
                watch: $crate::asm::WatchStubs::NONE,
            }
        }
    };
}

/// Handles one probe of any kind. Called by `kprobe_handle_slow_path`.
///
/// # Safety
/// 1. `probe` is linked to a site that was hit, and the guard is held.
/// 2. `regs` is the frame of the hit.
pub unsafe extern "C" fn handle_slow_path<P: Host>(
    probe: *const Kprobe,
    regs: *mut PtRegs,
) -> Flow {
    // SAFETY: by the contract: linked probes live until a grace period, which the guard holds up,
    // and the frame is on this stack.
    let (probe, regs) = unsafe { (&*probe, &mut *regs) };
    // SAFETY: by the contract; the assembly drops the guard itself.
    let guard = ManuallyDrop::new(unsafe { P::this_cpu().held() });
    P::probes().run_probe(&guard, probe, regs)
}

/// Called by `kprobe_any_hit`.
///
/// # Safety
/// `site` was found in the address table for the address of the trap whose frame is
/// `regs`; interrupts are off.
pub unsafe extern "C" fn serve<P: Host>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: by the contract; the site lives until a grace period begins, which interrupts off
    // hold up, and the frame is on this stack.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    P::probes().serve(P::this_cpu(), site, regs);
}

/// Called by `kprobe_hit_post` where there is no post slot.
///
/// # Safety
/// The same as for [`serve`]; the pre handlers have run, and the guard is held.
pub unsafe extern "C" fn finish<P: Host>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: as in `serve`.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    // SAFETY: by the contract, and the assembly leaves it to `finish` to drop the guard.
    let guard = unsafe { P::this_cpu().held() };
    P::probes().finish(guard, site, regs);
}

/// Called by `kretprobe_trampoline`. The frame is aligned as the stack of the probed code is, so
/// handlers get a copy where that is at no multiple of 8.
///
/// # Safety
/// `regs` is the frame that the trampoline has built, and the guard is held.
pub unsafe extern "C" fn on_return<P: Host>(regs: *mut PtRegs) -> u64 {
    // SAFETY: by the contract; the assembly drops the guard itself.
    let guard = ManuallyDrop::new(unsafe { P::this_cpu().held() });
    if regs.is_aligned() {
        // SAFETY: by the contract; the frame is on this stack and nothing else knows it.
        return P::probes().leave_call(&guard, unsafe { &mut *regs });
    }
    // SAFETY: as above.
    let mut copy = unsafe { regs.read_unaligned() };
    let ret_addr = P::probes().leave_call(&guard, &mut copy);
    // SAFETY: as above.
    unsafe { regs.write_unaligned(copy) };
    ret_addr
}

/// Called by detours that were entered with the guard up.
///
/// # Safety
/// 1. `regs` is the frame that the detour has built.
/// 2. `site` is the detour's.
pub unsafe extern "C" fn miss_in_detour<P: Host>(site: *const Site, regs: *mut PtRegs) {
    // SAFETY: by the contract: the frame is on this stack and nothing else knows it, and the site
    // outlives its detour.
    let (site, regs) = unsafe { (&*site, &mut *regs) };
    P::probes().miss(P::this_cpu(), site, regs);
}

/// Called by detours and breakpoint stubs when a handler has set where to go on, with the guard
/// still up.
///
/// # Safety
/// `regs` is the frame of the hit.
pub unsafe extern "C" fn resume_at<P: Host>(regs: *mut PtRegs) {
    // SAFETY: by the contract: the frame is on this stack and nothing else knows it.
    let regs = unsafe { &mut *regs };
    regs.ip = P::probes().executable_ip(regs.ip);
}
