//! The text of a tree.
//!
//! Numbers are in all forms that there are. Operands stand in parentheses only where C's operators
//! bind otherwise, and all other parts stand in some.

use std::fmt::Write as _;

use super::{
    Argument, Entry, Expr, Kind, Let, Parameter, Place, Program, Statement, Type, Variable,
};

fn entry(entry: &Entry) -> String {
    match (entry.keys.is_empty(), entry.as_tuple) {
        (true, _) => entry.map.name.clone(),
        (false, true) => format!("{}[({})]", entry.map.name, list(&entry.keys)),
        (false, false) => format!("{}[{}]", entry.map.name, list(&entry.keys)),
    }
}

/// A map and a key as two arguments of a call.
fn arguments(entry: &Entry) -> String {
    match &entry.keys[..] {
        [key] => format!("{}, {}", entry.map.name, expr(key)),
        keys => format!("{}, ({})", entry.map.name, list(keys)),
    }
}

fn list(values: &[Expr]) -> String {
    let texts: Vec<String> = values.iter().map(expr).collect();
    texts.join(", ")
}

fn step(name: &str, is_up: bool, is_before: bool) -> String {
    let sign = if is_up { "++" } else { "--" };
    match is_before {
        true => format!("{sign}{name}"),
        false => format!("{name}{sign}"),
    }
}

/// A number that is not below zero, in a form that depends on it.
fn natural(number: i128) -> String {
    match number % 9 {
        1 if number > 9 => format!("{number:#x}"),
        2 if number > 9 => format!("{number}UL"),
        3 if number > 9 => format!("{number:#b}"),
        4 if number > 9 => format!("0{number:o}"),
        5 if number > 999 => format!("{}_{:03}", number / 1000, number % 1000),
        0 if number > 0 && number % 1000 == 0 => format!("{}us", number / 1000),
        _ => number.to_string(),
    }
}

/// How tightly an operator binds, as in C.
fn binding(op: &str) -> u32 {
    let levels: [&[&str]; 10] = [
        &["||"],
        &["&&"],
        &["|"],
        &["^"],
        &["&"],
        &["==", "!="],
        &["<", "<=", ">", ">="],
        &["<<", ">>"],
        &["+", "-"],
        &["*", "/", "%"],
    ];
    let level = levels.iter().position(|level| level.contains(&op));
    level.expect("an operator") as u32
}

/// An operand of an operator, without the parentheses that its binding makes needless.
fn operand(of: &Expr, least: u32) -> String {
    let text = expr(of);
    match &of.kind {
        Kind::Binary(op, ..) | Kind::Compare(op, ..) if binding(op) >= least => {
            text[1..text.len() - 1].into()
        }
        _ => text,
    }
}

fn expr(value: &Expr) -> String {
    match &value.kind {
        Kind::Number(number) if *number < 0 => format!("({number})"),
        Kind::Number(number) => natural(*number),
        Kind::Truth(is) => is.to_string(),
        Kind::Word(word) => format!("{word:?}"),
        Kind::Joined(a, b) => format!("({a:?} + {b:?})"),
        Kind::Comm => "comm".into(),
        Kind::TextAt(number, None) => format!("str(arg{number})"),
        Kind::TextAt(number, Some(most)) => format!("str(arg{number}, {most})"),
        Kind::Argument(number) => format!("arg{number}"),
        Kind::Variable(variable) => variable.name.clone(),
        Kind::Read(at) => entry(at),
        Kind::Unary(op, a) => format!("{op}({})", expr(a)),
        Kind::Binary(op, a, b) | Kind::Compare(op, a, b) => {
            let (left, right) = (operand(a, binding(op)), operand(b, binding(op) + 1));
            format!("({left} {op} {right})")
        }
        Kind::Choice(c, a, b) => format!("({} ? {} : {})", expr(c), expr(a), expr(b)),
        Kind::IfElse(c, a, b) => {
            format!(
                "(if ({}) {{ {} }} else {{ {} }})",
                expr(c),
                expr(a),
                expr(b)
            )
        }
        Kind::Or(a, b) => format!("({} ?: {})", expr(a), expr(b)),
        Kind::Cast(to, a) => format!("({})({})", to.name(), expr(a)),
        Kind::CastTruth(a) => format!("(bool)({})", expr(a)),
        Kind::Tuple(parts) if parts.len() == 1 => format!("({},)", expr(&parts[0])),
        Kind::Tuple(parts) => format!("({})", list(parts)),
        Kind::Record(fields) => {
            let texts: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", expr(value)))
                .collect();
            format!("({})", texts.join(", "))
        }
        Kind::Part(of, number) => format!("{}.{number}", expr(of)),
        Kind::PartAt(of, number) => format!("{}[{number}]", expr(of)),
        Kind::Field(of, name) => format!("{}.{name}", expr(of)),
        Kind::Array(of, count, number) => format!("({}[{count}])({})", of.name(), expr(number)),
        Kind::Element(of, count, index) => format!("{}[({}) % {count}]", expr(of), expr(index)),
        Kind::Swapped(_, of) => format!("(uint64)bswap({})", expr(of)),
        Kind::IsError(of) => format!("(bool)is_err({})", expr(of)),
        Kind::Start(of, bytes) => format!("str({}, {bytes})", expr(of)),
        Kind::Before(a, b) => format!("({a:?} < {b:?})"),
        Kind::OfArray(of) if value.of == Type::Signed => format!("(int64)({})", expr(of)),
        Kind::OfArray(of) => format!("(uint64)({})", expr(of)),
        Kind::TextArray(of, word) => format!("(({}[]){word:?})", of.name()),
        Kind::Like(variable, of) => format!("(typeof({}))({})", variable.name, expr(of)),
        Kind::IsAt(word, is_read) => {
            let function = if *is_read { "vfs_read" } else { "vfs_write" };
            let before = if *word == "probe" { "kprobe:" } else { "" };
            format!("({word} == \"{before}{function}\")")
        }
        Kind::Bytes(of, bytes) => format!("buf({}, {bytes})", expr(of)),
        Kind::SomeBytes(of, bytes) => format!("buf({}, {})", expr(of), expr(bytes)),
        Kind::TextUpTo(number, bytes) => format!("str(arg{number}, {})", expr(bytes)),
        Kind::Time(format, of) => format!("strftime({format:?}, {})", expr(of)),
        Kind::SizeOf(of) => format!("sizeof({})", expr(of)),
        Kind::OfType(text, _) => (*text).into(),
        Kind::ByType(of, a, b) => {
            format!(
                "(comptime is_str({}) ? {} : {})",
                expr(of),
                expr(a),
                expr(b)
            )
        }
        Kind::Nanoseconds => "nsecs".into(),
        Kind::ToPointer(to, of) => format!("({} *)({})", to.name(), expr(of)),
        Kind::Moved(op, of, by) => format!("({} {op} {})", expr(of), expr(by)),
        Kind::Steps(a, b) => format!("({} - {})", expr(a), expr(b)),
        Kind::At(of) => format!("(*({}))", expr(of)),
        Kind::Indexed(of, index) => format!("({})[({}) % 4]", expr(of), expr(index)),
        Kind::OfFile(None, field) => format!("args.file.{}", field.name()),
        Kind::OfFile(Some(at), field) => format!("((File *)({})).{}", expr(at), field.name()),
        Kind::Count => "args.count".into(),
        Kind::Delta => "args.delta".into(),
        Kind::Retval => "retval".into(),
        Kind::Tid => "tid".into(),
        Kind::Cpu => "cpu".into(),
        Kind::Byte(of, index) => format!("(uint64){}[{index}]", expr(of)),
        Kind::Length(of) => format!("(uint64)strlen({})", expr(of)),
        Kind::Begins(of, word, bytes) => {
            format!("(strncmp({}, {word:?}, {bytes}) == 0)", expr(of))
        }
        Kind::Contains(of, part) => {
            format!("(bool)strcontains({}, {})", expr(of), expr(part))
        }
        Kind::Find(of, part) => format!("(int64)strstr({}, {})", expr(of), expr(part)),
        Kind::HasKey(at) => format!("(bool)has_key({})", arguments(at)),
        Kind::Delete(at) => format!("(bool)delete({})", arguments(at)),
        Kind::Keys(map) => format!("(uint64)len({})", map.name),
        Kind::Step(variable, is_up, is_before) => step(&variable.name, *is_up, *is_before),
        Kind::StepAt(at, is_up, is_before) => step(&entry(at), *is_up, *is_before),
        Kind::Block(body, value) => format!("{{ {}{} }}", block(body), expr(value)),
        Kind::Parameter(number) => format!("p{number}"),
        Kind::Macro(number, given) => {
            let texts: Vec<String> = given
                .iter()
                .map(|argument| match argument {
                    Argument::Map(map) => map.name.clone(),
                    Argument::Variable(variable) => variable.name.clone(),
                    Argument::Value(value) => expr(value),
                })
                .collect();
            format!("m{number}({})", texts.join(", "))
        }
    }
}

fn type_name(variable: &Variable) -> String {
    match (&variable.of, variable.cut) {
        (_, Some(cut)) => cut.name(),
        (Type::Signed, _) => "int64".into(),
        (Type::Unsigned, _) => "uint64".into(),
        (Type::Truth, _) => "bool".into(),
        (Type::Text, _) => match variable.id % 4 {
            0 => "string[256]".into(),
            1 => "string[64]".into(),
            _ => "string".into(),
        },
        (Type::Array(of, count), _) => format!("{}[{count}]", of.name()),
        (Type::Pointer(to), _) => format!("{} *", to.name()),
        (other, _) => unreachable!("{other:?} has no name"),
    }
}

fn declared(is: Let, variable: &Variable) -> String {
    match is {
        Let::No => variable.name.clone(),
        Let::Plain => format!("let {}", variable.name),
        Let::Typed => format!("let {}: {}", variable.name, type_name(variable)),
    }
}

fn block(body: &[Statement]) -> String {
    let mut out = String::new();
    for each in body {
        out += &statement(each);
        out.push(' ');
    }
    out
}

fn statement(is: &Statement) -> String {
    match is {
        Statement::Assign(how, variable, value) => {
            format!("{} = {};", declared(*how, variable), expr(value))
        }
        Statement::Declare(how, variable) => format!("{};", declared(*how, variable)),
        Statement::Change(op, variable, value) => {
            format!("{} {op}= {};", variable.name, expr(value))
        }
        Statement::Put(at, value) => format!("{} = {};", entry(at), expr(value)),
        Statement::ChangeAt(op, at, value) => format!("{} {op}= {};", entry(at), expr(value)),
        Statement::Gather(at, gather, value) => {
            format!("{} = {};", entry(at), gather.call(&expr(value)))
        }
        Statement::Do(value) => format!("{};", expr(value)),
        Statement::If(condition, then, None) => {
            format!("if ({}) {{ {}}}", expr(condition), block(then))
        }
        Statement::If(condition, then, Some(otherwise)) => {
            format!(
                "if ({}) {{ {}}} else {{ {}}}",
                expr(condition),
                block(then),
                block(otherwise)
            )
        }
        Statement::Match(value, arms, otherwise) => {
            let mut out = format!("match {} {{ ", expr(value));
            for (pattern, body) in arms {
                let _ = write!(out, "{} => {{ {}}} ", expr(pattern), block(body));
            }
            let _ = write!(out, "_ => {{ {}}} }}", block(otherwise));
            out
        }
        Statement::Fields(of, arms, otherwise) => {
            let mut out = format!("match {} {{ ", of.value());
            for (number, names, body) in arms {
                let _ = write!(
                    out,
                    "{} => {{ {}}} ",
                    of.pattern(*number, names),
                    block(body)
                );
            }
            let _ = write!(out, "_ => {{ {}}} }}", block(otherwise));
            out
        }
        Statement::Block(body) => format!("{{ {}}}", block(body)),
        Statement::Unroll(times, body) => format!("unroll ({times}) {{ {}}}", block(body)),
        Statement::For(variable, from, to, body) => format!(
            "for ({} : {}..{}) {{ {}}}",
            variable.name,
            expr(from),
            expr(to),
            block(body)
        ),
        Statement::While(counter, turns, condition, body) => format!(
            "{0} = (uint64)0; while ({0} < {turns} && {1}) {{ {0}++; {2}}}",
            counter.name,
            expr(condition),
            block(body)
        ),
        Statement::Each(pair, map, body) => {
            format!("for ({} : {}) {{ {}}}", pair.name, map.name, block(body))
        }
        Statement::Find(at, variable, then, otherwise) => format!(
            "if (find({}, {})) {{ {}}} else {{ {}}}",
            arguments(at),
            variable.name,
            block(then),
            block(otherwise)
        ),
        Statement::Break => "break;".into(),
        Statement::Continue => "continue;".into(),
        Statement::Return => "return;".into(),
        Statement::Exit(None) => "exit();".into(),
        Statement::Exit(Some(status)) => format!("exit({status});"),
        Statement::Join(from, None) => format!("join({from:#x});"),
        Statement::Join(from, Some(between)) => format!("join({from:#x}, {between:?});"),
        Statement::Print(value) => format!("print({});", expr(value)),
        Statement::Printf(parts, is_loose) => {
            let formats: Vec<String> = parts.iter().map(|(is, _)| is.text()).collect();
            let values = parts
                .iter()
                .flat_map(|(is, value)| is.star.iter().chain([value]));
            let values: Vec<String> = values.map(expr).collect();
            let mark = if *is_loose { "~" } else { "" };
            let values = values.join(", ");
            format!("printf(\"{mark}{}|\\n\", {values});", formats.join("|"))
        }
        Statement::PrintMap(map, None) => format!("print({});", map.name),
        Statement::PrintMap(map, Some((top, by))) => format!("print({}, {top}, {by});", map.name),
        Statement::PrintAt(at) => format!("print({});", entry(at)),
        Statement::Clear(map) => format!("clear({});", map.name),
        Statement::Zero(map) => format!("zero({});", map.name),
        Statement::DeleteAt(at, true) => format!("delete({});", entry(at)),
        Statement::DeleteAt(at, false) => format!("delete({});", arguments(at)),
        Statement::ClearAt(at) => format!("clear({});", entry(at)),
        Statement::ZeroAt(at) => format!("zero({});", entry(at)),
    }
}

impl Program {
    pub(in super::super) fn text(&self) -> String {
        let mut out = self.settings.text();
        for map in &self.maps {
            if let Some((kind, keys)) = map.declared {
                let _ = writeln!(out, "let {} = {kind}({keys});", map.name);
            }
        }
        for (number, each) in self.macros.iter().enumerate() {
            let names = each.parameters.iter().enumerate();
            let names: Vec<String> = names
                .map(|(number, parameter)| match parameter {
                    Parameter::Map(map) => map.name.clone(),
                    Parameter::Variable(variable) => variable.name.clone(),
                    Parameter::Value(_) => format!("p{number}"),
                })
                .collect();
            let names = names.join(", ");
            let (body, value) = (block(&each.body), expr(&each.value));
            let _ = writeln!(out, "macro m{number}({names}) {{ {body}{value} }}");
        }
        let _ = writeln!(out, "kprobe:vfs_open {{ {}}}", block(&self.typing));
        for clause in &self.clauses {
            out += match clause.place {
                Place::Write => "kprobe:vfs_write",
                Place::Read => "kprobe:vfs_read",
                Place::Both => "kprobe:vfs_write, kprobe:vfs_read",
                Place::Session => "session:vfs_write",
                Place::SessionRead => "session:vfs_read",
                Place::Return => "kretprobe:vfs_read",
                Place::Interval => "interval:s:1",
            };
            if let Some(condition) = &clause.condition {
                let _ = write!(out, " /{}/", expr(condition));
            }
            let _ = write!(out, " {{ {}}}", block(&clause.body));
            if clause.place.has_return() {
                let _ = write!(out, " return {{ {}}}", block(&clause.at_return));
            }
            out.push('\n');
        }
        out
    }
}
