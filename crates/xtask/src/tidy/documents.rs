//! Checks that documents and comments name only files, functions, messages and commands that exist.

use super::Problems;
use super::language::is_test_file;
use crate::repository::{Outcome, read, root};
use crate::vectors;
use skep_wire::catalog::CATALOG;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Top-level directories. A name that starts with one of these directories counts as a path.
const TOPS: &[&str] = &[
    "crates/",
    "docs/",
    "vectors/",
    "tools/",
    "fuzz/",
    "packaging/",
    "deploy/",
    ".ci/",
    ".cargo/",
];
/// File name extensions. In documents, a name with one of these endings counts as the path of a
/// file.
const ENDINGS: &[&str] = &[".md", ".rs", ".py"];

/// Checks that a document or a comment names only files that exist. The check covers names in
/// backticks and targets of links that look like the path of a file in this repository. In
/// documents, the end of a path is sufficient, such as `tidy/documents.rs`.
pub(super) fn check_names(path: &Path, text: &str, files: &[PathBuf]) -> Problems {
    let is_document = path.extension().is_some_and(|extension| extension == "md");
    let folder = path.parent().unwrap_or(Path::new(""));
    let exists = |name: &str| {
        let is_end_of = || files.iter().any(|file| file.ends_with(name));
        root().join(name).exists()
            || is_document && (root().join(folder).join(name).exists() || is_end_of())
    };
    let mut problems = Problems::new();
    for (index, line) in text.lines().enumerate() {
        let line = if is_document { line } else { comment(line) };
        let quoted = line.split('`').skip(1).step_by(2).filter(|name| is_path(name, is_document));
        let linked = line.split("](").skip(1).filter(|_| is_document);
        let linked = linked.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        let linked = linked.filter(|link| !link.contains("://") && !link.starts_with('#'));
        for name in quoted.chain(linked) {
            let file = name.split('#').next().unwrap_or(name);
            if !exists(file) {
                let place = format!("{}:{}", path.display(), index + 1);
                problems.push(format!("{place}: the file {name} does not exist"));
            }
        }
    }
    problems
}

/// Returns the line if it is a comment, or else an empty text.
fn comment(line: &str) -> &str {
    if line.trim_start().starts_with("//") { line } else { "" }
}

/// Whether a quoted name is the path of one file, and not a pattern for several files. In comments
/// only full paths count, because a name such as `mod.rs` could refer to many files.
fn is_path(name: &str, is_document: bool) -> bool {
    let is_plain = !name.contains(|letter: char| {
        letter.is_whitespace() || ['<', '>', '*', '{', '}', '$', '|', '('].contains(&letter)
    });
    let starts = TOPS.iter().any(|top| name.starts_with(top));
    let ends = ENDINGS.iter().any(|ending| name.ends_with(ending)) && !name.starts_with('/');
    is_plain && !name.contains("::") && (starts || is_document && ends)
}

/// If a document names a function as `file.rs::function`, checks that this file defines the
/// function.
///
/// # Errors
/// Fails if a document cannot be read.
pub(super) fn check_functions(
    files: &[PathBuf],
    sources: &[(PathBuf, String)],
) -> Outcome<Problems> {
    let mut problems = Problems::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
        for (index, line) in read(path)?.lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2) {
                let Some((file, function)) = name.split_once(".rs::") else { continue };
                let file = format!("{file}.rs");
                let function = function.rsplit("::").next().unwrap_or(function);
                let mut found = sources.iter().filter(|(source, _)| source.ends_with(&file));
                if !found.any(|(_, text)| defines(text, function)) {
                    let place = format!("{}:{}", path.display(), index + 1);
                    problems.push(format!("{place}: {file} has no function or type {function}"));
                }
            }
        }
    }
    Ok(problems)
}

/// Whether a source text defines a function or a type.
fn defines(text: &str, name: &str) -> bool {
    ["fn ", "struct ", "enum ", "trait ", "const "].iter().any(|keyword| {
        text.match_indices(&format!("{keyword}{name}")).any(|(at, found)| {
            let rest = &text[at + found.len()..];
            !rest.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_')
        })
    })
}

/// Checks that every message in the catalog has test vectors.
pub(super) fn check_vectors() -> Problems {
    let mut problems = Problems::new();
    for line in CATALOG {
        for extension in ["json", "hex"] {
            let path = vectors::file(line.name, 1, extension);
            if !root().join(&path).exists() {
                problems.push(format!("{} is missing: run `cargo xtask vectors`", path.display()));
            }
        }
    }
    problems
}

/// Checks that each external library has a row in `docs/dependencies.md`, and that each row of this
/// page names a library that is used.
///
/// # Errors
/// Fails if one of the two files cannot be read.
pub(super) fn check_dependencies() -> Outcome<Problems> {
    let manifest = read("Cargo.toml")?;
    let page = read("docs/dependencies.md")?;
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter(|line| !line.starts_with('#'));
    let names = names.filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim());
    let used: Vec<_> = names.filter(|name| !name.starts_with("skep-")).collect();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let explained: Vec<_> = rows.map(|(name, _)| name).collect();
    let missing = used.iter().filter(|name| !explained.contains(name));
    let missing =
        missing.map(|name| format!("docs/dependencies.md: the library {name} has no row; add one"));
    let unused = explained.iter().filter(|name| !used.contains(name));
    let unused = unused.map(|name| {
        format!("docs/dependencies.md: the library {name} is not used any more; remove its row")
    });
    Ok(missing.chain(unused).collect())
}

/// The document with the guarantees on which applications may rely.
pub(super) const SEMANTICS: &str = "docs/semantics.md";

/// Checks that a test names each statement of `docs/semantics.md`, and that no test names a missing
/// statement. Also checks that only tests name statements. A test names a statement by a comment
/// with the path of the document and the number of the statement. The comment is in a file of
/// tests, or at a function with `#[test]`. A test with such a comment must fail if the statement is
/// false.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn check_statements(files: &[PathBuf]) -> Outcome<Problems> {
    let document = read(Path::new(SEMANTICS))?;
    let mut stated = BTreeSet::new();
    let mut problems = Problems::new();
    for number in document.lines().filter_map(statement) {
        if !stated.insert(number) {
            problems.push(format!("{SEMANTICS}: two statements have the number {number}"));
        }
    }
    let mut untested = stated.clone();
    for path in files.iter().filter(|path| path.extension().is_some_and(|it| it == "rs")) {
        let text = read(path)?;
        let lines: Vec<_> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            for number in tested(comment(line)) {
                let mut found = |what: String| {
                    problems.push(format!("{}:{}: {what}", path.display(), index + 1));
                };
                if is_test_file(&path.to_string_lossy()) || is_at_a_test(&lines[index..]) {
                    untested.remove(number);
                } else {
                    found(format!(
                        "only a test names a statement, and this comment names {number}: link the \
                         design instead"
                    ));
                }
                if !stated.contains(number) {
                    found(format!("{SEMANTICS} has no statement {number}"));
                }
            }
        }
    }
    let describe = |number| {
        format!(
            "{SEMANTICS}: no test names statement {number}: write \"{SEMANTICS} {number}\" at a \
             test that covers it"
        )
    };
    problems.extend(untested.into_iter().map(describe));
    Ok(problems)
}

/// The directory with a page for each command.
const COMMANDS: &str = "docs/commands";
/// Directories of the tests that run commands, on real clusters and without a cluster.
const COMMAND_TESTS: [&str; 2] = ["crates/testkit/tests", "crates/ctl/tests"];

/// Checks that a test runs each command that has a page, and that no test names a command without a
/// page. A test names a command by a comment with "Command:" and the full name of the command.
pub(super) fn check_commands(files: &[PathBuf]) -> Outcome<Problems> {
    let page = |path: &PathBuf| {
        let name = path.file_stem()?.to_str()?;
        (path.parent() == Some(Path::new(COMMANDS)) && name.starts_with("skep-"))
            .then(|| path.clone())
    };
    let mut untested = BTreeSet::new();
    for path in files.iter().filter_map(page) {
        let text = read(&path)?;
        let title = text.lines().next().and_then(|line| line.strip_prefix("# `"));
        untested.extend(title.map(|title| title.trim_end_matches('`').to_owned()));
    }
    let commands = untested.clone();
    let mut problems = Problems::new();
    let is_test = |path: &&PathBuf| {
        COMMAND_TESTS.iter().any(|tests| path.starts_with(tests))
            && path.extension().is_some_and(|it| it == "rs")
    };
    for path in files.iter().filter(is_test) {
        for (index, line) in read(path)?.lines().enumerate() {
            for name in run_commands(comment(line)) {
                untested.remove(name);
                if !commands.contains(name) {
                    let place = format!("{}:{}", path.display(), index + 1);
                    problems.push(format!("{place}: {COMMANDS} has no page of `{name}`"));
                }
            }
        }
    }
    let describe = |name| {
        format!(
            "{COMMANDS}: no test names `{name}`: write \"Command: {name}\" at a test that runs it"
        )
    };
    problems.extend(untested.into_iter().map(describe));
    Ok(problems)
}

/// Returns the commands in the comment of a test. In the comment, commas separate the commands.
fn run_commands(comment: &str) -> impl Iterator<Item = &str> {
    let list = comment.split_once(" Command: ").map_or("", |(_, rest)| rest);
    list.trim_end_matches('.').split(", ").filter(|name| !name.is_empty())
}

/// Returns the number of the statement that begins on this line of the document. The line belongs
/// to a list or a table.
pub(super) fn statement(line: &str) -> Option<&str> {
    let line = line.strip_prefix("- **").or_else(|| line.strip_prefix("| **"))?;
    line.split_once("**").map(|(number, _)| number)
}

/// Whether the comment on the first of these lines belongs to a function with `#[test]`.
fn is_at_a_test(lines: &[&str]) -> bool {
    let is_before_test =
        |line: &&str| line.starts_with("//") || (line.starts_with("#[") && *line != "#[test]");
    let mut rest = lines.iter().map(|line| line.trim()).skip_while(is_before_test);
    rest.next() == Some("#[test]")
}

/// Returns the numbers of the statements in the comment of a test.
fn tested(comment: &str) -> impl Iterator<Item = &str> {
    let list = comment.split_once(SEMANTICS).map_or("", |(_, rest)| rest);
    let is_number = |word: &&str| {
        let mut parts = word.split('.');
        let is_digits = |part: Option<&str>| {
            part.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
        };
        is_digits(parts.next()) && is_digits(parts.next()) && parts.next().is_none()
    };
    let words = list.split([' ', ',']).filter(|word| !word.is_empty() && *word != "and");
    words.map(|word| word.trim_end_matches(['.', ':', ';', ')'])).take_while(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_in_documents_must_exist() {
        let files = [PathBuf::from("crates/rpc/src/client.rs")];
        let count = |text: &str| check_names(Path::new("docs/x.md"), text, &files).len();
        assert_eq!(count("see `client.rs`, `src/client.rs`, `rpc/client.rs`"), 1);
        assert_eq!(count("see `Cargo.toml`, `crates/xtask/src/main.rs` and `README`"), 0);
        assert_eq!(count("see `crates/xtask/src/absent.rs` and `absent.md`"), 2);
        assert_eq!(count("see `crates/<name>/src/lib.rs`, `/etc/x.md`, `a b.rs`"), 0);
        assert_eq!(count("[here](absent.md) [there](https://example.org/x.md) [up](#top)"), 1);
    }

    #[test]
    fn definitions_are_found_by_their_whole_name() {
        assert!(defines("pub async fn close(x: u8) {}", "close"));
        assert!(!defines("fn close_all() {}", "close"));
    }

    #[test]
    fn paths_in_comments_must_exist() {
        let count = |text: &str| check_names(Path::new("crates/a.rs"), text, &[]).len();
        assert_eq!(count("// see `docs/absent.md`"), 1);
        assert_eq!(count("// see `mod.rs`\nlet x = \"`docs/absent.md`\";"), 0);
    }

    #[test]
    fn all_commands_that_a_test_comment_lists_are_found() {
        let names = |comment| run_commands(comment).collect::<Vec<_>>();
        assert_eq!(names("/// Command: skep lock list."), ["skep lock list"]);
        assert_eq!(names("/// Command: skep up, skep down"), ["skep up", "skep down"]);
        assert_eq!(names("/// A command: skep up"), [""; 0]);
    }

    #[test]
    fn all_statement_numbers_that_a_test_comment_lists_are_found() {
        let numbers = |comment| tested(comment).collect::<Vec<_>>();
        assert_eq!(numbers("/// docs/semantics.md 1.4: also between"), ["1.4"]);
        assert_eq!(numbers("//! (docs/semantics.md 1.4, 2.10 and 3.1)."), ["1.4", "2.10", "3.1"]);
        assert_eq!(numbers("/// docs/semantics.md has 1.4"), [""; 0]);
        assert_eq!(statement("- **2.10** A file is"), Some("2.10"));
        assert_eq!(statement("| **5.4** | `syncfs(2)` | they"), Some("5.4"));
        assert_eq!(statement("| | what | what happens |"), None);
    }

    #[test]
    fn comment_of_product_code_does_not_count_as_a_test_comment() {
        assert!(is_at_a_test(&["    /// x 1.4", "    /// y", "    #[cfg(unix)]", "    #[test]"]));
        assert!(!is_at_a_test(&["/// x 1.4", "fn product() {}", "#[test]"]));
        assert!(!is_at_a_test(&["//! x 1.4", "", "#[test]"]));
    }
}
