//! The names of copies, and the pieces of large files. This module does no I/O.
//!
//! Owns the rule that gives each copy its path, the division of large files into pieces, and the
//! form of the list of finished pieces. With this list, a second run continues an interrupted copy,
//! and the hosts of one copy work together.

use sha2::{Digest, Sha256};
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Length of a piece in bytes. Several threads copy pieces of one file at the same time. A piece is
/// long enough that its sync is cheap compared with its copy. A piece is short enough that a run
/// after an interruption copies few bytes again.
pub const PIECE: u64 = 64 << 20;
/// Minimum length of a file that is copied in pieces.
pub const LARGE: u64 = 2 * PIECE;

/// Returns the number of pieces of a file with `len` bytes.
pub fn piece_count(len: u64) -> u64 {
    len.div_ceil(PIECE)
}

/// Returns the byte range of the piece `index` of a file with `len` bytes.
pub fn piece(index: u64, len: u64) -> Range<u64> {
    let start = index * PIECE;
    start..len.min(start + PIECE)
}

/// Version of the contents of a source: the attributes that change if the contents change.
///
/// No program can set `ctime`, the time of the last change of the attributes. For this reason, two
/// equal versions have the same bytes, unless a program writes twice within one tick of the file
/// system's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number of the file.
    pub inode: u64,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change of the contents: seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Time of the last change of the contents or attributes: seconds and nanoseconds.
    pub changed: (i64, i64),
}

/// Prefix of all names that are reserved for incomplete copies.
pub const RESERVED: &[u8] = b".skep-copy-";

/// Whether a name is reserved for incomplete copies.
pub fn is_reserved(name: &OsStr) -> bool {
    name.as_bytes().starts_with(RESERVED)
}

/// Returns the prefix that the names of all incomplete copies of `name` have. The prefix contains a
/// hash of 128 bits. No program can find two names with the same hash, so two files never share an
/// incomplete copy.
pub(crate) fn reserved_names(name: &OsStr) -> String {
    let hash = Sha256::digest(name.as_bytes());
    let hash: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!(".skep-copy-{hash}")
}

/// Returns the name of an incomplete copy that no other run uses. `run` is a random number of the
/// run, and `number` counts the copies of the run.
pub fn temporary_name(name: &OsStr, run: u128, number: u64) -> OsString {
    format!("{}.{run:032x}-{number}.tmp", reserved_names(name)).into()
}

/// Whether `candidate` is a temporary name that some run uses for a copy of `name`.
pub fn is_temporary_of(candidate: &OsStr, name: &OsStr) -> bool {
    let begin = format!("{}.", reserved_names(name));
    candidate.as_bytes().starts_with(begin.as_bytes()) && is_temporary(candidate)
}

/// Whether a name is temporary. Later runs do not continue a copy with a temporary name.
pub fn is_temporary(name: &OsStr) -> bool {
    is_reserved(name) && name.as_bytes().ends_with(b".tmp")
}

/// Returns the names of the incomplete copy of a large file and of its list of finished pieces.
/// Both files are in the directory of the copy. The names depend only on the name of the copy, so a
/// second run finds both files.
pub fn partial_names(name: &OsStr) -> (OsString, OsString) {
    let begin = reserved_names(name);
    (format!("{begin}.part").into(), format!("{begin}.pieces").into())
}

/// Returns the first line of the list of finished pieces. If a list has another first line, it
/// belongs to another version of the source, or to another incomplete copy (`copy_inode`).
///
/// After this line, the list has one byte for each piece. Several hosts can record pieces at the
/// same time, because each host writes different bytes. An interruption cannot leave half a record.
///
/// The line does not contain the device number of the source, because this number changes when a
/// network file system is mounted again.
pub fn list_head(name: &OsStr, version: Version, copy_inode: u64) -> Vec<u8> {
    let mut line = format!(
        "skep copy 3, inode {}, length {}, modified {}.{:09}, changed {}.{:09}, \
         copy {copy_inode}, pieces of {PIECE}: ",
        version.inode,
        version.len,
        version.modified.0,
        version.modified.1,
        version.changed.0,
        version.changed.1
    )
    .into_bytes();
    // The name is escaped, because it must not put a line feed into the list.
    line.extend(name.as_bytes().escape_ascii());
    line.push(b'\n');
    line
}

/// The byte of a finished piece in the list. For all other pieces the byte is 0, or it is beyond
/// the end of the list.
pub const FINISHED: u8 = b'1';

/// Returns for each piece whether it is listed as finished. `None` means that the list belongs to
/// another version of the source or another incomplete copy.
pub fn finished_pieces(list: &[u8], head: &[u8], len: u64) -> Option<Vec<bool>> {
    let notes = list.strip_prefix(head)?;
    let count = usize::try_from(piece_count(len)).ok()?;
    Some((0..count).map(|index| notes.get(index) == Some(&FINISHED)).collect())
}

/// A source, and the path of its copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The path of the source.
    pub source: PathBuf,
    /// The path of the copy.
    pub destination: PathBuf,
}

/// Returns each source with the path of its copy.
///
/// The copy of a single source gets the path of the destination itself, so that a second run with
/// the same arguments continues the first. In three cases, the copies are placed below the
/// destination, under the names of their sources: there are several sources, the source is a file
/// and the destination is a directory, or the destination ends with `/`.
///
/// # Errors
/// Returns `InvalidArgument` if a source has no name, or if two sources have the same name.
pub fn pairs(
    sources: &[PathBuf],
    destination: &Path,
    is_directory: impl Fn(&Path) -> bool,
) -> Result<Vec<Pair>> {
    let invalid = |what: String| Error::new(ErrorCode::InvalidArgument, what);
    let [only] = sources else {
        let mut names = BTreeSet::new();
        let below = |source: &PathBuf| {
            let name = source.file_name().ok_or_else(|| {
                invalid(format!(
                    "cannot copy {}: this path does not end with a name; copy this path with a \
                     separate command",
                    source.display()
                ))
            })?;
            if !names.insert(name.to_owned()) {
                let what = "two sources have the same name; copy them to different destinations";
                return Err(invalid(format!("cannot copy {}: {what}", source.display())));
            }
            Ok(Pair { source: source.clone(), destination: destination.join(name) })
        };
        return sources.iter().map(below).collect();
    };
    let asks_below = destination.as_os_str().as_bytes().ends_with(b"/");
    let is_file_in_directory = !is_directory(only) && is_directory(destination);
    let destination = match only.file_name() {
        Some(name) if asks_below || is_file_in_directory => destination.join(name),
        _ => destination.to_owned(),
    };
    Ok(vec![Pair { source: only.clone(), destination }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_file_without_gap_and_overlap() {
        for len in [LARGE, LARGE + 1, 5 * PIECE - 1, 7 * PIECE] {
            let mut next = 0;
            for index in 0..piece_count(len) {
                let range = piece(index, len);
                assert_eq!(range.start, next);
                assert!(range.start < range.end);
                next = range.end;
            }
            assert_eq!(next, len);
        }
    }

    const VERSION: Version =
        Version { device: 1, inode: 2, len: 9 * PIECE, modified: (17, 5), changed: (18, 6) };

    #[test]
    fn piece_list_of_another_file_or_file_version_is_not_used() {
        let head = list_head(OsStr::new("a\nb"), VERSION, 3);
        let list = [&head[..], b"1\0x0\0\0\x0111"].concat();
        let finished = finished_pieces(&list, &head, VERSION.len).unwrap();
        let expected: Vec<_> = (0..9).map(|it| [0, 7, 8].contains(&it)).collect();
        assert_eq!(finished, expected);
        // Pieces beyond the end of the list are not finished. Bytes of the list beyond the last
        // piece are ignored.
        assert_eq!(finished_pieces(&head, &head, VERSION.len).unwrap(), [false; 9]);
        assert_eq!(
            finished_pieces(&[&list[..], b"11"].concat(), &head, VERSION.len),
            Some(expected)
        );
        for other in [
            list_head(OsStr::new("a\nc"), VERSION, 3),
            list_head(OsStr::new("a\nb"), VERSION, 4),
            list_head(OsStr::new("a\nb"), Version { len: 1, ..VERSION }, 3),
            list_head(OsStr::new("a\nb"), Version { inode: 3, ..VERSION }, 3),
            list_head(OsStr::new("a\nb"), Version { modified: (17, 6), ..VERSION }, 3),
            list_head(OsStr::new("a\nb"), Version { changed: (18, 7), ..VERSION }, 3),
        ] {
            assert_eq!(finished_pieces(&list, &other, VERSION.len), None);
        }
        assert_eq!(head.iter().filter(|byte| **byte == b'\n').count(), 1);
    }

    #[test]
    fn temporary_names_of_copies_are_short_and_unique_per_file() {
        let long = OsString::from("x".repeat(255));
        let (partial, list) = partial_names(&long);
        assert!(partial.len() < 60 && list.len() < 60);
        assert_ne!(partial_names(OsStr::new("a")), partial_names(OsStr::new("b")));
        assert_eq!(partial_names(OsStr::new("a")), partial_names(OsStr::new("a")));
        let temporary = temporary_name(&long, u128::MAX, u64::MAX);
        assert!(temporary.len() < 120);
        assert!(is_temporary_of(&temporary, &long) && is_temporary(&temporary));
        assert!(!is_temporary_of(&temporary, OsStr::new("x")) && !is_temporary(&partial));
        assert!(is_reserved(&partial) && is_reserved(&list) && !is_reserved(&long));
    }

    #[test]
    fn destination_path_follows_from_sources_and_final_slash() {
        let pairs_of = |sources: &[&str], destination: &str, directories: &[&str]| {
            let sources: Vec<_> = sources.iter().map(PathBuf::from).collect();
            let is_directory = |path: &Path| directories.contains(&path.to_str().unwrap());
            let pairs = pairs(&sources, Path::new(destination), is_directory)?;
            let shown = pairs.into_iter().map(|it| it.destination.display().to_string());
            Ok::<_, Error>(shown.collect::<Vec<_>>())
        };
        assert_eq!(pairs_of(&["/a/tree"], "/b", &["/a/tree", "/b"]).unwrap(), ["/b"]);
        assert_eq!(pairs_of(&["/a/tree"], "/b/", &["/a/tree", "/b/"]).unwrap(), ["/b/tree"]);
        assert_eq!(pairs_of(&["/a/file"], "/b", &["/b"]).unwrap(), ["/b/file"]);
        assert_eq!(pairs_of(&["/a/file"], "/b", &[]).unwrap(), ["/b"]);
        assert_eq!(pairs_of(&["/a/x", "/a/y"], "/b", &[]).unwrap(), ["/b/x", "/b/y"]);
        let same = pairs_of(&["/a/x", "/c/x"], "/b", &[]).unwrap_err();
        assert!(same.context().contains("two sources have the same name"), "{same}");
        assert!(pairs_of(&["/a", "/"], "/b", &[]).is_err());
    }
}
