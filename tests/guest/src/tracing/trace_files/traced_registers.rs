//! What a traced call leaves of the registers: all as they would be without a tracer. And what code
//! with unusual flags leaves of its events: all of them.

use alloc::{format, string::String, vec::Vec};
use core::arch::naked_asm;

use crate::{
    platform::suite::flags::{DF_AND_AC, PLAIN, STATUS},
    tools::{
        jumps::Optimization,
        register_state::{distinct, run},
    },
};

use super::{
    append, clean_up, echo, lines, show,
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

/// Sets DF and AC around its instruction at `PROBED`. Returns the flags behind that.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn backwards_and_open(number: u64, text: *const u8) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "or qword ptr [rsp], {df_and_ac}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "lea rax, [rdi + 0x1000]",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "pop rax",
        ".cfi_adjust_cfa_offset -8",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        df_and_ac = const DF_AND_AC,
    )
}

/// The offset of its `lea`.
const PROBED: u64 = 11;

/// Most hits are served by routines that copy nothing backwards. The others are Rust's work: the
/// first record of a page, a key that is new, a text without a NUL in its room.
#[guest_test]
fn an_event_is_whole_where_the_direction_flag_is_set() {
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        clean_up();
        let event = "number=%di:u64 text=+0(%si):string";
        append(
            &format!("p:flags/set backwards_and_open+{PROBED} {event}"),
            "kprobe_events",
        )
        .unwrap();
        echo("hist:keys=number:size=2048", "events/flags/set/trigger").unwrap();
        echo("1", "events/flags/set/enable").unwrap();
        for number in 0..CALLS {
            let text = format!("text of {number}\0");
            for _ in 0..2 {
                let flags = backwards_and_open(number, text.as_ptr());
                assert_eq!(flags & DF_AND_AC, DF_AND_AC, "call {number}");
            }
        }
        echo("0", "events/flags/set/enable").unwrap();
        let twice = |number| [number; 2];
        let expected: Vec<String> = (0..CALLS)
            .flat_map(twice)
            .map(|number| format!("number={number} text=\"text of {number}\""))
            .collect();
        let lines = lines();
        let found = lines.iter().map(|line| line.split_once(") ").unwrap().1);
        assert!(found.eq(&expected), "jumps: {jumps}: {lines:?}");
        let histogram = show("events/flags/set/hist");
        for number in 0..CALLS {
            let row = format!("{{ number: {number:>10} }} hitcount:          2");
            assert!(histogram.contains(&row), "{number}: {histogram}");
        }
        echo("!hist:keys=number:size=2048", "events/flags/set/trigger").unwrap();
        clean_up();
    }
}
