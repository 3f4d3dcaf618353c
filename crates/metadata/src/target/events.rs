//! The interface of the state machine: its events and its actions.

use crate::tx::operation::{CallId, ConnectionId, OutgoingCall};
use skep_types::{ClusterMap, Lsn, NodeId, Result};
use skep_wire::frame::Header;
use std::sync::Arc;

/// An input of the state machine.
#[derive(Debug)]
pub enum Event {
    /// A request arrived.
    Request {
        /// The connection on which it arrived; the reply names it.
        connection: ConnectionId,
        /// Its header.
        header: Header,
        /// Its body.
        body: Vec<u8>,
    },
    /// The final reply of another group to a call.
    Answer {
        /// The number of the call.
        call: CallId,
        /// Body of the reply, or its final refusal.
        result: Result<Vec<u8>>,
    },
    /// The log is synced.
    Synced {
        /// The last record that is synced.
        lsn: Lsn,
    },
    /// There is a new cluster map.
    Map(Arc<ClusterMap>),
    /// A checkpoint is complete.
    Checkpointed {
        /// The last record that is in the engine's checkpoint.
        lsn: Lsn,
    },
    /// The free space on the disk of the log and the engine was measured.
    FreeSpace {
        /// `None` means that there is enough. Otherwise the error message, with the way out, with
        /// which the target refuses requests that add something, until the next event of this kind.
        shortage: Option<String>,
    },
    /// Time has passed.
    Tick,
}

/// An output of the state machine. The caller performs actions in order.
#[derive(Debug)]
pub enum Action {
    /// Append a record to the log. Later actions of the same batch rely on it.
    Append {
        /// Number of the record.
        lsn: Lsn,
        /// The last record that is synced.
        synced: Lsn,
        /// Its contents.
        payload: Vec<u8>,
    },
    /// Sync the log, then report [`Event::Synced`].
    Sync {
        /// The last record to sync.
        lsn: Lsn,
    },
    /// Send a reply.
    Reply {
        /// The connection of the request.
        connection: ConnectionId,
        /// Header of the request.
        request: Header,
        /// Body of the reply, or the refusal.
        result: Result<Vec<u8>>,
    },
    /// Send a request to a group until there is a final reply, then report [`Event::Answer`].
    Call {
        /// Its number.
        call: CallId,
        /// The request.
        request: OutgoingCall,
    },
    /// Ask management to remove a client from the cluster map, because it has not renewed its
    /// lease. The target repeats this action until [`Event::Map`] brings a map without the client.
    Evict {
        /// The client.
        client: NodeId,
    },
    /// Make the engine durable as it is, then report [`Event::Checkpointed`].
    Checkpoint {
        /// The last record that is in the engine.
        lsn: Lsn,
    },
}

impl Action {
    /// About the number of bytes that the action adds to the log.
    pub(crate) fn logged_bytes(&self) -> u64 {
        match self {
            Self::Append { payload, .. } => payload.len() as u64,
            _ => 0,
        }
    }
}
