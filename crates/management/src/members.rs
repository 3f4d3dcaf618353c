//! Messages between the members of management: connections to the other members, and the replies to
//! their messages.
//!
//! This module owns the connections. `skep_consensus` defines the meaning of the messages, and
//! decides which nodes are members. In management on one node, there are no other members, and this
//! module sends nothing.
//!
//! A call of the replicated log has a short time limit, 150 ms for a heartbeat. A handshake may
//! take longer than this limit. So an attempt to connect continues even after the call that began
//! the attempt has ended.
//!
//! # Hazard: another member at the address
//! A member whose directory was emptied returns under a new id, perhaps at the same address. A
//! member that replied to messages for its previous id could vote twice in one election. So each
//! message contains the id of its receiver, and [`answer`] refuses messages for another id.

use crate::limits::{MAX_MEMBER_LINKS, MEMBER_SILENCE};
use skep_consensus::{MAX_MESSAGE_BYTES, Member, StateMachine, Transport};
use skep_env::local::Notify;
use skep_rpc::{CallOptions, Channel, Connection, Identity, Incoming, Outbox};
use skep_types::codec::{Bytes, Codec};
use skep_types::{Error, ErrorCode, NodeId, Result, TargetId};
use skep_wire::consensus::{AskMember, MemberReply};
use skep_wire::limits::MAX_MEMBER_MESSAGE_BYTES;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

const _: () = assert!(MAX_MESSAGE_BYTES <= MAX_MEMBER_MESSAGE_BYTES, "each message fits a frame");

/// The connections of one member to the other members.
pub struct MemberConnections {
    identity: Identity,
    links: RefCell<BTreeMap<u64, Rc<MemberLink>>>,
}

impl fmt::Debug for MemberConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberConnections({} members)", self.links.borrow().len())
    }
}

/// The connection to one member.
#[derive(Default)]
struct MemberLink {
    connection: RefCell<Option<Rc<Connection>>>,
    /// The attempt to connect to the member. The attempt ends when the link is dropped.
    connecting: RefCell<Option<skep_env::Task<()>>>,
    is_connecting: Cell<bool>,
    /// Error of the last attempt to connect.
    failure: RefCell<Option<Error>>,
    /// Notifies waiting callers when an attempt to connect has ended.
    attempted: Notify,
    /// Time of the last reply of the member, or of the last attempt to connect, whichever is later.
    last_contact: Cell<Duration>,
    last_used: Cell<Duration>,
}

impl MemberConnections {
    /// Creates the connections of the member with this identity. The member connects to another
    /// member only when it must send the first message to that member.
    pub fn new(identity: Identity) -> Self {
        Self { identity, links: RefCell::default() }
    }

    /// Returns the link to a member. If the number of links exceeds its limit, removes the least
    /// recently used link.
    fn link(&self, to: u64) -> Rc<MemberLink> {
        let mut links = self.links.borrow_mut();
        if links.len() >= MAX_MEMBER_LINKS && !links.contains_key(&to) {
            let oldest = links.iter().min_by_key(|(_, link)| link.last_used.get());
            let oldest = oldest.map(|(id, _)| *id);
            if let Some(link) = oldest.and_then(|id| links.remove(&id)) {
                link.close();
            }
        }
        let link = Rc::clone(links.entry(to).or_default());
        link.last_used.set(skep_env::now());
        link
    }
}

impl MemberLink {
    fn open(&self) -> Option<Rc<Connection>> {
        self.connection.borrow().as_ref().filter(|it| !it.is_closed()).cloned()
    }

    fn close(&self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
    }

    /// Returns the open connection, or opens a connection. All callers share one attempt to
    /// connect. The attempt continues even if a caller no longer waits for the connection.
    async fn connection(
        self: &Rc<Self>,
        identity: &Identity,
        addresses: &[String],
    ) -> Result<Rc<Connection>> {
        if let Some(open) = self.open() {
            return Ok(open);
        }
        let attempted = self.attempted.wait();
        if !self.is_connecting.replace(true) {
            let link = Rc::downgrade(self);
            let (identity, addresses) = (identity.clone(), addresses.to_vec());
            let connecting = skep_env::spawn(async move {
                let target = TargetId::default();
                let opened =
                    Connection::connect_any(&addresses, &identity, target, Channel::NONE).await;
                let Some(link) = link.upgrade() else { return };
                link.is_connecting.set(false);
                link.last_contact.set(skep_env::now());
                match opened {
                    Ok(connection) => *link.connection.borrow_mut() = Some(connection),
                    Err(error) => *link.failure.borrow_mut() = Some(error),
                }
                link.attempted.notify();
            });
            *self.connecting.borrow_mut() = Some(connecting);
        }
        attempted.await;
        self.open().ok_or_else(|| {
            let lost = || Error::new(ErrorCode::Disconnected, "the connection has ended");
            self.failure.borrow().clone().unwrap_or_else(lost)
        })
    }
}

impl Transport for MemberConnections {
    async fn call(
        &self,
        to: u64,
        addresses: &[String],
        request: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>> {
        let deadline = skep_env::now() + limit;
        let within = |error: Error| {
            error.within(format_args!("a request to member {to} of management failed"))
        };
        let link = self.link(to);
        let connecting = link.connection(&self.identity, addresses);
        let Some(connection) = skep_env::timeout(limit, connecting).await else {
            let what = format!("no connection within {:.2} s", limit.as_secs_f64());
            return Err(within(Error::new(ErrorCode::TimedOut, what)));
        };
        let connection = connection.map_err(within)?;
        let node = u32::try_from(to).map(NodeId::new);
        let node = node.map_err(|_| {
            Error::new(
                ErrorCode::Protocol,
                format!(
                    "cannot send a message to member {to} of management: the number is not a node \
                     id"
                ),
            )
        })?;
        let time_left = Some(deadline.saturating_sub(skep_env::now()));
        let options = CallOptions { time_left, ..CallOptions::default() };
        let message = AskMember { to: node, message: Bytes(request) };
        let called = connection.call(&message, &options).await;
        let is_silent = skep_env::now() > link.last_contact.get() + MEMBER_SILENCE;
        match called {
            Ok((reply, _)) => {
                link.last_contact.set(skep_env::now());
                Ok(reply.message.0)
            }
            Err(error) => {
                let code = error.code();
                if code == ErrorCode::TimedOut && is_silent || code == ErrorCode::Disconnected {
                    connection.close();
                }
                Err(within(error))
            }
        }
    }
}

/// Replies to a message of another member. `own` is the id of this member. The caller reads the
/// next message of a connection only after this function has returned, so that only one message of
/// each connection is in memory.
pub async fn answer<S: StateMachine>(
    member: &Member<S>,
    own: NodeId,
    incoming: &Incoming,
    outbox: &Rc<Outbox>,
) {
    match check(own, incoming) {
        Ok(message) => {
            let message = Bytes(member.handle(&message).await);
            outbox.reply(&incoming.header, &MemberReply { message });
        }
        Err(error) => outbox.refuse(&incoming.header, &error),
    }
}

/// Returns the message in a request, if the request is for this member.
fn check(own: NodeId, incoming: &Incoming) -> Result<Vec<u8>> {
    let AskMember { to, message } = AskMember::from_bytes(&incoming.body)?;
    if to != own {
        let what = format!(
            "cannot accept a message for member {to} of management: member {own} uses this address"
        );
        return Err(Error::new(ErrorCode::NotPermitted, what));
    }
    Ok(message.0)
}

#[cfg(test)]
mod tests;
