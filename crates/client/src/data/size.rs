//! The size of a file that other clients may change: asked for before reads, and reported after
//! writes.

use crate::client::{Client, Worker};
use crate::files::open_file::OpenFile;
use crate::inode_state::InodeState;
use crate::limits::SIZE_TRUSTED_FOR;
use crate::session::request::ModifyOptions;
use skep_types::Result;
use std::rc::Rc;
use std::sync::Arc;

impl Client {
    /// The size of a file, asked for anew if a read to `end` would come to it and it may be old, or
    /// if others may cut the file or make it longer.
    pub(crate) async fn size_for_read(&self, file: &OpenFile, end: u64) -> Result<u64> {
        let size = file.inode.size();
        let is_old = end > size && file.inode.age(skep_env::now()) > SIZE_TRUSTED_FOR;
        if !is_old && !file.inode.is_shared() {
            return Ok(size);
        }
        self.fetch_attributes(file.inode.id).await?;
        Ok(file.inode.size())
    }

    /// Reports to metadata how far a file reaches, if other clients rely on that.
    pub(crate) async fn report_size(&self, inode: &Arc<InodeState>) -> Result<()> {
        if !inode.must_report_size() {
            return Ok(());
        }
        self.report_written(inode, ModifyOptions::default()).await.map(|_| ())
    }
}

/// The size of a file, with the writes of other clients that have it open too. Bytes beyond it
/// belong to no client.
pub(crate) async fn newest_size(worker: &Rc<Worker>, file: &OpenFile) -> u64 {
    if file.inode.is_shared() {
        let client = Client(Rc::clone(worker));
        if let Err(error) = client.fetch_attributes(file.inode.id).await {
            tracing::debug!("file {}: its size is not known: {error}", file.inode.id);
            return u64::MAX;
        }
    }
    file.inode.size()
}
