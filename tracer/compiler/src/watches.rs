//! The memory of watches: a static, an address, or what a call leads to.
//!
//! ```text
//!   watch:STATIC.FIELD          an address that is known          one program, at the watch
//!   watch:PROGRAM:STATIC.FIELD  the same, in a program            one program, at the watch
//!   watch:FUNCTION(EXPRESSION)  known when FUNCTION is called     two: one at the function aims
//!                                                                 the watch, the other is the
//!                                                                 clause's
//! ```
//!
//! An expression is text in the name of a probe. It is parsed here, and a mistake in it is told at
//! the whole of it.

use alloc::{format, rc::Rc, string::String};

use bpf::AluOp;
use trace_interface::{
    script::{WatchedAccess, WatchedAt},
    symbols::{TypeId, Unavailable},
};
use trace_language::{
    Diagnostic,
    tree::{self, Expression, ExpressionKind, Name, Probe, Span},
};

use crate::{
    Lowered,
    number::{Number, Space, Test},
    object::{At, Object},
    tables::Tables,
    values::{Shared, Site, SiteKind, Val, Values, Watched},
};

/// The most bytes of a watched object.
const MOST_OF_OBJECT: u64 = 1 << 20;

/// The most watches of a script that calls aim: one for each debug register.
const MOST_AIMED: u32 = 4;

/// A watch that a call aims.
#[derive(Clone)]
pub(crate) struct Aim {
    /// Its number in the script.
    pub(crate) number: u32,
    expression: Rc<Expression>,
    name: Name,
    /// How many bytes are watched from the address that the expression is. None: what it names is
    /// watched.
    bytes: Option<u64>,
}

/// Memory of the kernel.
pub(crate) struct Memory {
    pub(crate) address: Number,
    /// Whether it is there at all.
    pub(crate) present: Test,
    bytes: u64,
    /// The type of what is there, if the text has named it.
    type_id: Option<TypeId>,
}

/// The memory of a watch whose place the text tells.
pub(crate) fn of_place(
    tables: &mut Tables<'_>,
    program: Option<&Name>,
    what: &tree::Watched,
    access: tree::Access,
    span: Span,
) -> Lowered<Watched> {
    if program.is_some() && access == tree::Access::ReadWrite {
        return Err(Diagnostic::new(
            span,
            "reads of a program's memory are not watched",
            "watch for writes, w: a program that loads SS from the memory would put the trap off \
             into the kernel's entry, which has no stack yet",
        ));
    }
    let space = match program {
        Some(_) => Space::User,
        None => Space::Kernel,
    };
    let name = match what {
        tree::Watched::Memory { address, bytes } => {
            if let Some(path) = program.filter(|_| access == tree::Access::Execute) {
                begins_instruction(tables, path, *address, span)?;
            }
            return Ok(Watched {
                space,
                at: WatchedAt::Address(*address),
                bytes: *bytes as u32,
                access: wanted(access),
                type_id: None,
            });
        }
        tree::Watched::Static(name) => name,
        // It has groups of its own: see `at_call`.
        tree::Watched::OfCall(call) => &call.memory,
    };
    let Some(path) = program else {
        return watched_static(tables, name, space, access);
    };
    if tables.types.kernel.program(&path.text).is_none() {
        return Err(Diagnostic::new(
            path.span,
            format!("which statics `{}` has is not known here", path.text),
            "statics are known of the programs that this tool has built, in /bin; elsewhere write \
             watchpoint:PROGRAM:ADDRESS:LENGTH:w",
        ));
    }
    tables.types.set_program(Some(&path.text));
    let watched = watched_static(tables, name, space, access);
    tables.types.set_program(None);
    watched
}

/// Checks that an instruction of a program begins at `address`: at another one a watch would never
/// hit, and the kernel does not look at the code of programs for that. Of a program that is not
/// known all is taken.
fn begins_instruction(
    tables: &Tables<'_>,
    path: &Name,
    address: u64,
    span: Span,
) -> Result<(), Diagnostic> {
    let Some(program) = tables.types.kernel.program(&path.text) else {
        return Ok(());
    };
    let functions = program.functions("*");
    let function = functions
        .iter()
        .find(|function| address.wrapping_sub(function.address) < function.bytes);
    let Some(function) = function else {
        return Err(Diagnostic::new(
            span,
            format!("no function of {} has code at {address:#x}", path.text),
            format!(
                "name the address of an instruction, or write `uprobe:{}:FUNCTION`",
                path.text
            ),
        ));
    };
    program
        .instruction(function, address - function.address)
        .map_err(|Unavailable { reason, help }| Diagnostic::new(span, reason, help))
}

fn wanted(access: tree::Access) -> WatchedAccess {
    match access {
        tree::Access::Write => WatchedAccess::Write,
        tree::Access::ReadWrite => WatchedAccess::ReadWrite,
        tree::Access::Execute => WatchedAccess::Execute,
    }
}

/// The memory of a watch that a call aims, and how that is done at the function's entry, whose
/// address comes first.
pub(crate) fn at_call(
    tables: &mut Tables<'_>,
    probe: &Probe,
    call: &tree::OfCall,
    access: tree::Access,
) -> Lowered<(u64, Watched, Aim)> {
    let (function, memory) = (&call.function, &call.memory);
    let found = tables.functions(&function.text);
    let address = match found[..] {
        [] => return Err(tables.no_function(function)),
        [address] => address,
        _ => {
            return Err(Diagnostic::new(
                function.span,
                format!("{} functions are called `{}`", found.len(), function.text),
                "name one of them by its whole path; a watch can be at one place only",
            ));
        }
    };
    let number = tables.aimed;
    if number == MOST_AIMED {
        return Err(Diagnostic::new(
            probe.span,
            format!("more than {MOST_AIMED} watches are aimed by calls"),
            "the processor watches 4 words; use fewer",
        ));
    }
    let at = |error: Diagnostic| Diagnostic {
        span: memory.span,
        ..error
    };
    let expression = trace_language::parse_expression(&memory.text, &[]).map_err(at)?;
    let aim = Aim {
        number,
        expression: Rc::new(expression),
        name: memory.clone(),
        bytes: call.bytes,
    };
    let mut shared = Shared::default();
    let site = site(SiteKind::Entry, Some(address));
    let found = aim.memory(&mut Values::new(tables, site, &mut shared))?;
    if !matches!(found.bytes, 1 | 2 | 4 | 8) {
        return Err(wrong_size(memory, &format!("{} bytes", found.bytes)));
    }
    tables.aimed += 1;
    let watched = Watched {
        space: Space::Kernel,
        at: WatchedAt::Aimed(number),
        bytes: found.bytes as u32,
        access: wanted(access),
        type_id: found.type_id,
    };
    Ok((address, watched, aim))
}

impl Aim {
    /// What it watches, as the values at the function's entry tell.
    pub(crate) fn memory(&self, values: &mut Values<'_, '_>) -> Lowered<Memory> {
        let name = &self.name;
        let at = |error: Diagnostic| Diagnostic {
            span: name.span,
            ..error
        };
        let value = values.value(&self.expression).map_err(at)?;
        match (self.bytes, value) {
            (Some(bytes), Val::Number(counted)) => Ok(Memory {
                address: counted.number,
                present: counted.present,
                bytes,
                type_id: None,
            }),
            (None, value) => memory_of(values, value, Space::Kernel).ok_or_else(|| {
                Diagnostic::new(
                    name.span,
                    format!("`{}` is no memory of the kernel", name.text),
                    "name a field of what an argument points to, or `*args.NAME`",
                )
            }),
            (Some(_), _) => Err(Diagnostic::new(
                name.span,
                format!("`{}` is no address", name.text),
                "name an argument that is a number or a pointer",
            )),
        }
    }
}

/// Where a value is, if that is memory of `wanted`.
fn memory_of(values: &Values<'_, '_>, value: Val, wanted: Space) -> Option<Memory> {
    let present = value.present();
    let Val::Object(Object {
        type_id,
        at: At::Memory {
            space,
            address,
            offset,
        },
        ..
    }) = value
    else {
        return None;
    };
    if space != wanted {
        return None;
    }
    Some(Memory {
        address: Number::alu(AluOp::Add, address, Number::Constant(offset as u64)),
        present,
        bytes: values.types().size(type_id),
        type_id: Some(type_id),
    })
}

/// A place for values that a probe's name asks for.
fn site(kind: SiteKind, address: Option<u64>) -> Site {
    Site {
        kind,
        address,
        probe: 0,
        forgetful: false,
        turns: 0,
        source: None,
        words: usize::MAX,
        function: None,
        mark: None,
        copy: None,
    }
}

fn wrong_size(name: &Name, what: &str) -> Diagnostic {
    Diagnostic::new(
        name.span,
        format!("`{}` has {what}", name.text),
        "the processor watches 1, 2, 4 or 8 bytes at a multiple of that; name a field, or \
         watchpoint:ADDRESS:LENGTH:w",
    )
}

/// The memory of a static, or of a field of one.
fn watched_static(
    tables: &mut Tables<'_>,
    name: &Name,
    space: Space,
    access: tree::Access,
) -> Lowered<Watched> {
    let refused = |message: String, help: &str| Diagnostic::new(name.span, message, help);
    let at = |error: Diagnostic| Diagnostic {
        span: name.span,
        ..error
    };
    // The path may have names of the compiler, which no expression has. So it is put in afterwards.
    let path = name.text.rfind("::").map_or(0, |at| at + 2);
    let rest = name.text[path..].find(['.', '[']);
    let (path, rest) = name
        .text
        .split_at(rest.map_or(name.text.len(), |at| path + at));
    let mut expression = trace_language::parse_expression(&format!("x{rest}"), &[]).map_err(at)?;
    let mut innermost = &mut expression;
    loop {
        match &mut innermost.kind {
            ExpressionKind::Field { of, .. } | ExpressionKind::Index { of, .. } => innermost = of,
            kind => {
                *kind = ExpressionKind::Name(path.into());
                break;
            }
        }
    }
    // The value of a name does not depend on where it is asked for.
    let site = site(SiteKind::Begin, None);
    let mut shared = Shared::default();
    let mut values = Values::new(tables, site, &mut shared);
    let value = values.value(&expression).map_err(at)?;
    if value.present() == Test::Constant(false) {
        return Err(refused(
            format!("there is no `{}`", name.text),
            "an index is below the number of elements",
        ));
    }
    let memory = memory_of(&values, value, space).ok_or_else(|| match space {
        Space::Kernel => refused(
            format!("`{}` is no memory of the kernel", name.text),
            "name a static, or a field of one: watch:kernel::time::TICKS.value",
        ),
        Space::User => refused(
            format!("`{}` is no memory of the program", name.text),
            "name a static of the program, or a field of one",
        ),
    })?;
    let Some(address) = memory.address.constant() else {
        return Err(refused(
            format!("where `{}` is depends on other memory", name.text),
            "name a static or a field inside of one, without a pointer between",
        ));
    };
    let bytes = memory.bytes;
    if !matches!(bytes, 1 | 2 | 4 | 8) || !address.is_multiple_of(bytes) {
        let is_object = space == Space::Kernel && (1..=MOST_OF_OBJECT).contains(&bytes);
        if is_object && access == tree::Access::Write {
            return Ok(Watched {
                space,
                at: WatchedAt::Object(address),
                bytes: bytes as u32,
                access: wanted(access),
                type_id: None,
            });
        }
        let what = format!("{bytes} bytes from {address:#x} on");
        return Err(wrong_size(name, &what));
    }
    Ok(Watched {
        space,
        at: WatchedAt::Address(address),
        bytes: bytes as u32,
        access: wanted(access),
        type_id: memory.type_id,
    })
}
