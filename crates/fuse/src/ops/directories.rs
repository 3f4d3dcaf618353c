//! Listing directories.

use crate::file_system::FileSystem;
use crate::reply::{Answer, DOT, DOT_DOT, Failure, Listing};
use skep_types::InodeId;

/// Entries after a cursor. The cursors of `.` and `..` are 1 and 2, those of entries are the file
/// system's (at least 256), so that a listing goes on where it was while the directory changes. An
/// empty answer means the end.
pub(crate) async fn read(
    fs: &impl FileSystem,
    directory: InodeId,
    cursor: u64,
    room: u32,
    with_attributes: bool,
) -> Result<Answer, Failure> {
    let mut listing = Listing::new(room, with_attributes);
    let after = if cursor <= DOT_DOT { 0 } else { cursor };
    let got = fs.read_directory(directory, after, room, with_attributes).await?;
    if cursor < DOT {
        listing.push_dot(DOT, directory);
    }
    if cursor < DOT_DOT {
        listing.push_dot(DOT_DOT, got.parent);
    }
    listing.push_all(&got, |inode| fs.is_shared(inode));
    let shown = got.entries.iter().filter_map(|it| it.entry.attributes.as_ref());
    shown.for_each(|attributes| fs.note_shown(attributes));
    if listing.is_empty() && !got.entries.is_empty() {
        return Err(Failure::Errno(libc::EINVAL)); // As getdents(2): no room for a single one.
    }
    Ok(listing.finish())
}
