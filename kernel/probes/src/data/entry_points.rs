//! Where the assembly is.

use crate::{data::routines::Routines, detour::Templates};

/// The addresses of what [`entry_points!`](crate::entry_points) has defined.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoints {
    /// `kretprobe_trampoline`: where probed functions return to.
    pub trampoline: u64,
    /// `kretprobe_trampoline_trap3` and `kretprobe_trampoline_trap4`: the same, of [`historic`](crate::registry::historic).
    pub historic_trampolines: [u64; 2],
    /// `kprobe_post_stub`: where slots with a post handler end.
    pub post_stub: u64,
    /// The breakpoint at the end of `jprobe_return`.
    pub jprobe_return: u64,
    /// What detours are made from.
    pub detours: Templates,
    /// What serves the probes of a site.
    pub routines: Routines,
    /// In `kprobe_breakpoint`: what takes any hit. Like the next four 0 where a kernel has its own entry for breakpoints.
    pub any_hit: u64,
    /// What takes hits of a site without post handlers.
    pub hit: u64,
    /// What takes hits of a site with post handlers.
    pub hit_post: u64,
    /// What takes hits of a site with one enabled kretprobe that has no entry handler and no data.
    pub one_kretprobe: u64,
    /// What takes hits of a site with several such, and nothing else that is enabled.
    pub kretprobes: u64,
}
