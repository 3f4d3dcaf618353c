//! `AskTakeOver`: a member of a metadata group receives nothing from the primary.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId, losses};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{Error, ErrorCode, Group, Result};
use skep_wire::management::{AskTakeOver, EmptyReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: AskTakeOver,
) -> Result<EmptyReply> {
    let AskTakeOver { group, epoch, target, lacks_records, .. } = request;
    if !lacks_records {
        let change = GroupChange { group, epoch, change: MemberChange::TakeOver, target };
        if authority.command(id, Command::ChangeGroup(change)).await?.changed {
            tracing::warn!("target {target} takes over group {group}: its primary is silent");
        }
        return Ok(EmptyReply {});
    }
    let map = authority.map();
    let is_member = |it: &&Group| it.members.iter().any(|member| member.target == target);
    let found = map.group(group).filter(|it| it.epoch == epoch).filter(is_member);
    let Some(found) = found else {
        let context =
            format!("group {group} has another epoch than {epoch}, or no member {target}");
        return Err(Error::new(ErrorCode::StaleMap, context));
    };
    let reports = authority.note_loss(&request);
    let mut epoch = epoch;
    for (change, target) in losses::changes(found, &reports) {
        tracing::warn!(
            "all members of group {group} may have lost records: {change:?} of target {target}, so \
             that the member with the longest log goes on"
        );
        let change = GroupChange { group, epoch, change, target };
        authority.command(RequestId::default(), Command::ChangeGroup(change)).await?;
        epoch = authority.map().group(group).map(|it| it.epoch).unwrap_or_default();
    }
    Ok(EmptyReply {})
}
