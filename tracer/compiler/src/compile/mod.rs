//! From the tree to programs.
//!
//! ```text
//!   Compiler: maps, requests, programs ── a clause at a place ─► Body ─► Asm ─► bpf::Program
//!                                                                 │
//!                expression: what a value is, and how it is calculated   (nothing is emitted)
//!                number, store: the instructions that calculate and store it
//! ```
//!
//! The types of maps are known only after all their assignments are seen. So the whole is done
//! again until nothing new is learned about them; the messages are those of the last time.
//!
//! COMPILE-1. A clause that depends on the place (variables of the source, results) is compiled for
//!     each address. Any other is compiled once for all its addresses.

mod aggregate;
mod body;
mod builtin;
mod expression;
mod names;
mod rust;
mod sources;
mod store;

use alloc::{borrow::ToOwned, collections::BTreeMap, format, rc::Rc, string::String, vec::Vec};
use core::cell::RefCell;

use bpf::{Cost, MOST_ENTRY_BYTES, MOST_INSNS, MOST_MAPS, MapDef, MapKind, ProgramKind, verifier};
use trace_interface::{
    script::{self, Attachment, Program, Request, Script},
    shape::Shape,
    symbols::{Kernel, Type, TypeId},
    view::{Class, Loops, MapView, Record, View},
};
use trace_language::{
    Diagnostic,
    tree::{self, Clause, Probe, ProbeKind, Span},
};

use self::body::{Body, Parts, Shared, Site, SiteKind};
pub use self::sources::events;

/// How a script is compiled.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether the kernel's answers come from debug information, so that results have types. If
    /// not, `retval` is the register.
    pub debug_info: bool,
    /// The most keys of a map; of one for each CPU, on each.
    pub map_keys: u32,
    /// The most bytes that are kept of a text.
    pub text_bytes: u32,
    /// The most bytes that are kept of the elements of a slice or an array.
    pub slice_bytes: u32,
    /// The most frames of a call stack, and how many stacks are kept.
    pub stack_frames: u32,
    pub stacks: u32,
    /// The most addresses for which a clause is compiled separately.
    pub most_places: usize,
    /// Whether the stack has room for another level of the text
    /// ([`trace_language::BYTES_OF_LEVEL`]).
    pub has_room: fn() -> bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            debug_info: true,
            map_keys: 4096,
            text_bytes: 64,
            slice_bytes: 64,
            stack_frames: 48,
            stacks: 2048,
            most_places: 1024,
            has_room: || true,
        }
    }
}

/// A compiled text.
pub struct Compiled {
    pub script: Script,
    /// How its answers are read.
    pub view: View,
    /// By attachment: where it comes from. A probe may have several attachments.
    pub origins: Vec<Origin>,
}

/// The probe of the text that an attachment is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The probe in the text.
    pub span: Span,
    /// The event that the probe's pattern found, if it is a tracepoint.
    pub event: Option<String>,
}

/// Compiles a tree.
///
/// # Errors
/// All that is wrong, in the order of the text.
pub fn compile(
    tree: &tree::Script,
    kernel: &dyn Kernel,
    options: &Options,
) -> Result<Compiled, Vec<Diagnostic>> {
    let mut compiler = Compiler::new(kernel, options);
    // Each time something is learned, or it is the last one. Types only grow, so few are needed.
    const MOST_TIMES: usize = 8;
    for _ in 0..MOST_TIMES {
        compiler.begin();
        for clause in &tree.clauses {
            compiler.clause(clause);
        }
        if !compiler.learned {
            break;
        }
    }
    compiler.finish()
}

/// A map of the script.
struct Map {
    /// Its name without the sign; None of the compiler's own.
    name: Option<String>,
    span: Span,
    /// Of the compiler's own.
    def: Option<MapDef>,
    class: Option<Class>,
    keys: Option<Vec<Shape>>,
    /// Of a plain one with numbers: what the numbers are.
    kind: Option<expression::Kind>,
}

/// See the module's text.
struct Compiler<'a> {
    kernel: &'a dyn Kernel,
    options: &'a Options,
    /// They are kept from one time to the next.
    maps: Vec<Map>,
    learned: bool,
    errors: Vec<Diagnostic>,
    programs: Vec<Program>,
    attachments: Vec<Attachment>,
    origins: Vec<Origin>,
    requests: Vec<Request>,
    records: Vec<Record>,
    /// The names of probes, for `probe`.
    probes: Vec<(Rc<str>, bool)>,
    /// Loops that are ended after so many turns.
    loops: Vec<(Rc<str>, u32)>,
    /// The program that is being made has such a loop.
    has_open_loop: bool,
    /// By the beginning of a clause: how its programs were made last.
    ways: BTreeMap<usize, Way>,
    /// The functions of patterns.
    functions: BTreeMap<String, Rc<[u64]>>,
    /// Types that the text makes, such as a variant's content.
    types: RefCell<Vec<Rc<Type>>>,
}

/// A loop whose end the text does not tell has a number of turns at most, because a program must
/// end. A program is made with the least of them first. The work of the verifier then tells how
/// many it would take: the more a turn does, the fewer.
const LEAST_TURNS: u32 = 16;
const MOST_TURNS: u32 = 1024;

/// A power of two of turns that the verifier takes, most likely, of a program whose loops had
/// [`LEAST_TURNS`] and so much to see.
fn turns_that_fit(cost: Cost) -> u32 {
    // Of the walk a part only, so that a script compiles soon.
    let path = verifier::MOST_PATH * 3 / 4 / cost.path.max(1);
    let walk = verifier::MOST_WALK / 4 / cost.walk.max(1);
    let times = path.min(walk).clamp(1, MOST_TURNS / LEAST_TURNS);
    LEAST_TURNS << times.ilog2()
}

/// How a program is made.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// See [`LEAST_TURNS`].
    turns: u32,
    /// The turns were estimated from what the verifier saw.
    is_estimated: bool,
    /// See [`crate::asm`].
    forgetful: bool,
}

/// The name of the map of their counters. No script has such a map, because it is no name of the
/// language.
const LOOPS: &str = "(loops)";
/// The most such loops of a script.
const MOST_OPEN_LOOPS: u32 = 256;

/// Numbers of types from here on are the compiler's own.
const OWN_TYPES: u64 = 1 << 63;

/// The addresses that a clause runs at, all of one kind of site.
struct Group {
    site: SiteKind,
    addresses: Vec<u64>,
    span: Span,
    name: (Rc<str>, bool),
    /// Of a timer.
    nanoseconds: u64,
    /// Of an event source.
    source: Option<Rc<sources::EventSource>>,
}

impl<'a> Compiler<'a> {
    fn new(kernel: &'a dyn Kernel, options: &'a Options) -> Self {
        Self {
            kernel,
            options,
            maps: Vec::new(),
            learned: false,
            errors: Vec::new(),
            programs: Vec::new(),
            attachments: Vec::new(),
            origins: Vec::new(),
            requests: Vec::new(),
            records: Vec::new(),
            probes: Vec::new(),
            loops: Vec::new(),
            has_open_loop: false,
            ways: BTreeMap::new(),
            functions: BTreeMap::new(),
            types: RefCell::new(Vec::new()),
        }
    }

    /// The type with that number.
    fn describe(&self, id: TypeId) -> Rc<Type> {
        let own = id.0.checked_sub(OWN_TYPES);
        own.and_then(|own| self.types.borrow().get(own as usize).cloned())
            .unwrap_or_else(|| self.kernel.describe(id))
    }

    /// The number of a type of the compiler's own; an equal one is used again.
    fn synthetic(&self, new: Type) -> TypeId {
        let mut types = self.types.borrow_mut();
        let known = types.iter().position(|known| **known == new);
        let number = known.unwrap_or_else(|| {
            types.push(Rc::new(new));
            types.len() - 1
        });
        TypeId(OWN_TYPES + number as u64)
    }

    fn begin(&mut self) {
        self.learned = false;
        self.errors.clear();
        self.programs.clear();
        self.attachments.clear();
        self.origins.clear();
        self.requests.clear();
        self.records.clear();
        self.probes.clear();
        self.loops.clear();
    }

    /// The number of a loop that is ended after so many turns; an equal one is used again.
    fn open_loop(&mut self, text: String, turns: u32) -> u32 {
        let mut known = self.loops.iter();
        if let Some(known) = known.position(|(known, of)| **known == *text && *of == turns) {
            return known as u32;
        }
        self.loops.push((text.into(), turns));
        self.loops.len() as u32 - 1
    }

    /// The counters of loops that were ended.
    fn loop_counters(&mut self) -> u32 {
        self.own_map(MapDef::counters(LOOPS, MOST_OPEN_LOOPS))
    }

    fn error(&mut self, error: Diagnostic) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// The number of a map of the compiler's own.
    fn own_map(&mut self, def: MapDef) -> u32 {
        let known = self
            .maps
            .iter()
            .position(|map| map.def.as_ref() == Some(&def));
        let number = known.unwrap_or_else(|| {
            self.maps.push(Map {
                name: None,
                span: Span::default(),
                def: Some(def),
                class: None,
                keys: None,
                kind: None,
            });
            self.maps.len() - 1
        });
        number as u32
    }

    fn ring(&mut self) -> u32 {
        self.own_map(MapDef::ring("(ring)"))
    }

    fn clock(&mut self) -> u32 {
        self.own_map(MapDef {
            name: script::CLOCK.into(),
            kind: MapKind::Array,
            key_size: 4,
            value_size: 16,
            entries: 1,
        })
    }

    fn stacks(&mut self, frames: u32, is_user: bool) -> u32 {
        // Two words for the name of the program.
        let (of, words) = match is_user {
            true => ("user ", frames + 2),
            false => ("", frames),
        };
        self.own_map(MapDef {
            name: format!("({of}stacks {frames})").into(),
            kind: MapKind::Stacks,
            key_size: 4,
            value_size: 8 * words,
            entries: self.options.stacks,
        })
    }

    /// The number of a map of the text.
    fn map(&mut self, map: &tree::Name) -> u32 {
        let known = self
            .maps
            .iter()
            .position(|known| known.name.as_deref() == Some(&*map.text));
        let number = known.unwrap_or_else(|| {
            self.maps.push(Map {
                name: Some(map.text.clone()),
                span: map.span,
                def: None,
                class: None,
                keys: None,
                kind: None,
            });
            self.learned = true;
            self.maps.len() - 1
        });
        number as u32
    }

    /// The number of a request; an equal one is used again.
    fn request(&mut self, request: Request, record: Record) -> u32 {
        let mut known = self.requests.iter().zip(&self.records);
        if let Some(known) = known.position(|known| known == (&request, &record)) {
            return known as u32;
        }
        self.requests.push(request);
        self.records.push(record);
        self.requests.len() as u32 - 1
    }

    /// The addresses of the functions of a pattern, sorted.
    fn functions(&mut self, pattern: &str) -> Rc<[u64]> {
        if let Some(known) = self.functions.get(pattern) {
            return known.clone();
        }
        let mut found: Vec<u64> = self
            .kernel
            .functions(pattern)
            .iter()
            .map(|function| function.address)
            .collect();
        found.sort_unstable();
        found.dedup();
        let found: Rc<[u64]> = found.into();
        self.functions.insert(pattern.to_owned(), found.clone());
        found
    }

    fn no_function(&self, name: &tree::Name) -> Diagnostic {
        let copies = self.kernel.inlined(&name.text).len();
        if copies != 0 {
            return Diagnostic::new(
                name.span,
                format!(
                    "`{}` has no code of its own: each of its {copies} copies is inlined",
                    name.text
                ),
                format!("probe where the copies begin: inline:{}", name.text),
            );
        }
        Diagnostic::new(
            name.span,
            format!("no function of the kernel is called `{}`", name.text),
            names::did_you_mean(&self.kernel.nearest(&name.text)),
        )
    }

    /// Where a probe is.
    fn group(&mut self, probe: &Probe) -> Result<Group, Diagnostic> {
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
        let all = |compiler: &mut Self, function: &tree::Name| {
            let found = compiler.functions(&function.text);
            match found.is_empty() {
                false => Ok(found.to_vec()),
                true => Err(compiler.no_function(function)),
            }
        };
        Ok(match &probe.kind {
            ProbeKind::Entry {
                function,
                offset: 0,
            } => group(SiteKind::Entry, "kprobe:", all(self, function)?),
            ProbeKind::Entry { function, offset } => {
                let mut addresses = all(self, function)?;
                for address in &mut addresses {
                    *address = address.wrapping_add(*offset);
                }
                group(SiteKind::Inside, "kprobe:", addresses)
            }
            ProbeKind::Return { function } => {
                group(SiteKind::Return, "kretprobe:", all(self, function)?)
            }
            ProbeKind::Session { function } => {
                group(SiteKind::SessionEntry, "session:", all(self, function)?)
            }
            ProbeKind::Inlined { function } => {
                let mut addresses = self.kernel.inlined(&function.text);
                addresses.sort_unstable();
                addresses.dedup();
                if addresses.is_empty() {
                    let is_function = !self.functions(&function.text).is_empty();
                    return Err(match is_function {
                        true => Diagnostic::new(
                            function.span,
                            format!("no copy of `{}` is inlined anywhere", function.text),
                            format!("use kprobe:{}", function.text),
                        ),
                        false => self.no_function(function),
                    });
                }
                group(SiteKind::Inside, "inline:", addresses)
            }
            ProbeKind::Line { file, line } => {
                let found = self.kernel.line(&file.text, *line);
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
    fn source_groups(
        &mut self,
        group: &tree::Name,
        event: &tree::Name,
        span: Span,
    ) -> Result<Vec<Group>, Diagnostic> {
        let found = sources::matching(&group.text, &event.text);
        if found.is_empty() {
            let name = format!("{}:{}", group.text, event.text);
            let all = sources::names();
            let near = names::nearest(&name, all.iter().map(|name| &**name));
            return Err(Diagnostic::new(
                group.span.to(event.span),
                format!("the kernel has no event source `{name}`"),
                match near.is_empty() {
                    true => "there are syscalls:sys_enter_NAME, syscalls:sys_exit_NAME, \
                             raw_syscalls, sched, exceptions, irq and irq_vectors"
                        .into(),
                    false => names::did_you_mean(&near),
                },
            ));
        }
        let mut groups = Vec::new();
        for source in found {
            let addresses = self.functions(&source.function);
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

    fn clause(&mut self, clause: &Clause) {
        // Probes of one kind with the same name are one: their addresses share the programs.
        let mut groups: Vec<Group> = Vec::new();
        for probe in &clause.probes {
            if let ProbeKind::Tracepoint { group, event } = &probe.kind {
                match self.source_groups(group, event, probe.span) {
                    Ok(found) => groups.extend(found),
                    Err(error) => self.error(error),
                }
                continue;
            }
            match self.group(probe) {
                Ok(group) => {
                    let same = groups.iter_mut().find(|known| {
                        known.name == group.name && known.site == group.site && group.name.1
                    });
                    match same {
                        Some(known) => {
                            known.addresses.extend(group.addresses);
                            known.addresses.sort_unstable();
                            known.addresses.dedup();
                        }
                        None => groups.push(group),
                    }
                }
                Err(error) => self.error(error),
            }
        }
        for group in groups {
            self.attach(clause, &group);
        }
    }

    /// Compiles a clause for the places of a group.
    fn attach(&mut self, clause: &Clause, group: &Group) {
        let errors = self.errors.len();
        let first = group.addresses.first().copied();
        let (programs, depends) = self.programs_at(clause, group, first);
        if self.errors.len() > errors {
            return;
        }
        if !depends || group.addresses.len() <= 1 {
            self.attachment(group, &programs, group.addresses.clone());
            return;
        }
        if group.addresses.len() > self.options.most_places {
            self.error(Diagnostic::new(
                group.span,
                format!(
                    "{} places match, and values of the source are somewhere else at each of them",
                    group.addresses.len()
                ),
                format!(
                    "name at most {} places, or use arg0 and other values that are found the same \
                     way everywhere",
                    self.options.most_places
                ),
            ));
            return;
        }
        // Addresses whose programs are equal share them.
        let mut of_programs = alloc::vec![(programs, first.into_iter().collect::<Vec<u64>>())];
        for address in group.addresses.iter().skip(1) {
            let before = core::mem::take(&mut self.errors);
            let (programs, _) = self.programs_at(clause, group, Some(*address));
            let new = core::mem::replace(&mut self.errors, before);
            if let Some(error) = new.into_iter().next() {
                let name = self.name_of(clause, *address);
                self.error(Diagnostic {
                    message: format!("{} (at {name}, one of the places)", error.message),
                    ..error
                });
                return;
            }
            match of_programs.iter_mut().find(|(known, _)| *known == programs) {
                Some((_, addresses)) => addresses.push(*address),
                None => of_programs.push((programs, alloc::vec![*address])),
            }
        }
        for (programs, addresses) in of_programs {
            self.attachment(group, &programs, addresses);
        }
    }

    /// The name of one of the functions of a clause, for messages.
    fn name_of(&self, clause: &Clause, address: u64) -> String {
        let patterns = clause.probes.iter().filter_map(|probe| match &probe.kind {
            ProbeKind::Entry { function, .. }
            | ProbeKind::Return { function }
            | ProbeKind::Session { function } => Some(&*function.text),
            _ => None,
        });
        for pattern in patterns {
            let functions = self.kernel.functions(pattern);
            let mut functions = functions.into_iter();
            if let Some(function) = functions.find(|function| function.address == address) {
                return format!("`{}`", function.path);
            }
        }
        format!("{address:#x}")
    }

    /// The programs of a clause at a place, and whether they depend on it: one, or an entry and a
    /// return.
    fn programs_at(
        &mut self,
        clause: &Clause,
        group: &Group,
        address: Option<u64>,
    ) -> (Vec<Program>, bool) {
        let probe = self.probes.iter().position(|known| *known == group.name);
        let probe = probe.unwrap_or_else(|| {
            self.probes.push(group.name.clone());
            self.probes.len() - 1
        });
        // The way that was found before, for other types of maps or at another place, comes first.
        let before = self.ways.get(&clause.span.start).copied();
        let mut way = before.unwrap_or(Way {
            turns: LEAST_TURNS,
            forgetful: false,
            is_estimated: false,
        });
        loop {
            self.has_open_loop = false;
            let errors = self.errors.len();
            let mut shared = Shared::default();
            let mut depends = false;
            let site = |kind| Site {
                kind,
                address,
                probe: probe as u16,
                forgetful: way.forgetful,
                turns: way.turns,
                source: group.source.clone(),
            };
            let mut parts: Vec<Parts> = Vec::new();
            match group.site {
                SiteKind::SessionEntry => {
                    let mut entry = Body::new(self, site(SiteKind::SessionEntry), &mut shared);
                    entry.clause(clause.predicate.as_ref(), &clause.body);
                    let (part, scope) = entry.suspend();
                    let mut on_return = Body::new(self, site(SiteKind::Return), &mut shared);
                    on_return.take_over(scope);
                    match &clause.on_return {
                        Some(part) => on_return.clause(part.predicate.as_ref(), &part.body),
                        None => on_return.clause(
                            None,
                            &tree::Block {
                                statements: Vec::new(),
                                span: clause.span,
                            },
                        ),
                    }
                    let (last, _) = on_return.suspend();
                    let mut entry =
                        Body::resume(self, site(SiteKind::SessionEntry), &mut shared, part);
                    entry.save();
                    let (first, _) = entry.suspend();
                    parts.extend([first, last]);
                }
                SiteKind::Return => {
                    let mut on_return = Body::new(self, site(SiteKind::Return), &mut shared);
                    on_return.clause(clause.predicate.as_ref(), &clause.body);
                    let (last, _) = on_return.suspend();
                    if shared.bytes() > 0 {
                        let mut entry = Body::new(self, site(SiteKind::SessionEntry), &mut shared);
                        entry.only_save();
                        let (first, _) = entry.suspend();
                        parts.push(first);
                    }
                    parts.push(last);
                }
                kind => {
                    let mut body = Body::new(self, site(kind), &mut shared);
                    body.clause(clause.predicate.as_ref(), &clause.body);
                    parts.push(body.suspend().0);
                }
            }
            depends |= parts.iter().any(|part| part.depends_on_place);
            if self.errors.len() > errors {
                return (Vec::new(), false);
            }
            let data = shared.bytes();
            if data > MOST_ENTRY_BYTES {
                self.error(Diagnostic::new(
                    clause.span,
                    format!(
                        "{data} bytes are kept from the entry to the return of a call; at most \
                         {MOST_ENTRY_BYTES} fit"
                    ),
                    "use fewer variables and arguments of the entry in the return part",
                ));
                return (Vec::new(), false);
            }
            if self.has_open_loop && !way.forgetful {
                way.forgetful = true;
                continue;
            }
            let is_last = way.forgetful && way.turns == LEAST_TURNS;
            match self.check(clause, group, parts, data, is_last) {
                // Maps are not known yet.
                Some((programs, None)) => return (programs, depends),
                Some((programs, Some(cost))) => {
                    let turns = turns_that_fit(cost);
                    if !self.has_open_loop || way.is_estimated || turns <= way.turns {
                        self.ways.insert(clause.span.start, way);
                        return (programs, depends);
                    }
                    way.turns = turns;
                    way.is_estimated = true;
                }
                None if self.errors.len() > errors => return (Vec::new(), false),
                None if !way.forgetful => way.forgetful = true,
                None => way.turns = (way.turns / 2).max(LEAST_TURNS),
            }
        }
    }

    /// The programs, verified. None: an error was noted, or, if it is not the last attempt, they
    /// shall be made in another way.
    fn check(
        &mut self,
        clause: &Clause,
        group: &Group,
        parts: Vec<Parts>,
        data: u32,
        is_last_attempt: bool,
    ) -> Option<(Vec<Program>, Option<Cost>)> {
        let mut programs = Vec::new();
        let mut most = Some(Cost::default());
        let count = parts.len();
        for (number, part) in parts.into_iter().enumerate() {
            let is_last = number + 1 == count;
            let kind = match group.site {
                SiteKind::SessionEntry | SiteKind::Return if is_last => {
                    ProgramKind::Return { data }
                }
                SiteKind::SessionEntry | SiteKind::Return => ProgramKind::Entry { data },
                _ => ProgramKind::Probe,
            };
            let maps = part.asm.maps.clone();
            if !part.asm.stack_fits() {
                self.error(Diagnostic::new(
                    clause.span,
                    "its variables, keys and values need more than 512 bytes of stack",
                    "use fewer variables and shorter texts, or make two clauses of it",
                ));
                return None;
            }
            if maps.len() > MOST_MAPS - maps_of_kernel() {
                self.error(Diagnostic::new(
                    clause.span,
                    format!(
                        "it uses {} maps; at most {} fit",
                        maps.len(),
                        MOST_MAPS - maps_of_kernel()
                    ),
                    "make two clauses of it",
                ));
                return None;
            }
            let insns = part.asm.finish();
            if insns.len() > MOST_INSNS - INSNS_OF_KERNEL {
                self.error(Diagnostic::new(
                    clause.span,
                    format!(
                        "it needs {} instructions; at most {} fit",
                        insns.len(),
                        MOST_INSNS - INSNS_OF_KERNEL
                    ),
                    "make two clauses of it, or print fewer fields of large values",
                ));
                return None;
            }
            // The types of maps may not be known yet. Then this is not the last time.
            let defs: Option<Vec<MapDef>> = maps.iter().map(|map| self.def(*map)).collect();
            let Some(defs) = defs else {
                most = None;
                programs.push(Program {
                    kind,
                    code: Vec::new(),
                    maps,
                });
                continue;
            };
            let code = bpf::wire::encode(&insns);
            let program = bpf::Program {
                kind,
                insns,
                maps: defs,
            };
            match (verifier::verify(program), code) {
                (Ok(verified), Ok(code)) => {
                    let cost = verified.cost();
                    most = most.map(|most| Cost {
                        path: most.path.max(cost.path),
                        walk: most.walk.max(cost.walk),
                    });
                    programs.push(Program { kind, code, maps });
                }
                (Err(_), _) if !is_last_attempt => return None,
                (Err(refusal), _) => {
                    self.error(Diagnostic::new(
                        clause.span,
                        format!("the verifier does not take its program: {refusal}"),
                        "make it shorter: fewer branches, loops and large values",
                    ));
                    return None;
                }
                (_, Err(error)) => {
                    self.error(Diagnostic::new(
                        clause.span,
                        format!("its program has no wire form: {error}"),
                        "make it shorter",
                    ));
                    return None;
                }
            }
        }
        Some((programs, most))
    }

    /// The definition of a map. None: it is not known yet.
    fn def(&self, number: u32) -> Option<MapDef> {
        let map = self.maps.get(number as usize)?;
        if let Some(def) = &map.def {
            return Some(def.clone());
        }
        let class = map.class.as_ref()?;
        let keys = map.keys.as_ref()?;
        let key_size: u32 = keys.iter().map(Shape::bytes).sum();
        let name = format!("@{}", map.name.as_deref().unwrap_or(""));
        let with_key = |kind, key_size, value_size| MapDef {
            name: name.clone().into(),
            kind,
            key_size,
            value_size,
            entries: self.options.map_keys,
        };
        let value_size = match class {
            Class::Count | Class::Histogram(_) => 8,
            Class::Plain(shape) => shape.bytes().max(1).next_multiple_of(8),
            _ => 16,
        };
        Some(match class {
            Class::Plain(_) if keys.is_empty() => MapDef {
                entries: 1,
                ..with_key(MapKind::Hash, 8, value_size)
            },
            Class::Plain(_) => with_key(MapKind::Hash, key_size, value_size),
            Class::Histogram(scale) if keys.is_empty() => MapDef {
                entries: scale.buckets(),
                ..with_key(MapKind::PerCpuArray, 4, 8)
            },
            // Each bucket is a key of its own.
            Class::Histogram(_) => MapDef {
                entries: self
                    .options
                    .map_keys
                    .saturating_mul(2)
                    .min(MapDef::MOST_ENTRIES),
                ..with_key(MapKind::PerCpuHash, key_size + 2, 8)
            },
            _ if keys.is_empty() => MapDef {
                entries: 1,
                ..with_key(MapKind::PerCpuArray, 4, value_size)
            },
            _ => with_key(MapKind::PerCpuHash, key_size, value_size),
        })
    }

    /// The number of a program; an equal one is used again.
    fn program(&mut self, program: &Program) -> u32 {
        let known = self.programs.iter().position(|known| known == program);
        known.unwrap_or_else(|| {
            self.programs.push(program.clone());
            self.programs.len() - 1
        }) as u32
    }

    fn attachment(&mut self, group: &Group, programs: &[Program], addresses: Vec<u64>) {
        let Some(last) = programs.last() else {
            return;
        };
        let program = self.program(last);
        let entry = match programs {
            [entry, _] => Some(self.program(entry)),
            _ => None,
        };
        self.origins.push(Origin {
            span: group.span,
            event: group.source.is_some().then(|| String::from(&*group.name.0)),
        });
        let nanoseconds = group.nanoseconds;
        self.attachments.push(match group.site {
            SiteKind::Entry | SiteKind::Inside => Attachment::Probe { program, addresses },
            SiteKind::Return | SiteKind::SessionEntry => Attachment::Call {
                entry,
                on_return: program,
                functions: addresses,
            },
            SiteKind::Begin => Attachment::Begin { program },
            SiteKind::End => Attachment::End { program },
            SiteKind::Interval => Attachment::Interval {
                program,
                nanoseconds,
            },
            SiteKind::Profile => Attachment::Profile {
                program,
                nanoseconds,
            },
        });
    }

    fn never_set(&self, number: usize) -> Diagnostic {
        let map = &self.maps[number];
        let name = map.name.as_deref().unwrap_or("");
        let others = self.maps.iter().enumerate();
        let others = others.filter(|(other, map)| *other != number && map.class.is_some());
        let others = others.filter_map(|(_, map)| map.name.as_deref());
        let near = names::nearest(name, others);
        let near: Vec<String> = near.into_iter().map(|name| format!("@{name}")).collect();
        Diagnostic::new(
            map.span,
            format!("`@{name}` is used, but nothing is ever assigned to it"),
            match near.is_empty() {
                true => format!("assign to it, for example `@{name} = count();`"),
                false => names::did_you_mean(&near),
            },
        )
    }

    fn finish(mut self) -> Result<Compiled, Vec<Diagnostic>> {
        for number in 0..self.maps.len() {
            let map = &self.maps[number];
            if map.name.is_some() && map.class.is_none() && self.errors.is_empty() {
                let error = self.never_set(number);
                self.error(error);
            }
        }
        if !self.errors.is_empty() {
            self.errors
                .sort_by_key(|error| (error.span.start, error.span.end));
            return Err(self.errors);
        }
        if self.loops.len() > MOST_OPEN_LOOPS as usize {
            return Err(alloc::vec![Diagnostic::new(
                Span::default(),
                format!("there are more than {MOST_OPEN_LOOPS} loops whose ends are not known"),
                "make several scripts of it",
            )]);
        }
        let counters = self.maps.iter().position(|map| {
            let def = map.def.as_ref();
            def.is_some_and(|def| def.name == LOOPS)
        });
        let mut maps = Vec::new();
        let mut views = Vec::new();
        for (number, map) in (0..).zip(&self.maps) {
            let Some(def) = self.def(number) else {
                continue;
            };
            if let Err(error) = def.check() {
                return Err(alloc::vec![Diagnostic::new(
                    map.span,
                    format!(
                        "`@{}` cannot be made: {error}",
                        map.name.as_deref().unwrap_or("")
                    ),
                    "use fewer or shorter keys, or a field of the value",
                )]);
            }
            maps.push(def);
            views.push(MapView {
                name: map.name.as_ref().map(|name| format!("@{name}")),
                class: map.class.clone().unwrap_or(Class::Count),
                keys: map.keys.clone().unwrap_or_default(),
            });
        }
        // Attachments of one probe are side by side.
        let mut probes: Vec<u32> = Vec::new();
        for (index, origin) in self.origins.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &self.origins[before]);
            let is_new = before.is_some_and(|before| before.span != origin.span);
            let last = probes.last().copied().unwrap_or(0);
            probes.push(last + u32::from(is_new));
        }
        Ok(Compiled {
            script: Script {
                version: script::VERSION,
                maps,
                programs: self.programs,
                attachments: self.attachments,
                probes,
                requests: self.requests,
            },
            view: View {
                maps: views,
                records: self.records,
                loops: Loops {
                    counters: counters.map(|number| number as u32),
                    loops: self.loops,
                },
                probes: self.probes,
            },
            origins: self.origins,
        })
    }
}

/// The kernel puts instructions in front of a program that count its hits, in a map of its own.
const INSNS_OF_KERNEL: usize = 16;

const fn maps_of_kernel() -> usize {
    1
}
