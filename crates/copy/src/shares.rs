//! The distribution of one copy among several hosts. This module does no I/O.
//!
//! The hosts of a copy do not communicate with each other. Each entry has a key, which is a hash of
//! its path below the top of the source. The key determines the share of the entry. In this way,
//! all hosts compute the same shares from the number of shares alone, also after an interruption.
//!
//! # Invariants
//! - Each entry that is not a directory belongs to exactly one share. Each piece of a large file
//!   also belongs to exactly one share.
//! - The share of an entry depends only on its path and the number of shares. The share does not
//!   depend on the order of a listing, nor on other entries.
//! - If two shares have pieces of the same file, their numbers of pieces differ by at most one.
//!
//! The invariants compare all shares of a copy, and each process has only one share, so no function
//! can check them.
//!
//! Held by the tests `each_entry_and_piece_has_exactly_one_share`,
//! `keys_of_entries_are_the_same_in_every_program_version` and
//! `pieces_of_one_file_are_spread_evenly_over_shares`.

use sha2::{Digest, Sha256};
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

/// Maximum number of shares, and so the maximum number of hosts of one copy.
pub const MOST_SHARES: u32 = 1024;

/// The part of a copy that one process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// The whole copy, without other processes.
    #[default]
    Whole,
    /// The first part: creates the directories, and begins the incomplete copies of large files.
    Prepare,
    /// Copies one share of the files, and of the pieces of large files.
    Share(Share),
    /// The last part: checks that every entry is copied, and copies the missing entries. Creates
    /// hard links, sets the attributes of directories, and renames large files to their final
    /// names.
    Finish,
}

/// One of the shares into which a copy is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The index of the share, counted from 0.
    index: u32,
    /// The number of all shares of the copy.
    count: u32,
    /// Whether the source has files that are copied in pieces. Only then does the process of a
    /// share open files that belong to other shares.
    has_large: bool,
}

/// The key of an entry, which is a hash of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Returns the key of the source itself, for the pair with the index `number`.
    pub fn of_pair(number: usize) -> Self {
        Self::of(number as u64, OsStr::new(""))
    }

    /// Returns the key of the entry `name` of a directory. `self` is the key of the directory.
    #[must_use]
    pub fn entry(self, name: &OsStr) -> Self {
        Self::of(self.0, name)
    }

    fn of(above: u64, name: &OsStr) -> Self {
        let hash = Sha256::new().chain_update(above.to_le_bytes()).chain_update(name.as_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        let begin = hash.first_chunk::<8>().expect("a hash of 32 bytes");
        Self(u64::from_le_bytes(*begin))
    }
}

impl Share {
    /// Creates the share with the index `index` of `count` shares.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if `index` is too large, or if there are too many shares.
    pub fn new(index: u32, count: u32, has_large: bool) -> Result<Self> {
        if index >= count || count > MOST_SHARES {
            let what = format!(
                "invalid share {index} of {count}: expected at most {MOST_SHARES} shares, with \
                 numbers from 0 to the number of shares minus 1"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        Ok(Self { index, count, has_large })
    }

    /// Whether the source has files that are copied in pieces.
    pub fn has_large(&self) -> bool {
        self.has_large
    }

    /// Whether the entry with this key belongs to this share.
    pub fn has_entry(&self, key: Key) -> bool {
        self.has_piece(key, 0)
    }

    /// Whether a piece of a large file belongs to this share. The first piece belongs to the share
    /// of the file's key, the second piece to the next share, and so on.
    pub fn has_piece(&self, key: Key, piece: u64) -> bool {
        let count = u64::from(self.count);
        (key.0 % count + piece % count) % count == u64::from(self.index)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Prepare => f.write_str("prepare"),
            Self::Finish => f.write_str("finish"),
            Self::Share(Share { index, count, has_large }) => {
                write!(f, "{index}/{count}{}", if *has_large { "+" } else { "" })
            }
        }
    }
}

impl FromStr for Part {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || {
            let what = format!(
                "invalid part '{text}' of a copy: expected whole, prepare, finish or a share, \
                 such as 0/4"
            );
            Error::new(ErrorCode::InvalidArgument, what)
        };
        match text {
            "whole" => return Ok(Self::Whole),
            "prepare" => return Ok(Self::Prepare),
            "finish" => return Ok(Self::Finish),
            _ => {}
        }
        let (share, has_large) = match text.strip_suffix('+') {
            Some(share) => (share, true),
            None => (text, false),
        };
        let (index, count) = share.split_once('/').ok_or_else(unknown)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| unknown());
        Share::new(number(index)?, number(count)?, has_large).map(Self::Share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn shares(count: u32) -> Vec<Share> {
        (0..count).map(|index| Share::new(index, count, true).unwrap()).collect()
    }

    fn key(pair: usize, path: &[Vec<u8>]) -> Key {
        path.iter()
            .fold(Key::of_pair(pair), |key, name| key.entry(&OsString::from_vec(name.clone())))
    }

    proptest! {
        #[test]
        fn each_entry_and_piece_has_exactly_one_share(
            pair in 0..3_usize,
            path in prop::collection::vec(prop::collection::vec(1..=255_u8, 1..20), 0..6),
            count in 1..=MOST_SHARES,
            piece in any::<u64>(),
        ) {
            let (all, key) = (shares(count), key(pair, &path));
            prop_assert_eq!(all.iter().filter(|it| it.has_entry(key)).count(), 1);
            prop_assert_eq!(all.iter().filter(|it| it.has_piece(key, piece)).count(), 1);
            let owner = all.iter().position(|it| it.has_entry(key));
            prop_assert_eq!(owner, all.iter().position(|it| it.has_piece(key, 0)));
        }

        #[test]
        fn pieces_of_one_file_are_spread_evenly_over_shares(
            name in prop::collection::vec(1..=255_u8, 1..20),
            count in 1..=64_u32,
            pieces in 2..300_u64,
        ) {
            let key = key(0, &[name]);
            let numbers: Vec<_> = shares(count)
                .iter()
                .map(|share| (0..pieces).filter(|it| share.has_piece(key, *it)).count() as u64)
                .collect();
            prop_assert_eq!(numbers.iter().sum::<u64>(), pieces);
            let (least, most) = (numbers.iter().min(), numbers.iter().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 1, "{:?}", numbers);
        }

        #[test]
        fn parts_of_a_shared_copy_survive_formatting_and_parsing(
            count in 1..=MOST_SHARES,
            index in 0..MOST_SHARES,
            has_large in any::<bool>(),
        ) {
            let share = Share::new(index % count, count, has_large).unwrap();
            for part in [Part::Share(share), Part::Whole, Part::Prepare, Part::Finish] {
                prop_assert_eq!(part.to_string().parse::<Part>().unwrap(), part);
            }
        }
    }

    #[test]
    fn files_are_spread_over_all_shares() {
        let all = shares(8);
        let mut numbers = [0_u32; 8];
        for directory in 0..20 {
            let directory = Key::of_pair(0).entry(OsStr::new(&format!("run-{directory}")));
            for file in 0..400 {
                let file = directory.entry(OsStr::new(&format!("output-{file:06}.dat")));
                numbers[all.iter().position(|it| it.has_entry(file)).unwrap()] += 1;
            }
        }
        // The expected number of files of each share is 1000, with a standard deviation of 30.
        assert!(numbers.iter().all(|it| (850..1150).contains(it)), "{numbers:?}");
    }

    #[test]
    fn keys_of_entries_are_the_same_in_every_program_version() {
        // The hash must never change, because hosts of one copy may run different versions of the
        // program.
        let key = Key::of_pair(1).entry(OsStr::new("a")).entry(OsStr::new("b"));
        assert_eq!(key, Key(0x4b28_ad77_5680_4831), "{key:?}");
    }

    #[test]
    fn malformed_names_of_copy_parts_are_refused() {
        for text in ["", "4/4", "1/0", "0/1025", "x/2", "1", "-1/2", "prepared"] {
            assert!(text.parse::<Part>().is_err(), "{text}");
        }
    }
}
