//! `Heartbeat`: a node is alive.

use crate::authority::Authority;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::management::{Heartbeat, MapUpdate};

pub(super) fn handle(authority: &Authority, request: Heartbeat) -> Result<MapUpdate> {
    if authority.map().node(request.node).is_none() {
        return Err(Error::new(
            ErrorCode::Stale,
            format!("node {} is not known (any more); it has to register", request.node),
        ));
    }
    authority.heard(request.node, &request.capacities);
    Ok(MapUpdate { map: authority.newer(request.known) })
}
