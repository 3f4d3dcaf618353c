//! `skep purge`: removes files that no program has changed for a given time. This module parses the
//! arguments, and prints the output. `skep_copy::purge` removes the files.

mod text;

use crate::help::{Example, examples};
use crate::host_users::{Database, names_of, user_named};
use crate::mounts::mount_of;
use crate::output::{is_for_people, print};
use crate::through_mount::is_written;
use crate::tree_output::ProgressLine;
use skep_copy::purge::{
    AgeBasis, Glob, IsWritten, Options, PurgeOutcome, PurgeProgress, Records, Selection, Top, purge,
};
use skep_env::{OutputError, Signals};
use skep_service::{ByteSize, Interval};
use skep_types::{Error, ErrorCode, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    (
        "show the files that no program has changed for 30 days; removes nothing",
        "skep purge /mnt/skep/scratch --older-than 30d",
    ),
    (
        "remove these files, and append a line for each file to a log",
        "skep purge /mnt/skep/scratch --older-than 30d --apply --log /var/log/skep/purge.log",
    ),
    (
        "write the list of these files to a file, as one JSON object per line",
        "skep purge /mnt/skep/scratch --older-than 30d --list old-files.ndjson",
    ),
    (
        "leave some files and one user alone, and remove empty directories too",
        "skep purge /mnt/skep/scratch --older-than 30d --exclude keep/** --exclude *.sif \
         --exclude-user 0 --empty-directories --apply",
    ),
    (
        "remove only large files, at most 500 per second",
        "skep purge /mnt/skep/scratch --older-than 14d --larger-than 100GiB --limit-rate 500 \
         --apply",
    ),
];

/// Duration of a purge after which a terminal shows its progress.
const QUIET: Duration = Duration::from_secs(2);

/// Remove files that no program has changed for a given time, as on a scratch file system
///
/// Without --apply, only shows what would be removed: files, bytes, users, directories and the
/// oldest files. The age of a file counts from its last modification (mtime) or its last change of
/// owner, mode or name (ctime), the newer of the two. Skep stores no times of reading, so a file
/// that programs only read grows old. Files that a program on any host has open for writing stay.
/// All kinds of entries except directories count as files. A file with several names loses each
/// name in DIRECTORY, and its bytes are free after the loss of the last name. No symbolic link is
/// followed, and no other file system that is mounted below DIRECTORY is entered. Exit code 1 means
/// that the purge was refused or interrupted, or that a file could not be read or removed.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct PurgeArgs {
    /// Directory in a mount of Skep; the directory itself is not removed
    directory: PathBuf,
    /// Age from which files are removed, as in 30d or 12h
    #[arg(long, value_name = "TIME")]
    older_than: Interval,
    /// Remove the files
    #[arg(long)]
    apply: bool,
    /// Times from which the age counts
    #[arg(long, value_enum, default_value = "change", value_name = "TIMES")]
    by: By,
    #[command(flatten)]
    selection: SelectionArgs,
    /// Also remove old directories that are empty after the purge
    #[arg(long, conflicts_with = "larger_than")]
    empty_directories: bool,
    /// Maximum number of files that are removed per second [default: no limit]
    #[arg(long, value_name = "FILES", value_parser = clap::value_parser!(u64).range(1..))]
    limit_rate: Option<u64>,
    /// Remove nothing if more than this share of all files in DIRECTORY would be removed. With
    /// 100%, the command does not count the files first, which saves a walk over the tree
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = share)]
    max_share: u64,
    /// Write a JSON object for each old file to FILE, or to standard output if FILE is `-`
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Append a line per removed file to this file: time, size, uid, mtime, path
    #[arg(long, value_name = "FILE", requires = "apply")]
    log: Option<PathBuf>,
    /// Also purge a directory that is not in a mount of Skep
    #[arg(long)]
    any: bool,
    /// Number of threads
    #[arg(long, value_name = "COUNT", default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

/// The options that keep some files.
#[derive(Debug, clap::Args)]
struct SelectionArgs {
    /// Do not remove entries with this name or, if GLOB contains a `/`, entries with this path
    /// below DIRECTORY. `*`, `?`, `[a-z]` and `**` have their usual meaning. Can be repeated
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<Glob>,
    /// File with one GLOB per line. Empty lines and lines that begin with `#` are ignored
    #[arg(long, value_name = "FILE")]
    exclude_from: Vec<PathBuf>,
    /// Only files of this user: a name that this host knows, or a user id. Can be repeated
    #[arg(long, value_name = "NAME")]
    user: Vec<String>,
    /// Do not remove files of this user. Can be repeated
    #[arg(long, value_name = "NAME")]
    exclude_user: Vec<String>,
    /// Only regular files that are longer than this, as in 1GiB
    #[arg(long, value_name = "SIZE")]
    larger_than: Option<ByteSize>,
}

/// The times from which the age of a file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Last modification or last change of owner, mode or name, the newer of the two
    Change,
    /// Last modification, which programs that unpack archives set to an old time
    Mtime,
}

pub(crate) fn run(args: &PurgeArgs) -> Result<()> {
    let lists_to_output = args.list.as_deref() == Some(Path::new("-"));
    if lists_to_output && !is_for_people() {
        let what = "cannot write both the list and the result to standard output: name a file \
                    with --list, or leave out --output";
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    if args.older_than.0.is_zero() {
        let what = "cannot purge files of the age 0: all files have at least this age; name a \
                    longer time with --older-than";
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let selection = args.selection.parse()?;
    let top = Top::open(&args.directory)?;
    let is_skep = mount_of(top.path()).is_some();
    if !is_skep && !args.any {
        let what = format!(
            "cannot purge {}: the directory is not in a mount of Skep; `findmnt -t fuse.skep` \
             lists the mounts of this host, and --any allows other file systems",
            top.path().display()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    if selection.exclude.iter().any(|pattern| pattern.begins_with(top.path())) {
        let what = format!(
            "cannot exclude a pattern that begins with {}: patterns are compared with the path \
             below this directory; leave the path of the directory out of the pattern",
            top.path().display()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let options = Options {
        threads: args.threads.into(),
        older_than: args.older_than.0,
        age: match args.by {
            By::Change => AgeBasis::Change,
            By::Mtime => AgeBasis::Modification,
        },
        selection,
        empty_directories: args.empty_directories,
        is_dry_run: !args.apply,
        files_per_second: args.limit_rate,
        max_share: args.max_share,
        is_written: is_skep.then_some(is_written as IsWritten),
    };
    let records = Records::new(args.log()?, args.list(lists_to_output)?);
    // Take the signals before the purge starts threads, because each thread inherits the blocked
    // signals.
    let numbers = Signals::not_ignored(&[libc::SIGINT, libc::SIGTERM]);
    let signals = Signals::take(&numbers)?;
    let mut outcome = with_progress(&signals, |report| purge(&top, &options, records, report))?;
    name_users(&mut outcome);
    let as_text = |outcome: &PurgeOutcome| text::of(outcome, args.max_share);
    match lists_to_output {
        // If standard error is closed, the purge is complete nevertheless.
        true => drop(writeln!(std::io::stderr(), "{}", as_text(&outcome).trim_end())),
        false => print(&outcome, as_text)?,
    }
    text::failure(&outcome).map_or(Ok(()), Err)
}

impl PurgeArgs {
    /// Opens the log for appending. Other users may not read the log, because the log contains the
    /// names of files.
    fn log(&self) -> Result<Option<Box<dyn Write + Send>>> {
        let Some(path) = &self.log else { return Ok(None) };
        Ok(Some(Box::new(open_output(path, OpenOptions::new().append(true))?)))
    }

    /// Creates the list.
    fn list(&self, is_output: bool) -> Result<Option<Box<dyn Write + Send>>> {
        let Some(path) = &self.list else { return Ok(None) };
        if is_output {
            return Ok(Some(Box::new(BufWriter::new(std::io::stdout()))));
        }
        let file = open_output(path, OpenOptions::new().write(true))?;
        file.set_len(0).map_err(|error| unusable(path, error))?;
        Ok(Some(Box::new(BufWriter::new(file))))
    }
}

impl SelectionArgs {
    /// Reads the files with patterns, and finds the ids of the users.
    fn parse(&self) -> Result<Selection> {
        let mut exclude = self.exclude.clone();
        for path in &self.exclude_from {
            let text = std::fs::read_to_string(path).map_err(|error| unusable(path, error))?;
            exclude.extend(patterns(&text).map_err(|(line, why)| {
                let what = format!("cannot use {}, line {line}: {why}", path.display());
                Error::new(ErrorCode::InvalidArgument, what)
            })?);
        }
        Ok(Selection {
            exclude,
            users: ids(&self.user)?,
            excluded_users: ids(&self.exclude_user)?,
            larger_than: self.larger_than.map(|size| size.0),
        })
    }
}

/// Opens or creates a regular file for output. Other users may not read a new file, because the
/// command will write names of files to it.
fn open_output(path: &Path, options: &mut OpenOptions) -> Result<File> {
    skep_env::open_output(path, options.mode(0o600)).map_err(|error| match error {
        OutputError::NotRegular(kind) => not_regular(path, kind),
        OutputError::System(error) => unusable(path, error),
    })
}

fn not_regular(path: &Path, kind: &str) -> Error {
    let what = format!(
        "cannot write to {}: the path is {kind}; name a regular file or a new file",
        path.display()
    );
    Error::new(ErrorCode::InvalidArgument, what)
}

/// Returns the ids of users.
fn ids(names: &[String]) -> Result<Vec<u32>> {
    names.iter().map(|name| user_named(name)).collect()
}

/// Parses the patterns in a file. An error contains the number of the invalid line.
fn patterns(text: &str) -> std::result::Result<Vec<Glob>, (usize, String)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| line.parse::<Glob>().map_err(|why| (number, why)))
        .collect()
}

fn unusable(path: &Path, error: std::io::Error) -> Error {
    Error::from(error).within(format_args!("cannot use {}", path.display()))
}

/// Parses a share in percent. The character `%` at the end may be missing.
fn share(text: &str) -> std::result::Result<u64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u64>();
    number.ok().filter(|share| (1..=100).contains(share)).ok_or_else(|| {
        format!("invalid share '{text}': expected a whole number from 1 to 100, as in 50%")
    })
}

/// Sets the user names in `outcome`, if this host knows the user ids.
fn name_users(outcome: &mut PurgeOutcome) {
    let ids = outcome.by_user.iter().filter_map(|it| it.uid);
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    let names = names_of(Database::Users, ids.iter().map(String::as_str));
    for total in &mut outcome.by_user {
        total.user = total.uid.and_then(|uid| names.get(&uid.to_string()).cloned());
    }
}

/// Runs `purge`, which reports its progress, and shows the progress on a terminal. The first signal
/// in `signals` makes the purge end with its result. A second signal ends the process immediately,
/// for example if the file system does not reply any more.
fn with_progress<T>(
    signals: &Signals,
    purge: impl FnOnce(&dyn Fn(&PurgeProgress) -> ControlFlow<()>) -> Result<T>,
) -> Result<T> {
    let shown = ProgressLine::new();
    let result = purge(&|progress: &PurgeProgress| {
        if progress.elapsed >= QUIET {
            shown.show(&text::line(progress));
        }
        // If the kernel cannot return the pending signals, the purge continues to its end.
        if let Ok(Some(_)) = signals.take_pending() {
            Signals::unblock_all();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    shown.show("");
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_share_option_accepts_1_to_100_percent() {
        assert_eq!([share("50%"), share("1"), share("100%")], [Ok(50), Ok(1), Ok(100)]);
        for text in ["0", "101%", "-1", "half", "5%%", ""] {
            assert!(share(text).unwrap_err().contains("from 1 to 100"), "{text}");
        }
    }

    #[test]
    fn output_to_a_link_or_a_special_file_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let [file, link, fifo] = ["file", "link", "fifo"].map(|name| place.path().join(name));
        std::fs::write(&file, "old\n").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        for path in [link.as_path(), &fifo, Path::new("/dev/null")] {
            let refused = open_output(path, OpenOptions::new().write(true)).unwrap_err();
            assert_eq!(refused.code(), ErrorCode::InvalidArgument, "{refused}");
        }
        let mut log = open_output(&file, OpenOptions::new().append(true)).unwrap();
        log.write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old\nnew\n");
    }

    #[test]
    fn pattern_file_may_have_comments_and_empty_lines() {
        let found = patterns("# our exclusions\n\n *.sif \nkeep/**\n").unwrap();
        assert_eq!(found, ["*.sif", "keep/**"].map(|it| it.parse::<Glob>().unwrap()));
        assert_eq!(patterns("a\n\n[b").unwrap_err().0, 3);
    }
}
