//! Names in messages.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use ::names::distance;

/// "did you mean `a` or `b`?", or nothing.
pub(super) fn did_you_mean(names: &[String]) -> String {
    let names: Vec<String> = names
        .iter()
        .take(3)
        .map(|name| format!("`{name}`"))
        .collect();
    ::names::did_you_mean(&names).to_string()
}

/// The names that are nearest to one: those with few letters changed, and no other ones with fewer.
pub(super) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let most = name.chars().count() / 3 + 1;
    let mut found: Vec<(usize, &str)> = names
        .filter_map(|other| Some((distance(name, other, most)?, other)))
        .collect();
    found.sort_unstable();
    found.dedup();
    let least = found.first().map_or(0, |(distance, _)| *distance);
    found.retain(|(distance, _)| *distance == least);
    found
        .into_iter()
        .take(3)
        .map(|(_, name)| name.into())
        .collect()
}

/// A duration as probes write it: `s:1`, `ms:100`, `us:5`, `ns:7`.
pub(super) fn duration(nanoseconds: u64) -> String {
    for (unit, size) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)] {
        if nanoseconds.is_multiple_of(size) {
            return format!("{unit}:{}", nanoseconds / size);
        }
    }
    format!("ns:{nanoseconds}")
}

/// The next step where a name of the source was used, and only symbols are known.
pub(super) const NO_DEBUG_INFORMATION: &str = "this needs debug information, which the kernel's \
     own prompt does not have: use arg0 to arg5, retval and reg(\"di\") here, or \
     `cargo run -- trace` on the host";
