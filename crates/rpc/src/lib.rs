//! Framing on a connection, the handshake, matching of replies to requests; and [`routing`], which
//! turns "this request for this group" into the member that serves it and holds the one retry and
//! fail-over policy.
//!
//! Owns connections. Does not know what a request means, but of those that measure the network
//! ([`link_benchmark`]). A connection speaks to one target; it belongs to one thread's event loop.

pub mod access;
pub mod client;
mod handshake;
mod limits;
pub mod link_benchmark;
pub mod membership;
pub mod routing;
pub mod server;
mod stream;

pub use access::{Channel, Identity, JoinToken, Secret};
pub use client::{CallOptions, Connection};
pub use membership::{Change, ClientEvents, ClientMembership, JoinLimits, Management, Membership};
pub use routing::{MapCell, Router};
pub use server::{Incoming, IncomingStream, Outbox, Peer};
