//! Detours: what the jump of an optimised probe leads to.
//!
//! A detour is code of its own for one site. It does what a breakpoint's trap does, without one: builds a full
//! [`PtRegs`], runs the handlers, restores the registers, executes the displaced instructions and jumps back behind them.
//!
//! ```text
//!   start   leave    the way out for a handler that has set the instruction pointer: iretq from the frame
//!   enter   frame    push ss, rsp, rflags, cs, ip, -1 and the general registers
//!           call     guard up; on_detour(regs, site); leave, if it says so; guard down
//!           restore  pop all, flags last
//!   block            the displaced instructions, translated; a jump back
//! ```
//!
//! `leave` to `restore` are a copy of one of two templates, which [`detour_templates!`](crate::detour_templates) defines as functions, with
//! their call frame information: a stack walk that meets code in a detour asks the template about it
//! ([`Detour::described`]). At a function's entry the stack is aligned and DF is clear by the ABI; the other template sees to
//! both.
//!
//! # Invariants
//! D1. The guard is up from before `on_detour` until after it, and detours lie in the slot region: a CPU is in no
//!     detour when a grace period ends, and no task is switched away from inside one.
//! D2. A detour is written before its site points to it, and freed a grace period after it does not any more.
//! D3. While a site points to a detour, nobody is told to go on under the jump: [`Probes::executable_ip`] leads to the
//!     displaced copy instead.
//!
//! # Contexts
//! Code in a detour runs with the interrupt flag of the probed code.

use alloc::{boxed::Box, vec::Vec};
use core::{
    mem::offset_of,
    ptr::null_mut,
    sync::atomic::{
        AtomicBool, AtomicPtr,
        Ordering::{Acquire, Relaxed},
    },
};

use crate::{
    insn::{self, Block, Ending, JUMP_BYTES, Region},
    kprobe::{Kind, PreVerdict},
    platform::Platform,
    pt_regs::PtRegs,
    registry::Probes,
    site::{Place, Site},
};

/// Bytes of a detour. The longer template takes 190; displaced code of 5 to 19 bytes takes about twice that.
pub(crate) const DETOUR_BYTES: usize = 256;

/// Defines the templates of detours, `kprobe_detour_at_entry` and `kprobe_detour`, and their addresses. Part of
/// [`entry_points!`](crate::entry_points).
///
/// ```text
///   S       rsp of the probed code
///   S-0x08  ss               PtRegs, last field first
///   S-0x10  rsp (= S)        pushed 8 too low, then corrected
///   S-0x18  rflags
///   S-0x20  cs
///   S-0x28  rip              the probed address + 1
///   S-0x30  orig_ax (-1)
///   S-0x38  rdi ... down to
///   S-0xa8  r15              <- rdi at the call
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! detour_templates {
    ($platform:ty, cs = $cs:expr, ss = $ss:expr) => {
        $crate::detour_template! {
            $platform, $cs, $ss, kprobe_detour_at_entry, kprobe_detour_at_entry_end,
            before = [], after = []
        }
        $crate::detour_template! {
            $platform, $cs, $ss, kprobe_detour, kprobe_detour_end,
            before = [
                // Handlers run with DF and AC clear; hardly any code has one of them set.
                "test dword ptr [rsp + 144], 0x40400",
                "jz 2f",
                "push [rsp + 144]",
                ".cfi_adjust_cfa_offset 8",
                "and dword ptr [rsp], ~0x40400",
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                "2:",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
            ],
            after = [
                "mov rsp, rbp",
                ".cfi_def_cfa_register rsp",
            ]
        }

        fn detour_templates() -> $crate::detour::Templates {
            $crate::detour::Templates {
                at_entry: $crate::detour::Template {
                    start: kprobe_detour_at_entry as *const () as u64,
                    end: (&raw const kprobe_detour_at_entry_end) as u64,
                },
                anywhere: $crate::detour::Template {
                    start: kprobe_detour as *const () as u64,
                    end: (&raw const kprobe_detour_end) as u64,
                },
                on_detour: $crate::detour::on_detour::<$platform> as *const () as u64,
            }
        }
    };
}

/// One template. `before` and `after` surround the call.
#[doc(hidden)]
#[macro_export]
macro_rules! detour_template {
    (
        $platform:ty, $cs:expr, $ss:expr, $name:ident, $end:ident,
        before = [$($before:literal),* $(,)?], after = [$($after:literal),* $(,)?]
    ) => {
        /// A template of detours; never executed here.
        ///
        /// # Safety
        /// Never called.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            ::core::arch::naked_asm!(
                // The frame is whole, and what it says is where to go on.
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 168",
                ".cfi_offset rsp, -16",
                ".cfi_offset rip, -40",
                ".cfi_offset rdi, -56",
                ".cfi_offset rsi, -64",
                ".cfi_offset rdx, -72",
                ".cfi_offset rcx, -80",
                ".cfi_offset rax, -88",
                ".cfi_offset r8, -96",
                ".cfi_offset r9, -104",
                ".cfi_offset r10, -112",
                ".cfi_offset r11, -120",
                ".cfi_offset rbx, -128",
                ".cfi_offset rbp, -136",
                ".cfi_offset r12, -144",
                ".cfi_offset r13, -152",
                ".cfi_offset r14, -160",
                ".cfi_offset r15, -168",
                "3:",
                "dec dword ptr gs:[{guard}]",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                ".cfi_endproc",
                // Until `ip` is pushed, the walk knows by the offset where the frame above is.
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 0",
                "push {ss}",
                ".cfi_adjust_cfa_offset 8",
                "push rsp",
                ".cfi_adjust_cfa_offset 8",
                "pushfq",
                ".cfi_adjust_cfa_offset 8",
                "push {cs}",
                ".cfi_adjust_cfa_offset 8",
                // push imm32, the long form
                ".byte 0x68",
                ".long 0",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rip, 0",
                "push -1",
                ".cfi_adjust_cfa_offset 8",
                $crate::push_general_registers!(),
                "inc dword ptr gs:[{guard}]",
                // What was pushed as rsp is one word too low.
                "add qword ptr [rsp + {sp}], 8",
                "mov rdi, rsp",
                $($before,)*
                "movabs rsi, {site}",
                "call {on_detour}",
                $($after,)*
                "test al, al",
                "jnz 3b",
                "dec dword ptr gs:[{guard}]",
                $crate::pop_general_registers!(),
                "lea rsp, [rsp + 24]",
                ".cfi_adjust_cfa_offset -24",
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                "lea rsp, [rsp + 16]",
                ".cfi_adjust_cfa_offset -16",
                ::core::concat!(".globl ", ::core::stringify!($end)),
                ::core::concat!(::core::stringify!($end), ":"),
                ".cfi_endproc",
                ss = const $ss as i32,
                cs = const $cs as i32,
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
                site = const $crate::detour::SITE_MARK,
                on_detour = sym $crate::detour::on_detour::<$platform>,
            )
        }

        unsafe extern "C" {
            static $end: u8;
        }
    };
}

const _: () = assert!(offset_of!(PtRegs, flags) == 144 && crate::entry::DF_AND_AC == 0x40400);
const _: () = assert!(size_of::<PtRegs>() == 168);

/// Stands in a template for the address of the site.
#[doc(hidden)]
pub const SITE_MARK: u64 = 0x5173_5173_5173_5173;

/// Where a template is.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Its first byte: where `leave` is.
    pub start: u64,
    /// Behind its last byte: where the displaced instructions follow.
    pub end: u64,
}

/// What [`entry_points!`](crate::entry_points) tells about detours.
#[derive(Clone, Copy, Debug)]
pub struct Templates {
    /// For functions' entries.
    pub at_entry: Template,
    /// For everywhere else.
    pub anywhere: Template,
    /// What they call.
    pub on_detour: u64,
}

/// Bytes of `leave`: `dec gs:[disp32]`, fifteen pops, `add rsp, 8`, `iretq`.
const ENTER: usize = 8 + 23 + 4 + 2;
/// How deep the stack is at each instruction from `enter` on, until ip is pushed: offset from `enter`, bytes.
const PROLOGUE: [(usize, i32); 5] = [(0, 0), (2, 8), (3, 16), (4, 24), (6, 32)];
/// From so many bytes behind `enter` on the call frame information finds the frame above.
const FRAMED: usize = 11;
/// Where the four bytes of the ip to be pushed are.
const IP_FIELD: usize = ENTER + 7;
/// How deep the stack still is at the instructions at the end: `popfq; lea rsp, [rsp + 16]`. Bytes before the end, bytes.
const EPILOGUE: [(usize, i32); 2] = [(6, 24), (5, 16)];

/// A copy of a template that can be changed; executable code of the kernel, read as data.
struct Copy {
    code: Vec<u8>,
}

impl Copy {
    /// The template with the fields of one detour at `start` filled in; none without memory, or if the template is not as
    /// it should be.
    fn of(template: Template, start: u64, on_detour: u64, site: *const Site) -> Option<Self> {
        let len = template.end.checked_sub(template.start)? as usize;
        let mut code = Vec::new();
        code.try_reserve_exact(len).ok()?;
        // SAFETY: `entry_points!` gives the bounds of a function, which is mapped and readable, and never written.
        code.extend_from_slice(unsafe {
            core::slice::from_raw_parts(template.start as *const u8, len)
        });
        let mark = SITE_MARK.to_le_bytes();
        let field = code.windows(8).position(|bytes| bytes == mark)?;
        let call = field + 9;
        let (site_field, rest) = code.get_mut(field..)?.split_at_mut_checked(8)?;
        site_field.copy_from_slice(&(site.addr() as u64).to_le_bytes());
        let [0xe8, displacement @ ..] = rest else {
            return None;
        };
        let from = start + call as u64 + 4;
        let distance = i32::try_from(on_detour.wrapping_sub(from) as i64).ok()?;
        displacement
            .get_mut(..4)?
            .copy_from_slice(&distance.to_le_bytes());
        // SAFETY: the caller's site.
        let key = unsafe { (*site).key } as u32;
        code.get_mut(IP_FIELD..IP_FIELD + 4)?
            .copy_from_slice(&key.to_le_bytes());
        Some(Self { code })
    }
}

/// See the module's text.
pub(crate) struct Detour {
    /// Where it is executed.
    pub(crate) start: u64,
    /// Offset of the displaced instructions: the length of the template.
    block: usize,
    /// The template that it begins with.
    template: u64,
    /// The bytes that the jump replaces.
    pub(crate) original: [u8; JUMP_BYTES],
    /// For each address under the jump the offset of its displaced copy; 0 where no instruction begins.
    copies: [u8; JUMP_BYTES],
    /// What the probed code looks like in the block, which begins with the first of them; `from` counts from the block.
    places: Vec<Place>,
    /// Whether the jump is in the text. Under the registry's lock.
    pub(crate) installed: AtomicBool,
    /// The site. Under the registry's lock.
    pub(crate) site: *const Site,
    /// The next detour of the operation under way. Under the registry's lock.
    pub(crate) next: AtomicPtr<Detour>,
}

impl Detour {
    /// Makes the detour of `site`, to be written to `start`. Returns it with its code. None: no memory, or the displaced instructions
    /// do not fit.
    pub(crate) fn build(
        templates: &Templates,
        site: &Site,
        region: &Region,
        original: [u8; JUMP_BYTES],
        at_entry: bool,
        start: u64,
    ) -> Option<(Box<Self>, Vec<u8>)> {
        let template = if at_entry {
            templates.at_entry
        } else {
            templates.anywhere
        };
        let Copy { mut code } = Copy::of(template, start, templates.on_detour, site)?;
        let at = code.len();
        let mut block = Block::new(start + at as u64);
        let mut copies = [0; JUMP_BYTES];
        let mut last = None;
        for insn in region.insns() {
            copies[(insn.ip() - site.addr()) as usize] = (at + block.offset()).try_into().ok()?;
            block.append(insn, Ending::Fall).ok()?;
            last = Some(insn);
        }
        let last = last?;
        if insn::classify(last, None).map_or(true, insn::Class::falls_through) {
            block.jump(last.next_ip()).ok()?;
        }
        let len = block.finish().ok()?.len();
        let mut places: Vec<Place> = Vec::new();
        for offset in 0..len {
            let place = Place::new(offset as u8, block.position(offset)?, site.addr())?;
            if !places.last().is_some_and(|last| last.looks_like(&place)) {
                places.try_reserve(1).ok()?;
                places.push(place);
            }
        }
        code.try_reserve_exact(len).ok()?;
        code.extend_from_slice(block.finish().ok()?);
        if code.len() > DETOUR_BYTES {
            return None;
        }
        let detour = crate::registry::try_box(Self {
            start,
            block: at,
            template: template.start,
            original,
            copies,
            places,
            installed: AtomicBool::new(false),
            site,
            next: AtomicPtr::new(null_mut()),
        });
        Some((detour.ok()?, code))
    }

    /// The site whose detour it is.
    pub(crate) fn site(&self) -> &Site {
        // SAFETY: a site is freed after its detours.
        unsafe { &*self.site }
    }

    /// Where the jump leads to.
    pub(crate) fn enter(&self) -> u64 {
        self.start + ENTER as u64
    }

    /// Where the displaced instructions are.
    pub(crate) fn block(&self) -> u64 {
        self.start + self.block as u64
    }

    /// Where the copy is of the instruction that begins `behind` bytes behind the probed address, if one does.
    pub(crate) fn copy_of(&self, behind: usize) -> Option<u64> {
        match self.copies.get(behind) {
            None | Some(0) => None,
            Some(offset) => Some(self.start + u64::from(*offset)),
        }
    }

    /// The template's instruction that the one at `offset` is a copy of, whose call frame information describes it. None in the displaced
    /// instructions and where `ip` is not on the stack.
    pub(crate) fn described(&self, offset: usize) -> Option<u64> {
        let framed =
            offset < ENTER || (ENTER + FRAMED..self.block - EPILOGUE[0].0).contains(&offset);
        framed.then_some(self.template + offset as u64)
    }

    /// What the probed code looks like at `offset`, where the template does not describe it.
    pub(crate) fn place(&self, offset: usize) -> Place {
        if let Some(from) = offset.checked_sub(self.block) {
            let before = self.places.iter().take_while(|place| place.from() <= from);
            return before.last().copied().unwrap_or(Place::PROBED);
        }
        let deep = match (self.block - offset, offset.checked_sub(ENTER)) {
            (1..=5, _) => EPILOGUE[1].1,
            (6, _) => EPILOGUE[0].1,
            (_, Some(from)) => {
                let before = PROLOGUE.iter().take_while(|(at, _)| *at <= from);
                before.last().map_or(0, |(_, deep)| *deep)
            }
            _ => 0,
        };
        Place::probed(deep)
    }
}

impl<P: Platform> Probes<P> {
    /// Where code goes on that is told to go on at `ip`: at the displaced copy, if that is under a jump or where one is about to be
    /// written; else there. Interrupts off, or the guard held, until it has gone on.
    pub fn executable_ip(&self, ip: u64) -> u64 {
        self.covering(ip)
            .filter(|(site, detour, _)| site.run.load(Acquire) == detour.block())
            .and_then(|(_, detour, behind)| detour.copy_of(behind))
            .unwrap_or(ip)
    }

    /// Whether `ip` is under a jump, or where one is about to be written. Where a grace period does not end.
    pub(crate) fn is_covered(&self, ip: u64) -> bool {
        self.covering(ip).is_some()
    }

    /// The site with a detour whose jump covers `ip`, not counting the first byte; and how far behind its address that is.
    fn covering(&self, ip: u64) -> Option<(&Site, &Detour, usize)> {
        if self.detour_count.load(Relaxed) == 0 {
            return None;
        }
        (1..JUMP_BYTES).find_map(|behind| {
            let site = self.table.find((ip + 1).checked_sub(behind as u64)?)?;
            Some((site, site.detour()?, behind))
        })
    }
}

/// Called by detours, with the guard up. True: leave by `regs`.
///
/// # Safety
/// 1. `regs` is the frame that the detour has built.
/// 2. `site` is the detour's.
pub unsafe extern "C" fn on_detour<P: Platform>(regs: *mut PtRegs, site: *const Site) -> bool {
    // SAFETY: (1); the frame is on this stack and nobody else knows it.
    let regs = unsafe { &mut *regs };
    // SAFETY: (2); it outlives its detour.
    let site = unsafe { &*site };
    P::probes().run_detour(site, regs)
}

impl<P: Platform> Probes<P> {
    /// Runs the handlers. True if one of them has set where to go on.
    fn run_detour(&self, site: &Site, regs: &mut PtRegs) -> bool {
        let cpu = P::this_cpu();
        regs.ip = site.key;
        if cpu.is_nested() {
            self.miss(cpu, site, regs);
            return false;
        }
        for probe in site.probes().filter(|probe| probe.is_enabled()) {
            match probe.kind {
                Kind::Kprobe => {
                    probe.hits.count(cpu);
                    let Some(pre) = probe.pre_handler else {
                        continue;
                    };
                    cpu.running
                        .store(core::ptr::from_ref(probe).cast_mut(), Relaxed);
                    let verdict = pre(probe, regs);
                    cpu.running.store(null_mut(), Relaxed);
                    if verdict == PreVerdict::Resume {
                        regs.ip = self.executable_ip(regs.ip);
                        return true;
                    }
                }
                Kind::Kretprobe => self.enter_call(cpu, probe, regs),
                // An address with a jprobe keeps its breakpoint.
                Kind::Jprobe => {}
            }
        }
        false
    }
}
