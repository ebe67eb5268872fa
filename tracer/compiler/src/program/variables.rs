//! Variables of a program: made, held, and assigned again.
//!
//! A variable has its place until the program ends. A number is a word there, another value has its
//! shape, and of a value of the source it is kept where its bytes are.

use alloc::{format, string::String, vec::Vec};

use trace_interface::{
    shape::Shape,
    symbols::{Piece, Source},
};
use trace_language::{
    Diagnostic,
    tree::{Expression, Name, Span, TypeName},
};

use super::{Program, code};
use crate::{
    Lowered,
    memory::Place,
    names,
    number::{Counted, Kind, Number, Test, extend},
    object::{At, Object},
    tables::Unset,
    values::{
        Holds, Home, Val, Variable, identity, is_hidden,
        like::{self, Like},
    },
};

impl Program<'_, '_> {
    /// Makes a variable of a value. `own_block`: of the block, not of the whole clause.
    pub(crate) fn declare(
        &mut self,
        name: &Name,
        value: Val,
        own_block: bool,
        span: Span,
    ) -> Lowered<()> {
        let is_inner = self.values().scopes.len() > 1;
        let value = code::kept(&mut self.code, value, span)?;
        let (place, holds) = match value {
            Val::Number(counted) => {
                let own = self.values().shape(&Val::Number(counted.clone()), false);
                let place = self.values().room(8, is_inner);
                self.code.store_number(&counted.number, place, 8);
                let kind = match counted.kind {
                    Kind::Literal | Kind::Integer { .. } | Kind::Boolean => {
                        let made = identity(self.values(), &name.text, name.span.start);
                        let known = self.values().tables.variable(made, &own);
                        match known {
                            // The value of a block has no more of a sign than what it ends with.
                            Some(Shape::Literal) if is_hidden(&name.text) => Kind::Literal,
                            known => known
                                .and_then(|known| self.values().tables.kind_of(&known))
                                .unwrap_or(Kind::SIGNED),
                        }
                    }
                    kind => kind,
                };
                (place, Holds::Number(kind))
            }
            Val::Object(object) if !self.values().is_text(&Val::Object(object.clone())) => {
                let object = self.hold(&object, is_inner);
                (Place::stack(0), Holds::Object(object))
            }
            value => {
                let own = self.values().shape(&value, true);
                let made = identity(self.values(), &name.text, name.span.start);
                let known = self.values().tables.variable(made, &own);
                let shape = known.unwrap_or(own);
                let place = self.values().room(shape.bytes().max(1), is_inner);
                self.code.store(&value, place, &shape, span)?;
                (place, Holds::Stored(shape))
            }
        };
        let depth = self.values().scopes.len();
        let variable = Variable {
            name: name.text.clone(),
            place,
            holds,
            made_at: name.span.start,
            limit: None,
            home: match own_block || depth == 1 {
                true => Home::Own,
                false => Home::Inner(depth),
            },
        };
        let scope = if own_block { depth - 1 } else { 0 };
        self.values().scopes[scope].push(variable);
        Ok(())
    }

    /// The variable of the block that was declared last.
    pub(super) fn last_made(&mut self) -> Option<&mut Variable> {
        self.values().scopes.last_mut()?.last_mut()
    }

    /// Refuses a declaration of a name that is a variable's already: which one a reader meant is
    /// easily mistaken. One that a block has made which is left may have another beside it.
    pub(crate) fn check_new(&mut self, name: &Name) -> Lowered<()> {
        match self.values().find(&name.text) {
            None => Ok(()),
            Some(known) if known.home == Home::Left => Ok(()),
            Some(_) => Err(Diagnostic::new(
                name.span,
                format!("there is a variable `${}` already", name.text),
                "give the new one another name, or assign to it without `let`",
            )),
        }
    }

    /// `let $name: to = value`. A number of less than 8 bytes stays one: what is assigned to it is
    /// cut to them.
    pub(crate) fn declare_let(
        &mut self,
        name: &Name,
        to: Option<&TypeName>,
        value: Option<&Expression>,
    ) -> Lowered<()> {
        let like = match to {
            Some(to) => like::declared(self.values(), to)?,
            None => None,
        };
        let number = like.as_ref().and_then(Like::plain).cloned();
        let limit = like.clone().filter(Like::has_limit);
        let new = match (to, value) {
            (None, None) => return self.declare_unset(name),
            (None, Some(value)) => self.code.value(value)?,
            (Some(to), None) => match like {
                // Whose memory a pointer leads into, its first value says.
                None | Some(Like::Number(Kind::Pointer { .. })) => {
                    like::type_named(self.values(), to)?;
                    return self.declare_unset(name);
                }
                Some(Like::Number(kind)) if kind.is_number() => {
                    Val::number(Number::Constant(0), kind)
                }
                // It gets the room that its values need.
                Some(Like::Text(_)) => Val::Literal(String::new()),
                Some(Like::Made(shape)) => self.zero_of(shape),
                Some(Like::Number(_) | Like::Object(_)) => {
                    return Err(Diagnostic::new(
                        to.span,
                        "a variable of this type begins with a value",
                        format!("write `let ${} = value`", name.text),
                    ));
                }
            },
            (Some(to), Some(value)) => {
                let new = self.code.value(value)?;
                if let (Some(kind), Val::Number(counted)) = (&number, &new) {
                    check_fits(kind, counted, value.span)?;
                }
                self.code.cast(to, new, value.span)?
            }
        };
        self.declare(name, new, true, value.map_or(name.span, |value| value.span))?;
        if let Some(made) = self.last_made() {
            if let Some(kind) = number {
                made.holds = Holds::Number(kind);
            }
            made.limit = limit;
        }
        Ok(())
    }

    /// Makes a variable of the block that has no value yet, as `let $name;` does. It holds what the
    /// first assignment says, which is known the next time, and until then a zero of that.
    pub(crate) fn declare_unset(&mut self, name: &Name) -> Lowered<()> {
        let made = identity(self.values(), &name.text, name.span.start);
        let value = match self.values().tables.unset.get(&made).cloned() {
            Some(Unset::Stored(shape)) => self.zero_of(shape),
            Some(Unset::Number(kind)) => Val::number(Number::Constant(0), kind),
            None => {
                let variable = Variable {
                    name: name.text.clone(),
                    place: Place::stack(0),
                    holds: Holds::Nothing,
                    made_at: name.span.start,
                    limit: None,
                    home: Home::Own,
                };
                self.values()
                    .scopes
                    .last_mut()
                    .into_iter()
                    .for_each(|scope| {
                        scope.push(variable.clone());
                    });
                return Ok(());
            }
        };
        self.declare(name, value, true, name.span)
    }

    /// A value that is stored so, and all zero.
    fn zero_of(&mut self, shape: Shape) -> Val {
        let bytes = shape.bytes().max(1).next_multiple_of(8);
        let place = self.values().memory.take(bytes);
        self.code.asm.zero(place, bytes);
        Val::Stored { place, shape }
    }

    /// The first assignment of such a variable.
    fn set_first(&mut self, variable: &Variable, value: Val, span: Span) -> Lowered<()> {
        let value = code::kept(&mut self.code, value, span)?;
        let made = identity(self.values(), &variable.name, variable.made_at);
        let unset = match &value {
            Val::Number(counted) => Some(Unset::Number(counted.kind.clone())),
            Val::Object(object) if !self.values().is_text(&Val::Object(object.clone())) => None,
            other => Some(Unset::Stored(self.values().shape(other, true))),
        };
        if let Some(unset) = unset {
            self.values().tables.unset.insert(made, unset);
            self.values().tables.learned = true;
        }
        let name = Name {
            text: variable.name.clone(),
            span: Span::new(variable.made_at, variable.made_at),
        };
        self.declare(&name, value, true, span)?;
        let scopes = &mut self.values().scopes;
        let Some(set) = scopes.last_mut().and_then(Vec::pop) else {
            return Ok(());
        };
        let mut known = scopes
            .iter_mut()
            .rev()
            .flat_map(|scope| scope.iter_mut().rev());
        if let Some(unset) = known.find(|known| known.name == set.name) {
            *unset = set;
        }
        Ok(())
    }

    /// Keeps where an object is; what is in registers is kept itself.
    pub(crate) fn hold(&mut self, object: &Object, is_inner: bool) -> Object {
        let kept = |this: &mut Self, number: &Number| {
            if number.constant().is_some() {
                return number.clone();
            }
            let place = this.values().room(8, is_inner);
            this.code.store_number(number, place, 8);
            Number::Own(place)
        };
        let at = match &object.at {
            At::Memory {
                space,
                address,
                offset,
            } => At::Memory {
                space: *space,
                address: kept(self, address),
                offset: *offset,
            },
            At::Pieces {
                space,
                pieces,
                offset,
            } => {
                let pieces = pieces.iter().map(|piece| Piece {
                    bytes: piece.bytes,
                    source: match &piece.source {
                        Source::Memory(number) => Source::Memory(kept(self, number)),
                        Source::Value(number) => Source::Value(kept(self, number)),
                        Source::Missing => Source::Missing,
                    },
                });
                At::Pieces {
                    space: *space,
                    pieces: pieces.collect::<Vec<_>>().into(),
                    offset: *offset,
                }
            }
        };
        let present = match &object.present {
            Test::Constant(is) => Test::Constant(*is),
            test => Test::not_zero(kept(self, &Number::test(test.clone()))),
        };
        let length = object.length.as_ref().map(|length| kept(self, length));
        Object {
            type_id: object.type_id,
            at,
            present,
            is_variant: object.is_variant,
            length,
        }
    }

    pub(crate) fn assign_variable(&mut self, name: &Name, value: Val, span: Span) -> Lowered<()> {
        let Some(variable) = self.values().find(&name.text) else {
            return self.declare(name, value, false, span);
        };
        if matches!(variable.holds, Holds::Nothing) {
            return self.set_first(&variable, value, span);
        }
        let value = code::kept(&mut self.code, value, span)?;
        if let Some(limit) = &variable.limit {
            like::check_limit(self.values(), limit, &value, span)?;
        }
        match (&variable.holds, value) {
            (Holds::Number(kind), Val::Number(counted)) => {
                let fits = match (kind, &counted.kind) {
                    (Kind::Stack { .. }, other) | (other, Kind::Stack { .. }) => kind == other,
                    _ => true,
                };
                if !fits {
                    return Err(Diagnostic::new(
                        span,
                        format!("`${}` holds something else than this call stack", name.text),
                        "use another variable",
                    ));
                }
                let is_typed = matches!(kind, Kind::Pointer { to: Some(_), .. });
                if is_typed && matches!(counted.kind, Kind::Integer { .. }) {
                    return Err(Diagnostic::new(
                        span,
                        format!("`${}` holds a pointer, and this is a number", name.text),
                        "cast it to the pointer's type, or use another variable",
                    ));
                }
                if let (
                    Kind::Pointer { to, space },
                    Kind::Pointer {
                        to: new,
                        space: new_space,
                    },
                ) = (kind, &counted.kind)
                {
                    let types = self.values().types();
                    let is_other = match (to, new) {
                        (Some(a), Some(b)) => a != b && types.describe(*a) != types.describe(*b),
                        _ => false,
                    };
                    if is_other || space != new_space {
                        return Err(other_pointer(name, is_other, span));
                    }
                }
                if kind.takes_others() {
                    let new = self.values().shape(&Val::Number(counted.clone()), false);
                    let made = identity(self.values(), &variable.name, variable.made_at);
                    // What the variable holds is of the sign that all assignments say.
                    self.values().tables.variable(made, &new);
                }
                check_fits(kind, &counted, span)?;
                let number = match kind.narrow() {
                    Some((bytes, signed)) => counted.number.extended(bytes, signed),
                    // It is declared so, or other numbers would have made it one.
                    None if *kind == Kind::Boolean && counted.kind != Kind::Boolean => {
                        Number::test(Test::not_zero(counted.number))
                    }
                    None => counted.number,
                };
                self.code.store_number(&number, variable.place, 8);
                Ok(())
            }
            (Holds::Stored(shape), value) => {
                let shape = shape.clone();
                let new = self.values().shape(&value, true);
                let made = identity(self.values(), &variable.name, variable.made_at);
                match self.values().tables.variable(made, &new) {
                    Some(known) if known == shape => match value {
                        // Parts of it may be parts of what the variable holds.
                        Val::Tuple(_) | Val::Record(_) => {
                            let whole = self.values().memory.take(shape.bytes());
                            self.code.store(&value, whole, &shape, span)?;
                            self.code.asm.copy(whole, variable.place, shape.bytes());
                            Ok(())
                        }
                        _ => self.code.store(&value, variable.place, &shape, span),
                    },
                    // The next time there is room.
                    Some(_) => Ok(()),
                    None => Err(other_type(name, &shape, &new, span)),
                }
            }
            (Holds::Object(held), Val::Object(object)) if held.type_id == object.type_id => {
                self.assign_object(name, held, &object, span)
            }
            _ => Err(Diagnostic::new(
                span,
                format!("`${}` holds a value of another type", name.text),
                "use another variable",
            )),
        }
    }

    fn assign_object(
        &mut self,
        name: &Name,
        held: &Object,
        object: &Object,
        span: Span,
    ) -> Lowered<()> {
        let not_again = || {
            Diagnostic::new(
                span,
                format!("`${}` cannot be given this value again", name.text),
                "use another variable",
            )
        };
        let (
            At::Memory {
                space: held_space,
                address: Number::Own(place),
                offset: 0,
            },
            At::Memory {
                space,
                address,
                offset,
            },
            Test::Constant(true),
            Test::Constant(true),
        ) = (&held.at, &object.at, &held.present, &object.present)
        else {
            return Err(not_again());
        };
        if held_space != space {
            return Err(not_again());
        }
        let address = Number::alu(
            bpf::AluOp::Add,
            address.clone(),
            Number::Constant(offset.cast_unsigned()),
        );
        self.code.store_number(&address, *place, 8);
        Ok(())
    }
}

/// Refuses a number of the text that a type does not have.
fn check_fits(kind: &Kind, counted: &Counted, span: Span) -> Lowered<()> {
    let (
        Kind::Literal
        | Kind::Integer {
            bytes: 8,
            signed: false,
        },
        Some(number),
    ) = (&counted.kind, counted.number.constant())
    else {
        return Ok(());
    };
    let Kind::Integer { bytes, signed } = *kind else {
        return Ok(());
    };
    let exact = match counted.kind.is_signed() {
        true => i128::from(number.cast_signed()),
        false => i128::from(number),
    };
    let kept = extend(number, bytes, signed);
    let kept = match signed {
        true => i128::from(kept.cast_signed()),
        false => i128::from(kept),
    };
    if kept == exact {
        return Ok(());
    }
    let letter = if signed { 'i' } else { 'u' };
    let bits = 8 * u32::from(bytes);
    Err(Diagnostic::new(
        span,
        format!("the variable is of type {letter}{bits}, which has no {exact}"),
        format!("give it a larger type, or say that it is to be cut: ({letter}{bits})value"),
    ))
}

/// What a variable of a pointer was given would be read as what that pointer leads to.
fn other_pointer(name: &Name, is_other: bool, span: Span) -> Diagnostic {
    let leads = match is_other {
        true => "to another type than this pointer",
        false => "into other memory than this pointer: the kernel's, or that of a program",
    };
    Diagnostic::new(
        span,
        format!("`${}` leads {leads}", name.text),
        "use another variable, or keep both as numbers: (uint64)pointer",
    )
}

fn other_type(name: &Name, shape: &Shape, new: &Shape, span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        format!(
            "`${}` holds {}, and this is {}",
            name.text,
            names::shape(shape),
            names::shape(new)
        ),
        "use another variable",
    )
}
