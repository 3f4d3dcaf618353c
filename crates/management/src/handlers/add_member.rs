//! `AddMember`: copies the log of management to a node, and then makes the node a voter.

use super::longest_wait;
use crate::authority::Authority;
use crate::limits::ADD_MEMBER_LIMIT;
use skep_rpc::{Incoming, Outbox};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, NodeKind, Result};
use skep_wire::consensus::AddMember;
use skep_wire::management::EmptyReply;
use std::rc::Rc;
use std::time::Duration;

/// The copy of the log may take a long time, so a separate task sends the reply.
pub(super) fn handle(authority: &Rc<Authority>, incoming: Incoming, outbox: &Rc<Outbox>) {
    let request = match AddMember::from_bytes(&incoming.body) {
        Ok(request) => request,
        Err(error) => return outbox.refuse(&incoming.header, &error),
    };
    let limit = longest_wait(&incoming.header).min(ADD_MEMBER_LIMIT);
    let (authority, outbox) = (Rc::clone(authority), Rc::clone(outbox));
    skep_env::spawn(async move {
        match add(&authority, request, limit).await {
            Ok(()) => outbox.reply(&incoming.header, &EmptyReply {}),
            Err(error) => outbox.refuse(&incoming.header, &error),
        }
    })
    .detach();
}

async fn add(authority: &Authority, request: AddMember, limit: Duration) -> Result<()> {
    let id = request.node;
    let map = authority.map();
    let Some(node) = map.node(id).filter(|node| node.kind == NodeKind::Management) else {
        let what = format!(
            "cannot add {id}: this node is not a management node of the cluster; initialise a \
             management node with `skep management --init --join`, start its service, and find its \
             id with `skep node list`"
        );
        return Err(Error::new(ErrorCode::NotFound, what));
    };
    let member = u64::from(id.raw());
    if authority.is_voter(id) {
        return Ok(());
    }
    let name = &node.name;
    let adding = authority.member().add_member(member, node.addresses.clone());
    match skep_env::timeout(limit, adding).await {
        Some(added) => authority.converted(added)?,
        None => {
            let what = format!(
                "{name} ({id}) has not stored the log within {:.0} s: check that this node runs \
                 and that the other management nodes reach this node at {}, and then repeat the \
                 command",
                limit.as_secs_f64(),
                node.addresses.join(", ")
            );
            return Err(Error::new(ErrorCode::TimedOut, what));
        }
    }
    tracing::info!("{name} ({id}) is a member of management now");
    Ok(())
}
