//! The command line of `cargo bench --`.

use boot::qemu::Accelerator;
use clap::Parser;

use super::rows::{SETS, matches};

/// Measures what probes cost.
///
/// Writes target/bench/probes.json and pictures beside it, unless only some rows were asked for.
/// The exit status is 0 if all went well, 1 if anything failed (the last line says what), and 2 if
/// these arguments are wrong.
#[derive(Clone, Debug, Parser)]
#[command(name = "probes", bin_name = "cargo bench --", max_term_width = 100)]
pub struct Options {
    /// Measure only these rows, separated by commas; NAME* means all that begin so, as in
    /// k_int3,k_mid_*
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = row)]
    pub rows: Vec<String>,
    /// How to execute the guest: tcg counts instructions, kvm gives cycles on this machine's
    /// processor
    #[arg(long, default_value_t = Accelerator::Tcg)]
    pub accel: Accelerator,
    /// Measure hits per second instead, on 1 CPU, on 2, ..., on N at the same time
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=64),
        conflicts_with_all = ["rows", "twice", "rounds"]
    )]
    pub smp: Option<u32>,
    /// Measure all in a second boot too, and fail unless it gives the same figures
    #[arg(long)]
    pub twice: bool,
    /// How many times 10,000 probes are registered and unregistered to see that no memory is lost
    /// [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub rounds: Option<u32>,
    /// Seconds after which a boot has failed
    #[arg(
        long,
        value_name = "S",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub timeout: u64,
    /// Cargo gives this to every benchmark
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// A name, or the beginning of some, that means at least one row.
fn row(pattern: &str) -> Result<String, String> {
    let mut names = SETS.iter().flat_map(|set| set.rows);
    if names.any(|name| matches(pattern, name)) {
        return Ok(pattern.into());
    }
    let all: Vec<&str> = SETS.iter().flat_map(|set| set.rows).copied().collect();
    Err(format!(
        "there is no such row; there are {}",
        all.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["probes", "--bench"], arguments].concat())
    }

    #[test]
    fn definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn defaults_measure_all_by_emulation() {
        let options = parse(&[]).unwrap();
        assert_eq!((options.accel, options.smp), (Accelerator::Tcg, None));
        assert!(options.rows.is_empty() && !options.twice);
    }

    #[test]
    fn rows_are_separated_by_commas() {
        let options = parse(&["--rows", "k_int3,k_mid_*"]).unwrap();
        assert_eq!(options.rows, ["k_int3", "k_mid_*"]);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for wrong in [
            &["--accel", "hvf"][..],
            &["--smp", "0"],
            &["--smp", "2", "--twice"],
            &["--smp", "2", "--rows", "k_int3"],
            &["--rounds", "1"],
            &["--unknown"],
            &["k_int3"],
            &["--rows", "k_int3,unknown"],
            &["--rows", ""],
        ] {
            let error = parse(wrong).expect_err(&format!("{wrong:?} was taken"));
            assert_eq!(error.exit_code(), 2, "{wrong:?}");
        }
    }
}
