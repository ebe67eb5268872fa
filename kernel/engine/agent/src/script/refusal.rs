//! Why a script does not run, in words for the person who wrote it.

use alloc::{borrow::Cow, format};
use core::fmt;

use fallible::OutOfMemory;
use trace_interface::Frame;

use crate::program::LoadError;

/// Why a script does not run.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The index of the program, if one is the matter.
    pub program: Option<u32>,
    /// Without memory it is a constant, so that the refusal needs none.
    pub text: Cow<'static, str>,
    /// A place cannot be probed, so another one might do.
    pub(super) is_of_place: bool,
}

impl Refusal {
    /// A refusal in these words, because of the program with that index if one is the matter.
    pub fn new(program: Option<u32>, text: impl fmt::Display) -> Self {
        Self {
            program,
            text: format!("{text}").into(),
            is_of_place: false,
        }
    }

    /// A program cannot be loaded or attached, or a map not made.
    pub(super) fn load(program: Option<u32>, error: LoadError) -> Self {
        match error.is_out_of_memory() {
            true => OutOfMemory.into(),
            false => Self {
                is_of_place: error.refused_place().is_some(),
                ..Self::new(program, error)
            },
        }
    }

    /// The frame that the reader gets.
    pub fn frame(&self) -> Frame {
        Frame::Refused {
            program: self.program,
            text: self.text.clone().into_owned(),
        }
    }
}

impl From<OutOfMemory> for Refusal {
    fn from(_: OutOfMemory) -> Self {
        Self {
            program: None,
            text: "there is no memory for the script; give the machine more".into(),
            is_of_place: false,
        }
    }
}
