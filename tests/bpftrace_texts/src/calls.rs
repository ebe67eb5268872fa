//! Calls in a source of C++, with their arguments as far as they are texts.
//!
//! This is no parser of C++. It knows comments and literals, and finds the ends of arguments by
//! counting brackets.

/// A call of a function whose name begins with the wanted one.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    pub line: usize,
    pub name: String,
    pub arguments: Vec<Argument>,
}

/// An argument: literals beside each other, or anything else.
#[derive(Debug, PartialEq, Eq)]
pub enum Argument {
    Text(String),
    Code(String),
}

/// The calls of functions whose names begin so.
pub fn calls(source: &str, begin: &str) -> Vec<Call> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < source.len() {
        let rest = &source[at..];
        if let Some(bytes) = skipped(rest) {
            at += bytes;
            continue;
        }
        let word: usize = rest
            .find(|letter| !is_of_word(letter))
            .unwrap_or(rest.len());
        if rest.starts_with(begin) && rest[word..].starts_with('(') {
            found.push(Call {
                line: source[..at].matches('\n').count() + 1,
                name: rest[..word].into(),
                arguments: arguments(&rest[word + 1..]),
            });
        }
        at += word.max(rest.chars().next().map_or(1, char::len_utf8));
    }
    found
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The bytes of the comment or literal that a text begins with.
fn skipped(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(text.find("*/").map_or(text.len(), |end| end + 2));
    }
    if let Some(letter) = text.strip_prefix('\'') {
        let end = letter.find('\'').map_or(text.len(), |end| end + 2);
        return Some(end + usize::from(text.starts_with("'\\''")));
    }
    literal(text).map(|(_, bytes)| bytes)
}

/// The content and the bytes of the literal that a text begins with.
fn literal(text: &str) -> Option<(String, usize)> {
    if let Some(raw) = text.strip_prefix("R\"") {
        let (mark, _) = raw.split_once('(')?;
        let end = format!("){mark}\"");
        let content = &raw[mark.len() + 1..];
        let bytes = content.find(&end)?;
        let whole = 2 + mark.len() + 1 + bytes + end.len();
        return Some((content[..bytes].into(), whole));
    }
    let inside = text.strip_prefix('"')?;
    let mut content = String::new();
    let mut letters = inside.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((content, at + 2)),
            '\\' => {
                let (_, escaped) = letters.next()?;
                match escaped {
                    'n' => content.push('\n'),
                    't' => content.push('\t'),
                    'r' => content.push('\r'),
                    '0' => content.push('\0'),
                    'x' => {
                        let digits = |letter: &(usize, char)| letter.1.is_ascii_hexdigit();
                        let mut number = 0;
                        while let Some((_, digit)) = letters.clone().next().filter(digits) {
                            number = number * 16 + digit.to_digit(16).unwrap_or(0);
                            letters.next();
                        }
                        content.push(char::from_u32(number)?);
                    }
                    other => content.push(other),
                }
            }
            other => content.push(other),
        }
    }
    None
}

/// The arguments of a call, from after its parenthesis on.
fn arguments(text: &str) -> Vec<Argument> {
    let mut all = Vec::new();
    let (mut at, mut begin, mut depth) = (0, 0, 0_usize);
    let (mut content, mut is_text, mut has_literal) = (String::new(), true, false);
    while at < text.len() {
        let rest = &text[at..];
        if depth == 0
            && let Some((piece, bytes)) = literal(rest)
        {
            content.push_str(&piece);
            has_literal = true;
            at += bytes;
            continue;
        }
        if let Some(bytes) = skipped(rest) {
            is_text &= rest.starts_with('/');
            at += bytes;
            continue;
        }
        let letter = rest.chars().next().unwrap_or(' ');
        match letter {
            ',' | ')' if depth == 0 => {
                let code = text[begin..at].trim();
                match is_text && has_literal {
                    true => all.push(Argument::Text(core::mem::take(&mut content))),
                    false if code.is_empty() => {}
                    false => all.push(Argument::Code(code.into())),
                }
                if letter == ')' {
                    return all;
                }
                content.clear();
                begin = at + 1;
                (is_text, has_literal) = (true, false);
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        is_text &= letter.is_whitespace() || letter == ',' && depth == 0;
        at += letter.len_utf8();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Argument {
        Argument::Text(text.into())
    }

    fn code(text: &str) -> Argument {
        Argument::Code(text.into())
    }

    #[test]
    fn arguments_are_texts_or_code() {
        let source = r#"
// check("in a comment");
void check_it() {
  check("one \"two\" "
        "\x41\n", Wrong{ "a, b)" });
  other("check(1)"); check_all(R"x(raw ")" text)x", false, prefix + "t", '"');
}"#;
        let found = calls(source, "check");
        let expected = [
            ("check_it", 3, vec![]),
            (
                "check",
                4,
                vec![text("one \"two\" A\n"), code("Wrong{ \"a, b)\" }")],
            ),
            (
                "check_all",
                6,
                vec![
                    text("raw \")\" text"),
                    code("false"),
                    code("prefix + \"t\""),
                    code("'\"'"),
                ],
            ),
        ];
        let found: Vec<_> = found
            .into_iter()
            .map(|call| (call.name, call.line, call.arguments))
            .collect();
        let expected = expected.map(|(name, line, arguments)| (name.into(), line, arguments));
        assert_eq!(found, expected);
    }
}
