//! The objects that programs on two mounts share: names, pairs of names, and registers. Each object
//! performs operations, and records these operations.

use crate::site::MOUNTS;
use rustix::fs::{CWD, FlockOperation, RenameFlags, fcntl_lock, flock, renameat_with};
use rustix::io::Errno;
use skep_testkit::linearizable::{
    self, NameOutcome, Operation, Outcome, PairOutcome, RegisterOutcome,
};
use skep_testkit::{Random, files};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Number of programs on each mount that use the shared objects.
pub(crate) const SHARING: usize = 2;
/// The value that an exclusive lock adds to the counter [`Register::owners`]. A shared lock adds 1.
const EXCLUSIVE: usize = 1 << 16;

/// The time in microseconds of the longest measured call.
#[derive(Default)]
pub(crate) struct LongestCall(AtomicU64);

impl LongestCall {
    /// Measures a call. Returns the result of the call, with the times at which the call began and
    /// ended.
    fn measure<T>(&self, call: impl FnOnce() -> T) -> (T, [Instant; 2]) {
        let began = Instant::now();
        let result = call();
        let ended = Instant::now();
        let took = u64::try_from((ended - began).as_micros()).expect("a short time");
        self.0.fetch_max(took, Ordering::SeqCst);
        (result, [began, ended])
    }

    /// Returns the longest time, and sets the time to 0.
    pub(crate) fn take_us(&self) -> u64 {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// The recorded operations on an object.
struct History<O>(Mutex<Vec<Operation<O>>>);

impl<O: Outcome> History<O> {
    fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn add(&self, outcome: O, [began, ended]: [Instant; 2]) {
        self.0.lock().expect("no panic").push(Operation { began, ended, outcome });
    }

    /// Checks the operations on the object at `path`. Returns their number.
    fn check(&self, path: &Path) -> usize {
        let operations = self.0.lock().expect("no panic");
        let checked = linearizable::check(&operations);
        checked.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        operations.len()
    }
}

/// An object that programs share.
pub(crate) trait SharedObject: Sync {
    /// Whether the program with this number uses the object.
    fn is_used_by(&self, _program: usize) -> bool {
        true
    }

    /// Performs and records a random operation through a mount.
    fn operate(&self, mount: &Path, random: &mut Random, longest: &LongestCall);

    /// Checks all operations. Returns their number.
    fn check(&self) -> usize;
}

fn file_of(file: std::io::Result<std::fs::Metadata>, path: &Path) -> Option<u64> {
    match file {
        Ok(found) => Some(found.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("lookup of {}: {error}", path.display()),
    }
}

/// Performs an operation on a name.
fn operate_on_name(path: &Path, choice: usize) -> NameOutcome {
    match choice {
        0 | 1 => match File::create_new(path) {
            Ok(file) => NameOutcome::Created(file.metadata().expect("an open file").ino()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => NameOutcome::Exists,
            Err(error) => panic!("creation of {}: {error}", path.display()),
        },
        2 => match std::fs::remove_file(path) {
            Ok(()) => NameOutcome::Removed,
            Err(error) if error.kind() == ErrorKind::NotFound => NameOutcome::Absent,
            Err(error) => panic!("removal of {}: {error}", path.display()),
        },
        _ => file_of(std::fs::symlink_metadata(path), path)
            .map_or(NameOutcome::Absent, NameOutcome::Found),
    }
}

/// A name that programs create, remove and look up. The path of the name is relative to a mount
/// point.
pub(crate) struct Name {
    path: PathBuf,
    history: History<NameOutcome>,
}

impl Name {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, history: History::new() }
    }
}

impl SharedObject for Name {
    fn operate(&self, mount: &Path, random: &mut Random, longest: &LongestCall) {
        let (path, choice) = (mount.join(&self.path), random.below(4));
        let (outcome, times) = longest.measure(|| operate_on_name(&path, choice));
        self.history.add(outcome, times);
    }

    fn check(&self) -> usize {
        self.history.check(&self.path)
    }
}

/// Two names in directories of different metadata groups. Programs create, remove and look up each
/// name, and rename files from one name to the other.
pub(crate) struct Pair {
    paths: [PathBuf; 2],
    history: History<PairOutcome>,
}

impl Pair {
    pub(crate) fn new(paths: [PathBuf; 2]) -> Self {
        Self { paths, history: History::new() }
    }
}

/// Renames a file with `RENAME_NOREPLACE`. Without this flag, the kernel would skip a rename if it
/// finds the same file at both names. The kernel may find this state while another mount renames
/// the file.
fn rename(paths: &[PathBuf; 2], from: usize) -> PairOutcome {
    let of_name = |name, outcome| PairOutcome::OfName { name, outcome };
    match renameat_with(CWD, &paths[from], CWD, &paths[1 - from], RenameFlags::NOREPLACE) {
        Ok(()) => PairOutcome::Moved { from },
        Err(Errno::NOENT) => of_name(from, NameOutcome::Absent),
        Err(Errno::EXIST) => of_name(1 - from, NameOutcome::Exists),
        Err(error) => panic!("rename of {}: {error}", paths[from].display()),
    }
}

impl SharedObject for Pair {
    fn operate(&self, mount: &Path, random: &mut Random, longest: &LongestCall) {
        let paths = self.paths.each_ref().map(|it| mount.join(it));
        let (name, choice) = (random.below(2), random.below(8));
        let (outcome, times) = longest.measure(|| match choice {
            0..=3 => rename(&paths, name),
            _ => {
                let outcome = operate_on_name(&paths[name], choice - 4);
                PairOutcome::OfName { name, outcome }
            }
        });
        self.history.add(outcome, times);
    }

    fn check(&self) -> usize {
        self.history.check(&self.paths[0])
    }
}

/// The calls that lock a [`Register`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockCall {
    /// `flock`.
    Flock,
    /// `fcntl`. A lock of `fcntl` belongs to a process. All programs of this test are threads of
    /// one process, so only one program of each mount uses such a register.
    Fcntl,
}

impl LockCall {
    fn set(self, file: &File, operation: FlockOperation) -> rustix::io::Result<()> {
        match self {
            Self::Flock => flock(file, operation),
            Self::Fcntl => fcntl_lock(file, operation),
        }
    }
}

/// Eight bytes in a file, which programs read under a shared lock and overwrite under an exclusive
/// lock. The bytes of a register for `flock` are in metadata. A file for `fcntl` is larger than the
/// inline bytes, so its bytes are on storage.
pub(crate) struct Register {
    path: PathBuf,
    call: LockCall,
    /// The sum of [`EXCLUSIVE`] for each program with an exclusive lock, and 1 for each program
    /// with a shared lock.
    owners: AtomicUsize,
    history: History<RegisterOutcome>,
}

impl Register {
    /// Creates the register at `path`, relative to the mount point `mount`.
    pub(crate) fn new(mount: &Path, path: PathBuf, call: LockCall) -> Self {
        let len = match call {
            LockCall::Flock => 8,
            LockCall::Fcntl => 20_000,
        };
        files::write(mount.join(&path), vec![0; len]);
        Self { path, call, owners: AtomicUsize::new(0), history: History::new() }
    }

    /// Sets a lock. Returns false if `may_wait` is false and another program has the lock. The
    /// duration of a call that may wait is not measured, because the wait lasts until the owner
    /// releases the lock.
    fn lock(&self, file: &File, is_writer: bool, may_wait: bool, longest: &LongestCall) -> bool {
        let operation = match (is_writer, may_wait) {
            (true, true) => FlockOperation::LockExclusive,
            (true, false) => FlockOperation::NonBlockingLockExclusive,
            (false, true) => FlockOperation::LockShared,
            (false, false) => FlockOperation::NonBlockingLockShared,
        };
        let result = match may_wait {
            true => self.call.set(file, operation),
            false => longest.measure(|| self.call.set(file, operation)).0,
        };
        match result {
            Ok(()) => true,
            Err(Errno::AGAIN | Errno::ACCESS) if !may_wait => false,
            Err(error) => panic!("lock of {}: {error}", self.path.display()),
        }
    }

    /// Reads or overwrites the register. The caller has locked the register.
    fn access(&self, file: &File, value: Option<u64>) -> RegisterOutcome {
        let mut bytes = [0; 8];
        let result = match value {
            Some(value) => {
                file.write_all_at(&value.to_le_bytes(), 0).map(|()| RegisterOutcome::Written(value))
            }
            None => file
                .read_exact_at(&mut bytes, 0)
                .map(|()| RegisterOutcome::Read(u64::from_le_bytes(bytes))),
        };
        result.unwrap_or_else(|error| panic!("access to {}: {error}", self.path.display()))
    }
}

impl SharedObject for Register {
    fn is_used_by(&self, program: usize) -> bool {
        self.call == LockCall::Flock || program.is_multiple_of(SHARING)
    }

    fn operate(&self, mount: &Path, random: &mut Random, longest: &LongestCall) {
        let path = mount.join(&self.path);
        let (is_writer, may_wait) = (random.below(2) == 0, random.below(2) == 0);
        let (opened, _) = longest.measure(|| File::options().read(true).write(true).open(&path));
        let file = opened.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
        if !self.lock(&file, is_writer, may_wait, longest) {
            return;
        }
        let (own, most) = if is_writer { (EXCLUSIVE, 0) } else { (1, MOUNTS.len() * SHARING) };
        let others = self.owners.fetch_add(own, Ordering::SeqCst);
        assert!(
            others <= most,
            "{}: conflicting locks: own {own}, others {others}",
            path.display()
        );
        let value = is_writer.then(|| random.number());
        let (outcome, times) = longest.measure(|| self.access(&file, value));
        self.history.add(outcome, times);
        self.owners.fetch_sub(own, Ordering::SeqCst);
        let (unlocked, _) = longest.measure(|| self.call.set(&file, FlockOperation::Unlock));
        unlocked.unwrap_or_else(|error| panic!("unlock {}: {error}", path.display()));
    }

    fn check(&self) -> usize {
        self.history.check(&self.path)
    }
}
