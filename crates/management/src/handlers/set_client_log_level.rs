//! `SetClientLogLevel`: what a client is to log. Answered when it has been told and has answered.

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
        let what = format!("{client} is no client of this cluster (`skep client list`)");
        return Err(Error::new(ErrorCode::NotFound, what));
    };
    let (number, answer) = authority.log_level_changes.add(client, level)?;
    // However this ends: nobody waits for it then.
    let _waits = Waits { authority, client, number };
    let name = &node.name;
    match skep_env::timeout(wait, answer).await {
        Some(Some(answer)) => answer,
        Some(None) => {
            let what = format!("{name} ({client}) was given another order about its log meanwhile");
            Err(Error::new(ErrorCode::InUse, what))
        }
        None => {
            let what = format!("{name} ({client}) said nothing for {:.1} s", wait.as_secs_f64());
            Err(Error::new(ErrorCode::TimedOut, what))
        }
    }
}

/// Somebody waits for an order.
struct Waits<'a> {
    authority: &'a Authority,
    client: NodeId,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.authority.log_level_changes.give_up(self.client, self.number);
    }
}
