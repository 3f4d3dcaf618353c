//! `CreateGroup`: creates a group from targets that wait for a group.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{CreateGroup, CreateGroupReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: CreateGroup,
) -> Result<CreateGroupReply> {
    let CreateGroup { targets } = request;
    let outcome = authority.command(id, Command::CreateGroup { targets }).await?;
    let map = authority.map();
    if outcome.changed
        && let Some(group) = map.group(outcome.group)
    {
        let members: Vec<_> = group.members.iter().map(|it| it.target.to_string()).collect();
        tracing::info!(
            "management created group {} of targets {}",
            outcome.group,
            members.join(", ")
        );
    }
    Ok(CreateGroupReply { group: outcome.group, version: map.version })
}
