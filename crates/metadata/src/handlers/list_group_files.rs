//! `ListGroupFiles`: lists the files and directories whose stripe patterns contain a storage group.
//! An administrator needs this list before the removal of the group's target.

use crate::engine::Engine;
use crate::limits::{INODES_EXAMINED, REMOVALS_EXAMINED};
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_cluster::striping;
use skep_format::metadata::{InodeRecord, Key, decode_value, expect_parsed, inode_of};
use skep_types::{FileKind, GroupId, InodeId, ShardId};
use skep_wire::metadata::{GroupFile, GroupFiles, ListGroupFiles};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ListGroupFiles,
) -> Result<GroupFiles, Stop> {
    let ListGroupFiles { group, after } = request;
    let removals = context.scan_keys(&Key::removals_of(group), &[], REMOVALS_EXAMINED)?.len();
    let prepared = context.scan_keys(&Key::prepared(), &[], REMOVALS_EXAMINED)?.len();
    let mut page = GroupFiles {
        files: Vec::new(),
        removals: removals as u32,
        prepared: prepared as u32,
        map: context.shared.map.version,
        next: None,
    };
    let mut examined = 0;
    for shard in after.shard().raw()..=u16::MAX {
        let shard = ShardId::new(shard);
        if examined >= INODES_EXAMINED {
            page.next = Some(InodeId::first_of(shard));
            return Ok(page);
        }
        let limit = INODES_EXAMINED - examined;
        let behind = match shard == after.shard() {
            true => Key::Inode(after).to_bytes(),
            false => Vec::new(),
        };
        let found = context.scan(&Key::inodes_of(shard), &behind, limit)?;
        let is_cut = found.len() == limit;
        // Count each shard as one more examined inode, because even a shard without inodes costs a
        // scan of the store.
        examined += found.len() + 1;
        let mut last = None;
        for (key, value) in found {
            let inode = expect_parsed(&key, inode_of(&key))?;
            last = Some(inode);
            let record: InodeRecord = decode_value(&key, &value)?;
            if names(&record, group) {
                let bytes = bytes_on(&record, group);
                // A file whose writer has died counts as being written until its size is recovered.
                let is_written = context.opens(inode)?.writers > 0
                    || context.is_stored(&Key::SizeRecovery(inode))?;
                let kind = record.attributes.kind;
                page.files.push(GroupFile { inode, kind, bytes, is_written });
            }
        }
        if is_cut {
            page.next = last;
            return Ok(page);
        }
    }
    Ok(page)
}

/// Whether the pattern of a file, or the default pattern of a directory, contains the storage
/// group.
fn names(record: &InodeRecord, group: GroupId) -> bool {
    let components = record.pattern.iter().flat_map(|pattern| &pattern.components);
    components.into_iter().any(|component| component.groups.contains(&group))
}

/// Returns the number of bytes of a file that a storage group stores, if the file has no holes.
/// Zero for a directory.
fn bytes_on(record: &InodeRecord, group: GroupId) -> u64 {
    let pattern = record.pattern.iter().filter(|_| record.attributes.kind == FileKind::Regular);
    let sizes = pattern.flat_map(|pattern| striping::chunk_sizes(pattern, record.attributes.size));
    sizes.filter(|chunk| chunk.group == group).map(|chunk| chunk.size).sum()
}
