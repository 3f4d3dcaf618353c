//! `Link`: adds a name (hard link) to an inode, which another group may serve.

use crate::engine::Engine;
use crate::namespace::names::check_name;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_format::metadata::StagedEntry;
use skep_types::{Error, ErrorCode, FileKind};
use skep_wire::metadata::{EntryReply, Link, NewEntryReply, Step};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Link,
) -> Result<NewEntryReply, Stop> {
    check_name(&request.name)?;
    let mut directory = context.directory(request.directory)?;
    if context.dentry(request.directory, &request.name)?.is_some() {
        return Err(ErrorCode::Exists.into());
    }
    context.check_free_space()?;
    let step = Step::AddLink { inode: request.inode };
    let attributes = if context.is_local(request.inode)? {
        let attributes = steps::check(context, &step)?;
        steps::apply(context, &step, attributes.as_ref())?;
        attributes
    } else {
        let group = context.group_of(request.inode)?;
        let entry = StagedEntry {
            directory: request.directory,
            name: request.name.clone(),
            inode: request.inode,
            // Not known yet: the participant returns the kind in its reply.
            kind: FileKind::Regular,
            is_added: true,
        };
        let answers = context.prepare_for_entry(group, vec![step], entry)?;
        answers.into_iter().next()
    };
    let attributes = attributes.ok_or_else(|| {
        Error::new(
            ErrorCode::Protocol,
            "cannot link the inode: the group of the inode replied without attributes",
        )
    })?;
    // If this check fails, the target aborts the prepared transaction.
    steps::check_project(directory.attributes.handed_down_project(), &attributes)?;
    let (inode, kind) = (request.inode, attributes.kind);
    context.insert_dentry(request.directory, &request.name, inode, kind)?;
    context.change_directory(&mut directory, 1, 0);
    let entry = EntryReply { inode, kind, attributes: Some(attributes) };
    Ok(context.new_entry_reply(entry, directory))
}
