//! `SetPolicy`: replaces the cluster's settings.

use crate::authority::Authority;
use skep_cluster::Command;
use skep_types::Result;
use skep_wire::management::{MapUpdate, SetPolicy};

pub(super) fn handle(authority: &Authority, request: SetPolicy) -> Result<MapUpdate> {
    authority.command(&Command::SetPolicy(request.policy))?;
    Ok(MapUpdate { map: Some((*authority.map()).clone()) })
}
