//! `cargo xtask tidy`: the rules of the project that compilers don't know.
//!
//! Each check returns sentences with a place and what to do there. Checks of the crates'
//! dependencies are in [`layers`], of the files within a crate in [`circles`], of source files in
//! [`sources`], of documents in [`documents`], of words in [`glossary`] and [`language`], of places
//! that may pause and retry in [`pauses`], of commit subjects in [`history`].

mod circles;
mod documents;
mod glossary;
mod history;
mod language;
mod layers;
mod pauses;
mod rust_text;
mod sources;

use crate::repository::{Outcome, files, read};
use std::path::PathBuf;

/// Sentences that say what is wrong, each with its place.
type Problems = Vec<String>;

/// Runs all checks.
///
/// # Errors
/// All that is wrong, a line each.
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
    problems.extend(circles::check(&sources));
    problems.extend(glossary::check(&sources)?);
    problems.extend(pauses::check(&sources));
    problems.extend(documents::check_functions(&files, &sources)?);
    problems.extend(language::check(&files)?);
    problems.extend(history::check()?);
    problems.extend(documents::check_vectors());
    problems.extend(documents::check_statements(&files)?);
    problems.extend(documents::check_commands(&files)?);
    problems.extend(documents::check_dependencies()?);
    if problems.is_empty() { Ok(()) } else { Err(format!("tidy:\n{}", problems.join("\n"))) }
}

/// Lists the sentences with marks of unclear language in the areas that begin with `prefix`, or
/// writes down the counts that have fallen.
///
/// # Errors
/// If a file can't be read or written.
pub(crate) fn language(prefix: &str, lower: bool) -> Outcome {
    let files = files()?;
    if lower { language::lower(&files) } else { language::list(&files, prefix) }
}
