//! Times of day, in UTC, as C's `strftime` writes them.
//!
//! All is calculated from the days since 1970: the calendar repeats itself after 400 years, which
//! are a whole number of weeks. There are no leap seconds, and no names of other languages.

use alloc::string::String;
use core::fmt::Write;

const NANOSECONDS: i128 = 1_000_000_000;

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Writes a time, in nanoseconds since 1970, as C's `strftime` does: `%Y-%m-%d %H:%M:%S`. `%f` is
/// the microseconds. The letters are those of [`trace_interface::shape::TIME_LETTERS`]; another one
/// stands for itself.
pub(crate) fn format(format: &str, nanoseconds: i128) -> String {
    let seconds = nanoseconds.div_euclid(NANOSECONDS);
    let part = nanoseconds.rem_euclid(NANOSECONDS);
    let day = seconds.div_euclid(86_400);
    let of_day = seconds.rem_euclid(86_400);
    let (year, month, date) = civil(day);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let of_half = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    // Days of the week count from Sunday. The first day of 1970 was a Thursday.
    let of_week = (day + 4).rem_euclid(7);
    let of_year = day - first_day(year);
    let (week_year, week) = week(year, of_year, of_week);
    let (day_name, month_name) = (DAYS[of_week as usize], MONTHS[month as usize - 1]);
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let _ = match letters.next() {
            Some('a') => text.write_str(&day_name[..3]),
            Some('A') => text.write_str(day_name),
            Some('b' | 'h') => text.write_str(&month_name[..3]),
            Some('B') => text.write_str(month_name),
            Some('c') => write!(
                text,
                "{} {} {date:2} {hour:02}:{minute:02}:{second:02} {year}",
                &day_name[..3],
                &month_name[..3]
            ),
            Some('C') => write!(text, "{:02}", year.div_euclid(100)),
            Some('d') => write!(text, "{date:02}"),
            Some('D' | 'x') => write!(text, "{month:02}/{date:02}/{:02}", year.rem_euclid(100)),
            Some('e') => write!(text, "{date:2}"),
            Some('f') => write!(text, "{:06}", part / 1000),
            Some('F') => write!(text, "{year}-{month:02}-{date:02}"),
            Some('g') => write!(text, "{:02}", week_year.rem_euclid(100)),
            Some('G') => write!(text, "{week_year}"),
            Some('H') => write!(text, "{hour:02}"),
            Some('I') => write!(text, "{of_half:02}"),
            Some('j') => write!(text, "{:03}", of_year + 1),
            Some('k') => write!(text, "{hour:2}"),
            Some('l') => write!(text, "{of_half:2}"),
            Some('m') => write!(text, "{month:02}"),
            Some('M') => write!(text, "{minute:02}"),
            Some('n') => text.write_char('\n'),
            Some('p') => text.write_str(half),
            Some('P') => text.write_str(&half.to_ascii_lowercase()),
            Some('r') => write!(text, "{of_half:02}:{minute:02}:{second:02} {half}"),
            Some('R') => write!(text, "{hour:02}:{minute:02}"),
            Some('s') => write!(text, "{seconds}"),
            Some('S') => write!(text, "{second:02}"),
            Some('t') => text.write_char('\t'),
            Some('T' | 'X') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('u') => write!(text, "{}", (of_week + 6) % 7 + 1),
            Some('U') => write!(text, "{:02}", (of_year + 7 - of_week) / 7),
            Some('V') => write!(text, "{week:02}"),
            Some('w') => write!(text, "{of_week}"),
            Some('W') => write!(text, "{:02}", (of_year + 7 - (of_week + 6) % 7) / 7),
            Some('y') => write!(text, "{:02}", year.rem_euclid(100)),
            Some('Y') => write!(text, "{year}"),
            Some('z') => text.write_str("+0000"),
            Some('Z') => text.write_str("UTC"),
            Some('%') => text.write_char('%'),
            Some(other) => write!(text, "%{other}"),
            None => text.write_char('%'),
        };
    }
    text
}

/// The year and the number of a week as ISO 8601 counts them: a week begins with its Monday, and is
/// of the year that has its Thursday.
fn week(year: i128, of_year: i128, of_week: i128) -> (i128, i128) {
    let thursday = of_year + 3 - (of_week + 6) % 7;
    let days = first_day(year + 1) - first_day(year);
    let before = first_day(year) - first_day(year - 1);
    match thursday {
        ..0 => (year - 1, (thursday + before) / 7 + 1),
        _ if thursday >= days => (year + 1, 1),
        _ => (year, thursday / 7 + 1),
    }
}

/// The days from 1970 to the first day of a year.
fn first_day(year: i128) -> i128 {
    let past = year - 1;
    let leap_days = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    365 * (year - 1970) + leap_days - 477
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
    use trace_interface::shape::TIME_LETTERS;

    use super::*;

    const DATES: [(i128, &str); 9] = [
        (
            0,
            "Thu Thursday Jan January 19 01/01/70  1 70 1970 Jan 12 001  0 \
             12 AM am 12:00:00 AM 00:00 4 00 01 4 00 01/01/70 00:00:00 +0000 UTC",
        ),
        (
            951827696,
            "Tue Tuesday Feb February 20 02/29/00 29 00 2000 Feb 12 060 12 \
             12 PM pm 12:34:56 PM 12:34 2 09 09 2 09 02/29/00 12:34:56 +0000 UTC",
        ),
        (
            1704067199,
            "Sun Sunday Dec December 20 12/31/23 31 23 2023 Dec 11 365 23 \
             11 PM pm 11:59:59 PM 23:59 7 53 52 0 52 12/31/23 23:59:59 +0000 UTC",
        ),
        (
            1709253306,
            "Fri Friday Mar March 20 03/01/24  1 24 2024 Mar 12 061  0 12 \
             AM am 12:35:06 AM 00:35 5 08 09 5 09 03/01/24 00:35:06 +0000 UTC",
        ),
        (
            1735603199,
            "Mon Monday Dec December 20 12/30/24 30 25 2025 Dec 11 365 23 \
             11 PM pm 11:59:59 PM 23:59 1 52 01 1 53 12/30/24 23:59:59 +0000 UTC",
        ),
        (
            1609502400,
            "Fri Friday Jan January 20 01/01/21  1 20 2020 Jan 12 001 12 12 \
             PM pm 12:00:00 PM 12:00 5 00 53 5 00 01/01/21 12:00:00 +0000 UTC",
        ),
        (
            1293886799,
            "Sat Saturday Jan January 20 01/01/11  1 10 2010 Jan 12 001 12 \
             12 PM pm 12:59:59 PM 12:59 6 00 52 6 00 01/01/11 12:59:59 +0000 UTC",
        ),
        (
            1483228799,
            "Sat Saturday Dec December 20 12/31/16 31 16 2016 Dec 11 366 23 \
             11 PM pm 11:59:59 PM 23:59 6 52 52 6 52 12/31/16 23:59:59 +0000 UTC",
        ),
        (
            126701155399,
            "Mon Monday Dec December 59 12/31/84 31 85 5985 Dec 01 366 \
              13  1 PM pm 01:23:19 PM 13:23 1 53 01 1 53 12/31/84 13:23:19 +0000 UTC",
        ),
    ];

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: i128| format("%F %T", seconds * super::NANOSECONDS);
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_709_251_200), "2024-03-01 00:00:00");
        assert_eq!(format("%f %% %q", 1_500_000_000), "500000 % %q");
    }

    /// What `date --utc` prints for these times.
    #[test]
    fn letters_are_those_of_c() {
        let all =
            "%a %A %b %B %C %D %e %g %G %h %I %j %k %l %p %P %r %R %u %U %V %w %W %x %X %z %Z";
        let at = |seconds: i128| format(all, seconds * super::NANOSECONDS);
        for (seconds, expected) in DATES {
            assert_eq!(at(seconds), expected, "{seconds}");
        }
        assert_eq!(format("%c|%n|%t|%s", 0), "Thu Jan  1 00:00:00 1970|\n|\t|0");
    }

    #[test]
    fn the_letters_that_programs_may_use_are_those_known_here() {
        for letter in (b'!'..=b'~').map(char::from) {
            let text: String = ['%', letter].into_iter().collect();
            let is_known = letter == '%' || format(&text, 0) != text;
            assert_eq!(is_known, TIME_LETTERS.contains(letter), "{letter}");
        }
    }
}
