//! The files in the data directory of `skep up`.
//!
//! `skep-cluster.json` stores the shape, so that a later `up` needs no options.
//! `skep-processes.json` lists the running processes. A running supervisor holds the lock on
//! `skep-up.lock`, and stores its process id in that file.

use super::resources;
use super::shape::{Shape, WantedShape};
use skep_service::directory::TOKEN_FILE;
use skep_store::atomic::replace_atomically;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const SHAPE_FILE: &str = "skep-cluster.json";
const LOCK_FILE: &str = "skep-up.lock";

const PROCESSES_FILE: &str = "skep-processes.json";

/// The data directory of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Absolute path of the data directory.
    pub(crate) data: PathBuf,
}

fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

impl Layout {
    /// Opens the data directory. Creates the directory if it is missing.
    pub(crate) fn make(path: &Path) -> Result<Self> {
        let named = |error: std::io::Error| {
            Error::from(error)
                .within(format_args!("cannot use the data directory {}", path.display()))
        };
        std::fs::create_dir_all(path).map_err(named)?;
        let layout = Self { data: path.canonicalize().map_err(named)? };
        layout.check_owner()?;
        Ok(layout)
    }

    /// Opens an existing data directory.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !path.exists() {
            let what = format!(
                "cannot find a cluster at {}: no such directory; name the data directory of `skep \
                 up` with --data-dir",
                path.display()
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
        let data = path.canonicalize().map_err(|error| {
            Error::from(error).within(format_args!("cannot look up {}", path.display()))
        })?;
        let layout = Self { data };
        layout.check_owner()?;
        Ok(layout)
    }

    /// Returns an error if another user owns the data directory or can write to this directory.
    ///
    /// # Hazard: files of other users
    /// The files in the directory determine to which processes `skep` sends signals, and to which
    /// files `skep` writes. If another user could change the directory, this user could make root
    /// signal any process and write to any file.
    fn check_owner(&self) -> Result<()> {
        let named = |error: std::io::Error| {
            Error::from(error)
                .within(format_args!("cannot use the data directory {}", self.data.display()))
        };
        let metadata = std::fs::metadata(&self.data).map_err(named)?;
        let user = rustix::process::geteuid().as_raw();
        let is_writable = metadata.mode() & 0o022 != 0;
        if metadata.uid() == user && !is_writable {
            return Ok(());
        }
        let problem = match metadata.uid() == user {
            true => "other users may write to this directory; run `chmod 700` on this directory"
                .to_owned(),
            false => format!(
                "the directory belongs to user {}, and this command runs as user {user}; run the \
                 command as the owner of the directory, or choose another --data-dir",
                metadata.uid()
            ),
        };
        Err(refused(format!("cannot use the data directory {}: {problem}", self.data.display())))
    }

    /// Returns the directory of a service, such as `storage-1`.
    pub(crate) fn service(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// Returns the path of the log of a service or of the mount.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.data.join("logs").join(format!("{name}.log"))
    }

    /// Returns the path of the file with the token of the cluster.
    pub(crate) fn token(&self) -> PathBuf {
        self.data.join("management").join(TOKEN_FILE)
    }

    /// Returns the user and group that own the lock file. The supervisor runs as this user.
    pub(crate) fn owner(&self) -> Result<(u32, u32)> {
        let path = self.data.join(LOCK_FILE);
        let named = |error: std::io::Error| {
            Error::from(error).within(format_args!("cannot use {}", path.display()))
        };
        let metadata = std::fs::metadata(&path).map_err(named)?;
        Ok((metadata.uid(), metadata.gid()))
    }

    /// Stores the names and process ids of the running processes, for people and for `skep up
    /// --detach`.
    pub(crate) fn note_processes(&self, processes: &BTreeMap<String, u32>) -> Result<()> {
        let text = serde_json::to_string_pretty(processes).expect("names and numbers are text");
        replace_atomically(&self.data.join(PROCESSES_FILE), text.as_bytes())
    }

    /// Returns the names and process ids that the supervisor has stored. Empty if the supervisor
    /// has stored no processes.
    pub(crate) fn processes(&self) -> BTreeMap<String, u32> {
        let text = std::fs::read_to_string(self.data.join(PROCESSES_FILE)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Acquires the lock that only one supervisor can hold.
    pub(crate) fn lock(&self) -> Result<SupervisorLock> {
        let path = self.data.join(LOCK_FILE);
        let named = |error: std::io::Error| {
            Error::from(error).within(format_args!("cannot use {}", path.display()))
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(named)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(
                    ErrorCode::InUse,
                    format!(
                        "cannot start the cluster in {0}: this cluster is up already (supervisor: \
                         process {1}); `skep down --data-dir {0}` stops it",
                        self.data.display(),
                        read_pid(&mut file).map_or("?".into(), |pid| pid.to_string())
                    ),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(named(error)),
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(named)?;
        writeln!(file, "{}", std::process::id()).map_err(named)?;
        Ok(SupervisorLock { _file: file })
    }

    /// Returns the process id of the running supervisor. `None` means that no supervisor runs.
    pub(crate) fn supervisor(&self) -> Result<Option<u32>> {
        let path = self.data.join(LOCK_FILE);
        let named = |error: std::io::Error| {
            Error::from(error).within(format_args!("cannot use {}", path.display()))
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
        let mut file = match options.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(named(error)),
        };
        match file.try_lock() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(read_pid(&mut file)),
            Err(TryLockError::Error(error)) => Err(named(error)),
        }
    }

    /// Determines the shape of the cluster, and stores the shape. An existing cluster keeps its
    /// stored shape, except that storage services and management nodes can be added. A new cluster
    /// gets the shape `wanted`.
    pub(crate) fn shape(&self, wanted: WantedShape) -> Result<Shape> {
        let path = self.data.join(SHAPE_FILE);
        let known = match std::fs::read_to_string(&path) {
            Ok(text) => Some(serde_json::from_str::<Shape>(&text).map_err(|error| {
                refused(format!(
                    "cannot read the shape of the cluster in {}: {error}",
                    path.display()
                ))
            })?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.check_blank()?;
                None
            }
            Err(error) => {
                return Err(Error::from(error).within(format_args!(
                    "cannot read the shape of the cluster in {}",
                    path.display()
                )));
            }
        };
        let before = known.unwrap_or_default();
        let shape = Shape {
            management_nodes: wanted.management_nodes.unwrap_or(before.management_nodes),
            metadata_targets: wanted.metadata_targets.unwrap_or(before.metadata_targets),
            metadata_copies: wanted.metadata_copies.unwrap_or(before.metadata_copies),
            storage_services: wanted.storage_services.unwrap_or(before.storage_services),
            targets_per_service: wanted.targets_per_service.unwrap_or(before.targets_per_service),
        };
        let Shape {
            management_nodes,
            metadata_targets,
            metadata_copies,
            storage_services,
            targets_per_service,
        } = shape;
        if ![1, 3, 5].contains(&management_nodes) {
            return Err(refused(format!(
                "cannot start the cluster with {management_nodes} management nodes: use 1, 3 or 5 \
                 for --management-nodes"
            )));
        }
        if metadata_targets == 0 || storage_services == 0 || targets_per_service == 0 {
            return Err(refused(
                "cannot start the cluster: a cluster needs at least one target of each kind; use \
                 at least 1 for --metadata-targets, --storage-services and --targets-per-service",
            ));
        }
        if !(1..=metadata_targets.min(3)).contains(&metadata_copies) {
            return Err(refused(format!(
                "cannot start the cluster with {metadata_copies} copies of metadata on \
                 {metadata_targets} metadata services: each copy needs a service of its own; use 1 \
                 to 3 for --metadata-copies, and at least as many --metadata-targets"
            )));
        }
        let may_become = Shape { management_nodes, storage_services, ..before };
        let is_possible = shape == may_become
            && storage_services >= before.storage_services
            && management_nodes >= before.management_nodes;
        if known.is_some() && !is_possible {
            return Err(refused(format!(
                "cannot change the shape of the cluster in {}: the cluster was created with \
                 --metadata-targets {} --metadata-copies {} --management-nodes {} \
                 --storage-services {} --targets-per-service {}; only more --storage-services and \
                 --management-nodes can be added",
                self.data.display(),
                before.metadata_targets,
                before.metadata_copies,
                before.management_nodes,
                before.storage_services,
                before.targets_per_service
            )));
        }
        if known != Some(shape) {
            // An existing cluster needs no more space, because its targets have already allocated
            // their files.
            let needs_disk = !self.service("management").exists();
            resources::check(&self.data, &shape, needs_disk)?;
            let text = serde_json::to_string_pretty(&shape).expect("numbers can be written");
            replace_atomically(&path, (text + "\n").as_bytes())?;
        }
        Ok(shape)
    }

    /// Returns an error if the directory contains files that are not part of a cluster.
    fn check_blank(&self) -> Result<()> {
        let ours = [LOCK_FILE, "logs", "lost+found"];
        let named = |error: std::io::Error| {
            Error::from(error)
                .within(format_args!("cannot use the data directory {}", self.data.display()))
        };
        for entry in std::fs::read_dir(&self.data).map_err(named)? {
            let name = entry.map_err(named)?.file_name();
            if !ours.iter().any(|known| name == *known) {
                return Err(refused(format!(
                    "cannot create a cluster in {}: the directory contains '{}' and no cluster; \
                     choose another --data-dir",
                    self.data.display(),
                    name.display()
                )));
            }
        }
        Ok(())
    }
}

/// The lock of a running supervisor. The lock is released when this value is dropped or when the
/// process exits.
#[derive(Debug)]
pub(crate) struct SupervisorLock {
    _file: File,
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skep_up_only_adds_services_to_an_existing_cluster() {
        let parent = tempfile::tempdir().unwrap();
        let layout = Layout::make(&parent.path().join("data")).unwrap();
        let wanted = |metadata, services, targets| WantedShape {
            management_nodes: None,
            metadata_targets: metadata,
            metadata_copies: None,
            storage_services: services,
            targets_per_service: targets,
        };
        let first = layout.shape(wanted(Some(1), None, Some(2))).unwrap();
        let expected = Shape {
            management_nodes: 1,
            metadata_targets: 1,
            metadata_copies: 1,
            storage_services: 2,
            targets_per_service: 2,
        };
        assert_eq!(first, expected);
        assert_eq!(layout.shape(WantedShape::default()).unwrap(), expected);
        let grown = layout.shape(wanted(None, Some(3), None)).unwrap();
        assert_eq!(grown, Shape { storage_services: 3, ..expected });
        let management =
            |nodes| WantedShape { management_nodes: Some(nodes), ..wanted(None, None, None) };
        assert_eq!(layout.shape(management(3)).unwrap().management_nodes, 3);
        for (nodes, problem) in [(2, "1, 3 or 5"), (1, "--management-nodes 3")] {
            let error = layout.shape(management(nodes)).unwrap_err();
            assert!(error.context().contains(problem), "{error}");
        }
        for refused in [wanted(Some(2), None, None), wanted(None, Some(2), None)] {
            let error = layout.shape(refused).unwrap_err();
            assert!(error.context().contains("was created with --metadata-targets 1"), "{error}");
        }
    }

    #[test]
    fn invalid_number_of_metadata_copies_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let layout = Layout::make(&parent.path().join("data")).unwrap();
        let wanted = |services, copies| WantedShape {
            metadata_targets: Some(services),
            metadata_copies: Some(copies),
            ..WantedShape::default()
        };
        for refused in [wanted(2, 3), wanted(4, 4), wanted(2, 0)] {
            let error = layout.shape(refused).unwrap_err();
            assert!(error.context().contains("--metadata-copies"), "{error}");
        }
        assert_eq!(layout.shape(wanted(2, 2)).unwrap().metadata_copies, 2);
        assert_eq!(layout.shape(WantedShape::default()).unwrap().metadata_copies, 2);
    }

    #[test]
    fn data_directory_with_other_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("thesis.tex"), "").unwrap();
        let layout = Layout::make(directory.path()).unwrap();
        let error = layout.shape(WantedShape::default()).unwrap_err();
        assert!(error.context().contains("'thesis.tex'"), "{error}");
    }

    #[test]
    fn refusal_of_a_second_supervisor_names_the_running_supervisor() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::make(directory.path()).unwrap();
        assert_eq!(layout.supervisor().unwrap(), None);
        let lock = layout.lock().unwrap();
        assert_eq!(layout.supervisor().unwrap(), Some(std::process::id()));
        let error = layout.lock().unwrap_err();
        assert!(error.context().contains("up already"), "{error}");
        drop(lock);
        assert_eq!(layout.supervisor().unwrap(), None);
    }
}
