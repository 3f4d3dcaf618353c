//! `cargo xtask tidy`: checks the rules of the project that compilers do not check.
//!
//! Each check returns a sentence for each problem, with its file and line, and a hint on how to fix
//! the problem. [`layers`] checks dependencies between crates, and [`import_cycles`] checks imports
//! between the files of a crate. [`sources`] checks source files, [`documents`] checks documents,
//! and [`glossary`] and [`language`] check words. [`invariants`] checks that invariants are
//! asserted or tested. [`pauses`] checks the files that may pause and retry, and [`history`] checks
//! commit subjects. [`statements`] checks the page with the tests of each statement of the
//! semantics, and [`templates`] checks the templates in `deploy/`.

mod documents;
mod glossary;
mod history;
mod import_cycles;
mod invariants;
mod language;
mod layers;
mod pauses;
mod rust_text;
mod sources;
mod statements;
mod templates;

use crate::repository::{Outcome, files, read};
use std::path::PathBuf;

/// Sentences that each describe a problem and name its file and line.
type Problems = Vec<String>;

/// Runs all checks.
///
/// # Errors
/// All problems, one per line.
pub(crate) fn run() -> Outcome {
    let files = files()?;
    let mut problems = layers::check()?;
    let mut sources: Vec<(PathBuf, String)> = Vec::new();
    for path in &files {
        let name = path.to_string_lossy();
        let is_text = [".rs", ".toml", ".md", ".py", ".yml"].iter().any(|end| name.ends_with(end));
        if !is_text && name != ".ci/run" {
            continue;
        }
        let text = read(path)?;
        problems.extend(sources::check_text(&name, &text));
        if name.ends_with(".rs") {
            problems.extend(sources::check_rust(&name, &text));
        }
        if name.ends_with(".md") || name.ends_with(".rs") {
            problems.extend(documents::check_names(path, &text, &files));
        }
        if name.ends_with(".rs") {
            sources.push((path.clone(), text));
        }
    }
    problems.extend(import_cycles::check(&sources));
    problems.extend(glossary::check(&sources)?);
    problems.extend(invariants::check(&sources));
    problems.extend(pauses::check(&sources));
    problems.extend(documents::check_functions(&files, &sources)?);
    problems.extend(language::check(&files)?);
    problems.extend(history::check()?);
    problems.extend(documents::check_vectors());
    problems.extend(documents::check_statements(&files)?);
    problems.extend(statements::check(&sources)?);
    problems.extend(documents::check_commands(&files)?);
    problems.extend(documents::check_dependencies()?);
    problems.extend(templates::check()?);
    if problems.is_empty() { Ok(()) } else { Err(format!("tidy:\n{}", problems.join("\n"))) }
}

/// Lists the sentences that match a pattern of unclear language, in the areas (crates and folders)
/// whose names begin with `prefix`. With `lower`, lists nothing, and stores the number of such
/// sentences of each area in which this number has fallen.
///
/// # Errors
/// Fails if a file cannot be read or written.
pub(crate) fn language(prefix: &str, lower: bool) -> Outcome {
    let files = files()?;
    if lower { language::lower(&files) } else { language::list(&files, prefix) }
}
