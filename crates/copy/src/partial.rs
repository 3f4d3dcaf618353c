//! The incomplete copy of a large file, and the list of its finished pieces.
//!
//! Both are used only if this user owns them alone, since another user could write bytes of their
//! own there. A lock on the list keeps two runs from writing the same file. On a file system
//! without locks, the copy takes no lock.

use crate::failure::Failure;
use crate::plan::{Version, finished_pieces, list_head, partial_names, piece_count};
use crate::publish::create;
use crate::tree::Seen;
use crate::version::Identity;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;

/// Maximum length in bytes of a line of the list, which has the number of a piece.
const LINE: u64 = 21;

/// An incomplete copy that this run has locked.
#[derive(Debug)]
pub(crate) struct Partial {
    /// The name of the incomplete copy.
    pub(crate) name: OsString,
    pub(crate) copy: File,
    identity: Identity,
    list_name: OsString,
    list: File,
    /// For each piece, whether a former run has finished it.
    pub(crate) finished: Vec<bool>,
}

impl Partial {
    /// Opens the incomplete copy of `name`. If `resume` is false, or if it belongs to another
    /// version of the source, a new one replaces it.
    pub(crate) fn open(
        parent: &File,
        name: &OsStr,
        version: Version,
        resume: bool,
    ) -> Result<Self, Failure> {
        let (name_of_copy, list_name) = partial_names(name);
        let list = open_list(parent, &list_name)?;
        let old = match resume {
            true => continued(parent, &name_of_copy, name, version, &list)?,
            false => None,
        };
        let (copy, finished) = match old {
            Some(old) => old,
            None => begin(parent, &name_of_copy, name, version, &list)?,
        };
        let identity = copy.metadata().map(|it| Identity::of(&it));
        let identity = identity.map_err(Failure::of("read the attributes of the copy"))?;
        Ok(Self { name: name_of_copy, copy, identity, list_name, list, finished })
    }

    pub(crate) fn is_finished(&self, index: u64) -> bool {
        usize::try_from(index).is_ok_and(|index| self.finished.get(index) == Some(&true))
    }

    /// Opens the incomplete copy once more. See the hazard in `large`.
    pub(crate) fn reopen(&self, parent: &File) -> Result<File, Failure> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(parent, &self.name, flags, Mode::empty());
        let file = File::from(file.map_err(Failure::of("open the incomplete copy"))?);
        let metadata = file.metadata().map_err(Failure::of("read the attributes of the copy"))?;
        match Identity::of(&metadata) == self.identity {
            true => Ok(file),
            false => Err(Failure::because(
                "open the incomplete copy",
                "another program has replaced it; copy it again with --resume",
            )),
        }
    }

    /// Records a finished piece, after its data is durable.
    pub(crate) fn note(&self, index: u64) -> Result<(), Failure> {
        // The file is open for appending, and one write has the whole line.
        let line = format!("{index}\n");
        let written = (&self.list).write_all(line.as_bytes());
        written.map_err(Failure::of("write the list of finished pieces"))
    }

    /// Removes list and copy, so that no later run uses the pieces. The caller reports an error.
    pub(crate) fn discard(&self, parent: &File) {
        for name in [&self.list_name, &self.name] {
            let _ = unlinkat(parent, name, AtFlags::empty());
        }
    }

    /// Removes the list, when the copy has its name.
    pub(crate) fn remove_list(&self, parent: &File) -> Result<(), Failure> {
        let removed = unlinkat(parent, &self.list_name, AtFlags::empty());
        removed.map_err(Failure::of("remove the list of finished pieces"))
    }
}

/// Whether no other user can read or write a file, by this name or another one.
fn is_private(metadata: &Metadata) -> bool {
    metadata.is_file()
        && metadata.nlink() == 1
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o077 == 0
}

/// Opens or creates the list, and locks it. A list that other users may have written is replaced.
fn open_list(parent: &File, name: &OsStr) -> Result<File, Failure> {
    let failed = || Failure::of("open the list of finished pieces");
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = flags | OFlags::CLOEXEC;
    let old = match openat(parent, name, flags, Mode::empty()) {
        Ok(list) => Some(File::from(list)),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => None,
        Err(error) => return Err(failed()(error)),
    };
    let attributes =
        |list: &File| list.metadata().map_err(Failure::of("read the attributes of the list"));
    let list = match old {
        Some(list) if is_private(&attributes(&list)?) => list,
        _ => {
            match unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(Failure::of("remove the old list of pieces")(error)),
            }
            // `O_EXCL`: the list is new, also if its file system shows another owner or mode.
            let flags = flags | OFlags::CREATE | OFlags::EXCL;
            let list = openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
            File::from(list.map_err(failed())?)
        }
    };
    match flock(&list, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
        Err(Errno::WOULDBLOCK) => return Err(is_in_use()),
        Err(error) => return Err(failed()(error)),
    }
    // The run that had the lock may have completed the copy and removed the list.
    match Seen::open(parent, name)? {
        Some(seen) if seen.identity() == Identity::of(&attributes(&list)?) => Ok(list),
        _ => Err(is_in_use()),
    }
}

fn is_in_use() -> Failure {
    let reason = "another run copies this file now; wait for its end, then use --resume";
    Failure::because("lock the list of finished pieces", reason)
}

type Opened = (File, Vec<bool>);

/// Opens the copy of an interrupted run. `None` means that no incomplete copy of
/// this version exists.
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
    let limit = head.len() as u64 + LINE * (piece_count(version.len) + 1);
    let read = list.take(limit).read_to_end(&mut text);
    read.map_err(Failure::of("read the list of finished pieces"))?;
    let Some(finished) = finished_pieces(&text, &head, version.len) else { return Ok(None) };
    // A killed run may have left a part of a line. A line feed after it would make it the number of
    // another piece.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |it| it + 1);
    let cut = list.set_len(whole as u64);
    cut.map_err(Failure::of("write the list of finished pieces"))?;
    Ok(Some((copy, finished)))
}

/// Begins a new incomplete copy.
fn begin(
    parent: &File,
    copy_name: &OsStr,
    name: &OsStr,
    version: Version,
    list: &File,
) -> Result<Opened, Failure> {
    let failed = || Failure::of("write the list of finished pieces");
    // The list must never describe another copy, also not after a power loss.
    list.set_len(0).and_then(|()| list.sync_all()).map_err(failed())?;
    match unlinkat(parent, copy_name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(Failure::of("remove the old incomplete copy")(error)),
    }
    let copy = create(parent, copy_name)?;
    copy.set_len(version.len).map_err(Failure::of("set the length"))?;
    let metadata = copy.metadata().map_err(Failure::of("read the attributes of the copy"))?;
    let head = list_head(name, version, metadata.ino());
    (&*list).write_all(&head).map_err(failed())?;
    let count = usize::try_from(piece_count(version.len)).unwrap_or(usize::MAX);
    Ok((copy, vec![false; count]))
}
