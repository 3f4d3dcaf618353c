//! The addresses of a cluster's management that this host has learned from cluster maps.
//!
//! A token or a command line may name only one management node, which may be down while the other
//! management nodes serve. So services, mounts and commands write the addresses of management from
//! each new cluster map to a file of this host. After that, the addresses in the token or on the
//! command line need not reply any more. Commands and new mounts try the given addresses first, and
//! then the addresses in this file.
//!
//! The file is only a cache. The file contains no secret, and a host works without the file as long
//! as management replies at one of the given addresses. A wrong address in the file is harmless,
//! because each side of a connection proves that it has the cluster's secret.
//!
//! [`skep_rpc::Management`] defines the order in which addresses are tried. [`crate::cached_map`]
//! has the cached map of a service, and [`crate::known_map`] the cluster map of the host.
//!
//! # Format
//! A host has one file for each cluster, named by the id of the cluster. Each line is one address.

use skep_store::atomic::replace_atomically;
use skep_types::{ClusterId, Error, Result};
use std::fs::OpenOptions;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Environment variable that names the directory of the file with the addresses. systemd sets the
/// variable for units with `CacheDirectory=`.
const DIRECTORY_VARIABLE: &str = "CACHE_DIRECTORY";
/// Directory of the files that commands of all users of this host read. Root and the user of the
/// services write to this directory.
const OF_HOST: &str = "/var/cache/skep";
/// Name of the directory in the cache directory of a user.
const OF_USER: &str = "skep";
/// Suffix of the file name, after the id of the cluster.
const ENDING: &str = ".management";
/// Maximum number of addresses in the file. All management nodes of a cluster together have fewer
/// addresses than this number.
const MAX_ADDRESSES: usize = 64;
/// Maximum size in bytes of a file that commands read. This limit is larger than any cluster map.
const MAX_FILE: u64 = 1 << 26;

/// Returns the addresses that this host has learned for a cluster. The list is empty if the host
/// has no readable file for the cluster.
pub fn learned_addresses(cluster: ClusterId) -> Vec<String> {
    read_places(&places(), cluster)
}

/// Writes the addresses of management in the newest cluster map to the file of this host. `given`
/// are the addresses in the token or the command line. If `given` has all addresses in the map, the
/// host does not need the file. The function then updates an existing file, but creates no new
/// file.
///
/// Blocks for the write if the addresses have changed. The process logs failures only at the level
/// debug, since many users cannot write the file.
pub fn remember(cluster: ClusterId, given: &[String], learned: &[String]) {
    let Some(place) = places().into_iter().next() else { return };
    if let Err(error) = remember_in(&place, cluster, given, learned) {
        tracing::debug!(
            "cannot write the addresses of management to the file of this host: {error}"
        );
    }
}

/// Returns the directories that may contain the files of this host. The calling user writes to the
/// first of these directories.
pub(crate) fn places() -> Vec<PathBuf> {
    let named = std::env::var_os(DIRECTORY_VARIABLE).filter(|it| !it.is_empty());
    if let Some(named) = named {
        // systemd may set the variable to several directories, separated by colons. Use only the
        // first of these directories.
        return std::env::split_paths(&named).take(1).collect();
    }
    let of_host = PathBuf::from(OF_HOST);
    if rustix::process::geteuid().is_root() {
        return vec![of_host];
    }
    let configured = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let configured = configured.filter(|path| path.is_absolute());
    let of_user = configured.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    let of_user = of_user.filter(|path| path.is_absolute()).map(|path| path.join(OF_USER));
    of_user.into_iter().chain([of_host]).collect()
}

fn file_in(directory: &Path, cluster: ClusterId) -> PathBuf {
    directory.join(format!("{cluster}{ENDING}"))
}

fn read_places(places: &[PathBuf], cluster: ClusterId) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for place in places {
        let Ok(text) = read_regular(&file_in(place, cluster)) else { continue };
        let text = String::from_utf8_lossy(&text);
        for line in text.lines().filter(|line| is_address(line)).take(MAX_ADDRESSES) {
            if !found.iter().any(|known| known == line) {
                found.push(line.to_owned());
            }
        }
    }
    found
}

/// Reads a file in a directory that the user of the services can change. A pipe or a device in the
/// place of the file must not block or affect the commands of other users.
///
/// # Errors
/// Errors of the file system, and `InvalidData` if the file is not a regular file or is too large.
pub(crate) fn read_regular(path: &Path) -> std::io::Result<Vec<u8>> {
    let wrong = |what: &str| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    if !std::fs::metadata(path)?.is_file() {
        return wrong("the path is not a regular file");
    }
    // The user of the services may replace the file by a pipe after this check, so the open must
    // not block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return wrong("the path is not a regular file");
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == MAX_FILE {
        true => wrong("the file is too large"),
        false => Ok(bytes),
    }
}

/// Whether a line looks like `host:port`. Other lines of a damaged file must not appear in
/// messages.
fn is_address(line: &str) -> bool {
    let has_port = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
    line.chars().all(|it| it.is_ascii_graphic()) && line.rsplit_once(':').is_some_and(has_port)
}

pub(crate) fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

fn remember_in(
    place: &Path,
    cluster: ClusterId,
    given: &[String],
    learned: &[String],
) -> Result<()> {
    let file = file_in(place, cluster);
    let present = read_regular(&file).ok();
    // A new loopback address is no reason to create the file. Only the processes of this host reach
    // a node at a loopback address, and these processes find the token of the node in its
    // directory.
    let is_new = |address: &String| !given.contains(address) && !is_loopback(address);
    let is_needed = learned.iter().any(is_new);
    if learned.is_empty() || present.is_none() && !is_needed {
        return Ok(());
    }
    let lines: Vec<_> = learned.iter().take(MAX_ADDRESSES).map(|it| format!("{it}\n")).collect();
    let text = lines.concat();
    if present.is_some_and(|bytes| bytes == text.as_bytes()) {
        return Ok(());
    }
    std::fs::create_dir_all(place).map_err(|error| Error::from(error).within(place.display()))?;
    replace_atomically(&file, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId::new([7; 16]);

    fn texts(addresses: &[&str]) -> Vec<String> {
        addresses.iter().map(|it| (*it).to_owned()).collect()
    }

    /// The user of the services may have put a pipe into the directory.
    #[test]
    fn pipe_or_device_in_place_of_a_stored_file_is_not_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        read_regular(&path).unwrap_err();
        std::os::unix::fs::symlink("/dev/zero", scratch.path().join("device")).unwrap();
        read_regular(&scratch.path().join("device")).unwrap_err();
        std::fs::write(scratch.path().join("file"), "a:1").unwrap();
        assert_eq!(read_regular(&scratch.path().join("file")).unwrap(), b"a:1");
    }

    #[test]
    fn host_keeps_the_management_addresses_of_the_newest_map() {
        let scratch = tempfile::tempdir().unwrap();
        let place = scratch.path().join("skep");
        let known = || read_places(std::slice::from_ref(&place), CLUSTER);
        let remember = |given: &[&str], learned: &[&str]| {
            remember_in(&place, CLUSTER, &texts(given), &texts(learned)).unwrap();
        };
        remember(&["a:1"], &["a:1"]);
        remember(&["a:1"], &["127.0.0.1:7400", "[::1]:7400"]);
        assert!(!place.exists(), "only processes of this host use loopback addresses");
        remember(&["a:1"], &["a:1", "b:1", "[::1]:7"]);
        assert_eq!(known(), ["a:1", "b:1", "[::1]:7"]);
        assert!(read_places(std::slice::from_ref(&place), ClusterId::new([8; 16])).is_empty());
        // If the token of a node already has all addresses, the node still updates the file for
        // programs with an older token.
        remember(&["a:1", "c:1"], &["a:1", "c:1"]);
        assert_eq!(known(), ["a:1", "c:1"]);
        remember(&["a:1"], &[]);
        assert_eq!(known(), ["a:1", "c:1"], "an empty map names no management");
    }

    #[test]
    fn invalid_lines_in_a_list_of_management_nodes_are_ignored() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().to_owned();
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(file_in(&place, CLUSTER), "a:1\nb\n:1\na b:1\n\u{1b}[m:1\nc:99999\nd:2\n")
            .unwrap();
        assert_eq!(read_places(&[place], CLUSTER), ["a:1", "d:2"]);
    }
}
