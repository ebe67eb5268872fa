//! A tree as text, which makes the same tree again, except for the spans.
//!
//! Parentheses stand around an operand that binds less than its operator. The last line of a trace
//! names open loops so, and tests read what was printed again.

use core::fmt::{self, Display, Formatter, Write};

use crate::{
    parser::is_plain_pattern,
    tree::{
        Access, Arm, Binary, Block, Clause, Expression, ExpressionKind, Map, MapDeclaration, Name,
        Pattern, PatternKind, Probe, ProbeKind, ReturnPart, Setting, Statement, StatementKind,
        Target, Tree, TypeKind, TypeName, UserPlace, Watched,
    },
};

/// Prints the items with the separator between them.
fn list<T: Display>(f: &mut Formatter<'_>, items: &[T], separator: &str) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

/// A text in quotes.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for letter in self.0.chars() {
            match letter {
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                '\r' => f.write_str("\\r")?,
                '"' | '\\' => write!(f, "\\{letter}")?,
                // Two digits always, because a digit may follow.
                '\0'..' ' => write!(f, "\\x{:02x}", u32::from(letter))?,
                _ => f.write_char(letter)?,
            }
        }
        f.write_char('"')
    }
}

impl Display for Tree {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.settings.is_empty() {
            f.write_str("config = { ")?;
            for Setting { name, value } in &self.settings {
                write!(f, "{} = {}; ", name.text, Quoted(&value.text))?;
            }
            f.write_str("}\n")?;
        }
        for MapDeclaration {
            name, kind, keys, ..
        } in &self.maps
        {
            writeln!(f, "let @{} = {}({keys});", name.text, kind.text)?;
        }
        list(f, &self.clauses, "\n")
    }
}

impl Display for Clause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        list(f, &self.probes, ", ")?;
        if let Some(predicate) = &self.predicate {
            write!(f, " {}", Predicate(predicate))?;
        }
        write!(f, " {}", self.body)?;
        match &self.on_return {
            Some(part) => write!(f, " {part}"),
            None => Ok(()),
        }
    }
}

impl Display for ReturnPart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("return ")?;
        if let Some(predicate) = &self.predicate {
            write!(f, "{} ", Predicate(predicate))?;
        }
        self.body.fmt(f)
    }
}

/// A predicate with its signs. `/*` would begin a comment.
struct Predicate<'a>(&'a Expression);

impl Display for Predicate<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "/ {} /", self.0)
    }
}

/// The name of a function in a probe.
struct PatternText<'a>(&'a Name);

impl Display for PatternText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = &self.0.text;
        if is_plain_pattern(text) {
            f.write_str(text)
        } else {
            Quoted(text).fmt(f)
        }
    }
}

impl Display for Probe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ProbeKind::Entry { function, offset } => {
                write!(f, "kprobe:{}", PatternText(function))?;
                if *offset > 0 {
                    write!(f, "+{offset:#x}")?;
                }
                Ok(())
            }
            ProbeKind::Return { function } => write!(f, "kretprobe:{}", PatternText(function)),
            ProbeKind::Session { function } => write!(f, "session:{}", PatternText(function)),
            ProbeKind::Inlined { function } => write!(f, "inline:{}", PatternText(function)),
            ProbeKind::Line { file, line } => write!(f, "line:{}:{line}", file.text),
            ProbeKind::Instruction { pattern } => write!(f, "insn:{}", PatternText(pattern)),
            ProbeKind::Tracepoint { group, event } => {
                write!(f, "tracepoint:{}:{}", group.text, event.text)
            }
            ProbeKind::Interval { nanoseconds } => write!(f, "interval:{nanoseconds}ns"),
            ProbeKind::Profile { nanoseconds } => write!(f, "profile:{nanoseconds}ns"),
            ProbeKind::Watch {
                program,
                what,
                access,
            } => {
                let letters = match access {
                    Access::Write => "w",
                    Access::ReadWrite => "rw",
                    Access::Execute => "x",
                };
                let (path, colon) = match program {
                    Some(path) => (&*path.text, ":"),
                    None => ("", ""),
                };
                match what {
                    Watched::Static(name) => write!(f, "watch:{path}{colon}{}", name.text)?,
                    Watched::OfCall(call) => {
                        let (function, memory) = (PatternText(&call.function), &call.memory.text);
                        match call.bytes {
                            None => write!(f, "watch:{function}({memory})")?,
                            Some(bytes) => {
                                return write!(
                                    f,
                                    "watchpoint:{function}+{memory}:{bytes}:{letters}"
                                );
                            }
                        }
                    }
                    Watched::Memory { address, bytes } => {
                        return write!(f, "watchpoint:{path}{colon}{address:#x}:{bytes}:{letters}");
                    }
                }
                match access {
                    Access::Write => Ok(()),
                    Access::ReadWrite | Access::Execute => write!(f, ":{letters}"),
                }
            }
            ProbeKind::User {
                path,
                place,
                returns,
            } => {
                let kind = if *returns { "uretprobe" } else { "uprobe" };
                write!(f, "{kind}:{}:", path.text)?;
                match place {
                    UserPlace::Offset(offset) => write!(f, "{offset:#x}"),
                    UserPlace::Function { function, offset } => {
                        write!(f, "{}", PatternText(function))?;
                        match offset {
                            0 => Ok(()),
                            offset => write!(f, "+{offset:#x}"),
                        }
                    }
                }
            }
            ProbeKind::Mark {
                path,
                provider,
                name,
            } => write!(f, "usdt:{}:{}:{}", path.text, provider.text, name.text),
            ProbeKind::Begin => f.write_str("begin"),
            ProbeKind::End => f.write_str("end"),
        }
    }
}

impl Display for Block {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.statements.is_empty() {
            return f.write_str("{ }");
        }
        f.write_str("{ ")?;
        list(f, &self.statements, "; ")?;
        f.write_str(" }")
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            StatementKind::Assign {
                target,
                operation,
                value,
            } => {
                let operator = operation.map_or("", Binary::sign);
                write!(f, "{target} {operator}= {value}")
            }
            StatementKind::Let {
                variable,
                to,
                value,
            } => {
                write!(f, "let ${}", variable.text)?;
                if let Some(to) = to {
                    write!(f, ": {to}")?;
                }
                match value {
                    Some(value) => write!(f, " = {value}"),
                    None => Ok(()),
                }
            }
            StatementKind::Expression(value) => value.fmt(f),
            StatementKind::If {
                condition,
                then,
                otherwise,
            } => {
                write!(f, "if ({condition}) {then}")?;
                match otherwise {
                    Some(otherwise) => write!(f, " else {otherwise}"),
                    None => Ok(()),
                }
            }
            StatementKind::Unroll { count, body } => write!(f, "unroll ({count}) {body}"),
            StatementKind::For {
                variable,
                from,
                to,
                body,
            } => write!(f, "for (${} : {from}..{to}) {body}", variable.text),
            StatementKind::ForEach {
                variable,
                map,
                body,
            } => write!(f, "for (${} : @{}) {body}", variable.text, map.text),
            StatementKind::While { condition, body } => write!(f, "while ({condition}) {body}"),
            StatementKind::Match { value, arms } => {
                write!(f, "match {value} {{ ")?;
                list(f, arms, ", ")?;
                f.write_str(" }")
            }
            StatementKind::Return(None) => f.write_str("return"),
            StatementKind::Return(Some(value)) => write!(f, "return {value}"),
            StatementKind::Break => f.write_str("break"),
            StatementKind::Continue => f.write_str("continue"),
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "${}", name.text),
            Self::Map(map) => map.fmt(f),
        }
    }
}

impl Display for Map {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.name.text)?;
        if self.keys.is_empty() {
            return Ok(());
        }
        f.write_char('[')?;
        list(f, &self.keys, ", ")?;
        f.write_char(']')
    }
}

impl Display for Arm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        list(f, &self.patterns, " | ")?;
        write!(f, " => {}", self.body)
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            PatternKind::Any => f.write_char('_'),
            PatternKind::Integer(number) => number.fmt(f),
            PatternKind::String(text) => Quoted(text).fmt(f),
            PatternKind::Boolean(value) => value.fmt(f),
            PatternKind::Variant { name, bindings } => {
                f.write_str(&name.text)?;
                if bindings.is_empty() {
                    return Ok(());
                }
                let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
                if bindings
                    .iter()
                    .any(|binding| !is_number(&binding.field.text))
                {
                    f.write_str(" { ")?;
                    for (index, binding) in bindings.iter().enumerate() {
                        let comma = if index > 0 { ", " } else { "" };
                        write!(
                            f,
                            "{comma}{}: ${}",
                            binding.field.text, binding.variable.text
                        )?;
                    }
                    return f.write_str(" }");
                }
                f.write_char('(')?;
                let mut place = 0;
                for binding in bindings {
                    let field = binding.field.text.parse().unwrap_or(place);
                    for _ in place..field {
                        f.write_str("_, ")?;
                    }
                    write!(f, "${}, ", binding.variable.text)?;
                    place = field + 1;
                }
                f.write_char(')')
            }
        }
    }
}

/// The part before or after an operator: in parentheses unless it binds at least as strongly.
struct Operand<'a> {
    value: &'a Expression,
    least: u8,
}

/// A strength above that of all operators with two operands.
const UNARY: u8 = 10;
const POSTFIX: u8 = 11;

impl Display for Operand<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if strength(self.value) < self.least {
            write!(f, "({})", self.value)
        } else {
            self.value.fmt(f)
        }
    }
}

/// How strongly the outermost part of an expression binds.
fn strength(value: &Expression) -> u8 {
    match &value.kind {
        ExpressionKind::Ternary { .. } | ExpressionKind::OrElse { .. } => 0,
        // A statement that begins with a block ends with it.
        ExpressionKind::Block { .. } => 0,
        ExpressionKind::Binary { operation, .. } => operation.precedence(),
        // Nothing can be taken from a step, though it may end with its sign.
        ExpressionKind::Unary { .. }
        | ExpressionKind::Cast { .. }
        | ExpressionKind::Step { .. } => UNARY,
        _ => POSTFIX,
    }
}

impl Display for Expression {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let operand = |value, least| Operand { value, least };
        match &self.kind {
            ExpressionKind::Integer(number) => number.fmt(f),
            ExpressionKind::Boolean(value) => value.fmt(f),
            ExpressionKind::String(text) => Quoted(text).fmt(f),
            ExpressionKind::Variable(name) => write!(f, "${name}"),
            ExpressionKind::Map(map) => map.fmt(f),
            ExpressionKind::Name(name) => f.write_str(name),
            ExpressionKind::Call { name, arguments } => {
                write!(f, "{}(", name.text)?;
                list(f, arguments, ", ")?;
                f.write_char(')')
            }
            ExpressionKind::Field { of, name } => {
                write!(f, "{}.{}", operand(of, POSTFIX), name.text)
            }
            ExpressionKind::Index { of, index } => {
                // `@map[index]` would be a key of the map.
                if matches!(&of.kind, ExpressionKind::Map(map) if map.keys.is_empty()) {
                    write!(f, "({of})[{index}]")
                } else {
                    write!(f, "{}[{index}]", operand(of, POSTFIX))
                }
            }
            // `- -a` is not `--a`.
            ExpressionKind::Unary {
                operation,
                operand: value,
            } => write!(f, "{}{}", operation.sign(), operand(value, POSTFIX)),
            ExpressionKind::Binary {
                operation,
                left,
                right,
            } => {
                let least = operation.precedence();
                // A choice has the strength of the weakest operator, and is one of nothing here.
                let left_least = match left.kind {
                    ExpressionKind::Ternary { .. }
                    | ExpressionKind::OrElse { .. }
                    | ExpressionKind::Block { .. } => POSTFIX,
                    _ => least,
                };
                write!(
                    f,
                    "{} {} {}",
                    operand(left, left_least),
                    operation.sign(),
                    operand(right, least + 1)
                )
            }
            ExpressionKind::Ternary {
                condition,
                then,
                otherwise,
            } => {
                if strength(condition) == 0
                    && !matches!(condition.kind, ExpressionKind::Binary { .. })
                {
                    write!(f, "({condition})")?;
                } else {
                    condition.fmt(f)?;
                }
                write!(f, " ? {then} : {otherwise}")
            }
            ExpressionKind::Cast { to, operand: value } => {
                let sign = if to.is_type_by_name() { "" } else { "struct " };
                write!(f, "({sign}{to}){}", operand(value, POSTFIX))
            }
            ExpressionKind::Type(of) => match of.kind {
                TypeKind::Of(_) => of.fmt(f),
                // A word alone would be a value.
                TypeKind::Named(_) => write!(f, "typeof(struct {of})"),
                _ => write!(f, "typeof({of})"),
            },
            ExpressionKind::Tuple(values) => {
                f.write_char('(')?;
                list(f, values, ", ")?;
                f.write_str(if values.len() == 1 { ",)" } else { ")" })
            }
            ExpressionKind::Record(fields) => {
                for (index, (name, value)) in fields.iter().enumerate() {
                    let before = if index == 0 { "(" } else { ", " };
                    write!(f, "{before}{}={value}", name.text)?;
                }
                f.write_char(')')
            }
            ExpressionKind::OrElse { value, otherwise } => {
                if strength(value) == 0 && !matches!(value.kind, ExpressionKind::Binary { .. }) {
                    write!(f, "({value}) ?: {otherwise}")
                } else {
                    write!(f, "{value} ?: {otherwise}")
                }
            }
            ExpressionKind::Block { body, value } => {
                f.write_str("{ ")?;
                list(f, &body.statements, "; ")?;
                let is_empty = body.statements.is_empty();
                match value {
                    Some(value) if is_empty => write!(f, "{value} }}"),
                    Some(value) => write!(f, "; {value} }}"),
                    None if is_empty => f.write_char('}'),
                    None => f.write_str("; }"),
                }
            }
            ExpressionKind::Step {
                target,
                up,
                value_before,
            } => {
                let sign = if *up { "++" } else { "--" };
                if *value_before {
                    write!(f, "{target}{sign}")
                } else {
                    write!(f, "{sign}{target}")
                }
            }
        }
    }
}

impl Display for TypeName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TypeKind::Named(path) => f.write_str(path),
            TypeKind::Pointer(to) => write!(f, "&{to}"),
            TypeKind::Slice(of) => write!(f, "[{of}]"),
            TypeKind::Array { of, count } => write!(f, "[{of}; {count}]"),
            TypeKind::Of(value) => write!(f, "typeof({value})"),
        }
    }
}
