//! Checks comments with the heading `# Invariants`. The file of such a comment must have a function
//! `check_invariants`, or name the tests and checkers that fail if an invariant is violated. A
//! comment names these tests after the words [`HELD_BY`]. Each named test must exist.

use super::Problems;
use super::rust_text::{Kind, prose};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The words before the names of tests and checkers.
const HELD_BY: &str = "Held by";

/// Checks all source files.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Problems {
    let defined: BTreeSet<&str> = sources.iter().flat_map(|(_, text)| functions(text)).collect();
    let mut problems = Problems::new();
    for (path, text) in sources {
        let name = path.display();
        let holders = holders(text);
        let is_checked = text.contains("check_invariants") || !holders.is_empty();
        if let Some(line) = heading(text).filter(|_| !is_checked) {
            problems.push(format!(
                "{name}:{line}: assert the invariants in a function `check_invariants`, or write \
                 \"{HELD_BY} the test\" and its name"
            ));
        }
        let unknown = holders.iter().filter(|(_, holder)| !defined.contains(holder.as_str()));
        problems.extend(unknown.map(|(line, holder)| {
            format!("{name}:{line}: no function {holder} exists that could hold the invariants")
        }));
    }
    problems
}

/// Returns the number of the line with the first heading of invariants in a source text.
fn heading(text: &str) -> Option<usize> {
    let is_heading = |line: &str| {
        let line = line.trim();
        line.starts_with("//") && line.trim_start_matches(['/', '!']).trim() == "# Invariants"
    };
    text.lines().position(is_heading).map(|index| index + 1)
}

/// Returns the names of the tests and checkers that a source text names after [`HELD_BY`], each
/// with the first line of its paragraph.
fn holders(text: &str) -> Vec<(usize, String)> {
    let mut holders = Vec::new();
    if !text.contains(HELD_BY) {
        return holders;
    }
    for paragraph in prose(text).iter().filter(|it| it.kind == Kind::Comment) {
        let Some((_, rest)) = paragraph.text.split_once(HELD_BY) else { continue };
        let names = rest.split('`').skip(1).step_by(2).filter(|name| is_function_name(name));
        holders.extend(names.map(|name| (paragraph.line, name.to_owned())));
    }
    holders
}

/// Whether a name in backticks is the name of a function. A single word may be another name, such
/// as the name of a module.
fn is_function_name(name: &str) -> bool {
    name.contains('_') && name.chars().all(is_in_name)
}

fn is_in_name(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
}

/// Returns the names of the functions in a source text.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).map(|rest| {
        let end = rest.find(|letter: char| !is_in_name(letter)).unwrap_or(rest.len());
        &rest[..end]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> usize {
        let source = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
        check(&[source("a.rs", text), source("b.rs", "fn table_is_bounded() {}")]).len()
    }

    #[test]
    fn invariants_without_a_check_or_a_test_are_refused() {
        assert_eq!(problems("//! Owns.\n//!\n//! # Invariants\n//! - A bound.\n"), 1);
        assert_eq!(problems("    /// # Invariants\n    /// - A bound.\n"), 1);
        assert_eq!(problems("/// # Invariants\n/// - A bound.\nfn check_invariants() {}\n"), 0);
        assert_eq!(problems("let heading = \"# Invariants\";\n"), 0);
    }

    #[test]
    fn tests_named_for_an_invariant_must_exist() {
        let held = |name: &str| {
            let text =
                format!("//! # Invariants\n//! - A.\n//!\n//! Held by the test\n//! `{name}`.\n");
            problems(&text)
        };
        assert_eq!(held("table_is_bounded"), 0);
        assert_eq!(held("list_is_bounded"), 1);
        assert_eq!(held("module"), 1, "a word is not the name of a test");
    }
}
