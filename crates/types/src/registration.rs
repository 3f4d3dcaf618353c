//! How a server reports itself: in a message to management, and in the command that management's
//! log keeps of it.

use crate::codec::record;
use crate::map::{NodeKind, TargetKind};
use crate::{NodeId, TargetId};

record! {
    /// One target that a server says it has.
    pub struct TargetClaim {
        /// Its id; zero: it is new and gets one.
        pub target: TargetId,
        /// Drawn when its directory was initialised; tells a blank disk from the one that had the
        /// id.
        pub uuid: u128,
        /// What it stores.
        pub kind: TargetKind,
        /// Where it lies, for people.
        pub path: String,
    }
}

record! {
    /// A server, with all its targets.
    pub struct ServerRegistration {
        /// Its id; zero: it is new and gets one.
        pub node: NodeId,
        /// Drawn when its directory was initialised.
        pub uuid: u128,
        /// Any kind but `Client`.
        pub kind: NodeKind,
        /// Name for people; empty: management makes one.
        pub name: String,
        /// Where it listens, `host:port`, best first.
        pub addresses: Vec<String>,
        /// Version of its program.
        pub version: String,
        /// Its targets.
        pub targets: Vec<TargetClaim>,
    }
}
