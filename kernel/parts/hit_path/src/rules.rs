//! The rules of the probes, and with them those of this kernel: where hits come from and where they
//! leave, by name, each with its reason.
//!
//! A name here is the demangled name of a symbol. In all lists except that of the roots it may be
//! the beginning of a name, or the end of one after `*`. If you add a call of a handler, or a
//! switch of stacks, to the hit path, add its function here. Otherwise the build fails and names
//! it.

use crate::Rules;

/// A name, and the reason why it is in its list.
type Named = (&'static str, &'static str);

/// The rules that hold in any kernel: the probes' own. A kernel adds the handlers of traps in which
/// it asks the probes itself. Those of `trap_entry!` have labels, which
/// [`Blacklist`](crate::Blacklist) knows.
pub const PROBES: Rules<'static> = Rules {
    roots: &PROBES_ROOTS,
    ends: &PROBES_ENDS,
    callers: &PROBES_CALLERS,
    stack_switchers: &PROBES_STACK_SWITCHERS,
};

/// The rules for this kernel's closure.
pub const KERNEL: Rules<'static> = Rules {
    roots: &joined::<44, 64, 108>(PROBES_ROOTS, ROOTS),
    ends: &joined::<7, 12, 19>(PROBES_ENDS, ENDS),
    callers: &joined::<33, 7, 40>(PROBES_CALLERS, CALLERS),
    stack_switchers: &joined::<1, 4, 5>(PROBES_STACK_SWITCHERS, STACK_SWITCHERS),
};

/// Two lists as one.
const fn joined<const A: usize, const B: usize, const ALL: usize>(
    first: [Named; A],
    second: [Named; B],
) -> [Named; ALL] {
    assert!(A + B == ALL);
    let mut all = [("", ""); ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { first[at] } else { second[at - A] };
        at += 1;
    }
    all
}

/// What the macros of the probes define, and why it must not need them.
const PROBES_ROOTS: [Named; 44] = [
    ("kprobe_breakpoint", "a hit begins in it"),
    ("kprobe_hit", "the site's first probe names it"),
    ("kprobe_hit_post", "the site's first probe names it"),
    ("kprobe_any_hit", "the site's first probe names it"),
    ("kprobe_one_kretprobe", "the site's first probe names it"),
    ("kprobe_kretprobes", "the site's first probe names it"),
    ("kprobe_action", "the site's first probe names it"),
    ("kprobe_debug", "a hit of a watchpoint begins in it"),
    ("kprobe_watch_any", "the watchpoint names it"),
    ("kprobe_watch_count", "the watchpoint names it"),
    ("kprobe_watch_handler_1", "the watchpoint names it"),
    ("kprobe_watch_handler_2", "the watchpoint names it"),
    ("kprobe_watch_handler_4", "the watchpoint names it"),
    ("kprobe_watch_handler_8", "the watchpoint names it"),
    ("kprobe_watch_routine_1", "the watchpoint names it"),
    ("kprobe_watch_routine_2", "the watchpoint names it"),
    ("kprobe_watch_routine_4", "the watchpoint names it"),
    ("kprobe_watch_routine_8", "the watchpoint names it"),
    (
        "kretprobe_trampoline",
        "return-probed functions return to it",
    ),
    (
        "kretprobe_trampoline_action",
        "return-probed functions return to it",
    ),
    (
        "kretprobe_retired",
        "calls of probes that were unregistered return through it",
    ),
    (
        "kretprobe_trampoline_trap3",
        "return-probed functions return to it",
    ),
    (
        "kretprobe_trampoline_trap4",
        "return-probed functions return to it",
    ),
    (
        "kprobe_post_stub",
        "a hit with a post handler runs through it",
    ),
    (
        "kprobe_detour_at_entry",
        "hits of optimised probes run through copies of it",
    ),
    (
        "kprobe_detour",
        "hits of optimised probes run through copies of it",
    ),
    (
        "kretprobe_detour",
        "hits of optimised return probes run through copies of it",
    ),
    (
        "kretprobe_detour_keeping_flags",
        "hits of optimised return probes run through copies of it",
    ),
    (
        "kretprobes_detour",
        "hits of optimised return probes run through copies of it",
    ),
    (
        "kretprobe_detour_entry",
        "hits of optimised return probes run through copies of it",
    ),
    (
        "kretprobe_detour_action",
        "hits of optimised return probes run through copies of it",
    ),
    ("kprobe_handle_nothing", "handles a probe of a hit"),
    ("kprobe_handle_count", "handles a probe of a hit"),
    ("kprobe_handle_kprobe", "handles a probe of a hit"),
    ("kprobe_handle_action", "handles a probe of a hit"),
    ("kretprobe_handle", "handles a probe of a hit"),
    ("kretprobe_handle_entry", "handles a probe of a hit"),
    ("jprobe_handle", "handles a probe of a hit"),
    ("kprobe_handle_slow_path", "handles a probe of a hit"),
    ("kprobe_handle_chain", "handles the probes of a hit"),
    ("kprobe_handle_far", "handles the probe of a hit"),
    ("kprobe_handle_far_chain", "handles the probes of a hit"),
    ("jprobe_return", "a jprobe's handler ends in it"),
    (
        "probes::data::kretprobe::clear_words",
        "a call with words and without an entry enters through it",
    ),
];

/// Where the kernel comes to the probes, and why it must not need them there.
const ROOTS: [Named; 64] = [
    (
        "kernel::arch::x86_64::traps::do_breakpoint",
        "a hit runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::do_debug",
        "a single step runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::enter_match",
        "a hit of a watchpoint runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::enter_object_step",
        "a write to a watched object runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::enter_exception",
        "a fault in a probed instruction runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::enter_page_fault",
        "a page fault in a probed instruction runs through it",
    ),
    (
        "kernel::arch::x86_64::traps::enter_nmi",
        "an NMI on top of another one is noted in it, and a hit would let in the next",
    ),
    ("trace_map_lookup", "actions call it"),
    ("trace_map_update", "actions call it"),
    ("trace_map_delete", "actions call it"),
    ("trace_sum_of_cpus", "actions call it"),
    ("trace_most_of_cpus", "actions call it"),
    ("trace_delete_of_cpus", "actions call it"),
    ("trace_use_key", "actions call it"),
    ("trace_next_key", "actions call it"),
    ("trace_can_read", "actions call it"),
    ("trace_count_keys", "actions call it"),
    ("trace_count_frames", "actions call it"),
    ("trace_pid_tgid", "actions call it"),
    ("trace_comm", "actions call it"),
    ("trace_stack_id", "actions call it"),
    ("trace_record_stack", "actions call it"),
    ("trace_read_user", "actions call it"),
    ("trace_read_kernel", "actions call it"),
    ("trace_read_user_part", "actions call it"),
    ("trace_read_user_text", "actions call it"),
    ("trace_read_kernel_part", "actions call it"),
    ("trace_read_kernel_text", "actions call it"),
    ("trace_ring_reserve", "actions call it"),
    ("trace_ring_submit", "actions call it"),
    ("trace_ring_discard", "actions call it"),
    ("trace_trigger", "actions call it"),
    ("trace_aim_watch", "actions call it"),
    ("trace_watched_address", "actions call it"),
    ("trace_true_address", "actions call it"),
    ("trace_graph_root", "the tracer of calls runs through it"),
    ("trace_graph_inner", "the tracer of calls runs through it"),
    (
        "trace_graph_root_arguments",
        "the tracer of calls runs through it",
    ),
    (
        "trace_graph_inner_arguments",
        "the tracer of calls runs through it",
    ),
    (
        "trace_graph_root_by_jump",
        "the tracer of calls runs through it",
    ),
    (
        "trace_graph_inner_by_jump",
        "the tracer of calls runs through it",
    ),
    (
        "trace_graph_root_arguments_by_jump",
        "the tracer of calls runs through it",
    ),
    (
        "trace_graph_inner_arguments_by_jump",
        "the tracer of calls runs through it",
    ),
    ("trace_graph_hidden", "the tracer of calls runs through it"),
    ("trace_graph_return", "the tracer of calls runs through it"),
    (
        "trace_graph_return_by_jump",
        "the tracer of calls runs through it",
    ),
    ("trace_add_by_key", "actions call it"),
    ("trace_event_reserve", "actions call it"),
    ("trace_event_of_size", "actions call it"),
    ("trace_event_with_room", "actions call it"),
    ("trace_record_of_size", "actions call it"),
    ("trace_find_by_word", "actions call it"),
    ("trace_set_by_word", "actions call it"),
    ("trace_add_by_word", "actions call it"),
    ("trace_delete_by_word", "actions call it"),
    ("trace_text_bytes_at_most", "actions call it"),
    ("trace_text_bytes_of_kernel", "actions call it"),
    ("trace_text_bytes_of_user", "actions call it"),
    ("trace_append_text", "actions call it"),
    ("trace_append_user_text", "actions call it"),
    ("trace_append_bytes", "actions call it"),
    (
        "preempt_before_hit",
        "a breakpoint leads to it, and one in it would again",
    ),
    (
        "trace_note_breakpoint",
        "a hit in a traced call runs through it",
    ),
    (
        "trace_note_debug",
        "a single step in a traced call runs through it",
    ),
];

/// Where a hit ends the kernel. None of them may be inlined into the code before it.
const PROBES_ENDS: [Named; 7] = [
    ("core::panicking::", "the kernel ends"),
    ("core::fmt::", "the kernel ends, and says why"),
    ("__rustc::rust_begin_unwind", "the kernel ends"),
    ("core::option::expect_failed", "the kernel ends"),
    ("core::option::unwrap_failed", "the kernel ends"),
    ("*as probes::platform::Platform>::fatal", "the kernel ends"),
    (
        "*as probes::platform::Platform>::orphan_return",
        "the task or the kernel ends",
    ),
];

/// The ends of the closure. After them either there was no hit and the kernel has taken over, or
/// the kernel is at its end. None of them may be inlined into the code before it.
const ENDS: [Named; 12] = [
    (
        "kernel::task::scheduler::preempt_before_breakpoint",
        "another task runs before the hit begins",
    ),
    (
        "kernel::arch::x86_64::traps::do_nmi",
        "an NMI that is on top of no other",
    ),
    (
        "kernel::arch::x86_64::traps::do_exception",
        "a fault that is not the probes', at its true address",
    ),
    (
        "do_page_fault",
        "a page fault that is not the probes', at its true address",
    ),
    (
        "kernel::arch::x86_64::traps::unclaimed",
        "no handler wants the exception",
    ),
    (
        "kernel::arch::x86_64::traps::user_breakpoint",
        "a breakpoint of a program, which was interrupted without a lock",
    ),
    (
        "kernel::arch::x86_64::traps::other_user_breakpoint",
        "a breakpoint of a program, which was interrupted without a lock",
    ),
    (
        "kernel::arch::x86_64::traps::user_place",
        "a breakpoint of a program, which was interrupted without a lock",
    ),
    (
        "kernel::uprobes::hit::run_user_handler",
        "a breakpoint of a program, which was interrupted without a lock",
    ),
    (
        "kernel::uprobes::hit::run_user_return",
        "a breakpoint of a program, which was interrupted without a lock",
    ),
    (
        "kernel::uprobes::hit::on_debug",
        "a debug trap of a program, which was interrupted without a lock",
    ),
    (
        "kernel::uprobes::hit::bring_in_for_action",
        "a page of a program comes in; a hit meanwhile brings none in",
    ),
];

/// Functions that call handlers, or jump to an address that a probe has named. The compiler inlines
/// methods into one another, so some are here because of methods that may be inlined into them.
const PROBES_CALLERS: [Named; 33] = [
    (
        "kprobe_breakpoint",
        "jumps to the stub that the site's first probe names",
    ),
    (
        "kprobe_hit",
        "calls the routine that the site's first probe names",
    ),
    (
        "kprobe_detour_at_entry",
        "calls the routine that the site's first probe names",
    ),
    (
        "kprobe_detour",
        "calls the routine that the site's first probe names",
    ),
    (
        "kretprobe_detour_entry",
        "calls an entry handler, or the routine that the site's first probe names",
    ),
    ("kretprobe_detour_action", "calls the entry of an action"),
    (
        "kprobe_handle_far",
        "goes to the routine that the probe names",
    ),
    ("kprobe_handle_kprobe", "jumps to a pre handler"),
    ("kprobe_handle_action", "jumps to an action"),
    ("kprobe_action", "calls an action"),
    (
        "kprobe_debug",
        "jumps to the stub that the watchpoint names",
    ),
    ("kprobe_watch_handler_", "calls a handler of a watchpoint"),
    ("kprobe_watch_routine_", "calls a routine of a watchpoint"),
    ("kretprobe_handle_entry", "calls an entry handler"),
    (
        "kprobe_handle_chain",
        "calls the routines that a site's probes name",
    ),
    ("kprobe_run_posts", "calls post handlers"),
    ("kretprobe_trampoline", "calls a return handler"),
    (
        "kretprobe_trampoline_action",
        "calls the routine of an action",
    ),
    (
        "probes::asm::handle_slow_path",
        "calls pre and entry handlers",
    ),
    ("probes::asm::finish", "calls post handlers"),
    ("probes::asm::serve", "calls pre and entry handlers"),
    ("probes::asm::on_return", "calls return handlers"),
    (
        "probes::hit::calls::Returning::run_handlers",
        "calls return handlers",
    ),
    (
        "probes::hit::breakpoint::<impl probes::hit::Hits<P>>::serve",
        "calls pre handlers",
    ),
    (
        "probes::hit::breakpoint::<impl probes::hit::Hits<P>>::on_breakpoint",
        "calls pre and entry handlers",
    ),
    (
        "probes::hit::breakpoint::<impl probes::hit::Hits<P>>::other_breakpoint",
        "calls pre handlers for a detour, post handlers after a jprobe",
    ),
    (
        "probes::hit::calls::<impl probes::hit::Hits<P>>::enter_call",
        "calls entry handlers",
    ),
    (
        "probes::hit::breakpoint::<impl probes::hit::Hits<P>>::emulate",
        "calls post handlers",
    ),
    (
        "probes::hit::breakpoint::<impl probes::hit::Hits<P>>::run_post",
        "calls post handlers",
    ),
    (
        "probes::hit::debug_trap::<impl probes::hit::Hits<P>>::",
        "calls handlers of all kinds",
    ),
    ("probes::hit::debug_trap::end_hit", "calls post handlers"),
    (
        "probes::hit::debug_trap::on_",
        "calls handlers of watchpoints, and post handlers",
    ),
    (
        "probes::hit::faults::<impl probes::hit::Hits<P>>::on_fault",
        "calls fault handlers",
    ),
];

/// The same in the kernel.
const CALLERS: [Named; 7] = [
    (
        "kernel::arch::x86_64::traps::enter_match",
        "calls handlers of watchpoints",
    ),
    (
        "kernel::arch::x86_64::traps::enter_object_step",
        "calls handlers of watched objects",
    ),
    (
        "kernel::arch::x86_64::traps::do_breakpoint",
        "holds what serves a hit that did not come by `kprobe_breakpoint`",
    ),
    (
        "kernel::probes::hooks::on_debug",
        "may hold what serves a single step, because only it asks for that",
    ),
    (
        "kernel::probes::watched_objects::tell",
        "calls handlers of watched objects",
    ),
    (
        "kernel::probes::hooks::on_user_debug",
        "calls handlers of watchpoints",
    ),
    (
        "kernel::probes::hooks::on_fault",
        "may hold what calls fault handlers, because only it asks for that",
    ),
];

/// Functions that leave on another stack than they were entered on. A hit in the middle, or at the
/// return, would find neither its frame nor its task. None of them may be probed.
const PROBES_STACK_SWITCHERS: [Named; 1] = [(
    "jprobe_return",
    "leaves the frames of a jprobe's handler behind",
)];

/// The same in the kernel.
const STACK_SWITCHERS: [Named; 4] = [
    ("__switch_to", "goes from one task's stack to another's"),
    ("ret_from_fork", "begins on a task's new stack"),
    (
        "asm_syscall",
        "comes from the program's stack to the task's, and goes back",
    ),
    (
        "asm_nmi",
        "leaves the stack of NMIs for the one that was interrupted",
    ),
];

/// Code that ends the kernel in an orderly way, which is a mistake in a hit.
pub const PANICS: [(&str, &str); 5] = [
    ("core::panicking::", "all panics"),
    ("core::option::unwrap_failed", "Option::unwrap"),
    ("core::option::expect_failed", "Option::expect"),
    ("core::result::unwrap_failed", "Result::unwrap"),
    ("core::slice::index::slice_", "ranges of slices"),
];
