//! The first transactions after the start of a target: they log the start, and create the root
//! directory if it does not exist.

use crate::engine::Engine;
use crate::namespace::directories;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::Key;
use skep_types::{FileKind, InodeId, Result};
use skep_wire::metadata::NewInode;

/// Creates the root directory, if it does not exist.
pub(super) fn make_root<E: Engine>(context: &mut Context<'_, E>) -> Result<(), Stop> {
    if context.find_inode(InodeId::ROOT)?.is_some() {
        return Ok(());
    }
    let new = NewInode { permissions: 0o755, umask: 0, uid: 0, gid: 0 };
    let attributes = context.new_attributes(InodeId::ROOT, FileKind::Directory, &new, None);
    directories::put_inode(context, InodeId::ROOT, &attributes, None);
    Ok(())
}

/// Writes a record of the current start to the store. Deletes the records of all starts except the
/// newest `MAX_STARTS` starts.
pub(super) fn record_start<E: Engine>(context: &mut Context<'_, E>) -> Result<(), Stop> {
    let surplus = context.shared.starts.surplus();
    if let Some((number, first)) = context.shared.starts.last() {
        context.put(&Key::Start(number), &first);
    }
    surplus.into_iter().for_each(|number| context.delete(&Key::Start(number)));
    Ok(())
}
