//! Directories of the source and the destination, and the entries in them.
//!
//! Each unit of work in a directory holds an `Arc` of the directory. When the last unit has ended,
//! all entries of the directory are complete, and [`Drop`] sets the attributes of the copy and
//! syncs it. The descriptors of the directory are open until then, so that no name is looked up
//! twice.

use crate::attributes;
use crate::context::Context;
use crate::failure::{Failure, shown};
use crate::outcome::Counters;
use crate::plan::{Version, is_reserved, is_temporary};
use crate::shares::{Key, Part};
use crate::version::{Identity, present_version, version_of};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, flock, fstatfs, ioctl_getflags,
    mkdirat, openat, openat2, unlinkat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A directory of the source, and its copy.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) context: Arc<Context>,
    /// `None` means that this directory contains a source, and is not copied itself.
    pub(crate) parent: Option<Arc<Directory>>,
    /// Index of the (source, destination) pair.
    pub(crate) pair: usize,
    /// The key of the directory, from which the share of each entry in it follows.
    pub(crate) key: Key,
    /// The name of the directory in the source. If `parent` is `None`, the path of the directory.
    pub(crate) name: OsString,
    /// The name of the copy, if it differs from the name of the source.
    pub(crate) copy_name: Option<OsString>,
    pub(crate) source: File,
    /// The attributes of the directory before it was listed.
    pub(crate) before: Metadata,
    /// The copy of the directory. `None` means that the copy does not exist, which occurs in a dry
    /// run only.
    pub(crate) destination: Option<Destination>,
    /// Whether the copy of an entry has failed. If so, incomplete copies in the directory are not
    /// removed.
    pub(crate) has_failed: AtomicBool,
}

/// The copy of a directory, or the directory that contains the copy of a source.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) file: File,
    pub(crate) identity: Identity,
    /// Whether this run has created the directory, so that only this run has created entries in it.
    pub(crate) is_new: bool,
    /// Whether new entries inherit an access control list from the directory.
    pub(crate) gives_lists: bool,
    /// The names that this run has used. `None` if the directory distinguishes upper and lower
    /// case.
    pub(crate) names: Option<FoldedNames>,
}

/// The names that this run has copied to a directory that ignores case. Without this record, the
/// copy of the second of two names that differ only in case would replace the copy of the first.
/// Two directories would become one.
#[derive(Debug, Default)]
pub(crate) struct FoldedNames {
    /// The names that this run has used, by their forms in lower case. The mutex protects only this
    /// map.
    names: Mutex<HashMap<String, OsString>>,
}

impl FoldedNames {
    /// Records a name. Returns a failure if another name of the source would lead to the same
    /// entry.
    pub(crate) fn claim(&self, name: &OsStr) -> Result<(), Failure> {
        let folded = name.to_string_lossy().to_lowercase();
        let mut names = self.names.lock().expect("no thread panics while it has the lock");
        let first = names.entry(folded).or_insert_with(|| name.to_owned());
        if first == name {
            return Ok(());
        }
        let reason = format!(
            "names at the destination do not distinguish upper and lower case, and {} exists there \
             already; rename one of the two entries",
            crate::failure::shown(Path::new(first))
        );
        Err(Failure::because("copy", reason))
    }
}

/// Whether a directory is known to ignore case in names. Some directories that ignore case are not
/// recognised. In such a directory, the rename of a new copy fails if it would replace another
/// entry.
fn ignores_case(directory: &File) -> bool {
    /// `FS_CASEFOLD_FL`, a flag that ext4, f2fs and tmpfs have for each directory.
    const CASEFOLD: u32 = 0x4000_0000;
    /// Magic numbers of FAT, exFAT, NTFS, CIFS, SMB and HFS+. They come from `magic.h` and the
    /// source code of Linux.
    const KINDS: [u64; 7] =
        [0x4d44, 0x2011_bab0, 0x5346_544e, 0x7366_746e, 0xff53_4d42, 0xfe53_4d42, 0x482b];
    let has_flag = ioctl_getflags(directory).is_ok_and(|flags| flags.bits() & CASEFOLD != 0);
    let kind = fstatfs(directory).map(|found| found.f_type as u64 & 0xffff_ffff);
    has_flag || kind.is_ok_and(|kind| KINDS.contains(&kind))
}

impl Destination {
    pub(crate) fn new(file: File, is_new: bool) -> Result<Self, Failure> {
        let metadata = file.metadata().map_err(Failure::of("read the attributes of the copy"))?;
        // Another user may have replaced the directory that this run has created, or the file
        // system may give all entries the same owner. In both cases, entries are checked as in a
        // directory that existed before.
        let is_new = is_new && metadata.uid() == rustix::process::geteuid().as_raw();
        let gives_lists = attributes::gives_lists(&file);
        let names = ignores_case(&file).then(FoldedNames::default);
        Ok(Self { identity: Identity::of(&metadata), file, is_new, gives_lists, names })
    }
}

impl Directory {
    /// Returns the path of the directory in the source, for messages.
    pub(crate) fn shown(&self) -> PathBuf {
        let names: Vec<_> = self.ancestors().map(|it| &it.name).collect();
        names.into_iter().rev().collect()
    }

    /// Returns the path of the copy, relative to the directory that contains the top of the
    /// destination.
    pub(crate) fn below(&self) -> PathBuf {
        match &self.parent {
            None => PathBuf::new(),
            Some(parent) => parent.below().join(self.copy_name.as_ref().unwrap_or(&self.name)),
        }
    }

    /// Returns this directory, its parent, the parent of its parent, and so on.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |it| it.parent.as_deref())
    }

    /// Completes the copy of a directory in which all entries are complete: removes leftovers of
    /// earlier runs, sets the attributes and syncs it.
    fn complete(&self, destination: &Destination) -> Result<(), Failure> {
        let options = &self.context.options;
        match options.part {
            Part::Whole | Part::Finish => {}
            Part::Prepare => return Ok(()),
            // Other hosts are still copying into the directory, so the last part of the copy sets
            // its attributes.
            Part::Share(_) if options.sync => {
                return destination.file.sync_all().map_err(Failure::of("sync the directory"));
            }
            Part::Share(_) => return Ok(()),
        }
        if !destination.is_new && !self.has_failed.load(Ordering::Relaxed) {
            remove_leftovers(&destination.file)?;
        }
        // A change of the attributes of the source directory is allowed. A change of its list of
        // entries is not.
        let now = self.source.metadata().map_err(Failure::of("read the attributes"))?;
        attributes::copy(options, &self.source, &destination.file, &now, false)?;
        if options.sync {
            destination.file.sync_all().map_err(Failure::of("sync the directory"))?;
        }
        let modified = |version: Version| version.modified;
        if modified(present_version(&self.source)?) != modified(version_of(&self.before)) {
            let reason = "a program added or removed entries during the copy; copy the directory \
                          again with --resume";
            return Err(Failure::because("copy the directory", reason));
        }
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let Some(destination) = &self.destination else { return };
        if self.parent.is_none() || self.context.options.is_dry_run || self.context.is_stopped() {
            return;
        }
        if let Err(failure) = self.complete(destination) {
            self.context.problem(&self.shown(), &failure);
        }
    }
}

/// The name of an entry in a directory of the source, and the name of its copy.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The name in the source.
    pub(crate) name: OsString,
    /// The name of the copy, if it differs from `name`.
    pub(crate) copy_name: Option<OsString>,
}

impl Entry {
    pub(crate) fn copy(&self) -> &OsStr {
        self.copy_name.as_ref().unwrap_or(&self.name)
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a directory that the user has named. Follows symbolic links in its path.
pub(crate) fn open_named(path: &Path) -> Result<File, Failure> {
    open_with(path, DIRECTORY)
}

/// Opens the directory that contains a source, with `O_PATH`, since the copy does not list this
/// directory. So the user needs only the permission to enter the directory, as in a `/home` with
/// the mode 711.
pub(crate) fn open_source_parent(path: &Path) -> Result<File, Failure> {
    open_with(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
}

fn open_with(path: &Path, flags: OFlags) -> Result<File, Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(File::from).map_err(Failure::of("open the directory"))
}

/// Opens the directory with the path `path` below the directory `top`. Follows no symbolic link.
/// The path may be longer than the kernel's limit for one call.
pub(crate) fn open_below(top: &File, path: &Path) -> Result<File, Failure> {
    /// Maximum number of path components that one `openat2` call resolves. 15 names of 255 bytes
    /// each are shorter than `PATH_MAX` (4096 bytes).
    const STEP: usize = 15;
    let resolve = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
    let open = |directory: &File, path: &Path| {
        let opened = openat2(directory, path, DIRECTORY, Mode::empty(), resolve);
        opened.map(File::from).map_err(Failure::of("open the directory"))
    };
    let mut directory = open(top, Path::new("."))?;
    let names: Vec<_> = path.components().collect();
    for names in names.chunks(STEP) {
        directory = open(&directory, &names.iter().collect::<PathBuf>())?;
    }
    Ok(directory)
}

/// Opens the directory `name` in the directory `parent`.
pub(crate) fn open_directory(parent: impl AsFd, name: &OsStr) -> rustix::io::Result<File> {
    openat(parent, name, DIRECTORY.union(OFlags::NOFOLLOW), Mode::empty()).map(File::from)
}

/// An entry that is open with `O_PATH`. Such a descriptor does not permit reads, and the open of a
/// device with `O_PATH` has no side effect. While the entry is open, the file system does not use
/// its inode number for another file.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) file: File,
    pub(crate) metadata: Metadata,
}

impl Seen {
    /// Opens an entry with `O_PATH`, without following a symbolic link. `None` means that no entry
    /// has this name.
    pub(crate) fn open(parent: impl AsFd, name: &OsStr) -> Result<Option<Self>, Failure> {
        let flags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        let file = match openat(parent, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Failure::of("open")(error)),
        };
        let metadata = file.metadata().map_err(Failure::of("read the attributes"))?;
        Ok(Some(Self { file, metadata }))
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::of(&self.metadata)
    }

    pub(crate) fn kind(&self) -> FileType {
        file_type(&self.metadata)
    }

    /// Opens the regular file of this entry for reading. Fails if `name` now leads to another file,
    /// or if the file has changed.
    pub(crate) fn open_file(&self, parent: &File, name: &OsStr) -> Result<File, Failure> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(parent, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Err(Failure::changed()),
            Err(error) => return Err(Failure::of("open")(error)),
        };
        let now = file.metadata().map_err(Failure::of("read the attributes"))?;
        match version_of(&now) == version_of(&self.metadata) {
            true => Ok(file),
            false => Err(Failure::changed()),
        }
    }
}

/// Returns the type of an entry from its attributes.
pub(crate) fn file_type(metadata: &Metadata) -> FileType {
    FileType::from_raw_mode(metadata.mode())
}

/// Creates the copy of a directory, or opens it if it exists.
pub(crate) fn create_directory(parent: &File, name: &OsStr) -> Result<Destination, Failure> {
    // Other users may enter the directory only when the copy is complete and has the mode of its
    // source.
    let is_new = match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(Failure::of("create the directory")(error)),
    };
    let file = open_directory(parent, name).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => Failure::because(
            "copy the directory",
            format!(
                "'{}' exists at the destination and is not a directory; remove it, or name \
                 another destination",
                shown(Path::new(name))
            ),
        ),
        other => Failure::of("open the directory of the copy")(other),
    });
    Destination::new(file?, is_new)
}

/// Returns up to `limit` entries of a directory, without `.` and `..`. If there are fewer than
/// `limit`, the end of the directory was reached.
pub(crate) fn list(
    stream: &mut rustix::fs::Dir,
    limit: usize,
) -> Result<Vec<(OsString, FileType)>, Failure> {
    let mut entries = Vec::new();
    while entries.len() < limit {
        let Some(entry) = stream.read() else { break };
        let entry = entry.map_err(Failure::of("list the directory"))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            entries.push((OsString::from_vec(name.to_vec()), entry.file_type()));
        }
    }
    Ok(entries)
}

/// Removes the incomplete copies that killed runs have left in a directory, unless another run is
/// working on them. The caller must have completed all entries that this run copies into the
/// directory.
pub(crate) fn remove_leftovers(directory: &File) -> Result<(), Failure> {
    let failed = || Failure::of("list the destination directory");
    for entry in rustix::fs::Dir::read_from(directory).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
        if is_reserved(&name) {
            remove_leftover(directory, &name)?;
        }
    }
    Ok(())
}

/// Removes an incomplete copy, unless another run has locked it. A temporary file has no lock. If
/// another run is still writing it, that run reports the entry as failed.
pub(crate) fn remove_leftover(directory: &File, name: &OsStr) -> Result<(), Failure> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if !is_temporary(name) {
        // The lock on the list of finished pieces also protects the incomplete copy.
        let list = Path::new(name).with_extension("pieces");
        if let Ok(file) = openat(directory, &list, flags, Mode::empty())
            && flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        {
            return Ok(());
        }
    }
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT | Errno::ISDIR | Errno::PERM) => Ok(()),
        Err(error) => Err(Failure::of("remove an incomplete copy of an earlier run")(error)),
    }
}

/// Counts an entry of the source that the walk has found.
pub(crate) fn count_found(counters: &Counters, kind: FileType) {
    match kind {
        FileType::Directory => Counters::add(&counters.unread, 1),
        _ => Counters::add(&counters.found, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_a_file_found_in_place_of_a_directory() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("result"), "").unwrap();
        let parent = File::open(scratch.path()).unwrap();
        let failure = create_directory(&parent, OsStr::new("result")).unwrap_err();
        let text = failure.error.to_string();
        assert!(text.starts_with("'result' exists at the destination and is not"), "{text}");
        assert!(create_directory(&parent, OsStr::new("new")).is_ok());
    }

    #[test]
    fn names_that_differ_by_case_only_are_refused() {
        let names = FoldedNames::default();
        for name in ["Read", "other", "Read"] {
            names.claim(OsStr::new(name)).unwrap();
        }
        for name in ["READ", "read", "OTHER"] {
            let failure = names.claim(OsStr::new(name)).unwrap_err();
            assert!(
                failure.error.to_string().contains("do not distinguish upper and lower case"),
                "{name}"
            );
        }
        let directory = tempfile::TempDir::new().unwrap();
        assert!(!ignores_case(&open_named(directory.path()).unwrap()));
    }
}
