//! Hits of user probes: from a breakpoint in ring 3 to the displaced instruction, and the returns
//! of calls that are followed.
//!
//! ```text
//!   int3 in the program ─► handlers, newest first ─► the slot: the instruction, and a jump back
//!                                                 └► `syscall`, `popfq`: carried out here
//!   with a post handler ─► the slot with the trap flag ─► #DB, outside the slot: post handlers
//!   function's entry    ─► after its handlers: the trampoline's address in the return slot, a call
//!                          noted
//!   int3 of the trampoline ─► the call is found by its slot, handlers, on to the true address
//! ```
//!
//! Most of it is done by the stub of the breakpoint (`arch/x86_64/user_breakpoint.rs`): where one
//! probe is alone at a place, it runs its handler or its action, or enters the call. Where the
//! newest call returns, it runs that one's. Here is the general case, which does the same.
//!
//! A breakpoint costs one trap. The replacement of an instruction uses no stack below the program's
//! stack pointer (its red zone), except where the instruction itself is a call.
//!
//! # Invariants
//! UHIT-1. Nothing that the program can write is believed: its addresses come from the state that
//!     the kernel keeps, and a trampoline that no call is noted for is a breakpoint of its own.
//! UHIT-2. Nothing is held or used any more when a system call is carried out, because it may not
//!     return, and because interrupts are on meanwhile.
//!
//! # Contexts
//! The handlers of #BP and #DB that come from ring 3: task context of that task, with interrupts
//! off, on the empty kernel stack. No lock is held by the interrupted code, so this may take those
//! that no NMI takes.

use core::{
    ptr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use ::probes::insn::ResumeIp;
use x86_64::{
    instructions::interrupts,
    registers::{debug::Dr6, rflags::RFlags},
};

use super::{
    probe::{MAX_CALLS, ProbeRef, Uprobe, Uretprobe, UserCall, UserProbe},
    space::{How, ProbedPlace, Step},
    target,
};
use crate::{
    arch::{
        debug,
        percpu::{self, MAX_CPUS},
    },
    errno::Errno,
    mm::{
        paging::USER_END,
        uaccess::{
            copy_from_user_nofault, copy_to_user_nofault, get_user_word_nofault,
            put_user_word_nofault,
        },
        user_space::{Access, UserSpace},
    },
    probes::{EntryVerdict, PreVerdict, PtRegs},
    syscall::do_syscall,
    task::{self, Pid},
};

const TF: u64 = RFlags::TRAP_FLAG.bits();
const RF: u64 = RFlags::RESUME_FLAG.bits();

/// The running task's number and memory. The caller is that task, so it keeps its memory as long as
/// it does not run or end a program.
#[inline(always)]
fn running() -> Option<(Pid, &'static UserSpace)> {
    let (task, space) = task::running_in_space()?;
    Some((task.pid(), space))
}

/// Serves a #BP that came from ring 3 and left `regs`. False: it is the program's own.
#[inline(always)]
pub fn on_breakpoint(regs: &mut PtRegs) -> bool {
    let Some((_, space)) = running() else {
        return false;
    };
    let address = regs.ip.wrapping_sub(1);
    match space.probes().place(address) {
        Some(place) => {
            on_place(regs, place);
            true
        }
        None => on_return(space, address, regs),
    }
}

/// The same where the program has no place with a probe. The stub has found that out.
#[inline(always)]
pub fn on_other_breakpoint(regs: &mut PtRegs) -> bool {
    let Some((_, space)) = running() else {
        return false;
    };
    on_return(space, regs.ip.wrapping_sub(1), regs)
}

/// Serves a #BP at `place` of the running program.
#[inline(always)]
pub fn on_place(regs: &mut PtRegs, place: &ProbedPlace) {
    regs.ip = place.address;
    // SAFETY: interrupts are off until it was used last.
    if let Some(probe) = unsafe { place.lone() } {
        let runs = |only| task::running().is_some_and(|task| task.pid() == only);
        if probe.common.fires() && probe.common.only.is_none_or(runs) {
            probe.common.count_hit();
            if probe.run(regs) == PreVerdict::Resume {
                return;
            }
            if probe.post.is_some() {
                begin_step(place.address, regs);
            }
        }
    } else {
        let Some((pid, space)) = running() else {
            return;
        };
        // SAFETY: as above.
        let Some(probe) = (unsafe { place.lone_return() }) else {
            return serve(pid, space, place, regs);
        };
        if probe.common.fires_in(pid) && enter_call(space, probe, regs).is_err() {
            probe.common.count_miss();
        }
    }
    regs.ip = place.slot.start;
}

/// Runs the handler of `probe`, which is alone at its place, where `regs` are. The stub has counted
/// the hit.
// Not inlined, because the hit path of the kernel's probes ends here.
#[inline(never)]
pub(crate) extern "C" fn run_user_handler(probe: &Uprobe, regs: &mut PtRegs) -> PreVerdict {
    probe.run(regs)
}

/// Runs the handler of the return of `call`, which the stub has taken from the calls that are
/// followed, and has counted.
///
/// # Safety
/// 1. The call is not used any more.
#[inline(never)]
pub(crate) unsafe extern "C" fn run_user_return(call: &mut UserCall, regs: &mut PtRegs) {
    let (ip, sp) = (regs.ip, regs.sp);
    call.leave(regs);
    (regs.ip, regs.sp) = (ip, sp);
    // SAFETY: (1).
    unsafe { ptr::drop_in_place(call) };
}

/// Serves a breakpoint at `place`, where regs are, in the general case.
#[inline(never)]
fn serve(pid: Pid, space: &UserSpace, place: &ProbedPlace, regs: &mut PtRegs) {
    let address = regs.ip;
    let mut has_post = false;
    // SAFETY: interrupts are off until the list was used last.
    if let Some(list) = unsafe { place.probes() } {
        let firing = || list.iter().filter(|probe| probe.common().fires_in(pid));
        for probe in firing() {
            if let UserProbe::Probe(probe) = probe {
                probe.common.count_hit();
                has_post |= probe.post.is_some();
                if probe.run(regs) == PreVerdict::Resume {
                    return;
                }
                regs.ip = address;
            }
        }
        // After the handlers, which so find the return address that the program wrote.
        for probe in firing() {
            if let UserProbe::Return(probe) = probe
                && enter_call(space, probe, regs).is_err()
            {
                probe.common.count_miss();
            }
        }
    }
    match place.displaced.how {
        How::SystemCall => {
            system_call(address, regs);
            if has_post {
                run_post(address, regs);
            }
        }
        How::PopFlags if pop_flags(regs) => {
            if has_post {
                run_post(address, regs);
            }
        }
        How::InSlot | How::PopFlags => {
            if has_post {
                begin_step(address, regs);
            }
            regs.ip = place.slot.start;
        }
    }
}

/// Runs the post handlers at `address` of the program that is in memory now.
#[cold]
#[inline(never)]
fn run_post(address: u64, regs: &mut PtRegs) {
    let Some((pid, space)) = running() else {
        return;
    };
    let place = space.probes().place(address);
    // SAFETY: interrupts are off until the list was used last.
    let list = place.and_then(|place| unsafe { place.probes() });
    for probe in list.iter().flat_map(|list| list.iter()) {
        if let UserProbe::Probe(probe) = probe
            && let Some(handler) = probe.post
            && probe.common.fires_in(pid)
        {
            handler(probe, regs);
        }
    }
}

/// Carries out the `syscall` at `address`: as the processor, and the entry of system calls, do it.
#[cold]
#[inline(never)]
fn system_call(address: u64, regs: &mut PtRegs) {
    regs.ip = address + 2;
    regs.cx = regs.ip;
    regs.r11 = regs.flags;
    regs.orig_ax = regs.ax;
    interrupts::enable();
    do_syscall(regs);
    interrupts::disable();
}

/// Carries out `popfq`. False: its word cannot be read, and nothing has changed.
#[cold]
#[inline(never)]
fn pop_flags(regs: &mut PtRegs) -> bool {
    let Some(word) = read_word(regs.sp) else {
        return false;
    };
    // What a program may not change is put right on the way back to it. The flag RF is popped as 0.
    regs.flags = word & !RF;
    regs.sp += 8;
    regs.ip += 1;
    true
}

/// Lets the program trap after the displaced instruction.
#[cold]
#[inline(never)]
fn begin_step(address: u64, regs: &mut PtRegs) {
    let Some((_, space)) = running() else {
        return;
    };
    space.probes().set_step(Some(Step {
        address,
        was_stepped: regs.flags & TF != 0,
    }));
    regs.flags |= TF;
}

/// Serves a #DB that came from ring 3. False: it is the program's own.
// Not inlined, as `on_breakpoint`.
#[inline(never)]
pub fn on_debug(regs: &mut PtRegs) -> bool {
    let Some((_, space)) = running() else {
        return false;
    };
    let Some(step) = space.probes().step() else {
        return false;
    };
    debug::clear_single_step(Dr6::read_raw());
    if space
        .probes()
        .place_of_slot(regs.ip)
        .is_some_and(|(at, ..)| at == step.address)
    {
        // Between the instructions of the replacement. `popfw` has taken the flag away.
        regs.flags |= TF;
        return true;
    }
    space.probes().set_step(None);
    if !step.was_stepped {
        regs.flags &= !TF;
        hide_trap_flag(space, &step, regs);
    }
    run_post(step.address, regs);
    !step.was_stepped
}

/// Takes the trap flag out of the flags that the program has just pushed.
fn hide_trap_flag(space: &UserSpace, step: &Step, regs: &PtRegs) {
    const PUSHF: u8 = 0x9c;
    let place = space.probes().place(step.address);
    let is_pushf = place.is_some_and(|place| {
        let (last, prefixes) = place.displaced.bytes().split_last().unwrap_or((&0, &[]));
        // REX and 0x66 are the prefixes that it may have.
        *last == PUSHF
            && prefixes
                .iter()
                .all(|byte| matches!(byte, 0x40..=0x4f | 0x66))
    });
    let mut flags = [0; 2];
    if is_pushf && copy_from_program(&mut flags, regs.sp).is_ok() {
        let kept = u16::from_le_bytes(flags) & !(TF as u16);
        // The page was written a moment ago.
        let _ = copy_to_program(regs.sp, &kept.to_le_bytes());
    }
}

/// No call can be followed here.
struct Missed;

/// Borrows the return address of the call that begins at `regs`.
#[inline(never)]
fn enter_call(
    space: &UserSpace,
    probe: &ProbeRef<Uretprobe>,
    regs: &mut PtRegs,
) -> Result<(), Missed> {
    let (slot, trampoline) = (regs.sp, space.probes().trampoline());
    let found = read_word(slot).ok_or(Missed)?;
    let is_chained = found == trampoline;
    let return_address = match is_chained {
        // Another return probe, or a function that ended in a jump to this one, has borrowed it.
        true => space.probes().calls.return_address(slot).ok_or(Missed)?,
        false => found,
    };
    if !probe.take_call() {
        drop_abandoned(space, trampoline);
        if !probe.take_call() {
            return Err(Missed);
        }
    }
    let mut call = UserCall::new(probe, regs.ip, slot, return_address);
    if probe.keeps_di {
        call.data()[0] = regs.di;
    }
    if let Some(entry) = probe.entry {
        let address = regs.ip;
        let verdict = entry(&mut call, regs);
        regs.ip = address;
        if verdict == EntryVerdict::Decline {
            return Ok(());
        }
    }
    let calls = &space.probes().calls;
    if let Err(call) = calls.begin(call, is_chained) {
        drop_abandoned(space, trampoline);
        calls.begin(call, is_chained).map_err(|_| Missed)?;
    }
    if !is_chained && write_word(slot, trampoline).is_none() {
        calls.drop_all_at(slot);
        return Err(Missed);
    }
    Ok(())
}

/// Drops the calls whose frames were left by another way than their return: their slots have been
/// written to since.
#[cold]
fn drop_abandoned(space: &UserSpace, trampoline: u64) {
    let mut slots = [0; MAX_CALLS];
    let calls = &space.probes().calls;
    let count = calls.slots(&mut slots);
    for &slot in &slots[..count] {
        if read_word(slot) != Some(trampoline) {
            calls.drop_all_at(slot);
        }
    }
}

/// Serves the breakpoint of the trampoline, if it is the one at `address`.
#[inline(never)]
fn on_return(space: &UserSpace, address: u64, regs: &mut PtRegs) -> bool {
    let calls = &space.probes().calls;
    if address != space.probes().trampoline() {
        return false;
    }
    // Else it was an argument that lay there, perhaps in the slot of a call that was left.
    let is_plain = read_word(regs.sp.wrapping_sub(8)) == Some(address);
    let plain = is_plain.then(|| calls.end(regs.sp)).flatten();
    let ended = plain.or_else(|| {
        drop_abandoned(space, address);
        calls.end_with_arguments(regs.sp)
    });
    let Some((mut call, mut more)) = ended else {
        return false;
    };
    loop {
        regs.ip = call.return_address;
        if call.is_current() && call.probe().common.fires() {
            call.probe().common.count_hit();
            let (ip, sp) = (regs.ip, regs.sp);
            call.leave(regs);
            (regs.ip, regs.sp) = (ip, sp);
        }
        if !more {
            return true;
        }
        match calls.end(call.slot() + 8) {
            Some((next, still_more)) => (call, more) = (next, still_more),
            None => return true,
        }
    }
}

/// The word at `address` of the running program.
#[inline(always)]
fn read_word(address: u64) -> Option<u64> {
    get_user_word_nofault(address).or_else(|| {
        bring_in(address, Access::Read)?;
        get_user_word_nofault(address)
    })
}

/// Stores a word at `address` of the running program.
#[inline(always)]
fn write_word(address: u64, word: u64) -> Option<()> {
    if put_user_word_nofault(address, word) {
        return Some(());
    }
    bring_in(address, Access::Write)?;
    put_user_word_nofault(address, word).then_some(())
}

/// Brings in the pages of a word.
#[cold]
#[inline(never)]
fn bring_in(address: u64, access: Access) -> Option<()> {
    let (_, space) = running()?;
    space.bring_in(address, size_of::<u64>(), access).ok()
}

/// Copies memory of the running program at `from` into all of `to`. Pages that are the program's
/// and were not touched yet are brought in. For handlers of user probes.
///
/// # Errors
/// EFAULT; the start of `to` may have changed.
pub fn copy_from_program(to: &mut [u8], from: u64) -> Result<(), Errno> {
    with_pages(from, to.len(), Access::Read, || {
        copy_from_user_nofault(to, from)
    })
}

/// Copies all of `from` to memory of the running program at `to`, which it may write. The same
/// holds as for [`copy_from_program`].
///
/// # Errors
/// EFAULT; the start of it may have been written.
pub fn copy_to_program(to: u64, from: &[u8]) -> Result<(), Errno> {
    with_pages(to, from.len(), Access::Write, || {
        copy_to_user_nofault(to, from)
    })
}

/// Whether this CPU runs the program of an event on a program, which reads its memory.
static READING: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// Runs the program of an event for a handler: it may read memory of the running program that was
/// not touched yet. `work` is nothing but that program, so it holds no lock and cannot be probed.
pub fn reading_program(work: impl FnOnce()) {
    let reading = &READING[percpu::cpu_id()];
    reading.store(true, Relaxed);
    work();
    reading.store(false, Relaxed);
}

/// Whether this CPU is in [`reading_program`]. Any context that keeps its CPU, on the hit path.
#[inline(always)]
pub fn is_reading() -> bool {
    READING
        .get(percpu::cpu_id())
        .is_some_and(|reading| reading.load(Relaxed))
}

/// Brings in the page at `address`, which the program of an event was about to read. False: it is
/// not the running program's, or an NMI has come in between. Interrupts off, [`is_reading`].
// Not inlined, because the hit path of the kernel's probes ends here: it may be hit, and then no
// page is brought in.
#[inline(never)]
pub fn bring_in_for_action(error_code: u64, address: u64) -> bool {
    let is_missing = error_code & (PAGE_PRESENT | PAGE_WRITTEN | PAGE_FETCHED) == 0;
    if !is_missing || address >= USER_END || percpu::this().nmis_seen() != 0 {
        return false;
    }
    let reading = &READING[percpu::cpu_id()];
    reading.store(false, Relaxed);
    let is_there =
        running().is_some_and(|(_, space)| space.bring_in(address, 1, Access::Read).is_ok());
    reading.store(true, Relaxed);
    is_there
}

/// Bits of the error code of a page fault (Intel SDM vol. 3A, figure 4-12).
const PAGE_PRESENT: u64 = 1;
const PAGE_WRITTEN: u64 = 2;
const PAGE_FETCHED: u64 = 0x10;

/// Tries to `copy`, and once more with the pages brought in.
fn with_pages(
    start: u64,
    len: usize,
    access: Access,
    mut copy: impl FnMut() -> Result<(), Errno>,
) -> Result<(), Errno> {
    if copy().is_ok() {
        return Ok(());
    }
    let (_, space) = running().ok_or(Errno::EFAULT)?;
    space
        .bring_in(start, len, access)
        .map_err(|_| Errno::EFAULT)?;
    copy()
}

/// The address of the instruction that the running program executes at `ip`: that of a displaced
/// one if `ip` is in its slot. On the hit path of the kernel's probes.
#[inline(always)]
pub fn shown_ip(ip: u64) -> u64 {
    running().map_or(ip, |(_, space)| space.probes().shown_ip(ip))
}

/// Where the running program goes on after the instruction that has touched memory and left `ip`.
/// As [`shown_ip`].
#[inline(always)]
pub fn ip_after(ip: u64) -> u64 {
    running().map_or(ip, |(_, space)| space.probes().ip_after(ip))
}

/// Where the return address of the function is that the running program is about to begin, if it is
/// about to execute the probed first instruction of one. `ip` and `sp` are its registers. As
/// [`shown_ip`].
#[inline(always)]
pub fn return_slot_at_entry(ip: u64, sp: u64) -> Option<u64> {
    let (_, space) = running()?;
    space.probes().begins_function(ip).then_some(sp)
}

/// The return address that the running program wrote at `slot` of its stack, where `found` is now.
/// As [`shown_ip`].
#[inline(always)]
pub fn shown_return_address(slot: u64, found: u64) -> u64 {
    running().map_or(found, |(_, space)| {
        space.probes().shown_return_address(slot, found)
    })
}

/// The address and the stack pointer that the registers `ip` and `sp` of the running program stand
/// for: those that it would have without probes. Task context, or a handler of an exception of the
/// program.
pub fn original_position(ip: u64, sp: u64) -> (u64, u64) {
    let Some((_, space)) = running() else {
        return (ip, sp);
    };
    let Some((address, displaced, slot)) = space.probes().place_of_slot(ip) else {
        return (ip, sp);
    };
    match target::replacement(&displaced, address, slot) {
        Ok(replacement) => {
            let position = replacement.position((ip - slot) as usize);
            let ip = match position.ip {
                ResumeIp::Known(ip) => ip,
                // Only code that ends in a stub has it.
                ResumeIp::Stacked(_) => address,
            };
            (ip, sp.wrapping_add_signed(position.rsp_correction.into()))
        }
        Err(_) => (address, sp),
    }
}
