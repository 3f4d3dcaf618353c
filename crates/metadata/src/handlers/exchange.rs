//! `Exchange`: swaps the inodes of two names. The group that serves the second directory runs the
//! request. Other groups may serve the first directory and the inodes. If the exchange gives
//! directories another parent, the rules of `rename` apply to each of these directories.

use crate::engine::Engine;
use crate::handlers::rename::{check_move, confirm_source, source};
use crate::namespace::names::check_name;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_types::{ErrorCode, FileKind, InodeId};
use skep_wire::metadata::{Exchange, GetEntryInfo, NamesReply, Step};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Exchange,
) -> Result<NamesReply, Stop> {
    check_name(&request.to_name)?;
    check_name(&request.from_name)?;
    let (from_directory, to_directory) = (request.from_directory, request.to_directory);
    let to_project = context.directory(to_directory)?.attributes.handed_down_project();
    let (first, first_kind) = source(context, from_directory, &request.from_name)?;
    let (_, second) = context.dentry(to_directory, &request.to_name)?.ok_or(ErrorCode::NotFound)?;
    if second.inode == first {
        // The two names of the exchange refer to one inode, or are the same name. As POSIX requires
        // for a rename, change nothing.
        confirm_source(context, from_directory, &request.from_name, first)?;
        return Ok(NamesReply { directory: None });
    }
    let changes_parent = from_directory != to_directory;
    let from_project = match changes_parent {
        true => handed_down_by(context, from_directory)?,
        false => to_project,
    };
    let moves = [
        (first, first_kind, to_directory, to_project),
        (second.inode, second.kind, from_directory, from_project),
    ];
    let mut directories = Vec::new();
    for (inode, kind, to, _) in moves {
        if kind == FileKind::Directory && changes_parent {
            directories.push((inode, to));
        }
    }
    if !directories.is_empty() {
        context.hold_rename_lock()?;
    }
    for (inode, to) in directories {
        check_move(context, inode, to, (from_directory, &request.from_name, first))?;
    }
    let mut wanted = vec![(
        from_directory,
        Step::ReplaceEntry {
            directory: from_directory,
            name: request.from_name.clone(),
            inode: first,
            new_inode: second.inode,
            new_kind: second.kind,
        },
    )];
    for (inode, kind, to, project) in moves {
        if project.is_some() || must_know(context, inode, kind, changes_parent)? {
            wanted.push((inode, Step::SetParent { inode, parent: to, project }));
        }
    }
    steps::do_anywhere(context, wanted)?;
    // Read the directory again, because the steps may have changed its attributes.
    let mut to = context.directory(to_directory)?;
    let found = context.dentry(to_directory, &request.to_name)?.ok_or(ErrorCode::NotFound)?;
    context.point_entry(&mut to, found, first, first_kind);
    Ok(NamesReply { directory: None })
}

/// Returns the project that new entries of a directory inherit. If another group serves the
/// directory, that group locks only the name until the exchange is decided, and not the project. So
/// if another request changes the directory's project concurrently, the exchange may use the old or
/// the new project.
fn handed_down_by<E: Engine>(
    context: &mut Context<'_, E>,
    directory: InodeId,
) -> Result<Option<u32>, Stop> {
    let attributes = if context.is_local(directory)? {
        context.directory(directory)?.attributes
    } else {
        let group = context.group_of(directory)?;
        context.ask(group, &GetEntryInfo { inode: directory })?.attributes
    };
    Ok(attributes.handed_down_project())
}

/// Whether the exchange needs a `SetParent` step for an inode, as in `rename`. A directory that
/// changes its parent always needs this step. For any other inode, the step only raises the change
/// time, and is used only if this group serves the inode.
fn must_know<E: Engine>(
    context: &Context<'_, E>,
    inode: InodeId,
    kind: FileKind,
    changes_parent: bool,
) -> Result<bool, Stop> {
    let is_directory = kind == FileKind::Directory;
    Ok((is_directory && changes_parent) || context.is_local(inode)?)
}
