//! `skep why`: shows where the time of requests goes, and names the causes of slowness.
//!
//! The command asks each service for its figures several times, and compares them, so it needs no
//! monitor. With `--since` it asks the monitor, which stores the figures of the past minutes. The
//! rules are in `skep_stats::why`.

mod operation;
mod own;
mod traces;

use crate::access::{Access, ClusterArgs, entry_at};
use crate::cmd::stats::{interval, measure};
use crate::help::{Example, examples};
use crate::monitor_address::{MonitorAddress, not_a_monitor};
use crate::output::{print, span, warn};
use crate::through_mount;
use crate::uses::Users;
use crate::view::target_named;
use skep_monitor::limits::{EVIDENCE_PIECE_MS, EVIDENCE_PIECES};
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_stats::operation::SlowOperation;
use skep_stats::why::{Finding, Report, Scope, Thresholds, explain};
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Error, ErrorCode, FileKind, InodeId, NodeId, Result, TargetKind};
use skep_wire::management::{ListRequestWaits, NodeWait};
use skep_wire::metadata::{EntryInfo, GetEntryInfo};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("where the time of all requests goes, measured for three seconds", "skep why"),
    ("only the targets that a file uses", "skep why /mnt/skep/results/out.dat"),
    ("only the requests of the mounts on one host", "skep why --client node17"),
    ("only one target, in the last five minutes", "skep why --target 7 --since 5m"),
    (
        "one operation, by the trace id in a log or in the list of the slowest",
        "skep why --op 0123456789abcdef000000000000002a",
    ),
];

/// Time limit for the request for the record of a file.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of waiting nodes in a report.
const MAX_WAITS: usize = 16;

/// Longest span in the past. The monitor stores no older evidence.
const LONGEST_SPAN: Duration = Duration::from_millis(EVIDENCE_PIECE_MS * EVIDENCE_PIECES as u64);

/// Explain why operations are slow: where their time goes, and the causes
///
/// Divides the time of the requests by target and phase (waiting, processing, disk, log sync,
/// network), compares targets with their peers, and names slow disks and links, full targets, hot
/// directories, users whose requests keep a target busy, and stopped clients for which others wait.
/// The requests must be made while the command measures, unless --since asks the monitor.
///
/// A user who cannot read the cluster's token gets, with PATH, the own operations on the path: on a
/// file, on a directory and its entries, or for the root of a mount on all files.
///
/// With --op, explains one operation: each slow operation has a trace id, which the logs of mounts
/// and services and the list of the slowest operations show. Mounts and services keep the records
/// of slow operations, and of one in 1,024 other operations, for a limited time.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// A file or directory in a mount: show only the targets that serve the file, or the entries of
    /// the directory
    #[arg(value_name = "PATH", conflicts_with_all = ["client", "target"])]
    path: Option<PathBuf>,
    /// Only the requests of these clients: an id or name, or a host, which may contain `*` and `?`
    #[arg(long, conflicts_with = "target")]
    client: Option<String>,
    /// Only the requests to this target
    #[arg(long, value_name = "ID")]
    target: Option<String>,
    /// Time for which the command measures
    #[arg(long, default_value = "3s", value_parser = interval)]
    interval: Duration,
    /// Explain this past span, such as 30s or 5m, as the monitor has measured it; at most 10m
    #[arg(long, value_name = "SPAN", value_parser = interval, conflicts_with = "interval")]
    since: Option<Duration>,
    /// Explain one operation: its trace id
    #[arg(long, value_name = "ID", value_parser = traces::trace_id)]
    #[arg(conflicts_with_all = ["path", "client", "target", "interval", "since"])]
    op: Option<u128>,
    #[command(flatten)]
    monitor: MonitorAddress,
}

pub(crate) fn run(args: WhyArgs) -> Result<()> {
    if let Some(trace) = args.op {
        args.monitor.refuse_without("--since")?;
        let access = args.query.access(None)?;
        let report = crate::cmd::block_on(async move { operation::explain(&access, trace).await })?;
        return print(&report, operation::as_text);
    }
    match args.since {
        None => args.monitor.refuse_without("--since")?,
        Some(span) if span > LONGEST_SPAN => {
            let what = format!(
                "invalid --since {span:?}: the monitor keeps these figures for {LONGEST_SPAN:?}"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        Some(_) => {}
    }
    let place = args.path.as_deref().map(entry_at).transpose()?;
    let access = args.query.access(place.as_ref().map(|(_, place)| place.as_path()));
    let access = match (access, place) {
        (Ok(access), _) => access,
        (Err(_), Some((inode, place))) if args.query.is_unnamed() && args.since.is_none() => {
            warn(
                "this user cannot read the cluster's token, so the report has only the own \
                 operations on this mount",
            );
            let path = args.path.clone().unwrap_or_default();
            let (path, interval) = (path, args.interval);
            let report = crate::cmd::block_on(async move {
                own::explain((&path, inode), &place, interval).await
            })?;
            return print(&report, as_text);
        }
        (Err(error), _) => return Err(error),
    };
    let place = args.path.as_deref().map(entry_at).transpose()?;
    let report = crate::cmd::block_on(async move {
        let found = scope(&access, &args, place.map(|(inode, _)| inode)).await?;
        match args.since {
            Some(span) => from_monitor(&access, &args.monitor, &found, span).await,
            None => measured(&access, &found, args.interval).await,
        }
    })?;
    print(&report, as_text)
}

async fn scope(access: &Access, args: &WhyArgs, inode: Option<InodeId>) -> Result<Scope> {
    if let Some(name) = &args.client {
        let users = Users::of(access).await?;
        let found = users.clients.named(&users.map, name)?;
        let [client] = found[..] else {
            let what = format!(
                "cannot choose a client '{name}': {} clients have this host; use an id from `skep \
                 client list`",
                found.len()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        };
        return Ok(Scope { targets: None, client: Some(client.raw()) });
    }
    let map = access.map().await?;
    if let Some(id) = &args.target {
        let target = target_named(&map, id)?;
        return Ok(Scope { targets: Some(vec![target.id.raw()]), client: None });
    }
    let Some(inode) = inode else { return Ok(Scope::default()) };
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let info = match through_mount::entry_info(path)? {
        Some(info) => info,
        None => ask_entry_info(access, &map, inode).await?,
    };
    Ok(Scope { targets: Some(targets_of(&map, inode, &info)), client: None })
}

async fn ask_entry_info(access: &Access, map: &ClusterMap, inode: InodeId) -> Result<EntryInfo> {
    let cell = MapCell::new(map.clone(), NodeId::default());
    let router = Router::new(access.identity(), Channel::random(), cell);
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    router.call_inode(inode, &GetEntryInfo { inode }, options).await
}

/// Returns the ids of the targets that serve a file: the targets of its inode and of its name, and
/// the targets of its stripe pattern. For a directory, returns all storage targets, because its
/// files may be on any of them.
fn targets_of(map: &ClusterMap, inode: InodeId, info: &EntryInfo) -> Vec<u32> {
    let metadata = [inode, info.parent].into_iter().filter(|inode| *inode != InodeId::default());
    let mut groups: BTreeSet<_> =
        metadata.filter_map(|inode| map.shard_group(inode.shard())).collect();
    let mut targets = BTreeSet::new();
    match (info.attributes.kind, &info.pattern) {
        (FileKind::Directory, _) => {
            let storage = map.targets.iter().filter(|it| it.kind == TargetKind::Storage);
            targets.extend(storage.map(|target| target.id.raw()));
        }
        (_, Some(pattern)) => {
            groups.extend(pattern.components.iter().flat_map(|it| it.groups.iter().copied()));
        }
        (_, None) => {}
    }
    targets.extend(groups.into_iter().filter_map(|group| map.primary(group)).map(|it| it.id.raw()));
    targets.into_iter().collect()
}

async fn measured(access: &Access, scope: &Scope, interval: Duration) -> Result<Report> {
    let (evidence, now) = measure(access, interval).await?;
    let mut report = explain(&evidence, &now.map, scope, &Thresholds::default());
    report.unreachable = now.unreachable;
    if report.findings.is_empty() && scope.targets.is_none() {
        report.findings = waits_of_mounts(access, &now.map, scope.client).await?;
    }
    if scope.targets.is_none() {
        report.slowest = operation::slowest(access, &now.map, scope.client).await;
    }
    Ok(report)
}

/// Returns the nodes whose requests have waited for more than 5 seconds. They are the effect of
/// other causes, so the report has them only if it has no cause.
async fn waits_of_mounts(
    access: &Access,
    map: &ClusterMap,
    client: Option<u32>,
) -> Result<Vec<Finding>> {
    let list = access.ask(&ListRequestWaits {}).await?;
    let of_scope = list.waits.iter().filter(|it| client.is_none_or(|id| it.node.raw() == id));
    Ok(of_scope.take(MAX_WAITS).map(|it| finding_of_wait(map, it)).collect())
}

fn finding_of_wait(map: &ClusterMap, waiting: &NodeWait) -> Finding {
    let NodeWait { node, wait } = waiting;
    let name = map.node(*node).map_or_else(|| node.to_string(), |it| it.name.clone());
    let at = match (wait.group.raw(), map.primary(wait.group)) {
        (0, _) => String::new(),
        (_, Some(target)) => format!(" for target {}", target.id),
        (_, None) => format!(" for group {}", wait.group),
    };
    let requests = match wait.requests {
        1 => "1 request waits".to_owned(),
        count => format!("{count} requests wait"),
    };
    Finding {
        rule: "requests-wait".into(),
        severity: "critical".into(),
        object: node.to_string(),
        what: format!(
            "{name}: {requests}{at}, the first one for {}: {}",
            span(wait.since_ms),
            wait.error
        ),
        remedy: "`skep health check` shows the service or target that does not answer".into(),
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
    if let Some(client) = scope.client {
        path += &format!("&client={client}");
    }
    let value = monitor.ask(access, &path).await?;
    serde_json::from_value(value).map_err(|_| not_a_monitor(&monitor.of(access)))
}

pub(crate) fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms < 0.1 => format!("{:.0} us", ms * 1e3),
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 10_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.0} s", ms / 1e3),
    }
}

fn as_text(report: &Report) -> String {
    let mut text = String::new();
    let Report { span_seconds, requests, seconds, .. } = report;
    let _ = match requests {
        0 => writeln!(text, "No request was completed in {span_seconds:.1} s."),
        _ => writeln!(
            text,
            "{requests} requests in {span_seconds:.1} s took {seconds:.2} s, added up:"
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
    let _ = match report.findings.is_empty() {
        true => writeln!(text, "\nNo cause of slowness was found."),
        false => writeln!(text, "\nCauses\n=========="),
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
        let _ = writeln!(text, "no figures from {}", escape_controls(service));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_stats::why::Phase;

    #[test]
    fn report_shows_share_place_and_time_of_peers_of_a_phase() {
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
            slowest: Vec::new(),
            unreachable: vec!["storage-1 [ID: n3]: no reply".into()],
        };
        let text = as_text(&report);
        assert!(text.starts_with("136 requests in 3.0 s took 1.83 s, added up:\n"), "{text}");
        let line = "   82 %  waiting for the log sync of metadata target t7 on metadata-1";
        assert!(
            text.contains(line) && text.contains("(11 ms each, 0.4 ms at its peers)"),
            "{text}"
        );
        assert!(
            text.contains("No cause of slowness") && text.contains("no figures from storage-1")
        );
        assert!(!text.contains('\u{1b}'), "names cannot move the cursor");
    }

    #[test]
    fn values_are_shown_with_two_digits_and_a_unit() {
        let shown = [0.02, 0.4, 12.3, 25_000.0].map(milliseconds);
        assert_eq!(shown, ["20 us", "0.4 ms", "12 ms", "25 s"]);
    }
}
