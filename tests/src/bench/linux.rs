//! The cost of the rows under Linux 6.1: guest instructions per call under the same emulation,
//! counted the same way, with the mitigations off and empty handlers (Debian's 6.1.0 kernel). Its
//! jprobes were removed in 2018.

/// Linux's cost for the same as a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linux {
    pub cost: f64,
    /// #BP exceptions per call, where it counts.
    pub traps: Option<u32>,
}

/// The figure for the row `name`, if there is one. If one figure stands for a range, it is the
/// lower end, which favours Linux.
pub fn figure(name: &str) -> Option<Linux> {
    let (cost, traps) = match name {
        "k_int3" | "k_int3_n0" => (505., Some(2)),
        "k_int3_post" => (511., Some(2)),
        "r_int3" => (735., Some(2)),
        "r_int3_entry" => (743., Some(2)),
        "kr_int3" => (786., Some(2)),
        "k_opt" => (106., Some(0)),
        "r_opt" => (336., Some(0)),
        "r_opt_entry" => (344., Some(0)),
        "kr_opt" => (353., Some(0)),
        "k_mid_mov" | "k_mid_push" | "k_mid_load" | "k_mid_rip" | "k_mid_nop" => (504., Some(2)),
        "k_mid_jcc_taken" => (303., Some(1)),
        "k_mid_jcc_not" => (307., Some(1)),
        "k_mid_call" => (294., Some(1)),
        "k_mid_ret" => (286., Some(1)),
        "rec8_k" => (4042., Some(16)),
        "rec8_r" => (5882., Some(16)),
        "rec8_r_opt" => (2690., Some(0)),
        "k_int3_n64" => (509., Some(2)),
        "k_int3_n1000" => (579., Some(2)),
        "k_int3_n10000" => (1284., Some(2)),
        "register_10000" => (2_930_000., None),
        "unregister_10000" => (52_800., None),
        // An empty handler of register_wide_hw_breakpoint, which is told of no values, and the bare
        // call of 8.
        "w_write" => (585., None),
        // Events of uprobe_events on a `mov`, which is stepped, and the bare call of 5; the return
        // event on a `nop`, which is not.
        "u_ev" => (2284., None),
        "u_ev_ret" => (2994., None),
        // BPF programs at the same places.
        "u_count" => (1842., None),
        "u_count_ret" => (2344., None),
        // BPF programs through perf, in the kernel's own machine code.
        "a_count" => (307., Some(0)),
        "a_count_int3" => (706., Some(2)),
        "a_hist" => (347., Some(0)),
        "a_hist_int3" => (778., Some(2)),
        "a_count_by_arg" => (446., Some(0)),
        "a_count_by_arg_int3" => (855., Some(2)),
        "a_stream_24" => (520., Some(0)),
        "a_stream_24_int3" => (953., Some(2)),
        // Through the function tracer.
        "a_latency_hist" | "a_latency_key" => (1902., Some(0)),
        // Events of kprobe_events.
        "ev_0" => (758., Some(0)),
        "ev_0_int3" => (1157., Some(2)),
        "ev_1" => (870., Some(0)),
        "ev_1_int3" => (1269., Some(2)),
        "ev_3" => (1145., Some(0)),
        "ev_3_int3" => (1544., Some(2)),
        "ev_str" => (2426., Some(0)),
        "ev_str_int3" => (2825., Some(2)),
        "ev_ret" => (1108., Some(0)),
        "ev_ret_int3" => (1507., Some(2)),
        "ev_reject" => (580., Some(0)),
        "ev_reject_int3" => (979., Some(2)),
        "ev_off" => (330., Some(0)),
        "ev_off_int3" => (729., Some(2)),
        "h_arg" => (1073., Some(0)),
        "h_arg_int3" => (1472., Some(2)),
        "h_log2" => (1103., Some(0)),
        "h_log2_int3" => (1502., Some(2)),
        "a_stack_count" => (5217., Some(0)),
        "a_stack_count_int3" => (6961., Some(2)),
        "attach_all" => (3360., None),
        // The tracers function and function_graph, through the calls at the entries of functions.
        "t_function" => (548., Some(0)),
        "t_graph" => (1331., Some(0)),
        "read_line" => (11_085., None),
        _ => return None,
    };
    Some(Linux { cost, traps })
}
