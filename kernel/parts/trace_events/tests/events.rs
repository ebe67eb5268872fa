//! The table of events: adding probes, deleting them, and what stays.

mod common;

use common::Kernel;
use trace_events::{
    commands::Words,
    definition::{Command, File},
    event::{Deleted, Events},
    fetch::Grammar,
    refusal::{Reason, Refusal},
};

/// A table whose handles are the lines of the definitions.
struct Table {
    events: Events<String>,
    /// The names of the events that are in use.
    busy: Vec<&'static str>,
    next_id: u16,
}

impl Table {
    fn new() -> Self {
        Self {
            events: Events::new(),
            busy: Vec::new(),
            next_id: 1,
        }
    }

    /// Runs a line; returns the handles and the names of what it deleted.
    fn run(&mut self, line: &str) -> Result<(Vec<String>, Vec<String>), Reason> {
        self.parsed(line).map_err(|refusal| refusal.reason)
    }

    fn parsed(&mut self, line: &str) -> Result<(Vec<String>, Vec<String>), Refusal> {
        let words = Words::of(line).unwrap();
        let busy = self.busy.clone();
        match Command::parse(&words, File::DynamicEvents, &Kernel, &Grammar::default())? {
            Command::Create(definition) => {
                self.events.check(&definition)?;
                let added = self.events.add(definition, self.next_id, line.to_owned());
                if added.unwrap() == self.next_id {
                    self.next_id += 1;
                }
                Ok((Vec::new(), Vec::new()))
            }
            Command::Delete(deletion) => {
                let is_busy = |event: &_| is_busy(&busy, event);
                self.events.delete(&deletion, is_busy).map(told)
            }
        }
    }

    fn listing(&self) -> Vec<String> {
        self.events
            .probes()
            .iter()
            .map(|probe| probe.definition.to_string())
            .collect()
    }
}

fn is_busy(busy: &[&str], event: &trace_events::event::Event) -> bool {
    busy.contains(&event.name.as_str())
}

fn told(deleted: Deleted<String>) -> (Vec<String>, Vec<String>) {
    let handles = deleted
        .probes
        .into_iter()
        .map(|probe| probe.handle)
        .collect();
    let names = deleted.events.into_iter().map(|event| event.name).collect();
    (handles, names)
}

#[test]
fn listing_is_in_the_order_of_the_definitions() {
    let mut table = Table::new();
    for line in ["p:a vfs_read", "p:b vfs_read", "p:a do_exit"] {
        table.run(line).unwrap();
    }
    let lines = [
        "p:kprobes/a vfs_read",
        "p:kprobes/b vfs_read",
        "p:kprobes/a do_exit",
    ];
    assert_eq!(table.listing(), lines);
    let ids: Vec<_> = table
        .events
        .iter()
        .map(|event| (event.id, event.name.as_str()))
        .collect();
    assert_eq!(ids, [(1, "a"), (2, "b")]);
    assert_eq!(table.events.probes_of(1).count(), 2);
    assert_eq!(table.events.numbered(2).unwrap().name, "b");
    assert!(table.events.named("other", "a").is_none());
}

#[test]
fn second_probe_has_to_agree_with_the_first() {
    let mut table = Table::new();
    table.run("p:e vfs_read a=%di").unwrap();
    assert_eq!(
        table.run("r:e vfs_read a=$retval"),
        Err(Reason::DifferentProbeType)
    );
    assert_eq!(
        table.run("p:e do_exit b=%di"),
        Err(Reason::DifferentArgumentType)
    );
    assert_eq!(table.run("p:e vfs_read a=%di"), Err(Reason::SameProbe));
    table.run("p:g/e do_exit b=%di").unwrap();
    assert_eq!(table.listing().len(), 2);
}

#[test]
fn event_outlives_its_first_probe() {
    let mut table = Table::new();
    table.run("p:e vfs_read a=%di").unwrap();
    table.run("p:e do_exit a=%si").unwrap();
    let (handles, events) = table.run("-:e vfs_read").unwrap();
    assert_eq!(
        (handles, events),
        (vec!["p:e vfs_read a=%di".into()], vec![])
    );
    let event = table.events.named("kprobes", "e").unwrap();
    assert_eq!(event.layout.arguments()[0].name, "a");
    // The name is still taken, and the rest is deleted with the event.
    assert_eq!(
        table.run("p:e vfs_read"),
        Err(Reason::DifferentArgumentType)
    );
    assert_eq!(table.run("-:e").unwrap().1, ["e"]);
    assert_eq!(table.run("-:e"), Err(Reason::NotFound));
}

#[test]
fn group_is_deleted_as_a_whole_or_not_at_all() {
    let mut table = Table::new();
    for line in ["p:g/a vfs_read", "p:g/b vfs_read", "p:h/c vfs_read"] {
        table.run(line).unwrap();
    }
    table.busy.push("b");
    assert_eq!(table.run("-:g/"), Err(Reason::Busy));
    assert_eq!(table.listing().len(), 3);
    table.busy.clear();
    assert_eq!(table.run("!p:g/").unwrap().1, ["a", "b"]);
    assert_eq!(table.listing(), ["p:h/c vfs_read"]);
}

#[test]
fn busy_event_keeps_its_last_probe() {
    let mut table = Table::new();
    table.run("p:e vfs_read").unwrap();
    table.run("p:e do_exit").unwrap();
    table.busy.push("e");
    assert_eq!(table.run("-:e"), Err(Reason::Busy));
    table.run("-:e vfs_read").unwrap();
    assert_eq!(table.run("-:e do_exit"), Err(Reason::Busy));
    assert_eq!(table.listing(), ["p:kprobes/e do_exit"]);
}

#[test]
fn clearing_deletes_all_or_nothing() {
    let mut table = Table::new();
    table.run("p:a vfs_read").unwrap();
    table.run("p:b vfs_read").unwrap();
    let busy = table.events.clear(|event| event.name == "b").map(told);
    assert_eq!(busy.unwrap_err().reason, Reason::Busy);
    assert_eq!(table.listing().len(), 2);
    assert_eq!(told(table.events.clear(|_| false).unwrap()).1, ["a", "b"]);
    assert_eq!(told(table.events.clear(|_| true).unwrap()).1, [""; 0]);
    assert_eq!(Reason::Busy.errno(), 16);
}
