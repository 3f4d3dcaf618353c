//! `skep group status`: shows how far the members of metadata groups follow their primary.

use super::change::group_named;
use crate::access::{Access, ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::map::MemberState;
use skep_types::{ClusterMap, Group, NodeId, Result, TargetKind};
use skep_wire::log_shipping::{AskGroup, GroupProgress};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("the members of all metadata groups", "skep group status"),
    ("the same of group 2, for a program", "skep group status 2 --output json"),
];

/// Time for which a primary may not reply.
const PATIENCE: Duration = Duration::from_secs(3);

/// Show how far the members of metadata groups follow their primary
///
/// APPENDED and SYNCED are numbers of log records. Replies to clients wait until every counted
/// member has appended their records. A member needs a copy if the primary no longer keeps
/// the records that the member lacks.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id of a group; all metadata groups if omitted
    #[arg(value_name = "GROUP")]
    group: Option<u32>,
}

/// The progress of a group.
#[derive(Debug, Serialize)]
struct GroupStatus {
    id: u32,
    epoch: u64,
    primary: u32,
    /// Last record of the primary. Missing if the primary does not answer.
    last: Option<u64>,
    /// Last record that every counted member has appended.
    held: Option<u64>,
    /// Last record that every counted member has synced.
    safe: Option<u64>,
    /// Whether the primary may reply to clients.
    may_answer: Option<bool>,
    /// Bytes of the records that the primary keeps for other members.
    kept_bytes: Option<u64>,
    /// Why the primary does not answer.
    error: Option<String>,
    members: Vec<MemberStatus>,
}

/// The progress of a member.
#[derive(Debug, Serialize)]
struct MemberStatus {
    target: u32,
    role: &'static str,
    appended: Option<u64>,
    synced: Option<u64>,
    /// Number of records of the primary that the member has not appended.
    lag: Option<u64>,
    /// Age of the newest request of the primary that the member has acknowledged.
    silent_ms: Option<u64>,
    needs_copy: bool,
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
        let router = router(&access, &map);
        let mut lines = Vec::new();
        for group in groups {
            let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
            let progress = router.call(group.id, &AskGroup {}, options).await;
            lines.push(status(group, progress.map(|(progress, _)| progress)));
        }
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines))
}

fn router(access: &Access, map: &ClusterMap) -> std::rc::Rc<Router> {
    let cell = MapCell::new(map.clone(), NodeId::default());
    Router::new(access.identity(), Channel::random(), cell)
}

fn status(group: &Group, progress: Result<GroupProgress>) -> GroupStatus {
    let error = progress.as_ref().err().map(ToString::to_string);
    let progress = progress.ok();
    let of = progress.as_ref();
    let member = |member: &skep_types::GroupMember| {
        let is_primary = member.target == group.primary;
        let known = of.and_then(|it| it.members.iter().find(|it| it.target == member.target));
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
        members: group.members.iter().map(member).collect(),
    }
}

fn role(is_primary: bool, state: MemberState, is_counted: bool) -> &'static str {
    match (is_primary, state) {
        (true, _) => "primary",
        (false, MemberState::Serving) => "backup",
        (false, _) if is_counted => "joining",
        (false, _) => "outside",
    }
}

fn as_table(lines: &[GroupStatus]) -> String {
    let titles =
        ["GROUP", "EPOCH", "HELD", "SAFE", "TARGET", "ROLE", "APPENDED", "SYNCED", "LAG", "SILENT"];
    let mut shown = table(&titles);
    let text = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |it| it.to_string());
    for line in lines {
        for member in &line.members {
            let role = match member.needs_copy {
                true => format!("{} (needs a copy)", member.role),
                false => member.role.to_owned(),
            };
            shown.add_row([
                line.id.to_string(),
                line.epoch.to_string(),
                text(line.held),
                text(line.safe),
                member.target.to_string(),
                role,
                text(member.appended),
                text(member.synced),
                text(member.lag),
                member.silent_ms.map_or_else(|| "-".to_owned(), |it| format!("{it} ms")),
            ]);
        }
    }
    let mut shown = render(&shown);
    for line in lines.iter().filter(|line| line.error.is_some()) {
        let error = line.error.as_deref().unwrap_or_default();
        shown.push_str(&format!(
            "\nThe primary of group {} does not answer: {error}; `skep health check` lists problems",
            line.id
        ));
    }
    shown
}
