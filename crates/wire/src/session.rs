//! The handshake of a connection. What it must prove is in `docs/protocol/handshake.md`; the
//! computation is `skep-rpc`'s.

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
        /// The sender's id; zero: it has none yet.
        pub node: NodeId,
        /// The target to speak to; zero: the node itself.
        pub target: TargetId,
        /// Which of the sender's channels to the target this is; zero: none. A connection ends the
        /// one that the same node had before on the same channel: what that brought and nobody has
        /// looked at is thrown away, so that a late copy of a request can't come after what was
        /// answered on the new connection.
        pub channel: u64,
        /// Random, never used again.
        pub nonce: u128,
    }
}

record! {
    /// Answer to [`Hello`]: proves that the receiver knows the cluster's secret.
    pub struct Challenge {
        /// The receiver's file system.
        pub cluster: ClusterId,
        /// Protocol version for this connection.
        pub protocol: u16,
        /// Random, never used again.
        pub nonce: u128,
        /// HMAC-SHA-256 over "skep server", the hello and this message without proof: low half.
        pub proof_low: u128,
        /// High half of the same.
        pub proof_high: u128,
    }
}

record! {
    /// Third frame: proves that the connecting side knows the cluster's secret.
    pub struct Proof {
        /// HMAC-SHA-256 over "skep client", the hello and the challenge without proof: low half.
        pub proof_low: u128,
        /// High half of the same.
        pub proof_high: u128,
    }
}

record! {
    /// Last frame of the handshake: requests may follow.
    pub struct Welcome {
        /// The node that answers.
        pub node: NodeId,
        /// Differs after each start of the service.
        pub incarnation: u64,
    }
}
