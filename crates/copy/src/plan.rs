//! Names and pieces. Pure.
//!
//! Owns the rule that gives each copy its path, and the pieces of large files. Also owns the list
//! of finished pieces. A second run continues an interrupted copy by this list.

use siphasher::sip::SipHasher13;
use skep_types::{Error, ErrorCode, Result};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Length of a piece. Several threads copy pieces of one file at the same time. A piece is long
/// enough that its sync costs little, and short enough that an interruption loses little.
pub const PIECE: u64 = 64 << 20;
/// Files from this length are copied in pieces.
pub const LARGE: u64 = 2 * PIECE;

/// Returns the number of pieces of a file.
pub fn piece_count(len: u64) -> u64 {
    len.div_ceil(PIECE)
}

/// Returns the bytes of a piece.
pub fn piece(index: u64, len: u64) -> Range<u64> {
    let start = index * PIECE;
    start..len.min(start + PIECE)
}

/// The version of a source's contents, as far as its attributes show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change of the contents: seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// Returns the names of an incomplete copy and of its list of finished pieces. Both are in the
/// directory of the copy. They depend only on the name of the copy, so a second run finds them.
pub fn partial_names(name: &OsStr) -> (OsString, OsString) {
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    let partial = format!(".skep-copy-{:016x}", hasher.finish());
    let list = format!("{partial}.pieces");
    (partial.into(), list.into())
}

/// Returns the first line of the list of finished pieces. A list with another first line belongs to
/// another version of the source.
pub fn list_head(name: &OsStr, version: Version) -> Vec<u8> {
    let (seconds, nanoseconds) = version.modified;
    let mut line = format!(
        "skep copy 1, length {}, modified {seconds}.{nanoseconds:09}, pieces of {PIECE}: ",
        version.len
    )
    .into_bytes();
    // The name has no line feed in the list.
    line.extend(name.as_bytes().escape_ascii());
    line.push(b'\n');
    line
}

/// Returns the finished pieces of a list. `None` means that the list belongs to another version.
pub fn finished_pieces(list: &[u8], head: &[u8], len: u64) -> Option<BTreeSet<u64>> {
    let rest = list.strip_prefix(head)?;
    let lines = rest.split_inclusive(|byte| *byte == b'\n');
    // An interrupted run may have left a part of a line.
    let whole = lines.filter_map(|line| line.strip_suffix(b"\n"));
    let numbers = whole.filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok());
    Some(numbers.filter(|index| *index < piece_count(len)).collect())
}

/// A source and its path at the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The source.
    pub source: PathBuf,
    /// The path of its copy.
    pub destination: PathBuf,
}

/// Returns the path of each source's copy.
///
/// One source gets the path of the destination itself, so that a second run with the same arguments
/// continues the first. Several sources, and a file whose destination is a directory, get their own
/// names below the destination. A `/` at the end of the destination asks for this too.
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
                    "cannot copy {}: it has no name of its own; copy it alone",
                    source.display()
                ))
            })?;
            if !names.insert(name.to_owned()) {
                let what = "two sources have this name; copy them to different destinations";
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

    #[test]
    fn list_of_another_version_or_name_is_not_used() {
        let version = Version { len: 9 * PIECE, modified: (17, 5) };
        let head = list_head(OsStr::new("a\nb"), version);
        let list = [&head[..], b"0\n7\n8\n9\nx\n3"].concat();
        let finished = finished_pieces(&list, &head, version.len);
        // Piece 9 does not exist, and the last line is not complete.
        assert_eq!(finished, Some(BTreeSet::from([0, 7, 8])));
        for other in [
            list_head(OsStr::new("a\nc"), version),
            list_head(OsStr::new("a\nb"), Version { len: 1, ..version }),
            list_head(OsStr::new("a\nb"), Version { modified: (17, 6), ..version }),
        ] {
            assert_eq!(finished_pieces(&list, &other, version.len), None);
        }
        assert_eq!(head.iter().filter(|byte| **byte == b'\n').count(), 1);
    }

    #[test]
    fn partial_names_differ_and_are_short() {
        let long = OsString::from("x".repeat(255));
        let (partial, list) = partial_names(&long);
        assert!(partial.len() < 40 && list.len() < 50);
        assert_ne!(partial_names(OsStr::new("a")), partial_names(OsStr::new("b")));
        assert_eq!(partial_names(OsStr::new("a")), partial_names(OsStr::new("a")));
    }

    #[test]
    fn one_source_gets_the_path_of_the_destination() {
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
        assert!(same.context().contains("two sources have this name"), "{same}");
        assert!(pairs_of(&["/a", "/"], "/b", &[]).is_err());
    }
}
