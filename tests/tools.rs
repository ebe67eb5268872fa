//! The ready programs in `tracer/programs`, each on work whose calls are known.
//!
//! Programs that run the same work run in one boot: the text of several files is a program of
//! several clauses. `tests/trace.rs` and the commands in `docs/tracing.md` call programs by their
//! names. Times are never compared: of a histogram of times, the number of entries is.

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use tests::tracer::{Answers, CHILDREN, answer, buckets, total};

/// The texts of ready programs, as one program, and `further` clauses.
fn programs(names: &[&str], further: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tracer/programs");
    let text = |name: &&str| fs::read_to_string(directory.join(format!("{name}.bt"))).unwrap();
    let texts: String = names.iter().map(text).collect();
    texts + further
}

/// The workload's process, which is the third task that is made.
const WORKLOAD: u64 = 3;

/// The numbers of its children, and of each the code with which it exits.
fn children() -> impl Iterator<Item = (u64, u64)> {
    (0..CHILDREN).map(|code| (WORKLOAD + 1 + code, code))
}

/// The lines of the children.
fn of_children(line: impl Fn(u64, u64) -> String) -> Vec<String> {
    children().map(|(pid, code)| line(pid, code)).collect()
}

/// The lines without the time that they begin with.
fn without_time(lines: Vec<String>, mark: &str) -> Vec<String> {
    let lines = lines
        .into_iter()
        .filter(|line| line.contains(mark) && !line.contains("wrote"));
    let rest = lines.map(|line| line.split_once(' ').unwrap().1.to_owned());
    rest.collect()
}

/// The workload, seen by all programs that watch single calls.
fn workload() -> &'static Answers {
    static ANSWERS: LazyLock<Answers> = LazyLock::new(|| {
        let names = [
            // Its setting stands before all.
            "memleak",
            "execsnoop",
            "threadsnoop",
            "exitsnoop",
            "pidpersec",
            "statsnoop",
            "dirsnoop",
            "writesnoop",
            "syscount",
            "sysfail",
            "syslatency",
            "vfscount",
            "heaptop",
        ];
        // What the kernel's own words are.
        let parents = "kretprobe:sys_getppid { \
                       printf(\"%d has parent %d %d %d\\n\", pid, ppid, retval, curtask.pid); \
                       $ticks = nsecs / 4000000; $later = jiffies; \
                       printf(\"%d ticks %s\\n\", pid, \
                       $ticks <= $later && $later <= nsecs / 4000000); }";
        Answers::of(&[&programs(&names, parents), "workload"])
    });
    &ANSWERS
}

#[test]
fn ppid_is_what_the_kernel_answers() {
    let lines = workload().lines("").into_iter();
    let lines = lines.filter(|line| line.contains(" has parent "));
    let expected = of_children(|pid, _| format!("{pid} has parent {WORKLOAD} {WORKLOAD} {pid}"));
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

/// Of 4 ms each.
#[test]
fn jiffies_are_the_ticks_of_the_timer() {
    let lines = workload().lines("").into_iter();
    let lines = lines.filter(|line| line.contains(" ticks "));
    let expected = of_children(|pid, _| format!("{pid} ticks true"));
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn execsnoop_shows_executed_programs() {
    let lines = without_time(workload().lines(""), " /bin/");
    assert_eq!(
        lines,
        of_children(|pid, _| format!("{pid} workload /bin/child"))
    );
}

#[test]
fn threadsnoop_shows_new_tasks() {
    let lines = without_time(workload().lines(""), " child ");
    let lines = lines.iter().filter(|line| line.contains("workload child"));
    let expected = of_children(|pid, _| format!("{WORKLOAD} workload child {pid}"));
    assert_eq!(Vec::from_iter(lines), Vec::from_iter(&expected));
}

#[test]
fn exitsnoop_shows_codes() {
    let mut expected = of_children(|pid, code| format!("{pid} child exit {code}"));
    expected.push(format!("{WORKLOAD} workload exit 0"));
    assert_eq!(without_time(workload().lines(""), " exit "), expected);
}

/// Those of each second that the trace goes on are shown, and the rest at the end.
#[test]
fn pidpersec_counts_new_tasks() {
    assert_eq!(workload().number_in_all("@forks"), CHILDREN);
}

#[test]
fn statsnoop_shows_paths_and_errors() {
    let expected = of_children(|_, code| format!("stat 0 /tmp/workload.{WORKLOAD}/{code}"));
    let begin = format!("{WORKLOAD} workload ");
    let lines = workload().lines(&begin).into_iter();
    assert_eq!(
        lines
            .filter(|line| line.starts_with("stat"))
            .collect::<Vec<_>>(),
        expected
    );
}

/// Each child's directory is made twice, and the second time fails. All are removed.
#[test]
fn dirsnoop_shows_outcomes() {
    let base = format!("/tmp/workload.{WORKLOAD}");
    let mut expected = vec![format!("mkdir {base}: Ok(())")];
    for (_, code) in children() {
        expected.push(format!("mkdir {base}/{code}: Ok(())"));
        expected.push(format!("mkdir {base}/{code}: Err(EEXIST)"));
    }
    expected.extend(of_children(|_, code| {
        format!("rmdir {base}/{code}: Ok(())")
    }));
    expected.push(format!("rmdir {base}: Ok(())"));
    let begin = format!("{WORKLOAD} workload ");
    let lines = workload().lines(&begin).into_iter();
    assert_eq!(
        lines
            .filter(|line| line.contains("dir /"))
            .collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn writesnoop_shows_what_programs_say() {
    let mut expected = vec![format!(
        "{WORKLOAD} workload wrote workload: {CHILDREN} children"
    )];
    expected.extend(of_children(|pid, code| {
        format!("{pid} child wrote child {pid} of {WORKLOAD}: exit {code}")
    }));
    expected.push(format!("{WORKLOAD} workload wrote workload: done"));
    let lines = workload().lines("").into_iter();
    let lines = lines.filter(|line| line.contains(" wrote "));
    // The sign for the end of the line.
    let lines = lines.map(|line| line.trim_end_matches("\\x0a").to_owned());
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn syscount_counts_calls_by_program() {
    let c = CHILDREN;
    let calls = [
        ("tasks", "getpid", "workload", 1 + 2 * c),
        ("paths", "mkdir", "workload", 1 + 2 * c),
        ("paths", "rmdir", "workload", 1 + c),
        ("paths", "stat", "workload", c),
        ("tasks", "clone", "workload", c),
        ("tasks", "execve", "workload", c),
        ("tasks", "wait4", "workload", c),
        ("files", "write", "workload", 2),
        ("tasks", "exit_group", "workload", 1),
        ("tasks", "getpid", "child", c),
        ("tasks", "getppid", "child", c),
        ("files", "write", "child", c),
        ("tasks", "exit_group", "child", c),
    ];
    let name = |file, call, program| format!("kernel::syscall::{file}::sys_{call},{program}");
    let expected = calls.map(|(file, call, program, count)| (name(file, call, program), count));
    let counted = workload().counts("@calls").into_iter();
    let counted = counted.map(|(key, count)| (key.to_owned(), count));
    assert_eq!(
        counted.collect::<BTreeMap<_, _>>(),
        BTreeMap::from(expected)
    );
}

/// 17 is EEXIST.
#[test]
fn sysfail_counts_errors() {
    assert_eq!(
        workload().counts("@failed"),
        BTreeMap::from([("tracepoint:syscalls:sys_exit_mkdir,workload,17", CHILDREN)])
    );
}

/// It counts the calls that return, which are all but exit_group, and has a time for each.
#[test]
fn syslatency_has_a_time_for_each_call() {
    let calls = workload().counts("@calls");
    let mut returning = BTreeMap::new();
    for (key, count) in calls {
        let (function, _) = key.split_once(',').unwrap();
        if !function.ends_with("::sys_exit_group") {
            *returning.entry(function).or_insert(0) += count;
        }
    }
    let times = workload().map("@call_ns").as_object().unwrap().iter();
    let times =
        times.map(|(function, stats)| (function.as_str(), stats["count"].as_u64().unwrap()));
    assert_eq!(times.collect::<BTreeMap<_, _>>(), returning);
}

/// The kernel opens the workload's file and the console, and each child's file.
#[test]
fn vfscount_counts_calls() {
    assert_eq!(
        workload().counts("@vfs"),
        BTreeMap::from([
            ("kernel::fs::file::vfs_open", 2 + CHILDREN),
            ("kernel::fs::file::vfs_write", 2 + CHILDREN),
        ])
    );
}

/// Two programs count the same blocks, one at the entry, one at the return.
#[test]
fn heaptop_counts_blocks() {
    let blocks = workload().counts("@blocks");
    assert_eq!(blocks["workload"], workload().number("@taken"));
    // Bytes by stack: each block has at least one.
    assert!(workload().sum("@bytes") >= blocks.values().sum());
}

/// Two of the blocks that the workload takes stay: the map and the set of the entries of `/tmp`
/// keep a node each when the last entry is removed.
#[test]
fn memleak_finds_what_is_left() {
    let (taken, given) = (workload().number("@taken"), workload().number("@given"));
    assert_eq!(taken - given, 2, "of {taken}");
    let left = workload().counts("@left");
    assert_eq!(left.len(), 2);
    assert!(
        left.keys().all(|stack| stack.contains("kernel::fs::mkdir")),
        "{left:?}"
    );
}

/// `exercise contents`: see the table in `lessons.rs`.
fn contents() -> &'static Answers {
    static ANSWERS: LazyLock<Answers> = LazyLock::new(|| {
        let names = ["opensnoop", "vfsstat", "bitesize", "fsdist"];
        Answers::of(&["--run", "exercise contents", &programs(&names, "")])
    });
    &ANSWERS
}

/// The first file stays open as number 3, and is opened as 4 by others, once as 5 with another one
/// open. The second open asks for a new file, which is refused (EEXIST).
#[test]
fn opensnoop_shows_numbers_errors_and_paths() {
    let numbers = [
        "3 0", "-1 17", "4 0", "4 0", "4 0", "5 0", "4 0", "4 0", "4 0",
    ];
    let mut expected: Vec<String> = numbers.map(|is| format!("{is} /tmp/contents")).into();
    expected.push("3 0 /tmp/large".into());
    assert_eq!(contents().lines("3 exercise "), expected);
}

/// Those of the program, and what the kernel opens for it: its file and the console.
#[test]
fn vfsstat_counts_operations() {
    let expected = BTreeMap::from([("open", 10 + 2), ("read", 13), ("write", 7)]);
    assert_eq!(contents().counts("@ops"), expected);
}

#[test]
fn bitesize_shows_sizes() {
    let of = |map| buckets(&contents().map(map)["exercise"]);
    assert_eq!(of("@read"), [(0, 7), (4, 1), (8, 4), (16384, 1)]);
    assert_eq!(of("@written"), [(1, 2), (4, 3), (8, 1), (16384, 1)]);
}

#[test]
fn fsdist_times_each_operation() {
    let of = |operation| total(&contents().map("@file_ns")[operation]);
    assert_eq!([of("open"), of("read"), of("write")], [12, 13, 7]);
}

/// Four children are asked whether they are there (signal 0), killed, and not there any more (error
/// 3, ESRCH). Another one has ended by itself, and can still be asked and killed. The last one
/// kills itself. The third child has a child, too. Which of it and the fourth child gets the number
/// 7, and which 8, is up to the scheduler.
#[test]
fn killsnoop_shows_signals() {
    let further = programs(&["exitsnoop"], "");
    let answers = Answers::of(&[
        "--run",
        "exercise kill",
        &programs(&["killsnoop"], &further),
    ]);
    let is_eighth = !answers.lines("3 exercise 0 8 0").is_empty();
    let fourth = if is_eighth { 8 } else { 7 };
    let mut expected = Vec::new();
    for child in [4, 5, 6, fourth] {
        expected.extend([(3, 0, child, 0), (3, 9, child, 0), (3, 9, child, 3)]);
    }
    expected.extend([(3, 0, 9, 0), (3, 9, 9, 0), (10, 9, 10, 0)]);
    let line = |(by, signal, to, error)| format!("{by} exercise {signal} {to} {error}");
    let expected: Vec<String> = expected.into_iter().map(line).collect();
    let lines = answers.lines("").into_iter();
    let (kills, ends): (Vec<_>, Vec<_>) = lines
        .skip(2)
        .partition(|line| !line.contains("exercise exit") && !line.contains("exercise signal"));
    assert_eq!(kills, expected);
    // The orphan is not killed, and the program itself ends well.
    let signals = ends
        .iter()
        .filter(|line| line.ends_with("exercise signal 9"));
    assert_eq!(signals.count(), 5, "{ends:?}");
}

/// 5 sleeps of 10 ms, one of 0, and three with wrong times (error 22, EINVAL).
#[test]
fn naptime_shows_sleeps() {
    let answers = Answers::of(&["--run", "exercise sleep 50", &programs(&["naptime"], "")]);
    let naps: Vec<(u64, u64)> = answers
        .lines("3 exercise ")
        .iter()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(time, error)| (time.parse().unwrap(), error.parse().unwrap()))
        .collect();
    let errors: Vec<u64> = naps.iter().map(|(_, error)| *error).collect();
    assert_eq!(errors, [0, 0, 0, 0, 0, 0, 22, 22, 22]);
    // No sleeper is woken too early.
    assert!(
        naps[..5].iter().all(|(time, _)| *time >= 10_000_000),
        "{naps:?}"
    );
}

/// The program's eight children take more memory than there is, and it says how many were ended.
#[test]
fn oomkill_shows_who_had_no_memory() {
    let arguments = ["--memory", "64", "--log", "--run", "exercise out_of_memory"];
    let program = programs(&["oomkill"], "");
    let answers = Answers::of(&[&arguments[..], &[&program]].concat());
    let ended = answers
        .lines("")
        .iter()
        .filter(|line| line.ends_with("exercise OutOfMemory"))
        .count();
    let said = format!("out_of_memory: {ended} of 8 ended");
    assert!(answers.said.contains(&said), "{ended}: {}", answers.said);
}

/// Programs about the scheduler, on two CPUs. Clauses of the test count the same things otherwise.
///
/// A hit that comes by an interrupt while its CPU is in another hit is a miss. So programs share a
/// boot only if that cannot be: these probe code that has interrupts off.
fn scheduler() -> &'static Answers {
    static ANSWERS: LazyLock<Answers> = LazyLock::new(|| {
        let further = "
            tracepoint:sched:sched_switch { @switches[args.prev_comm] = count(); }
            tracepoint:sched:sched_wakeup { @all_wakeups = count(); }";
        let program = programs(&["runqlat", "cpudist", "wakeups"], further);
        Answers::of(&["--smp", "2", &program])
    });
    &ANSWERS
}

/// The same of memory and locks. No interrupt comes to these places.
fn memory() -> &'static Answers {
    static ANSWERS: LazyLock<Answers> = LazyLock::new(|| {
        let further = "
            inline:kernel::mm::fault::resolve { @inlined = count(); }
            tracepoint:exceptions:page_fault { @all_faults[comm] = count(); }
            kprobe:\"<kernel::sync::mutex::RawMutex as lock_api::mutex::RawMutex>::lock\" {
                @locks[comm] = count();
            }";
        Answers::of(&["--smp", "2", &programs(&["faults", "lockwait"], further)])
    });
    &ANSWERS
}

/// Each wakeup has its time, was of a task that still ran, or of one that had not run yet.
#[test]
fn runqlat_times_each_wakeup() {
    let answers = scheduler();
    let (waited, left) = (
        total(answers.map("@waited_ns")),
        answers.counts("@woken").len() as u64,
    );
    let wakeups = answers.number("@wakeups");
    assert_eq!(wakeups, waited + left + answers.number("@awake"));
    // The workload waits for each child, and the kernel for the workload.
    assert!(wakeups > CHILDREN, "{wakeups}");
}

/// Programs that begin and end while it watches have a time for each switch.
#[test]
fn cpudist_times_each_run() {
    let answers = scheduler();
    let switches = answers.counts("@switches");
    for program in ["workload", "child"] {
        let runs = total(&answers.map("@ran_ns")[program]);
        assert_eq!(runs, switches[program], "{program}");
    }
}

/// The workload waits for its children. A task that has ended does not come back.
#[test]
fn offcputime_shows_waits() {
    let answers = Answers::of(&["offcputime"]);
    let away = answers.counts("@away_ns");
    let waits = |stack: &str| stack.contains("sys_wait4") && stack.contains(",workload");
    assert!(away.keys().any(|key| waits(key)), "{away:?}");
    assert!(
        !away.keys().any(|key| key.contains("scheduler::exit+")),
        "{away:?}"
    );
}

#[test]
fn wakeups_have_both_tasks_and_the_stack() {
    let answers = scheduler();
    assert_eq!(answers.sum("@wakes"), answers.number("@all_wakeups"));
    let wakes = answers.counts("@wakes");
    for stack in wakes.keys() {
        assert!(stack.contains("scheduler::ttwu_do_wakeup+0"), "{stack}");
    }
    // The end of the workload wakes the task that has started it.
    let last = wakes
        .iter()
        .filter(|(key, _)| key.starts_with("workload,kernel_init,"));
    assert_eq!(last.map(|(_, count)| count).sum::<u64>(), 1);
}

/// The ready program, with clauses of the test in it: each entry adds one to what its task has in
/// the air, and each return takes one away. So at the end each entry has its time, or is in the
/// air, and no task can have more than one there, because interrupts are off in an interrupt.
///
/// From the first switch to the program to its last one, all probes are attached. In this time the
/// interrupts of the timer are as many as the calls of its handler, and each sleep ends by one.
#[test]
fn hardirqs_times_interrupts() {
    let program = programs(
        &["hardirqs"],
        "tracepoint:sched:sched_switch {
            if (args.next_comm == \"exercise\") { @on = 1; }
            if (args.prev_comm == \"exercise\" && args.prev_state == 2) { @on = 0; }
        }
        kprobe:timer_interrupt /@on/ { @ticks = count(); }",
    );
    let with = |program: String, place, further: &str| {
        assert_eq!(program.matches(place).count(), 1, "{program}");
        program.replace(place, &format!("{place} {further}"))
    };
    let entry = "@air[tid]++; if (@on) { @entered[$vector] = count(); }";
    let program = with(program, "$begin = nsecs;", entry);
    let program = with(program, "return {", "@air[tid]--; @returned = count();");
    let answers = Answers::of(&["--run", "exercise sleep 50", &program]);
    let by_vector = answers.map("@irq_ns").as_object().unwrap();
    let timed: u64 = by_vector.values().map(total).sum();
    assert_eq!(timed, answers.number("@returned"));
    let air = answers.counts("@air");
    assert!(air.values().all(|calls| *calls <= 1), "{air:?}");
    // The timer's vector is the only one at which its handler is called.
    let entered = answers.counts("@entered");
    let ticks = answers.number("@ticks");
    assert!(ticks >= 5, "{ticks}");
    assert!(
        entered.values().any(|count| *count == ticks),
        "{entered:?}: {ticks}"
    );
}

/// After each fork parent and child write to their stacks: the parent to a page that is there and
/// not to be written to (7), the child to one that is not there yet (6). Children do the same each.
#[test]
fn faults_have_programs_and_kinds() {
    let answers = memory();
    let faults = answers.counts("@faults");
    assert_eq!(
        (faults["workload,7"], faults["workload,6"]),
        (CHILDREN, CHILDREN),
        "{faults:?}"
    );
    // Each fault is served by a function that is inlined into another one: its copy is counted.
    assert_eq!(answers.number("@inlined"), answers.sum("@faults"));
    for (program, all) in answers.counts("@all_faults") {
        let of_program = faults.iter().filter(|(key, _)| key.starts_with(program));
        let kinds: Vec<u64> = of_program.map(|(_, count)| *count).collect();
        assert_eq!(kinds.iter().sum::<u64>(), all, "{program}");
        assert!(
            program != "child" || kinds.iter().all(|kind| kind % CHILDREN == 0),
            "{kinds:?}"
        );
    }
}

#[test]
fn lockwait_times_each_lock() {
    let answers = memory();
    let locks = answers.counts("@locks");
    for program in ["workload", "child"] {
        let times = total(&answers.map("@lock_ns")[program]);
        assert_eq!(times, locks[program], "{program}");
        assert!(times > CHILDREN, "{program}: {times}");
    }
}

/// Profiles with the same rate run at the same ticks. So on each CPU of the machine the samples are
/// those of the program and those of the CPU's idle task, to the last one.
#[test]
fn cpuwalk_shows_each_sample_of_a_cpu_that_works() {
    let further = "profile:hz:99 { @all[cpu] = count(); }
                   profile:hz:99 /pid == 0/ { @idle[cpu] = count(); }
                   profile:hz:99 /pid != 0/ { @n++; if (@n == 20) { exit(); } }";
    let program = programs(&["cpuwalk"], further);
    let answers = Answers::of(&["--smp", "2", "--run", "exercise spin", &program]);
    let cpus = buckets(answers.map("@cpu"));
    let busy: BTreeMap<String, u64> = cpus
        .into_iter()
        .map(|(cpu, samples)| (cpu.to_string(), samples))
        .collect();
    assert!(busy.values().sum::<u64>() >= 20, "{busy:?}");
    let (all, idle) = (answers.counts("@all"), answers.counts("@idle"));
    for cpu in ["0", "1"] {
        let of = |map: &BTreeMap<&str, u64>| map.get(cpu).copied().unwrap_or(0);
        let of_cpu = busy.get(cpu).copied().unwrap_or(0);
        assert_eq!(of_cpu + of(&idle), of(&all), "CPU {cpu}");
    }
    assert!(busy.keys().all(|cpu| all.contains_key(&**cpu)), "{busy:?}");
    // Each of the four clauses is hit by each sample.
    assert_eq!(answers.hits, 4 * answers.sum("@all"));
}

/// Each sample is in one bucket, and the last one in none twice.
#[test]
fn samples_are_complete() {
    let program = programs(
        &["profile", "runqocc"],
        "profile:hz:99 { @n++; if (@n == 20) { exit(); } }",
    );
    let answers = Answers::of(&["--run", "exercise spin", &program]);
    let samples = answers.sum("@samples");
    assert!(samples >= 20, "{samples}");
    assert_eq!(answers.sum("@waits"), samples);
    assert_eq!(answers.hits, 3 * samples);
}

/// All places that are listed are attached, and no others.
#[test]
fn funccount_counts_the_functions_of_a_pattern() {
    let pattern = "kernel::fs::*dir";
    let answers = Answers::of(&["funccount", pattern]);
    assert_eq!(
        answers.places,
        answer(&["-l", pattern]).lines().count() as u64
    );
    assert_eq!(
        answers.counts("@"),
        BTreeMap::from([
            ("kernel::fs::mkdir", 1 + 2 * CHILDREN),
            ("kernel::fs::rmdir", 1 + CHILDREN)
        ])
    );
}

/// The same in a program, whose work is known.
#[test]
fn ufunccount_counts_the_functions_of_a_program() {
    let pattern = "workload::*";
    let answers = Answers::of(&["ufunccount", "/bin/workload", pattern]);
    let listed = answer(&["-l", &format!("uprobe:/bin/workload:{pattern}")]);
    assert_eq!(answers.places, listed.lines().count() as u64);
    let counts = answers.counts("@");
    let of = |function: &str| counts.get(function).copied();
    assert_eq!(of("workload::run_child"), Some(CHILDREN));
    assert_eq!(of("workload::user_main"), Some(1));
}

/// Each call of the function has the stack of its caller, and the two agree about their number.
#[test]
fn ustackcount_shows_callers() {
    let answers = Answers::of(&["ustackcount", "/bin/workload", "workload::run_child"]);
    assert_eq!((answers.hits, answers.sum("@")), (CHILDREN, CHILDREN));
}

#[test]
fn usdtcount_counts_the_marks_of_a_program() {
    let answers = Answers::of(&["--run", "exercise values", "usdtcount", "/bin/exercise"]);
    assert_eq!(
        answers.counts("@"),
        BTreeMap::from([
            ("usdt:/bin/exercise:exercise:computed", 2),
            ("usdt:/bin/exercise:exercise:empty", 2),
            ("usdt:/bin/exercise:exercise:lazy", 2),
            ("usdt:/bin/exercise:exercise:round", 2)
        ])
    );
}

/// No call takes less than nothing, so all are shown.
#[test]
fn funcslower_shows_calls() {
    let answers = Answers::of(&["funcslower", "sys_rmdir", "0"]);
    let lines = answers.lines(&format!("{WORKLOAD} workload "));
    assert_eq!(lines.len() as u64, 1 + CHILDREN);
    assert!(
        lines
            .iter()
            .all(|line| line.ends_with(" kernel::syscall::paths::sys_rmdir"))
    );
    // None takes an hour.
    let answers = Answers::of(&["funcslower", "sys_rmdir", "3600000000000"]);
    assert_eq!(answers.lines(&format!("{WORKLOAD} workload ")), [""; 0]);
}

/// The longest time of each stretch that an answer shows, by the functions of its two ends.
fn longest_stretches(said: &str) -> BTreeMap<(String, String), u64> {
    let mut longest = BTreeMap::new();
    for stretch in said.split("@off_ns[\n").skip(1) {
        let (ends, rest) = stretch.split_once("]: ").expect(stretch);
        let (from, to) = ends.split_once("\n, \n").expect(stretch);
        // A lock may or may not be inlined into the function that takes it.
        let first = |stack: &str| {
            let frames = stack.lines().map(|frame| frame.trim().split('+').next());
            let mut frames = frames.map(Option::unwrap);
            let frame = frames.find(|frame| !frame.contains("::SpinLock<")).unwrap();
            frame.rsplit("::").next().unwrap().to_owned()
        };
        let time: u64 = rest.lines().next().unwrap().parse().unwrap();
        let known = longest.entry((first(from), first(to))).or_insert(0);
        *known = time.max(*known);
    }
    longest
}

/// The longest time of those that began in a function.
fn longest_from(stretches: &BTreeMap<(String, String), u64>, name: &str) -> Option<u64> {
    let times = stretches.iter().filter(|((from, _), _)| from == name);
    times.map(|(_, time)| *time).max()
}

/// The number after `@work: `.
#[track_caller]
fn work(said: &str) -> u64 {
    let work = said.lines().find_map(|line| line.strip_prefix("@work: "));
    work.unwrap().parse().unwrap()
}

#[track_caller]
fn assert_nothing_else_is_shown(said: &str) {
    let is_own = |line: &&str| line.starts_with("@at") || line.starts_with("@from");
    assert_eq!(said.lines().find(is_own), None);
}

/// Each stretch has both its ends. One of an interrupt is no shorter than the interrupt's work.
#[test]
fn irqsoff_shows_the_longest_stretches() {
    let further = "session:handle_irq { $work = nsecs; } return { @work = max(nsecs - $work); }";
    let said = answer(&[&programs(&["irqsoff"], further), "1000"]);
    let longest = longest_stretches(&said);
    let of_interrupts = longest_from(&longest, "do_interrupt");
    assert!(of_interrupts >= Some(work(&said)), "{said}");
    for cause in ["do_page_fault", "reschedule", "free_frames"] {
        assert!(longest_from(&longest, cause).is_some(), "{cause}: {said}");
    }
    // What ends in the same function began there, or at its gate.
    assert!(
        longest.contains_key(&("free_frames".into(), "free_frames".into())),
        "{said}"
    );
    assert_nothing_else_is_shown(&said);
    let few = answer(&["irqsoff", "2"]);
    assert_eq!(few.matches("@off_ns[").count(), 2, "{few}");
}

/// Where nothing but the heap's lock keeps other tasks away, a stretch is no shorter than the work
/// under the lock.
#[test]
fn preemptoff_shows_the_longest_stretches() {
    let further = "session:block_heap::BlockHeap::allocate /
            kernel::arch::x86_64::percpu::PERCPU[cpu].preempt_count == 1
        / { $work = nsecs; } return { @work = max(nsecs - $work); }";
    let said = answer(&[&programs(&["preemptoff"], further), "1000"]);
    let longest = longest_stretches(&said);
    assert!(
        longest_from(&longest, "alloc") >= Some(work(&said)),
        "{said}"
    );
    for function in ["alloc", "dealloc", "free_frames"] {
        let both_ends = (function.into(), function.into());
        assert!(longest.contains_key(&both_ends), "{function}: {said}");
    }
    assert_nothing_else_is_shown(&said);
    let few = answer(&["preemptoff", "2"]);
    assert_eq!(few.matches("@off_ns[").count(), 2, "{few}");
}

/// Each call ends at the depth at which it began, and the outermost ones are those of the function.
#[test]
fn funcgraph_shows_calls_in_calls() {
    let said = answer(&["--smp", "1", "funcgraph", "sys_rmdir"]);
    let calls = Answers::of(&["kprobe:sys_rmdir { @ = count(); }"]);
    let (mut open, mut outermost, mut inner) = (Vec::new(), 0, 0);
    for line in said.lines().filter(|line| line.starts_with("  0 ")) {
        // The number of the CPU, the task's name and the time take 31 columns with the blanks
        // between, and two blanks come after them.
        let (head, call) = line.split_at(33);
        let head = head.trim_end();
        let depth = (call.len() - call.trim_start().len()) / 2;
        match call.trim_start().strip_suffix("() {") {
            Some(function) => {
                assert_eq!(depth, open.len(), "{line}");
                outermost += u64::from(depth == 0);
                inner +=
                    u64::from(function == "kernel::mm::uaccess::strndup_from_user" && depth == 1);
                let is_outermost = function == "kernel::syscall::paths::sys_rmdir";
                assert_eq!(is_outermost, depth == 0, "{line}");
                open.push(function.to_owned());
            }
            None => {
                assert!(head.ends_with("ns") && call.trim_start() == "}", "{line}");
                assert!(open.pop().is_some() && depth == open.len(), "{line}");
            }
        }
    }
    assert_eq!(open, [""; 0]);
    assert_eq!(calls.map("@").as_u64(), Some(outermost));
    assert_eq!(inner, outermost);
}

#[test]
fn argdist_counts_values() {
    let answers = Answers::of(&["argdist", "kretprobe:kernel::fs::mkdir", "(comm, retval)"]);
    let made = [
        ("workload,Ok(())", 1 + CHILDREN),
        ("workload,Err(EEXIST)", CHILDREN),
    ];
    assert_eq!(answers.counts("@"), BTreeMap::from(made));
}

/// The lengths of what the workload writes: "workload: 3 children", "workload: done", and three
/// times "child 4 of 3: exit 0", each with the end of the line.
#[test]
fn arghist_shows_a_histogram() {
    let answers = Answers::of(&["arghist", "kprobe:vfs_write", "args.count"]);
    assert_eq!(buckets(answers.map("@")), [(8, 1), (16, 1 + CHILDREN)]);
}

#[test]
fn the_source_of_a_program_can_be_copied() {
    let source = answer(&["--source", "argdist"]);
    assert_eq!(source, programs(&["argdist"], ""));
}

/// The order of the counts is that of their size.
#[test]
fn counts_of_every_function_are_in_order() {
    let said = answer(&["--smp", "1", "kprobe:* { @[func] = count(); }"]);
    let counts: Vec<(&str, u64)> = said
        .lines()
        .filter_map(|line| line.strip_prefix("@[")?.rsplit_once("]: "))
        .map(|(function, count)| (function, count.parse().unwrap()))
        .collect();
    assert!(counts.is_sorted_by_key(|(_, count)| *count));
    let recorded: u64 = counts.iter().map(|(_, count)| count).sum();
    let books: Vec<u64> = said
        .lines()
        .last()
        .unwrap()
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    // An interrupt may come in a hit. Then the hits of its own code are misses.
    assert_eq!(books[..2], [recorded + books[2], recorded], "{said}");

    // A trace of some of them finds the same counts.
    let some = "kprobe:kernel::fs::*,kprobe:kernel::syscall::*,kprobe:kernel::task::fork::*,\
                kprobe:ramfs::*,kprobe:elf_program::* { @[func] = count(); }";
    let alone = Answers::of(&[some]);
    let counts = BTreeMap::from_iter(counts);
    for (function, count) in alone.counts("@") {
        assert_eq!(counts[function], count, "{function}");
    }
    // And so does the reader of the workload's text.
    let calls = [
        ("sys_mkdir", 1 + 2 * CHILDREN),
        ("sys_rmdir", 1 + CHILDREN),
        ("sys_stat", CHILDREN),
    ];
    for (function, count) in calls {
        assert_eq!(
            counts[&*format!("kernel::syscall::paths::{function}")],
            count
        );
    }
}
