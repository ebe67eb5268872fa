//! The last calls or lines of a kernel, from what is left of its rings and maps.

use std::fmt;

use debug_info::DebugInfo;
use pictures::{
    Timeline,
    text::{Open, Tree, tree},
};
use trace_answers::Presentation;
use trace_interface::{Frame, Kernel as _};
use trace_link::{LiveMap, RingCopy};

use crate::{Sources, lines, read, timeline};

/// The addresses of the functions that `pattern` matches.
///
/// # Errors
/// There are none: what to write instead, for a person.
pub fn functions(kernel: &DebugInfo, pattern: &str) -> Result<Vec<u64>, String> {
    let functions = kernel.functions(pattern);
    if functions.is_empty() {
        let near = kernel.nearest(pattern);
        let next = match near.is_empty() {
            true => "`*` stands for any text".into(),
            false => format!("near are {}", near.join(", ")),
        };
        return Err(format!(
            "no function matches --functions '{pattern}'; {next}"
        ));
    }
    Ok(functions.iter().map(|function| function.address).collect())
}

/// What is left of a recording.
pub struct LastCalls<'a> {
    /// Shows the records of a user's program, with its [`Frame::Started`]. None: functions were
    /// recorded.
    pub program: Option<(&'a mut Presentation, &'a Frame)>,
    pub rings: &'a [RingCopy],
    pub maps: &'a [LiveMap],
    /// Ticks of the clock of records in a second.
    pub tsc_hz: u64,
    /// How many calls or lines are shown.
    pub last: usize,
    /// What has become of calls that have not returned.
    pub open: Open,
    pub symbols: &'a DebugInfo,
}

impl LastCalls<'_> {
    /// The text of the last calls, and a timeline of all.
    ///
    /// # Errors
    /// Those of a text that cannot grow: none.
    pub fn show(self) -> Result<(String, Timeline), fmt::Error> {
        let recording = read(self.rings);
        let Some((presentation, started)) = self.program else {
            let timeline = timeline(&recording, self.tsc_hz, &Sources::new(self.symbols));
            let last = Tree {
                last: Some(self.last),
                from_end: true,
                open: self.open,
                ..Tree::default()
            };
            return Ok((tree(&timeline, last), timeline));
        };
        lines(
            presentation,
            started,
            &recording,
            self.maps,
            self.last,
            self.symbols,
        )
    }
}
