//! Listing directories.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Answer, DOT, DOT_DOT, Failure, Listing, Validity};
use skep_types::InodeId;

/// Says whether the kernel's listing of a directory is still right. By itself the kernel would look
/// at the modification time only, and programs (`rsync`, `tar`) set that to what it was.
pub(crate) async fn open(fs: &impl FileSystem, directory: InodeId) -> Result<Answer, Failure> {
    Ok(Answer::OpenedDirectory(fs.open_directory(directory).await?))
}

/// Entries after a cursor. The cursors of `.` and `..` are 1 and 2, those of entries are the file
/// system's (at least 256), so that a listing goes on where it was while the directory changes. An
/// empty answer means the end.
pub(crate) async fn read<F: FileSystem>(
    context: &Context<F>,
    directory: InodeId,
    cursor: u64,
    max_bytes: u32,
    with_attributes: bool,
) -> Result<Answer, Failure> {
    let fs = &context.file_system;
    let is_shared = |inode| fs.is_shared(inode);
    let note_shown = |it: &_| fs.note_shown(it);
    let validity =
        Validity { usual: context.validity, is_shared: &is_shared, note_shown: &note_shown };
    let mut listing = Listing::new(max_bytes, with_attributes.then_some(validity));
    let after = if cursor <= DOT_DOT { 0 } else { cursor };
    let got = fs.read_directory(directory, after, max_bytes, with_attributes).await?;
    if cursor < DOT {
        listing.push_dot(DOT, directory);
    }
    if cursor < DOT_DOT {
        listing.push_dot(DOT_DOT, got.parent);
    }
    listing.push_all(&got);
    if listing.is_empty() && !got.entries.is_empty() {
        return Err(Failure::Errno(libc::EINVAL)); // As getdents(2): no space for a single one.
    }
    Ok(listing.finish())
}
