//! Examples of messages to storage targets, and of the message that storage targets send to
//! metadata targets.

use super::{a_directory, a_file, time};
use crate::vectors::{Example, example};
use skep_types::codec::crc32c;
use skep_types::{ChunkFileKey, GRANULE_BYTES, HostIncarnation};
use skep_wire::benchmark::{AskBenchmark, BenchmarkProgress, StartBenchmark, StopBenchmark};
use skep_wire::management::EmptyReply;
use skep_wire::storage::{
    ChunkList, ChunkRangeReply, ChunkStat, ClearChunk, CopyChunk, CopyChunkReply, ListChunks,
    ReadChunk, ReadChunkReply, RemoveChunks, ReserveChunk, SeekChunk, SeekChunkReply, StatChunk,
    StripeHint, SyncChunk, SyncChunkReply, TruncateChunk, TruncateChunkReply, WhichExist,
    WhichExistReply, WriteChunk, WriteChunkReply,
};

fn key() -> ChunkFileKey {
    ChunkFileKey { inode: a_file(), generation: 1, component: 2, index: 255 }
}

/// Returns the checksums of data that starts at `offset`: one for each granule that the data
/// overlaps.
fn checksums(offset: u64, data: &[u8]) -> Vec<u32> {
    let first = ((GRANULE_BYTES - offset % GRANULE_BYTES) as usize).min(data.len());
    let (head, rest) = data.split_at(first);
    let granules = rest.chunks(GRANULE_BYTES as usize);
    std::iter::once(head).chain(granules).map(crc32c).collect()
}

fn data_messages() -> Vec<Example> {
    // The data has 20 bytes before the boundary of a granule and 30 bytes after this boundary, so
    // the data consists of two pieces.
    let offset = 3 * GRANULE_BYTES - 20;
    let data: Vec<u8> = (b'A'..b'A' + 50).collect();
    let write = WriteChunk {
        key: key(),
        stripe: StripeHint { chunk_bytes: 1 << 20, width: 4, component_start: 8 << 20 },
        offset,
        truncate_generation: 3,
        must_exist: true,
        checksums: checksums(offset, &data),
    };
    let incarnation = HostIncarnation::new(0x1234_5678_9abc_def0);
    let written = WriteChunkReply { incarnation, free_bytes: 15 << 40 };
    let read = ReadChunk { key: key(), offset, length: 1 << 20 };
    let done = ReadChunkReply { exists: true, checksums: checksums(offset, &data) };
    let hole = ReadChunkReply { exists: false, checksums: Vec::new() };
    vec![
        example(&write, &written).data(false, &data),
        example(&read, &done).data(true, &data).reply::<ReadChunk>(&hole),
        example(&SyncChunk { key: key() }, &SyncChunkReply { incarnation, exists: true }),
    ]
}

fn allocation_messages() -> Vec<Example> {
    let incarnation = HostIncarnation::new(0x1234_5678_9abc_def0);
    let truncate_generation = 3;
    let (offset, length, must_exist) = (4_097, 1 << 40, true);
    let reserve = ReserveChunk { key: key(), offset, length, truncate_generation, must_exist };
    let clear = ClearChunk { key: key(), offset: 1, length: 4_094, truncate_generation };
    let seek = SeekChunk { key: key(), offset: 8_191, wants_data: true };
    let copy = CopyChunk {
        from: key(),
        from_offset: 5 << 20,
        to: ChunkFileKey { component: 0, index: 3, ..key() },
        stripe: StripeHint { chunk_bytes: 1 << 20, width: 4, component_start: 0 },
        to_offset: 7,
        truncate_generation,
        must_exist: false,
        length: 1 << 20,
    };
    vec![
        example(&reserve, &ChunkRangeReply { incarnation, end: (1 << 30) + 4_097 }),
        example(&clear, &ChunkRangeReply { incarnation, end: 4_095 }),
        example(&seek, &SeekChunkReply { at: Some(12_288) })
            .reply::<SeekChunk>(&SeekChunkReply { at: None }),
        example(&copy, &CopyChunkReply { incarnation, has_holes: true, source_exists: true }),
    ]
}

fn benchmark_messages() -> Vec<Example> {
    let run = 0x0bad_cafe_0bad_cafe;
    let start = StartBenchmark {
        run,
        is_read: true,
        streams: 4,
        stream_bytes: 10 << 30,
        block_bytes: 1 << 20,
    };
    let under_way = BenchmarkProgress {
        is_over: false,
        is_direct: true,
        bytes: 5 << 20,
        streams: vec![(1_000, 2_000_000_000), (1_500, 2_100_000_000)],
        failure: None,
    };
    let failed = BenchmarkProgress {
        is_over: true,
        is_direct: false,
        failure: Some("no space".into()),
        ..under_way.clone()
    };
    vec![
        example(&start, &EmptyReply {}),
        example(&AskBenchmark { run }, &under_way).reply::<AskBenchmark>(&failed),
        example(&StopBenchmark { run }, &EmptyReply {}),
    ]
}

pub(super) fn examples() -> Vec<Example> {
    let stat = ChunkStat { exists: true, size: 1 << 40, allocated: 8_192, modified: time(1) };
    let absent = ChunkStat { exists: false, size: 0, allocated: 0, modified: Default::default() };
    let keys = vec![key(), ChunkFileKey { inode: a_directory(), ..key() }];
    let list = ListChunks { cursor: 7, limit: 1_000 };
    let page = ChunkList { keys: keys.clone(), next: 1 << 60 };
    let last = ChunkList { keys: Vec::new(), next: 0 };
    let which = WhichExist { inodes: vec![a_file(), a_directory()] };
    let truncated = TruncateChunkReply { incarnation: HostIncarnation::new(u64::MAX) };
    let mut all = data_messages();
    all.extend(allocation_messages());
    all.extend(benchmark_messages());
    all.extend([
        example(&TruncateChunk { key: key(), size: 4_095, generation: 1 << 33 }, &truncated),
        example(&StatChunk { key: key() }, &stat).reply::<StatChunk>(&absent),
        example(&RemoveChunks { keys }, &EmptyReply {}),
        example(&list, &page).reply::<ListChunks>(&last),
        example(&which, &WhichExistReply { exists: vec![true, false] }),
    ]);
    all
}
