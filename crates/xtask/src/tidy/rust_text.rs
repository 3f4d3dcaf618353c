//! Splits Rust source into comments and string literals, each with its line number.
//! [`super::language`] has the rules for their contents.

/// A comment paragraph or a string literal of a Rust source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prose {
    /// Number of the first line of the text, counted from 1.
    pub(super) line: usize,
    pub(super) kind: Kind,
    /// The text without comment slashes or quotation marks. Spaces join the lines of one paragraph.
    pub(super) text: String,
}

/// The kinds of prose in a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A paragraph of a comment.
    Comment,
    /// A string literal.
    Literal,
}

/// Returns the comments and the string literals of a source text, in their order. Each paragraph of
/// a comment is one item.
pub(super) fn prose(source: &str) -> Vec<Prose> {
    let mut pieces = Vec::new();
    let mut rest = Scanner { source, at: 0, line: 1 };
    let mut paragraph: Option<Prose> = None;
    while let Some((line, token)) = rest.next_token() {
        match token {
            Token::Comment(text) => add_comment(&mut paragraph, &mut pieces, line, text),
            Token::Literal(text) => {
                pieces.extend(paragraph.take());
                let text = text.replace("\\n", " ").replace("\\\"", "\"");
                let joined: Vec<_> = text.split_whitespace().filter(|it| *it != "\\").collect();
                pieces.push(Prose { line, kind: Kind::Literal, text: joined.join(" ") });
            }
            Token::Code => pieces.extend(paragraph.take()),
        }
    }
    pieces.extend(paragraph);
    pieces
}

/// Adds one line of a comment to the current paragraph, or begins a new paragraph.
fn add_comment(paragraph: &mut Option<Prose>, pieces: &mut Vec<Prose>, line: usize, comment: &str) {
    let text = comment.trim_start_matches(['/', '!']).trim();
    let begins =
        text.is_empty() || text.starts_with(['#', '|', '-', '*']) || text.starts_with("```");
    if begins {
        pieces.extend(paragraph.take());
    }
    let text = text.trim_start_matches(['-', '*', ' ']);
    if text.is_empty() || text.starts_with(['#', '|', '`']) && text.starts_with("```") {
        return;
    }
    match paragraph {
        Some(open) => {
            open.text.push(' ');
            open.text.push_str(text);
        }
        None => *paragraph = Some(Prose { line, kind: Kind::Comment, text: text.to_owned() }),
    }
}

/// A token of Rust source. The enum distinguishes only the kinds of tokens that this module needs.
enum Token<'a> {
    /// One line of a comment, with its slashes.
    Comment(&'a str),
    /// The contents of a string literal, as they are written in the source.
    Literal(&'a str),
    /// Any other text except white space. Text of this kind ends the current paragraph.
    Code,
}

/// Splits a source text into tokens.
struct Scanner<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn next_token(&mut self) -> Option<(usize, Token<'a>)> {
        let rest = &self.source[self.at..];
        let blank = rest.len() - rest.trim_start().len();
        self.advance(blank);
        let rest = &self.source[self.at..];
        let line = self.line;
        let first = rest.chars().next()?;
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            self.advance(end);
            return Some((line, Token::Comment(&rest[..end])));
        }
        if let Some((start, end, whole)) = literal(rest) {
            self.advance(whole);
            return Some((line, Token::Literal(&rest[start..end])));
        }
        let len = match first {
            '\'' => quoted_char(rest),
            letter if letter.is_alphanumeric() || letter == '_' => rest
                .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .unwrap_or(rest.len()),
            letter => letter.len_utf8(),
        };
        self.advance(len);
        Some((line, Token::Code))
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.matches('\n').count();
        self.at += bytes;
    }
}

/// Finds the string literal at the start of a text. Returns the start and the end of its contents,
/// and its total length. `None` means that the text does not begin with a string literal.
fn literal(text: &str) -> Option<(usize, usize, usize)> {
    let unprefixed = text.strip_prefix('b').unwrap_or(text);
    let prefix = text.len() - unprefixed.len();
    if let Some(raw) = unprefixed.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let inside = raw[hashes..].strip_prefix('"')?;
        let end = inside.find(&format!("\"{}", "#".repeat(hashes)))?;
        let start = prefix + 1 + hashes + 1;
        return Some((start, start + end, start + end + 1 + hashes));
    }
    let inside = unprefixed.strip_prefix('"')?;
    let mut is_escaped = false;
    for (index, letter) in inside.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some((prefix + 1, prefix + 1 + index, prefix + index + 2)),
            _ => {}
        }
    }
    None
}

/// Returns the length of the character literal at the start of a text. If the text starts with a
/// lifetime, returns the length of its apostrophe.
fn quoted_char(text: &str) -> usize {
    let inside = &text[1..];
    if let Some(escaped) = inside.strip_prefix('\\') {
        return escaped.char_indices().skip(1).find(|(_, it)| *it == '\'').map_or(1, |it| it.0 + 3);
    }
    match inside.char_indices().nth(1) {
        Some((index, '\'')) => index + 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(usize, Kind, String)> {
        prose(source).into_iter().map(|it| (it.line, it.kind, it.text)).collect()
    }

    #[test]
    fn comment_lines_join_into_paragraphs() {
        let found = texts("/// One\n/// two.\n///\n/// - Three.\nfn f() {} // four\n");
        let expected = [(1, "One two."), (4, "Three."), (5, "four")];
        let expected = expected.map(|(line, text)| (line, Kind::Comment, text.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn string_literals_of_every_form_are_found() {
        let found = texts("f(\"a // b\", b\"c\", r#\"d \"e\" f\"#, '\"', '\\'', \"g \\\n   h\")");
        let expected = [(1, "a // b"), (1, "c"), (1, "d \"e\" f"), (1, "g h")];
        let expected = expected.map(|(line, text)| (line, Kind::Literal, text.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn lifetime_is_not_taken_for_a_character_literal() {
        assert_eq!(texts("fn f<'a>(x: &'a str) -> &'a str { x }"), []);
    }
}
