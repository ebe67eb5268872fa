//! Where a probe of the text is: the addresses that its pattern finds, or the moment.
//!
//! Places of one kind with the same name are one group, and share their programs.

use alloc::{collections::BTreeSet, format, rc::Rc, string::String, vec::Vec};

use trace_interface::symbols::{Mark, Unavailable};
use trace_language::{
    Diagnostic,
    tree::{self, Probe, ProbeKind, Span, UserPlace},
};

use crate::{
    Lowered, names, sources,
    tables::Tables,
    values::{SiteKind, UserMoment},
    watches::{self, Aim},
};

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
    /// The place in a program of user mode, if it is one.
    pub(crate) user: Option<UserSite>,
    /// The watch that it aims. It does not run the clause then.
    pub(crate) aim: Option<Aim>,
    /// The pattern of the inlined functions whose copies it is at, if it is at some.
    pub(crate) copy: Option<Rc<str>>,
}

/// A place in a program of user mode.
#[derive(Clone, Default)]
pub(crate) struct UserSite {
    pub(crate) path: String,
    /// As the kernel finds it in the program's symbol table.
    pub(crate) function: Option<String>,
    pub(crate) offset: u64,
    /// The function's path, if the program's debug information is known.
    pub(crate) name: Option<String>,
    /// The static mark that the place is at.
    pub(crate) mark: Option<Rc<Mark>>,
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
        user: None,
        aim: None,
        copy: None,
    };
    let timer = |site, name: String, nanoseconds| Group {
        site,
        addresses: Vec::new(),
        span,
        name: (name.into(), false),
        nanoseconds,
        source: None,
        user: None,
        aim: None,
        copy: None,
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
            Group {
                copy: Some(function.text.as_str().into()),
                ..group(SiteKind::Inside, "inline:", addresses)
            }
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
        ProbeKind::Instruction { pattern } => {
            let found = tables.types.kernel.instructions(&pattern.text);
            let addresses = found.map_err(|unavailable| {
                Diagnostic::new(pattern.span, unavailable.reason, unavailable.help)
            })?;
            Group {
                name: (format!("insn:{}", pattern.text).into(), false),
                ..group(SiteKind::Inside, "insn:", addresses)
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
        ProbeKind::Watch {
            program,
            what,
            access,
        } => {
            let watched = watches::of_place(tables, program.as_ref(), what, *access, span)?;
            let user = program.as_ref().map(|path| UserSite {
                path: path.text.clone(),
                ..UserSite::default()
            });
            Group {
                user,
                ..timer(SiteKind::Watch(watched), format!("{probe}"), 0)
            }
        }
        // Each function and mark has a group of its own: see `of_program`, `of_marks`.
        ProbeKind::User { .. } | ProbeKind::Mark { .. } => {
            timer(SiteKind::User(UserMoment::Inside), format!("{probe}"), 0)
        }
        ProbeKind::Begin => timer(SiteKind::Begin, "begin".into(), 0),
        ProbeKind::End => timer(SiteKind::End, "end".into(), 0),
    })
}

/// The groups of a watch that a call aims: the clause's, and that of the function, which aims it.
pub(crate) fn of_call(
    tables: &mut Tables<'_>,
    probe: &Probe,
    call: &tree::OfCall,
    access: tree::Access,
) -> Lowered<Vec<Group>> {
    let (address, watched, aim) = watches::at_call(tables, probe, call, access)?;
    let group = |site, name: String, span| Group {
        site,
        addresses: Vec::new(),
        span,
        name: (name.into(), false),
        nanoseconds: 0,
        source: None,
        user: None,
        aim: None,
        copy: None,
    };
    let function = &call.function;
    let at_entry = format!("kprobe:{}", function.text);
    Ok(alloc::vec![
        group(SiteKind::Watch(watched), format!("{probe}"), probe.span),
        Group {
            addresses: alloc::vec![address],
            aim: Some(aim),
            ..group(SiteKind::Entry, at_entry, function.span)
        },
    ])
}

/// The groups of a place in a program: one for each function.
///
/// Where the debug information of the program is known, it finds the functions. Elsewhere the
/// kernel does, when the script is attached, and takes one name only.
pub(crate) fn of_program(
    tables: &Tables<'_>,
    span: Span,
    path: &tree::Name,
    place: &UserPlace,
    returns: bool,
) -> Lowered<Vec<Group>> {
    let group = |site: UserSite, address: Option<u64>| {
        let moment = match (returns, site.offset) {
            (true, _) => UserMoment::Return,
            (false, 0) if site.function.is_some() => UserMoment::Entry,
            _ => UserMoment::Inside,
        };
        let kind = if returns { "uretprobe" } else { "uprobe" };
        let name = match (&site.name, &site.function, site.offset) {
            (Some(function), _, 0) | (None, Some(function), 0) => function.clone(),
            (Some(function), ..) | (None, Some(function), _) => {
                format!("{function}+{:#x}", site.offset)
            }
            (None, None, offset) => format!("{offset:#x}"),
        };
        Group {
            site: SiteKind::User(moment),
            addresses: address.into_iter().collect(),
            span,
            name: (format!("{kind}:{}:{name}", site.path).into(), false),
            nanoseconds: 0,
            source: None,
            user: Some(site),
            aim: None,
            copy: None,
        }
    };
    let (name, offset) = match place {
        UserPlace::Function { function, offset } => (function, *offset),
        UserPlace::Offset(offset) => {
            let site = UserSite {
                path: path.text.clone(),
                offset: *offset,
                ..UserSite::default()
            };
            return Ok(alloc::vec![group(site, None)]);
        }
    };
    let Some(program) = tables.types.kernel.program(&path.text) else {
        if name.text.contains(['*', '?']) {
            return Err(Diagnostic::new(
                name.span,
                format!("which functions `{}` has is not known here", path.text),
                "name one function; patterns are for the programs that this tool has built",
            ));
        }
        let site = UserSite {
            path: path.text.clone(),
            name: Some(name.text.clone()),
            function: Some(name.text.clone()),
            offset,
            ..UserSite::default()
        };
        return Ok(alloc::vec![group(site, None)]);
    };
    let functions = program.functions(&name.text);
    if functions.is_empty() {
        let refused = |message, help| Err(Diagnostic::new(name.span, message, help));
        return match program.inlined(&name.text).len() {
            0 => refused(
                format!("no function of {} is called `{}`", path.text, name.text),
                names::did_you_mean(&program.nearest(&name.text)),
            ),
            copies => refused(
                format!(
                    "`{}` has no code of its own in {}: each of its {copies} copies is inlined",
                    name.text, path.text
                ),
                "probe a function that calls it".into(),
            ),
        };
    }
    let mut groups = Vec::new();
    let mut refused = None;
    for function in functions {
        let begins = match offset {
            0 => Ok(()),
            _ => program.instruction(&function, offset),
        };
        let ends = match returns {
            true => program.returns(&function),
            false => Ok(()),
        };
        if let Err(unavailable) = begins.and(ends) {
            refused = Some(unavailable);
            continue;
        }
        let site = UserSite {
            path: path.text.clone(),
            function: Some(function.symbol),
            offset,
            name: Some(function.path),
            mark: None,
        };
        groups.push(group(site, Some(function.address.wrapping_add(offset))));
    }
    match refused {
        Some(Unavailable { reason, help }) if groups.is_empty() => {
            Err(Diagnostic::new(span, reason, help))
        }
        _ => Ok(groups),
    }
}

/// The groups of static marks: one for each place. A mark in an inlined function has several.
pub(crate) fn of_marks(
    tables: &Tables<'_>,
    span: Span,
    path: &tree::Name,
    provider: &tree::Name,
    name: &tree::Name,
) -> Lowered<Vec<Group>> {
    let Some(program) = tables.types.kernel.program(&path.text) else {
        return Err(Diagnostic::new(
            path.span,
            format!("which marks `{}` has is not known here", path.text),
            "marks are known of the programs that this tool has built, in /bin",
        ));
    };
    let marks = program.marks(&provider.text, &name.text);
    if marks.is_empty() {
        let all = program.marks("*", "*");
        let all: BTreeSet<String> = all
            .iter()
            .map(|mark| format!("{}:{}", mark.provider, mark.name))
            .collect();
        let text = format!("{}:{}", provider.text, name.text);
        let near = names::nearest(&text, all.iter().map(|name| &**name));
        return Err(Diagnostic::new(
            provider.span.to(name.span),
            format!("{} has no mark `{text}`", path.text),
            match (near.is_empty(), all.is_empty()) {
                (_, true) => "it has none".into(),
                (true, false) => format!("it has {}", Vec::from_iter(all).join(", ")),
                (false, false) => names::did_you_mean(&near),
            },
        ));
    }
    let group = |mark: Mark| {
        let name = format!("usdt:{}:{}:{}", path.text, mark.provider, mark.name);
        Group {
            site: SiteKind::User(UserMoment::Inside),
            addresses: alloc::vec![mark.address],
            span,
            name: (name.into(), false),
            nanoseconds: 0,
            source: None,
            user: Some(UserSite {
                path: path.text.clone(),
                function: Some(mark.function.symbol.clone()),
                offset: mark.address.wrapping_sub(mark.function.address),
                name: Some(mark.function.path.clone()),
                mark: Some(Rc::new(mark)),
            }),
            aim: None,
            copy: None,
        }
    };
    Ok(marks.into_iter().map(group).collect())
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
            user: None,
            aim: None,
            copy: None,
        });
    }
    Ok(groups)
}
