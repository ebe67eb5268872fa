//! A set of CPUs as text: hexadecimal digits, in groups of 32 CPUs, those of the lowest last.

use core::fmt;

/// The CPUs of one group.
const GROUP: usize = 32;
/// The CPUs of one digit.
const DIGIT: usize = 4;

/// Why a text is no set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMaskError {
    /// A sign that is no digit.
    NoNumber,
    /// There are no such CPUs, or a group has too many digits.
    TooLarge,
}

impl fmt::Display for CpuMaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNumber => "a set of CPUs has hexadecimal digits; leave out all others",
            Self::TooLarge => "there are not so many CPUs; name less of them",
        })
    }
}

impl core::error::Error for CpuMaskError {}

/// Some of the CPUs of a machine, of which there are up to 64: a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMask {
    /// Those that are in it.
    pub bits: u64,
    /// How many CPUs there are.
    pub cpus: usize,
}

impl CpuMask {
    /// Reads the first line of `text`. Without digits it is the empty set.
    ///
    /// # Errors
    /// [`CpuMaskError`].
    pub fn parse(text: &[u8], cpus: usize) -> Result<Self, CpuMaskError> {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
        let is_between = |byte: &u8| *byte == b',' || byte.is_ascii_whitespace();
        let groups = line.rsplit(is_between).filter(|group| !group.is_empty());
        let mut bits = 0;
        for (at, group) in groups.enumerate() {
            if at * GROUP >= cpus {
                return Err(CpuMaskError::TooLarge);
            }
            for (place, digit) in group.iter().rev().enumerate() {
                let value = (*digit as char).to_digit(16);
                let value = value.ok_or(CpuMaskError::NoNumber)?;
                if place * DIGIT == GROUP {
                    return Err(CpuMaskError::TooLarge);
                }
                bits |= u64::from(value) << (at * GROUP + place * DIGIT);
            }
        }
        match bits.checked_shr(cpus as u32) {
            None | Some(0) => Ok(Self { bits, cpus }),
            Some(_) => Err(CpuMaskError::TooLarge),
        }
    }
}

impl fmt::Display for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for at in (0..self.cpus.div_ceil(GROUP)).rev() {
            let digits = (self.cpus - at * GROUP).min(GROUP).div_ceil(DIGIT);
            let group = (self.bits >> (at * GROUP)) as u32;
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{group:0digits$x}{comma}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_set_of_cpus_is_read_and_shown_as_on_linux() {
        let read =
            |text: &str, cpus| CpuMask::parse(text.as_bytes(), cpus).map(|mask| mask.to_string());
        for (text, cpus, shown) in [
            ("1\n", 2, "1"),
            ("0", 2, "0"),
            ("\n", 2, "0"),
            ("1 ", 2, "1"),
            (" 3,\n7", 2, "3"),
            ("1", 12, "001"),
            ("ffffffff", 32, "ffffffff"),
            ("1,00000003", 33, "1,00000003"),
            ("5 0F", 64, "00000005,0000000f"),
        ] {
            assert_eq!(read(text, cpus).as_deref(), Ok(shown), "{text:?}");
        }
        for (text, cpus, error) in [
            ("f", 2, CpuMaskError::TooLarge),
            ("g", 2, CpuMaskError::NoNumber),
            ("0x1", 2, CpuMaskError::NoNumber),
            ("1,2", 2, CpuMaskError::TooLarge),
            ("00000000,00000003", 2, CpuMaskError::TooLarge),
            ("000000000000001", 2, CpuMaskError::TooLarge),
            ("2,00000000", 33, CpuMaskError::TooLarge),
        ] {
            assert_eq!(read(text, cpus), Err(error), "{text:?}");
        }
    }
}
