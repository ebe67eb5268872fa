//! What a traced call leaves of the registers: all as they would be without a tracer.

use core::arch::naked_asm;

use crate::{
    platform::suite::flags::{PLAIN, STATUS},
    tools::{
        jumps::Optimization,
        register_state::{distinct, run},
    },
};

use super::{
    echo, show,
    tracers::{begin, end},
};

/// Calls `unchanged_inner`, and changes no register and no flag.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn unchanged_outer() {
    naked_asm!(
        ".cfi_startproc",
        "lea rsp, [rsp - 8]",
        ".cfi_adjust_cfa_offset 8",
        "call unchanged_inner",
        "lea rsp, [rsp + 8]",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
    )
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn unchanged_inner() {
    naked_asm!(
        ".cfi_startproc",
        "nop dword ptr [rax + rax]",
        "ret",
        ".cfi_endproc",
    )
}

/// Enough calls for some pages of the ring, because the first record of a page is made elsewhere.
const CALLS: u64 = 600;

fn check_calls(tracer: &str) {
    for call in 0..CALLS {
        let mut state = distinct();
        state[15] = PLAIN | if call % 2 == 0 { STATUS } else { 0 };
        state[16] = unchanged_outer as *const () as u64;
        let before = state;
        // SAFETY: the function keeps rsp.
        unsafe { run(&mut state) };
        assert_eq!(state, before, "call {call} under {tracer}");
    }
}

/// Under each tracer, with and without arguments, as the outermost call and inside of another one,
/// by a jump and by a breakpoint.
#[guest_test]
fn a_traced_call_leaves_all_registers_as_they_were() {
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        for (tracer, option) in [
            ("function", "nofunc-args"),
            ("function", "func-args"),
            ("function_graph", "nofuncgraph-args"),
            ("function_graph", "funcgraph-args"),
        ] {
            begin(tracer, "unchanged_outer unchanged_inner");
            echo(option, "trace_options").unwrap();
            check_calls(tracer);
            let shown = show("trace");
            assert!(shown.contains("unchanged_inner"), "{tracer}: {shown}");
            end();
        }
        begin("nop", "unchanged_outer unchanged_inner");
        echo("1", "function_profile_enabled").unwrap();
        check_calls("the profile");
        echo("0", "function_profile_enabled").unwrap();
        end();
    }
}
