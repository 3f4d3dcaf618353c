//! `Exchange`: two names swap what they point to. Run by the group that serves the second
//! directory; the first one and the inodes may live elsewhere, as in `rename`, whose rules for
//! directories that change their parent hold here in both directions.

use crate::context::Context;
use crate::engine::Engine;
use crate::handlers::rename::{check_no_loop, confirm_source, source};
use crate::namespace::check_name;
use crate::operation::Stop;
use crate::steps;
use skep_types::{ErrorCode, FileKind, InodeId};
use skep_wire::management::Done;
use skep_wire::metadata::{Exchange, Step};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Exchange,
) -> Result<Done, Stop> {
    check_name(&request.to_name)?;
    check_name(&request.from_name)?;
    let (from_directory, to_directory) = (request.from_directory, request.to_directory);
    context.directory(to_directory)?;
    let (first, first_kind) = source(context, from_directory, &request.from_name)?;
    let (_, second) = context.dentry(to_directory, &request.to_name)?.ok_or(ErrorCode::NotFound)?;
    if second.inode == first {
        // Two names of one file, or one name twice: as in a rename, nothing happens.
        confirm_source(context, from_directory, &request.from_name, first)?;
        return Ok(Done {});
    }
    let changes_parent = from_directory != to_directory;
    let moves = [(first, first_kind, to_directory), (second.inode, second.kind, from_directory)];
    let mut directories = Vec::new();
    for (inode, kind, to) in moves {
        if kind == FileKind::Directory && changes_parent {
            directories.push((inode, to));
        }
    }
    if !directories.is_empty() {
        context.hold_rename_lock()?;
    }
    for (inode, to) in directories {
        check_no_loop(context, inode, to)?;
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
    for (inode, kind, to) in moves {
        if must_know(context, inode, kind, changes_parent)? {
            wanted.push((inode, Step::SetParent { inode, parent: to }));
        }
    }
    steps::do_anywhere(context, wanted)?;
    // Read again: the steps may have changed the same directory.
    let mut to = context.directory(to_directory)?;
    let found = context.dentry(to_directory, &request.to_name)?.ok_or(ErrorCode::NotFound)?;
    context.point_entry(&mut to, found, first, first_kind);
    Ok(Done {})
}

/// Whether an inode is told that it has moved, by the rules of `rename`: a directory's parent must
/// be right; the change time of others is raised where that costs no other target.
fn must_know<E: Engine>(
    context: &Context<'_, E>,
    inode: InodeId,
    kind: FileKind,
    changes_parent: bool,
) -> Result<bool, Stop> {
    let is_directory = kind == FileKind::Directory;
    Ok((is_directory && changes_parent) || context.is_local(inode)?)
}
