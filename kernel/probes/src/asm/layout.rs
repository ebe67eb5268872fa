//! Where the assembly finds what it uses. Offsets in bytes.

use core::mem::offset_of;

use crate::{
    data::{
        action::{Action, BreakpointFrame},
        address_table::{self, AddressTable},
        counters::Counter,
        instance::{self, Holder, Instance, TaskCell},
        jprobe::{Jprobe, JprobeFrame},
        kprobe::{Kprobe, flags},
        kretprobe::KretprobeCore,
        site::Site,
        watchpoint::{self, Aim, MOST_WATCHPOINTS, Touched, Watches, Watchpoint, WatchpointFrame},
    },
    hit::Hits,
    limits::TABLE_BITS,
    pt_regs::PtRegs,
    registry::{Host, Probes},
};

/// Where the entries of the address table are, from the start of the registry.
pub const fn table_offset<P: Host>() -> usize {
    Probes::<P>::hits_offset() + offset_of!(Hits<P>, table) + AddressTable::entries_offset()
}

/// Where the watchpoints are.
pub const fn watches_offset<P: Host>() -> usize {
    Probes::<P>::hits_offset() + offset_of!(Hits<P>, watches)
}

pub const MULTIPLIER: u32 = address_table::MULTIPLIER;
pub const SHIFT: u32 = address_table::SHIFT;
pub const INDEX_MASK: u32 = (1 << TABLE_BITS) - 1;
pub const SITE_KEY: usize = offset_of!(Site, key);
pub const SITE_HEAD: usize = Site::head_offset();
pub const SITE_SLOT: usize = offset_of!(Site, slot);
pub const SITE_RUN: usize = offset_of!(Site, run);
pub const SITE_POST_SLOT: usize = offset_of!(Site, post_slot);
pub const SITE_LEN: usize = offset_of!(Site, len);
pub const SITE_PUSHED: usize = offset_of!(Site, pushed);

pub const PROBE_STUB: usize = offset_of!(Kprobe, stub);
pub const PROBE_CHAIN: usize = offset_of!(Kprobe, chain);
pub const PROBE_ROUTINE: usize = offset_of!(Kprobe, routine);
pub const PROBE_PRE: usize = offset_of!(Kprobe, pre_handler);
pub const PROBE_POST: usize = offset_of!(Kprobe, post_handler);
pub const PROBE_HITS: usize = offset_of!(Kprobe, hits) + offset_of!(Counter, distance);
pub const PROBE_FLAGS: usize = offset_of!(Kprobe, flags);
pub const PROBE_ACTION: usize = offset_of!(Kprobe, action);
pub const ACTION_BREAKPOINT: usize = offset_of!(Action, breakpoint);
/// Where a stub finds the ip of the lookup's frame.
pub const LOOKUP_IP: usize = offset_of!(BreakpointFrame, ip) - offset_of!(BreakpointFrame, ax);
/// The same for its cs.
pub const LOOKUP_CS: usize = offset_of!(BreakpointFrame, cs) - offset_of!(BreakpointFrame, ax);
pub const PROBE_NEXT: usize = offset_of!(Kprobe, next);
pub const PROBE_SITE: usize = offset_of!(Kprobe, site);
pub const SILENT: u32 = flags::DISABLED | flags::GONE;
pub const KRETPROBE_HOLDER: usize = offset_of!(KretprobeCore, holder);
pub const KRETPROBE_LONE_HOLDER: usize = offset_of!(KretprobeCore, lone_holder);
pub const KRETPROBE_HANDLER: usize = offset_of!(KretprobeCore, handler);
pub const KRETPROBE_ENTER: usize = offset_of!(KretprobeCore, enter);
pub const KRETPROBE_JUMP_ENTRY: usize = offset_of!(KretprobeCore, jump_entry);
pub const KRETPROBE_JUMP_RETURN: usize = offset_of!(KretprobeCore, jump_return);
pub const KRETPROBE_TRAMPOLINE: usize = offset_of!(KretprobeCore, trampoline);
pub const KRETPROBE_NMISSED: usize = offset_of!(KretprobeCore, nmissed);
pub const HOLDER_KRETPROBE: usize = offset_of!(Holder, kretprobe);
pub const INSTANCE_NEXT: usize = offset_of!(Instance, next);
pub const INSTANCE_HOLDER: usize = offset_of!(Instance, holder);
pub const INSTANCE_RET_ADDR: usize = offset_of!(Instance, ret_addr);
pub const INSTANCE_RETURN_FRAME: usize = offset_of!(Instance, return_frame);
/// How far `kretprobe_trampoline_action` is after `kretprobe_trampoline`.
pub const TO_ACTION_TRAMPOLINE: u64 = 512;
pub const BELOW_SLOT: u64 = instance::BELOW_SLOT;
pub const SHARED: u64 = instance::SHARED;
pub const CELL_HEAD: usize = offset_of!(TaskCell, head);
pub const WATCHES_BY_STATUS: usize = offset_of!(Watches, by_status);
pub const WATCHES_SLOTS: usize = offset_of!(Watches, slots);
pub const WATCH_STUB: usize = offset_of!(Watchpoint, stub);
pub const WATCH_ROUTINE: usize = offset_of!(Watchpoint, routine);
pub const WATCH_HANDLER: usize = offset_of!(Watchpoint, handler);
pub const WATCH_ADDR: usize = offset_of!(Watchpoint, aim) + offset_of!(Aim, addr);
pub const WATCH_LAST: usize = offset_of!(Watchpoint, aim) + offset_of!(Aim, last);
pub const WATCH_HITS: usize = offset_of!(Watchpoint, hits);
pub const WATCH_NMISSED: usize = offset_of!(Watchpoint, nmissed);
pub const JPROBE_ENTRY: usize = offset_of!(Jprobe, entry);
pub const JPROBE_SITE: usize = offset_of!(JprobeFrame, site);
pub const JPROBE_KPROBE: usize = offset_of!(JprobeFrame, kprobe);
pub const JPROBE_PLAIN: usize = offset_of!(JprobeFrame, plain);
pub const JPROBE_WORDS: usize = offset_of!(JprobeFrame, words);
pub const JPROBE_REGS: usize = offset_of!(JprobeFrame, regs);

// A probe's address is that of its kprobe.
const _: () = assert!(offset_of!(KretprobeCore, kprobe) == 0 && offset_of!(Jprobe, kprobe) == 0);
// The saved words of the stack follow the registers.
const _: () = assert!(offset_of!(JprobeFrame, stack) == JPROBE_REGS + size_of::<PtRegs>());
// The call frame information gives the offsets in a frame by number.
const _: () = assert!(size_of::<PtRegs>() == 168);

/// The bit of DR6 that names the last debug register.
pub const LAST_MATCH: u32 = 1 << (MOST_WATCHPOINTS - 1);
/// DR6 if nothing has caused the trap (Intel SDM vol. 3B, 17.2.3): bits that are always set, and
/// bits that are clear for a cause of later processors.
pub const NO_CAUSE: u32 = 0xffff_0ff0;
/// DR7 with no register in action.
pub const ALL_OFF: u32 = watchpoint::ALL_OFF as u32;

// The stubs push the fields of both from the last to the first.
const _: () = {
    assert!(offset_of!(Touched, ip) == 0 && offset_of!(Touched, addr) == 8);
    assert!(offset_of!(Touched, old) == 16 && offset_of!(Touched, new) == 24);
    assert!(offset_of!(WatchpointFrame, watchpoint) == 8);
    assert!(offset_of!(WatchpointFrame, old) == 16 && offset_of!(WatchpointFrame, new) == 24);
};
