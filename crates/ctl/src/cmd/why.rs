//! `skep why`: shows which phase of the requests takes how much time, and names the causes of
//! slowness.
//!
//! The command asks each service for its statistics several times, and compares the replies. So the
//! command needs no monitor. While management does not answer, the command asks the services of the
//! last cluster map of this host. With `--since`, the command asks the monitor, which stores the
//! statistics of the past minutes. The rules are in `skep_stats::why`.

mod operation;
mod own;
mod scope;
mod subtree;
mod traces;
mod waits;

use crate::access::{Access, ClusterArgs, is_silence};
use crate::cmd::health::last_map;
use crate::cmd::stats::{fetch_by_last_map, interval, measure, measure_since, mount_of_user};
use crate::help::{Example, examples};
use crate::monitor_address::{MonitorAddress, not_a_monitor};
use crate::mounts::mount_of;
use crate::output::{milliseconds, print, warn};
use crate::path_lookup::entry_at;
use skep_monitor::limits::{EVIDENCE_PIECE_MS, EVIDENCE_PIECES};
use skep_stats::operation::{OperationReport, SlowOperation};
use skep_stats::why::{Finding, Focus, Report, Scope, Thresholds, explain};
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Error, ErrorCode, InodeId, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("show where the time of all requests goes, measured for three seconds", "skep why"),
    ("show only the targets that a file uses", "skep why /mnt/skep/results/out.dat"),
    ("show only the requests of the mounts on one host", "skep why --client node17"),
    ("show only the requests of one batch job", "skep why --job 4711"),
    ("show only one target, in the last five minutes", "skep why --target 7 --since 5m"),
    (
        "explain one operation, by its trace id from a log or from the list of the slowest \
         operations",
        "skep why --op 0123456789abcdef000000000000002a",
    ),
];

/// Longest past span that `--since` accepts. The monitor stores no older evidence.
const LONGEST_SPAN: Duration = Duration::from_millis(EVIDENCE_PIECE_MS * EVIDENCE_PIECES as u64);

/// Explain why operations are slow: the stages that take their time, and the causes
///
/// Divides the time of the requests by target and phase (waiting, processing, disk, log sync,
/// network), compares targets with their peers, and names slow disks and links, full targets, hot
/// directories, users whose requests keep a target busy, and stopped clients for which others wait.
/// Requests that have no reply yet are shown with the object for which they wait: a target that
/// does not answer, or a lock. All other statistics are about requests that end while the command
/// measures. With --since, the statistics are about a past time, and come from the monitor.
///
/// A user who cannot read the cluster's token sees the operations of this user on PATH: on a file,
/// or on a directory and everything below it. Without PATH, the report is about all operations of
/// this user on the mount of the working directory, or on the only mount of this host. If the
/// lookup of PATH itself waits for a server, the report is about the whole mount.
///
/// If management does not answer, the command asks the services of the last cluster map of this
/// host. The report then has the waiting requests of the mount of PATH, but not of other mounts.
///
/// With --op, explains one operation: each slow operation has a trace id, which the logs of mounts
/// and services and the list of the slowest operations show. Mounts and services keep the records
/// of slow operations, and of one in 1,024 other operations, for a limited time. A user without the
/// token sees the slow operations of this user, as the mount has recorded them.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// A file or directory in a mount: show only the targets that serve this file, or that serve
    /// the entries of this directory
    #[arg(value_name = "PATH", conflicts_with_all = ["client", "user", "job", "target"])]
    path: Option<PathBuf>,
    /// Only the requests of this client: an id or name, or a host, which may contain `*` and `?`
    #[arg(long, conflicts_with = "target")]
    client: Option<String>,
    /// Only the requests of this user: a name that this host knows, or a user id
    #[arg(long, value_name = "NAME", conflicts_with_all = ["target", "client"])]
    user: Option<String>,
    /// Only the requests of this batch job, on mounts with the option `job_accounting`
    #[arg(long, value_name = "ID", conflicts_with_all = ["target", "client", "user"])]
    job: Option<String>,
    /// Only the requests to this target
    #[arg(long, value_name = "ID")]
    target: Option<String>,
    /// Time for which the command measures
    #[arg(long, default_value = "3s", value_parser = interval)]
    interval: Duration,
    /// Explain the last SPAN, such as 30s or 5m, from the monitor's measurements; at most 10m
    #[arg(long, value_name = "SPAN", value_parser = interval, conflicts_with = "interval")]
    since: Option<Duration>,
    /// Explain the operation with this trace id; PATH then selects only the mount or the cluster to
    /// ask
    #[arg(long, value_name = "ID", value_parser = traces::trace_id)]
    #[arg(conflicts_with_all = ["client", "user", "job", "target", "interval", "since"])]
    op: Option<u128>,
    #[command(flatten)]
    monitor: MonitorAddress,
}

/// The advice in the error message for a user without the token.
const WITHOUT_TOKEN: &str =
    "`skep why PATH` without other options shows your operations on the mount of this path";
/// The advice in the error message for a user without the token who uses `--op`.
const OPERATION_WITHOUT_TOKEN: &str = "name a path in the mount of the operation: `skep why --op \
                                       ID PATH` explains your own operations, and an administrator \
                                       can explain all";

/// The line that replaces the list of causes if the report contains no cause.
const NO_CAUSE: &str = "No cause of slowness was found.";
/// The line that replaces the list of causes in the report for a user without the token.
const NO_CAUSES_FOR_USERS: &str = "This report compares no targets: `skep why` of an \
                                   administrator, with the cluster's token, names slow disks and \
                                   links.";
/// The line that replaces the list of causes in the report of a mount while management does not
/// answer.
const NO_CAUSES_WITHOUT_MANAGEMENT: &str = "This report compares no targets, since management \
                                            does not answer: `skep health check` shows the \
                                            services that answer.";

pub(crate) fn run(args: WhyArgs) -> Result<()> {
    if let Some(trace) = args.op {
        args.monitor.refuse_without("--since")?;
        return print(&explain_operation(&args, trace)?, operation::as_text);
    }
    match args.since {
        None => args.monitor.refuse_without("--since")?,
        Some(span) if span > LONGEST_SPAN => {
            let what = format!(
                "invalid --since {span:?}: the monitor keeps these statistics for {LONGEST_SPAN:?}"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        Some(_) => {}
    }
    let place = args.path.as_deref().map(entry_or_mount).transpose()?;
    // The path for which the mount can make the report without management.
    let on_mount = match &place {
        Some((None, mount)) => Some(mount.clone()),
        _ => args.path.clone(),
    };
    let (is_answered_by_mount, interval) = (args.is_answered_by_mount(), args.interval);
    let access =
        match args.query.access_or(place.as_ref().map(|(_, place)| place.as_path()), WITHOUT_TOKEN)
        {
            Ok(access) => access,
            Err(error) => {
                let path = on_mount.or_else(mount_of_user).filter(|_| is_answered_by_mount);
                return path.map_or(Err(error), |path| explain_own(path, interval));
            }
        };
    let on_mount = on_mount.filter(|_| is_answered_by_mount);
    let waits_on = on_mount.clone();
    let report = crate::cmd::block_on(async move {
        let inode = place.and_then(|(inode, _)| inode);
        let (map, silence) = last_map::newest(&access).await?;
        silence.iter().for_each(warn_of_last_map);
        let found = scope::of(&access, (&map, silence.is_some()), &args, inode).await?;
        match (args.since, silence) {
            (Some(span), _) => from_monitor(&access, &args.monitor, &found, span).await,
            (None, None) => measured(&access, (&found, inode), args.interval).await,
            (None, Some(error)) => {
                let mut report =
                    measured_by_last_map(&access, (map, &error), (&found, inode), args.interval)
                        .await?;
                if let Some(path) = waits_on {
                    report.waiting.extend(waits_of_mount(&path).await);
                }
                Ok(report)
            }
        }
    });
    match (report, on_mount) {
        (Err(error), Some(path)) if is_silence(&error) => {
            explain_without_management(path, interval, &error)
        }
        (report, _) => print(&report?, as_text),
    }
}

/// Warns that the report uses the last cluster map of this host. `error` is the error of the
/// request to management.
fn warn_of_last_map(error: &Error) {
    warn(&format!(
        "management does not answer, so the report is about the services of the last cluster map \
         of this host: services that were added or moved later are missing, and states of targets \
         may be old ({})",
        error.context()
    ));
}

/// Explains one operation: from the records of all services, or for a user without the token from
/// the records of the mount.
fn explain_operation(args: &WhyArgs, trace: u128) -> Result<OperationReport> {
    let place = args.path.as_deref().map(entry_or_mount).transpose()?.map(|(_, place)| place);
    match args.query.access_or(place.as_deref(), OPERATION_WITHOUT_TOKEN) {
        Ok(access) => crate::cmd::block_on(async move { operation::explain(&access, trace).await }),
        Err(error) => match place.or_else(mount_of_user).filter(|_| !args.query.is_explicit()) {
            Some(place) => own::explain_operation(&place, trace),
            None => Err(error),
        },
    }
}

/// Returns the inode at `path`, and a path on the same mount. If the lookup of the path waits for a
/// server, returns `None` and the mount point. In this case, the report is about the whole mount.
fn entry_or_mount(path: &Path) -> Result<(Option<InodeId>, PathBuf)> {
    let error = match entry_at(path) {
        Ok((inode, place)) => return Ok((Some(inode), place)),
        Err(error) => error,
    };
    let mount = std::path::absolute(path).ok().and_then(|path| mount_of(&path));
    match mount.filter(|_| error.code() == ErrorCode::TimedOut) {
        Some((point, _)) => {
            warn(&format!(
                "the lookup of {} also waits for a server, so the report is about the whole mount \
                 {}",
                path.display(),
                point.display()
            ));
            Ok((None, point))
        }
        None => Err(error),
    }
}

impl WhyArgs {
    /// Whether a mount can make the report, if the user has no token.
    fn is_answered_by_mount(&self) -> bool {
        let has_scope =
            [&self.client, &self.user, &self.job, &self.target].into_iter().any(Option::is_some);
        !self.query.is_explicit() && self.since.is_none() && !has_scope
    }
}

/// For a user without the token: explains the operations of this user on the mount of `path`.
fn explain_own(path: PathBuf, interval: Duration) -> Result<()> {
    warn(
        "this user cannot use the cluster's token, so the report has only this user's own \
         operations on this mount",
    );
    print(&of_mount(path, interval)?, own_as_text)
}

/// Explains the operations on the mount of `path`, if management does not answer and this host has
/// no cluster map, or if another service that the report needs does not answer. `error` is the
/// error of the request.
fn explain_without_management(path: PathBuf, interval: Duration, error: &Error) -> Result<()> {
    warn(&format!("{error}; the report has only the operations on the mount of this path"));
    print(&of_mount(path, interval)?, |report| with_causes(report, NO_CAUSES_WITHOUT_MANAGEMENT))
}

/// Returns the report that the mount of `path` makes about the operations of this user, or of all
/// its users for root.
fn of_mount(path: PathBuf, interval: Duration) -> Result<Report> {
    let (inode, place) = entry_at(&path)?;
    crate::cmd::block_on(async move { own::explain((&path, inode), &place, interval).await })
}

/// Measures the requests for the time `interval`. `inode` is the inode that the report is about;
/// `None` means all.
async fn measured(
    access: &Access,
    (scope, inode): (&Scope, Option<InodeId>),
    interval: Duration,
) -> Result<Report> {
    let (evidence, now) = measure(access, interval, scope.focus).await?;
    let mut report = explain(&evidence, &now.map, scope, &Thresholds::default());
    report.unreachable.extend(now.unreachable);
    report.waiting = waits::of_cluster(access, (&now.map, false), scope, inode).await?;
    report.slowest = slowest(access, &now.map, scope).await;
    Ok(report)
}

/// Does the same as [`measured`] while management does not answer. `map` is the last cluster map of
/// this host, and `error` is the error of the request to management.
async fn measured_by_last_map(
    access: &Access,
    (map, error): (ClusterMap, &Error),
    (scope, inode): (&Scope, Option<InodeId>),
    interval: Duration,
) -> Result<Report> {
    let before = fetch_by_last_map(access, map, BTreeSet::new(), error).await;
    let (evidence, now) = measure_since(access, before, interval, scope.focus).await?;
    let mut report = explain(&evidence, &now.map, scope, &Thresholds::default());
    report.unreachable.extend(now.unreachable);
    report.waiting = waits::of_cluster(access, (&now.map, true), scope, inode).await?;
    report.slowest = slowest(access, &now.map, scope).await;
    Ok(report)
}

/// Returns the slowest recent operations in a scope.
async fn slowest(access: &Access, map: &ClusterMap, scope: &Scope) -> Vec<SlowOperation> {
    // Records of operations do not contain the batch job, so the command cannot select records by
    // job.
    match scope.targets.is_none() && scope.focus.job.is_none() {
        true => operation::slowest(access, map, scope.focus).await,
        false => Vec::new(),
    }
}

/// Returns the waiting requests that the mount of `path` reports. Management, which has the waiting
/// requests of all mounts, does not answer.
async fn waits_of_mount(path: &Path) -> Vec<Finding> {
    let reading = async {
        let (inode, place) = entry_at(path)?;
        own::explain((path, inode), &place, Duration::ZERO).await
    };
    match reading.await {
        Ok(report) => report.waiting,
        Err(error) => {
            warn(&format!("the waiting requests of this mount are missing in the report: {error}"));
            Vec::new()
        }
    }
}

async fn from_monitor(
    access: &Access,
    monitor: &MonitorAddress,
    scope: &Scope,
    span: Duration,
) -> Result<Report> {
    let mut path = format!("/api/why?span={}", span.as_secs().max(1));
    if let Some(targets) = &scope.targets {
        let ids: Vec<_> = targets.iter().map(u32::to_string).collect();
        path += &format!("&targets={}", ids.join(","));
    }
    let Focus { client, user, job } = scope.focus;
    for (name, id) in [("client", client), ("user", user), ("job", job)] {
        if let Some(id) = id {
            path += &format!("&{name}={id}");
        }
    }
    let value = monitor.ask(access, &path).await?;
    serde_json::from_value(value).map_err(|_| not_a_monitor(&monitor.of(access)))
}

fn as_text(report: &Report) -> String {
    with_causes(report, NO_CAUSE)
}

/// Returns the report for a user without the token. A mount has no rates of the other targets, so
/// the report contains no causes of slowness.
fn own_as_text(report: &Report) -> String {
    with_causes(report, NO_CAUSES_FOR_USERS)
}

/// Returns the report as text. If the report contains no cause, the line `without` replaces the
/// list of causes.
fn with_causes(report: &Report, without: &str) -> String {
    let mut text = String::new();
    let Report { span_seconds, requests, seconds, .. } = report;
    let _ = match requests {
        0 => writeln!(text, "No request was completed in {span_seconds:.1} s."),
        _ => writeln!(
            text,
            "{requests} {} in {span_seconds:.1} s took {seconds:.2} s, added up:",
            if *requests == 1 { "request" } else { "requests" }
        ),
    };
    for phase in &report.phases {
        let peers = phase.peers_ms.map(|it| format!(", {} at its peers", milliseconds(it)));
        let _ = writeln!(
            text,
            "  {:3.0} %  {} ({} each{})",
            phase.share * 100.0,
            escape_controls(&phase.what),
            milliseconds(phase.each_ms),
            peers.unwrap_or_default()
        );
    }
    if !report.waiting.is_empty() {
        text += "\nWaiting requests\n==========\n";
    }
    for finding in &report.waiting {
        let (what, remedy) = (escape_controls(&finding.what), escape_controls(&finding.remedy));
        let _ = writeln!(text, "- {what}\n  {remedy}");
    }
    let _ = match (report.findings.is_empty(), report.waiting.is_empty()) {
        (true, true) => writeln!(text, "\n{without}"),
        (true, false) => Ok(()),
        (false, _) => writeln!(text, "\nCauses\n=========="),
    };
    for finding in &report.findings {
        let (what, remedy) = (escape_controls(&finding.what), escape_controls(&finding.remedy));
        let _ = writeln!(text, "- {what}\n  {remedy}");
    }
    if !report.slowest.is_empty() {
        text += "\nSlowest operations of the last minutes\n==========\n";
    }
    for slow in &report.slowest {
        let SlowOperation { trace, operation, client, ms, mainly, .. } = slow;
        let of = if client.is_empty() { String::new() } else { format!(" of {client}") };
        let _ = writeln!(
            text,
            "- {operation}{of} took {}: {}\n  skep why --op {trace}",
            milliseconds(*ms),
            escape_controls(mainly)
        );
    }
    for service in &report.unreachable {
        let _ = writeln!(text, "cannot get statistics from {}", escape_controls(service));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_stats::why::Phase;

    #[test]
    fn phase_line_has_share_of_time_and_latency_of_other_targets() {
        let phase = Phase {
            share: 0.82,
            target: 7,
            stage: "log_sync".into(),
            what: "waiting for the log sync of metadata target t7 on metadata-1\u{1b}[2J".into(),
            seconds: 1.5,
            each_ms: 11.0,
            peers_ms: Some(0.4),
        };
        let report = Report {
            span_seconds: 3.0,
            requests: 136,
            seconds: 1.83,
            phases: vec![phase],
            findings: Vec::new(),
            waiting: Vec::new(),
            slowest: Vec::new(),
            unreachable: vec!["storage-1 [ID: 3]: no reply".into()],
        };
        let text = as_text(&report);
        assert!(text.starts_with("136 requests in 3.0 s took 1.83 s, added up:\n"), "{text}");
        let one = as_text(&Report { requests: 1, ..report.clone() });
        assert!(one.starts_with("1 request in 3.0 s took"), "{one}");
        let line = "   82 %  waiting for the log sync of metadata target t7 on metadata-1";
        assert!(
            text.contains(line) && text.contains("(11 ms each, 0.4 ms at its peers)"),
            "{text}"
        );
        assert!(
            text.contains("No cause of slowness")
                && text.contains("cannot get statistics from storage-1")
        );
        // The report for a user compares no targets, so this report does not state that no target
        // is slow.
        let own = own_as_text(&report);
        assert!(own.contains("of an administrator") && !own.contains("No cause"), "{own}");
        assert!(!text.contains('\u{1b}'), "names cannot move the cursor");
    }

    #[test]
    fn durations_are_shown_with_two_digits_and_a_unit() {
        let shown = [0.02, 0.4, 12.3, 3_264.0, 25_000.0].map(milliseconds);
        assert_eq!(shown, ["20 us", "0.4 ms", "12 ms", "3.3 s", "25 s"]);
    }
}
