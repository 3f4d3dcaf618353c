//! The commands that change management's state, the proposals that carry them, and the outcomes of
//! commands. Management's log stores the proposals. A command therefore has a binary layout and
//! must contain everything on which its effect depends, except the state to which it is applied.

use skep_types::codec::{Codec, Reader, Writer, record};
use skep_types::group_change::GroupChange;
use skep_types::map::Policy;
use skep_types::registration::ServerRegistration;
use skep_types::{Epoch, Eviction, GroupId, MapVersion, NodeId, Result, TargetId, Timestamp};

record! {
    /// The registration of a client. Each registration gets a new node id.
    #[derive(Default)]
    pub struct ClientRegistration {
        /// Name of the client's host, for output only.
        pub host: String,
        /// Mount point, for output only. May be empty.
        pub mount_point: String,
        /// Version of the client program.
        pub version: String,
        /// Process id on the client's host, for output only.
        pub pid: u32,
        /// Time of the registration, by management's clock.
        pub registered: Timestamp,
    }
}

record! {
    /// A state of a metadata group that is newer than management's state, because management was
    /// restored from a backup. Members of the group have reported it.
    pub struct GroupRevision {
        /// The group whose state the members have reported.
        pub group: GroupId,
        /// Epoch of the group in management's state.
        pub epoch: Epoch,
        /// The newest epoch of the group that a member has reported.
        pub above: Epoch,
        /// The targets that may have all changes of the group.
        pub members: Vec<TargetId>,
    }
}

record! {
    /// Identifies a request that changes management's state. All retries of the request have the
    /// same id, so that management executes the request only once.
    #[derive(Default, Copy, PartialOrd, Ord, Hash)]
    pub struct RequestId {
        /// Random id that the sender drew when it started. Zero means that no request caused the
        /// command, because management itself proposes it.
        pub sender: u64,
        /// Id that the sender assigned to the request.
        pub number: u64,
    }
}

record! {
    /// A command with the id of the request that caused it. Each entry of management's log is a
    /// proposal.
    pub struct Proposal {
        /// The id of the request.
        pub id: RequestId,
        /// The command.
        pub command: Command,
    }
}

impl From<Command> for Proposal {
    /// Returns a proposal for a command that management makes on its own, without a request of a
    /// node.
    fn from(command: Command) -> Self {
        Self { id: RequestId::default(), command }
    }
}

/// One change of management's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Begins a new range of map versions. After its election, each leader of management proposes
    /// this command before it publishes maps.
    Start,
    /// Registers a server with its targets, for the first time or again.
    RegisterServer(ServerRegistration),
    /// Registers a client.
    RegisterClient(ClientRegistration),
    /// Removes a client that has left.
    RemoveClient {
        /// The client to remove.
        node: NodeId,
    },
    /// Removes a client that was evicted or sent no heartbeat for too long, and records the
    /// eviction. The record contains the name that the client has in the map.
    EvictClient(Eviction),
    /// Divides the virtual shards among the metadata groups.
    Format,
    /// Replaces all settings of the cluster.
    SetPolicy(Policy),
    /// Changes one setting. When the command is applied, the other settings do not change.
    ChangeSetting {
        /// Name of the setting.
        name: String,
        /// The new value, in the unit of the setting.
        value: u64,
    },
    /// Raises the feature level: the format version in which programs must write records.
    SetFeatureLevel {
        /// The new feature level.
        level: u32,
    },
    /// Creates a group from targets that have neither a group nor data. The first target becomes
    /// the primary.
    CreateGroup {
        /// The targets that become the members of the new group.
        targets: Vec<TargetId>,
    },
    /// Changes the members of a group. Refused if the epoch of the group differs from the epoch in
    /// the change.
    ChangeGroup(GroupChange),
    /// Begins an undecided epoch of a metadata group, because its members have a newer state than
    /// management. Refused if the epoch of the group differs from the epoch in the revision.
    ReviseGroup(GroupRevision),
    /// Makes a storage target the only member of its former group, because both are newer than the
    /// backup from which management was restored.
    ReturnToGroup {
        /// The target that becomes the only member.
        target: TargetId,
        /// The former group of the target.
        group: GroupId,
    },
    /// Closes a storage target to new files, or opens it again.
    CloseTarget {
        /// The target to close or to open.
        target: TargetId,
        /// Whether the target is closed to new files.
        is_closed: bool,
    },
    /// Removes a target that stores no data, together with its group.
    RemoveTarget {
        /// The target to remove.
        target: TargetId,
    },
    /// Marks a storage target as lost, because its data is lost.
    GiveUpTarget {
        /// The target whose data is lost.
        target: TargetId,
    },
    /// Removes a server without targets.
    RemoveServer {
        /// The server to remove.
        node: NodeId,
    },
    /// Renames a server.
    RenameServer {
        /// The server to rename.
        node: NodeId,
        /// The new name of the server.
        name: String,
    },
    /// Records the name of the host on which a server runs.
    NoteHost {
        /// The server whose host has the name `host`.
        node: NodeId,
        /// Name of the server's host, for output only.
        host: String,
    },
    /// Raises the next ids and map versions, because management was restored from a backup. The new
    /// ids and versions are far above all that were assigned after the backup was made.
    ContinueAbove {
        /// If the report of a node has caused the command: the map version in this report.
        /// Otherwise zero.
        version: MapVersion,
    },
}

/// Writes a description of the change, for log lines.
impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start => write!(f, "start of a leader"),
            Self::RegisterServer(_) => write!(f, "registration of a server"),
            Self::RegisterClient(_) => write!(f, "registration of a client"),
            Self::RemoveClient { node } => write!(f, "removal of client {node}"),
            Self::EvictClient(eviction) => write!(f, "eviction of client {}", eviction.client),
            Self::Format => write!(f, "format of the cluster"),
            Self::SetPolicy(_) => write!(f, "change of all settings"),
            Self::ChangeSetting { name, .. } => write!(f, "change of setting {name}"),
            Self::SetFeatureLevel { level } => write!(f, "change to feature level {level}"),
            Self::CreateGroup { .. } => write!(f, "creation of a group"),
            Self::ChangeGroup(change) => write!(f, "change of group {}", change.group),
            Self::ReviseGroup(revision) => {
                write!(f, "new members of group {} after a restore", revision.group)
            }
            Self::ReturnToGroup { target, group } => {
                write!(f, "return of target {target} to group {group}")
            }
            Self::CloseTarget { target, is_closed: true } => {
                write!(f, "close of target {target} to new files")
            }
            Self::CloseTarget { target, is_closed: false } => {
                write!(f, "opening of target {target} to new files")
            }
            Self::RemoveTarget { target } => write!(f, "removal of target {target}"),
            Self::GiveUpTarget { target } => write!(f, "loss of target {target}"),
            Self::RemoveServer { node } => write!(f, "removal of server {node}"),
            Self::RenameServer { node, .. } => write!(f, "new name of server {node}"),
            Self::NoteHost { node, .. } => write!(f, "host name of server {node}"),
            Self::ContinueAbove { .. } => write!(f, "change to ids above an old backup"),
        }
    }
}

impl Codec for Command {
    const LAYOUT: &'static str = "u8 kind, fields";

    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Start => 1_u8.encode(w),
            Self::RegisterServer(registration) => {
                2_u8.encode(w);
                registration.encode(w);
            }
            Self::RegisterClient(registration) => {
                3_u8.encode(w);
                registration.encode(w);
            }
            Self::RemoveClient { node } => {
                4_u8.encode(w);
                node.encode(w);
            }
            Self::Format => 5_u8.encode(w),
            Self::SetPolicy(policy) => {
                6_u8.encode(w);
                policy.encode(w);
            }
            Self::SetFeatureLevel { level } => {
                7_u8.encode(w);
                level.encode(w);
            }
            Self::CreateGroup { targets } => {
                8_u8.encode(w);
                targets.encode(w);
            }
            Self::ChangeGroup(change) => {
                9_u8.encode(w);
                change.encode(w);
            }
            Self::CloseTarget { target, is_closed } => {
                16_u8.encode(w);
                target.encode(w);
                is_closed.encode(w);
            }
            Self::RemoveTarget { target } => {
                17_u8.encode(w);
                target.encode(w);
            }
            Self::RemoveServer { node } => {
                18_u8.encode(w);
                node.encode(w);
            }
            Self::RenameServer { node, name } => {
                19_u8.encode(w);
                node.encode(w);
                name.encode(w);
            }
            Self::ContinueAbove { version } => {
                20_u8.encode(w);
                version.encode(w);
            }
            Self::ChangeSetting { name, value } => {
                21_u8.encode(w);
                name.encode(w);
                value.encode(w);
            }
            Self::GiveUpTarget { target } => {
                24_u8.encode(w);
                target.encode(w);
            }
            Self::NoteHost { node, host } => {
                33_u8.encode(w);
                node.encode(w);
                host.encode(w);
            }
            Self::EvictClient(eviction) => {
                32_u8.encode(w);
                eviction.encode(w);
            }
            Self::ReviseGroup(revision) => {
                34_u8.encode(w);
                revision.encode(w);
            }
            Self::ReturnToGroup { target, group } => {
                35_u8.encode(w);
                target.encode(w);
                group.encode(w);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(match u8::decode(r)? {
            1 => Self::Start,
            2 => Self::RegisterServer(Codec::decode(r)?),
            3 => Self::RegisterClient(Codec::decode(r)?),
            4 => Self::RemoveClient { node: Codec::decode(r)? },
            5 => Self::Format,
            6 => Self::SetPolicy(Codec::decode(r)?),
            7 => Self::SetFeatureLevel { level: Codec::decode(r)? },
            8 => Self::CreateGroup { targets: Codec::decode(r)? },
            9 => Self::ChangeGroup(Codec::decode(r)?),
            16 => Self::CloseTarget { target: Codec::decode(r)?, is_closed: Codec::decode(r)? },
            17 => Self::RemoveTarget { target: Codec::decode(r)? },
            18 => Self::RemoveServer { node: Codec::decode(r)? },
            19 => Self::RenameServer { node: Codec::decode(r)?, name: Codec::decode(r)? },
            20 => Self::ContinueAbove { version: Codec::decode(r)? },
            21 => Self::ChangeSetting { name: Codec::decode(r)?, value: Codec::decode(r)? },
            24 => Self::GiveUpTarget { target: Codec::decode(r)? },
            32 => Self::EvictClient(Codec::decode(r)?),
            33 => Self::NoteHost { node: Codec::decode(r)?, host: Codec::decode(r)? },
            34 => Self::ReviseGroup(Codec::decode(r)?),
            35 => Self::ReturnToGroup { target: Codec::decode(r)?, group: Codec::decode(r)? },
            other => {
                return Err(r.corrupt(format_args!(
                    "cannot read the command: {other} is not the number of a kind of command"
                )));
            }
        })
    }
}

record! {
    /// The result of a command that succeeded.
    #[derive(Default)]
    pub struct Outcome {
        /// Whether the command changed the state. If `false`, management does not log the command.
        pub changed: bool,
        /// For registrations: id of the registered node.
        pub node: NodeId,
        /// For registrations of servers: ids of the targets, in the order of the claims.
        pub targets: Vec<TargetId>,
        /// For changes of groups: id of the group.
        pub group: GroupId,
        /// For changes of one setting: value of the setting before the change.
        pub before: u64,
    }
}
