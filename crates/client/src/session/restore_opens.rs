//! Restores the opens that a metadata target has lost in a power loss of its host.
//!
//! A target acknowledges an open before its log record is on the device. If its host loses power in
//! the next milliseconds, the target loses the open. Without the open, the target would delete the
//! file together with its last name although a program reads the file. So after each new start of a
//! target, the client asks how many opens of each file its session has. Then it opens again each
//! file whose opens are missing. If a file was deleted meanwhile, its handles become stale, so
//! reads through them fail.
//!
//! # Hazard: a close that hides a lost open
//! The target stores only the number of opens of a file. If a close is on its way, the target may
//! still count the open that it closes. This open may hide that the open of another handle is lost.
//! After the close, the target would delete the file together with its last name. The open of a new
//! handle can hide a lost open in the same way, because the target may execute the new open before
//! or after the comparison. So the client compares the file again if the target has fewer opens
//! than the mount has handles, where closing and new handles count too. Before the next comparison,
//! it waits until the requests have had time to end.
//!
//! # Hazard: an additional open
//! An open that the client sends although none was lost has no handle, so only the end of the
//! session closes it. The target would keep the file after its last name is removed. So the client
//! restores only opens of handles from before the first comparison, because the target has executed
//! all later opens since its start. Only one task restores the opens of a session at a time.
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
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// An inode, and whether its handles are open for writing. The target does not distinguish the
/// opens of one such file, and stores only their number.
type FileKey = (InodeId, bool);

/// The handles of each file.
type OpenFiles = HashMap<FileKey, Vec<Arc<OpenFile>>>;

/// The handles of one file at a comparison.
#[derive(Debug)]
struct Comparison<T> {
    /// Handles from before the first comparison that are still open.
    old: Vec<Arc<T>>,
    /// Number of lost opens if the target counted none of the requests that were in progress during
    /// the comparison.
    least_lost: usize,
    /// Number of lost opens if the target counted the opens of all these requests.
    most_lost: usize,
}

impl<T> Comparison<T> {
    /// Compares the handles of a file with `count`, the opens that the target has. `old` are the
    /// handles from before the first comparison, `before` the handles from before this comparison,
    /// and `now` the handles after it.
    fn new(
        [old, before, now]: [&[Arc<T>]; 3],
        count: usize,
        is_closing: impl Fn(&T) -> bool,
    ) -> Self {
        let ids = |handles: &[Arc<T>]| handles.iter().map(Arc::as_ptr).collect::<HashSet<_>>();
        let (ids_old, ids_before, ids_now) = (ids(old), ids(before), ids(now));
        let is_open = |it: &&Arc<T>| !is_closing(it);
        let is_counted = |it: &&Arc<T>| ids_before.contains(&Arc::as_ptr(it));
        let open = now.iter().filter(is_open).filter(is_counted).count();
        // The target may have executed these opens and closes before or after the comparison.
        let is_ended = |it: &&Arc<T>| is_closing(it) && !ids_now.contains(&Arc::as_ptr(it));
        let ended = before.iter().filter(is_ended).count();
        let in_progress = now.len() - open + ended;
        let is_old = |it: &&Arc<T>| ids_old.contains(&Arc::as_ptr(it));
        let old: Vec<_> = now.iter().filter(is_open).filter(is_old).map(Arc::clone).collect();
        Self {
            least_lost: open.saturating_sub(count).min(old.len()),
            most_lost: (open + in_progress).saturating_sub(count).min(old.len()),
            old,
        }
    }
}

impl Client {
    /// Opens again all files that this mount has open, but whose opens the session at the group
    /// does not have.
    ///
    /// # Errors
    /// Returns the error of the group, for example if it has ended the session.
    pub(super) async fn restore_opens(&self, group: GroupId, id: SessionId) -> Result<()> {
        let old = self.opens_at(group);
        let mut keys: Vec<_> = old.keys().map(|key| (*key, usize::MAX)).collect();
        for comparisons_left in (0..OPEN_COMPARISONS).rev() {
            let compared = self.compare_opens((group, id), &old, keys).await?;
            let unsure = compared.iter().filter(|(_, it)| it.least_lost < it.most_lost);
            keys = unsure.map(|(key, it)| (*key, it.most_lost - it.least_lost)).collect();
            let is_last = comparisons_left == 0;
            self.open_missing((group, id), compared, is_last).await?;
            if keys.is_empty() || is_last {
                break;
            }
            skep_env::sleep(KERNEL_CLOSE_WAIT).await;
        }
        Ok(())
    }

    /// Compares the handles of some files with the opens that the target has. `old` has the handles
    /// from before the first comparison. The value of each key contains the highest possible number
    /// of lost opens according to the previous comparison. A later close cannot raise this number,
    /// because it ends one open and one handle.
    async fn compare_opens(
        &self,
        (group, id): (GroupId, SessionId),
        old: &OpenFiles,
        keys: Vec<(FileKey, usize)>,
    ) -> Result<Vec<(FileKey, Comparison<OpenFile>)>> {
        let before = self.opens_at(group);
        let mut counts = Vec::with_capacity(keys.len());
        for some in keys.chunks(MAX_CLOSES) {
            let opened = some.iter().map(|((inode, writes), _)| {
                let open = if *writes { OpenMode::Write } else { OpenMode::Read };
                OpenedFile { inode: *inode, open }
            });
            let request = CompareOpens { files: opened.collect() };
            let options = CallOptions { session: id, ..CallOptions::default() };
            let (reply, _) = self.router().call(group, &request, options).await?;
            counts.extend(some.iter().copied().zip(reply.counts));
        }
        // Search the table of all handles once, and not for each request.
        let now = self.opens_at(group);
        let compared = counts.into_iter().map(|((key, bound), count)| {
            let handles = [old, &before, &now].map(|files| handles_of(files, &key));
            let mut found = Comparison::new(handles, count as usize, OpenFile::is_closing);
            found.most_lost = found.most_lost.min(bound).max(found.least_lost);
            (key, found)
        });
        Ok(compared.collect())
    }

    /// Opens again the files whose opens are missing at the group. After the last comparison
    /// (`is_last`), an open that a request in progress may hide counts as missing too: a lost open
    /// could lose bytes, while an additional open ends with the session. If another session has
    /// replaced `id`, opens nothing, since its renewal opens all files again.
    async fn open_missing(
        &self,
        (group, id): (GroupId, SessionId),
        compared: Vec<(FileKey, Comparison<OpenFile>)>,
        is_last: bool,
    ) -> Result<()> {
        let session = self.session_of(group, id).await?;
        let mut restored = 0;
        for (_, Comparison { old, least_lost, most_lost }) in compared {
            let lost = if is_last { most_lost } else { least_lost };
            // Programs may have closed handles since the comparison.
            for handle in old.into_iter().filter(|it| !it.is_closing()).take(lost) {
                self.reopen(&handle, &session).await?;
                restored += 1;
            }
        }
        if restored > 0 {
            tracing::warn!(
                "the metadata target of group {group} lost the records of {restored} open files of \
                 this mount in a power loss; the mount has opened these files again"
            );
        }
        Ok(())
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

fn handles_of<'a>(files: &'a OpenFiles, key: &FileKey) -> &'a [Arc<OpenFile>] {
    files.get(key).map_or(&[][..], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A handle. The value `true` means that the handle is being closed.
    type Handle = Arc<AtomicBool>;

    fn handles<const N: usize>() -> [Handle; N] {
        std::array::from_fn(|_| Handle::default())
    }

    /// Returns the least and the highest possible number of lost opens.
    fn lost(of: [&[Handle]; 3], count: usize) -> (usize, usize) {
        let found = Comparison::new(of, count, |it| it.load(Ordering::Relaxed));
        (found.least_lost, found.most_lost)
    }

    #[test]
    fn opens_missing_at_the_target_count_as_lost() {
        let all: &[_] = &handles::<3>();
        assert_eq!(lost([all, all, all], 3), (0, 0));
        assert_eq!(lost([all, all, all], 1), (2, 2));
    }

    #[test]
    fn close_in_progress_makes_the_number_of_lost_opens_uncertain() {
        let all: &[_] = &handles::<3>();
        all[0].store(true, Ordering::Relaxed);
        assert_eq!(lost([all, all, all], 3), (0, 0));
        assert_eq!(lost([all, all, all], 2), (0, 1));
        assert_eq!(lost([all, all, &all[1..]], 2), (0, 1), "the close ended during the comparison");
        assert_eq!(lost([all, &all[1..], &all[1..]], 2), (0, 0), "the close ended before");
    }

    #[test]
    fn open_after_the_comparison_does_not_count_as_lost() {
        let all: &[_] = &handles::<3>();
        assert_eq!(lost([&all[..2], &all[..2], all], 2), (0, 1));
        assert_eq!(lost([&all[..2], all, all], 3), (0, 0), "the target counts the new open");
    }

    #[test]
    fn only_opens_from_before_the_first_comparison_are_lost() {
        let all: &[_] = &handles::<3>();
        all[0].store(true, Ordering::Relaxed);
        assert_eq!(lost([&all[..1], all, all], 0), (0, 0));
        assert_eq!(lost([&all[..2], all, all], 0), (1, 1));
    }
}
