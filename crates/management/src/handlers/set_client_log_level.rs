//! `SetClientLogLevel`: changes a client's log level. Replies when the client has confirmed or
//! refused the change.

use super::longest_wait;
use crate::authority::Authority;
use skep_rpc::{Incoming, Outbox};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, NodeId, NodeKind, Result};
use skep_wire::management::SetClientLogLevel;
use skep_wire::node::LogLevel;
use std::rc::Rc;
use std::time::Duration;

pub(super) fn handle(authority: &Rc<Authority>, incoming: Incoming, outbox: &Rc<Outbox>) {
    let request = match SetClientLogLevel::from_bytes(&incoming.body) {
        Ok(request) => request,
        Err(error) => return outbox.refuse(&incoming.header, &error),
    };
    let wait = longest_wait(&incoming.header);
    let (authority, outbox) = (Rc::clone(authority), Rc::clone(outbox));
    skep_env::spawn(async move {
        match order(&authority, request, wait).await {
            Ok(level) => outbox.reply(&incoming.header, &level),
            Err(error) => outbox.refuse(&incoming.header, &error),
        }
    })
    .detach();
}

async fn order(
    authority: &Authority,
    request: SetClientLogLevel,
    wait: Duration,
) -> Result<LogLevel> {
    let SetClientLogLevel { client, level } = request;
    let map = authority.map();
    let node = map.node(client).filter(|node| node.kind == NodeKind::Client);
    let Some(node) = node else {
        let context = format!(
            "cannot change the log level of {client}: this node is not a client of the cluster; \
             `skep client list` shows all clients"
        );
        return Err(Error::new(ErrorCode::NotFound, context));
    };
    let (number, answer) = authority.log_level_changes.add(client, level)?;
    // The guard removes the pending change when this future ends or is dropped.
    let _pending = PendingOrder { authority, client, number };
    let name = &node.name;
    match skep_env::timeout(wait, answer).await {
        Some(Some(answer)) => answer,
        Some(None) => {
            let context = format!(
                "cannot change the log level of client {name} ({client}): another command has \
                 changed the level at the same time; repeat the command"
            );
            Err(Error::new(ErrorCode::InUse, context))
        }
        None => {
            let seconds = wait.as_secs_f64();
            let context = format!(
                "cannot change the log level of client {name} ({client}): the client did not \
                 answer for {seconds:.1} s"
            );
            Err(Error::new(ErrorCode::TimedOut, context))
        }
    }
}

/// A pending change of a client's log level. A request waits until the client confirms or refuses
/// the change. The drop of this guard removes the change.
struct PendingOrder<'a> {
    authority: &'a Authority,
    client: NodeId,
    number: u64,
}

impl Drop for PendingOrder<'_> {
    fn drop(&mut self) {
        self.authority.log_level_changes.give_up(self.client, self.number);
    }
}
