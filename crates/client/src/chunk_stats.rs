//! What only the chunk files of a file know: how far they reach, and how much they take.

use crate::client::Client;
use crate::limits::ROOT_PATIENCE;
use skep_cluster::striping::{ChunkFileSize, chunk_sizes};
use skep_rpc::CallOptions;
use skep_types::{Attributes, ChunkFileKey, ErrorCode, InodeId, Result, StripePattern};
use skep_wire::storage::{ChunkStat, StatChunk};
use std::rc::Rc;

/// What `stat` shows.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The attributes.
    pub attributes: Attributes,
    /// Bytes that it takes: less than its size if it has holes, never more.
    pub allocated_bytes: u64,
}

impl Client {
    /// The attributes of an inode, with all that this mount has written, and how much it takes. A
    /// directory that was removed (a program may still have it open) is shown as it was last seen,
    /// without a name. The root is shown as it was last seen if metadata doesn't answer soon: `df`,
    /// `umount` and all that looks at every mount of a host would hang otherwise.
    ///
    /// # Errors
    /// `NotFound`, `Stale`; those of storage for a file that may have holes.
    pub async fn stat(&self, inode: InodeId) -> Result<Stat> {
        let answer = match inode {
            InodeId::ROOT => self.attributes_of_root().await,
            _ => self.attributes(inode).await,
        };
        let attributes = match answer {
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {
                let seen = self.mount().directories.get(inode);
                Attributes { links: 0, size: 0, ..seen.ok_or(error)? }
            }
            result => result?,
        };
        let size = attributes.size;
        let allocated = if attributes.is_sparse { self.allocated(inode).await? } else { None };
        Ok(Stat { attributes, allocated_bytes: allocated.map_or(size, |it| it.min(size)) })
    }

    async fn attributes_of_root(&self) -> Result<Attributes> {
        let seen = self.mount().directories.get(InodeId::ROOT);
        let Some(seen) = seen else { return self.attributes(InodeId::ROOT).await };
        let answer = skep_env::timeout(ROOT_PATIENCE, self.attributes(InodeId::ROOT)).await;
        answer.unwrap_or(Ok(seen))
    }

    /// Bytes that the chunk files of an inode take, their checksums included; `None` for what has
    /// no pattern.
    async fn allocated(&self, inode: InodeId) -> Result<Option<u64>> {
        let pattern = match self.known_pattern(inode) {
            Some(pattern) => Some(pattern),
            None => self.entry_info(inode).await?.pattern,
        };
        let Some(pattern) = pattern else { return Ok(None) };
        let stats = self.chunk_stats(inode, &pattern).await?;
        Ok(Some(stats.iter().fold(0, |sum: u64, (_, stat)| sum.saturating_add(stat.allocated))))
    }

    /// The pattern of a file that this mount has open.
    pub(crate) fn known_pattern(&self, inode: InodeId) -> Option<StripePattern> {
        let files = self.mount().handles.select(|file| file.inode.id == inode);
        files.first().map(|file| file.pattern.clone())
    }

    /// Asks all chunk files of a pattern, each with the place that it has there.
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
                let (stat, _) =
                    worker.router.call(chunk.group, &StatChunk { key }, options).await?;
                Ok((chunk, stat))
            })
        };
        let tasks: Vec<_> = chunk_sizes(pattern, 0).map(ask).collect();
        let mut stats = Vec::new();
        for task in tasks {
            stats.push(
                task.await.map_err(|error: skep_types::Error| {
                    error.within(format_args!("file {inode}"))
                })?,
            );
        }
        Ok(stats)
    }
}
