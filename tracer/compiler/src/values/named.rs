//! Functions and probes beside their names: `func == "vfs_read"`, `probe == "kprobe:vfs_read"`.
//!
//! A function is a number here, an address in it, and its name is known to the compiler. So it is
//! compared with the addresses of the functions that a probe of that name would have: a name that
//! no function has is refused, and one may leave out the beginning of a path.

use alloc::{format, string::String, vec::Vec};

use bpf::Condition;
use trace_interface::symbols::Function;
use trace_language::{
    Diagnostic, parse_with_room,
    tree::{Binary, Name, Probe, ProbeKind, Span},
};

use super::{Val, Values, composite};
use crate::{
    Lowered, names,
    number::{Counted, Kind, Number, Test},
};

/// The most functions of a name. Each is compared.
const MOST: usize = 16;

/// `==` and `!=` of a function or a probe with a name. None: neither side is one.
pub(super) fn named_equal(
    values: &mut Values<'_, '_>,
    operation: Binary,
    (left, right): (&Val, &Val),
    (left_span, right_span): (Span, Span),
) -> Lowered<Option<Test>> {
    let (counted, span, text) = match (left, right) {
        (Val::Number(counted), Val::Literal(text)) => (counted, left_span, (text, right_span)),
        (Val::Literal(text), Val::Number(counted)) => (counted, right_span, (text, left_span)),
        (Val::Number(a), Val::Number(b)) if a.kind == Kind::Probe && b.kind == Kind::Probe => {
            let equal = Test::compare(Condition::Equal, a.number.clone(), b.number.clone());
            return Ok(signed(operation, equal));
        }
        _ => return Ok(None),
    };
    let name = Name {
        text: text.0.clone(),
        span: text.1,
    };
    let test = match counted.kind {
        Kind::Symbol { .. } => is_in(values, counted, &name, span)?,
        Kind::Probe => is_probe(values, counted, &name, span)?,
        _ => return Ok(None),
    };
    Ok(signed(operation, test))
}

/// Whether an address is in a function of that name.
fn is_in(values: &mut Values<'_, '_>, counted: &Counted, name: &Name, span: Span) -> Lowered<Test> {
    let functions = functions_called(values, name)?;
    let counted = composite::once(values, counted.clone(), span);
    let is_in = |function: Function| {
        let bound = |condition, address| {
            Test::compare(condition, counted.number.clone(), Number::Constant(address))
        };
        let end = function.address + function.bytes.max(1);
        bound(Condition::AboveOrEqual, function.address).and(bound(Condition::Below, end))
    };
    let any = functions.into_iter().map(is_in);
    let any = any.fold(Test::Constant(false), Test::or);
    Ok(counted.present.and(any))
}

/// Whether the place is that of a probe, as a text has it.
fn is_probe(
    values: &mut Values<'_, '_>,
    counted: &Counted,
    name: &Name,
    span: Span,
) -> Lowered<Test> {
    if !matches!(values.probe(), Val::Number(here) if here == *counted) {
        return Err(Diagnostic::new(
            span,
            "only the probe that was hit can be compared with a name",
            "compare `probe` itself: `probe == \"kprobe:vfs_read\"`",
        ));
    }
    let refuse = || {
        Diagnostic::new(
            name.span,
            format!("`{}` is no name of a probe", name.text),
            "write it as before a block, for example \"kprobe:vfs_read\" or \"interval:s:1\"",
        )
    };
    values.check_room(name.span)?;
    // A clause of that probe alone.
    let rest = match name.text.starts_with("session:") {
        true => "{ } return { }",
        false => "{ }",
    };
    let text = format!("{} {rest}", name.text);
    let tree = parse_with_room(&text, &[], values.tables.options.has_room);
    let tree = tree.map_err(|_| refuse())?;
    let [clause] = &tree.clauses[..] else {
        return Err(refuse());
    };
    let is_plain = clause.span.start == 0 && clause.predicate.is_none();
    let ([probe], true, []) = (&clause.probes[..], is_plain, &clause.body.statements[..]) else {
        return Err(refuse());
    };
    let (here, has_name) = values.tables.probes[usize::from(values.site.probe)].clone();
    let (function, offset) = match &probe.kind {
        _ if !has_name => {
            return Ok(Test::Constant(*here == *shown(probe)));
        }
        ProbeKind::Entry { function, offset } if &*here == "kprobe:" => (function, *offset),
        ProbeKind::Return { function } if &*here == "kretprobe:" => (function, 0),
        ProbeKind::Session { function } if &*here == "session:" => (function, 0),
        _ => return Ok(Test::Constant(false)),
    };
    let function = Name {
        text: function.text.clone(),
        span: name.span,
    };
    let is_there = |of: Function| {
        let place = Number::Constant(of.address.wrapping_add(offset));
        Test::compare(Condition::Equal, Number::Ip, place)
    };
    let any = functions_called(values, &function)?
        .into_iter()
        .map(is_there);
    Ok(any.fold(Test::Constant(false), Test::or))
}

/// The functions of a name, of which there is one at least.
fn functions_called(values: &mut Values<'_, '_>, name: &Name) -> Lowered<Vec<Function>> {
    let functions = values.types().kernel.functions(&name.text);
    match functions.len() {
        0 => Err(values.tables.no_function(name)),
        1..=MOST => Ok(functions),
        many => Err(Diagnostic::new(
            name.span,
            format!(
                "{many} functions are called `{}`, and each is compared",
                name.text
            ),
            format!("write more of the path, so that it is {MOST} or fewer"),
        )),
    }
}

/// A probe without a function, as `probe` has it.
fn shown(probe: &Probe) -> String {
    match &probe.kind {
        ProbeKind::Interval { nanoseconds } => {
            format!("interval:{}", names::duration(*nanoseconds))
        }
        ProbeKind::Profile { nanoseconds } => format!("profile:{}", names::duration(*nanoseconds)),
        _ => format!("{probe}"),
    }
}

/// The test of `==`, or of `!=`. None: it is another operation.
fn signed(operation: Binary, equal: Test) -> Option<Test> {
    match operation {
        Binary::Equal => Some(equal),
        Binary::NotEqual => Some(equal.negated()),
        _ => None,
    }
}
