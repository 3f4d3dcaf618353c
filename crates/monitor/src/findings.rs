//! Findings: the current problems of a cluster according to the rules of the monitor.
//!
//! The module is pure: it uses no I/O and no clock. The problems that the cluster map shows come
//! from `skep_cluster::problems`. The other rules that the monitor and `skep health check` share
//! are in `skep_stats`: causes of slowness, clocks, balances, backups, and the load of a minute.
//! This module passes the metrics to these rules, and has the rules about the monitor and its
//! connections. The module does not decide how long a finding must last before it becomes an alert
//! ([`crate::alerts`]).

use crate::collect::Collected;
use crate::evictions::EvictedClient;
use crate::fill_watch::FillWatch;
use crate::frame::{Dimension, Frame, Load};
use crate::limits::MAX_FINDING_BYTES;
use crate::quantile::histogram;
use crate::settings::AlertSettings;
use skep_cluster::outage_effect::effect_of_outage;
use skep_cluster::problems::{Severity, has_only_lost_targets, lost_targets, problems_of_map};
use skep_cluster::state::kind_word;
use skep_stats::Round;
use skep_stats::backup::missing_backup;
use skep_stats::balance::{WorkByTarget, uneven_space, uneven_work};
use skep_stats::long_spans::{growing_queue, slow_log_syncs};
use skep_stats::why::{Cause, Evidence, Thresholds, causes, clock_findings};
use skep_types::text::{escape_controls, shorten};
use skep_types::{ClusterMap, NodeKind, Target, TargetKind};
use std::collections::VecDeque;

/// Number of the newest frames that the rules about load use. With the default interval of rounds,
/// these frames cover a minute.
const WINDOW: usize = 60;

/// Maximum number of evicted clients that have a finding each. If more clients were evicted, one
/// finding reports all of them, so that one fault raises one alert.
const MAX_SINGLE_EVICTIONS: usize = 4;

/// A current problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the rule.
    pub(crate) rule: &'static str,
    pub(crate) severity: Severity,
    /// The object of the problem: `t7` for a target, `n2` for a node, `host ADDRESS` for a host, or
    /// a word such as `management`. The rule and the object together identify the finding over
    /// time.
    pub(crate) object: String,
    /// A description of the problem, with the name of the object.
    pub(crate) what: String,
    /// The effect until the problem is repaired, and the remedy for an administrator.
    pub(crate) remedy: String,
    /// The finding from which this finding follows, and which itself follows from no other finding.
    /// `None` means that no such finding exists. [`crate::consequences`] sets this field.
    pub(crate) cause: Option<FindingKey>,
}

/// The rule and the object of a finding.
pub(crate) type FindingKey = (&'static str, String);

impl Finding {
    /// Returns the rule and the object, which together identify the finding.
    pub(crate) fn key(&self) -> FindingKey {
        (self.rule, self.object.clone())
    }

    /// Escapes the control characters in the texts, and limits their lengths. The texts contain
    /// names and reasons from other hosts. The monitor sends findings to the log, to programs, to
    /// other servers and to terminals, so this function escapes their texts once for all receivers.
    pub(crate) fn with_safe_texts(self) -> Self {
        let Self { rule, severity, object, what, remedy, cause } = self;
        let [object, what, remedy] = [object, what, remedy].map(|text| safe_text(&text));
        let cause = cause.map(|(rule, object)| (rule, safe_text(&object)));
        Self { rule, severity, object, what, remedy, cause }
    }

    fn of(cause: Cause) -> Self {
        Self {
            rule: cause.rule,
            severity: cause.severity,
            object: cause.object,
            what: cause.what,
            remedy: cause.remedy,
            cause: None,
        }
    }
}

fn safe_text(text: &str) -> String {
    let mut text = escape_controls(text).into_owned();
    shorten(&mut text, MAX_FINDING_BYTES);
    text
}

/// All data that the rules use.
pub(crate) struct Situation<'a> {
    pub(crate) collected: &'a Collected,
    /// The newest frames, oldest first.
    pub(crate) frames: &'a VecDeque<Frame>,
    /// The evidence for causes of slowness.
    pub(crate) evidence: &'a Evidence,
    /// The work of all targets in the last minute.
    pub(crate) work: &'a WorkByTarget,
    /// The growth of the used space.
    pub(crate) filling: &'a FillWatch,
    /// The newest reply of each service.
    pub(crate) round: &'a Round,
    /// The reason why the monitor cannot write the history. `None` means that the monitor writes
    /// the history.
    pub(crate) history_problem: Option<&'a str>,
    /// The clients that were evicted within the last minute.
    pub(crate) evicted: &'a [EvictedClient],
    /// Names of the services whose metrics pages Prometheus cannot read.
    pub(crate) hidden_pages: &'a [String],
    pub(crate) settings: &'a AlertSettings,
}

/// Returns all findings, the most severe first.
pub(crate) fn findings(situation: &Situation<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let Situation { collected, history_problem, evicted, .. } = situation;
    if let Some(problem) = &collected.map_problem {
        found.push(Finding {
            rule: "management-unreachable",
            severity: Severity::Critical,
            object: "management".into(),
            what: format!("management does not reply: {problem}"),
            remedy: "read the log of `skep management` on its host; operations on files continue, \
                     but nodes cannot join, and the cluster map does not change"
                .into(),
            cause: None,
        });
    }
    if let Some(problem) = history_problem {
        found.push(Finding {
            rule: "history",
            severity: Severity::Warning,
            object: "monitor".into(),
            what: (*problem).to_owned(),
            remedy:
                "solve this problem with the disk of the monitor's directory; the page and the \
                 alerts work meanwhile, but older figures are missing"
                    .into(),
            cause: None,
        });
    }
    found.extend(hidden_pages(situation.hidden_pages));
    found.extend(evictions(evicted));
    if let Some(map) = &collected.map {
        found.extend(unreachable(map, collected));
        let of_map = problems_of_map(map).into_iter().chain(lost_targets(map));
        found.extend(of_map.map(|problem| Finding {
            rule: problem.rule,
            severity: problem.severity,
            object: problem.target.map_or_else(|| "cluster".into(), |id| id.to_string()),
            what: problem.what,
            remedy: problem.remedy.into(),
            cause: None,
        }));
        let load = of_load(map, situation);
        found.extend(load.into_iter().filter(|cause| !cause.is_over).map(Finding::of));
    }
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

/// Returns the findings about evicted clients. If many clients were evicted, one network has
/// probably failed, so one finding reports all of them.
fn evictions(evicted: &[EvictedClient]) -> Vec<Finding> {
    let finding = |object: &str, what: String, remedy: &str| Finding {
        rule: "client-evicted",
        severity: Severity::Warning,
        object: object.to_owned(),
        what,
        remedy: remedy.to_owned(),
        cause: None,
    };
    if evicted.len() > MAX_SINGLE_EVICTIONS {
        let named = &evicted[..MAX_SINGLE_EVICTIONS];
        let names: Vec<&str> = named.iter().map(|client| client.name.as_str()).collect();
        let explained = evicted.iter().find(|client| !client.reason.is_empty());
        let reason =
            explained.map_or_else(String::new, |it| format!("; {}: {}", it.name, it.reason));
        let what = format!(
            "{} clients were evicted within a minute: {}, and {} more{reason}",
            evicted.len(),
            names.join(", "),
            evicted.len() - named.len()
        );
        let remedy = "check the network between these clients and the metadata services; `skep \
                      client list --evicted` lists the clients with the reasons; their locks and \
                      open files were released";
        return vec![finding("clients", what, remedy)];
    }
    let of_client = |EvictedClient { name, reason }: &EvictedClient| {
        let remedy = "check the host and the network of this client, and read the log of its \
                      mount; its locks and open files were released";
        let joint = if reason.is_empty() { "" } else { ": " };
        finding(name, format!("client {name} was evicted{joint}{reason}"), remedy)
    };
    evicted.iter().map(of_client).collect()
}

/// Returns a finding if Prometheus uses the list of metrics pages, but cannot read some of these
/// pages.
fn hidden_pages(services: &[String]) -> Option<Finding> {
    (!services.is_empty()).then(|| Finding {
        rule: "metrics-page-hidden",
        severity: Severity::Warning,
        object: "prometheus".into(),
        what: format!(
            "Prometheus cannot read the metrics of {}: these services serve their metrics only on \
             the loopback addresses of their hosts",
            services.join(", ")
        ),
        remedy: "set `metrics = \"0.0.0.0:PORT\"` below `[node]` in the settings of each of these \
                 services, and restart the services; a firewall must block the port for all hosts \
                 except the host of Prometheus"
            .into(),
        cause: None,
    })
}

fn unreachable(map: &ClusterMap, collected: &Collected) -> Vec<Finding> {
    let reasons = collected.unreachable.iter();
    reasons
        .filter_map(|(id, reason)| {
            let node = map.nodes.iter().find(|node| node.id.raw() == *id)?;
            let is_management = node.kind == NodeKind::Management;
            // If management does not reply, another finding reports its outage and the effect. So
            // this rule reports no management service.
            let is_found = is_management && collected.map_problem.is_some();
            if is_found || has_only_lost_targets(map, node.id) {
                return None;
            }
            let effect = effect_of_outage(map, node).text;
            let start = format!(
                "read the log of `skep {}` on its host, and start the service there",
                kind_word(node.kind)
            );
            // Only a refused connection shows that the process does not exist.
            let remedy = match reason.contains("Connection refused") {
                true => start,
                false => format!(
                    "`skep health check` shows the cause and the way out: the process of the \
                     service is stopped or hangs, or its host or network has failed; if the \
                     service has ended, {start}"
                ),
            };
            Some(Finding {
                rule: "service-unreachable",
                severity: Severity::Critical,
                object: node.id.to_string(),
                what: format!("{} does not reply: {reason}", node.name),
                remedy: format!("{remedy}; {effect}"),
                cause: None,
            })
        })
        .collect()
}

/// Returns the findings of the rules that use the metrics of services.
fn of_load(map: &ClusterMap, situation: &Situation<'_>) -> Vec<Cause> {
    let &Situation { frames, evidence, work, filling, round, settings, .. } = situation;
    let mut found = causes(evidence, map, &thresholds(settings));
    let uneven = uneven_work((work, evidence), map, &found);
    found.extend(uneven);
    found.extend(uneven_space(map));
    found.extend(filling.causes(map));
    found.extend(clock_findings(evidence, map));
    let max_age_ns = u64::try_from(settings.backup.0.as_nanos()).unwrap_or(u64::MAX);
    found.extend((max_age_ns > 0).then(|| missing_backup(map, round, max_age_ns)).flatten());
    for target in &map.targets {
        found.extend(queue_of(map, target, frames, settings));
        let log = log_syncs_of(map, target, frames, settings);
        let is_new =
            |log: &Cause| !found.iter().any(|it| (it.rule, &it.object) == (log.rule, &log.object));
        let log = log.filter(is_new);
        found.extend(log);
    }
    found
}

/// Returns the load of a target, summed over `frames`, and the number of samples in these frames.
fn sum<'a>(
    frames: impl Iterator<Item = &'a Frame>,
    dimension: Dimension,
    target: &Target,
) -> (Load, u64) {
    let id = target.id.raw().to_string();
    let (mut sum, mut samples) = (Load::default(), 0);
    for frame in frames {
        samples += frame.samples;
        frame.loads_of(dimension, &id).for_each(|load| sum.add(load));
    }
    (sum, samples)
}

fn newest(frames: &VecDeque<Frame>, count: usize) -> impl Iterator<Item = &Frame> {
    frames.iter().skip(frames.len().saturating_sub(count))
}

/// Returns the thresholds of the rules about slowness from the settings.
pub(crate) fn thresholds(settings: &AlertSettings) -> Thresholds {
    Thresholds {
        slow_factor: u64::from(settings.slow_factor),
        slow_from_ns: u64::try_from(settings.slow_from.0.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// Returns a finding if the queue of a target is long and has become longer in the last minute.
fn queue_of(
    map: &ClusterMap,
    target: &Target,
    frames: &VecDeque<Frame>,
    settings: &AlertSettings,
) -> Option<Cause> {
    let half = WINDOW / 2;
    let mean = |frames: &mut dyn Iterator<Item = &Frame>| {
        let (load, samples) = sum(frames, Dimension::Target, target);
        load.queued.sum.checked_div(samples)
    };
    if frames.len() < WINDOW {
        return None;
    }
    let now = mean(&mut newest(frames, half))?;
    let before = mean(&mut newest(frames, WINDOW).take(half))?;
    growing_queue(map, target.id, (before, now), settings.queue)
}

/// Returns a finding if the log syncs of a metadata target were slow in the last minute.
fn log_syncs_of(
    map: &ClusterMap,
    target: &Target,
    frames: &VecDeque<Frame>,
    settings: &AlertSettings,
) -> Option<Cause> {
    if target.kind != TargetKind::Metadata {
        return None;
    }
    let (load, _) = sum(newest(frames, WINDOW), Dimension::LogSync, target);
    let limit_ns = u64::try_from(settings.log_sync.0.as_nanos()).unwrap_or(u64::MAX);
    slow_log_syncs(map, target.id, &histogram(&load.buckets), limit_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Key, Level};
    use crate::settings::MonitorSettings;
    use skep_metrics::Stage;
    use skep_stats::why::Times;
    use skep_types::map::Reachability;
    use skep_types::{ClusterId, NodeId, TargetId};

    fn map(kind: TargetKind) -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.formatted = true;
        map.targets = (1..=4)
            .map(|id| Target {
                reachability: Reachability::Online,
                ..Target::new(TargetId::new(id), kind, NodeId::new(2), "/d")
            })
            .collect();
        map
    }

    /// Returns the rules that have findings after a minute, with the objects of the findings. In
    /// each second, target `t` has the load `load(t, second)`.
    fn rules(
        kind: TargetKind,
        dimension: Dimension,
        load: impl Fn(u32, u64) -> Load,
    ) -> Vec<(&'static str, String)> {
        let frames = (0..60).map(|second| {
            let loads = (1..=4).map(|id: u32| {
                let key = Key { dimension, id: id.to_string(), service: "storage".into() };
                (key, load(id, second))
            });
            Frame { samples: 1, span_ms: 1000, loads: loads.collect(), ..Frame::default() }
        });
        let frames = frames.collect();
        let collected = Collected { map: Some(map(kind)), ..Collected::default() };
        let settings = MonitorSettings::default().alerts;
        let found = findings(&Situation {
            collected: &collected,
            frames: &frames,
            evidence: &Evidence::default(),
            work: &WorkByTarget::new(),
            filling: &FillWatch::default(),
            round: &Round::new(),
            history_problem: None,
            evicted: &[],
            hidden_pages: &[],
            settings: &settings,
        });
        // Omit the rule `target-waits`, because the targets of this test have no groups.
        let of_targets =
            found.into_iter().filter(|it| it.object.starts_with('t') && it.rule != "target-waits");
        of_targets.map(|it| (it.rule, it.object)).collect()
    }

    #[test]
    fn slow_target_is_reported_above_the_configured_factor() {
        let mut evidence = Evidence { span_ns: 5_000_000_000, ..Evidence::default() };
        for id in 1..=4 {
            let ms = if id == 3 { 40 } else { 4 };
            let mut times = Times { requests: 100, ..Times::default() };
            times.stages_ns[Stage::Disk as usize] = 100 * ms * 1_000_000;
            let target = evidence.targets.entry(id).or_default();
            target.kinds.insert("write_chunk".into(), times);
        }
        let map = map(TargetKind::Storage);
        let collected = Collected { map: Some(map), ..Collected::default() };
        let found = |settings: &AlertSettings| -> Vec<String> {
            let found = findings(&Situation {
                collected: &collected,
                frames: &VecDeque::new(),
                evidence: &evidence,
                work: &WorkByTarget::new(),
                filling: &FillWatch::default(),
                round: &Round::new(),
                history_problem: None,
                evicted: &[],
                hidden_pages: &[],
                settings,
            });
            let slow = found.into_iter().filter(|it| it.rule == "target-slow");
            slow.map(|it| it.object).collect()
        };
        let mut settings = MonitorSettings::default().alerts;
        assert_eq!(found(&settings), ["t3"]);
        settings.slow_factor = 20;
        assert_eq!(found(&settings), Vec::<String>::new());
    }

    #[test]
    fn management_without_replies_is_one_finding() {
        let mut of_cluster = map(TargetKind::Storage);
        for (id, kind) in [(1, NodeKind::Management), (3, NodeKind::Storage)] {
            let node = skep_types::Node::online(NodeId::new(id), kind, kind_word(kind));
            of_cluster.nodes.push(node);
        }
        let collected = Collected {
            map: Some(of_cluster),
            map_problem: Some("no reply".into()),
            unreachable: [(1, "no reply".to_owned()), (3, "no reply".to_owned())].into(),
            ..Collected::default()
        };
        let found = findings(&Situation {
            collected: &collected,
            frames: &VecDeque::new(),
            evidence: &Evidence::default(),
            work: &WorkByTarget::new(),
            filling: &FillWatch::default(),
            round: &Round::new(),
            history_problem: None,
            evicted: &[],
            hidden_pages: &["storage-1".into()],
            settings: &MonitorSettings::default().alerts,
        });
        let of_rule = |rule: &str| {
            let found = found.iter().filter(|it| it.rule == rule);
            found.map(|it| it.object.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(of_rule("management-unreachable"), ["management"]);
        assert_eq!(of_rule("service-unreachable"), ["n3"]);
        assert_eq!(of_rule("metrics-page-hidden"), ["prometheus"]);
        // The process of a silent service may be suspended.
        let silent = found.iter().find(|it| it.rule == "service-unreachable").unwrap();
        assert!(silent.remedy.starts_with("`skep health check` shows"), "{}", silent.remedy);
    }

    #[test]
    fn many_evicted_clients_are_one_finding() {
        let clients = |count: u32| -> Vec<EvictedClient> {
            let client = |number: u32| {
                let reason = if number == 5 { "it was silent" } else { "" };
                EvictedClient { name: format!("c{number}:/mnt"), reason: reason.into() }
            };
            (0..count).map(client).collect()
        };
        let objects = |count: u32| -> Vec<String> {
            evictions(&clients(count)).into_iter().map(|finding| finding.object).collect()
        };
        assert_eq!(objects(0), Vec::<String>::new());
        assert_eq!(objects(4), ["c0:/mnt", "c1:/mnt", "c2:/mnt", "c3:/mnt"]);
        assert_eq!(objects(1000), ["clients"]);
        let what = &evictions(&clients(7))[0].what;
        let expected = "7 clients were evicted within a minute: c0:/mnt, c1:/mnt, c2:/mnt, \
                        c3:/mnt, and 3 more; c5:/mnt: it was silent";
        assert_eq!(what, expected);
        let texts = evictions(&clients(6)[4..]).into_iter().map(|finding| finding.what);
        let expected = ["client c4:/mnt was evicted", "client c5:/mnt was evicted: it was silent"];
        assert_eq!(texts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn only_a_long_and_growing_queue_is_reported() {
        let queue = |level: fn(u64) -> i64| {
            rules(TargetKind::Storage, Dimension::Target, move |id, second| Load {
                queued: Level::of(if id == 2 { level(second) } else { 0 }),
                ..Load::default()
            })
        };
        assert_eq!(queue(|second| second as i64 * 10), [("queue-growing", "t2".to_owned())]);
        assert_eq!(queue(|_| 500), [], "a long queue that does not grow");
        assert_eq!(queue(|second| second as i64), [], "a short queue that grows");
    }

    #[test]
    fn slow_log_syncs_of_a_metadata_target_are_reported() {
        let syncs = |bucket: u16| {
            rules(TargetKind::Metadata, Dimension::LogSync, move |id, _| {
                let bucket = if id == 1 { bucket } else { 40 };
                Load { operations: 10, buckets: vec![(bucket, 10)], ..Load::default() }
            })
        };
        assert_eq!(syncs(80), [("log-sync-slow", "t1".to_owned())]);
        assert_eq!(syncs(50), []);
    }
}
