//! Draws all pictures of a made-up run, to look at them: `cargo run -p pictures --example sample`.
//! They go to the folder that is named, or to `target/pictures`.

use std::{fs, path::PathBuf};

use pictures::{
    Builder, Timeline,
    flame::{self, Flame},
    html::{self, Page},
    model::{Books, Stacks, Unit, WallClock},
    perfetto,
    text::{self, Tree},
};

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1);
    let folder = folder.map_or_else(|| PathBuf::from("target/pictures"), PathBuf::from);
    fs::create_dir_all(&folder)?;
    let timeline = timeline();
    let stacks = stacks();
    let mut file = Vec::new();
    perfetto::write(&timeline, &mut file)?;
    fs::write(folder.join("sample.perfetto"), file)?;
    fs::write(
        folder.join("sample.svg"),
        flame::svg(&stacks, Flame::default()),
    )?;
    let options = Tree {
        last: Some(12),
        from_end: true,
        ..Tree::default()
    };
    let tree = text::tree(&timeline, options);
    print!("{tree}");
    let vfs_write = "kernel::fs::vfs::vfs_write";
    let page = Page {
        title: "vfs_write and its callees".into(),
        program: "kprobe:kernel::fs::* { }\nkretprobe:vfs_write { @ns = hist(elapsed); }".into(),
        facts: vec![
            ("workload".into(), "writer 4; reader 4".into()),
            ("kernel".into(), "release, TCG, 2 processors".into()),
        ],
        books: vec![
            Books {
                probe: "kprobe:kernel::fs::*".into(),
                hits: timeline.calls.len() as u64,
                ..Books::default()
            },
            Books {
                probe: "kretprobe:vfs_write".into(),
                hits: 600,
                missed: 2,
            },
        ],
        warnings: vec!["17 not written: @ns: no room for another key".into()],
        output: tree,
        histograms: vec![
            timeline.latencies(vfs_write),
            timeline.latencies("kernel::fs::vfs::vfs_read"),
        ],
        heat_maps: vec![timeline.latency_map(vfs_write, 80)],
        stacks: vec![stacks],
        timeline: Some(timeline),
    };
    fs::write(folder.join("sample.html"), html::page(&page))
}

fn timeline() -> Timeline {
    let mut state = 7_u64;
    let mut next = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let pairs = |list: &[(&str, u64)]| {
        let pairs = list
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_string()));
        pairs.collect::<Vec<_>>()
    };
    let mut builder = Builder::new();
    builder.wall_clock(WallClock {
        time: 0,
        since_1970: 1_790_000_000_000_000_000,
    });
    let names = ["writer", "reader", "writer", "shell"];
    for (tid, name) in (3..).zip(names) {
        builder.task(tid, tid, name);
    }
    // For each processor, and for each task.
    let (mut times, mut last) = ([0_u64; 2], [0_u64; 8]);
    for round in 0..600_u64 {
        let cpu = (round % 2) as u32;
        let tid = 3 + next(4) as u32;
        let (system_call, inner) = match tid {
            4 | 6 => ("kernel::syscall::sys_read", "kernel::fs::vfs::vfs_read"),
            _ => ("kernel::syscall::sys_write", "kernel::fs::vfs::vfs_write"),
        };
        let time = &mut times[cpu as usize];
        // A task is on one processor at a time.
        *time = (*time).max(last[tid as usize]);
        let mut step = |most: u64| {
            *time += 40 + next(most);
            *time
        };
        let count = 8 + round % 120;
        let arguments = pairs(&[("fd", round % 5), ("count", count)]);
        builder.entry(step(9000), tid, cpu, system_call, arguments);
        builder.entry(
            step(300),
            tid,
            cpu,
            inner,
            pairs(&[("count", count), ("offset", round)]),
        );
        for _ in 0..round % 4 {
            let function = "<kernel::fs::ram::RamFile as kernel::fs::vfs::Inode>::block";
            builder.entry(
                step(200),
                tid,
                cpu,
                function,
                pairs(&[("index", round % 7)]),
            );
            if round % 50 == 3 {
                builder.instant(
                    step(20),
                    tid,
                    cpu,
                    "page fault",
                    pairs(&[("address", 4096)]),
                );
            }
            let slow = if round % 41 == 3 { 40_000 } else { 900 };
            builder.exit(step(slow), tid, cpu, function, Some("Some(0x4000)".into()));
        }
        builder.exit(step(700), tid, cpu, inner, Some(format!("Ok({count})")));
        builder.exit(step(400), tid, cpu, system_call, Some(count.to_string()));
        last[tid as usize] = step(20);
        let free = 30_000.0 - (round * 13 % 4000) as f64;
        builder.counter(last[tid as usize], "free memory", "frames", free);
    }
    let end = times[0].max(times[1]);
    builder.entry(
        end + 800,
        6,
        0,
        "kernel::syscall::sys_exit",
        pairs(&[("status", 1)]),
    );
    builder.entry(end + 1400, 6, 0, "kernel::task::Task::exit", Vec::new());
    builder.entry(end + 2100, 6, 0, "kernel::panic::panic", Vec::new());
    builder.lost("overwritten", 1204);
    builder.finish()
}

fn stacks() -> Stacks {
    let folded = include_str!("../tests/sample.folded");
    Stacks::from_folded(
        "Call stacks at vfs_write",
        Unit::Count("hits".into()),
        folded,
    )
}
