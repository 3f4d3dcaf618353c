//! Reads information about a cluster through one of its mounts, for users without the cluster's
//! token.
//!
//! The mount offers this information as the values of extended attributes, in the encoding of the
//! mount's program version. The kernel checks the permission of the user, so only a user who may
//! read a file gets its attributes. The names of the attributes are in `skep_fuse`.

use crate::mounts::mounted_at;
use crate::path_lookup::in_mount;
use rustix::io::Errno;
use skep_client::FileUsers;
use skep_fuse::{
    ANCESTORS_XATTR, CLUSTER_MAP_XATTR, FollowedOperations, INFO_XATTR, LOAD_XATTR,
    OPERATIONS_XATTR, SLOW_OPERATIONS, USERS_XATTR, UserLoad, WAITING_XATTR, WaitingRequests,
};
use skep_types::codec::Codec;
use skep_types::{ClusterId, ClusterMap, Error, ErrorCode, InodeId, Result, SessionId};
use skep_wire::metadata::EntryInfo;
use skep_wire::traces::TraceRecord;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum size of an extended attribute's value in bytes.
const MAX_VALUE_BYTES: usize = 64 << 10;
/// Number of attempts to read all pages of the cluster map. An attempt fails if the map changes
/// between two pages.
const MAP_ATTEMPTS: usize = 20;

thread_local! {
    /// Buffer of [`is_written`] for the values of attributes. A purge calls this function for each
    /// file that the purge may remove. Without this buffer, each call would clear a new buffer.
    static USERS_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns details of the file or directory at `path`. `None` if the mount runs an older version.
/// Also `None` if `path` is a symbolic link or a special file, because the mount has no attribute
/// with details for such paths.
///
/// # Errors
/// - `PermissionDenied` if this user may not read the file.
/// - Other errors of the mount.
pub(crate) fn entry_info(path: &Path) -> Result<Option<EntryInfo>> {
    let Some(bytes) = attribute(path, INFO_XATTR)? else { return Ok(None) };
    EntryInfo::from_bytes(&bytes).map(Some).map_err(|error| other_version(path, &error))
}

/// Returns the clients that have the regular file at `path` open. `None` if the mount runs an older
/// version.
///
/// # Errors
/// The errors of [`entry_info`].
pub(crate) fn file_users(path: &Path) -> Result<Option<FileUsers>> {
    let mut users = FileUsers::default();
    let mut after = Some((SessionId::default(), InodeId::default()));
    while let Some((session, inode)) = after {
        let name = format!("{USERS_XATTR}{}-{}", session.raw(), inode.raw());
        let Some(bytes) = attribute(path, &name)? else { return Ok(None) };
        let page = FileUsers::from_bytes(&bytes).map_err(|error| other_version(path, &error))?;
        users.uses.extend(page.uses);
        users.clients.extend(page.clients);
        after = page.next;
    }
    Ok(Some(users))
}

/// Whether a program on any mount has a regular file open for writing. `file` may be open with
/// `O_PATH`. The result is also `false` if the mount runs an older version, or if the file was
/// removed.
///
/// # Errors
/// Errors of the mount.
pub(crate) fn is_written(file: &File) -> io::Result<bool> {
    USERS_BUFFER.with_borrow_mut(|bytes| {
        bytes.resize(MAX_VALUE_BYTES, 0);
        has_writer(file, bytes)
    })
}

/// See [`is_written`]. `bytes` is memory for the values of attributes.
fn has_writer(file: &File, bytes: &mut [u8]) -> io::Result<bool> {
    // The kernel reads no extended attribute through a descriptor of `O_PATH` itself.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut after = Some((SessionId::default(), InodeId::default()));
    while let Some((session, inode)) = after {
        let name = format!("{USERS_XATTR}{}-{}", session.raw(), inode.raw());
        let len = match rustix::fs::getxattr(&path, &name, &mut *bytes) {
            Ok(len) => len,
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT | Errno::STALE) => {
                return Ok(false);
            }
            Err(errno) => return Err(errno.into()),
        };
        let page = FileUsers::from_bytes(&bytes[..len]);
        let page = page.map_err(|error| io::Error::other(error.to_string()))?;
        if page.uses.iter().any(|used| used.writers > 0) {
            return Ok(true);
        }
        after = page.next;
    }
    Ok(false)
}

/// Returns the records of operations that the mount at `path` has made after the position `after`.
/// With the position 0, the mount begins to record at its next operation. `None` means that the
/// mount runs an older version.
///
/// # Errors
/// The errors of [`entry_info`].
pub(crate) fn operations(path: &Path, after: u64) -> Result<Option<FollowedOperations>> {
    let Some(bytes) = attribute(path, &format!("{OPERATIONS_XATTR}{after}"))? else {
        return Ok(None);
    };
    FollowedOperations::from_bytes(&bytes).map(Some).map_err(|error| other_version(path, &error))
}

/// Returns the newest slow operations of this user, or of all users for root, that the mount at
/// `path` has recorded. `None` means that the mount runs an older version.
///
/// # Errors
/// The errors of [`entry_info`].
pub(crate) fn slow_operations(path: &Path) -> Result<Option<Vec<TraceRecord>>> {
    let name = format!("{OPERATIONS_XATTR}{SLOW_OPERATIONS}");
    let Some(bytes) = attribute(path, &name)? else { return Ok(None) };
    let found = FollowedOperations::from_bytes(&bytes);
    let found = found.map_err(|error| other_version(path, &error))?;
    Ok(Some(found.operations.into_iter().map(|it| it.record).collect()))
}

/// Returns the load that this user causes through the mount at `path`, with one row for each object
/// of the kind `by`. The mount continues to count for `seconds`. `None` means that the mount runs
/// an older version.
///
/// # Errors
/// The errors of [`entry_info`].
pub(crate) fn load(path: &Path, by: &str, seconds: u64) -> Result<Option<UserLoad>> {
    let Some(bytes) = attribute(path, &format!("{LOAD_XATTR}{by}.{seconds}"))? else {
        return Ok(None);
    };
    UserLoad::from_bytes(&bytes).map(Some).map_err(|error| other_version(path, &error))
}

/// Returns the requests of this user to which the mount at `path` has not replied. `None` means
/// that the mount runs an older version.
///
/// # Errors
/// The errors of [`entry_info`].
pub(crate) fn waiting(path: &Path) -> Result<Option<WaitingRequests>> {
    let Some(bytes) = attribute(path, WAITING_XATTR)? else { return Ok(None) };
    WaitingRequests::from_bytes(&bytes).map(Some).map_err(|error| other_version(path, &error))
}

/// Finds the path of an inode in the mount that contains `directory`. Lists the directories from
/// the root of the mount to the inode, so the result contains only names that this user may list.
/// `None` if the mount runs an older version.
///
/// # Errors
/// - `NotFound` if the inode does not exist, has no name, or moved during the search.
/// - `PermissionDenied` if this user may not list a directory on the path.
/// - Other errors of the mount.
pub(crate) fn path_of(directory: &Path, inode: InodeId) -> Result<Option<PathBuf>> {
    let root = root_of(directory)?;
    let above = match ancestors(directory, inode) {
        Ok(None) => return Ok(None),
        Ok(Some(above)) => above,
        Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {
            return Err(without_name(inode));
        }
        Err(error) => return Err(error),
    };
    let mut path = root;
    // The last inode in `above` is the root directory, which has no name.
    let below = above.iter().rev().skip(1).copied();
    for next in below.chain((inode != InodeId::ROOT).then_some(inode)) {
        path = entry_with(&path, next)?;
    }
    Ok(Some(path))
}

/// Returns the directories above an inode, from its parent to the root of the mount that contains
/// `place`. `None` if the mount runs an older version.
///
/// # Errors
/// - `NotFound` or `Stale` if the inode does not exist.
/// - Other errors of the mount.
pub(crate) fn ancestors(place: &Path, inode: InodeId) -> Result<Option<Vec<InodeId>>> {
    let Some(bytes) = attribute(place, &format!("{ANCESTORS_XATTR}{}", inode.raw()))? else {
        return Ok(None);
    };
    Vec::<InodeId>::from_bytes(&bytes).map(Some).map_err(|error| other_version(place, &error))
}

/// Returns the root directory of the mount that contains `directory`.
fn root_of(directory: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| {
        Error::from(error).within(format_args!("cannot look up {}", directory.display()))
    };
    let mut root = directory.canonicalize().map_err(failed)?;
    let device = std::fs::metadata(&root).map_err(failed)?.dev();
    while let Some(parent) = root.parent()
        && std::fs::metadata(parent).is_ok_and(|found| found.dev() == device)
    {
        root = parent.to_owned();
    }
    Ok(root)
}

/// Returns the path of the entry in `directory` that has the inode number `inode`.
fn entry_with(directory: &Path, inode: InodeId) -> Result<PathBuf> {
    let refused = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            let what = format!(
                "cannot find the path of entry {inode}: this user may not list the directory {}; \
                 run the command as root",
                directory.display()
            );
            Error::new(ErrorCode::PermissionDenied, what)
        }
        _ => Error::from(error).within(format_args!("cannot look up {}", directory.display())),
    };
    for entry in std::fs::read_dir(directory).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        if entry.ino() == inode.raw() {
            return Ok(entry.path());
        }
    }
    let what = format!(
        "cannot find the path of entry {inode}: {} has no entry with this id; if the file has \
         several names, `find -inum {}` finds the other names",
        directory.display(),
        inode.raw()
    );
    Err(Error::new(ErrorCode::NotFound, what))
}

/// Returns the error for an inode that does not exist or has no name.
pub(crate) fn without_name(inode: InodeId) -> Error {
    let what = format!(
        "cannot find the path of entry {inode}: no file or directory has this id, or the file has \
         lost its last name while a program has the file open"
    );
    Error::new(ErrorCode::NotFound, what)
}

/// The result of an attempt to read all pages of the cluster map.
enum MapPages {
    Whole(Vec<u8>),
    /// The cluster map changed between two pages.
    Changed,
    /// The mount has no attributes for the pages of the map.
    Unsupported,
}

/// Reads the cluster map from the mount at `path`. `None` if the mount runs an older version.
///
/// # Errors
/// The errors of [`entry_info`].
pub(crate) fn cluster_map(path: &Path) -> Result<Option<ClusterMap>> {
    for _ in 0..MAP_ATTEMPTS {
        match read_pages(path)? {
            MapPages::Unsupported => return Ok(None),
            MapPages::Changed => {}
            MapPages::Whole(bytes) => {
                let map = ClusterMap::from_bytes(&bytes);
                return map.map(Some).map_err(|error| other_version(path, &error));
            }
        }
    }
    let what = format!(
        "cannot read the cluster map through the mount at {}: the cluster map changes too often; \
         repeat the command",
        path.display()
    );
    Err(Error::new(ErrorCode::StaleMap, what))
}

/// Refuses a path in a mount of another cluster than `named`. The inode number of the path belongs
/// to another file in `named`, so a request to `named` would return details of a wrong file.
/// Accepts a path that is not in a mount, and a path whose mount does not reply in time or runs an
/// older version.
///
/// # Errors
/// `InvalidArgument` if the path is in a mount of another cluster.
pub(crate) fn refuse_other_cluster(path: &Path, named: ClusterId) -> Result<()> {
    if mounted_at(path).is_none() {
        return Ok(());
    }
    let place = path.to_owned();
    let mounted = in_mount(path, move || cluster_map(&place).ok().flatten().map(|map| map.cluster));
    match mounted.ok().flatten().filter(|mounted| *mounted != named) {
        None => Ok(()),
        Some(mounted) => {
            let what = format!(
                "cannot use {} with cluster {named}: this path is in a mount of cluster {mounted}; \
                 without --cluster and --token-file, the command uses the cluster of the mount",
                path.display()
            );
            Err(Error::new(ErrorCode::InvalidArgument, what))
        }
    }
}

fn read_pages(path: &Path) -> Result<MapPages> {
    let mut bytes = Vec::new();
    let mut version = None;
    for page in 0.. {
        let value = attribute(path, &format!("{CLUSTER_MAP_XATTR}{page}"))?;
        let head = value.as_deref().and_then(|value| {
            let (version, rest) = value.split_first_chunk::<8>()?;
            let (len, rest) = rest.split_first_chunk::<8>()?;
            Some((u64::from_le_bytes(*version), u64::from_le_bytes(*len), rest))
        });
        let Some((of_page, len, rest)) = head else {
            return Ok(if page == 0 { MapPages::Unsupported } else { MapPages::Changed });
        };
        if *version.get_or_insert(of_page) != of_page {
            return Ok(MapPages::Changed);
        }
        bytes.extend_from_slice(rest);
        if bytes.len() as u64 >= len {
            break;
        }
    }
    Ok(MapPages::Whole(bytes))
}

/// Returns the value of an attribute. `None` if the file or the mount has no such attribute.
fn attribute(path: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; MAX_VALUE_BYTES];
    match rustix::fs::lgetxattr(path, name, &mut bytes) {
        Ok(len) => {
            bytes.truncate(len);
            Ok(Some(bytes))
        }
        // The kernel refuses to read these attributes of symbolic links and special files.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
        Err(Errno::ACCESS) => {
            let what = format!(
                "cannot show {}: this user may not read this file; run the command as its owner or \
                 as root",
                path.display()
            );
            Err(Error::new(ErrorCode::PermissionDenied, what))
        }
        Err(errno) => {
            let error = std::io::Error::from(errno);
            let code = match errno {
                Errno::NOENT => ErrorCode::NotFound,
                Errno::STALE => ErrorCode::Stale,
                _ => return Err(Error::from(error).within(path.display())),
            };
            Err(Error::new(code, error.to_string()).within(path.display()))
        }
    }
}

fn other_version(path: &Path, error: &Error) -> Error {
    let what = format!(
        "cannot read the reply of the mount at {}: {error}; check that the mount runs the same \
         version of skep, or use --cluster and --token-file",
        path.display()
    );
    Error::new(ErrorCode::Protocol, what)
}

/// Returns the error for the path `place` in a mount that offers no records of operations for this
/// path.
pub(crate) fn no_records(place: &Path) -> Error {
    let what = format!(
        "cannot follow operations at {}: the mount of this path runs an older version of skep, or \
         the path is a special file; unmount and mount with this version, or name a directory",
        place.display()
    );
    Error::new(ErrorCode::Unsupported, what)
}
