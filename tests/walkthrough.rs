//! The prompt's `walkthrough`: the four forms of return probe, watched at work.

use regex::Regex;
use tests::{Document, Session, document::Block};

/// The text of the columns of a walkthrough, without line ends, and with an `N` for each number.
/// Lines of a table begin with a blank or the number of a row.
fn columns(said: &str) -> [String; 4] {
    const START: usize = 4;
    const WIDTH: usize = 39;
    let number = Regex::new(r"0x[0-9a-f]+|\d+").unwrap();
    let mut columns = [const { String::new() }; 4];
    let is_row = |line: &&str| line.starts_with(|c: char| c == ' ' || c.is_ascii_digit());
    for line in said.lines().filter(is_row) {
        for (n, column) in columns.iter_mut().enumerate() {
            let cell = line.chars().skip(START + n * WIDTH).take(WIDTH);
            let cell: String = cell.collect();
            *column += " ";
            *column += cell.trim();
        }
    }
    columns.map(|column| {
        let words: Vec<_> = column.split_whitespace().collect();
        number.replace_all(&words.join(" "), "N").into()
    })
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn each_form_shows_the_interruptions_that_it_costs() {
    let mut session = Session::interactive();
    let refused = session.command("walkthrough do_exit");
    let (_, names) = refused.split_once("these can be called: ").expect(&refused);
    let names: Vec<_> = names.trim().split(", ").collect();
    assert!(names.len() >= 5, "{names:?}");
    let figures = Regex::new(r"interruptions: (\d+) \((\d+) #BP, (\d+) #DB\)").unwrap();
    let mut without_jump = 0;
    for name in names {
        let said = session.command(&format!("walkthrough {name}"));
        let counted: Vec<[usize; 3]> = figures
            .captures_iter(&said)
            .map(|found| [1, 2, 3].map(|n| found[n].parse().unwrap()))
            .collect();
        let columns = columns(&said);
        let optimised = !columns[3].contains("no jump, the breakpoint stays as in asm: ");
        let expected = [[4, 2, 2], [3, 2, 1], [1, 1, 0], [0, 0, 0]];
        assert_eq!(counted, expected[..3 + usize::from(optimised)], "{said}");
        for (counted, column) in counted.iter().zip(&columns) {
            let seen = [count(column, "#BP, the"), count(column, "#DB, the")];
            assert_eq!(
                seen,
                counted[1..],
                "what is shown is what there was: {said}"
            );
            assert_eq!(count(column, "the return handler runs"), 1, "{said}");
            assert_eq!(count(column, "- the return address becomes"), 1, "{said}");
        }
        without_jump += usize::from(!optimised);
        if optimised {
            assert!(
                columns[3].contains(&format!("{name}+N jmp to N detour+N")),
                "{said}"
            );
        }
    }
    assert_eq!(
        without_jump, 1,
        "one of them shows what a function looks like that takes no jump"
    );
    assert_eq!(session.command("cat /sys/kernel/debug/kprobes/list"), "");
    let optimization = session.command("cat /proc/sys/debug/kprobes-optimization");
    assert_eq!(optimization, "1\n", "it is left as it was");
    assert!(session.command("run workload").contains("workload: done"));
    session.power_off();
}

#[test]
fn other_probes_and_the_knobs_are_respected() {
    let mut session = Session::interactive();
    for (line, told) in [
        (
            "walkthrough",
            "walkthrough: it needs one function; usage: walkthrough FUNCTION",
        ),
        ("walkthrough a b", "walkthrough: it needs one function"),
        (
            "walkthrough do_frok",
            "no symbol do_frok; did you mean do_fork",
        ),
        (
            "walkthrough schedule",
            "schedule would need what a prompt does not have, or do harm",
        ),
    ] {
        let said = session.command(line);
        assert!(said.contains(told), "{line:?} is answered by\n{said}");
    }
    session.command("echo 0 > /sys/kernel/debug/kprobes/enabled");
    let said = session.command("walkthrough do_fork");
    assert!(said.contains("all probes are disarmed; echo 1 >"), "{said}");
    session.command("echo 1 > /sys/kernel/debug/kprobes/enabled");

    session.command("echo 0 > /proc/sys/debug/kprobes-optimization");
    let said = session.command("walkthrough do_fork");
    assert!(
        columns(&said)[3].contains("kprobes-optimization turns jumps on"),
        "{said}"
    );
    assert_eq!(
        session.command("cat /proc/sys/debug/kprobes-optimization"),
        "0\n"
    );
    session.command("echo 1 > /proc/sys/debug/kprobes-optimization");

    // A post handler keeps the breakpoint, and its probe is served in each form.
    session.command("insmod kprobe_example symbol=do_fork");
    let said = session.command("walkthrough do_fork");
    assert!(
        columns(&said)[3].contains("another probe at or after it needs the breakpoint"),
        "{said}"
    );
    assert_eq!(count(&said, "pre_handler: "), 3 * 3, "{said}");
    assert_eq!(count(&said, "post_handler: "), 3 * 3, "{said}");
    session.command("rmmod kprobe_example");

    session.command("insmod kretprobe_example func=do_fork");
    let said = session.command("walkthrough do_fork");
    assert!(
        said.contains("walkthrough: do_fork has a return probe already")
            && said.ends_with(", or unload its module: rmmod kretprobe_example\n"),
        "{said}"
    );
    session.command("rmmod kretprobe_example");

    // An event is no module's, with and without a module beside it.
    session.command("echo 'r:returned do_fork' > /sys/kernel/tracing/kprobe_events");
    session.command("echo 1 > /sys/kernel/tracing/events/kprobes/returned/enable");
    let off = "echo 0 > /sys/kernel/tracing/events/enable";
    let said = session.command("walkthrough do_fork");
    assert!(
        said.ends_with(&format!("turn the events off first: {off}\n")),
        "{said}"
    );
    session.command("insmod kprobe_example symbol=do_fork");
    let said = session.command("walkthrough do_fork");
    let either = format!("turn the events off first: {off}, or unload its module: rmmod ");
    assert!(said.contains(&either), "{said}");
    session.command("rmmod kprobe_example");
    session.command(off);
    session.command("echo > /sys/kernel/tracing/kprobe_events");
    assert!(
        session
            .command("walkthrough do_fork")
            .contains("the return")
    );
    session.power_off();
}

#[test]
fn the_document_shows_what_is_really_said() {
    let mut session = Session::interactive();
    let real = |block: &Block<'_>| {
        let command = block.commands("# ").next().filter(|_| block.is_session())?;
        Some(format!("# {command}\n{}", session.command(command)))
    };
    let shown = Document::open("docs/walkthrough.md").compare(real, |_, text| columns(text).into());
    assert!(shown >= 2, "a function with a jump, and one without");
    session.power_off();
}
