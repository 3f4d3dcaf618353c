//! Attributes of inodes: reading them for `stat`, and changing them for `chmod`, `chown`, `utimens`
//! and `truncate`.

use crate::client::Client;
use crate::driven::drive;
use crate::files::handles::HandleId;
use crate::inode_state::InodeState;
use crate::inode_state::guards::TruncationClaim;
use crate::limits::{FIRST_LOOK_PATIENCE, ROOT_PATIENCE};
use crate::mount::options::Forget;
use crate::session::change_requests::Moment;
use crate::session::request::ModifyOptions;
use skep_types::{Attributes, ErrorCode, FileKind, InodeId, Result, Timestamp};
use skep_wire::metadata::{GetAttributes, SetAttributes, SetAttributesReply};
use std::sync::Arc;
use std::time::Duration;

/// The attributes of an inode and its allocated space, as returned by `stat(2)`.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The attributes of the inode.
    pub attributes: Attributes,
    /// Allocated space in bytes: less than the size if the file has holes, and never more than the
    /// size.
    pub allocated_bytes: u64,
}

/// Reads and changes the attributes of inodes.
pub trait InodeAttributes {
    /// Returns the attributes of an inode, including the effect of all writes of this mount.
    ///
    /// # Errors
    /// Returns `NotFound` if the inode does not exist.
    fn attributes(&self, inode: InodeId) -> impl Future<Output = Result<Attributes>>;

    /// Returns the attributes of an inode, including the effect of all writes of this mount, and
    /// its allocated space.
    ///
    /// A program may still have a removed directory, pipe, socket or device open. For such an
    /// inode, the mount returns the attributes that it saw last, with a link count of zero. For the
    /// root the mount returns the attributes that it saw last if metadata does not reply within
    /// `ROOT_PATIENCE`. Without this time limit, `df`, `umount` and all programs that read the
    /// attributes of every mount of a host would hang.
    ///
    /// # Errors
    /// - `NotFound` or `Stale` if the inode does not exist.
    /// - The errors of storage if the file may have holes.
    fn stat(&self, inode: InodeId) -> impl Future<Output = Result<Stat>>;

    /// Returns the attributes for the kernel's check of its cached pages before a read through
    /// `handle`. The kernel drops the pages if the modification time in the reply differs from the
    /// one in its cache. So the result has the modification time that the mount last sent to the
    /// kernel, and the current size. The kernel then keeps its pages.
    ///
    /// `None` means that the mount must send the current attributes. In this case the pages may be
    /// out of date, or this mount has not written to the file.
    fn attributes_for_reading(
        &self,
        _handle: HandleId,
    ) -> impl Future<Output = Option<Attributes>> {
        std::future::ready(None)
    }

    /// Returns the attributes of a file that the mount last sent to the kernel. `None` means that
    /// these attributes may be out of date. Writes of this mount, whose bytes are also in the
    /// kernel's cached pages, do not make these attributes out of date.
    fn seen_by_kernel(&self, _inode: InodeId) -> Option<Attributes> {
        None
    }

    /// Returns the attributes of an open file from a recent reply of metadata, and the age of these
    /// attributes. The mount has sent the request for this reply less than `max_age` ago. `None`
    /// means that the mount must request the attributes, because they may be out of date.
    fn known_attributes(
        &self,
        _inode: InodeId,
        _max_age: Duration,
    ) -> Option<(Attributes, Duration)> {
        None
    }

    /// Returns the attributes of a directory after a change of an entry by this mount, and the time
    /// since the mount sent the change. `None` means that the mount sent the change more than
    /// `max_age` ago, or has seen another change of the directory since.
    fn after_own_change(
        &self,
        _directory: InodeId,
        _max_age: Duration,
    ) -> Option<(Attributes, Duration)> {
        None
    }

    /// Changes attributes of an inode. Returns all attributes of the inode after the change.
    ///
    /// # Errors
    /// - `NotFound` if the inode does not exist.
    /// - `FileTooLarge` if the new size exceeds the maximum.
    /// - `IsDirectory` if the change sets the size of a directory.
    fn set_attributes(&self, change: SetAttributes) -> impl Future<Output = Result<Attributes>>;

    /// Checks that a program may still truncate a file through a handle.
    ///
    /// # Errors
    /// - `Stale` if the handle is not open or its file was removed.
    /// - `Evicted` if this client was evicted, so that other clients may have changed the file
    ///   since the eviction.
    fn check_handle(&self, handle: HandleId) -> Result<()>;

    /// Records that the mount sends these attributes to the kernel in the reply to a request for
    /// attributes, or to a change of them.
    fn note_shown(&self, attributes: &Attributes);

    /// Records that the mount sends these attributes to the kernel together with a name of the
    /// inode. Returns whether the kernel may have an out-of-date access control list in its cache.
    /// The list is out of date if another mount has changed the inode since the kernel read the
    /// list.
    fn note_shown_with_name(&self, attributes: &Attributes) -> bool;

    /// Sets the function that the client calls when a file becomes shared. The function makes the
    /// kernel drop its cached attributes of the file.
    fn set_forget(&self, forget: Forget);
}

impl InodeAttributes for Client {
    async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        if let Some(state) = self.mount().inodes.get(inode) {
            // An unreported write has also changed the times, so the client reports the write
            // before it requests the attributes.
            match self.report_before_stat(state).await {
                Ok(Some(attributes)) => return Ok(attributes),
                Ok(None) => {}
                // The report fails if the session was lost and the file was removed. The inode may
                // still exist at metadata under another name, so request its attributes.
                Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        self.fetch_attributes(inode).await
    }

    async fn stat(&self, inode: InodeId) -> Result<Stat> {
        let result = match inode {
            InodeId::ROOT => self.attributes_of_root().await,
            _ => self.attributes(inode).await,
        };
        let attributes = match result {
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {
                let seen = self.mount().seen.special(inode);
                Attributes { links: 0, size: 0, ..seen.ok_or(error)? }
            }
            result => result?,
        };
        let size = attributes.size;
        let allocated =
            if attributes.is_sparse { self.allocated(inode, size).await? } else { None };
        Ok(Stat { attributes, allocated_bytes: allocated.map_or(size, |bytes| bytes.min(size)) })
    }

    async fn attributes_for_reading(&self, handle: HandleId) -> Option<Attributes> {
        let file = self.mount().handles.get_live(handle).ok()?;
        file.inode.for_reading()?;
        // If the lease of this mount has run out, other clients may have changed the file without a
        // notification to this mount. So first confirm that the lease is valid.
        self.confirm_lease(file.inode.id).await.ok()?;
        let attributes = file.inode.for_reading()?;
        self.meter().attributes.note(true);
        Some(attributes)
    }

    fn seen_by_kernel(&self, inode: InodeId) -> Option<Attributes> {
        let state = self.mount().inodes.get(inode)?;
        state.for_reading().filter(|_| state.is_cached())
    }

    fn known_attributes(
        &self,
        inode: InodeId,
        max_age: Duration,
    ) -> Option<(Attributes, Duration)> {
        let state = self.mount().inodes.get(inode)?;
        let known = state.known_attributes(self.moment(), max_age)?;
        self.meter().attributes.note(true);
        Some(known)
    }

    fn after_own_change(
        &self,
        directory: InodeId,
        max_age: Duration,
    ) -> Option<(Attributes, Duration)> {
        let changes = &self.mount().directory_changes;
        let attributes = changes.get(directory, max_age, skep_env::now());
        self.meter().attributes.note(attributes.is_some());
        attributes
    }

    async fn set_attributes(&self, change: SetAttributes) -> Result<Attributes> {
        let inode = change.inode;
        let Some(state) = self.mount().inodes.get(inode) else {
            let how =
                ModifyOptions { truncates: change.size.is_some(), ..ModifyOptions::default() };
            return self.send_attributes(change, how).await;
        };
        // A report of earlier writes must not arrive after this change, since the report would
        // overwrite the new times or the new size.
        if change.size.is_none() {
            let changes_times = change.modified.is_some() || change.accessed.is_some();
            let _changing = match changes_times {
                true => Some(self.change_times(&state).await),
                false => None,
            };
            if changes_times {
                self.report_written(&state, ModifyOptions::default()).await?;
            }
            return self.send_attributes(change, ModifyOptions::default()).await;
        }
        let truncating = self.claim_truncation(&state).await;
        let client = self.clone();
        let truncation = async move {
            let how =
                ModifyOptions { is_driven: true, truncates: true, ..ModifyOptions::default() };
            // Metadata truncates only the chunk files that clients have reported as written, so the
            // client reports its own writes first.
            client.report_written(&state, how).await?;
            let attributes = client.send_attributes(change, how).await?;
            truncating.done(&attributes, skep_env::now());
            Ok(attributes)
        };
        drive(truncation, |_| ()).await
    }

    fn check_handle(&self, handle: HandleId) -> Result<()> {
        self.mount().handles.get_live(handle).map(|_| ())
    }

    fn note_shown(&self, attributes: &Attributes) {
        self.note_shown_in_state(attributes);
        self.mount().caches.shown(attributes);
    }

    fn note_shown_with_name(&self, attributes: &Attributes) -> bool {
        self.note_shown_in_state(attributes);
        self.mount().caches.shown_with_name(attributes)
    }

    fn set_forget(&self, forget: Forget) {
        self.mount().set_forget(forget);
    }
}

impl Client {
    /// Records in the state of a file that the mount sends these attributes to the kernel.
    fn note_shown_in_state(&self, attributes: &Attributes) {
        if attributes.kind == FileKind::Regular
            && let Some(state) = self.mount().inodes.get(attributes.inode)
        {
            state.note_shown(attributes);
        }
    }

    async fn attributes_of_root(&self) -> Result<Attributes> {
        let answer = skep_env::timeout(ROOT_PATIENCE, self.attributes(InodeId::ROOT)).await;
        answer.unwrap_or_else(|| Ok(self.mount().seen.root().unwrap_or_else(root_never_seen)))
    }

    /// Requests the attributes of the root, so that the mount can return them later while metadata
    /// does not reply. Gives up after `FIRST_LOOK_PATIENCE`, since the mount may start before the
    /// metadata targets do.
    pub async fn look_at_root(&self) {
        let result = skep_env::timeout(FIRST_LOOK_PATIENCE, self.attributes(InodeId::ROOT)).await;
        match result {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::warn!(
                    "cannot read the attributes of the root directory: {error}; the mount starts, \
                     and reads these attributes again when a program needs them"
                )
            }
            None => tracing::warn!(
                "metadata does not reply yet: the mount starts, and operations wait until metadata \
                 replies"
            ),
        }
    }

    /// Reports all unreported writes of a file to metadata. Returns the attributes in the reply, or
    /// `None` if there was nothing to report. A late report would replace times that a program has
    /// set meanwhile. So the report and a change of the times wait for each other.
    async fn report_before_stat(&self, state: Arc<InodeState>) -> Result<Option<Attributes>> {
        if state.unreported().is_none() {
            return Ok(None);
        }
        // If other programs close the file again and again, a close may be in progress at any time.
        // So wait only until metadata has received all writes that were made before this call.
        let upto = state.last_write();
        let turn = || match state.has_reported(upto) {
            true => Some(None),
            false => state.try_report_times().map(Some),
        };
        let Some(reporting) = state.wait_until(turn).await else { return Ok(None) };
        let client = self.clone();
        // If the caller drops the future, the report continues, and no change of the times may
        // overtake it.
        let report = async move {
            let _reporting = reporting;
            let how = ModifyOptions { is_driven: true, ..ModifyOptions::default() };
            client.report_written(&state, how).await
        };
        drive(report, |_| ()).await
    }

    /// Requests the attributes of an inode from metadata.
    pub(crate) async fn fetch_attributes(&self, inode: InodeId) -> Result<Attributes> {
        let sent = self.moment();
        let mut attributes = self.ask(inode, &GetAttributes { inode }).await?.attributes;
        self.note_attributes(&mut attributes, sent.time);
        if let Some(state) = self.mount().inodes.get(inode) {
            state.know(&attributes, sent);
        }
        Ok(attributes)
    }

    /// Returns the current moment, for attributes in the reply to a request that the caller sends
    /// now (`inode_state::known_attributes`).
    pub(crate) fn moment(&self) -> Moment {
        self.mount().sessions.requests.moment(skep_env::now())
    }

    /// Remembers attributes in the reply to a request that the client sent at the time `sent`. Also
    /// raises the size in `attributes` to the end of the range that this mount has written.
    pub(crate) fn note_attributes(&self, attributes: &mut Attributes, sent: Duration) {
        self.mount().xattr_absence.note(attributes, sent);
        self.mount().directory_changes.observe(attributes);
        if !matches!(attributes.kind, FileKind::Regular | FileKind::Symlink) {
            self.mount().seen.note(attributes);
            return;
        }
        if let Some(state) = self.mount().inodes.get(attributes.inode) {
            state.observe(attributes, sent);
            state.merge_into(attributes);
        }
    }

    async fn send_attributes(
        &self,
        change: SetAttributes,
        how: ModifyOptions,
    ) -> Result<Attributes> {
        let (inode, truncates) = (change.inode, change.size.is_some());
        let sent = self.moment();
        let reply = self.modify(inode, change, how, |_, _| ()).await;
        if truncates {
            self.mount().inodes.count_truncation(inode);
        }
        // Make the mount forget the attributes of directories. Otherwise a late reply to an earlier
        // change of an entry could restore the attributes from before this change.
        if reply.as_ref().map_or(true, |it| it.attributes.kind == FileKind::Directory) {
            self.forget_directories();
        }
        let SetAttributesReply { mut attributes, truncated } = reply?;
        if let Some(oldest) = self.mount().inodes.truncated(attributes.inode, &truncated) {
            self.sync_closed(&oldest).await;
        }
        self.mount().inodes.count_change(attributes.inode);
        self.mount().caches.changed_by_us(attributes.inode, attributes.change_counter);
        self.note_attributes(&mut attributes, sent.time);
        if !truncates && let Some(state) = self.mount().inodes.get(inode) {
            state.know(&attributes, sent.after_own_change());
        }
        Ok(attributes)
    }

    /// Blocks new writes of this mount to a file, and waits until no write of this mount is in
    /// progress.
    pub(crate) async fn claim_truncation(&self, state: &Arc<InodeState>) -> TruncationClaim {
        let truncating = state.wait_until(|| state.try_truncate()).await;
        truncating.wait_until_alone().await;
        truncating
    }
}

/// Returns the attributes of the root for a mount to which metadata has never replied.
fn root_never_seen() -> Attributes {
    let kind = FileKind::Directory;
    Attributes { links: 2, ..Attributes::new(InodeId::ROOT, kind, 0o755, Timestamp::default()) }
}
