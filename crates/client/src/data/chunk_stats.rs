//! Requests the sizes of chunk files, and the space that they take.

use crate::client::Client;
use skep_cluster::striping::{ChunkFileSize, chunk_sizes};
use skep_rpc::CallOptions;
use skep_types::{ChunkFileKey, ErrorCode, InodeId, Result, StripePattern, Timestamp};
use skep_wire::storage::{ChunkStat, StatChunk};
use std::rc::Rc;
use std::sync::Arc;

/// The reply for a chunk file that does not exist.
const MISSING: ChunkStat = ChunkStat { exists: false, size: 0, allocated: 0, modified: NEVER };
const NEVER: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

impl Client {
    /// Returns the space in bytes that a file of `size` bytes takes. The result includes the
    /// checksums of the chunk files and counts the inline bytes in metadata as if they had no
    /// holes. `None` means that the inode has no stripe pattern.
    pub(crate) async fn allocated(&self, inode: InodeId, size: u64) -> Result<Option<u64>> {
        let pattern = match self.known_pattern(inode) {
            Some(pattern) => Some(pattern),
            None => self.entry_info(inode).await?.pattern.map(Arc::new),
        };
        let Some(pattern) = pattern else { return Ok(None) };
        let stats = self.chunk_stats(inode, &pattern).await?;
        let inline = pattern.inline_bytes().min(size);
        Ok(Some(
            stats.iter().fold(inline, |sum: u64, (_, stat)| sum.saturating_add(stat.allocated)),
        ))
    }

    /// Returns the stripe pattern of a file if this mount has the file open.
    pub(crate) fn known_pattern(&self, inode: InodeId) -> Option<Arc<StripePattern>> {
        self.mount().inodes.get(inode)?.pattern()
    }

    /// Requests the size and space of all chunk files of a pattern. Returns each reply with the
    /// position of the chunk file in the pattern. If a target was marked as lost, its chunk files
    /// count as missing, since the file keeps its size and its bytes on other targets.
    pub(crate) async fn chunk_stats(
        &self,
        inode: InodeId,
        pattern: &StripePattern,
    ) -> Result<Vec<(ChunkFileSize, ChunkStat)>> {
        let ask = |chunk: ChunkFileSize| {
            let (component, index) = (chunk.component, chunk.index);
            let key = ChunkFileKey { inode, generation: pattern.generation, component, index };
            let worker = Rc::clone(&self.0);
            skep_env::spawn(async move {
                let _place = worker.pieces.acquire().await;
                let options = CallOptions::default();
                let answer = worker.call_storage(chunk.group, &StatChunk { key }, options).await;
                match answer {
                    Ok((stat, _)) => Ok((chunk, stat)),
                    Err(error) if error.code() == ErrorCode::TargetLost => Ok((chunk, MISSING)),
                    Err(error) => Err(error.within(format_args!(
                        "cannot get the sizes of the chunk files of file {inode}"
                    ))),
                }
            })
        };
        let tasks: Vec<_> = chunk_sizes(pattern, 0).map(ask).collect();
        let mut stats = Vec::new();
        for task in tasks {
            stats.push(task.await?);
        }
        Ok(stats)
    }
}
