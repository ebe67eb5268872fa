//! The parameters of modules as files: `/sys/module/NAME/parameters/PARAM`, mode 0444.
//!
//! As on Linux a file reads as the value and a line break, a switch as `Y` or `N`. All modules are
//! part of the kernel, so the files are always there. While a module is not loaded, they read as
//! the defaults.
//!
//! # Contexts
//! Task context; everything may sleep.

#![forbid(unsafe_code)]

use core::fmt::{self, Display, Write};

use fallible::written;

use super::{AnyParam, list};
use crate::{
    errno::Errno,
    fs::pseudo::{self, VirtualFile},
};

struct ParamFile(&'static dyn AnyParam);

impl Display for ParamFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_value(f)
    }
}

impl VirtualFile for ParamFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let text = written(self).map_err(|_| Errno::ENOMEM)?;
        let value = match (self.0.is_switch(), &*text) {
            (true, "true") => "Y",
            (true, _) => "N",
            (false, text) => text,
        };
        Ok(writeln!(out, "{value}")?)
    }

    fn store(&self, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}

/// Puts the files into the tree. Once, at the end of the boot.
///
/// # Errors
/// ENOMEM.
pub fn create_files() -> Result<(), Errno> {
    for module in list() {
        for param in module.params() {
            let path = alloc::format!("/sys/module/{}/parameters/{}", module.name(), param.name());
            pseudo::create(&path, 0o444, ParamFile(*param))?;
        }
    }
    Ok(())
}
