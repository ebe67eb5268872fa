//! The parts of expressions and statements.

use alloc::{vec, vec::Vec};

use crate::tree::{
    Block, Expression, ExpressionKind, Statement, StatementKind, Target, TypeKind, TypeName,
};

/// The same for references of both kinds.
macro_rules! parts {
    ($kind:expr, $iter:ident $(, $mut:tt)?) => {
        match $kind {
            ExpressionKind::Integer(_)
            | ExpressionKind::Boolean(_)
            | ExpressionKind::String(_)
            | ExpressionKind::Variable(_)
            | ExpressionKind::Name(_)
            | ExpressionKind::Type(_)
            | ExpressionKind::Block { value: None, .. } => Vec::new(),
            ExpressionKind::Map(map) => map.keys.$iter().collect(),
            ExpressionKind::Call { arguments: all, .. } | ExpressionKind::Tuple(all) => {
                all.$iter().collect()
            }
            ExpressionKind::Record(fields) => {
                fields.$iter().map(|(_, value)| value).collect()
            }
            ExpressionKind::Field { of: only, .. }
            | ExpressionKind::Unary { operand: only, .. }
            | ExpressionKind::Cast { operand: only, .. }
            | ExpressionKind::Block { value: Some(only), .. } => vec![& $($mut)? **only],
            ExpressionKind::OrElse { value: first, otherwise: second }
            | ExpressionKind::Index { of: first, index: second }
            | ExpressionKind::Binary { left: first, right: second, .. } => {
                vec![& $($mut)? **first, & $($mut)? **second]
            }
            ExpressionKind::Ternary { condition, then, otherwise } => {
                vec![& $($mut)? **condition, & $($mut)? **then, & $($mut)? **otherwise]
            }
            ExpressionKind::Step { target, .. } => match & $($mut)? **target {
                Target::Variable(_) => Vec::new(),
                Target::Map(map) => map.keys.$iter().collect(),
            },
        }
    };
}

impl Expression {
    /// The expressions that it is made of, in the order of the text. Of a block only its value, and
    /// none of its types.
    pub fn parts(&self) -> Vec<&Self> {
        parts!(&self.kind, iter)
    }

    /// Same as [`Self::parts`].
    pub fn parts_mut(&mut self) -> Vec<&mut Self> {
        parts!(&mut self.kind, iter_mut, mut)
    }

    /// Whether it is a block or `a ?: b`, which need statements, or a part of it is.
    pub fn has_block(&self) -> bool {
        self.calculates(&|part| {
            matches!(
                part.kind,
                ExpressionKind::Block { .. } | ExpressionKind::OrElse { .. }
            )
        })
    }

    /// Whether it is a wanted one, or a part that is calculated for it.
    pub fn calculates(&self, wanted: &dyn Fn(&Self) -> bool) -> bool {
        let any = |parts: Vec<&Self>| parts.into_iter().any(|part| part.calculates(wanted));
        wanted(self) || !self.is_measure() && any(self.parts())
    }

    /// Whether it asks for a type, a size or an offset, so what it is asked of is not calculated.
    pub fn is_measure(&self) -> bool {
        matches!(&self.kind, ExpressionKind::Call { name, .. } if is_measure(&name.text))
    }

    /// The type that is a part of it.
    pub fn type_mut(&mut self) -> Option<&mut TypeName> {
        match &mut self.kind {
            ExpressionKind::Cast { to, .. } | ExpressionKind::Type(to) => Some(to),
            _ => None,
        }
    }
}

impl TypeName {
    /// How many pointers and arrays are around what it begins with.
    pub(crate) fn signs(&self) -> usize {
        let mut signs = 0;
        let mut this = self;
        while let TypeKind::Pointer(of) | TypeKind::Slice(of) | TypeKind::Array { of, .. } =
            &this.kind
        {
            signs += 1;
            this = of;
        }
        signs
    }

    /// The value of the `typeof` in it.
    pub fn value_mut(&mut self) -> Option<&mut Expression> {
        match &mut self.kind {
            TypeKind::Named(_) => None,
            TypeKind::Pointer(to) => to.value_mut(),
            TypeKind::Slice(of) | TypeKind::Array { of, .. } => of.value_mut(),
            TypeKind::Of(value) => Some(value),
        }
    }
}

impl Statement {
    /// The expressions that it is made of, in the order of the text, without those in its blocks.
    pub fn parts_mut(&mut self) -> Vec<&mut Expression> {
        match &mut self.kind {
            StatementKind::Assign { target, value, .. } => {
                let mut all = match target {
                    Target::Variable(_) => Vec::new(),
                    Target::Map(map) => map.keys.iter_mut().collect(),
                };
                all.push(value);
                all
            }
            StatementKind::Let { value, .. } | StatementKind::Return(value) => {
                value.iter_mut().collect()
            }
            StatementKind::Expression(only)
            | StatementKind::If {
                condition: only, ..
            }
            | StatementKind::While {
                condition: only, ..
            }
            | StatementKind::Match { value: only, .. } => vec![only],
            StatementKind::For { from, to, .. } => vec![from, to],
            StatementKind::Unroll { .. }
            | StatementKind::ForEach { .. }
            | StatementKind::Break
            | StatementKind::Continue => Vec::new(),
        }
    }

    /// The type that is a part of it.
    pub fn type_mut(&mut self) -> Option<&mut TypeName> {
        match &mut self.kind {
            StatementKind::Let { to, .. } => to.as_mut(),
            _ => None,
        }
    }

    /// The blocks that it is made of, without those in its expressions.
    pub fn blocks_mut(&mut self) -> Vec<&mut Block> {
        match &mut self.kind {
            StatementKind::If {
                then, otherwise, ..
            } => {
                let mut all = vec![then];
                all.extend(otherwise);
                all
            }
            StatementKind::Unroll { body, .. }
            | StatementKind::For { body, .. }
            | StatementKind::ForEach { body, .. }
            | StatementKind::While { body, .. } => vec![body],
            StatementKind::Match { arms, .. } => arms.iter_mut().map(|arm| &mut arm.body).collect(),
            StatementKind::Assign { .. }
            | StatementKind::Let { .. }
            | StatementKind::Expression(_)
            | StatementKind::Return(_)
            | StatementKind::Break
            | StatementKind::Continue => Vec::new(),
        }
    }
}

/// Whether a function of that name is asked of a type, or of a value that is not calculated.
pub(crate) fn is_measure(name: &str) -> bool {
    let names = [
        "is_array",
        "is_integer",
        "is_literal",
        "is_ptr",
        "is_str",
        "is_unsigned_integer",
        "offsetof",
        "sizeof",
        "typeinfo",
    ];
    names.contains(&name)
}
