//! Operations that list directories.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{DOT, DOT_DOT, Failure, Listing, Outcome, ReplyBody, Validity};
use crate::request::directories::DirectoryRequest;
use skep_types::InodeId;

pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: DirectoryRequest,
) -> Outcome {
    match request {
        // The reply decides whether the kernel keeps its cached listing. By itself, the kernel
        // would only compare the directory's modification times, and programs (`rsync`, `tar`) set
        // modification times back.
        DirectoryRequest::Open { directory } => {
            let max_age = context.options.validity;
            let keep_cache = context.file_system.open_directory(directory, max_age).await?;
            Ok(ReplyBody::OpenedDirectory(keep_cache))
        }
        DirectoryRequest::Read { directory, cursor, max_bytes, with_attributes } => {
            read(context, directory, cursor, max_bytes, with_attributes).await
        }
    }
}

/// Returns the entries of a directory after a cursor. The cursors of `.` and `..` are 1 and 2. The
/// file system assigns the cursors of all other entries (at least 256). These cursors are stable,
/// so that a listing continues at the same entry while programs change the directory. An empty
/// reply means the end of the directory. If the reply before had the last entry, this reply needs
/// no request to metadata.
async fn read<F: FileSystem>(
    context: &Context<F>,
    directory: InodeId,
    cursor: u64,
    max_bytes: u32,
    with_attributes: bool,
) -> Outcome {
    let fs = &context.file_system;
    let begun = skep_env::now();
    let after = if cursor <= DOT_DOT { 0 } else { cursor };
    let is_continued = cursor >= DOT_DOT;
    if is_continued && fs.has_listed_all(directory, after, context.options.validity) {
        return Ok(Listing::new(max_bytes, None).finish());
    }
    let listed = fs.read_directory(directory, after, max_bytes, with_attributes).await?;
    let validity_left = context.validity_since(begun);
    let validity = Validity {
        usual: &|| validity_left,
        is_shared: &|inode| fs.is_shared(inode),
        note_shown: &|attributes| fs.note_shown(attributes),
        note_shown_with_name: &|attributes| fs.note_shown_with_name(attributes),
    };
    let mut listing = Listing::new(max_bytes, with_attributes.then_some(validity));
    if cursor < DOT {
        listing.push_dot(DOT, directory);
    }
    if cursor < DOT_DOT {
        listing.push_dot(DOT_DOT, listed.parent);
    }
    listing.push_all(&listed);
    if listing.is_empty() && !listed.entries.is_empty() {
        return Err(Failure::Errno(libc::EINVAL)); // Like getdents(2).
    }
    Ok(listing.finish())
}
