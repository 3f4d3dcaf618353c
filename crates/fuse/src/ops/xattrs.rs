//! Operations on extended attributes. All attributes are stored with their inodes, except for
//! twelve kinds whose values the mount computes:
//! - `user.skep.transport` of the root directory: the transport in use.
//! - `user.skep.attribute_timeout` of the root directory: the seconds for which the kernel caches
//!   names and attributes.
//! - `user.skep.direct_io` of the root directory: `true` if reads and writes bypass the page cache.
//! - `user.skep.pattern`: the stripe pattern of an inode.
//! - `user.skep.map`: the targets that store the bytes of a file.
//! - `user.skep.info`: the record of metadata about an inode, for `skep entry info`.
//! - `user.skep.cluster_map.PAGE`: a page of the cluster map, for programs that have no token.
//! - `user.skep.users.SESSION-INODE`: a page of the clients that use a file. The page begins after
//!   this session and inode.
//! - `user.skep.operations.POSITION`: the operations of the mount after a position. The position
//!   `slow` means the slow operations of the last minutes.
//! - `user.skep.load.OBJECTS.SECONDS`: the load that a user causes, with one row for each object of
//!   the kind `OBJECTS` (such as target). The mount continues to count for `SECONDS` seconds.
//! - `user.skep.waiting`: the requests of a user to which the mount has not replied.
//! - `user.skep.ancestors.INODE`: the ids of the directories above any inode.
//!
//! Lists of attributes leave the computed attributes out, so that programs that copy all attributes
//! of a file do not copy these.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::following::{Follower, slow_operations};
use crate::reply::{Failure, Outcome, ReplyBody};
use crate::request::xattrs::{XattrChange, XattrRequest};
use crate::user_load::Question;
use skep_types::codec::Codec;
use skep_types::{ACCESS_ACL, ClusterMap, DEFAULT_ACL, Error, ErrorCode, InodeId, SessionId};

/// Attribute of the root directory whose value is the transport of the mount.
pub const TRANSPORT_XATTR: &str = "user.skep.transport";

/// Attribute of the root directory whose value is the number of seconds for which the kernel caches
/// names and attributes.
pub const TIMEOUT_XATTR: &str = "user.skep.attribute_timeout";

/// Attribute of the root directory whose value is `true` if the mount option `direct_io` is set,
/// and otherwise `false`.
pub const DIRECT_IO_XATTR: &str = "user.skep.direct_io";

/// Attribute whose value is the stripe pattern of a file, or the pattern that new entries of a
/// directory inherit.
pub const PATTERN_XATTR: &str = "user.skep.pattern";

/// Attribute whose value lists the targets that store the bytes of a file.
pub const MAP_XATTR: &str = "user.skep.map";

/// Attribute whose value is the encoded `EntryInfo` of an inode.
pub const INFO_XATTR: &str = "user.skep.info";

/// Prefix of the attributes whose values are the pages of the encoded cluster map. The index of the
/// page follows the prefix, from 0 on. Every inode has these attributes.
pub const CLUSTER_MAP_XATTR: &str = "user.skep.cluster_map.";

/// Prefix of the attributes that list the clients that use a file, with one page in each attribute.
/// A cursor follows the prefix: the ids of a session and an inode. The page begins after the
/// cursor. The cursor of the first page has two zeros, and each page contains the cursor of the
/// next page.
pub const USERS_XATTR: &str = "user.skep.users.";

/// Prefix of the attributes whose values are the encoded ids of the directories above an inode.
/// The inode number follows the prefix. Every file and directory of the mount has these
/// attributes.
pub const ANCESTORS_XATTR: &str = "user.skep.ancestors.";

/// Prefix of the attributes whose values are the operations of the mount after a position, which
/// follows the prefix. A program begins with the position zero. Every file and directory has these
/// attributes.
pub const OPERATIONS_XATTR: &str = "user.skep.operations.";

/// The text that a program appends to [`OPERATIONS_XATTR`] in place of a position, to request the
/// newest slow operations of its user.
pub const SLOW_OPERATIONS: &str = "slow";

/// Prefix of the attributes whose values are the load of the user that requests the attribute. The
/// prefix is followed by `target`, `operation`, `user`, `group` or `job`, a dot, and the number of
/// seconds for which the mount continues to count. Every file and directory has these attributes.
pub const LOAD_XATTR: &str = "user.skep.load.";

/// Attribute whose value is an encoded list of requests of the user that reads the attribute: the
/// requests to which the mount has not replied. Every file and directory has this attribute.
pub const WAITING_XATTR: &str = "user.skep.waiting";

/// Number of bytes of the cluster map in each page except for the last. The kernel limits the value
/// of an attribute to 64 KiB.
const MAP_PAGE_BYTES: usize = 60_000;

/// Returns a page of the cluster map. A page begins with the map's version and the length of the
/// whole map in bytes, both as little-endian numbers of 64 bits. The bytes of the page follow.
/// `None` means that the map has no such page.
fn cluster_map_page(map: &ClusterMap, page: &str) -> Option<Vec<u8>> {
    let page: usize = page.parse().ok()?;
    let bytes = map.to_bytes();
    let start = page.checked_mul(MAP_PAGE_BYTES).filter(|start| *start < bytes.len())?;
    let end = bytes.len().min(start + MAP_PAGE_BYTES);
    let mut value = map.version.raw().to_le_bytes().to_vec();
    value.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    value.extend_from_slice(&bytes[start..end]);
    Some(value)
}

/// Namespaces of the attributes that are stored with inodes.
const STORED_NAMESPACES: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// Refuses names outside of the stored namespaces, like other file systems. The kernel checks the
/// permission to use each namespace, but it does not filter the names that [`list`] returns.
fn check(name: &[u8]) -> Result<(), Failure> {
    if is_acl(name) {
        return Ok(());
    }
    match STORED_NAMESPACES.iter().find(|prefix| name.starts_with(prefix)) {
        Some(prefix) if name.len() > prefix.len() => Ok(()),
        Some(_) => Err(Failure::Errno(libc::EINVAL)),
        None => Err(Failure::Errno(libc::EOPNOTSUPP)),
    }
}

/// Returns an attribute's value, or only the size of the value if `max_bytes` is zero.
fn sized(bytes: Vec<u8>, max_bytes: u32) -> Outcome {
    if max_bytes == 0 {
        Ok(ReplyBody::Size(bytes.len() as u32))
    } else if bytes.len() > max_bytes as usize {
        Err(Failure::Errno(libc::ERANGE))
    } else {
        Ok(ReplyBody::Bytes(bytes))
    }
}

pub(crate) async fn perform<F: FileSystem>(context: &Context<F>, request: XattrRequest) -> Outcome {
    let fs = &context.file_system;
    match request {
        XattrRequest::Get { inode, name, max_bytes, by } => {
            if let Some(answer) = followed(context, &name, by) {
                return sized(answer, max_bytes);
            }
            get(context, inode, &name, max_bytes).await
        }
        XattrRequest::Set(change) => set(fs, change).await,
        XattrRequest::List { inode, uid, max_bytes } => list(fs, inode, uid, max_bytes).await,
        XattrRequest::Remove { inode, name, uid } => remove(fs, inode, &name, uid).await,
    }
}

/// Returns the operations of the mount, or the load or the waiting requests of the user, if `name`
/// is a query for one of them.
fn followed<F: FileSystem>(context: &Context<F>, name: &[u8], by: Follower) -> Option<Vec<u8>> {
    let name = std::str::from_utf8(name).ok()?;
    let now = skep_env::now();
    if let Some(question) = name.strip_prefix(LOAD_XATTR) {
        return Some(Question::parse(question)?.answer(&context.load, by, now).to_bytes());
    }
    if name == WAITING_XATTR {
        let groups = skep_client::failing_groups(now);
        let map = context.file_system.cluster_map();
        return Some(context.waiting.answer(by.uid, groups, &map, now).to_bytes());
    }
    let position = name.strip_prefix(OPERATIONS_XATTR)?;
    if position == SLOW_OPERATIONS {
        return Some(slow_operations(context.options.metrics.traces(), by.uid).to_bytes());
    }
    let after = position.parse().ok()?;
    Some(context.following.ask(after, by, now).to_bytes())
}

async fn get<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    name: &[u8],
    max_bytes: u32,
) -> Outcome {
    let name_text = std::str::from_utf8(name);
    if inode == InodeId::ROOT
        && let Some(value) = name_text.ok().and_then(|name| of_mount(context, name))
    {
        return sized(value.into_bytes(), max_bytes);
    }
    check(name)?;
    let fs = &context.file_system;
    if let Ok(name) = name_text
        && let Some(page) = name.strip_prefix(CLUSTER_MAP_XATTR)
    {
        let page = cluster_map_page(&fs.cluster_map(), page);
        return sized(page.ok_or(Failure::Errno(libc::ENODATA))?, max_bytes);
    }
    if let Ok(name) = name_text
        && let Some(value) = answer(fs, inode, name).await
    {
        return sized(value?, max_bytes);
    }
    let value = match name_text {
        Ok(PATTERN_XATTR) => fs.pattern(inode).await?,
        Ok(MAP_XATTR) => fs.pattern_map(inode).await?,
        Ok(INFO_XATTR) => fs.entry_info(inode).await?,
        _ => fs.get_xattr(inode, name).await?,
    };
    sized(value, max_bytes)
}

/// Returns an attribute of the root directory that describes the mount. `None` means that `name` is
/// not such an attribute.
fn of_mount<F>(context: &Context<F>, name: &str) -> Option<String> {
    Some(match name {
        TRANSPORT_XATTR => context.features.transport.to_string(),
        TIMEOUT_XATTR => context.options.validity.as_secs_f64().to_string(),
        DIRECT_IO_XATTR => context.options.has_direct_io.to_string(),
        _ => return None,
    })
}

/// Returns the result of a query whose argument is a part of the attribute's name. `None` means
/// that no query has this name.
async fn answer(
    fs: &impl FileSystem,
    inode: InodeId,
    name: &str,
) -> Option<Result<Vec<u8>, Failure>> {
    if let Some(position) = name.strip_prefix(USERS_XATTR) {
        let (session, listed) = position.split_once('-')?;
        let after = (SessionId::new(session.parse().ok()?), InodeId::new(listed.parse().ok()?));
        return Some(fs.file_users(inode, after).await.map_err(Failure::from));
    }
    let above = name.strip_prefix(ANCESTORS_XATTR)?.parse().ok()?;
    Some(fs.ancestors(InodeId::new(above)).await.map_err(Failure::from))
}

async fn set(fs: &impl FileSystem, change: XattrChange) -> Outcome {
    let XattrChange { inode, name, value, mode, clear_set_group_id, uid } = change;
    check(&name)?;
    match std::str::from_utf8(&name) {
        Ok(PATTERN_XATTR) => {
            fs.set_pattern(inode, Some(&value), uid).await.map_err(pattern_failure)?;
            return Ok(ReplyBody::Empty);
        }
        Ok(
            MAP_XATTR | INFO_XATTR | TRANSPORT_XATTR | TIMEOUT_XATTR | DIRECT_IO_XATTR
            | WAITING_XATTR,
        ) => {
            return Err(Failure::Errno(libc::EPERM));
        }
        Ok(name)
            if [CLUSTER_MAP_XATTR, USERS_XATTR, ANCESTORS_XATTR, OPERATIONS_XATTR, LOAD_XATTR]
                .iter()
                .any(|prefix| name.starts_with(prefix)) =>
        {
            return Err(Failure::Errno(libc::EPERM));
        }
        _ => {}
    }
    let Some(mode) = mode else {
        // The caller set both XATTR_CREATE and XATTR_REPLACE. Like other file systems, report the
        // error of the flag that fails.
        fs.get_xattr(inode, &name).await?;
        return Err(Failure::Errno(libc::EEXIST));
    };
    match fs.set_xattr(inode, &name, &value, mode, clear_set_group_id).await {
        Ok(()) => Ok(ReplyBody::Empty),
        // According to xattr(7), ENOSPC means that this inode has no more space. ERANGE would mean
        // that the caller's buffer is too small.
        Err(error) if error.code() == ErrorCode::TooLarge => Err(Failure::Errno(libc::ENOSPC)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the names of all attributes. Only root gets the names that begin with `trusted.`.
async fn list(fs: &impl FileSystem, inode: InodeId, uid: u32, max_bytes: u32) -> Outcome {
    let mut bytes = Vec::new();
    let all = fs.list_xattrs(inode).await?.into_iter();
    for name in all.filter(|name| uid == 0 || !name.starts_with(b"trusted.")) {
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    sized(bytes, max_bytes)
}

/// Returns the error number for an invalid pattern. A missing target gives ENXIO, because ENOENT
/// would mean for the program that the file is missing.
fn pattern_failure(error: Error) -> Failure {
    match error.code() {
        ErrorCode::NotFound => Failure::Errno(libc::ENXIO),
        _ => error.into(),
    }
}

async fn remove(fs: &impl FileSystem, inode: InodeId, name: &[u8], uid: u32) -> Outcome {
    check(name)?;
    if name == PATTERN_XATTR.as_bytes() {
        fs.set_pattern(inode, None, uid).await?;
        return Ok(ReplyBody::Empty);
    }
    match fs.remove_xattr(inode, name).await {
        Ok(()) => Ok(ReplyBody::Empty),
        // Removing an access control list that does not exist succeeds, as on other file systems.
        Err(error) if error.code() == ErrorCode::NoAttribute && is_acl(name) => {
            Ok(ReplyBody::Empty)
        }
        Err(error) => Err(error.into()),
    }
}
