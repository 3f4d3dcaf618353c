//! `ChangeGroup`: changes the members of a group, for its primary or an administrator.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{ChangeGroup, ChangeGroupReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: ChangeGroup,
) -> Result<ChangeGroupReply> {
    let ChangeGroup { change } = request;
    let outcome = authority.command(id, Command::ChangeGroup(change)).await?;
    let map = authority.map();
    let epoch = map.group(change.group).map(|group| group.epoch).unwrap_or_default();
    if outcome.changed {
        tracing::warn!(
            "group {} has epoch {epoch}: {:?} of target {}",
            change.group,
            change.change,
            change.target
        );
    }
    Ok(ChangeGroupReply { epoch, version: map.version })
}
