//! `CreateGroup`: makes a group of a target that waits for one.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::management::{CreateGroup, CreateGroupReply};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: CreateGroup,
) -> Result<CreateGroupReply> {
    let CreateGroup { targets } = request;
    let count = targets.len();
    if count > 1 {
        let context = format!(
            "cannot create a group of {count} targets: this version cannot copy the data of a \
             target to another one yet; create a group of each target"
        );
        return Err(Error::new(ErrorCode::Unsupported, context));
    }
    let outcome = authority.command(id, Command::CreateGroup { targets }).await?;
    let map = authority.map();
    if outcome.changed
        && let Some(target) = map.primary(outcome.group)
    {
        tracing::info!("target {} ({}) is now group {}", target.id, target.path, outcome.group);
    }
    Ok(CreateGroupReply { group: outcome.group, version: map.version })
}
