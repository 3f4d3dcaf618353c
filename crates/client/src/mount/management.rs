//! Connections from this mount to management.

use crate::limits::MANAGEMENT_PATIENCE;
use crate::mount::options::ClusterAccess;
use skep_rpc::{CallOptions, Channel, Connection, Identity};
use skep_types::{Error, ErrorCode, NodeId, NodeKind, Result, TargetId};
use skep_wire::Request;
use std::rc::Rc;

pub(super) fn identity(cluster: &ClusterAccess, node: NodeId) -> Identity {
    Identity {
        cluster: cluster.token.cluster,
        secret: cluster.token.secret.clone(),
        node,
        kind: NodeKind::Client,
    }
}

/// Connects to management at the first address that accepts a connection.
pub(crate) async fn connect_to_management(
    cluster: &ClusterAccess,
    node: NodeId,
) -> Result<Rc<Connection>> {
    let identity = identity(cluster, node);
    let mut last = Error::new(ErrorCode::Configuration, "no address of management is given");
    for address in &cluster.addresses {
        match Connection::connect(address, &identity, TargetId::default(), Channel::NONE).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error.within("management"),
        }
    }
    Err(last)
}

/// Sends a request to management and returns the reply. Waits at most `MANAGEMENT_PATIENCE`.
pub(crate) async fn ask<R: Request>(connection: &Rc<Connection>, request: &R) -> Result<R::Reply> {
    let options = CallOptions { time_left: Some(MANAGEMENT_PATIENCE), ..CallOptions::default() };
    let result = connection.call(request, &options).await;
    result.map(|(reply, _)| reply).map_err(|error| error.within("management"))
}
