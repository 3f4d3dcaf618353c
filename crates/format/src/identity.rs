//! The identity record: the cluster, node and target to which a directory of a service belongs.
//!
//! Each directory of a service or of a target has an identity record, with a checksum
//! ([`crate::sealed`]), in the file `skep-identity`. The crate `skep-store` writes and checks this
//! file.

use crate::sealed;
use skep_types::codec::record;
use skep_types::{ClusterId, NodeId, Result, TargetId};

const MAGIC: [u8; 8] = *b"SKEPIDNT";
const VERSION: u16 = 1;

skep_types::byte_enum! {
    /// Kind of a directory of a service, by its content.
    pub enum DirectoryKind {
        /// A directory with the state of management.
        Management = 1,
        /// A directory with the node identity of a metadata service and its join token.
        MetadataNode = 2,
        /// A directory with the node identity of a storage service and its join token.
        StorageNode = 3,
        /// The directory of a metadata target.
        MetadataTarget = 4,
        /// The directory of a storage target.
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
    /// Identity of a directory. Cluster, kind and the target's uuid never change. The node's uuid
    /// changes only if management continues from a backup, as a new node. The ids of node and
    /// target are zero until management assigns them at the first registration.
    #[derive(Copy)]
    pub struct Identity {
        /// Kind of the directory.
        pub kind: DirectoryKind,
        /// Id of the cluster to which the directory belongs.
        pub cluster: ClusterId,
        /// Random number drawn when the node was initialised.
        pub node_uuid: u128,
        /// Id of the node. Zero before the first registration.
        pub node: NodeId,
        /// Random number drawn when the target was initialised. Zero if the directory is not a
        /// target.
        pub target_uuid: u128,
        /// Id of the target. Zero before the first registration, and if the directory is not a
        /// target.
        pub target: TargetId,
    }
}

impl Identity {
    /// Encodes the identity as the content of its file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Decodes an identity from the content of its file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid identity record.
    /// - `Unsupported` if the record has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(MAGIC, VERSION, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_bytes_of_version_1_never_change() {
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
