//! Attributes: what `stat` shows and `chmod`, `chown`, `utimens` and `truncate` change.

use crate::cache::versions::Shown;
use crate::client::Client;
use crate::driven::drive;
use crate::files::handles::HandleId;
use crate::inode_state::InodeState;
use crate::inode_state::guards::TruncationClaim;
use crate::limits::{CONTENTION_PAUSE, FIRST_LOOK_PATIENCE, ROOT_PATIENCE};
use crate::mount::options::Forget;
use crate::session::request::ModifyOptions;
use skep_types::{Attributes, ErrorCode, FileKind, InodeId, Result, Timestamp};
use skep_wire::metadata::{GetAttributes, SetAttributes};
use std::sync::Arc;

/// What `stat` shows.
#[derive(Debug, Clone)]
pub struct Stat {
    /// The attributes.
    pub attributes: Attributes,
    /// Bytes that it takes: less than its size if it has holes, never more.
    pub allocated_bytes: u64,
}

/// Attributes of inodes.
pub trait InodeAttributes {
    /// The attributes of an inode, with all that this mount has written.
    ///
    /// # Errors
    /// `NotFound`.
    fn attributes(&self, inode: InodeId) -> impl Future<Output = Result<Attributes>>;

    /// The attributes of an inode, with all that this mount has written, and how much it takes. A
    /// directory, pipe, socket or device that was removed (a program may still have it open) is
    /// shown as it was last seen, without a name. The root is shown as it was last seen if metadata
    /// doesn't answer soon: `df`, `umount` and all that looks at every mount of a host would hang
    /// otherwise.
    ///
    /// # Errors
    /// `NotFound`, `Stale`; those of storage for a file that may have holes.
    fn stat(&self, inode: InodeId) -> impl Future<Output = Result<Stat>>;

    /// Changes attributes.
    ///
    /// # Errors
    /// `NotFound`, `FileTooLarge`, `IsDirectory` for a size.
    fn set_attributes(&self, change: SetAttributes) -> impl Future<Output = Result<Attributes>>;

    /// Checks that a handle through which a file is to be cut is still good for that.
    ///
    /// # Errors
    /// `Stale` if it isn't open or its file is gone; `Evicted` if others may have the file since.
    fn check_handle(&self, handle: HandleId) -> Result<()>;

    /// Notes that the kernel is shown these attributes. Says whether it may remember an access
    /// control list from before another mount changed the inode.
    fn note_shown(&self, attributes: &Attributes) -> bool;

    /// Sets how the kernel is made to forget attributes of a file that begins to be shared.
    fn set_forget(&self, forget: Forget);
}

impl InodeAttributes for Client {
    async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        if let Some(state) = self.mount().inodes.get(inode) {
            // What metadata wasn't told yet changes the times too, so it is told first.
            match self.report_written(&state, ModifyOptions::default()).await {
                Ok(Some(attributes)) => return Ok(attributes),
                Ok(None) => {}
                // The file may be gone under a lost session; what is left of it can still be asked.
                Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        self.fetch_attributes(inode).await
    }

    async fn stat(&self, inode: InodeId) -> Result<Stat> {
        let answer = match inode {
            InodeId::ROOT => self.attributes_of_root().await,
            _ => self.attributes(inode).await,
        };
        let attributes = match answer {
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {
                let seen = self.mount().seen.special(inode);
                Attributes { links: 0, size: 0, ..seen.ok_or(error)? }
            }
            result => result?,
        };
        let size = attributes.size;
        let allocated =
            if attributes.is_sparse { self.allocated(inode, size).await? } else { None };
        Ok(Stat { attributes, allocated_bytes: allocated.map_or(size, |it| it.min(size)) })
    }

    async fn set_attributes(&self, change: SetAttributes) -> Result<Attributes> {
        let inode = change.inode;
        let Some(state) = self.mount().inodes.get(inode) else {
            let how =
                ModifyOptions { truncates: change.size.is_some(), ..ModifyOptions::default() };
            return self.send_attributes(change, how).await;
        };
        // A report that came later would move the time that is set here, or the size.
        if change.size.is_none() {
            if change.modified.is_some() || change.accessed.is_some() {
                self.report_written(&state, ModifyOptions::default()).await?;
            }
            return self.send_attributes(change, ModifyOptions::default()).await;
        }
        let truncating = self.claim_truncation(&state).await;
        let client = self.clone();
        let truncation = async move {
            let how =
                ModifyOptions { is_driven: true, truncates: true, ..ModifyOptions::default() };
            // Metadata cuts the chunk files that it knows to be written.
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

    fn note_shown(&self, attributes: &Attributes) -> bool {
        let shown = Shown { version: attributes.change_counter, has_acl: attributes.has_acl };
        self.mount().caches.shown(attributes.inode, shown)
    }

    fn set_forget(&self, forget: Forget) {
        self.mount().set_forget(forget);
    }
}

impl Client {
    async fn attributes_of_root(&self) -> Result<Attributes> {
        let answer = skep_env::timeout(ROOT_PATIENCE, self.attributes(InodeId::ROOT)).await;
        answer.unwrap_or_else(|| Ok(self.mount().seen.root().unwrap_or_else(root_never_seen)))
    }

    /// Looks at the root, so that it can be shown when metadata doesn't answer later. Gives up
    /// after a while: a mount may begin before metadata does.
    pub async fn look_at_root(&self) {
        let looked = skep_env::timeout(FIRST_LOOK_PATIENCE, self.attributes(InodeId::ROOT)).await;
        match looked {
            Some(Ok(_)) => {}
            Some(Err(error)) => tracing::warn!("the root directory can't be looked at: {error}"),
            None => tracing::warn!("metadata doesn't answer yet: what is asked of it waits"),
        }
    }

    /// Asks metadata for attributes.
    pub(crate) async fn fetch_attributes(&self, inode: InodeId) -> Result<Attributes> {
        let mut attributes = self.ask(inode, &GetAttributes { inode }).await?.attributes;
        self.note_attributes(&mut attributes);
        Ok(attributes)
    }

    /// Takes attributes that metadata gave, and raises their size to what this mount wrote.
    pub(crate) fn note_attributes(&self, attributes: &mut Attributes) {
        self.note_xattrs(attributes);
        if !matches!(attributes.kind, FileKind::Regular | FileKind::Symlink) {
            self.mount().seen.note(attributes);
            return;
        }
        if let Some(state) = self.mount().inodes.get(attributes.inode) {
            state.observe(attributes, skep_env::now());
            state.merge_into(attributes);
        }
    }

    async fn send_attributes(
        &self,
        change: SetAttributes,
        how: ModifyOptions,
    ) -> Result<Attributes> {
        let mut attributes = self.modify(change.inode, change, how, |_, _| ()).await?.attributes;
        self.mount().caches.changed_by_us(attributes.inode, attributes.change_counter);
        self.note_attributes(&mut attributes);
        Ok(attributes)
    }

    /// Waits until no write of this mount is under way, and holds off later ones.
    pub(crate) async fn claim_truncation(&self, state: &Arc<InodeState>) -> TruncationClaim {
        let truncating = loop {
            match state.try_truncate() {
                Some(truncating) => break truncating,
                None => skep_env::sleep(CONTENTION_PAUSE).await,
            }
        };
        while !truncating.is_alone() {
            skep_env::sleep(CONTENTION_PAUSE).await;
        }
        truncating
    }
}

/// What is shown of the root while metadata has never answered this mount.
fn root_never_seen() -> Attributes {
    let kind = FileKind::Directory;
    Attributes { links: 2, ..Attributes::new(InodeId::ROOT, kind, 0o755, Timestamp::default()) }
}
