//! The settings of a text: `config = { max_strlen = 128; }`.
//!
//! The names are bpftrace's, also as its environment has them (`BPFTRACE_MAX_STRLEN`). Those that
//! only say how bpftrace does its work are checked and change nothing. One that would change what
//! is shown, and cannot here, is refused.

use alloc::{borrow::Cow, format, string::String, vec::Vec};

use trace_interface::shape::StackForm;
use trace_language::{
    Diagnostic,
    tree::{Setting, Tree},
};

use crate::{
    Lowered, names,
    options::{Missing, Options},
};

/// What is to be set.
#[derive(Clone, Copy)]
enum Does {
    /// A number for the options.
    Number(fn(&mut Options, u32)),
    /// A truth for the options.
    Truth(fn(&mut Options, bool)),
    /// One of these words, which is noted in the options.
    Word(&'static [&'static str], fn(&mut Options, &str)),
    /// What bpftrace alone does in another way then.
    Nothing(Takes),
    /// No setting of it could be obeyed: why, and what to do.
    Refused(&'static str, &'static str),
}

/// The values of a setting that changes nothing.
#[derive(Clone, Copy)]
enum Takes {
    Number,
    Truth,
    Anything,
}

const LICENSES: [&str; 6] = [
    "GPL",
    "GPL v2",
    "GPL and additional rights",
    "Dual BSD/GPL",
    "Dual MIT/GPL",
    "Dual MPL/GPL",
];

/// The settings. Of those with two names the old one comes second.
#[rustfmt::skip]
const SETTINGS: [(&str, Does); 27] = {
    use Does::{Nothing, Number, Refused, Truth, Word};
    [
        ("max_map_keys", Number(|options, number| options.map_keys = number)),
        ("map_keys_max", Number(|options, number| options.map_keys = number)),
        ("max_strlen", Number(Options::set_text_bytes)),
        ("strlen", Number(Options::set_text_bytes)),
        ("print_maps_on_exit", Truth(|options, is| options.shows_maps = is)),
        ("with_tracer", Truth(|options, is| options.with_tracer = is)),
        ("missing_probes", Word(&["error", "warn", "ignore"],
            |options, word| options.missing_probes = match word {
                "error" => Missing::Refused,
                "warn" => Missing::Told,
                _ => Missing::Ignored,
            })),
        ("str_trunc_trailer", Refused("texts that are cut off get no trailer here",
            "take the setting out; `max_strlen` makes texts longer")),
        ("cache_user_symbols", Word(&["PER_PROGRAM", "PER_PID", "NONE"], |_, _| ())),
        ("license", Word(&LICENSES, |_, _| ())),
        ("cpp_demangle", Nothing(Takes::Truth)),
        ("no_cpp_demangle", Nothing(Takes::Truth)),
        ("lazy_symbolication", Nothing(Takes::Truth)),
        ("show_debug_info", Nothing(Takes::Truth)),
        ("use_blazesym", Nothing(Takes::Truth)),
        ("log_size", Nothing(Takes::Number)),
        ("max_bpf_progs", Nothing(Takes::Number)),
        ("max_cat_bytes", Nothing(Takes::Number)),
        ("cat_bytes_max", Nothing(Takes::Number)),
        ("max_probes", Nothing(Takes::Number)),
        ("on_stack_limit", Nothing(Takes::Number)),
        ("perf_rb_pages", Nothing(Takes::Number)),
        ("symbol_source", Nothing(Takes::Anything)),
        ("max_type_res_iterations", Nothing(Takes::Anything)),
        ("stack_mode", Word(&["bpftrace", "perf", "raw"],
            |options, word| options.stack_form = match word {
                "perf" => StackForm::Perf,
                "raw" => StackForm::Raw,
                _ => StackForm::Functions,
            })),
        ("unstable_tseries", Word(&["error", "warn", "enable"],
            |options, word| options.refuses_series = word == "error")),
        ("unstable_dw_ustack", Word(&["error", "warn", "enable"], |_, _| ())),
    ]
};

/// The options with the settings of a text.
///
/// # Errors
/// All settings that are wrong.
pub(crate) fn with_settings<'o>(
    tree: &Tree,
    options: &'o Options,
) -> Result<Cow<'o, Options>, Vec<Diagnostic>> {
    let mut changed = Cow::Borrowed(options);
    let mut errors = Vec::new();
    for setting in &tree.settings {
        errors.extend(set(setting, changed.to_mut()).err());
    }
    match errors.is_empty() {
        true => Ok(changed),
        false => Err(errors),
    }
}

fn set(setting: &Setting, options: &mut Options) -> Lowered<()> {
    let Setting { name, value } = setting;
    let plain = name.text.to_ascii_lowercase();
    let plain = plain.strip_prefix("bpftrace_").unwrap_or(&plain);
    let Some((_, does)) = SETTINGS.iter().find(|(known, _)| *known == plain) else {
        let near = names::nearest(plain, SETTINGS.iter().map(|(known, _)| *known));
        return Err(Diagnostic::new(
            name.span,
            format!("there is no setting `{}`", name.text),
            match near.is_empty() {
                true => "take it out".into(),
                false => names::did_you_mean(&near),
            },
        ));
    };
    let wrong = |help: String| {
        Diagnostic::new(
            value.span,
            format!("`{}` cannot be `{}`", name.text, value.text),
            help,
        )
    };
    let number = || {
        value
            .text
            .parse()
            .map_err(|_| wrong("it is a number".into()))
    };
    let truth = || match &*value.text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(wrong("it is true or false".into())),
    };
    match *does {
        Does::Number(set) => match number()? {
            0 => return Err(wrong("it is at least 1".into())),
            number => set(options, number),
        },
        Does::Truth(set) => set(options, truth()?),
        Does::Word(words, set) => match words.contains(&&*value.text) {
            true => set(options, &value.text),
            false => return Err(wrong(format!("it is {}", words.join(", ")))),
        },
        Does::Nothing(Takes::Number) => drop(number()?),
        Does::Nothing(Takes::Truth) => drop(truth()?),
        Does::Nothing(Takes::Anything) => {}
        Does::Refused(why, way_out) => return Err(Diagnostic::new(name.span, why, way_out)),
    }
    Ok(())
}
