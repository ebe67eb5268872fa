//! A text, compiled for the made-up kernel, in a machine that runs it.

use std::{
    boxed::Box,
    ops::{Deref, DerefMut},
};

pub(super) use script_world::Hit;

use super::fake::{Fake, compiled};
use crate::Compiled;

/// A kernel that runs a script by the interpreter.
pub(super) struct World(script_world::World);

impl World {
    pub(super) fn new(text: &str) -> Self {
        Self::of(compiled(text))
    }

    pub(super) fn of(compiled: Compiled) -> Self {
        let Compiled { script, view, .. } = compiled;
        Self(script_world::World::new(
            &script,
            view,
            Box::new(Fake::new()),
        ))
    }
}

impl Deref for World {
    type Target = script_world::World;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
