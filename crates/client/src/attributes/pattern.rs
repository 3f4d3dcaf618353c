//! Stripe patterns as text. Programs read and set this text through a mount as the extended
//! attribute `user.skep.pattern`.

use crate::client::Client;
use crate::limits::{CLOSE_DELAY, DEFERRED_CLOSE_WAIT, KERNEL_CLOSE_WAIT};
use crate::session::request::ModifyOptions;
use skep_cluster::{pattern_text, striping};
use skep_types::codec::Codec;
use skep_types::{
    ClusterMap, ErrorCode, FileKind, GroupId, InodeId, MAX_FILE_BYTES, PatternRequest, Result,
};
use skep_wire::metadata::{EntryInfo, GetEntryInfo, SetPattern};
use std::fmt::Write;
use std::sync::Arc;

/// Reads and sets the stripe patterns of files and directories, as text.
pub trait Patterns {
    /// Returns the stripe pattern of a file, including the file's groups, or the pattern that new
    /// entries of a directory inherit. The text has the format of [`pattern_text`].
    ///
    /// # Errors
    /// Returns `NoAttribute` if a directory has no pattern of its own, or if the inode is neither a
    /// file nor a directory.
    fn pattern(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;

    /// Returns where the bytes of a file are stored: one line for each group of each component, in
    /// the format described in docs/operations/patterns.md.
    ///
    /// # Errors
    /// Returns `NoAttribute` if the inode is not a regular file.
    fn pattern_map(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;

    /// Returns the encoded [`EntryInfo`] of an inode. `skep entry info` reads this record through
    /// the mount, so that users of the command need no token.
    ///
    /// # Errors
    /// Returns `NotFound` if the inode does not exist.
    fn entry_info(&self, inode: InodeId) -> impl Future<Output = Result<Vec<u8>>>;

    /// Returns the newest cluster map of the mount.
    fn cluster_map(&self) -> Arc<ClusterMap>;

    /// Parses the text of a stripe pattern.
    ///
    /// # Errors
    /// - `InvalidArgument` if the text is not a pattern.
    /// - `NotFound` if the text names a target that the cluster does not have.
    fn read_pattern(&self, text: &[u8]) -> Result<PatternRequest>;

    /// Sets the pattern that new entries of a directory inherit, or the pattern of a file that was
    /// never written. `None` for `text` restores the default of the cluster. `uid` is the user id
    /// of the calling program.
    ///
    /// # Errors
    /// - The errors of [`Self::read_pattern`].
    /// - `NotPermitted` if the user does not own the inode.
    /// - `PermissionDenied` if the pattern exceeds the limits for users.
    /// - `InUse` if the file is open or was written.
    fn set_pattern(
        &self,
        inode: InodeId,
        text: Option<&[u8]>,
        uid: u32,
    ) -> impl Future<Output = Result<()>>;
}

impl Patterns for Client {
    async fn pattern(&self, inode: InodeId) -> Result<Vec<u8>> {
        let EntryInfo { attributes, pattern, .. } = self.info_of(inode).await?;
        let pattern = pattern.ok_or(ErrorCode::NoAttribute)?;
        let text = match attributes.kind {
            FileKind::Directory => pattern_text::text(&PatternRequest::from_record(&pattern)?),
            _ => pattern_text::text_of_file(&pattern),
        };
        Ok(text.into_bytes())
    }

    async fn pattern_map(&self, inode: InodeId) -> Result<Vec<u8>> {
        let EntryInfo { attributes, pattern, .. } = self.info_of(inode).await?;
        let pattern = pattern.filter(|_| attributes.kind == FileKind::Regular);
        let pattern = pattern.ok_or(ErrorCode::NoAttribute)?;
        let mut text = String::new();
        for (number, component) in pattern.components.iter().enumerate() {
            let end = striping::component_end(&pattern, number);
            // After a move of the inline bytes to storage, the pattern keeps an empty inline
            // component.
            if component.start == end {
                continue;
            }
            let of_inode;
            let groups = if component.is_inline() {
                of_inode = [self.group_of(inode)?];
                &of_inode[..]
            } else {
                &component.groups[..]
            };
            for (index, group) in groups.iter().enumerate() {
                let (target, node, host) = self.location_of(*group);
                let (start, chunk) = (component.start, component.chunk_bytes);
                let width = component.groups.len();
                let _ = writeln!(
                    text,
                    "{start} {end} {chunk} {width} {index} {group} {target} {node} {host}",
                    end = if end == MAX_FILE_BYTES { "-".into() } else { end.to_string() },
                );
            }
        }
        Ok(text.into_bytes())
    }

    async fn entry_info(&self, inode: InodeId) -> Result<Vec<u8>> {
        self.info_of(inode).await.map(|info| info.to_bytes())
    }

    fn cluster_map(&self) -> Arc<ClusterMap> {
        self.mount().map()
    }

    fn read_pattern(&self, text: &[u8]) -> Result<PatternRequest> {
        let what = "cannot read a stripe pattern: it is not UTF-8 text";
        let text = std::str::from_utf8(text)
            .map_err(|_| skep_types::Error::new(ErrorCode::InvalidArgument, what))?;
        pattern_text::parse(text, &self.mount().map())
    }

    async fn set_pattern(&self, inode: InodeId, text: Option<&[u8]>, uid: u32) -> Result<()> {
        let pattern = text.map(|text| self.read_pattern(text)).transpose()?;
        self.closes_acknowledged(inode).await;
        let request = SetPattern { inode, pattern, uid };
        let done = self.modify(inode, request, ModifyOptions::default(), |_, _| ()).await;
        self.forget_directories();
        done.map(|_| ())
    }
}

impl Client {
    /// Requests the [`EntryInfo`] of an inode from metadata.
    async fn info_of(&self, inode: InodeId) -> Result<EntryInfo> {
        if let Some(state) = self.mount().inodes.get(inode)
            && state.has_unreported_end()
        {
            // If this mount did not first report its writes, metadata would reply with the pattern
            // from before these writes.
            self.report_written(&state, ModifyOptions::default()).await?;
        }
        self.ask(inode, &GetEntryInfo { inode }).await
    }

    /// Returns the primary target of a group, the node of the target, and the first address of the
    /// node. Returns "-" in place of each value that the cluster map does not have.
    fn location_of(&self, group: GroupId) -> (String, String, String) {
        let map = self.mount().map();
        let target = map.primary(group);
        let node = target.and_then(|target| map.node(target.node));
        let unknown = || "-".to_owned();
        (
            target.map_or_else(unknown, |target| target.id.to_string()),
            node.map_or_else(unknown, |node| node.id.to_string()),
            node.and_then(|node| node.addresses.first().cloned()).unwrap_or_else(unknown),
        )
    }

    /// Waits until metadata has acknowledged this mount's closes of all handles of a file, or until
    /// a time limit passes. `close(2)` returns before metadata acknowledges the close, and
    /// sometimes before the kernel sends the release of the handle. The time limit is
    /// `DEFERRED_CLOSE_WAIT`, or the shorter `KERNEL_CLOSE_WAIT` while the file has a handle whose
    /// close has not begun.
    async fn closes_acknowledged(&self, inode: InodeId) {
        let started = skep_env::now();
        loop {
            let open = self.mount().handles.select(|file| file.inode.id == inode);
            let are_closing = open.iter().all(|file| file.is_closing());
            let patience = if are_closing { DEFERRED_CLOSE_WAIT } else { KERNEL_CLOSE_WAIT };
            if open.is_empty() || skep_env::now() >= started + patience {
                return;
            }
            skep_env::sleep(CLOSE_DELAY).await;
        }
    }
}
