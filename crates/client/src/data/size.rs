//! The size of a file that other clients may change. The client requests this size before reads.

use crate::client::Client;
use crate::files::open_file::OpenFile;
use crate::inode_state::FileEnd;
use crate::limits::SIZE_TRUSTED_FOR;
use skep_types::Result;

impl Client {
    /// Returns the size of a file for a read that ends at `end`. Requests the size from metadata if
    /// the file is shared, or if the read reaches beyond a size that may be out of date.
    pub(crate) async fn end_for_read(&self, file: &OpenFile, end: u64) -> Result<FileEnd> {
        let recorded = file.inode.end();
        let is_old = end > recorded.size && file.inode.age(skep_env::now()) > SIZE_TRUSTED_FOR;
        if !is_old && !file.inode.is_shared() {
            return Ok(recorded);
        }
        self.fetch_attributes(file.inode.id).await?;
        Ok(file.inode.end())
    }
}
