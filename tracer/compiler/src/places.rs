//! Where a probe of the text is: the addresses that its pattern finds, or the moment.
//!
//! Places of one kind with the same name are one group, and share their programs.

use alloc::{format, rc::Rc, string::String, vec::Vec};

use trace_interface::symbols::Unavailable;
use trace_language::{
    Diagnostic,
    tree::{self, Probe, ProbeKind, Span},
};

use crate::{Lowered, names, sources, tables::Tables, values::SiteKind};

/// The addresses that a clause runs at, all of one kind of site.
pub(crate) struct Group {
    pub(crate) site: SiteKind,
    pub(crate) addresses: Vec<u64>,
    pub(crate) span: Span,
    pub(crate) name: (Rc<str>, bool),
    /// The period of a timer.
    pub(crate) nanoseconds: u64,
    /// The event source, if it is one.
    pub(crate) source: Option<Rc<sources::EventSource>>,
}

const MILLISECOND: u64 = 1_000_000;

/// The addresses so many bytes inside of functions. Those of a pattern at which no instruction
/// begins are left out while others remain.
fn inside(
    tables: &mut Tables<'_>,
    probe: &Probe,
    name: &tree::Name,
    functions: &[u64],
    offset: u64,
) -> Lowered<Vec<u64>> {
    let known = tables.types.kernel.functions(&name.text);
    let mut addresses = Vec::new();
    let mut refused = None;
    for function in known
        .iter()
        .filter(|function| functions.contains(&function.address))
    {
        match tables.types.kernel.instruction(function, offset) {
            Ok(()) => addresses.push(function.address.wrapping_add(offset)),
            Err(unavailable) => _ = refused.get_or_insert(unavailable),
        }
    }
    match refused {
        Some(Unavailable { reason, help }) if addresses.is_empty() => {
            Err(Diagnostic::new(probe.span, reason, help))
        }
        _ => Ok(addresses),
    }
}

/// Where a probe is.
pub(crate) fn group(tables: &mut Tables<'_>, probe: &Probe) -> Lowered<Group> {
    let span = probe.span;
    let group = |site, prefix: &str, addresses: Vec<u64>| Group {
        site,
        addresses,
        span,
        name: (prefix.into(), true),
        nanoseconds: 0,
        source: None,
    };
    let timer = |site, name: String, nanoseconds| Group {
        site,
        addresses: Vec::new(),
        span,
        name: (name.into(), false),
        nanoseconds,
        source: None,
    };
    let all = |tables: &mut Tables<'_>, function: &tree::Name| {
        let found = tables.functions(&function.text);
        match found.is_empty() {
            false => Ok(found.to_vec()),
            true => Err(tables.no_function(function)),
        }
    };
    Ok(match &probe.kind {
        ProbeKind::Entry {
            function,
            offset: 0,
        } => group(SiteKind::Entry, "kprobe:", all(tables, function)?),
        ProbeKind::Entry { function, offset } => {
            let addresses = all(tables, function)?;
            group(
                SiteKind::Inside,
                "kprobe:",
                inside(tables, probe, function, &addresses, *offset)?,
            )
        }
        ProbeKind::Return { function } => {
            group(SiteKind::Return, "kretprobe:", all(tables, function)?)
        }
        ProbeKind::Session { function } => {
            group(SiteKind::SessionEntry, "session:", all(tables, function)?)
        }
        ProbeKind::Inlined { function } => {
            let mut addresses = tables.types.kernel.inlined(&function.text);
            addresses.sort_unstable();
            addresses.dedup();
            if addresses.is_empty() {
                let is_function = !tables.functions(&function.text).is_empty();
                return Err(match is_function {
                    true => Diagnostic::new(
                        function.span,
                        format!("no copy of `{}` is inlined anywhere", function.text),
                        format!("use kprobe:{}", function.text),
                    ),
                    false => tables.no_function(function),
                });
            }
            group(SiteKind::Inside, "inline:", addresses)
        }
        ProbeKind::Line { file, line } => {
            let found = tables.types.kernel.line(&file.text, *line);
            let mut addresses = found.map_err(|unavailable| {
                Diagnostic::new(span, unavailable.reason, unavailable.help)
            })?;
            addresses.sort_unstable();
            addresses.dedup();
            Group {
                name: (format!("line:{}:{line}", file.text).into(), false),
                ..group(SiteKind::Inside, "line:", addresses)
            }
        }
        // Each event has a group of its own: see `sources`.
        ProbeKind::Tracepoint { .. } => group(SiteKind::Inside, "tracepoint:", Vec::new()),
        ProbeKind::Interval { nanoseconds } => timer(
            SiteKind::Interval,
            format!("interval:{}", names::duration(*nanoseconds)),
            *nanoseconds,
        ),
        ProbeKind::Profile { nanoseconds } if *nanoseconds < tables.options.tick_nanoseconds => {
            let tick = tables.options.tick_nanoseconds;
            let least = match tick > MILLISECOND {
                true => ", or boot with `--append tick_ms=1`",
                false => "",
            };
            return Err(Diagnostic::new(
                span,
                format!(
                    "a CPU's timer ticks each {} ms, and no profile runs more often",
                    tick / MILLISECOND
                ),
                format!(
                    "ask for profile:hz:{} or less{least}",
                    1000 * MILLISECOND / tick
                ),
            ));
        }
        ProbeKind::Profile { nanoseconds } => timer(
            SiteKind::Profile,
            format!("profile:{}", names::duration(*nanoseconds)),
            *nanoseconds,
        ),
        ProbeKind::Begin => timer(SiteKind::Begin, "BEGIN".into(), 0),
        ProbeKind::End => timer(SiteKind::End, "END".into(), 0),
    })
}

/// The groups of event sources: one for each event.
pub(crate) fn of_sources(
    tables: &mut Tables<'_>,
    group: &tree::Name,
    event: &tree::Name,
    span: Span,
) -> Lowered<Vec<Group>> {
    let found = tables.options.events.matching(&group.text, &event.text);
    if found.is_empty() {
        let name = format!("{}:{}", group.text, event.text);
        let events = &tables.options.events;
        let all = events.names();
        let near = names::nearest(&name, all.iter().map(|name| &**name));
        let groups = events.groups();
        return Err(Diagnostic::new(
            group.span.to(event.span),
            format!("the kernel has no event source `{name}`"),
            match (near.is_empty(), groups.is_empty()) {
                (true, true) => "it has none; name a function: kprobe:PATH".into(),
                (true, false) => format!("its groups are {}", groups.join(", ")),
                (false, _) => names::did_you_mean(&near),
            },
        ));
    }
    let mut groups = Vec::new();
    for source in found {
        let addresses = tables.functions(&source.function);
        let [address] = *addresses else {
            return Err(Diagnostic::new(
                span,
                format!(
                    "the source `{}:{}` is at `{}`, of which this kernel has {}",
                    source.group,
                    source.event,
                    source.function,
                    addresses.len()
                ),
                "name the function itself: kprobe:PATH",
            ));
        };
        groups.push(Group {
            site: match source.on_return {
                true => SiteKind::Return,
                false => SiteKind::Entry,
            },
            addresses: alloc::vec![address],
            span,
            name: (
                format!("tracepoint:{}:{}", source.group, source.event).into(),
                false,
            ),
            nanoseconds: 0,
            source: Some(Rc::new(source)),
        });
    }
    Ok(groups)
}
