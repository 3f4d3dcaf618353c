//! `RegisterClient`: registers a client before it mounts the file system.

use crate::authority::Authority;
use skep_cluster::command::ClientRegistration;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{RegisterClient, RegisterReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: RegisterClient,
) -> Result<RegisterReply> {
    let RegisterClient { host, mount_point, version, pid } = request;
    let registered = skep_env::wall_time();
    let registration = ClientRegistration { host, mount_point, version, pid, registered };
    let command = Command::RegisterClient(registration);
    let outcome = authority.command(id, command).await?;
    if authority.map().node(outcome.node).is_some() {
        // Skip this step if the map does not have the node: the request is then a late retry of a
        // client that management has removed in the meantime.
        authority.note_alive(outcome.node, &[]);
    }
    let map = (*authority.map()).clone();
    if let Some(node) = map.node(outcome.node) {
        tracing::info!("client {} ({}) registered", node.id, node.name);
    }
    Ok(RegisterReply { node: outcome.node, targets: Vec::new(), map })
}
