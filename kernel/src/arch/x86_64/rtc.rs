//! The clock that runs while the machine is off: the MC146818 and its successors. It gives the time
//! of day in whole seconds. It is taken to run in UTC, as QEMU's does.
//!
//! # Contexts
//! Any; a reading takes the lock of the ports, and at most some milliseconds.

use crate::sync::SpinLock;
use x86_64::instructions::port::{Port, PortWriteOnly};

const INDEX_PORT: u16 = 0x70;
const DATA_PORT: u16 = 0x71;

const STATUS_A: u8 = 10;
const STATUS_B: u8 = 11;
/// A bit of status A: the clock is about to change its registers.
const UPDATING: u8 = 0x80;
/// A bit of status B: numbers are binary, not decimal digits.
const BINARY: u8 = 4;
/// A bit of status B: hours from 0 to 23.
const HOURS_24: u8 = 2;
/// A bit of the hours: the second half of the day, where hours go to 12.
const AFTERNOON: u8 = 0x80;

/// Seconds, minutes, hours, day, month, year of the century.
const REGISTERS: [u8; 6] = [0, 2, 4, 7, 8, 9];
/// How often the registers are read until two readings agree.
const ATTEMPTS: u32 = 1000;

static PORTS: SpinLock<()> = SpinLock::new(());

fn register(number: u8) -> u8 {
    // SAFETY: at these ports is the clock on every PC; bit 7 of the index would mask NMIs, and is
    // not set.
    unsafe {
        PortWriteOnly::new(INDEX_PORT).write(number);
        Port::new(DATA_PORT).read()
    }
}

/// Seconds since 1970. None: there is no clock that makes sense.
pub fn seconds_since_1970() -> Option<u64> {
    let _ports = PORTS.lock();
    let read = || (register(STATUS_A) & UPDATING == 0).then(|| REGISTERS.map(register));
    let mut before = None;
    let mut agreed = None;
    for _ in 0..ATTEMPTS {
        let now = read();
        if now.is_some() && now == before {
            agreed = now;
            break;
        }
        before = now;
    }
    let [seconds, minutes, mut hours, day, month, year] = agreed?;
    let status = register(STATUS_B);
    let decimal = |value: u8| {
        u64::from(match status & BINARY {
            0 => (value >> 4) * 10 + (value & 15),
            _ => value,
        })
    };
    let is_afternoon = status & HOURS_24 == 0 && hours & AFTERNOON != 0;
    hours &= !AFTERNOON;
    let mut hour = decimal(hours);
    if status & HOURS_24 == 0 {
        hour = hour % 12 + if is_afternoon { 12 } else { 0 };
    }
    let (day, month) = (decimal(day), decimal(month));
    if !(1..=31).contains(&day) || !(1..=12).contains(&month) {
        return None;
    }
    let days = days_since_1970(2000 + decimal(year), month, day);
    Some(((days * 24 + hour) * 60 + decimal(minutes)) * 60 + decimal(seconds))
}

/// The date of a day from 1970 on. The year begins with March here, so that the leap day is its
/// last one.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    // The months from March on have 153 days in each five.
    let days = year * 365 + leap_days + (153 * month + 2) / 5 + day - 1;
    // Those of the first of March of year 0, counted so, to 1970.
    days - 719_468
}
