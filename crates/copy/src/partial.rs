//! The incomplete copy of a large file, and the list of the pieces that are finished in it.
//!
//! Both files are used only if this user owns them and no other user has access, because another
//! user could write false bytes to them. A lock on the list keeps two runs from writing the same
//! file. The processes of one copy by several hosts share the lock, because each writes different
//! pieces. If the file system does not support locks, the run continues without a lock.

use crate::failure::Failure;
use crate::plan::{FINISHED, Version, finished_pieces, list_head, partial_names, piece_count};
use crate::publish::create;
use crate::tree::Seen;
use crate::version::Identity;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};

/// An incomplete copy whose list this run has locked.
#[derive(Debug)]
pub(crate) struct Partial {
    /// The name of the incomplete copy.
    pub(crate) name: OsString,
    pub(crate) copy: File,
    identity: Identity,
    list_name: OsString,
    list: File,
    /// Length of the first line of the list, in bytes.
    head_len: u64,
    /// For each piece, whether a previous run has finished it.
    pub(crate) finished: Vec<bool>,
}

impl Partial {
    /// Opens the incomplete copy of `name`. If `resume` is false, or if the incomplete copy belongs
    /// to another version of the source, a new incomplete copy replaces it.
    pub(crate) fn open(
        parent: &File,
        name: &OsStr,
        version: Version,
        resume: bool,
    ) -> Result<Self, Failure> {
        let (name_of_copy, list_name) = partial_names(name);
        let list = match open_existing_list(parent, &list_name)? {
            Some(list) => list,
            None => replace_list(parent, &list_name)?,
        };
        lock(parent, &list_name, &list, FlockOperation::NonBlockingLockExclusive)?;
        let old = match resume {
            true => continued(parent, &name_of_copy, name, version, &list)?,
            false => None,
        };
        let (copy, finished) = match old {
            Some(old) => old,
            None => begin(parent, &name_of_copy, name, version, &list)?,
        };
        Self::new((name_of_copy, list_name), list, (copy, finished), (name, version))
    }

    /// Opens an incomplete copy that another process of the same copy has begun. Processes on
    /// several hosts may have it open. `None` means that no incomplete copy of this version of the
    /// source exists.
    pub(crate) fn join(
        parent: &File,
        name: &OsStr,
        version: Version,
    ) -> Result<Option<Self>, Failure> {
        let names = partial_names(name);
        let Some(list) = open_existing_list(parent, &names.1)? else { return Ok(None) };
        lock(parent, &names.1, &list, FlockOperation::NonBlockingLockShared)?;
        let Some(opened) = continued(parent, &names.0, name, version, &list)? else {
            return Ok(None);
        };
        Self::new(names, list, opened, (name, version)).map(Some)
    }

    fn new(
        (name, list_name): (OsString, OsString),
        list: File,
        (copy, finished): Opened,
        (name_of_file, version): (&OsStr, Version),
    ) -> Result<Self, Failure> {
        let identity = copy.metadata().map(|it| Identity::of(&it));
        let identity = identity.map_err(Failure::of("read the attributes of the copy"))?;
        let head_len = list_head(name_of_file, version, identity.inode).len() as u64;
        Ok(Self { name, copy, identity, list_name, list, head_len, finished })
    }

    pub(crate) fn is_finished(&self, index: u64) -> bool {
        usize::try_from(index).is_ok_and(|index| self.finished.get(index) == Some(&true))
    }

    /// Opens the incomplete copy once more, with a new descriptor. See the hazard in `large`.
    pub(crate) fn reopen(&self, parent: &File) -> Result<File, Failure> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(parent, &self.name, flags, Mode::empty());
        let file = File::from(file.map_err(Failure::of("open the incomplete copy"))?);
        let metadata = file.metadata().map_err(Failure::of("read the attributes of the copy"))?;
        match Identity::of(&metadata) == self.identity {
            true => Ok(file),
            false => Err(Failure::because(
                "open the incomplete copy",
                "another program has replaced the incomplete copy; copy the file again with \
                 --resume",
            )),
        }
    }

    /// Records a piece as finished. The caller must have synced its data.
    pub(crate) fn note(&self, index: u64) -> Result<(), Failure> {
        let written = self.list.write_all_at(&[FINISHED], self.head_len + index);
        written.map_err(Failure::of("write the list of finished pieces"))
    }

    /// Removes the list and the incomplete copy, so that no later run uses the pieces. Ignores
    /// errors, because the caller reports the error that made the removal necessary.
    pub(crate) fn discard(&self, parent: &File) {
        for name in [&self.list_name, &self.name] {
            let _ = unlinkat(parent, name, AtFlags::empty());
        }
    }

    /// Removes the list, after the copy has got its final name.
    pub(crate) fn remove_list(&self, parent: &File) -> Result<(), Failure> {
        let removed = unlinkat(parent, &self.list_name, AtFlags::empty());
        removed.map_err(Failure::of("remove the list of finished pieces"))
    }
}

/// Whether only this user can read or write a file, and the file has no second name.
fn is_private(metadata: &Metadata) -> bool {
    metadata.is_file()
        && metadata.nlink() == 1
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o077 == 0
}

const LIST: OFlags =
    OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens the list. `None` means that the list does not exist, or that other users may have written
/// to the list.
fn open_existing_list(parent: &File, name: &OsStr) -> Result<Option<File>, Failure> {
    let list = match openat(parent, name, LIST, Mode::empty()) {
        Ok(list) => File::from(list),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(Failure::of("open the list of finished pieces")(error)),
    };
    Ok(is_private(&attributes(&list)?).then_some(list))
}

/// Creates a new list. Removes an old list, to which other users may have written.
fn replace_list(parent: &File, name: &OsStr) -> Result<File, Failure> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(Failure::of("remove the old list of pieces")(error)),
    }
    // `O_EXCL` guarantees that the list is new, even if its file system shows a wrong owner or
    // mode.
    let flags = LIST | OFlags::CREATE | OFlags::EXCL;
    let list = openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
    list.map(File::from).map_err(Failure::of("open the list of finished pieces"))
}

fn attributes(list: &File) -> Result<Metadata, Failure> {
    list.metadata().map_err(Failure::of("read the attributes of the list"))
}

/// Locks the list, and checks that its name still leads to this file.
fn lock(parent: &File, name: &OsStr, list: &File, kind: FlockOperation) -> Result<(), Failure> {
    match flock(list, kind) {
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
        Err(Errno::WOULDBLOCK) => return Err(is_in_use()),
        Err(error) => return Err(Failure::of("open the list of finished pieces")(error)),
    }
    // The run that held the lock before may have completed the copy and removed the list.
    match Seen::open(parent, name)? {
        Some(seen) if seen.identity() == Identity::of(&attributes(list)?) => Ok(()),
        _ => Err(is_in_use()),
    }
}

fn is_in_use() -> Failure {
    let reason = "another `skep copy` copies this file now; wait until that copy has ended, then \
                  use --resume";
    Failure::because("lock the list of finished pieces", reason)
}

type Opened = (File, Vec<bool>);

/// Opens the incomplete copy of an interrupted run. `None` means that no incomplete copy of this
/// version of the source exists.
fn continued(
    parent: &File,
    copy_name: &OsStr,
    name: &OsStr,
    version: Version,
    list: &File,
) -> Result<Option<Opened>, Failure> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let copy = match openat(parent, copy_name, flags, Mode::empty()) {
        Ok(copy) => File::from(copy),
        Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(Failure::of("open the incomplete copy")(error)),
    };
    let metadata = copy.metadata().map_err(Failure::of("read the attributes of the copy"))?;
    if !is_private(&metadata) || metadata.len() != version.len {
        return Ok(None);
    }
    let head = list_head(name, version, metadata.ino());
    let mut text = Vec::new();
    let limit = head.len() as u64 + piece_count(version.len);
    let read = list.take(limit).read_to_end(&mut text);
    read.map_err(Failure::of("read the list of finished pieces"))?;
    let finished = finished_pieces(&text, &head, version.len);
    Ok(finished.map(|finished| (copy, finished)))
}

/// Begins a new incomplete copy, and writes the first line of its list.
fn begin(
    parent: &File,
    copy_name: &OsStr,
    name: &OsStr,
    version: Version,
    list: &File,
) -> Result<Opened, Failure> {
    let failed = || Failure::of("write the list of finished pieces");
    // Sync the empty list. Otherwise, after a power loss, a run could take the old content of the
    // list for the list of the new copy.
    list.set_len(0).and_then(|()| list.sync_all()).map_err(failed())?;
    match unlinkat(parent, copy_name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(Failure::of("remove the old incomplete copy")(error)),
    }
    let copy = create(parent, copy_name)?;
    copy.set_len(version.len).map_err(Failure::of("set the length"))?;
    let metadata = copy.metadata().map_err(Failure::of("read the attributes of the copy"))?;
    let head = list_head(name, version, metadata.ino());
    list.write_all_at(&head, 0).map_err(failed())?;
    let count = usize::try_from(piece_count(version.len)).unwrap_or(usize::MAX);
    Ok((copy, vec![false; count]))
}
