//! Attributes: what `stat` shows and `chmod`, `chown`, `utimens` and `truncate` change.

use crate::client::Client;
use crate::driven::drive;
use crate::inode_state::{InodeState, Truncating};
use crate::limits::CONTENTION_PAUSE;
use crate::session::Modify;
use skep_types::{Attributes, ErrorCode, FileKind, InodeId, Result};
use skep_wire::metadata::{GetAttributes, SetAttributes};
use std::sync::Arc;

impl Client {
    /// The attributes of an inode, with all that this mount has written.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        if let Some(state) = self.mount().inodes.get(inode) {
            // What metadata wasn't told yet changes the times too, so it is told first.
            match self.report_written(&state, Modify::default()).await {
                Ok(Some(attributes)) => return Ok(attributes),
                Ok(None) => {}
                // The file may be gone under a lost session; what is left of it can still be asked.
                Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        self.fetch_attributes(inode).await
    }

    /// Asks metadata for attributes.
    pub(crate) async fn fetch_attributes(&self, inode: InodeId) -> Result<Attributes> {
        let mut attributes = self.ask(inode, &GetAttributes { inode }).await?.attributes;
        self.note_attributes(&mut attributes);
        Ok(attributes)
    }

    /// Takes attributes that metadata gave, and raises their size to what this mount wrote.
    pub(crate) fn note_attributes(&self, attributes: &mut Attributes) {
        if attributes.kind == FileKind::Directory {
            self.mount().directories.note(attributes.inode, attributes.clone());
            return;
        }
        if let Some(state) = self.mount().inodes.get(attributes.inode) {
            state.observe(attributes, skep_env::now());
            state.merge_into(attributes);
        }
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `NotFound`, `FileTooLarge`, `IsDirectory` for a size.
    pub async fn set_attributes(&self, change: SetAttributes) -> Result<Attributes> {
        let inode = change.inode;
        let Some(state) = self.mount().inodes.get(inode) else {
            return self.send_attributes(change, Modify::default()).await;
        };
        // A report that came later would move the time that is set here, or the size.
        if change.size.is_none() {
            if change.modified.is_some() || change.accessed.is_some() {
                self.report_written(&state, Modify::default()).await?;
            }
            return self.send_attributes(change, Modify::default()).await;
        }
        let truncating = self.claim_truncation(&state).await;
        let client = self.clone();
        let truncation = async move {
            let how = Modify { is_driven: true, ..Modify::default() };
            // Metadata cuts the chunk files that it knows to be written.
            client.report_written(&state, how).await?;
            let attributes = client.send_attributes(change, how).await?;
            truncating.done(&attributes, skep_env::now());
            Ok(attributes)
        };
        drive(truncation, |_| ()).await
    }

    async fn send_attributes(&self, change: SetAttributes, how: Modify) -> Result<Attributes> {
        let mut attributes = self.modify(change.inode, change, how, |_, _| ()).await?.attributes;
        self.mount().caches.changed_by_us(attributes.inode, attributes.change_counter);
        self.note_attributes(&mut attributes);
        Ok(attributes)
    }

    /// Waits until no write of this mount is under way, and holds off later ones.
    pub(crate) async fn claim_truncation(&self, state: &Arc<InodeState>) -> Truncating {
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
