//! Reports the ends of this mount's writes to metadata. If only the chunk files show the end of a
//! file, the client first computes the end from their sizes.

use crate::client::Client;
use crate::inode_state::InodeState;
use crate::session::request::ModifyOptions;
use skep_cluster::striping::size_from_chunks;
use skep_types::{Attributes, ChunkFileKey, ChunkFileSet, InodeId, Result};
use skep_wire::metadata::{ReportWritten, SyncedChunkFiles, WrittenExtent};
use std::sync::Arc;

impl Client {
    /// Reports all unreported writes of a file to metadata. Returns the attributes in the last
    /// reply, or `None` if there was nothing to report.
    pub(crate) async fn report_written(
        &self,
        state: &Arc<InodeState>,
        how: ModifyOptions,
    ) -> Result<Option<Attributes>> {
        let mut answer = None;
        while let Some(mut report) = state.unreported() {
            if report.must_measure {
                report.extent.end = self.measure(state).await?;
                report.extent.may_leave_holes = true;
            }
            let attributes = self.send_report(state, Some(report.extent), how).await?;
            state.reported(&report, &attributes, how.is_durable, skep_env::now());
            let generation = attributes.truncate_generation;
            answer = Some(attributes);
            if generation == report.extent.truncate_generation {
                break;
            }
            // Another client had truncated the file, so metadata ignored the reported end. Only the
            // chunk files show the writes after the truncation, so for the next report the client
            // computes the end from the sizes of the chunk files.
        }
        Ok(answer.map(|mut attributes| {
            state.merge_into(&mut attributes);
            attributes
        }))
    }

    /// Sends a report of writes, and returns the attributes in the reply. The report of an `fsync`
    /// also contains the chunk files that were synced for the first time.
    pub(crate) async fn send_report(
        &self,
        state: &Arc<InodeState>,
        written: Option<WrittenExtent>,
        how: ModifyOptions,
    ) -> Result<Attributes> {
        let generation = state.end().truncate_generation;
        let unrecorded = if how.is_durable { state.unrecorded() } else { Vec::new() };
        let synced = self.synced_chunk_files(state.id, &unrecorded);
        let has_synced = synced.is_some();
        let has_writes = written.is_some();
        let request = ReportWritten { inode: state.id, written, synced };
        let result = self.modify(state.id, request, how, |_, _| ()).await;
        let reply = result.map_err(|error| error.within(format_args!("file {}", state.id)))?;
        if has_synced {
            state.recorded(&unrecorded, generation);
        }
        let attributes = reply.attributes;
        if has_writes {
            self.mount().caches.changed_by_us(state.id, attributes.change_counter);
        }
        Ok(attributes)
    }

    /// Returns the part of a report that contains synced chunk files. `None` means that `keys` is
    /// empty, or that this mount does not have the file open.
    pub(crate) fn synced_chunk_files(
        &self,
        inode: InodeId,
        keys: &[ChunkFileKey],
    ) -> Option<SyncedChunkFiles> {
        if keys.is_empty() {
            return None;
        }
        let pattern = self.known_pattern(inode)?;
        let pattern_generation = pattern.generation;
        let mut chunk_files = ChunkFileSet::default();
        let its = keys.iter().filter(|key| key.generation == pattern_generation);
        for number in its.filter_map(|key| pattern.chunk_file_number(key.component, key.index)) {
            chunk_files.insert(number);
        }
        Some(SyncedChunkFiles { pattern_generation, chunk_files })
    }

    /// Returns the size of a file, computed from the sizes of its chunk files.
    pub(crate) async fn measure(&self, state: &Arc<InodeState>) -> Result<u64> {
        let Some(pattern) = self.known_pattern(state.id) else { return Ok(0) };
        let stats = self.chunk_stats(state.id, &pattern).await?;
        let sizes = stats.iter().map(|(chunk, stat)| (chunk.component, chunk.index, stat.size));
        Ok(size_from_chunks(&pattern, sizes))
    }
}
