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
    pub struct Written {
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
    pub struct ReadDone {
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
    pub struct Synced {
        /// If it differs from that of a write, the write may have been lost.
        pub incarnation: HostIncarnation,
    }
}

record! {
    /// Cuts or extends a chunk file that exists; one that doesn't stays absent.
    pub struct TruncateChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// New size of the chunk file.
        pub size: u64,
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
    pub struct Existing {
        /// For each inode asked about, whether it exists (unlinked but open counts).
        pub exists: Vec<bool>,
    }
}
