//! Where the assembly is.

/// The addresses of what [`entry_points!`](crate::entry_points) has defined.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoints {
    /// `kretprobe_trampoline`: where probed functions return to.
    pub trampoline: u64,
    /// `kretprobe_trampoline_action`: the same for calls that an action by a jump has followed.
    pub action_trampoline: u64,
    /// `kretprobe_trampoline_trap3` and `kretprobe_trampoline_trap4`: the same for the ways of 2005
    /// (`registry/historic.rs`).
    pub historic_trampolines: [u64; 2],
    /// `kprobe_post_stub`: where slots with a post handler end.
    pub post_stub: u64,
    /// The breakpoint at the end of `jprobe_return`.
    pub jprobe_return: u64,
    /// The templates of detours.
    pub detours: Templates,
    /// The routines that serve the probes of a site.
    pub routines: Routines,
    /// What the linker adds to the distance of a CPU's data from the GS base; 0 where all of it is
    /// a constant.
    pub per_cpu: u32,
    /// The stub in `kprobe_breakpoint` that takes any hit. This and the next five are 0 where a
    /// kernel has an entry of its own for breakpoints.
    pub any_hit: u64,
    /// The stub for hits of a site without post handlers.
    pub hit: u64,
    /// The stub for hits of a site with post handlers.
    pub hit_post: u64,
    /// The stub for hits of a site with one enabled kretprobe that has no entry handler and no
    /// data.
    pub one_kretprobe: u64,
    /// The stub for hits of a site with several such, and no other enabled probe.
    pub kretprobes: u64,
    /// The stub for hits of a site with one enabled kprobe, which has an action, and nothing else.
    pub action: u64,
    /// The stubs of hits of watchpoints. All are 0 where a kernel has an entry of its own for #DB.
    pub watch: WatchStubs,
}

/// The addresses that [`debug_entry!`](crate::debug_entry) has defined: the stubs for hits of
/// watchpoints that have no other cause.
#[derive(Clone, Copy, Debug)]
pub struct WatchStubs {
    /// Any watchpoint, in Rust.
    pub any: u64,
    /// One without a handler.
    pub count: u64,
    /// One with a handler, of 1, 2, 4 and 8 bytes.
    pub handler: [u64; 4],
    /// One with a routine, of these lengths.
    pub routine: [u64; 4],
}

impl WatchStubs {
    /// For a kernel that has none.
    pub const NONE: Self = Self {
        any: 0,
        count: 0,
        handler: [0; 4],
        routine: [0; 4],
    };
}

/// The addresses of the routines.
#[derive(Clone, Copy, Debug)]
pub struct Routines {
    pub nothing: u64,
    pub count: u64,
    pub kprobe: u64,
    pub action: u64,
    pub kretprobe: u64,
    pub kretprobe_entry: u64,
    /// For breakpoints only: detours have no jprobes.
    pub jprobe: u64,
    pub slow_path: u64,
    pub chain: u64,
    pub far: u64,
    pub far_chain: u64,
}

/// Where a template is.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Its first byte.
    pub start: u64,
    /// Where the jump leads to.
    pub enter: u64,
    /// After its last byte: where the displaced instructions follow.
    pub end: u64,
}

/// The templates that [`entry_points!`](crate::entry_points) has defined.
#[derive(Clone, Copy, Debug)]
pub struct Templates {
    /// For functions' entries.
    pub at_entry: Template,
    /// For everywhere else.
    pub anywhere: Template,
    /// For functions' entries with nothing but a return probe that has an entry handler or data.
    pub lone_entry: Template,
    /// The same if that is an action with a form for jumps.
    pub lone_action: Template,
    /// For functions' entries with nothing but a return probe that wants nothing there, if the
    /// function does not read the arithmetic flags that it finds.
    pub lone_return: Template,
    /// The same, if it may read them.
    pub lone_return_keeping_flags: Template,
    /// For functions' entries with several return probes that want nothing there, and no other
    /// enabled probe.
    pub returns: Template,
}

impl Templates {
    /// For a kernel without jumps.
    #[doc(hidden)]
    pub const NONE: Self = {
        let none = Template {
            start: 0,
            enter: 0,
            end: 0,
        };
        Self {
            at_entry: none,
            anywhere: none,
            lone_entry: none,
            lone_action: none,
            lone_return: none,
            lone_return_keeping_flags: none,
            returns: none,
        }
    };
}

/// Stands in a template for the address of the site.
pub const SITE_MARK: u64 = 0x5173_5173_5173_5173;

/// Stands in a template for the address of the return probe that is alone there.
pub const KRETPROBE_MARK: u64 = 0x4be7_4be7_4be7_4be7;

/// Stands in a template for [`Routines::kretprobe`].
#[doc(hidden)]
pub const KRETPROBE_ROUTINE_MARK: u64 = 0x9c3e_9c3e_9c3e_9c3e;

/// Stands in a template for the address of the return trampoline.
pub const TRAMPOLINE_MARK: u64 = 0x7aa4_7aa4_7aa4_7aa4;
