//! `trace`: a line of the tracer's language at the prompt.
//!
//! The compiler is the host's, but it has the symbol table only: no types, no variables by name.
//!
//! # Contexts
//! The prompt's task. Ctrl-C ends the script, and what it has gathered is shown. A second Ctrl-C
//! ends that, too.

use alloc::string::String;
use core::fmt::Write;

use trace_answers::{Event, Presentation};
use trace_compiler::{Options, compile};
use trace_interface::Frame;
use trace_language::{BYTES_OF_LEVEL, Diagnostic};

use super::command::{Failure, Next};
use crate::{
    arch::apic,
    mm::kernel_stack,
    probes::Kernel,
    task::WaitQueue,
    terminal::Command as Running,
    time::{NSEC_PER_MSEC, ktime_get},
    trace::script::{How, Outlet, OwnTasks, Session, symbols_only::SymbolsOnly},
};

/// How often the ring is looked into.
const LOOK_NS: u64 = 20 * NSEC_PER_MSEC;

/// Shows answers as they come.
struct Screen<'o> {
    presentation: Presentation,
    out: &'o mut dyn Write,
    /// The output was not taken.
    failed: bool,
}

impl Outlet for Screen<'_> {
    fn send(&mut self, frame: &Frame) {
        let shown = self.presentation.frame(frame, &SymbolsOnly, self.out);
        match shown {
            Ok(Event::Started { places }) => {
                let plural = if places == 1 { "" } else { "s" };
                self.failed |= writeln!(self.out, "{places} place{plural} probed").is_err();
            }
            Ok(_) => {}
            Err(_) => self.failed = true,
        }
    }
}

/// The mistakes in a text, with carets below the places.
fn refused(text: &str, errors: &[Diagnostic]) -> Failure {
    let mut shown = String::from("the program is refused");
    for error in errors {
        // Text in memory takes all.
        let _ = write!(shown, "\n{}", error.show(text));
    }
    Failure::Script(shown)
}

/// Whether the stack has room for another level of a program.
fn has_room() -> bool {
    let here = 0_u8;
    let here = (&raw const here).addr() as u64;
    here - kernel_stack::bounds(here).start >= BYTES_OF_LEVEL as u64
}

/// Runs a script until it asks for the end, or Ctrl-C does.
pub fn trace(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    if arguments.is_empty() {
        return Err(Failure::Usage(
            "it needs a program, such as 'kprobe:vfs_write { @ = count(); }'",
        ));
    }
    let text = arguments.join(" ");
    let tree = trace_language::parse_with_room(&text, &[], has_room)
        .map_err(|errors| refused(&text, &errors))?;
    let options = Options {
        debug_info: false,
        tick_nanoseconds: apic::tick_ns(),
        has_room,
        ..Options::default()
    };
    let compiled =
        compile(&tree, &SymbolsOnly, &options).map_err(|errors| refused(&text, &errors))?;
    let mut screen = Screen {
        presentation: Presentation::new(compiled.view),
        out,
        failed: false,
    };
    let mut how = How::default();
    if !compiled.script.with_tracer {
        how.own = OwnTasks::of_caller::<Kernel>();
    }
    let mut session = Session::start(&compiled.script, how, &mut screen)
        .map_err(|refusal| Failure::Script(refusal.text.into_owned()))?;
    static NOBODY_WAKES: WaitQueue = WaitQueue::new();
    while !Running::is_interrupted() && !session.is_over() && !screen.failed {
        if session.serve(&mut screen) {
            continue;
        }
        let look = ktime_get().saturating_add(LOOK_NS);
        let next = session.next_due().map_or(look, |due| due.min(look));
        // Either way the loop looks at all again.
        let _ = NOBODY_WAKES.wait_until_deadline(next, Running::is_interrupted);
    }
    // The answers are what Ctrl-C asks for.
    Running::go_on();
    session.end(&mut screen);
    match screen.failed {
        true => Err(Failure::Output),
        false => Ok(Next::Command),
    }
}
