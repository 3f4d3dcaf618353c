//! Checks the page that lists the tests of each statement of `docs/semantics.md`: each statement
//! has a row, and each test on the page exists.

use super::Problems;
use super::documents::{SEMANTICS, statement};
use super::language::is_test_file;
use crate::repository::{Outcome, read};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The page with the tests of each statement.
const PAGE: &str = "docs/tests/statements.md";
/// The directory of the files that the page names without their full path.
const TESTS: &str = "crates/testkit/tests";

/// Checks the page against the statements and the tests in `sources`.
///
/// # Errors
/// Fails if one of the two documents cannot be read.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Outcome<Problems> {
    Ok(problems_of(&read(SEMANTICS)?, &read(PAGE)?, sources))
}

fn problems_of(semantics: &str, page: &str, sources: &[(PathBuf, String)]) -> Problems {
    let stated: BTreeSet<_> = semantics.lines().filter_map(statement).collect();
    let mut listed = BTreeSet::new();
    let mut problems = Problems::new();
    for (index, line) in page.lines().enumerate() {
        let Some(number) = statement(line) else { continue };
        let mut found = |what: String| problems.push(format!("{PAGE}:{}: {what}", index + 1));
        listed.insert(number);
        if !stated.contains(number) {
            found(format!("{SEMANTICS} has no statement {number}"));
        }
        let Some((tests, change)) = row(line) else {
            found(
                "write three cells: the statement, its tests, and a change that they notice".into(),
            );
            continue;
        };
        let named = tests_in(tests);
        if named.is_empty() {
            found("name a test as `file.rs`: `function`".into());
        }
        if change.is_empty() {
            found("name a change of the program that the tests would notice".into());
        }
        named.iter().filter_map(|test| problem_with(*test, sources)).for_each(found);
    }
    let missing = stated.difference(&listed);
    let describe = |number| format!("{PAGE}: statement {number} has no row; add its tests");
    problems.extend(missing.map(describe));
    problems
}

/// Returns the cell with the tests and the cell with the change. `None` means that the line does
/// not have three cells.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split(" | ");
    let (_statement, tests, change) = (cells.next()?, cells.next()?, cells.next()?);
    cells.next().is_none().then_some((tests.trim(), change.trim()))
}

/// Returns the tests in a cell, each as its file and its function. A cell names a file first, and
/// then the functions in this file.
fn tests_in(cell: &str) -> Vec<(&str, &str)> {
    let mut file = "";
    let mut tests = Vec::new();
    for name in cell.split('`').skip(1).step_by(2) {
        if Path::new(name).extension().is_some_and(|it| it == "rs") {
            file = name;
        } else {
            tests.push((file, name));
        }
    }
    tests
}

/// Returns a sentence if the test does not exist.
fn problem_with((file, function): (&str, &str), sources: &[(PathBuf, String)]) -> Option<String> {
    let path = match file.starts_with("crates/") {
        true => PathBuf::from(file),
        false => Path::new(TESTS).join(file),
    };
    let shown = path.display();
    let Some((_, text)) = sources.iter().find(|(source, _)| *source == path) else {
        return Some(format!("the file {shown} of the test {function} does not exist"));
    };
    let start = format!("fn {function}(");
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let Some(index) = lines.iter().position(|line| line.starts_with(&start)) else {
        return Some(format!("{shown} has no function {function}"));
    };
    // In the tests of a suite, a table lists the functions. Elsewhere, only an attribute
    // distinguishes a test from a function of the program.
    let mut attributes = lines[..index].iter().rev().take_while(|line| line.starts_with("#["));
    let is_test = is_test_file(&path.to_string_lossy()) || attributes.any(|it| *it == "#[test]");
    (!is_test).then(|| format!("{shown}: the function {function} is no test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATED: &str = "- **1.1** Within one mount\n| **5.4** | `syncfs(2)` | they |\n";

    fn sources() -> Vec<(PathBuf, String)> {
        let source = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        vec![
            source("crates/testkit/tests/a/b.rs", "fn holds(mounts: &Mounts) {}"),
            source("crates/x/src/c.rs", "fn product() {}\n    #[test]\n    fn unit_test() {}"),
        ]
    }

    fn problems(page: &str) -> Problems {
        problems_of(STATED, page, &sources())
    }

    const COMPLETE: &str = concat!(
        "| **1.1** words | `a/b.rs`: `holds`; `crates/x/src/c.rs`: `unit_test` | it fails |\n",
        "| **5.4** words | `a/b.rs`: `holds` | it |\n",
    );

    #[test]
    fn page_with_all_statements_and_tests_has_no_problem() {
        assert_eq!(problems(COMPLETE), Problems::new());
    }

    #[test]
    fn each_statement_of_the_semantics_needs_a_row() {
        let first = COMPLETE.lines().next().expect("two lines");
        assert!(problems(first)[0].contains("statement 5.4 has no row"));
        let more = format!("{COMPLETE}| **9.9** words | `a/b.rs`: `holds` | it |\n");
        assert!(problems(&more)[0].contains("no statement 9.9"));
    }

    #[test]
    fn each_test_on_the_page_must_exist() {
        for (old, new, problem) in [
            ("`holds`", "`absent`", "has no function absent"),
            ("`holds`", "`hold`", "has no function hold"),
            ("a/b.rs", "a/absent.rs", "a/absent.rs of the test holds does not exist"),
            ("`unit_test`", "`product`", "the function product is no test"),
        ] {
            let found = problems(&COMPLETE.replacen(old, new, 1));
            assert!(found.len() == 1 && found[0].contains(problem), "{new}: {found:?}");
        }
    }

    #[test]
    fn row_of_a_statement_needs_a_test_and_a_change() {
        for (row, problem) in [
            ("| **1.1** words | none | it |\n", "name a test"),
            ("| **1.1** words | `a/b.rs`: `holds` |  |\n", "name a change"),
            ("| **1.1** words | `a/b.rs`: `holds` |\n", "write three cells"),
        ] {
            let found = problems(&format!("{COMPLETE}{row}"));
            assert!(found.len() == 1 && found[0].contains(problem), "{row}: {found:?}");
        }
    }
}
