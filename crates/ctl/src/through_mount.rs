//! Reads the records of a cluster through one of its mounts, for users without the cluster's token.
//!
//! The mount answers with extended attributes whose values are encoded records of the same version
//! of the program. The kernel checks the user's permission: reading the attributes of a file needs
//! the permission to read the file. Does not own their names (`skep_fuse`).

use rustix::io::Errno;
use skep_fuse::{CLUSTER_MAP_XATTR, INFO_XATTR};
use skep_types::codec::Codec;
use skep_types::{ClusterMap, Error, ErrorCode, Result};
use skep_wire::metadata::EntryInfo;
use std::path::Path;

/// Maximum size of the value of an extended attribute.
const MAX_VALUE_BYTES: usize = 64 << 10;
/// Number of attempts to read all pages of one version of the map.
const MAP_ATTEMPTS: usize = 20;

/// Returns the cluster map and the record about the file or directory at `path`. `None` if the
/// mount cannot answer: it is of an older version, or `path` is a symbolic link or a special file,
/// which have no such attributes.
///
/// # Errors
/// - `PermissionDenied` if this user may not read the file.
/// - Other errors of the mount.
pub(crate) fn entry_info(path: &Path) -> Result<Option<(ClusterMap, EntryInfo)>> {
    let Some(bytes) = attribute(path, INFO_XATTR)? else { return Ok(None) };
    let info = EntryInfo::from_bytes(&bytes).map_err(|error| other_version(path, &error))?;
    Ok(cluster_map(path)?.map(|map| (map, info)))
}

/// The result of reading all pages of the map.
enum MapPages {
    Whole(Vec<u8>),
    /// The map changed between two pages.
    Changed,
    /// The mount has no such attributes.
    Unsupported,
}

/// Returns the cluster map of the mount at `path`. `None` if the mount is of an older version.
fn cluster_map(path: &Path) -> Result<Option<ClusterMap>> {
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
        "cannot read the cluster map through the mount at {}: it changes too often; try again",
        path.display()
    );
    Err(Error::new(ErrorCode::StaleMap, what))
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
        // The kernel refuses such attributes of symbolic links and special files.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
        Err(Errno::ACCESS) => {
            let what = format!(
                "cannot show {}: this user may not read it; its owner and root can",
                path.display()
            );
            Err(Error::new(ErrorCode::PermissionDenied, what))
        }
        Err(errno) => Err(Error::from(std::io::Error::from(errno)).within(path.display())),
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
