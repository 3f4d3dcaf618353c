//! `ChangeGroup`: changes the members of a group at the request of its primary or of an
//! administrator.

use crate::authority::Authority;
use crate::map_log;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{ChangeGroup, ChangeGroupReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: ChangeGroup,
) -> Result<ChangeGroupReply> {
    let ChangeGroup { change } = request;
    let before = authority.map();
    let outcome = authority.command(id, Command::ChangeGroup(change)).await?;
    let map = authority.map();
    let epoch = map.group(change.group).map(|group| group.epoch).unwrap_or_default();
    if outcome.changed {
        map_log::change_line(&before, &change).write();
    }
    Ok(ChangeGroupReply { epoch, version: map.version })
}
