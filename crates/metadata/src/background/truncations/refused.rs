//! The files whose truncation storage has refused, and the log lines about the first refusal and
//! about the end of all refusals.

use crate::background::storage_name::storage_name;
use skep_types::{ClusterMap, Error, GroupId, InodeId};
use std::collections::BTreeSet;
use std::time::Duration;

/// The files whose truncation storage has refused. A file stays in this set while its truncation is
/// pending.
#[derive(Debug, Default)]
pub(super) struct RefusedFiles {
    files: BTreeSet<InodeId>,
    /// Number of files that were added since `files` was last empty.
    count: usize,
    /// Time at which the first of these `count` files was added.
    since: Duration,
}

impl RefusedFiles {
    /// Adds a file whose truncation storage has refused.
    pub(super) fn add(&mut self, inode: InodeId, now: Duration) {
        if self.files.is_empty() {
            (self.count, self.since) = (0, now);
        }
        self.count += usize::from(self.files.insert(inode));
    }

    /// Keeps only the files for which `is_refused` holds. Logs a line if this call removes the last
    /// file from the set.
    pub(super) fn retain(&mut self, is_refused: impl Fn(InodeId) -> bool, now: Duration) {
        if let Some(line) = self.line_after(is_refused, now) {
            tracing::info!("{line}");
        }
    }

    /// Keeps only the files for which `is_refused` holds. Returns the log line for
    /// [`Self::retain`]. `None` means that the set still has a file, or had no file before this
    /// call.
    fn line_after(
        &mut self,
        is_refused: impl Fn(InodeId) -> bool,
        now: Duration,
    ) -> Option<String> {
        if self.files.is_empty() {
            return None;
        }
        self.files.retain(|inode| is_refused(*inode));
        let seconds = now.saturating_sub(self.since).as_secs();
        self.files.is_empty().then(|| {
            let files = if self.count == 1 { "file" } else { "files" };
            format!(
                "storage no longer refuses the truncation of any file; metadata has retried {} \
                 {files}, for up to {seconds} s",
                self.count
            )
        })
    }
}

/// Returns the log line about a failed truncation. `failed` is the storage group that has refused
/// the truncation, with the error. `count` is the number of failed attempts since the last such
/// line.
pub(super) fn refusal_line(
    map: &ClusterMap,
    inode: InodeId,
    failed: (GroupId, &Error),
    count: u64,
) -> String {
    let (group, error) = failed;
    let target = storage_name(map, group);
    let attempts = match count {
        1 => String::new(),
        count => format!(" ({count} failed attempts since the last such line)"),
    };
    format!(
        "metadata cannot truncate file {inode} on {target}{attempts}, and retries each second; \
         until a retry succeeds, programs that open or truncate the file get EIO: {error}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, ErrorCode};

    #[test]
    fn the_end_of_refused_truncations_is_logged_once() {
        let mut refused = RefusedFiles::default();
        let at = Duration::from_secs;
        let [first, second] = [1, 2].map(InodeId::new);
        assert_eq!(refused.line_after(|_| false, at(1)), None, "no truncation was refused");
        refused.add(first, at(10));
        refused.add(second, at(12));
        refused.add(first, at(13));
        assert_eq!(
            refused.line_after(|it| it != first, at(20)),
            None,
            "storage still refuses one truncation"
        );
        let line = refused.line_after(|it| it != second, at(27)).expect("the last file");
        assert!(line.starts_with("storage no longer refuses the "), "{line}");
        assert!(line.ends_with(" 2 files, for up to 17 s"), "{line}");
        assert_eq!(refused.line_after(|_| false, at(28)), None);
    }

    #[test]
    fn a_refused_truncation_is_logged_with_group_and_effect() {
        let map = ClusterMap::empty(ClusterId::default());
        let error = Error::new(ErrorCode::Io, "read-only file system");
        let line = refusal_line(&map, InodeId::new(3), (GroupId::new(8), &error), 5);
        assert!(line.contains(" on storage group g8 (5 failed attempts"), "{line}");
        assert!(line.contains("get EIO") && line.ends_with("read-only file system"), "{line}");
    }
}
