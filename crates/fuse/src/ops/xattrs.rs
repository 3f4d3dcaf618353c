//! Extended attributes, and the one that this layer itself has: `user.skep.transport` of the root
//! directory names the transport in use.

use crate::file_system::FileSystem;
use crate::protocol::Context;
use crate::reply::{Answer, Failure};
use crate::request::XattrChange;
use skep_types::{ACCESS_ACL, DEFAULT_ACL, ErrorCode, InodeId};

type Outcome = Result<Answer, Failure>;

/// Name of the attribute that says which transport a mount uses.
pub const TRANSPORT_XATTR: &str = "user.skep.transport";

/// Namespaces that are kept.
const KEPT: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// Refuses names outside of the namespaces that are kept, as other file systems do. Who may use
/// which of them the kernel checks, but for who sees which names ([`list`]).
fn check(name: &[u8]) -> Result<(), Failure> {
    if is_acl(name) {
        return Ok(());
    }
    match KEPT.iter().find(|prefix| name.starts_with(prefix)) {
        Some(prefix) if name.len() > prefix.len() => Ok(()),
        Some(_) => Err(Failure::Errno(libc::EINVAL)),
        None => Err(Failure::Errno(libc::EOPNOTSUPP)),
    }
}

/// A value, or its size for callers that have no room yet.
fn sized(bytes: Vec<u8>, room: u32) -> Outcome {
    if room == 0 {
        Ok(Answer::Size(bytes.len() as u32))
    } else if bytes.len() > room as usize {
        Err(Failure::Errno(libc::ERANGE))
    } else {
        Ok(Answer::Bytes(bytes))
    }
}

pub(crate) async fn get<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    name: &[u8],
    room: u32,
) -> Outcome {
    if inode == InodeId::ROOT && name == TRANSPORT_XATTR.as_bytes() {
        return sized(context.transport.to_string().into_bytes(), room);
    }
    check(name)?;
    sized(context.file_system.get_xattr(inode, name).await?, room)
}

pub(crate) async fn set(fs: &impl FileSystem, change: XattrChange) -> Outcome {
    let XattrChange { inode, name, value, mode, clear_set_group_id } = change;
    check(&name)?;
    match fs.set_xattr(inode, &name, &value, mode, clear_set_group_id).await {
        Ok(()) => Ok(Answer::Empty),
        // What xattr(7) has for "no more room in this inode"; ERANGE is about the caller's buffer.
        Err(error) if error.code() == ErrorCode::TooLarge => Err(Failure::Errno(libc::ENOSPC)),
        Err(error) => Err(error.into()),
    }
}

/// The names of all attributes; those of `trusted.` are for root.
pub(crate) async fn list(fs: &impl FileSystem, inode: InodeId, uid: u32, room: u32) -> Outcome {
    let mut bytes = Vec::new();
    let all = fs.list_xattrs(inode).await?.into_iter();
    for name in all.filter(|name| uid == 0 || !name.starts_with(b"trusted.")) {
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    sized(bytes, room)
}

pub(crate) async fn remove(fs: &impl FileSystem, inode: InodeId, name: &[u8]) -> Outcome {
    check(name)?;
    match fs.remove_xattr(inode, name).await {
        Ok(()) => Ok(Answer::Empty),
        // Other file systems have it that there is none afterwards.
        Err(error) if error.code() == ErrorCode::NoAttribute && is_acl(name) => Ok(Answer::Empty),
        Err(error) => Err(error.into()),
    }
}
