//! Makes changes durable: `fsync` and `syncfs`.

use crate::client::{Client, Worker};
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::files::report::synced_chunk_files;
use crate::inode_state::{InodeState, ReportLoss, ReportedExtent, SyncOrder, UnsyncedChunkFile};
use crate::limits::INODES_AT_ONCE;
use crate::session::request::ModifyOptions;
use crate::session::table::is_lost;
use skep_rpc::CallOptions;
use skep_types::{Attributes, ChunkFileKey, Error, ErrorCode, GroupId, InodeId, Result};
use skep_wire::metadata::{GetAttributes, SyncAll};
use skep_wire::storage::{SyncChunk, SyncChunkReply};
use std::rc::Rc;
use std::sync::Arc;

/// Waits until changes are durable.
pub trait Syncs {
    /// Waits until the size and the name of a file are durable, and all bytes that this mount has
    /// written to the file through any handle. `fdatasync(2)` does the same, since programs cannot
    /// read data beyond the recorded size of the file. If only the times have changed, the mount
    /// reports them to metadata a moment later.
    ///
    /// # Errors
    /// - `Io`, once for each handle, if a host lost acknowledged writes in a power loss.
    /// - `DeviceFailed` if a device cannot write.
    /// - `Stale` if the handle is not open or its file was removed.
    fn fsync(&self, handle: HandleId) -> impl Future<Output = Result<()>>;

    /// Records that a program opened a handle with `O_SYNC` or `O_DSYNC`, so that each write must
    /// be durable when it returns. Writes through the handle then sync their chunk files. The
    /// caller must still call [`Self::fsync`] after each write, for the size and the name.
    fn set_synced(&self, handle: HandleId);

    /// Returns whether [`Self::set_synced`] was called for a handle.
    fn is_synced(&self, handle: HandleId) -> bool;

    /// Waits until all changes of this mount are durable (`syncfs`). A closed file that was removed
    /// needs no sync.
    ///
    /// # Errors
    /// Returns the first error, after an attempt to sync all other changes.
    fn sync_all(&self) -> impl Future<Output = Result<()>>;

    /// Waits until the names in a directory are durable, and all acknowledged changes of this mount
    /// to names and attributes. Syncs the metadata group of the directory, and each other group
    /// with changes of this mount that may not be durable. Other groups may store inodes of the
    /// directory's entries. Such an inode got its first name in the directory by a change of both
    /// groups. The inode was durable when metadata acknowledged this change.
    ///
    /// # Errors
    /// Returns the first error, after an attempt to sync all other groups.
    fn sync_names(&self, directory: InodeId) -> impl Future<Output = Result<()>>;
}

impl Syncs for Client {
    async fn fsync(&self, handle: HandleId) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        self.move_inline_if_due(&file).await;
        let mut synced = self.sync_file(&file.inode).await;
        if synced.is_ok() {
            // The sync above has made all earlier changes at metadata durable, so this request
            // usually waits for no further sync.
            synced = self.confirm_inline_end(&file.inode).await;
        }
        // If a power loss reverted a truncation, `sync_file` returns an error, and the inode also
        // counts losses, which a later `fsync` would report. So mark the losses as reported, and
        // the program gets only one error.
        if let Err(error) = synced {
            if error.code() == ErrorCode::Io {
                file.take_loss();
            }
            return Err(error);
        }
        // If this client was evicted during the sync, other clients may have changed the file, so
        // the sync fails.
        file.check_live()?;
        check_losses(&file)
    }

    fn set_synced(&self, handle: HandleId) {
        // If the handle is not open, do nothing: the next operation on the handle returns the
        // error.
        if let Ok(file) = self.mount().handles.get_live(handle) {
            file.set_synced();
        }
    }

    fn is_synced(&self, handle: HandleId) -> bool {
        self.mount().handles.get_live(handle).is_ok_and(|file| file.is_synced())
    }

    async fn sync_all(&self) -> Result<()> {
        let mut result = Ok(());
        for states in self.mount().inodes.all().chunks(INODES_AT_ONCE) {
            let sync = |state: &Arc<InodeState>| {
                let (client, state) = (self.clone(), Arc::clone(state));
                skep_env::spawn(async move { client.sync_unless_removed(&state).await })
            };
            let tasks: Vec<_> = states.iter().map(sync).collect();
            for task in tasks {
                result = result.and(task.await);
            }
        }
        result.and(self.sync_groups(self.metadata_groups()).await)
    }

    async fn sync_names(&self, directory: InodeId) -> Result<()> {
        let own = self.group_of(directory)?;
        let changes = &self.mount().sessions.changes;
        let mut groups = self.metadata_groups();
        groups.retain(|group| *group == own || changes.has_unsynced(*group));
        self.sync_groups(groups).await
    }
}

impl Client {
    /// Waits until all changes of names and attributes at these metadata groups are durable.
    async fn sync_groups(&self, groups: Vec<GroupId>) -> Result<()> {
        let mut result = Ok(());
        let tasks: Vec<_> = groups
            .into_iter()
            .map(|group| {
                let client = self.clone();
                skep_env::spawn(async move { client.sync_group(group).await })
            })
            .collect();
        for task in tasks {
            result = result.and(task.await);
        }
        if self.mount().sessions.changes.take_name_reverted() {
            let text = "a metadata host lost power before acknowledged changes of names or \
                        attributes were durable; the log of this mount names the lost changes";
            result = result.and(Err(Error::new(ErrorCode::Io, text)));
        }
        result
    }

    /// Waits until the bytes, the size and the name of a file are durable. Metadata syncs at the
    /// same time as storage if possible. Metadata need not sync if only the times of the file have
    /// changed.
    async fn sync_file(&self, state: &Arc<InodeState>) -> Result<()> {
        let (order, changes) = state.sync_order(self.mount().inodes.changes());
        match order {
            SyncOrder::DataOnly => {
                self.report_beside_sync(state);
                self.sync_data(state).await?;
                self.report_later(state);
            }
            SyncOrder::Together => {
                let (client, of) = (self.clone(), Arc::clone(state));
                let at_metadata =
                    skep_env::spawn(async move { client.sync_metadata(&of, None).await });
                let synced = self.sync_data(state).await;
                at_metadata.await?;
                synced?;
                state.note_settled(changes);
            }
            SyncOrder::DataFirst => {
                let synced = self.sync_data(state).await?;
                self.sync_metadata(state, synced).await?;
                state.note_settled(changes);
                return Ok(());
            }
        }
        // While this sync was in progress, a write of another thread may have created a chunk file.
        // The sync of the data included this chunk file, so the client now reports it to metadata.
        if !state.unrecorded().is_empty() {
            self.sync_metadata(state, None).await?;
        }
        Ok(())
    }

    /// Waits until metadata has synced all reports of this mount about a file. `synced` is the
    /// result of [`Self::sync_data`].
    pub(crate) async fn sync_metadata(
        &self,
        state: &Arc<InodeState>,
        synced: Option<(ReportedExtent, Attributes)>,
    ) -> Result<()> {
        let durable = ModifyOptions { is_durable: true, ..ModifyOptions::default() };
        match self.report_written(state, durable).await? {
            Some(_) => Ok(()),
            None => self.sync_reported(state, synced).await,
        }
    }

    /// Waits until every report of this mount about a file is durable. If metadata lost a report in
    /// a power loss, the client sends this report again. `synced` is the result of
    /// [`Self::sync_data`]: the size of the file that was reported before the sync, and the
    /// attributes that were durable after the sync.
    ///
    /// # Errors
    /// Returns `Io` if metadata lost a truncation. The file then has the truncated bytes again, and
    /// other clients may have read them.
    async fn sync_reported(
        &self,
        state: &Arc<InodeState>,
        synced: Option<(ReportedExtent, Attributes)>,
    ) -> Result<()> {
        let reported = state.reported_extent();
        let durable = match synced {
            // Metadata has not recorded these synced chunk files yet. Metadata must record them, so
            // that clients can detect the loss of a chunk file.
            _ if synced_chunk_files(state, &state.unrecorded()).is_some() => {
                let how = ModifyOptions { is_durable: true, ..ModifyOptions::default() };
                self.send_report(state, None, how).await?
            }
            Some((before, durable)) if before == reported => durable,
            _ => {
                let how = CallOptions { durable: true, ..CallOptions::default() };
                let request = GetAttributes { inode: state.id };
                self.ask_with(state.id, &request, how).await?.attributes
            }
        };
        let loss = state.compare(&reported, &durable);
        if loss == ReportLoss::Nothing {
            return Ok(());
        }
        tracing::warn!(
            "file {}: the metadata host lost power before the size that this mount had reported \
             was durable; the mount reports the size again",
            state.id
        );
        let durable = ModifyOptions { is_durable: true, ..ModifyOptions::default() };
        self.report_written(state, durable).await?;
        match loss {
            ReportLoss::Truncation => {
                let text = format!(
                    "cannot sync a truncation of file {}: a metadata host lost power before the \
                     truncation was durable; truncate the file again",
                    state.id
                );
                Err(Error::new(ErrorCode::Io, text))
            }
            _ => Ok(()),
        }
    }

    /// Syncs the inline bytes of an inode and all its chunk files that have unsynced writes of this
    /// mount. Returns the result of [`Self::sync_inline`].
    async fn sync_data(
        &self,
        state: &Arc<InodeState>,
    ) -> Result<Option<(ReportedExtent, Attributes)>> {
        let generation = state.end().truncate_generation;
        let unsynced = state.unsynced();
        let has_inline = !state.unsynced_inline().is_empty();
        let mut result = Ok(None);
        if let ([one], false) = (&unsynced[..], has_inline) {
            match sync_chunk(Rc::clone(&self.0), one.key, one.group).await {
                Ok(synced) => note_synced(state, generation, one, &synced),
                Err(error) => result = Err(error),
            }
        } else {
            let sync = |one: &UnsyncedChunkFile| {
                skep_env::spawn(sync_chunk(Rc::clone(&self.0), one.key, one.group))
            };
            // Storage and metadata sync at the same time.
            let tasks: Vec<_> = unsynced.iter().map(sync).collect();
            result = self.sync_inline(state).await;
            for (one, task) in unsynced.iter().zip(tasks) {
                match task.await {
                    Ok(synced) => note_synced(state, generation, one, &synced),
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        self.mount().inodes.forget_idle(state.id);
        result.map_err(|error: Error| error.within(format_args!("cannot sync file {}", state.id)))
    }

    /// Syncs a closed inode. Logs errors, since no program has the file open. The caller uses this
    /// function if too many closed inodes have unsynced writes.
    pub(crate) async fn sync_closed(&self, state: &Arc<InodeState>) {
        let losses = state.losses();
        let confirmed = self.confirm_inline_end(state).await;
        match confirmed.and(self.sync_data(state).await) {
            Ok(_) if state.losses() == losses => {}
            Ok(_) => tracing::error!(
                "file {}: a host lost power before acknowledged writes or a truncation of the file \
                 were durable, and no program has the file open to get the error; repeat these \
                 operations",
                state.id
            ),
            Err(error) => tracing::error!(
                "cannot sync a file after its close: {error}; no program has the file open to get \
                 this error, so check its last bytes, and write missing data again"
            ),
        }
    }

    async fn sync_group(&self, group: GroupId) -> Result<()> {
        let session = self.session(group).await?.id;
        let options = CallOptions { session, durable: true, ..CallOptions::default() };
        match self.ask_group(group, &SyncAll {}, options).await {
            Ok(_) => Ok(()),
            Err(error) if is_lost(&error) => {
                // Repeat the sync in the new session. The repeated sync also makes all changes of
                // the lost session durable.
                self.renew_session(group, session, &error).await;
                let session = self.session(group).await?.id;
                let options = CallOptions { session, durable: true, ..CallOptions::default() };
                self.ask_group(group, &SyncAll {}, options).await.map(|_| ())
            }
            Err(error) => Err(error),
        }
    }

    /// Syncs an inode. If the sync fails because the inode was removed, this is no error: a closed
    /// file without a name has nothing that a program could read later. If this mount has the file
    /// open, metadata keeps the inode, so each error counts.
    async fn sync_unless_removed(&self, state: &Arc<InodeState>) -> Result<()> {
        let Err(error) = self.sync_inode(state).await else { return Ok(()) };
        // The error code alone is not sufficient. For example, metadata also returns `Stale` for a
        // sync of inline bytes that were moved to storage.
        let may_be_removed = is_gone(&error) && state.life().is_none();
        if may_be_removed && self.is_removed(state.id).await { Ok(()) } else { Err(error) }
    }

    /// Whether metadata replies that an inode does not exist.
    pub(crate) async fn is_removed(&self, inode: InodeId) -> bool {
        let reply = self.ask_with(inode, &GetAttributes { inode }, CallOptions::default()).await;
        reply.is_err_and(|error| is_gone(&error))
    }

    async fn sync_inode(&self, state: &Arc<InodeState>) -> Result<()> {
        let losses = state.losses();
        let synced = self.sync_data(state).await?;
        let durable = ModifyOptions { is_durable: true, ..ModifyOptions::default() };
        if self.report_written(state, durable).await?.is_none() && state.is_reported_undurably() {
            self.sync_reported(state, synced).await?;
        }
        // In most cases, the durable report or attributes have already shown that the inline
        // component has ended.
        self.confirm_inline_end(state).await?;
        if state.losses() == losses { Ok(()) } else { Err(loss_of(state)) }
    }
}

/// Records that storage has synced a chunk file. `generation` is the truncate generation of the
/// file when the sync began.
fn note_synced(
    state: &InodeState,
    generation: u64,
    synced: &UnsyncedChunkFile,
    reply: &SyncChunkReply,
) {
    // If this mount does not have the file open, another client may have removed the file, so a
    // missing chunk file is no loss.
    let is_open = state.has_live_handles();
    if !reply.exists && is_open && state.chunk_missing(synced, reply.incarnation) {
        tracing::error!(
            "chunk file {} is missing although storage acknowledged writes to it; look for it in \
             lost+found on the disk of its target",
            synced.key
        );
    }
    state.synced(synced, reply.incarnation);
    if reply.exists {
        state.chunk_exists(synced.key, generation);
    }
}

async fn sync_chunk(
    worker: Rc<Worker>,
    key: ChunkFileKey,
    group: GroupId,
) -> Result<SyncChunkReply> {
    let _place = worker.pieces.acquire().await;
    let options =
        CallOptions { durable: true, trace: worker.next_trace(), ..CallOptions::default() };
    match worker.call_storage(group, &SyncChunk { key }, options).await {
        Ok((synced, _)) => Ok(synced),
        Err(error) => Err(error.within(format_args!("cannot sync chunk file {key}"))),
    }
}

/// Whether an error can mean that an inode was removed.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale)
}

fn loss_of(state: &InodeState) -> Error {
    let text = format!(
        "file {}: a host lost power before acknowledged writes or a truncation of the file were \
         durable; repeat these operations",
        state.id
    );
    Error::new(ErrorCode::Io, text)
}

fn check_losses(file: &OpenFile) -> Result<()> {
    if file.take_loss() { Err(loss_of(&file.inode)) } else { Ok(()) }
}
