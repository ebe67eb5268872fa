//! Times of day, in UTC.

use alloc::string::String;
use core::fmt::Write;

const NANOSECONDS: i128 = 1_000_000_000;

/// Writes a time, in nanoseconds since 1970, as `strftime` would: `%Y-%m-%d %H:%M:%S.%f`. A letter
/// that is not known stands for itself.
pub(crate) fn format(format: &str, nanoseconds: i128) -> String {
    let seconds = nanoseconds.div_euclid(NANOSECONDS);
    let part = nanoseconds.rem_euclid(NANOSECONDS);
    let day = seconds.div_euclid(86_400);
    let of_day = seconds.rem_euclid(86_400);
    let (year, month, date) = civil(day);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let _ = match letters.next() {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:02}", year.rem_euclid(100)),
            Some('m') => write!(text, "{month:02}"),
            Some('d') => write!(text, "{date:02}"),
            Some('H') => write!(text, "{hour:02}"),
            Some('M') => write!(text, "{minute:02}"),
            Some('S') => write!(text, "{second:02}"),
            Some('f') => write!(text, "{:06}", part / 1000),
            Some('F') => write!(text, "{year}-{month:02}-{date:02}"),
            Some('T') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('s') => write!(text, "{seconds}"),
            Some('n') => text.write_char('\n'),
            Some('%') => text.write_char('%'),
            Some(other) => write!(text, "%{other}"),
            None => text.write_char('%'),
        };
    }
    text
}

/// Year, month and day of a day since 1970. The year is counted from March, so that the leap day is
/// its last.
fn civil(day: i128) -> (i128, i128, i128) {
    const DAYS_OF_400_YEARS: i128 = 146_097;
    // Days since 0000-03-01.
    let day = day + 719_468;
    let era = day.div_euclid(DAYS_OF_400_YEARS);
    let of_era = day.rem_euclid(DAYS_OF_400_YEARS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year_of_era + later, month, date)
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: i128| format("%F %T", seconds * super::NANOSECONDS);
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_709_251_200), "2024-03-01 00:00:00");
        assert_eq!(format("%f %% %q", 1_500_000_000), "500000 % %q");
    }
}
