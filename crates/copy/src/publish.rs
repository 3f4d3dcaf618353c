//! Temporary names of copies, and the rename of a complete copy to its final name.
//!
//! A copy is written under a temporary name, so that no other name ever leads to a file that is
//! incomplete. If the copy replaces an entry, this entry stays until the copy is complete. The
//! rename checks that the temporary name leads to the file that this run has written.

use crate::context::Context;
use crate::failure::Failure;
use crate::tree::{Destination, Seen};
use crate::version::Identity;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;

/// A temporary name. When the value is dropped, the entry with this name is removed, unless the
/// copy has got its final name.
#[derive(Debug)]
pub(crate) struct Temporary<'a> {
    destination: &'a Destination,
    pub(crate) name: OsString,
    is_in_place: bool,
}

impl<'a> Temporary<'a> {
    /// Chooses a temporary name for the copy of `name`. The caller creates the entry.
    pub(crate) fn new(context: &Context, destination: &'a Destination, name: &OsStr) -> Self {
        Self { destination, name: context.temporary(name), is_in_place: false }
    }

    /// Creates a regular file with the temporary name. Only its owner may open it.
    pub(crate) fn create(&self) -> Result<File, Failure> {
        create(&self.destination.file, &self.name)
    }

    /// Opens the entry that has the temporary name.
    pub(crate) fn open(&self) -> Result<Seen, Failure> {
        let seen = Seen::open(&self.destination.file, &self.name)?;
        seen.ok_or_else(|| {
            Failure::because("create the copy", "another program has removed the incomplete copy")
        })
    }

    /// Renames the copy to its final name `name`. `replaces` means that an entry with this name may
    /// exist.
    pub(crate) fn put_in_place(
        mut self,
        copy: Identity,
        name: &OsStr,
        replaces: bool,
    ) -> Result<(), Failure> {
        put_in_place(self.destination, &self.name, copy, name, replaces)?;
        self.is_in_place = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_in_place {
            // Errors are ignored, because the caller reports the first error, and a later run
            // removes the file.
            let _ = unlinkat(&self.destination.file, &self.name, AtFlags::empty());
        }
    }
}

/// Creates a regular file. Only its owner may open it.
pub(crate) fn create(parent: &File, name: &OsStr) -> Result<File, Failure> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
    file.map(File::from).map_err(Failure::of("create the copy"))
}

/// Renames an incomplete copy to its final name.
pub(crate) fn put_in_place(
    destination: &Destination,
    incomplete: &OsStr,
    copy: Identity,
    name: &OsStr,
    replaces: bool,
) -> Result<(), Failure> {
    let parent = &destination.file;
    // If this run has created the directory, other users cannot enter it, so no check is needed.
    let expect = |name: &OsStr| match destination.is_new {
        true => Ok(()),
        false => expect_identity(parent, name, copy),
    };
    expect(incomplete)?;
    let failed = Failure::of("rename the copy to its final name");
    if replaces {
        renameat(parent, incomplete, parent, name).map_err(failed)?;
    } else {
        match renameat_with(parent, incomplete, parent, name, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // When this run looked up this name, no entry had the name. Now an entry has the name.
            Err(Errno::EXIST) => {
                let reason = "another entry has this name at the destination now; on some file \
                              systems, names must not differ only in upper and lower case";
                return Err(Failure::because("rename the copy to its final name", reason));
            }
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                renameat(parent, incomplete, parent, name).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    expect(name)
}

fn expect_identity(parent: &File, name: &OsStr, copy: Identity) -> Result<(), Failure> {
    match Seen::open(parent, name)? {
        Some(seen) if seen.identity() == copy => Ok(()),
        _ => {
            let reason = "another program has replaced the copy; copy the entry again with \
                          --resume";
            Err(Failure::because("rename the copy to its final name", reason))
        }
    }
}
