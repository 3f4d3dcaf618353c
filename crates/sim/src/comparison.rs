//! A client's comparison of its acknowledged changes with the slots of a restarted target.
//!
//! This module has the client's part of the comparison, like
//! `crates/client/src/session/compare_slots.rs`, and the check that a target executes no change
//! before the comparison. The witness checks whether the slots show exactly the changes that a
//! power loss has reverted. The module `replay` stores the acknowledged changes that a client keeps
//! for a replay.

use crate::network::{Node, Purpose};
use crate::world::{World, message};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::frame::Header;
use skep_wire::metadata as md;

impl World {
    /// Returns the start number of the target that a client sends with its changes in a session.
    pub(crate) fn start_of(&self, client: usize, session: SessionId) -> u64 {
        let mut sessions = self.clients[client].sessions.values();
        sessions.find(|it| it.id == session).map_or(0, |it| it.start)
    }

    /// Begins the comparison after a target has refused a request because the target has restarted.
    /// After a pause, the client sends the refused request again in the same slot.
    pub(crate) fn compare_and_repeat(&mut self, caller: Node, tag: u64) {
        let Some(call) = self.network.calls.get_mut(&tag) else { return };
        call.connection = None;
        let (group, session) = (call.group, call.header.session);
        if let Node::Client(client) = caller {
            // The client has replaced the session, so the client can no longer compare its changes.
            if self.clients[client].sessions.values().all(|it| it.id != session) {
                let what = "the client has replaced the session";
                return self.finish_call(tag, Err(Error::new(ErrorCode::StaleSession, what)));
            }
            let (header, body) = message(&md::CompareSlots {});
            let header = Header { session, ..header };
            self.call(Node::Client(client), group, header, body, Purpose::Slots(session));
        }
        self.send_again(tag);
    }

    /// Handles the reply to a comparison. If the reply is an error, the refused request fails with
    /// this error.
    pub(crate) fn slots_received(
        &mut self,
        client: usize,
        session: SessionId,
        result: Result<Vec<u8>>,
    ) {
        let reply = result.and_then(|body| md::CompareSlotsReply::from_bytes(&body));
        let mut sessions = self.clients[client].sessions.values_mut();
        if let (Ok(reply), Some(found)) = (reply, sessions.find(|it| it.id == session))
            && found.start != reply.start
        {
            found.start = reply.start;
            self.replay_lost(client, session, &reply.slots);
        }
    }

    /// If a reply shows that the client has opened a session or compared its changes, records the
    /// target process that has replied. Checks that a target process executes a session's changes
    /// only after the client has compared its changes with this process.
    pub(crate) fn note_reply(&mut self, caller: Node, tag: u64, server: (Node, u64)) {
        let (Node::Client(client), Node::Target(target)) = (caller, server.0) else { return };
        let Some(call) = self.network.calls.get(&tag) else { return };
        let header = &call.header;
        let compares = matches!(call.purpose, Purpose::Session(..) | Purpose::Slots(_));
        let modifies = skep_wire::catalog::message(header.message).is_some_and(|it| it.modifies);
        let id = header.session;
        let mut sessions = self.clients[client].sessions.values_mut();
        let Some(session) = sessions.find(|it| it.id == id) else { return };
        if compares {
            session.compared.push(server);
        } else if modifies && !session.compared.contains(&server) {
            self.fail(format!(
                "target {target} executed a change of session {id}, whose client had not compared \
                 its changes since the start"
            ));
        }
    }

    /// Checks the slots in a target's reply to a comparison.
    pub(crate) fn check_slots(&mut self, target: usize, session: SessionId, body: &[u8]) {
        let Ok(reply) = md::CompareSlotsReply::from_bytes(body) else { return };
        let checked = self.witness.check_slots(target, session, &reply.slots);
        self.check(checked);
    }
}
