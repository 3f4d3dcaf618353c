//! The commands that change management's state, and their outcomes. Management's log stores them
//! (and Raft will replicate them later). So they have a layout in bytes and contain everything on
//! which their effect depends.

use skep_types::codec::{Codec, Reader, Writer, record};
use skep_types::map::Policy;
use skep_types::registration::ServerRegistration;
use skep_types::{NodeId, Result, TargetId, Timestamp};

record! {
    /// The registration of a client, which always gets a new id.
    #[derive(Default)]
    pub struct ClientRegistration {
        /// Name of its host, for output.
        pub host: String,
        /// Its mount point, for output. May be empty.
        pub mount_point: String,
        /// Version of its program.
        pub version: String,
        /// Process id on its host, for output.
        pub pid: u32,
        /// When it registered, by management's clock.
        pub registered: Timestamp,
    }
}

/// One change of management's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Management starts to serve (later: a new Raft leader does). Opens a new range of map
    /// versions.
    Start,
    /// A server registers with its targets, for the first time or again.
    RegisterServer(ServerRegistration),
    /// A client registers.
    RegisterClient(ClientRegistration),
    /// Management removes a client that left or whose lease ran out.
    RemoveClient {
        /// The client.
        node: NodeId,
    },
    /// Divides the virtual shards over the metadata groups.
    Format,
    /// Replaces the cluster's settings.
    SetPolicy(Policy),
    /// Raises the version in which programs write records.
    SetFeatureLevel {
        /// The new level.
        level: u32,
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
            other => return Err(r.corrupt(format_args!("{other} is no command"))),
        })
    }
}

/// The effect of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Whether the state changed. If not, management does not log the command.
    pub changed: bool,
    /// Id of the node, for registrations.
    pub node: NodeId,
    /// Ids of the targets, in the order of the claims, for registrations of servers.
    pub targets: Vec<TargetId>,
}
