//! The output that the commands for whole trees of files share (`skep copy`, `skep purge`). This
//! output is a line with the progress on a terminal, and the list of failed entries.

use crate::output::{counted, is_for_people, is_screen, replace_line, span};
use skep_copy::outcome::Problem;
use std::fmt::Write as _;
use std::time::Duration;

/// Maximum number of failed entries that the message of a failed command lists.
const LISTED: usize = 20;

/// A line on standard error. Each new text replaces the text before it. Without a terminal that
/// follows control sequences, or with an output for programs, this type shows nothing.
pub(crate) struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    pub(crate) fn new() -> Self {
        Self { is_shown: is_for_people() && is_screen(&std::io::stderr()) }
    }

    /// Replaces the line. An empty text removes the line.
    pub(crate) fn show(&self, text: &str) {
        if self.is_shown {
            replace_line(text);
        }
    }
}

/// Formats the end of a line with the progress: the time left and the number of problems. The end
/// is empty if the time left is unknown and the number of problems is zero.
pub(crate) fn progress_end(time_left: Option<Duration>, problems: u64) -> String {
    let mut text = String::new();
    if let Some(left) = time_left {
        let milliseconds = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let _ = write!(text, ", {} left", span(milliseconds));
    }
    if problems > 0 {
        let _ = write!(text, ", {}", counted(problems, "problem", "problems"));
    }
    text
}

/// Formats the first failed entries, one per line after a newline. `count` is the number of all
/// problems.
pub(crate) fn failed_entries(first: &[Problem], count: u64) -> String {
    let mut text = String::new();
    for it in first.iter().take(LISTED) {
        let _ = write!(text, "\n  {}: {}", it.path, it.problem);
    }
    if count > LISTED as u64 {
        text += "\n  ... and more; --output json lists up to 1000";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_progress_line_has_time_left_and_problems() {
        assert_eq!(progress_end(None, 0), "");
        let left = Some(Duration::from_secs(20));
        assert_eq!(progress_end(left, 2), ", 20.0s left, 2 problems");
    }

    #[test]
    fn only_the_first_failed_entries_are_listed() {
        let problem = |number: usize| Problem {
            path: format!("a/{number}"),
            problem: "cannot remove: Permission denied".into(),
        };
        let problems: Vec<_> = (0..LISTED + 1).map(problem).collect();
        let text = failed_entries(&problems[..1], 1);
        assert_eq!(text, "\n  a/0: cannot remove: Permission denied");
        let text = failed_entries(&problems, 1500);
        assert_eq!(text.lines().count(), 1 + LISTED + 1);
        assert!(text.ends_with("--output json lists up to 1000"), "{text}");
    }
}
