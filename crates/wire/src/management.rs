//! Messages to management: registration, heartbeats, the cluster map.

use crate::node::LogLevel;
use skep_types::codec::record;
use skep_types::map::{Capacity, ClusterMap, Policy};
use skep_types::registration::ServerRegistration;
use skep_types::{MapVersion, NodeId, TargetId, Timestamp};

record! {
    /// Nothing to say but success.
    pub struct EmptyReply {}
}

record! {
    /// A server reports itself at its start, with all its targets.
    pub struct RegisterServer {
        /// The server; of kind `Metadata` or `Storage`.
        pub server: ServerRegistration,
        /// Room on its targets, in their order.
        pub capacities: Vec<Capacity>,
    }
}

record! {
    /// The ids that a server has now.
    pub struct RegisterReply {
        /// The node's.
        pub node: NodeId,
        /// The targets', in the order of the request.
        pub targets: Vec<TargetId>,
        /// The current map.
        pub map: ClusterMap,
    }
}

record! {
    /// A client reports itself before it mounts.
    pub struct RegisterClient {
        /// Name of its host, for people.
        pub host: String,
        /// Where it mounts, for people.
        pub mount_point: String,
        /// Version of its program.
        pub version: String,
        /// Its process, as its host numbers it, for people.
        pub pid: u32,
    }
}

record! {
    /// A node is alive. Servers that management doesn't know (any more) get `Stale` and register
    /// again.
    pub struct Heartbeat {
        /// The sender.
        pub node: NodeId,
        /// The map that it has.
        pub known: MapVersion,
        /// Room on its targets.
        pub capacities: Vec<(TargetId, Capacity)>,
    }
}

record! {
    /// What management answers to a heartbeat.
    pub struct HeartbeatReply {
        /// Room for files in the whole cluster, as storage reported it last; none right after
        /// management's start, before it has heard from all.
        pub capacity: Option<Capacity>,
        /// For clients, which take no connections: what somebody wants of their log.
        pub log_level_change: Option<LogLevelChange>,
        /// The map, if there is a newer one than the sender's.
        pub map: Option<ClusterMap>,
    }
}

record! {
    /// A client is to change what it logs, or to say what that is. It comes with each heartbeat's
    /// answer until the client has sent its [`ConfirmLogLevel`].
    pub struct LogLevelChange {
        /// Which order it is.
        pub number: u64,
        /// As in `SetLogLevel`.
        pub level: Option<String>,
    }
}

record! {
    /// Changes what a client logs, until it ends, or only asks. Answered when the client has
    /// answered.
    pub struct SetClientLogLevel {
        /// The client.
        pub client: NodeId,
        /// As in `SetLogLevel`.
        pub level: Option<String>,
    }
}

record! {
    /// A client has carried out a [`LogLevelChange`].
    pub struct ConfirmLogLevel {
        /// The client.
        pub client: NodeId,
        /// The order's.
        pub number: u64,
        /// What it logs; none: it won't do it.
        pub level: Option<LogLevel>,
        /// Why it won't.
        pub refusal: String,
    }
}

record! {
    /// The map, if there is a newer one than the asker's.
    pub struct MapUpdate {
        /// The newer map.
        pub map: Option<ClusterMap>,
    }
}

record! {
    /// Asks for the map; waits up to the request's time for one newer than `known`.
    pub struct GetMap {
        /// The map that the asker has.
        pub known: MapVersion,
    }
}

record! {
    /// A node ends cleanly. A client is forgotten, a server is offline at once.
    pub struct Leave {
        /// The sender.
        pub node: NodeId,
    }
}

record! {
    /// A metadata target has heard nothing of a client for a lease, or an administrator says so:
    /// the client is to be removed from the map, so that nobody serves it any more and what it had
    /// can be given to others.
    pub struct Evict {
        /// The client.
        pub client: NodeId,
    }
}

record! {
    /// Divides the virtual shards evenly over the metadata groups that there are. Once per cluster.
    pub struct Format {}
}

record! {
    /// Replaces the cluster's settings.
    pub struct SetPolicy {
        /// The new settings.
        pub policy: Policy,
    }
}

record! {
    /// Changes one setting of the cluster and leaves the others as they are.
    pub struct ChangeSetting {
        /// Its name, as in `skep config list`.
        pub name: String,
        /// The new number, in the setting's unit.
        pub value: u64,
        /// Only check whether it could be changed.
        pub is_dry_run: bool,
    }
}

record! {
    /// Answer to [`ChangeSetting`].
    pub struct ChangeSettingReply {
        /// The number of before.
        pub before: u64,
        /// The map version from which on the new number holds.
        pub version: MapVersion,
    }
}

record! {
    /// Lists the clients that are registered.
    pub struct ListClients {
        /// Only clients with higher ids; zero: from the beginning.
        pub after: NodeId,
    }
}

record! {
    /// A client.
    pub struct ClientEntry {
        /// Its id.
        pub node: NodeId,
        /// Name of its host.
        pub host: String,
        /// Where it mounts.
        pub mount_point: String,
        /// Its process, as its host numbers it.
        pub pid: u32,
        /// When it registered, by management's clock.
        pub registered: Timestamp,
        /// For how long it was silent; none: nothing was heard of it since management's start.
        pub silent_ms: Option<u64>,
    }
}

record! {
    /// Answer to [`ListClients`].
    pub struct ClientList {
        /// By rising id.
        pub clients: Vec<ClientEntry>,
        /// The next page's `after`; none: all is told.
        pub next: Option<NodeId>,
    }
}
