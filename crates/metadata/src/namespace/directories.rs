//! Creates the inodes of directories.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::InodeRecord;
use skep_types::codec::Bytes;
use skep_types::{
    Attributes, ChunkFileSet, Error, ErrorCode, FileKind, InodeId, ShardId, StripePattern,
};
use skep_wire::metadata::NewInode;

/// Returns the attributes of a new directory, with an inode id in one of the shards of this group.
/// A replayed request gets the inode id of its first reply.
pub(crate) fn new_inode<E: Engine>(
    context: &mut Context<'_, E>,
    new: &NewInode,
) -> Result<Attributes, Stop> {
    if let Some(inode) = context.replayed_inode()? {
        return Ok(context.new_attributes(inode, FileKind::Directory, new, None));
    }
    let number = context.next_number()?;
    let shards = &context.shared.placement.own_shards;
    if shards.is_empty() {
        return Err(Error::new(
            ErrorCode::StaleMap,
            "cannot place the directory on this group: the group serves no shard",
        )
        .into());
    }
    // If the number of shards and the multiplier have no common divisor, consecutive numbers visit
    // every shard before they visit any shard again.
    let shard: ShardId = shards[(number.wrapping_mul(40_503) % shards.len() as u64) as usize];
    let inode = InodeId::from_parts(shard, number);
    Ok(context.new_attributes(inode, FileKind::Directory, new, None))
}

/// Stores the inode of a new directory.
pub(crate) fn put_inode<E: Engine>(
    context: &mut Context<'_, E>,
    parent: InodeId,
    attributes: &Attributes,
    pattern: Option<&StripePattern>,
) {
    context.put_inode(&InodeRecord {
        attributes: attributes.clone(),
        parent,
        pattern: pattern.cloned(),
        link_target: Bytes::default(),
        has_xattrs: attributes.has_acl,
        high_water: 0,
        may_be_named: false,
        synced_chunk_files: ChunkFileSet::default(),
    });
}
