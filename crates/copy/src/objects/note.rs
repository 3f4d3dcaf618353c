//! The note about an upload that is not complete. A later run and other hosts of the same copy use
//! the note to find the upload. The note is a small object.
//!
//! The object store shows neither the metadata of an upload nor the version of its file. The note
//! contains both, so that parts of another version are never used.

use super::Pair;
use crate::plan::{Version, reserved_names};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Maximum length of a note that is read. A key of 1024 bytes takes at most six times as many bytes
/// in JSON.
const MOST_BYTES: u64 = 64 << 10;

/// The note about one upload. Notes of earlier versions of this program lack the field `copy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The key of the object that the upload creates.
    key: String,
    /// The upload id that the object store has assigned.
    pub(super) upload: String,
    /// The version of the file, as text. It does not contain the device number, because this number
    /// changes when a network file system is mounted again.
    source: String,
    /// The metadata that the object will have.
    metadata: BTreeMap<String, String>,
    /// Length of each part of the upload except the last.
    part: u64,
    /// The identity of the copy to which the upload belongs ([`identity`]).
    #[serde(default)]
    copy: String,
}

/// The properties that an upload must have so that a run can continue it.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) key: &'a str,
    pub(super) version: Version,
    pub(super) metadata: &'a BTreeMap<String, String>,
    pub(super) part: u64,
    /// The identity of the copy. A run also continues the upload of another copy of the same file.
    pub(super) copy: &'a str,
}

impl Note {
    pub(super) fn new(wanted: &Wanted<'_>, upload: String) -> Self {
        Self {
            key: wanted.key.to_owned(),
            upload,
            source: source(wanted.version),
            metadata: wanted.metadata.clone(),
            part: wanted.part,
            copy: wanted.copy.to_owned(),
        }
    }

    /// Whether the note's upload has these properties, so that a run can use its parts.
    pub(super) fn fits(&self, wanted: &Wanted<'_>) -> bool {
        let same_copy = Wanted { copy: &self.copy, ..*wanted };
        self == &Self::new(&same_copy, self.upload.clone())
    }

    /// Whether the upload belongs to the copy with this identity.
    pub(super) fn is_of(&self, copy: &str) -> bool {
        self.copy == copy
    }
}

/// Returns the identity of a copy: its source, as text. `directory` is the source, or the directory
/// that contains it. Different hosts of a copy see the same directory. The identity contains the
/// creation time of this directory, because two hosts may have different directories with the same
/// path.
pub(super) fn identity(path: &Path, directory: &Metadata) -> String {
    let created = directory.created().ok().and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    let created = created.map_or(0, |it| it.as_nanos());
    format!("{}, inode {}, created {created}", path.display(), directory.ino())
}

fn source(version: Version) -> String {
    format!(
        "inode {}, length {}, modified {}.{:09}, changed {}.{:09}",
        version.inode,
        version.len,
        version.modified.0,
        version.modified.1,
        version.changed.0,
        version.changed.1
    )
}

/// Returns the common beginning of the keys of a tree's notes about uploads. `prefix` is the common
/// beginning of all keys of the tree. It is empty or ends with `/`.
pub(super) fn all(prefix: &str) -> String {
    format!("{prefix}.skep-copy-uploads/")
}

/// Returns the key of the note about the upload of an object.
pub(super) fn key(prefix: &str, key: &str) -> String {
    format!("{}{}", all(prefix), reserved_names(OsStr::new(key)))
}

/// Reads a note. `None` means that the note does not exist.
///
/// # Errors
/// Returns the errors of `skep_s3::store::Objects::get`.
pub(super) fn read(pair: &Pair<'_>, key: &str) -> Result<Option<Note>> {
    let mut text = Vec::new();
    let mut take = |bytes: &[u8]| {
        text.extend_from_slice(bytes);
        match text.len() as u64 > MOST_BYTES {
            true => Err(Error::new(ErrorCode::TooLarge, "the record of an upload is too long")),
            false => Ok(()),
        }
    };
    match pair.bucket.get(key, None, None, &mut take) {
        Ok(_) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::TooLarge) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Stores a note as an object.
///
/// # Errors
/// Returns the errors of `skep_s3::store::Objects::put`.
pub(super) fn write(pair: &Pair<'_>, key: &str, note: &Note) -> Result<()> {
    let text = serde_json::to_string(note)
        .map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?;
    pair.bucket.put(key, &text.as_bytes(), &BTreeMap::new()).map(drop)
}

/// Removes an upload from the object store, and its note.
///
/// # Errors
/// Returns the errors of `skep_s3::store::Uploads::abort`.
pub(super) fn discard(pair: &Pair<'_>, key: &str, note: Option<&Note>) -> Result<()> {
    if let Some(note) = note {
        pair.bucket.abort(&note.key, &note.upload)?;
    }
    pair.bucket.remove(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_continues_only_for_an_unchanged_source_file() {
        let version = Version { device: 1, inode: 2, len: 3, modified: (4, 5), changed: (6, 7) };
        let metadata = BTreeMap::from([("mode".to_owned(), "33188".to_owned())]);
        let wanted = Wanted { key: "a", version, metadata: &metadata, part: 9, copy: "c" };
        let note = Note::new(&wanted, "u".into());
        assert!(note.fits(&wanted) && note.is_of("c") && !note.is_of("d"));
        assert!(note.fits(&Wanted { copy: "d", ..wanted }));
        assert!(note.fits(&Wanted { version: Version { device: 8, ..version }, ..wanted }));
        let none = BTreeMap::new();
        for other in [
            Wanted { key: "b", ..wanted },
            Wanted { part: 8, ..wanted },
            Wanted { metadata: &none, ..wanted },
            Wanted { version: Version { inode: 3, ..version }, ..wanted },
            Wanted { version: Version { changed: (6, 8), ..version }, ..wanted },
        ] {
            assert!(!note.fits(&other), "{other:?}");
        }
    }
}
