//! Management's records: the head of its command log, and the snapshot of its state.
//!
//! `docs/format/management.md` draws them and states when they are valid. [`crate::log`] frames the
//! records of the log itself, under target zero.

use crate::sealed;
use skep_types::codec::{Bytes, record};
use skep_types::{ClusterId, Lsn, Result};

const LOG_MAGIC: [u8; 8] = *b"SKEPMLOG";
const SNAPSHOT_MAGIC: [u8; 8] = *b"SKEPMSNP";
const VERSION: u16 = 1;

/// Bytes of the head at the start of the command log.
pub const LOG_HEAD_BYTES: usize = 16 + 24 + 4;

record! {
    /// Start of the file `log`. Management always replaces the whole file, so a damaged head is not
    /// the result of a torn write.
    pub struct LogHead {
        /// The cluster of the log.
        pub cluster: ClusterId,
        /// Number of its first record.
        pub first: Lsn,
    }
}

record! {
    /// The file `snapshot`: the state after all commands up to one.
    pub struct Snapshot {
        /// The cluster of the state.
        pub cluster: ClusterId,
        /// Number of the last command in it.
        pub applied: Lsn,
        /// The state, encoded by the cluster's state machine.
        pub state: Bytes,
    }
}

impl LogHead {
    /// The bytes at the start of the file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(LOG_MAGIC, VERSION, self)
    }

    /// Reads the first [`LOG_HEAD_BYTES`] bytes of the file.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` if they are not a head of this version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(LOG_MAGIC, VERSION, bytes)
    }
}

impl Snapshot {
    /// The bytes of the file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(SNAPSHOT_MAGIC, VERSION, self)
    }

    /// Reads the bytes of the file.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` if they are not a snapshot of this version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(SNAPSHOT_MAGIC, VERSION, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_version_1_are_stable() {
        let head = LogHead { cluster: ClusterId::new([0x11; 16]), first: Lsn::new(0x22) };
        let bytes = head.to_file();
        assert_eq!(bytes.len(), LOG_HEAD_BYTES);
        assert_eq!(&bytes[..16], b"SKEPMLOG\x01\0\0\0\x18\0\0\0");
        assert_eq!(bytes[16..32], [0x11; 16]);
        assert_eq!(bytes[32..40], [0x22, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(LogHead::from_file(&bytes).unwrap(), head);

        let snapshot = Snapshot {
            cluster: ClusterId::new([0x11; 16]),
            applied: Lsn::new(0x33),
            state: Bytes(b"state".to_vec()),
        };
        let bytes = snapshot.to_file();
        assert_eq!(&bytes[..16], b"SKEPMSNP\x01\0\0\0\x21\0\0\0");
        assert_eq!(&bytes[32..45], b"\x33\0\0\0\0\0\0\0\x05\0\0\0s");
        assert_eq!(Snapshot::from_file(&bytes).unwrap(), snapshot);
        assert!(LogHead::from_file(&bytes).is_err());
    }
}
