//! The chunk files of one target: writing, reading, syncing, truncating, removing, listing.
//!
//! `docs/design/0003-chunk-store.md` has the design and its crash rule, `docs/format/chunk-file.md`
//! the bytes. One thread owns a store; operations on it are futures of that thread.
//!
//! # Hazard: operations that are dropped
//! Data reaches a file before the checksums that describe it. An operation that changes a file must
//! run to its end, in a task of its own that is never dropped: between the two writes a mismatch
//! would look like damage. Reads may be dropped at any time.
//!
//! # Invariants
//! The caches agree with each other: see [`ChunkStore::check_invariants`].

mod chunk_file;
mod cleaner;
mod clear;
mod copy;
mod dirty_log;
mod dirty_regions;
mod listing;
mod names;
mod open_files;
mod range_lock;
mod read;
mod region;
mod remove;
mod reserve;
mod seek;
mod space;
mod sync;
mod truncate;
mod undo;
mod write;

#[cfg(test)]
mod tests;

use self::chunk_file::ChunkFile;
use self::dirty_log::DirtyLog;
use self::dirty_regions::DirtyRegions;
use self::names::Names;
use self::open_files::OpenFiles;
use crate::limits::MAX_OPEN_FILES;
use skep_env::local::Notify;
use skep_format::chunk::{DirtyLogHeader, DirtyRegion, HostMark, TargetState};
use skep_store::atomic::replace_atomically;
use skep_types::{ChunkFileKey, ClusterId, Error, ErrorCode, HostIncarnation, Result, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

pub use self::copy::CopySource;
pub use self::read::ReadData;
use self::space::SpaceGauge;
pub(crate) use self::space::reserve;

/// Name of the state record in a target's directory.
const STATE_FILE: &str = "state";

/// The chunk files of one target.
#[derive(Debug)]
pub struct ChunkStore {
    directory: PathBuf,
    /// A descriptor of the directory, for syncs of the whole file system.
    opened_at_start: std::fs::File,
    cluster: ClusterId,
    target: TargetId,
    state: Cell<TargetState>,
    names: Names,
    open: RefCell<OpenFiles>,
    dirty_log: DirtyLog,
    /// Regions that the dirty log named at the start: a crash may have torn writes to them, so data
    /// that does not match its checksums is accepted there.
    suspects: RefCell<HashSet<DirtyRegion>>,
    dirty: DirtyRegions,
    space: SpaceGauge,
    /// Until this time, writes go to the kernel's workers: the disk is slow, and a write to the
    /// page cache could block the thread.
    disk_is_slow_until: Cell<Duration>,
    failure: RefCell<Option<Error>>,
    /// Notified when too many regions are dirty to wait for the next interval.
    cleaning_wanted: Notify,
}

/// The identity of the running kernel and of the mount: as long as it stays the same, the page
/// cache still holds the data that the target wrote.
///
/// # Errors
/// Errors of the kernel, with the path.
pub fn host_mark(directory: &Path) -> Result<HostMark> {
    let failed = |error: std::io::Error| Error::from(error).within(directory.display());
    let mount = skep_env::mount_mark(directory).map_err(failed)?;
    Ok(HostMark {
        boot_id: skep_env::boot_id().map_err(failed)?,
        device: mount.device,
        mount: mount.mount,
        directory: mount.directory,
    })
}

impl ChunkStore {
    /// Opens the chunk files of a target's directory, for a new start of the target.
    ///
    /// # Errors
    /// `Corrupt` if the target's own records are damaged; errors of the file system.
    pub fn open(directory: &Path, cluster: ClusterId, target: TargetId) -> Result<Rc<Self>> {
        Self::open_at(directory, cluster, target, host_mark(directory)?)
    }

    /// Like [`Self::open`], with the state of the host as `host` gives it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_at(
        directory: &Path,
        cluster: ClusterId,
        target: TargetId,
        host: HostMark,
    ) -> Result<Rc<Self>> {
        let opened_at_start = std::fs::File::open(directory)
            .map_err(|error| Error::from(error).within(directory.display()))?;
        let path = directory.join(STATE_FILE);
        let previous = match std::fs::read(&path) {
            Ok(bytes) => Some(TargetState::from_file(&bytes).map_err(|error| {
                error.within(format_args!("target {target}: state {}", path.display()))
            })?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::from(error).within(path.display())),
        };
        let fresh = HostIncarnation::new(skep_env::random_u64());
        let state = TargetState::next_start(previous, host, fresh);
        // Durable before any page carries the number of this start.
        replace_atomically(&path, &state.to_file())?;
        let dirty_log = DirtyLog::open(directory, DirtyLogHeader { cluster, target })?;
        let suspects = dirty_log.recorded();
        let store = Self {
            directory: directory.to_owned(),
            opened_at_start,
            cluster,
            target,
            state: Cell::new(state),
            names: Names::open(directory)?,
            open: RefCell::new(OpenFiles::new(MAX_OPEN_FILES)),
            dirty_log,
            dirty: DirtyRegions::new(&suspects),
            suspects: RefCell::new(suspects.into_iter().collect()),
            space: SpaceGauge::new(directory)?,
            disk_is_slow_until: Cell::new(Duration::ZERO),
            failure: RefCell::default(),
            cleaning_wanted: Notify::default(),
        };
        tracing::info!(
            "target {target}: start {}, incarnation {}, {} regions may be torn",
            state.start,
            state.incarnation,
            store.suspects.borrow().len()
        );
        Ok(Rc::new(store))
    }

    /// Limits the open chunk files to `count`, apart from those in use.
    pub fn limit_open_files(&self, count: usize) {
        self.open.borrow_mut().set_max_files(count.min(MAX_OPEN_FILES));
    }

    /// A number that changes whenever acknowledged writes that were not synced may have been lost.
    pub fn incarnation(&self) -> HostIncarnation {
        self.state.get().incarnation
    }

    /// Free space for clients, in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    /// The failure for which the target refuses writes; `None` means that it accepts them.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    fn check_writable(&self) -> Result<()> {
        match &*self.failure.borrow() {
            None => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// Makes the target refuse writes until it is started again, after a failed write or sync: the
    /// contents of the device are unknown then. An error of a full disk is returned as it is.
    fn note_failure(&self, error: Error) -> Error {
        if matches!(
            error.code(),
            ErrorCode::NoSpace | ErrorCode::QuotaExceeded | ErrorCode::FileTooLarge
        ) {
            return error;
        }
        if let Some(failure) = &*self.failure.borrow() {
            return failure.clone();
        }
        let failure = Error::new(
            ErrorCode::DeviceFailed,
            format!(
                "target {} refuses writes until it is restarted, since a write failed: {error}",
                self.target
            ),
        );
        tracing::error!("{failure}; check the disk under {}", self.directory.display());
        let state = TargetState { failed: true, ..self.state.get() };
        self.state.set(state);
        // The next start must change the incarnation, since acknowledged writes may be gone. If
        // even this record cannot be written, the file system is read-only or gone, and the next
        // start cannot write its state either.
        if let Err(error) = replace_atomically(&self.directory.join(STATE_FILE), &state.to_file()) {
            tracing::error!("target {}: cannot record the failure: {error}", self.target);
        }
        *self.failure.borrow_mut() = Some(failure.clone());
        failure
    }

    /// The chunk file of a key, if it exists.
    fn existing(&self, key: &ChunkFileKey) -> Result<Option<Rc<ChunkFile>>> {
        if let Some(file) = self.open.borrow().get(key) {
            return Ok(Some(file));
        }
        let path = self.names.path(key);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => self.cache(*key, path, file).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::from(error).within(path.display())),
        }
    }

    /// The chunk file of a key, created if need be.
    fn existing_or_new(&self, key: &ChunkFileKey) -> Result<Rc<ChunkFile>> {
        if let Some(file) = self.existing(key)? {
            return Ok(file);
        }
        let path = self.names.path(key);
        let failed = |error: std::io::Error| Error::from(error).within(path.display());
        // `create_new` cannot fail with `AlreadyExists`: the file did not exist above, only this
        // thread creates files here, and there was no await in between.
        let open = || OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = match open() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let leaf = path.parent().expect("each chunk file has a leaf directory");
                std::fs::create_dir_all(leaf).map_err(failed)?;
                open().map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let file = self.cache(*key, path.clone(), file)?;
        file.is_new.set(true);
        Ok(file)
    }

    /// Checks that the cache of open files and the dirty regions are consistent. Not cheap: for
    /// tests, and debug builds once per cleaning.
    ///
    /// # Panics
    /// If they are not.
    pub(crate) fn check_invariants(&self) {
        self.open.borrow().check_invariants();
        self.dirty.check_invariants();
        self.dirty_log.check_invariants();
    }

    fn cache(
        &self,
        key: ChunkFileKey,
        path: PathBuf,
        file: std::fs::File,
    ) -> Result<Rc<ChunkFile>> {
        let file = ChunkFile::new(key, path, file)?;
        self.open.borrow_mut().insert(&file);
        Ok(file)
    }
}
