//! Statements: each by its parts.
//!
//! A statement that is refused is noted, and the next one is compiled all the same, so that all
//! mistakes are told at once. The stack that a statement takes is given back after it.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use bpf::Condition;
use trace_interface::symbols::{Enum, Type, TypeId};
use trace_language::{
    Diagnostic,
    tree::{
        Arm, Expression, ExpressionKind, Name, Pattern, PatternKind, Span, Statement,
        StatementKind, Target,
    },
};

use super::Program;
use crate::{
    Lowered, functions, names,
    number::{Counted, Kind, Number, Test},
    types::Types,
    values::{Holds, Val, close_scope, literal},
};

impl Program<'_, '_> {
    pub(crate) fn try_statement(&mut self, statement: &Statement) -> Lowered<()> {
        let span = statement.span;
        self.values().check_room(span)?;
        if let StatementKind::Let { variable, .. }
        | StatementKind::For { variable, .. }
        | StatementKind::ForEach { variable, .. } = &statement.kind
        {
            self.check_new(variable)?;
        }
        match &statement.kind {
            StatementKind::Assign {
                target,
                operation,
                value,
            } => match target {
                Target::Variable(name) => {
                    let guesses = self.values().tables.guesses;
                    let new = match operation {
                        None => {
                            if let ExpressionKind::Call { name, .. } = &value.kind
                                && functions::is_aggregation(&name.text)
                            {
                                return Err(Diagnostic::new(
                                    value.span,
                                    format!("`{}` can be assigned to maps only", name.text),
                                    format!("write `@{} = …`", name.text),
                                ));
                            }
                            self.code.value(value)?
                        }
                        Some(operation) => {
                            let old = Expression {
                                kind: ExpressionKind::Variable(name.text.clone()),
                                span: name.span,
                            };
                            let old = self.code.count(&old)?;
                            let with = self.code.count(value)?;
                            self.values().arithmetic(
                                *operation,
                                old,
                                with,
                                (name.span, value.span, span),
                            )?
                        }
                    };
                    let is_guess = self.values().tables.guesses != guesses;
                    let unset = self.values().find(&name.text);
                    if is_guess && unset.is_some_and(|it| matches!(it.holds, Holds::Nothing)) {
                        // Else two variables that are assigned to each other would tell a type.
                        return Ok(());
                    }
                    self.assign_variable(name, new, value.span)
                }
                Target::Map(map) => self.assign_map(map, *operation, value, span),
            },
            StatementKind::Let {
                variable,
                to,
                value,
            } => self.declare_let(variable, to.as_ref(), value.as_ref()),
            StatementKind::Expression(expression) => self.effect(expression),
            StatementKind::If {
                condition,
                then,
                otherwise,
            } => {
                if let Some(holds) = literal::decided(self.values(), condition)? {
                    match (holds, otherwise) {
                        (true, _) => self.block(then),
                        (false, Some(otherwise)) => self.block(otherwise),
                        (false, None) => {}
                    }
                    return Ok(());
                }
                let test = self.code.test(condition)?;
                let no = self.code.asm.label();
                self.code.branch_on(&test, false, no);
                self.block(then);
                match otherwise {
                    None => self.code.asm.place(no),
                    Some(otherwise) => {
                        let end = self.code.asm.label();
                        self.code.asm.jump(end);
                        self.code.asm.place(no);
                        self.block(otherwise);
                        self.code.asm.place(end);
                    }
                }
                Ok(())
            }
            StatementKind::Unroll { count, body } => self.turns(None, 0, *count, body, span),
            StatementKind::For {
                variable,
                from,
                to,
                body,
            } => {
                let (first, last) = (self.code.count(from)?, self.code.count(to)?);
                match (first.number.constant(), last.number.constant()) {
                    (Some(first), Some(last)) => {
                        self.turns(Some(variable), first, last, body, span)
                    }
                    _ => {
                        let text = format!("for (${} : {from}..{to})", variable.text);
                        self.range(variable, first, last, body, text)
                    }
                }
            }
            StatementKind::ForEach {
                variable,
                map,
                body,
            } => self.for_each(variable, map, body, span),
            StatementKind::While { condition, body } => {
                let open = self.begin_loop(format!("while ({condition})"));
                let condition = self.without_blocks_in(condition)?;
                let test = self.code.test(&condition)?;
                self.code.branch_on(&test, false, open.leave);
                self.count_turn(&open);
                self.loop_body(&open, open.top, None, body)?;
                self.end_loop(&open);
                Ok(())
            }
            StatementKind::Match { value, arms } => self.match_arms(value, arms),
            StatementKind::Return(value) => {
                if let Some(value) = value {
                    self.code.count(value)?;
                }
                self.leave_block();
                Ok(())
            }
            StatementKind::Break | StatementKind::Continue => {
                let Some((end, next)) = self.loops.last().copied() else {
                    return Err(Diagnostic::new(span, "there is no loop here", ""));
                };
                self.code.asm.jump(match statement.kind {
                    StatementKind::Break => end,
                    _ => next,
                });
                Ok(())
            }
        }
    }

    fn match_arms(&mut self, value: &Expression, arms: &[Arm]) -> Lowered<()> {
        let lowered = self.code.value(value)?;
        let end = self.code.asm.label();
        // It is calculated once.
        let lowered = match self.values().simplified(lowered, value.span) {
            Val::Number(counted) => Val::Number(Counted {
                number: self.code.keep(&counted.number),
                ..counted
            }),
            Val::Object(object) => {
                let is_inner = self.values().scopes.len() > 1;
                Val::Object(self.hold(&object, is_inner))
            }
            other => other,
        };
        for arm in arms {
            let next = self.code.asm.label();
            let mut test = Test::Constant(false);
            for pattern in &arm.patterns {
                test = test.or(self.pattern(&lowered, pattern, value.span)?);
            }
            self.code.branch_on(&test, false, next);
            self.values().scopes.push(Vec::new());
            for pattern in &arm.patterns {
                if let Err(error) = self.bind(&lowered, pattern) {
                    self.values().tables.error(error);
                }
            }
            for statement in &arm.body.statements {
                self.statement(statement);
            }
            close_scope(self.values());
            self.code.asm.jump(end);
            self.code.asm.place(next);
        }
        self.code.asm.place(end);
        Ok(())
    }

    pub(crate) fn pattern(&mut self, value: &Val, pattern: &Pattern, span: Span) -> Lowered<Test> {
        let equal = |this: &mut Self, number: u64| {
            let counted = this.values().as_number(value.clone(), span)?;
            Ok(Test::compare(
                Condition::Equal,
                counted.number,
                Number::Constant(number),
            ))
        };
        match &pattern.kind {
            PatternKind::Any => Ok(Test::Constant(true)),
            PatternKind::Integer(number) => equal(self, *number),
            PatternKind::Boolean(is) => equal(self, (*is).into()),
            PatternKind::String(text) => self.values().texts_equal(
                value.clone(),
                Val::Literal(text.clone()),
                (span, pattern.span),
            ),
            PatternKind::Variant { name, .. } => {
                let Val::Object(object) = value else {
                    return Err(no_enum(self.values().types(), value, pattern.span));
                };
                let Some(described) = self.values().types().enum_of(object) else {
                    return Err(no_enum(self.values().types(), value, pattern.span));
                };
                let Type::Enum(of) = &*described else {
                    return Ok(Test::Constant(false));
                };
                let variant = pattern_variant(of, name)?;
                let is = self
                    .values()
                    .types()
                    .is_variant(object, of, variant, pattern.span)?;
                Ok(object.present.clone().and(is))
            }
        }
    }

    fn bind(&mut self, value: &Val, pattern: &Pattern) -> Lowered<()> {
        let (PatternKind::Variant { name, bindings }, Val::Object(object)) = (&pattern.kind, value)
        else {
            return Ok(());
        };
        let Some(described) = self.values().types().enum_of(object) else {
            return Ok(());
        };
        let Type::Enum(of) = &*described else {
            return Ok(());
        };
        let variant = pattern_variant(of, name)?;
        for binding in bindings {
            let field =
                self.values()
                    .variant_field(object, &of.variants[variant], &binding.field)?;
            self.declare(
                &binding.variable,
                Val::Object(field),
                true,
                binding.variable.span,
            )?;
        }
        Ok(())
    }
}

/// Why a value has no variants. A reference is followed where the text says it, not in a pattern.
fn no_enum(types: &Types<'_>, value: &Val, span: Span) -> Diagnostic {
    let is_enum = |to: TypeId| matches!(&*types.describe(to), Type::Enum(_));
    let leads_to_one = match value {
        Val::Number(counted) => match counted.kind {
            Kind::Pointer { to, .. } => to.is_some_and(is_enum),
            _ => false,
        },
        Val::Object(object) => match &*types.describe(object.type_id) {
            Type::Pointer { to, .. } => is_enum(*to),
            _ => false,
        },
        _ => false,
    };
    let (message, help) = match leads_to_one {
        true => (
            "this value is a reference to an enum, and has no variants itself",
            "match what it leads to: write `*` in front, as in `match *args.shape`",
        ),
        false => (
            "this value is no enum, so it has no variants",
            "match numbers, texts, true and false, or `_`",
        ),
    };
    Diagnostic::new(span, message, help)
}

/// The variant that a pattern names.
fn pattern_variant(of: &Enum, name: &Name) -> Lowered<usize> {
    let last = name.text.rsplit("::").next().unwrap_or(&name.text);
    let found = of.variants.iter().position(|variant| variant.name == last);
    found.ok_or_else(|| {
        let variants = of.variants.iter().map(|variant| &*variant.name);
        let near = names::nearest(last, variants.clone());
        let all: Vec<String> = variants.map(ToString::to_string).collect();
        Diagnostic::new(
            name.span,
            format!("`{}` has no variant `{last}`", of.name),
            match near.is_empty() {
                true => format!("it has {}", all.join(", ")),
                false => names::did_you_mean(&near),
            },
        )
    })
}
