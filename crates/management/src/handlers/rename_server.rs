//! `RenameServer`: gives a server another name.

use crate::authority::Authority;
use skep_cluster::state::check_new_name;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{EmptyReply, RenameServer};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: RenameServer,
) -> Result<EmptyReply> {
    let RenameServer { node, name } = request;
    check_new_name(&authority.map(), node, &name)?;
    authority.command(id, Command::RenameServer { node, name: name.clone() }).await?;
    tracing::info!("node {node} is now called {name}");
    Ok(EmptyReply {})
}
