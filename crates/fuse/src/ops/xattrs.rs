//! Extended attributes, and the one that this layer itself has: `user.skep.transport` of the root
//! directory names the transport in use.

use crate::file_system::FileSystem;
use crate::protocol::Context;
use crate::reply::{Answer, Failure};
use skep_client::XattrMode;
use skep_types::{ErrorCode, InodeId};

type Outcome = Result<Answer, Failure>;

/// Name of the attribute that says which transport a mount uses.
pub const TRANSPORT_XATTR: &str = "user.skep.transport";

/// Only attributes of users are kept. The kernel asks for others all the time
/// (`security.capability`, `security.selinux`, `system.posix_acl_access`): they are answered here.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") && name.len() > b"user.".len()
}

fn is_private(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
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
    if !is_kept(name) {
        let errno = if is_private(name) { libc::ENODATA } else { libc::EOPNOTSUPP };
        return Err(Failure::Errno(errno));
    }
    sized(context.file_system.get_xattr(inode, name).await?, room)
}

pub(crate) async fn set(
    fs: &impl FileSystem,
    inode: InodeId,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Outcome {
    if !is_kept(name) {
        return Err(Failure::Errno(libc::EOPNOTSUPP));
    }
    match fs.set_xattr(inode, name, value, mode).await {
        Ok(()) => Ok(Answer::Empty),
        // What xattr(7) has for "no more room in this inode"; ERANGE is about the caller's buffer.
        Err(error) if error.code() == ErrorCode::TooLarge => Err(Failure::Errno(libc::ENOSPC)),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn list(fs: &impl FileSystem, inode: InodeId, room: u32) -> Outcome {
    let mut bytes = Vec::new();
    for name in fs.list_xattrs(inode).await? {
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    sized(bytes, room)
}

pub(crate) async fn remove(fs: &impl FileSystem, inode: InodeId, name: &[u8]) -> Outcome {
    if !is_kept(name) {
        return Err(Failure::Errno(libc::EOPNOTSUPP));
    }
    fs.remove_xattr(inode, name).await?;
    Ok(Answer::Empty)
}
