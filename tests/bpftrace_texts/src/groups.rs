//! Texts in groups, each with the places where they stand.

use std::collections::BTreeMap;

/// Texts by the reason why they stand here.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<String, Vec<String>>);

impl Groups {
    pub fn add(&mut self, reason: &str, place: &str, text: &str) {
        let line = format!("{place}: {}", text.escape_debug());
        self.0.entry(reason.into()).or_default().push(line);
    }

    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Prints the reasons with their counts, the largest first, and the texts if they are wanted.
    pub fn print(&self, with_texts: bool) {
        let mut groups: Vec<_> = self.0.iter().collect();
        groups.sort_by_key(|(_, texts)| std::cmp::Reverse(texts.len()));
        for (reason, texts) in groups {
            println!("  {:5}  {reason}", texts.len());
            for text in texts.iter().filter(|_| with_texts) {
                println!("           {text}");
            }
        }
    }
}

/// A message without what is of its own text: numbers, and quoted parts unless there is one only
/// that is a word.
pub fn kind_of(message: &str) -> String {
    let parts: Vec<&str> = message.split('`').collect();
    let is_word = |part: &str| {
        part.chars()
            .all(|it| it == '_' || it.is_ascii_alphanumeric())
    };
    if let [_, only, _] = parts[..]
        && is_word(only)
    {
        return message.into();
    }
    let mut kind = String::new();
    for (number, part) in parts.iter().enumerate() {
        if number % 2 == 1 {
            kind.push('…');
            continue;
        }
        let mut was_digit = false;
        for letter in part.chars() {
            let is_digit = letter.is_ascii_digit();
            match is_digit {
                true if was_digit => {}
                true => kind.push('N'),
                false => kind.push(letter),
            }
            was_digit = is_digit;
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_kind_are_equal() {
        let kind = kind_of("`$a` has 16 bits, at most 8");
        assert_eq!(kind, "… has N bits, at most N");
        assert_eq!(kind, kind_of("`@b` has 3 bits, at most 100"));
        assert_ne!(kind_of("there is no `a`"), kind_of("there is no `b`"));
    }
}
