//! Connections of a node. The main thread accepts and authenticates each connection, and passes it
//! to the thread of the target that the peer's handshake names. This module handles requests to the
//! node itself, but not requests to targets.

use super::targets::ServingNode;
use super::{TargetEvent, target_requests};
use crate::link_requests;
use crate::node_requests;
use skep_env::{TcpListener, TcpStream};
use skep_exporter::message;
use skep_rpc::server::authenticate;
use skep_rpc::{Admission, Incoming, IncomingStream, Outbox, RefusalLog, Ticket};
use skep_types::{Error, ErrorCode, NodeKind, TargetId};
use std::rc::Rc;
use std::time::Duration;

/// Pause before the next accept after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until this future is dropped.
pub(super) async fn accept(listener: TcpListener, node: Rc<ServingNode>) {
    let incarnation = skep_env::random_u64();
    let refusals = RefusalLog::new("this node");
    let admission = Admission::new(Rc::clone(&refusals));
    // Retry: after a failed accept, for example because no file descriptor is free, the thread
    // accepts again after `ACCEPT_PAUSE`, without limit.
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let Some(ticket) = admission.admit(&stream) else { continue };
                let accepted = Accepted { stream, ticket, refusals: Rc::clone(&refusals) };
                skep_env::spawn(Rc::clone(&node).hand_over(accepted, incarnation)).detach();
            }
            Err(error) => {
                refusals.note("an unknown address", error);
                skep_env::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// An accepted connection, with the permission to begin its handshake.
struct Accepted {
    stream: TcpStream,
    ticket: Ticket,
    refusals: Rc<RefusalLog>,
}

impl ServingNode {
    /// Authenticates a connection and passes it to the thread of its target.
    async fn hand_over(self: Rc<Self>, accepted: Accepted, incarnation: u64) {
        let Accepted { stream, ticket, refusals } = accepted;
        let identity = self.membership.identity();
        let is_served = |target: TargetId| {
            ticket.check_connections()?;
            // A handshake for target 0 addresses the node itself. The node itself handles the
            // requests about its process.
            (self.serves(target) || target.raw() == 0).then_some(()).ok_or_else(|| {
                let context = format!("target {target} is not served by node {}", identity.node);
                Error::new(ErrorCode::StaleMap, context)
            })
        };
        let address = stream.peer();
        let peer = match authenticate(&stream, &identity, incarnation, is_served).await {
            Ok(peer) => peer,
            // Log nothing here, because the peer retries as long as its map assigns the target to
            // this node. The log and the target's health already contain the reason.
            Err(error) if error.code() == ErrorCode::StaleMap => {
                return tracing::debug!("refused a connection from {address}: {error:#}");
            }
            Err(error) => return refusals.note_handshake(address, &error),
        };
        drop(ticket);
        if peer.target.raw() == 0 {
            return self.serve_node(stream, peer.kind).await;
        }
        let Ok(socket) = stream.into_fd() else { return };
        let target = peer.target;
        if !self.send(target, TargetEvent::Connection { socket, peer }) {
            tracing::warn!(
                "this service dropped a connection from {address}: too many new connections wait \
                 for target {target}; the peer opens another connection"
            );
        }
    }

    /// Serves a connection to the node itself until the peer ends the connection.
    async fn serve_node(self: Rc<Self>, stream: TcpStream, kind: NodeKind) {
        let peer = stream.peer();
        let (mut requests, outbox) = IncomingStream::new(stream, kind);
        loop {
            match requests.next().await {
                Ok(Some(incoming)) => self.answer(incoming, &outbox).await,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!("ended the connection from {peer}: {error:#}");
                    break;
                }
            }
        }
        outbox.close();
    }

    /// Handles a request to the node itself.
    async fn answer(self: &Rc<Self>, incoming: Incoming, outbox: &Rc<Outbox>) {
        let message = incoming.header.message;
        if link_requests::is_link_request(message) {
            link_requests::answer(Some(&self.links), incoming, outbox);
        } else if message::is_figures_request(message) {
            message::answer(&self.figures, &incoming, outbox);
        } else if target_requests::is_target_request(message) {
            self.answer_target_request(&incoming, outbox).await;
        } else {
            node_requests::answer(&incoming, outbox);
        }
    }
}
