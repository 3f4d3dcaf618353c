//! All calls that a file system answers, as one trait: the sum of the traits that stand next to the
//! code. Tests can mount another file system than [`crate::Client`], such as one in memory.

use crate::attributes::pattern::Patterns;
use crate::attributes::stat::InodeAttributes;
use crate::attributes::xattr::Xattrs;
use crate::data::allocate::Allocates;
use crate::data::copy::Copies;
use crate::data::read::Reads;
use crate::data::write::Writes;
use crate::files::close::Closes;
use crate::files::open::Opens;
use crate::files::sync::Syncs;
use crate::locks::file_locks::Locks;
use crate::names::directory::Directories;
use crate::names::entries::Names;

/// One worker's access to a file system. Cheap to clone; stays on its thread.
///
/// Futures of calls that only look may be dropped at any time, and so may those that read or change
/// the bytes of a file. The caller runs those of other calls to their end, even if the program that
/// made the call is gone.
pub trait FileSystem:
    Clone
    + Names
    + Directories
    + InodeAttributes
    + Xattrs
    + Patterns
    + Opens
    + Closes
    + Syncs
    + Reads
    + Writes
    + Allocates
    + Copies
    + Locks
    + 'static
{
}

impl<T> FileSystem for T where
    T: Clone
        + Names
        + Directories
        + InodeAttributes
        + Xattrs
        + Patterns
        + Opens
        + Closes
        + Syncs
        + Reads
        + Writes
        + Allocates
        + Copies
        + Locks
        + 'static
{
}
