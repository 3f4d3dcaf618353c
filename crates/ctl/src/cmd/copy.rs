//! `skep copy`: copies trees of files in parallel, on this host or on several hosts. This module
//! parses the arguments, and prints the output. The crate `skep_copy` copies the files.

pub(in crate::cmd) mod several;
mod stall;
pub(in crate::cmd) mod store;
mod worker;

use crate::help::{Example, examples};
use crate::output::{count, counted, print, size, warn};
use crate::tree_output::{ProgressLine, failed_entries, progress_end};
use skep_copy::context::Options;
use skep_copy::hosts::HostsOutcome;
use skep_copy::outcome::{Outcome, Progress};
use skep_copy::plan::pairs;
use skep_copy::run::copy;
use skep_copy::shares::Part;
use skep_service::ByteSize;
use skep_types::{Error, ErrorCode, Result};
use stall::StallWatch;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "copy a directory tree; /mnt/skep/data becomes the copy of /data",
        "skep copy /data /mnt/skep/data",
    ),
    ("continue an interrupted copy", "skep copy --resume /data /mnt/skep/data"),
    (
        "copy results out of the cluster, and compare each byte with its source",
        "skep copy --verify /mnt/skep/run7 /mnt/skep/run8 /archive/",
    ),
    (
        "copy with all hosts that a file lists, by ssh",
        "skep copy --hosts nodes --verify /home/data /mnt/skep/data",
    ),
    (
        "copy with all nodes of a Slurm job, in the script of the job",
        "skep copy --job $HOME/input /mnt/ondemand/input",
    ),
    ("copy into an object store", "skep copy /mnt/skep/run7 s3://results/run7"),
    (
        "copy from an object store of another provider",
        "skep copy --s3-endpoint https://store.example.org s3://data/input /mnt/skep/input",
    ),
    (
        "count the files and bytes that a second run would copy",
        "skep copy --resume --dry-run /data /mnt/skep/data",
    ),
];

/// Copy files and trees in parallel, from and to mounted file systems and object stores
///
/// A single SOURCE is copied to the path DESTINATION itself, so that a second run with the same
/// arguments continues the first run. Several sources, or a DESTINATION with `/` at its end, are
/// copied below DESTINATION. Modes, owners, times, extended attributes, hard links, symbolic links
/// and holes are preserved. Each copy gets its name when it is complete and synced. Exit code 1 or
/// higher means that an entry is missing at the destination. With --hosts or --job, each host
/// copies a share of the files and of the pieces of large files; both paths must be the same on all
/// hosts. A path `s3://bucket/key` is in an object store, which keeps contents, modes, owners and
/// times of files, directories and symbolic links.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
#[command(override_usage = "skep copy [OPTIONS] <SOURCE>... <DESTINATION>")]
pub(crate) struct CopyArgs {
    /// Files and directories to copy, and the destination as the last path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// No effect: trees are always copied. Accepted so that scripts for `cp` work
    #[arg(short = 'r', short_alias = 'R', long, hide = true)]
    recursive: bool,
    /// No effect: attributes are always preserved. Accepted so that scripts for `cp` work
    #[arg(short, long, hide = true)]
    archive: bool,
    /// File with one host per line; these hosts copy together, by ssh as the ssh login user
    #[arg(long, value_name = "FILE", conflicts_with = "job")]
    hosts: Option<PathBuf>,
    /// In the script of a Slurm job: all nodes of the job copy together
    #[arg(long)]
    job: bool,
    /// The part of a copy by several hosts that this process does
    #[arg(long, value_name = "PART", hide = true, conflicts_with_all = ["hosts", "job"])]
    part: Option<Part>,
    /// Leave out files whose copy has the same length and modification time, and continue
    /// incomplete copies of large files
    #[arg(long)]
    resume: bool,
    /// Compare all bytes of each copy with its source after the copy
    #[arg(long)]
    verify: bool,
    /// Do not sync files and directories: faster, but a power loss may leave incomplete copies
    #[arg(long)]
    no_sync: bool,
    /// Only count files and bytes; copy nothing. Cannot be used with --hosts or --job, because a
    /// single host counts
    #[arg(long, conflicts_with_all = ["hosts", "job", "part"])]
    dry_run: bool,
    /// Leave out the contents of directories where another file system is mounted
    #[arg(long)]
    one_file_system: bool,
    /// Do not preserve owners and groups: copies get the owner and the group of new files at the
    /// destination
    #[arg(long)]
    no_owners: bool,
    /// Leave out extended attributes and access control lists
    #[arg(long)]
    no_xattrs: bool,
    /// Number of threads of each host
    #[arg(long, value_name = "COUNT", default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Maximum bytes per second of all threads and hosts together, as in 500MiB [default: no limit]
    #[arg(long, value_name = "SIZE")]
    rate: Option<ByteSize>,
    #[command(flatten)]
    store: store::StoreArgs,
}

pub(crate) fn run(args: &CopyArgs) -> Result<()> {
    let (destination, sources) = match args.paths.as_slice() {
        [sources @ .., destination] if !sources.is_empty() => (destination, sources),
        paths => {
            let source = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
            let what = format!(
                "cannot copy {source}: the destination is missing; name the destination as the \
                 last path"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
    };
    if args.rate.is_some_and(|rate| rate.0 == 0) {
        let what = "cannot copy at the rate 0: name at least one byte per second, as in 500MiB";
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let options = Options {
        threads: args.threads.into(),
        bytes_per_second: args.rate.map(|rate| rate.0),
        resume: args.resume,
        verify: args.verify,
        sync: !args.no_sync,
        is_dry_run: args.dry_run,
        one_file_system: args.one_file_system,
        owners: !args.no_owners,
        store_owners: args.store.s3_owners,
        xattrs: !args.no_xattrs,
        part: args.part.unwrap_or_default(),
    };
    if args.part.is_some() {
        return worker::run(&args.store, sources, destination, &options);
    }
    let stores = args.store.open(args.paths.iter().map(PathBuf::as_path))?;
    if let Some(transport) = several::Transport::chosen(args.hosts.as_deref(), args.job)? {
        let outcome = transport.copy(sources, destination, &options, stores.as_ref())?;
        print(&outcome, hosts_as_text)?;
        return failure(&outcome.outcome).map_or(Ok(()), Err);
    }
    let outcome = match stores {
        Some(stores) => stores.copy_here(sources, destination, &options)?,
        None => {
            let pairs = pairs(sources, destination, |path| path.is_dir())?;
            with_progress(|report| copy(&pairs, &options, report))?
        }
    };
    print(&outcome, as_text)?;
    failure(&outcome).map_or(Ok(()), Err)
}

/// Runs `copy`, which reports its progress, and shows the progress on a terminal. Prints a warning
/// if the copy makes no progress.
fn with_progress<T>(copy: impl FnOnce(&dyn Fn(&Progress)) -> Result<T>) -> Result<T> {
    let shown = ProgressLine::new();
    let watch = RefCell::new(StallWatch::default());
    let report = |progress: &Progress| {
        if let Some(warning) = watch.borrow_mut().observe(progress) {
            shown.show("");
            warn(&warning);
        }
        shown.show(&line(progress));
    };
    let result = copy(&report);
    shown.show("");
    result
}

/// Formats the progress as one line.
fn line(progress: &Progress) -> String {
    let more = if progress.is_walking { " or more" } else { "" };
    format!(
        "{} of {}{more} files, {}, {}/s{}",
        count(progress.done),
        count(progress.found),
        size(progress.bytes),
        size(progress.rate() as u64),
        progress_end(progress.time_left(), progress.problems)
    )
}

fn as_text(outcome: &Outcome) -> String {
    let verb = if outcome.is_dry_run { "Would copy" } else { "Copied" };
    let mut text = format!(
        "{verb} {}, {} and {}: {} in {:.1} s ({}/s)",
        counted(outcome.files, "file", "files"),
        counted(outcome.directories, "directory", "directories"),
        counted(outcome.others, "link or special file", "links and special files"),
        size(outcome.bytes),
        outcome.seconds,
        size((outcome.bytes as f64 / outcome.seconds.max(0.001)) as u64)
    );
    if outcome.skipped > 0 {
        let _ = write!(text, "\nLeft out {} that are complete", count(outcome.skipped));
    }
    if outcome.verified_bytes > 0 {
        let _ = write!(text, "\nCompared {} with the sources", size(outcome.verified_bytes));
    }
    text
}

/// Formats the result of a copy by several hosts.
pub(in crate::cmd) fn hosts_as_text(outcome: &HostsOutcome) -> String {
    let mut text = as_text(&outcome.outcome);
    let copied = outcome.hosts.iter().filter(|it| it.shares > 0).count();
    let _ = write!(text, "\n{copied} of {} hosts have copied files", outcome.hosts.len());
    for host in &outcome.hosts {
        if let Some(problem) = &host.problem {
            let _ = write!(
                text,
                "\nHost {} failed, and other hosts have copied its share: {problem}",
                host.host
            );
        }
    }
    text
}

/// Returns the error if the copy lacks some entries. `None` means that the copy is complete.
pub(in crate::cmd) fn failure(outcome: &Outcome) -> Option<Error> {
    if outcome.problem_count == 0 {
        return None;
    }
    let problems = counted(outcome.problem_count, "problem", "problems");
    let mut text = format!("cannot copy everything: {problems}");
    text += &failed_entries(&outcome.problems, outcome.problem_count);
    let (code, way_out) = match (outcome.is_full, outcome.has_ended_early) {
        (true, _) => (
            ErrorCode::NoSpace,
            "the destination is full; free space at the destination, and then continue the copy",
        ),
        (false, true) => {
            let what = "a file system is not mounted any more, or an object store cannot be used; \
                        repair this problem, and then continue the copy";
            (ErrorCode::Io, what)
        }
        (false, false) => (ErrorCode::Io, "solve the listed problems, and then continue the copy"),
    };
    let _ = write!(text, "\n{way_out} with the same command and --resume");
    Some(Error::new(code, text))
}
