//! Framing on a connection, the handshake, and the matching of replies to requests. [`routing`]
//! sends a request to the member that serves a group, and owns the retry and fail-over policy.
//! [`membership`] registers a node with management.
//!
//! This crate is responsible for connections, but not for the meaning of requests, except for
//! requests that measure the network ([`link_benchmark`]). A connection leads to one target and
//! belongs to the event loop of one thread.

pub mod access;
mod admission;
mod call_options;
mod calls;
pub mod client;
mod dial;
mod handshake;
mod idle;
mod idle_peers;
mod limits;
mod link;
pub mod link_benchmark;
mod map_cell;
pub mod membership;
pub mod origin;
mod outages;
mod refusal;
mod refusal_log;
mod reply_time;
mod request_load;
pub mod routing;
pub mod secret;
pub mod server;
mod stream;
mod term;
mod unanswered;

pub use access::{Channel, Identity, JoinToken, Peer};
pub use admission::{Admission, Ticket};
pub use call_options::{CallFacts, CallOptions};
pub use calls::calls_of;
pub use client::{Connection, SilentTarget, silent_targets};
pub use map_cell::MapCell;
pub use membership::{
    Change, ClientEvents, ClientMembership, GAVE_UP, JoinLimits, Management, Membership,
    management_addresses,
};
pub use origin::{Origin, with_origin};
pub use outages::failing_groups;
pub use refusal_log::RefusalLog;
pub use request_load::{RequestCause, RequestCounts, RequestLoad, UncountedOperation};
pub use routing::Router;
pub use secret::{HeldSecret, MAX_SECRETS, Secret, SecretId, Secrets};
pub use server::{Incoming, IncomingStream, Outbox};
pub use unanswered::{Unanswered, UnansweredReport};
