//! From the tree to a script: each clause to programs, at the places that its probes find.
//!
//! ```text
//!   Tables: maps, types ── a clause at a place ─► Program ─► Asm ─► bpf::Program, verified
//! ```
//!
//! The types of maps are known only after all their assignments are seen. So the whole is done
//! again until nothing new is learned about them; the messages are those of the last time.
//!
//! COMPILE-1. A clause that depends on the place (variables of the source, results) is compiled for
//!     each address. Any other is compiled once for all its addresses.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use bpf::{
    Cost, MOST_ENTRY_BYTES, MOST_INSNS, MOST_MAPS, MapDef, ProgramKind, STACK_BYTES, verifier,
};
use trace_interface::{
    script::{self, Attachment, Script},
    symbols::Kernel,
    view::{Class, Loops, MapView, View},
};
use trace_language::{
    Diagnostic,
    tree::{
        self, Block, Clause, Expression, ExpressionKind, ProbeKind, Span, StatementKind, Target,
        Tree,
    },
};

use crate::{
    options::{Missing, Options},
    places::{self, Group},
    program::{Parts, Program},
    settings,
    tables::{LOOPS, MOST_OPEN_LOOPS, Tables},
    types::shape::MOST_BREVITY,
    values::{Shared, Site, SiteKind, UserMoment},
};

/// A compiled text.
pub struct Compiled {
    pub script: Script,
    /// How its answers are read.
    pub view: View,
    /// Probes that were left out, because their places do not exist ([`Missing::Told`]).
    pub missing: Vec<Diagnostic>,
    /// Where each attachment comes from. A probe may have several attachments.
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
    tree: &Tree,
    kernel: &dyn Kernel,
    options: &Options,
) -> Result<Compiled, Vec<Diagnostic>> {
    let options = settings::with_settings(tree, options)?;
    let mut compiler = Compiler::new(kernel, &options);
    // Each time something is learned, or it is the last one. Types only grow, so few are needed,
    // and one more for each map that is assigned to the next.
    const MOST_TIMES: usize = 10;
    for declaration in &tree.maps {
        compiler.tables.declare(declaration);
    }
    let mistakes = core::mem::take(&mut compiler.tables.errors);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut times = 0;
    while times < MOST_TIMES + compiler.tables.maps.len() {
        times += 1;
        compiler.begin();
        for clause in &tree.clauses {
            compiler.clause(clause);
        }
        let tables = &mut compiler.tables;
        if !tables.learned && !tables.settle(&compiler.left_out) && !tables.settle_signs() {
            break;
        }
    }
    compiler.finish()
}

/// Adds the maps that a block assigns to.
fn assigned(block: &Block, maps: &mut BTreeSet<String>) {
    for statement in &block.statements {
        match &statement.kind {
            StatementKind::Assign {
                target: Target::Map(map),
                ..
            } => {
                maps.insert(map.name.text.clone());
            }
            StatementKind::Expression(Expression {
                kind: ExpressionKind::Step { target, .. },
                ..
            }) => {
                if let Target::Map(map) = &**target {
                    maps.insert(map.name.text.clone());
                }
            }
            _ => {}
        }
        for block in statement.clone().blocks_mut() {
            assigned(block, maps);
        }
    }
}

/// See the module's text.
struct Compiler<'a> {
    tables: Tables<'a>,
    programs: Vec<script::Program>,
    attachments: Vec<Attachment>,
    origins: Vec<Origin>,
    missing: Vec<Diagnostic>,
    /// The maps that clauses without a place assign to.
    left_out: BTreeSet<String>,
    /// How the programs of a clause were made last, by its beginning.
    ways: BTreeMap<usize, Way>,
    /// The programs that were made last would fit if the values in them were shorter.
    is_too_long: bool,
}

/// A loop whose end the text does not tell has a number of turns at most, because a program must
/// end. A program is made with the least of them first. The work of the verifier then tells how
/// many it would take: the more a turn does, the fewer.
const LEAST_TURNS: u32 = 16;
const MOST_TURNS: u32 = 1024;

/// A power of two of turns that the verifier takes, most likely, of a program whose loops had
/// [`LEAST_TURNS`] and so much to see.
fn turns_that_fit(cost: Cost) -> u32 {
    // A part of the walk is enough, so that a script compiles soon.
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
    /// How much shorter values in records are than they might be ([`Types::shorten`]).
    ///
    /// [`Types::shorten`]: crate::types::Types::shorten
    brevity: usize,
}

/// What [`Compiler::check`] may do about programs that the kernel would not take.
#[derive(Clone, Copy)]
struct Attempt {
    /// They cannot be made in another way.
    is_last: bool,
    /// They cannot be made with shorter values.
    is_shortest: bool,
}

/// The kernel puts instructions in front of a program that count its hits, in a map of its own.
const INSNS_OF_KERNEL: usize = 16;
const MAPS_OF_KERNEL: usize = 1;

impl<'a> Compiler<'a> {
    fn new(kernel: &'a dyn Kernel, options: &'a Options) -> Self {
        Self {
            tables: Tables::new(kernel, options),
            programs: Vec::new(),
            attachments: Vec::new(),
            origins: Vec::new(),
            missing: Vec::new(),
            left_out: BTreeSet::new(),
            ways: BTreeMap::new(),
            is_too_long: false,
        }
    }

    fn begin(&mut self) {
        self.tables.begin();
        self.programs.clear();
        self.attachments.clear();
        self.origins.clear();
        self.missing.clear();
    }

    fn clause(&mut self, clause: &Clause) {
        // Probes of one kind with the same name are one: their addresses share the programs.
        let mut groups: Vec<Group> = Vec::new();
        for probe in &clause.probes {
            let several = match &probe.kind {
                ProbeKind::Tracepoint { group, event } => Some(places::of_sources(
                    &mut self.tables,
                    group,
                    event,
                    probe.span,
                )),
                ProbeKind::User {
                    path,
                    place,
                    returns,
                } => Some(places::of_program(
                    &self.tables,
                    probe.span,
                    path,
                    place,
                    *returns,
                )),
                ProbeKind::Mark {
                    path,
                    provider,
                    name,
                } => Some(places::of_marks(
                    &self.tables,
                    probe.span,
                    path,
                    provider,
                    name,
                )),
                ProbeKind::Watch {
                    what: tree::Watched::OfCall(call),
                    access,
                    ..
                } => Some(places::of_call(&mut self.tables, probe, call, *access)),
                _ => None,
            };
            match several {
                Some(Ok(found)) => {
                    groups.extend(found);
                    continue;
                }
                Some(Err(error)) => {
                    self.missing(error);
                    continue;
                }
                None => {}
            }
            match places::group(&mut self.tables, probe) {
                Ok(group) => {
                    let same = groups.iter_mut().find(|known| {
                        known.name == group.name && known.site == group.site && group.name.1
                    });
                    match same {
                        Some(known) => known.addresses.extend(group.addresses),
                        None => groups.push(group),
                    }
                }
                Err(error) => self.missing(error),
            }
        }
        if groups.is_empty() {
            let on_return = clause.on_return.iter().map(|part| &part.body);
            for body in [&clause.body].into_iter().chain(on_return) {
                assigned(body, &mut self.left_out);
            }
        }
        for mut group in groups {
            group.addresses.sort_unstable();
            group.addresses.dedup();
            let program = group.user.as_ref().map(|user| &*user.path);
            self.tables.types.set_program(program);
            self.attach(clause, &group);
            self.tables.types.set_program(None);
        }
    }

    /// Notes a probe whose place does not exist.
    fn missing(&mut self, error: Diagnostic) {
        match self.tables.options.missing_probes {
            Missing::Refused => self.tables.error(error),
            Missing::Told | Missing::Ignored => self.missing.push(error),
        }
    }

    /// Compiles a clause for the places of a group.
    fn attach(&mut self, clause: &Clause, group: &Group) {
        let errors = self.tables.errors.len();
        let first = group.addresses.first().copied();
        let (programs, depends) = self.programs_at(clause, group, first);
        if self.tables.errors.len() > errors {
            return;
        }
        if !depends || group.addresses.len() <= 1 {
            self.attachment(group, &programs, group.addresses.clone());
            return;
        }
        if group.addresses.len() > self.tables.options.most_places {
            self.tables.error(Diagnostic::new(
                group.span,
                format!(
                    "{} places match, and values of the source are somewhere else at each of them",
                    group.addresses.len()
                ),
                format!(
                    "name at most {} places, or use arg0 and other values that are found the same \
                     way everywhere",
                    self.tables.options.most_places
                ),
            ));
            return;
        }
        // Addresses whose programs are equal share them.
        let mut of_programs = alloc::vec![(programs, first.into_iter().collect::<Vec<u64>>())];
        for address in group.addresses.iter().skip(1) {
            let before = core::mem::take(&mut self.tables.errors);
            let (programs, _) = self.programs_at(clause, group, Some(*address));
            let new = core::mem::replace(&mut self.tables.errors, before);
            if let Some(error) = new.into_iter().next() {
                let name = self.name_of(clause, *address);
                self.tables.error(Diagnostic {
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
            let functions = self.tables.types.kernel.functions(pattern);
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
    ) -> (Vec<script::Program>, bool) {
        let probe = self
            .tables
            .probes
            .iter()
            .position(|known| *known == group.name);
        let probe = probe.unwrap_or_else(|| {
            self.tables.probes.push(group.name.clone());
            self.tables.probes.len() - 1
        });
        // The way that was found before, for other types of maps or at another place, comes first.
        let before = self.ways.get(&clause.span.start).copied();
        let mut way = before.unwrap_or(Way {
            turns: LEAST_TURNS,
            forgetful: false,
            is_estimated: false,
            brevity: 0,
        });
        let records = self.tables.records.len();
        loop {
            self.tables.has_open_loop = false;
            self.tables.types.shorten(way.brevity);
            self.is_too_long = false;
            let errors = self.tables.errors.len();
            let mut shared = Shared::default();
            let parts = self.parts(clause, group, (probe as u16, address, way), &mut shared);
            let depends = parts.iter().any(|part| part.depends_on_place);
            if self.tables.errors.len() > errors {
                return (Vec::new(), false);
            }
            let data = shared.bytes();
            if data > MOST_ENTRY_BYTES {
                self.tables.error(Diagnostic::new(
                    clause.span,
                    format!(
                        "{data} bytes are kept from the entry to the return of a call; at most \
                         {MOST_ENTRY_BYTES} fit"
                    ),
                    "use fewer variables and arguments of the entry in the return part",
                ));
                return (Vec::new(), false);
            }
            if self.tables.has_open_loop && !way.forgetful {
                way.forgetful = true;
                continue;
            }
            let attempt = Attempt {
                is_last: way.forgetful && way.turns == LEAST_TURNS,
                is_shortest: way.brevity == MOST_BREVITY,
            };
            match self.check(clause, group, parts, data, attempt) {
                // Maps are not known yet.
                Some((programs, None)) => return (programs, depends),
                Some((programs, Some(cost))) => {
                    let turns = turns_that_fit(cost);
                    if !self.tables.has_open_loop || way.is_estimated || turns <= way.turns {
                        self.ways.insert(clause.span.start, way);
                        return (programs, depends);
                    }
                    way.turns = turns;
                    way.is_estimated = true;
                }
                None if self.tables.errors.len() > errors => return (Vec::new(), false),
                None if self.is_too_long => {
                    way.brevity += 1;
                    self.tables.records.truncate(records);
                    self.tables.requests.truncate(records);
                }
                None if !way.forgetful => way.forgetful = true,
                None => way.turns = (way.turns / 2).max(LEAST_TURNS),
            }
        }
    }

    /// The programs of a clause at a place, not verified: one, or an entry and a return.
    fn parts(
        &mut self,
        clause: &Clause,
        group: &Group,
        (probe, address, way): (u16, Option<u64>, Way),
        shared: &mut Shared,
    ) -> Vec<Parts> {
        let site = |kind| Site {
            kind,
            address,
            probe,
            forgetful: way.forgetful,
            turns: way.turns,
            source: group.source.clone(),
            words: usize::MAX,
            function: group.user.as_ref().and_then(|user| user.name.clone()),
            mark: group.user.as_ref().and_then(|user| user.mark.clone()),
            copy: group.copy.clone(),
        };
        match group.site {
            SiteKind::SessionEntry => {
                let mut entry =
                    Program::new(&mut self.tables, site(SiteKind::SessionEntry), shared);
                entry.clause(clause.predicate.as_ref(), &clause.body);
                let (part, scope) = entry.suspend();
                let mut on_return = Program::new(&mut self.tables, site(SiteKind::Return), shared);
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
                    Program::resume(&mut self.tables, site(SiteKind::SessionEntry), shared, part);
                entry.save();
                let (first, _) = entry.suspend();
                alloc::vec![first, last]
            }
            SiteKind::Return => {
                let mut on_return = Program::new(&mut self.tables, site(SiteKind::Return), shared);
                on_return.clause(clause.predicate.as_ref(), &clause.body);
                let (last, _) = on_return.suspend();
                if shared.bytes() == 0 {
                    return alloc::vec![last];
                }
                let mut entry =
                    Program::new(&mut self.tables, site(SiteKind::SessionEntry), shared);
                entry.save();
                let (first, _) = entry.suspend();
                alloc::vec![first, last]
            }
            kind => {
                let mut body = Program::new(&mut self.tables, site(kind), shared);
                if let Some(aim) = &group.aim {
                    body.aim(aim);
                    return alloc::vec![body.suspend().0];
                }
                body.clause(clause.predicate.as_ref(), &clause.body);
                alloc::vec![body.suspend().0]
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
        attempt: Attempt,
    ) -> Option<(Vec<script::Program>, Option<Cost>)> {
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
            if !part.memory.fits() {
                self.tables.error(Diagnostic::new(
                    clause.span,
                    format!(
                        "its variables, keys and values need more than {STACK_BYTES} bytes of stack"
                    ),
                    "use fewer variables and shorter texts, or make two clauses of it",
                ));
                return None;
            }
            if maps.len() > MOST_MAPS - MAPS_OF_KERNEL {
                self.tables.error(Diagnostic::new(
                    clause.span,
                    format!(
                        "it uses {} maps; at most {} fit",
                        maps.len(),
                        MOST_MAPS - MAPS_OF_KERNEL
                    ),
                    "make two clauses of it",
                ));
                return None;
            }
            let insns = part.asm.finish(&part.memory);
            if insns.len() > MOST_INSNS - INSNS_OF_KERNEL {
                if !attempt.is_shortest {
                    self.is_too_long = true;
                    return None;
                }
                self.tables.error(Diagnostic::new(
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
            let defs: Option<Vec<MapDef>> = maps.iter().map(|map| self.tables.def(*map)).collect();
            let Some(defs) = defs else {
                most = None;
                programs.push(script::Program {
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
                    programs.push(script::Program { kind, code, maps });
                }
                (Err(_), _) if !attempt.is_last => return None,
                (Err(_), _) if !attempt.is_shortest => {
                    self.is_too_long = true;
                    return None;
                }
                (Err(refusal), _) => {
                    self.tables.error(Diagnostic::new(
                        clause.span,
                        format!("the verifier does not take its program: {refusal}"),
                        "make it shorter: fewer branches, loops and large values",
                    ));
                    return None;
                }
                (_, Err(error)) => {
                    self.tables.error(Diagnostic::new(
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

    /// The number of a program; an equal one is used again.
    fn program(&mut self, program: &script::Program) -> u32 {
        let known = self.programs.iter().position(|known| known == program);
        known.unwrap_or_else(|| {
            self.programs.push(program.clone());
            self.programs.len() - 1
        }) as u32
    }

    fn attachment(&mut self, group: &Group, programs: &[script::Program], addresses: Vec<u64>) {
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
            SiteKind::Watch(watched) => Attachment::Watch {
                program,
                path: group.user.as_ref().map(|user| user.path.clone()),
                at: watched.at,
                bytes: watched.bytes,
                access: watched.access,
            },
            SiteKind::User(moment) => {
                // A group of this kind has one.
                let user = group.user.clone().unwrap_or_default();
                Attachment::User {
                    program,
                    path: user.path,
                    function: user.function,
                    offset: user.offset,
                    counter: user.mark.and_then(|mark| mark.counter),
                    returns: moment == UserMoment::Return,
                }
            }
        });
    }

    fn finish(mut self) -> Result<Compiled, Vec<Diagnostic>> {
        for number in 0..self.tables.maps.len() {
            let map = &self.tables.maps[number];
            if let Some(error) = self.tables.unlike_declared(map) {
                self.tables.error(error);
                continue;
            }
            let is_unknown = map.name.is_some() && map.class.is_none();
            if is_unknown && map.declared.is_none() && self.tables.errors.is_empty() {
                let error = self.tables.never_set(number);
                self.tables.error(error);
            }
        }
        if self.attachments.is_empty() && self.tables.errors.is_empty() {
            // Nothing would run.
            self.tables.errors.append(&mut self.missing);
        }
        if !self.tables.errors.is_empty() {
            self.tables
                .errors
                .sort_by_key(|error| (error.span.start, error.span.end));
            return Err(self.tables.errors);
        }
        if self.tables.loops.len() > MOST_OPEN_LOOPS as usize {
            return Err(alloc::vec![Diagnostic::new(
                Span::default(),
                format!("there are more than {MOST_OPEN_LOOPS} loops whose ends are not known"),
                "make several scripts of it",
            )]);
        }
        let counters = self.tables.maps.iter().position(|map| {
            let def = map.def.as_ref();
            def.is_some_and(|def| def.name == LOOPS)
        });
        let mut maps = Vec::new();
        let mut views = Vec::new();
        for (number, map) in (0..).zip(&self.tables.maps) {
            let Some(def) = self.tables.def(number) else {
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
        let origins = (0..).zip(&self.origins);
        let of_all_tasks = origins.filter(|(_, origin)| origin.event.is_some());
        let of_all_tasks = of_all_tasks.map(|(number, _)| number).collect();
        Ok(Compiled {
            script: Script {
                version: script::VERSION,
                maps,
                programs: self.programs,
                attachments: self.attachments,
                probes,
                requests: self.tables.requests,
                of_all_tasks,
                with_tracer: self.tables.options.with_tracer,
            },
            view: View {
                maps: views,
                records: self.tables.records,
                loops: Loops {
                    counters: counters.map(|number| number as u32),
                    loops: self.tables.loops,
                },
                probes: self.tables.probes,
                hides_maps: !self.tables.options.shows_maps,
            },
            missing: match self.tables.options.missing_probes {
                Missing::Told => self.missing,
                _ => Vec::new(),
            },
            origins: self.origins,
        })
    }
}
