//! Macros: their calls are replaced by their bodies, in the tree.
//!
//! ```text
//!   macro add($to, by) { $to += by; $to }      add($n, 2 + 3)  ─►  { $n += 2 + 3; $n }
//! ```
//!
//! A parameter is a variable or a map of the caller, or an expression, which stands wherever its
//! name does. Macros of one name differ by the number or the kinds of their parameters.
//!
//! MACROS-1. A body sees nothing of its caller but its arguments: its own variables get names that
//!     no text has, and another map is refused.
//! MACROS-2. No tree gets deeper than [`MAX_DEPTH`] by its macros, and a program with macros has
//!     [`MOST_PARTS`] at most. A macro that calls itself is refused.

use alloc::{format, string::String, vec::Vec};
use core::fmt;

use crate::{
    WORDS,
    depth::{MAX_DEPTH, no_room, too_deep},
    diagnostic::Diagnostic,
    tree::{
        Block, Expression, ExpressionKind, Map, Name, PatternKind, Span, Statement, StatementKind,
        Target, Tree, TypeKind, TypeName,
    },
};

/// The most statements and expressions of a program with macros.
const MOST_PARTS: usize = 1 << 14;

type Expanded = Result<(), Diagnostic>;

/// `macro name(parameters) { … }`.
#[derive(Clone, Debug)]
pub(crate) struct Macro {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<Parameter>,
    /// A block.
    pub(crate) body: Expression,
}

/// A parameter of a macro.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
}

/// The kind of a parameter, by its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Variable,
    Map,
    Expression,
}

impl Kind {
    /// What a name with this sign is.
    const fn what(self) -> &'static str {
        match self {
            Self::Variable => "a variable",
            Self::Map => "a map",
            Self::Expression => "a value",
        }
    }
}

impl fmt::Display for Macro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (at, parameter) in self.parameters.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{parameter}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.kind {
            Kind::Variable => "$",
            Kind::Map => "@",
            Kind::Expression => "",
        };
        write!(f, "{sign}{}", self.name.text)
    }
}

impl Parameter {
    fn takes(&self, argument: &Expression) -> bool {
        match self.kind {
            Kind::Variable => matches!(argument.kind, ExpressionKind::Variable(_)),
            Kind::Map => {
                matches!(&argument.kind, ExpressionKind::Map(map) if map.keys.is_empty())
            }
            Kind::Expression => true,
        }
    }
}

/// Replaces the calls of macros in a program.
///
/// # Errors
/// The first mistake of each clause.
pub(crate) fn expand(tree: &mut Tree, macros: &[Macro], has_room: fn() -> bool) -> Vec<Diagnostic> {
    let mut expansion = Expansion {
        macros,
        has_room,
        calls: 0,
        parts: 0,
        depth: 0,
        inside: Vec::new(),
    };
    let mut mistakes = check(macros);
    for clause in &mut tree.clauses {
        let on_return = clause.on_return.as_mut();
        let (predicate, body) = on_return.map_or((None, None), |part| {
            (part.predicate.as_mut(), Some(&mut part.body))
        });
        let done = [clause.predicate.as_mut(), predicate]
            .into_iter()
            .flatten()
            .try_for_each(|predicate| expansion.expression(predicate))
            .and_then(|()| expansion.block(&mut clause.body))
            .and_then(|()| body.map_or(Ok(()), |body| expansion.block(body)));
        expansion.depth = 0;
        expansion.inside.clear();
        mistakes.extend(done.err());
    }
    mistakes
}

/// The mistakes of macros themselves.
fn check(macros: &[Macro]) -> Vec<Diagnostic> {
    let mut mistakes = Vec::new();
    for (at, of) in macros.iter().enumerate() {
        let kinds = |of: &Macro| -> Vec<Kind> { of.parameters.iter().map(|it| it.kind).collect() };
        let is_same = |other: &&Macro| other.name.text == of.name.text && kinds(other) == kinds(of);
        if macros[..at].iter().any(|other| is_same(&other)) {
            mistakes.push(Diagnostic::new(
                of.name.span,
                format!(
                    "there are two macros `{}` with the same parameters",
                    of.name.text
                ),
                "give one of them another name",
            ));
        }
        for (at, parameter) in of.parameters.iter().enumerate() {
            let known = |other: &Parameter| {
                other.kind == parameter.kind && other.name.text == parameter.name.text
            };
            if of.parameters[..at].iter().any(known) {
                mistakes.push(Diagnostic::new(
                    parameter.name.span,
                    format!("the macro has a parameter `{parameter}` already"),
                    "give each parameter a name of its own",
                ));
            }
            let name = &*parameter.name.text;
            if parameter.kind == Kind::Expression && WORDS.contains(&name) {
                mistakes.push(Diagnostic::new(
                    parameter.name.span,
                    format!("`{name}` is a word of the language, which the body would not see"),
                    "give the parameter another name",
                ));
            }
        }
    }
    mistakes
}

/// See the module's text.
struct Expansion<'a> {
    macros: &'a [Macro],
    has_room: fn() -> bool,
    calls: usize,
    parts: usize,
    depth: usize,
    /// The macros whose bodies are being expanded.
    inside: Vec<String>,
}

impl<'a> Expansion<'a> {
    fn block(&mut self, block: &mut Block) -> Expanded {
        let mut statements = block.statements.iter_mut();
        statements.try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &mut Statement) -> Expanded {
        self.nested(statement.span, |this| {
            if let Some(of) = statement.type_mut() {
                this.type_name(of)?;
            }
            for part in statement.parts_mut() {
                this.expression(part)?;
            }
            let mut blocks = statement.blocks_mut().into_iter();
            blocks.try_for_each(|block| this.block(block))
        })
    }

    fn nested(&mut self, span: Span, visit: impl FnOnce(&mut Self) -> Expanded) -> Expanded {
        if !(self.has_room)() {
            return Err(no_room(span));
        }
        if self.depth == MAX_DEPTH {
            return Err(Diagnostic::new(
                span,
                format!("macros make this more than {MAX_DEPTH} deep"),
                "keep a part of it in a variable: `$part = …;`",
            ));
        }
        self.parts += 1;
        if self.parts > MOST_PARTS {
            return Err(Diagnostic::new(
                span,
                format!("with its macros the program has more than {MOST_PARTS} parts"),
                "use a loop, or keep values in variables",
            ));
        }
        self.depth += 1;
        let done = visit(self);
        self.depth -= 1;
        done
    }

    fn expression(&mut self, expression: &mut Expression) -> Expanded {
        self.nested(expression.span, |this| this.expression_here(expression))
    }

    /// The value of a `typeof` in a type. A word alone may be the name of a type.
    fn type_name(&mut self, of: &mut TypeName) -> Expanded {
        if self.depth + of.signs() > MAX_DEPTH {
            return Err(too_deep(of.span));
        }
        match of.value_mut() {
            Some(value) if !matches!(value.kind, ExpressionKind::Name(_)) => self.expression(value),
            _ => Ok(()),
        }
    }

    fn expression_here(&mut self, expression: &mut Expression) -> Expanded {
        let span = expression.span;
        let is_measure = expression.is_measure();
        if let Some(of) = expression.type_mut() {
            self.type_name(of)?;
        }
        let (name, arguments) = match &mut expression.kind {
            ExpressionKind::Name(name) => {
                let name = name.clone();
                (Name { text: name, span }, Vec::new())
            }
            ExpressionKind::Call { name, arguments } => {
                for argument in arguments.iter_mut() {
                    if !is_measure || !matches!(argument.kind, ExpressionKind::Name(_)) {
                        self.expression(argument)?;
                    }
                }
                (name.clone(), arguments.clone())
            }
            ExpressionKind::Block { body, value } => {
                self.block(body)?;
                let value = value.as_deref_mut();
                return value.map_or(Ok(()), |value| self.expression(value));
            }
            _ => {
                let mut parts = expression.parts_mut().into_iter();
                return parts.try_for_each(|part| self.expression(part));
            }
        };
        let Some(of) = self.called(&name, &arguments)? else {
            return Ok(());
        };
        if self.inside.contains(&name.text) {
            return Err(Diagnostic::new(
                span,
                format!("the macro `{}` calls itself", name.text),
                "its body stands where it is called, so it would never end; use a loop",
            ));
        }
        self.calls += 1;
        let mut body = of.body.clone();
        let call = Substitution {
            of,
            arguments: &arguments,
            number: self.calls,
        };
        call.expression(&mut body)?;
        self.inside.push(name.text);
        let done = self.expression_here(&mut body);
        self.inside.pop();
        // A body of an expression alone is one, too.
        *expression = match body.kind {
            ExpressionKind::Block {
                body,
                value: Some(value),
            } if body.statements.is_empty() => *value,
            kind => Expression { kind, span },
        };
        done
    }

    /// The macro that a name with arguments calls.
    fn called(
        &self,
        name: &Name,
        arguments: &[Expression],
    ) -> Result<Option<&'a Macro>, Diagnostic> {
        let macros: &'a [Macro] = self.macros;
        let named = || macros.iter().filter(|of| of.name.text == name.text);
        let takes = |of: &&Macro| {
            let pairs = of.parameters.iter().zip(arguments);
            of.parameters.len() == arguments.len() && pairs.clone().all(|(a, b)| a.takes(b))
        };
        let exact = |of: &&Macro| {
            let kinds = of.parameters.iter();
            kinds
                .filter(|parameter| parameter.kind != Kind::Expression)
                .count()
        };
        if let Some(of) = named().filter(takes).max_by_key(exact) {
            return Ok(Some(of));
        }
        // A word of the language keeps its meaning where the macro takes other arguments.
        if arguments.is_empty() && WORDS.contains(&&*name.text) {
            return Ok(None);
        }
        let Some(nearest) = named().max_by_key(|of| of.parameters.len() == arguments.len()) else {
            return Ok(None);
        };
        let wrong = nearest.parameters.iter().zip(arguments);
        let wrong = wrong
            .clone()
            .find(|(parameter, argument)| !parameter.takes(argument));
        Err(match wrong {
            Some((parameter, argument)) if nearest.parameters.len() == arguments.len() => {
                Diagnostic::new(
                    argument.span,
                    format!(
                        "the macro `{}` wants {} here",
                        name.text,
                        parameter.kind.what()
                    ),
                    format!("it is declared as `{}{nearest}`", name.text),
                )
            }
            _ => Diagnostic::new(
                name.span,
                format!(
                    "the macro `{}` takes {nearest}, and there are {} arguments",
                    name.text,
                    arguments.len()
                ),
                "call it with as many as it has parameters",
            ),
        })
    }
}

/// Puts arguments in place of the parameters of a body.
struct Substitution<'a> {
    of: &'a Macro,
    arguments: &'a [Expression],
    /// No other call has it.
    number: usize,
}

impl Substitution<'_> {
    fn argument(&self, kind: Kind, name: &str) -> Option<&Expression> {
        let is = |parameter: &&Parameter| parameter.kind == kind && parameter.name.text == name;
        let at = self
            .of
            .parameters
            .iter()
            .position(|parameter| is(&parameter))?;
        self.arguments.get(at)
    }

    fn variable(&self, name: &mut String) {
        *name = match self
            .argument(Kind::Variable, name)
            .map(|argument| &argument.kind)
        {
            Some(ExpressionKind::Variable(of_caller)) => of_caller.clone(),
            _ => format!("{name}#{}", self.number),
        };
    }

    /// The variable that a statement makes, which cannot be a parameter.
    fn made(&self, name: &mut Name) -> Expanded {
        if self.argument(Kind::Variable, &name.text).is_some() {
            return Err(Diagnostic::new(
                name.span,
                format!("`${}` is a parameter of the macro", name.text),
                "give the new variable another name",
            ));
        }
        self.variable(&mut name.text);
        Ok(())
    }

    fn map(&self, map: &mut Name) -> Expanded {
        match self
            .argument(Kind::Map, &map.text)
            .map(|argument| &argument.kind)
        {
            Some(ExpressionKind::Map(of_caller)) => {
                map.text.clone_from(&of_caller.name.text);
                Ok(())
            }
            _ => Err(Diagnostic::new(
                map.span,
                format!("a macro cannot use the map `@{}` of its caller", map.text),
                format!(
                    "make it a parameter: `macro {}(@{}) {{ … }}`",
                    self.of.name.text, map.text
                ),
            )),
        }
    }

    /// Puts types in place of the parameters of a type.
    fn type_name(&self, of: &mut TypeName) -> Expanded {
        match &mut of.kind {
            TypeKind::Named(name) => {
                let Some(argument) = self.argument(Kind::Expression, name) else {
                    return Ok(());
                };
                of.kind = match &argument.kind {
                    ExpressionKind::Type(given) => given.kind.clone(),
                    ExpressionKind::Name(given) => TypeKind::Named(given.clone()),
                    _ => {
                        return Err(Diagnostic::new(
                            argument.span,
                            format!("the macro wants a type for `{name}`, and this is a value"),
                            format!(
                                "call it with a type, or with that of the value: {}(typeof(…))",
                                self.of.name.text
                            ),
                        ));
                    }
                };
                Ok(())
            }
            TypeKind::Pointer(to) => self.type_name(to),
            TypeKind::Slice(part) | TypeKind::Array { of: part, .. } => self.type_name(part),
            TypeKind::Of(value) => {
                self.expression(value)?;
                // That of a type is the type.
                if let ExpressionKind::Type(given) = &value.kind {
                    of.kind = given.kind.clone();
                }
                Ok(())
            }
        }
    }

    fn target(&self, target: &mut Target) -> Expanded {
        match target {
            Target::Variable(name) => {
                self.variable(&mut name.text);
                Ok(())
            }
            Target::Map(Map { name, .. }) => self.map(name),
        }
    }

    fn expression(&self, expression: &mut Expression) -> Expanded {
        match &mut expression.kind {
            ExpressionKind::Name(name) => {
                if let Some(argument) = self.argument(Kind::Expression, name) {
                    // What is said about it is said at the call.
                    *expression = argument.clone();
                    return Ok(());
                }
            }
            ExpressionKind::Variable(name) => self.variable(name),
            ExpressionKind::Map(map) => self.map(&mut map.name)?,
            ExpressionKind::Step { target, .. } => self.target(target)?,
            ExpressionKind::Block { body, .. } => self.block(body)?,
            _ => {}
        }
        if let Some(of) = expression.type_mut() {
            self.type_name(of)?;
        }
        let mut parts = expression.parts_mut().into_iter();
        parts.try_for_each(|part| self.expression(part))
    }

    fn block(&self, block: &mut Block) -> Expanded {
        for statement in &mut block.statements {
            match &mut statement.kind {
                StatementKind::Assign { target, .. } => self.target(target)?,
                StatementKind::Let { variable, .. } | StatementKind::For { variable, .. } => {
                    self.made(variable)?;
                }
                StatementKind::ForEach { variable, map, .. } => {
                    self.made(variable)?;
                    self.map(map)?;
                }
                StatementKind::Match { arms, .. } => {
                    let patterns = arms.iter_mut().flat_map(|arm| &mut arm.patterns);
                    for pattern in patterns {
                        if let PatternKind::Variant { bindings, .. } = &mut pattern.kind {
                            let mut bindings = bindings.iter_mut();
                            bindings.try_for_each(|binding| self.made(&mut binding.variable))?;
                        }
                    }
                }
                _ => {}
            }
            if let Some(of) = statement.type_mut() {
                self.type_name(of)?;
            }
            let mut parts = statement.parts_mut().into_iter();
            parts.try_for_each(|part| self.expression(part))?;
            let mut blocks = statement.blocks_mut().into_iter();
            blocks.try_for_each(|block| self.block(block))?;
        }
        Ok(())
    }
}
