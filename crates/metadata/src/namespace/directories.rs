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
            "cannot create the directory at this metadata group: the group serves no shard of the \
             namespace",
        )
        .into());
    }
    let inode = InodeId::from_parts(shard_of(number, shards), number);
    Ok(context.new_attributes(inode, FileKind::Directory, new, None))
}

/// Returns the shard of the inode with a number. `shards` must not be empty.
///
/// This is Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4): the
/// multiplier is 2^64 divided by the golden ratio, and the upper bits of the product select the
/// shard. So consecutive numbers spread evenly over any number of shards.
fn shard_of(number: u64, shards: &[ShardId]) -> ShardId {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    shards[((u128::from(hash) * shards.len() as u128) >> 64) as usize]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_directories_use_all_shards_about_equally() {
        for count in [1, 3, 1365, 1366, 4095, 4096] {
            let shards: Vec<_> = (0..count).map(ShardId::new).collect();
            let mut used = vec![0; usize::from(count)];
            for number in 1..=8 * u64::from(count) {
                used[usize::from(shard_of(number, &shards).raw())] += 1;
            }
            assert!(used.iter().all(|times| (5..=11).contains(times)), "{count} shards");
        }
    }
}
