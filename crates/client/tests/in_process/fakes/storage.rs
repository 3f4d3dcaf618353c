//! The chunk files of the fake cluster.

use super::Answer;
use skep_env::Buf;
use skep_rpc::server::Incoming;
use skep_types::codec::{Codec, crc32c};
use skep_types::{
    ChunkFileKey, Error, ErrorCode, GRANULE_BYTES, HostIncarnation, Result, Timestamp,
};
use skep_wire::Request;
use skep_wire::management::EmptyReply;
use skep_wire::storage::{
    ChunkRangeReply, ChunkStat, ClearChunk, CopyChunk, CopyChunkReply, ReadChunk, ReadChunkReply,
    RemoveChunks, StatChunk, SyncChunk, SyncChunkReply, TruncateChunk, TruncateChunkReply,
    WriteChunk, WriteChunkReply,
};
use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct FakeStorage {
    pub(crate) files: HashMap<ChunkFileKey, Vec<u8>>,
    pub(crate) incarnation: u64,
    pub(crate) is_full: bool,
    /// Number of the next reads that return damaged data without an error.
    pub(crate) flipped_reads: usize,
    /// Number of the next writes that the target refuses as damaged in transit.
    pub(crate) refused_writes: usize,
    /// Number of writes that had the durable flag.
    pub(crate) durable_writes: usize,
    /// The newest truncate generation. The target refuses writes that began in an older generation.
    pub(crate) truncate_generation: u64,
}

fn checksums(offset: u64, mut bytes: &[u8]) -> Vec<u32> {
    let mut checksums = Vec::new();
    let mut left = (GRANULE_BYTES - offset % GRANULE_BYTES) as usize;
    while !bytes.is_empty() {
        let (granule, rest) = bytes.split_at(left.min(bytes.len()));
        checksums.push(crc32c(granule));
        (bytes, left) = (rest, GRANULE_BYTES as usize);
    }
    checksums
}

impl FakeStorage {
    pub(crate) fn handle(&mut self, incoming: &Incoming) -> Result<Answer> {
        let body = &incoming.body;
        let incarnation = HostIncarnation::new(self.incarnation);
        Ok(match incoming.header.message {
            WriteChunk::ID => {
                let request = WriteChunk::from_bytes(body)?;
                self.write(&request, &incoming.data.as_ref().unwrap().bytes())?;
                self.durable_writes += usize::from(incoming.header.is_durable());
                Answer::of(&WriteChunkReply { incarnation, free_bytes: 1 << 30 })
            }
            ReadChunk::ID => self.read(&ReadChunk::from_bytes(body)?),
            SyncChunk::ID => {
                let exists = self.files.contains_key(&SyncChunk::from_bytes(body)?.key);
                Answer::of(&SyncChunkReply { incarnation, exists })
            }
            TruncateChunk::ID => {
                let request = TruncateChunk::from_bytes(body)?;
                if let Some(file) = self.files.get_mut(&request.key) {
                    file.resize(request.size as usize, 0);
                }
                Answer::of(&TruncateChunkReply { incarnation })
            }
            CopyChunk::ID => Answer::of(&self.copy(&CopyChunk::from_bytes(body)?)),
            ClearChunk::ID => {
                let ClearChunk { key, offset, length, truncate_generation } =
                    ClearChunk::from_bytes(body)?;
                if truncate_generation < self.truncate_generation {
                    return Err(ErrorCode::EndMoved.into());
                }
                let end = offset + length;
                if let Some(file) = self.files.get_mut(&key) {
                    let length = file.len();
                    file[(offset as usize).min(length)..(end as usize).min(length)].fill(0);
                }
                Answer::of(&ChunkRangeReply { incarnation, end })
            }
            StatChunk::ID => {
                let file = self.files.get(&StatChunk::from_bytes(body)?.key);
                let size = file.map_or(0, |file| file.len() as u64);
                let modified = Timestamp::default();
                Answer::of(&ChunkStat { exists: file.is_some(), size, allocated: size, modified })
            }
            RemoveChunks::ID => {
                for key in RemoveChunks::from_bytes(body)?.keys {
                    self.files.remove(&key);
                }
                Answer::of(&EmptyReply {})
            }
            other => panic!("the fake storage target cannot execute message {other}"),
        })
    }

    fn write(&mut self, request: &WriteChunk, data: &[u8]) -> Result<()> {
        assert_eq!(request.checksums, checksums(request.offset, data), "checksums of {request:?}");
        if self.refused_writes > 0 {
            self.refused_writes -= 1;
            return Err(Error::new(ErrorCode::Protocol, "damaged on its way"));
        }
        if request.truncate_generation < self.truncate_generation {
            return Err(ErrorCode::EndMoved.into());
        }
        if request.must_exist && !self.files.contains_key(&request.key) {
            return Err(Error::new(ErrorCode::Corrupt, "lost+found"));
        }
        if self.is_full {
            return Err(Error::new(ErrorCode::NoSpace, "target is full"));
        }
        let file = self.files.entry(request.key).or_default();
        let (start, end) = (request.offset as usize, request.offset as usize + data.len());
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(data);
        Ok(())
    }

    fn copy(&mut self, request: &CopyChunk) -> CopyChunkReply {
        let source = self.files.get(&request.from).cloned();
        let (start, length) = (request.from_offset as usize, request.length as usize);
        let mut bytes = source.clone().unwrap_or_default();
        bytes.resize(bytes.len().max(start + length), 0);
        let has_holes = source.as_ref().is_none_or(|source| source.len() < start + length);
        let (to, at) = (self.files.entry(request.to).or_default(), request.to_offset as usize);
        to.resize(to.len().max(at + length), 0);
        to[at..at + length].copy_from_slice(&bytes[start..start + length]);
        let incarnation = HostIncarnation::new(self.incarnation);
        CopyChunkReply { incarnation, has_holes, source_exists: source.is_some() }
    }

    fn read(&mut self, request: &ReadChunk) -> Answer {
        let exists = self.files.contains_key(&request.key);
        let file = self.files.get(&request.key).map_or(&[][..], Vec::as_slice);
        let start = (request.offset as usize).min(file.len());
        let end = (start + request.length as usize).min(file.len());
        let checksums = checksums(request.offset, &file[start..end]);
        let data = Buf::copy_of(&file[start..end]);
        if self.flipped_reads > 0 && !data.is_empty() {
            self.flipped_reads -= 1;
            let first = data.bytes()[0];
            data.write(0, &[first ^ 1]);
        }
        Answer::Data(ReadChunkReply { exists, checksums }.to_bytes(), data)
    }
}
