//! The output of `skep purge` for people.

use crate::output::{count, counted, percent, render, size, table};
use crate::tree_output::{failed_entries, progress_end};
use skep_copy::purge::{PurgeOutcome, PurgeProgress, Skipped};
use skep_types::{Error, ErrorCode};
use std::fmt::Write;

/// Maximum number of users in the table of users, and of directories in the table of directories.
const ROWS: usize = 20;

/// Formats the progress as one line.
pub(super) fn line(progress: &PurgeProgress) -> String {
    let (files, bytes) = (count(progress.files), size(progress.bytes));
    let rate = count(progress.rate() as u64);
    let text = match (progress.is_removing, progress.expected) {
        (false, _) => {
            let scanned = count(progress.scanned);
            format!("found {scanned} files, {files} of them old ({bytes}), {rate} files/s")
        }
        (true, Some(expected)) => {
            format!("removed {files} of {} files, {bytes}, {rate} files/s", count(expected))
        }
        (true, None) => format!("removed {files} files, {bytes}, {rate} files/s"),
    };
    text + &progress_end(progress.time_left(), progress.problems)
}

/// Formats the result.
pub(super) fn of(outcome: &PurgeOutcome, max_share: u64) -> String {
    let verb = if outcome.is_dry_run { "Would remove" } else { "Removed" };
    let mut text = format!(
        "{verb} {} with {} from {}: {} of {}, in {:.1} s\n",
        counted(outcome.files, "file", "files"),
        size(outcome.bytes),
        outcome.directory,
        percent(outcome.files, outcome.scanned),
        counted(outcome.scanned, "file", "files"),
        outcome.seconds
    );
    if outcome.directories > 0 {
        let directories = counted(outcome.directories, "empty directory", "empty directories");
        let _ = writeln!(text, "{verb} {directories}");
    }
    let Skipped { excluded, in_use, changed, mount_points } = outcome.skipped;
    for (number, reason) in [
        (excluded, "excluded by a pattern"),
        (in_use, "open for writing"),
        (changed, "changed during the purge"),
        (mount_points, "on another file system"),
    ] {
        if number > 0 {
            let _ = writeln!(text, "Left out {}: {reason}", counted(number, "entry", "entries"));
        }
    }
    if outcome.files > 0 {
        text += &tables(outcome);
    }
    if outcome.is_dry_run && outcome.files > 0 {
        text += &match outcome.is_above_share(max_share) {
            true => format!(
                "\nThis is more than the limit of {max_share}% of all files. --apply removes these \
                 files only with a higher --max-share.\n"
            ),
            false => "\nThis was a dry run. --apply removes the files.\n".to_owned(),
        };
    }
    text
}

/// Formats the tables of users, of directories and of the oldest files.
fn tables(outcome: &PurgeOutcome) -> String {
    let mut users = table(&["USER", ">Files", ">Size"]);
    for total in outcome.by_user.iter().take(ROWS) {
        let name = match (&total.user, total.uid) {
            (Some(name), _) => name.clone(),
            (None, Some(uid)) => uid.to_string(),
            (None, None) => "others".into(),
        };
        users.add_row([name, count(total.files), size(total.bytes)]);
    }
    let mut directories = table(&["DIRECTORY", ">Files", ">Size"]);
    for total in outcome.by_directory.iter().take(ROWS) {
        let name = total.directory.clone().unwrap_or_else(|| "others".into());
        directories.add_row([name, count(total.files), size(total.bytes)]);
    }
    let mut oldest = table(&["UNUSED SINCE", ">Size", "OLDEST FILES"]);
    for entry in &outcome.oldest {
        oldest.add_row([entry.unused_since.clone(), size(entry.bytes), entry.path.clone()]);
    }
    let mut text = format!("\n{}", render(&users));
    text += &more(outcome.by_user.len());
    let _ = write!(text, "\n{}", render(&directories));
    text += &more(outcome.by_directory.len());
    let _ = write!(text, "\n{}", render(&oldest));
    text
}

/// Returns the line after a table that does not show all its rows.
fn more(rows: usize) -> String {
    match rows.checked_sub(ROWS) {
        None | Some(0) => String::new(),
        Some(left) => format!("... and {left} more; --output json lists up to 1000\n"),
    }
}

/// Returns the error for a purge that was interrupted, or could not read or remove some entries.
/// `None` means that the purge had no problem.
pub(super) fn failure(outcome: &PurgeOutcome) -> Option<Error> {
    if outcome.is_interrupted {
        let text = "cannot purge all old files: a signal interrupted the purge; repeat the command";
        return Some(Error::new(ErrorCode::Interrupted, text));
    }
    if outcome.problem_count == 0 {
        return None;
    }
    let problems = counted(outcome.problem_count, "problem", "problems");
    let mut text = format!("cannot purge all old files: {problems}");
    text += &failed_entries(&outcome.problems, outcome.problem_count);
    text += match outcome.has_ended_early {
        true => "\nthe file system is not mounted any more or allows no changes; repair this, then",
        false => "\nsolve the listed problems, then",
    };
    text += " repeat the command";
    Some(Error::new(ErrorCode::Io, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_copy::purge::{DirectoryTotal, OldEntry, UserTotal};
    use std::time::Duration;

    fn outcome() -> PurgeOutcome {
        let (files, bytes) = (3, 3 << 30);
        PurgeOutcome {
            directory: "/mnt/skep/scratch".into(),
            is_dry_run: true,
            scanned: 10,
            files,
            bytes,
            directories: 0,
            skipped: Skipped { in_use: 1, ..Skipped::default() },
            by_user: vec![UserTotal { uid: Some(1000), user: None, files, bytes }],
            by_directory: vec![DirectoryTotal { directory: Some("a".into()), files, bytes }],
            oldest: vec![OldEntry {
                path: "a/b".into(),
                unused_since: "2026-01-01T00:00:00Z".into(),
                bytes,
            }],
            problem_count: 0,
            problems: Vec::new(),
            has_ended_early: false,
            is_interrupted: false,
            seconds: 0.5,
        }
    }

    #[test]
    fn purge_dry_run_shows_whether_apply_would_be_refused() {
        let text = of(&outcome(), 50);
        let first = "Would remove 3 files with 3.0GiB from /mnt/skep/scratch: 30.0% of 10 files, \
                     in 0.5 s\nLeft out 1 entry: open for writing\n";
        assert!(text.starts_with(first), "{text}");
        for part in ["1000", "2026-01-01T00:00:00Z", "--apply removes the files"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(of(&outcome(), 29).contains("more than the limit of 29%"));
        assert!(!of(&PurgeOutcome { is_dry_run: false, ..outcome() }, 29).contains("--apply"));
    }

    #[test]
    fn purge_with_problems_or_an_interruption_fails() {
        assert!(failure(&outcome()).is_none());
        let problem = PurgeOutcome { problem_count: 1, ..outcome() };
        assert!(failure(&problem).unwrap().context().contains("1 problem"));
        let interrupted = PurgeOutcome { is_interrupted: true, ..outcome() };
        assert_eq!(failure(&interrupted).unwrap().code(), ErrorCode::Interrupted);
    }

    #[test]
    fn purge_progress_line_has_rate_and_time_left() {
        let progress = PurgeProgress {
            is_removing: true,
            files: 2000,
            expected: Some(6000),
            elapsed: Duration::from_secs(10),
            ..PurgeProgress::default()
        };
        assert_eq!(line(&progress), "removed 2.0k of 6.0k files, 0B, 200 files/s, 20.0s left");
        let counting =
            PurgeProgress { scanned: 50, elapsed: progress.elapsed, ..Default::default() };
        assert_eq!(line(&counting), "found 50 files, 0 of them old (0B), 5 files/s");
    }
}
