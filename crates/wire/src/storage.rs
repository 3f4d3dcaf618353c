//! Messages to storage targets about chunk files. Clients send them, and metadata targets for
//! truncation, removal and size recovery. All are idempotent: a repeated request has the same
//! result, so none needs a slot.

use skep_types::codec::record;
use skep_types::{ChunkFileKey, HostIncarnation, InodeId, Timestamp};

record! {
    /// Description of the stripe to which a chunk file belongs. The target stores it with the chunk
    /// file, so that files can be reassembled if metadata is lost.
    #[derive(Copy)]
    pub struct StripeHint {
        /// Chunk size of the component.
        pub chunk_bytes: u64,
        /// Groups in the component.
        pub width: u16,
        /// First byte of the component in the file.
        pub component_start: u64,
    }
}

record! {
    /// Writes the bulk data of the frame at an offset. The target creates the chunk file if it does
    /// not exist. The data is not durable before a [`SyncChunk`].
    pub struct WriteChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// The stripe, stored when the chunk file is created.
        pub stripe: StripeHint,
        /// First byte in the chunk file.
        pub offset: u64,
        /// CRC-32C of each piece of the data, split at multiples of 4,096 in the chunk file.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Reply to [`WriteChunk`].
    pub struct WriteChunkReply {
        /// Incarnation of the host. If it differs between a write and its sync, the write may have
        /// been lost.
        pub incarnation: HostIncarnation,
        /// Free space that the target has for clients, in bytes.
        pub free_bytes: u64,
    }
}

record! {
    /// Reads a range. The target returns fewer bytes if the range ends in a hole or beyond the end
    /// of the chunk file; the missing bytes are zeros.
    pub struct ReadChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// First byte in the chunk file.
        pub offset: u64,
        /// Number of bytes to read.
        pub length: u32,
    }
}

record! {
    /// Reply to [`ReadChunk`]. The bulk data follows in the frame.
    pub struct ReadChunkReply {
        /// CRC-32C of each piece of the data, split at multiples of 4,096 in the chunk file.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Makes all acknowledged changes of a chunk file durable. Succeeds for a chunk file that does
    /// not exist.
    pub struct SyncChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
    }
}

record! {
    /// Reply to [`SyncChunk`].
    pub struct SyncChunkReply {
        /// Incarnation of the host. If it differs from that of a write, the write may have been
        /// lost.
        pub incarnation: HostIncarnation,
    }
}

record! {
    /// Truncates a chunk file. The target leaves a shorter or missing chunk file as it is.
    pub struct TruncateChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Upper bound of its size afterwards.
        pub size: u64,
    }
}

record! {
    /// Allocates space for a range, so that later writes there do not run out of space. The target
    /// creates the chunk file if it does not exist. Size and data stay as they are.
    pub struct ReserveChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// First byte in the chunk file.
        pub offset: u64,
        /// Length of the range in bytes.
        pub length: u64,
    }
}

record! {
    /// Sets a range to zeros and frees its space as far as possible. The size stays as it is.
    pub struct ClearChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// First byte in the chunk file.
        pub offset: u64,
        /// Length of the range in bytes.
        pub length: u64,
    }
}

record! {
    /// Reply to [`ReserveChunk`] and [`ClearChunk`].
    pub struct ChunkRangeReply {
        /// Incarnation of the host. If it differs from that of a sync, the change may have been
        /// lost.
        pub incarnation: HostIncarnation,
        /// The range is done up to this byte of the chunk file. The client repeats the request for
        /// the rest: a long range would delay the target's other requests.
        pub end: u64,
    }
}

record! {
    /// Finds the next data or hole of a chunk file (`lseek` with `SEEK_DATA`, `SEEK_HOLE`).
    pub struct SeekChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Byte in the chunk file at which the search starts.
        pub offset: u64,
        /// Whether to search for data. If not set, the target searches for a hole.
        pub wants_data: bool,
    }
}

record! {
    /// Reply to [`SeekChunk`].
    #[derive(Copy)]
    pub struct SeekChunkReply {
        /// The first such byte in the chunk file. `None` means that there is no more data; a hole
        /// always exists, because all bytes beyond the end are one.
        pub at: Option<u64>,
    }
}

record! {
    /// Copies a range of a chunk file to another chunk file of the same target, or within the same
    /// one. Bytes that the source does not have become zeros.
    pub struct CopyChunk {
        /// The source.
        pub from: ChunkFileKey,
        /// First byte of the range in the source.
        pub from_offset: u64,
        /// The destination. The target creates it if it does not exist.
        pub to: ChunkFileKey,
        /// The stripe of the destination, stored when it is created.
        pub stripe: StripeHint,
        /// First byte of the range in the destination.
        pub to_offset: u64,
        /// Length of the range in bytes.
        pub length: u32,
    }
}

record! {
    /// Reply to [`CopyChunk`].
    pub struct CopyChunkReply {
        /// Incarnation of the host. If it differs from that of a sync, the copy may have been lost.
        pub incarnation: HostIncarnation,
        /// Whether a part of the range is a hole in source and copy.
        pub has_holes: bool,
    }
}

record! {
    /// Reads size and allocation of a chunk file.
    pub struct StatChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
    }
}

record! {
    /// Reply to [`StatChunk`]. All fields are zero if the chunk file does not exist.
    pub struct ChunkStat {
        /// Whether it exists.
        pub exists: bool,
        /// Size in bytes.
        pub size: u64,
        /// Bytes allocated on disk.
        pub allocated: u64,
        /// Time of the last write.
        pub modified: Timestamp,
    }
}

record! {
    /// Removes chunk files. The target skips chunk files that do not exist.
    pub struct RemoveChunks {
        /// The chunk files.
        pub keys: Vec<ChunkFileKey>,
    }
}

record! {
    /// Lists the chunk files of a target in pages, in the target's own order.
    pub struct ListChunks {
        /// Cursor from the last reply. Zero starts at the beginning.
        pub cursor: u64,
        /// Upper bound of the number of keys.
        pub limit: u32,
    }
}

record! {
    /// Reply to [`ListChunks`].
    pub struct ChunkList {
        /// Chunk files.
        pub keys: Vec<ChunkFileKey>,
        /// Cursor of the next request. Zero means that this is the last page.
        pub next: u64,
    }
}

record! {
    /// A storage target asks a metadata target which inodes exist, to find chunk files without an
    /// inode.
    pub struct WhichExist {
        /// The inodes.
        pub inodes: Vec<InodeId>,
    }
}

record! {
    /// Reply to [`WhichExist`].
    pub struct WhichExistReply {
        /// For each inode of the request whether it exists. An unlinked but open inode exists.
        pub exists: Vec<bool>,
    }
}
