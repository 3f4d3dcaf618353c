//! Messages of clients to metadata targets about the first bytes of files, if they lie with the
//! inode. `docs/design/0009-first-bytes-in-metadata.md` describes the protocol.

use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, InodeId, Lsn};

record! {
    /// Position of an inline write in the target's log. After a restart the target finds out by it
    /// whether it still has the write.
    #[derive(Copy)]
    pub struct InlineMark {
        /// Number of the start of the target.
        pub epoch: u64,
        /// The record of the target's log.
        pub record: Lsn,
    }
}

record! {
    /// Writes bytes that lie with the inode. They are not durable before a [`SyncInline`].
    pub struct WriteInline {
        /// The file.
        pub inode: InodeId,
        /// Layout generation of its pattern.
        pub generation: u32,
        /// First byte in the file.
        pub offset: u64,
        /// The bytes: at least one, and none beyond where the component ends.
        pub bytes: Bytes,
        /// CRC-32C of the bytes.
        pub checksum: u32,
        /// Whether this is a whole write: the target then updates size and times of the file. If
        /// not set, the client reports the size when the other parts are written too.
        pub extends: bool,
    }
}

record! {
    /// Reply to [`WriteInline`].
    pub struct WriteInlineReply {
        /// The position of the write.
        pub mark: InlineMark,
        /// The file's attributes after the write.
        pub attributes: Attributes,
    }
}

record! {
    /// Reads bytes that lie with the inode.
    pub struct ReadInline {
        /// The file.
        pub inode: InodeId,
        /// Layout generation of its pattern.
        pub generation: u32,
        /// First byte in the file.
        pub offset: u64,
        /// Number of bytes to read. The range must end within the component.
        pub length: u32,
    }
}

record! {
    /// Reply to [`ReadInline`].
    pub struct ReadInlineReply {
        /// The bytes. Missing bytes at the end are zeros.
        pub bytes: Bytes,
        /// CRC-32C of the bytes.
        pub checksum: u32,
    }
}

record! {
    /// Makes all acknowledged changes of the target durable, and asks whether a file's inline
    /// writes are among them.
    pub struct SyncInline {
        /// The file.
        pub inode: InodeId,
        /// The client's newest write of each epoch.
        pub written: Vec<InlineMark>,
    }
}

record! {
    /// Reply to [`SyncInline`].
    pub struct SyncInlineReply {
        /// Whether one of the writes may be lost, because the target's host lost power since.
        pub is_lost: bool,
        /// The file's attributes, which are on the device too. `None` means that the file is
        /// deleted.
        pub attributes: Option<Attributes>,
    }
}
