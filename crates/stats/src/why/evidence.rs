//! Evidence: the measured times of a span, from two replies of each service.
//!
//! Evidence of adjacent spans can be added up, so the monitor stores the evidence of short spans
//! and explains long spans. The module does not judge the figures (`causes` does).

use super::traffic::{Interval, Traffic, bound};
use crate::change::{Change, LEFT_OUT, changes, seconds};
use crate::row::LONG_POLLS;
use crate::{Round, ServiceFigures};
use skep_metrics::{STAGES, Stage};
use std::collections::BTreeMap;

/// Maximum number of clients that the evidence of a target names. The same limit holds for users
/// and for directories. All other clients, users or directories are merged into the entry `other`,
/// so sums stay exact.
pub const MAX_NAMED: usize = 16;

/// Stages in which a request is in the queue or in the thread of a metadata target.
const HELD: [Stage; 2] = [Stage::Waiting, Stage::Processing];

/// Times of requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Number of completed requests.
    pub requests: u64,
    /// Bytes of file data in the requests and their replies.
    pub bytes: u64,
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
        self.bytes = self.bytes.saturating_add(other.bytes);
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
    /// File data that the client has written and read.
    pub traffic: Traffic,
}

/// Requests of one user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Number of completed requests.
    pub count: u64,
    /// Time that the requests have spent in the queue of the target and in the batches that handled
    /// these requests.
    pub held_ns: u64,
}

impl Requests {
    pub(super) fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.held_ns = self.held_ns.saturating_add(other.held_ns);
    }
}

/// A client that is silent, or was silent for a while, although requests of other clients wait for
/// it. A silent client sends no requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holder {
    /// Time since the client's last request, in the newest reply that shows the client as silent.
    pub silent_ns: u64,
    /// Highest number of requests that waited for the client.
    pub waits: u64,
    /// Time between the end of the client's silence and the end of the span. Zero means that the
    /// client is still silent.
    pub ago_ns: u64,
}

impl Holder {
    /// Whether the silence ended within the span.
    pub fn is_over(&self) -> bool {
        self.ago_ns > 0
    }
}

/// Requests without a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenRequests {
    /// Number of the requests.
    pub count: u64,
    /// Age of the oldest request. Zero without an open request.
    pub oldest_ns: u64,
    /// Time between the measurement of these figures and the end of the span.
    pub ago_ns: u64,
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
    pub users: BTreeMap<String, Requests>,
    /// Requests by directory.
    pub directories: BTreeMap<String, u64>,
    /// Syncs of the log: their number, and the sum of their times in nanoseconds.
    pub log_syncs: (u64, u64),
    /// Time in which the thread of a metadata target was not idle.
    pub working_ns: u64,
    /// Silent clients for which requests wait or have waited, by node id.
    pub holders: BTreeMap<u32, Holder>,
    /// Requests without a reply, when the oldest of them was oldest.
    pub open: OpenRequests,
}

impl TargetEvidence {
    /// Returns the sum of the times of all requests.
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
            sum.traffic.add_later(link.traffic);
        }
        for (user, requests) in &other.users {
            self.users.entry(user.clone()).or_default().add(requests);
        }
        add_counts(&mut self.directories, &other.directories);
        self.log_syncs.0 = self.log_syncs.0.saturating_add(other.log_syncs.0);
        self.log_syncs.1 = self.log_syncs.1.saturating_add(other.log_syncs.1);
        self.working_ns = self.working_ns.saturating_add(other.working_ns);
        for (client, later) in &other.holders {
            let holder = self.holders.entry(*client).or_default();
            *holder = Holder { waits: holder.waits.max(later.waits), ..*later };
        }
        if other.open.oldest_ns >= self.open.oldest_ns {
            self.open = other.open;
        }
        self.bound();
    }

    /// Limits the named clients, users and directories to the [`MAX_NAMED`] heaviest. Limits the
    /// silent clients to the [`MAX_NAMED`] that were silent most recently.
    fn bound(&mut self) {
        let weight = |link: &Link| {
            link.times.stages_ns.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns))
        };
        for light in light_keys(&self.clients, weight) {
            let link = self.clients.remove(&light).unwrap_or_default();
            let rest = self.clients.entry(LEFT_OUT.into()).or_default();
            rest.times.add(&link.times);
            rest.traffic.add_beside(link.traffic);
        }
        for light in light_keys(&self.users, |requests| requests.count) {
            let requests = self.users.remove(&light).unwrap_or_default();
            self.users.entry(LEFT_OUT.into()).or_default().add(&requests);
        }
        for light in light_keys(&self.directories, |count| *count) {
            let count = self.directories.remove(&light).unwrap_or_default();
            let rest = self.directories.entry(LEFT_OUT.into()).or_default();
            *rest = rest.saturating_add(count);
        }
        while self.holders.len() > MAX_NAMED {
            let oldest = self.holders.iter().max_by_key(|(_, holder)| holder.ago_ns);
            let Some(client) = oldest.map(|(client, _)| *client) else { break };
            self.holders.remove(&client);
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

/// Returns the traffic of the clients that the evidence of the targets names.
pub(super) fn interval_of(targets: &BTreeMap<u32, TargetEvidence>) -> Interval {
    let mut interval = Interval::new();
    for (target, evidence) in targets {
        for (client, link) in evidence.clients.iter().filter(|(client, _)| *client != LEFT_OUT) {
            if let (Ok(client), true) = (client.parse(), link.traffic.bytes > 0) {
                interval.insert((*target, client), link.traffic);
            }
        }
    }
    interval
}

/// The measured times of a span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Length of the span: the longest span of all targets.
    pub span_ns: u64,
    /// The evidence of each target, by target id.
    pub targets: BTreeMap<u32, TargetEvidence>,
    /// The data that moved in each interval with data, oldest first.
    pub intervals: Vec<Interval>,
}

impl Evidence {
    /// Returns the evidence between an earlier reply of each service and the later round `now`.
    /// `before` returns the earlier reply for a node id. A service without an earlier reply of the
    /// same process contributes nothing.
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
        let interval = interval_of(&evidence.targets);
        if !interval.is_empty() {
            evidence.intervals.push(interval);
        }
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
                count_open(&mut target.open, &change, now.statistics.moment_ns);
            }
        }
    }

    /// Adds the evidence of a later span.
    pub fn add(&mut self, later: &Self) {
        self.span_ns = self.span_ns.saturating_add(later.span_ns);
        for target in self.targets.values_mut() {
            for holder in target.holders.values_mut() {
                // Later evidence about the same client replaces this value.
                holder.ago_ns = holder.ago_ns.saturating_add(later.span_ns);
            }
            if target.open.oldest_ns > 0 {
                target.open.ago_ns = target.open.ago_ns.saturating_add(later.span_ns);
            }
        }
        for (id, target) in &later.targets {
            self.targets.entry(*id).or_default().add(target);
        }
        self.intervals.extend(later.intervals.iter().cloned());
        bound(&mut self.intervals);
    }
}

fn stage_of(change: &Change<'_>) -> Option<usize> {
    Stage::ALL.iter().position(|stage| stage.name() == change.label("stage"))
}

/// Takes the open requests of a target from one series of a reply that was made at `moment_ns`.
fn count_open(open: &mut OpenRequests, change: &Change<'_>, moment_ns: u64) {
    let value = u64::try_from(change.series.value).unwrap_or(0);
    match change.series.metric.as_str() {
        "skep_metadata_requests_open" | "skep_storage_requests_open" => open.count = value,
        "skep_metadata_oldest_request_start_seconds"
        | "skep_storage_oldest_request_start_seconds"
            if value > 0 =>
        {
            open.oldest_ns = moment_ns.saturating_sub(value);
        }
        _ => {}
    }
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
        "skep_metadata_working_seconds" => target.working_ns = growth,
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
            let Some(stage) = stage_of(change) else { return };
            match change.label("by") {
                "client" => {
                    target.clients.entry(id()).or_default().times.stages_ns[stage] += growth;
                }
                "user" if HELD.contains(&Stage::ALL[stage]) => {
                    target.users.entry(id()).or_default().held_ns += growth;
                }
                _ => {}
            }
        }
        "skep_load_moving_seconds" if growth > 0 => {
            target.clients.entry(id()).or_default().traffic.moving_ns += growth;
        }
        "skep_load_written_bytes" | "skep_load_read_bytes"
            if growth > 0 && change.label("by") == "client" =>
        {
            target.clients.entry(id()).or_default().traffic.bytes += growth;
        }
        "skep_load_operations" if growth > 0 => match change.label("by") {
            "client" => target.clients.entry(id()).or_default().times.requests += growth,
            "user" => target.users.entry(id()).or_default().count += growth,
            "directory" => *target.directories.entry(id()).or_default() += growth,
            _ => {}
        },
        _ if growth > 0 && !LONG_POLLS.contains(&change.label("operation")) => {
            let kind = change.label("operation").to_owned();
            if metric.ends_with("_operations") {
                target.kinds.entry(kind).or_default().requests += growth;
            } else if metric.ends_with("_received_bytes") || metric.ends_with("_sent_bytes") {
                target.kinds.entry(kind).or_default().bytes += growth;
            } else if metric.ends_with("_stage_seconds")
                && let Some(stage) = stage_of(change)
            {
                target.kinds.entry(kind).or_default().stages_ns[stage] += growth;
            }
        }
        _ => {}
    }
}
