//! `SetTargetState`: closes a storage target to new files, or reopens a closed target.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{MapUpdate, SetTargetState};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: SetTargetState,
) -> Result<MapUpdate> {
    let SetTargetState { target, is_closed } = request;
    let outcome = authority.command(id, Command::CloseTarget { target, is_closed }).await?;
    if outcome.changed {
        let state = if is_closed { "closed to new files" } else { "open to new files again" };
        tracing::info!("target {target} is {state}");
    }
    Ok(MapUpdate { map: Some((*authority.map()).clone()) })
}
