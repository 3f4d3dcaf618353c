//! What a target is told, and what it wants done.

use crate::tx::operation::{CallId, ConnectionId, OutgoingCall};
use skep_types::{ClusterMap, Lsn, NodeId, Result};
use skep_wire::frame::Header;
use std::sync::Arc;

/// Something that has happened.
#[derive(Debug)]
pub enum Event {
    /// A request arrived.
    Request {
        /// On which connection; the reply names it.
        connection: ConnectionId,
        /// Its header.
        header: Header,
        /// Its body.
        body: Vec<u8>,
    },
    /// A group has answered.
    Answer {
        /// Which request.
        call: CallId,
        /// Body of the reply, or its final refusal.
        result: Result<Vec<u8>>,
    },
    /// The log is on the device up to here.
    Synced {
        /// Up to which record.
        lsn: Lsn,
    },
    /// There is a new cluster map.
    Map(Arc<ClusterMap>),
    /// The engine is durable up to here.
    Checkpointed {
        /// Up to which record.
        lsn: Lsn,
    },
    /// Somebody has looked how much space the log and the engine have on their disk.
    FreeSpace {
        /// None: enough. Otherwise what is missing, and what to do about it: what adds something is
        /// refused with these words until this is said again.
        shortage: Option<String>,
    },
    /// Time has passed.
    Tick,
}

/// Something to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Append a record to the log. Later actions of the same batch rely on it.
    Append {
        /// Number of the record.
        lsn: Lsn,
        /// Up to which record the log is synced.
        synced: Lsn,
        /// Its contents.
        payload: Vec<u8>,
    },
    /// Sync the log up to here, and say so by [`Event::Synced`].
    Sync {
        /// Up to which record.
        lsn: Lsn,
    },
    /// Send a reply.
    Reply {
        /// On which connection.
        connection: ConnectionId,
        /// Header of the request.
        request: Header,
        /// Body of the reply, or the refusal.
        result: Result<Vec<u8>>,
    },
    /// Send a request to a group until it has a final answer, and give it by [`Event::Answer`].
    Call {
        /// Its number.
        call: CallId,
        /// What to send.
        request: OutgoingCall,
    },
    /// Ask management to remove a client from the cluster map: nothing was heard of it for a lease.
    /// Comes again until [`Event::Map`] brings a map without it.
    Evict {
        /// Which.
        client: NodeId,
    },
    /// Make the engine durable as it is, and say so by [`Event::Checkpointed`].
    Checkpoint {
        /// The last record that is in the engine.
        lsn: Lsn,
    },
}

impl Action {
    /// About how many bytes it adds to the log.
    pub(crate) fn logged_bytes(&self) -> u64 {
        match self {
            Self::Append { payload, .. } => payload.len() as u64,
            _ => 0,
        }
    }
}
