//! Copies between trees of files and object stores.
//!
//! Owns, from the lowest layer to the highest:
//! - `names`: which key a file gets, and which keys can be names of files
//! - `stored`: stores attributes of files in the metadata of objects
//! - `pool`: the threads of a copy and their queue
//! - `check`: compares an object with the bytes of a file
//! - `note`, `source`, `parts`, `upload`: copy files to objects
//! - `local`, `pieces`, `download`: copy objects to files
//!
//! `names` and `stored` do no I/O. `skep_s3` owns the requests, their signatures
//! and their retries.
//!
//! # Invariants
//! - An object is either complete or absent. A file that fits into one part is stored by one
//!   request. A larger file appears in the bucket only when its upload is completed. Files also
//!   appear only when they are complete (see [`crate::publish`]).
//! - No key leads out of the destination: each name in a key becomes the name of an entry in a
//!   directory, and no symbolic link is followed.
//! - All bytes of a copy come from one version of the file, or from an object with one entity tag.
//!
//! The invariants concern a bucket and a file system that other programs change, so no function can
//! check them.
//!
//! Held by the tests `interrupted_upload_continues_with_the_missing_parts`,
//! `interrupted_download_continues_with_the_missing_pieces`,
//! `keys_that_are_no_valid_paths_are_refused`, `link_at_the_destination_is_never_followed` and
//! `object_that_changes_during_the_copy_is_reported`.
//!
//! `docs/design/0020-copy.md`, "Object stores", lists the hazards.

mod check;
mod download;
mod local;
mod names;
mod note;
mod parts;
mod pieces;
mod pool;
mod source;
mod stored;
mod units;
mod upload;

pub use download::download;
pub use upload::upload;

use skep_s3::store::Bucket;
use std::path::PathBuf;

/// Minimum length of a part that Amazon's S3 accepts, except for the last part of an object.
pub const LEAST_PART: u64 = 5 << 20;
/// Maximum length of a part.
pub const MOST_PART: u64 = 5 << 30;
/// Maximum number of parts of one object.
const MOST_PARTS: u64 = 10_000;
/// Maximum length of an object.
const MOST_OBJECT: u64 = 5 << 40;

/// A source and its destination. Either the source or the destination is in an object store.
#[derive(Clone)]
pub struct Pair<'a> {
    /// The bucket that contains the source or the destination.
    pub bucket: &'a dyn Bucket,
    /// Name of the bucket in messages, such as `s3://data`.
    pub shown: String,
    /// The key of an object, or the prefix of the keys of a tree. Empty means the whole bucket.
    pub key: String,
    /// The path of the other end of the copy, in the file system.
    pub path: PathBuf,
}

impl std::fmt::Debug for Pair<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} {}", self.shown, self.key, self.path.display())
    }
}

impl Pair<'_> {
    /// Returns a key in the form that messages show.
    fn shown(&self, key: &str) -> PathBuf {
        PathBuf::from(format!("{}/{key}", self.shown))
    }
}

#[cfg(test)]
mod tests;
