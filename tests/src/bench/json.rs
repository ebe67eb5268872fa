//! The file for programs: `{"unit": …, "rows": {NAME: number, …}, "traps": {NAME: number, …}}`.

use std::fmt::Write;

use test_protocol::Quantity;

use super::{Results, Unit};

/// The costs and traps in `results`. Names are those of rows, which need no escapes. Numbers are
/// whole where they can be.
pub fn json(results: &Results, unit: Unit) -> String {
    let object = |quantity| {
        let mut text = String::from("{");
        for (n, (name, value)) in results.of(quantity).enumerate() {
            let comma = if n == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}\n    \"{name}\": {value}");
        }
        text + "\n  }"
    };
    format!(
        "{{\n  \"unit\": \"{}\",\n  \"rows\": {},\n  \"traps\": {}\n}}\n",
        unit.per_call(),
        object(Quantity::Cost),
        object(Quantity::Traps)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_traps_are_numbers_under_their_names() {
        let mut results = Results::default();
        results.add("bench: cost base 7/1\nbench: traps base 0/1\nbench: cost k_int3_n64 125/2\n");
        let text = json(&results, Unit::Instructions);
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            parsed,
            serde_json::json!({
                "unit": "guest instructions per call",
                "rows": {"base": 7, "k_int3_n64": 62.50},
                "traps": {"base": 0},
            })
        );
    }
}
