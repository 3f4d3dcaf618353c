//! Finds out why storage does not have bytes of a file. The bytes may be a hole, the file may have
//! been removed or truncated meanwhile, or a chunk file may be lost. Only metadata can distinguish
//! a hole from a removal, a truncation or a loss.

use crate::client::Client;
use crate::files::open_file::OpenFile;
use crate::inode_state::FileEnd;
use skep_rpc::CallOptions;
use skep_types::{ChunkFileKey, Error, ErrorCode, GroupId, Result};
use skep_wire::storage::StatChunk;

/// The bytes of a read range that storage did not return.
#[derive(Debug, Default)]
pub(crate) struct MissingBytes {
    /// Whether any bytes of the range are missing.
    pub(crate) has_any: bool,
    /// The chunk files of the range that do not exist.
    pub(crate) absent: Vec<ChunkFileKey>,
}

impl MissingBytes {
    /// Adds the missing bytes of another piece of the range.
    pub(crate) fn add(&mut self, other: Self) {
        self.has_any |= other.has_any;
        self.absent.extend(other.absent);
    }
}

/// The reason why storage does not have bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The bytes are a hole, so programs read zeros.
    Hole,
    /// The file has changed meanwhile, so the caller must repeat its operation.
    Changed,
}

impl Client {
    /// Finds out why storage does not have bytes of a file. These bytes lie before the end of the
    /// file, `end`. `absent` contains the keys of chunk files that do not exist.
    ///
    /// # Errors
    /// - `Stale` if the file was removed.
    /// - `Corrupt` if a chunk file is lost.
    pub(crate) async fn explain_missing(
        &self,
        file: &OpenFile,
        end: FileEnd,
        absent: &[ChunkFileKey],
    ) -> Result<Missing> {
        let synced = self.await_truncation(&file.inode).await?.synced;
        if file.inode.end().truncate_generation != end.truncate_generation {
            return Ok(Missing::Changed);
        }
        let is_synced = |key: &&ChunkFileKey| {
            let number = file.pattern().chunk_file_number(key.component, key.index);
            number.is_some_and(|number| synced.contains(number))
        };
        let Some(key) = absent.iter().find(is_synced) else { return Ok(Missing::Hole) };
        self.check_lost(file, *key).await.map(|()| Missing::Changed)
    }

    /// Checks again whether a chunk file exists that metadata has recorded as synced. Another
    /// client may have created and synced the chunk file after storage had replied that the chunk
    /// file does not exist.
    ///
    /// # Errors
    /// Returns `Corrupt` if the chunk file does not exist.
    async fn check_lost(&self, file: &OpenFile, key: ChunkFileKey) -> Result<()> {
        let component = &file.pattern().components[usize::from(key.component)];
        let group: GroupId = component.groups[usize::from(key.index)];
        let options = CallOptions::default();
        let (stat, _) = self.0.call_storage(group, &StatChunk { key }, options).await?;
        if stat.exists {
            return Ok(());
        }
        let map = self.router().map();
        let target = map.primary(group).map(|target| target.id.to_string());
        let target = target.unwrap_or_else(|| group.to_string());
        let text = format!(
            "file {}: chunk file {key} on target {target} is lost although its bytes were synced; \
             look for it in lost+found on the disk of the target, or restore the file from a \
             backup",
            file.inode.id
        );
        tracing::error!("{text}");
        Err(Error::new(ErrorCode::Corrupt, text))
    }
}
