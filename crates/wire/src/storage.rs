//! Messages to storage targets about chunk files. The senders are clients, and also metadata
//! targets for truncation, removal and size recovery. A retry of any of these requests has the same
//! result as the first attempt, so no request needs a slot.

use skep_types::codec::record;
use skep_types::{ChunkFileKey, HostIncarnation, InodeId, Timestamp};

record! {
    /// Describes the component to which a chunk file belongs. The target stores the description
    /// with the chunk file, so that an administrator can reassemble files if metadata is lost.
    #[derive(Copy)]
    pub struct StripeHint {
        /// Chunk size of the component, in bytes.
        pub chunk_bytes: u64,
        /// Number of groups of the component.
        pub width: u16,
        /// File offset at which the component starts.
        pub component_start: u64,
    }
}

record! {
    /// Writes the bulk data of the frame into a chunk file. The target creates the chunk file if it
    /// does not exist. The write is durable only after a [`SyncChunk`].
    pub struct WriteChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Description of the component. The target stores the description when it creates the
        /// chunk file.
        pub stripe: StripeHint,
        /// Offset of the data in the chunk file.
        pub offset: u64,
        /// Truncate generation of the file when the client began to write. The target returns
        /// `EndMoved` if it has executed a newer truncation of the chunk file, because that
        /// truncation must also remove the bytes of this write.
        pub truncate_generation: u64,
        /// Whether the client has a record of an earlier sync of the chunk file, so that the chunk
        /// file must exist. If this field is set and the chunk file is missing, the target returns
        /// `Corrupt` and does not create the chunk file.
        pub must_exist: bool,
        /// CRC-32C of each piece of the data. The pieces end at multiples of 4,096 in the chunk
        /// file.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Reply to [`WriteChunk`].
    pub struct WriteChunkReply {
        /// Incarnation of the target's host. If a later sync returns a different incarnation, the
        /// write may have been lost.
        pub incarnation: HostIncarnation,
        /// Free space of the target that clients may use, in bytes.
        pub free_bytes: u64,
    }
}

record! {
    /// Reads a range of a chunk file. Bytes in holes are zeros. If the range ends beyond the end of
    /// the chunk file, the target returns only the bytes up to this end, and the missing bytes
    /// count as zeros.
    pub struct ReadChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Offset of the range in the chunk file.
        pub offset: u64,
        /// Number of bytes to read.
        pub length: u32,
    }
}

record! {
    /// Reply to [`ReadChunk`]. The bytes are the bulk data of the frame.
    pub struct ReadChunkReply {
        /// Whether the chunk file exists.
        pub exists: bool,
        /// CRC-32C of each piece of the data. The pieces end at multiples of 4,096 in the chunk
        /// file.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Makes all acknowledged changes of a chunk file durable. Also succeeds if the chunk file does
    /// not exist.
    pub struct SyncChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
    }
}

record! {
    /// Reply to [`SyncChunk`].
    pub struct SyncChunkReply {
        /// Incarnation of the target's host. If an earlier write returned a different incarnation,
        /// that write may have been lost.
        pub incarnation: HostIncarnation,
        /// Whether the chunk file exists.
        pub exists: bool,
    }
}

record! {
    /// Truncates a chunk file. Changes nothing if the chunk file is shorter than `size` or does not
    /// exist.
    pub struct TruncateChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Upper bound of the chunk file's size after the truncation, in bytes.
        pub size: u64,
        /// Truncate generation of the file after this truncation. The target ignores a request
        /// whose generation is not newer than the generation of its last truncation of the chunk
        /// file. Such a request is a delayed duplicate, and must not remove bytes that were written
        /// after the truncation.
        pub generation: u64,
    }
}

record! {
    /// Reply to [`TruncateChunk`].
    pub struct TruncateChunkReply {
        /// Incarnation of the target's host. If a later sync returns a different incarnation, the
        /// truncation may have been lost.
        pub incarnation: HostIncarnation,
    }
}

record! {
    /// Allocates space for a range, so that later writes to the range do not run out of space. The
    /// target creates the chunk file if it does not exist. The size and data of the chunk file do
    /// not change.
    pub struct ReserveChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Offset of the range in the chunk file.
        pub offset: u64,
        /// Length of the range in bytes.
        pub length: u64,
        /// Truncate generation of the file, as in [`WriteChunk`].
        pub truncate_generation: u64,
        /// Whether the chunk file must exist, as in [`WriteChunk`].
        pub must_exist: bool,
    }
}

record! {
    /// Sets a range to zeros and frees its space as far as possible. The size of the chunk file
    /// does not change.
    pub struct ClearChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Offset of the range in the chunk file.
        pub offset: u64,
        /// Length of the range in bytes.
        pub length: u64,
        /// Truncate generation of the file, as in [`WriteChunk`].
        pub truncate_generation: u64,
    }
}

record! {
    /// Reply to [`ReserveChunk`] and [`ClearChunk`].
    pub struct ChunkRangeReply {
        /// Incarnation of the target's host. If a later sync returns a different incarnation, the
        /// change may have been lost.
        pub incarnation: HostIncarnation,
        /// Offset in the chunk file up to which the target has processed the range. The client
        /// sends another request for the rest of the range. A target does not process a long range
        /// in one step, because a long step would delay other requests.
        pub end: u64,
    }
}

record! {
    /// Finds the next data or hole of a chunk file (`lseek` with `SEEK_DATA` or `SEEK_HOLE`).
    pub struct SeekChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Offset in the chunk file at which the search starts.
        pub offset: u64,
        /// Whether the target searches for data. If this field is not set, the target searches for
        /// a hole.
        pub wants_data: bool,
    }
}

record! {
    /// Reply to [`SeekChunk`].
    #[derive(Copy)]
    pub struct SeekChunkReply {
        /// Offset of the first byte found in the chunk file. `None` means that there is no data at
        /// or after the offset of the request. A search for a hole always succeeds, because all
        /// bytes beyond the end of the chunk file count as a hole.
        pub at: Option<u64>,
    }
}

record! {
    /// Copies a range of a chunk file to another chunk file of the same target, or within one chunk
    /// file. Bytes beyond the end of the source become zeros.
    pub struct CopyChunk {
        /// The source chunk file.
        pub from: ChunkFileKey,
        /// Offset of the range in the source.
        pub from_offset: u64,
        /// The destination chunk file. If this chunk file does not exist, the target creates the
        /// chunk file.
        pub to: ChunkFileKey,
        /// Description of the destination's component. The target stores the description when it
        /// creates the destination.
        pub stripe: StripeHint,
        /// Offset of the range in the destination.
        pub to_offset: u64,
        /// Truncate generation of the destination's file, as in [`WriteChunk`].
        pub truncate_generation: u64,
        /// Whether the destination must exist, as in [`WriteChunk`].
        pub must_exist: bool,
        /// Length of the range in bytes.
        pub length: u32,
    }
}

record! {
    /// Reply to [`CopyChunk`].
    pub struct CopyChunkReply {
        /// Incarnation of the target's host. If a later sync returns a different incarnation, the
        /// copy may have been lost.
        pub incarnation: HostIncarnation,
        /// Whether any part of the range is a hole in both source and destination.
        pub has_holes: bool,
        /// Whether the source exists.
        pub source_exists: bool,
    }
}

record! {
    /// Reads size, allocated space and modification time of a chunk file.
    pub struct StatChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
    }
}

record! {
    /// Reply to [`StatChunk`]. All fields are zero if the chunk file does not exist.
    pub struct ChunkStat {
        /// Whether the chunk file exists.
        pub exists: bool,
        /// Size of the chunk file in bytes.
        pub size: u64,
        /// Space allocated on disk, in bytes.
        pub allocated: u64,
        /// Time of the last write.
        pub modified: Timestamp,
    }
}

record! {
    /// Removes chunk files. The target ignores chunk files that do not exist.
    pub struct RemoveChunks {
        /// The chunk files.
        pub keys: Vec<ChunkFileKey>,
    }
}

record! {
    /// Lists the chunk files of a target in pages. The target chooses the order.
    pub struct ListChunks {
        /// Cursor from the previous reply. Zero starts at the beginning.
        pub cursor: u64,
        /// Maximum number of keys in the reply.
        pub limit: u32,
    }
}

record! {
    /// Reply to [`ListChunks`].
    pub struct ChunkList {
        /// The chunk files of this page.
        pub keys: Vec<ChunkFileKey>,
        /// Cursor for the next page. Zero means that this is the last page.
        pub next: u64,
    }
}

record! {
    /// Asks a metadata target which inodes exist. A storage target sends this request to find chunk
    /// files without an inode.
    pub struct WhichExist {
        /// The inodes.
        pub inodes: Vec<InodeId>,
    }
}

record! {
    /// Reply to [`WhichExist`].
    pub struct WhichExistReply {
        /// For each inode of the request, in order: whether the inode exists. An unlinked inode
        /// exists while a session has the inode open.
        pub exists: Vec<bool>,
    }
}
