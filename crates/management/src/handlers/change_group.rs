//! `ChangeGroup`: changes the members of a group at the request of its primary or of an
//! administrator. `by` is the group of the target that sent the request.

use crate::authority::Authority;
use crate::map_log::{self, Asker};
use skep_cluster::{Command, RequestId};
use skep_types::{GroupId, Result};
use skep_wire::management::{ChangeGroup, ChangeGroupReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: ChangeGroup,
    by: GroupId,
) -> Result<ChangeGroupReply> {
    let ChangeGroup { change } = request;
    let before = authority.map();
    let outcome = authority.command(id, Command::ChangeGroup(change)).await?;
    let map = authority.map();
    let epoch = map.group(change.group).map(|group| group.epoch).unwrap_or_default();
    if outcome.changed {
        // Only a metadata target names its group as the sender.
        let asker = if by.raw() == 0 { Asker::Administrator } else { Asker::Member };
        let server = before.target(change.target).map(|target| target.node).unwrap_or_default();
        map_log::change_line(&before, &change, asker, authority.silence(server)).write();
    }
    Ok(ChangeGroupReply { epoch, version: map.version })
}
