//! The commands that change management's state, and their outcomes. Management's log stores the
//! commands (and Raft will replicate them later). A command therefore has a binary layout and must
//! contain everything on which its effect depends.

use skep_types::codec::{Codec, Reader, Writer, record};
use skep_types::group_change::GroupChange;
use skep_types::map::Policy;
use skep_types::registration::ServerRegistration;
use skep_types::{GroupId, NodeId, Result, TargetId, Timestamp};

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

/// One change of management's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Management starts to serve (later: a new Raft leader starts). Starts a new range of map
    /// versions.
    Start,
    /// Registers a server with its targets, for the first time or again.
    RegisterServer(ServerRegistration),
    /// Registers a client.
    RegisterClient(ClientRegistration),
    /// Removes a client that has left, was evicted, or sent no heartbeat for too long.
    RemoveClient {
        /// The client.
        node: NodeId,
    },
    /// Divides the virtual shards among the metadata groups.
    Format,
    /// Replaces all settings of the cluster.
    SetPolicy(Policy),
    /// Raises the version in which programs must write records.
    SetFeatureLevel {
        /// The new feature level.
        level: u32,
    },
    /// Makes a group of targets that have none. The first one becomes the primary.
    CreateGroup {
        /// The targets.
        targets: Vec<TargetId>,
    },
    /// Changes the members of a group, if the group still has the epoch in the change.
    ChangeGroup(GroupChange),
    /// Closes a storage target to new files, or opens it again.
    CloseTarget {
        /// The target.
        target: TargetId,
        /// Whether the target gets no new files.
        is_closed: bool,
    },
    /// Removes a target on which no data lies, and its group.
    RemoveTarget {
        /// The target.
        target: TargetId,
    },
    /// Removes a server without targets.
    RemoveServer {
        /// The server.
        node: NodeId,
    },
    /// Gives a server another name.
    RenameServer {
        /// The server.
        node: NodeId,
        /// The new name.
        name: String,
    },
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
            other => return Err(r.corrupt(format_args!("unknown command number {other}"))),
        })
    }
}

/// The result of a command that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Whether the command changed the state. If not, management does not log it.
    pub changed: bool,
    /// For registrations: id of the node.
    pub node: NodeId,
    /// For registrations of servers: ids of the targets, in the order of the claims.
    pub targets: Vec<TargetId>,
    /// For changes of groups: id of the group.
    pub group: GroupId,
}
