//! The table for people.

use std::fmt::Write;

use test_protocol::Quantity;

use super::{Results, Unit, linux};

/// Shows all that was measured.
pub fn table(results: &Results, unit: Unit) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(line.trim_end());
        text.push('\n');
    };
    if results.of(Quantity::Cost).next().is_some() {
        line(format!("{}, the bare call included", unit.per_call()));
        line(format!(
            "{:<20} {:>10} {:>7} {:>11} {:>7} {:>7}",
            "row", "ours", "traps", "Linux 6.1", "traps", "ratio"
        ));
    }
    for (name, cost) in results.of(Quantity::Cost) {
        let mut row = format!("{name:<20} {cost:>10}");
        let traps = results.get(Quantity::Traps, name);
        let traps = traps.map_or(String::new(), |traps| traps.to_string());
        // Linux's figures are instructions too.
        let linux = linux::figure(name).filter(|_| unit == Unit::Instructions);
        let (mut theirs, mut their_traps, mut ratio) = Default::default();
        if let Some(linux) = linux {
            theirs = linux.cost.to_string();
            their_traps = linux.traps.map_or(String::new(), |traps| traps.to_string());
            ratio = format!("{:.1}", linux.cost / cost.as_f64());
        }
        // Writing to a string cannot fail.
        let _ = write!(row, " {traps:>7} {theirs:>11} {their_traps:>7} {ratio:>7}");
        if let Some(base) = name
            .strip_prefix("k_")
            .and_then(|rest| results.get(Quantity::Cost, &format!("base_{rest}")))
        {
            let _ = write!(row, "   {:+} over its base", cost.as_f64() - base.as_f64());
        }
        if let Some(worst) = results.get(Quantity::Worst, name) {
            let _ = write!(row, "   worst of all targets {worst}");
        }
        line(row);
    }
    for (name, reason) in results.skipped() {
        line(format!("{name:<20} skipped: {reason}"));
    }
    for (_, ticks) in results.of(Quantity::Boot) {
        let what = match unit {
            Unit::Instructions => "guest instructions",
            Unit::Cycles => "cycles",
        };
        line(format!(
            "boot: {:.1} million {what} from the kernel's entry to the first hit",
            ticks.as_f64() / 1e6
        ));
    }
    for (name, bytes) in results.of(Quantity::Memory) {
        let what = match name {
            "memory_kprobe" => "a kprobe, an object of its user",
            "memory_registered" => "what the kernel keeps for a registered kprobe, on 4 CPUs",
            "memory_instance" => "a return instance",
            other => other,
        };
        line(format!("memory: {what}: {bytes} bytes"));
    }
    if results.of(Quantity::Rate).next().is_some() {
        line("hits per second, all CPUs together".into());
    }
    for (name, rate) in results.of(Quantity::Rate) {
        line(format!("{name:<20} {:>12.0}", rate.as_f64()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stands_beside_what_linux_needs() {
        let mut results = Results::default();
        results.add(concat!(
            "bench: cost k_int3 101000/1000\nbench: traps k_int3 1000/1000\n",
            "bench: cost base_mid_mov 8/1\nbench: cost k_mid_mov 80/1\nbench: cost j_int3 300/1\n",
        ));
        let table = table(&results, Unit::Instructions);
        let words = |name: &str| -> Vec<String> {
            let line = table.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().map(String::from).collect()
        };
        assert_eq!(words("k_int3"), ["k_int3", "101", "1", "505", "2", "5.0"]);
        assert!(words("k_mid_mov").contains(&"+72".into()), "{table}");
        assert_eq!(words("j_int3"), ["j_int3", "300"]);
    }
}
