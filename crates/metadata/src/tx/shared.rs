//! The state that all operations of a target share, besides its table.

use crate::limits::Limits;
use crate::locks::file_locks::FileLocks;
use crate::namespace::truncation_table::TruncationTable;
use crate::sharing::table::Sharing;
use crate::target::start::Start;
use crate::tx::locks::Locks;
use crate::tx::removal_guard::RemovalGuard;
use crate::tx::start_numbers::StartNumbers;
use crate::tx::wall_clock::WallClock;
use skep_cluster::placement::{Candidates, Cursor};
use skep_types::{ClusterMap, Epoch, GroupId, Lsn, ShardId, TargetKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Count of the numbers that a target skips if its directory was put back from a copy.
const SKIPPED_NUMBERS: u64 = 1 << 32;

/// Numbers for inodes and transactions, taken from ranges whose reservation is safe.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Next number to assign to an inode or a transaction.
    next: u64,
    /// End of the last range of numbers whose reservation is safe.
    usable: u64,
    /// End of the last reservation, which may not be safe yet, and the log record of that
    /// reservation.
    reserved: (u64, Lsn),
}

impl Numbers {
    /// Creates the numbers of a target that starts. `reserved` is the end of the target's last
    /// reservation, if any, and `last` is the last record of the log.
    fn new(reserved: Option<u64>, last: Lsn) -> Self {
        // Numbers below the reservation may have been used. Zero is never used, and one is the
        // root's number.
        let next = reserved.unwrap_or(2).max(2);
        Self { next, usable: next, reserved: (next, last) }
    }

    /// Takes the next number. `None` means that the next reservation must become safe first.
    pub(crate) fn take(&mut self) -> Option<u64> {
        if self.next >= self.usable {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// Skips more numbers than can have been assigned since a copy of the target was made. The
    /// caller calls this before it takes the first number.
    pub(crate) fn skip(&mut self) {
        *self = Self::new(Some(self.reserved.0 + SKIPPED_NUMBERS), self.reserved.1);
    }

    /// Returns the numbers that a newer state of this target can have assigned. A higher number can
    /// only come from a damaged name of a chunk file.
    pub(crate) fn newer(&self) -> Range<u64> {
        let end = self.reserved_end();
        end..end.saturating_add(SKIPPED_NUMBERS)
    }

    /// Whether a number is available without another reservation.
    pub(crate) fn has_usable(&self) -> bool {
        self.next < self.usable
    }

    /// Returns the number of reserved numbers that are left, including numbers whose reservation is
    /// not safe.
    pub(crate) fn left(&self) -> u64 {
        self.reserved.0 - self.next
    }

    /// Returns the end of the last range of reserved numbers.
    pub(crate) fn reserved_end(&self) -> u64 {
        self.reserved.0
    }

    /// Adds a reservation up to `end`, logged in record `lsn`.
    pub(crate) fn reserve(&mut self, end: u64, lsn: Lsn) {
        self.reserved = (end, lsn);
    }

    /// Makes the numbers of the last reservation usable if its record is safe. `lsn` is the last
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
            "numbers are handed out below {}, usable below {} and reserved below {}",
            self.next,
            self.usable,
            self.reserved.0
        );
    }
}

/// The shards and groups in which the target can place new inodes and chunk files, derived from the
/// cluster map.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Shards that this group serves.
    pub(crate) own_shards: Vec<ShardId>,
    /// Metadata groups that serve a shard.
    pub(crate) metadata_groups: Vec<GroupId>,
    pub(crate) candidates: Candidates,
    /// State of round-robin placement.
    pub(crate) cursor: Cursor,
}

/// The state that all operations of a target share, besides its table.
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
    /// Error message for requests that add something, which the target refuses while its disk is
    /// almost full. `None` means that its disk has enough free space.
    pub(crate) shortage: Option<String>,
    /// Time on a monotonic clock, for leases and pauses.
    pub(crate) now: Duration,
    /// Time of day of the target.
    pub(crate) wall: WallClock,
}

impl Shared {
    /// Creates the state of a target that starts, before anything is loaded.
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
                metadata_groups: Vec::new(),
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

    /// Replaces the cluster map, and derives the placement from it.
    pub(crate) fn set_map(&mut self, map: Arc<ClusterMap>) {
        let placement = &mut self.placement;
        placement.candidates = Candidates::new(&map);
        placement.metadata_groups = map
            .groups
            .iter()
            .filter(|group| {
                group.kind == TargetKind::Metadata
                    && map.shards.iter().any(|range| range.group == group.id)
            })
            .map(|group| group.id)
            .collect();
        placement.own_shards = map
            .shards
            .iter()
            .filter(|range| range.group == self.group)
            .flat_map(|range| (range.first.raw()..=range.last.raw()).map(ShardId::new))
            .collect();
        self.map = map;
    }
}
