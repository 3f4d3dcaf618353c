//! Checks commit subjects: at most 72 characters and one idea, so that `git log` can be searched.

use super::Problems;
use crate::repository::{Outcome, output};

/// Maximum length of a commit subject, in characters.
const MAX_SUBJECT: usize = 72;
/// The commit that introduced the rule. The check covers only commits after this commit.
const SINCE: &str = "ae64fd9";

/// Checks the subjects of all commits since the introduction of the rule. In a copy of the
/// repository without the commit [`SINCE`], such as a shallow copy, the function checks nothing.
///
/// # Errors
/// Fails if `git` cannot list the commits.
pub(super) fn check() -> Outcome<Problems> {
    let commit = format!("{SINCE}^{{commit}}");
    if output("git", &["rev-parse", "--quiet", "--verify", &commit]).is_err() {
        return Ok(Problems::new());
    }
    let range = format!("{SINCE}..HEAD");
    let listed = output("git", &["log", "--no-merges", "--format=%h %s", &range])?;
    let commits = listed.lines().filter_map(|line| line.split_once(' '));
    Ok(commits
        .filter_map(|(commit, subject)| Some(format!("{commit}: {}", fault(subject)?)))
        .collect())
}

/// Describes the problem of a commit subject. `None` means that the subject is correct.
fn fault(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > MAX_SUBJECT {
        return Some(format!(
            "the subject has {length} characters; at most {MAX_SUBJECT} are allowed"
        ));
    }
    subject.contains(';').then(|| {
        "the subject has a semicolon, so it describes two changes: make two commits".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_subjects_and_subjects_with_two_ideas_are_refused() {
        assert_eq!(fault("client: wait for closes before setting a pattern"), None);
        assert!(fault(&"a".repeat(MAX_SUBJECT + 1)).is_some());
        assert!(fault("client: wait for closes; tests: ask less").is_some());
    }
}
