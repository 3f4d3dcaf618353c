//! `RemoveTarget`: removes a target that stores no data. Management refuses while a service serves
//! the target.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::map::{Condition, Reachability};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::management::{EmptyReply, RemoveTarget};

pub(super) fn handle(
    authority: &Authority,
    id: RequestId,
    request: RemoveTarget,
) -> Result<EmptyReply> {
    let target_id = request.target;
    let command = Command::RemoveTarget { target: target_id };
    authority.check(&command)?;
    let map = authority.map();
    let Some(target) = map.target(target_id) else { return Ok(EmptyReply {}) };
    let is_served =
        target.reachability == Reachability::Online && target.health.condition != Condition::Down;
    if is_served {
        let node = map.node(target.node).map_or("its service", |node| node.name.as_str());
        let what = format!(
            "cannot remove target {target_id}: {node} serves it; remove {} from the setting \
             `targets` of {node} and restart {node}, or stop {node}",
            target.path
        );
        return Err(Error::new(ErrorCode::InUse, what));
    }
    if !request.is_dry_run {
        authority.command(id, command)?;
        tracing::info!("target {target_id} ({}) is removed from the cluster", target.path);
    }
    Ok(EmptyReply {})
}
