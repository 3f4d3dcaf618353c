//! Evidence: the measured times of a span, from two replies of each service.
//!
//! Evidence of adjacent spans can be added up, so the monitor keeps short spans and explains long
//! ones. Does not own the judgement of the figures (`causes`).

use crate::change::{Change, LEFT_OUT, changes, seconds};
use crate::row::LONG_POLLS;
use crate::{Round, ServiceFigures};
use skep_metrics::{STAGES, Stage};
use std::collections::BTreeMap;

/// Maximum number of clients, users and directories that the evidence of a target names, each. The
/// others are one entry, `other`, so sums stay exact.
pub const MAX_NAMED: usize = 16;

/// Times of requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Completed requests.
    pub requests: u64,
    /// Time in each stage, in the order of [`Stage::ALL`].
    pub stages_ns: [u64; STAGES],
}

impl Times {
    /// Returns the time in a stage.
    pub fn of(&self, stage: Stage) -> u64 {
        self.stages_ns[stage as usize]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        for (own, other) in self.stages_ns.iter_mut().zip(other.stages_ns) {
            *own = own.saturating_add(other);
        }
    }
}

/// The traffic of one client with one target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Requests and their times.
    pub times: Times,
    /// Bytes of file data that the client has written and read.
    pub data_bytes: u64,
}

/// A client that sends nothing while requests of others wait for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holder {
    /// Time since its last request.
    pub silent_ns: u64,
    /// Number of requests that wait for it.
    pub waits: u64,
}

/// The evidence of one target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetEvidence {
    /// Length of the span.
    pub span_ns: u64,
    /// Times by kind of request, without requests whose purpose is to wait for an event.
    pub kinds: BTreeMap<String, Times>,
    /// Traffic by client.
    pub clients: BTreeMap<String, Link>,
    /// Requests by user.
    pub users: BTreeMap<String, u64>,
    /// Requests by directory.
    pub directories: BTreeMap<String, u64>,
    /// Syncs of the log: their number, and their time.
    pub log_syncs: (u64, u64),
    /// Time in which the thread of a metadata target has handled requests.
    pub batch_ns: u64,
    /// Silent clients for which requests wait, by node id.
    pub holders: BTreeMap<u32, Holder>,
}

impl TargetEvidence {
    /// Returns the times of all requests together.
    pub fn all(&self) -> Times {
        let mut sum = Times::default();
        self.kinds.values().for_each(|times| sum.add(times));
        sum
    }

    fn add(&mut self, other: &Self) {
        self.span_ns = self.span_ns.saturating_add(other.span_ns);
        for (kind, times) in &other.kinds {
            self.kinds.entry(kind.clone()).or_default().add(times);
        }
        for (client, link) in &other.clients {
            let sum = self.clients.entry(client.clone()).or_default();
            sum.times.add(&link.times);
            sum.data_bytes = sum.data_bytes.saturating_add(link.data_bytes);
        }
        add_counts(&mut self.users, &other.users);
        add_counts(&mut self.directories, &other.directories);
        self.log_syncs.0 = self.log_syncs.0.saturating_add(other.log_syncs.0);
        self.log_syncs.1 = self.log_syncs.1.saturating_add(other.log_syncs.1);
        self.batch_ns = self.batch_ns.saturating_add(other.batch_ns);
        for (client, holder) in &other.holders {
            let longest = self.holders.entry(*client).or_default();
            longest.silent_ns = longest.silent_ns.max(holder.silent_ns);
            longest.waits = longest.waits.max(holder.waits);
        }
        self.bound();
    }

    /// Keeps the [`MAX_NAMED`] heaviest clients, users and directories.
    fn bound(&mut self) {
        let weight = |link: &Link| {
            link.times.stages_ns.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns))
        };
        for light in light_keys(&self.clients, weight) {
            let link = self.clients.remove(&light).unwrap_or_default();
            let rest = self.clients.entry(LEFT_OUT.into()).or_default();
            rest.times.add(&link.times);
            rest.data_bytes = rest.data_bytes.saturating_add(link.data_bytes);
        }
        for counts in [&mut self.users, &mut self.directories] {
            for light in light_keys(counts, |count| *count) {
                let count = counts.remove(&light).unwrap_or_default();
                let rest = counts.entry(LEFT_OUT.into()).or_default();
                *rest = rest.saturating_add(count);
            }
        }
    }
}

fn add_counts(sum: &mut BTreeMap<String, u64>, other: &BTreeMap<String, u64>) {
    for (id, count) in other {
        let sum = sum.entry(id.clone()).or_default();
        *sum = sum.saturating_add(*count);
    }
}

/// Returns the keys of all entries except the [`MAX_NAMED`] with the highest weight.
fn light_keys<T>(entries: &BTreeMap<String, T>, weight: impl Fn(&T) -> u64) -> Vec<String> {
    let named = entries.iter().filter(|(id, _)| *id != LEFT_OUT);
    let mut ranked: Vec<_> = named.map(|(id, entry)| (weight(entry), id)).collect();
    if ranked.len() <= MAX_NAMED {
        return Vec::new();
    }
    ranked.sort_by(|a, b| b.cmp(a));
    ranked.drain(MAX_NAMED..).map(|(_, id)| id.clone()).collect()
}

/// The measured times of a span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Length of the span: the longest of all targets.
    pub span_ns: u64,
    /// The evidence of each target, by target id.
    pub targets: BTreeMap<u32, TargetEvidence>,
}

impl Evidence {
    /// Returns the evidence between the replies that `before` returns for a node id, and a later
    /// round. A service without an earlier reply of the same process contributes nothing.
    pub fn since<'a>(before: impl Fn(u32) -> Option<&'a ServiceFigures>, now: &Round) -> Self {
        let mut evidence = Self::default();
        for figures in now {
            let earlier = before(figures.node);
            if let Some(seconds) = seconds(earlier, figures) {
                let span_ns = (seconds * 1e9) as u64;
                evidence.span_ns = evidence.span_ns.max(span_ns);
                evidence.collect(earlier, figures, span_ns);
            }
        }
        evidence.targets.values_mut().for_each(TargetEvidence::bound);
        evidence
    }

    /// Returns the evidence between two rounds.
    pub fn between(before: &Round, now: &Round) -> Self {
        Self::since(|node| before.iter().find(|it| it.node == node), now)
    }

    fn collect(&mut self, earlier: Option<&ServiceFigures>, now: &ServiceFigures, span_ns: u64) {
        for change in changes(earlier, now) {
            if let Ok(id) = change.label("target").parse() {
                let target = self.targets.entry(id).or_default();
                target.span_ns = span_ns;
                count(target, &change);
            }
        }
    }

    /// Adds the evidence of a later span.
    pub fn add(&mut self, later: &Self) {
        self.span_ns = self.span_ns.saturating_add(later.span_ns);
        for (id, target) in &later.targets {
            self.targets.entry(*id).or_default().add(target);
        }
    }
}

fn stage_of(change: &Change<'_>) -> Option<usize> {
    Stage::ALL.iter().position(|stage| stage.name() == change.label("stage"))
}

/// Adds the change of one series to the evidence of its target.
fn count(target: &mut TargetEvidence, change: &Change<'_>) {
    let growth = u64::try_from(change.growth).unwrap_or(0);
    let metric = change.series.metric.as_str();
    let id = || change.label("id").to_owned();
    match metric {
        "skep_metadata_log_sync_seconds" => {
            let count = change.durations.as_ref().map_or(0, |durations| durations.count());
            target.log_syncs = (count, growth);
        }
        "skep_metadata_batch_seconds" => target.batch_ns = growth,
        "skep_metadata_client_silent_seconds" | "skep_metadata_waits_for_client" => {
            let Ok(client) = change.label("client").parse() else { return };
            let holder = target.holders.entry(client).or_default();
            let value = u64::try_from(change.series.value).unwrap_or(0);
            match metric {
                "skep_metadata_waits_for_client" => holder.waits = value,
                _ => holder.silent_ns = value,
            }
        }
        "skep_load_stage_seconds" if growth > 0 => {
            let stage = stage_of(change);
            let link = target.clients.entry(id()).or_default();
            if let Some(stage) = stage {
                link.times.stages_ns[stage] += growth;
            }
        }
        "skep_load_written_bytes" | "skep_load_read_bytes"
            if growth > 0 && change.label("by") == "client" =>
        {
            target.clients.entry(id()).or_default().data_bytes += growth;
        }
        "skep_load_operations" if growth > 0 => match change.label("by") {
            "client" => target.clients.entry(id()).or_default().times.requests += growth,
            "user" => *target.users.entry(id()).or_default() += growth,
            "directory" => *target.directories.entry(id()).or_default() += growth,
            _ => {}
        },
        _ if growth > 0 && !LONG_POLLS.contains(&change.label("operation")) => {
            let kind = change.label("operation").to_owned();
            if metric.ends_with("_operations") {
                target.kinds.entry(kind).or_default().requests += growth;
            } else if metric.ends_with("_stage_seconds")
                && let Some(stage) = stage_of(change)
            {
                target.kinds.entry(kind).or_default().stages_ns[stage] += growth;
            }
        }
        _ => {}
    }
}
