//! The rows: their names, which are fixed, and the boots that measure them.
//!
//! The guest knows how to measure a row (`tests/guest_bench`). This list says which rows to
//! request. The results are checked against it: each requested row is measured, or skipped for a
//! reason.

/// Rows that are measured in one boot.
pub struct Set {
    /// The guest's name for it.
    pub name: &'static str,
    /// Further arguments for the kernel's command line.
    pub cmdline: &'static str,
    /// How many CPUs the machine has: one, save where each of them takes memory.
    pub cpus: u32,
    pub rows: &'static [&'static str],
}

/// All sets, in the order in which they are measured.
#[rustfmt::skip]
pub static SETS: [Set; 5] = [
    Set {
        name: "breakpoint",
        cmdline: "kprobes.optimize=0",
        cpus: 1,
        rows: &[
            "boot_to_first_hit",
            "base", "k_int3", "k_int3_post", "r_int3", "r_int3_entry", "r2_int3", "j_int3",
            "kr_int3", "jr_int3",
            "base_mid_mov", "k_mid_mov", "base_mid_push", "k_mid_push",
            "base_mid_load", "k_mid_load",
            "base_mid_nop", "k_mid_nop", "base_mid_jcc_taken", "k_mid_jcc_taken",
            "base_mid_jcc_not", "k_mid_jcc_not", "base_mid_call", "k_mid_call",
            "base_mid_ret", "k_mid_ret", "base_mid_rip", "k_mid_rip",
            "base_store", "w_write", "w_count", "w_object",
            "base_rec8", "rec8_k", "rec8_r",
            "k_int3_n0", "k_int3_n64", "k_int3_n1000", "k_int3_n10000", "k_int3_n100000",
            "register_10000", "unregister_10000",
            "a_count_int3", "a_hist_int3", "a_count_by_arg_int3", "a_stream_24_int3",
            "a_latency_hist_int3", "a_latency_key_int3", "a_stack_count_int3",
            "ev_0_int3", "ev_1_int3", "ev_3_int3", "ev_str_int3", "ev_ret_int3",
            "ev_watch_int3", "ev_reject_int3", "ev_off_int3", "h_arg_int3", "h_log2_int3",
            "a_by_func_int3", "a_by_func_all_int3",
            "attach_all_int3", "detach_all_int3",
            "t_function_int3", "t_function_args_int3", "t_graph_int3", "t_graph_args_int3",
            "t_profile_int3",
            "t_start_function_int3", "t_start_graph_int3",
            "u_base", "u_elsewhere", "u_int3", "u_int3_post", "u_ret",
            "u_ev", "u_ev_3", "u_ev_ret", "u_ev_retval", "u_count", "u_count_ret",
            "u_register_10000", "u_unregister_10000", "u_start_10000",
        ],
    },
    Set {
        name: "optimised",
        cmdline: "kprobes.optimize=1",
        cpus: 1,
        rows: &[
            "k_opt", "r_opt", "r_opt_entry", "r2_opt", "kr_opt", "rec8_r_opt",
            "jump_15000", "unjump_15000",
            "a_count", "a_hist", "a_count_by_arg", "a_stream_24", "a_latency_hist",
            "a_latency_key",
            "base_depth16", "a_stack_count",
            "ev_0", "ev_1", "ev_3", "ev_str", "ev_ret", "ev_reject", "ev_off", "h_arg", "h_log2",
            "a_by_func", "a_by_func_all",
            "attach_all", "detach_all", "read_line",
            "t_function", "t_function_args", "t_graph", "t_graph_args", "t_profile",
            "t_start_function", "t_start_graph",
            "t_files", "t_files_function", "t_files_graph",
        ],
    },
    Set {
        name: "four",
        cmdline: "kprobes.step=tf kprobes.return=trap4 kprobes.optimize=0",
        cpus: 1,
        rows: &["r_2005_four"],
    },
    Set {
        name: "three",
        cmdline: "kprobes.step=tf kprobes.return=trap3 kprobes.optimize=0",
        cpus: 1,
        rows: &["r_2005_three"],
    },
    Set {
        name: "memory",
        cmdline: "kprobes.optimize=0",
        cpus: 4,
        rows: &["memory_kprobe", "memory_registered", "memory_instance"],
    },
];

/// Whether `pattern`, a name or the beginning of one followed by `*`, means the row `name`.
pub fn matches(pattern: &str, name: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(pattern == name, |beginning| name.starts_with(beginning))
}

/// The rows of `set` that one of `patterns` means; all if there are no patterns.
pub fn selected(set: &Set, patterns: &[String]) -> Vec<&'static str> {
    let wanted =
        |name: &&str| patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, name));
    set.rows.iter().copied().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_one_row_or_all_with_a_beginning() {
        assert!(matches("k_int3", "k_int3") && !matches("k_int3", "k_int3_post"));
        assert!(matches("k_int3*", "k_int3_post") && !matches("k_int3*", "kr_int3"));
        let patterns = ["r_2005_*".into(), "base".into()];
        let rows: Vec<_> = SETS
            .iter()
            .flat_map(|set| selected(set, &patterns))
            .collect();
        assert_eq!(rows, ["base", "r_2005_four", "r_2005_three"]);
        assert_eq!(selected(&SETS[1], &[]).len(), SETS[1].rows.len());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = SETS.iter().flat_map(|set| set.rows).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
