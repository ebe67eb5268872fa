//! The prompt, as a person uses it: looking for a place to probe, probing it, watching, and every
//! way to go wrong.
//!
//! A session types at the guest's serial line and reads up to the next prompt, so no test waits for
//! a time. Addresses differ from build to build: they are read from an earlier answer.

use std::{thread, time::Duration};

use boot::guest::End;
use regex::Regex;
use tests::{
    Document, Session,
    document::{Block, Masks, words},
};

const LIST: &str = "/sys/kernel/debug/kprobes/list";
const ENABLED: &str = "/sys/kernel/debug/kprobes/enabled";

/// How many of the log's lines hold `text`.
fn count(said: &str, text: &str) -> usize {
    said.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn a_place_is_found_probed_watched_silenced_and_left() {
    let mut session = Session::interactive();
    assert_eq!(session.command(&format!("cat {LIST}")), "");

    // The first instruction after the entry that can be probed.
    let listing = session.command("disas do_fork");
    let head = Regex::new(r"^do_fork at (0xffffffff8[0-9a-f]{7}), \d+ bytes\n").unwrap();
    let start = head.captures(&listing).expect(&listing)[1].to_string();
    let row = Regex::new(r"(?m)^  \+(0x[0-9a-f]+) +yes +[a-z].*$").unwrap();
    let offset = row.captures_iter(&listing).nth(1).expect(&listing)[1].to_string();
    let parse = |hex: &str| u64::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap();
    let decimal = parse(&offset);
    let address = parse(&start) + decimal;

    let said = session.command(&format!(
        "insmod kprobe_example symbol=do_fork offset={decimal}"
    ));
    assert_eq!(
        count(&said, &format!("Planted kprobe at {address:#x}")),
        1,
        "{said}"
    );
    let listed = format!("{address:016x}  k  do_fork+{offset}    \n");
    assert_eq!(session.command(&format!("cat {LIST}")), listed);
    let marked = Regex::new(&format!(r"(?m)^  \+{offset} +yes +K +[a-z]")).unwrap();
    let listing = session.command("disas do_fork");
    assert!(marked.is_match(&listing), "{listing}");
    // The address as the list shows it, and other ways to write it.
    for place in [
        format!("{address:016x}"),
        format!("0x{address:x}"),
        format!("0X{address:X}"),
    ] {
        assert_eq!(session.command(&format!("disas {place}")), listing);
    }
    assert!(
        session.command("lsmod").contains("    offset="),
        "parameters are shown"
    );

    let parameters = "/sys/module/kprobe_example/parameters";
    assert_eq!(
        session.command(&format!("cat {parameters}/symbol {parameters}/offset")),
        format!("do_fork\n{decimal}\n")
    );

    let hits = |said: &str| count(said, &format!("pre_handler: p->addr = {address:#x}"));
    let said = session.command("run workload");
    let forks = hits(&said);
    assert!(forks > 0 && said.contains("workload: done"), "{said}");
    let stats = session.command("cat /sys/kernel/debug/kprobes/stats");
    assert_eq!(
        stats,
        format!("{address:016x}  k  do_fork+{offset}  {forks} 0\n")
    );

    assert!(
        session
            .command(&format!("echo 0 > {ENABLED}"))
            .contains("kprobes globally disabled")
    );
    assert_eq!(session.command(&format!("cat {ENABLED}")), "0\n");
    assert_eq!(session.command(&format!("cat {LIST}")), listed);
    let listing = session.command("disas do_fork");
    let marked = Regex::new(&format!(r"(?m)^  \+{offset} +yes +k +[a-z]")).unwrap();
    assert!(marked.is_match(&listing), "{listing}");
    let said = session.command("run workload");
    assert!(
        hits(&said) == 0 && said.contains("workload: done"),
        "{said}"
    );

    assert!(
        session
            .command(&format!("echo 1 > {ENABLED}"))
            .contains("kprobes globally enabled")
    );
    assert_eq!(hits(&session.command("run workload")), forks);

    let said = session.command("rmmod kprobe_example");
    assert_eq!(
        count(&said, &format!("kprobe at {address:#x} unregistered")),
        1,
        "{said}"
    );
    assert_eq!(session.command(&format!("cat {LIST}")), "");
    assert_eq!(hits(&session.command("run workload")), 0);
    session.power_off();
}

#[test]
fn modules_that_are_still_loaded_are_unloaded_at_the_end() {
    let mut session = Session::interactive();
    session.command("insmod kretprobe_example func=sys_mkdir");
    session.command("insmod jprobe_example");
    let said = session.power_off();
    assert!(
        said.contains("Missed probing 0 instances of sys_mkdir"),
        "{said}"
    );
    assert!(said.contains("jprobe at 0xffffffff8"), "{said}");
}

#[test]
fn what_is_wrong_with_a_line_is_told() {
    let mut session = Session::interactive();
    for (line, told) in [
        (
            "nonsense",
            "there is no command nonsense; there are help, cd, pwd, ls, cat, echo, head,",
        ),
        (
            "> /tmp/file",
            "a file for the output, but no command; write COMMAND > FILE",
        ),
        ("echo 'a", "the quotation has no end; close it with '"),
        ("echo a >", "> and >> need the name of a file"),
        ("echo a > b > c", "the output can go to one file only"),
        ("echo a\\", "nothing follows the last backslash"),
        ("help me", "help: it takes no arguments; usage: help"),
        ("poweroff now", "poweroff: it takes no arguments"),
        (
            "ls /nowhere",
            "ls: /nowhere: no such file or directory (ENOENT); ls DIRECTORY shows",
        ),
        ("cd /nowhere", "cd: /nowhere: no such file or directory"),
        ("cd /proc/kallsyms", "cd: /proc/kallsyms: not a directory"),
        ("cd /tmp /proc", "cd: it goes to one directory; usage: cd"),
        ("pwd /tmp", "pwd: it takes no arguments"),
        ("cat", "cat: it needs a file; usage: cat FILE"),
        ("cat /proc", "cat: /proc: is a directory (EISDIR)"),
        ("cat /proc/kallsyms/x", "not a directory (ENOTDIR)"),
        ("cat nowhere /proc", "cat: nowhere: no such file"),
        (
            "head",
            "head: it needs one file; usage: head [-n COUNT] FILE",
        ),
        (
            "head -n x /proc/kallsyms",
            "head: COUNT is a decimal number",
        ),
        ("tail a b", "tail: it needs one file"),
        ("tail /nowhere", "tail: /nowhere: no such file"),
        ("grep", "grep: it needs a text and a file; usage: grep [-c]"),
        ("grep -v text", "grep: it needs a file"),
        ("grep text /nowhere", "grep: /nowhere: no such file"),
        ("mkdir", "mkdir: it needs a directory"),
        ("mkdir /tmp", "mkdir: /tmp: file exists (EEXIST)"),
        ("rm", "rm: it needs a file"),
        ("rm /tmp", "rm: /tmp: is a directory (EISDIR)"),
        (
            "rm /proc/kallsyms",
            "rm: /proc/kallsyms: permission denied (EACCES)",
        ),
        (
            "rmdir /sys",
            "rmdir: /sys: directory not empty (ENOTEMPTY); remove first what ls shows in it",
        ),
        (
            "echo a > /nowhere/file",
            "echo: /nowhere/file: no such file or directory (ENOENT)",
        ),
        ("echo a > /proc", "echo: /proc: is a directory (EISDIR)"),
        (
            "echo maybe > /sys/kernel/debug/kprobes/enabled",
            "enabled: invalid argument (EINVAL); it does not take this text",
        ),
        (
            "echo 0 > /sys/kernel/debug/kprobes/list",
            "list: permission denied (EACCES); ls shows what may be done with it",
        ),
        (
            "insmod",
            "insmod: it needs a module; lsmod lists them; usage: insmod MODULE \
             [PARAMETER=VALUE ...]",
        ),
        (
            "insmod nowhere",
            "insmod: there is no module nowhere; those compiled in are: ",
        ),
        (
            "insmod kprobe_example sybol=do_fork",
            "insmod: kprobe_example has no parameter sybol; it has: symbol, offset, stack",
        ),
        (
            "insmod kprobe_example offset=x",
            "kprobe_example.offset does not take \"x\"",
        ),
        (
            "insmod kprobe_example symbol=do_frok",
            "no symbol is called do_frok; did you mean do_fork",
        ),
        (
            "insmod kprobe_example symbol=printk offset=0xffffffff",
            "insmod: printk+0xffffffff belongs to no symbol of the kernel; printk has ",
        ),
        (
            "insmod kprobe_example symbol=",
            "insmod: the name of the symbol is empty; give that of a function",
        ),
        (
            "insmod kprobe_example symbol=qqqqqqqqqqqqqqqqqq",
            "no symbol is called qqqqqqqqqqqqqqqqqq; it may have been inlined",
        ),
        (
            "disas ''",
            "disas: the name is empty; give that of a function",
        ),
        ("disas 0x+12", "disas: an address is 0x and up to sixteen"),
        (
            "disas ffffffffffffffff",
            "disas: 0xffffffffffffffff belongs to no function",
        ),
        (
            "disas kernel::log::ring::RING",
            "disas: kernel::log::ring::RING is data, not a function; those that /proc/kallsyms",
        ),
        (
            "disas kernel::time::measure",
            "disas: kernel::time::measure was part of the boot, and its instructions are gone",
        ),
        (
            "echo ä",
            "the prompt knows ASCII only, and other letters were typed: nothing was done",
        ),
        (
            "insmod kprobe_example symbol=kretprobe_trampoline",
            "may not be probed",
        ),
        (
            "rmmod kprobe_example",
            "rmmod: kprobe_example is not loaded",
        ),
        (
            "rmmod",
            "rmmod: it needs one module; lsmod lists them; usage: rmmod MODULE",
        ),
        ("rmmod a b", "rmmod: it needs one module"),
        ("lsmod all", "lsmod: it takes no arguments"),
        ("ps -ef", "ps: it takes no arguments"),
        (
            "run",
            "run: it needs a program; ls /bin lists them; usage: run PROGRAM [ARGUMENT ...]",
        ),
        (
            "run nothing",
            "run: /bin/nothing: no such file or directory (ENOENT); ls /bin shows the programs",
        ),
        (
            "run /proc/kallsyms",
            "run: /proc/kallsyms: permission denied (EACCES)",
        ),
        (
            "run child 3 x",
            "child: usage: child [CODE], an exit code from 0 to 255",
        ),
        ("run child 3 x", "run: /bin/child: exit code 2"),
        ("run child 256", "child: usage"),
        ("run child 7", "run: /bin/child: exit code 7"),
        (
            "run workload -1",
            "workload: usage: workload [CHILDREN], a number from 0 to 4294967295",
        ),
        ("run workload abc", "workload: usage"),
        ("run workload 1 2", "workload: usage"),
        ("run workload ''", "run: /bin/workload: exit code 2"),
        ("dmesg -w", "dmesg: it takes no arguments"),
        (
            "disas",
            "disas: it needs one function; usage: disas SYMBOL|ADDRESS",
        ),
        ("disas a b", "disas: it needs one function"),
        (
            "disas do_frok",
            "disas: no symbol do_frok; did you mean do_fork",
        ),
        (
            "disas 0xyz",
            "disas: an address is 0x and up to sixteen hexadecimal digits",
        ),
        (
            "disas 0x1234",
            "disas: 0x1234 belongs to no function; /proc/kallsyms lists",
        ),
        ("disas kernel::init::finish_boot", "disas: "),
        ("probeable do_fork", "probeable: it takes no arguments"),
    ] {
        let shown: String = line.chars().filter(char::is_ascii).collect();
        let said = session.keys(&format!("{line}\r"), &shown);
        assert!(said.contains(told), "{line:?} is answered by\n{said}");
        assert_eq!(
            count(&said, "no symbol is called"),
            count(told, "no symbol is called")
        );
    }
    assert_eq!(
        session.command(&format!("cat {LIST}")),
        "",
        "nothing is registered"
    );
    assert_eq!(session.command(&format!("cat {ENABLED}")), "1\n");
    assert_eq!(session.command("ls /tmp"), "", "no file was made");
    session.power_off();
}

#[test]
fn lines_are_edited_and_come_back() {
    let mut session = Session::interactive();
    // Left, left, left, backspace: the x goes.
    assert_eq!(
        session.keys("echo onextwo\x1b[D\x1b[D\x1b[D\x7f\r", "echo onetwo"),
        "onetwo\n"
    );
    assert_eq!(session.keys("\x1b[A\r", "echo onetwo"), "onetwo\n");
    session.command("echo other");
    assert_eq!(
        session.keys("\x1b[A\x1b[A three\r", "echo onetwo three"),
        "onetwo three\n"
    );
    // Ctrl-C: the line is gone, and nothing of it is done.
    assert_eq!(session.keys("echo lost > /tmp/lost\x03", "^C"), "");
    assert_eq!(session.command("ls /tmp"), "");
    assert_eq!(session.command(""), "");
    session.power_off();
}

#[test]
fn files_are_made_read_and_listed() {
    let mut session = Session::interactive();
    assert_eq!(session.command("echo 'one  two' > /tmp/file"), "");
    assert_eq!(session.command("echo three >> /tmp/file"), "");
    assert_eq!(
        session.command("cat /tmp/file /tmp/file"),
        "one  two\nthree\none  two\nthree\n"
    );
    assert_eq!(session.command("ls /tmp"), "-rw-r--r--       15 file\n");
    assert_eq!(session.command("echo > /tmp/file"), "");
    assert_eq!(
        session.command("ls /tmp/file"),
        "-rw-r--r--        1 /tmp/file\n"
    );
    let probes = session.command("ls /sys/kernel/debug/kprobes");
    assert_eq!(
        probes,
        "-r--------        0 blacklist\n-rw-------        0 enabled\n\
         -r--------        0 list\n-r--------        0 stats\n"
    );
    let root = session.command("ls");
    for name in ["bin/", "dev/", "proc/", "sys/", "tmp/"] {
        assert!(
            root.lines()
                .any(|line| line.starts_with('d') && line.ends_with(name)),
            "{root}"
        );
    }
    assert!(session.command("ls /bin").contains(" workload\n"));

    assert!(
        session
            .command("dmesg")
            .contains("] Command line: interactive\n")
    );
    let symbols = session.command("cat /proc/kallsyms");
    assert!(symbols.contains(" T vfs_read\n") && symbols.lines().count() > 1000);
    let tasks = session.command("ps");
    assert!(
        tasks.lines().any(|line| line.ends_with(" kernel_init")),
        "{tasks}"
    );
    let help = session.command("help");
    for command in ["help", "insmod MODULE", "disas SYMBOL", "poweroff"] {
        assert!(help.lines().any(|line| line.starts_with(command)), "{help}");
    }
    assert_eq!(session.command("dmesg > /tmp/log"), "");
    assert!(
        session
            .command("cat /tmp/log")
            .contains("] Command line: interactive\n")
    );
    session.power_off();
}

#[test]
fn output_reaches_a_file_as_a_shell_would_send_it() {
    let mut session = Session::interactive();
    assert_eq!(session.command("echo -n one > /tmp/f"), "");
    assert_eq!(session.command("echo -n ' two' three >> /tmp/f"), "");
    assert_eq!(session.command("echo >> /tmp/f"), "");
    assert_eq!(session.command("cat /tmp/f # not that"), "one two three\n");
    assert_eq!(session.command("# nothing at all"), "");
    assert_eq!(session.command("echo a#b '# c'"), "a#b # c\n");
    // The file is opened first, and keeps what a command said before it failed.
    let said = session.command("cat /proc/sys/debug/kprobes-optimization /nowhere > /tmp/f");
    assert!(said.starts_with("cat: /nowhere: no such file"), "{said}");
    assert_eq!(session.command("cat /tmp/f"), "1\n");
    let said = session.command("rmmod nothing > /tmp/f");
    assert!(said.starts_with("rmmod: "), "{said}");
    assert_eq!(session.command("ls /tmp"), "-rw-r--r--        0 f\n");
    // Truncation alone is no command for a file that obeys commands.
    assert_eq!(session.command(&format!("echo -n > {ENABLED}")), "");
    assert_eq!(session.command(&format!("cat {ENABLED}")), "1\n");
    session.power_off();
}

/// Commands, files for output, completion and programs take paths from the directory of `cd`.
#[test]
fn paths_are_taken_from_the_directory_that_one_went_to() {
    let mut session = Session::interactive();
    assert_eq!(session.command("pwd"), "/\n");
    let at_root = session.command("ls");
    assert_eq!(session.command("cd /sys/kernel/tracing"), "");
    assert_eq!(session.command("pwd"), "/sys/kernel/tracing\n");
    assert_eq!(
        session.command("echo 'p:made sys_mkdir' > kprobe_events"),
        ""
    );
    assert_eq!(session.command("cat events/kprobes/made/enable"), "0\n");
    assert_eq!(session.command("cd events/kprobes/made"), "");
    assert_eq!(session.command("cat enable ../made/enable"), "0\n0\n");
    assert_eq!(
        session.command("ls"),
        session.command("ls /sys/kernel/tracing/events/kprobes/made")
    );
    assert_eq!(session.command("cd ../../.."), "");
    assert_eq!(session.command("echo > kprobe_events"), "");
    assert_eq!(session.command("cd /tmp"), "");
    assert_eq!(session.command("mkdir d"), "");
    assert_eq!(session.command("cd d"), "");
    assert_eq!(session.command("rmdir ../d"), "");
    let said = session.command("pwd");
    assert!(
        said.starts_with("pwd: .: no such file or directory (ENOENT)"),
        "{said}"
    );
    assert_eq!(session.command("cd"), "");
    assert_eq!(session.command("ls"), at_root);
    assert!(
        session
            .command("run bin/workload 0")
            .contains("workload: done")
    );
    session.power_off();
}

#[test]
fn files_are_searched_cut_and_removed() {
    let mut session = Session::interactive();
    session.command("mkdir /tmp/d /tmp/d/e");
    session.command("disas do_fork > /tmp/d/text");
    let text = session.command("cat /tmp/d/text");
    let lines: Vec<_> = text.lines().collect();
    let (first, last) = (lines[0], lines[lines.len() - 1]);
    assert_eq!(
        session.command("head -n 1 /tmp/d/text"),
        format!("{first}\n")
    );
    assert_eq!(
        session.command("tail -n 1 /tmp/d/text"),
        format!("{last}\n")
    );
    assert_eq!(session.command("head /tmp/d/text").lines().count(), 10);
    assert_eq!(
        session.command("tail /tmp/d/text"),
        lines[lines.len() - 10..].join("\n") + "\n"
    );
    assert_eq!(session.command("head -n 99999 /tmp/d/text"), text);
    for none in ["head -n 0", "tail -n 0"] {
        assert_eq!(session.command(&format!("{none} /tmp/d/text")), "");
    }
    let found: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("call"))
        .copied()
        .collect();
    assert!(!found.is_empty() && found.len() < lines.len(), "{text}");
    assert_eq!(
        session.command("grep call /tmp/d/text"),
        found.join("\n") + "\n"
    );
    assert_eq!(
        session.command("grep -cv call /tmp/d/text"),
        format!("{}\n", lines.len() - found.len())
    );
    // The last line may lack its end.
    session.command("echo -n 'a call' > /tmp/f");
    assert_eq!(
        session.command("grep -c call /tmp/f /tmp/d/text"),
        format!("/tmp/f:1\n/tmp/d/text:{}\n", found.len())
    );
    assert_eq!(session.command("tail -n 3 /tmp/f"), "a call\n");

    let said = session.command("rmdir /tmp/d");
    assert!(said.contains("ENOTEMPTY"), "{said}");
    assert_eq!(session.command("rm /tmp/d/text /tmp/f"), "");
    assert_eq!(session.command("rmdir /tmp/d/e /tmp/d"), "");
    assert_eq!(session.command("ls /tmp"), "");
    session.power_off();
}

#[test]
fn tab_completes_what_can_be_typed() {
    let mut session = Session::interactive();
    session.command("echo text > '/tmp/a b'");
    for (keys, shown, said) in [
        ("ec\thello", "echo hello", "hello\n"),
        // There is no such command. Ctrl-C shows what stands in the line.
        ("xyz\t\x03", "# xyz^C", ""),
        ("ls /pr\tka\t", "ls /proc/kallsyms ", "-r--r--r--        0"),
        ("cat /tmp/a\t", "cat /tmp/a\\ b ", "text\n"),
        ("cat '/tmp/a\t", "cat '/tmp/a b' ", "text\n"),
        ("echo more >> /t\ta\t", "echo more >> /tmp/a\\ b ", ""),
        ("cat \"/tmp/a\t", "cat \"/tmp/a b\" ", "text\nmore\n"),
        ("cd /tm\t", "cd /tmp/", ""),
        ("cat a\t", "cat a\\ b ", "text\nmore\n"),
        ("cd", "cd", ""),
        ("run chi\t0", "run child 0", ""),
        ("run /bi\tchi\t0", "run /bin/child 0", ""),
        (
            "disas do_page_f\t",
            "disas do_page_fault ",
            "do_page_fault at",
        ),
        // The path of a function grows piece by piece.
        (
            "disas kernel::task::kth\t\x03",
            "# disas kernel::task::kthread::^C",
            "",
        ),
        (
            "disas kernel::task::kthread::run_\t",
            "disas kernel::task::kthread::run_body ",
            "kernel::task::kthread::run_body at",
        ),
        ("walkthrough cop\t\x03", "# walkthrough copy_user ^C", ""),
        (
            "echo 'p:x do_page_f\t+0 $arg1'",
            "echo 'p:x do_page_fault+0 $arg1'",
            "p:x do_page_fault+0 $arg1\n",
        ),
        (
            "echo r8 do_page_f\t",
            "echo r8 do_page_fault",
            "r8 do_page_fault\n",
        ),
        (
            "insmod kpr\tsym\tdo_page_f\toff\t0",
            "insmod kprobe_example symbol=do_page_fault offset=0",
            "[",
        ),
        ("rmmod \t", "rmmod kprobe_example ", "["),
        ("rmmod \t\x03", "# rmmod ^C", ""),
    ] {
        let end = if keys.ends_with('\x03') { "" } else { "\r" };
        let answer = session.keys(&format!("{keys}{end}"), shown);
        assert!(
            answer.starts_with(said),
            "{keys:?} is answered by\n{answer}"
        );
    }
    // The possible continuations are listed, and the line goes on.
    session.type_blind("cat /sys/kernel/debug/kprobes/\t\t");
    let list = session.wait_for("blacklist  enabled");
    assert!(
        list.ends_with("\nblacklist  enabled    list       stats\n"),
        "{list}"
    );
    let said = session.keys("e\t\r", &format!("cat {ENABLED} "));
    assert_eq!(said, "1\n");
    session.type_blind("disas \t\t");
    let list = session.wait_for(" more");
    let more = Regex::new(r"\nand (\d+) more\n$").unwrap();
    let more = more.captures(&list).expect(&list)[1]
        .parse::<usize>()
        .unwrap();
    assert!(more > 100, "{list}");
    // The list fits a terminal, and function by function it would not fit at all.
    let rows: Vec<_> = list.lines().collect();
    assert!(rows.len() < 65, "{list}");
    session.keys("\x03", "^C");
    session.power_off();
}

/// The figures of a row of `probeable`: a number of instructions, its share, and what they are.
struct Row {
    count: f64,
    percent: f64,
    what: String,
}

/// The rows of the table, in order, without the line below it.
fn probeable_rows(table: &str) -> Vec<Row> {
    let row = Regex::new(r"^ *(\d+) +([0-9.]+) %  (.+)$").unwrap();
    let rows = table.lines().filter_map(|line| row.captures(line));
    rows.map(|row| Row {
        count: row[1].parse().unwrap(),
        percent: row[2].parse().unwrap(),
        what: row[3].into(),
    })
    .collect()
}

/// How many instructions of the kernel may not be probed, and how many of the others can be.
///
/// The document has the same table, of the kernel at the time when it was written. Each change of
/// the kernel moves the figures a little. So the number of all instructions may be off by a tenth,
/// and each share by half a percentage point. A row of less than that may be missing on one side.
#[test]
fn nearly_every_instruction_of_the_kernel_can_be_probed() {
    const MOST_OFF: f64 = 0.5;
    let mut session = Session::interactive();
    let table = session.command("probeable");
    println!("{table}");
    let figure = |pattern: &str| -> f64 {
        let found = Regex::new(pattern).unwrap().captures(&table).expect(&table);
        found[1].parse().unwrap()
    };
    assert!(figure(r"(?m)^ *(\d+) 100.000 %  instructions$") > 50_000.0);
    assert!(figure(r"(?m)^ *\d+ +([0-9.]+) %  blacklisted$") <= 5.0);
    assert!(figure(r"outside the blacklist +([0-9.]+) % can be probed") >= 99.5);
    session.power_off();

    let document = Document::open("docs/acceptance.md");
    let is_the_table = |block: &Block<'_>| block.mark == "text probeable";
    let shown = document.blocks().into_iter().find(is_the_table);
    let shown = probeable_rows(shown.expect("the document has the table").text);
    let real = probeable_rows(&table);
    let percent = |rows: &[Row], what: &str| {
        let row = rows.iter().find(|row| row.what == what);
        row.map_or(0.0, |row| row.percent)
    };
    let is_near = |row: &Row| {
        let off = percent(&real, &row.what) - percent(&shown, &row.what);
        off.abs() <= MOST_OFF
    };
    let is_fresh = shown.len() > 3
        && (real[0].count / shown[0].count - 1.0).abs() <= 0.1
        && real.iter().chain(&shown).all(is_near);
    let write = |block: &Block<'_>| is_the_table(block).then(|| table.clone());
    // Near figures count as equal. DOCUMENTS=write writes them all the same.
    document.compare(write, |_, text| match is_fresh {
        true => Vec::new(),
        false => text.lines().map(str::to_owned).collect(),
    });
}

/// A session without the parts that may differ from build to build: numbers, and the instructions
/// of a function.
fn shape(text: &str) -> Vec<String> {
    let masks = Masks::new(&[
        (r"0x[0-9a-f]+|\b[0-9a-f]{16}\b|\d+", "N"),
        (r"^(\+N) (yes|no) .*", "$1"),
    ]);
    let mut lines: Vec<_> = text.lines().map(|line| masks.mask(&words(line))).collect();
    lines.dedup();
    lines
}

#[test]
fn the_readme_shows_a_real_session() {
    let mut session = Session::interactive();
    let real = |block: &Block<'_>| {
        let is_ours = block.is_session() && block.heading == "Look around at a prompt";
        is_ours.then(|| {
            let answer = |command| format!("# {command}\n{}", session.command(command));
            block.commands("# ").map(answer).collect()
        })
    };
    let sessions = Document::open("README.md").compare(real, |_, text| shape(text));
    assert_eq!(sessions, 1, "a session is shown");
    session.power_off();
}

/// How long a terminal pauses: much longer than the kernel waits for a port. Nothing may depend on
/// it.
const PAUSE: Duration = Duration::from_secs(2);

/// A program that runs until it is stopped. The handlers of a probe on it print more than a serial
/// line takes.
const FLOOD: &str = "insmod kprobe_example symbol=do_page_fault stack=1\rrun workload 4000000000\r";

#[test]
fn a_terminal_that_pauses_loses_nothing() {
    let mut session = Session::interactive();
    let symbols = session.command("cat /proc/kallsyms");
    session.type_blind("cat /proc/kallsyms\r");
    session.wait_for("cat /proc/kallsyms");
    let mut again = session.wait_for("\n");
    thread::sleep(PAUSE);
    session.type_blind("echo alive\r");
    again += &session.wait_for("# echo alive");
    assert_eq!(again, format!("{symbols}# echo alive\n"));
    session.wait_for("alive");

    // A program waits as well. It says more than the log's ring holds.
    session.type_blind("run workload 2300\r");
    let mut said = session.wait_for("workload: 2300 children");
    thread::sleep(PAUSE);
    said += &session.wait_for("workload: done");
    assert_eq!(count(&said, ": exit "), 2300);
    assert_eq!(count(&said, "dropped"), 0);
    session.command("");
    assert_eq!(session.command("echo alive"), "alive\n");
    session.power_off();
}

#[test]
fn what_is_typed_is_obeyed_while_the_terminal_shows_nothing() {
    let mut session = Session::interactive();
    session.type_blind("cat /proc/kallsyms\r");
    session.wait_for(" T vfs_read");
    // From here on nothing is read. There is more output than fits, so `cat` has to be stopped.
    thread::sleep(PAUSE);
    session.type_blind("\x03");
    session.type_blind(FLOOD);
    thread::sleep(PAUSE);
    session.type_blind("\x03");
    session.type_blind("rmmod kprobe_example\rpoweroff\r");
    let (end, said) = session.ends_unheard();
    assert_eq!(end, End::Success, "{said}");
}

#[test]
fn the_prompt_answers_in_a_flood_of_messages() {
    let mut session = Session::interactive();
    session.type_blind(FLOOD);
    let mut said = String::new();
    for _ in 0..200 {
        said += &session.wait_for("pre_handler: ");
    }
    thread::sleep(PAUSE);
    session.type_blind("\x03cat /sys/kernel/debug/kprobes/stats\rrmmod kprobe_example\r");
    said += &session.wait_for(" unregistered");
    assert!(said.contains("killed by signal 2\n"));
    // Each hit was logged, or the log says that something is missing.
    let stats =
        Regex::new(r"(?m)^[0-9a-f]{16}  k  do_page_fault\S*  +(?:\[\w+\] +)*(\d+) \d+$").unwrap();
    let hits: usize = stats.captures(&said).expect("the count is shown")[1]
        .parse()
        .unwrap();
    let told = count(&said, "pre_handler: ");
    let dropped = count(&said, " messages dropped **");
    assert!(
        told == hits || (told < hits && dropped > 0),
        "{told} of {hits} hits, {dropped}"
    );
    session.command("");
    assert_eq!(session.command("echo alive"), "alive\n");
    assert_eq!(session.command(&format!("cat {LIST}")), "");
    session.power_off();
}

#[test]
fn ctrl_c_stops_what_was_started() {
    let mut session = Session::interactive();
    session.type_blind("run workload 4000000000\r");
    session.wait_for("child ");
    session.type_blind("\x03");
    let said = session.wait_for("run: /bin/workload: ");
    assert!(
        said.ends_with("^C\nrun: /bin/workload: killed by signal 2\n"),
        "{said}"
    );
    let tasks = session.command("ps");
    assert!(
        !tasks.contains("workload") && !tasks.contains("child"),
        "{tasks}"
    );

    session.type_blind("cat /proc/kallsyms /proc/kallsyms /proc/kallsyms /proc/kallsyms\r");
    session.wait_for(" T vfs_read");
    session.type_blind("echo this is dropped, too\r\x03");
    session.wait_for("^C");
    assert_eq!(session.command("echo alive"), "alive\n");
    session.power_off();
}

/// The reader takes out the record that there is, and waits for more.
#[test]
fn ctrl_c_ends_a_reader_of_the_trace_pipe() {
    const TRACING: &str = "/sys/kernel/tracing";
    let mut session = Session::interactive();
    session.command(&format!(
        "echo 'p:made sys_mkdir' > {TRACING}/kprobe_events"
    ));
    session.command(&format!("echo 1 > {TRACING}/events/kprobes/made/enable"));
    session.command("run workload 0");
    for _ in 0..2 {
        session.type_blind(&format!("cat {TRACING}/trace_pipe\r"));
        let said = session.wait_for(" made: (sys_mkdir+0x0/");
        assert_eq!(count(&said, " made: "), 1, "{said}");
        session.type_blind("\x03");
        session.wait_for("^C");
        assert_eq!(session.command("echo alive"), "alive\n");
        let left = session.command(&format!("cat {TRACING}/trace"));
        assert_eq!(count(&left, " made: "), 0, "{left}");
        session.command("run workload 0");
    }
    session.power_off();
}
