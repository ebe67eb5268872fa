//! Text inside of XML, HTML and JSON (PICTURES-3).

use std::fmt::{Display, Formatter, Result, Write as _};

/// Text as the content of an element or of an attribute in double quotes.
pub struct Xml<'a>(pub &'a str);

impl Display for Xml<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for character in self.0.chars() {
            match character {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(character)?,
                // XML has no form for these.
                '\u{0}'..' ' | '\u{7f}' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Text as a string of JSON with its quotes. It may stand in a `script` element of HTML.
pub struct Json<'a>(pub &'a str);

impl Display for Json<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                // `</script>` and `<!--` would end or change the element.
                '<' | '\u{0}'..' ' | '\u{7f}' | '\u{2028}' | '\u{2029}' => {
                    write!(f, "\\u{:04x}", u32::from(character))?;
                }
                _ => f.write_char(character)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_has_no_markup_of_the_text() {
        let text = "<T as A<'a>>::f & \"x\"\n\u{1}";
        let expected = "&lt;T as A&lt;&#39;a&gt;&gt;::f &amp; &quot;x&quot;\n\u{fffd}";
        assert_eq!(Xml(text).to_string(), expected);
    }

    #[test]
    fn json_is_read_back_as_it_was() {
        let text = "</script> \\ \" \n \u{1} \u{2028} größe";
        let json = Json(text).to_string();
        assert!(!json.contains('<'));
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
    }
}
