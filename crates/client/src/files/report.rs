//! Reports the ends of this mount's writes to metadata. If only the chunk files show the end of a
//! file, the client first computes the end from their sizes.

use crate::client::Client;
use crate::files::open_file::OpenFile;
use crate::inode_state::InodeState;
use crate::session::request::ModifyOptions;
use skep_cluster::striping::size_from_chunks;
use skep_types::{Attributes, ChunkFileKey, ChunkFileSet, ErrorCode, Result};
use skep_wire::metadata::{GetEntryInfo, ReportWritten, SyncedChunkFiles, WrittenExtent};
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
        let synced = synced_chunk_files(state, &unrecorded);
        let has_synced = synced.is_some();
        let has_writes = written.is_some();
        // Metadata refuses the report if the file has another pattern by now.
        let opened = state.opened_generation();
        let without_files = |pattern_generation| SyncedChunkFiles {
            pattern_generation,
            chunk_files: ChunkFileSet::default(),
        };
        let synced = synced.or_else(|| opened.map(without_files));
        let request = ReportWritten { inode: state.id, written, synced };
        let sent = self.moment();
        let result = self.modify(state.id, request, how, |_, _| ()).await;
        let result = match (result, opened) {
            (Err(error), Some(opened)) if error.code() == ErrorCode::Stale => {
                self.check_pattern(state, opened).await;
                let ends_inline = written.and_then(|it| it.ends_inline);
                Err(self.explain_refused_end(state, ends_inline, error).await)
            }
            (result, _) => result,
        };
        let reply = result.map_err(|error| {
            error.within(format_args!("cannot report the changes of file {} to metadata", state.id))
        })?;
        if has_synced {
            state.recorded(&unrecorded, generation);
        }
        let attributes = reply.attributes;
        state.know(&attributes, sent.after_own_change());
        if has_writes {
            self.mount().caches.changed_by_us(state.id, attributes.change_counter);
        }
        Ok(attributes)
    }

    /// Finds out whether metadata has refused a report because the stripe pattern of the file was
    /// replaced after the newest open. `opened` is the generation of the pattern in the reply to
    /// that open. If the pattern was replaced, makes the handles stale.
    pub(super) async fn check_pattern(&self, state: &Arc<InodeState>, opened: u32) {
        let info = self.ask(state.id, &GetEntryInfo { inode: state.id }).await;
        let current = info.ok().and_then(|info| info.pattern);
        let is_replaced = current.is_some_and(|pattern| pattern.generation != opened);
        // If the mount has opened the file again meanwhile, the handles are stale already.
        if is_replaced && state.opened_generation() == Some(opened) {
            self.expire_pattern(state, opened);
        }
    }

    /// Marks the handles of a file as stale if they were opened with the pattern of this
    /// generation, because the file has another pattern now. A power loss of metadata had reverted
    /// their opens. No reader finds the bytes that programs have written through these handles
    /// since, so the mount does not report these writes.
    pub(crate) fn expire_pattern(&self, state: &Arc<InodeState>, generation: u32) {
        let is_outdated = |file: &OpenFile| {
            file.inode.id == state.id && file.pattern().generation == generation && !file.is_stale()
        };
        let outdated = self.mount().handles.select(is_outdated);
        // Log an error only if a handle is not being closed. Metadata may already have executed the
        // close of a handle that is being closed. After this close, another client could set the
        // pattern without a power loss.
        if outdated.iter().any(|file| !file.is_closing()) {
            tracing::error!(
                "file {}: a power loss has removed the record of its open at metadata, and another \
                 client has set its stripe pattern since; programs that have the file open get \
                 ESTALE until they open it again, and must repeat their writes",
                state.id
            );
        }
        outdated.iter().for_each(|file| file.set_stale());
        state.pattern_expired(generation);
    }

    /// Returns the size of a file, computed from the sizes of its chunk files.
    pub(crate) async fn measure(&self, state: &Arc<InodeState>) -> Result<u64> {
        let Some(pattern) = state.pattern() else { return Ok(0) };
        let stats = self.chunk_stats(state.id, &pattern).await?;
        let sizes = stats.iter().map(|(chunk, stat)| (chunk.component, chunk.index, stat.size));
        Ok(size_from_chunks(&pattern, sizes))
    }
}

/// Returns the part of a report that contains synced chunk files. `None` means that `keys` is
/// empty, or that this mount does not have the file open.
pub(crate) fn synced_chunk_files(
    state: &InodeState,
    keys: &[ChunkFileKey],
) -> Option<SyncedChunkFiles> {
    if keys.is_empty() {
        return None;
    }
    let pattern = state.pattern()?;
    let pattern_generation = pattern.generation;
    let mut chunk_files = ChunkFileSet::default();
    let its = keys.iter().filter(|key| key.generation == pattern_generation);
    for number in its.filter_map(|key| pattern.chunk_file_number(key.component, key.index)) {
        chunk_files.insert(number);
    }
    Some(SyncedChunkFiles { pattern_generation, chunk_files })
}
