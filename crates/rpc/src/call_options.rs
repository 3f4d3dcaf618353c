//! The options of a request in addition to its body, and facts about its reply.

use skep_env::Buf;
use skep_types::{Epoch, GroupId, MapVersion, NodeId, SessionId};
use skep_wire::senders;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Options of a request, in addition to its body.
#[derive(Debug, Clone, Default)]
pub struct CallOptions {
    /// The sender's session, for requests to a metadata target.
    pub session: SessionId,
    /// The session's slot, for requests that modify data. Slot and sequence together identify a
    /// repeated request.
    pub slot: u32,
    /// The sequence number within `slot`.
    pub sequence: u64,
    /// For requests that change names or attributes: the start number of the metadata target at
    /// which the client has opened its session, or has last compared its acknowledged changes. If
    /// the target has started again after that start, the target refuses the request.
    pub start: u64,
    /// Whether the target may reply only after the effect is durable.
    pub durable: bool,
    /// The group that the request addresses.
    pub group: GroupId,
    /// The epoch of the group in the sender's cluster map.
    pub epoch: Epoch,
    /// The sender's group and epoch, if the sender is the primary of a group. The router sets this
    /// field.
    pub sender: senders::Sender,
    /// Minimum version of the cluster map that the receiver must have to execute the request.
    pub lowest_map: MapVersion,
    /// If this field is set, the router sends the request only while this process has the given
    /// node id; otherwise the call fails with `Evicted`.
    pub only_as: Option<NodeId>,
    /// Time after which the call fails with `TimedOut`; `None` means no limit.
    pub time_left: Option<Duration>,
    /// Bulk data that follows the request.
    pub data: Vec<Buf>,
    /// Buffer for the reply's bulk data, which may be shorter than the buffer.
    pub into: Option<Buf>,
    /// Trace id, which all requests of one operation have.
    pub trace: u128,
    /// Facts about the attempts to send the request and about the reply, which the router and the
    /// connection set.
    pub facts: Option<Rc<CallFacts>>,
}

/// Facts about a call, in addition to the body of the reply.
#[derive(Debug, Default)]
pub struct CallFacts {
    /// Flag that the router sets when a connection is lost between a request and its reply. The
    /// target may then have executed the request, even if the reply to a retry is an error.
    pub reply_lost: Cell<bool>,
    /// Length of the encoded request in bytes, which the connection sets when it sends the request.
    pub body_bytes: Cell<usize>,
    /// Number of the change in the reply of a metadata target, which the connection sets when the
    /// reply arrives. Zero means that the change is durable.
    pub change: Cell<u64>,
}
