//! The identity record: to which cluster, node and target a directory belongs.
//!
//! It is the file `skep-identity` in each directory that a service keeps, a sealed record
//! ([`crate::sealed`]). How it is written and checked is `skep-store`'s.

use crate::sealed;
use skep_types::codec::record;
use skep_types::{ClusterId, NodeId, Result, TargetId};

const MAGIC: [u8; 8] = *b"SKEPIDNT";
const VERSION: u16 = 1;

skep_types::byte_enum! {
    /// What a directory is for.
    pub enum DirectoryKind {
        /// Management's own.
        Management = 1,
        /// A metadata service's own: its node identity and its key to the cluster.
        MetadataNode = 2,
        /// A storage service's own: its node identity and its key to the cluster.
        StorageNode = 3,
        /// A metadata target.
        MetadataTarget = 4,
        /// A storage target.
        StorageTarget = 5,
    }
}

impl std::fmt::Display for DirectoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Management => "management directory",
            Self::MetadataNode => "metadata node directory",
            Self::StorageNode => "storage node directory",
            Self::MetadataTarget => "metadata target",
            Self::StorageTarget => "storage target",
        })
    }
}

record! {
    /// To whom a directory belongs. Cluster, kind and uuids never change; the ids are zero until
    /// management has given them at the first registration.
    #[derive(Copy)]
    pub struct Identity {
        /// What the directory is for.
        pub kind: DirectoryKind,
        /// The file system.
        pub cluster: ClusterId,
        /// Drawn when the node was initialised.
        pub node_uuid: u128,
        /// The node; zero: not registered yet.
        pub node: NodeId,
        /// Drawn when the target was initialised; zero for directories that are no target.
        pub target_uuid: u128,
        /// The target; zero: not registered yet, or no target.
        pub target: TargetId,
    }
}

impl Identity {
    /// The bytes of the file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Reads the bytes of the file.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` if they are no identity record of this version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(MAGIC, VERSION, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
        let identity = Identity {
            kind: DirectoryKind::StorageTarget,
            cluster: ClusterId::new([0x11; 16]),
            node_uuid: 0x22,
            node: NodeId::new(3),
            target_uuid: 0x44,
            target: TargetId::new(5),
        };
        let bytes = identity.to_file();
        assert_eq!(bytes.len(), 16 + 57 + 4);
        assert_eq!(&bytes[..16], b"SKEPIDNT\x01\0\0\0\x39\0\0\0");
        assert_eq!(bytes[16], 5);
        assert_eq!(bytes[17..33], [0x11; 16]);
        assert_eq!(bytes[33], 0x22);
        assert_eq!(bytes[49], 3);
        assert_eq!(bytes[53], 0x44);
        assert_eq!(bytes[69], 5);
        assert_eq!(Identity::from_file(&bytes).unwrap(), identity);
    }
}
