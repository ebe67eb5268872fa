//! Tests of the lines of `trigger` files.
//!
//! A line prints as Linux prints it and reads again. What a second line of a kind does to the first
//! one, marks and counts are told by tables of lines.

use alloc::{format, string::ToString, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{
    error_log::ErrorLog,
    field::{Element, FieldKind, NoSymbols, Width},
    filter::FilterReason,
};

fn fields() -> [Field; 4] {
    let one = FieldKind::One;
    [
        Field::new("u8", 8, one(Element::Unsigned(Width::W8))),
        Field::new("name", 9, one(Element::String)),
        Field::new("object", 13, one(Element::Hex(Width::W64))),
        Field::new("place", 21, one(Element::Symbol)),
    ]
}

fn parse(text: &str) -> Result<Line, TriggerError> {
    Line::parse(text, &fields(), &NoSymbols)
}

#[test]
fn lines_print_as_linux_prints_them_and_read_again() {
    for (text, shown) in [
        ("traceon", "traceon:unlimited"),
        (" traceoff:5\n", "traceoff:count=5"),
        ("traceoff: 0x10", "traceoff:count=16"),
        ("snapshot:1 if u8 == 1", "snapshot:count=1 if u8 == 1"),
        ("stacktrace if  u8==1", "stacktrace:unlimited if u8==1"),
        ("stacktrace:if u8 == 1", "stacktrace:unlimited if u8 == 1"),
        ("traceon:0", "traceon:count=0"),
        (
            "enable_event:kprobes:foo",
            "enable_event:kprobes:foo:unlimited",
        ),
        (
            "enable_event:kprobes:foo:3",
            "enable_event:kprobes:foo:count=3",
        ),
        (
            "disable_event:kprobes:foo:3 if name == \"a:b if c\"",
            "disable_event:kprobes:foo:count=3 if name == \"a:b if c\"",
        ),
        (
            "disable_event:a:b if u8 == 2",
            "disable_event:a:b:unlimited if u8 == 2",
        ),
        ("enable_hist:a:b", "enable_hist:a:b:unlimited"),
        (
            "disable_hist:a:b:2 if u8 == 2",
            "disable_hist:a:b:count=2 if u8 == 2",
        ),
        (
            "set_wprobe:watch:object",
            "set_wprobe:watch:object+0:unlimited",
        ),
        (
            "set_wprobe:watch:place-8:3 if u8 == 1",
            "set_wprobe:watch:place-8:count=3 if u8 == 1",
        ),
        (
            "clear_wprobe:watch:object+0x10",
            "clear_wprobe:watch:object+16:unlimited",
        ),
        ("clear_wprobe:watch", "clear_wprobe:watch:unlimited"),
        (
            "clear_wprobe:watch:2 if u8 == 1",
            "clear_wprobe:watch:count=2 if u8 == 1",
        ),
        (
            "hist:keys=u8:vals=u8 if u8 > 1",
            "hist:keys=u8:vals=hitcount,u8:sort=hitcount:size=2048 if u8 > 1 [active]",
        ),
        (
            "hist keys=u8",
            "hist:keys=u8:vals=hitcount:sort=hitcount:size=2048 [active]",
        ),
    ] {
        let line = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(!line.remove);
        assert_eq!(
            line.trigger.line(line.trigger.count, false, 0).to_string(),
            shown
        );
        // Linux's selftests cut the line at a `[` and write the rest with a `!` before it.
        let cut = shown.split('[').next().unwrap();
        let again = parse(&format!("!{cut}")).unwrap_or_else(|error| panic!("{cut}: {error}"));
        assert!(again.remove);
        assert!(again.trigger.same_place(&line.trigger), "{cut}");
    }
}

#[test]
fn what_is_left_of_the_count_is_shown() {
    let line = parse("traceoff:5").unwrap();
    assert_eq!(
        line.trigger.line(Some(2), false, 0).to_string(),
        "traceoff:count=2"
    );
    // The largest number is no limit.
    let line = parse("traceoff:18446744073709551615").unwrap();
    assert_eq!(line.trigger.count, None);
    let line = parse("set_wprobe:watch:object").unwrap();
    assert_eq!(
        line.trigger.line(None, false, 3).to_string(),
        "set_wprobe:watch:object+0:unlimited # missed: 3"
    );
    let line = parse("hist:keys=u8").unwrap();
    assert!(
        line.trigger
            .line(None, true, 0)
            .to_string()
            .ends_with("[paused]")
    );
}

#[test]
fn empty_file_lists_the_commands() {
    assert_eq!(
        Available(&Command::ALL).to_string(),
        "# Available triggers:\n\
         # traceon traceoff snapshot stacktrace enable_event disable_event enable_hist \
         disable_hist set_wprobe clear_wprobe hist\n"
    );
}

#[test]
fn what_the_readme_lists_works() {
    for command in Command::ALL {
        assert!(README.contains(command.name()), "{command:?}");
    }
    let (of_keys, of_values) = README.split_once("Modifiers of a value").unwrap();
    for (part, beginning, count) in [
        (of_keys, "hist:keys=common_pid", 7),
        (of_values, "hist:keys=common_pid:vals=hitcount", 3),
    ] {
        let lines = part.lines();
        let modifiers = lines.filter_map(|line| line.trim().strip_prefix('.'));
        let modifiers = modifiers.filter_map(|line| line.split_whitespace().next());
        for modifier in modifiers.clone() {
            let modifier = modifier.replace("=size", "=10");
            assert!(
                parse(&format!("{beginning}.{modifier}")).is_ok(),
                "{modifier}"
            );
        }
        assert_eq!(modifiers.count(), count, "the test sees each modifier");
    }
    for part in [
        "values=u8",
        "sort=common_pid",
        "size=128",
        "pause",
        "continue",
        "name=x",
        "nohitcount:vals=u8",
    ] {
        let name = part.split(['=', ':']).next().unwrap();
        assert!(README.contains(&format!("[:{name}")), "{part}");
        assert!(
            parse(&format!("hist:keys=common_pid:{part} if u8 == 1")).is_ok(),
            "{part}"
        );
    }
}

#[test]
fn bad_lines_are_refused() {
    for (text, error) in [
        ("", TriggerError::UnknownCommand),
        ("junk", TriggerError::UnknownCommand),
        ("traceonx", TriggerError::UnknownCommand),
        ("!!traceon", TriggerError::UnknownCommand),
        ("traceon:x", TriggerError::NoIf),
        ("traceon x", TriggerError::NoIf),
        ("traceon:1 x", TriggerError::NoIf),
        ("traceon:1 ifx", TriggerError::NoIf),
        ("traceon if", TriggerError::NoIf),
        ("traceon:1x", TriggerError::BadCount),
        ("traceon:18446744073709551616", TriggerError::BadCount),
        ("enable_event:a:b:", TriggerError::BadCount),
        ("disable_hist:a:b: if u8 == 1", TriggerError::BadCount),
        ("enable_event", TriggerError::NoParameter),
        ("enable_event:kprobes", TriggerError::NoParameter),
        ("enable_event:kprobes:", TriggerError::NoParameter),
        ("enable_event::foo", TriggerError::NoParameter),
        ("!enable_event:kprobes", TriggerError::NoParameter),
        ("enable_event:kprobes:foo:x", TriggerError::NoIf),
        ("hist", TriggerError::NoParameter),
        ("hist:", TriggerError::NoParameter),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
        assert_eq!(error.errno(), 22);
        assert_eq!(error.log_entry(text), None, "{text}");
    }
}

#[test]
fn refused_watches_are_logged_with_their_place() {
    use WatchReason as Reason;
    for (text, reason, column) in [
        ("set_wprobe", Reason::NotFound, 10),
        ("set_wprobe:", Reason::NotFound, 11),
        ("set_wprobe:watch", Reason::NoField, 16),
        ("set_wprobe:watch:5", Reason::NoField, 17),
        (" set_wprobe:watch if u8 == 1", Reason::NoField, 16),
        ("set_wprobe:watch:junk", Reason::FieldNotFound, 17),
        ("!set_wprobe:watch:junk", Reason::FieldNotFound, 18),
        ("set_wprobe:watch:u8", Reason::BadField, 17),
        ("clear_wprobe:watch:name", Reason::BadField, 19),
        ("set_wprobe:watch:object+x", Reason::BadOffset, 23),
        ("set_wprobe:watch:object+", Reason::BadOffset, 23),
        ("set_wprobe:watch:object+4294967296", Reason::BadOffset, 23),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(error, TriggerError::Watch { reason, column }, "{text}");
        let entry = error.log_entry(text).expect(text);
        assert_eq!((entry.source, entry.column), (LogSource::Watch, column));
        assert_eq!(entry.command().to_string(), text.trim());
        assert_eq!(entry.text, error.to_string());
    }
    for (text, error) in [
        ("set_wprobe:watch:object:x", TriggerError::NoIf),
        ("clear_wprobe:watch:object:1x", TriggerError::BadCount),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
    }
    let error = TriggerError::watch(Reason::Busy, " !set_wprobe:watch:object");
    let (reason, column) = (Reason::Busy, 12);
    assert_eq!(error, TriggerError::Watch { reason, column });
    assert_eq!(
        [
            Reason::NotFound,
            Reason::Busy,
            Reason::BadField,
            Reason::Fixed
        ]
        .map(|reason| {
            let column = 0;
            TriggerError::Watch { reason, column }.errno()
        }),
        [2, 16, 8, 22]
    );
}

#[test]
fn refused_filters_and_histograms_are_logged_as_in_linux() {
    for (text, source, reason, command, column) in [
        (
            "traceon if junk == 1",
            LogSource::Filter,
            "Field not found",
            "junk == 1",
            5,
        ),
        (
            "traceon:if junk == 1",
            LogSource::Filter,
            "Field not found",
            "junk == 1",
            5,
        ),
        (
            "traceon:5 if u8 == 1 && x",
            LogSource::Filter,
            "Field not found",
            "u8 == 1 && x",
            13,
        ),
        (
            "enable_event:a:b:1 if  x",
            LogSource::Filter,
            "Field not found",
            " x",
            3,
        ),
        (
            "hist:keys=u8 if x",
            LogSource::Filter,
            "Field not found",
            "x",
            2,
        ),
        (
            "hist:keys=junk",
            LogSource::Hist,
            "Couldn't find field",
            "hist:keys=junk",
            10,
        ),
        (
            "hist:keys=u8,common_flags",
            LogSource::Hist,
            "This field is known only in a record",
            "hist:keys=u8,common_flags",
            13,
        ),
        (
            "stacktrace if common_preempt_count > 0",
            LogSource::Filter,
            "This field is known only in a record",
            "common_preempt_count > 0",
            21,
        ),
        (
            "!hist:keys=u8,junk if u8 == 1",
            LogSource::Hist,
            "Couldn't find field",
            "hist:keys=u8,junk if u8 == 1",
            13,
        ),
    ] {
        let error = parse(text).expect_err(text);
        let entry = error.log_entry(text).unwrap();
        assert_eq!(
            (entry.source, entry.text, entry.column),
            (source, reason, column),
            "{text}"
        );
        assert_eq!(entry.command().to_string(), command);
    }
    let mut log = ErrorLog::new();
    let text = "hist:keys=junk\n";
    let error = parse(text).unwrap_err();
    let entry = error.log_entry(text).unwrap();
    log.add(
        0,
        "hist:kprobes:foo",
        &entry.text,
        &entry.command(),
        entry.column,
    );
    assert_eq!(
        log.to_string(),
        "[    0.000000] hist:kprobes:foo: error: Couldn't find field\n  \
         Command: hist:keys=junk\n                     ^\n"
    );
}

fn apply(there: &[&str], text: &str) -> Result<Change, TriggerError> {
    let there: Vec<Trigger> = there
        .iter()
        .map(|text| parse(text).unwrap().trigger)
        .collect();
    parse(text).unwrap().apply(&there)
}

#[test]
fn an_event_has_one_trigger_of_a_kind() {
    let add = Ok(Change::Add { paused: false });
    for (there, text, expected) in [
        (
            &["traceon"][..],
            "traceon:5 if u8 == 1",
            Err(TriggerError::Exists),
        ),
        (&["traceon"], "traceoff", Err(TriggerError::Exists)),
        (&["traceon", "snapshot"], "stacktrace", add),
        (&["snapshot"], "snapshot:1", Err(TriggerError::Exists)),
        (
            &["enable_event:a:b"],
            "disable_event:a:b:1",
            Err(TriggerError::Exists),
        ),
        (&["enable_event:a:b"], "enable_event:a:c", add),
        (&["enable_event:a:b"], "enable_event:c:b", add),
        (&["hist:keys=u8"], "hist:keys=u8.hex", add),
        (&["hist:keys=u8"], "hist:keys=u8 if u8 > 1", add),
    ] {
        assert_eq!(apply(there, text), expected, "{there:?} {text}");
    }
    assert_eq!(TriggerError::Exists.errno(), 17);
    let error = apply(&["traceon", "hist:keys=u8:size=128"], "hist:keys=u8").unwrap_err();
    assert_eq!(error.errno(), 17);
    assert_eq!(
        error.log_entry("hist:keys=u8").unwrap().text,
        "Hist trigger already exists"
    );
}

#[test]
fn a_mark_takes_the_trigger_of_the_kind_away() {
    for (there, text, expected) in [
        (
            &["snapshot", "traceon:5 if u8 == 1"][..],
            "!traceon",
            Change::Remove(1),
        ),
        (&["traceon"], "!traceoff:unlimited", Change::Remove(0)),
        (
            &["traceon"],
            "!traceon:count=3 if u8 == 1",
            Change::Remove(0),
        ),
        (
            &["enable_event:a:b", "enable_event:a:c"],
            "!enable_event:a:c",
            Change::Remove(1),
        ),
        (
            &["hist:keys=u8", "hist:keys=u8 if u8 > 1"],
            "!hist:keys=u8 if u8 > 1",
            Change::Remove(1),
        ),
        (&[], "!traceon", Change::None),
        (&["hist:keys=u8"], "!hist:keys=name", Change::None),
    ] {
        assert_eq!(apply(there, text), Ok(expected), "{there:?} {text}");
    }
}

#[test]
fn histograms_are_paused_continued_and_cleared() {
    let there = &["traceon", "hist:keys=u8"][..];
    for (text, expected) in [
        ("hist:keys=u8:pause", Change::Pause(1)),
        ("hist:keys=u8:cont", Change::Continue(1)),
        ("hist:keys=u8:clear", Change::Clear(1)),
        ("hist:keys=name:pause", Change::Add { paused: true }),
    ] {
        assert_eq!(apply(there, text), Ok(expected), "{text}");
    }
    for text in ["hist:keys=name:cont", "hist:keys=name:clear"] {
        let error = apply(there, text).unwrap_err();
        assert_eq!(error.errno(), 2);
        let entry = error.log_entry(text).unwrap();
        assert_eq!(
            entry.text,
            "Can't clear or continue a nonexistent hist trigger"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn any_text_is_read_or_refused_at_a_column_in_it(
        text in "!?(traceon|enable_event|hist)[: ](keys=)?[a-zé0-9:.,= !&|()\"]{0,30}\
                 ( if [a-z =]*)?",
    ) {
        let error = parse(&text).err();
        if let Some(entry) = error.and_then(|error| error.log_entry(&text)) {
            let command = entry.command().to_string();
            prop_assert!(entry.column <= command.len() + 1, "{command} {}", entry.column);
        }
    }
}

#[test]
fn errors_name_a_way_out() {
    let filter = FilterError {
        reason: FilterReason::FieldNotFound,
        column: 3,
    };
    for error in [
        TriggerError::NoIf,
        TriggerError::Exists,
        TriggerError::Filter(filter),
    ] {
        assert!(error.to_string().len() > 20, "{error}");
    }
}
