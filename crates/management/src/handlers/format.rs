//! `Format`: distributes the virtual shards over the existing metadata groups.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{Format, MapUpdate};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    _request: Format,
) -> Result<MapUpdate> {
    authority.command(id, Command::Format).await?;
    let map = authority.map();
    tracing::info!(
        "management formatted the cluster; metadata groups that serve the namespace: {}",
        map.shards.len()
    );
    Ok(MapUpdate { map: Some((*map).clone()) })
}
