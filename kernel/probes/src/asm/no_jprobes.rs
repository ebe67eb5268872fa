//! No assembly of jprobes: a kernel that leaves out the feature `jprobes` has none.
//!
//! The comments name what the macros give for it, because each operand of an assembly has to be
//! named.

/// Part of [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! jprobe_routines {
    () => {
        r#"
# {flags} {flow_jprobe} {frame_bytes} {if_and_tf} {ip} {jprobe} {jprobe_entry} {jprobe_in_cpu}
# {jprobe_kprobe} {jprobe_plain} {jprobe_regs} {jprobe_site} {jprobe_words} {per_cpu}
# {probe_site} {running} {sp} {stack_words} {this}
"#
    };
}

/// The routine, and the breakpoint at the end of a handler: there are none.
#[doc(hidden)]
#[macro_export]
macro_rules! jprobe_entries {
    () => {
        [0; 2]
    };
}

/// Part of [`breakpoint_entry!`](crate::breakpoint_entry!).
#[doc(hidden)]
#[macro_export]
macro_rules! at_jprobe_return {
    () => {
        "# {jprobe} {jprobe_plain} {jprobe_regs} {jprobe_site} {other} {per_cpu} {sp}"
    };
}

/// Part of [`breakpoint_entry!`](crate::breakpoint_entry!).
#[doc(hidden)]
#[macro_export]
macro_rules! jprobe_leave {
    () => {
        r#"
# {breakpoints} {frame_bytes} {guard} {ip} {jprobe} {jprobe_in_cpu} {jprobe_regs} {jprobe_site}
# {per_cpu} {run} {sp} {stack_words} {this}
"#
    };
}
