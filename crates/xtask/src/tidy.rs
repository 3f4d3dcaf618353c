//! `cargo xtask tidy`: the rules of the project that compilers don't know.
//!
//! Each check gives sentences that say where and what to do. Checks of the crates' dependencies are
//! in [`layers`], of source files in [`sources`], of documents in [`documents`].

mod documents;
mod layers;
mod sources;

use crate::repository::{Outcome, files, read};

/// Sentences that say what is wrong, each with its place.
type Problems = Vec<String>;

/// Runs all checks.
///
/// # Errors
/// All that is wrong, a line each.
pub(crate) fn run() -> Outcome {
    let files = files()?;
    let mut problems = layers::check()?;
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
    }
    problems.extend(documents::check_vectors());
    problems.extend(documents::check_statements(&files)?);
    problems.extend(documents::check_commands(&files)?);
    problems.extend(documents::check_dependencies()?);
    if problems.is_empty() { Ok(()) } else { Err(format!("tidy:\n{}", problems.join("\n"))) }
}
