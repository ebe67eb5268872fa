//! Before a program runs: it is read, checked and compiled for the kernel.
//!
//! What needs no kernel is checked before one is built, which may take minutes. A program that is
//! wrong ends in a [`Failure::Refused`], whose text names the place (TOOL-1).

use debug_info::DebugInfo;
use trace_answers::Presentation;
use trace_interface::script::{self, Attachment, WatchedAccess, WatchedAt};
use trace_language::{Diagnostic, parse_with, tree::Tree};

use crate::{
    Failure, calls,
    expect::Condition,
    options::Options,
    report::{report, warnings},
    source::Source,
    target::Target,
};

/// A program that has been read, with the conditions that it has to meet.
pub struct Prepared {
    tree: Tree,
    pub conditions: Vec<Condition>,
}

/// The refusal of a program with mistakes.
fn refusal(mistakes: &[Diagnostic], source: &Source) -> Failure {
    Failure::Refused(report(mistakes, &source.text, &source.name))
}

/// Reads the program and all else that the options say of it.
pub fn read(options: &Options, source: &Source) -> Result<Prepared, Failure> {
    let tree = parse_with(&source.text, &source.arguments())
        .map_err(|mistakes| refusal(&mistakes, source))?;
    let conditions = options.expect.iter().map(|text| Condition::read(text));
    let conditions = conditions.collect::<Result<_, _>>();
    let conditions = conditions.map_err(Failure::Refused)?;
    if options.flame.is_some() && !options.graph.is_wanted() && !names_stack(&tree) {
        let text = "error: --flame draws call stacks, and the program takes none; write, for \
                    example, `@[kstack] = count()`";
        return Err(Failure::Refused(text.into()));
    }
    let files = [&options.perfetto, &options.flame, &options.html];
    for path in files.into_iter().flatten() {
        if let Err(error) = ::pictures::file::check(path) {
            let text = format!("error: cannot write {}: {error}", path.display());
            return Err(Failure::Refused(text));
        }
    }
    Ok(Prepared { tree, conditions })
}

/// A program, ready to run.
pub struct Plan {
    pub script: script::Script,
    /// Reads its answers.
    pub presentation: Presentation,
    /// The names of the probes, by attachment.
    pub probes: Vec<String>,
    /// The map that counts the calls that have not returned, for pictures.
    pub count: Option<u32>,
}

/// Compiles the program and what the options add to it.
pub fn compile(
    prepared: &Prepared,
    options: &Options,
    source: &Source,
    target: &Target,
    symbols: &DebugInfo,
) -> Result<Plan, Failure> {
    let mut how = target.compile_options(options)?;
    // A line of a tree is to be read at a glance.
    how.brief = options.graph.is_wanted();
    let mut compiled = calls::compile_with_calls(options, source, &prepared.tree, symbols, &how)
        .map_err(|mistakes| refusal(&mistakes, source))?;
    target.check(&compiled.script)?;
    if !compiled.missing.is_empty() {
        eprintln!(
            "{}",
            warnings(&compiled.missing, &source.text, &source.name)
        );
    }
    let probes = calls::probes(
        &compiled.origins,
        &compiled.script.attachments,
        source,
        |address| symbols.function_at(address).map(|function| function.path),
    );
    if target.tells_one_watch(options)
        && let Some((one, other)) = sharing_bytes(&compiled.script.attachments)
    {
        return Err(Failure::Refused(format!(
            "error: {} and {} share bytes, and QEMU tells only one of two watches that an \
             instruction hits\n  = help: write both blocks into one clause, or use --accel kvm",
            probes[one], probes[other]
        )));
    }
    for condition in &prepared.conditions {
        condition
            .check(&compiled.view.maps)
            .map_err(Failure::Refused)?;
    }
    let count = calls::take_count(source, &mut compiled.view);
    let presentation = Presentation::new(compiled.view);
    Ok(Plan {
        script: compiled.script,
        presentation,
        probes,
        count,
    })
}

/// Two watches by debug registers that the same store may hit.
fn sharing_bytes(attachments: &[Attachment]) -> Option<(usize, usize)> {
    let words = attachments.iter().enumerate();
    let words = words.filter_map(|(number, attachment)| match attachment {
        Attachment::Watch {
            path,
            at: WatchedAt::Address(start),
            bytes,
            access: WatchedAccess::Write | WatchedAccess::ReadWrite,
            ..
        } => Some((number, path, *start..start.saturating_add((*bytes).into()))),
        _ => None,
    });
    let words: Vec<_> = words.collect();
    words
        .iter()
        .enumerate()
        .find_map(|(at, (number, path, of))| {
            let mut others = words[at + 1..].iter();
            let other = others.find(|(_, other_path, other)| {
                path == other_path && of.start < other.end && other.start < of.end
            })?;
            Some((*number, other.0))
        })
}

/// Whether a program takes call stacks.
fn names_stack(tree: &Tree) -> bool {
    let text = tree.to_string();
    ["kstack", "ustack"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use boot::options::Checked;

    fn refused(arguments: &[&str]) -> Option<String> {
        let options = Options::read([&["trace"], arguments].concat()).unwrap();
        let source = Source::of(&options).unwrap();
        match read(&options, &source) {
            Ok(prepared) => {
                assert_eq!(prepared.conditions.len(), options.expect.len());
                None
            }
            Err(Failure::Refused(text)) => Some(text),
            Err(Failure::Error(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn watches_of_the_same_bytes_are_found() {
        let watch = |path: Option<&str>, start, bytes, access| Attachment::Watch {
            program: 0,
            path: path.map(String::from),
            at: WatchedAt::Address(start),
            bytes,
            access,
        };
        let write = |start, bytes| watch(None, start, bytes, WatchedAccess::Write);
        let first = write(0x1000, 8);
        for (others, shared) in [
            (vec![write(0x1008, 8), write(0xff8, 8)], None),
            (vec![write(0x1008, 8), write(0x1007, 1)], Some((0, 2))),
            (vec![write(0x1000, 8)], Some((0, 1))),
            (
                vec![watch(None, 0x1004, 4, WatchedAccess::ReadWrite)],
                Some((0, 1)),
            ),
            (
                vec![
                    watch(Some("/bin/a"), 0x1000, 8, WatchedAccess::Write),
                    watch(Some("/bin/b"), 0x1000, 8, WatchedAccess::Write),
                ],
                None,
            ),
            (vec![watch(None, 0x1000, 1, WatchedAccess::Execute)], None),
        ] {
            let all = [vec![first.clone()], others].concat();
            assert_eq!(sharing_bytes(&all), shared, "{all:?}");
        }
    }

    #[test]
    fn what_needs_no_kernel_is_refused_before_one_is_built() {
        let plain = "kprobe:f { @ = count(); }";
        assert_eq!(
            refused(&[plain, "--expect", "@ == 1", "--expect", "hits"]),
            None
        );
        for stacks in ["kstack", "ustack", "(kstack(3), pid)"] {
            let program = format!("kprobe:f {{ @[{stacks}] = count(); }}");
            assert_eq!(refused(&[&program, "--flame", "/dev/null"]), None);
        }
        for option in ["--html", "--perfetto"] {
            assert_eq!(refused(&[plain, option, "/dev/null"]), None);
        }
        for (arguments, why) in [
            (&["kprobe:f { @ = }"][..], "program"),
            (&[plain, "--expect", "@ =="], "--expect"),
            (&[plain, "--flame", "/dev/null"], "the program takes none"),
            (
                &[plain, "--html", "/nowhere/page"],
                "cannot write /nowhere/page",
            ),
            (
                &[plain, "--perfetto", "/nowhere/file"],
                "cannot write /nowhere/file",
            ),
            (
                &[
                    "kprobe:f { @[kstack] = count(); }",
                    "--flame",
                    "/nowhere/flame",
                ],
                "cannot write /nowhere/flame",
            ),
        ] {
            let text = refused(arguments).unwrap_or_default();
            assert!(text.contains(why), "{arguments:?}: {text}");
        }
    }
}
