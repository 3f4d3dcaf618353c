//! Finds the directory or the inode that a request reads or changes, for the metrics.

use skep_types::InodeId;
use skep_types::codec::Codec;
use skep_wire::Request;
use skep_wire::inline::{ReadInline, RemoveInline, WriteInline};
use skep_wire::metadata as md;

/// Length of an inode id. The body of a request about a directory begins with an inode id.
const INODE_ID_BYTES: usize = 8;

/// Returns the raw inode id of the directory whose entries a request reads or changes. For a
/// `Rename`, this is the first of its two directories.
pub(super) fn directory_of(message: u16, body: &[u8]) -> Option<u64> {
    let is_about_directory = matches!(
        message,
        md::Lookup::ID
            | md::Create::ID
            | md::MakeDirectory::ID
            | md::MakeSymlink::ID
            | md::Unlink::ID
            | md::RemoveDirectory::ID
            | md::ReadDirectory::ID
            | md::Rename::ID
    );
    // In all these messages, the directory is the first field.
    let id = body.get(..INODE_ID_BYTES).filter(|_| is_about_directory)?;
    InodeId::from_bytes(id).ok().map(InodeId::raw)
}

/// Returns the raw inode id of the file that a request reads or changes. Zero for other requests.
pub(super) fn inode_of(message: u16, body: &[u8]) -> u64 {
    let is_about_inode = matches!(
        message,
        md::GetAttributes::ID
            | md::SetAttributes::ID
            | md::Open::ID
            | md::Close::ID
            | md::ReportWritten::ID
            | md::GetXattr::ID
            | md::SetXattr::ID
            | WriteInline::ID
            | ReadInline::ID
            | RemoveInline::ID
    );
    // In all these messages, the inode is the first field.
    let id = body.get(..INODE_ID_BYTES).filter(|_| is_about_inode);
    id.and_then(|id| InodeId::from_bytes(id).ok()).map_or(0, InodeId::raw)
}
