//! `AskTakeOver`: a member asks to become the primary of its metadata group, because it receives
//! nothing from the current primary. A member whose host may have lost records reports this with
//! the same request.

use crate::authority::Authority;
use crate::map_log::{self, Asker};
use skep_cluster::{Command, RequestId, losses};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{Epoch, Error, ErrorCode, Group, Result};
use skep_wire::management::{AskTakeOver, EmptyReply};
use std::time::Duration;

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: AskTakeOver,
) -> Result<EmptyReply> {
    let AskTakeOver { group, epoch, target, lacks_records, .. } = request;
    if !lacks_records {
        let change = GroupChange { group, epoch, change: MemberChange::TakeOver, target };
        let before = authority.map();
        if authority.command(id, Command::ChangeGroup(change)).await?.changed {
            map_log::change_line(&before, &change, Asker::Member, Duration::ZERO).write();
        }
        return Ok(EmptyReply {});
    }
    let map = authority.map();
    let is_member = |it: &&Group| it.members.iter().any(|member| member.target == target);
    let found = map.group(group).filter(|it| it.epoch == epoch).filter(is_member);
    let Some(found) = found else {
        let context = format!(
            "cannot let target {target} take over group {group}: the epoch of the group is not \
             {epoch}, or the target is not a member of the group"
        );
        return Err(Error::new(ErrorCode::StaleMap, context));
    };
    let reports = authority.note_loss(&request);
    // Each change raises the epoch by one. If another change of the group comes between these
    // changes, the decision is based on an old group, and management refuses the remaining changes.
    let epochs = (epoch.raw()..).map(Epoch::new);
    for ((change, target), epoch) in losses::changes(found, &reports).into_iter().zip(epochs) {
        let change = GroupChange { group, epoch, change, target };
        map_log::loss_line(&map, &change).write();
        authority.command(RequestId::default(), Command::ChangeGroup(change)).await?;
    }
    Ok(EmptyReply {})
}
