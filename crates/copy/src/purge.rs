//! Removes files that no program has changed for a given time, in parallel (`skep purge`).
//!
//! Owns, from the lowest layer to the highest:
//! - `entry`: the attributes of an entry and its age
//! - `glob`, `selection`: the entries that options keep
//! - `totals`, `records`: counts, the log and the list
//! - `names`: files with several names
//! - `pass`, `walk`: one pass over the tree, and its units of work
//!
//! A purge and a copy share the code of the thread pool ([`crate::threads`]), of the rate limit
//! ([`crate::pace`]) and of the limits for listing directories ([`crate::walk`]). This module does
//! not decide how results are shown.
//!
//! # Invariants
//! - Directly before the removal of an entry, the file system returns its present attributes. The
//!   entry is removed only if these attributes show that it is old.
//! - No symbolic link is followed, and no mount point is crossed, below the top directory.
//! - The memory that a purge needs depends on the depth of the tree, and not on its number of
//!   files.
//!
//! The first two invariants concern a file system that other programs change, so no function can
//! check them. The last invariant follows from the limits in `walk`, and no test measures the
//! memory.
//!
//! Held by the tests `purge_keeps_a_file_that_replaced_the_checked_file`,
//! `directory_swapped_for_a_link_after_the_listing_is_not_opened` and
//! `purge_follows_no_symlinks_and_enters_no_mounts`.

mod entry;
mod glob;
mod names;
mod pass;
mod records;
mod selection;
mod totals;
mod walk;

pub use entry::AgeBasis;
pub use glob::Glob;
pub use records::Records;
pub use selection::Selection;
pub use totals::{DirectoryTotal, OldEntry, Skipped, UserTotal};

use crate::failure::{Failure, shown};
use crate::outcome::Problem;
use crate::run::raise_descriptor_limit;
use crate::threads::work_off;
use entry::EntryAttributes;
use pass::{Action, Begin, Pass};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result, Timestamp};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use totals::Totals;
use walk::Work;

/// Asks the file system whether a program has a file open for writing. The file is open with
/// `O_PATH`.
pub type IsWritten = fn(&File) -> io::Result<bool>;

/// Options of a purge.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of threads that the purge uses.
    pub threads: usize,
    /// Minimum age of the entries that the purge removes.
    pub older_than: Duration,
    /// The times from which the age counts.
    pub age: AgeBasis,
    /// The entries that may be removed.
    pub selection: Selection,
    /// Whether to remove directories that are old and in which no entry stays.
    pub empty_directories: bool,
    /// Dry run: count and list the entries, and remove nothing.
    pub is_dry_run: bool,
    /// Maximum number of removals per second of all threads together. `None` means no limit.
    pub files_per_second: Option<u64>,
    /// Maximum percentage of the files below the directory that a purge may remove. If a larger
    /// percentage is old, the purge removes no file. With 100, the purge does not count the files
    /// before the removal.
    pub max_share: u64,
    /// The function that finds files that a program has open for writing. Such files stay. `None`
    /// means that the file system cannot report them, so that no file stays for this reason.
    pub is_written: Option<IsWritten>,
}

/// The result of a purge.
#[derive(Debug, Clone, Serialize)]
pub struct PurgeOutcome {
    /// Path of the directory that was purged, escaped.
    pub directory: String,
    /// Whether this was a dry run, which removes nothing.
    pub is_dry_run: bool,
    /// Number of files of any age that were found. All entries that are not directories are files
    /// here.
    pub scanned: u64,
    /// Number of files that were removed, or in a dry run, of files that would be removed.
    pub files: u64,
    /// Length of the files that `files` counts, in bytes.
    pub bytes: u64,
    /// Number of empty directories that were removed.
    pub directories: u64,
    /// Counts of the entries that stay for a reason other than their age.
    pub skipped: Skipped,
    /// The users with the most bytes in removed files, at most 1,000.
    pub by_user: Vec<UserTotal>,
    /// The directories below the top with the most bytes in removed files, at most 1,000.
    pub by_directory: Vec<DirectoryTotal>,
    /// The oldest removed files, at most 10.
    pub oldest: Vec<OldEntry>,
    /// Number of entries that could not be read or removed.
    pub problem_count: u64,
    /// The first problems, at most 1,000, sorted by path.
    pub problems: Vec<Problem>,
    /// Whether the purge ended early because the file system cannot be used any more, or because
    /// the user has interrupted it.
    pub has_ended_early: bool,
    /// Whether the user has interrupted the purge.
    pub is_interrupted: bool,
    /// Duration of the purge.
    pub seconds: f64,
}

impl PurgeOutcome {
    /// Whether `files` is more than `max_share` percent of `scanned`. A purge with this limit
    /// ([`Options::max_share`]) would refuse to remove the files.
    pub fn is_above_share(&self, max_share: u64) -> bool {
        is_above_share(self.files, self.scanned, max_share)
    }
}

/// The progress of a running purge.
#[derive(Debug, Clone, Default)]
pub struct PurgeProgress {
    /// Whether files are being removed. `false` means that the purge counts the files first.
    pub is_removing: bool,
    /// Number of files of any age that were found.
    pub scanned: u64,
    /// Number of files that were removed, or counted as files to remove.
    pub files: u64,
    /// Length of the files that `files` counts, in bytes.
    pub bytes: u64,
    /// Number of files to remove. `None` means that the purge has not counted the files before the
    /// removal.
    pub expected: Option<u64>,
    /// Number of entries that could not be read or removed.
    pub problems: u64,
    /// Time since the counting or the removal began.
    pub elapsed: Duration,
}

impl PurgeProgress {
    /// Returns the number of files per second: removed files while files are being removed, and
    /// otherwise files that were found.
    pub fn rate(&self) -> f64 {
        let files = if self.is_removing { self.files } else { self.scanned };
        files as f64 / self.elapsed.as_secs_f64().max(0.001)
    }

    /// Returns the estimated time left of the removal, if the mean rate stays the same. `None`
    /// means that there is no estimate.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.expected?.saturating_sub(self.files);
        if !self.is_removing || self.files == 0 {
            return None;
        }
        Duration::try_from_secs_f64(left as f64 / self.rate()).ok()
    }
}

/// The directory that is purged.
#[derive(Debug)]
pub struct Top {
    file: File,
    path: PathBuf,
}

impl Top {
    /// Opens the directory that a user has named. Its path must have no symbolic link: otherwise
    /// the owner of a directory on the path could lead the purge to any other directory.
    ///
    /// # Errors
    /// - `NotFound` if the directory does not exist.
    /// - `NotDirectory` if the path leads to another entry.
    /// - `InvalidArgument` if the path has a symbolic link, or is the root directory.
    pub fn open(path: &Path) -> Result<Self> {
        let named = path.display();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(CWD, path, flags, Mode::empty(), resolve).map_err(|errno| {
            let what = format!("cannot purge {named}");
            let code = match errno {
                Errno::NOENT => ErrorCode::NotFound,
                Errno::NOTDIR => ErrorCode::NotDirectory,
                Errno::LOOP => {
                    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
                    let what = format!(
                        "{what}: the path has a symbolic link, which its owner can change at any \
                         moment; if you mean the directory to which it leads now, name {}",
                        real.display()
                    );
                    return Error::new(ErrorCode::InvalidArgument, what);
                }
                _ => return Error::from(io::Error::from(errno)).within(what),
            };
            Error::new(code, format!("{what}: {}", io::Error::from(errno)))
        })?;
        let file = File::from(file);
        // The descriptor and not the argument shows which directory was opened.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|error| Error::from(error).within(format_args!("cannot purge {named}")))?;
        if path == Path::new("/") {
            let what = "cannot purge /: this is the root directory of the host; name a directory \
                        in a mount of Skep";
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        Ok(Self { file, path })
    }

    /// Returns the absolute path of the directory, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes the old files below a directory. Calls `report` once per second. If `report` returns
/// `Break`, each thread completes the entry that it is working on, with its line in the log, and
/// the purge ends.
///
/// The purge measures the age of a file by the clock of the file system. If the file system does
/// not show its clock, the purge uses the clock of this host. Unless `max_share` is 100, a first
/// pass counts the files, and a second pass removes them.
///
/// # Errors
/// - `LimitReached` if more files would be removed than `max_share` allows. In this case, no file
///   was removed.
/// - `Interrupted` or `Io` if the first pass ended early. In this case, no file was removed.
/// - `Io` or `NoSpace` if the log or the list cannot be written.
///
/// Problems of single entries are in the outcome.
pub fn purge(
    top: &Top,
    options: &Options,
    records: Records,
    report: &dyn Fn(&PurgeProgress) -> ControlFlow<()>,
) -> Result<PurgeOutcome> {
    let start = Instant::now();
    raise_descriptor_limit();
    let records = Arc::new(records);
    let named = |failure: Failure| {
        let what = format!("cannot {} {}", failure.what, top.path.display());
        Error::from(failure.error).within(what)
    };
    let attributes = EntryAttributes::of_file(&top.file).map_err(named)?;
    let device = attributes.map_or(0, |it| it.device);
    let now = entry::clock_of(&top.file).unwrap_or_else(skep_env::wall_time);
    let cutoff = earlier(now, options.older_than);
    let begin = Begin { top: top.path.clone(), device, now, cutoff };
    let run = |action, expected| {
        let pass = Arc::new(Pass::new(&begin, options, action, expected, &records));
        let file = top.file.try_clone()?;
        let work = Work::begin(&pass, file).map_err(named)?;
        work_off(work, options.threads, Work::perform, || {
            if report(&pass.progress()).is_break() {
                pass.interrupt();
            }
        });
        let totals = pass.finish()?;
        Ok::<_, Error>((pass, totals))
    };
    let mut expected = None;
    if !options.is_dry_run && options.max_share < 100 {
        let (pass, totals) = run(Action::Count, None)?;
        check_complete(top, &pass)?;
        check_share(top, options, &totals)?;
        expected = Some(totals.files());
    }
    let action = if options.is_dry_run { Action::List } else { Action::Remove };
    let (pass, totals) = run(action, expected)?;
    records.flush()?;
    Ok(PurgeOutcome {
        directory: shown(&top.path),
        is_dry_run: options.is_dry_run,
        scanned: totals.scanned,
        files: totals.files(),
        bytes: totals.bytes(),
        directories: totals.directories,
        skipped: totals.skipped,
        by_user: totals.by_user(),
        by_directory: totals.by_directory(),
        oldest: totals.oldest(),
        problem_count: pass.problems.count(),
        problems: pass.problems.first(),
        has_ended_early: pass.is_stopped(),
        is_interrupted: pass.is_interrupted(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Returns the time that is `duration` before `time`, or the first time that exists. An overflow
/// would give a time in the future, before which all files are old.
fn earlier(time: Timestamp, duration: Duration) -> Timestamp {
    let nanoseconds = |seconds: i64| i128::from(seconds) * 1_000_000_000;
    let time = nanoseconds(time.seconds) + i128::from(time.nanoseconds);
    let duration = i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    Timestamp::from_nanoseconds(time.saturating_sub(duration).max(nanoseconds(i64::MIN)))
}

/// Returns an error if the pass that counts the files ended early. The counts of such a pass do not
/// show which share of the files is old.
fn check_complete(top: &Top, pass: &Pass) -> Result<()> {
    if !pass.is_stopped() {
        return Ok(());
    }
    let (code, reason) = match pass.is_interrupted() {
        true => (ErrorCode::Interrupted, "a signal interrupted the count of the files".to_owned()),
        false => {
            let problems = pass.problems.first();
            let problem = problems.first().map_or("", |it| it.problem.as_str());
            (ErrorCode::Io, format!("the count of the files ended early: {problem}"))
        }
    };
    let what = format!(
        "cannot purge {}: {reason}; no file was removed, so repeat the command",
        top.path.display()
    );
    Err(Error::new(code, what))
}

/// Whether `files` are more than `max_share` percent of `scanned`.
fn is_above_share(files: u64, scanned: u64, max_share: u64) -> bool {
    u128::from(files) * 100 > u128::from(scanned) * u128::from(max_share)
}

/// Returns an error if more files would be removed than the limit allows. The usual reasons are a
/// wrong clock, a typing error in the age, or files that came from a backup with their old times.
fn check_share(top: &Top, options: &Options, totals: &Totals) -> Result<()> {
    let (files, scanned) = (totals.files(), totals.scanned);
    if !is_above_share(files, scanned, options.max_share) {
        return Ok(());
    }
    let what = format!(
        "cannot purge {}: {files} of {scanned} files would be removed, and the limit is {}%; \
         check the age and the clocks, look at the dry run, and then allow more with --max-share",
        top.path.display(),
        options.max_share
    );
    Err(Error::new(ErrorCode::LimitReached, what))
}

#[cfg(test)]
mod tests;
