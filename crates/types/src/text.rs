//! Makes text of other processes and users safe for logs and tables, so that the text can neither
//! begin a new line nor control a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character changes the position or the direction of the text around it.
fn controls(character: char) -> bool {
    let is_separator = matches!(character, '\u{2028}' | '\u{2029}');
    let sets_direction = matches!(
        character,
        '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || is_separator || sets_direction
}

/// Returns `text` with an escape sequence, such as `\n`, in place of each control character, line
/// separator and mark that changes the direction of text. Other characters stay as they are.
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(controls) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if controls(character) {
            // Writing to a `String` cannot fail.
            let _ = write!(escaped, "{}", character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Shortens `text` to at most `max_bytes` bytes, and never splits a character.
pub fn shorten(text: &mut String, max_bytes: usize) {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

/// Escapes `text` like [`escape_controls`], and replaces everything after the first `most`
/// characters by `...`.
pub fn shown(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => escape_controls(text).into_owned(),
        Some((end, _)) => format!("{}...", escape_controls(&text[..end])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_has_no_line_breaks() {
        let check = |text, expected: &str| assert_eq!(escape_controls(text), expected);
        check("host-1:/mnt/gr\u{f6}", "host-1:/mnt/gr\u{f6}");
        check("a\nINFO forged\r", "a\\nINFO forged\\r");
        check("\u{1b}[2J\u{9b}x\u{0}", "\\u{1b}[2J\\u{9b}x\\u{0}");
        check("a\u{202e}b\u{2028}c", "a\\u{202e}b\\u{2028}c");
        // Escaping an escaped text changes nothing.
        check("a\\nb", "a\\nb");
        assert_eq!(shown("gr\u{f6}sse\n", 4), "gr\u{f6}s...");
        assert_eq!(shown("gr\n", 4), "gr\\n");
    }
}
