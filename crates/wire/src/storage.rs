//! Messages to storage targets: chunk files. All are idempotent: writing or removing the same again
//! has the same result, so none needs a slot.

use skep_types::codec::record;
use skep_types::{ChunkFileKey, HostIncarnation, InodeId, Timestamp};

record! {
    /// What a chunk file says about the stripe that it is part of, so that data can be put back
    /// together when metadata is lost.
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
    /// Writes bulk data at an offset. Creates the chunk file if need be.
    pub struct WriteChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// For its description of itself.
        pub stripe: StripeHint,
        /// First byte in the chunk file.
        pub offset: u64,
        /// CRC-32C of each granule piece of the data, cut at multiples of 4,096 in the chunk file.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Answer to [`WriteChunk`].
    pub struct WriteChunkReply {
        /// If it differs between a write and its sync, the write may have been lost.
        pub incarnation: HostIncarnation,
        /// Bytes that the target has left for its clients.
        pub free_bytes: u64,
    }
}

record! {
    /// Reads a range. A range in a hole or beyond the end is answered short; the rest is zeros.
    pub struct ReadChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// First byte in the chunk file.
        pub offset: u64,
        /// Most bytes wanted.
        pub length: u32,
    }
}

record! {
    /// Answer to [`ReadChunk`], with the bulk data.
    pub struct ReadChunkReply {
        /// CRC-32C of each granule piece of the data, cut at multiples of 4,096 in the chunk file.
        pub checksums: Vec<u32>,
    }
}

record! {
    /// Makes all that was acknowledged for a chunk file durable. One that doesn't exist is durable.
    pub struct SyncChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
    }
}

record! {
    /// Answer to [`SyncChunk`].
    pub struct SyncChunkReply {
        /// If it differs from that of a write, the write may have been lost.
        pub incarnation: HostIncarnation,
    }
}

record! {
    /// TruncationTable a chunk file; one that is shorter or doesn't exist stays as it is.
    pub struct TruncateChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Its size afterwards, at most.
        pub size: u64,
    }
}

record! {
    /// Reserves room for a range, so that writing there won't run out of space; the chunk file is
    /// created if need be, its size and what it holds stay.
    pub struct ReserveChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// First byte in the chunk file.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
    }
}

record! {
    /// Makes a range zeros, and gives its room back as far as it can; the size stays.
    pub struct ClearChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// First byte in the chunk file.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
    }
}

record! {
    /// Answer to [`ReserveChunk`] and [`ClearChunk`].
    pub struct ChunkRangeReply {
        /// If it differs from that of a sync, what was done may have been lost.
        pub incarnation: HostIncarnation,
        /// What lies before this byte of the chunk file is done. If that isn't all, it is to be
        /// asked again for the rest: a long range would keep the target from others.
        pub end: u64,
    }
}

record! {
    /// Asks where data or a hole begins.
    pub struct SeekChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// First byte in the chunk file that counts.
        pub offset: u64,
        /// Data is looked for, not a hole.
        pub wants_data: bool,
    }
}

record! {
    /// Answer to [`SeekChunk`].
    #[derive(Copy)]
    pub struct SeekChunkReply {
        /// The first such byte in the chunk file. All that lies beyond its end is a hole; so only
        /// data may be missing.
        pub at: Option<u64>,
    }
}

record! {
    /// Copies a range of one chunk file to another of the same target, or to another place of the
    /// same. What the source doesn't hold is zeros in the copy.
    pub struct CopyChunk {
        /// The source.
        pub from: ChunkFileKey,
        /// First byte of the range in the source.
        pub from_offset: u64,
        /// The chunk file that is written to, created if need be.
        pub to: ChunkFileKey,
        /// For its description of itself.
        pub stripe: StripeHint,
        /// Where the range begins there.
        pub to_offset: u64,
        /// Bytes.
        pub length: u32,
    }
}

record! {
    /// Answer to [`CopyChunk`].
    pub struct CopyChunkReply {
        /// If it differs from that of a sync, the copy may have been lost.
        pub incarnation: HostIncarnation,
        /// Whether a part of the range was a hole, and is one in the copy.
        pub has_holes: bool,
    }
}

record! {
    /// Asks what a chunk file is like.
    pub struct StatChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
    }
}

record! {
    /// Answer to [`StatChunk`]. All zero if there is no such chunk file.
    pub struct ChunkStat {
        /// Whether it exists.
        pub exists: bool,
        /// Size in bytes.
        pub size: u64,
        /// Bytes that it takes on disk.
        pub allocated: u64,
        /// Last write.
        pub modified: Timestamp,
    }
}

record! {
    /// Removes chunk files; those that don't exist are skipped.
    pub struct RemoveChunks {
        /// The chunk files.
        pub keys: Vec<ChunkFileKey>,
    }
}

record! {
    /// Asks a target for the inodes of its chunk files after `cursor`, in its own order.
    pub struct ListChunks {
        /// Where to go on; zero: at the start.
        pub cursor: u64,
        /// Most keys wanted.
        pub limit: u32,
    }
}

record! {
    /// Answer to [`ListChunks`].
    pub struct ChunkList {
        /// Chunk files.
        pub keys: Vec<ChunkFileKey>,
        /// Cursor for the next call; zero: this was all.
        pub next: u64,
    }
}

record! {
    /// Storage asks metadata which inodes exist, to find chunk files that nobody owns.
    pub struct WhichExist {
        /// The inodes.
        pub inodes: Vec<InodeId>,
    }
}

record! {
    /// Answer to [`WhichExist`].
    pub struct WhichExistReply {
        /// For each inode asked about, whether it exists (unlinked but open counts).
        pub exists: Vec<bool>,
    }
}
