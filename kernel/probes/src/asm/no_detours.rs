//! No templates of detours: a kernel that leaves out the feature `jumps` has none.

/// Names in a comment what [`entry_points!`](crate::entry_points) gives for the templates, because
/// each operand of an assembly has to be named.
#[macro_export]
macro_rules! detours {
    () => {
        r#"
# {below_slot} {chain} {cs} {enter} {guard} {head} {jump_entry} {kretprobe_holder}
# {kretprobe_mark} {kretprobe_routine_mark} {kretprobe_trampoline} {lone_holder} {miss}
# {next_probe} {nmissed} {per_cpu} {probe_routine} {resume} {running} {shared} {site_mark} {sp}
# {ss} {trampoline_mark}
"#
    };
}

/// The templates: none.
#[doc(hidden)]
#[macro_export]
macro_rules! detour_templates {
    () => {
        $crate::asm::Templates::NONE
    };
}
