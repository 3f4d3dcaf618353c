//! Checks the glossary: each type in the glossary must exist, and no identifier may contain a
//! forbidden word.

use super::Problems;
use super::rust_text::{Kind, prose};
use crate::repository::{Outcome, read};
use std::collections::BTreeSet;
use std::path::PathBuf;

const GLOSSARY: &str = "docs/glossary.md";

/// A row of a table in the glossary.
struct Row<'a> {
    types: Vec<&'a str>,
    forbidden: Vec<&'a str>,
}

/// Checks the glossary against the identifiers in all crates of the product.
///
/// # Errors
/// Fails if the glossary cannot be read.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Outcome<Problems> {
    let glossary = read(GLOSSARY)?;
    // The search for the definition of an identifier reads the whole file, so search only for the
    // names in the glossary.
    let named: BTreeSet<&str> =
        rows(&glossary).flat_map(|row| row.types).flat_map(|name| name.split("::")).collect();
    let mut defined = BTreeSet::new();
    let mut used: Vec<(String, String)> = Vec::new();
    for (path, text) in sources {
        let name = path.to_string_lossy();
        if !name.starts_with("crates/") || name.starts_with("crates/xtask/src/tidy/") {
            continue;
        }
        for (line, identifier) in identifiers(text) {
            if named.contains(identifier) && is_defined(text, identifier) {
                defined.insert(identifier.to_owned());
            }
            used.push((identifier.to_owned(), format!("{name}:{line}")));
        }
    }
    let mut problems = Problems::new();
    for row in rows(&glossary) {
        for name in row.types.iter().filter(|name| !is_known(name, &defined)) {
            problems.push(format!("{GLOSSARY}: type {name} does not exist"));
        }
        for word in row.forbidden {
            let hit = used.iter().find(|(identifier, _)| has_word(identifier, word));
            if let Some((identifier, place)) = hit {
                problems.push(format!(
                    "{place}: {identifier} has a word that {GLOSSARY} forbids: {word}"
                ));
            }
        }
    }
    Ok(problems)
}

/// Returns the rows of all tables that have four columns: word, meaning, types, forbidden words. In
/// the last two columns, only the text in backticks counts.
fn rows(glossary: &str) -> impl Iterator<Item = Row<'_>> {
    glossary.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix('|')?.trim_end_matches('|').split('|').collect();
        let [_, _, types, forbidden] = cells[..] else { return None };
        Some(Row { types: in_backticks(types), forbidden: in_backticks(forbidden) })
    })
}

fn in_backticks(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Whether a type in the glossary exists. For `Type::member`, some file must define each of the two
/// names.
fn is_known(name: &str, defined: &BTreeSet<String>) -> bool {
    name.split("::").all(|part| defined.contains(part))
}

/// Whether a source text defines an identifier as a type, a field, a variant or a function.
fn is_defined(text: &str, identifier: &str) -> bool {
    let starts = ["struct ", "enum ", "trait ", "type ", "fn ", "    "];
    let ends = ["(", " {", ":", ";", "<", ",", " ="];
    starts.iter().any(|start| {
        let whole = format!("{start}{identifier}");
        text.match_indices(&whole).any(|(at, _)| {
            let rest = &text[at + whole.len()..];
            ends.iter().any(|end| rest.starts_with(end))
        })
    })
}

/// Returns the identifiers of a source text outside of comments and strings. Each identifier is
/// returned once, with the number of the first line that contains it.
fn identifiers(text: &str) -> Vec<(usize, &str)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let literals: BTreeSet<usize> =
        prose(text).iter().filter(|it| it.kind == Kind::Literal).map(|it| it.line).collect();
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let code = match literals.contains(&(index + 1)) {
            true => code.split('"').next().unwrap_or_default(),
            false => code,
        };
        for word in code.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
            let begins = word.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
            if begins && seen.insert(word) {
                found.push((index + 1, word));
            }
        }
    }
    found
}

/// Whether `word` is one of the words of an identifier in snake case or camel case.
fn has_word(identifier: &str, word: &str) -> bool {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || letter.is_uppercase() && was_lower {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase();
        if letter != '_' {
            words.last_mut().expect("a word has begun").extend(letter.to_lowercase());
        }
    }
    let wanted: Vec<_> = word.split([' ', '_', '-']).map(str::to_lowercase).collect();
    words.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_words_are_found_in_snake_and_camel_case() {
        assert!(has_word("free_room", "room") && has_word("RoomGauge", "room"));
        assert!(has_word("KEPT_MAP_FILE", "kept map"));
        assert!(!has_word("broom", "room") && !has_word("roommate", "room"));
    }

    #[test]
    fn glossary_rows_have_types_and_forbidden_words_in_backticks() {
        let text = "| word | meaning | type | not |\n|---|---|---|---|\n| lock | x | `A`, `B::c` | `d` e |";
        let row = rows(text).last().unwrap();
        assert_eq!((row.types, row.forbidden), (vec!["A", "B::c"], vec!["d"]));
    }

    #[test]
    fn words_in_comments_and_strings_are_no_identifiers() {
        let names: Vec<_> =
            identifiers("let a = \"room\"; // room\nfn b() {}").into_iter().collect();
        assert_eq!(names, [(1, "let"), (1, "a"), (2, "fn"), (2, "b")]);
    }

    #[test]
    fn import_of_a_type_is_not_its_definition() {
        assert!(is_defined("pub struct Aa {", "Aa") && is_defined("    Bb,", "Bb"));
        assert!(!is_defined("use x::Aa;", "Aa"));
    }
}
