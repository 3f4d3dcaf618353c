//! `MakeSymlink`: creates a symbolic link.

use crate::engine::Engine;
use crate::namespace::names::check_name;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::InodeRecord;
use skep_types::{ChunkFileSet, Error, ErrorCode, FileKind};
use skep_wire::limits::MAX_SYMLINK_BYTES;
use skep_wire::metadata::{EntryReply, MakeSymlink, NewEntryReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: MakeSymlink,
) -> Result<NewEntryReply, Stop> {
    check_name(&request.name)?;
    if request.link_target.len() > MAX_SYMLINK_BYTES {
        return Err(ErrorCode::NameTooLong.into());
    }
    if request.link_target.is_empty() {
        return Err(Error::new(
            ErrorCode::NotFound,
            "cannot create a symbolic link: the path that it points to is empty",
        )
        .into());
    }
    let mut directory = context.directory(request.directory)?;
    if context.dentry(request.directory, &request.name)?.is_some() {
        return Err(ErrorCode::Exists.into());
    }
    context.check_free_space()?;
    let inode = context.new_inode_id(request.directory.shard())?;
    let kind = FileKind::Symlink;
    let mut attributes =
        context.new_attributes(inode, kind, &request.new, Some(&directory.attributes));
    attributes.permissions = 0o777;
    attributes.size = request.link_target.len() as u64;
    let record = InodeRecord {
        attributes,
        parent: request.directory,
        pattern: None,
        link_target: request.link_target,
        has_xattrs: false,
        high_water: 0,
        may_be_named: false,
        synced_chunk_files: ChunkFileSet::default(),
    };
    context.put_inode(&record);
    context.insert_dentry(request.directory, &request.name, inode, kind)?;
    context.change_directory(&mut directory, 1, 0);
    let entry = EntryReply { inode, kind, attributes: Some(record.attributes) };
    Ok(context.new_entry_reply(entry, directory))
}
