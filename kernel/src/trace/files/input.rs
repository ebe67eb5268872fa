//! What is written to the files of tracing, as values.

use core::{
    num::{IntErrorKind, ParseIntError},
    str::FromStr,
};

use crate::errno::Errno;

/// The text that was written, without white space around it.
pub(super) fn text(data: &[u8]) -> Result<&str, Errno> {
    Ok(str::from_utf8(data).map_err(|_| Errno::EINVAL)?.trim())
}

/// A number. ERANGE if it is one and too large.
pub(super) fn number<T: FromStr<Err = ParseIntError>>(data: &[u8]) -> Result<T, Errno> {
    text(data)?
        .parse()
        .map_err(|error: ParseIntError| match error.kind() {
            IntErrorKind::PosOverflow => Errno::ERANGE,
            _ => Errno::EINVAL,
        })
}

/// 0 or 1.
pub(super) fn switch(data: &[u8]) -> Result<bool, Errno> {
    match number::<u64>(data)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}
