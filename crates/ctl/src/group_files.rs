//! The files and directories whose stripe patterns name a storage group, from the lists of all
//! metadata targets.

use crate::access::{Access, PATIENCE};
use crate::tree_output::ProgressLine;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::{
    ClusterMap, Error, FileKind, GroupId, InodeId, MapVersion, NodeId, Result, TargetKind,
};
use skep_wire::metadata::{GroupFile, ListGroupFiles};
use std::time::Duration;

/// Time after which a terminal shows the progress. Metadata targets read all their inodes, which
/// takes some seconds for each million inodes.
const SILENCE: Duration = Duration::from_secs(2);

/// Everything that uses a storage group: files, directories, and changes in progress.
#[derive(Debug, Default)]
pub(crate) struct GroupUses {
    /// The files and directories that use the group. The list contains a directory if its pattern
    /// for new files names the group.
    pub(crate) files: Vec<GroupFile>,
    /// Number of chunk files that metadata targets still have to remove.
    pub(crate) removals: u64,
    /// Number of transactions in progress, which may create files.
    pub(crate) prepared: u64,
    /// Version of the oldest cluster map that a metadata target still uses to place new files.
    pub(crate) oldest_map: Option<MapVersion>,
}

impl GroupUses {
    /// Asks all metadata targets for the files, directories and transactions that use `group`.
    /// Shows the progress on a terminal. The caller must run inside an event loop.
    ///
    /// # Errors
    /// The error of a metadata target. The error names the group of this metadata target.
    pub(crate) async fn of(access: &Access, map: &ClusterMap, group: GroupId) -> Result<Self> {
        let progress = ProgressLine::new();
        let uses = Self::read(access, map, group, &progress).await;
        progress.show("");
        uses
    }

    async fn read(
        access: &Access,
        map: &ClusterMap,
        group: GroupId,
        progress: &ProgressLine,
    ) -> Result<Self> {
        let begin = skep_env::now();
        let cell = MapCell::new(map.clone(), NodeId::default());
        let router = Router::new(access.identity(), Channel::random(), cell);
        let mut uses = Self::default();
        let metadata = map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        let metadata: Vec<GroupId> = metadata.map(|group| group.id).collect();
        for (index, asked) in metadata.iter().copied().enumerate() {
            let mut after = Some(InodeId::default());
            let (mut removals, mut prepared) = (0, 0);
            while let Some(request) = after.map(|after| ListGroupFiles { group, after }) {
                let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
                let reply = router.call(asked, &request, options).await;
                let (page, _) = reply.map_err(|error| unanswered((group, asked), &error))?;
                uses.files.extend(page.files);
                (removals, prepared) = (page.removals, page.prepared);
                uses.oldest_map = Some(uses.oldest_map.map_or(page.map, |map| map.min(page.map)));
                after = page.next;
                if skep_env::now().saturating_sub(begin) > SILENCE {
                    progress.show(&progress_text(index + 1, metadata.len(), uses.files.len()));
                }
            }
            uses.removals += u64::from(removals);
            uses.prepared += u64::from(prepared);
        }
        Ok(uses)
    }

    /// Returns the number of directories among `files`.
    pub(crate) fn directories(&self) -> usize {
        self.files.iter().filter(|it| it.kind == FileKind::Directory).count()
    }

    /// Returns the number of files without bytes on the group. Does not count a file that a client
    /// has open for writing, because the client may not have reported its writes yet.
    pub(crate) fn unwritten(&self) -> usize {
        self.files.iter().filter(|it| is_unwritten(it)).count()
    }

    /// Whether no file, directory or chunk file uses the group, and no transaction in progress may
    /// create such a file.
    pub(crate) fn is_unused(&self) -> bool {
        self.files.is_empty() && self.removals == 0 && self.prepared == 0
    }
}

/// Whether the group stores no bytes of a file, and no client has the file open for writing. Then
/// only the pattern of the file names the group.
pub(crate) fn is_unwritten(file: &GroupFile) -> bool {
    file.kind != FileKind::Directory && file.bytes == 0 && !file.is_written
}

/// Returns the line that shows the progress. `number` is the number of the metadata group that is
/// read, of `count` groups.
fn progress_text(number: usize, count: usize, found: usize) -> String {
    format!("Reading the inodes of metadata group {number} of {count}: {found} use the target")
}

fn unanswered((group, asked): (GroupId, GroupId), error: &Error) -> Error {
    let what = format!(
        "cannot list the files of storage group {group}: metadata group {asked} does not answer: \
         {}; `skep health check` lists problems",
        error.context()
    );
    Error::new(error.code(), what)
}
