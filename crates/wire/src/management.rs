//! Messages to management: registration, heartbeats, the cluster map.

use crate::node::LogLevel;
use skep_types::codec::record;
use skep_types::map::{Capacity, ClusterMap, Policy};
use skep_types::registration::ServerRegistration;
use skep_types::{MapVersion, NodeId, TargetId, Timestamp};

record! {
    /// Reply without fields: success.
    pub struct EmptyReply {}
}

record! {
    /// A server registers at its start, with all its targets. Repeating it changes nothing.
    pub struct RegisterServer {
        /// The server, of kind `Metadata` or `Storage`.
        pub server: ServerRegistration,
        /// Capacities of its targets, in their order.
        pub capacities: Vec<Capacity>,
    }
}

record! {
    /// Reply to [`RegisterServer`] and [`RegisterClient`].
    pub struct RegisterReply {
        /// Id of the node.
        pub node: NodeId,
        /// Ids of its targets, in the order of the request.
        pub targets: Vec<TargetId>,
        /// The current map.
        pub map: ClusterMap,
    }
}

record! {
    /// A client registers before it mounts. Management gives it a new id each time.
    pub struct RegisterClient {
        /// Name of its host, for output.
        pub host: String,
        /// Mount point, for output.
        pub mount_point: String,
        /// Version of its program.
        pub version: String,
        /// Process id on its host, for output.
        pub pid: u32,
    }
}

record! {
    /// A node reports regularly that it is alive. Management returns `Stale` to a node that is not
    /// in its map; a server then registers again.
    pub struct Heartbeat {
        /// The sender.
        pub node: NodeId,
        /// Version of the sender's map.
        pub known: MapVersion,
        /// Capacities of its targets.
        pub capacities: Vec<(TargetId, Capacity)>,
    }
}

record! {
    /// Reply to [`Heartbeat`].
    pub struct HeartbeatReply {
        /// Capacity of the whole cluster for files, from the newest reports of storage targets.
        /// `None` right after management's start, until all targets have reported.
        pub capacity: Option<Capacity>,
        /// A pending change of a client's log level. Clients accept no connections, so management
        /// delivers it here.
        pub log_level_change: Option<LogLevelChange>,
        /// The map. `None` means that the sender's map is the newest.
        pub map: Option<ClusterMap>,
    }
}

record! {
    /// A request to a client to change or report its log level. Management adds it to each reply to
    /// a heartbeat until the client sends [`ConfirmLogLevel`].
    pub struct LogLevelChange {
        /// Number of the change.
        pub number: u64,
        /// As in `SetLogLevel`.
        pub level: Option<String>,
    }
}

record! {
    /// Changes the log level of a client until it ends, or only asks for it. Management replies
    /// when the client has sent [`ConfirmLogLevel`].
    pub struct SetClientLogLevel {
        /// The client.
        pub client: NodeId,
        /// As in `SetLogLevel`.
        pub level: Option<String>,
    }
}

record! {
    /// A client confirms or refuses a [`LogLevelChange`].
    pub struct ConfirmLogLevel {
        /// The client.
        pub client: NodeId,
        /// Number of the change.
        pub number: u64,
        /// The client's log level. `None` means that the client refuses the change.
        pub level: Option<LogLevel>,
        /// Reason of the refusal.
        pub refusal: String,
    }
}

record! {
    /// Reply with the cluster map.
    pub struct MapUpdate {
        /// The map. `None` means that the sender's map is the newest.
        pub map: Option<ClusterMap>,
    }
}

record! {
    /// Asks for the cluster map. Management waits until it has a map newer than `known`, at most as
    /// long as the sender waits.
    pub struct GetMap {
        /// Version of the sender's map.
        pub known: MapVersion,
    }
}

record! {
    /// A node ends cleanly. Management removes a client, and marks a server `Offline` at once.
    pub struct Leave {
        /// The sender.
        pub node: NodeId,
    }
}

record! {
    /// Removes a client from the map. A metadata target sends it when a client's lease has run out,
    /// or an administrator's command does. No target serves the client any more, and its opens and
    /// locks can be released.
    pub struct Evict {
        /// The client.
        pub client: NodeId,
    }
}

record! {
    /// Divides the virtual shards evenly over all metadata groups. Possible once per cluster.
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
        /// Only check whether the change is possible.
        pub is_dry_run: bool,
    }
}

record! {
    /// Reply to [`ChangeSetting`].
    pub struct ChangeSettingReply {
        /// The old number.
        pub before: u64,
        /// The first map version with the new number.
        pub version: MapVersion,
    }
}

record! {
    /// Lists the registered clients, in pages.
    pub struct ListClients {
        /// Return only clients with higher ids. Zero starts at the beginning.
        pub after: NodeId,
    }
}

record! {
    /// A registered client.
    pub struct ClientEntry {
        /// Its id.
        pub node: NodeId,
        /// Name of its host.
        pub host: String,
        /// Its mount point.
        pub mount_point: String,
        /// Process id on its host.
        pub pid: u32,
        /// When it registered, by management's clock.
        pub registered: Timestamp,
        /// Time since its last heartbeat. `None` means that there was none since management's
        /// start.
        pub silent_ms: Option<u64>,
    }
}

record! {
    /// Reply to [`ListClients`].
    pub struct ClientList {
        /// The clients by rising id.
        pub clients: Vec<ClientEntry>,
        /// `after` of the next page. `None` means that this is the last page.
        pub next: Option<NodeId>,
    }
}
