//! The commands that change what management knows, and what they answer. They are what management's
//! log holds (and what Raft will replicate later), so they have a layout in bytes and hold all that
//! their effect depends on.

use skep_types::codec::{Codec, Reader, Writer, record};
use skep_types::map::Policy;
use skep_types::registration::ServerRegistration;
use skep_types::{NodeId, Result, TargetId, Timestamp};

record! {
    /// A client reports itself. It always gets a new id.
    #[derive(Default)]
    pub struct ClientRegistration {
        /// Name of its host, for people.
        pub host: String,
        /// Where it mounts, for people; may be empty.
        pub mount_point: String,
        /// Version of its program.
        pub version: String,
        /// Its process, as its host numbers it, for people.
        pub pid: u32,
        /// When it registered, by management's clock.
        pub registered: Timestamp,
    }
}

/// One change of what management knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Management starts to serve (later: a new Raft leader does). Opens a new range of map
    /// versions.
    Start,
    /// A server and its targets join, or are confirmed.
    RegisterServer(ServerRegistration),
    /// A client joins.
    RegisterClient(ClientRegistration),
    /// A client is forgotten: it left, or its lease ran out.
    RemoveClient {
        /// The client.
        node: NodeId,
    },
    /// The virtual shards are divided over the metadata groups.
    Format,
    /// The cluster's settings are replaced.
    SetPolicy(Policy),
    /// Records may be written in newer versions from now on.
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

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Whether anything changed; if not, the command needs no place in the log.
    pub changed: bool,
    /// Registrations: the node's id.
    pub node: NodeId,
    /// Registrations of servers: the targets' ids, in the order of the claims.
    pub targets: Vec<TargetId>,
}
