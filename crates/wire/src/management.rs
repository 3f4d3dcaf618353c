//! Messages to management: registration, heartbeats, the cluster map, settings.

use crate::node::LogLevel;
use skep_types::codec::record;
use skep_types::group_change::GroupChange;
use skep_types::map::{Capacity, ClusterMap, Policy, TargetHealth};
use skep_types::registration::ServerRegistration;
use skep_types::{
    Epoch, Eviction, GroupId, GroupRecord, Lsn, MapVersion, NodeId, TargetId, Timestamp,
};

record! {
    /// A reply without fields, which means success.
    pub struct EmptyReply {}
}

record! {
    /// Registers a server with all its targets. Each server sends this request when it starts.
    /// Idempotent.
    pub struct RegisterServer {
        /// The server, of any kind except `Client`.
        pub server: ServerRegistration,
        /// Capacities of the server's targets, in the order of the registration.
        pub capacities: Vec<Capacity>,
        /// The last known groups of the server's targets, in the order of the registration. Zero
        /// means unknown. A storage target may be missing in a backup from which management was
        /// restored. Management then returns the target to this group.
        pub groups: Vec<GroupId>,
        /// Name of the server's host, for output only. Empty if unknown.
        pub host: String,
    }
}

record! {
    /// Reply to [`RegisterServer`] and [`RegisterClient`].
    pub struct RegisterReply {
        /// Id of the registered node.
        pub node: NodeId,
        /// Ids of the server's targets, in the order of the request. Empty for clients.
        pub targets: Vec<TargetId>,
        /// The current cluster map.
        pub map: ClusterMap,
    }
}

record! {
    /// Registers a client. A client sends this request before it mounts the file system. Management
    /// assigns a new node id for each request.
    pub struct RegisterClient {
        /// Name of the client's host, for output only.
        pub host: String,
        /// Mount point, for output only.
        pub mount_point: String,
        /// Version of the client program.
        pub version: String,
        /// Process id on the client's host, for output only.
        pub pid: u32,
    }
}

record! {
    /// Report of a node about one of its targets.
    pub struct TargetReport {
        /// The target.
        pub target: TargetId,
        /// Capacity of the target. Management ignores the capacity of a target that is down.
        pub capacity: Capacity,
        /// Condition of the target, with the reason.
        pub health: TargetHealth,
    }
}

record! {
    /// Reports that a node is alive. Each node sends heartbeats regularly. Management returns
    /// `Stale` if the node is not in the cluster map. After `Stale`, a server renews its
    /// registration.
    pub struct Heartbeat {
        /// The node that sends the heartbeat.
        pub node: NodeId,
        /// Version of the sender's cluster map.
        pub known: MapVersion,
        /// Highest node id in the sender's cluster map. If management has not assigned this id,
        /// management's directory was restored from an older backup.
        pub newest_node: NodeId,
        /// Reports about the sender's targets. Management treats a target of the sender that is
        /// missing in this list as down.
        pub targets: Vec<TargetReport>,
        /// The groups for which requests of the sender have waited for some seconds; at most 16.
        pub waits: Vec<RequestWait>,
    }
}

record! {
    /// Requests of a node that wait for a group, because attempts to send them fail.
    pub struct RequestWait {
        /// The group. Zero means that the mount reaches its servers: the servers have accepted the
        /// requests of programs, but have not replied yet.
        pub group: GroupId,
        /// Time since the first failed attempt, or since the oldest request without a reply, in
        /// milliseconds.
        pub since_ms: u64,
        /// Number of requests that wait.
        pub requests: u32,
        /// The last error, or the oldest request without a reply, as text for people; at most 240
        /// characters.
        pub error: String,
    }
}

record! {
    /// Lists the nodes whose requests wait for a group.
    pub struct ListRequestWaits {}
}

record! {
    /// The requests for one group that wait at one node.
    pub struct NodeWait {
        /// The node.
        pub node: NodeId,
        /// The group for which the requests wait, and the number of requests.
        pub wait: RequestWait,
    }
}

record! {
    /// Reply to [`ListRequestWaits`].
    pub struct RequestWaitList {
        /// The waits, longest first; at most 1,000.
        pub waits: Vec<NodeWait>,
        /// Number of nodes whose requests wait, including nodes that are not listed.
        pub nodes: u32,
    }
}

record! {
    /// Lists the servers without heartbeats and the targets that do not serve all requests, with
    /// the duration of each outage.
    pub struct ListOutages {}
}

record! {
    /// A server whose heartbeats do not arrive at management.
    pub struct NodeOutage {
        /// The server.
        pub node: NodeId,
        /// Time since the server's last heartbeat, or since its clean shutdown, in milliseconds.
        pub since_ms: u64,
        /// Whether the outage may be longer than `since_ms`, because `since_ms` counts only from
        /// the moment at which the sender of this reply became the leader of management.
        pub may_be_longer: bool,
    }
}

record! {
    /// A target that does not serve all requests, although its service runs.
    pub struct TargetOutage {
        /// The target.
        pub target: TargetId,
        /// Time for which the target has had its current condition, in milliseconds.
        pub since_ms: u64,
        /// Whether the outage may have lasted longer than the reported time, as in [`NodeOutage`].
        pub may_be_longer: bool,
    }
}

record! {
    /// Reply to [`ListOutages`].
    #[derive(Default)]
    pub struct OutageList {
        /// The servers, in ascending order of their ids.
        pub nodes: Vec<NodeOutage>,
        /// The targets, in ascending order of their ids.
        pub targets: Vec<TargetOutage>,
    }
}

record! {
    /// Lists the host names of the servers.
    pub struct ListHosts {}
}

record! {
    /// The host of a server.
    pub struct HostEntry {
        /// The server.
        pub node: NodeId,
        /// Name of the server's host, as the server has reported it.
        pub host: String,
    }
}

record! {
    /// Reply to [`ListHosts`].
    pub struct HostList {
        /// The servers that have reported a host, in ascending order of their ids.
        pub hosts: Vec<HostEntry>,
    }
}

record! {
    /// Reply to [`Heartbeat`].
    pub struct HeartbeatReply {
        /// Capacity of the whole cluster for file data, from the newest reports of storage targets.
        /// After a start of management, the value is `None` until all storage targets have reported
        /// or one lease has passed.
        pub capacity: Option<Capacity>,
        /// A pending change of the client's log level. Clients accept no connections, so management
        /// delivers the change in this reply.
        pub log_level_change: Option<LogLevelChange>,
        /// The cluster map. `None` means that the requester has the newest version.
        pub map: Option<ClusterMap>,
    }
}

record! {
    /// Asks a client to change or report its log level. Management adds this record to each
    /// heartbeat reply until the client sends [`ConfirmLogLevel`].
    pub struct LogLevelChange {
        /// Id of the change. The client repeats this id in its confirmation.
        pub number: u64,
        /// The new level, as in `SetLogLevel`.
        pub level: Option<String>,
    }
}

record! {
    /// Changes the log level of a client until the client exits, or only asks for the current
    /// level. Management replies after the client has sent [`ConfirmLogLevel`].
    pub struct SetClientLogLevel {
        /// The client.
        pub client: NodeId,
        /// The new level, as in `SetLogLevel`.
        pub level: Option<String>,
    }
}

record! {
    /// Reports that a client has applied or refused a [`LogLevelChange`].
    pub struct ConfirmLogLevel {
        /// The client.
        pub client: NodeId,
        /// Id of the `LogLevelChange`.
        pub number: u64,
        /// The client's log level after the change. `None` means that the client refused the
        /// change.
        pub level: Option<LogLevel>,
        /// Reason for the refusal. Empty if the client applied the change.
        pub refusal: String,
    }
}

record! {
    /// A reply that contains the cluster map.
    pub struct MapUpdate {
        /// The cluster map. `None` means that the requester has the newest version.
        pub map: Option<ClusterMap>,
    }
}

record! {
    /// Asks for a cluster map newer than `known`. Management waits until there is a newer map, but
    /// for at most the `time_left_ms` of the request.
    pub struct GetMap {
        /// Version of the sender's cluster map.
        pub known: MapVersion,
    }
}

record! {
    /// Reports that a node shuts down. Management removes a client from the cluster map, and marks
    /// a server as `Offline` immediately.
    pub struct Leave {
        /// The node that shuts down.
        pub node: NodeId,
    }
}

record! {
    /// Removes a client from the cluster map. A metadata target sends this request when the
    /// client's lease has expired. A tool also sends this request for an administrator. After the
    /// removal, all targets refuse requests of the client, so metadata targets may release the
    /// client's opens and locks.
    pub struct Evict {
        /// The client.
        pub client: NodeId,
        /// Whether management ignores the request if it has received a heartbeat of the client
        /// within the last lease. A metadata target sets this field if it has lost contact with
        /// many clients at the same time. In this case, the cause is probably a fault of the
        /// target's own network.
        pub unless_heard: bool,
    }
}

record! {
    /// Lists the last evictions of clients.
    pub struct ListEvictions {}
}

record! {
    /// Reply to [`ListEvictions`].
    pub struct EvictionList {
        /// The time, by the clock of the management node that replies.
        pub now: Timestamp,
        /// The newest evictions, at most 64, in ascending order of their times.
        pub evictions: Vec<Eviction>,
    }
}

record! {
    /// Closes a storage target to new files, or reopens a closed target. A retry changes nothing.
    pub struct SetTargetState {
        /// The target.
        pub target: TargetId,
        /// Whether the target is closed to new files. The target serves its existing files in both
        /// states.
        pub is_closed: bool,
    }
}

record! {
    /// Removes a target from the cluster. Management refuses the removal while a service serves the
    /// target, the target is open to new files, or its group serves shards. The sender must have
    /// checked that no file has data on the target.
    pub struct RemoveTarget {
        /// The target.
        pub target: TargetId,
        /// Whether management only checks that the removal is possible.
        pub is_dry_run: bool,
        /// Whether the data of the target is lost. A lost target stays in the map, closed to new
        /// files, and requests for its files fail with `TargetLost`. For a lost target, management
        /// also accepts the request if the target is open to new files or if files have data on the
        /// target.
        pub is_lost: bool,
    }
}

record! {
    /// Removes a server from the cluster. Management refuses the removal while the server sends
    /// heartbeats or has targets.
    pub struct RemoveServer {
        /// The server.
        pub node: NodeId,
        /// Whether management only checks that the removal is possible.
        pub is_dry_run: bool,
    }
}

record! {
    /// Changes the name of a server.
    pub struct RenameServer {
        /// The server.
        pub node: NodeId,
        /// The new name.
        pub name: String,
    }
}

record! {
    /// Divides the virtual shards evenly among all metadata groups. Management executes this
    /// request only once per cluster.
    pub struct Format {}
}

record! {
    /// Creates a group from targets that wait for a group. A retry changes nothing.
    pub struct CreateGroup {
        /// The targets. The first target becomes the primary.
        pub targets: Vec<TargetId>,
    }
}

record! {
    /// Reply to [`CreateGroup`].
    pub struct CreateGroupReply {
        /// Id of the group.
        pub group: GroupId,
        /// Version of the cluster map with the group.
        pub version: MapVersion,
    }
}

record! {
    /// Changes the members of a group. Management refuses the change with `StaleMap` if the epoch
    /// of the group differs from the epoch in the change. A retry changes nothing.
    #[derive(Copy)]
    pub struct ChangeGroup {
        /// The change.
        pub change: GroupChange,
    }
}

record! {
    /// Reply to [`ChangeGroup`].
    #[derive(Copy)]
    pub struct ChangeGroupReply {
        /// Epoch of the group after the change.
        pub epoch: Epoch,
        /// Version of the cluster map with the change.
        pub version: MapVersion,
    }
}

record! {
    /// A member of a metadata group that receives nothing from the primary asks to become the
    /// primary. A member that may lack records becomes the primary only if every serving member may
    /// lack records. If all serving members may lack records, management chooses the member with
    /// the longest log.
    ///
    /// A target whose recorded state of the group is newer than management's state sends this
    /// request too, also if the target is in no group. In this case, management was restored from a
    /// backup, and begins an epoch in which management compares the logs of the members.
    ///
    /// Management returns `StaleMap` if `epoch` is not the current epoch of the group.
    pub struct AskTakeOver {
        /// The group.
        pub group: GroupId,
        /// Epoch of the group in the member's cluster map.
        pub epoch: Epoch,
        /// The member.
        pub target: TargetId,
        /// Whether the host of the member may have lost records that the member has confirmed, or
        /// another member may have newer records.
        pub lacks_records: bool,
        /// Epoch of the member's last record.
        pub last_epoch: Epoch,
        /// LSN of the member's last record.
        pub last: Lsn,
        /// The last state of the group that the member has recorded.
        pub record: GroupRecord,
    }
}

record! {
    /// Replaces all settings of the cluster.
    pub struct SetPolicy {
        /// The new settings.
        pub policy: Policy,
    }
}

record! {
    /// Changes one setting of the cluster. The other settings do not change.
    pub struct ChangeSetting {
        /// Name of the setting, as in `skep config list`.
        pub name: String,
        /// New value, in the unit of the setting.
        pub value: u64,
        /// Whether management only checks that the change is possible.
        pub is_dry_run: bool,
    }
}

record! {
    /// Reply to [`ChangeSetting`].
    pub struct ChangeSettingReply {
        /// Value of the setting before the change.
        pub before: u64,
        /// First version of the cluster map with the new value.
        pub version: MapVersion,
    }
}

record! {
    /// Lists the registered clients in pages.
    pub struct ListClients {
        /// Return only clients with higher ids. Zero starts at the beginning.
        pub after: NodeId,
    }
}

record! {
    /// A registered client.
    pub struct ClientEntry {
        /// Node id of the client.
        pub node: NodeId,
        /// Name of the client's host.
        pub host: String,
        /// Mount point on the client's host.
        pub mount_point: String,
        /// Process id on the client's host.
        pub pid: u32,
        /// Time of the registration, by management's clock.
        pub registered: Timestamp,
        /// Time since the client's last heartbeat, in milliseconds. `None` means that the
        /// management node that replies has received no heartbeat of the client since this node
        /// became the leader.
        pub silent_ms: Option<u64>,
    }
}

record! {
    /// Reply to [`ListClients`].
    pub struct ClientList {
        /// The clients in ascending order of their ids.
        pub clients: Vec<ClientEntry>,
        /// Value of `after` for the next page. `None` means that this is the last page.
        pub next: Option<NodeId>,
    }
}
