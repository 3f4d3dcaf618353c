//! `skep cluster format`: assigns all virtual shards of the namespace to the metadata targets. A
//! cluster can be formatted only once.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_types::{ClusterMap, Result};
use skep_wire::management::Format;
use std::collections::BTreeSet;

const EXAMPLES: &[Example] = &[(
    "format a new cluster once, after all metadata services have registered",
    "skep cluster format --cluster /srv/skep/management",
)];

/// Divide the namespace over the metadata targets, once, before the first mount. Exit code 7 means
/// that the cluster is formatted already
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct FormatArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// The JSON output of the command.
#[derive(Debug, Default, Serialize)]
struct FormatReport {
    /// Number of metadata targets in all groups that serve the namespace.
    metadata_targets: usize,
    /// The text for people.
    #[serde(skip)]
    text: String,
}

impl FormatReport {
    fn of(map: &ClusterMap) -> Self {
        let ids: BTreeSet<_> = map.shards.iter().map(|range| range.group).collect();
        let groups: Vec<_> = ids.into_iter().filter_map(|id| map.group(id)).collect();
        let listed = groups.iter().map(|group| {
            let members = group.members.iter().map(|member| member.target.to_string());
            format!("{} ({})", group.id, members.collect::<Vec<_>>().join(", "))
        });
        let listed = listed.collect::<Vec<_>>().join(", ");
        let served = match groups.len() {
            1 => format!("Metadata group {listed} serves the namespace"),
            count => format!("The namespace is divided over {count} metadata groups: {listed}"),
        };
        Self {
            metadata_targets: groups.iter().map(|group| group.members.len()).sum(),
            text: format!("{served}; clients can mount the cluster now."),
        }
    }
}

pub(crate) fn run(args: FormatArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let update = crate::cmd::block_on(async move { access.ask(&Format {}).await })?;
    let formatted = update.map.as_ref().map(FormatReport::of).unwrap_or_default();
    print(&formatted, |it| it.text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::{GroupMember, MemberState, ShardRange};
    use skep_types::{ClusterId, Group, GroupId, ShardId, TargetId, TargetKind};

    fn text(groups: &[&[u32]]) -> String {
        let mut map = ClusterMap::empty(ClusterId::default());
        for (id, targets) in (5..).zip(groups) {
            let group = GroupId::new(id);
            let first = TargetId::new(targets[0]);
            let mut it = Group::of_one(group, TargetKind::Metadata, first);
            it.members.extend(
                targets[1..].iter().map(|id| GroupMember {
                    target: TargetId::new(*id),
                    state: MemberState::Serving,
                }),
            );
            map.groups.push(it);
            map.shards.push(ShardRange { first: ShardId::new(0), last: ShardId::new(0), group });
        }
        FormatReport::of(&map).text
    }

    #[test]
    fn output_of_format_names_the_metadata_groups_and_their_targets() {
        let single = text(&[&[1]]);
        assert!(single.starts_with("Metadata group g5 (t1) serves the namespace; "), "{single}");
        let pair = text(&[&[1, 2]]);
        assert!(pair.starts_with("Metadata group g5 (t1, t2) serves the namespace; "), "{pair}");
        let pairs = text(&[&[1, 2], &[3, 4]]);
        let expected = "divided over 2 metadata groups: g5 (t1, t2), g6 (t3, t4); ";
        assert!(pairs.contains(expected), "{pairs}");
    }
}
