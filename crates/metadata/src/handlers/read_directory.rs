//! `ReadDirectory`: returns the entries after a cursor. A cursor is the hash of a name, so cursors
//! stay valid while the directory changes. An entry that exists during a whole listing appears in
//! the listing exactly once, except after a hash collision (see `remove_dentry`).
//!
//! An undecided transaction of another group may be about to remove or change an entry. The client
//! that requested this change may already have its reply. So the reply ends before this entry, and
//! the request for the next page waits for the end of this transaction. If the request waited until
//! no name of the directory is locked, it could wait as long as programs move names to directories
//! of other groups.
//!
//! The listing shows the changes of staged transactions of this group, which are in the store, and
//! waits for none of them. A staged change may be undone after a power loss of the participant,
//! before its client gets a reply.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::locks::Resource;
use crate::tx::operation::Stop;
use skep_format::metadata::Key;
use skep_types::ErrorCode;
use skep_wire::limits::MAX_DIRECTORY_BYTES;
use skep_wire::metadata::{DirectoryEntries, DirectoryEntry, EntryReply, ReadDirectory};
use std::collections::BTreeSet;

/// Approximate size in bytes of an entry in the reply, without its name. If the client requests
/// attributes, each entry takes [`ATTRIBUTES_BYTES`] more.
const ENTRY_BYTES: usize = 32;
const ATTRIBUTES_BYTES: usize = 140;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ReadDirectory,
) -> Result<DirectoryEntries, Stop> {
    let directory = context.directory(request.directory)?;
    let locked = context.shared.locks.prepared_dentries_of(request.directory);
    let locked: BTreeSet<_> = locked.map(<[u8]>::to_vec).collect();
    let max_bytes = request.max_bytes.clamp(1, MAX_DIRECTORY_BYTES) as usize;
    let each = if request.with_attributes { ENTRY_BYTES + ATTRIBUTES_BYTES } else { ENTRY_BYTES };
    let prefix = Key::dentries_of(request.directory);
    let after = Key::Dentry(request.directory, request.cursor).to_bytes();
    let mut reply = DirectoryEntries { parent: directory.parent, entries: Vec::new(), end: false };
    // Even with the shortest names, no more than `limit` entries fit into the reply.
    let limit = max_bytes / each + 1;
    let found = context.scan(&prefix, &after, limit)?;
    let is_all = found.len() < limit;
    let mut bytes = 0;
    for (key, value) in &found {
        let (cursor, dentry) = Context::<E>::scanned_dentry(key, value)?;
        bytes += each + dentry.name.len();
        if bytes > max_bytes && !reply.entries.is_empty() {
            return Ok(reply);
        }
        if locked.contains(&dentry.name.0) {
            return match reply.entries.is_empty() {
                true => Err(Stop::Held(Resource::Dentry(request.directory, dentry.name.0))),
                false => Ok(reply),
            };
        }
        let (inode, kind) = (dentry.inode, dentry.kind);
        // If a transaction has locked the inode, or changes names of the entry, the reply contains
        // the entry without attributes. The client then looks the entry up.
        let has_attributes = request.with_attributes && !context.has_undecided_names(inode);
        let attributes = match has_attributes && context.is_local(inode)? {
            true => match context.find_inode(inode) {
                Ok(record) => record.map(|record| record.attributes),
                Err(Stop::Held(_)) => None,
                Err(stop) => return Err(stop),
            },
            false => None,
        };
        let entry = EntryReply { inode, kind, attributes };
        reply.entries.push(DirectoryEntry { cursor, name: dentry.name, entry });
    }
    reply.end = is_all;
    if reply.entries.is_empty() && !is_all {
        return Err(ErrorCode::Corrupt.into());
    }
    Ok(reply)
}
