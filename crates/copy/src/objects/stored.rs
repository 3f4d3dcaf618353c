//! Attributes of files, stored in the metadata of objects. This module does no I/O.
//!
//! The metadata have the names and the form that `s3fs` uses: `mode` (decimal, with the type of the
//! file), `uid`, `gid` and `mtime`. `rclone` uses the same `mtime`, which is seconds since 1970
//! with nine decimals. For this reason, both tools can read the objects that Skep writes. A
//! symbolic link is an object whose body is the target of the link.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The bits of a file's mode that contain the type of the file, from `stat.h`.
const TYPE: u32 = 0o170_000;
const LINK: u32 = 0o120_000;
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
/// Number of nanoseconds in a second.
const NANO: i128 = 1_000_000_000;

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Link,
    Other,
}

/// The attributes that the metadata of an object contain. `None` means that the metadata lack the
/// attribute, for example because another program has written the object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// Type and permissions of the file.
    mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub(super) modified: Option<(i64, i64)>,
}

impl Stored {
    /// Reads the attributes from the metadata of an object. A value in an unknown form counts as
    /// missing.
    pub(super) fn of(metadata: &BTreeMap<String, String>) -> Self {
        let number = |name: &str| metadata.get(name)?.parse().ok();
        Self {
            mode: number("mode"),
            uid: number("uid"),
            gid: number("gid"),
            modified: metadata.get("mtime").and_then(|it| parse_time(it)),
        }
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        Some(match self.mode? & TYPE {
            // Some programs store the permissions without the type.
            FILE | 0 => Kind::File,
            DIRECTORY => Kind::Directory,
            LINK => Kind::Link,
            _ => Kind::Other,
        })
    }

    /// Returns the permission bits for the copy. A file never gets the bits `setuid` and `setgid`,
    /// because the users who may write to a bucket are not the owners of the file system. A
    /// directory gets the bit `setgid` only if the user of the copy trusts the users of the bucket
    /// (`is_trusted`).
    pub(super) fn permissions(&self, is_trusted: bool) -> Option<u32> {
        let mask = match (self.kind()?, is_trusted) {
            (Kind::Directory, true) => 0o3777,
            (Kind::Directory, false) => 0o1777,
            _ => 0o777,
        };
        Some(self.mode? & mask)
    }
}

/// Returns the metadata for the object of a file. With `owners`, they contain the owner and the
/// group.
pub(super) fn metadata(file: &Metadata, owners: bool) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([
        ("mode".to_owned(), file.mode().to_string()),
        ("mtime".to_owned(), time(file.mtime(), file.mtime_nsec())),
    ]);
    if owners {
        all.insert("uid".to_owned(), file.uid().to_string());
        all.insert("gid".to_owned(), file.gid().to_string());
    }
    all
}

/// Whether the metadata `found` of an object contain all of `wanted`.
pub(super) fn has(found: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(name, value)| found.get(name) == Some(value))
}

fn time(seconds: i64, nanoseconds: i64) -> String {
    let total = i128::from(seconds) * NANO + i128::from(nanoseconds);
    let sign = if total < 0 { "-" } else { "" };
    format!("{sign}{}.{:09}", total.abs() / NANO, total.abs() % NANO)
}

fn parse_time(text: &str) -> Option<(i64, i64)> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |it: &str| it.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 18 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let total = whole.parse::<i128>().ok()? * NANO + fraction.parse::<i128>().ok()?;
    let total = if is_negative { -total } else { total };
    let seconds = i64::try_from(total.div_euclid(NANO)).ok()?;
    Some((seconds, i64::try_from(total.rem_euclid(NANO)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert_eq, proptest};

    fn of(mode: &str) -> Stored {
        Stored::of(&BTreeMap::from([("mode".to_owned(), mode.to_owned())]))
    }

    #[test]
    fn object_attributes_written_by_other_tools_are_read() {
        assert_eq!(parse_time("1700000000.123456789"), Some((1_700_000_000, 123_456_789)));
        // `rclone` leaves out zeros at the end of the fraction, `s3fs` leaves out the fraction.
        assert_eq!(parse_time("1700000000.5"), Some((1_700_000_000, 500_000_000)));
        assert_eq!(parse_time("1700000000"), Some((1_700_000_000, 0)));
        for wrong in ["", ".5", "1e9", "1.x", "2020-01-01T00:00:00Z", "99999999999999999999"] {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
        assert_eq!(
            (of("33188").kind(), of("33188").permissions(false)),
            (Some(Kind::File), Some(0o644))
        );
        assert_eq!(
            (of("420").kind(), of("420").permissions(true)),
            (Some(Kind::File), Some(0o644))
        );
        assert_eq!(of("41471").kind(), Some(Kind::Link));
        assert_eq!(of("4480").kind(), Some(Kind::Other));
        assert_eq!(of("rw").kind(), None);
    }

    #[test]
    fn file_copied_from_a_bucket_never_gets_setuid() {
        let mode = |bits: u32, is_trusted| of(&bits.to_string()).permissions(is_trusted);
        assert_eq!(mode(FILE | 0o6755, true), Some(0o755));
        assert_eq!(mode(DIRECTORY | 0o7775, true), Some(0o3775));
        assert_eq!(mode(DIRECTORY | 0o7775, false), Some(0o1775));
    }

    proptest! {
        #[test]
        fn stored_times_are_read_back_unchanged(
            seconds in -10_000_000_000..100_000_000_000_i64,
            nano in 0..NANO as i64,
        ) {
            prop_assert_eq!(parse_time(&time(seconds, nano)), Some((seconds, nano)));
        }
    }
}
