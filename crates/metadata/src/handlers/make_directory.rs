//! `MakeDirectory`: creates a directory. If another metadata group shall serve its inode, a
//! transaction of both groups creates the directory.
//!
//! By default, the group of the parent also serves the new directory, so that one local transaction
//! creates it. But the target spreads directories in the root, and in a parent with many
//! subdirectories, evenly over the fittest metadata groups. A hash of the name chooses the group
//! ([`skep_cluster::placement::fittest_metadata_groups`]). If the disk of the parent's group has
//! little free space, all new directories are spread.

use crate::engine::Engine;
use crate::namespace::names::check_name;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_format::metadata::{InodeRecord, StagedEntry, name_cursor};
use skep_types::map::CapacityPool;
use skep_types::{Error, ErrorCode, FileKind, GroupId, InodeId};
use skep_wire::metadata::{EntryReply, MakeDirectory, NewEntryReply, NewInode, Step};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: MakeDirectory,
) -> Result<NewEntryReply, Stop> {
    check_name(&request.name)?;
    let mut directory = context.directory(request.directory)?;
    if context.dentry(request.directory, &request.name)?.is_some() {
        return Err(ErrorCode::Exists.into());
    }
    context.check_free_space()?;
    let group = choose_group(context, &directory, &request.name)?;
    // The other group does not have the parent directory, so this target computes the inherited
    // attributes.
    let kind = FileKind::Directory;
    let inherited = context.inherited(&directory, kind, &request.new)?;
    let mut new = NewInode { permissions: inherited.permissions, umask: 0, ..request.new };
    let parents = context.new_attributes(InodeId::ROOT, kind, &new, Some(&directory.attributes));
    new.permissions = parents.permissions;
    new.gid = parents.gid;
    let step = Step::MakeDirectoryInode {
        parent: request.directory,
        new,
        pattern: directory.pattern.clone(),
        project: parents.project,
        hands_down_project: parents.hands_down_project,
        access_acl: inherited.access.into(),
        default_acl: inherited.default.into(),
    };
    let attributes = if group == context.shared.group {
        let attributes = steps::check(context, &step)?;
        steps::apply(context, &step, attributes.as_ref())?;
        attributes.ok_or_else(|| {
            Error::new(
                ErrorCode::Protocol,
                "cannot create the directory: its inode has no attributes",
            )
        })?
    } else {
        let entry = StagedEntry {
            directory: request.directory,
            name: request.name.clone(),
            // Not known yet: the participant assigns the inode.
            inode: InodeId::default(),
            kind,
            is_added: true,
        };
        let answers = context.prepare_for_entry(group, vec![step], entry)?;
        answers.into_iter().next().ok_or_else(|| {
            Error::new(
                ErrorCode::Protocol,
                "cannot create the directory: the group of its inode replied without attributes",
            )
        })?
    };
    let inode = attributes.inode;
    context.insert_dentry(request.directory, &request.name, inode, FileKind::Directory)?;
    context.change_directory(&mut directory, 1, 1);
    let attributes = Some(attributes);
    let entry = EntryReply { inode, kind: FileKind::Directory, attributes };
    Ok(context.new_entry_reply(entry, directory))
}

fn choose_group<E: Engine>(
    context: &Context<'_, E>,
    directory: &InodeRecord,
    name: &[u8],
) -> Result<GroupId, Stop> {
    let shared = &context.shared;
    // The replay after a power loss must create the same inode again. Only the group of this inode
    // can do so, even if the cluster map does not show this group as one of the fittest.
    if let Some(first) = context.op.first_reply.as_ref().filter(|it| it.created)
        && context.is_local(first.inode)?
    {
        return Ok(shared.group);
    }
    let parent = directory.attributes.inode;
    // This target serves, even if the map shows it as unreachable, as just after its start.
    let primary = shared.map.primary(shared.group);
    let has_space = primary.is_none_or(|it| it.capacity_pool == CapacityPool::Normal);
    let is_wide = directory.attributes.links > shared.limits.spread_subdirectories;
    let spreads = parent == InodeId::ROOT || is_wide || !has_space;
    let hash = name_cursor(shared.map.cluster, parent, name) / skep_format::metadata::ORDINALS;
    Ok(choose(shared.group, &shared.placement.groups_for_directories, spreads, hash))
}

/// Returns the group of a new directory. `fittest` are the fittest groups for new directories, and
/// `hash` is the hash of the name.
fn choose(own: GroupId, fittest: &[GroupId], spreads: bool, hash: u64) -> GroupId {
    if fittest.is_empty() || !spreads {
        return own;
    }
    fittest[(hash % fittest.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(fittest: &[u32], spreads: bool) -> Vec<u32> {
        let groups: Vec<GroupId> = fittest.iter().map(|raw| GroupId::new(*raw)).collect();
        let of = |hash| choose(GroupId::new(1), &groups, spreads, hash).raw();
        (0..6).map(of).collect()
    }

    #[test]
    fn new_directory_is_served_by_the_group_of_its_parent() {
        assert_eq!(chosen(&[1, 2, 3], false), [1; 6]);
        assert_eq!(chosen(&[], true), [1; 6], "no group serves a shard yet");
    }

    #[test]
    fn directories_are_spread_over_the_fittest_groups() {
        assert_eq!(chosen(&[1, 2, 3], true), [1, 2, 3, 1, 2, 3]);
        assert_eq!(chosen(&[2, 3], true), [2, 3, 2, 3, 2, 3], "the own group is not fit");
    }
}
