//! Watches of `trace`: who touches a word, of the kernel or of a program, and from which value to
//! which.
//!
//! What is written is known: the kernel's statics and objects, and the words of the exercises.

use tests::tracer::{CHILDREN, answer, refusal, trace};

/// The values have the type of the static, and the stack is the program's. What the program says of
/// its progress is in `exercise/watched.rs`.
#[test]
fn a_word_of_a_program_is_watched_by_name() {
    let said = answer(&[
        "watch:/bin/exercise:watched::PROGRESS.left { printf(\"%s -> %s\\n\", old, new); \
         @[comm, ustack(1)] = count(); @in_kernel = sum(ip >= 1 << 47); }",
        "--run",
        "exercise watched_progress",
        "--expect",
        "len(@) == 3 && sum(@) == 3 && @in_kernel == 0",
    ]);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("->")).collect();
    let lefts = ["None", "Some(2)", "Some(1)", "None"];
    let wanted: Vec<String> = lefts
        .windows(2)
        .map(|pair| {
            format!(
                "Cell {{ value: {} }} -> Cell {{ value: {} }}",
                pair[0], pair[1]
            )
        })
        .collect();
    assert_eq!(lines, wanted, "{said}");
    assert!(said.contains("exercise::watched::progress+"), "{said}");
}

/// Its pages are protected, so it may have any size, and code that holds its lock may write it.
#[test]
fn an_object_of_any_size_is_watched() {
    let said = answer(&[
        "watch:kernel::task::scheduler::RUN_QUEUE { @[func] = count(); @sizes[addr >= 1 << 63] = \
         count(); }",
        "--expect",
        "len(@sizes) == 1 && @sizes[1] == sum(@)",
    ]);
    let functions: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("@["))
        .collect();
    for wanted in ["reschedule", "start", "wake"] {
        let path = format!("kernel::task::scheduler::{wanted}]: ");
        let is_there = functions.iter().any(|line| line.starts_with(&path));
        assert!(is_there, "{said}");
    }
    let output = trace(&["watch:kernel::task::scheduler::RUN_QUEUE:rw { @ = count(); }"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("1, 2, 4 or 8 bytes"), "{said}");
}

/// The instruction begins a function of the program, which two stores of each round call.
#[test]
fn an_instruction_of_a_program_is_watched_by_its_address() {
    let listed = answer(&["-l", "uprobe:/bin/exercise:watched::stores"]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    let said = answer(&[
        "uprobe:/bin/exercise:watched_store { @at = ip; @[0] = count(); }",
        "--run",
        "exercise watched_stores 3",
    ]);
    let at = said.lines().find_map(|line| line.strip_prefix("@at: "));
    let at = at.unwrap_or_else(|| panic!("{said}"));
    answer(&[
        &format!("watchpoint:/bin/exercise:{at}:1:x {{ @[ip == {at}, comm] = count(); }}"),
        "--run",
        "exercise watched_stores 3",
        "--expect",
        "@[1, \"exercise\"] == 6 && len(@) == 1",
    ]);
}

/// The numbers of tasks go up by one, as `next_pid` hands them out.
#[test]
fn a_watch_tells_who_writes_a_static_and_from_which_value_to_which() {
    let said = answer(&[
        "watch:kernel::task::next_pid::NEXT { printf(\"%d %d %s\\n\", old, new, func); }",
    ]);
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.ends_with(" kernel::task::next_pid"))
        .collect();
    assert_eq!(lines.len() as u64, 1 + CHILDREN, "{said}");
    let number = |line: &str, at| line.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
    let mut before = number(lines[0], 0);
    for line in lines {
        assert_eq!(
            (number(line, 0), number(line, 1)),
            (before, before + 1),
            "{said}"
        );
        before += 1;
    }

    // The ready program shows the way there. An address does as well as a name.
    let said = answer(&["whowrites", "kernel::task::next_pid::NEXT"]);
    assert!(said.contains("kernel::task::fork::do_fork+"), "{said}");
    let said = answer(&["watch:kernel::task::next_pid::NEXT { print(addr); }"]);
    let address = said.lines().next().unwrap();
    let said = answer(&[&format!(
        "watchpoint:{address}:4:w {{ @[old, new] = count(); }}"
    )]);
    assert!(
        said.contains(&format!("@[{}, {before}]: 1\n", before - 1)),
        "{said}"
    );

    // A machine that does not see all of it says so.
    let program = "watch:kernel::task::next_pid::NEXT:rw { @ = count(); }";
    let told = |cpus| {
        let output = trace(&["--smp", cpus, program]);
        String::from_utf8_lossy(&output.stderr).contains("misses instructions with a `lock`")
    };
    assert_eq!((told("1"), told("2")), (false, true));
    let said = answer(&["--smp", "1", program, "--expect", "@ >= 4"]);
    assert!(said.contains("@: "), "{said}");

    // Code of one function is one key, wherever in it the access is.
    let said = answer(&[
        "--with-tracer",
        "watch:EARLIEST_NS:rw { @[func] = count(); }",
    ]);
    let mut keys: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split(']').next())
        .collect();
    let all = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), all, "{said}");
}

/// Each call that wakes a task changes its state in itself, so the two counts are of the same
/// calls.
#[test]
fn a_watch_follows_what_a_call_leads_to() {
    let wake = "kernel::task::scheduler::wake";
    let said = answer(&[
        "--smp",
        "1",
        &format!(
            "kprobe:{wake} {{ @task = arg0 + offsetof(kernel::task::Task, state); }} \
             kretprobe:{wake} /retval/ {{ @woken = count(); }} \
             watch:{wake}(args.task.state) /func == \"{wake}\"/ {{ \
             @seen[old, new, addr == @task] = count(); }} \
             end {{ clear(@task); }}"
        ),
    ]);
    let after = |name: &str| {
        let (_, rest) = said.split_once(name)?;
        rest.lines().next()?.trim().parse::<u64>().ok()
    };
    let woken = after("@woken:");
    assert!(woken > Some(0), "{said}");
    assert_eq!(after("@seen[1, 0, true]:"), woken, "{said}");
    assert_eq!(said.matches("@seen").count(), 1, "{said}");

    // By the address in an argument: a task begins with the pointer that a switch stores.
    let said = answer(&[
        "--smp",
        "1",
        &format!(
            "watchpoint:{wake}+arg0:8:w {{ @[func] = count(); @size[sizeof(new)] = count(); }}"
        ),
    ]);
    assert!(said.contains("@[__switch_to]: "), "{said}");
    assert!(said.contains("@size[8]: "), "{said}");

    // Stacks are not watched, and that is told.
    let said = answer(&["watch:do_syscall(args.regs.ax) { @ = count(); }"]);
    let books = said.lines().last().unwrap_or_default();
    assert!(
        books.contains(" recorded + ") && !books.contains("+ 0 missed"),
        "{said}"
    );
    assert!(!said.contains("@:"), "{said}");
}

#[test]
fn watches_that_cannot_be_are_refused() {
    for (program, part) in [
        ("watch:kernel::no::such { }", "no static variable"),
        (
            "watch:kernel::probes::PROBES { }",
            "the processor watches 1, 2, 4 or 8 bytes",
        ),
        (
            "watch:kernel::task::next_pid::NEXT:x { }",
            "write `kprobe:FUNCTION`",
        ),
        (
            "watch:kernel::task::comms::KEPT.inner.data.value.first[256].0 { }",
            "below the number of elements",
        ),
        (
            "watchpoint:0xffffffff80012340:3:w { }",
            "watch 1, 2, 4 or 8",
        ),
        ("watchpoint:vfs_write:8:w { }", "FUNCTION+arg0"),
        (
            "watchpoint:vfs_write+x:8:w { }",
            "an argument of the function",
        ),
        (
            "watchpoint:no_such+arg0:8:w { }",
            "no function of the kernel",
        ),
        ("watch:no_such(args.x) { }", "no function of the kernel"),
        ("watch:sys_*(args.x) { }", "name one of them"),
        (
            "watch:do_syscall(args.regs) { }",
            "a field of what an argument",
        ),
        (
            "watch:do_syscall(*args.regs) { }",
            "`*args.regs` has 168 bytes",
        ),
        ("watch:do_syscall(args.regs.no) { }", "has no field `no`"),
        ("watch:do_syscall(args.regs.ax { }", "is not closed"),
        ("watch:do_syscall(args.regs.ax +) { }", "^"),
        (
            "watch:wake(args.task.pid), watch:wake(args.task.state), \
             watch:wake(args.task.root), watch:wake(args.task.left_ns), \
             watch:wake(args.task.last_cpu) { }",
            "the processor watches 4 words",
        ),
        ("kprobe:vfs_write { print(old); }", "watch: and watchpoint:"),
    ] {
        let said = refusal(&[program]);
        assert!(said.contains(part) && said.contains('^'), "{said}");
    }
}
