//! Commands about modules.

use alloc::{format, string::String};
use core::fmt::{self, Write};

use super::command::{Failure, Next, no_arguments};
use crate::module::{self, AnyParam, ModuleState};

/// Loads a module.
pub fn insmod(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    let [name, parameters @ ..] = arguments else {
        return Err(Failure::Usage("it needs a module; lsmod lists them"));
    };
    let quoted = |parameter: &&str| match parameter.split_once('=') {
        Some((name, value)) => format!("{name}=\"{value}\" "),
        None => format!("{parameter} "),
    };
    let parameters: String = parameters.iter().map(quoted).collect();
    module::load(name, &parameters)?;
    Ok(Next::Command)
}

/// Unloads a module.
pub fn rmmod(arguments: &[&str], _out: &mut dyn Write) -> Result<Next, Failure> {
    let [name] = arguments else {
        return Err(Failure::Usage("it needs one module; lsmod lists them"));
    };
    module::unload(name)?;
    Ok(Next::Command)
}

/// Prints a parameter's value.
struct ValueOf(&'static dyn AnyParam);

impl fmt::Display for ValueOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_value(f)
    }
}

/// Lists the modules with their parameters and the help texts of those.
pub fn lsmod(arguments: &[&str], out: &mut dyn Write) -> Result<Next, Failure> {
    no_arguments(arguments)?;
    for module in module::list() {
        let state = match module.state() {
            ModuleState::Unloaded => "not loaded",
            ModuleState::Coming => "being loaded",
            ModuleState::Live => "loaded",
            ModuleState::Going => "being unloaded",
        };
        writeln!(
            out,
            "{:20} {state:14} {}",
            module.name(),
            module.description()
        )?;
        for parameter in module.params() {
            let setting = format!("{}={}", parameter.name(), ValueOf(*parameter));
            let help = parameter.help().iter().map(|line| line.trim());
            let help = help.collect::<alloc::vec::Vec<_>>().join(" ");
            writeln!(out, "    {setting:30} {help}")?;
        }
    }
    Ok(Next::Command)
}
