//! The ready programs, which are in `tracer/programs`.

/// The ready programs: names and texts, by name. The first line of each tells how it is used:
/// `// NAME ARGUMENTS: WHAT`.
pub const READY: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/ready.rs"));

/// The ready programs as the help shows them.
pub fn help() -> String {
    let lines = READY.iter().map(|(_, text)| {
        let (usage, what) = usage(text);
        format!("  {usage:<32} {what}")
    });
    let lines: Vec<String> = lines.collect();
    format!(
        "Ready programs, in tracer/programs; --source prints one, to be copied and changed:\n{}",
        lines.join("\n")
    )
}

/// How a ready program is used, and what it shows.
pub fn usage(text: &str) -> (&str, &str) {
    let line = text.lines().next().unwrap_or_default();
    let line = line.trim_start_matches("// ");
    line.split_once(": ").unwrap_or((line, ""))
}
