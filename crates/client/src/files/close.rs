//! Closes files: `flush` for each `close(2)`, and `close` for each handle. `deferred_close` sends
//! the closes for which no caller waits.

use crate::client::Client;
use crate::driven::drive;
use crate::files::deferred_close::closed_file;
use crate::files::handles::HandleId;
use crate::files::open_file::{FirstRead, OpenFile};
use crate::inode_state::InodeState;
use crate::session::request::{ModifyOptions, send_attempt};
use skep_types::{Error, ErrorCode, InodeId, Result};
use skep_wire::metadata::{Close, CloseMany, ClosingReport, OpenMode, OpenReply};
use std::rc::Rc;
use std::sync::Arc;

/// Closes descriptors and handles.
pub trait Closes {
    /// Reports the written size to metadata, so that a later open returns this size. The FUSE layer
    /// calls this function for each `close(2)`.
    ///
    /// # Errors
    /// - `Stale` if the handle is not open or its file was removed.
    /// - The errors of the report to metadata.
    fn flush(&self, handle: HandleId) -> impl Future<Output = Result<()>>;

    /// Closes a handle. The handle is invalid afterwards, even after an error. If the mount has
    /// already reported all sizes to metadata (by [`Self::flush`]), this function returns
    /// immediately, and the mount sends the close a few milliseconds later. If a caller has dropped
    /// the future of a write, the close of the last handle of the file also returns immediately.
    /// The mount then sends the close when the write has ended.
    ///
    /// # Errors
    /// - `Stale` if the handle is not open.
    /// - The errors of the report to metadata.
    fn close(&self, handle: HandleId) -> impl Future<Output = Result<()>>;

    /// Closes a handle that the kernel has not received, because the program that opened the file
    /// was killed. Otherwise the same as [`Self::close`].
    ///
    /// # Errors
    /// The errors of [`Self::close`].
    fn close_unused(&self, handle: HandleId) -> impl Future<Output = Result<()>> {
        self.close(handle)
    }
}

impl Closes for Client {
    async fn flush(&self, handle: HandleId) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        self.note_kernel_request(&file);
        let _closing = self.change_times(&file.inode).await;
        self.report_written(&file.inode, ModifyOptions::default()).await.map(|_| ())
    }

    async fn close_unused(&self, handle: HandleId) -> Result<()> {
        // The kernel has not received the handle and drops no pages, so discard the recorded
        // version.
        let _version = self.mount().handles.get(handle)?.take_page_drop();
        self.close(handle).await
    }

    async fn close(&self, handle: HandleId) -> Result<()> {
        let file = self.mount().handles.get(handle)?;
        if !file.begin_close() {
            return Err(Error::new(
                ErrorCode::Stale,
                "cannot close the handle: another close of this handle has begun",
            ));
        }
        self.note_kernel_request(&file);
        if let FirstRead::Prepared(_) = file.take_first_read() {
            self.mount().handles.opened_bytes.note_dropped_pages(false);
        }
        // The locks of a killed program may protect an append that is still in progress.
        let has_locked_appends = file.inode.is_locked() && file.inode.is_appending();
        let has_abandoned_writes = file.inode.has_abandoned_writes() || has_locked_appends;
        if !has_abandoned_writes
            && !file.inode.is_locked()
            && !file.inode.is_moving_inline()
            && file.inode.unreported().is_none()
            && let Ok(group) = self.group_of(file.inode.id)
        {
            self.close_later(group, handle, file);
            return Ok(());
        }
        let client = self.clone();
        let closing = async move {
            if !client.await_abandoned_writes(&file.inode).await {
                // The unmount reports the writes of this file and closes it.
                return Ok(());
            }
            if file.inode.is_locked() {
                file.inode.await_appends().await;
                client.unlock_handle(&file, handle).await;
            }
            if !client.await_move(&file.inode).await {
                // Keep the handle, so that the inode stays in the table: the unmount searches this
                // table for moves of inline bytes in progress.
                return Ok(());
            }
            let result = client.close_file(&file).await;
            client.mount().handles.remove(handle);
            if let Some(unsynced) = client.mount().inodes.close(&file.inode) {
                client.sync_closed(&unsynced).await;
            }
            result
        };
        if has_abandoned_writes {
            // While a server is down, the close may wait for long. So reply to the kernel now,
            // because the kernel may have only a limited number of requests in flight.
            skep_env::spawn(async move {
                if let Err(error) = closing.await {
                    tracing::debug!("cannot close a file after its abandoned writes: {error:#}");
                }
            })
            .detach();
            return Ok(());
        }
        drive(closing, |_| ()).await
    }
}

impl Client {
    /// Before the close of the last handle of a file, waits until no write to the file is in
    /// progress. A write in progress at this moment belongs to a program that was killed. After the
    /// close, metadata would let another client write without a notification to this mount, and
    /// storage could execute this write afterwards. The mount would also forget the state of the
    /// file, and with it the end of this write, which metadata needs for a later truncation.
    /// Returns `false` if the mount ends first. The caller must then send no close.
    async fn await_abandoned_writes(&self, state: &InodeState) -> bool {
        self.wait_unless_ending(state, || state.has_abandoned_writes()).await
    }

    /// Waits until no move of the inline bytes of a file is in progress. The caller then sends a
    /// close of the file. Returns `false` if the mount ends during the move. The caller must then
    /// send no close, because the open ends with the session.
    async fn await_move(&self, state: &InodeState) -> bool {
        self.wait_unless_ending(state, || state.is_moving_inline()).await
    }

    /// Waits until operations on an inode have ended: until `are_running` returns `false`. Returns
    /// `false` if the mount ends first.
    async fn wait_unless_ending(&self, state: &InodeState, are_running: impl Fn() -> bool) -> bool {
        // When an unmount begins, `shutdown` wakes this task too.
        let outcome = || match are_running() {
            false => Some(true),
            true => self.mount().is_ending().then_some(false),
        };
        state.wait_until(outcome).await
    }

    async fn close_file(&self, file: &Arc<OpenFile>) -> Result<()> {
        if file.is_stale() {
            return Ok(());
        }
        let _closing = self.change_times(&file.inode).await;
        // If the session is lost, the mount opens the file again in the next session, and the
        // repeated request closes the file there.
        let how = ModifyOptions { is_driven: true, ..ModifyOptions::of_session() };
        let mut report = file.inode.unreported();
        if report.is_some_and(|report| report.must_measure) {
            self.report_written(&file.inode, how).await?;
            report = None;
        }
        let (inode, generation) = (file.inode.id, file.pattern().generation);
        // Metadata refuses the report if the file has another pattern by now.
        let pattern_generation = Some(generation);
        let written =
            report.map(|report| ClosingReport { extent: report.extent, pattern_generation });
        // If the session is lost, the next session may not have this open, see `send_closes`.
        let is_open = || !file.is_stale();
        let result = if written.is_none() && file.inode.ending_inline().is_some() {
            // Unlike a report, a `CloseMany` changes no times.
            let request = || is_open().then(|| CloseMany { files: vec![closed_file(file)] });
            self.modify_closes(inode, request).await.map(|_| None)
        } else {
            let request = || is_open().then_some(Close { inode, open: file.mode, written });
            let closed = self.modify_closes(inode, request).await;
            closed.map(|reply| reply.map(|it| it.attributes))
        };
        let attributes = match result {
            Ok(attributes) => attributes,
            // The session was lost during the request, and the file was removed or this client was
            // evicted. So metadata has nothing left to close.
            Err(_) if file.is_stale() => return Ok(()),
            Err(error) => {
                if written.is_some() && error.code() == ErrorCode::Stale {
                    self.check_pattern(&file.inode, generation).await;
                }
                return Err(error.within(format_args!("cannot close file {inode}")));
            }
        };
        if let (Some(report), Some(attributes)) = (report, attributes) {
            self.mount().caches.changed_by_us(inode, attributes.change_counter);
            file.inode.reported(&report, &attributes, how.is_durable, skep_env::now());
        }
        Ok(())
    }

    /// Closes a file that this client opened for a caller that has dropped its future. Until
    /// metadata has executed the close, the open has a handle like any other open. So the mount
    /// counts the open when it compares its opens with metadata. The mount also opens the file
    /// again in the next session, where the repeated close ends this open and no other open.
    pub(crate) fn close_orphan(&self, result: Result<OpenReply>, mode: OpenMode) {
        let Ok(opened) = result else { return };
        if mode == OpenMode::No || opened.pattern.is_none() {
            return;
        }
        let inode = opened.attributes.inode;
        // Notifications that have arrived before now concern only handles that are already in the
        // table, so ignore them. No operation uses the size of the file through this handle, so
        // ignore earlier changes by this mount too.
        let before = self.before_open().of_earlier_open();
        let handle = match self.insert_handle(opened, mode, before, true) {
            Ok((handle, _)) => handle,
            Err(error) => {
                tracing::debug!("cannot close file {inode} of an interrupted open: {error:#}");
                return;
            }
        };
        let client = self.clone();
        skep_env::spawn(async move {
            // An error is only logged, because metadata closes files that are still open when the
            // session ends.
            if let Err(error) = client.close(handle).await {
                tracing::debug!("cannot close file {inode} of an interrupted open: {error:#}");
            }
        })
        .detach();
    }

    /// Closes a file for which this client has no handle: metadata has executed the open, but the
    /// client cannot use the reply. Makes one attempt: if the session is lost, metadata closes the
    /// file anyway, and a repetition in the next session could close another handle of the file.
    pub(crate) fn close_without_handle(&self, inode: InodeId, mode: OpenMode) {
        let client = self.clone();
        skep_env::spawn(async move {
            let request = Close { inode, open: mode, written: None };
            let closed = async {
                let session = client.session(client.group_of(inode)?).await?;
                let slot = session.take_slot().await;
                let worker = Rc::clone(&client.0);
                send_attempt(worker, slot, Arc::new(request), ModifyOptions::default(), None).await
            };
            if let Err(error) = closed.await {
                tracing::debug!("cannot close file {inode}, whose open has failed: {error:#}");
            }
        })
        .detach();
    }
}
