//! `Rename`: moves an entry to a new name. The group that serves the new directory runs the
//! request.
//!
//! Other groups may serve the inodes and the old directory. The group that runs the request
//! coordinates a transaction, in which the other groups prepare their steps.
//!
//! If a rename moves a directory to another parent, it first takes the rename lock, and then checks
//! the ancestors of the new parent. There is one rename lock for the whole namespace, which the
//! group of the root grants. So two concurrent renames cannot create a loop of directories.

use crate::engine::Engine;
use crate::limits::MAX_DEPTH;
use crate::namespace::names::check_name;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_format::metadata::{DentryRecord, InodeRecord};
use skep_types::codec::Bytes;
use skep_types::{ChunkFileSet, Error, ErrorCode, FileKind, InodeId};
use skep_wire::metadata::{GetEntryInfo, Lookup, NamesReply, NewInode, Rename, Step};

/// Kind of a whiteout's inode. A whiteout is a character device, which overlay file systems use to
/// mark a removed name.
const WHITEOUT: FileKind = FileKind::CharDevice;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Rename,
) -> Result<NamesReply, Stop> {
    check_name(&request.to_name)?;
    check_name(&request.from_name)?;
    let to = context.directory(request.to_directory)?;
    let (inode, kind) = source(context, request.from_directory, &request.from_name)?;
    let existing = context.dentry(request.to_directory, &request.to_name)?;
    if let Some((_, existing)) = &existing {
        if request.no_replace {
            return Err(ErrorCode::Exists.into());
        }
        if existing.inode == inode {
            // The old name and the new name refer to one inode. As POSIX requires, change nothing.
            confirm_source(context, request.from_directory, &request.from_name, inode)?;
            return Ok(NamesReply { directory: None });
        }
        match (kind, existing.kind) {
            (FileKind::Directory, FileKind::Directory) => {}
            (FileKind::Directory, _) => return Err(ErrorCode::NotDirectory.into()),
            (_, FileKind::Directory) => return Err(ErrorCode::IsDirectory.into()),
            _ => {}
        }
    }
    // If this group serves both directories, the rename replaces an entry by another entry, so the
    // rename needs no free space.
    let is_new_here = existing.is_none() && !context.is_local(request.from_directory)?;
    if is_new_here || request.whiteout.is_some() {
        context.check_free_space()?;
    }
    let is_directory = kind == FileKind::Directory;
    let changes_parent = request.from_directory != request.to_directory;
    if is_directory && changes_parent {
        context.hold_rename_lock()?;
        let old_name = (request.from_directory, &request.from_name, inode);
        check_move(context, inode, request.to_directory, old_name)?;
    }
    let project = to.attributes.handed_down_project();
    drop(to);
    let (directory, name) = (request.from_directory, request.from_name.clone());
    let leave = match &request.whiteout {
        None => Step::RemoveEntry { directory, name, inode, kind },
        Some(new) => {
            let (new_inode, new_kind) = (make_whiteout(context, &request, new)?, WHITEOUT);
            Step::ReplaceEntry { directory, name, inode, new_inode, new_kind }
        }
    };
    let mut wanted = vec![(request.from_directory, leave)];
    // A directory that changes its parent always needs the step `SetParent`. Any other inode needs
    // it if the new directory passes its project on to new entries, because the step checks the
    // project. In all other cases, the step would update only the parent and the change time that
    // the inode records. In these other cases, this group omits the step if another group serves
    // the inode.
    if (is_directory && changes_parent) || project.is_some() || context.is_local(inode)? {
        let step = Step::SetParent { inode, parent: request.to_directory, project };
        wanted.push((inode, step));
    }
    if let Some((_, existing)) = &existing {
        wanted.push((existing.inode, replaced(existing)));
    }
    steps::do_anywhere(context, wanted)?;
    // Read the directory again, because the steps may have changed its attributes.
    let mut to = context.directory(request.to_directory)?;
    // Read the entry of the new name again too. The removal of the old name from the same directory
    // may have moved the entry to another cursor.
    match context.dentry(request.to_directory, &request.to_name)? {
        Some(found) => context.point_entry(&mut to, found, inode, kind),
        None => {
            context.insert_dentry(request.to_directory, &request.to_name, inode, kind)?;
            context.change_directory(&mut to, 1, i32::from(is_directory));
        }
    }
    Ok(context.names_reply(to))
}

/// Creates the inode of the whiteout that replaces the old name, at this group. All runs of the
/// operation use the same inode id, because the step of another group contains it.
fn make_whiteout<E: Engine>(
    context: &mut Context<'_, E>,
    request: &Rename,
    new: &NewInode,
) -> Result<InodeId, Stop> {
    let inode = match context.op.whiteout {
        Some(inode) => inode,
        None => context.new_inode_id(request.to_directory.shard())?,
    };
    context.op.whiteout = Some(inode);
    let attributes = context.new_attributes(inode, WHITEOUT, new, None);
    context.put_inode(&InodeRecord {
        attributes,
        parent: request.from_directory,
        pattern: None,
        link_target: Bytes::default(),
        has_xattrs: false,
        high_water: 0,
        may_be_named: false,
        synced_chunk_files: ChunkFileSet::default(),
    });
    Ok(inode)
}

/// Returns the inode and the kind of the entry to move. Another group may serve its directory.
pub(super) fn source<E: Engine>(
    context: &mut Context<'_, E>,
    directory: InodeId,
    name: &Bytes,
) -> Result<(InodeId, FileKind), Stop> {
    if context.is_local(directory)? {
        context.directory(directory)?;
        let (_, dentry) = context.dentry(directory, name)?.ok_or(ErrorCode::NotFound)?;
        return Ok((dentry.inode, dentry.kind));
    }
    let group = context.group_of(directory)?;
    let lookup = Lookup { directory, name: name.clone() };
    let entry = context.ask(group, &lookup)?;
    Ok((entry.inode, entry.kind))
}

/// Reads the old name again, if another group serves its directory, before the operation fails or
/// ends without a change. Returns [`Stop::Changed`] if another request has changed the name since
/// the operation first read it.
pub(super) fn confirm_source<E: Engine>(
    context: &mut Context<'_, E>,
    directory: InodeId,
    name: &Bytes,
    inode: InodeId,
) -> Result<(), Stop> {
    if !context.is_local(directory)? && source(context, directory, name)?.0 != inode {
        return Err(Stop::Changed);
    }
    Ok(())
}

/// Returns the step for the inode to which the new name pointed before the rename. The step removes
/// a directory, or one link of any other inode.
fn replaced(existing: &DentryRecord) -> Step {
    let inode = existing.inode;
    match existing.kind {
        FileKind::Directory => Step::RemoveDirectoryInode { inode },
        _ => Step::DropLink { inode },
    }
}

/// Checks that the directory `moved` is not moved below itself, like [`check_no_loop`]. `old_name`
/// has the directory of the old name, the name, and the inode that the operation has found there.
/// The operation has read this name without the rename lock, so another rename may have moved the
/// inode since. So this function reads the name again before the check fails.
pub(super) fn check_move<E: Engine>(
    context: &mut Context<'_, E>,
    moved: InodeId,
    to: InodeId,
    old_name: (InodeId, &Bytes, InodeId),
) -> Result<(), Stop> {
    let result = check_no_loop(context, moved, to);
    if let Err(Stop::Fail(_)) = result {
        let (directory, name, inode) = old_name;
        confirm_source(context, directory, name, inode)?;
    }
    result
}

/// Checks that the directory `moved` is not moved below itself, by a walk from the new parent `to`
/// up to the root.
fn check_no_loop<E: Engine>(
    context: &mut Context<'_, E>,
    moved: InodeId,
    to: InodeId,
) -> Result<(), Stop> {
    let mut at = to;
    for _ in 0..MAX_DEPTH {
        if at == moved {
            let context = format!("cannot move directory {moved} below itself");
            return Err(Error::new(ErrorCode::InvalidArgument, context).into());
        }
        if at == InodeId::ROOT {
            return Ok(());
        }
        at = if context.is_local(at)? {
            context.inode(at)?.parent
        } else {
            let group = context.group_of(at)?;
            context.ask(group, &GetEntryInfo { inode: at })?.parent
        };
    }
    let context = format!(
        "cannot move a directory to directory {to}: directory {to} is more than {MAX_DEPTH} levels \
         below the root directory"
    );
    Err(Error::new(ErrorCode::InvalidArgument, context).into())
}
