//! `tracing_cpumask`: a CPU that is not in it begins no records, whoever writes them.

use abi::open;
use alloc::{format, vec::Vec};

use kernel::{errno::Errno, fs, trace::TRACING};

use super::{
    call, clean_up, echo, lines, on_cpu, path,
    reading::{define, stat},
    show,
    tracers::{FUNCTIONS, begin, end},
};

/// All CPUs that may be, as a mask.
fn all_cpus() -> u64 {
    (1 << kernel::arch::smp::possible_cpus()) - 1
}

fn choose(mask: u64) {
    echo(&format!("{mask:x}"), "tracing_cpumask").unwrap();
}

/// The numbers of the calls that were recorded.
fn numbers() -> Vec<u64> {
    let all = lines();
    let number = |line: &alloc::string::String| line.rsplit_once('=')?.1.parse().ok();
    all.iter().filter_map(number).collect()
}

#[guest_test]
fn a_cpu_that_is_left_out_records_nothing() {
    clean_up();
    let all = format!("{:x}\n", all_cpus());
    assert_eq!(show("tracing_cpumask"), all);
    define("p:some traced_function number=%di:u64");
    let everywhere = |from: u64| {
        on_cpu(0, move || call(from));
        on_cpu(1, move || call(from + 1));
    };
    everywhere(10);
    let off = stat(1, "events while off");
    choose(1);
    everywhere(20);
    // What was there stays, and the hits that are not recorded are counted.
    assert_eq!(numbers(), [10, 11, 20]);
    assert_eq!(stat(1, "events while off"), off + 1);
    choose(0);
    everywhere(30);
    choose(2);
    everywhere(40);
    assert_eq!(numbers(), [10, 11, 20, 41]);
    // Also when the buffer is empty, or another one.
    echo("", "trace").unwrap();
    everywhere(50);
    assert_eq!(numbers(), [51]);
    for kib in ["8", "256"] {
        echo(kib, "buffer_size_kb").unwrap();
        everywhere(60);
        assert_eq!(numbers(), [61]);
    }
    for _ in 0..3 {
        echo("1", "snapshot").unwrap();
        everywhere(70);
        assert_eq!(numbers(), [71]);
    }
    // A CPU that is left out while it has two buffers with records.
    choose(all_cpus());
    everywhere(80);
    echo("1", "snapshot").unwrap();
    everywhere(90);
    choose(2);
    everywhere(100);
    assert_eq!(numbers(), [90, 91, 101]);
    echo("1", "snapshot").unwrap();
    everywhere(110);
    assert_eq!(numbers(), [111]);
    echo("0", "snapshot").unwrap();
    everywhere(120);
    assert_eq!(numbers(), [111, 121]);

    choose(all_cpus());
    everywhere(130);
    assert_eq!(numbers(), [111, 121, 130, 131]);
    clean_up();
}

#[guest_test]
fn no_other_record_of_a_cpu_that_is_left_out_is_begun() {
    for tracer in ["function", "function_graph"] {
        begin(tracer, FUNCTIONS);
        choose(1);
        on_cpu(1, || super::tracers::call(1));
        assert_eq!(TRACING.buffer.written(), 0, "{tracer}");
        on_cpu(0, || super::tracers::call(1));
        let written = TRACING.buffer.written();
        assert!(written >= 5, "{tracer}: {written}");
        choose(all_cpus());
        on_cpu(1, || super::tracers::call(1));
        assert_eq!(TRACING.buffer.written(), 2 * written, "{tracer}");
        end();
    }
    let mark = || {
        let file = fs::open(&path("trace_marker"), open::WRONLY).unwrap();
        file.write_at(0, b"a mark")
    };
    choose(1);
    on_cpu(0, move || assert_eq!(mark(), Ok(6)));
    on_cpu(1, move || assert_eq!(mark(), Err(Errno::EBADF)));
    choose(all_cpus());
    on_cpu(1, move || assert_eq!(mark(), Ok(6)));
    // A stack that a trigger records.
    echo("p:with_stack traced_function", "kprobe_events").unwrap();
    echo("stacktrace", "events/kprobes/with_stack/trigger").unwrap();
    echo("", "trace").unwrap();
    choose(1);
    on_cpu(1, || call(1));
    assert_eq!(lines(), [""; 0]);
    on_cpu(0, || call(1));
    assert_eq!(TRACING.buffer.written(), 1);
    echo("!stacktrace", "events/kprobes/with_stack/trigger").unwrap();
    choose(all_cpus());
    clean_up();
}

#[guest_test]
fn a_mask_that_is_refused_changes_nothing() {
    clean_up();
    choose(1);
    let (too_large, no_number) = (Errno::EOVERFLOW, Errno::EINVAL);
    let beyond = format!("{:x}", all_cpus() + 1);
    for (mask, errno) in [
        ("00000000,00000003", too_large),
        ("000000000000001", too_large),
        (&beyond, too_large),
        ("g", no_number),
        ("0x1", no_number),
        ("-1", no_number),
    ] {
        assert_eq!(echo(mask, "tracing_cpumask"), Err(errno), "{mask}");
        assert_eq!(show("tracing_cpumask").trim_start_matches('0'), "1\n");
    }
    echo(&format!(" {:x},", all_cpus()), "tracing_cpumask").unwrap();
    assert_eq!(show("tracing_cpumask"), format!("{:x}\n", all_cpus()));
}
