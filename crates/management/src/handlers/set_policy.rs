//! `SetPolicy`: replaces the cluster's settings.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{MapUpdate, SetPolicy};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: SetPolicy,
) -> Result<MapUpdate> {
    authority.command(id, Command::SetPolicy(request.policy)).await?;
    Ok(MapUpdate { map: Some((*authority.map()).clone()) })
}
