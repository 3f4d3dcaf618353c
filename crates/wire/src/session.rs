//! The handshake of a connection. `docs/protocol/handshake.md` specifies the proofs, and `skep-rpc`
//! computes them.

use skep_types::codec::record;
use skep_types::{ClusterId, NodeId, NodeKind, TargetId};

record! {
    /// First frame of a connection, sent by the side that connects.
    pub struct Hello {
        /// The file system to which the sender belongs, from the join token.
        pub cluster: ClusterId,
        /// Oldest protocol version that the sender supports.
        pub oldest: u16,
        /// Newest protocol version that the sender supports.
        pub newest: u16,
        /// Kind of the sender.
        pub kind: NodeKind,
        /// Node id of the sender. Zero if the sender has no id yet.
        pub node: NodeId,
        /// The target to which the sender connects. Zero means the node itself.
        pub target: TargetId,
        /// Id of the sender's channel to the target. Zero means no channel. If there is an older
        /// connection of the same node and channel, the receiver closes the older connection and
        /// drops its unprocessed requests. So the receiver never executes a delayed request of the
        /// old connection after a request of the new connection.
        pub channel: u64,
        /// Random number that is never reused.
        pub nonce: u128,
        /// Ids of the secrets that the sender has, at most four, the newest first. An id is the
        /// first 8 bytes, as a big-endian number, of the HMAC-SHA-256 over "skep secret id" keyed
        /// with the secret.
        pub secrets: Vec<u64>,
    }
}

record! {
    /// Reply to [`Hello`]. Proves that the receiver of the `Hello` has the secret of the cluster.
    pub struct Challenge {
        /// The file system to which the receiver of the `Hello` belongs.
        pub cluster: ClusterId,
        /// Protocol version chosen for this connection.
        pub protocol: u16,
        /// Random number that is never reused.
        pub nonce: u128,
        /// Id of the secret in the `Hello` that both sides use for their proofs.
        pub secret: u64,
        /// Lower half of the HMAC-SHA-256 over "skep server", the `Hello`, and this message without
        /// its proof.
        pub proof_low: u128,
        /// Upper half of the HMAC whose lower half is `proof_low`.
        pub proof_high: u128,
    }
}

record! {
    /// Third frame of the handshake. Proves that the connecting side has the secret of the cluster.
    pub struct Proof {
        /// Lower half of the HMAC-SHA-256 over "skep client", the `Hello`, and the `Challenge`
        /// without its proof.
        pub proof_low: u128,
        /// Upper half of the HMAC whose lower half is `proof_low`.
        pub proof_high: u128,
    }
}

record! {
    /// Last frame of the handshake. After this frame, the connecting side may send requests.
    pub struct Welcome {
        /// Node id of the receiver of the `Hello`.
        pub node: NodeId,
        /// Id of the current start of the service. Each start has a different id.
        pub incarnation: u64,
    }
}
