//! The functions of the language: their names, how they are called, and what they are for.
//!
//! This is the one list of them. The refusal of a wrong call, the names that are near to one that
//! is unknown, and the table in the document come from it. What a function does is in a table
//! beside its kind: `values::builtin` for those that give values, `program::effects` for those that
//! do something, `program::assign` for those that are assigned to maps.
//!
//! FUNCTIONS-1. Each function has an implementation in the table of its role, and no table has
//!     another one.

use alloc::{format, vec::Vec};

use trace_interface::shape::TIME_LETTERS;
use trace_language::{
    Diagnostic,
    tree::{Expression, ExpressionKind, Map as MapName, Name, Span},
};

use crate::{Lowered, names};

/// Where a function may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// In an expression: it gives a value.
    Value,
    /// Stands as a statement.
    Effect,
    /// Either way.
    Both,
    /// On the right side of an assignment to a map.
    Aggregation,
}

/// A function of the language.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    pub name: &'static str,
    pub role: Role,
    /// How it is called.
    pub usage: &'static str,
    /// What it does or gives, for the document.
    pub purpose: &'static str,
}

const fn function(
    role: Role,
    name: &'static str,
    usage: &'static str,
    purpose: &'static str,
) -> Function {
    Function {
        name,
        role,
        usage,
        purpose,
    }
}

/// See the module's text.
#[rustfmt::skip]
pub const FUNCTIONS: [Function; 61] = {
    use Role::{Aggregation, Both, Effect, Value};
    [
        function(Effect, "printf", "printf(\"format\", value)",
            "prints values by a format"),
        function(Effect, "print", "print(value), print(@map[key]) or print(@map, top, div)",
            "prints a value, entry or map"),
        function(Effect, "debugf", "debugf(\"format\", value)",
            "the same as printf"),
        function(Effect, "warnf", "warnf(\"format\", value)",
            "prints a line that begins with WARNING"),
        function(Effect, "errorf", "errorf(\"format\", value)",
            "prints a line that begins with ERROR"),
        function(Effect, "assert", "assert(condition, \"text\")",
            "ends the trace with an error if the condition does not hold"),
        function(Effect, "join", "join(array) or join(array, \",\")",
            "prints the texts of a list in a line"),
        function(Effect, "time", "time() or time(\"%H:%M:%S\\n\")",
            "prints the time of day"),
        function(Effect, "clear", "clear(@map) or clear(@map[key])",
            "takes all keys of a map away, or one"),
        function(Effect, "zero", "zero(@map) or zero(@map[key])",
            "sets all values of a map to zero, or one"),
        function(Both, "delete", "delete(@map[key]) or delete(@map, key)",
            "takes a key away, and tells whether it was there"),
        function(Effect, "exit", "exit() or exit(status)",
            "ends the block, and the trace with a status"),
        function(Effect, "unwatch", "unwatch(address)",
            "ends the watches of an address"),
        function(Value, "str", "str(address) or str(address, bytes)",
            "the text at an address, up to its NUL"),
        function(Value, "buf", "buf(address, bytes)",
            "bytes of memory, or of a text"),
        function(Value, "ksym", "ksym(address)",
            "an address by the name of its function"),
        function(Value, "sym", "sym(address)",
            "the same as ksym"),
        function(Value, "usym", "usym(address)",
            "an address of the program by the name of its function"),
        function(Value, "kaddr", "kaddr(\"vfs_write\")",
            "the address of a function"),
        function(Value, "uptr", "uptr(address)",
            "an address in the memory of the program"),
        function(Value, "kptr", "kptr(address)",
            "an address in the memory of the kernel"),
        function(Value, "reg", "reg(\"di\")",
            "a register of the probed code"),
        function(Value, "kstack", "kstack or kstack(frames) or kstack(perf, frames)",
            "the call stack of the kernel"),
        function(Value, "ustack", "ustack or ustack(frames) or ustack(perf, frames)",
            "the call stack of the program"),
        function(Value, "nsecs", "nsecs or nsecs(boot)",
            "nanoseconds since the machine started"),
        function(Value, "pid", "pid or pid(init)",
            "the number of the process"),
        function(Value, "tid", "tid or tid(init)",
            "the number of the task"),
        function(Value, "strftime", "strftime(\"%H:%M:%S\", nsecs)",
            "a time as a text"),
        function(Value, "strncmp", "strncmp(text, \"text\", bytes)",
            "0 if the texts begin with the same bytes"),
        function(Value, "strlen", "strlen(text)",
            "the bytes of a text"),
        function(Value, "strcontains", "strcontains(text, part)",
            "whether a text has another one in it"),
        function(Value, "strstr", "strstr(text, part)",
            "where a text has another one first, or -1"),
        function(Value, "strerror", "strerror(errno)",
            "what an error number means"),
        function(Value, "signal_name", "signal_name(number)",
            "what a signal means, such as Killed"),
        function(Value, "syscall_name", "syscall_name(number)",
            "the name of a system call"),
        function(Value, "bswap", "bswap(number)",
            "a number with its bytes in the other order"),
        function(Value, "is_err", "is_err(address)",
            "whether an address is an error, from -4095 to -1"),
        function(Value, "find", "find(@map, key, $x)",
            "whether a map has a key, whose value goes into the variable"),
        function(Value, "sizeof", "sizeof(TYPE) or sizeof(value)",
            "the bytes of a type, or of a value as it is kept"),
        function(Value, "offsetof", "offsetof(TYPE, field) or offsetof(value, field)",
            "where a field begins in its type"),
        function(Value, "typeinfo", "typeinfo(TYPE) or typeinfo(value)",
            "names of a type: .base_type (int), .full_type (uint64)"),
        function(Value, "is_integer", "is_integer(value)",
            "whether the type of a value is one of integers"),
        function(Value, "is_unsigned_integer", "is_unsigned_integer(value)",
            "whether it is one of integers without a sign"),
        function(Value, "is_str", "is_str(value)",
            "whether it is the one of texts"),
        function(Value, "is_ptr", "is_ptr(value)",
            "whether it is one of pointers"),
        function(Value, "is_array", "is_array(value)",
            "whether it is one of arrays"),
        function(Value, "is_literal", "is_literal(value)",
            "whether a value is a number or a text of the program's own text"),
        function(Value, "is_scalar", "is_scalar(@map)",
            "whether a map has no keys"),
        function(Value, "comptime", "comptime value",
            "a value that is known before the program runs"),
        function(Effect, "fail", "fail(\"text\")",
            "refuses the program with a text"),
        function(Value, "len", "len(@map) or len(kstack)",
            "how many keys, frames or elements there are"),
        function(Value, "has_key", "has_key(@map, key)",
            "whether a map has a key"),
        function(Aggregation, "count", "count()",
            "how often it was assigned"),
        function(Aggregation, "sum", "sum(value)",
            "the sum of the values"),
        function(Aggregation, "min", "min(value)",
            "the least value"),
        function(Aggregation, "max", "max(value)",
            "the greatest value"),
        function(Aggregation, "avg", "avg(value)",
            "the average"),
        function(Aggregation, "stats", "stats(value)",
            "count, average and sum"),
        function(Aggregation, "hist", "hist(value) or hist(value, 2)",
            "a histogram by powers of two, or by parts of them"),
        function(Aggregation, "lhist", "lhist(value, from, to, step)",
            "a histogram of equal steps"),
        function(Aggregation, "tseries",
            "tseries(value, 1s, 60) or tseries(value, 1s, 60, \"avg\")",
            "a value for each interval"),
    ]
};

const NO_WORD: &str = "this kernel says nothing of it; a line of its event sources can, as \
                       `docs/tracing.md` shows: the name, `word`, an expression";

/// Names of other tracers, and why they are not here.
pub(crate) const ABSENT: [(&str, &str); 27] = [
    (
        "uaddr",
        "names of programs are looked up by address only, in ustack",
    ),
    ("uid", "there are no users; use pid or comm"),
    ("gid", "there are no groups; use pid or comm"),
    ("username", "there are no users; use pid or comm"),
    ("cgroup", "there are no control groups; use pid or comm"),
    ("cgroupid", "there are no control groups; use pid or comm"),
    (
        "cgroup_path",
        "there are no control groups; use pid or comm",
    ),
    ("curtask", NO_WORD),
    ("numaid", "all memory is equally far from all CPUs; use cpu"),
    ("jiffies", NO_WORD),
    (
        "cpid",
        "the tracer does not start programs one by one; use comm",
    ),
    (
        "system",
        "the tracer runs no programs; pass its output to one",
    ),
    ("cat", "the tracer prints no files; use cat at the prompt"),
    ("ntop", "there is no network; print the number with %x"),
    ("pton", "there is no network; write the address as a number"),
    (
        "macaddr",
        "there is no network; print the bytes with buf(address, 6)",
    ),
    ("socket_cookie", "there is no network"),
    ("skboutput", "there is no network"),
    (
        "signal",
        "a program only looks and counts; use kill at the prompt",
    ),
    (
        "signal_thread",
        "a program only looks and counts; use kill at the prompt",
    ),
    (
        "override",
        "a program only looks and counts, and lets each function run",
    ),
    (
        "write_user",
        "a program only looks and counts, and writes no memory of others",
    ),
    ("path", "paths are texts here; use str(address)"),
    ("ppid", NO_WORD),
    ("pcomm", NO_WORD),
    (
        "percpu_kaddr",
        "print the variable by its path: the debug information knows where it is",
    ),
    (
        "usermode",
        "in a profile, kstack has no frame while a program runs",
    ),
];

/// The function of that name.
pub(crate) fn named(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

/// Whether a function asks a map itself, so that its first argument is no value.
pub(crate) fn is_of_a_map(name: &str) -> bool {
    matches!(name, "delete" | "find" | "has_key" | "len")
}

pub(crate) fn is_aggregation(name: &str) -> bool {
    named(name).is_some_and(|function| function.role == Role::Aggregation)
}

/// A call, as the function sees it.
#[derive(Clone, Copy)]
pub(crate) struct Call<'e> {
    pub(crate) name: &'e Name,
    pub(crate) arguments: &'e [Expression],
    pub(crate) span: Span,
}

impl Call<'_> {
    /// Refuses it: these are not the arguments of the function.
    pub(crate) fn refuse<T>(&self) -> Lowered<T> {
        self.refuse_for(named(&self.name.text).map_or("", |function| function.usage))
    }

    /// The same where only some of its forms can be meant.
    pub(crate) fn refuse_for<T>(&self, usage: &str) -> Lowered<T> {
        Err(Diagnostic::new(
            self.span,
            format!("`{}` does not take these arguments", self.name.text),
            format!("write {usage}"),
        ))
    }

    /// There is no such function.
    pub(crate) fn unknown(&self) -> Diagnostic {
        let name = self.name;
        if let Some((_, why)) = ABSENT.iter().find(|(word, _)| *word == name.text) {
            return Diagnostic::new(
                name.span,
                format!("there is no function `{}`", name.text),
                *why,
            );
        }
        let near = names::nearest(&name.text, FUNCTIONS.iter().map(|function| function.name));
        Diagnostic::new(
            name.span,
            format!("there is no function `{}`", name.text),
            match near.is_empty() {
                true => {
                    let (of_maps, plain): (Vec<_>, Vec<_>) = FUNCTIONS
                        .iter()
                        .map(|function| function.name)
                        .partition(|name| is_aggregation(name));
                    let (plain, of_maps) = (plain.join(", "), of_maps.join(", "));
                    format!("the functions are {plain}, and for maps {of_maps}")
                }
                false => names::did_you_mean(&near),
            },
        )
    }
}

/// An argument that must be a text of the program.
pub(crate) fn text<'e>(argument: &'e Expression, example: &str) -> Lowered<&'e str> {
    match &argument.kind {
        ExpressionKind::String(text) => Ok(text),
        _ => Err(Diagnostic::new(
            argument.span,
            "this must be a text",
            format!("for example {example}"),
        )),
    }
}

/// An argument that must be the format of a time.
pub(crate) fn time_format<'e>(argument: &'e Expression, example: &str) -> Lowered<&'e str> {
    let format = text(argument, example)?;
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        let refused = match (letter, letters.clone().next()) {
            ('%', None) => "the format ends with a single `%`".into(),
            ('%', Some(letter)) if !TIME_LETTERS.contains(letter) => {
                format!("`%{letter}` is no part of a time")
            }
            ('%', Some(_)) => {
                letters.next();
                continue;
            }
            _ => continue,
        };
        return Err(Diagnostic::new(
            argument.span,
            refused,
            "use C's letters, such as %Y-%m-%d %H:%M:%S, %f for microseconds, and %% for a \
             percent sign",
        ));
    }
    Ok(format)
}

/// `@map[key]`, or `@map, key`, of which the key is a tuple if there are several.
pub(crate) fn map_and_key(of: &Expression, key: &[Expression]) -> Option<MapName> {
    let ExpressionKind::Map(map) = &of.kind else {
        return None;
    };
    match key {
        [] => Some(map.clone()),
        [key] if map.keys.is_empty() => Some(MapName {
            keys: match &key.kind {
                ExpressionKind::Tuple(keys) => keys.clone(),
                _ => alloc::vec![key.clone()],
            },
            ..map.clone()
        }),
        _ => None,
    }
}
