//! `skep advise`: proposes stripe patterns and numbers of processes. The proposals follow from the
//! sizes, the stripe patterns and the measured load of files.
//!
//! This module collects the figures about the files, and prints the output. The rules are in
//! `skep_stats::advise`. The command gets the sizes and patterns from the mount, which needs no
//! token. Only the request for the load needs a token.

use crate::access::ClusterArgs;
use crate::cmd::entry::{info::effective, pattern};
use crate::cmd::stats::{Past, interval, measured_rows, past_rows};
use crate::help::{Example, examples};
use crate::monitor_address::MonitorAddress;
use crate::output::{count, counted, print, size};
use crate::path_lookup::entry_at;
use crate::through_mount;
use crate::tree_walk::walk;
use serde::Serialize;
use skep_stats::By;
use skep_stats::advise::{
    Accesses, Advice, Layout, Load, Observation, Sizes, advise, parse_darshan, pattern_text,
};
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Error, ErrorCode, FileKind, Result, TargetKind};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    (
        "propose patterns from the sizes of the files below a directory",
        "skep advise /mnt/skep/results",
    ),
    (
        "set the proposed pattern for new files of a directory",
        "skep advise --apply /mnt/skep/results",
    ),
    (
        "also use the load of a batch job, measured for ten seconds",
        "skep advise --job 4711 --interval 10s",
    ),
    (
        "also use the Darshan log of a program, printed by `darshan-parser app.darshan >app.txt`",
        "skep advise --darshan app.txt /mnt/skep/results",
    ),
];

/// Maximum number of entries below a directory that the command visits to collect file sizes.
const MOST_ENTRIES: u64 = 200_000;
/// Maximum length of the output of `darshan-parser` that the command reads.
const MOST_DARSHAN_BYTES: u64 = 1 << 30;
/// Time over which the load of a job is measured if `--interval` is missing.
const USUAL_INTERVAL: Duration = Duration::from_secs(3);

/// Propose stripe patterns and numbers of processes, with the measurements behind them
///
/// Uses the sizes of the files at each path, their pattern, and the clients that write to these
/// files. With --job, --interval or --history, the command also uses the load, and with --darshan
/// the accesses of a program. The command proposes only changes that follow from these numbers.
/// With --apply, the command sets the proposed pattern for new files of directories; without this
/// option, the command changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Directories or files in a mount [default without --job: the working directory]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Use only the load of this batch job, on mounts with the option `job_accounting`
    #[arg(long, value_name = "ID")]
    job: Option<u32>,
    /// Measure the load for this time [default with --job: 3s]
    #[arg(long, value_name = "SPAN", value_parser = interval, conflicts_with = "history")]
    interval: Option<Duration>,
    /// Use the load of the last SPAN from the history of the monitor
    #[arg(long, value_name = "SPAN", value_parser = interval)]
    history: Option<Duration>,
    #[command(flatten)]
    monitor: MonitorAddress,
    /// Use this output of `darshan-parser` about a run of the program that uses the files
    #[arg(long, value_name = "FILE")]
    darshan: Option<PathBuf>,
    /// Set the proposed patterns for new files. All paths must be directories
    #[arg(long, requires = "paths")]
    apply: bool,
}

/// The measurements and the advice for one path in the arguments, or for a batch job.
#[derive(Debug, Serialize)]
struct Report {
    /// The path, or the text "the job".
    subject: String,
    files: u64,
    bytes: u64,
    largest_bytes: u64,
    /// Whether the directory has more than [`MOST_ENTRIES`] entries, so that some files are not
    /// counted.
    is_incomplete: bool,
    writers: usize,
    layout: Option<Layout>,
    load: Option<Load>,
    accesses: Option<Accesses>,
    advice: Vec<Advice>,
    /// The stripe pattern for new files that the advice proposes.
    pattern: Option<String>,
    is_applied: bool,
}

/// The sizes and stripe patterns that the mount returns for one path.
#[derive(Default)]
struct Known {
    seen: Observation,
    is_incomplete: bool,
    /// The stripe pattern that is set for the directory itself. `None` if the directory inherits
    /// its pattern, or if the path is a file.
    own: Option<Layout>,
}

pub(crate) fn run(mut args: AdviseArgs) -> Result<()> {
    if args.paths.is_empty() && args.job.is_none() {
        args.paths.push(".".into());
    }
    if args.history.is_none() {
        args.monitor.refuse_without("--history")?;
    }
    let accesses = args.darshan.as_deref().map(read_darshan).transpose()?;
    let (apply, paths) = (args.apply, args.paths.clone());
    let mut found = Vec::new();
    for path in &paths {
        let (_, place) = entry_at(path)?;
        if apply && !path.is_dir() {
            let what = format!(
                "cannot apply advice to {}: the pattern of an existing file is fixed; name the \
                 directory in which new files are created",
                path.display()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        found.push((path, known(path, &place)?));
    }
    let load = load(args)?;
    let mut reports = Vec::new();
    for (path, known) in found {
        reports.push(report(shown(path), known, load.as_ref(), accesses.as_ref()));
    }
    if reports.is_empty() {
        let known = Known::default();
        reports.push(report("the job".into(), known, load.as_ref(), accesses.as_ref()));
    }
    if apply {
        for (path, report) in paths.iter().zip(&mut reports) {
            let Some(text) = &report.pattern else { continue };
            pattern::set(path, text)?;
            report.is_applied = true;
        }
    }
    print(&reports, |reports| as_text(reports))
}

fn shown(path: &Path) -> String {
    escape_controls(&path.display().to_string()).into_owned()
}

fn read_darshan(path: &Path) -> Result<Accesses> {
    let failed = |error: std::io::Error| {
        Error::from(error).within(format_args!("cannot read {}", path.display()))
    };
    let len = std::fs::metadata(path).map_err(failed)?.len();
    if len > MOST_DARSHAN_BYTES {
        let what = format!(
            "cannot read {}: the file has {len} bytes; expected at most {MOST_DARSHAN_BYTES}",
            path.display()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    parse_darshan(&String::from_utf8_lossy(&bytes))
        .map_err(|error| error.within(format_args!("cannot read {}", path.display())))
}

/// Asks the mount for the sizes and stripe patterns at a path.
fn known(path: &Path, place: &Path) -> Result<Known> {
    let (info, map) = (through_mount::entry_info(path)?, through_mount::cluster_map(place)?);
    let (Some(info), Some(map)) = (info, map) else {
        let what = format!(
            "cannot read the stripe pattern of {}: the path is neither a file nor a directory, or \
             the mount of this path runs an older version of Skep; name a file or a directory, or \
             unmount and mount with this version",
            path.display()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    };
    let targets = storage_targets(&map);
    let layout = effective(&map, &info)?.map(|it| Layout::of(&it, &map, targets));
    let mut seen =
        Observation { layout, targets, servers: servers(&map), ..Observation::default() };
    if info.attributes.kind == FileKind::Directory {
        let is_incomplete = add_files(path, &mut seen.sizes)?;
        return Ok(Known { seen, is_incomplete, own: layout.filter(|_| info.pattern.is_some()) });
    }
    seen.sizes.add(info.attributes.size);
    let users = through_mount::file_users(path)?.unwrap_or_default();
    let writers = users.uses.iter().filter(|it| it.writers > 0).map(|it| it.client);
    seen.writers = writers.collect::<BTreeSet<_>>().len();
    Ok(Known { seen, ..Known::default() })
}

fn storage_targets(map: &ClusterMap) -> usize {
    map.groups.iter().filter(|it| it.kind == TargetKind::Storage).count()
}

fn servers(map: &ClusterMap) -> usize {
    let targets = map.targets.iter().filter(|it| it.kind == TargetKind::Storage);
    targets.map(|it| it.node).collect::<BTreeSet<_>>().len()
}

/// Adds the sizes of the files below a directory to `sizes`. Returns whether this function stopped
/// at [`MOST_ENTRIES`] and left files out.
fn add_files(path: &Path, sizes: &mut Sizes) -> Result<bool> {
    let mut entries = 0;
    let ended = walk(&[path.to_owned()], true, &mut |path| {
        entries += 1;
        if entries > MOST_ENTRIES {
            return Err(Error::new(ErrorCode::TooLarge, "enough files"));
        }
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_file() => sizes.add(found.size()),
            _ => {}
        }
        Ok(())
    });
    match ended {
        Err(_) if entries > MOST_ENTRIES => Ok(true),
        other => other.map(|()| false),
    }
}

/// Returns the load of the job, the interval or the past span that the options request.
fn load(args: AdviseArgs) -> Result<Option<Load>> {
    let span =
        args.interval.or(args.job.filter(|_| args.history.is_none()).map(|_| USUAL_INTERVAL));
    if span.is_none() && args.history.is_none() {
        return Ok(None);
    }
    let place = args.paths.first().map(|path| entry_at(path)).transpose()?;
    let access = args.query.access(place.as_ref().map(|(_, place)| place.as_path()))?;
    let by = if args.job.is_some() { By::Job } else { By::Target };
    let (rows, seconds) = crate::cmd::block_on(async move {
        let Some(span) = span else {
            let span = args.history.unwrap_or(USUAL_INTERVAL);
            let past = Past { span, ago: Duration::ZERO };
            return Ok((past_rows(&access, by, past, &args.monitor).await?, span.as_secs_f64()));
        };
        measured_rows(&access, by, span).await
    })?;
    let job = args.job.map(|it| it.to_string());
    let ours = rows.iter().filter(|row| job.as_ref().is_none_or(|job| row.id == *job));
    Ok(Some(Load::of(ours, seconds)))
}

fn report(
    subject: String,
    known: Known,
    load: Option<&Load>,
    accesses: Option<&Accesses>,
) -> Report {
    let seen = Observation { load: load.copied(), accesses: accesses.cloned(), ..known.seen };
    let advice = advise(&seen);
    Report {
        subject,
        files: seen.sizes.count(),
        bytes: seen.sizes.bytes(),
        largest_bytes: seen.sizes.largest(),
        is_incomplete: known.is_incomplete,
        writers: seen.writers,
        layout: seen.layout,
        load: seen.load,
        accesses: seen.accesses,
        pattern: pattern_text(&advice, known.own.as_ref()),
        advice,
        is_applied: false,
    }
}

fn as_text(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let bytes = size(report.bytes);
        let files = match report.is_incomplete {
            true => format!("{} or more files", count(report.files)),
            false => counted(report.files, "file", "files"),
        };
        let largest = size(report.largest_bytes);
        let _ = writeln!(text, "{}: {files}, {bytes}, the largest {largest}", report.subject);
        for advice in &report.advice {
            let subject = match serde_json::to_value(advice.subject) {
                Ok(serde_json::Value::String(name)) => name.replace('-', " "),
                _ => String::new(),
            };
            let _ =
                writeln!(text, "  {subject}: {} instead of {}", advice.proposed, advice.present);
            let _ = writeln!(text, "    since {}", advice.why);
            let _ = writeln!(text, "    expected: {}", advice.expected);
        }
        let _ = match (&report.pattern, report.is_applied) {
            (Some(pattern), true) => writeln!(text, "  New files get the pattern {pattern}"),
            (Some(pattern), false) => {
                writeln!(text, "  Pattern for new files: {pattern} (--apply sets it)")
            }
            (None, _) if report.advice.is_empty() => {
                writeln!(text, "  No advice: the measurements suggest no change")
            }
            (None, _) => Ok(()),
        };
    }
    text
}
