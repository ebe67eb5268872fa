//! `cargo run -- trace` from the text to the exit status, with exact counts of the known workload.
//!
//! The kernel is the one that users run, with debug information, and its workload makes a known
//! number of calls. So an answer is compared as a whole, and so is a refusal: its place in the
//! program, its words, and the exit status.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read},
    iter,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use boot::{
    prerequisites::{self, Install},
    qemu::Machine,
};
use rustix::process::{Pid, Signal, kill_process};
use tests::{
    processors::for_guest,
    tracer::{CHILDREN, answer, program, refusal, total, trace},
};

/// One directory, and each child's twice; the second time fails.
const MKDIRS: u64 = 1 + 2 * CHILDREN;

#[test]
fn calls_are_counted() {
    let said = answer(&[
        "kprobe:sys_mkdir { @ = count(); }",
        "--expect",
        &format!("@ == {MKDIRS}"),
    ]);
    assert!(said.contains(&format!("@: {MKDIRS}\n")), "{said}");
    assert!(
        said.contains(&format!("{MKDIRS} hits = {MKDIRS} recorded + 0 missed")),
        "{said}"
    );
}

#[test]
fn results_are_counted_by_program_and_value() {
    let said = answer(&[
        "kretprobe:sys_mkdir { @[comm, retval] = count(); }",
        "--expect",
        &format!(
            "@[\"workload\", 0] == {} && @[\"workload\", -17] == {CHILDREN}",
            1 + CHILDREN
        ),
        "--expect",
        "len(@) == 2 && dropped == 0",
    ]);
    assert!(
        said.contains(&format!("@[workload, -17]: {CHILDREN}\n")),
        "{said}"
    );
}

#[test]
fn arguments_have_their_names_and_predicates_filter() {
    let program = "kprobe:sys_mkdir /args.mode == 0755/ { printf(\"%o\\n\", args.mode); }";
    let said = answer(&[program]);
    assert_eq!(
        said.lines().filter(|line| *line == "755").count() as u64,
        MKDIRS,
        "{said}"
    );
}

#[test]
fn a_session_measures_each_call() {
    let said = answer(&[
        "funclatency",
        "sys_mkdir",
        "--expect",
        &format!("sum(@ns) == {MKDIRS}"),
    ]);
    assert!(said.contains("::sys_mkdir]"), "{said}");
}

#[test]
fn a_condition_that_does_not_hold_gives_status_1_and_the_reason() {
    let output = trace(&["kprobe:sys_mkdir { @ = count(); }", "--expect", "@ > 1000"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = format!("--expect '@ > 1000' does not hold: @ is {MKDIRS}");
    assert!(said.contains(&reason), "{said}");
}

/// The arguments of a program are in its memory: texts that pointers lead to, one after the other.
#[test]
fn arguments_of_programs_are_joined() {
    let said = answer(&["kprobe:do_execve { join(arg1); join(arg1, \",\"); }"]);
    let mut lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("child"))
        .collect();
    lines.sort_unstable();
    let with = |between| (0..CHILDREN).map(move |number| format!("child{between}{number}"));
    let expected: Vec<String> = with(' ').chain(with(',')).collect();
    assert_eq!(lines, expected);
}

#[test]
fn begin_end_and_exit_have_their_order_and_the_status_is_passed_on() {
    let program = "begin { printf(\"first\\n\"); } kprobe:do_fork { exit(3); } \
                   end { printf(\"last\\n\"); }";
    let output = trace(&[program]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().take(2).collect();
    assert_eq!(lines, ["first", "last"]);
}

#[test]
fn answers_are_json_if_asked_for() {
    let said = answer(&["kprobe:sys_mkdir { @calls[comm] = count(); }", "--json"]);
    let line = |kind: &str| {
        let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut found = lines.filter(|line: &serde_json::Value| line["type"] == kind);
        found.next().unwrap_or_else(|| panic!("no {kind}: {said}"))
    };
    assert_eq!(line("attached_probes")["data"]["probes"], 1);
    assert_eq!(line("map")["data"]["@calls"]["workload"], MKDIRS);
    assert_eq!(line("books")["data"]["hits"], MKDIRS);
}

/// Whatever return probes have borrowed the place of the return address before, and whoever asked
/// for them.
#[test]
fn the_caller_is_the_true_one_beside_return_probes() {
    const ENTRY: &str = "kprobe:sys_mkdir { @entry[caller] = count(); }";
    const RETURN: &str = "kretprobe:sys_mkdir { @return[caller] = count(); }";
    let file = std::env::temp_dir().join(format!("trace.caller.{}.html", std::process::id()));
    let page = file.to_str().unwrap();
    let session = "session:sys_mkdir { @entry[caller] = count(); } return { }";
    for arguments in [
        vec![&*format!("{ENTRY} {RETURN}")],
        vec![&*format!("{RETURN} {ENTRY}")],
        vec![&*format!("{session} {RETURN}")],
        vec![ENTRY, "--html", page],
    ] {
        let said = answer(&arguments);
        let of_map = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_once("+"))
                .map(|(caller, rest)| {
                    assert!(rest.ends_with("]: 7"), "{said}");
                    caller.to_owned()
                })
        };
        let caller = Some("kernel::syscall::do_syscall".to_owned());
        assert_eq!(of_map("@entry["), caller, "{arguments:?}: {said}");
        let at_return = arguments.len() == 1;
        assert_eq!(of_map("@return["), caller.filter(|_| at_return), "{said}");
    }
    fs::remove_file(file).unwrap();
}

/// Without fw_cfg and shared memory.
#[test]
#[ignore = "it takes minutes, and Bochs"]
fn bochs_gets_scripts_and_answers_over_its_second_serial_port() {
    let program = "kprobe:sys_mkdir { @[comm] = count(); }";
    let said = answer(&["--bochs", program, "--expect", "@[\"workload\"] == 7"]);
    assert!(
        said.ends_with("\n7 hits = 7 recorded + 0 missed\n"),
        "{said}"
    );
    // The host ends the trace of a program that does not end, when its time is over.
    let endless = ["--run", "exercise calls 100000000"];
    let program = "kprobe:sys_getpid { @ = count(); } END { printf(\"over\\n\"); }";
    let said = answer(&[&["--bochs", program][..], &endless].concat());
    assert!(said.contains("over\n"), "{said}");
}

#[test]
fn wrong_programs_are_refused_with_their_place() {
    for (program, parts) in [
        (
            "kprobe:sys_mkdir { @ = ; }",
            &["expected a value, found `;`", "^", "help: "][..],
        ),
        (
            "kprobe:sys_mkdirr { @ = count(); }",
            &["sys_mkdirr", "sys_mkdir"],
        ),
        ("kprobe:sys_mkdir { @ = args.mod; }", &["mod", "mode"]),
        ("uprobe:x { }", &["`x` is no absolute path", "/bin/PROGRAM"]),
        (
            "watch:/bin/exercise:watched::PROGRESS { } \
             watch:/bin/exercise:watched::PROGRESS.phase { }",
            &[
                "PROGRESS.phase share bytes",
                "QEMU tells only one",
                "one clause",
            ],
        ),
        (
            "uretprobe:/bin/workload:_start { }",
            &["the program begins at `_start`", "probe a function", "^"],
        ),
    ] {
        let said = refusal(&[program]);
        for part in parts {
            assert!(said.contains(part), "{program}: {said}");
        }
    }
    for (arguments, part) in [
        (&[" "][..], "the program is empty"),
        (&["funccuont", "x"], "there is no ready program `funccuont`"),
        (
            &["--source", "funccuont"],
            "there is no ready program `funccuont`; did you mean `funccount`?",
        ),
        (
            &["syscount", "a", "b"],
            "`a` is one argument too many; syscount is used as `syscount`",
        ),
        (
            &["-l", "sys_*", "--expect", "@ == 1"],
            "cannot be used with",
        ),
        (&["-f", "/nowhere"], "cannot read the program /nowhere"),
        (&["-f", "json", "begin { }"], "--json prints JSON"),
        (&["my/program.bt"], "`-f my/program.bt` reads the program"),
        (
            &["begin { }", "--html", "/nowhere/page"],
            "cannot write /nowhere/page",
        ),
        (
            &["begin { }", "--perfetto", "/"],
            "cannot write /: Is a directory",
        ),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    for (program, condition, parts) in [
        ("@ = count();", "@a == 1", &["the program has no `@a`"][..]),
        (
            "@[comm] = count();",
            "@ == 7",
            &["`@` has keys", "`sum(@)`", "^"],
        ),
        ("@ = comm;", "@ == 7", &["compares a text with a number"]),
        (
            "@[pid, comm] = count();",
            "@[\"x\"]",
            &["a key of it is a number, a text"],
        ),
    ] {
        let program = format!("kprobe:sys_mkdir {{ {program} }}");
        let said = refusal(&[&program, "--expect", condition]);
        for part in parts {
            assert!(said.contains(part), "{condition}: {said}");
        }
    }
}

/// What the debug information and the kernel's command line tell is known before the boot.
#[test]
fn places_and_rates_that_cannot_be_are_refused_with_their_place() {
    for (arguments, parts) in [
        (
            &["kprobe:vfs_write+100000 { @ = count(); }"][..],
            &["vfs_write` has ", " bytes of code", "^^^"][..],
        ),
        (
            &["insn:\"inc dword ptr gs:[0x1234]\" { @ = count(); }"],
            &[
                "no instruction `inc dword",
                "did you mean inc dword ptr gs:[0x",
            ],
        ),
        (
            &["insn:clii { @ = count(); }"],
            &["no instruction `clii`", "did you mean cli", "^^^^"],
        ),
        // The standard library is compiled without types.
        (
            &["kretprobe:memchr_aligned { print(retval); }"],
            &["memchr_aligned has no types", "reg(\"ax\")", "^^^"],
        ),
        (
            &["kprobe:memchr_aligned { print(args.text); }"],
            &["memchr_aligned has no types", "arg0", "^^^"],
        ),
        (
            &["profile:hz:1000 { @ = count(); }"],
            &["ask for profile:hz:250 or less", "^^^"],
        ),
        (
            &["profile:hz:11 { @ = count(); }", "--append", "tick_ms=100"],
            &["ticks each 100 ms", "profile:hz:10 or less"],
        ),
    ] {
        let said = refusal(arguments);
        for part in parts {
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }
}

/// A function without arguments and result is told from one of which they are not known.
#[test]
fn lists_show_what_is_not_known() {
    let said = answer(&["-l", "memchr_aligned"]);
    assert!(
        said.contains("  fn memchr_aligned(?)  library/core/"),
        "{said}"
    );
    let said = answer(&["-l", "insn:cli"]);
    let line = "kprobe:kernel::task::scheduler::reschedule+0x";
    assert!(said.lines().any(|found| found.starts_with(line)), "{said}");
    let said = answer(&["-l", "sys_sched_yield"]);
    assert!(said.contains("  fn sys_sched_yield() -> "), "{said}");
}

/// As `| head` does it.
#[test]
fn a_list_may_be_read_in_part() {
    // This builds what has to be built, and tells so.
    answer(&["-l", "sys_mkdir"]);
    let mut command = Command::new(program());
    command
        .args(["-l", "*"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut lister = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(lister.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    assert!(first.starts_with("kprobe:"), "{first}");
    let output = lister.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// Each line is a place that a program can name.
#[test]
fn copies_of_functions_and_lines_are_listed() {
    let copies = answer(&["-l", "inline:percpu::cpu_id"]);
    let is_place = |line: &str| {
        let place = line
            .strip_prefix("kprobe:")
            .and_then(|rest| rest.split_once("  "));
        place.is_some_and(|(place, line)| place.contains("::") && line.contains(".rs:"))
    };
    assert!(
        copies.lines().count() > 10 && copies.lines().all(is_place),
        "{copies}"
    );
    let function = answer(&["-l", "sys_mkdir"]);
    let (_, line) = function.trim_end().rsplit_once('/').unwrap();
    let said = answer(&["-l", &format!("line:{line}")]);
    assert!(
        said.starts_with("kprobe:kernel::syscall::paths::sys_mkdir "),
        "{said}"
    );
    for (pattern, wanted) in [
        (
            "inline:no_such",
            "no copy of a function that matches `no_such`",
        ),
        (
            "line:paths.rs",
            "`line:paths.rs` names no line; write line:FILE:LINE",
        ),
        ("line:paths.rs:99999", "99999"),
    ] {
        let output = trace(&["-l", pattern]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{said}");
    }
}

#[test]
fn a_ready_program_tells_its_use() {
    let said = answer(&["funcslower", "--help"]);
    let usage = "Usage: cargo run -- trace funcslower FUNCTION NANOSECONDS [OPTIONS]\n";
    assert!(said.contains(usage), "{said}");
    assert!(said.contains("Example: cargo run -- trace funcslower do_execve 1000000"));
    let said = answer(&["syscount", "-h"]);
    assert!(
        said.starts_with("syscount: how often each system call is made"),
        "{said}"
    );
}

/// A QEMU whose guests never begin to run. So nothing is attached to them, however fast the machine
/// is and however late the test looks.
struct Paused {
    directory: PathBuf,
}

impl Paused {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let paused = Self { directory };
        let started = paused.started();
        let qemu = prerequisites::qemu(Install::Allowed).unwrap();
        let text = format!(
            "#!/bin/sh\n: > '{}'\nexec '{}' \"$@\" -S\n",
            started.display(),
            qemu.display()
        );
        let draft = paused.directory.join("draft");
        fs::write(&draft, text).unwrap();
        fs::set_permissions(&draft, Permissions::from_mode(0o755)).unwrap();
        // What this process wrote may still be open in a child that another test starts, and would
        // not be executed then.
        let program = paused.directory.join(qemu.file_name().unwrap());
        let copied = Command::new("cp").arg(draft).arg(program).status().unwrap();
        assert!(copied.success());
        paused
    }

    /// There is such a file when a guest has been started.
    fn started(&self) -> PathBuf {
        self.directory.join("started")
    }

    /// A command that traces with this QEMU.
    fn trace(&self) -> Command {
        let path = std::env::var_os("PATH").unwrap();
        let path = iter::once(self.directory.clone()).chain(std::env::split_paths(&path));
        let mut command = Command::new(program());
        command.env("PATH", std::env::join_paths(path).unwrap());
        command
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // What is left is in the way of nobody.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A trace that boots has no answers yet, so it is over at once. A byte that came before the port
/// of its guest was set up would be lost.
#[test]
fn ctrl_c_ends_a_guest_that_boots() {
    let _taken = for_guest(Machine::CPUS);
    let paused = Paused::new("trace.boots");
    let mut child = paused
        .trace()
        .args(["kprobe:sys_mkdir { @ = count(); }", "--timeout", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !paused.started().exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(!said.contains("ending the trace"), "{said}");
}

/// The same request when the probe is there: the answers come.
#[test]
fn ctrl_c_ends_a_trace_with_its_answers() {
    let _taken = for_guest(Machine::CPUS);
    let mut child = Command::new(program())
        .args(["begin { printf(\"here\\n\"); @ = 3; }", "--timeout", "100"])
        .args(["--run", "exercise sleep 1000000000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    answers.read_line(&mut said).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    answers.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert!(said.starts_with("here\n@: 3\n"), "{said}");
}

#[test]
fn the_time_of_a_guest_that_boots_is_over_at_once() {
    let _taken = for_guest(Machine::CPUS);
    let paused = Paused::new("trace.time");
    let mut command = paused.trace();
    command.args(["kprobe:sys_mkdir { @ = count(); }", "--timeout", "1"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--timeout sets another limit"), "{said}");
    assert!(!said.contains("ending the trace"), "{said}");
}

#[test]
fn functions_are_listed_with_their_signatures() {
    let said = answer(&["-l", "sys_mkdir"]);
    let line = said.lines().next().unwrap_or_default();
    assert!(
        line.contains("fn sys_mkdir(path: u64, mode: u32) -> i64"),
        "{said}"
    );
    assert!(line.contains("paths.rs:"), "{said}");
}

#[test]
fn statics_are_listed_with_their_types() {
    let said = answer(&["-l", "watch:next_pid::*"]);
    assert_eq!(
        said,
        "watch:kernel::task::next_pid::NEXT  AtomicI32  4 bytes\n"
    );
    let output = trace(&["-l", "watch:no_such_*"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("`-l 'watch:*'`"),
        "{said}"
    );
    let said = answer(&["-l", "watch:/bin/ex*:*::PROGRESS"]);
    assert_eq!(
        said,
        "watch:/bin/exercise:exercise::watched::PROGRESS  Progress  8 bytes\n"
    );
    for (pattern, wanted) in [
        (
            "watch:/bin/none:*",
            "no program matches `/bin/none`; there are /bin/",
        ),
        (
            "watch:/bin/child:none",
            "no static of `/bin/child` matches `none`",
        ),
    ] {
        let output = trace(&["-l", pattern]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{said}");
    }
}

/// A map that is printed and cleared again and again has each hit once, whatever comes meanwhile,
/// and all that a hit has changed belongs to the same time.
#[test]
fn what_is_printed_and_cleared_adds_up() {
    let said = answer(&[
        "kprobe:sys_getpid { @c = count(); @h = hist(tid); @k[tid] = count(); @z[tid] = count(); \
         @name[comm] = count(); @s = stats(3); @t[tid] = stats(3); @all = count(); \
         @live = stats(3); @average[tid] = avg(3); } \
         interval:ms:5 { print(@c); clear(@c); print(@h); zero(@h); print(@k); clear(@k); \
         print(@z); zero(@z); print(@name); clear(@name); print(@s); clear(@s); \
         print(@t); clear(@t); print(@live); print(@average); }",
        "--run",
        "exercise calls 100000",
        "--json",
    ]);
    let mut sums = BTreeMap::new();
    for line in said.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let Some(data) = line["data"].as_object() else {
            continue;
        };
        for (name, value) in data.iter().filter(|(name, _)| name.starts_with('@')) {
            match &**name {
                "@average" => {
                    let mut averages = value.as_object().unwrap().values();
                    assert!(averages.all(|average| average == 3), "{value}");
                }
                "@live" => assert!(hits(value) <= 300_000),
                _ => *sums.entry(name.clone()).or_insert(0) += hits(value),
            }
        }
    }
    let maps = ["@all", "@c", "@h", "@k", "@name", "@s", "@t", "@z"];
    let wanted = maps.map(|name| (name.to_owned(), 300_000));
    assert_eq!(Vec::from_iter(sums), wanted);
}

/// How many hits a value tells: a count, a histogram, statistics of threes, or these by key.
fn hits(value: &serde_json::Value) -> u64 {
    if value.is_array() {
        return total(value);
    }
    if let Some(statistics) = value.get("count") {
        let count = statistics.as_u64().unwrap();
        assert_eq!(value["total"], 3 * count, "{value}");
        return count;
    }
    match value.as_object() {
        Some(of_keys) => of_keys.values().map(hits).sum(),
        None => value.as_u64().unwrap(),
    }
}

/// The word at the stack pointer of its first instruction is the number of arguments, and no
/// address to return to.
#[test]
fn a_program_whose_returns_are_all_probed_does_what_it_does() {
    let said = answer(&[
        "uretprobe:/bin/workload:* { @[func] = count(); } \
         uprobe:/bin/workload:* { @all = count(); }",
        "--expect",
        "@[\"workload::run_child\"] == 3 && @all > sum(@)",
    ]);
    assert!(!said.contains("_start"), "{said}");
}

/// The answers of a trace that would last for years, and that Ctrl-C ends when two of its lines are
/// so.
fn answer_after_two(arguments: &[&str], is_it: impl Fn(&str) -> bool) -> String {
    let _taken = for_guest(Machine::CPUS);
    let mut command = Command::new(program());
    command.args(arguments);
    command.args(["--run", "exercise sleep 1000000000", "--timeout", "1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while said.lines().filter(|line| is_it(line)).count() < 2 {
        assert_ne!(answers.read_line(&mut said).unwrap(), 0, "{said}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    answers.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    said
}

/// With --top the maps are shown before the end, too, though the program prints none.
#[test]
fn live_maps_are_shown_while_the_trace_runs() {
    let program = "begin { @[\"key\"] = count(); } kprobe:sys_mkdir { @n = count(); }";
    answer_after_two(&[program, "--top", "--timing"], |line| line == "@[key]: 1");
}

/// With --json they are a line each second.
#[test]
fn live_maps_are_a_line_of_json_each() {
    let program = "begin { @[\"key\"] = count(); @n = 3; }";
    let top = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        (line["type"] == "top").then(|| line["data"].to_string())
    };
    let said = answer_after_two(&[program, "--top", "--json"], |line| top(line).is_some());
    for shown in said.lines().filter_map(top) {
        assert_eq!(shown, "{\"@\":{\"key\":1},\"@n\":3}");
    }
}

/// The registers with which a program has entered the kernel begin the walk, and the names are
/// those of the program: the three calls of `mkdir` in its text.
#[test]
fn call_stacks_of_programs_have_their_functions() {
    let said = answer(&[
        "kprobe:sys_mkdir { @[ustack, comm] = count(); @own[kstack, ustack(1)] = count(); }",
        "--expect",
        &format!("len(@) == 3 && sum(@) == {MKDIRS} && sum(@own) == {MKDIRS}"),
    ]);
    let (stacks, _) = said.split_once("@own[").unwrap();
    let counts = stacks.matches(", workload]: ").count();
    let ends: Vec<&str> = stacks.split("]: ").filter(|of| of.contains("@[")).collect();
    assert_eq!((counts, ends.len()), (3, 3), "{said}");
    for stack in ends {
        let frames: Vec<&str> = stack
            .lines()
            .filter(|line| line.starts_with("    "))
            .collect();
        let functions = frames
            .iter()
            .map(|frame| frame.trim().split('+').next().unwrap());
        assert_eq!(
            functions.collect::<Vec<_>>(),
            ["user_main", "user::start", "_start"],
            "{said}"
        );
    }
}

/// A task of the kernel has no program, and so has one that a program of the kernel starts.
#[test]
fn tasks_of_the_kernel_have_no_call_stack_of_a_program() {
    let said = answer(&[
        "tracepoint:sched:sched_switch /pid == 0/ { @[ustack] = count(); }",
        "--expect",
        "len(@) == 1",
    ]);
    assert!(said.contains("@[\n    (no call stack)\n]: "), "{said}");
}

/// The pictures record calls of some of the functions. Those that they cannot probe are left out.
#[test]
fn pictures_of_every_function_do_not_refuse_the_program() {
    let file = std::env::temp_dir().join(format!("trace.all.{}.html", std::process::id()));
    let path = file.to_str().unwrap();
    let said = answer(&["kprobe:* { @ = count(); }", "--html", path]);
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(said.starts_with("@: "), "{said}");
    assert!(page.contains(" functions</code>"));
    assert!(page.contains("<title>kprobe:* { @ = count(); }</title>"));
}

/// What is recorded for pictures is no text of the program, not even where its line goes on. Bytes
/// are a text in them.
#[test]
fn pictures_leave_the_lines_of_the_program_alone() {
    let file = std::env::temp_dir().join(format!("trace.line.{}.html", std::process::id()));
    let path = file.to_str().unwrap();
    let program = "kprobe:kernel::fs::mkdir { printf(\"x\"); }";
    let said = answer(&[program, "--html", path]);
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(said, "xxxxxxx\n14 hits = 14 recorded + 0 missed\n");
    assert!(page.contains("\"/tmp/workload."), "{page}");
}

/// They are recorded at the return, so the pictures tell how many of them did not come to it.
#[test]
fn pictures_tell_how_many_calls_have_not_returned() {
    let file = std::env::temp_dir().join(format!("trace.open.{}.html", std::process::id()));
    let path = file.to_str().unwrap();
    let program = "kprobe:sys_exit_group,kprobe:sys_mkdir { @[func] = count(); }";
    let output = trace(&[program, "--html", path]);
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("when the trace ended: 4; --graph"), "{said}");
    assert!(page.contains(">4 records are missing from the timeline: their calls had"));
    let answer = String::from_utf8_lossy(&output.stdout);
    let shown = "@[kernel::syscall::tasks::sys_exit_group]: 4\n\
                 @[kernel::syscall::paths::sys_mkdir]: 7\n\n\
                 18 hits = 18 recorded + 0 missed\n";
    assert_eq!(answer, shown);
}

/// How much had come when the kernel panics at the third directory is left to chance.
#[test]
fn pictures_of_a_kernel_that_dies_have_what_had_come() {
    let file = std::env::temp_dir().join(format!("trace.dead.{}", std::process::id()));
    let path = |kind: &str| format!("{}.{kind}", file.display());
    let (page, timeline, flame) = (path("html"), path("perfetto"), path("svg"));
    let output = trace(&[
        "kprobe:kernel::fs::mkdir { @[kstack] = count(); }",
        "--samples",
        "crash",
        "--append",
        "crash.how=panic crash.at=3",
        "--html",
        &page,
        "--perfetto",
        &timeline,
        "--flame",
        &flame,
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let end = "did not come to its end";
    assert!(said.trim_end().ends_with(end), "{said}");
    let no_flame = "is not written: the maps have not come";
    assert!(said.contains(no_flame), "{said}");
    let shown = std::fs::read_to_string(&page).unwrap();
    assert!(shown.contains("what it had not sent is missing"), "{shown}");
    assert!(!std::fs::read(&timeline).unwrap().is_empty());
    for written in [page, timeline] {
        std::fs::remove_file(written).unwrap();
    }
    assert!(!std::path::Path::new(&flame).exists());
}

/// Those that are called are there, wherever they lie among more than 256.
#[test]
fn pictures_of_many_functions_show_those_that_are_called() {
    let file = std::env::temp_dir().join(format!("trace.many.{}.html", std::process::id()));
    let path = file.to_str().unwrap();
    let modules = ["shell", "syscall", "fs", "arch", "task"];
    let probes = modules.map(|module| format!("kprobe:kernel::{module}::*"));
    let program = format!("{} {{ @ = count(); }}", probes.join(", "));
    answer(&[&program, "--html", path]);
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    for function in ["do_syscall", "paths::sys_mkdir", "files::sys_write"] {
        let shown = format!(">kernel::syscall::{function} (");
        assert!(page.contains(&shown), "{function}");
    }
}

/// `mkdir` does not look at the mark that its path ends in a slash, so the compiler keeps it
/// nowhere. The name is shown nevertheless, and a program that asks for the mark alone is refused.
#[test]
fn a_value_that_has_lost_a_part_is_shown_with_the_others() {
    let source = include_str!("../kernel/parts/ramfs/src/tree.rs");
    // The first line of `mkdir` that looks at the value.
    let lines = (1..).zip(source.lines());
    let mut lines = lines.skip_while(|(_, line)| !line.contains("pub fn mkdir("));
    let is_line = |(_, line): &(u32, &str)| line.contains("= target.last else {");
    let (number, _) = lines.find(is_line).unwrap();
    let place = format!("line:ramfs/src/tree.rs:{number}");
    let said = answer(&[
        "--smp",
        "1",
        &format!("{place} {{ printf(\"%r\\n\", target); }}"),
    ]);
    let mut shown = said.lines().take_while(|line| line.starts_with("Target"));
    let first = shown.next().unwrap_or_default();
    // A name is a slice of bytes, which `Debug` shows as numbers.
    let beginning = format!("last: Down({:?}", b"workload.");
    assert!(first.contains(beginning.trim_end_matches(']')), "{said}");
    assert!(
        first.ends_with(", demands_directory: <unavailable> }"),
        "{said}"
    );
    // Each child's directory is made twice.
    for number in 0..2 * CHILDREN {
        let line = shown.next().unwrap_or_default();
        let child = (number / 2).to_string();
        let name = child.as_bytes();
        let rest = format!("last: Down({name:?}), demands_directory: <unavailable> }}");
        assert!(line.ends_with(&rest), "{said}");
    }
    assert_eq!(shown.next(), None, "{said}");

    let said = refusal(&[&format!("{place} {{ @ = target.demands_directory; }}")]);
    let reason = "the compiler left this part of the value out";
    assert!(said.contains(reason) && said.contains('^'), "{said}");
}

/// A path is in the memory of the program that makes the directory.
#[test]
fn memory_of_programs_is_read_as_numbers_and_as_texts_of_any_length() {
    let said = answer(&[
        "kprobe:sys_mkdir { $path = (uint8*)uptr(args.path); \
         printf(\"%c%c %x %s\\n\", $path[0], $path[1], *(uint32*)uptr(args.path), \
         str(args.path, args.mode - 0750)); }",
        "--expect",
        "bad_loads == 0",
    ]);
    let count = said
        .lines()
        .filter(|line| *line == "/t 706d742f /tmp/")
        .count();
    assert_eq!(count as u64, MKDIRS, "{said}");
}

/// An open device is behind a `Box<dyn Opened>`.
#[test]
fn a_trait_object_is_shown_as_the_value_that_it_is() {
    let said = answer(&[
        "kprobe:vfs_write { printf(\"%r %r\\n\", args.file.object, args.file.object.Special); }",
    ]);
    assert!(said.contains("\nSpecial(Console) Console\n"), "{said}");
    assert!(!said.contains("vtable"), "{said}");
}

/// The tracer's own task starts and ends the script, and runs the intervals.
#[test]
fn a_program_that_is_no_hit_has_the_stack_of_its_task() {
    let said = answer(&[
        "--run",
        "exercise sleep 50",
        "begin { print(kstack); } interval:ms:10 { @[kstack] = count(); } end { print(kstack); }",
    ]);
    let has_a_stack = |stack: &str| {
        let of_tracer = stack.contains("\n    kernel::trace::script::at_boot::read_trace+");
        of_tracer && stack.contains("\n    ret_from_fork+")
    };
    let (begin, rest) = said.split_once("\n\n\n").unwrap_or_default();
    let (end, intervals) = rest.split_once("\n\n@[").unwrap_or_default();
    for stack in [begin, end, intervals] {
        assert!(has_a_stack(&format!("\n{stack}")), "{said}");
    }
}

/// The task that serves a trace is called `trace`, and its watchdog `watchdog`.
#[test]
fn the_tracer_is_kept_out_of_its_trace_unless_it_is_wanted() {
    let program = "kprobe:* { @[comm] = count(); printf(\"%s\\n\", func); }";
    let is_task = |line: &str, name: &str| line.starts_with(&format!("@[{name}]"));
    let said = answer(&["--smp", "1", program]);
    let tasks = ["trace", "watchdog"];
    let found = |said: &str| tasks.map(|name| said.lines().any(|line| is_task(line, name)));
    assert_eq!(found(&said), [false, false], "{}", tail(&said));
    let books = said.lines().last().unwrap_or_default();
    assert!(books.contains(" of the tracer itself kept out"), "{books}");
    assert!(
        said.lines().any(|line| is_task(line, "workload")),
        "{}",
        tail(&said)
    );

    let said = answer(&[
        "--smp",
        "1",
        "--with-tracer",
        "kprobe:* { @[comm] = count(); }",
    ]);
    assert!(found(&said)[0], "{said}");
    let books = said.lines().last().unwrap_or_default();
    assert!(!books.contains("kept out"), "{books}");
}

/// The last lines of an answer that has many.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[test]
fn a_page_names_the_probes_and_has_the_calls_as_heat_maps() {
    let file = std::env::temp_dir().join(format!("page.{}.html", std::process::id()));
    let path = file.to_str().unwrap();
    let program = "kprobe:sys_mkdir { @ = count(); } tracepoint:sched:sched_process_exit { @x = \
                   count(); }";
    answer(&[program, "--html", path]);
    let page = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    for part in [
        "<code>kprobe:sys_mkdir</code>",
        "<code>tracepoint:sched:sched_process_exit</code>",
        "<code>for the pictures: session:",
        "<section id=\"heat\">",
        "sys_mkdir: nanoseconds over time",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<code>probe "), "a probe has no name");
}
