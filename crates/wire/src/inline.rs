//! Messages from clients to metadata targets about inline bytes: the first bytes of a file, which
//! the metadata target stores with the inode. `docs/design/0009-first-bytes-in-metadata.md`
//! specifies the protocol.

use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, InodeId, Lsn};

record! {
    /// Position of an inline write, or of the end of an inline component, in the log of the
    /// metadata target. After a restart, the target determines from this position whether the
    /// change was lost.
    #[derive(Copy)]
    pub struct InlineMark {
        /// Start number of the target when it logged the change.
        pub start: u64,
        /// Log sequence number of the record with the change.
        pub record: Lsn,
    }
}

record! {
    /// Writes inline bytes. The write is durable only after a [`SyncInline`].
    pub struct WriteInline {
        /// The file.
        pub inode: InodeId,
        /// Generation of the file's pattern.
        pub generation: u32,
        /// File offset of the first byte.
        pub offset: u64,
        /// The bytes to write: at least one byte, and none beyond the end of the inline component.
        pub bytes: Bytes,
        /// CRC-32C of `bytes`.
        pub checksum: u32,
        /// Whether these bytes are the whole write. If this field is set, the target updates size
        /// and times of the file. If this field is not set, the client reports the size after it
        /// has also written the other bytes.
        pub extends: bool,
        /// Truncate generation of the file when the client began to write. The target returns
        /// `EndMoved` if the file's truncate generation differs, because the file was truncated
        /// since then, or because a power loss has reverted its last truncation. The client must
        /// then write all bytes again.
        pub truncate_generation: u64,
        /// Whether the write is an append. For an append, the target also returns `EndMoved` if the
        /// file already extends beyond `offset`.
        pub appends: bool,
    }
}

record! {
    /// Reply to [`WriteInline`].
    pub struct WriteInlineReply {
        /// Position of the write in the target's log.
        pub mark: InlineMark,
        /// Attributes of the file after the write.
        pub attributes: Attributes,
    }
}

record! {
    /// Reads inline bytes.
    pub struct ReadInline {
        /// The file.
        pub inode: InodeId,
        /// Generation of the file's pattern.
        pub generation: u32,
        /// File offset of the first byte.
        pub offset: u64,
        /// Number of bytes to read. The range must end within the inline component.
        pub length: u32,
    }
}

record! {
    /// Reply to [`ReadInline`].
    pub struct ReadInlineReply {
        /// Truncate generation of the file. If the client's file size is from another generation,
        /// the client requests the attributes and repeats the read.
        pub truncate_generation: u64,
        /// The bytes, perhaps fewer than requested. Missing bytes at the end are zeros.
        pub bytes: Bytes,
        /// CRC-32C of `bytes`.
        pub checksum: u32,
    }
}

record! {
    /// Ends the inline component of a file: after this change, the component has no bytes, and the
    /// first bytes of the file belong to the next component. If the file has grown beyond this
    /// component, the client must first copy all inline bytes to the first chunk file of the next
    /// component. The client must also sync this chunk file. After such a copy, the client sets the
    /// durable flag, so that the target replies only when the change is durable. If the file is
    /// empty, no copy is necessary. The target removes the inline bytes of the file. If
    /// `is_removed` is not set in the reply, the target has changed nothing.
    pub struct RemoveInline {
        /// The file.
        pub inode: InodeId,
        /// Generation of the file's pattern.
        pub generation: u32,
        /// Truncate generation of the file when the client copied the bytes.
        pub truncate_generation: u64,
        /// Checksum of the copied bytes, as in the reply to a [`ReadInline`] of the whole inline
        /// component. The target removes no bytes if the checksum of its own bytes differs.
        pub checksum: u32,
        /// For each start of the target, the position of the client's newest unsynced inline write,
        /// as in [`SyncInline`].
        pub written: Vec<InlineMark>,
    }
}

record! {
    /// Reply to [`RemoveInline`].
    pub struct RemoveInlineReply {
        /// Whether the file has no inline bytes any more. The field is not set in each of these
        /// cases: another client has the file open; the inline bytes or the size have changed since
        /// the copy; the file has bytes and ends within its inline component; the target has not
        /// finished a truncation or a size recovery of the file yet.
        pub is_removed: bool,
        /// Whether a write may be lost, because the target's host lost power after the write.
        pub is_lost: bool,
        /// Position of the request in the target's log. If the request was not durable, the client
        /// later sends this position in a [`SyncInline`] to learn whether a power loss has reverted
        /// the removal. The pattern of the file does not show such a loss, because another client
        /// may have removed the inline bytes again after the power loss.
        pub mark: InlineMark,
    }
}

record! {
    /// All bytes of a file whose bytes are all inline.
    pub struct InlineContents {
        /// The bytes up to the size of the file. Zeros at the end may be missing.
        pub bytes: Bytes,
        /// CRC-32C of `bytes`.
        pub checksum: u32,
    }
}

record! {
    /// Asks the target to make its acknowledged changes durable. Also asks whether these changes
    /// include the inline writes of a file, or the end of the file's inline component.
    pub struct SyncInline {
        /// The file.
        pub inode: InodeId,
        /// The positions of the changes: for each start number of the target, the client's newest
        /// inline write; or the position in a [`RemoveInlineReply`].
        pub written: Vec<InlineMark>,
    }
}

record! {
    /// Reply to [`SyncInline`].
    pub struct SyncInlineReply {
        /// Whether a write may be lost, because the target's host lost power after the write.
        pub is_lost: bool,
        /// Durable attributes of the file. `None` means that the file was deleted.
        pub attributes: Option<Attributes>,
    }
}
