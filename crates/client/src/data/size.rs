//! The size of a file that other clients may change. The client requests the size before reads and
//! reports it after writes.

use crate::client::{Client, Worker};
use crate::files::open_file::OpenFile;
use crate::inode_state::InodeState;
use crate::limits::SIZE_TRUSTED_FOR;
use crate::session::request::ModifyOptions;
use skep_types::Result;
use std::rc::Rc;
use std::sync::Arc;

impl Client {
    /// Returns the size of a file for a read that ends at `end`. Requests the size from metadata if
    /// the file is shared, or if the read reaches beyond a size that may be out of date.
    pub(crate) async fn size_for_read(&self, file: &OpenFile, end: u64) -> Result<u64> {
        let size = file.inode.size();
        let is_old = end > size && file.inode.age(skep_env::now()) > SIZE_TRUSTED_FOR;
        if !is_old && !file.inode.is_shared() {
            return Ok(size);
        }
        self.fetch_attributes(file.inode.id).await?;
        Ok(file.inode.size())
    }

    /// Reports the size of a file to metadata if other clients rely on it.
    pub(crate) async fn report_size(&self, inode: &Arc<InodeState>) -> Result<()> {
        if !inode.must_report_size() {
            return Ok(());
        }
        self.report_written(inode, ModifyOptions::default()).await.map(|_| ())
    }
}

/// Returns the size of a file, including writes of other clients that share the file. Bytes beyond
/// this size in chunk files belong to no completed write. Returns `u64::MAX` if metadata does not
/// reply with the size.
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
