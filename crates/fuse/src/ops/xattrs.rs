//! Extended attributes, and those that aren't stored as such: `user.skep.transport` of the root
//! directory names the transport in use and `user.skep.attribute_timeout` says for how many seconds
//! the kernel remembers attributes, `user.skep.pattern` is an inode's stripe pattern, and
//! `user.skep.map` says where a file's bytes lie. No list shows them, so that programs that copy
//! all attributes of a file leave them alone.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Answer, Failure};
use crate::request::XattrChange;
use skep_types::{ACCESS_ACL, DEFAULT_ACL, Error, ErrorCode, InodeId};

type Outcome = Result<Answer, Failure>;

/// Name of the attribute that says which transport a mount uses.
pub const TRANSPORT_XATTR: &str = "user.skep.transport";

/// Name of the attribute that says how many seconds the kernel may remember names and attributes.
pub const TIMEOUT_XATTR: &str = "user.skep.attribute_timeout";

/// Name of the attribute that is the stripe pattern of a file, or what a directory hands down.
pub const PATTERN_XATTR: &str = "user.skep.pattern";

/// Name of the attribute that says where the bytes of a file lie.
pub const MAP_XATTR: &str = "user.skep.map";

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

/// A value, or its size for callers that have no space yet.
fn sized(bytes: Vec<u8>, max_bytes: u32) -> Outcome {
    if max_bytes == 0 {
        Ok(Answer::Size(bytes.len() as u32))
    } else if bytes.len() > max_bytes as usize {
        Err(Failure::Errno(libc::ERANGE))
    } else {
        Ok(Answer::Bytes(bytes))
    }
}

pub(crate) async fn get<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    name: &[u8],
    max_bytes: u32,
) -> Outcome {
    if inode == InodeId::ROOT && name == TRANSPORT_XATTR.as_bytes() {
        return sized(context.transport.to_string().into_bytes(), max_bytes);
    }
    if inode == InodeId::ROOT && name == TIMEOUT_XATTR.as_bytes() {
        return sized(context.validity.as_secs_f64().to_string().into_bytes(), max_bytes);
    }
    check(name)?;
    let fs = &context.file_system;
    let value = match std::str::from_utf8(name) {
        Ok(PATTERN_XATTR) => fs.pattern(inode).await?,
        Ok(MAP_XATTR) => fs.pattern_map(inode).await?,
        _ => fs.get_xattr(inode, name).await?,
    };
    sized(value, max_bytes)
}

pub(crate) async fn set(fs: &impl FileSystem, change: XattrChange) -> Outcome {
    let XattrChange { inode, name, value, mode, clear_set_group_id, uid } = change;
    check(&name)?;
    match std::str::from_utf8(&name) {
        Ok(PATTERN_XATTR) => {
            fs.set_pattern(inode, Some(&value), uid).await.map_err(of_pattern)?;
            return Ok(Answer::Empty);
        }
        Ok(MAP_XATTR | TRANSPORT_XATTR | TIMEOUT_XATTR) => return Err(Failure::Errno(libc::EPERM)),
        _ => {}
    }
    let Some(mode) = mode else {
        // It is to be new and to exist: as other file systems say that it can't.
        fs.get_xattr(inode, &name).await?;
        return Err(Failure::Errno(libc::EEXIST));
    };
    match fs.set_xattr(inode, &name, &value, mode, clear_set_group_id).await {
        Ok(()) => Ok(Answer::Empty),
        // What xattr(7) has for "no more space in this inode"; ERANGE is about the caller's buffer.
        Err(error) if error.code() == ErrorCode::TooLarge => Err(Failure::Errno(libc::ENOSPC)),
        Err(error) => Err(error.into()),
    }
}

/// The names of all attributes; those of `trusted.` are for root.
pub(crate) async fn list(
    fs: &impl FileSystem,
    inode: InodeId,
    uid: u32,
    max_bytes: u32,
) -> Outcome {
    let mut bytes = Vec::new();
    let all = fs.list_xattrs(inode).await?.into_iter();
    for name in all.filter(|name| uid == 0 || !name.starts_with(b"trusted.")) {
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    sized(bytes, max_bytes)
}

/// A target that isn't there mustn't look like a file that isn't.
fn of_pattern(error: Error) -> Failure {
    match error.code() {
        ErrorCode::NotFound => Failure::Errno(libc::ENXIO),
        _ => error.into(),
    }
}

pub(crate) async fn remove(fs: &impl FileSystem, inode: InodeId, name: &[u8], uid: u32) -> Outcome {
    check(name)?;
    if name == PATTERN_XATTR.as_bytes() {
        fs.set_pattern(inode, None, uid).await?;
        return Ok(Answer::Empty);
    }
    match fs.remove_xattr(inode, name).await {
        Ok(()) => Ok(Answer::Empty),
        // Other file systems have it that there is none afterwards.
        Err(error) if error.code() == ErrorCode::NoAttribute && is_acl(name) => Ok(Answer::Empty),
        Err(error) => Err(error.into()),
    }
}
