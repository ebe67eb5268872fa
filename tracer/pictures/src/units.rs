//! Numbers as people read them.

/// Three digits and a unit: `340 ns`, `12.3 µs`, `1.20 ms`, `73.0 s`.
pub fn duration(nanoseconds: u64) -> String {
    const UNITS: [&str; 3] = ["µs", "ms", "s"];
    if nanoseconds < 1000 {
        return format!("{nanoseconds} ns");
    }
    let mut value = nanoseconds as f64 / 1000.0;
    let mut unit = 0;
    // At 999.5 the three digits would be 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// With commas between groups of three digits: `1,234,567`.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole: `12.3 %`.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "0 %".into(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.00 µs"),
            (9_994, "9.99 µs"),
            (9_996, "10.0 µs"),
            (99_960, "100 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (12_345_678, "12.3 ms"),
            (73_000_000_000, "73.0 s"),
            (5_000_000_000_000, "5000 s"),
        ];
        for (nanoseconds, shown) in cases {
            assert_eq!(duration(nanoseconds), shown, "{nanoseconds}");
        }
    }

    #[test]
    fn groups_have_three_digits() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ];
        for (value, shown) in cases {
            assert_eq!(grouped(value), shown);
        }
        assert_eq!(percent(1, 8), "12.5 %");
        assert_eq!(percent(0, 0), "0 %");
    }
}
