//! `skep group status`: shows how many log records each member of a metadata group lacks.

use super::change::group_named;
use crate::access::{ClusterArgs, block_on};
use crate::group_progress::{CopyStatus, ask, known};
use crate::help::{Example, examples};
use crate::output::{print, render, size, table};
use serde::Serialize;
use skep_types::map::{Condition, MemberState};
use skep_types::{ClusterMap, Group, Result, TargetKind};
use skep_wire::log_shipping::GroupProgress;

const EXAMPLES: &[Example] = &[
    ("show the members of all metadata groups", "skep group status"),
    ("show the members of group 2 as JSON, for a program", "skep group status 2 --output json"),
];

/// Show how far the members of metadata groups are behind their primary
///
/// APPENDED and SYNCED are the sequence numbers (LSN) of log records. A reply to a client waits
/// until the primary and each member with the role backup or joining has appended the log records
/// that the reply depends on. If a member lacks log records that the primary has removed, it gets a
/// copy of the store: COPY shows how much of the copy the member has, and how long the rest takes.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id of a group; all metadata groups if omitted
    #[arg(value_name = "GROUP")]
    group: Option<u32>,
}

/// The progress of a group, as JSON.
#[derive(Debug, Serialize)]
struct GroupStatus {
    id: u32,
    epoch: u64,
    primary: u32,
    /// LSN of the primary's last log record. `None` if the primary does not answer.
    last: Option<u64>,
    /// LSN of the last log record that the primary, and each member for which the primary's replies
    /// wait, have appended.
    held: Option<u64>,
    /// LSN of the last log record that the primary, and each member for which the primary's replies
    /// wait, have synced.
    safe: Option<u64>,
    /// Whether the primary may reply to clients.
    may_answer: Option<bool>,
    /// Total size of the log records that the primary retains for members that lack these records.
    kept_bytes: Option<u64>,
    /// The reason why the status of the group is not known: the error of the request to the
    /// primary.
    error: Option<String>,
    /// The problem that a serving primary has reported to management, for example that replies also
    /// wait for the disk of the primary.
    note: Option<String>,
    members: Vec<MemberStatus>,
}

/// The progress of a member of a group.
#[derive(Debug, Serialize)]
struct MemberStatus {
    target: u32,
    role: &'static str,
    appended: Option<u64>,
    synced: Option<u64>,
    /// Number of the primary's log records that the member has not appended.
    lag: Option<u64>,
    /// Time since the primary sent the newest request that the member has acknowledged.
    silent_ms: Option<u64>,
    needs_copy: bool,
    /// Total size of the log records that the member lacks. `None` if the primary does not know
    /// this size, or if the member gets a copy.
    missing_bytes: Option<u64>,
    /// The copy of the store that the primary sends to the member.
    copy: Option<CopyStatus>,
}

impl MemberStatus {
    /// Whether the primary has no statistics of the member.
    fn is_unknown(&self) -> bool {
        self.appended.is_none() && self.copy.is_none()
    }

    /// Returns the size of the missing records. The text states whether the member gets the missing
    /// data from the log or as a copy.
    fn missing(&self) -> String {
        match self.missing_bytes {
            Some(bytes) if bytes > 0 => format!("{} by log", size(bytes)),
            _ if self.needs_copy => "by copy".to_owned(),
            _ => "-".to_owned(),
        }
    }
}

pub(crate) fn run(args: StatusArgs) -> Result<()> {
    let StatusArgs { query, group } = args;
    let access = query.access(None)?;
    let lines = block_on(async move {
        let map = access.map().await?;
        let groups: Vec<&Group> = match group {
            Some(id) => vec![group_named(&map, id)?],
            None => map.groups.iter().filter(|it| it.kind == TargetKind::Metadata).collect(),
        };
        let mut replies = ask(&access, &map, groups.iter().map(|it| it.id)).await;
        let mut lines = Vec::new();
        for group in groups {
            lines.extend(replies.remove(&group.id).map(|progress| status(&map, group, progress)));
        }
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines))
}

fn status(map: &ClusterMap, group: &Group, progress: Result<GroupProgress>) -> GroupStatus {
    let error = progress.as_ref().err().map(ToString::to_string);
    let progress = progress.ok();
    let of = progress.as_ref();
    let member = |member: &skep_types::GroupMember| {
        let is_primary = member.target == group.primary;
        let known = of.and_then(|it| known(it, member.target));
        let own = of.filter(|_| is_primary);
        let appended = own.map(|it| it.last).or(known.map(|it| it.appended)).map(|it| it.raw());
        let synced = own.map(|it| it.synced).or(known.map(|it| it.synced)).map(|it| it.raw());
        MemberStatus {
            target: member.target.raw(),
            role: role(is_primary, member.state, known.is_some_and(|it| it.is_counted)),
            appended,
            synced,
            lag: of.zip(appended).map(|(it, appended)| it.last.raw().saturating_sub(appended)),
            silent_ms: known.and_then(|it| it.silent_ms),
            needs_copy: known.is_some_and(|it| it.needs_copy),
            missing_bytes: known.and_then(|it| it.missing_bytes),
            copy: known.and_then(|it| it.copy.as_ref()).map(CopyStatus::of),
        }
    };
    GroupStatus {
        id: group.id.raw(),
        epoch: group.epoch.raw(),
        primary: group.primary.raw(),
        last: of.map(|it| it.last.raw()),
        held: of.map(|it| it.held.raw()),
        safe: of.map(|it| it.safe.raw()),
        may_answer: of.map(|it| it.may_answer),
        kept_bytes: of.map(|it| it.kept_bytes),
        error,
        note: note_of_primary(map, group),
        members: group.members.iter().map(member).collect(),
    }
}

/// Returns the problem that a serving primary has reported in its heartbeats.
fn note_of_primary(map: &ClusterMap, group: &Group) -> Option<String> {
    let health = &map.target(group.primary)?.health;
    let is_noted = health.condition == Condition::Serving && !health.problem.is_empty();
    is_noted.then(|| health.problem.clone())
}

fn role(is_primary: bool, state: MemberState, is_counted: bool) -> &'static str {
    match (is_primary, state) {
        (true, _) => "primary",
        (false, MemberState::Serving) => "backup",
        (false, _) if is_counted => "joining",
        (false, _) => "outside",
    }
}

/// Returns the line with the health text of a primary. `None` means that the primary has reported
/// no text.
fn primary_note(status: &GroupStatus) -> Option<String> {
    let GroupStatus { id, primary, note, .. } = status;
    note.as_ref().map(|note| format!("\nTarget {primary}, the primary of group {id}: {note}"))
}

fn as_table(lines: &[GroupStatus]) -> String {
    let titles = [
        "GROUP", "EPOCH", "HELD", "SAFE", "TARGET", "ROLE", "APPENDED", "SYNCED", "LAG", "SILENT",
        "MISSING", "COPY",
    ];
    let mut shown = table(&titles);
    let text = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |it| it.to_string());
    for line in lines {
        for member in &line.members {
            let role = if member.copy.is_some() { "copying" } else { member.role };
            shown.add_row([
                line.id.to_string(),
                line.epoch.to_string(),
                text(line.held),
                text(line.safe),
                member.target.to_string(),
                role.to_owned(),
                text(member.appended),
                text(member.synced),
                text(member.lag),
                member.silent_ms.map_or_else(|| "-".to_owned(), |it| format!("{it} ms")),
                member.missing(),
                member.copy.as_ref().map_or_else(|| "-".to_owned(), CopyStatus::words),
            ]);
        }
    }
    let mut shown = render(&shown);
    for line in lines.iter().filter(|line| line.error.is_some()) {
        let error = line.error.as_deref().unwrap_or_default();
        shown.push_str(&format!(
            "\nThe primary of group {} does not answer: {error}; `skep health check` lists \
             problems",
            line.id
        ));
    }
    for line in lines.iter().filter(|line| line.error.is_none()) {
        for silent in line.members.iter().filter(|it| it.is_unknown()) {
            shown.push_str(&format!(
                "\nTarget {} has not answered the primary of group {} since the group changed, so \
                 the primary does not know which log records the target lacks; `skep health check` \
                 shows whether the service of the target runs",
                silent.target, line.id
            ));
        }
    }
    lines.iter().filter_map(primary_note).for_each(|note| shown.push_str(&note));
    let copied = lines.iter().flat_map(|line| &line.members);
    let stopped = copied.filter_map(|it| Some((it.target, it.copy.as_ref()?.problem.as_ref()?)));
    for (target, problem) in stopped {
        shown.push_str(&format!("\nThe copy for target {target} waits: {problem}"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::{KnownReason, TargetHealth};
    use skep_types::{ClusterId, Error, ErrorCode, GroupId, NodeId, Target, TargetId};

    #[test]
    fn status_shows_that_replies_wait_for_the_disk_of_the_primary() {
        let (id, kind) = (TargetId::new(3), TargetKind::Metadata);
        let mut map = ClusterMap::empty(ClusterId::default());
        map.targets.push(Target::online(id, kind, NodeId::new(1)));
        let group = Group::of_one(GroupId::new(2), kind, id);
        let status = |map: &ClusterMap| {
            status(map, &group, Err(Error::new(ErrorCode::Disconnected, "no reply")))
        };
        assert_eq!(status(&map).note, None);
        let reason = KnownReason::AwaitsOwnDisk.text();
        map.targets[0].health = TargetHealth::new(Condition::Serving, reason);
        let shown = as_table(&[status(&map)]);
        let line = format!("Target 3, the primary of group 2: {reason}");
        assert!(shown.lines().any(|it| it == line), "{shown}");
        // `skep health check` shows the problem of a target that is down, so the status has no note
        // about it.
        map.targets[0].health = TargetHealth::new(Condition::Down, "no disk");
        assert_eq!(status(&map).note, None);
    }
}
