//! The steps of changes that involve several groups. A participant checks and locks the steps when
//! it prepares a transaction, and applies them when the transaction commits. The same code checks
//! and applies the steps of changes that involve only this target.

use crate::engine::Engine;
use crate::limits::MAX_REVALIDATIONS;
use crate::namespace::directories;
use crate::tx::context::Context;
use crate::tx::locks::Resource;
use crate::tx::operation::Stop;
use skep_format::metadata::{DentryRecord, StagedEntry};
use skep_types::codec::Bytes;
use skep_types::{Attributes, Error, ErrorCode, FileKind, GroupId, InodeId};
use skep_wire::limits::MAX_LINKS;
use skep_wire::metadata::Step;

/// Returns the resources that a prepared transaction locks. `answers` are the attributes in the
/// reply to its `Prepare` request.
pub(crate) fn resources(steps: &[Step], answers: &[Attributes]) -> Vec<Resource> {
    let mut answers = answers.iter();
    let held = |step: &Step| match step {
        // Lock the new directory. A client may send requests for it as soon as the coordinator has
        // committed, but these requests must wait until this group has received the decision.
        Step::MakeDirectoryInode { .. } => answers.next().map(|it| Resource::Inode(it.inode)),
        Step::AddLink { inode } => answers.next().map(|_| Resource::Inode(*inode)),
        Step::DropLink { inode }
        | Step::RemoveDirectoryInode { inode }
        | Step::SetParent { inode, .. } => Some(Resource::Inode(*inode)),
        Step::RemoveEntry { directory, name, .. } | Step::ReplaceEntry { directory, name, .. } => {
            Some(Resource::Dentry(*directory, name.0.clone()))
        }
        Step::LockRename => Some(Resource::Rename),
    };
    steps.iter().filter_map(held).collect()
}

/// Checks that a step can be applied. Returns the attributes of the inode for the reply, if the
/// step creates a directory or adds a link.
pub(crate) fn check<E: Engine>(
    context: &mut Context<'_, E>,
    step: &Step,
) -> Result<Option<Attributes>, Stop> {
    match step {
        Step::MakeDirectoryInode {
            new,
            project,
            hands_down_project,
            access_acl,
            default_acl,
            ..
        } => {
            context.check_free_space()?;
            let mut attributes = directories::new_inode(context, new)?;
            attributes.project = *project;
            attributes.hands_down_project = *hands_down_project;
            attributes.has_acl = !access_acl.is_empty() || !default_acl.is_empty();
            Ok(Some(attributes))
        }
        Step::AddLink { inode } => {
            let record = context.inode(*inode)?;
            let mut attributes = record.attributes;
            if attributes.kind == FileKind::Directory {
                return Err(ErrorCode::NotPermitted.into());
            }
            if attributes.links == 0 && !record.may_be_named {
                return Err(ErrorCode::NotFound.into());
            }
            if attributes.links >= MAX_LINKS {
                return Err(ErrorCode::TooManyLinks.into());
            }
            attributes.links += 1;
            context.touch_changed(&mut attributes);
            Ok(Some(attributes))
        }
        Step::DropLink { inode } => match context.inode(*inode)?.attributes.kind {
            FileKind::Directory => Err(ErrorCode::IsDirectory.into()),
            _ => Ok(None),
        },
        Step::RemoveDirectoryInode { inode } => {
            let directory = context.directory(*inode)?;
            // Prepared transactions may be about to remove all names in the directory. The clients
            // that requested these removals may already have their replies, and must find the
            // directory empty. Staged transactions may still be undone. So wait for the end of one
            // of these transactions.
            let mut locked = context.shared.locks.dentries_of(*inode);
            let first = locked.next().map(|name| Resource::Dentry(*inode, name.to_vec()));
            let count = locked.count() as u64 + 1;
            if let Some(held) = first
                && directory.attributes.size <= count
            {
                return Err(Stop::Held(held));
            }
            if !context.is_empty_directory(&directory)? {
                return Err(ErrorCode::NotEmpty.into());
            }
            Ok(None)
        }
        Step::SetParent { inode, project, .. } => {
            let record = context.inode(*inode)?;
            check_project(*project, &record.attributes)?;
            Ok(None)
        }
        Step::RemoveEntry { directory, name, inode, .. }
        | Step::ReplaceEntry { directory, name, inode, .. } => {
            context.directory(*directory)?;
            match context.dentry(*directory, name)? {
                Some((_, dentry)) if dentry.inode == *inode => Ok(None),
                _ => Err(ErrorCode::NotFound.into()),
            }
        }
        Step::LockRename => {
            context.check_free(Resource::Rename)?;
            Ok(None)
        }
    }
}

/// Gives a directory a new version if a prepared step will change one of its names. A client
/// compares versions before it lets its kernel use a cached listing. The client that requested the
/// change may have its reply long before this group has the decision, if the coordinator fails. So
/// from now on no client may use an older cached listing, and a new listing waits for the name.
pub(crate) fn announce<E: Engine>(context: &mut Context<'_, E>, step: &Step) -> Result<(), Stop> {
    if let Step::RemoveEntry { directory, .. } | Step::ReplaceEntry { directory, .. } = step {
        let mut record = context.directory(*directory)?;
        record.attributes.change_counter += 1;
        context.put_inode(&record);
    }
    Ok(())
}

/// Applies a checked step. `answer` is the result of [`check`].
pub(crate) fn apply<E: Engine>(
    context: &mut Context<'_, E>,
    step: &Step,
    answer: Option<&Attributes>,
) -> Result<(), Stop> {
    match step {
        Step::MakeDirectoryInode { parent, pattern, access_acl, default_acl, .. } => {
            let attributes = answer.ok_or_else(no_answer)?;
            context.put_acls(attributes.inode, access_acl, default_acl);
            directories::put_inode(context, *parent, attributes, pattern.as_ref());
        }
        Step::AddLink { inode } => {
            let mut record = context.inode(*inode)?;
            record.attributes.links += 1;
            record.may_be_named = false;
            context.touch_changed(&mut record.attributes);
            context.put_inode(&record);
        }
        Step::DropLink { inode } => {
            let record = context.inode(*inode)?;
            context.drop_link(record)?;
        }
        Step::RemoveDirectoryInode { inode } => {
            let record = context.directory(*inode)?;
            context.remove_inode(&record)?;
        }
        Step::SetParent { inode, parent, .. } => {
            let mut record = context.inode(*inode)?;
            record.parent = *parent;
            context.touch_changed(&mut record.attributes);
            context.put_inode(&record);
        }
        Step::RemoveEntry { directory, name, kind, .. } => {
            let mut record = context.directory(*directory)?;
            let (cursor, _) = context.dentry(*directory, name)?.ok_or(ErrorCode::NotFound)?;
            context.remove_dentry(*directory, cursor)?;
            let links = -i32::from(*kind == FileKind::Directory);
            context.change_directory(&mut record, -1, links);
        }
        Step::ReplaceEntry { directory, name, new_inode, new_kind, .. } => {
            let mut record = context.directory(*directory)?;
            let found = context.dentry(*directory, name)?.ok_or(ErrorCode::NotFound)?;
            let (inode, kind) = (*new_inode, *new_kind);
            context.point_entry(&mut record, found, inode, kind);
        }
        Step::LockRename => {}
    }
    Ok(())
}

/// Checks that `inode` may get a name in a directory. `handed_down` is the project that new entries
/// of the directory inherit, if it has one. Every inode with a name in the directory must then
/// belong to this project.
pub(crate) fn check_project(handed_down: Option<u32>, inode: &Attributes) -> Result<(), Error> {
    match handed_down {
        Some(project) if project != inode.project => {
            let what = format!(
                "cannot add a name for inode {}: the inode belongs to project {}, and the \
                 directory accepts only inodes of project {project}",
                inode.inode, inode.project
            );
            Err(Error::new(ErrorCode::CrossDevice, what))
        }
        _ => Ok(()),
    }
}

/// Replaces the errors `NotFound` and `Stale` by a new run of the operation, up to
/// [`MAX_REVALIDATIONS`] times. Another request may have changed the inode of a name since the
/// operation read the name. A program must never get `NotFound` for a name that exists all the
/// time. Restarts for other reasons, such as a busy participant, do not count.
fn revalidate<E: Engine>(context: &mut Context<'_, E>, stop: Stop) -> Stop {
    match stop {
        Stop::Fail(error)
            if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale)
                && context.op.revalidations < MAX_REVALIDATIONS =>
        {
            context.op.revalidations += 1;
            Stop::Changed
        }
        other => other,
    }
}

fn no_answer() -> Error {
    Error::new(
        ErrorCode::Corrupt,
        "cannot complete a transaction: its prepared record lacks the attributes for the reply",
    )
}

/// Applies a step at the group that serves the inode of `dentry`. The operation removes this dentry
/// from `directory`, and changes nothing else at this group except the counts of the directory. If
/// another group serves the inode, the transaction may become *staged*
/// ([`Context::prepare_for_entry`]).
pub(crate) fn do_for_removal<E: Engine>(
    context: &mut Context<'_, E>,
    step: Step,
    (directory, name): (InodeId, Bytes),
    dentry: &DentryRecord,
) -> Result<(), Stop> {
    let (inode, kind) = (dentry.inode, dentry.kind);
    let group = context.group_of(inode)?;
    if group == context.shared.group {
        return do_anywhere(context, vec![(inode, step)]);
    }
    let entry = StagedEntry { directory, name, inode, kind, is_added: false };
    let prepared = context.prepare_for_entry(group, vec![step], entry);
    prepared.map_err(|stop| revalidate(context, stop))?;
    Ok(())
}

/// Applies each step at the group that serves the inode in the same pair. Steps of other groups
/// become part of this operation's transaction, and these groups prepare them. After the
/// preparation, applies the steps of this group.
pub(crate) fn do_anywhere<E: Engine>(
    context: &mut Context<'_, E>,
    steps: Vec<(InodeId, Step)>,
) -> Result<(), Stop> {
    let mut here = Vec::new();
    let mut elsewhere: Vec<(GroupId, Vec<Step>)> = Vec::new();
    for (inode, step) in steps {
        let group = context.group_of(inode)?;
        if group == context.shared.group {
            here.push(step);
            continue;
        }
        match elsewhere.iter_mut().find(|(it, _)| *it == group) {
            Some((_, steps)) => steps.push(step),
            None => elsewhere.push((group, vec![step])),
        }
    }
    // Check the local steps first. If one of them fails, no other group needs to prepare.
    for step in &here {
        check(context, step).map_err(|stop| revalidate(context, stop))?;
    }
    context.prepare(elsewhere).map_err(|stop| revalidate(context, stop))?;
    for step in &here {
        apply(context, step, None)?;
    }
    Ok(())
}
