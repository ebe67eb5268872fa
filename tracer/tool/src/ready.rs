//! The ready programs, which are in `tracer/programs`: what each is for, which arguments it takes,
//! and which one is meant by a name that none has.

/// The ready programs: names and texts, by name. The first line of each tells how it is used:
/// `// NAME ARGUMENTS: WHAT`.
pub const READY: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/ready.rs"));

/// The ready programs as the help shows them.
pub fn help() -> String {
    let lines = READY.iter().map(|(_, text)| {
        let (usage, what) = usage(text);
        format!("  {usage:<32} {what}")
    });
    let lines: Vec<String> = lines.collect();
    format!(
        "Ready programs, in tracer/programs; --source prints one, to be copied and changed:\n{}",
        lines.join("\n")
    )
}

/// How a ready program is used, and what it shows.
pub fn usage(text: &str) -> (&str, &str) {
    let line = text.lines().next().unwrap_or_default();
    let line = line.trim_start_matches("// ");
    line.split_once(": ").unwrap_or((line, ""))
}

/// The text of the ready program with that name.
pub fn find(name: &str) -> Option<&'static str> {
    let found = READY.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

/// What the ready program with that name does, its arguments, and examples: the comment that its
/// text begins with.
pub fn help_of(name: &str) -> Option<String> {
    let text = find(name)?;
    let (usage, what) = usage(text);
    let command = format!("cargo run -- trace {name}");
    let more = text
        .lines()
        .skip(1)
        .map_while(|line| line.strip_prefix("//"));
    let mut is_example = false;
    let more = more.map(|line| {
        let line = line.strip_prefix(' ').unwrap_or(line);
        is_example |= line.starts_with("Example");
        match is_example {
            true => line.replacen(name, &command, 1),
            false => line.into(),
        }
    });
    let more: Vec<String> = more.collect();
    Some(format!(
        "{name}: {what}\n\nUsage: cargo run -- trace {usage} [OPTIONS]\n{}\n\n\
         `trace --help` shows the options, and `trace --source {name}` prints the program.\n",
        more.join("\n")
    ))
}

/// Refuses more arguments than a ready program takes.
pub fn check_arguments(text: &str, arguments: &[String]) -> Result<(), String> {
    let (usage, _) = usage(text);
    let mut words = usage.split(' ');
    let name = words.next().unwrap_or_default();
    let taken = words.count();
    match arguments.get(taken) {
        None => Ok(()),
        Some(further) => Err(format!(
            "`{further}` is one argument too many; {name} is used as `{usage}`"
        )),
    }
}

/// The ready programs whose names are near to that one, as a question. Empty if none is.
pub fn near(name: &str) -> String {
    const FAR: usize = 2;
    let far = |known: &str| names::distance_with_swaps(name, known, FAR);
    let known = READY.iter().map(|(known, _)| *known);
    let found: Vec<(usize, &str)> = known
        .filter_map(|known| Some((far(known)?, known)))
        .collect();
    let least = found.iter().map(|(distance, _)| *distance).min();
    let near = found
        .iter()
        .filter(|(distance, _)| Some(*distance) == least);
    let near: Vec<String> = near.map(|(_, known)| format!("`{known}`")).collect();
    names::did_you_mean(&near).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_there_leads_to_the_near_ones() {
        assert_eq!(near("funcount"), "did you mean `funccount`?");
        assert_eq!(near("funccuont"), "did you mean `funccount`?");
        assert_eq!(near("opnsnoop"), "did you mean `opensnoop`?");
        assert_eq!(near("xnsnoop"), "");
        assert_eq!(near("quux"), "");
        // None is offered that is farther than another one.
        assert_eq!(near("syscout"), "did you mean `syscount`?");
    }

    #[test]
    fn a_ready_program_takes_no_more_arguments_than_it_says() {
        let check = |name: &str, arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&word| word.into()).collect();
            check_arguments(find(name).unwrap(), &arguments)
        };
        assert_eq!(
            check("syscount", &["a", "b"]),
            Err("`a` is one argument too many; syscount is used as `syscount`".into())
        );
        assert_eq!(
            check("opensnoop", &["sh", "b"]),
            Err("`b` is one argument too many; opensnoop is used as `opensnoop [COMM]`".into())
        );
        assert_eq!(check("opensnoop", &["sh"]), Ok(()));
        assert_eq!(check("funcslower", &["f", "1000"]), Ok(()));
        assert!(check("funcslower", &["f", "1000", "x"]).is_err());
    }

    /// Each argument is explained, unless its name and the first line say all.
    #[test]
    fn the_help_of_each_ready_program_has_its_use_and_an_example() {
        for (name, text) in READY {
            let help = help_of(name).unwrap();
            let example = format!("cargo run -- trace {name}");
            assert!(help.matches(&example).count() >= 2, "{help}");
            assert!(!help.contains("//"), "{help}");
            let (usage, _) = usage(text);
            let (_, explained) = help.split_once("[OPTIONS]\n").unwrap();
            let (explained, _) = explained.split_once("\nExample").unwrap();
            for argument in usage.split(' ').skip(1) {
                let argument = argument.trim_matches(['[', ']']);
                assert!(explained.contains(argument), "{argument}: {help}");
            }
        }
        assert_eq!(help_of("no_such"), None);
    }
}
