//! `skep health check`: connects to every server as a client would, and measures latencies for a
//! moment. Lists problems and causes of slowness, each with its remedy. If management does not
//! answer, the command uses the newest cluster map that this host has.
//!
//! The module [`super::services`] connects to services, [`super::without_management`] makes the
//! check while management does not answer, and [`super::waits`] lists the waiting requests.
//! [`super::transactions`] lists the transactions that wait for another group.
//! [`super::from_monitor`] requests the findings of the monitor, [`super::report`] formats the
//! output, and [`super::watch`] runs the loop of `--watch`.

use super::balances::Balances;
use super::from_monitor;
use super::problem::{Object, Problem, notes};
use super::report::{Report, as_text};
use super::services::{self, NodeReport, visit_all};
use super::since::OutageTimes;
use super::transactions;
use super::waits::{self, WaitReport, wait_report};
use super::without_management::{self, Outcome, Silent};
use crate::access::{Access, ClusterArgs, is_silence};
use crate::cmd::stats::{Fetched, fetch_by_last_map, interval, measure, measure_since};
use crate::evictions::{self, EvictionLine};
use crate::group_progress::{Lag, LagSample};
use crate::help::{Example, examples};
use crate::monitor_address::MonitorAddress;
use crate::output::{OutputFormat, format, print, warn};
use skep_cluster::problems::problems_of_map;
use skep_stats::backup::{MAX_AGE_NS, missing_backup};
use skep_stats::balance::uneven_space;
use skep_stats::why::{Cause, Evidence, Focus, Thresholds, causes, clock_findings};
use skep_types::{ClusterMap, Result, TargetId};
use skep_wire::management::ListRequestWaits;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("check the cluster; the exit code is 1 if there are problems", "skep health check"),
    ("print each problem when it begins and when it ends", "skep health check --watch"),
    (
        "for a monitoring system",
        "skep health check --cluster 10.0.0.1:7400 --token-file token --output json",
    ),
];

/// Connect to every server, and list problems with their remedies
///
/// Also compares the latencies of all targets for two seconds, and lists slow disks and links, and
/// load that delays other requests. Also lists hosts with a full page cache, too little memory or a
/// wrong clock, targets that are far fuller than others, and missing backups of management. With
/// such findings only, the cluster still counts as healthy, and `--watch` does not report them.
/// `skep why` explains the causes of slowness.
///
/// Findings that need measurements of a minute come from the monitor, with the time at which it
/// first saw each problem.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(super) query: ClusterArgs,
    #[command(flatten)]
    pub(super) monitor: MonitorAddress,
    /// Check again and again until Ctrl-C, and print each problem when it begins and when it ends
    #[arg(long = "watch")]
    pub(super) is_watch: bool,
    /// With --watch: time between two checks
    #[arg(long, default_value = "5s", requires = "is_watch", value_parser = interval)]
    pub(super) interval: Duration,
    /// With --watch: also write each begin and end of a problem to this file, which keeps the last
    /// 1000 of these lines
    #[arg(long, value_name = "FILE", requires = "is_watch")]
    pub(super) history: Option<PathBuf>,
}

/// Duration of the measurement of the latencies of targets, which the command then compares.
const SPAN: Duration = Duration::from_secs(2);

/// Time without a reply of management after which the command prints that management has not
/// replied.
const QUIET: Duration = Duration::from_secs(2);

/// Maximum age of an eviction that a note of the report mentions.
const EVICTIONS_NOTED_MS: u64 = 3_600_000;
/// Maximum number of evictions that the note mentions. Users would not read a longer list.
const MAX_NOTED_EVICTIONS: usize = 5;

/// The names of the checks that the command omits while management does not answer, with the
/// reason.
const WITHOUT_MANAGEMENT: &str =
    "waiting requests, transactions, balances and backups, since management does not answer";
/// The same, if this host has no cluster map either.
const WITHOUT_MAP: &str = "waiting requests, transactions, causes of slowness, balances and \
                           backups, since management does not answer, and this host has no cluster \
                           map";

pub(crate) fn run(args: CheckArgs) -> Result<ExitCode> {
    let (access, monitor) = (args.query.access(None)?, args.monitor);
    let report = crate::cmd::block_on(async move {
        match patient_map(&access).await {
            Err(error) if is_silence(&error) => {
                match without_management::check(&access, error).await? {
                    Outcome::Answers(wider, map) => check(&wider, &monitor, &map).await,
                    Outcome::Silent(found) => check_by_last_map(&access, &monitor, found).await,
                }
            }
            map => check(&access, &monitor, &map?).await,
        }
    })?;
    let healthy = report.healthy;
    print(&report, as_text)?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gets the cluster map, and reports on standard error if management needs long to reply.
async fn patient_map(access: &Access) -> Result<ClusterMap> {
    let mut asking = pin!(access.map());
    if let Some(map) = skep_env::timeout(QUIET, asking.as_mut()).await {
        return map;
    }
    // In all other formats, standard error contains only errors in JSON.
    if format() == OutputFormat::Table {
        warn(&format!("management has not replied for {QUIET:?}, so the check takes longer"));
    }
    asking.await
}

/// Checks the cluster while management answers.
async fn check(access: &Access, monitor: &MonitorAddress, map: &ClusterMap) -> Result<Report> {
    let (asked, address) = (access.clone(), monitor.clone());
    let asking = skep_env::spawn(async move { from_monitor::ask(&asked, &address).await });
    let measured = access.clone();
    let measuring =
        skep_env::spawn(async move { measure(&measured, SPAN, Focus::default()).await });
    let asking_groups = transactions::begin(access, map);
    let sampling = LagSample::begin(access, map);
    let nodes = visit_all(access, map).await;
    let sample = sampling.await;
    let (evidence, now) = measuring.await?;
    let lags = sample.take_again(access, &now.map).await.lags(&now.map, Some(&sample));
    let waits = waits(access, &now.map).await?;
    let transactions = asking_groups.await;
    let times = OutageTimes::fetch(access).await?;
    let mut report = report((nodes, waits), &lags, &evidence, &now);
    times.set_in(&mut report.problems);
    report.healthy &= transactions.is_empty();
    report.problems.extend(transactions);
    report.notes.extend(eviction_note(&evictions::fetch(access).await?));
    match asking.await {
        Ok(monitor) => {
            monitor.complete(&mut report.problems, skep_env::wall_time());
            report.balance.iter_mut().for_each(|balances| balances.take_minute(&monitor));
        }
        Err(error) => {
            let backup = missing_backup(&now.map, &now.round, MAX_AGE_NS);
            report.problems.extend(backup.map(problem_of));
            report.unchecked = Some(from_monitor::unchecked(&error));
        }
    }
    Ok(report)
}

/// Adds the causes of slowness to a check while management does not answer. Measures the services
/// of the last cluster map of this host, and asks the monitor.
async fn check_by_last_map(
    access: &Access,
    monitor: &MonitorAddress,
    found: Silent,
) -> Result<Report> {
    let silent = found.silent_nodes();
    let Silent { nodes, problems, notes, last, .. } = found;
    let mut report = Report { nodes, problems, notes, ..Report::default() };
    let Some((map, error)) = last.map(|last| *last) else {
        report.unchecked = Some(WITHOUT_MAP.to_owned());
        return Ok(report);
    };
    let (asked, address) = (access.clone(), monitor.clone());
    let asking = skep_env::spawn(async move { from_monitor::ask(&asked, &address).await });
    let before = fetch_by_last_map(access, map, silent, &error).await;
    let (evidence, now) = measure_since(access, before, SPAN, Focus::default()).await?;
    report.problems.extend(causes_of(&evidence, &now.map));
    report.unchecked = Some(match asking.await {
        Ok(monitor) => {
            monitor.complete(&mut report.problems, skep_env::wall_time());
            WITHOUT_MANAGEMENT.to_owned()
        }
        Err(error) => format!("{WITHOUT_MANAGEMENT}; {}", from_monitor::unchecked(&error)),
    });
    Ok(report)
}

/// Returns the causes of slowness and the findings about clocks as problems, except for causes that
/// are over.
fn causes_of(evidence: &Evidence, map: &ClusterMap) -> Vec<Problem> {
    let mut found = causes(evidence, map, &Thresholds::default());
    found.extend(clock_findings(evidence, map));
    found.into_iter().filter(|cause| !cause.is_over).map(problem_of).collect()
}

/// The problems that one check has found.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) problems: Vec<Problem>,
    /// The keys of the problems whose end this check can detect. `None` means all keys. While
    /// management does not answer, a check cannot detect most problems.
    pub(super) judged: Option<BTreeSet<String>>,
}

/// Checks the cluster once and returns its problems. Does not look for causes of slowness. If
/// management does not answer, checks the services by the newest cluster map of this host.
pub(super) async fn problems(access: &Access) -> Result<Checked> {
    let whole = |problems| Checked { problems, judged: None };
    match problems_by_management(access).await {
        Err(error) if is_silence(&error) => match without_management::check(access, error).await? {
            Outcome::Answers(wider, _) => Ok(whole(problems_by_management(&wider).await?)),
            Outcome::Silent(found) => {
                Ok(Checked { problems: found.problems, judged: Some(found.judged) })
            }
        },
        found => found.map(whole),
    }
}

async fn problems_by_management(access: &Access) -> Result<Vec<Problem>> {
    let map = access.map().await?;
    let asking_groups = transactions::begin(access, &map);
    let sampling = LagSample::begin(access, &map);
    let nodes = visit_all(access, &map).await;
    let lags = sampling.await.lags(&map, None);
    let waits = waits(access, &map).await?;
    let transactions = asking_groups.await;
    let times = OutageTimes::fetch(access).await?;
    let mut problems = problems_of(&nodes, &waits, &lags, &map);
    times.set_in(&mut problems);
    problems.extend(transactions);
    Ok(problems)
}

async fn waits(access: &Access, map: &ClusterMap) -> Result<Vec<WaitReport>> {
    let list = access.ask(&ListRequestWaits {}).await?;
    Ok(list.waits.iter().map(|waiting| wait_report(map, waiting)).collect())
}

/// Returns the note about the clients that were evicted in the last hour. `evictions` begins with
/// the newest eviction.
fn eviction_note(evictions: &[EvictionLine]) -> Option<Problem> {
    let recent = evictions.iter().filter(|it| it.age_ms <= EVICTIONS_NOTED_MS);
    let recent: Vec<_> =
        recent.map(|it| format!("{} at {} ({})", it.name, it.evicted_at, it.reason)).collect();
    let more = match recent.len().saturating_sub(MAX_NOTED_EVICTIONS) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let newest: Vec<_> = recent.into_iter().take(MAX_NOTED_EVICTIONS).collect();
    (!newest.is_empty()).then(|| Problem {
        key: "client-evicted".into(),
        rule: "client-evicted",
        what: format!("clients evicted in the last hour: {}{more}", newest.join("; ")),
        remedy: "the opens and locks of an evicted client were released, and the client joins \
                 again with another id when it reaches the cluster; check its host and its \
                 network, and read the log of its mount. If the network was interrupted only for a \
                 short time, set a longer lease: `skep config set lease 60s`. `skep client list \
                 --evicted` lists all evictions"
            .into(),
        ..Problem::default()
    })
}

fn report(
    (nodes, waits): (Vec<NodeReport>, Vec<WaitReport>),
    lags: &BTreeMap<TargetId, Lag>,
    evidence: &Evidence,
    now: &Fetched,
) -> Report {
    let mut problems = problems_of(&nodes, &waits, lags, &now.map);
    // The following findings do not make the cluster unhealthy. Scripts wait until the cluster is
    // healthy, and high load must not make a script wait for ever.
    let healthy = problems.is_empty();
    problems.extend(causes_of(evidence, &now.map));
    problems.extend(uneven_space(&now.map).map(problem_of));
    let (notes, balance) = (notes(&now.map), Some(Balances::of(evidence, &now.map)));
    Report { healthy, nodes, problems, notes, waits, balance, unchecked: None }
}

/// Returns a finding as a problem. The key of the problem equals the key that the monitor uses for
/// this finding.
fn problem_of(cause: Cause) -> Problem {
    Problem {
        key: format!("{} {}", cause.rule, cause.object),
        rule: cause.rule,
        what: cause.what,
        remedy: cause.remedy,
        ..Problem::default()
    }
}

/// Returns the problems that make the cluster unhealthy. `lags` has the members of metadata groups
/// that do not serve.
fn problems_of(
    nodes: &[NodeReport],
    waits: &[WaitReport],
    lags: &BTreeMap<TargetId, Lag>,
    map: &ClusterMap,
) -> Vec<Problem> {
    let services::ServiceProblems { mut problems, explained, unserved } =
        services::problems(nodes, map);
    for problem in &mut problems {
        if let (services::UNREACHABLE, [Object::Node(node)]) = (problem.rule, &problem.objects[..])
        {
            problem.what += &waits::explained(waits, *node, map);
        }
    }
    let is_explained = |problem: &skep_cluster::problems::Problem| {
        let is_of = |targets: &BTreeSet<_>| problem.target.is_some_and(|it| targets.contains(&it));
        match problem.rule {
            "target-offline" => is_of(&explained),
            "target-down" => is_of(&unserved),
            _ => false,
        }
    };
    let of_map = problems_of_map(map).into_iter().filter(|problem| !is_explained(problem));
    problems.extend(of_map.map(|problem| Problem {
        key: match problem.target {
            Some(target) => format!("{} {target}", problem.rule),
            None => format!("{} {}", problem.rule, problem.what),
        },
        objects: objects_of(&problem, map),
        rule: problem.rule,
        what: match problem.target.and_then(|target| lags.get(&target)) {
            Some(lag) if problem.rule == "target-inconsistent" => {
                format!("{}: the target lacks {}", problem.what, lag.words())
            }
            _ => problem.what,
        },
        remedy: problem.remedy.to_owned(),
        ..Problem::default()
    }));
    problems.extend(waits::problems(waits, &unserved, map));
    problems
}

/// Returns the nodes and targets whose outage is the problem `problem` of the cluster map.
fn objects_of(problem: &skep_cluster::problems::Problem, map: &ClusterMap) -> Vec<Object> {
    let target = problem.target.and_then(|id| map.target(id));
    match (target, problem.rule) {
        (Some(target), "target-offline") => vec![Object::Node(target.node)],
        (Some(target), "target-failed" | "target-hung" | "target-down") => {
            vec![Object::Target(target.id)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_note_lists_the_evictions_of_the_last_hour() {
        let evicted = |number: u32, age_ms| EvictionLine {
            id: number,
            name: format!("cl{number}:/mnt"),
            evicted_at: "2026-11-25T19:06:27Z".into(),
            cause: "lease-expired",
            reason: "no request".into(),
            last_contact: "2026-11-25T19:06:22Z".into(),
            silent_ms: 5_000,
            age_ms,
        };
        assert!(eviction_note(&[evicted(2, 3_600_001)]).is_none());
        let note = eviction_note(&[evicted(3, 0), evicted(2, 3_600_001)]).unwrap();
        let one = "clients evicted in the last hour: cl3:/mnt at 2026-11-25T19:06:27Z (no request)";
        assert_eq!(note.what, one);
        let many: Vec<_> = (0..7).map(|number| evicted(number, 5)).collect();
        let note = eviction_note(&many).unwrap();
        assert!(note.what.ends_with("; and 2 more") && !note.what.contains("cl5"), "{}", note.what);
    }
}
