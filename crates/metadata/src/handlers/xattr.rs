//! Extended attributes: `GetXattr`, `SetXattr`, `ListXattrs` and `RemoveXattr`. These four handlers
//! are in one file because they use the same checks of names and sizes.

use crate::engine::Engine;
use crate::namespace::acls::is_acl;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{InodeRecord, Key};
use skep_types::codec::Bytes;
use skep_types::{Error, ErrorCode, InodeId, Result};
use skep_wire::limits::{MAX_XATTR_LIST_BYTES, MAX_XATTR_NAME_BYTES, MAX_XATTR_VALUE_BYTES};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::{
    BytesReply, GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode, XattrNames,
};

/// Name of the extended attribute with the capabilities of an executable file (`capabilities(7)`).
/// A change of the file's owner or bytes removes this attribute.
const CAPABILITY: &[u8] = b"security.capability";

impl<E: Engine> Context<'_, E> {
    /// Removes the capabilities attribute of a file, if the file has it.
    pub(crate) fn drop_capability(&mut self, record: &mut InodeRecord) {
        if std::mem::take(&mut record.attributes.has_capability) {
            self.delete(&Key::Xattr(record.attributes.inode, CAPABILITY));
        }
    }
}

fn check(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > MAX_XATTR_NAME_BYTES || name.contains(&0) {
        return Err(Error::new(
            ErrorCode::TooLarge,
            format!(
                "invalid name of an extended attribute: expected 1 to {MAX_XATTR_NAME_BYTES} bytes \
                 without a zero byte"
            ),
        ));
    }
    Ok(())
}

fn names<E: Engine>(context: &Context<'_, E>, inode: InodeId) -> Result<Vec<Bytes>> {
    let prefix = Key::xattrs_of(inode);
    let found = context.scan_keys(&prefix, &[], usize::MAX)?;
    Ok(found.into_iter().map(|key| Bytes(key[prefix.len()..].to_vec())).collect())
}

pub(crate) fn get<E: Engine>(
    context: &mut Context<'_, E>,
    request: GetXattr,
) -> Result<BytesReply, Stop> {
    check(&request.name)?;
    context.inode(request.inode)?;
    match context.get_raw(&Key::Xattr(request.inode, &request.name))? {
        Some(value) => Ok(BytesReply { bytes: Bytes(value) }),
        None => Err(ErrorCode::NoAttribute.into()),
    }
}

pub(crate) fn set<E: Engine>(
    context: &mut Context<'_, E>,
    request: SetXattr,
) -> Result<EmptyReply, Stop> {
    check(&request.name)?;
    if request.value.len() > MAX_XATTR_VALUE_BYTES {
        return Err(ErrorCode::TooLarge.into());
    }
    let mut record = context.inode(request.inode)?;
    if is_acl(&request.name) {
        context.check_free_space()?;
        let clear = request.clear_set_group_id;
        context.set_acl(&mut record, &request.name, &request.value, clear)?;
        context.touch_changed(&mut record.attributes);
        context.put_inode(&record);
        return Ok(EmptyReply {});
    }
    let key = Key::Xattr(request.inode, &request.name);
    let exists = context.is_stored(&key)?;
    match (request.mode, exists) {
        (XattrMode::Create, true) => return Err(ErrorCode::Exists.into()),
        (XattrMode::Replace, false) => return Err(ErrorCode::NoAttribute.into()),
        _ => {}
    }
    if !exists {
        let taken: usize = names(context, request.inode)?.iter().map(|name| name.len() + 1).sum();
        if taken + request.name.len() + 1 > MAX_XATTR_LIST_BYTES {
            let what = format!(
                "cannot add an extended attribute to inode {}: the names of its extended \
                 attributes would exceed {MAX_XATTR_LIST_BYTES} bytes; remove other extended \
                 attributes first",
                request.inode
            );
            return Err(Error::new(ErrorCode::NoSpace, what).into());
        }
    }
    context.check_free_space()?;
    context.put_raw(&key, &request.value);
    record.has_xattrs = true;
    record.attributes.has_capability |= request.name.0 == CAPABILITY;
    context.touch_changed(&mut record.attributes);
    context.put_inode(&record);
    Ok(EmptyReply {})
}

pub(crate) fn list<E: Engine>(
    context: &mut Context<'_, E>,
    request: ListXattrs,
) -> Result<XattrNames, Stop> {
    context.inode(request.inode)?;
    Ok(XattrNames { names: names(context, request.inode)? })
}

pub(crate) fn remove<E: Engine>(
    context: &mut Context<'_, E>,
    request: RemoveXattr,
) -> Result<EmptyReply, Stop> {
    check(&request.name)?;
    let mut record = context.inode(request.inode)?;
    let key = Key::Xattr(request.inode, &request.name);
    if !context.is_stored(&key)? {
        return Err(ErrorCode::NoAttribute.into());
    }
    if is_acl(&request.name) {
        context.remove_acl(&mut record, &request.name)?;
    }
    context.delete(&key);
    record.attributes.has_capability &= request.name.0 != CAPABILITY;
    context.touch_changed(&mut record.attributes);
    context.put_inode(&record);
    Ok(EmptyReply {})
}
