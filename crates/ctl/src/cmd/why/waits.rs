//! The waiting requests in the output of `skep why`: the object for which each request waits, and
//! the start of the wait. The report shows these requests apart from its phases, which contain only
//! requests that have ended.
//!
//! This module requests the waits from management and metadata targets, and formats their texts.
//! `skep_stats::why` finds the causes of slowness.

use crate::access::Access;
use crate::output::span;
use crate::uses::Users;
use crate::wait_chain::{Wait, chain, with_node};
use skep_fuse::{WaitingRequest, WaitingRequests};
use skep_stats::why::{Finding, Scope};
use skep_types::{ClusterMap, GroupId, InodeId, Result};
use skep_wire::file_locks::FileUse;
use skep_wire::management::{ListRequestWaits, NodeWait, RequestWait};
use std::path::Path;
use std::time::Duration;

/// Maximum number of waiting nodes, and of waits for locks, in a report.
const MAX_WAITS: usize = 16;
/// Time limit for the list of waits for locks. The report does not wait for a metadata target that
/// does not answer.
const LOCKS_PATIENCE: Duration = Duration::from_secs(2);
/// Minimum age of a request that counts as waiting.
const LEAST_MS: u64 = 1_000;

/// Returns the waits in a scope, which management and the metadata targets report. `inode` is the
/// inode that the report is about; `None` means all. `map` is the map of management, or the last
/// map of this host if `is_last_map` is true. In the second case, the function asks only the
/// metadata targets.
///
/// # Errors
/// Errors of management.
pub(super) async fn of_cluster(
    access: &Access,
    (map, is_last_map): (&ClusterMap, bool),
    scope: &Scope,
    inode: Option<InodeId>,
) -> Result<Vec<Finding>> {
    // Neither the list of waiting nodes nor the list of waits for locks has the users or jobs whose
    // requests wait.
    if scope.focus.user.is_some() || scope.focus.job.is_some() {
        return Ok(Vec::new());
    }
    let client = scope.focus.client;
    let is_of_client = |node: u32| client.is_none_or(|id| node == id);
    let is_in_scope = |group: GroupId| match (&scope.targets, map.primary(group)) {
        (Some(targets), Some(primary)) => targets.contains(&primary.id.raw()),
        // Requests whose group is unknown may wait for any target.
        _ => true,
    };
    let waits = match is_last_map {
        true => Vec::new(),
        false => access.ask(&ListRequestWaits {}).await?.waits,
    };
    let of_scope =
        waits.iter().filter(|it| is_of_client(it.node.raw()) && is_in_scope(it.wait.group));
    let mut found: Vec<_> = of_scope.take(MAX_WAITS).map(|it| of_node(map, it, &waits)).collect();
    if scope.targets.is_none() || inode.is_some() {
        let of_map = is_last_map.then_some(map);
        let locks = skep_env::timeout(LOCKS_PATIENCE, lock_waits(access, of_map, inode)).await;
        // Ignore the error of a metadata group that does not answer, because management's list of
        // waits already contains this group.
        let (users, uses) = locks.and_then(Result::ok).unzip();
        for used in uses.iter().flatten().filter(|used| is_of_client(used.client.raw())) {
            let place = users.as_ref().map(|users: &Users| users.place(used.client));
            found.extend(place.map(|place| of_lock(&place, used)));
        }
    }
    Ok(found)
}

/// Returns the longest waits for locks. If `last_map` is given, sends no request to management.
async fn lock_waits(
    access: &Access,
    last_map: Option<&ClusterMap>,
    inode: Option<InodeId>,
) -> Result<(Users, Vec<FileUse>)> {
    let users = match last_map {
        Some(map) => Users::of_map(access, map.clone()),
        None => Users::of(access).await?,
    };
    let groups = match inode {
        Some(inode) => users.map.shard_group(inode.shard()).into_iter().collect(),
        None => users.groups(),
    };
    let mut waiting = Vec::new();
    for group in groups {
        let uses = users.uses(group, inode, true).await?;
        waiting.extend(uses.into_iter().filter(|used| used.longest_wait_ms >= LEAST_MS));
    }
    waiting.sort_by_key(|used| std::cmp::Reverse(used.longest_wait_ms));
    waiting.truncate(MAX_WAITS);
    Ok((users, waiting))
}

fn requests_wait(count: u32) -> String {
    match count {
        1 => "1 request waits".to_owned(),
        count => format!("{count} requests wait"),
    }
}

/// Returns the object for which requests wait, as the text ` for OBJECT`. Empty if `group` is zero,
/// which means that services have accepted the requests.
fn awaited(map: &ClusterMap, group: GroupId) -> String {
    match (group.raw(), map.primary(group)) {
        (0, _) => String::new(),
        (_, Some(target)) => format!(" for {}", with_node(target.id, map)),
        (_, None) => format!(" for group {group}, which has no target that serves"),
    }
}

/// Returns the waits of a node. `all` has the waits of all nodes.
fn of_node(map: &ClusterMap, waiting: &NodeWait, all: &[NodeWait]) -> Finding {
    let NodeWait { node, wait } = waiting;
    let name = map.node(*node).map_or_else(|| node.to_string(), |it| it.name.clone());
    let RequestWait { group, since_ms, requests, error } = wait;
    let known = all
        .iter()
        .filter_map(|it| Some(Wait { node: it.node, target: map.primary(it.wait.group)?.id }));
    let remedy = match (group.raw(), chain(error, known, map)) {
        (0, Some(chain)) => {
            format!("{chain}; `skep health check` shows the problems of the second target")
        }
        (0, None) => "the service has accepted the request and does not reply: `skep transaction \
                      list`, `skep lock list` and the log of the service show whether it waits \
                      for another target, for a client that uses the file, or for its own disk"
            .to_owned(),
        _ => "`skep health check` shows whether the service does not run, or its host or network \
              has failed; the requests continue when the target answers"
            .to_owned(),
    };
    Finding {
        rule: "requests-wait".into(),
        severity: "critical".into(),
        object: node.to_string(),
        what: format!(
            "{name}: {}{}, and the oldest has waited {}: {error}",
            requests_wait(*requests),
            awaited(map, *group),
            span(*since_ms)
        ),
        remedy,
    }
}

fn of_lock((host, mount_point): &(String, String), used: &FileUse) -> Finding {
    let FileUse { client, inode, waiting, waiting_count, longest_wait_ms, .. } = used;
    let process = waiting.first().map_or_else(String::new, |it| format!(" of process {}", it.pid));
    let more = match waiting_count.saturating_sub(1) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Finding {
        rule: "lock-wait".into(),
        severity: "warning".into(),
        object: client.to_string(),
        what: format!(
            "{host}:{mount_point}: a request{process}{more} waits for a lock on entry {inode}, for \
             {}",
            span(*longest_wait_ms)
        ),
        remedy: "`skep lock list --paths` shows the program that holds the lock; the wait ends \
                 when that program releases it"
            .into(),
    }
}

/// Returns the waits that a mount reports to a user: each request for which `is_in_scope` returns
/// true, and the number of all other requests. `mount` is the mount point.
pub(super) fn of_mount(
    found: &WaitingRequests,
    map: &ClusterMap,
    mount: Option<&Path>,
    mut is_in_scope: impl FnMut(InodeId) -> bool,
) -> Vec<Finding> {
    let old = found.requests.iter().filter(|it| it.for_ms >= LEAST_MS);
    let (here, elsewhere): (Vec<_>, Vec<_>) = old.partition(|it| is_in_scope(it.inode));
    // If only one group does not answer, this group is the cause of all waits. If several groups do
    // not answer, the report lists these groups separately.
    let cause = match &found.groups[..] {
        [only] => cause(map, only),
        _ => String::new(),
    };
    let mut findings: Vec<_> =
        here.into_iter().take(MAX_WAITS).map(|it| of_request(it, &cause)).collect();
    // The report names groups that do not reply only as the explanation of a waiting request.
    if found.groups.len() > 1 && findings.iter().any(|it| it.rule == "requests-wait") {
        findings.extend(found.groups.iter().map(|wait| of_group(map, wait)));
    }
    findings.extend(of_others(&elsewhere, &cause, mount));
    findings
}

/// Returns the reason for the waits if only one group does not answer, as the text `: REASON`.
fn cause(map: &ClusterMap, wait: &RequestWait) -> String {
    let error = &wait.error;
    match awaited(map, wait.group).strip_prefix(" for ") {
        Some(object) if map.primary(wait.group).is_some() => {
            format!(": {object} does not answer ({error})")
        }
        Some(group) => format!(": {group} ({error})"),
        None => format!(": {error}"),
    }
}

/// Reports requests of this user that wait on the same mount, but for files that are not below the
/// path of the report.
fn of_others(others: &[&WaitingRequest], cause: &str, mount: Option<&Path>) -> Option<Finding> {
    let oldest = others.iter().map(|it| it.for_ms).max()?;
    let count = others.len();
    let is_for_locks = others.iter().all(|it| it.is_for_lock);
    let cause = if is_for_locks { ": a lock of another program" } else { cause };
    let mount = mount.map_or_else(|| "PATH".into(), |mount| mount.display().to_string());
    Some(Finding {
        rule: if is_for_locks { "lock-wait" } else { "requests-wait" }.into(),
        severity: "warning".into(),
        object: mount.clone(),
        what: format!(
            "{} elsewhere on this mount, for up to {}{cause}",
            match count {
                1 => "1 request of this user waits".to_owned(),
                count => format!("{count} requests of this user wait"),
            },
            span(oldest)
        ),
        remedy: format!("`skep why {mount}` shows these requests"),
    })
}

fn of_request(request: &WaitingRequest, cause: &str) -> Finding {
    let WaitingRequest { operation, inode, pid, for_ms, is_for_lock } = request;
    let age = span(*for_ms);
    let (rule, severity, what, remedy) = match is_for_lock {
        true => (
            "lock-wait",
            "warning",
            format!("process {pid} waits for a lock on entry {inode}, for {age}"),
            "`skep lock list PATH` shows the program that holds the lock, and `skep entry path ID` \
             the path of the entry; the wait ends when that program releases the lock",
        ),
        false => (
            "requests-wait",
            "critical",
            format!(
                "{operation} of entry {inode} by process {pid} has had no reply for {age}{cause}"
            ),
            "the request continues when the services that it needs answer; `skep entry path ID` \
             shows the path of the entry, and `skep health check` shows administrators what to do",
        ),
    };
    let object = format!("process {pid}");
    Finding { rule: rule.into(), severity: severity.into(), object, what, remedy: remedy.into() }
}

fn of_group(map: &ClusterMap, wait: &RequestWait) -> Finding {
    let RequestWait { group, since_ms, requests, error } = wait;
    Finding {
        rule: "requests-wait".into(),
        severity: "critical".into(),
        object: group.to_string(),
        what: format!(
            "{}{}, for {}: {error}",
            requests_wait(*requests),
            awaited(map, *group),
            span(*since_ms)
        ),
        remedy: "the requests continue when the target answers; `skep health check` shows \
                 administrators what to do"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Group, NodeId, Target, TargetId, TargetKind};
    use skep_wire::file_locks::{HeldLock, LockKind, LockMode};

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.targets =
            vec![Target::new(TargetId::new(7), TargetKind::Storage, NodeId::new(4), "/d")];
        map.groups = vec![Group::of_one(GroupId::new(6), TargetKind::Storage, TargetId::new(7))];
        map
    }

    fn request(inode: u64, for_ms: u64, is_for_lock: bool) -> WaitingRequest {
        let (operation, inode) = ("write".to_owned(), InodeId::new(inode));
        WaitingRequest { operation, inode, pid: 815, for_ms, is_for_lock }
    }

    fn group() -> RequestWait {
        let error = "10.0.0.5:7420: no answer".to_owned();
        RequestWait { group: GroupId::new(6), since_ms: 12_000, requests: 2, error }
    }

    #[test]
    fn waiting_request_names_its_process_age_and_target() {
        let found = WaitingRequests {
            requests: vec![request(9, 10_300, false), request(8, 900, false)],
            count: 2,
            groups: vec![group()],
        };
        let of = |found: &WaitingRequests, is_in_scope: fn(InodeId) -> bool| -> Vec<_> {
            let findings = of_mount(found, &map(), Some(Path::new("/mnt")), is_in_scope);
            findings.into_iter().map(|finding| finding.what).collect()
        };
        let expected =
            ["write of entry 0-9 by process 815 has had no reply for 10.3s: target t7 does not \
              answer (10.0.0.5:7420: no answer)"];
        assert_eq!(of(&found, |_| true), expected);
        let error = "the target has accepted the request, and has not replied".to_owned();
        let accepted = RequestWait { error, ..group() };
        let silent = WaitingRequests { groups: vec![accepted], ..found.clone() };
        let words = "target t7 does not answer (the target has accepted the request, and has not \
                     replied)";
        assert!(of(&silent, |_| true)[0].ends_with(words));
        let elsewhere = [
            "1 request of this user waits elsewhere on this mount, for up to 10.3s: target t7 does \
             not answer (10.0.0.5:7420: no answer)",
        ];
        assert_eq!(of(&found, |inode| inode.raw() == 5), elsewhere);
        let two = RequestWait { group: GroupId::new(9), ..group() };
        let several = WaitingRequests { groups: vec![group(), two], ..found.clone() };
        let texts = of(&several, |_| true);
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert_eq!(texts[1], "2 requests wait for target t7, for 12.0s: 10.0.0.5:7420: no answer");
    }

    #[test]
    fn wait_for_a_lock_is_not_reported_as_a_wait_for_a_target() {
        let found = WaitingRequests {
            requests: vec![request(9, 3_000, true)],
            count: 1,
            groups: vec![group()],
        };
        let findings = of_mount(&found, &map(), None, |_| true);
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.rule, "lock-wait");
        assert_eq!(finding.what, "process 815 waits for a lock on entry 0-9, for 3.0s");
        assert!(finding.remedy.contains("skep lock list"), "{finding:?}");
    }

    #[test]
    fn lock_wait_of_a_client_names_host_process_and_age() {
        let lock = HeldLock {
            session: skep_types::SessionId::new(1),
            kind: LockKind::Flock,
            owner: 1,
            mode: LockMode::Exclusive,
            start: 0,
            end: 1,
            pid: 815,
        };
        let used = FileUse {
            session: lock.session,
            client: NodeId::new(9),
            inode: InodeId::new(9),
            readers: 1,
            writers: 0,
            held: Vec::new(),
            held_count: 0,
            waiting: vec![lock, lock],
            waiting_count: 2,
            longest_wait_ms: 61_000,
        };
        let finding = of_lock(&("c1".to_owned(), "/mnt".to_owned()), &used);
        let expected = "c1:/mnt: a request of process 815 (and 1 more) waits for a lock on entry \
                        0-9, for 1.0min";
        assert_eq!(finding.what, expected);
    }
}
