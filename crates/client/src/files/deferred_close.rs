//! Deferred closes. If the mount has already reported all sizes of a file to metadata, it sends the
//! close of the file a few milliseconds later. One message contains several closes, and no caller
//! waits for it. Without this delay, metadata would execute one more transaction for each file that
//! a program creates and closes.

use crate::client::Client;
use crate::driven::drive;
use crate::files::closing_files::ClosingFile;
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::limits::CLOSE_DELAY;
use skep_types::{GroupId, Result};
use skep_wire::limits::MAX_CLOSES;
use skep_wire::metadata::{CloseMany, ClosedFile};
use std::sync::Arc;

impl Client {
    /// Defers a close. The caller must have begun the close with `OpenFile::begin_close`.
    pub(crate) fn close_later(&self, group: GroupId, handle: HandleId, file: Arc<OpenFile>) {
        if !self.0.closes.add(group, (handle, file)) {
            return;
        }
        let client = self.clone();
        skep_env::spawn(async move {
            skep_env::sleep(CLOSE_DELAY).await;
            client.close_waiting(group).await;
        })
        .detach();
    }

    /// Sends all closes that wait to be sent to a group. Closes that callers defer meanwhile wait
    /// for the next message.
    async fn close_waiting(&self, group: GroupId) {
        for files in self.0.closes.take(group).chunks(MAX_CLOSES) {
            self.close_together(files).await;
        }
    }

    /// Sends the deferred closes of all threads to a group. The mount calls this function when it
    /// ends.
    pub(crate) async fn close_waiting_everywhere(&self, group: GroupId) {
        let map = self.map();
        let closing = self.mount().handles.select(|file| {
            file.is_closing()
                && !file.is_stale()
                && !file.inode.is_moving_inline()
                && !file.inode.is_appending()
                && map.shard_group(file.inode.id.shard()) == Some(group)
        });
        for files in closing.chunks(MAX_CLOSES) {
            if let Err(error) = self.send_closes(files.to_vec()).await {
                tracing::debug!("cannot close {} files at metadata: {error:#}", files.len());
            }
        }
    }

    async fn close_together(&self, files: &[ClosingFile]) {
        let closing: Vec<_> = files.iter().map(|(_, file)| Arc::clone(file)).collect();
        if let Err(error) = self.send_closes(closing).await {
            let (inode, count) = (files[0].1.inode.id, files.len());
            tracing::warn!(
                "cannot close {count} files at metadata, among them file {inode}: {error}; the \
                 files may stay open at metadata until this mount ends"
            );
        }
        let mount = self.mount();
        for (handle, file) in files {
            mount.handles.remove(*handle);
            if let Some(unsynced) = mount.inodes.close(&file.inode) {
                self.sync_closed(&unsynced).await;
            }
        }
    }

    /// Closes files of one group at metadata, in one request. If the session is lost, sends only
    /// the closes of the handles that the next session has open. After an eviction, the next
    /// session has no handle for writing of the lost session. The close of such a handle would end
    /// the open of a newer handle.
    async fn send_closes(&self, files: Vec<Arc<OpenFile>>) -> Result<()> {
        let Some(first) = files.iter().find(|file| !file.is_stale()) else { return Ok(()) };
        let inode = first.inode.id;
        let request = move || {
            let open = files.iter().filter(|file| !file.is_stale());
            let files: Vec<_> = open.map(|file| closed_file(file)).collect();
            (!files.is_empty()).then_some(CloseMany { files })
        };
        let client = self.clone();
        let closing = async move { client.modify_closes(inode, request).await };
        drive(closing, |_| ()).await.map(|_| ())
    }
}

/// Returns the element of a [`CloseMany`] request that closes this handle's open. If metadata may
/// not have durably recorded the end of the file's inline component, the element contains this end
/// (`ends_inline`). Without this element, a power loss could revert the report of the end, and the
/// repeated close would remove the open. Metadata would then let other clients use the inline
/// component.
pub(crate) fn closed_file(file: &OpenFile) -> ClosedFile {
    let ends_inline = file.inode.ending_inline();
    ClosedFile { inode: file.inode.id, open: file.mode, ends_inline }
}
