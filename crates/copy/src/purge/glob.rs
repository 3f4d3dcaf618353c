//! Patterns for the entries that a purge must not remove. This module does no I/O.
//!
//! `*` stands for any bytes of a name, `?` for one byte, `[a-z]` for one byte of a set, and `**`
//! for any bytes including `/`. A backslash removes the special meaning of the next byte. A pattern
//! without `/` is compared with the name of each entry. Any other pattern is compared with the path
//! of the entry below the directory that is purged.
//!
//! A pattern that can match no entry would keep nothing, and the administrator would learn of this
//! mistake only from the loss of files. So such patterns are refused.
//!
//! Users choose the names of their files. So the time of a comparison grows only with the product
//! of the lengths of pattern and path, even for names that a user has chosen to slow down the
//! purge.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`: one byte except `/`.
    AnyByte,
    /// `*`: any number of bytes except `/`.
    AnyBytes,
    /// `**/` at the start of a name: any number of directories, also zero.
    Directories,
    /// `**` elsewhere: any number of bytes.
    Everything,
    /// `[...]`: one byte in the ranges, or with `!` one byte outside of the ranges. Never matches
    /// `/`.
    Set {
        is_negated: bool,
        ranges: Vec<(u8, u8)>,
    },
}

/// A pattern for paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    tokens: Vec<Token>,
    /// Whether the pattern is compared with names instead of paths.
    is_for_names: bool,
}

impl FromStr for Glob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_for_names = !text.trim_end_matches('/').contains('/');
        let mut rest = text.trim_matches('/').as_bytes();
        if rest.is_empty() {
            return Err(format!("invalid pattern '{text}': expected a name or a path"));
        }
        if rest.split(|byte| *byte == b'/').any(|name| matches!(name, b"" | b"." | b"..")) {
            return Err(format!(
                "invalid pattern '{text}': a path in this pattern has an empty name, '.' or '..', \
                 which no entry has; leave this name out"
            ));
        }
        let mut tokens = Vec::new();
        let mut begins_name = true;
        while let Some((first, after)) = rest.split_first() {
            let (token, after) = match first {
                b'*' if after.starts_with(b"*/") && begins_name => {
                    (Token::Directories, &after[2..])
                }
                b'*' if after.starts_with(b"*") => (Token::Everything, &after[1..]),
                b'*' => (Token::AnyBytes, after),
                b'?' => (Token::AnyByte, after),
                b'[' => set(after).map_err(|why| format!("invalid pattern '{text}': {why}"))?,
                b'\\' => match after.split_first() {
                    Some((quoted, after)) => (Token::Byte(*quoted), after),
                    None => {
                        return Err(format!(
                            "invalid pattern '{text}': the pattern ends with a single '\\'; write \
                             '\\\\' for this byte"
                        ));
                    }
                },
                byte => (Token::Byte(*byte), after),
            };
            begins_name = matches!(token, Token::Byte(b'/') | Token::Directories);
            tokens.push(token);
            rest = after;
        }
        Ok(Self { tokens, is_for_names })
    }
}

/// Parses a set of bytes, without the `[` at its start. Returns the set, and the rest of the
/// pattern.
fn set(text: &[u8]) -> Result<(Token, &[u8]), &'static str> {
    const NO_END: &str = "'[' has no ']'; write '\\[' for the byte";
    let is_negated = matches!(text.first(), Some(b'!' | b'^'));
    let text = if is_negated { &text[1..] } else { text };
    // A `]` at the start of the set belongs to the set.
    let after_first = text.get(1..).unwrap_or_default();
    let end = 1 + after_first.iter().position(|byte| *byte == b']').ok_or(NO_END)?;
    let (mut members, rest) = (&text[..end], &text[end + 1..]);
    let mut ranges = Vec::new();
    while let [first, after @ ..] = members {
        let (last, after) = match after {
            [b'-', last, after @ ..] => (last, after),
            _ => (first, after),
        };
        if first > last {
            return Err("a range in '[]' ends before it begins; write the smaller byte first");
        }
        ranges.push((*first, *last));
        members = after;
    }
    Ok((Token::Set { is_negated, ranges }, rest))
}

impl Glob {
    /// Whether the pattern matches an entry. `path` is the path of the entry below the directory
    /// that is purged.
    pub fn matches(&self, path: &Path) -> bool {
        let text = match self.is_for_names {
            true => path.file_name().unwrap_or_default(),
            false => path.as_os_str(),
        };
        self.matches_bytes(text.as_bytes())
    }

    /// Whether the pattern is compared with paths, and begins with all names of `path`, without
    /// wildcards. Such a pattern shows that a user has written the path of the purged directory,
    /// although patterns are compared with the path below this directory.
    pub fn begins_with(&self, path: &Path) -> bool {
        let names = path.as_os_str().as_bytes();
        let expected = names.strip_prefix(b"/").unwrap_or(names);
        let is_byte = |(token, byte): (&Token, &u8)| *token == Token::Byte(*byte);
        let ends_name = |token: &Token| *token == Token::Byte(b'/');
        !self.is_for_names
            && self.tokens.len() >= expected.len()
            && self.tokens.iter().zip(expected).all(is_byte)
            && self.tokens.get(expected.len()).is_none_or(ends_name)
    }

    /// Simulates a nondeterministic finite automaton, byte by byte. The flag `states[n]` means that
    /// the first `n` tokens can match the bytes so far. Users may create very long paths, so no
    /// byte needs an allocation, and the comparison ends when no flag is set.
    fn matches_bytes(&self, text: &[u8]) -> bool {
        let end = self.tokens.len();
        let (mut states, mut next) = (vec![false; end + 1], vec![false; end + 1]);
        self.enter(&mut states, 0, true);
        for byte in text {
            if !states.contains(&true) {
                return false;
            }
            next.fill(false);
            let begins_name = *byte == b'/';
            for (state, token) in self.tokens.iter().enumerate().filter(|(state, _)| states[*state])
            {
                if let Some(state) = token.after(*byte, state) {
                    self.enter(&mut next, state, begins_name);
                }
            }
            std::mem::swap(&mut states, &mut next);
        }
        states[end]
    }

    /// Sets the flag of `state`, and of the states that the automaton reaches from it without a
    /// further byte. `begins_name` is whether the next byte is the first byte of a name.
    fn enter(&self, states: &mut [bool], mut state: usize, begins_name: bool) {
        loop {
            states[state] = true;
            match self.tokens.get(state) {
                Some(Token::AnyBytes | Token::Everything) => state += 1,
                Some(Token::Directories) if begins_name => state += 1,
                _ => return,
            }
        }
    }
}

impl Token {
    /// Returns the state that the automaton reaches from `state` with the next byte, `byte`. `self`
    /// is the token of `state`. `None` means that the token does not match the byte.
    fn after(&self, byte: u8, state: usize) -> Option<usize> {
        let is_in_name = byte != b'/';
        match self {
            Self::Byte(expected) => (*expected == byte).then_some(state + 1),
            Self::AnyByte => is_in_name.then_some(state + 1),
            Self::AnyBytes => is_in_name.then_some(state),
            Self::Directories | Self::Everything => Some(state),
            Self::Set { is_negated, ranges } => {
                let is_member = ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte));
                (is_in_name && is_member != *is_negated).then_some(state + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let glob: Glob = pattern.parse().unwrap();
        for path in matching {
            assert!(glob.matches(Path::new(path)), "{pattern} {path}");
        }
        for path in others {
            assert!(!glob.matches(Path::new(path)), "{pattern} {path}");
        }
    }

    #[test]
    fn pattern_without_slash_matches_names_at_any_depth() {
        check("*.keep", &["a.keep", "b/c/a.keep", ".keep"], &["a.keep/b", "a.kee"]);
        check("run?", &["run1", "a/run2"], &["run", "run10", "run1/a"]);
        check("keep/", &["keep", "a/keep"], &["keep/a"]);
        check("\\*", &["*"], &["a"]);
    }

    #[test]
    fn pattern_with_slash_matches_paths_from_the_top() {
        check("/keep", &["keep"], &["a/keep"]);
        check("a/*", &["a/b"], &["a/b/c", "b/a/c", "a"]);
        check("a/**", &["a/b", "a/b/c"], &["a", "b/a/c"]);
        check("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["a/xb", "b", "a/x/b/c"]);
        check("**/b/c", &["b/c", "a/b/c"], &["ab/c", "b/c/d"]);
    }

    #[test]
    fn bracket_set_matches_one_byte_within_its_ranges() {
        check("[a-c]x", &["ax", "cx"], &["dx", "x", "aax"]);
        check("[!a-c]x", &["dx"], &["ax"]);
        check("[]-]", &["]", "-"], &["a"]);
        check("a/[!x]b", &["a/ab"], &["a//b", "a/xb"]);
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for pattern in ["", "/", "a[", "a[b", "a\\"] {
            assert!(pattern.parse::<Glob>().is_err(), "{pattern}");
        }
    }

    #[test]
    fn patterns_that_match_no_entry_are_refused() {
        for pattern in ["./keep", "a/../b", "a//b", ".", "..", "[z-a]"] {
            assert!(pattern.parse::<Glob>().is_err(), "{pattern}");
        }
        for pattern in [".*", "..a", "a/.keep", "[a-a]", "//keep"] {
            assert!(pattern.parse::<Glob>().is_ok(), "{pattern}");
        }
    }

    #[test]
    fn pattern_that_begins_with_the_purged_path_is_detected() {
        let begins = |pattern: &str, path: &str| {
            pattern.parse::<Glob>().unwrap().begins_with(Path::new(path))
        };
        assert!(begins("/mnt/skep/scratch/keep", "/mnt/skep/scratch"));
        assert!(begins("mnt/skep/scratch/**", "/mnt/skep/scratch"));
        assert!(begins("/scratch", "/scratch") && !begins("scratch", "/scratch"));
        assert!(!begins("/keep", "/mnt/skep") && !begins("/mnt", "/mnt/skep"));
        assert!(!begins("/mnt/skeptical/a", "/mnt/skep"));
    }

    #[test]
    fn hostile_name_does_not_make_a_comparison_slow() {
        // A comparison that tries all divisions of the name would not end in the time of a test.
        let pattern = "*a".repeat(40) + "b";
        check(&pattern, &[], &[&"a".repeat(255)]);
    }
}
