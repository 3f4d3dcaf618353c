//! All operations of a file system as one trait, which combines the traits of the other modules.
//! Tests can mount another implementation than [`crate::Client`], such as one in memory.

use crate::attributes::pattern::Patterns;
use crate::attributes::queries::Queries;
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

/// One worker's access to a file system. Cheap to clone. A clone must stay on the thread of the
/// original.
///
/// The caller may drop a future at any await if the call only reads, or if it changes the bytes of
/// a file. The caller must run all other calls to completion, even if the program that made the
/// call was killed.
pub trait FileSystem:
    Clone
    + Names
    + Directories
    + InodeAttributes
    + Xattrs
    + Patterns
    + Queries
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
        + Queries
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
