//! The chunk files of one target, with the operations write, read, sync, truncate, remove and list.
//!
//! `docs/design/0003-chunk-store.md` describes the design and its crash rule,
//! `docs/format/chunk-file.md` describes the bytes. One thread owns a store. All operations on the
//! store are futures on this thread.
//!
//! # Hazard: dropped operations
//! Data reaches a file before the checksums that describe the data. Between the two writes, the
//! data does not match its checksums, which looks like damage. So the caller runs each operation
//! that changes a file in a separate task that is never dropped. Reads are cancel-safe.
//!
//! # Invariants
//! The cache of open files, the dirty regions and the dirty log are consistent with each other
//! ([`ChunkStore::check_invariants`]).

mod chunk_file;
mod cleaner;
mod clear;
mod copy;
mod descriptors;
mod dirty_log;
mod dirty_regions;
mod health;
mod listing;
mod names;
mod open_files;
mod quarantine;
mod range_lock;
mod read;
mod record_space;
mod region;
mod remove;
mod reserve;
mod seek;
mod space;
mod sync;
mod truncate;
mod undo;
mod write;
mod write_back;

#[cfg(test)]
mod tests;

use self::chunk_file::ChunkFile;
use self::descriptors::SpareDescriptors;
use self::dirty_log::{DirtyLog, RecoveredLog};
use self::dirty_regions::DirtyRegions;
use self::names::Names;
use self::open_files::OpenFiles;
use self::truncate::Generations;
use crate::limits::MAX_OPEN_FILES;
use skep_env::local::{Notify, Semaphore};
use skep_format::chunk::{DirtyLogHeader, DirtyRegion, HostMark, TargetState};
use skep_metrics::Registry;
use skep_metrics::catalog::STORAGE_CACHE;
use skep_store::page_cache::host_mark;
use skep_types::{
    ChunkFileKey, ClusterId, Error, ErrorCode, HostIncarnation, Result, TargetId, utc,
};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::rc::Rc;

pub use self::copy::CopySource;
pub use self::names::path_in_target;
pub use self::read::ReadData;
use self::space::SpaceGauge;
pub(crate) use self::space::reserve;
pub use self::write::Destination;
use self::write_back::DiskLoad;

/// Name of the file that contains the state record, in a target's directory.
const STATE_FILE: &str = "state";

/// The chunk files of one target.
#[derive(Debug)]
pub struct ChunkStore {
    directory: PathBuf,
    cluster: ClusterId,
    target: TargetId,
    state: Cell<TargetState>,
    names: Names,
    open: RefCell<OpenFiles>,
    spares: SpareDescriptors,
    dirty_log: DirtyLog,
    /// Regions that were in the dirty log at the start. A crash may have torn writes to these
    /// regions, so the target accepts data in these regions even if the data does not match its
    /// checksums.
    suspects: RefCell<HashSet<DirtyRegion>>,
    dirty: DirtyRegions,
    space: SpaceGauge,
    generations: RefCell<Generations>,
    disk: DiskLoad,
    problems: Problems,
    cleaner: Cleaner,
}

/// The problems of a target.
#[derive(Debug, Default)]
struct Problems {
    /// The failure that makes the target refuse writes.
    failure: RefCell<Option<Error>>,
    /// A problem that an administrator must solve. The text is empty if there is no problem.
    warning: RefCell<String>,
    /// Whether the last write of the state record failed.
    is_state_unrecorded: Cell<bool>,
}

/// The state of the cleaner (the task that periodically syncs dirty regions) between two rounds.
#[derive(Debug)]
struct Cleaner {
    /// Notifies the cleaner when more than `MAX_DIRTY_REGIONS` regions are dirty, so that the next
    /// round starts immediately.
    wanted: Notify,
    /// Whether the target ends, so that no further round may begin.
    is_ending: Cell<bool>,
    full_sync: FullSync,
}

/// The syncs of the whole file system.
#[derive(Debug)]
struct FullSync {
    /// A descriptor of the target's directory, opened when the target started. A sync of the whole
    /// file system through this descriptor reports all errors since the start.
    opened_at_start: std::fs::File,
    /// A task holds this permit while it syncs the whole file system.
    running: Rc<Semaphore>,
    /// Whether the next round of the cleaner must sync each file instead of the whole file system.
    /// The cleaner sets the flag after a sync of the whole file system has failed for lack of
    /// space.
    is_each_next: Cell<bool>,
    /// Whether an earlier process may have left unsynced changes in the page cache. These changes
    /// become durable with the next sync of the whole file system.
    is_owed: Cell<bool>,
}

/// The state record of a clean end of a target. [`Self::record`] writes it to the device.
#[derive(Debug)]
#[must_use = "the next start counts an end without this record as a crash"]
pub struct CleanEnd {
    directory: PathBuf,
    state: TargetState,
}

impl CleanEnd {
    /// Records the clean end of the target durably. No store of this target may be in use at the
    /// same time. The call blocks, so the caller must not be an event loop that serves other
    /// targets.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub fn record(self) -> Result<()> {
        record_space::replace_state(&self.directory, &self.state)
    }
}

/// A target that has recorded its start on its device, and that no thread serves yet.
#[derive(Debug)]
pub struct PreparedStore {
    directory: PathBuf,
    cluster: ClusterId,
    target: TargetId,
    state: TargetState,
    /// The failure that makes the target refuse writes from the start.
    failure: Option<Error>,
    opened_at_start: std::fs::File,
    /// Whether the previous process did not end cleanly, but its changes are still in the page
    /// cache and need a sync.
    owes_full_sync: bool,
    log: RecoveredLog,
    names: Names,
    space: SpaceGauge,
}

impl PreparedStore {
    /// Prepares the chunk files in a target's directory. Each call counts as a new start of the
    /// target. Blocks until the records of the start are on the device, so the caller must not be
    /// an event loop that serves other targets.
    ///
    /// # Errors
    /// - `Corrupt` if the target's own records are damaged.
    /// - Errors of the file system.
    pub fn new(directory: &Path, cluster: ClusterId, target: TargetId) -> Result<Self> {
        Self::on_host(directory, cluster, target, host_mark(directory)?)
    }

    /// Like [`Self::new`], but takes the boot id of the kernel and the id of the mount from `host`.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::new`].
    pub fn on_host(
        directory: &Path,
        cluster: ClusterId,
        target: TargetId,
        host: HostMark,
    ) -> Result<Self> {
        let opened_at_start = std::fs::File::open(directory)
            .map_err(|error| Error::from(error).within(directory.display()))?;
        let path = directory.join(STATE_FILE);
        let previous = match std::fs::read(&path) {
            Ok(bytes) => Some(TargetState::from_file(&bytes).map_err(|error| {
                error.within(format_args!(
                    "target {target}: cannot read its state from {}",
                    path.display()
                ))
            })?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::from(error).within(path.display())),
        };
        let fresh = HostIncarnation::new(skep_env::random_u64());
        let state = TargetState::next_start(previous, host, fresh);
        let was_killed = previous.is_some_and(|previous| !previous.clean);
        let owes_full_sync = was_killed && state.kept_since < state.start;
        // Make the state record durable before any page contains this start number. If a page
        // reached the device first, the next start after a crash could use the same number.
        let failure = match record_space::replace_record(directory, &path, &state.to_file()) {
            Err(error) if error.code() == ErrorCode::ReadOnly => Some(Error::new(
                ErrorCode::DeviceFailed,
                format!(
                    "target {target} accepts no writes, since its file system is read-only: \
                     {error}; repair the disk, then restart the service"
                ),
            )),
            other => other.map(|()| None)?,
        };
        if let Some(failure) = &failure {
            tracing::error!("{failure}");
        }
        let log = RecoveredLog::read(directory, DirtyLogHeader { cluster, target })?;
        let (names, space) = (Names::open(directory)?, SpaceGauge::new(directory)?);
        record_space::hold(directory);
        Ok(Self {
            directory: directory.to_owned(),
            cluster,
            target,
            state,
            failure,
            opened_at_start,
            owes_full_sync,
            log,
            names,
            space,
        })
    }
}

impl ChunkStore {
    /// Opens the chunk files in a target's directory. The call blocks, as described at
    /// [`PreparedStore::new`].
    ///
    /// # Errors
    /// Returns the same errors as [`PreparedStore::new`].
    pub fn open(directory: &Path, cluster: ClusterId, target: TargetId) -> Result<Rc<Self>> {
        PreparedStore::new(directory, cluster, target).map(Self::start)
    }

    /// Like [`Self::open`], but takes the boot id of the kernel and the id of the mount from
    /// `host`.
    ///
    /// # Errors
    /// Returns the same errors as [`PreparedStore::new`].
    pub fn open_at(
        directory: &Path,
        cluster: ClusterId,
        target: TargetId,
        host: HostMark,
    ) -> Result<Rc<Self>> {
        PreparedStore::on_host(directory, cluster, target, host).map(Self::start)
    }

    /// Begins to serve a prepared target on this thread. Does not block.
    pub fn start(prepared: PreparedStore) -> Rc<Self> {
        let PreparedStore { directory, cluster, target, state, failure, .. } = prepared;
        let dirty_log = DirtyLog::open(prepared.log);
        let suspects = dirty_log.recorded();
        let store = Self {
            directory,
            cluster,
            target,
            state: Cell::new(state),
            names: prepared.names,
            open: RefCell::new(OpenFiles::new(MAX_OPEN_FILES)),
            spares: SpareDescriptors::open(),
            dirty_log,
            dirty: DirtyRegions::new(&suspects),
            suspects: RefCell::new(suspects.into_iter().collect()),
            space: prepared.space,
            generations: RefCell::default(),
            disk: DiskLoad::default(),
            problems: Problems { failure: RefCell::new(failure), ..Problems::default() },
            cleaner: Cleaner {
                wanted: Notify::default(),
                is_ending: Cell::new(false),
                full_sync: FullSync {
                    opened_at_start: prepared.opened_at_start,
                    running: Semaphore::new(1),
                    is_each_next: Cell::new(false),
                    is_owed: Cell::new(prepared.owes_full_sync),
                },
            },
        };
        tracing::debug!(
            "target {target}: start number {}, incarnation {}",
            state.start,
            state.incarnation
        );
        match store.suspects.borrow().len() {
            0 => tracing::info!("opened target {target}"),
            1 => tracing::info!(
                "opened target {target}; its last stop interrupted writes in 1 region, which is \
                 checked at its first use"
            ),
            count => tracing::info!(
                "opened target {target}; its last stop interrupted writes in {count} regions, \
                 which are checked at their first use"
            ),
        }
        Rc::new(store)
    }

    /// Limits the number of open chunk files to `count`. Files that are in use may exceed the
    /// limit.
    pub fn limit_open_files(&self, count: usize) {
        self.open.borrow_mut().set_max_files(count.min(MAX_OPEN_FILES));
    }

    /// Registers the hit and miss counters of the caches in `registry`. The thread of the store
    /// calls this function once.
    pub fn show_caches(&self, registry: &Registry) {
        let labels = |cache: &str| {
            vec![("target", self.target.raw().to_string()), ("cache", cache.to_owned())]
        };
        let open = self.open.borrow();
        open.uses.files.add_to(registry, &STORAGE_CACHE, labels("open_files"));
        open.uses.pages.add_to(registry, &STORAGE_CACHE, labels("region_pages"));
    }

    /// Returns the incarnation. This number changes whenever acknowledged writes that were not
    /// synced may have been lost.
    pub fn incarnation(&self) -> HostIncarnation {
        self.state.get().incarnation
    }

    /// Returns the free space that clients may use, in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    /// Returns whether the target has refused a write for lack of space since the last call. After
    /// such a refusal, the caller makes the node report its free space to management immediately.
    pub fn take_space_refusal(&self) -> bool {
        self.space.take_refusal()
    }

    /// Returns the failure that makes the target refuse writes. `None` means that the target
    /// accepts writes.
    pub fn failure(&self) -> Option<Error> {
        self.problems.failure.borrow().clone()
    }

    /// Returns the id of the target that stores the chunk files.
    pub(crate) fn target(&self) -> TargetId {
        self.target
    }

    /// Sets the problem that an administrator must solve. An empty text removes the problem.
    pub(crate) fn set_warning(&self, warning: String) {
        *self.problems.warning.borrow_mut() = warning;
    }

    fn check_writable(&self) -> Result<()> {
        match &*self.problems.failure.borrow() {
            None => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// After a failed write or sync, makes the target refuse writes until it is restarted, since
    /// the contents of the device are unknown. If the disk is full, a quota is exceeded, a file is
    /// too long, or the process lacks descriptors or memory, returns the error unchanged, and the
    /// target continues.
    fn note_failure(&self, error: Error) -> Error {
        if matches!(
            error.code(),
            ErrorCode::NoSpace
                | ErrorCode::QuotaExceeded
                | ErrorCode::FileTooLarge
                | ErrorCode::LimitReached
        ) {
            return error;
        }
        if let Some(failure) = &*self.problems.failure.borrow() {
            return failure.clone();
        }
        let failure = Error::new(
            ErrorCode::DeviceFailed,
            format!(
                "target {} refuses writes until its service is restarted, since a write failed at \
                 {}: {error}",
                self.target,
                utc(skep_env::wall_time())
            ),
        );
        tracing::error!("{failure}; check the disk under {}", self.directory.display());
        let state = TargetState { failed: true, ..self.state.get() };
        self.state.set(state);
        // Acknowledged writes may be lost, so the next start must change the incarnation. If the
        // target cannot write the state record, the file system is read-only or unavailable. As
        // long as the file system stays in this state, the next start also cannot write the record,
        // so the start fails or the target refuses writes. If the file system accepts writes again
        // before the next start, only a restart of the host ensures that this start changes the
        // incarnation.
        if let Err(error) = self.write_state(&state) {
            tracing::error!(
                "target {}: cannot record in {} that a write failed: {error}; if the disk works \
                 again, restart the host before the next start of this target, so that clients \
                 learn that acknowledged writes may be lost",
                self.target,
                self.directory.display()
            );
        }
        *self.problems.failure.borrow_mut() = Some(failure.clone());
        failure
    }

    /// Returns the chunk file with the key `key`, or `None` if this file does not exist.
    fn existing(&self, key: &ChunkFileKey) -> Result<Option<Rc<ChunkFile>>> {
        let found = self.open.borrow().get(key);
        self.open.borrow().uses.files.note(found.is_some());
        if found.is_some() {
            return Ok(found);
        }
        let path = self.names.path(key);
        match self.open_file(OpenOptions::new().read(true).write(true), &path) {
            Ok(file) => self.cache(*key, path, file).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
                self.note_failure(Error::from(error).within(path.display()));
                match self.open_file(OpenOptions::new().read(true), &path) {
                    Ok(file) => self.cache(*key, path, file).map(Some),
                    Err(error) => Err(Error::from(error).within(path.display())),
                }
            }
            Err(error) => Err(Error::from(error).within(path.display())),
        }
    }

    /// Returns the chunk file with the key `key`. Creates the file if necessary. If the file system
    /// refuses to create the file or its directory, this counts as a failed write
    /// ([`Self::note_failure`]).
    fn existing_or_new(&self, key: &ChunkFileKey) -> Result<Rc<ChunkFile>> {
        if let Some(file) = self.existing(key)? {
            return Ok(file);
        }
        let path = self.names.path(key);
        let failed =
            |error: std::io::Error| self.note_failure(Error::from(error).within(path.display()));
        // `create_new` cannot fail with `AlreadyExists`. `existing` has not found the file, only
        // this thread creates files in this directory, and no await is between the two calls.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let open = || self.open_file(&options, &path);
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

    /// Checks the cache of open files, the dirty regions and the dirty log. Tests call this
    /// expensive check, and debug builds call it once per round of the cleaner.
    ///
    /// # Panics
    /// Panics if the cache, the dirty regions or the dirty log is inconsistent.
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
