//! Hard links: finds the names of the source that lead to the same file, and creates the same links
//! between their copies.
//!
//! The first name of a file that is found is copied. All other names of the file wait for this
//! copy, and become hard links to it. An inode number does not suffice to recognise a file, because
//! a file system reuses the inode number of a removed file. For this reason, a name is linked only
//! if its file has the version (length and times) of the file that was copied. In addition, the
//! copy must still be the file that this run has written.

use crate::failure::Failure;
use crate::plan::Version;
use crate::publish::Temporary;
use crate::tree::{Destination, Directory, Entry, open_below};
use crate::version::Identity;
use rustix::fs::{AtFlags, FileType, linkat};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Maximum number of files with several names that a run remembers at the same time. Each of these
/// files needs about 300 bytes of memory. A file is forgotten when all its names have been found.
const MOST_FILES: usize = 8 << 20;
/// Maximum number of names of one file that wait for its copy.
const MOST_WAITING: usize = 1 << 20;

/// A complete copy to which other names can be linked.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) pair: usize,
    /// The path of the copy's directory, relative to the directory that contains the top of the
    /// destination.
    pub(crate) directory: PathBuf,
    pub(crate) name: OsString,
    pub(crate) copy: Identity,
}

/// A name of the source that waits for the copy of its file.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) parent: Arc<Directory>,
    pub(crate) entry: Entry,
    pub(crate) kind: FileType,
}

#[derive(Debug)]
struct Known {
    version: Version,
    /// Number of names of the file that the walk has not found yet.
    names_left: u64,
    /// The complete copy. `None` means that a thread is still copying the file.
    finished: Option<Arc<Finished>>,
    waiting: Vec<Waiting>,
}

/// The next step of the caller for a name of a file.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Copy the file under this name, and then call [`Links::finish`] or [`Links::fail`].
    Copy,
    /// Do nothing. The name waits for the copy of its file.
    Wait,
    /// Create the name as a hard link to this copy.
    Link(Arc<Finished>),
}

/// All files of the source that have several names. The lock protects the map, and is held for one
/// operation on the map.
#[derive(Debug, Default)]
pub(crate) struct Links {
    files: Mutex<HashMap<(u64, u64), Known>>,
}

fn key(version: Version) -> (u64, u64) {
    (version.device, version.inode)
}

impl Links {
    /// Decides the next step for a name of a file that has `names` names. If the name has to wait,
    /// moves it from `waiting` to the list of the names that wait for this file.
    pub(crate) fn claim(
        &self,
        version: Version,
        names: u64,
        waiting: &mut Option<Waiting>,
    ) -> Result<Claim, Failure> {
        let mut files = self.files.lock().expect("no thread panics while it has the lock");
        let count = files.len();
        let Some(known) = files.get_mut(&key(version)) else {
            if count >= MOST_FILES {
                let reason = format!(
                    "the source has more than {MOST_FILES} files that also have names outside of \
                     the source; copy the source in several parts"
                );
                return Err(Failure::because("record the hard links of the file", reason));
            }
            let names_left = names.saturating_sub(1);
            let known = Known { version, names_left, finished: None, waiting: Vec::new() };
            files.insert(key(version), known);
            return Ok(Claim::Copy);
        };
        if known.version != version {
            // The inode number now belongs to another file, or the same file has changed. In both
            // cases the copy of the first name cannot be linked.
            return Err(Failure::changed());
        }
        match &known.finished {
            Some(finished) => {
                let finished = finished.clone();
                known.names_left = known.names_left.saturating_sub(1);
                if known.names_left == 0 {
                    files.remove(&key(version));
                }
                Ok(Claim::Link(finished))
            }
            None if known.waiting.len() >= MOST_WAITING => {
                let reason = format!(
                    "more than {MOST_WAITING} hard links of this file wait until the file is \
                     copied under its first name; copy the file again with --resume"
                );
                Err(Failure::because("record the hard links of the file", reason))
            }
            None => {
                known.waiting.extend(waiting.take());
                Ok(Claim::Wait)
            }
        }
    }

    /// Records the complete copy of a file, and returns the names that have waited for it.
    pub(crate) fn finish(&self, version: Version, finished: Finished) -> Vec<Waiting> {
        let mut files = self.files.lock().expect("no thread panics while it has the lock");
        let Some(known) = files.get_mut(&key(version)) else { return Vec::new() };
        known.finished = Some(Arc::new(finished));
        let waiting = std::mem::take(&mut known.waiting);
        if known.names_left == 0 {
            files.remove(&key(version));
        }
        waiting
    }

    /// Forgets a file whose copy has failed, and returns the names that have waited for it. The
    /// caller copies the file again under the first of these names.
    pub(crate) fn fail(&self, version: Version) -> Vec<Waiting> {
        let mut files = self.files.lock().expect("no thread panics while it has the lock");
        files.remove(&key(version)).map(|it| it.waiting).unwrap_or_default()
    }

    /// Drops all waiting names, because the copy ends early.
    pub(crate) fn forget(&self) {
        let files = std::mem::take(
            &mut *self.files.lock().expect("no thread panics while it has the lock"),
        );
        // A waiting name keeps its directory open. When the last handle to a directory is dropped,
        // the directory is synced and its problems are reported. This thread must not hold the lock
        // meanwhile, so it releases the lock first.
        drop(files);
    }
}

/// Creates a hard link to a copy. `top` is the directory that contains the top of the destination
/// to which this copy belongs.
pub(crate) fn link(
    directory: &Directory,
    name: &OsStr,
    finished: &Finished,
    top: &File,
    replaces: bool,
) -> Result<(), Failure> {
    let destination: &Destination = directory.destination.as_ref().expect("not in a dry run");
    let first = open_below(top, &finished.directory)?;
    let temporary = Temporary::new(&directory.context, destination, name);
    let (new, flags) = (&destination.file, AtFlags::empty());
    let linked = linkat(&first, &finished.name, new, &temporary.name, flags);
    linked.map_err(Failure::of("create the hard link"))?;
    if temporary.open()?.identity() != finished.copy {
        let reason = "another program has replaced the copy of another name of this file; copy the \
                      file again with --resume";
        return Err(Failure::because("create the hard link", reason));
    }
    temporary.put_in_place(finished.copy, name, replaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version =
        Version { device: 1, inode: 2, len: 3, modified: (4, 5), changed: (6, 7) };

    fn finished() -> Finished {
        let copy = Identity { device: 1, inode: 9 };
        Finished { pair: 0, directory: PathBuf::new(), name: "a".into(), copy }
    }

    #[test]
    fn file_with_a_reused_inode_is_not_linked() {
        let links = Links::default();
        assert!(matches!(links.claim(VERSION, 2, &mut None), Ok(Claim::Copy)));
        assert!(matches!(links.claim(VERSION, 2, &mut None), Ok(Claim::Wait)));
        links.finish(VERSION, finished());
        let other = Version { changed: (6, 8), ..VERSION };
        assert!(links.claim(other, 2, &mut None).is_err());
        assert!(matches!(links.claim(VERSION, 2, &mut None), Ok(Claim::Link(_))));
    }

    #[test]
    fn file_leaves_the_link_table_when_all_its_names_were_found() {
        let links = Links::default();
        for name in 0..3 {
            let claim = links.claim(VERSION, 3, &mut None).unwrap();
            assert_eq!(matches!(claim, Claim::Copy), name == 0);
            if name == 0 {
                links.finish(VERSION, finished());
            }
        }
        assert!(links.files.lock().unwrap().is_empty());
    }

    #[test]
    fn next_hard_link_is_copied_if_the_copy_of_the_first_failed() {
        let links = Links::default();
        assert!(matches!(links.claim(VERSION, 2, &mut None), Ok(Claim::Copy)));
        links.fail(VERSION);
        assert!(matches!(links.claim(VERSION, 2, &mut None), Ok(Claim::Copy)));
    }
}
