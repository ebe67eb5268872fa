//! The kernel log under writers on all CPUs, in NMIs and in probe handlers, and its own code
//! probed.
//!
//! Messages are whole, and those of one writer are in their order, however many write. An NMI may
//! log in the middle of a message. The code that logs and prints may be probed, and handlers there
//! may log: they are heard.

use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use kernel::{
    arch::{smp, traps},
    console, log, pr_debug, pr_info,
    probes::{Kprobe, PreVerdict, PtRegs, register},
    task::kthread::spawn_kthread_on,
};

/// The text of the records that the ring holds, oldest first, with their sequence numbers.
fn records() -> Vec<(u64, String)> {
    log::history()
        .map(|record| {
            (
                record.seq,
                String::from_utf8_lossy(record.text()).into_owned(),
            )
        })
        .collect()
}

/// The text of the records written after record number `since`, that contain `text`.
fn records_with(since: u64, text: &str) -> Vec<String> {
    records()
        .into_iter()
        .filter(|(seq, record)| *seq > since && record.contains(text))
        .map(|(_, record)| record)
        .collect()
}

/// Logs a record and returns its number.
fn mark() -> u64 {
    pr_debug!("mark");
    records()
        .iter()
        .rfind(|(_, text)| text == "mark")
        .expect("the mark is there")
        .0
}

#[guest_test]
fn messages_of_all_cpus_are_whole_and_in_each_writers_order() {
    const MESSAGES: usize = 250;
    let since = mark();
    let writers: Vec<_> = (0..smp::online_cpus())
        .map(|cpu| {
            spawn_kthread_on(1 << cpu, "writer", move || {
                for n in 0..MESSAGES {
                    pr_debug!("writer {cpu} {n} begins\nwriter {cpu} {n} ends");
                }
            })
            .expect("memory for a thread")
        })
        .collect();
    writers.iter().for_each(|writer| writer.wait_released());

    let lines: Vec<_> = records()
        .into_iter()
        .filter(|(seq, text)| *seq > since && text.starts_with("writer"))
        .collect();
    assert_eq!(lines.len(), 2 * MESSAGES * writers.len());
    for message in lines.chunks(2) {
        let [(first, begins), (second, ends)] = message else {
            panic!("{message:?}")
        };
        assert_eq!(first + 1, *second, "the lines of a message stay together");
        assert_eq!(begins.strip_suffix("begins"), ends.strip_suffix("ends"));
    }
    for cpu in 0..writers.len() {
        let own: Vec<_> = lines
            .iter()
            .filter(|(_, text)| text.starts_with(&format!("writer {cpu} ")))
            .collect();
        for (n, message) in own.chunks(2).enumerate() {
            assert_eq!(message[0].1, format!("writer {cpu} {n} begins"));
        }
    }
}

#[guest_test]
fn message_from_an_nmi_handler_arrives_whatever_it_interrupted() {
    static NMIS: AtomicU64 = AtomicU64::new(0);
    fn log_it(_: &PtRegs) {
        pr_debug!("from NMI {}", NMIS.load(SeqCst));
        NMIS.fetch_add(1, SeqCst);
    }
    const COUNT: u64 = 200;
    traps::set_nmi_handler(Some(log_it));
    let busy = spawn_kthread_on(2, "busy", || {
        // Not so many for each NMI that its message could be overwritten before it is looked for.
        let (mut seen, mut left) = (0, 1000);
        while NMIS.load(SeqCst) < COUNT {
            if NMIS.load(SeqCst) != seen {
                (seen, left) = (NMIS.load(SeqCst), 1000);
            }
            if left > 0 {
                pr_debug!("interrupted");
                left -= 1;
            }
        }
    })
    .expect("memory for a thread");
    let sender = spawn_kthread_on(1, "sender", || {
        for sent in 0..COUNT {
            smp::send_nmi(1);
            while NMIS.load(SeqCst) <= sent {
                core::hint::spin_loop();
            }
            // The newest first: the other CPU goes on writing.
            let wanted = format!("from NMI {sent}");
            let arrived = log::history()
                .rev()
                .any(|record| record.text() == wanted.as_bytes());
            assert!(arrived, "{wanted} is lost");
        }
    })
    .expect("memory for a thread");
    sender.wait_released();
    busy.wait_released();
    traps::set_nmi_handler(None);
}

/// The handler's own call of `printk` meets the probe again; that hit is counted as missed.
#[guest_test]
fn probe_handler_in_printk_may_log() {
    fn log_it(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        pr_debug!("from the handler");
        PreVerdict::Execute
    }
    let since = mark();
    let probe = register(Box::new(Kprobe::new().symbol("printk").pre(log_it))).unwrap();
    pr_debug!("from the test");
    let (hits, missed) = (probe.hits(), probe.nmissed());
    drop(probe);
    assert_eq!(
        records_with(since, "from the"),
        ["from the handler", "from the test"]
    );
    assert!(hits >= 1 && missed >= 1, "{hits} hits, {missed} missed");
}

/// Each line printed makes the handler log a line, which is printed. The chain must end by itself,
/// also where the lines that begin it are kept from the console.
#[guest_test(cmdline = "log=probed_console")]
fn probe_handler_in_the_console_may_log() {
    static HITS: AtomicU64 = AtomicU64::new(0);
    fn log_it(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        pr_info!("console hit {}", HITS.fetch_add(1, SeqCst));
        PreVerdict::Execute
    }
    fn log_quietly(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        pr_debug!("console hit {}", HITS.fetch_add(1, SeqCst));
        PreVerdict::Execute
    }
    let port = Kprobe::new()
        .symbol("kernel::serial::SerialPort::write")
        .pre(log_it);
    let filter = Kprobe::new()
        .symbol("kernel::console::Screen::print")
        .pre(log_quietly);
    for (probe, log) in [
        (port, (|| pr_info!("once")) as fn()),
        (filter, || pr_debug!("once")),
    ] {
        HITS.store(0, SeqCst);
        let since = mark();
        let probe = register(Box::new(probe)).unwrap();
        log();
        console::flush();
        drop(probe);
        let hits = HITS.load(SeqCst);
        let kept = records_with(since, "console hit").len() as u64;
        assert!(kept > 0 && kept < hits, "{hits} hits, {kept} kept");
        pr_info!("after");
        assert_eq!(records_with(since, "after").len(), 1);
    }
}

/// Messages from an interrupt handler are no part of what it interrupts, the printing of other
/// messages included. None is lost but those that are refused, as they are while the ring is full.
#[guest_test]
fn interrupts_that_log_while_messages_are_printed_are_heard() {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    fn log_it(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        let number = TICKS.fetch_add(1, SeqCst);
        if log::printk(log::Level::Debug, &format_args!("tick {number}")) == 0 {
            REFUSED.fetch_add(1, SeqCst);
        }
        PreVerdict::Execute
    }
    // The history forgets its oldest records, so it is looked at before it can have forgotten one.
    let mut since = mark();
    let mut heard = 0;
    let mut listen = || {
        let all = records();
        let news = all.iter().filter(|(seq, _)| *seq > since);
        heard += news.filter(|(_, text)| text.contains("tick ")).count() as u64;
        since = all.last().map_or(since, |(seq, _)| *seq);
    };
    let probe = register(Box::new(
        Kprobe::new().symbol("timer_interrupt").pre(log_it),
    ))
    .unwrap();
    while TICKS.load(SeqCst) < 20 {
        for _ in 0..50 {
            // On the console, so that most ticks come while it is printed.
            pr_info!("to be printed");
            console::flush();
        }
        listen();
    }
    drop(probe);
    listen();
    let (ticks, refused) = (TICKS.load(SeqCst), REFUSED.load(SeqCst));
    assert!(heard > ticks / 2, "{heard} of {ticks} heard");
    assert_eq!(heard + refused, ticks, "{refused} refused");
}

#[guest_test]
fn long_and_many_lined_messages_keep_their_text() {
    let since = mark();
    let long = "0123456789".repeat(100);
    pr_debug!("long {long}\nshort\n\nlast\n");
    let whole = records()
        .into_iter()
        .filter(|(seq, _)| *seq > since)
        .map(|(_, text)| text)
        .collect::<Vec<_>>();
    assert_eq!(whole.concat(), format!("long {long}shortlast"));
}
