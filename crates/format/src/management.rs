//! Records of management from program versions that supported only one management node: the head of
//! the command log, and the snapshot of the state. A start of management converts these files to
//! the files of [`crate::consensus`].
//!
//! `docs/format/management.md` shows the layout of these records and states when a record is valid.
//! The module [`crate::log`] frames the records of the log itself, with target id zero.

use crate::sealed;
use skep_types::codec::{Bytes, record};
use skep_types::{ClusterId, Lsn, Result};

const LOG_MAGIC: [u8; 8] = *b"SKEPMLOG";
const SNAPSHOT_MAGIC: [u8; 8] = *b"SKEPMSNP";
const VERSION: u16 = 3;

/// Length of the head of the command log, in bytes.
pub const LOG_HEAD_BYTES: usize = 16 + 24 + 4;

record! {
    /// Head of the file `log`. Management replaces the file only as a whole, so a damaged head is
    /// never the result of a torn write.
    pub struct LogHead {
        /// The cluster to which the log belongs.
        pub cluster: ClusterId,
        /// Log sequence number of the first record in the file.
        pub first: Lsn,
    }
}

record! {
    /// Content of the file `snapshot`: the state after the command `applied`.
    pub struct Snapshot {
        /// The cluster to which the state belongs.
        pub cluster: ClusterId,
        /// Log sequence number of the last command that is included in the state.
        pub applied: Lsn,
        /// The state, encoded by management's state machine.
        pub state: Bytes,
    }
}

impl LogHead {
    /// Encodes the head as the first bytes of the log file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(LOG_MAGIC, VERSION, self)
    }

    /// Decodes the head from the first [`LOG_HEAD_BYTES`] bytes of the file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid head.
    /// - `Unsupported` if the head has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(LOG_MAGIC, VERSION, bytes)
    }
}

impl Snapshot {
    /// Encodes the snapshot as the content of its file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(SNAPSHOT_MAGIC, VERSION, self)
    }

    /// Decodes a snapshot from the content of its file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid snapshot.
    /// - `Unsupported` if the snapshot has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(SNAPSHOT_MAGIC, VERSION, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_and_snapshot_bytes_of_version_3_never_change() {
        let head = LogHead { cluster: ClusterId::new([0x11; 16]), first: Lsn::new(0x22) };
        let bytes = head.to_file();
        assert_eq!(bytes.len(), LOG_HEAD_BYTES);
        assert_eq!(&bytes[..16], b"SKEPMLOG\x03\0\0\0\x18\0\0\0");
        assert_eq!(bytes[16..32], [0x11; 16]);
        assert_eq!(bytes[32..40], [0x22, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(LogHead::from_file(&bytes).unwrap(), head);

        let snapshot = Snapshot {
            cluster: ClusterId::new([0x11; 16]),
            applied: Lsn::new(0x33),
            state: Bytes(b"state".to_vec()),
        };
        let bytes = snapshot.to_file();
        assert_eq!(&bytes[..16], b"SKEPMSNP\x03\0\0\0\x21\0\0\0");
        assert_eq!(&bytes[32..45], b"\x33\0\0\0\0\0\0\0\x05\0\0\0s");
        assert_eq!(Snapshot::from_file(&bytes).unwrap(), snapshot);
        assert!(LogHead::from_file(&bytes).is_err());
    }
}
