//! Log lines about changes of the cluster map: the reachability of servers, and the members of
//! groups.
//!
//! Each line names nodes, targets and groups as the commands print them, and names the operations
//! that wait. [`crate::authority`] and `skep_cluster` make the changes.
//! [`skep_cluster::outage_effect`] determines the effects of outages.

use skep_cluster::outage_effect::{OutageEffect, effect_of_outage, effect_of_unserved_target};
use skep_cluster::problems::target_kind_word;
use skep_cluster::reachability::Outage;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::{Capacity, Condition, Consistency, KnownReason, Reachability, TargetHealth};
use skep_types::{
    ClusterMap, Eviction, Group, GroupMember, GroupRecord, MemberState, Node, NodeId, NodeKind,
    Target, TargetId,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// The level of a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// Operations wait until an administrator has acted, or the server is online again.
    Error,
    /// Operations continue, or wait only for a moment, although a server, a target or a copy of the
    /// data is missing.
    Warn,
    /// A normal event.
    Info,
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line(Level, String);

impl Line {
    /// Writes the line to the log.
    pub(crate) fn write(&self) {
        let Self(level, text) = self;
        match level {
            Level::Error => tracing::error!("{text}"),
            Level::Warn => tracing::warn!("{text}"),
            Level::Info => tracing::info!("{text}"),
        }
    }
}

/// Returns the lines about the servers whose reachability differs between two maps. `last_outage`
/// returns the last outage of a server that is online now.
pub(crate) fn reachability_lines(
    before: &ClusterMap,
    now: &ClusterMap,
    last_outage: impl Fn(NodeId) -> Option<Outage>,
) -> Vec<Line> {
    let servers = now.nodes.iter().filter(|node| node.kind != NodeKind::Client);
    servers.filter_map(|node| reachability_line(before, now, node, last_outage(node.id))).collect()
}

/// Returns the line about a server that is online. `None` means that the server was not seen
/// offline, because this is its first heartbeat since the start of management.
fn online_line(server: &str, former: Reachability, outage: Option<Outage>) -> Option<Line> {
    let text = match outage {
        Some(Outage { may_be_longer: true, .. }) if former == Reachability::ProbablyOffline => {
            return None;
        }
        None => format!("{server} is online"),
        // A new leader of management has observed only the end of the server's outage.
        Some(Outage { lasted_ms: ..1_000, may_be_longer: true }) => {
            format!("{server} is online again")
        }
        Some(Outage { lasted_ms, may_be_longer }) => {
            let at_least = if may_be_longer { "at least " } else { "" };
            format!("{server} is online again, after {at_least}{}", seconds(lasted_ms))
        }
    };
    Some(Line(Level::Info, text))
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

fn reachability_line(
    before: &ClusterMap,
    map: &ClusterMap,
    node: &Node,
    last_outage: Option<Outage>,
) -> Option<Line> {
    let former = before.node(node.id)?.reachability;
    if former == node.reachability {
        return None;
    }
    let server = format!("{} ({}) at {}", node.name, node.id, node.addresses.join(", "));
    let OutageEffect { is_blocking, is_group_absent, text: effect } = effect_of_outage(map, node);
    let level = if is_blocking { Level::Error } else { Level::Warn };
    match (former, node.reachability) {
        (_, Reachability::Online) => online_line(&server, former, last_outage),
        (Reachability::Online, Reachability::ProbablyOffline) => {
            let silent = seconds(map.policy.lease_ms.into());
            let text = format!("{server} has sent no heartbeat for {silent}; {effect}");
            // A short absence of one server may be a restart, so its line is a warning. But if all
            // members of a group are absent, no member can take over, so the line is an error.
            Some(Line(if is_group_absent { Level::Error } else { Level::Warn }, text))
        }
        (_, Reachability::ProbablyOffline) => None,
        // Only a server that shuts down cleanly changes from online to offline immediately.
        (Reachability::Online, Reachability::Offline) => {
            let level = if level == Level::Error { Level::Warn } else { Level::Info };
            let retired = retired_clause(map, node);
            Some(Line(level, format!("{server} was stopped; {effect}{retired}")))
        }
        (_, Reachability::Offline) => Some(Line(
            level,
            format!("{server} is offline, since this server sends no heartbeats; {effect}"),
        )),
    }
}

/// Returns a clause if all targets of a server are closed to new files, as before its removal. The
/// map does not contain the number of files on a target.
fn retired_clause(map: &ClusterMap, node: &Node) -> &'static str {
    let mut own = map.targets.iter().filter(|target| target.node == node.id).peekable();
    let has_targets = own.peek().is_some();
    match has_targets && own.all(|target| target.health.condition == Condition::Closed) {
        true => {
            "; all its targets are closed to new files: if no file is left on them, no operation \
             waits"
        }
        false => "",
    }
}

/// The sender of a request to change a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A command of an administrator.
    Administrator,
    /// A member of the group, usually its primary.
    Member,
}

/// Returns the line about a change of a group that management has made. `before` is the map before
/// the change. `silent` is the time since the last heartbeat of the server with the target.
pub(crate) fn change_line(
    before: &ClusterMap,
    change: &GroupChange,
    asker: Asker,
    silent: Duration,
) -> Line {
    let GroupChange { group, change, target, .. } = *change;
    let found = before.group(group);
    let kind = found.map_or("metadata", |found| target_kind_word(found.kind));
    let group = format!("{kind} group {group}");
    let primary = found.map_or_else(String::new, |found| named(before, found.primary));
    let (member, target) = (target, named(before, target));
    let (level, text) = match change {
        MemberChange::Add => (
            Level::Info,
            format!("target {target} joins {group}, and serves when it has a copy of the data"),
        ),
        MemberChange::MarkInSync => (
            Level::Info,
            format!("target {target} has all data of {group}, and is a serving member"),
        ),
        MemberChange::TakeOver => (
            Level::Warn,
            format!(
                "{group} continues with target {target} as its primary, since target {primary} \
                 does not answer"
            ),
        ),
        MemberChange::Drop if asker == Asker::Administrator => (
            Level::Info,
            format!(
                "{group} continues without target {target} at the request of an administrator; \
                 the target catches up, and serves again, if it answers"
            ),
        ),
        MemberChange::Drop => (
            Level::Warn,
            format!(
                "{group} continues without target {target}, {}; {}the target catches up when it \
                 answers again",
                reason_to_drop(before, silent, &primary),
                found.map_or_else(String::new, |found| copies_without(before, found, member))
            ),
        ),
        MemberChange::HandOver => (
            Level::Info,
            format!("target {target} is now the primary of {group}, instead of target {primary}"),
        ),
        MemberChange::Remove => (Level::Info, format!("target {target} has left {group}")),
    };
    Line(level, text)
}

/// Returns why a primary asks management to drop a member whose server sent its last heartbeat
/// `silent` ago. A server that is shutting down continues to send heartbeats until it has ended.
/// The request does not contain the reason, so the line names the log that has it.
fn reason_to_drop(map: &ClusterMap, silent: Duration, primary: &str) -> String {
    let heartbeat = Duration::from_millis(map.policy.heartbeat_ms.into());
    match silent > 2 * heartbeat {
        true => format!("whose server has sent no heartbeat for {:.1} s", silent.as_secs_f64()),
        false => format!(
            "whose service is shutting down, or does not answer the primary (the log of the \
             primary, target {primary}, has the reason)"
        ),
    }
}

/// Returns the clause about the copies of a group that are left without the member `dropped`.
fn copies_without(map: &ClusterMap, group: &Group, dropped: TargetId) -> String {
    let is_left = |it: &&GroupMember| it.target != dropped && it.state == MemberState::Serving;
    let left: Vec<_> = group.members.iter().filter(is_left).collect();
    match left[..] {
        [] => String::new(),
        [one] => format!(
            "the group has one copy left, and operations on its files wait if target {} fails too; \
             ",
            named(map, one.target)
        ),
        _ => format!("the group has {} copies left; ", left.len()),
    }
}

/// Returns the line about the choice of a member of a group whose members may all lack records.
pub(crate) fn loss_line(before: &ClusterMap, change: &GroupChange) -> Line {
    let target = named(before, change.target);
    let role = match change.change {
        MemberChange::TakeOver => "has the longest log, and becomes the primary",
        MemberChange::HandOver => "has the longest log, and continues as the primary",
        _ => "gets the records that it lacks, if any, from the primary",
    };
    let text = format!(
        "each member of group {} reports that it may lack log records. After a restore of \
         management this is the expected course, and nothing is lost; after a power loss of all \
         members, changes may be lost. The group continues with the longest log: target {target} \
         {role}",
        change.group
    );
    Line(Level::Warn, text)
}

/// Returns the line about a group whose state in the map `before` is older than the state `record`
/// that the target `by` has recorded. The state in a map is older than such a record only after a
/// restore of management.
pub(crate) fn revision_line(
    before: &ClusterMap,
    group: &Group,
    record: &GroupRecord,
    by: TargetId,
) -> Line {
    let in_map = group.members.iter().map(|member| member.target);
    let text = format!(
        "management was restored from a backup that is older than the last change of metadata \
         group {}: the backup names the members {}, and target {} has recorded the members {}; the \
         group waits until management has compared their logs",
        group.id,
        list(before, in_map),
        named(before, by),
        list(before, record.members.iter().copied())
    );
    Line(Level::Warn, text)
}

/// Returns the line about a group that waits for reports of the targets `absent` after a restore of
/// management.
pub(crate) fn waiting_group_line(
    map: &ClusterMap,
    group: &Group,
    absent: &BTreeSet<TargetId>,
) -> Line {
    let reason = match absent.is_empty() {
        true => "no member has a complete copy of the data; see \"A metadata target from a copy\" \
                 in docs/operations/several-hosts.md"
            .to_owned(),
        false => format!(
            "one of the targets {} may have the newest changes, and has not reported its log; \
             start the services of these targets. If a target is lost for good, see \"Management\" \
             in docs/operations/backups.md",
            list(map, absent.iter().copied())
        ),
    };
    let text = format!(
        "operations of metadata group {} wait after a restore of management: {reason}",
        group.id
    );
    Line(Level::Error, text)
}

/// Returns targets with the names of their nodes, separated by commas.
fn list(map: &ClusterMap, targets: impl Iterator<Item = TargetId>) -> String {
    targets.map(|target| named(map, target)).collect::<Vec<_>>().join(", ")
}

/// Returns the line about the condition that a node reports for one of its targets.
pub(crate) fn condition_line(map: &ClusterMap, target: TargetId, health: &TargetHealth) -> Line {
    let name = named(map, target);
    let found = map.target(target);
    let path = found.map_or("", |target| &target.path);
    if health.condition == Condition::Down {
        if health.known_reason() == Some(KnownReason::Reopens) {
            let text = format!("target {name} in {path}: {}", health.problem);
            return Line(Level::Info, text);
        }
        // A target that is marked as lost need not be served.
        if found.is_some_and(|target| target.consistency == Consistency::Bad) {
            let text = format!("target {name} in {path} is marked as lost, and is not served");
            return Line(Level::Info, text);
        }
        // The map does not contain the report yet, so it has the condition before the report. An
        // administrator closes a target before its removal.
        let former = found.map_or(Condition::Down, |it| it.health.condition);
        let is_unreported = health.known_reason() == Some(KnownReason::Unreported);
        if is_unreported && former == Condition::Closed {
            let text = format!(
                "target {name} in {path} is closed to new files, and its service no longer serves \
                 the target, as during its removal; operations on files of the target wait"
            );
            return Line(Level::Info, text);
        }
        // A target that a service was serving ends without a report only if the service stops. The
        // hint of the reason about the settings would not fit.
        if is_unreported && former != Condition::Down {
            return stopping_line(map, target, &name);
        }
    }
    let state = match health.condition {
        Condition::Serving | Condition::Closed => {
            return Line(Level::Info, format!("target {name} is served again"));
        }
        Condition::ReadOnly => return read_only_line(&name, found, health),
        Condition::Hung => "does not answer its service",
        Condition::Down => "is not served",
    };
    let absent = (false, "the target is not in the cluster map any more");
    let (is_blocking, effect) = found.map_or(absent, |it| effect_of_unserved_target(map, it));
    // A service that has just started may not report its targets yet. After a restore, the members
    // of a group compare their logs for a short time. In both cases no administrator needs to act
    // yet.
    let is_passing = matches!(
        health.known_reason(),
        Some(KnownReason::Unreported | KnownReason::ComparedAfterRestore)
    );
    let level = if is_blocking && !is_passing { Level::Error } else { Level::Warn };
    Line(level, format!("target {name} in {path} {state}: {}; {effect}", health.problem))
}

/// Returns the line about a target that its service has served, and does not report any more.
fn stopping_line(map: &ClusterMap, target: TargetId, name: &str) -> Line {
    let (is_blocking, effect) =
        map.target(target).map_or((false, "the target is not in the cluster map any more"), |it| {
            effect_of_unserved_target(map, it)
        });
    let text = format!(
        "target {name} is not served any more, as when its service stops or starts without this \
         target; {effect}"
    );
    Line(if is_blocking { Level::Warn } else { Level::Info }, text)
}

/// Returns the line about a target that an administrator has marked as lost.
pub(crate) fn lost_line(map: &ClusterMap, target: TargetId) -> Line {
    let path = map.target(target).map_or("", |it| &it.path);
    let text = format!(
        "target {} in {path} is now marked as lost, at the request of an administrator, or of a \
         server that has seen the mark before a restore of management: files lose their bytes on \
         this target, and programs that read these bytes get EIO; `skep target files --paths {}` \
         lists the files",
        named(map, target),
        target.raw()
    );
    Line(Level::Error, text)
}

/// Returns the line about a target that refuses writes. The reason in `health` contains the time of
/// the failure.
fn read_only_line(name: &str, target: Option<&Target>, health: &TargetHealth) -> Line {
    let path = target.map_or("", |target| &target.path);
    if target.is_some_and(|target| target.consistency == Consistency::Bad) {
        let text = format!("target {name} in {path} is marked as lost, and refuses all requests");
        return Line(Level::Info, text);
    }
    let text = format!(
        "target {name} in {path} refuses writes: {}; new files are placed on other targets, and \
         writes to its files fail with EIO; repair the disk, then restart the target's service",
        health.problem
    );
    Line(Level::Error, text)
}

/// Returns the line about the free space that a target reports in `now`. `None` means that the
/// report does not change whether the target is full.
pub(crate) fn space_line(map: &ClusterMap, target: TargetId, now: &Capacity) -> Option<Line> {
    let (name, found) = (named(map, target), map.target(target)?);
    let free = now.free_bytes >> 20;
    match (found.capacity.is_full(), now.is_full()) {
        (true, false) if now.total_bytes > 0 => {
            Some(Line(Level::Info, format!("target {name} has space again: {free} MiB are free")))
        }
        (false, true) => Some(Line(
            Level::Error,
            format!(
                "target {name} in {} is full: {free} MiB are free; writes that need space on this \
                 target fail with ENOSPC; delete files, or add targets (`skep health df`)",
                found.path
            ),
        )),
        _ => None,
    }
}

/// Returns the line about the eviction of a client. `lease_ms` is the lease of the cluster in
/// milliseconds.
pub(crate) fn eviction_line(eviction: &Eviction, lease_ms: u32) -> Line {
    let Eviction { client, name, .. } = eviction;
    let text = format!(
        "evicted client {client} ({name}): {} (lease: {}); metadata releases its locks and opens, \
         and its programs get EIO for files that they have open for writing; the client itself \
         rejoins the cluster if its mount still runs and reaches management",
        eviction.reason(),
        seconds(lease_ms.into())
    );
    Line(Level::Warn, text)
}

/// Returns a target's id with the name of its node.
fn named(map: &ClusterMap, target: TargetId) -> String {
    let node = map.target(target).and_then(|found| map.node(found.node));
    node.map_or_else(|| target.to_string(), |node| format!("{target} ({})", node.name))
}

#[cfg(test)]
mod tests;
