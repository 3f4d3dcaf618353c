//! Messages to metadata targets about the first bytes of files, where these lie with the inode.
//! What they do together is in `docs/design/0009-first-bytes-in-metadata.md`.

use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, InodeId, Lsn};

record! {
    /// When a write of inline bytes was taken in: later starts of the target tell by it whether
    /// they still have it.
    #[derive(Copy)]
    pub struct InlineMark {
        /// Number of the target's start.
        pub epoch: u64,
        /// The record of its log.
        pub record: Lsn,
    }
}

record! {
    /// Writes bytes that lie with the inode.
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
        /// This is all of a write, so the file reaches to its end now, and has the times of now.
        /// Otherwise its end is reported when other pieces are written too.
        pub extends: bool,
    }
}

record! {
    /// Answer to [`WriteInline`].
    pub struct WriteInlineReply {
        /// When it was taken in.
        pub mark: InlineMark,
        /// The file's attributes after it.
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
        /// Bytes wanted: none beyond where the component ends.
        pub length: u32,
    }
}

record! {
    /// Answer to [`ReadInline`].
    pub struct ReadInlineReply {
        /// The bytes; what is missing of those wanted is zeros.
        pub bytes: Bytes,
        /// CRC-32C of the bytes.
        pub checksum: u32,
    }
}

record! {
    /// Waits until all that was acknowledged is on the device, and asks whether a file's inline
    /// writes are among that.
    pub struct SyncInline {
        /// The file.
        pub inode: InodeId,
        /// The newest of its writes of each epoch.
        pub written: Vec<InlineMark>,
    }
}

record! {
    /// Answer to [`SyncInline`].
    pub struct SyncInlineReply {
        /// Whether one of the writes may be lost: the target's host has lost its power since.
        pub is_lost: bool,
        /// The file's attributes, which are on the device as well; none if it is gone.
        pub attributes: Option<Attributes>,
    }
}
