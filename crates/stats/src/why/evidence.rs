//! Evidence: the measured times of a time span, computed from two replies of each service.
//!
//! Evidence of adjacent time spans can be added up. So the monitor stores the evidence of short
//! spans, and can explain long spans. The module does not judge the evidence (`causes` does).

use super::focus::Focus;
use super::hosts::{self, HostEvidence};
use super::traffic::{Interval, Traffic, bound};
use crate::change::{Change, LEFT_OUT, changes, seconds};
use crate::row::LONG_POLLS;
use crate::{Round, ServiceFigures};
use skep_metrics::{STAGES, Stage};
use std::collections::BTreeMap;

/// Maximum number of clients with an entry of their own in the evidence of a target. The same limit
/// applies to users, jobs and directories. The entry `other` contains the sum of all entries that
/// are not listed, so that totals stay exact.
pub const MAX_NAMED: usize = 16;

/// The total time of the requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Number of completed requests.
    pub requests: u64,
    /// Bytes of file data in the requests and their replies.
    pub bytes: u64,
    /// Time spent in each stage, in the order of [`Stage::ALL`].
    pub stages_ns: [u64; STAGES],
}

impl Times {
    /// Returns the time spent in a stage.
    pub fn of(&self, stage: Stage) -> u64 {
        self.stages_ns[stage as usize]
    }

    /// Returns the time spent in all stages.
    pub fn all_ns(&self) -> u64 {
        self.stages_ns.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns))
    }

    /// Returns the time that the requests have spent in the queue of the target, and in the batches
    /// of requests that the target handled together.
    pub(super) fn held_ns(&self) -> u64 {
        self.of(Stage::Waiting).saturating_add(self.of(Stage::Processing))
    }

    /// Adds the times of other requests.
    pub fn add(&mut self, other: &Self) {
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
    /// The requests and their times.
    pub times: Times,
    /// File data that the client has written and read.
    pub traffic: Traffic,
}

/// A client that sends no requests, or sent none for a while, although requests of other clients
/// wait for it. Such a client is called silent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holder {
    /// Time since the client's last request, in the newest reply that shows the client as silent.
    pub silent_ns: u64,
    /// Highest number of requests that waited for the client at one moment.
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

/// Requests that have no reply yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenRequests {
    /// Number of requests.
    pub count: u64,
    /// Age of the oldest request without a reply. Zero if there is no such request.
    pub oldest_ns: u64,
    /// Time from the measurement of `count` and `oldest_ns` to the end of the span.
    pub ago_ns: u64,
}

/// Measurements of one target in a time span: times, traffic and numbers of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetEvidence {
    /// Length of the time span.
    pub span_ns: u64,
    /// Times by kind of request. Requests whose purpose is to wait for an event are omitted.
    pub kinds: BTreeMap<String, Times>,
    /// Traffic by client.
    pub clients: BTreeMap<String, Link>,
    /// Requests and their times by user.
    pub users: BTreeMap<String, Times>,
    /// Requests and their times by job.
    pub jobs: BTreeMap<String, Times>,
    /// Number of requests by directory.
    pub directories: BTreeMap<String, u64>,
    /// Syncs of the log: their number, and the sum of their durations in nanoseconds.
    pub log_syncs: (u64, u64),
    /// Time in which the thread of a metadata target was not idle.
    pub working_ns: u64,
    /// Silent clients for which requests wait or have waited, by node id of the client.
    pub holders: BTreeMap<u32, Holder>,
    /// The requests without a reply at one moment of the time span: the moment at which the oldest
    /// request had waited longest.
    pub open: OpenRequests,
}

impl TargetEvidence {
    /// Returns the sum of the times of all requests.
    pub fn all(&self) -> Times {
        let mut sum = Times::default();
        self.kinds.values().for_each(|times| sum.add(times));
        sum
    }

    /// Returns the times at this target of the requests of the client, user or job in `focus`.
    /// Returns `None` if the evidence of the target has no entry for this client, user or job.
    pub(super) fn times_of(&self, focus: &Focus) -> Option<Times> {
        let named =
            |causes: &BTreeMap<String, Times>, id: u32| causes.get(&id.to_string()).cloned();
        match (focus.client, focus.user, focus.job) {
            (Some(id), ..) => self.clients.get(&id.to_string()).map(|it| it.times.clone()),
            (_, Some(id), _) => named(&self.users, id),
            (.., Some(id)) => named(&self.jobs, id),
            (None, None, None) => Some(self.all()),
        }
    }

    /// Whether requests of the client, user or job in `focus` may be missing from this evidence:
    /// there is no entry for it, but an entry `other`.
    pub(super) fn may_leave_out(&self, focus: &Focus) -> bool {
        let has_rest = match (focus.client, focus.user, focus.job) {
            (Some(_), ..) => self.clients.contains_key(LEFT_OUT),
            (_, Some(_), _) => self.users.contains_key(LEFT_OUT),
            (.., Some(_)) => self.jobs.contains_key(LEFT_OUT),
            (None, None, None) => false,
        };
        has_rest && self.times_of(focus).is_none()
    }

    fn add(&mut self, other: &Self, focus: &Focus) {
        self.span_ns = self.span_ns.saturating_add(other.span_ns);
        for (kind, times) in &other.kinds {
            self.kinds.entry(kind.clone()).or_default().add(times);
        }
        for (client, link) in &other.clients {
            let sum = self.clients.entry(client.clone()).or_default();
            sum.times.add(&link.times);
            sum.traffic.add_later(link.traffic);
        }
        for (own, other) in [(&mut self.users, &other.users), (&mut self.jobs, &other.jobs)] {
            for (id, times) in other {
                own.entry(id.clone()).or_default().add(times);
            }
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
        self.bound(focus);
    }

    /// Keeps the entries of the [`MAX_NAMED`] heaviest clients, users, jobs and directories, and of
    /// the focus. Keeps the [`MAX_NAMED`] clients that were silent most recently.
    fn bound(&mut self, focus: &Focus) {
        for light in light_keys(&self.clients, |link| link.times.all_ns(), focus.client) {
            let link = self.clients.remove(&light).unwrap_or_default();
            let rest = self.clients.entry(LEFT_OUT.into()).or_default();
            rest.times.add(&link.times);
            rest.traffic.add_beside(link.traffic);
        }
        for (causes, kept) in [(&mut self.users, focus.user), (&mut self.jobs, focus.job)] {
            for light in light_keys(causes, |times| times.requests, kept) {
                let times = causes.remove(&light).unwrap_or_default();
                causes.entry(LEFT_OUT.into()).or_default().add(&times);
            }
        }
        for light in light_keys(&self.directories, |count| *count, None) {
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

/// Returns the keys of all entries except `kept` and the [`MAX_NAMED`] entries with the highest
/// weight.
fn light_keys<T>(
    entries: &BTreeMap<String, T>,
    weight: impl Fn(&T) -> u64,
    kept: Option<u32>,
) -> Vec<String> {
    let kept = kept.map(|id| id.to_string());
    let is_named = |id: &String| id != LEFT_OUT && Some(id) != kept.as_ref();
    let named = entries.iter().filter(|(id, _)| is_named(id));
    let mut ranked: Vec<_> = named.map(|(id, entry)| (weight(entry), id)).collect();
    if ranked.len() <= MAX_NAMED {
        return Vec::new();
    }
    ranked.sort_by(|a, b| b.cmp(a));
    ranked.drain(MAX_NAMED..).map(|(_, id)| id.clone()).collect()
}

/// Returns the traffic of the clients that have an entry in the evidence of the targets.
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

/// The measured times of a time span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Length of the time span: the longest span of all targets.
    pub span_ns: u64,
    /// The evidence of each target, by target id.
    pub targets: BTreeMap<u32, TargetEvidence>,
    /// The state of the host of each service, by node id.
    pub hosts: BTreeMap<u32, HostEvidence>,
    /// The data that moved in each interval in which data moved, the oldest interval first.
    pub intervals: Vec<Interval>,
    /// The client, user or job that always has an entry in the evidence.
    pub focus: Focus,
}

impl Evidence {
    /// Returns the evidence between an earlier reply of each service and the later round `now`.
    /// `before` returns the earlier reply of the service with a node id. A service contributes
    /// nothing if it has no earlier reply or has restarted since then.
    pub fn since<'a>(before: impl Fn(u32) -> Option<&'a ServiceFigures>, now: &Round) -> Self {
        Self::about(Focus::default(), before, now)
    }

    fn about<'a>(
        focus: Focus,
        before: impl Fn(u32) -> Option<&'a ServiceFigures>,
        now: &Round,
    ) -> Self {
        let mut evidence = Self { focus, ..Self::default() };
        evidence.hosts = hosts::of_round(&before, now);
        for figures in now {
            let earlier = before(figures.node);
            if let Some(seconds) = seconds(earlier, figures) {
                let span_ns = (seconds * 1e9) as u64;
                evidence.span_ns = evidence.span_ns.max(span_ns);
                evidence.collect(earlier, figures, span_ns);
            }
        }
        evidence.targets.values_mut().for_each(|target| target.bound(&focus));
        let interval = interval_of(&evidence.targets);
        if !interval.is_empty() {
            evidence.intervals.push(interval);
        }
        evidence
    }

    /// Returns the evidence between two rounds. The evidence always has entries for the client,
    /// user or job in the focus.
    pub fn between(before: &Round, now: &Round, focus: Focus) -> Self {
        Self::about(focus, |node| before.iter().find(|it| it.node == node), now)
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

    /// Adds the evidence of a later time span.
    pub fn add(&mut self, later: &Self) {
        self.span_ns = self.span_ns.saturating_add(later.span_ns);
        for target in self.targets.values_mut() {
            for holder in target.holders.values_mut() {
                // If `later` has an entry for the same client, the loop below replaces this value.
                holder.ago_ns = holder.ago_ns.saturating_add(later.span_ns);
            }
            if target.open.oldest_ns > 0 {
                target.open.ago_ns = target.open.ago_ns.saturating_add(later.span_ns);
            }
        }
        for (id, target) in &later.targets {
            self.targets.entry(*id).or_default().add(target, &self.focus);
        }
        for (node, host) in &later.hosts {
            self.hosts.entry(*node).or_default().add(host);
        }
        self.intervals.extend(later.intervals.iter().cloned());
        bound(&mut self.intervals);
    }
}

fn stage_of(change: &Change<'_>) -> Option<usize> {
    Stage::ALL.iter().position(|stage| stage.name() == change.label("stage"))
}

/// Updates the open requests of a target from one series of a reply. The service created the reply
/// at `moment_ns`.
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
                "user" => target.users.entry(id()).or_default().stages_ns[stage] += growth,
                "job" => target.jobs.entry(id()).or_default().stages_ns[stage] += growth,
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
            "user" => target.users.entry(id()).or_default().requests += growth,
            "job" => target.jobs.entry(id()).or_default().requests += growth,
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
