//! The state that all operations of a target use, besides the table of stored records.

use crate::limits::Limits;
use crate::locks::file_locks::FileLocks;
use crate::namespace::truncation_table::TruncationTable;
use crate::sharing::table::Sharing;
use crate::target::start::Start;
use crate::tx::locks::Locks;
use crate::tx::removal_guard::RemovalGuard;
use crate::tx::start_numbers::StartNumbers;
use crate::tx::wall_clock::WallClock;
use skep_cluster::placement::{Candidates, Cursor, fittest_metadata_groups};
use skep_types::{ClusterMap, Epoch, GroupId, Lsn, ShardId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A target whose directory was restored from a backup skips this number of inode and transaction
/// numbers.
const SKIPPED_NUMBERS: u64 = 1 << 32;

/// Assigns numbers to inodes and transactions, from ranges whose reservation is *safe*.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Next number to assign to an inode or a transaction.
    next: u64,
    /// End of the last range of numbers whose reservation is *safe*.
    usable: u64,
    /// End of the last reservation, and the log record of this reservation. The record may not be
    /// *safe* yet.
    reserved: (u64, Lsn),
}

impl Numbers {
    /// Creates the numbers when a target starts. `reserved` is the end of the target's last
    /// reservation. `None` means that the target has made no reservation. `last` is the LSN of the
    /// last record of the log.
    fn new(reserved: Option<u64>, last: Lsn) -> Self {
        // All numbers of earlier reservations may have been used. Number zero is never used, and
        // number one belongs to the root.
        let next = reserved.unwrap_or(2).max(2);
        Self { next, usable: next, reserved: (next, last) }
    }

    /// Takes the next number. `None` means that no number is usable until the next reservation is
    /// *safe*.
    pub(crate) fn take(&mut self) -> Option<u64> {
        if self.next >= self.usable {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// Skips more numbers than the target can have assigned after the backup of its directory. The
    /// caller calls this function before it takes the first number.
    pub(crate) fn skip(&mut self) {
        *self = Self::new(Some(self.reserved.0 + SKIPPED_NUMBERS), self.reserved.1);
    }

    /// Returns the range of numbers that a newer state of this target can have assigned. Only a
    /// damaged name of a chunk file can contain a higher number.
    pub(crate) fn newer(&self) -> Range<u64> {
        let end = self.reserved_end();
        end..end.saturating_add(SKIPPED_NUMBERS)
    }

    /// Whether the target may have assigned `number`. If so, it never assigns this number again.
    pub(crate) fn may_be_assigned(&self, number: u64) -> bool {
        number < self.next
    }

    /// Whether [`Self::take`] returns a number now, without a wait for a reservation.
    pub(crate) fn has_usable(&self) -> bool {
        self.next < self.usable
    }

    /// Returns how many reserved numbers are left, including numbers whose reservation is not
    /// *safe* yet.
    pub(crate) fn left(&self) -> u64 {
        self.reserved.0 - self.next
    }

    /// Returns the end of the last range of reserved numbers.
    pub(crate) fn reserved_end(&self) -> u64 {
        self.reserved.0
    }

    /// Adds a reservation of all numbers below `end`, which the log record `lsn` contains.
    pub(crate) fn reserve(&mut self, end: u64, lsn: Lsn) {
        self.reserved = (end, lsn);
    }

    /// Makes the numbers of the last reservation usable if its record is *safe*. `lsn` is the last
    /// safe record.
    pub(crate) fn safe(&mut self, lsn: Lsn) {
        if self.reserved.1 <= lsn {
            self.usable = self.reserved.0;
        }
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.next <= self.usable && self.usable <= self.reserved.0,
            "next inode number ({}) <= end of the usable numbers ({}) <= end of the reserved \
             numbers ({})",
            self.next,
            self.usable,
            self.reserved.0
        );
    }
}

/// The shards and groups in which the target can place new inodes and chunk files, according to the
/// cluster map.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Shards that this group serves.
    pub(crate) own_shards: Vec<ShardId>,
    /// Metadata groups that are the fittest for new directories.
    pub(crate) groups_for_directories: Vec<GroupId>,
    pub(crate) candidates: Candidates,
    /// State of the round-robin placement of new files.
    pub(crate) cursor: Cursor,
}

/// The state that all operations of a target use, besides the table of stored records.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) group: GroupId,
    /// First epoch of this target's term as primary of its group, according to the map at its
    /// start.
    pub(crate) primary_since: Epoch,
    pub(crate) map: Arc<ClusterMap>,
    pub(crate) placement: Placement,
    pub(crate) locks: Locks,
    /// Truncations that are not durable at storage yet.
    pub(crate) truncations: TruncationTable,
    pub(crate) file_locks: FileLocks,
    pub(crate) sharing: Sharing,
    pub(crate) numbers: Numbers,
    pub(crate) starts: StartNumbers,
    pub(crate) removal: RemovalGuard,
    pub(crate) limits: Limits,
    /// The error message for requests that need space, which the target refuses while the disk is
    /// almost full. `None` means that the disk has enough free space.
    pub(crate) shortage: Option<String>,
    /// Time on a monotonic clock, for leases and pauses.
    pub(crate) now: Duration,
    /// Time of day of the target.
    pub(crate) wall: WallClock,
}

impl Shared {
    /// Creates the state when a target starts. The caller loads the contents of the store
    /// afterwards.
    pub(crate) fn new(start: &Start, reserved: Option<u64>, last: Lsn) -> Self {
        Self {
            group: start.group,
            primary_since: start
                .map
                .group(start.group)
                .map(|group| group.primary_since)
                .unwrap_or_default(),
            map: Arc::new(ClusterMap::empty(start.map.cluster)),
            placement: Placement {
                own_shards: Vec::new(),
                groups_for_directories: Vec::new(),
                candidates: Candidates::new(&start.map),
                cursor: Cursor::default(),
            },
            locks: Locks::default(),
            truncations: TruncationTable::default(),
            file_locks: FileLocks::default(),
            sharing: Sharing::default(),
            numbers: Numbers::new(reserved, last),
            starts: StartNumbers::default(),
            removal: RemovalGuard::default(),
            limits: start.limits.clone(),
            shortage: None,
            now: start.now,
            wall: WallClock::new(start.now, start.wall),
        }
    }

    /// Replaces the cluster map, and computes the placement from it.
    pub(crate) fn set_map(&mut self, map: Arc<ClusterMap>) {
        let placement = &mut self.placement;
        placement.candidates = Candidates::new(&map);
        placement.groups_for_directories = fittest_metadata_groups(&map);
        placement.own_shards = map
            .shards
            .iter()
            .filter(|range| range.group == self.group)
            .flat_map(|range| (range.first.raw()..=range.last.raw()).map(ShardId::new))
            .collect();
        self.map = map;
    }
}
