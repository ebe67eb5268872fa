//! Names in messages.

use alloc::{
    format,
    rc::Rc,
    string::{String, ToString},
    vec::Vec,
};

use ::names::distance;

use trace_interface::shape::Shape;

/// "did you mean `a` or `b`?", or nothing.
pub(crate) fn did_you_mean(names: &[String]) -> String {
    let names: Vec<String> = names
        .iter()
        .take(3)
        .map(|name| format!("`{name}`"))
        .collect();
    ::names::did_you_mean(&names).to_string()
}

/// The names that are nearest to one: those with few letters changed, and no other ones with fewer.
pub(crate) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
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

/// A duration as probes write it: `s:1`, `ms:100`, `us:5`, `hz:99`, `ns:7`.
pub(crate) fn duration(nanoseconds: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    for (unit, size) in [("s", SECOND), ("ms", 1_000_000), ("us", 1000)] {
        if nanoseconds.is_multiple_of(size) {
            return format!("{unit}:{}", nanoseconds / size);
        }
    }
    // A rate that is no whole number of them was rounded.
    let rate = SECOND.checked_div(nanoseconds).unwrap_or(0);
    match SECOND.checked_div(rate) {
        Some(period) if period == nanoseconds => format!("hz:{rate}"),
        _ => format!("ns:{nanoseconds}"),
    }
}

/// The next step where a name of the source was used, and only symbols are known.
pub(crate) const NO_DEBUG_INFORMATION: &str = "this needs debug information, which the kernel's \
     own prompt does not have: use arg0 to arg5, retval and reg(\"di\") here, or \
     `cargo run -- trace` on the host";

/// What is stored so.
pub(crate) fn shape(of: &Shape) -> String {
    match of {
        Shape::Unsigned(16) | Shape::Signed(16) => "a number of 16 bytes".into(),
        Shape::Unsigned(_) | Shape::Signed(_) | Shape::Literal => "a number".into(),
        Shape::Boolean | Shape::Flag => "true or false".into(),
        Shape::Character => "a character".into(),
        Shape::Float(_) => "a floating-point number".into(),
        Shape::Address { is_user: true, .. } => "an address of a program".into(),
        Shape::Address { .. } => "an address".into(),
        Shape::Symbol { .. } => "a function".into(),
        Shape::UserSymbol => "a function of a program".into(),
        Shape::Probe => "a probe".into(),
        Shape::Stack { is_user, .. } => match is_user {
            false => "a call stack of the kernel".into(),
            true => "a call stack of a program".into(),
        },
        Shape::Time { .. } => "a time".into(),
        Shape::Named(_) => "a name".into(),
        Shape::Text(_) | Shape::Counted(_) => "a text".into(),
        Shape::Bytes(_) => "bytes".into(),
        Shape::List { .. } | Shape::Slots { .. } | Shape::Array { .. } | Shape::Items { .. } => {
            "a list".into()
        }
        Shape::Duration => "a duration".into(),
        Shape::Tuple(items) => {
            let items: Vec<String> = items.iter().map(shape).collect();
            format!("a tuple ({})", items.join(", "))
        }
        Shape::Record(fields) => {
            let field = |(name, of): &(Rc<str>, Shape)| format!("{name}: {}", shape(of));
            let fields: Vec<String> = fields.iter().map(field).collect();
            format!("a record ({})", fields.join(", "))
        }
        Shape::Struct { name, .. } | Shape::Enum { name, .. } | Shape::Choice { name, .. } => {
            format!("a `{name}`")
        }
        Shape::Maybe(of) | Shape::Behind(of) => shape(of),
        Shape::Unit | Shape::Deeper => "nothing".into(),
        Shape::Unavailable => "a value that the compiler left out".into(),
    }
}
