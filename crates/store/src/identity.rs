//! The directories of nodes and targets. This module initialises and opens them, and refuses
//! directories that belong to another node, target or cluster.
//!
//! Owns the file `skep-identity` and the lock file `skep-lock` of a directory. A service refuses a
//! blank directory unless the option `--init` is given. Otherwise a target whose disk is not
//! mounted would start empty under its old id.

use crate::atomic::{read_if_exists, replace_atomically};
pub use crate::identity_file::{IDENTITY_FILE, is_initialised};
use rustix::fs::OFlags;
use skep_format::identity::{DirectoryKind, Identity};
use skep_types::{ClusterId, Error, ErrorCode, NodeId, Result, TargetId};
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file that a process locks while it serves the directory.
pub const LOCK_FILE: &str = "skep-lock";
/// Mode of new directories. Only the owner can enter, since they contain the data of all users.
const PRIVATE_MODE: u32 = 0o700;
/// Number of times that [`lock`] tries to lock the directory of a target. All attempts, with
/// [`LOCK_PAUSE`] between two attempts, take 200 ms. This time is short enough for the calling
/// thread, which also sends heartbeats.
const LOCK_ATTEMPTS: u32 = 20;
/// Number of times that a process tries to lock the directory of its node when it starts. All
/// attempts take 5 s: a process that was killed during a sync of its disk ends only after the sync.
const NODE_LOCK_ATTEMPTS: u32 = 500;
/// Pause between two attempts to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// An open directory whose identity was checked. No other process can open the directory until this
/// value is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    identity: Identity,
    _lock: File,
}

fn refused(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Configuration, format!("{}: {problem}", path.display()))
}

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::from(error).within(path.display())
}

impl Directory {
    /// Initialises a blank directory durably, and opens it. Creates the directory if necessary.
    ///
    /// # Errors
    /// - `Exists` if the directory has an identity already.
    /// - `Configuration` if the directory contains any other file, or if another process uses it.
    /// - Errors of the file system.
    pub fn initialise(path: &Path, identity: Identity) -> Result<Self> {
        create_private(path)?;
        if let Some(found) = read_identity(path)? {
            let what = format!(
                "cannot initialise {}: it is a {} of cluster {} already; start without --init",
                path.display(),
                found.kind,
                found.cluster
            );
            return Err(Error::new(ErrorCode::Exists, what));
        }
        // Refuse a directory with other files before the first change, because the directory may
        // belong to another program.
        refuse_used(path)?;
        let lock = lock(path, LOCK_ATTEMPTS)?;
        refuse_used(path)?;
        close_to_others(path)?;
        replace_atomically(&path.join(IDENTITY_FILE), &identity.to_file())?;
        // Make the name of the directory durable, in case `create_private` has created it.
        if let Some(parent) = path.parent() {
            crate::atomic::sync_directory(parent)?;
        }
        Ok(Self { path: path.to_owned(), identity, _lock: lock })
    }

    /// Opens a directory. The directory must have the kind `kind`. Unless `cluster` is `None`, the
    /// directory must also belong to that cluster.
    ///
    /// # Errors
    /// - `Configuration` if the directory is missing, blank, of another kind, of another cluster,
    ///   or in use by another process. The context of the error contains the remedy.
    /// - `Corrupt` if the identity record is damaged.
    pub fn open(path: &Path, kind: DirectoryKind, cluster: Option<ClusterId>) -> Result<Self> {
        let Some(identity) = read_identity(path)? else {
            return Err(refused(path, missing(path, kind)));
        };
        if identity.kind != kind {
            return Err(refused(
                path,
                format_args!(
                    "this is a {}, but a {kind} is expected; name another directory",
                    identity.kind
                ),
            ));
        }
        if let Some(cluster) = cluster
            && cluster != identity.cluster
        {
            return Err(refused(
                path,
                format_args!(
                    "{} belongs to cluster {}, not to cluster {cluster}",
                    name_of(&identity),
                    identity.cluster
                ),
            ));
        }
        let attempts = match kind {
            DirectoryKind::MetadataTarget | DirectoryKind::StorageTarget => LOCK_ATTEMPTS,
            _ => NODE_LOCK_ATTEMPTS,
        };
        let lock = lock(path, attempts)?;
        close_to_others(path)?;
        Ok(Self { path: path.to_owned(), identity, _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity: the cluster, node and target to which the directory belongs.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Persists the ids that management assigned. An id that the record already contains must not
    /// change.
    ///
    /// # Errors
    /// - `Configuration`, which names both ids, if the record already contains a different id.
    /// - Errors of the file system.
    pub fn assign(&mut self, node: NodeId, target: TargetId) -> Result<()> {
        let old = self.identity;
        if old.target.raw() != 0 && old.target != target {
            return Err(refused(
                &self.path,
                format_args!(
                    "this is the directory of target {}, but management has assigned the id \
                     {target}",
                    old.target
                ),
            ));
        }
        if old.node.raw() != 0 && old.node != node {
            return Err(refused(
                &self.path,
                format_args!(
                    "this directory belongs to node {}, but management has assigned the id {node}",
                    old.node
                ),
            ));
        }
        let new = Identity { node, target, ..old };
        if new != old {
            replace_atomically(&self.path.join(IDENTITY_FILE), &new.to_file())?;
            self.identity = new;
        }
        Ok(())
    }

    /// Stores a new uuid and node id durably. A node whose directory was restored from a backup
    /// continues as a new node.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn become_node(&mut self, uuid: u128, node: NodeId) -> Result<()> {
        let new = Identity { node_uuid: uuid, node, ..self.identity };
        replace_atomically(&self.path.join(IDENTITY_FILE), &new.to_file())?;
        self.identity = new;
        Ok(())
    }
}

/// Creates a directory that only its owner can enter. A directory that exists already keeps its
/// mode, since it may belong to another program.
fn create_private(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(cannot_create(path))?;
    }
    match DirBuilder::new().mode(PRIVATE_MODE).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        created => created.map_err(cannot_create(path)),
    }
}

/// Adds the path of a directory to an error. If this process may not create the directory, also
/// adds the remedy, since a service that runs as an ordinary user cannot create a directory on a
/// new disk.
fn cannot_create(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Error::from(error).within(format_args!(
            "cannot create {} as the user of this process; create the directory as root, and give \
             it to the user of the service, such as `install -d -m 700 -o skep -g skep {}`",
            path.display(),
            path.display()
        )),
        _ => Error::from(error).within(path.display()),
    }
}

/// Returns the error message for a directory without an identity record, with the remedies. The
/// message names the remedy for a lost directory first, because `--init` would hide the loss and,
/// for management, would create another cluster.
fn missing(path: &Path, kind: DirectoryKind) -> String {
    match kind {
        DirectoryKind::Management => format!(
            "the directory has no state of management. If this cluster exists already, do not use \
             --init, which makes a new cluster: mount the disk of the directory, or put a copy \
             back with `skep cluster restore --directory {} COPY`. For a new cluster, run with \
             --init; for a further management node, with --init --join",
            path.display()
        ),
        kind => format!(
            "the directory is not initialised: if it should contain a {kind} already, mount the \
             disk of this directory; to make it a new {kind}, run with --init"
        ),
    }
}

/// Makes sure that only the owner of a directory can enter it. The permissions of its files do not
/// suffice, because earlier versions of the program, and manual copies, may have created files that
/// all users can read.
fn close_to_others(path: &Path) -> Result<()> {
    let metadata = std::fs::metadata(path).map_err(io_error(path))?;
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode & 0o7700)).map_err(|error| {
        refused(
            path,
            format_args!(
                "cannot close the directory to other users ({error}): the directory has mode \
                 {mode:o}, and contains the data of all users; run `chmod 700` on the directory as \
                 its owner"
            ),
        )
    })?;
    tracing::warn!(
        "{}: other users could enter this directory (mode {mode:o}); now only its owner can",
        path.display()
    );
    Ok(())
}

fn name_of(identity: &Identity) -> String {
    match (identity.target.raw(), identity.node.raw()) {
        (0, 0) => identity.kind.to_string(),
        (0, _) => format!("{} of node {}", identity.kind, identity.node),
        _ => format!("{} {}", identity.kind, identity.target),
    }
}

/// Reads the identity of a directory without opening or locking it. Returns `None` if the directory
/// has no identity record.
///
/// # Errors
/// - `Corrupt` if the record is damaged, `Unsupported` if its version is unknown.
/// - Errors of the file system.
///
/// Each error names the path.
pub fn read_identity(path: &Path) -> Result<Option<Identity>> {
    let file = path.join(IDENTITY_FILE);
    let identity = read_if_exists(&file)?.map(|bytes| Identity::from_file(&bytes)).transpose();
    identity.map_err(|error| {
        error.within(format_args!("cannot read the identity record {}", file.display()))
    })
}

/// Locks a directory for this process. The kernel releases the lock when the returned file is
/// closed, also after `kill -9`. A killed process may hold the lock until its exit is complete, so
/// this function makes up to `attempts` attempts.
fn lock(path: &Path, attempts: u32) -> Result<File> {
    let file_path = path.join(LOCK_FILE);
    // Another user may own the directory. If root opens the directory, a symbolic link must not
    // lead root to another file of the host.
    let no_links = OFlags::NOFOLLOW.bits().cast_signed();
    let opened = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(no_links)
        .open(&file_path);
    let file = match opened {
        // On a read-only file system, open the lock file for reading only, which suffices to lock
        // it.
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
            OpenOptions::new().read(true).custom_flags(no_links).open(&file_path)
        }
        other => other,
    };
    let file = file.map_err(io_error(&file_path))?;
    for _ in 0..attempts {
        match file.try_lock() {
            Ok(()) => {
                mark_use_by_root(&file);
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(io_error(&file_path)(error)),
        }
    }
    Err(refused(path, "another process uses this directory; stop that process first"))
}

/// Gives the lock file to the group of root if this process runs as root. This records that the
/// directory of an ordinary user may contain files of root from now on, so that
/// `skep_service::service_user` finds them. The user can still lock the file.
fn mark_use_by_root(lock: &File) {
    if lock.metadata().is_ok_and(|it| it.gid() != 0) {
        // Ignore an error, because only root may make this change. Some file systems refuse this
        // change even to root. On these file systems, root does not create files of another owner.
        let _ = fchown(lock, None, Some(0));
    }
}

/// Refuses a directory that contains anything but the remains of an interrupted initialisation.
fn refuse_used(path: &Path) -> Result<()> {
    for entry in std::fs::read_dir(path).map_err(io_error(path))? {
        let name = entry.map_err(io_error(path))?.file_name();
        // A new ext4 file system contains `lost+found`. A crash during the initialisation can leave
        // `skep-identity.new`.
        let known = ["lost+found", LOCK_FILE, "skep-identity.new"];
        if !known.iter().any(|known| name == *known) {
            return Err(refused(
                path,
                format_args!(
                    "Skep initialises only a blank directory, but this directory contains '{}'; \
                     choose a blank directory",
                    name.display()
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(cluster: u8) -> Identity {
        Identity {
            kind: DirectoryKind::StorageTarget,
            cluster: ClusterId::new([cluster; 16]),
            node_uuid: 1,
            node: NodeId::default(),
            target_uuid: 2,
            target: TargetId::default(),
        }
    }

    fn open(path: &Path, cluster: u8) -> Result<Directory> {
        let cluster = ClusterId::new([cluster; 16]);
        Directory::open(path, DirectoryKind::StorageTarget, Some(cluster))
    }

    /// Like [`open`], but waits until the lock is free. While another test starts a program, the
    /// new process has copies of all file descriptors for a moment, and therefore holds the lock
    /// too.
    fn open_again(path: &Path) -> Directory {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            match open(path, 1) {
                Err(error)
                    if error.context().contains("in use")
                        && std::time::Instant::now() < deadline =>
                {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                found => return found.unwrap(),
            }
        }
    }

    fn message(result: Result<Directory>) -> String {
        result.expect_err("the directory is refused").to_string()
    }

    #[test]
    fn directories_are_closed_to_other_users() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("target");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o7777;
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        drop(Directory::initialise(&path, identity(1)).unwrap());
        assert_eq!(mode(), 0o700);
        std::fs::set_permissions(&path, Permissions::from_mode(0o2771)).unwrap();
        drop(Directory::open(&path, DirectoryKind::StorageTarget, None).unwrap());
        assert_eq!(mode(), 0o2700);
    }

    #[test]
    fn new_directory_is_private_and_old_directory_keeps_its_mode() {
        let parent = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        let path = parent.path().join("between").join("target");
        create_private(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        assert_ne!(mode(path.parent().unwrap()), 0o700, "other programs may use the parent");
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        create_private(&path).unwrap();
        assert_eq!(mode(&path), 0o755);
    }

    #[test]
    fn assigned_ids_persist_and_cannot_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let mut new = Directory::initialise(&path, identity(1)).unwrap();
        new.assign(NodeId::new(4), TargetId::new(3)).unwrap();
        drop(new);
        let mut again = open_again(&path);
        assert_eq!(again.identity().target, TargetId::new(3));
        let error = again.assign(NodeId::new(4), TargetId::new(9)).unwrap_err().to_string();
        assert!(error.contains("t3") && error.contains("t9"), "{error}");
        let error = again.assign(NodeId::new(5), TargetId::new(3)).unwrap_err().to_string();
        assert!(error.contains("n4") && error.contains("n5"), "{error}");
    }

    #[test]
    fn init_refuses_a_directory_that_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(Directory::initialise(dir.path(), identity(1)).unwrap());
        let again = Directory::initialise(dir.path(), identity(1)).unwrap_err();
        assert_eq!(again.code(), ErrorCode::Exists, "{again}");
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join("thesis.tex"), "x").unwrap();
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(other.path(), readable.clone()).unwrap();
        assert!(message(Directory::initialise(other.path(), identity(1))).contains("thesis.tex"));
        assert!(!is_initialised(other.path()));
        let mode = std::fs::metadata(other.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, readable.mode(), "the directory of another program is unchanged");
        assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1);
    }

    #[test]
    fn open_refuses_a_directory_without_the_expected_identity() {
        let dir = tempfile::tempdir().unwrap();
        let blank = message(open(dir.path(), 1));
        let order = ["mount the disk", "--init"].map(|way_out| blank.find(way_out).unwrap());
        assert!(order.is_sorted(), "{blank}");
        let lost = message(Directory::open(dir.path(), DirectoryKind::Management, None));
        let words = ["do not use --init", "mount the disk", "skep cluster restore --directory /"];
        assert!(words.iter().all(|word| lost.contains(word)), "{lost}");
        assert!(message(open(&dir.path().join("missing"), 1)).contains("not initialised"));
        drop(Directory::initialise(dir.path(), identity(1)).unwrap());
        let foreign = message(open(dir.path(), 2));
        let ids = [ClusterId::new([1; 16]).to_string(), ClusterId::new([2; 16]).to_string()];
        assert!(ids.iter().all(|id| foreign.contains(id)), "{foreign}");
        let kind = message(Directory::open(dir.path(), DirectoryKind::MetadataTarget, None));
        assert!(kind.contains("storage target") && kind.contains("metadata target"), "{kind}");
    }

    #[test]
    fn a_second_process_cannot_open_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = Directory::initialise(dir.path(), identity(1)).unwrap();
        assert!(message(open(dir.path(), 1)).contains("another process uses"));
        drop(first);
        open_again(dir.path());
    }

    /// Simulates that root has used the directory of a service that runs as an ordinary user, for
    /// example for a repair.
    #[test]
    fn lock_file_records_that_root_has_used_a_directory() {
        const OTHER: u32 = 65_534;
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::initialise(dir.path(), identity(1)).unwrap());
        let lock = dir.path().join(LOCK_FILE);
        std::os::unix::fs::chown(&lock, Some(OTHER), Some(OTHER)).expect("tests run as root");
        drop(open_again(dir.path()));
        let metadata = std::fs::metadata(&lock).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (OTHER, 0));
    }

    #[test]
    fn lock_of_a_directory_follows_no_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        std::os::unix::fs::symlink(&other, dir.path().join(LOCK_FILE)).unwrap();
        lock(dir.path(), LOCK_ATTEMPTS).unwrap_err();
        assert!(!other.exists());
    }

    #[test]
    fn error_for_a_damaged_identity_record_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::initialise(dir.path(), identity(1)).unwrap());
        let file = dir.path().join(IDENTITY_FILE);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let error = open(dir.path(), 1).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.context().contains("skep-identity"), "{error}");
    }
}
