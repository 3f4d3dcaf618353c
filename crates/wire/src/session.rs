//! The handshake of a connection. `docs/protocol/handshake.md` describes its proofs; `skep-rpc`
//! computes them.

use skep_types::codec::record;
use skep_types::{ClusterId, NodeId, NodeKind, TargetId};

record! {
    /// First frame of a connection, from the side that connects.
    pub struct Hello {
        /// The file system that the sender belongs to (the join token names it).
        pub cluster: ClusterId,
        /// Oldest protocol version that the sender speaks.
        pub oldest: u16,
        /// Newest protocol version that the sender speaks.
        pub newest: u16,
        /// The sender's kind.
        pub kind: NodeKind,
        /// The sender's id. Zero if it has none yet.
        pub node: NodeId,
        /// The target to connect to. Zero stands for the node itself.
        pub target: TargetId,
        /// Number of the sender's channel to the target. Zero means no channel. The receiver ends
        /// an older connection of the same node and channel and drops its unprocessed requests. So
        /// it never executes a late copy of a request after a request of the new connection.
        pub channel: u64,
        /// Random number, never used again.
        pub nonce: u128,
    }
}

record! {
    /// Reply to [`Hello`]. Proves that the receiver has the cluster's secret.
    pub struct Challenge {
        /// The receiver's file system.
        pub cluster: ClusterId,
        /// Protocol version for this connection.
        pub protocol: u16,
        /// Random number, never used again.
        pub nonce: u128,
        /// HMAC-SHA-256 over "skep server", the hello and this message without proof: low half.
        pub proof_low: u128,
        /// High half of the same.
        pub proof_high: u128,
    }
}

record! {
    /// Third frame. Proves that the connecting side has the cluster's secret.
    pub struct Proof {
        /// HMAC-SHA-256 over "skep client", the hello and the challenge without proof: low half.
        pub proof_low: u128,
        /// High half of the same.
        pub proof_high: u128,
    }
}

record! {
    /// Last frame of the handshake. Requests may follow.
    pub struct Welcome {
        /// The receiver's node.
        pub node: NodeId,
        /// Number of the service's start. It differs after each start.
        pub incarnation: u64,
    }
}
