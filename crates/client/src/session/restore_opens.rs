//! Restores the opens that a metadata target has lost in a power loss of its host.
//!
//! A target acknowledges an open before its log record is on the device. If its host loses power in
//! the next milliseconds, the target loses the open. Without the open, the target would delete the
//! file together with its last name although a program reads the file. So after each new start of a
//! target, the client asks how many opens of each file its session has, and opens the missing files
//! again. If a file was deleted meanwhile, its handles become stale, so reads through them fail.
//!
//! # Hazard: a close that hides a lost open
//! The target has only the number of opens of a file. If a close is on its way, the target may
//! still count its open, and this open may stand in for the lost open of another handle. After the
//! close, the target would delete the file together with its last name. So if the target has fewer
//! opens than the mount has handles, including handles that are being closed, the client compares
//! again when these closes have had time to end.
//!
//! `renewal` sends the request that opens a single file again, and renews a lost session with all
//! its files.

use crate::client::Client;
use crate::files::open_file::OpenFile;
use crate::limits::{KERNEL_CLOSE_WAIT, OPEN_COMPARISONS};
use skep_rpc::CallOptions;
use skep_types::{GroupId, InodeId, Result, SessionId};
use skep_wire::limits::MAX_CLOSES;
use skep_wire::metadata::{CompareOpens, OpenMode, OpenedFile};
use std::collections::HashMap;
use std::sync::Arc;

/// Open files with the same inode and mode. The target does not distinguish these files, and stores
/// only their number.
type OpenFiles = HashMap<(InodeId, bool), Vec<Arc<OpenFile>>>;

/// The outcome of one comparison.
#[derive(Debug, Default)]
struct Comparison {
    /// Number of files that the client has opened again.
    restored: usize,
    /// Whether closes in progress may hide lost opens.
    is_unsure: bool,
}

impl Client {
    /// Opens all files again that this mount has open, but whose opens the session at the group
    /// does not have.
    ///
    /// # Errors
    /// Returns the error of the group, for example if it has ended the session.
    pub(super) async fn restore_opens(&self, group: GroupId, id: SessionId) -> Result<()> {
        for comparisons_left in (0..OPEN_COMPARISONS).rev() {
            let before = self.opens_at(group);
            let opened = before.keys().map(|(inode, writes)| {
                let open = if *writes { OpenMode::Write } else { OpenMode::Read };
                OpenedFile { inode: *inode, open }
            });
            let opened: Vec<_> = opened.collect();
            let (mut all, is_last) = (Comparison::default(), comparisons_left == 0);
            for files in opened.chunks(MAX_CLOSES) {
                let request = CompareOpens { files: files.to_vec() };
                let some = self.restore_some((group, id), request, &before, is_last).await?;
                all.restored += some.restored;
                all.is_unsure |= some.is_unsure;
            }
            if all.restored > 0 {
                tracing::warn!(
                    "the metadata target of group {group} lost the records of {} open files of \
                     this mount in a power loss; the mount has opened these files again",
                    all.restored
                );
            } else if !all.is_unsure {
                return Ok(());
            }
            if all.is_unsure {
                skep_env::sleep(KERNEL_CLOSE_WAIT).await;
            }
        }
        Ok(())
    }

    /// Compares the opens of some files, and opens the missing ones again. `before` has the handles
    /// from before the comparison. The last comparison (`is_last`) counts an open that a close may
    /// hide as missing: a lost open could lose bytes, while an additional one ends with the
    /// session.
    async fn restore_some(
        &self,
        (group, id): (GroupId, SessionId),
        request: CompareOpens,
        before: &OpenFiles,
        is_last: bool,
    ) -> Result<Comparison> {
        let options = CallOptions { session: id, ..CallOptions::default() };
        let (reply, _) = self.router().call(group, &request, options).await?;
        let session = self.session(group).await?;
        // This mount may have closed files since it sent the request. Do not open these files
        // again.
        let now = self.opens_at(group);
        let mut done = Comparison::default();
        for (file, count) in request.files.iter().zip(reply.counts) {
            let key = (file.inode, file.open == OpenMode::Write);
            let handles = now.get(&key).map_or(&[][..], Vec::as_slice);
            let (closing, open): (Vec<_>, Vec<_>) = handles.iter().partition(|it| it.is_closing());
            // The target may have executed each of these closes before or after the comparison.
            let is_closed = |it: &&Arc<OpenFile>| {
                it.is_closing() && !handles.iter().any(|now| Arc::ptr_eq(now, it))
            };
            let closed = before.get(&key).into_iter().flatten().filter(is_closed).count();
            let (count, closes) = (count as usize, closing.len() + closed);
            let may_hide = closes > 0 && !open.is_empty() && count < open.len() + closes;
            done.is_unsure |= may_hide && !is_last;
            let certain = if is_last { count.saturating_sub(closes) } else { count };
            for handle in open.into_iter().skip(certain) {
                self.reopen(handle, &session).await?;
                done.restored += 1;
            }
        }
        Ok(done)
    }

    /// Returns the files of a metadata group that this mount has open. Includes handles that the
    /// mount is closing, if it has the file open by another handle too.
    fn opens_at(&self, group: GroupId) -> OpenFiles {
        let map = self.map();
        let files = self.mount().handles.select(|file| {
            (file.is_closing() || !file.is_stale())
                && map.shard_group(file.inode.id.shard()) == Some(group)
        });
        let mut opens = OpenFiles::new();
        for file in files {
            opens.entry((file.inode.id, file.mode == OpenMode::Write)).or_default().push(file);
        }
        opens.retain(|_, files| files.iter().any(|file| !file.is_closing()));
        opens
    }
}
