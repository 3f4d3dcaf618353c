//! Restores the opens that a metadata target has lost in a power loss of its host.
//!
//! A target acknowledges an open before its log record is on the device. If its host loses power in
//! the next milliseconds, the target loses the open. Without the open, the target would delete the
//! file together with its last name although a program reads the file. So after each new start of a
//! target, the client asks how many opens of each file its session has, and opens the missing files
//! again. If a file was deleted meanwhile, its handles become stale, so reads through them fail.
//!
//! `renewal` sends the request that opens a single file again, and renews a lost session with all
//! its files.

use crate::client::Client;
use crate::files::open_file::OpenFile;
use crate::limits::OPEN_COMPARISONS;
use skep_rpc::CallOptions;
use skep_types::{GroupId, InodeId, Result, SessionId};
use skep_wire::limits::MAX_CLOSES;
use skep_wire::metadata::{CompareOpens, OpenMode, OpenedFile};
use std::collections::HashMap;
use std::sync::Arc;

/// Open files with the same inode and mode. The target does not distinguish these files, and stores
/// only their number.
type OpenFiles = HashMap<(InodeId, bool), Vec<Arc<OpenFile>>>;

impl Client {
    /// Opens all files again that this mount has open, but whose opens the session at the group
    /// does not have.
    ///
    /// # Errors
    /// Returns the error of the group, for example if it has ended the session.
    pub(super) async fn restore_opens(&self, group: GroupId, id: SessionId) -> Result<()> {
        for _ in 0..OPEN_COMPARISONS {
            let opened = self.opens_at(group).into_iter().map(|((inode, writes), _)| {
                let open = if writes { OpenMode::Write } else { OpenMode::Read };
                OpenedFile { inode, open }
            });
            let opened: Vec<_> = opened.collect();
            let mut restored = 0;
            for files in opened.chunks(MAX_CLOSES) {
                restored += self.restore_some(group, id, files.to_vec()).await?;
            }
            // A close during the comparison may hide a lost open, so the client compares its opens
            // again until no open is missing.
            if restored == 0 {
                return Ok(());
            }
            tracing::warn!(
                "the metadata target of group {group} lost the records of {restored} open files of \
                 this mount in a power loss; the mount has opened these files again"
            );
        }
        Ok(())
    }

    async fn restore_some(
        &self,
        group: GroupId,
        id: SessionId,
        files: Vec<OpenedFile>,
    ) -> Result<usize> {
        let request = CompareOpens { files };
        let options = CallOptions { session: id, ..CallOptions::default() };
        let (reply, _) = self.router().call(group, &request, options).await?;
        let session = self.session(group).await?;
        // This mount may have closed files since it sent the request. Do not open these files
        // again.
        let now = self.opens_at(group);
        let mut restored = 0;
        for (file, count) in request.files.iter().zip(reply.counts) {
            let key = (file.inode, file.open == OpenMode::Write);
            let handles = now.get(&key).map_or(&[][..], Vec::as_slice);
            for handle in handles.iter().skip(count as usize) {
                self.reopen(handle, &session).await?;
                restored += 1;
            }
        }
        Ok(restored)
    }

    /// Returns the files of a metadata group that this mount has open and is not closing.
    fn opens_at(&self, group: GroupId) -> OpenFiles {
        let map = self.map();
        let files = self.mount().handles.select(|file| {
            !file.is_stale()
                && !file.is_closing()
                && map.shard_group(file.inode.id.shard()) == Some(group)
        });
        let mut opens = OpenFiles::new();
        for file in files {
            opens.entry((file.inode.id, file.mode == OpenMode::Write)).or_default().push(file);
        }
        opens
    }
}
